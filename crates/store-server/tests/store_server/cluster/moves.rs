//! Parts that move from server to server while clients write: no write is lost or done twice, and everybody finds the
//! new place.

use std::net::TcpListener;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use caravan_cluster::PartId;
use caravan_store::{ClusterStore, ConnectOptions, Store, StoreError, StoreTransport};
use caravan_store_server::{StoreAnswer, StoreClient};

use super::rig::ClusterRig;

const SERVERS: usize = 3;
const PARTS: u16 = 4;
const MOVES: usize = 60;

/// A client of the Redis protocol that goes where it is sent. It only connects to the sockets of the servers, in their
/// order.
struct Wanderer {
    clients: Vec<StoreClient>,
    addresses: Vec<String>,
    /// Where it asks first.
    at: usize,
    sent_on: u64,
}

impl Wanderer {
    fn new(rig: &ClusterRig) -> Self {
        let clients = rig.servers.iter().map(|server| server.client()).collect();
        let addresses = rig.servers.iter().map(|server| server.address()).collect();
        Self { clients, addresses, at: 0, sent_on: 0 }
    }

    /// Repeats a command until a server does it.
    fn call(&mut self, words: &[&[u8]]) -> StoreAnswer {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            assert!(Instant::now() < deadline, "nobody serves {words:?}");
            let answer = self.clients[self.at].call(words).expect("an answer");
            match &answer {
                StoreAnswer::Error(text) if text.starts_with(b"MOVED ") => {
                    let text = String::from_utf8_lossy(text);
                    let address = text.rsplit(' ').next().unwrap_or_default();
                    self.at = self.addresses.iter().position(|known| known == address).expect("a server");
                    self.sent_on += 1;
                }
                StoreAnswer::Error(text) if text.starts_with(b"TRYAGAIN ") => std::thread::yield_now(),
                _ => return answer,
            }
        }
    }
}

