//! The protocol of transactions over several parts of a store (`ledger.rs`), as a model that is explored state by state.
//!
//! In small worlds any step may take any time: messages are late, lost and repeated, clients end, owners are taken over. The tests explore
//! all states of a world, and what must hold is looked at in each. Each fault of a list is planted in a world as well, to prove that the
//! model finds it.
//!
//! | file | contents |
//! |---|---|
//! | `world.rs`, `fault.rs` | what a world consists of, and its state; what can be planted in it |
//! | `steps.rs` | the steps of a transaction, of its resolution, and of a part's next owner |
//! | `model.rs` | the list of steps, and what must hold |
//! | `clock.rs` | the second model: the times of several parts, reads of one moment |
//! | `history.rs` | strict serializability |
//! | `worlds.rs` | the worlds, and where each fault is found |
//!
//! `cargo test -p caravan-store --test replication -- --nocapture` shows the steps that lead to each planted fault.

mod clock;
mod fault;
mod history;
mod model;
mod steps;
mod world;
mod worlds;

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::hash::Hash;

use stateright::{Checker, Expectation, HasDiscoveries, Model, Path};

use clock::{ClockWorld, ONE_MOMENT};
use world::PartWorld;
use worlds::{CLOCK_FAULTS, CLOCK_WORLDS, FAULTS, LARGE_WORLDS, WORLDS};

/// Explores all states of a world. Panics with the steps that lead to what must not be. Returns which things that should
/// happen do.
fn hold<M>(name: &str, model: M) -> BTreeSet<&'static str>
where
    M: Model + Send + Sync + 'static,
    M::State: Clone + Debug + Hash + PartialEq + Send + Sync,
    M::Action: Clone + Debug + PartialEq,
{
    let properties = model.properties();
    let checker = model.checker().finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    println!("{} states: {name}", checker.unique_state_count());
    let mut seen = BTreeSet::new();
    for property in properties {
        match checker.discovery(property.name) {
            Some(path) if property.expectation == Expectation::Always => {
                panic!("In the world \"{name}\" it does not hold that {}:\n{}", property.name, steps(path))
            }
            Some(_) => seen.insert(property.name),
            None => continue,
        };
    }
    seen
}

/// Explores a world with a planted fault until it breaks `property`.
fn find<M>(name: &str, fault: &dyn Debug, model: M, property: &'static str)
where
    M: Model + Send + Sync + 'static,
    M::State: Clone + Debug + Hash + PartialEq + Send + Sync,
    M::Action: Clone + Debug + PartialEq,
{
    let checker = model.checker().finish_when(HasDiscoveries::AnyOf([property].into())).spawn_bfs().join();
    let path = checker.discovery(property);
    let path = path.unwrap_or_else(|| panic!("{fault:?} is not found in the world \"{name}\": {property}"));
    println!("{fault:?} in the world \"{name}\". It does not hold that {property}:\n{}", steps(path));
}

fn steps<State, Action: Debug>(path: Path<State, Action>) -> String {
    let steps = path.into_actions().into_iter().enumerate();
    steps.map(|(number, step)| format!("{:4}. {step:?}\n", number + 1)).collect()
}

#[test]
fn what_must_hold_holds_in_every_world() {
    let seen: BTreeSet<_> = WORLDS.iter().flat_map(|world| hold(world.name, *world)).collect();
    for property in WORLDS[0].properties().iter().filter(|it| it.expectation == Expectation::Sometimes) {
        assert!(seen.contains(property.name), "in none of the worlds {}", property.name);
    }
}

#[test]
#[ignore = "takes a minute: make test-long"]
fn what_must_hold_holds_in_large_worlds() {
    for world in LARGE_WORLDS {
        hold(world.name, world);
    }
}

#[test]
fn each_planted_fault_is_found() {
    for (fault, world, property) in FAULTS {
        find(world.name, &fault, PartWorld { fault: Some(fault), ..world }, property);
    }
}

#[test]
fn a_reader_sees_one_moment_without_a_commit() {
    for world in CLOCK_WORLDS {
        let seen = hold(world.name, world);
        assert!(seen.contains(clock::READS), "in the world \"{}\" no reader reads everything", world.name);
    }
}

#[test]
fn each_planted_fault_of_the_clock_is_found() {
    for (fault, world) in CLOCK_FAULTS {
        find(world.name, &fault, ClockWorld { fault: Some(fault), ..world }, ONE_MOMENT);
    }
}
