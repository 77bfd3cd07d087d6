//! Simulated worlds: thousands of seeds, each with its own promises.
//!
//! A failure prints its seed: `CARAVAN_SEED=19 cargo test -p caravan-fabric --test sim` runs that
//! one alone, and CARAVAN_SEEDS=100000 runs many.
#![forbid(unsafe_code)]

mod breaches;
#[path = "../common/mod.rs"]
mod common;
mod world;

use caravan_fabric::contract::{Capabilities, Endpoint};
use caravan_fabric::sim::{Faults, Faulty, Random, SimEndpoint, World};
use caravan_fabric::{Error, Link, RING_BYTES_MIN};
use common::conformance::ARENA_BYTES;
use common::lending::MakePair;
use common::pair::Pair;
use common::party::{Party, Turn, alternate, in_threads};
use common::seeds;

const SEEDS: u64 = 300;

fn each(test: fn(Pair, u64)) {
    for seed in seeds(SEEDS) {
        test(Pair::sim(seed, ARENA_BYTES), seed);
    }
}

conformance!(each);

fn each_lending(test: fn(MakePair<'_>, u64)) {
    for seed in seeds(30) {
        test(&mut |seed| Pair::sim(seed, ARENA_BYTES), seed);
    }
}

lending!(each_lending);

fn link(endpoint: impl Endpoint + 'static, ring_bytes: u64) -> Link {
    Link::new(Box::new(endpoint), ring_bytes).unwrap()
}

/// Makes two ends that send each other a few rings' worth of bytes.
fn parties(seed: u64, links: [Link; 2], random: &mut Random) -> [Party; 2] {
    let totals = [0, 1].map(|_| random.below(6 * RING_BYTES_MIN));
    let [left, right] = links;
    [Party::new(left, seed, 0, totals[0], totals[1]), Party::new(right, seed, 1, totals[1], totals[0])]
}

fn world(seed: u64, capabilities: Capabilities) -> (World, SimEndpoint, SimEndpoint) {
    World::pair(seed, Link::arena_bytes(RING_BYTES_MIN).unwrap(), capabilities).unwrap()
}

#[test]
fn streams_both_ways() {
    for seed in seeds(1500) {
        let mut random = Random::new(!seed);
        let (links, world) =
            Pair::sim(seed, Link::arena_bytes(RING_BYTES_MIN).unwrap()).links(RING_BYTES_MIN);
        alternate(&mut parties(seed, links, &mut random), world.as_ref(), &mut random);
    }
}

#[test]
fn streams_through_mapped_memory_with_slow_bells() {
    for seed in seeds(300) {
        let mut random = Random::new(!seed);
        let mut capabilities = World::capabilities(seed);
        capabilities.mapped = true;
        let (world, left, right) = world(seed, capabilities);
        let links = [link(left, RING_BYTES_MIN), link(right, RING_BYTES_MIN)];
        alternate(&mut parties(seed, links, &mut random), Some(&world), &mut random);
    }
}

#[test]
fn a_reader_that_never_sleeps_starves_nobody() {
    for seed in seeds(300) {
        let mut random = Random::new(!seed);
        let (world, left, right) = world(seed, World::capabilities(seed));
        let links = [link(left, RING_BYTES_MIN), link(right, RING_BYTES_MIN)];
        let mut parties = parties(seed, links, &mut random);
        parties[1].never_sleeps = true;
        alternate(&mut parties, Some(&world), &mut random);
    }
}

/// All room comes back in the end, however little comes back at a time.
#[test]
fn a_reader_that_only_looks_gives_all_room_back() {
    for seed in seeds(100) {
        let mut random = Random::new(!seed);
        let (world, left, right) = world(seed, World::capabilities(seed));
        let (mut left, mut right) = (link(left, RING_BYTES_MIN), link(right, RING_BYTES_MIN));
        for _ in 0..3 {
            assert_eq!(left.append(&[1; RING_BYTES_MIN as usize]).unwrap(), RING_BYTES_MIN as usize);
            left.publish().unwrap();
            let mut turns = 0;
            while left.room().unwrap() < RING_BYTES_MIN as usize {
                world.step();
                right.refresh().unwrap();
                right.read(&mut vec![0; random.below(500) as usize]);
                right.release().unwrap();
                turns += 1;
                assert!(turns < 20_000, "only {} bytes came back", left.room().unwrap());
            }
        }
    }
}

#[test]
fn the_same_seed_is_the_same_run() {
    for seed in seeds(50) {
        let run = || {
            let mut random = Random::new(!seed);
            let (links, world) =
                Pair::sim(seed, Link::arena_bytes(RING_BYTES_MIN).unwrap()).links(RING_BYTES_MIN);
            let mut parties = parties(seed, links, &mut random);
            let turns = alternate(&mut parties, world.as_ref(), &mut random);
            (turns, parties.map(|party| party.link.counts()))
        };
        assert_eq!(run(), run());
    }
}

/// One side is killed at any step: the other gets the beginning of the stream, and then
/// an error, soon.
#[test]
fn a_peer_killed_at_any_step() {
    for seed in seeds(1000) {
        let mut random = Random::new(!seed);
        let (world, left, right) = world(seed, World::capabilities(seed));
        let links = [link(left, RING_BYTES_MIN), link(right, RING_BYTES_MIN)];
        let mut parties = parties(seed, links, &mut random);
        for _ in 0..random.below(400) {
            match random.below(3) {
                2 => drop(world.step()),
                number => drop(parties[number as usize].turn().unwrap()),
            }
        }
        let [mut survivor, killed] = parties;
        world.kill(1);
        let error = survive(&mut survivor, &world);
        assert!(matches!(error, Error::PeerGone(..)), "{error}");
        assert!(matches!(survivor.link.check_peer(), Err(Error::PeerGone(..))));
        drop(killed);
    }
}

/// Takes turns beside the network until the error comes.
fn survive(survivor: &mut Party, world: &World) -> Error {
    for _ in 0..100_000 {
        match survivor.turn() {
            Err(error) => return error,
            Ok(Turn::Asleep) => assert!(world.step() || !survivor.is_asleep(), "it sleeps for ever"),
            Ok(Turn::Active) => drop(world.step()),
        }
    }
    panic!("no error comes");
}

/// Where an operation may complete before it has arrived, only the peer's release proves its arrival.
#[test]
fn what_completes_early_is_delivered_once_the_peer_has_released_it() {
    for seed in seeds(100) {
        for completes_early in [false, true] {
            let mut capabilities = World::capabilities(seed);
            capabilities.completes_early = completes_early;
            let (world, left, right) = world(seed, capabilities);
            let [mut sender, mut receiver] = [link(left, RING_BYTES_MIN), link(right, RING_BYTES_MIN)];
            assert_eq!(sender.append(b"the last word").unwrap(), 13);
            sender.publish().unwrap();
            while !sender.is_settled().unwrap() {
                // On some networks nothing arrives while the receiver does not poll.
                receiver.refresh().unwrap();
                world.step();
            }
            assert_eq!(sender.is_delivered().unwrap(), !completes_early, "seed {seed}");
            while receiver.refresh().unwrap() < 13 {
                world.step();
            }
            let mut word = [0; 13];
            assert_eq!((receiver.read(&mut word), &word), (13, b"the last word"));
            receiver.release().unwrap();
            // A small release is credited before a sleep.
            let _ = receiver.arm(0).unwrap();
            while !sender.is_delivered().unwrap() {
                sender.refresh().unwrap();
                receiver.refresh().unwrap();
                world.step();
            }
        }
    }
}

/// A side that is settled may end at once: the other side still gets every byte.
#[test]
fn nothing_is_lost_when_a_settled_side_ends() {
    for seed in seeds(1000) {
        let mut random = Random::new(!seed);
        let (world, left, right) = world(seed, World::capabilities(seed));
        let links = [link(left, RING_BYTES_MIN), link(right, RING_BYTES_MIN)];
        let [left, right] = parties(seed, links, &mut random);
        let mut parties = [left, right];
        let mut turns = 0;
        while !parties.iter().any(|party| party.finished) {
            turns += 1;
            assert!(turns < 100_000, "seed {seed}: neither side gets to its end");
            match random.below(3) {
                2 => drop(world.step()),
                number => drop(parties[number as usize].turn().unwrap()),
            }
        }
        let [left, right] = parties;
        let (first, mut last) = if left.finished { (left, right) } else { (right, left) };
        drop(first);
        let error = survive(&mut last, &world);
        assert!(matches!(error, Error::PeerGone(..)), "{error}");
        assert!(last.has_all(), "{last:?}");
    }
}

#[test]
fn a_fault_ends_every_call_after_it() {
    for end_at_call in 1..100 {
        let (world, left, right) = world(end_at_call, World::capabilities(end_at_call));
        let faults = Faults { end_at_call, ..Faults::default() };
        let mut parties = parties(
            end_at_call,
            [link(Faulty::new(left, faults, end_at_call), RING_BYTES_MIN), link(right, RING_BYTES_MIN)],
            &mut Random::new(end_at_call),
        );
        let error = (0..10_000).find_map(|_| {
            drop(parties[1].turn());
            world.step();
            parties[0].turn().err()
        });
        assert!(matches!(error, Some(Error::PeerGone(..))), "{error:?}");
        assert!(matches!(parties[0].link.check_peer(), Err(Error::PeerGone(..))));
    }
}

/// Links over real threads, which wait on real descriptors, with a third thread as the network.
#[test]
fn streams_between_threads() {
    for seed in seeds(60) {
        let mut random = Random::new(!seed);
        let (links, world) =
            Pair::sim(seed, Link::arena_bytes(RING_BYTES_MIN).unwrap()).links(RING_BYTES_MIN);
        in_threads(parties(seed, links, &mut random), world.as_ref());
    }
}
