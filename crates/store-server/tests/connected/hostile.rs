//! Clients that lie, flood, stop reading or say something else.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use caravan_fabric::contract::Provider;
use caravan_fabric::{Error, Link, RegionToken};
use caravan_segment::passing::Doorway;
use caravan_store::calls::{CallService, ClientSessions, RegionLender};
use caravan_store::{Store, StoreOptions, StoreTransport};
use proptest::prelude::*;

use crate::rig::Rig;

/// Lends nothing.
struct NoLender;

impl RegionLender for NoLender {
    fn lend(&mut self, _: u32) -> Result<Vec<(u64, RegionToken)>, Error> {
        Ok(Vec::new())
    }
}

fn record(call: u32, kind: u16, body: &[u8]) -> Vec<u8> {
    let head = [(body.len() as u32).to_be_bytes(), call.to_be_bytes()].concat();
    [&head[..], &kind.to_be_bytes(), &[0; 2], body].concat()
}

/// Any bytes, and records of any bytes, whose numbers are small or of places where something is.
fn hostile_bytes() -> impl Strategy<Value = Vec<u8>> {
    let number =
        prop_oneof![Just(0_u64), 0..40_u64, (0..64_u64).prop_map(|n| (1 << 20) + 8 * n), any::<u64>()];
    let piece = prop_oneof![
        number.prop_map(|n| n.to_be_bytes().to_vec()),
        (0..4_u32).prop_map(|n| n.to_be_bytes().to_vec()),
        (0..4_u8).prop_map(|n| vec![n]),
        proptest::collection::vec(any::<u8>(), 0..20),
    ];
    let body = proptest::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat());
    let one = prop_oneof![
        8 => (0..4_u32, 0..16_u16, body).prop_map(|(call, kind, body)| record(call, kind, &body)),
        1 => proptest::collection::vec(any::<u8>(), 0..40),
    ];
    proptest::collection::vec(one, 1..20).prop_map(|records| records.concat())
}

#[test]
fn no_bytes_of_a_client_damage_the_store() {
    let store = Arc::new(Store::embedded(StoreOptions::new(16 << 20)).unwrap());
    let mut kept = Vec::new();
    for number in 0..64_u8 {
        store.put(&[number], &[number; 30]).unwrap();
        kept.push(store.alloc(usize::from(number), None).unwrap());
    }
    proptest!(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() }, |(bytes in hostile_bytes())| {
        let sessions = Arc::new(ClientSessions::new(&store).unwrap());
        let mut service = CallService::new(Arc::clone(&store), Arc::clone(&sessions));
        let (mut output, mut taken) = (Vec::new(), 0);
        while let Ok((more @ 1.., _)) = service.serve(&bytes[taken..], &mut output, &mut NoLender) {
            taken += more;
            prop_assert!(output.len() < 64 << 20);
            output.clear();
        }
        drop(service);
        sessions.close_absent(&store, Duration::ZERO).unwrap();
        prop_assert_eq!(store.sessions().unwrap().len(), 0);
        prop_assert_eq!(store.audit().map_err(|error| error.to_string()), Ok(()));
    });
}

/// Attaches without keeping to anything after that.
fn attach(rig: &Rig, rings: &mut Vec<Doorway>) -> (Link, UnixStream) {
    let mut channel = UnixStream::connect(rig.server().socket()).unwrap();
    let (doorway, address) = Doorway::listen().unwrap();
    rings.push(doorway);
    let mut request = b"*3\r\n$14\r\nCARAVAN.ATTACH\r\n$1\r\n1\r\n$32\r\n".to_vec();
    request.extend_from_slice(&address.to_bytes());
    request.extend_from_slice(b"\r\n");
    channel.write_all(&request).unwrap();
    let mut greeting = [0; 5 + 24 + 2];
    channel.read_exact(&mut greeting).unwrap();
    let link = Link::connect(&mut channel, &[Provider::Shm]).unwrap();
    (link, channel)
}

/// Reads until the end of a connection.
fn read_to_end(mut stream: impl Read) -> Vec<u8> {
    let mut bytes = Vec::new();
    // A connection that is closed with unread bytes may end in an error.
    let _ = stream.read_to_end(&mut bytes);
    bytes
}

#[test]
fn a_client_that_breaks_the_protocol_is_closed_and_others_go_on() {
    let rig = Rig::new();
    let good = rig.connect(StoreTransport::Mapped);
    let unknown = record(1, 999, b"");
    let too_long = [&u32::MAX.to_be_bytes()[..], &[0; 8]].concat();
    let longer = record(1, 10, b"more than nothing");
    let flags = [&[0, 0, 0, 0, 0, 0, 0, 1, 0, 10][..], &[0, 1]].concat();
    for bytes in [unknown, too_long, longer, flags] {
        let mut doors = Vec::new();
        let (mut link, channel) = attach(&rig, &mut doors);
        assert_eq!(link.append(&bytes).unwrap(), bytes.len());
        link.publish().unwrap();
        // The server closes the connection, and only that.
        assert_eq!(read_to_end(channel), b"");
        good.put(b"k", b"v").unwrap();
    }
    // A byte on the connection, which is to be silent.
    let (_link, mut channel) = attach(&rig, &mut Vec::new());
    channel.write_all(b"PING\r\n").unwrap();
    assert_eq!(read_to_end(channel), b"");
    good.put(b"k", b"v").unwrap();
}

#[test]
fn a_client_that_reads_nothing_keeps_nobody_waiting() {
    let rig = Rig::new();
    let good = rig.connect(StoreTransport::Mapped);
    good.put(b"k", &vec![1; 500_000]).unwrap();
    let mut doors = Vec::new();
    let (mut link, _channel) = attach(&rig, &mut doors);
    // Each reply is longer than its ring. The server stops to take requests, so the ring of these fills up.
    let get = record(1, 1, b"k");
    let mut is_full = false;
    while !is_full {
        is_full = link.append(&get).unwrap() < get.len();
        link.publish().unwrap();
    }
    for _ in 0..100 {
        good.put(b"other", b"v").unwrap();
        assert!(good.delete(b"other").unwrap());
    }
}

#[test]
fn wrong_attachments_are_refused_in_words() {
    let rig = Rig::new();
    let address = rig.address(StoreTransport::Tcp);
    let answer = |request: &[u8]| {
        let mut stream = TcpStream::connect(&address).unwrap();
        stream.write_all(request).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        String::from_utf8_lossy(&read_to_end(stream)).into_owned()
    };
    assert!(answer(b"CARAVAN.ATTACH\r\n").contains("wrong number of arguments"));
    assert!(answer(b"CARAVAN.ATTACH 2\r\n").contains("version 1 only"));
    assert!(answer(b"CARAVAN.ATTACH 1 door\r\n").contains("doorway is malformed"));
    assert!(answer(b"CARAVAN.ATTACH 1 door more\r\n").contains("wrong number of arguments"));
    assert!(answer(b"MULTI\r\nCARAVAN.ATTACH 1\r\n").contains("not allowed in transactions"));
    // Who says more at once does not speak the protocol.
    assert_eq!(answer(b"CARAVAN.ATTACH 1\r\nPING\r\n"), "");
}
