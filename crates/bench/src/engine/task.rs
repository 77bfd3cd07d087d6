//! One sample, as messages between the benchmark's process and the one that runs the engine: its task and its outcome.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use caravan_engine::layout::LinkMode;
use caravan_engine::owner::LinkId;
use caravan_engine::{Config, Engine, EngineEvent, EngineOptions, Restarts, layout};
use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::engine::apps;
use crate::engine::apps::{HoldConfig, TouchConfig, TouchWork};
use crate::engine::case::{BenchGraph, HELD_PACKETS};
use crate::error::Error;
use crate::usage::Usage;

/// The task of one sample.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct EngineTask {
    pub graph: BenchGraph,
    pub size: usize,
    pub mode: LinkMode,
    /// The cores for the workers, in turn.
    pub cores: Vec<usize>,
    pub warm_up_ns: u64,
    pub run_ns: u64,
}

/// The outcome of a sample.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EngineOutcome {
    /// The number of packets and, below, the nanoseconds in which they came.
    pub packets: u64,
    pub ns: u64,
    /// Processor nanoseconds of all workers.
    pub cpu_ns: f64,
    /// The nanoseconds of each recovery and, below, the longest gaps in another worker's traffic: during recoveries,
    /// and in a quiet time before.
    pub recovery_ns: Vec<f64>,
    pub gap_ns: Vec<f64>,
    pub quiet_gap_ns: Vec<f64>,
}

/// A configuration, and the links whose packets count.
#[derive(Clone, Debug)]
pub struct EngineSetup {
    pub config: Config,
    pub counted: Vec<String>,
    pub headroom: usize,
}

/// The worker that is killed, its app, and the worker beside it with its app.
pub const VICTIM: &str = "victim";
pub const HOLDER: &str = "bench-hold";
pub const GAPS: &str = "bench-gap";

impl EngineTask {
    pub fn setup(&self) -> Result<EngineSetup, Error> {
        let mut setup = EngineSetup {
            config: Config::new(),
            counted: Vec::new(),
            headroom: caravan_engine::limits::HEADROOM_BYTES,
        };
        match self.graph {
            BenchGraph::Basic1 => self.basic1(&mut setup)?,
            BenchGraph::SourceSink => self.chain(&mut setup, "", "main source, main sink")?,
            BenchGraph::Interlink(TouchWork::None) => {
                self.chain(&mut setup, "", "left source, right sink")?
            }
            BenchGraph::Interlink(_) => self.chain(&mut setup, "", "left bench-source, right bench-sink")?,
            BenchGraph::Swap => {
                self.chain(&mut setup, "", "left bench-source, right bench-sink")?;
                // The owner's word and the data share a cache line.
                setup.headroom = 0;
            }
            BenchGraph::Tunnel => {
                self.chain(&mut setup, "", "main source, main encapsulate, main decapsulate, main sink")?
            }
            BenchGraph::Tunnel2 => {
                self.chain(&mut setup, "", "left source, left encapsulate, right decapsulate, right sink")?
            }
            BenchGraph::Scale { processes } => {
                for n in 0..processes {
                    let apps = format!("w{n} source, w{n} encapsulate, w{n} decapsulate, w{n} sink");
                    self.chain(&mut setup, &format!("{n}-"), &apps)?;
                }
            }
            BenchGraph::Recovery => {
                setup.config.app_in(VICTIM, HOLDER, HOLDER, self.configured(HOLDER));
                self.chain(&mut setup, "", "other source, other bench-gap")?;
            }
        }
        self.place(&mut setup);
        Ok(setup)
    }

    /// Returns the configuration of an app of a kind.
    fn configured(&self, kind: &str) -> serde_json::Value {
        let work = if let BenchGraph::Interlink(work) = self.graph { work } else { TouchWork::Touch };
        match kind {
            "source" => json!({ "size": self.size }),
            "bench-source" | "bench-sink" => json!(TouchConfig { size: self.size, work }),
            HOLDER => json!(HoldConfig { packets: HELD_PACKETS }),
            // Both apps are ends of one tunnel, with the same settings here.
            "encapsulate" | "decapsulate" => json!({
                "local_address": "2001:db8::1",
                "remote_address": "2001:db8::1",
                "local_cookie": "0123456789abcdef",
                "remote_cookie": "0123456789abcdef",
            }),
            _ => json!({}),
        }
    }

    /// Adds a row of apps, each as `worker kind`; the packets that the last one takes count.
    fn chain(&self, setup: &mut EngineSetup, prefix: &str, apps: &str) -> Result<(), Error> {
        let apps: Vec<_> = apps.split(", ").filter_map(|app| app.split_once(' ')).collect();
        for (worker, kind) in &apps {
            setup.config.app_in(worker, &format!("{prefix}{kind}"), kind, self.configured(kind));
        }
        let links = apps
            .windows(2)
            .map(|pair| format!("{prefix}{}.output -> {prefix}{}.input", pair[0].1, pair[1].1));
        let links: Vec<_> = links.collect();
        for link in &links {
            setup.config.link_by(link, self.mode)?;
        }
        setup.counted.extend(links.last().cloned());
        Ok(())
    }

