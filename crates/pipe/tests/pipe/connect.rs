//! Tests data connections over TCP, with good peers, bad peers, and no peer.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use caravan_pipe::cancel::Cancel;
use caravan_pipe::connect::tcp::{DataListener, addresses, connect, look_up};
use caravan_pipe::connect::{DataChannel, DataConnection, PortRange};
use caravan_pipe::limits::{HANDSHAKE_LIMIT, STRANGERS_MAX, STREAMS_MAX};
use caravan_pipe::{Error, PipeKey};

/// Far more time than any of these tests takes on a slow and busy machine.
const LONG: Duration = Duration::from_secs(60);
/// The bytes of the calling side's hello and answer, and of the greeting that it gets.
const HELLO: usize = 78;
const GREETING: usize = 106;
const ANSWER: usize = 36;

type Acceptor = JoinHandle<Result<DataConnection, Error>>;

fn never() -> Cancel {
    Cancel::new().expect("an event")
}

fn key() -> PipeKey {
    PipeKey::random().expect("random")
}

fn loopback(port: u16) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port).into()
}

/// Returns a listener that is not Caravan's, and its address.
fn stranger() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind(loopback(0)).expect("listens");
    let address = listener.local_addr().expect("bound");
    (listener, address)
}

/// Starts a listener that accepts one connection. Returns its port and its thread.
fn accepting(key: &PipeKey, streams: u32) -> (u16, Acceptor) {
    let listener = DataListener::open(None).expect("listens");
    let (port, key) = (listener.port(), key.clone());
    (port, thread::spawn(move || listener.accept(&key, streams, LONG, &never())))
}

fn accepted(acceptor: Acceptor) -> DataConnection {
    acceptor.join().expect("no panic").expect("accepts")
}

fn refusal(address: SocketAddr, key: &PipeKey) -> String {
    connect(&[address], key, 1, LONG, &never()).expect_err("refused").to_string()
}

fn sockets(connection: DataConnection) -> Vec<TcpStream> {
    let DataChannel::Streams(streams) = connection.channel else { panic!("no streams") };
    streams.into_iter().map(TcpStream::from).collect()
}

/// Checks that a good peer gets through to the listener.
fn comes_through(key: &PipeKey, port: u16, acceptor: Acceptor) {
    let ours = connect(&[loopback(port)], key, 1, LONG, &never()).expect("connects");
    said_arrives(ours, accepted(acceptor));
}

fn said_arrives(ours: DataConnection, theirs: DataConnection) {
    assert_eq!(ours.description, theirs.description);
    for (index, (mut a, mut b)) in sockets(ours).into_iter().zip(sockets(theirs)).enumerate() {
        let index = index as u8;
        a.write_all(&[index]).and(a.shutdown(Shutdown::Write)).expect("written");
        b.write_all(&[index + 100]).and(b.shutdown(Shutdown::Write)).expect("written");
        let (mut at_a, mut at_b) = (Vec::new(), Vec::new());
        a.read_to_end(&mut at_a).and(b.read_to_end(&mut at_b)).expect("read");
        assert_eq!((at_b, at_a), (vec![index], vec![index + 100]), "stream {index}");
    }
}

#[test]
fn both_families_lead_there() {
    for host in [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)] {
        if TcpListener::bind((host, 0)).is_err() {
            assert!(host.is_ipv6(), "this host has no {host}");
            continue;
        }
        let key = key();
        let (port, acceptor) = accepting(&key, 1);
        let there = SocketAddr::new(host, port);
        let ours = connect(&[there], &key, 1, LONG, &never()).expect("connects");
        assert!(ours.description.starts_with(&format!("TCP {there}")), "{}", ours.description);
        said_arrives(ours, accepted(acceptor));
    }
}

#[test]
fn streams_are_in_the_same_order_on_both_sides() {
    for count in [8, STREAMS_MAX] {
        let key = key();
        let (port, acceptor) = accepting(&key, count);
        let ours = connect(&[loopback(port)], &key, count, LONG, &never()).expect("connects");
        assert!(ours.description.ends_with(&format!(", {count} streams")), "{}", ours.description);
        let theirs = accepted(acceptor);
        assert!(matches!(&theirs.channel, DataChannel::Streams(streams) if streams.len() == count as usize));
        said_arrives(ours, theirs);
    }
}

#[test]
fn a_listener_may_take_as_many_as_come() {
    let key = key();
    let listener = DataListener::open(None).expect("listens");
    let (port, theirs) = (listener.port(), key.clone());
    let acceptor = thread::spawn(move || listener.accept_any(&theirs, LONG, &never()));
    let ours = connect(&[loopback(port)], &key, 3, LONG, &never()).expect("connects");
    let theirs = accepted(acceptor);
    assert!(matches!(&theirs.channel, DataChannel::Streams(streams) if streams.len() == 3));
    said_arrives(ours, theirs);
}

