//! The simulated network: thousands of seeds, each with promises of its own.
#![forbid(unsafe_code)]

mod common;

use caravan_fabric::contract::Endpoint;
use caravan_fabric::sim::{Network, Random};
use caravan_fabric::{Link, RING_BYTES_MIN};
use common::party::{Party, alternate};

fn link(endpoint: impl Endpoint + 'static, ring_bytes: u64) -> Link {
    Link::new(Box::new(endpoint), ring_bytes).unwrap()
}

#[test]
fn streams_both_ways() {
    for seed in 0..1000 {
        let ring_bytes = RING_BYTES_MIN;
        let arena_bytes = Link::arena_bytes(ring_bytes).unwrap();
        let (network, left, right) = Network::pair(seed, arena_bytes, Network::capabilities(seed)).unwrap();
        let mut random = Random::new(!seed);
        let totals = [random.below(6 * ring_bytes), random.below(6 * ring_bytes)];
        let mut parties = [
            Party::new(link(left, ring_bytes), seed, 0, totals[0], totals[1]),
            Party::new(link(right, ring_bytes), seed, 1, totals[1], totals[0]),
        ];
        alternate(&mut parties, Some(&network), &mut random);
    }
}
