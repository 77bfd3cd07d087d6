//! Simulated clusters: members with clocks of their own, a network that delays, loses and cuts, and a register.
//!
//! The seed of a world that fails is printed, and `CARAVAN_SEED=N cargo test -p caravan-cluster --test members` runs that
//! world again.

mod node;
mod scale;
mod world;

use std::panic::catch_unwind;
use std::time::Duration;

use caravan_cluster::faults::{LeaseFault, plant};
use world::{Kind, World};

/// How long a world in peace may take until everything is served: some leases.
const SERVED_MAX: Duration = Duration::from_secs(3);

/// Returns the seeds of a test: the first `count`; CARAVAN_SEED=N gives only that one, CARAVAN_WORLDS=N gives N.
fn seeds(count: u64) -> std::ops::Range<u64> {
    let variable = |name| std::env::var(name).ok()?.parse::<u64>().ok();
    match (variable("CARAVAN_SEED"), variable("CARAVAN_WORLDS")) {
        (Some(seed), _) => seed..seed + 1,
        (None, count_wanted) => 0..count_wanted.unwrap_or(count),
    }
}

/// Runs a world, and says its seed if it fails.
fn run<T>(seed: u64, world: impl FnOnce() -> T + std::panic::UnwindSafe) -> T {
    catch_unwind(world).unwrap_or_else(|panic| {
        eprintln!("this was the world with seed {seed}; CARAVAN_SEED={seed} runs it again");
        std::panic::resume_unwind(panic)
    })
}

/// Chaos for two seconds, then peace: never two primaries, never a lost commit, and at the end everything is served.
#[test]
fn no_part_has_two_primaries_and_every_cluster_goes_on() {
    let mut epochs = 0;
    let mut commits = 0;
    for seed in seeds(1000) {
        let (worlds_epochs, worlds_commits) = run(seed, || {
            let mut world = World::new(seed, Kind::Chaos);
            world.run_for(Duration::from_secs(2));
            world.make_peace();
            world.run_until_served(SERVED_MAX);
            if seed % 10 == 0 {
                world.run_until_whole(Duration::from_secs(60));
            }
            (world.epochs(), world.commits)
        });
        epochs += worlds_epochs;
        commits += worlds_commits;
    }
    println!("{epochs} epochs, {commits} commits");
    assert!(epochs > 0 && commits > 0);
}

/// One member is lost, in one of several ways, and nothing is ever mended: the rest goes on, soon.
#[test]
fn a_majority_goes_on_after_each_loss() {
    for loss in [
        Kind::Crash,
        Kind::Testified,
        Kind::Seen,
        Kind::Stopped,
        Kind::CutOff,
        Kind::Deaf,
        Kind::Mute,
        Kind::NoRegister,
    ] {
        // In leases of the world, and in milliseconds.
        let mut times: Vec<(f64, f64)> = seeds(100)
            .map(|seed| {
                run(seed, || {
                    let mut world = World::new(seed, loss);
                    world.run_for(Duration::from_millis(500));
                    world.assert_served();
                    let lost_at = world.lose_one();
                    world.run_until_served(SERVED_MAX);
                    let time = world.now_since(lost_at);
                    (time.div_duration_f64(world.lease()), time.as_secs_f64() * 1e3)
                })
            })
            .collect();
        let median_and_most = |times: &mut Vec<f64>| {
            times.sort_by(f64::total_cmp);
            (times[times.len() / 2], times[times.len() - 1])
        };
        let (mut leases, mut ms): (Vec<f64>, Vec<f64>) = times.drain(..).unzip();
        let (leases, ms) = (median_and_most(&mut leases), median_and_most(&mut ms));
        println!("{loss:?}: served again after {leases:.2?} leases, {ms:.0?} ms (median and most)");
        // The lease, the probe and what the register takes; no lease where somebody knows of the end.
        match loss {
            Kind::Testified | Kind::Seen => assert!(ms.1 <= 60.0, "{loss:?}: {ms:?} ms"),
            Kind::NoRegister => assert!(leases.1 <= 10.0, "{loss:?}: {leases:?} leases"),
            _ => assert!(leases.1 <= 3.5, "{loss:?}: {leases:?} leases"),
        }
    }
}