#[test]
fn another_number_of_streams_is_turned_away() {
    let key = key();
    let listener = DataListener::open(None).expect("listens");
    let (port, theirs) = (listener.port(), key.clone());
    let acceptor = thread::spawn(move || listener.accept(&theirs, 2, Duration::from_secs(3), &never()));
    assert!(refusal(loopback(port), &key).contains("closed it again"));
    let error = acceptor.join().expect("no panic").expect_err("nobody good came").to_string();
    assert!(error.contains("1 wanted another number of streams"), "{error}");
}

#[test]
fn sockets_are_set_up_for_data() {
    use rustix::net::sockopt;
    let key = key();
    let (port, acceptor) = accepting(&key, 2);
    let ours = connect(&[loopback(port)], &key, 2, LONG, &never()).expect("connects");
    // The congestion controls that every user may choose (tcp(7)).
    let allowed = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_allowed_congestion_control");
    let is_cubic = allowed.is_ok_and(|names| names.split_whitespace().any(|name| name == "cubic"));
    for connection in [ours, accepted(acceptor)] {
        assert!(!is_cubic || connection.description.contains(", cubic"), "{}", connection.description);
        for socket in sockets(connection) {
            assert!(sockopt::tcp_nodelay(&socket).expect("asked"));
            assert!(sockopt::socket_keepalive(&socket).expect("asked"));
            let flags = rustix::fs::fcntl_getfl(&socket).expect("asked");
            assert!(!flags.contains(rustix::fs::OFlags::NONBLOCK), "it blocks");
        }
    }
}

#[test]
fn a_wrong_key_is_named_on_both_sides() {
    let (right, wrong) = (key(), key());
    let listener = DataListener::open(None).expect("listens");
    let port = listener.port();
    let acceptor = thread::spawn(move || listener.accept(&right, 1, Duration::from_secs(3), &never()));
    let error = refusal(loopback(port), &wrong);
    assert!(error.contains(&format!("127.0.0.1:{port} does not know the key")), "{error}");
    let error = acceptor.join().expect("no panic").expect_err("nobody good came").to_string();
    assert!(error.contains(&format!("has not come to port {port} within 3 s")), "{error}");
    assert!(error.contains("1 did not know the key, or gave up"), "{error}");
}

#[test]
fn a_wrong_key_keeps_nobody_out() {
    let (right, wrong) = (key(), key());
    let (port, acceptor) = accepting(&right, 1);
    for _ in 0..10 {
        refusal(loopback(port), &wrong);
    }
    comes_through(&right, port, acceptor);
}

#[test]
fn silent_strangers_keep_nobody_out() {
    let key = key();
    let (port, acceptor) = accepting(&key, 1);
    // These are more connections than are kept, and they stay until the end.
    let dial = |_| TcpStream::connect(loopback(port)).expect("connects");
    let silent: Vec<_> = (0..STRANGERS_MAX + 50).map(dial).collect();
    let began = Instant::now();
    comes_through(&key, port, acceptor);
    assert!(began.elapsed() < HANDSHAKE_LIMIT, "it waited for them: {:?}", began.elapsed());
    drop(silent);
}

#[test]
fn those_who_speak_otherwise_are_closed_at_once() {
    let key = key();
    let (port, acceptor) = accepting(&key, 1);
    let http = &b"GET / HTTP/1.1\r\nHost: caravan\r\n\r\n"[..];
    for words in [http, b"SSH-2.0-x\r\n", &[0; 4096], b"\x89caravax", b"\n"] {
        let mut other = TcpStream::connect(loopback(port)).expect("connects");
        other.set_read_timeout(Some(LONG)).expect("set");
        other.write_all(words).expect("written");
        // The end, or a reset if not all bytes were read: no byte is answered.
        let began = Instant::now();
        assert!(matches!(other.read(&mut [0; 64]), Ok(0) | Err(_)), "{words:?}");
        assert!(began.elapsed() < HANDSHAKE_LIMIT, "{words:?}");
    }
    comes_through(&key, port, acceptor);
}

#[test]
fn another_version_is_told_which_one_this_is() {
    let key = key();
    let (port, acceptor) = accepting(&key, 1);
    let mut newer = TcpStream::connect(loopback(port)).expect("connects");
    newer.write_all(b"\x89caravan\0\x09").expect("written");
    let mut answer = Vec::new();
    newer.read_to_end(&mut answer).expect("read");
    assert_eq!(answer, b"\x89caravan\0\x02");
    comes_through(&key, port, acceptor);

    let (listener, address) = stranger();
    let newer = thread::spawn(move || {
        let (mut socket, _) = listener.accept().expect("comes");
        socket.read_exact(&mut [0; HELLO]).expect("a hello");
        socket.write_all(b"\x89caravan\0\x09").expect("written");
        let _ = socket.read(&mut [0]);
    });
    let error = refusal(address, &key);
    assert!(error.contains("speaks version 9 of the protocol, and this host version 2"), "{error}");
    newer.join().expect("no panic");
}

