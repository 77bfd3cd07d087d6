//! Changes of the configuration: at the limits, and with failures.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

use caravan_engine::layout::{DropReason, link, worker};
use caravan_engine::limits::{QUEUE_PACKETS_MAX, STATE_BYTES_MAX};
use caravan_engine::{Config, Engine, EngineEvent, EngineOptions};
use rustix::process::{Resource, Rlimit, Signal, getrlimit, setrlimit};
use serde_json::json;

use super::{LINK, engine, flows, pair, poll_until, signal, taken_from};

/// More than half of the links and workers that an engine can have.
const LINKS: usize = 129;
const WORKERS: usize = 40;

/// Makes many links, every second one between two processes, and many workers, with names of their own.
fn many(names: &str) -> Config {
    let mut config = Config::new();
    config.app_in("left", "source", "source", json!({ "size": 60 }));
    config.app_in("left", "near", "sink", json!({})).app_in("right", "far", "sink", json!({}));
    for number in 0..LINKS {
        let sink = if number % 2 == 0 { "near" } else { "far" };
        config.link(&format!("source.{names}{number} -> {sink}.{names}{number}")).unwrap();
    }
    for number in 0..WORKERS {
        let name = format!("{names}{number}");
        config.app_in(&name, &name, "crasher", json!({ "crash": false }));
    }
    config
}

pub fn a_reload_may_replace_every_link_and_worker() {
    let mut engine = engine(EngineOptions::default());
    for names in ["a", "b", "c"] {
        let config = many(names);
        let changes = engine.configure(&config).unwrap();
        assert_eq!((changes.links_added.len(), changes.workers_started.len() >= WORKERS), (LINKS, true));
        let numbers: std::collections::BTreeSet<_> =
            config.links.keys().map(|name| engine.link_id(&name.to_string())).collect();
        assert!(numbers.len() == LINKS && !numbers.contains(&None), "{names}: {numbers:?}");
        for name in config.apps.values().map(|app| &app.worker) {
            assert!(engine.pid_of(name).is_some(), "{name} does not run");
        }
        poll_until(&mut engine, |engine, _| {
            config.links.keys().all(|name| taken_from(engine, &name.to_string()) > 0)
        });
    }
    engine.stop().unwrap();
}

pub fn links_share_the_packets_after_a_consumer_stood_still() {
    let mut engine = engine(EngineOptions::default());
    let config = many("link");
    engine.configure(&config).unwrap();
    signal(&engine, "right", Signal::STOP);
    poll_until(&mut engine, |_, events| {
        events.iter().any(|event| matches!(event, EngineEvent::Short { .. }))
    });
    signal(&engine, "right", Signal::CONT);
    let links: Vec<_> = config.links.keys().map(ToString::to_string).collect();
    let before: Vec<_> = links.iter().map(|link| taken_from(&engine, link)).collect();
    // More than a link holds at both ends and in between.
    let more = 2 * QUEUE_PACKETS_MAX as u64;
    poll_until(&mut engine, |engine, _| {
        links.iter().zip(&before).all(|(link, before)| taken_from(engine, link) > before + more)
    });
    engine.stop().unwrap();
}

/// Returns a worker's counts: restarts, and drops by reason.
fn past(engine: &Engine, name: &str) -> Vec<u64> {
    let id = engine.worker_id(name).unwrap();
    let word = |offset| engine.shared().worker(id, offset).load(Ordering::Relaxed);
    [worker::RESTARTS]
        .into_iter()
        .chain((0..DropReason::COUNT).map(|cause| worker::DROPS + 8 * cause))
        .map(word)
        .collect()
}

