//! The supervisor's duties, and the end of workers without a supervisor.

mod changes;
mod memory;

use std::io::{BufRead, BufReader};
use std::os::linux::fs::MetadataExt;
use std::process::Stdio;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use caravan_engine::layout::link;
use caravan_engine::limits::{ANSWER_MAX, CRASHES_MAX};
use caravan_engine::{App, AppError, Config, Engine, EngineEvent, EngineOptions, Io, Named, Registry};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use serde::Deserialize;
use serde_json::json;

use crate::Scene;

/// The time limit of anything that the engine does by itself.
const PATIENCE: Duration = Duration::from_secs(300);
/// How long workers may outlive their supervisor.
const ORPHANS_MAX: Duration = Duration::from_secs(20);

macro_rules! scenes {
    ($($scene:path),*) => { &[$((stringify!($scene), $scene)),*] };
}

pub const SCENES: &[Scene] = scenes![
    workers_end_with_their_supervisor,
    a_crash_loop_parks_its_worker_alone,
    a_worker_that_hangs_is_killed,
    memory::memory_grows_in_all_workers,
    memory::huge_pages_are_a_wish,
    memory::crashes_of_a_consumer_do_not_starve_its_producer,
    memory::too_few_packets_are_refused,
    memory::a_shortage_is_told,
    changes::a_reload_may_replace_every_link_and_worker,
    changes::links_share_the_packets_after_a_consumer_stood_still,
    changes::a_new_worker_has_no_past,
    changes::a_process_that_cannot_start_changes_nothing,
    changes::five_full_repeaters_move,
    changes::a_report_after_a_restart_kills_nobody,
    changes::what_an_app_held_is_counted
];

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Crashes {
    crash: bool,
}

/// Crashes as soon as it runs, if its configuration says so.
struct Crasher(bool);

impl App for Crasher {
    type Config = Crashes;
    const INPUTS: Named = Named::Only(&[]);
    const OUTPUTS: Named = Named::Only(&[]);

    fn start(config: Crashes, _: Option<Vec<u8>>) -> Result<Self, AppError> {
        Ok(Self(config.crash))
    }

    fn pull(&mut self, _: &mut Io) {
        if self.0 {
            std::process::abort();
        }
    }
}

/// Reads every packet, and reports the highest packet number.
#[derive(Default)]
struct Highest {
    packet: u32,
    sum: u64,
}

impl App for Highest {
    type Config = ();
    const INPUTS: Named = Named::Any;
    const OUTPUTS: Named = Named::Only(&[]);

    fn start((): (), _: Option<Vec<u8>>) -> Result<Self, AppError> {
        Ok(Self::default())
    }

    fn push(&mut self, io: &mut Io) {
        while let Some(packet) = io.receive(0) {
            self.packet = self.packet.max(packet.index());
            self.sum += packet.data().iter().map(|byte| u64::from(*byte)).sum::<u64>();
            io.free(packet);
        }
    }

    fn report(&self) -> Vec<(&'static str, u64)> {
        vec![("packet", u64::from(self.packet)), ("sum", self.sum)]
    }
}

fn engine(options: EngineOptions) -> Engine {
    let mut registry = Registry::standard();
    registry.add::<Crasher>("crasher").add::<Highest>("highest").add::<memory::Keeper>("keeper");
    Engine::start(registry, options).unwrap()
}

const LINK: &str = "source.output -> highest.input";

/// Makes a source and an app that reads its packets, in two workers.
fn pair() -> Config {
    let mut config = Config::new();
    config.app_in("left", "source", "source", json!({ "size": 60, "hex": "01" }));
    config.app_in("right", "highest", "highest", json!({}));
    config.link(LINK).unwrap();
    config
}

/// Polls until a condition holds. Returns all events.
fn poll_until(
    engine: &mut Engine,
    mut done: impl FnMut(&mut Engine, &[EngineEvent]) -> bool,
) -> Vec<EngineEvent> {
    let start = Instant::now();
    let mut events = Vec::new();
    while !done(engine, &events) {
        assert!(start.elapsed() < PATIENCE, "waited in vain; until then: {events:?}");
        events.extend(engine.poll(Some(Duration::from_millis(10))).unwrap());
    }
    events
}

/// Returns the number of packets that have arrived.
fn taken(engine: &Engine) -> u64 {
    taken_from(engine, LINK)
}

fn taken_from(engine: &Engine, link: &str) -> u64 {
    let id = engine.link_id(link).unwrap();
    engine.shared().link(id, link::TAKEN).load(Ordering::Relaxed)
}

/// Polls until more packets have arrived.
fn flows(engine: &mut Engine) -> Vec<EngineEvent> {
    let before = taken(engine);
    poll_until(engine, |engine, _| taken(engine) > before + 1000)
}

/// Sends a signal to a worker.
fn signal(engine: &Engine, worker: &str, signal: Signal) {
    kill_process(Pid::from_raw(engine.pid_of(worker).unwrap()).unwrap(), signal).unwrap();
}

/// The scene that runs an engine until it is killed.
pub const SUPERVISOR: Scene = ("supervisor", be_killed);

