//! TCP: the conformance suite, links between threads, and peers that lie, stall or die.
#![forbid(unsafe_code)]

mod common;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use caravan_fabric::contract::{Endpoint, Event, Local, Operation, Provider};
use caravan_fabric::seal::Seal;
use caravan_fabric::sim::{Faults, Random};
use caravan_fabric::tcp::{self, TcpEndpoint, TcpListening, TcpSealing, TcpSide};
use caravan_fabric::{Error, Exposure, Link, RING_BYTES_MIN, Region, RegionAccess};
use common::conformance::ARENA_BYTES;
use common::lending::MakePair;
use common::pair::Pair;
use common::party::{Party, alternate, in_threads};
use common::tcp_liar::{SECRET, as_frames, end, greeting, record, sockets, victim, victim_and_liar};
use common::{PATIENCE, any_size, readable, seeds};

const FAULTS: Faults =
    Faults { full: 5, short_poll: 5, empty_look: 5, empty_wake: 5, end_at_call: 0, unmapped: false };

fn each(test: fn(Pair, u64)) {
    let exposure = Exposure::all(ARENA_BYTES);
    for seed in 0..4 {
        test(Pair::tcp(TcpSealing::Sealed, &exposure), seed);
        test(Pair::tcp(TcpSealing::Plain, &exposure), seed);
        test(Pair::faulty_tcp(FAULTS, seed, &exposure), seed);
    }
}

conformance!(each);