/// A proxy between two ends: it records what each of them sends, and passes only so many bytes on.
struct Between {
    address: SocketAddr,
    said: Arc<Mutex<[Vec<u8>; 2]>>,
}

impl Between {
    fn of(port: u16, passing: [usize; 2]) -> Self {
        let (listener, address) = stranger();
        let said = Arc::<Mutex<[Vec<u8>; 2]>>::default();
        let between = Self { address, said: Arc::clone(&said) };
        thread::spawn(move || {
            let (caller, _) = listener.accept().expect("comes");
            let callee = TcpStream::connect(loopback(port)).expect("connects");
            let ways = [(caller.try_clone(), callee.try_clone()), (Ok(callee), Ok(caller))];
            for (way, (from, to)) in ways.into_iter().enumerate() {
                let (from, to) = (from.expect("cloned"), to.expect("cloned"));
                let (said, passing) = (Arc::clone(&said), passing[way]);
                thread::spawn(move || {
                    pass(from, to, passing, &mut |byte| {
                        said.lock().expect("no panic")[way].push(byte);
                    })
                });
            }
        });
        between
    }
}

fn pass(mut from: TcpStream, mut to: TcpStream, passing: usize, keep: &mut dyn FnMut(u8)) {
    let mut byte = [0];
    for _ in 0..passing {
        if !matches!(from.read(&mut byte), Ok(1)) {
            break;
        }
        keep(byte[0]);
        if to.write_all(&byte).is_err() {
            break;
        }
    }
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}

/// Returns all that the two sides of a connection send before any data.
fn recorded(key: &PipeKey) -> [Vec<u8>; 2] {
    let (port, acceptor) = accepting(key, 1);
    let between = Between::of(port, [usize::MAX; 2]);
    let ours = connect(&[between.address], key, 1, LONG, &never()).expect("connects");
    drop((accepted(acceptor), ours));
    between.said.lock().expect("no panic").clone()
}

#[test]
fn the_key_is_never_said() {
    let key = key();
    let said = recorded(&key);
    assert_eq!(said.each_ref().map(Vec::len), [HELLO + ANSWER, GREETING]);
    let is_of_key = |part: &[u8]| key.bytes().windows(4).any(|of| of == part);
    assert!(said.iter().all(|said| !said.windows(4).any(is_of_key)));
}

#[test]
fn what_was_listened_to_opens_nothing() {
    let key = key();
    let [caller, listener] = recorded(&key);
    // The caller's bytes go to a listener that knows the same key.
    let (port, acceptor) = accepting(&key, 1);
    let mut replay = TcpStream::connect(loopback(port)).expect("connects");
    replay.write_all(&caller).expect("written");
    let mut answer = Vec::new();
    let _ = replay.read_to_end(&mut answer);
    assert!(answer.len() <= GREETING && answer != listener, "closed, after a fresh greeting at most");
    comes_through(&key, port, acceptor);
    // The listener's bytes go to a caller that knows the same key.
    let (liar, address) = stranger();
    let lies = thread::spawn(move || {
        let (mut socket, _) = liar.accept().expect("comes");
        socket.write_all(&listener).expect("written");
        let mut rest = Vec::new();
        let _ = socket.read_to_end(&mut rest);
        rest
    });
    let error = refusal(address, &key);
    assert!(error.contains("does not know the key"), "{error}");
    assert!(lies.join().expect("no panic").len() <= HELLO, "a hello, and no proof");
}

#[test]
fn what_is_said_comes_back_in_vain() {
    let key = key();
    let (mirror, address) = stranger();
    thread::spawn(move || {
        let (mut socket, _) = mirror.accept().expect("comes");
        let mut hello = [0; HELLO];
        socket.read_exact(&mut hello).expect("a hello");
        // The hello goes twice, because an answer is longer.
        socket.write_all(&[hello, hello].concat()).expect("written");
        let _ = socket.read(&mut [0]);
    });
    let error = refusal(address, &key);
    assert!(error.contains("does not know the key"), "{error}");
}

#[test]
fn a_handshake_cut_at_any_byte_ends_at_once() {
    let key = key();
    // One listener serves all cut connections.
    let (port, acceptor) = accepting(&key, 1);
    let began = Instant::now();
    for passing in 0..HELLO + ANSWER {
        let between = Between::of(port, [passing, usize::MAX]);
        let caller = connect(&[between.address], &key, 1, LONG, &never());
        // Whether the caller hears of a cut answer is chance.
        assert!(caller.is_err() || passing >= HELLO, "{passing}: {caller:?}");
    }
    for passing in 0..GREETING {
        let between = Between::of(port, [usize::MAX, passing]);
        let error = refusal(between.address, &key);
        assert!(error.contains("closed it again"), "{passing}: {error}");
    }
    assert!(began.elapsed() < LONG, "{:?}", began.elapsed());
    comes_through(&key, port, acceptor);
}