fn be_killed() {
    let mut engine = engine(EngineOptions::default());
    engine.configure(&pair()).unwrap();
    flows(&mut engine);
    let pids = ["left", "right"].map(|worker| engine.pid_of(worker).unwrap().to_string());
    println!("{}", pids.join(" "));
    loop {
        engine.poll(None).unwrap();
    }
}

/// Returns the inodes of a process's descriptors of an engine's memory.
fn memory_of(pid: u32) -> Vec<u64> {
    let Ok(descriptors) = std::fs::read_dir(format!("/proc/{pid}/fd")) else { return Vec::new() };
    let paths = descriptors.flatten().map(|entry| entry.path());
    let ours = |path: &std::path::PathBuf| {
        std::fs::read_link(path).is_ok_and(|name| name.to_string_lossy().contains("memfd:caravan-engine"))
    };
    paths.filter(ours).filter_map(|path| Some(std::fs::metadata(path).ok()?.st_ino())).collect()
}

fn workers_end_with_their_supervisor() {
    let mut supervisor = crate::this_program(SUPERVISOR.0).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(supervisor.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let pids: Vec<i32> = line.split_whitespace().map(|pid| pid.parse().unwrap()).collect();
    assert_eq!(pids.len(), 2, "{line}");
    let workers: Vec<_> = pids
        .iter()
        .map(|pid| pidfd_open(Pid::from_raw(*pid).unwrap(), PidfdFlags::empty()).unwrap())
        .collect();
    let memory = memory_of(supervisor.id());
    assert!(!memory.is_empty());
    supervisor.kill().unwrap();
    let killed = Instant::now();
    supervisor.wait().unwrap();
    for worker in &workers {
        let left = Timespec::try_from(ORPHANS_MAX.saturating_sub(killed.elapsed())).unwrap();
        let ended = rustix::event::poll(&mut [PollFd::new(worker, PollFlags::IN)], Some(&left)).unwrap();
        assert_eq!(ended, 1, "a worker lives on");
    }
    // No process has the memory open any more, neither one of ours nor one of its descendants.
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let holders = processes
        .filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok())
        .filter(|pid| memory_of(*pid).iter().any(|inode| memory.contains(inode)));
    assert_eq!(holders.collect::<Vec<_>>(), [0; 0]);
}

fn a_crash_loop_parks_its_worker_alone() {
    let mut engine = engine(EngineOptions::default());
    let mut config = pair();
    config.app_in("bad", "crasher", "crasher", json!({ "crash": true }));
    engine.configure(&config).unwrap();
    let parked =
        |events: &[EngineEvent]| events.iter().any(|event| matches!(event, EngineEvent::Parked { .. }));
    let events = poll_until(&mut engine, |_, events| parked(events));
    let mut crashes = 0;
    for event in &events {
        match event {
            EngineEvent::Crashed { worker, how, .. } => {
                assert!(worker == "bad" && how.contains("SIGABRT"), "{event:?}");
                crashes += 1;
            }
            EngineEvent::Restarted { worker, .. } | EngineEvent::Parked { worker, .. } => {
                assert_eq!(worker, "bad")
            }
            EngineEvent::Grown { .. } => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(crashes, CRASHES_MAX);
    assert_eq!(engine.pid_of("bad"), None);
    let place = engine.worker_id("bad").unwrap().place();
    assert_eq!(engine.audit().unwrap().workers.get(&place), None, "its packets are for others");
    // The other workers go on, and this one is left alone.
    assert!(!flows(&mut engine).iter().any(|event| matches!(event, EngineEvent::Restarted { .. })));
    config.app_in("bad", "crasher", "crasher", json!({ "crash": false }));
    engine.configure(&config).unwrap();
    let pid = engine.pid_of("bad");
    assert!(pid.is_some(), "a change starts it again");
    flows(&mut engine);
    assert_eq!(engine.pid_of("bad"), pid);
    engine.stop().unwrap();
}

fn a_worker_that_hangs_is_killed() {
    let mut engine = engine(EngineOptions::default());
    let mut config = pair();
    config.app_in("bad", "crasher", "crasher", json!({ "crash": false }));
    engine.configure(&config).unwrap();
    flows(&mut engine);
    let hung = engine.pid_of("bad").unwrap();
    kill_process(Pid::from_raw(hung).unwrap(), Signal::STOP).unwrap();
    // The app's configuration changes: its worker gets the order, and does not answer.
    config.app_in("bad", "other", "crasher", json!({ "crash": false }));
    let before = taken(&engine);
    let start = Instant::now();
    engine.configure(&config).unwrap();
    assert!((ANSWER_MAX..2 * ANSWER_MAX).contains(&start.elapsed()), "{:?}", start.elapsed());
    assert!(taken(&engine) > before, "the others went on meanwhile");
    let events = flows(&mut engine);
    assert!(events.iter().any(|event| matches!(event, EngineEvent::Hung { .. })), "{events:?}");
    let pid = engine.pid_of("bad");
    assert!(pid.is_some() && pid != Some(hung), "{events:?}");
    engine.stop().unwrap();
}
