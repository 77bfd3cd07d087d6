//! The simulated network: thousands of seeds, each with promises of its own.
#![forbid(unsafe_code)]

mod common;

use caravan_fabric::contract::{Capabilities, Endpoint, Event, Local, Operation};
use caravan_fabric::sim::{Faults, Faulty, Network, Random, Side, SimEndpoint};
use caravan_fabric::{Error, Link, RING_BYTES_MIN};
use common::conformance::ARENA_BYTES;
use common::pair::Pair;
use common::party::{Party, Turn, alternate};

const SEEDS: u64 = 300;

fn each(test: fn(Pair, u64)) {
    for seed in 0..SEEDS {
        test(Pair::sim(seed, ARENA_BYTES), seed);
    }
}

conformance!(each);

fn link(endpoint: impl Endpoint + 'static, ring_bytes: u64) -> Link {
    Link::new(Box::new(endpoint), ring_bytes).unwrap()
}

/// Two ends that send each other a few rings' worth.
fn parties(seed: u64, links: [Link; 2], random: &mut Random) -> [Party; 2] {
    let totals = [0, 1].map(|_| random.below(6 * RING_BYTES_MIN));
    let [left, right] = links;
    [Party::new(left, seed, 0, totals[0], totals[1]), Party::new(right, seed, 1, totals[1], totals[0])]
}

fn network(seed: u64, capabilities: Capabilities) -> (Network, SimEndpoint, SimEndpoint) {
    Network::pair(seed, Link::arena_bytes(RING_BYTES_MIN).unwrap(), capabilities).unwrap()
}

#[test]
fn streams_both_ways() {
    for seed in 0..1500 {
        let mut random = Random::new(!seed);
        let (links, network) =
            Pair::sim(seed, Link::arena_bytes(RING_BYTES_MIN).unwrap()).links(RING_BYTES_MIN);
        alternate(&mut parties(seed, links, &mut random), network.as_ref(), &mut random);
    }
}

#[test]
fn streams_through_mapped_memory_with_slow_bells() {
    for seed in 0..300 {
        let mut random = Random::new(!seed);
        let capabilities = Capabilities { mapped: true, ..Network::capabilities(seed) };
        let (network, left, right) = network(seed, capabilities);
        let links = [link(left, RING_BYTES_MIN), link(right, RING_BYTES_MIN)];
        alternate(&mut parties(seed, links, &mut random), Some(&network), &mut random);
    }
}

#[test]
fn a_reader_that_never_sleeps_starves_nobody() {
    for seed in 0..300 {
        let mut random = Random::new(!seed);
        let (network, left, right) = network(seed, Network::capabilities(seed));
        let links = [link(left, RING_BYTES_MIN), link(right, RING_BYTES_MIN)];
        let mut parties = parties(seed, links, &mut random);
        parties[1].never_sleeps = true;
        alternate(&mut parties, Some(&network), &mut random);
    }
}
