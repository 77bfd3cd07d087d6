//! A server that lies to its client over TCP: it serves a small store, and changes what it answers as some bytes say.
//! The tests call this with random bytes, and the fuzzer with its own (`fuzz/`).

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use caravan_fabric::contract::Provider;
use caravan_fabric::{Error, Link, RegionAccess, RegionToken};
use caravan_segment::barrier::Fences;
use caravan_store::calls::{CallService, ClientSessions, RegionLender};
use caravan_store::{ConnectedStore, ObjectAddress, ScanCursor, Store, StoreOptions};

const KEYS: u8 = 6;
/// For how long a client that got a part of an answer waits for the rest.
const SILENCE: Duration = Duration::from_millis(20);
/// How long a client may take for anything.
const LIMIT: Duration = Duration::from_secs(60);
const HEAD_BYTES: usize = 12;

/// Answers a client as `input` says. The client ends with an error or a wrong answer, and in time.
pub fn as_replies(input: &[u8]) {
    let store = Arc::new(Store::embedded(StoreOptions::new(8 << 20)).expect("a store"));
    for key in 0..KEYS {
        store.put(&[key], &vec![key; 300 * usize::from(key)]).expect("room");
    }
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address").to_string();
    std::thread::scope(|scope| {
        let server = scope.spawn(|| {
            let (channel, _) = listener.accept().expect("a client");
            lie(channel, &store, input);
            // A client that comes back is told to go away.
            while let Ok((mut channel, _)) = listener.accept() {
                let mut request = [0; 64];
                match channel.read(&mut request) {
                    Ok(1) => return,
                    _ => _ = channel.write_all(b"-ERR no more lies\r\n"),
                }
            }
        });
        let begin = Instant::now();
        if let Ok(client) = Store::connect(&*address) {
            ask(&client);
        }
        assert!(begin.elapsed() < LIMIT, "the client took {:?}", begin.elapsed());
        // The byte that ends the server.
        TcpStream::connect(&address).and_then(|mut end| end.write_all(b".")).expect("the server listens");
        server.join().expect("the server lies to the end");
    });
}

/// Asks for everything that a client can ask for without a loop of its own.
fn ask(client: &ConnectedStore) {
    for _ in 0..2 {
        (0..=KEYS).for_each(|key| _ = client.entry(&[key]));
    }
    let keys: Vec<[u8; 1]> = (0..=KEYS).map(|key| [key]).collect();
    let _ = client.get_many(&keys, |_, _| ());
    let _ = client.scan(ScanCursor::START, 10, |_| ());
    let _ = client.counts();
    let _ = client.watch(&[2]);
    let _ = client.random_key(3);
    let _ = client.clear();
    let _ = client.read(ObjectAddress::from_parts(1 << 20, 0));
    let _ = client.put(&[0], b"value");
    let _ = client.delete(&[1]);
}

struct Lender<'l> {
    link: &'l mut Link,
    store: &'l Store,
}

impl RegionLender for Lender<'_> {
    fn lend(&mut self, known: u32) -> Result<Vec<(u64, RegionToken)>, Error> {
        let region = self.store.extent_from(0).ok().flatten().filter(|_| known == 0);
        region.map(|region| Ok((0, self.link.lend(&region, RegionAccess::Read)?))).into_iter().collect()
    }
}

/// Serves one client until the input or the client ends.
fn lie(mut channel: TcpStream, store: &Arc<Store>, mut input: &[u8]) {
    channel.set_read_timeout(Some(LIMIT)).expect("set");
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n1\r\n") {
        let mut byte = [0];
        channel.read_exact(&mut byte).expect("the client attaches");
        request.push(byte[0]);
    }
    let mut greeting = store.greeting();
    // One client in 16 gets a wrong one.
    if let [choice, at, bits, rest @ ..] = input {
        if choice % 16 == 1 {
            let at = usize::from(*at) % greeting.len();
            greeting[at] ^= bits;
        }
        input = rest;
    }
    let answer = [format!("${}\r\n", greeting.len()).as_bytes(), &greeting, b"\r\n"].concat();
    if channel.write_all(&answer).is_err() {
        return;
    }
    let at = channel.local_addr().expect("an address").ip();
    let Ok(mut link) =
        Link::accept_on(&mut channel, &[Provider::Tcp], 64 << 10, Some(at), Fences::Asymmetric)
    else {
        return;
    };
    let sessions = Arc::new(ClientSessions::new(store).expect("sessions"));
    let mut service = CallService::new(Arc::clone(store), sessions);
    let (mut requests, mut heard) = (Vec::new(), Instant::now());
    while !input.is_empty() {
        let Ok(unread) = link.refresh() else { return };
        if unread > 0 {
            let before = requests.len();
            requests.resize(before + unread, 0);
            let read = link.read(&mut requests[before..]);
            requests.truncate(before + read);
            if link.release().is_err() {
                return;
            }
        } else if heard.elapsed() > SILENCE {
            return;
        } else {
            std::thread::yield_now();
            continue;
        }
        heard = Instant::now();
        let (mut replies, mut taken) = (Vec::new(), 0);
        loop {
            let mut reply = Vec::new();
            // One at a time, so that each can be changed.
            let one = first_call(&requests[taken..]);
            let mut lender = Lender { link: &mut link, store };
            let Ok((bytes @ 1.., _)) = service.serve(one, &mut reply, &mut lender) else { break };
            taken += bytes;
            change(&mut reply, &mut input);
            replies.extend(reply);
        }
        requests.drain(..taken);
        if link.append(&replies).is_err() || link.publish().is_err() {
            return;
        }
    }
}

/// Returns the first call of some requests, if it is whole.
fn first_call(requests: &[u8]) -> &[u8] {
    let bytes = requests.first_chunk::<4>().map_or(0, |bytes| u32::from_be_bytes(*bytes) as usize);
    requests.get(..HEAD_BYTES + bytes).unwrap_or_default()
}

/// Changes a reply as the next bytes of the input say.
fn change(reply: &mut Vec<u8>, input: &mut &[u8]) {
    let Some((choice, rest)) = input.split_first() else { return };
    *input = rest;
    match choice % 8 {
        // Another body, and another status.
        0 | 1 => {
            let bytes = rest.len().min(usize::from(choice / 8) * 3);
            reply.truncate(HEAD_BYTES);
            reply.extend_from_slice(&rest[..bytes]);
            *input = &rest[bytes..];
            reply[..4].copy_from_slice(&(bytes as u32).to_be_bytes());
            reply[9] = if choice % 8 == 0 { 0 } else { choice / 8 };
        }
        // Other bytes within it: eight of them, so that a number can become any other.
        2 | 3 => {
            if let [at, bits @ ..] = rest {
                let (at, count) = (usize::from(*at) % reply.len(), bits.len().min(8));
                reply.iter_mut().skip(at).zip(bits).take(count).for_each(|(byte, bits)| *byte ^= bits);
                *input = &bits[count..];
            }
        }
        // A part of it.
        4 if choice / 8 % 4 == 0 => reply.truncate(usize::from(choice / 32)),
        _ => {}
    }
}