pub fn a_new_worker_has_no_past() {
    let mut engine = engine(EngineOptions::default());
    engine.configure(&pair()).unwrap();
    flows(&mut engine);
    signal(&engine, "right", Signal::KILL);
    poll_until(&mut engine, |_, events| {
        events.iter().any(|event| matches!(event, EngineEvent::Restarted { .. }))
    });
    assert_eq!(past(&engine, "right")[0], 1);
    // Two workers are new: one gets the free place, the other the place of the worker that has ended.
    for names in [["new", "newer"], ["newest", "last"]] {
        let mut config = Config::new();
        for name in names {
            config.app_in(name, name, "crasher", json!({ "crash": false }));
        }
        engine.configure(&config).unwrap();
        for name in names {
            assert_eq!(past(&engine, name), [0; 1 + DropReason::COUNT], "{name}");
        }
    }
    engine.stop().unwrap();
}

/// Limits this process's open descriptors. Returns the previous limit.
fn limit_descriptors(most: Option<u64>) -> Option<u64> {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: most, maximum }).unwrap();
    current
}

pub fn a_process_that_cannot_start_changes_nothing() {
    let mut engine = engine(EngineOptions::default());
    let mut old = pair();
    old.app_in("left", "idle", "crasher", json!({ "crash": false }));
    engine.configure(&old).unwrap();
    flows(&mut engine);
    let pids = ["left", "right"].map(|name| engine.pid_of(name));
    // The new worker comes before the existing ones, and fails; `left` has stopped its app by then.
    let mut new = old.clone();
    new.app_in("a", "source", "source", json!({ "size": 60, "hex": "01" }));
    let before = limit_descriptors(Some(3));
    let refused = engine.configure(&new).expect_err("no descriptors for another process");
    assert!(refused.to_string().contains("socketpair"), "{refused}");
    assert_eq!((engine.config(), engine.pid_of("a")), (&old, None));
    assert_eq!(["left", "right"].map(|name| engine.pid_of(name)), pids);
    flows(&mut engine);
    limit_descriptors(before);
    let sent = |engine: &mut Engine| engine.reports().unwrap()["source"]["packets"];
    let sent_before = sent(&mut engine);
    engine.configure(&new).unwrap();
    assert!(sent(&mut engine) >= sent_before, "the source has forgotten what it has sent");
    flows(&mut engine);
    engine.stop().unwrap();
}

const REPEATERS: usize = 5;
/// The number of packets that a repeater keeps by default, with which its state is as long as possible.
const KEPT: usize = 1024;

fn repeaters(worker: &str) -> Config {
    let mut config = Config::new();
    // Each byte takes three digits.
    let source = json!({ "size": STATE_BYTES_MAX / KEPT - 2, "hex": "ff" });
    config.app_in("left", "source", "source", source).app_in("right", "sink", "sink", json!({}));
    for number in 0..REPEATERS {
        config.app_in(worker, &format!("r{number}"), "repeater", json!({ "packets": KEPT }));
        config.link(&format!("source.o{number} -> r{number}.input")).unwrap();
        config.link(&format!("r{number}.output -> sink.i{number}")).unwrap();
    }
    config
}

pub fn five_full_repeaters_move() {
    let mut engine = engine(EngineOptions::default());
    engine.configure(&repeaters("left")).unwrap();
    let kept = |engine: &mut Engine| -> Vec<u64> {
        let reports = engine.reports().unwrap();
        (0..REPEATERS).map(|number| reports[&format!("r{number}")]["kept"]).collect()
    };
    poll_until(&mut engine, |engine, _| kept(engine) == [KEPT as u64; REPEATERS]);
    let pids = ["left", "right"].map(|name| engine.pid_of(name));
    let mut config = repeaters("right");
    // No more packets come: the kept packets have come along.
    config.links.retain(|name, _| name.from.app != "source");
    engine.configure(&config).unwrap();
    let crashed = |event: &EngineEvent| !matches!(event, EngineEvent::Grown { .. });
    let events = engine.poll(Some(Duration::ZERO)).unwrap();
    assert!(!events.iter().any(crashed), "{events:?}");
    assert_eq!(["left", "right"].map(|name| engine.pid_of(name)), pids);
    assert_eq!(kept(&mut engine), [KEPT as u64; REPEATERS]);
    engine.stop().unwrap();
}