fn each_lending(test: fn(MakePair<'_>, u64)) {
    let exposure = Exposure::all(ARENA_BYTES);
    test(&mut |_| Pair::tcp(TcpSealing::Sealed, &exposure), 0);
    test(&mut |_| Pair::tcp(TcpSealing::Plain, &exposure), 1);
    test(&mut |seed| Pair::faulty_tcp(FAULTS, seed, &exposure), 2);
}

lending!(each_lending);

torn!(|| Pair::tcp(TcpSealing::Sealed, &common::torn::exposure()));

fn parties(seed: u64, pair: Pair, ring_bytes: u64, rings: u64) -> [Party; 2] {
    let mut random = Random::new(!seed);
    let totals = [0, 1].map(|_| random.below(rings * ring_bytes));
    let ([left, right], _) = pair.links(ring_bytes);
    [Party::new(left, seed, 0, totals[0], totals[1]), Party::new(right, seed, 1, totals[1], totals[0])]
}

#[test]
fn streams_in_turns() {
    for seed in 0..40 {
        let pair = Pair::faulty_tcp(FAULTS, seed, &Link::exposure(RING_BYTES_MIN).unwrap());
        alternate(&mut parties(seed, pair, RING_BYTES_MIN, 6), None, &mut Random::new(seed));
    }
}

#[test]
fn streams_between_threads() {
    for seed in 0..20 {
        let ring_bytes = RING_BYTES_MIN << (seed % 5);
        let sealing = if seed % 2 == 0 { TcpSealing::Sealed } else { TcpSealing::Plain };
        let pair = Pair::tcp(sealing, &Link::exposure(ring_bytes).unwrap());
        in_threads(parties(seed, pair, ring_bytes, 40), None);
    }
}

#[test]
fn links_connect_over_a_channel() {
    let (mut near, mut far) = UnixStream::pair().unwrap();
    let accepting = std::thread::spawn(move || Link::accept(&mut far, &[Provider::Tcp], RING_BYTES_MIN));
    let near = Link::connect(&mut near, &[Provider::Shm, Provider::Tcp]).unwrap();
    let far = accepting.join().unwrap().unwrap();
    assert_eq!([near.provider(), far.provider()], [Provider::Tcp; 2]);
    assert!(near.description().ends_with(", encrypted"), "{}", near.description());
}

/// An owner that has polled all the time, so that the agent left the socket to it, does something else.
#[test]
fn operations_are_done_after_their_target_has_stopped_polling() {
    let (mut near, mut far) = tcp::pair(&Exposure::all(4096), TcpSealing::Sealed).unwrap();
    let mut events = Vec::new();
    for (number, far_polls) in (0..2000).map(|number| (number, number % 1000 < 998)) {
        far.arena().copy_in(0, &[number as u8]);
        near.post(Operation::Read { from: 0, into: Local { offset: 64, bytes: 1 }, context: number })
            .unwrap();
        near.doorbell().unwrap();
        let begin = Instant::now();
        while near.poll(&mut events, 16).unwrap() == 0 {
            assert!(begin.elapsed() < PATIENCE, "read {number} is never done");
            if far_polls {
                far.poll(&mut events, 16).unwrap();
            }
        }
        let mut byte = [0];
        near.arena().copy_out(64, &mut byte);
        assert_eq!(byte, [number as u8]);
    }
    assert_eq!(events.len(), 2000);
}

/// The owner's thread does nothing, and its region is read and written all the same.
#[test]
fn operations_are_done_while_their_target_sleeps() {
    let (mut near, far) = tcp::pair(&Exposure::all(4096), TcpSealing::Sealed).unwrap();
    far.arena().copy_in(0, b"asleep");
    near.post(Operation::Read { from: 0, into: Local { offset: 64, bytes: 6 }, context: 1 }).unwrap();
    near.doorbell().unwrap();
    let mut events = Vec::new();
    while near.poll(&mut events, 16).unwrap() == 0 {
        assert_eq!(near.arm().map(|_| ()).ok(), Some(()));
        readable(near.wait_fd().unwrap(), Duration::from_millis(100));
        near.acknowledge().unwrap();
    }
    let mut bytes = [0; 6];
    near.arena().copy_out(64, &mut bytes);
    assert_eq!(&bytes, b"asleep");
    drop(far);
}

/// Operations that start with one doorbell travel together.
#[test]
fn one_doorbell_is_one_write() {
    let (mut near, _far) = tcp::pair(&Exposure::all(4096), TcpSealing::Plain).unwrap();
    let before = near.counts().doorbells;
    for context in 0..256 {
        near.post(Operation::Read { from: 0, into: Local { offset: 0, bytes: 48 }, context }).unwrap();
    }
    near.doorbell().unwrap();
    let mut events = Vec::new();
    while events.len() < 256 {
        near.poll(&mut events, 256).unwrap();
    }
    assert_eq!(near.counts().doorbells - before, 1);
}

/// An operation that is longer than a record, in both directions at once.
#[test]
fn long_operations_come_whole() {
    const BYTES: u64 = 3 << 20;
    let mut pair = Pair::tcp(TcpSealing::Sealed, &Exposure::all(2 * BYTES));
    for end in 0..2 {
        let byte = end as u8 + 1;
        pair.ends[end].arena().copy_in(0, &vec![byte; BYTES as usize - 3]);
        let from = Local { offset: 0, bytes: BYTES as u32 - 3 };
        pair.start(end, Operation::Write { from, to: BYTES, immediate: Some(5), context: 0 });
    }
    pair.until(|seen| seen.iter().all(|seen| seen.len() == 2));
    for end in 0..2 {
        let mut bytes = vec![0; BYTES as usize];
        pair.ends[end].arena().copy_out(BYTES as usize, &mut bytes);
        assert!(bytes[..BYTES as usize - 3].iter().all(|&byte| byte == 2 - end as u8));
        assert_eq!(bytes[BYTES as usize - 3..], [0; 3]);
    }
}

#[test]
fn lies_end_the_connection_with_their_names() {
    let place = |place: u64| place.to_be_bytes();
    let length = |length: u32| length.to_be_bytes();
    let write = |to: u64, bytes: &[u8]| [&[2][..], &place(to), &length(bytes.len() as u32), bytes].concat();
    let far = 1u64 << 40;
    let many_reads = [&[4][..], &place(1024), &length(8)].concat().repeat(4700);
    let many_tells = [&[3][..], &place(0), &length(0), &[0; 4]].concat().repeat(3600);
    let cases: &[(&str, Vec<u8>)] = &[
        ("an unknown frame", vec![99]),
        ("half a frame", vec![4, 0, 0]),
        ("a write of more than it has", [&[2][..], &place(1024), &length(100), b"short"].concat()),
        ("a write before", write(1023, b"xx")),
        ("a write behind", write(2041, &[1; 8])),
        ("a write anywhere", write(u64::MAX - 3, &[1; 8])),
        ("a write to a region never lent", write(9 * far, &[1; 8])),
        ("a write to a place of no region", write(1 << 56, &[1; 8])),
        ("a read before", [&[4][..], &place(1000), &length(25)].concat()),
        ("a read of too much", [&[4][..], &place(1024), &length(u32::MAX)].concat()),
        ("a swap between words", [&[5][..], &place(1025), &place(0), &place(1)].concat()),
        ("a swap behind", [&[5][..], &place(2048), &place(0), &place(1)].concat()),
        ("an answer to no write", [&[6][..], &length(1)].concat()),
        ("many answers to no write", [&[6][..], &length(u32::MAX)].concat()),
        ("bytes that nobody asked for", [&[8][..], &length(1), &[1]].concat()),
        ("a word that nobody asked for", [&[9][..], &place(1)].concat()),
        ("a refusal of nothing", [&[10][..], &place(far)].concat()),
        ("taken immediates that were never sent", [&[12][..], &length(1)].concat()),
        ("too many reads", many_reads),
        ("too many immediates", many_tells),
    ];
    for (what, body) in cases {
        let (mut victim, mut liar) = victim_and_liar();
        let before = vec![0x11; 4096];
        victim.arena().copy_in(0, &before);
        liar.socket.write_all(&record(None, body)).unwrap();
        let error = end(&mut victim);
        assert!(matches!(error, Error::Protocol(Provider::Tcp, _)), "{what}: {error:?}");
        let mut after = vec![0; 4096];
        victim.arena().copy_out(0, &mut after);
        assert!(after == before, "{what}: memory outside has changed");
        let nothing = Operation::Read { from: 0, into: Local { offset: 0, bytes: 8 }, context: 0 };
        assert!(victim.post(nothing).is_err(), "{what}");
    }
    for head in [[0; 4], [0xff; 4]] {
        let (mut victim, mut liar) = victim_and_liar();
        liar.socket.write_all(&head).unwrap();
        assert!(matches!(end(&mut victim), Error::Protocol(..)));
    }
}

/// Frames of every kind with any numbers in them, whole and cut.
#[test]
fn any_frames_reach_nothing_outside() {
    for seed in seeds(300) {
        let mut random = Random::new(seed);
        let mut input = vec![random.number() as u8];
        for _ in 0..random.below(20) {
            let code = random.below(14) as u8;
            let place = match random.below(3) {
                0 => 1000 + random.below(1200),
                1 => random.below(3) << 40 | random.below(5000),
                _ => random.number(),
            };
            let length = any_size(&mut random, if seed % 2 == 0 { 64 } else { u64::from(u32::MAX) }) as u32;
            input.push(code);
            if !matches!(code, 6..=8 | 11..) {
                input.extend(place.to_be_bytes());
            }
            input.extend(length.to_be_bytes());
            input.extend((0..length.min(64)).map(|_| random.number() as u8));
        }
        as_frames(&input);
    }
}

/// Answers that are not what this side asked for.
#[test]
fn wrong_answers_end_the_connection() {
    let read = Operation::Read { from: 0, into: Local { offset: 0, bytes: 8 }, context: 0 };
    let write = Operation::Write { from: Local { offset: 0, bytes: 8 }, to: 0, immediate: None, context: 0 };
    let long = [&[8][..], &9u32.to_be_bytes(), &[1; 9]].concat();
    let short = [&[8][..], &7u32.to_be_bytes(), &[1; 7]].concat();
    let endless = [&[7][..], &8u32.to_be_bytes(), &[1; 8]].concat();
    let written = [&[6][..], &1u32.to_be_bytes()].concat();
    let found = [&[9][..], &[0; 8]].concat();
    for (operation, answer) in
        [(read, &long), (read, &short), (read, &endless), (read, &written), (read, &found), (write, &long)]
    {
        let (mut victim, mut liar) = victim_and_liar();
        victim.post(operation).unwrap();
        victim.doorbell().unwrap();
        // Its greeting, and then the operation.
        let mut some = [0; 4 + 35 + 16 + 4];
        liar.socket.read_exact(&mut some).unwrap();
        liar.socket.write_all(&record(None, answer)).unwrap();
        assert!(matches!(end(&mut victim), Error::Protocol(..)), "{operation:?}: {answer:?}");
        let mut beyond = [0; 8];
        victim.arena().copy_out(8, &mut beyond);
        assert_eq!(beyond, [0; 8]);
    }
}

/// A peer that takes nothing: queues fill up to their limits, and nothing blocks.
#[test]
fn a_peer_that_takes_nothing_blocks_nobody() {
    let (mut victim, liar) = victim_and_liar();
    let (mut posted, begun) = (0u64, Instant::now());
    let from = Local { offset: 0, bytes: 4096 };
    loop {
        match victim.post(Operation::Write { from, to: 0, immediate: None, context: posted }) {
            Ok(()) => posted += 1,
            Err(Error::Full(Provider::Tcp)) => break,
            Err(error) => panic!("{error}"),
        }
        victim.doorbell().unwrap();
        assert!(posted <= tcp::limits::QUEUE_DEPTH as u64, "its queue has no end");
    }
    assert_eq!(victim.poll(&mut Vec::new(), 16).unwrap(), 0);
    assert!(begun.elapsed() < PATIENCE);
    drop(liar);
    assert!(matches!(end(&mut victim), Error::PeerGone(..)));
}

/// Whoever does not know the secret, or says something else, is turned away, and the real peer gets through.
#[test]
fn strangers_do_not_get_in() {
    let exposure = Exposure::all(4096);
    let (listening, descriptor) = TcpListening::listen(TcpSealing::Sealed).unwrap();
    let port = u16::from_be_bytes([descriptor[41], descriptor[42]]);
    let strange: Vec<TcpStream> = (0..40u8)
        .map(|number| {
            let mut socket = TcpStream::connect(("127.0.0.1", port)).unwrap();
            match number % 4 {
                0 => {}
                1 => socket.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap(),
                2 => socket.write_all(&[0; 100]).unwrap(),
                _ => {
                    let mut seal = Seal::new(&SECRET, &[b"caravan tcp 1 connecting"]).unwrap();
                    socket.write_all(&record(Some(&mut seal), &greeting([4096, 0, 4096], 1))).unwrap();
                }
            }
            socket
        })
        .collect();
    std::thread::scope(|scope| {
        let accepting = scope.spawn(|| listening.accept(&exposure, PATIENCE));
        let mut near = tcp::connect(&descriptor, &exposure, PATIENCE).unwrap();
        let mut far = accepting.join().unwrap().unwrap();
        let nothing = Local { offset: 0, bytes: 0 };
        near.post(Operation::Write { from: nothing, to: 0, immediate: Some(3), context: 0 }).unwrap();
        near.doorbell().unwrap();
        let mut events = Vec::new();
        while far.poll(&mut events, 1).unwrap() == 0 {}
        assert_eq!(events, [Event::Immediate(3)]);
    });
    drop(strange);
}

#[test]
fn descriptors_and_greetings_that_are_wrong_are_refused() {
    let (listening, descriptor) = TcpListening::listen(TcpSealing::Sealed).unwrap();
    assert!(!format!("{listening:?}").contains("secret"));
    for length in 0..descriptor.len() {
        if length < 43 || (length - 43) % 16 != 0 {
            let cut = tcp::connect(&descriptor[..length], &Exposure::all(64), Duration::ZERO);
            assert!(matches!(cut, Err(Error::Protocol(..))), "{length}");
        }
    }
    drop(listening);
    assert!(matches!(tcp::connect(&descriptor, &Exposure::all(64), PATIENCE), Err(Error::NotConnected(_))));
    let other_secret = Seal::new(&[8; 32], &[b"caravan tcp 1 connecting"]).unwrap();
    let right = || Seal::new(&SECRET, &[b"caravan tcp 1 connecting"]).unwrap();
    for (what, mut seal, body) in [
        ("another secret", other_secret, greeting([4096, 0, 4096], 0)),
        ("sealing", right(), greeting([4096, 0, 4096], 1)),
        ("an impossible flag", right(), greeting([4096, 0, 4096], 9)),
        ("exposed beyond the arena", right(), greeting([4096, 0, 4097], 0)),
        ("exposed backwards", right(), greeting([4096, 8, 0], 0)),
        ("an arena too large", right(), greeting([1 << 41, 0, 1 << 41], 0)),
        ("more than a greeting", right(), [&greeting([8, 0, 8], 0)[..], b"x"].concat()),
    ] {
        let (mut socket, theirs) = sockets();
        socket.write_all(&record(Some(&mut seal), &body)).unwrap();
        let error = victim(theirs, PATIENCE).expect_err(what);
        assert!(matches!(error, Error::Protocol(..)), "{what}: {error}");
    }
    let (silent, theirs) = sockets();
    assert!(matches!(victim(theirs, Duration::from_millis(10)), Err(Error::NotConnected(_))));
    drop(silent);
}

/// What something on the way changes is noticed, and nothing of it is done.
#[test]
fn a_changed_record_ends_a_sealed_connection() {
    let (near_end, near_middle) = sockets();
    let (mut far_middle, far_end) = sockets();
    let mut near_middle = near_middle;
    let exposure = Exposure::all(4096);
    let over = |socket: TcpStream, side| {
        tcp::over(socket.into(), side, &SECRET, TcpSealing::Sealed, &exposure, PATIENCE)
    };
    std::thread::scope(|scope| {
        let near = scope.spawn(|| over(near_end, TcpSide::Connecting).unwrap());
        let far = scope.spawn(|| over(far_end, TcpSide::Listening).unwrap());
        // A greeting is 35 bytes, with a length before and a tag behind.
        let mut greeting = [0; 4 + 35 + 16];
        near_middle.read_exact(&mut greeting).unwrap();
        far_middle.write_all(&greeting).unwrap();
        far_middle.read_exact(&mut greeting).unwrap();
        near_middle.write_all(&greeting).unwrap();
        let (mut near, mut far) = (near.join().unwrap(), far.join().unwrap());
        near.arena().copy_in(0, &[9; 64]);
        let from = Local { offset: 0, bytes: 64 };
        near.post(Operation::Write { from, to: 0, immediate: Some(1), context: 0 }).unwrap();
        near.doorbell().unwrap();
        let mut record = [0; 4 + 17 + 64 + 16];
        near_middle.read_exact(&mut record).unwrap();
        assert!(!record.windows(8).any(|bytes| bytes == [9; 8]), "it went in the clear");
        record[30] ^= 1;
        far_middle.write_all(&record).unwrap();
        assert!(matches!(end(&mut far), Error::Protocol(..)));
        let mut bytes = [0; 64];
        far.arena().copy_out(0, &mut bytes);
        assert_eq!(bytes, [0; 64]);
    });
}

/// Connections are made and ended: no thread and no descriptor is left of them.
#[test]
fn connections_that_have_ended_leave_nothing() {
    let region = Region::create("caravan-test", 4096).unwrap();
    let reads = |near: &mut TcpEndpoint, number: caravan_fabric::RegionNumber| {
        let into = Local { offset: 0, bytes: 64 };
        near.post(Operation::Read { from: number.place(0), into, context: 0 }).unwrap();
        near.doorbell().unwrap();
    };
    for _ in 0..100 {
        let (mut near, mut far) = tcp::pair(&Exposure::all(4096), TcpSealing::Plain).unwrap();
        let token = far.lend(&region, RegionAccess::Read).unwrap();
        let number = near.borrow(&token).unwrap();
        reads(&mut near, number);
        drop(far);
        assert!(matches!(end(&mut near), Error::PeerGone(..)));
        assert!(readable(near.wait_fd().unwrap().as_fd(), Duration::ZERO) || near.check_peer().is_err());
    }
}
