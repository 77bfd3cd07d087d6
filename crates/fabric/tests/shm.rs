//! Mapped memory: the conformance suite, and links between threads.
#![forbid(unsafe_code)]

mod common;

use std::os::unix::net::UnixStream;
use std::time::Duration;

use caravan_fabric::contract::{Endpoint, Event, Local, Operation, Provider};
use caravan_fabric::sim::{Faults, Faulty, Random, World};
use caravan_fabric::{Error, Link, RING_BYTES_MAX, RING_BYTES_MIN, shm};
use common::conformance::ARENA_BYTES;
use common::lending::MakePair;
use common::pair::{Pair, shm_ends};
use common::party::{Party, alternate, in_threads};
use common::pattern::Pattern;
use common::{any_size, readable};

const FAULTS: Faults =
    Faults { full: 5, short_poll: 5, empty_look: 5, empty_wake: 5, end_at_call: 0, unmapped: false };

fn each(test: fn(Pair, u64)) {
    test(Pair::shm(ARENA_BYTES), 0);
    for seed in 0..20 {
        test(Pair::faulty_shm(FAULTS, seed, ARENA_BYTES), seed);
    }
}

conformance!(each);

fn each_lending(test: fn(MakePair<'_>, u64)) {
    test(&mut |_| Pair::shm(ARENA_BYTES), 0);
    for seed in 0..3 {
        test(&mut |seed| Pair::faulty_shm(FAULTS, seed, ARENA_BYTES), seed);
    }
}

lending!(each_lending);

torn!(|| Pair::shm(common::torn::exposure().arena_bytes));

fn parties(seed: u64, links: [Link; 2], rings: u64) -> [Party; 2] {
    let mut random = Random::new(!seed);
    let totals = [0, 1].map(|_| random.below(rings * links[0].ring_bytes()));
    let [left, right] = links;
    [Party::new(left, seed, 0, totals[0], totals[1]), Party::new(right, seed, 1, totals[1], totals[0])]
}

fn links(seed: u64, faults: Faults, ring_bytes: u64) -> [Link; 2] {
    Pair::faulty_shm(faults, seed, Link::arena_bytes(ring_bytes).unwrap()).links(ring_bytes).0
}

#[test]
fn streams_in_turns() {
    for seed in 0..300 {
        let faults = Faults { unmapped: seed % 2 == 1, ..FAULTS };
        let mut random = Random::new(seed);
        alternate(&mut parties(seed, links(seed, faults, RING_BYTES_MIN), 6), None, &mut random);
    }
}

#[test]
fn streams_between_threads() {
    for seed in 0..40 {
        let faults = Faults { unmapped: seed % 2 == 1, ..FAULTS };
        let ring_bytes = RING_BYTES_MIN << (seed % 5);
        in_threads(parties(seed, links(seed, faults, ring_bytes), 40), None);
    }
}

/// Through mapped memory, without faults in front.
#[test]
fn streams_between_threads_at_full_speed() {
    for (seed, ring_bytes) in [(1, RING_BYTES_MIN), (2, 1 << 16), (3, 1 << 20)] {
        let links = Link::pair(ring_bytes).unwrap().into();
        in_threads(parties(seed, links, (4 << 20) / ring_bytes), None);
    }
}

/// A sender that waits for the peer to take its immediates is woken once it has.
#[test]
fn room_for_immediates_wakes_who_waits_for_it() {
    let mut pair = Pair::shm(ARENA_BYTES);
    let write = |at: u64| Operation::Write {
        from: Local { offset: 0, bytes: 8 },
        to: at,
        immediate: Some(1),
        context: 0,
    };
    pair.ends[0].arena().copy_in(0, &[7; 8]);
    let refused = loop {
        match pair.ends[0].post(write(0)) {
            Ok(()) => drop(pair.ends[0].poll(&mut pair.seen[0], 64).unwrap()),
            Err(error) => break error,
        }
    };
    assert!(matches!(refused, Error::Full(_)), "{refused}");
    assert!(matches!(pair.ends[0].post(write(8)), Err(Error::Full(_))));
    let mut untouched = [0; 8];
    pair.ends[1].arena().copy_out(8, &mut untouched);
    assert_eq!(untouched, [0; 8], "a refused write left bytes behind");
    pair.arm(0);
    assert!(!readable(pair.ends[0].wait_fd().unwrap(), Duration::ZERO));
    assert_eq!(pair.ends[1].poll(&mut pair.seen[1], 1).unwrap(), 1);
    assert!(readable(pair.ends[0].wait_fd().unwrap(), Duration::ZERO));
    pair.ends[0].acknowledge().unwrap();
    pair.ends[0].post(write(8)).unwrap();
    assert_eq!(pair.seen[1], [Event::Immediate(1)]);
}

#[test]
fn rings_have_sizes_that_fit() {
    for bytes in [0, 1, RING_BYTES_MIN - 1, RING_BYTES_MIN / 2, RING_BYTES_MIN + 1, 3 << 12, u64::MAX] {
        let error = Link::arena_bytes(bytes).unwrap_err();
        assert!(matches!(error, Error::RingBytes { .. }), "{error}");
        assert!(error.to_string().starts_with(&format!("ring_bytes is {bytes}: it takes a power of two")));
    }
    assert!(Link::arena_bytes(2 * RING_BYTES_MAX).is_err());
    // The largest ring has an arena size, even if this machine has less memory.
    assert_eq!(Link::arena_bytes(RING_BYTES_MAX).unwrap(), 2 * ((1 << 30) + 512));
    let (small, _other) = shm_ends(Link::mapped_arena_bytes(RING_BYTES_MIN).unwrap());
    assert!(matches!(Link::new(Box::new(small), 2 * RING_BYTES_MIN), Err(Error::Segment(_))));
}

/// Releases a multiple of the ring in every position, so that every wrap-around occurs.
#[test]
fn every_offset_of_the_smallest_ring() {
    let (mut left, mut right) = Link::pair(RING_BYTES_MIN).unwrap();
    let mut random = Random::new(1);
    let mut position = 0u64;
    while position < 40 * RING_BYTES_MIN {
        let length = any_size(&mut random, RING_BYTES_MIN) as usize;
        let bytes: Vec<u8> = (position..).take(length).map(|at| (at % 251) as u8).collect();
        assert_eq!(left.append(&bytes).unwrap(), length);
        assert_eq!(right.refresh().unwrap(), 0, "nothing is seen before it is published");
        left.publish().unwrap();
        assert_eq!(right.refresh().unwrap(), length);
        let mut got = vec![0; length];
        assert_eq!(right.read(&mut got), length);
        assert_eq!(got, bytes);
        right.release().unwrap();
        position += length as u64;
    }
    assert_eq!(left.counts().sent_bytes, position);
    assert_eq!(right.counts().received_bytes, position);
}

/// A plain stream: read(2) into a claim, write(2) from a polled span.
#[test]
fn descriptors_read_and_write_in_place() {
    let (mut left, mut right) = Link::pair(RING_BYTES_MIN).unwrap();
    let pipe = || rustix::pipe::pipe_with(rustix::pipe::PipeFlags::NONBLOCK).unwrap();
    let ((source, into_source), (from_sink, sink)) = (pipe(), pipe());
    let pattern = Pattern::new(5);
    let mut random = Random::new(5);
    let (mut fed, mut taken, total) = (0, 0, 50 * RING_BYTES_MIN);
    while taken < total {
        let mut bytes = vec![0; any_size(&mut random, 9999).min(total - fed) as usize];
        pattern.fill(fed, &mut bytes);
        fed += rustix::io::write(&into_source, &bytes).unwrap_or(0) as u64;
        let room = left.claim(any_size(&mut random, RING_BYTES_MIN) as usize).unwrap();
        for span in [room.first, room.second] {
            let got = left.outbound_slice().read_from(&source, span.offset, span.length).unwrap_or(0);
            left.commit(got);
            if got < span.length {
                break;
            }
        }
        left.publish().unwrap();
        let there = right.poll(RING_BYTES_MIN as usize).unwrap();
        for span in [there.first, there.second] {
            let put = right.inbound_slice().write_to(&sink, span.offset, span.length).unwrap_or(0);
            right.skip(put);
            if put < span.length {
                break;
            }
        }
        right.release().unwrap();
        let mut out = vec![0; any_size(&mut random, 9999) as usize];
        let got = rustix::io::read(&from_sink, &mut out).unwrap_or(0);
        pattern.check(taken, &out[..got]);
        taken += got as u64;
    }
    assert_eq!(taken, fed);
}

/// Each side learns that the other has ended, whichever side listened; neither needs a process number.
#[test]
fn an_end_that_is_closed_is_noticed() {
    for gone in 0..2 {
        let (left, right) = shm_ends(4096);
        let mut ends = [Some(left), Some(right)];
        assert!(ends.iter_mut().flatten().all(|end| end.check_peer().is_ok()));
        drop(ends[gone].take());
        let told = ends[1 - gone].as_mut().map(Endpoint::check_peer);
        assert!(matches!(told, Some(Err(Error::PeerGone(..)))), "{gone}: {told:?}");
    }
}

/// Both sides connect by a provider that both allow, and learn why if there is none.
#[test]
fn links_connect_over_any_channel() {
    let both = |here: &[Provider], there: &'static [Provider]| {
        let (mut near, mut far) = UnixStream::pair().unwrap();
        let accepting = std::thread::spawn(move || Link::accept(&mut far, there, RING_BYTES_MIN));
        (Link::connect(&mut near, here), accepting.join().unwrap())
    };
    let (near, far) = both(&[Provider::Rdma, Provider::Shm], &[Provider::Shm]);
    let (mut near, mut far) = (near.unwrap(), far.unwrap());
    near.append(b"over there").unwrap();
    near.publish().unwrap();
    assert_eq!(far.refresh().unwrap(), 10);
    for (here, there) in [(&[Provider::Shm][..], &[][..]), (&[], &[Provider::Shm])] {
        let (near, far) = both(here, there);
        assert!(matches!(near, Err(Error::NotConnected(_))), "{near:?}");
        assert!(matches!(far, Err(Error::NotConnected(_))), "{far:?}");
    }
    let (mut near, mut far) = UnixStream::pair().unwrap();
    std::io::Write::write_all(&mut far, &[0, 0, 0, 3, 1, 2, 3]).unwrap();
    let refused = Link::connect(&mut near, &[Provider::Shm]).unwrap_err();
    assert!(refused.to_string().contains("malformed"), "{refused}");
}

/// Two backends have one name each, which a face queries.
#[test]
fn backends_have_names() {
    let (left, _right) = shm_ends(4096);
    assert_eq!(left.provider().name(), "shm");
    let (_network, sim, _peer) = World::pair(1, 4096, World::capabilities(1)).unwrap();
    assert_eq!(Faulty::new(sim, FAULTS, 1).provider().name(), "sim");
    assert!(shm::QUEUE_DEPTH.is_power_of_two());
}
