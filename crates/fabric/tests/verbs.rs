//! RDMA devices: the conformance suite, and links, between two ends in one process.
#![forbid(unsafe_code)]

mod common;

use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use caravan_fabric::contract::Provider;
use caravan_fabric::sim::Random;
use caravan_fabric::verbs::{self, ConnectProgress, Domain, PendingEndpoint};
use caravan_fabric::{Exposure, Link, RING_BYTES_MIN};
use common::PATIENCE;
use common::conformance::ARENA_BYTES;
use common::lending::MakePair;
use common::pair::{Pair, verbs_ends};
use common::party::{Party, alternate, in_threads};

fn each(test: fn(Pair, u64)) {
    for seed in 0..5 {
        test(Pair::verbs(&Exposure::all(ARENA_BYTES)), seed);
    }
}

conformance!(each);

fn each_lending(test: fn(MakePair<'_>, u64)) {
    let domain = Domain::new();
    test(&mut |_| Pair::verbs_in(&domain, &Exposure::all(ARENA_BYTES)), 1);
}

lending!(each_lending);

torn!(|| Pair::verbs(&common::torn::exposure()));

fn parties(seed: u64, ring_bytes: u64, rings: u64) -> [Party; 2] {
    let mut random = Random::new(!seed);
    let totals = [0, 1].map(|_| random.below(rings * ring_bytes));
    let links =
        verbs_ends(&Link::exposure(ring_bytes).unwrap()).map(|end| Link::new(end, ring_bytes).unwrap());
    let [left, right] = links;
    [Party::new(left, seed, 0, totals[0], totals[1]), Party::new(right, seed, 1, totals[1], totals[0])]
}

#[test]
fn streams_in_turns() {
    for seed in 0..20 {
        alternate(&mut parties(seed, RING_BYTES_MIN, 6), None, &mut Random::new(seed));
    }
}

#[test]
fn streams_between_threads() {
    for seed in 0..10 {
        in_threads(parties(seed, RING_BYTES_MIN << (seed % 5), 40), None);
    }
}

#[test]
fn links_connect_over_a_channel() {
    let (mut near, mut far) = UnixStream::pair().unwrap();
    let accepting = std::thread::spawn(move || Link::accept(&mut far, &[Provider::Rdma], RING_BYTES_MIN));
    let near = Link::connect(&mut near, &[Provider::Rdma]).unwrap();
    let far = accepting.join().unwrap().unwrap();
    assert_eq!([near.provider(), far.provider()], [Provider::Rdma; 2]);
}

/// One thread moves both sides of several connections, a moment each in turn, as the one thread of
/// an emulator does for its node: whichever side is first, it never waits for what it has to do itself.
#[test]
fn one_thread_finishes_both_sides() {
    let (limit, exposure) = (PATIENCE, Exposure::all(4096));
    let mut waiting: Vec<(PendingEndpoint, Vec<u8>)> = Vec::new();
    for _ in 0..3 {
        let (asking, request) = verbs::connect(&verbs::offer().unwrap(), &exposure).unwrap();
        let (accepting, answer) = verbs::accept(&request, &exposure).unwrap();
        waiting.push((asking, answer));
        waiting.insert(0, (accepting, Vec::new()));
    }
    let (begun, mut connected) = (Instant::now(), Vec::new());
    while !waiting.is_empty() {
        assert!(begun.elapsed() < limit, "{} of 6 sides are connected", connected.len());
        for (pending, answer) in std::mem::take(&mut waiting) {
            let pause = Instant::now() + Duration::from_millis(2);
            match pending.advance(&answer, limit, pause).unwrap() {
                ConnectProgress::Connected(endpoint) => connected.push(endpoint),
                ConnectProgress::Waiting(pending) => waiting.push((pending, answer)),
            }
        }
    }
}

/// iWARP's connection manager looks for the peer first. If nobody answers, that takes seconds, but no call
/// blocks for them. (The other fabrics look for nobody.)
#[test]
fn an_address_of_nobody_is_looked_for_in_turns() {
    if std::env::var("VERBS_KIND").as_deref() != Ok("siw") {
        return;
    }
    let exposure = Exposure::all(4096);
    let (asking, request) = verbs::connect(&verbs::offer().unwrap(), &exposure).unwrap();
    let (_accepting, mut answer) = verbs::accept(&request, &exposure).unwrap();
    let is_address = |bytes: &[u8]| {
        let v6 = std::net::Ipv6Addr::from(<[u8; 16]>::try_from(bytes).unwrap());
        let of_network = match v6.to_ipv4_mapped() {
            Some(v4) => v4.octets()[..3] == [10, 0, 0],
            None => v6.segments()[..7] == [0xfd00, 0, 0, 0, 0, 0, 0],
        };
        of_network && [1, 2].contains(&bytes[15])
    };
    let at = answer.windows(16).position(is_address).expect("an answer has an address");
    answer[at + 15] = 99;
    let begun = Instant::now();
    let progress =
        asking.advance(&answer, Duration::from_secs(20), begun + Duration::from_millis(2)).unwrap();
    assert!(matches!(progress, ConnectProgress::Waiting(_)), "{progress:?}");
    assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
}
