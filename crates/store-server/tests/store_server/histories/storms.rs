//! Clients and servers that are stopped and killed; and the same with a fault planted.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use caravan_store::faults::PlantedFault;

use super::clients::{ClientFault, Workload};
use super::cycles::{Rule, judge};
use super::history::{ClientAct, Outcome};
use super::rig::{Storm, raise};

/// How often servers and clients are killed. With the 800 owners of `crates/store/tests/store/kills.rs`, `make test` has 2,000
/// kills and judges what each left behind.
const KILLS: usize = 1200;
/// Kills in one history: what is longer only takes more memory.
const KILLS_AT_ONCE: usize = 60;
/// The longest pause between two of them, in tenths of a millisecond, if many are wanted.
const PAUSE: usize = 50;
/// The same if the clients are to do much.
const LONG_PAUSE: usize = 150;
/// For how long a planted fault may stay unnoticed.
const PATIENCE: Duration = Duration::from_secs(120);

pub fn environment(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")))
}

pub fn kills() -> usize {
    environment("CARAVAN_KILLS").map_or(KILLS, |kills| kills as usize)
}

pub fn seed() -> u64 {
    let seed = environment("CARAVAN_SEED").unwrap_or_else(super::history::now_ns);
    println!("CARAVAN_SEED={seed}");
    seed
}

pub fn calm() -> Storm {
    let (in_server, in_clients, between) = (None, None, None);
    let (workload, kills, pause, seed) = (Workload::Chains, KILLS_AT_ONCE, PAUSE, seed());
    Storm { workload, kills, pause, seed, in_server, in_clients, between }
}

pub fn describe(acts: &[ClientAct]) -> String {
    let count = |outcome| acts.iter().filter(|act| act.outcome == outcome).count();
    let outcomes = [Outcome::Done, Outcome::Refused, Outcome::Unknown].map(count);
    format!("{} transactions, {} refused, {} without a reply", outcomes[0], outcomes[1], outcomes[2])
}

#[test]
fn every_history_has_an_order() {
    let (kills, mut storm) = (kills(), calm());
    let mut killed = 0;
    while killed < kills {
        let aftermath = raise(storm);
        killed += storm.kills;
        println!("{killed} kills, {} stops: {}", aftermath.stops, describe(&aftermath.acts));
        if let Err(violation) = judge(&aftermath.acts) {
            panic!("seed {}: {:?}: {}", storm.seed, violation.rule, violation.text);
        }
        assert!(aftermath.is_sound, "the server's memory is damaged, as it says above");
        storm.seed += 1;
    }
}

/// Makes histories from one seed after the other until the judge notices, by one of these rules.
pub fn until_noticed(rules: &[Rule], seed: u64, mut history: impl FnMut(u64) -> Vec<ClientAct>) {
    let begin = Instant::now();
    for seed in seed.. {
        let acts = history(seed);
        if let Err(violation) = judge(&acts) {
            println!("{}: {:?}: {}", describe(&acts), violation.rule, violation.text);
            assert!(rules.contains(&violation.rule), "{:?} is no sign of this fault", violation.rule);
            return;
        }
        assert!(begin.elapsed() < PATIENCE, "the planted fault was not noticed");
    }
}

fn assert_noticed(rules: &[Rule], mut storm: Storm) {
    (storm.kills, storm.pause) = (20, LONG_PAUSE);
    until_noticed(rules, storm.seed, |seed| raise(Storm { seed, ..storm }).acts);
}

/// Writes a history for `tests/histories/run`.
pub fn write_history(name: &str, acts: &[ClientAct]) {
    println!("{name}: {}", describe(acts));
    let folder = PathBuf::from(std::env::var_os("CARAVAN_HISTORIES").expect("tests/histories/run sets it"));
    let lines = acts.iter().map(|act| serde_json::to_string(act).expect("JSON") + "\n");
    std::fs::write(folder.join(format!("{name}.jsonl")), lines.collect::<String>()).expect("written");
}

/// Writes histories of single values for `tests/histories/run`: sound ones, and some with each fault planted.
#[test]
#[ignore = "run by make store-histories"]
fn write_histories() {
    let storm = Storm { workload: Workload::Registers, pause: LONG_PAUSE, ..calm() };
    let mut seed = storm.seed;
    let mut raise_into = |name: String, changed: Storm| {
        seed += 1;
        let aftermath = raise(Storm { seed, ..changed });
        assert!(aftermath.is_sound, "the server's memory is damaged, as it says above");
        write_history(&name, &aftermath.acts);
    };
    for number in 0..kills().div_ceil(KILLS_AT_ONCE) {
        raise_into(format!("sound-{number}"), storm);
    }
    for number in 0..5 {
        let mut faulty = |name: &str, changed| raise_into(format!("faulty-{name}-{number}"), changed);
        faulty("validation", Storm { in_server: Some(PlantedFault::NoValidation), ..storm });
        faulty("watch", Storm { in_server: Some(PlantedFault::IgnoredRequirement), ..storm });
        // Readers rarely meet a writer in the middle.
        let kills = 4 * KILLS_AT_ONCE;
        faulty("torn", Storm { in_clients: Some(PlantedFault::TornRead), kills, ..storm });
        faulty("early", Storm { between: Some(ClientFault::EarlyReply), ..storm });
        faulty("repeat", Storm { between: Some(ClientFault::Repeat), ..storm });
    }
}

#[test]
fn a_commit_that_does_not_validate_is_noticed() {
    assert_noticed(
        &[Rule::LostUpdate, Rule::Order, Rule::Cycle],
        Storm { in_server: Some(PlantedFault::NoValidation), ..calm() },
    );
}

#[test]
fn a_watch_that_is_ignored_is_noticed() {
    assert_noticed(
        &[Rule::LostUpdate, Rule::Order, Rule::Cycle],
        Storm { in_server: Some(PlantedFault::IgnoredRequirement), ..calm() },
    );
}

#[test]
fn a_snapshot_of_two_moments_is_noticed() {
    assert_noticed(
        &[Rule::Cycle, Rule::Internal],
        Storm { in_clients: Some(PlantedFault::NoRevalidation), ..calm() },
    );
}

#[test]
fn a_torn_read_is_noticed() {
    // A part of a list can look like another list, and two reads of one transaction can differ.
    assert_noticed(
        // A value without its version, or the other way round, shows as whatever it contradicts first.
        &[Rule::Garbage, Rule::Order, Rule::LostUpdate, Rule::Repeated, Rule::Internal, Rule::Cycle],
        Storm { in_clients: Some(PlantedFault::TornRead), ..calm() },
    );
}

#[test]
fn a_reply_before_the_write_is_noticed() {
    assert_noticed(&[Rule::Cycle], Storm { between: Some(ClientFault::EarlyReply), ..calm() });
}

#[test]
fn a_request_that_is_done_twice_is_noticed() {
    assert_noticed(&[Rule::Repeated], Storm { between: Some(ClientFault::Repeat), ..calm() });
}