#[test]
fn the_first_address_that_answers_is_taken() {
    let key = key();
    let (port, acceptor) = accepting(&key, 2);
    let (gone, closed) = stranger();
    drop(gone);
    let (_silent, says_nothing) = stranger();
    // Nobody has the first address (RFC 5737).
    let unanswered = SocketAddr::from(([192, 0, 2, 77], 9));
    let began = Instant::now();
    let all = [unanswered, closed, says_nothing, loopback(port)];
    let ours = connect(&all, &key, 2, LONG, &never()).expect("connects");
    assert!(began.elapsed() < LONG / 2, "{:?}", began.elapsed());
    assert!(ours.description.contains(&loopback(port).to_string()), "{}", ours.description);
    said_arrives(ours, accepted(acceptor));
}

#[test]
fn every_address_that_failed_is_named_with_its_reason() {
    let (gone, closed) = stranger();
    drop(gone);
    let (_silent, says_nothing) = stranger();
    let other = loopback(accepting(&key(), 1).0);
    let all = [closed, says_nothing, other];
    let error = connect(&all, &key(), 1, Duration::from_secs(3), &never()).expect_err("none").to_string();
    assert!(error.contains(&format!("{closed} refused the connection")), "{error}");
    let silent = format!("{says_nothing} took the connection and said nothing within 3 s");
    assert!(error.contains(&silent), "{error}");
    assert!(error.contains(&format!("{other} does not know the key")), "{error}");
    let error = connect(&[], &key(), 1, LONG, &never()).expect_err("none").to_string();
    assert!(error.contains("has no address"), "{error}");
}

#[test]
fn a_range_without_a_free_port_is_named() {
    let (_taken, address) = stranger();
    let port = address.port();
    let error =
        DataListener::open(Some(PortRange { first: port, last: port })).expect_err("taken").to_string();
    assert!(error.contains(&format!("cannot listen on port {port}: taken by other programs")), "{error}");
    let last = port.saturating_add(20);
    let listener = DataListener::open(Some(PortRange { first: port, last })).expect("the next one");
    assert!((port + 1..=last).contains(&listener.port()), "{}", listener.port());
}

#[test]
fn whoever_waits_can_be_told_to_end() {
    let (silent, address) = stranger();
    let cancel = never();
    let (at_acceptor, at_caller) = (cancel.clone(), cancel.clone());
    let listener = DataListener::open(None).expect("listens");
    let port = listener.port();
    let acceptor = thread::spawn(move || listener.accept(&key(), 1, LONG, &at_acceptor));
    let caller = thread::spawn(move || connect(&[address], &key(), 1, LONG, &at_caller));
    // Both are under way once one has a stranger, and the other has sent its hello.
    let _other = TcpStream::connect(loopback(port)).expect("connects");
    let (mut socket, _) = silent.accept().expect("comes");
    socket.read_exact(&mut [0; HELLO]).expect("a hello");
    let fired = Instant::now();
    cancel.fire();
    for waiting in [acceptor, caller] {
        assert!(matches!(waiting.join().expect("no panic"), Err(Error::Cancelled)));
    }
    assert!(fired.elapsed() < LONG / 2, "{:?}", fired.elapsed());
}

#[test]
fn who_starts_again_is_taken_as_a_whole() {
    let key = key();
    let (port, acceptor) = accepting(&key, 2);
    // The first stream comes, and nothing after it: the proxy accepts only one.
    let between = Between::of(port, [usize::MAX; 2]);
    connect(&[between.address], &key, 2, Duration::from_secs(3), &never()).expect_err("one of two");
    let ours = connect(&[loopback(port)], &key, 2, LONG, &never()).expect("connects");
    said_arrives(ours, accepted(acceptor));
}

#[test]
fn names_are_found_and_others_named() {
    let names = [("localhost".to_owned(), 7), ("no-such-host.invalid".to_owned(), 7)];
    let (found, failures) = look_up(&names, LONG, &never()).expect("asked");
    assert!(found.contains(&loopback(7)), "{found:?}");
    assert!(matches!(&failures[..], [failure] if failure.contains("no-such-host.invalid")), "{failures:?}");
}

#[test]
fn own_addresses_can_be_listened_on() {
    for address in addresses().expect("asked") {
        assert!(!address.is_loopback() && !address.is_unspecified(), "{address}");
        TcpListener::bind((address, 0)).expect("an address of this host");
    }
}