/// A world is a function of its seed.
#[test]
fn the_same_seed_is_the_same_world() {
    let digests = || {
        let digest = |seed| {
            let mut world = World::new(seed, Kind::Chaos);
            world.run_for(Duration::from_secs(1));
            world.digest
        };
        (0..20).map(digest).collect::<Vec<_>>()
    };
    let mut first = digests();
    assert_eq!(first, digests());
    first.sort_unstable();
    first.dedup();
    assert_eq!(first.len(), 20, "two seeds are one world");
}

/// A server is expelled while its lease holds; by a manager that ends at that moment, so that its successor waits for that
/// lease, and by one whose clock is fast.
#[test]
fn leases_of_the_expelled_are_waited_for() {
    for kind in [Kind::Unanswered, Kind::Drifting] {
        seeds(100).for_each(|seed| run(seed, || expelled_with_a_lease(seed, kind)));
    }
}

fn expelled_with_a_lease(seed: u64, kind: Kind) {
    let mut world = World::new(seed, kind);
    world.run_for(Duration::from_millis(300));
    world.break_a_connection();
    world.run_for(4 * world.lease() + Duration::from_millis(100));
    world.assert_served();
}

fn unanswered(seed: u64) {
    expelled_with_a_lease(seed, Kind::Unanswered);
}

/// A minority that reaches the register does not expel a majority whose manager does not.
#[test]
fn a_minority_expels_nobody() {
    seeds(100).for_each(|seed| run(seed, || divided(seed)));
}

fn divided(seed: u64) {
    let mut world = World::new(seed, Kind::Divided);
    world.run_for(Duration::from_millis(300));
    world.lose_one();
    world.run_until_served(SERVED_MAX);
}

fn drifting(seed: u64) {
    expelled_with_a_lease(seed, Kind::Drifting);
}

fn chaos(seed: u64) {
    let mut world = World::new(seed, Kind::Chaos);
    world.run_for(Duration::from_secs(2));
    world.make_peace();
    world.run_until_served(SERVED_MAX);
}

/// The worlds notice each fault. The number is the world from which the search begins, as most worlds do not notice.
#[test]
fn planted_faults_are_caught() {
    type Search = (LeaseFault, fn(u64), u64);
    let faults: [Search; 12] = [
        (LeaseFault::CountedFromAnswer, chaos, 90),
        (LeaseFault::NoDrift, drifting, 0),
        (LeaseFault::LeaseNotAwaited, chaos, 50),
        (LeaseFault::GrantNotAwaited, chaos, 285),
        (LeaseFault::AcknowledgementNotAwaited, chaos, 0),
        (LeaseFault::ClosedTooEarly, chaos, 0),
        (LeaseFault::GrantedWithoutLease, chaos, 515),
        (LeaseFault::MinorityExpels, divided, 0),
        (LeaseFault::FormerForgotten, unanswered, 0),
        (LeaseFault::ServedBlocked, chaos, 0),
        (LeaseFault::ManagerNotReplaced, chaos, 0),
        (LeaseFault::EndOfAnotherProcess, chaos, 380),
    ];
    // Nobody reads how these worlds end.
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|panic| {
        if std::thread::current().name().is_none_or(|name| !name.contains("planted")) {
            eprintln!("{panic}");
        }
    }));
    let caught = faults.map(|(fault, world, first)| {
        plant(Some(fault));
        let caught = (first..first + 1000).find_map(|seed| {
            let panic = catch_unwind(|| world(seed)).err()?;
            Some((seed, panic.downcast_ref::<String>().cloned().unwrap_or_default()))
        });
        println!("{fault:?}: caught in world {caught:?}");
        caught.is_some()
    });
    plant(None);
    std::panic::set_hook(hook);
    for ((fault, ..), caught) in faults.iter().zip(caught) {
        assert!(caught, "the worlds do not notice {fault:?}");
    }
}
