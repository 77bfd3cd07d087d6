//! How many messages many members exchange: the formulas of docs/store-scale.md, in a world of 90.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::world::{Kind, LARGE, World};

/// How often leases are renewed in the time that is counted.
const RENEWALS: u64 = 10;

/// Returns what was sent since `before`.
fn since(world: &World, before: &BTreeMap<&'static str, u64>, kind: &str) -> u64 {
    let count = |sent: &BTreeMap<&'static str, u64>| sent.get(kind).copied().unwrap_or_default();
    count(&world.sent) - count(before)
}

#[test]
fn ninety_members_send_as_many_messages_as_the_formulas_say() {
    let others = LARGE as u64 - 1;
    let mut world = World::new(0, Kind::Large);
    // 230 bytes for each member with addresses of usual length, 220 for each of two parts.
    let (found, expected) = (world.configuration_bytes(), LARGE * (230 + 2 * 220));
    assert!(
        found <= expected && 2 * found > expected,
        "a configuration of {found} bytes, and not {expected}"
    );
    world.run_for(2 * world.lease());
    world.assert_served();

    // The manager and each other member ask each other for a lease, once in each renewal.
    let before = world.sent.clone();
    // Five in each lease.
    world.run_for(world.lease() / 5 * RENEWALS as u32);
    for kind in ["request", "grant"] {
        let (found, expected) = (since(&world, &before, kind), 2 * others * RENEWALS);
        // Clocks differ by a hundredth, and one renewal may be at either end.
        assert!(found.abs_diff(expected) <= 2 * others, "{kind}: {found}, and not {expected}");
    }
    for kind in ["probe", "alive", "configuration", "unblocked", "other"] {
        assert_eq!(since(&world, &before, kind), 0, "{kind} while nothing happens");
    }

    // An expulsion asks all, and tells all of them the next configuration and that it is unblocked: the expelled one, too. Who
    // hears of the epoch before that asks for it.
    let before = world.sent.clone();
    world.lose_one();
    world.run_until_served(Duration::from_secs(2));
    assert_eq!(world.epochs(), 2);
    let found = ["probe", "alive", "unblocked"].map(|kind| since(&world, &before, kind));
    assert_eq!(found, [others, others - 1, others]);
    let (told, asked) = (since(&world, &before, "configuration"), since(&world, &before, "other"));
    assert_eq!(told - asked, others);
}