/// Lets the supervisor notice that a worker was killed, and waits until its successor has answered that it
/// runs, which the supervisor has not read then.
fn crash_unheard(engine: &mut Engine, name: &str) {
    let id = engine.worker_id(name).unwrap();
    let before = engine.pid_of(name);
    signal(engine, name, Signal::KILL);
    while engine.pid_of(name) == before {
        engine.poll(Some(Duration::ZERO)).unwrap();
    }
    let breaths = |engine: &Engine| {
        let word = |offset| engine.shared().worker(id, offset).load(Ordering::Relaxed);
        word(worker::BREATHS) + word(worker::IDLE_BREATHS)
    };
    let at_start = breaths(engine);
    while breaths(engine) == at_start {
        std::thread::yield_now();
    }
}

pub fn a_report_after_a_restart_kills_nobody() {
    let mut engine =
        engine(EngineOptions { restarts: caravan_engine::Restarts::Always, ..EngineOptions::default() });
    let mut config = pair();
    engine.configure(&config).unwrap();
    for round in 0..10 {
        flows(&mut engine);
        crash_unheard(&mut engine, "right");
        assert!(engine.reports().unwrap().contains_key("highest"), "round {round}: its worker was asked");
        let pid = engine.pid_of("right");
        config.app_in("right", &format!("idle{round}"), "crasher", json!({ "crash": false }));
        engine.configure(&config).unwrap();
        let events = engine.poll(Some(Duration::ZERO)).unwrap();
        assert!(
            !events.iter().any(|event| matches!(event, EngineEvent::Crashed { .. })),
            "{round}: {events:?}"
        );
        assert_eq!(engine.pid_of("right"), pid, "round {round}");
    }
    engine.stop().unwrap();
}

/// Returns the packets that the engine's workers have dropped because of a removal.
fn removed(engine: &Engine) -> u64 {
    ["left", "right"].into_iter().map(|name| past(engine, name)[1 + DropReason::Removed as usize]).sum()
}

pub fn what_an_app_held_is_counted() {
    const HELD: u64 = 100;
    let mut engine = engine(EngineOptions::default());
    let mut config = pair();
    config.app_in("right", "keeper", "keeper", json!({ "most": HELD }));
    config.link("source.second -> keeper.input").unwrap();
    engine.configure(&config).unwrap();
    poll_until(&mut engine, |engine, _| engine.reports().unwrap()["keeper"]["held"] == HELD);
    let sent = |engine: &mut Engine| {
        let id = engine.link_id("source.second -> keeper.input").unwrap();
        engine.shared().link(id, link::PACKETS).load(Ordering::Relaxed)
    };
    assert!(sent(&mut engine) >= HELD);
    let before = removed(&engine);
    // The app's link stays: packets on their way are not lost, those that the app held are.
    config.app_in("right", "keeper", "keeper", json!({ "most": HELD + 1 }));
    let changes = engine.configure(&config).unwrap();
    assert_eq!((removed(&engine) - before, changes.lost), (HELD, HELD));
    // Everything is removed, except what had been counted.
    let figures: BTreeMap<_, _> = engine.reports().unwrap();
    assert!(figures.contains_key("keeper"));
    let mut only = Config::new();
    only.app_in("other", "idle", "crasher", json!({ "crash": false }));
    let changes = engine.configure(&only).unwrap();
    let word = caravan_engine::layout::engine::DROPS + 8 * DropReason::Removed as usize;
    let counted = engine.shared().engine(word).load(Ordering::Relaxed);
    assert_eq!(counted, before + HELD + changes.lost);
    assert!(changes.lost > HELD && engine.link_id(LINK).is_none());
    engine.stop().unwrap();
}