    fn basic1(&self, setup: &mut EngineSetup) -> Result<(), Error> {
        let config = &mut setup.config;
        config.app("source", "source", self.configured("source")).app("tee", "tee", json!({}));
        config.app("sink1", "sink", json!({})).app("sink2", "sink", json!({}));
        let first = "source.output -> tee.input";
        config.link(first)?.link("tee.output1 -> sink1.input")?.link("tee.output2 -> sink2.input")?;
        setup.counted.push(first.into());
        Ok(())
    }

    /// Puts each worker on a core of its own, as far as there are enough.
    fn place(&self, setup: &mut EngineSetup) {
        let mut places: BTreeMap<String, usize> = BTreeMap::new();
        for app in setup.config.apps.values() {
            // Workers with numbers are placed in their order.
            let rank = app.worker.strip_prefix('w').and_then(|number| number.parse().ok());
            let next = places.len();
            places.entry(app.worker.clone()).or_insert(rank.unwrap_or(next));
        }
        for (worker, place) in places {
            if let Some(&core) = self.cores.get(place % self.cores.len().max(1)) {
                setup.config.core(&worker, core);
            }
        }
    }
}

/// The number of kills in a sample.
const KILLS: usize = 5;
/// How long a worker may take to get its packets.
const HELD_WITHIN: Duration = Duration::from_secs(10);
/// How long a successor may take to start.
const RESTARTED_WITHIN: Duration = Duration::from_secs(10);
/// How long the first packet that counts may take.
const FIRST_WITHIN: Duration = Duration::from_secs(10);
/// The time between two checks of what a worker holds.
const LOOK: Duration = Duration::from_millis(2);

/// Runs the engine that the task describes, and measures.
pub fn measure(task: &EngineTask) -> Result<EngineOutcome, Error> {
    let setup = task.setup()?;
    let options =
        EngineOptions { headroom: setup.headroom, restarts: Restarts::Always, ..EngineOptions::default() };
    let mut engine = Engine::start(apps::registry(), options)?;
    engine.configure(&setup.config)?;
    run_for(&mut engine, Duration::from_nanos(task.warm_up_ns))?;
    let outcome = match task.graph {
        BenchGraph::Recovery => recoveries(&mut engine, Duration::from_nanos(task.run_ns))?,
        _ => rate(&mut engine, &setup, Duration::from_nanos(task.run_ns))?,
    };
    let reports = engine.reports()?;
    let wrong: u64 = reports.values().filter_map(|figures| figures.get("wrong")).sum();
    if wrong > 0 {
        return Err(failed(format!("{wrong} packets did not hold what was written into them")));
    }
    engine.stop()?;
    Ok(outcome)
}

/// The counters at one instant.
struct EngineReading {
    at: Instant,
    packets: u64,
    usages: Vec<Usage>,
}

impl EngineReading {
    fn take(engine: &Engine, setup: &EngineSetup) -> Result<Self, Error> {
        let ids: Option<Vec<LinkId>> = setup.counted.iter().map(|link| engine.link_id(link)).collect();
        let ids = ids.ok_or_else(|| failed("a link is not there"))?;
        let taken = |&id: &LinkId| {
            // This counts packets; nothing is ordered by it.
            engine.shared().link(id, layout::link::TAKEN).load(Ordering::Relaxed)
        };
        let (packets, at) = (ids.iter().map(taken).sum(), Instant::now());
        let mut usages = Vec::new();
        for worker in setup.config.workers.keys() {
            let pid = engine.pid_of(worker).ok_or_else(|| failed(format!("worker {worker} has ended")))?;
            usages.push(Usage::of(pid).map_err(failed)?);
        }
        Ok(Self { at, packets, usages })
    }

    /// Takes a reading after `span`.
    fn later(engine: &mut Engine, setup: &EngineSetup, span: Duration) -> Result<Self, Error> {
        run_for(engine, span)?;
        Self::take(engine, setup)
    }
}

fn rate(engine: &mut Engine, setup: &EngineSetup, span: Duration) -> Result<EngineOutcome, Error> {
    let mut before = EngineReading::take(engine, setup)?;
    // On a machine that is busy with other work, the first packets take their time.
    let end = Instant::now() + FIRST_WITHIN;
    while before.packets == 0 && Instant::now() < end {
        before = EngineReading::later(engine, setup, span)?;
    }
    let mut after = EngineReading::later(engine, setup, span)?;
    while after.packets == before.packets && Instant::now() < end {
        after = EngineReading::later(engine, setup, span)?;
    }
    let ns = (after.at - before.at).as_nanos() as u64;
    let spent_s = after.usages.iter().zip(&before.usages).map(|(after, before)| after.spent_s(before));
    let packets = after.packets - before.packets;
    if packets == 0 {
        return Err(failed("no packet came through"));
    }
    Ok(EngineOutcome { packets, ns, cpu_ns: spent_s.sum::<f64>() * 1e9, ..EngineOutcome::default() })
}

