//! The kills, and the conditions that must hold after them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use caravan_engine::config::{AppPort, LinkName};
use caravan_engine::layout::{LinkRing, WorkerStage, worker};
use caravan_engine::recovery::{self, Recovered};
use caravan_engine::{Engine, EngineEvent, EngineOptions, Restarts};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

use super::apps::{self, Board, CHECKERS, Count, STREAMS};
use super::killer::Killer;
use super::network::{EXTRA, SINKS, Shape, WORKERS};
use crate::random::Random;

/// How long a run without a number of kills takes, and the kills that it makes at least.
const TIME: Duration = Duration::from_secs(8);
const KILLS_MIN: u64 = 100;
/// Kills from which on every kind of instant must have been hit.
const KILLS_ALL: u64 = 2_000;
/// Kills between two audits.
const AUDIT_EVERY: u64 = 20;
/// The time limit of anything that the engine does by itself.
const PATIENCE: Duration = Duration::from_secs(60);

/// An engine with the network, and the records of its kills.
pub struct Storm {
    pub engine: Engine,
    pub board: Board,
    pub shape: Shape,
    pub instants: Instants,
    rng: Random,
    killer: Killer,
    /// The processes that are about to be killed, or have been.
    marked: BTreeSet<i32>,
    audits: u64,
    changes: u64,
}

impl Storm {
    /// Starts the killer and the engine.
    pub fn start(seed: u64, shape: Shape) -> Self {
        // The killer starts before the engine, so it has none of the engine's descriptors.
        let killer = Killer::start();
        let board = Board::create();
        let options = EngineOptions { restarts: Restarts::Always, ..EngineOptions::default() };
        let mut engine = Engine::start(apps::registry(), options).unwrap();
        engine.configure(&shape.config()).unwrap();
        Self {
            engine,
            board,
            shape,
            instants: Instants::default(),
            rng: Random(seed),
            killer,
            marked: BTreeSet::new(),
            audits: 0,
            changes: 0,
        }
    }

    fn pids(&self) -> Vec<i32> {
        WORKERS.into_iter().chain([EXTRA]).filter_map(|worker| self.engine.pid_of(worker)).collect()
    }

    /// Lets the engine work for a while.
    pub fn poll(&mut self, timeout: Duration, configuring: bool) {
        for event in self.engine.poll(Some(timeout)).unwrap() {
            match &event {
                EngineEvent::Crashed { pid, worker, how, .. } => {
                    assert!(self.marked.remove(pid), "{worker} ended by itself: {how}");
                    self.instants.crashed(&event, configuring);
                }
                EngineEvent::Restarted { after_ns, .. } => self.instants.restarts_ns.push(*after_ns),
                EngineEvent::Grown { .. } => {}
                other => panic!("{other:?}"),
            }
        }
    }

    /// Has some workers killed, some of them while the configuration changes, and waits for the
    /// engine to notice.
    fn strike(&mut self) {
        let change = self.rng.once_in(4);
        for _ in 0..1 + self.rng.below(3) {
            let pids = self.pids();
            let pid = pids[self.rng.below(pids.len() as u64) as usize];
            let signal = match self.rng.below(16) {
                0 => Signal::SEGV,
                1 => Signal::ABORT,
                _ => Signal::KILL,
            };
            // The delay is mostly short, and sometimes as long as a change takes.
            let longest = if change { 4_000_000 } else { 1 << (10 + self.rng.below(11)) };
            let after = Duration::from_nanos(self.rng.below(longest));
            if self.marked.insert(pid) {
                self.killer.kill(pid, signal, after);
            }
        }
        if change {
            let shape = self.shape.clone().changed(&mut self.rng);
            let gone: BTreeSet<i32> = self.pids().into_iter().collect();
            self.engine.configure(&shape.config()).unwrap();
            self.shape = shape;
            self.changes += 1;
            // Earlier events are reported now. A crash that the change dealt with is not reported.
            self.poll(Duration::ZERO, true);
            let there: BTreeSet<i32> = self.pids().into_iter().collect();
            self.marked.retain(|pid| there.contains(pid) || !gone.contains(pid));
        }
        let start = Instant::now();
        while !self.marked.is_empty() {
            let left = Duration::from_millis(1 + self.rng.below(3));
            self.poll(left, false);
            assert!(start.elapsed() < PATIENCE, "killed and not noticed: {:?}", self.marked);
        }
        // In most cases, packets flow again.
        let flow = Duration::from_micros(self.rng.below(3_000));
        let start = Instant::now();
        while start.elapsed() < flow {
            self.poll(flow.saturating_sub(start.elapsed()), false);
        }
    }

