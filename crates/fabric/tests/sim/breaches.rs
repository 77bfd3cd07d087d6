//! Each checker of the suites that all backends pass catches a breach of the contract that is planted for it. A checker
//! without one does not compile.

use std::panic::{AssertUnwindSafe, catch_unwind};

use caravan_fabric::sim::PlantedBreach;

use crate::common::conformance::{self, ARENA_BYTES};
use crate::common::lending::{self, MakePair};
use crate::common::pair::Pair;
use crate::{conformance, lending};

/// The number of networks of which at least one shows the breach.
const SEEDS: u64 = 100;

/// Runs a checker over one seed after another until it fails. Panics if it never does.
fn until_caught(checker: &str, breach: PlantedBreach, mut check: impl FnMut(u64)) {
    let caught = (0..SEEDS).find(|&seed| catch_unwind(AssertUnwindSafe(|| check(seed))).is_err());
    let seed = caught.unwrap_or_else(|| panic!("{checker} does not catch {breach:?}"));
    println!("{checker} caught {breach:?} with seed {seed}");
}

fn caught(checker: &str, breach: PlantedBreach, test: fn(Pair, u64)) {
    until_caught(checker, breach, |seed| test(Pair::planted_sim(breach, seed, ARENA_BYTES), seed));
}

conformance!(breaches caught);

fn caught_lending(checker: &str, breach: PlantedBreach, test: fn(MakePair<'_>, u64)) {
    until_caught(checker, breach, |seed| match breach {
        // Only mapped memory has windows.
        PlantedBreach::NoWindow => test(&mut |_| Pair::planted_shm(breach, ARENA_BYTES), seed),
        _ => test(&mut |seed| Pair::planted_sim(breach, seed, ARENA_BYTES), seed),
    });
}

lending!(breaches caught_lending);