/// Does the supervisor's work for `span`. A worker that ends meanwhile fails the sample.
fn run_for(engine: &mut Engine, span: Duration) -> Result<(), Error> {
    let end = Instant::now() + span;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        for event in engine.poll(Some(left))? {
            if let EngineEvent::Crashed { worker, how, .. } = event {
                return Err(failed(format!("worker {worker} ended: {how}")));
            }
        }
        if left.is_zero() {
            return Ok(());
        }
    }
}

fn recoveries(engine: &mut Engine, quiet: Duration) -> Result<EngineOutcome, Error> {
    let mut outcome = EngineOutcome::default();
    for _ in 0..KILLS {
        wait_until_held(engine)?;
        gap_ns(engine)?;
        run_for(engine, quiet)?;
        outcome.quiet_gap_ns.push(gap_ns(engine)?);
        outcome.recovery_ns.push(kill(engine)?.as_nanos() as f64);
        outcome.gap_ns.push(gap_ns(engine)?);
    }
    wait_until_held(engine)?;
    Ok(outcome)
}

fn wait_until_held(engine: &mut Engine) -> Result<(), Error> {
    let end = Instant::now() + HELD_WITHIN;
    loop {
        let held = engine.reports()?.get(HOLDER).and_then(|figures| figures.get("held").copied());
        match held {
            Some(held) if held >= HELD_PACKETS as u64 => return Ok(()),
            _ if Instant::now() >= end => {
                return Err(failed(format!("the worker holds {held:?} packets of {HELD_PACKETS}")));
            }
            _ => run_for(engine, LOOK)?,
        }
    }
}

/// Returns the longest gap in the other worker's traffic since the last call.
fn gap_ns(engine: &mut Engine) -> Result<f64, Error> {
    let reports = engine.reports()?;
    let gap = reports.get(GAPS).and_then(|figures| figures.get("longest_gap_ns"));
    gap.map(|&ns| ns as f64).ok_or_else(|| failed("the other worker does not answer"))
}

/// Kills the worker, and returns the time until its successor runs.
fn kill(engine: &mut Engine) -> Result<Duration, Error> {
    let pid = engine.pid_of(VICTIM).and_then(Pid::from_raw).ok_or_else(|| failed("no worker to kill"))?;
    let start = Instant::now();
    kill_process(pid, Signal::KILL).map_err(failed)?;
    while start.elapsed() < RESTARTED_WITHIN {
        for event in engine.poll(Some(RESTARTED_WITHIN))? {
            match event {
                EngineEvent::Restarted { worker, .. } if worker == VICTIM => return Ok(start.elapsed()),
                EngineEvent::Parked { worker, why } => return Err(failed(format!("worker {worker}: {why}"))),
                _ => {}
            }
        }
    }
    Err(failed("the worker that was killed has no successor"))
}

fn failed(reason: impl std::fmt::Display) -> Error {
    // The process that started this one adds that the engine failed.
    Error::Sentence(reason.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn setup(graph: BenchGraph, mode: LinkMode) -> EngineSetup {
        let task = EngineTask { graph, size: 60, mode, cores: vec![4, 7], warm_up_ns: 0, run_ns: 0 };
        task.setup().expect("a setup")
    }

    fn worker<'a>(setup: &'a EngineSetup, app: &str) -> &'a str {
        &setup.config.apps[app].worker
    }

    #[test]
    fn two_processes_are_on_two_cores() {
        let setup = setup(BenchGraph::Tunnel2, LinkMode::Copy);
        assert_eq!(worker(&setup, "source"), worker(&setup, "encapsulate"));
        assert_ne!(worker(&setup, "encapsulate"), worker(&setup, "decapsulate"));
        assert_eq!(setup.counted, ["decapsulate.output -> sink.input"]);
        let mut cores: Vec<_> = setup.config.workers.values().filter_map(|worker| worker.core).collect();
        cores.sort_unstable();
        assert_eq!(cores, [4, 7]);
        assert!(setup.config.links.values().all(|mode| *mode == LinkMode::Copy));
    }

    #[test]
    fn more_processes_than_cores_share_them() {
        let setup = setup(BenchGraph::Scale { processes: 12 }, LinkMode::Swap);
        assert_eq!((setup.counted.len(), setup.config.apps.len(), setup.config.workers.len()), (12, 48, 12));
        let on_first = setup.config.workers.values().filter(|worker| worker.core == Some(4)).count();
        assert_eq!(on_first, 6);
    }

    #[test]
    fn every_counted_link_is_in_the_configuration() {
        let graphs = [
            BenchGraph::Basic1,
            BenchGraph::SourceSink,
            BenchGraph::Interlink(TouchWork::None),
            BenchGraph::Swap,
            BenchGraph::Recovery,
        ];
        for graph in graphs {
            let setup = setup(graph, LinkMode::Swap);
            assert_eq!(setup.counted.len(), 1, "{graph:?}");
            let name = setup.counted[0].parse().expect("a link's name");
            assert!(setup.config.links.contains_key(&name), "{graph:?}");
        }
    }
}