/// Moves parts around until there were enough moves, and each of the counters has grown since the last one.
fn move_around(rig: &mut ClusterRig, counters: &[&AtomicU64]) {
    for step in 0..MOVES {
        let part = PartId(step as u16 % PARTS);
        let to = (rig.holder(part) + 1 + step / usize::from(PARTS) % 2) % SERVERS;
        rig.move_part(part, to);
        // Clients work between two moves, however slow the machine is.
        let before: Vec<u64> = counters.iter().map(|counter| counter.load(Ordering::Relaxed)).collect();
        let deadline = Instant::now() + Duration::from_secs(60);
        while counters.iter().zip(&before).any(|(counter, before)| counter.load(Ordering::Relaxed) == *before)
        {
            assert!(Instant::now() < deadline, "a client stands still after move {step}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

#[test]
fn clients_of_the_redis_protocol_follow_the_parts() {
    const CLIENTS: usize = 3;
    let mut rig = ClusterRig::new(SERVERS, PARTS);
    let keys: Vec<String> = (0..PARTS).map(|part| rig.key_of(PartId(part), "counter")).collect();
    let pairs: Vec<[String; 2]> =
        (0..PARTS).map(|part| ["left", "right"].map(|prefix| rig.key_of(PartId(part), prefix))).collect();
    let is_over = AtomicBool::new(false);
    let done = [const { AtomicU64::new(0) }; CLIENTS];
    let wanderers: Vec<Wanderer> = (0..CLIENTS).map(|_| Wanderer::new(&rig)).collect();
    let sent_on: u64 = std::thread::scope(|scope| {
        let (is_over, keys, pairs) = (&is_over, &keys, &pairs);
        let spawned = wanderers.into_iter().zip(&done).map(|(mut client, done)| {
            scope.spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    // Each round does the same to each part.
                    for key in keys {
                        assert!(matches!(client.call(&[b"INCR", key.as_bytes()]), StoreAnswer::Integer(_)));
                    }
                    for [left, right] in pairs {
                        let words = [&b"MSETNX"[..], left.as_bytes(), b"1", right.as_bytes(), b"1"];
                        if client.call(&words) == StoreAnswer::Integer(0) {
                            let words = [b"MGET", left.as_bytes(), right.as_bytes()];
                            let StoreAnswer::Array(values) = client.call(&words) else { panic!("no array") };
                            assert_eq!(values[0], values[1], "a transaction was torn");
                            client.call(&[b"DEL", left.as_bytes(), right.as_bytes()]);
                        }
                    }
                    done.fetch_add(1, Ordering::Relaxed);
                }
                client.sent_on
            })
        });
        let spawned: Vec<_> = spawned.collect();
        move_around(&mut rig, &done.each_ref());
        is_over.store(true, Ordering::Relaxed);
        spawned.into_iter().map(|thread| thread.join().expect("no panic")).sum()
    });
    assert!(sent_on >= MOVES as u64 / 2, "nobody was sent on: {sent_on}");
    let rounds: u64 = done.iter().map(|done| done.load(Ordering::Relaxed)).sum();
    let mut client = Wanderer::new(&rig);
    for key in &keys {
        let value = client.call(&[b"GET", key.as_bytes()]);
        assert_eq!(value, StoreAnswer::Bulk(rounds.to_string().into_bytes()), "{key}");
    }
}

/// Adds 1 to a number under a key.
fn add_one(client: &caravan_store::ConnectedStore, key: &[u8]) -> Result<(), StoreError> {
    client.transaction(|tx| {
        let number =
            tx.get(key)?.map_or(0, |bytes| u64::from_le_bytes(bytes.try_into().expect("eight bytes")));
        tx.put(key, &(number + 1).to_le_bytes())
    })
}

#[test]
fn clients_over_links_follow_their_part() {
    const CLIENTS: usize = 2;
    let mut rig = ClusterRig::new(SERVERS, PARTS);
    let keys: Vec<String> = (0..PARTS).map(|part| rig.key_of(PartId(part), "counter")).collect();
    // Each connects first where only one of the parts is, one client by the network and one by the socket of this host.
    let socket = format!("unix:{}", rig.servers[0].server.socket().display());
    let connect =
        |first: &str, part| Store::connect(ConnectOptions::new(first).part(part)).expect("connected");
    let firsts: [&str; CLIENTS] = [&rig.servers[0].address(), &socket];
    let clients = firsts.map(|first| (0..PARTS).map(|part| connect(first, part)).collect::<Vec<_>>());
    assert_eq!(clients[1][0].transport(), StoreTransport::Mapped);
    let is_over = AtomicBool::new(false);
    let done = [const { AtomicU64::new(0) }; CLIENTS];
    std::thread::scope(|scope| {
        let (is_over, keys) = (&is_over, &keys);
        for (client, done) in clients.iter().zip(&done) {
            scope.spawn(move || {
                let mut last = 0_u64;
                while !is_over.load(Ordering::Relaxed) {
                    last += 1;
                    for (client, key) in client.iter().zip(keys) {
                        add_one(client, key.as_bytes()).expect("done");
                        let own = format!("{key}-of-{:p}", done);
                        client.put(own.as_bytes(), &last.to_le_bytes()).expect("done");
                        let read = client.get(own.as_bytes()).expect("an answer");
                        assert_eq!(read.as_deref(), Some(&last.to_le_bytes()[..]), "an old value was read");
                    }
                    done.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        move_around(&mut rig, &done.each_ref());
        is_over.store(true, Ordering::Relaxed);
    });
    let rounds: u64 = done.iter().map(|done| done.load(Ordering::Relaxed)).sum();
    for (client, key) in clients[0].iter().zip(&keys) {
        let value = client.get(key.as_bytes()).expect("an answer");
        assert_eq!(value.as_deref(), Some(&rounds.to_le_bytes()[..]), "{key}");
    }
}

/// The servers that say nothing accept connections, as the kernel does it for a process that is stopped.
#[test]
fn servers_that_say_nothing_leave_time_to_ask_the_others() {
    let wait = Duration::from_secs(600);
    let mut rig = ClusterRig::new(2, 2);
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let addresses: Vec<String> = rig.servers.iter().map(|server| server.address()).collect();
    let first = silent.local_addr().expect("an address").to_string();
    let options = ConnectOptions::new(first).others(addresses.clone()).connect_wait(wait);
    let begin = Instant::now();
    let client = Store::connect(options.clone().part(0)).expect("connected");
    client.put(b"key", b"1").expect("written");
    ClusterStore::connect(options).expect("connected").part(1).expect("connected");
    // Its server ends, and says nothing when it is back; the part is elsewhere by then.
    rig.move_part(PartId(0), 1);
    drop(rig.servers.remove(0));
    let _silent_too = TcpListener::bind(&addresses[0]).expect("the same port");
    client.put(b"key", b"2").expect("written");
    assert_eq!(client.get(b"key").expect("read").as_deref(), Some(&b"2"[..]));
    assert!(begin.elapsed() < wait / 2, "{:?}", begin.elapsed());
}