    /// Stops all workers, audits every packet, and lets the workers go on.
    pub fn audit(&mut self) {
        let pids: Vec<Pid> = self.pids().into_iter().filter_map(Pid::from_raw).collect();
        for &pid in &pids {
            let _ = kill_process(pid, Signal::STOP);
        }
        for &pid in &pids {
            // NOWAIT leaves a worker that has ended instead for the engine to wait for.
            let options = WaitIdOptions::STOPPED | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
            waitid(WaitId::Pid(pid), options).unwrap();
        }
        let audit = self.engine.audit_stopped().unwrap();
        assert!(audit.violations.is_empty(), "{audit}\n{}", self.links());
        let owned = audit.workers.values().chain(audit.full.values()).chain(audit.empty.values());
        let sum = owned.chain(audit.parked.values()).sum::<u64>() + audit.pool;
        assert_eq!(sum, audit.packets, "{audit}");
        assert_eq!(audit.packets, u64::from(self.engine.packets()));
        for &pid in &pids {
            let _ = kill_process(pid, Signal::CONT);
        }
        self.audits += 1;
        self.check_counts();
        // The audit of running workers reports only real violations, too.
        let audit = self.engine.audit().unwrap();
        assert!(audit.violations.is_empty(), "{audit}");
    }

    /// Returns the contents of each link's rings, to help find a fault.
    fn links(&self) -> String {
        let config = self.engine.config();
        let line = |name: &LinkName| {
            let id = self.engine.link_id(&name.to_string())?;
            let held = LinkRing::ALL.map(|ring| recovery::published(self.engine.shared(), id, ring).len());
            let worker = |port: &AppPort| config.apps.get(&port.app).map_or("", |app| app.worker.as_str());
            let (from, to) = (worker(&name.from), worker(&name.to));
            Some(format!("{:>3} {name} ({from} -> {to}): {held:?} in {:?}\n", id.place(), LinkRing::ALL))
        };
        config.links.keys().filter_map(line).chain([format!("after {} kills", self.instants.kills)]).collect()
    }

    fn check_counts(&self) {
        for (checker, name) in SINKS.into_iter().enumerate() {
            let count = |count| self.board.total(checker, count);
            assert_eq!(count(Count::Corrupt), 0, "packets changed on their way to {name}");
            assert_eq!(count(Count::Duplicate), 0, "packets arrived twice at {name}");
        }
    }

    /// Stops the sources, and waits until no packet is on its way. Then every packet of a worker is a
    /// free one that the worker knows of.
    pub fn drain(&mut self) {
        let shape = self.shape.clone().draining();
        self.engine.configure(&shape.config()).unwrap();
        self.shape = shape;
        let start = Instant::now();
        loop {
            self.poll(Duration::from_millis(5), false);
            let audit = self.engine.audit().unwrap();
            let under_way = audit.full.values().chain(audit.parked.values()).sum::<u64>();
            let unknown: Vec<_> = WORKERS
                .into_iter()
                .filter_map(|name| {
                    let id = self.engine.worker_id(name)?;
                    let free = self.engine.shared().worker(id, worker::FREE).load(Ordering::Relaxed);
                    let owned = audit.workers.get(&id.place()).copied().unwrap_or(0);
                    (free != owned).then_some((name, owned, free))
                })
                .collect();
            if under_way == 0 && unknown.is_empty() {
                return;
            }
            assert!(start.elapsed() < PATIENCE, "{audit}\nworkers, packets, and free ones: {unknown:?}");
        }
    }

    fn print(&self) {
        println!("{}", self.instants);
        println!("  changes {}, audits {}, packets {}", self.changes, self.audits, self.engine.packets());
        for stream in (0..STREAMS).filter(|stream| self.board.sent(*stream) > 0) {
            let sent = self.board.sent(stream);
            let arrived = |checker| self.board.count(checker, stream, Count::Delivered);
            let arrived: u64 = (0..2).map(arrived).sum();
            println!("  stream {stream}: sent {sent}, arrived {arrived}, lost {}", sent - arrived);
        }
        let late: u64 = (0..CHECKERS).map(|checker| self.board.total(checker, Count::Late)).sum();
        println!("  arrived behind younger ones: {late}");
    }
}

/// Kills `kills` times, or for the default time.
pub fn run(kills: Option<u64>, seed: u64) {
    println!("seed {seed}");
    let start = Instant::now();
    let mut storm = Storm::start(seed, Shape::first());
    let mut next_audit = AUDIT_EVERY;
    let enough = |kills_so_far| match kills {
        Some(kills) => kills_so_far >= kills,
        None => start.elapsed() > TIME && kills_so_far >= KILLS_MIN,
    };
    while !enough(storm.instants.kills) {
        storm.strike();
        if storm.instants.kills >= next_audit {
            storm.audit();
            next_audit = storm.instants.kills + AUDIT_EVERY;
            if storm.audits % 50 == 0 {
                println!("{} kills after {} s", storm.instants.kills, start.elapsed().as_secs());
            }
        }
    }
    storm.audit();
    storm.drain();
    storm.audit();
    storm.print();
    for (checker, name) in SINKS.into_iter().enumerate() {
        assert!(storm.board.total(checker, Count::Delivered) > 0, "nothing arrived at {name}");
    }
    let missed = storm.instants.missed();
    assert!(storm.instants.kills < KILLS_ALL || missed.is_empty(), "no kill was {missed:?}");
    storm.engine.stop().unwrap();
}

/// The kinds of instants that many kills must hit, each at least once.
const KINDS: [&str; 4] = ["half-sent", "half-received", "in configure", "in growth"];

/// The counts of what kills interrupted.
#[derive(Debug, Default)]
pub struct Instants {
    pub kills: u64,
    /// The number of kills of each kind, at each stage and by each signal.
    hits: BTreeMap<String, u64>,
    recovered: Recovered,
    restarts_ns: Vec<u64>,
}

impl Instants {
    /// Records a crash. `configuring` is set if it was noticed in a change of the configuration.
    fn crashed(&mut self, event: &EngineEvent, configuring: bool) {
        let EngineEvent::Crashed { how, stage, growing, half_received, recovered, .. } = event else {
            return;
        };
        self.kills += 1;
        let in_configure = configuring || *stage == WorkerStage::Configuring;
        let kinds = [recovered.unpublished > 0, *half_received > 0, in_configure, *growing];
        let kinds = KINDS.into_iter().zip(kinds).filter(|kind| kind.1).map(|kind| kind.0.to_owned());
        for hit in kinds.chain([format!("stage {}", stage.name()), how.clone()]) {
            *self.hits.entry(hit).or_default() += 1;
        }
        self.recovered.reclaimed += recovered.reclaimed;
        self.recovered.unpublished += recovered.unpublished;
        self.recovered.lost += recovered.lost;
    }

    /// Returns the kinds of instants that no kill has hit.
    fn missed(&self) -> Vec<&'static str> {
        KINDS.into_iter().filter(|kind| !self.hits.contains_key(*kind)).collect()
    }
}

impl std::fmt::Display for Instants {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "  kills                  {:>8}", self.kills)?;
        for (name, count) in &self.hits {
            let percent = 100.0 * *count as f64 / self.kills as f64;
            writeln!(f, "  {name:<22} {count:>8}  {percent:>5.1} %")?;
        }
        let mut restarts = self.restarts_ns.clone();
        restarts.sort_unstable();
        let at = |part: usize| restarts.get(restarts.len() * part / 100).map_or(0.0, |ns| *ns as f64 / 1e6);
        writeln!(f, "  restarted after ms     {:>8.2} median, {:.2} in 99 of 100", at(50), at(99))?;
        let Recovered { reclaimed, unpublished, lost } = self.recovered;
        write!(
            f,
            "  packets reclaimed      {reclaimed:>8}, of them {unpublished} not published; {lost} held data, and are lost"
        )
    }
}
