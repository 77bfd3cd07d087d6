//! One sample, in the process that runs the engine: the supervisor, which reads the counters that the
//! workers keep anyway and disturbs them by nothing.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use caravan_engine::owner::LinkId;
use caravan_engine::{Engine, Event, Options, Restarts, layout};
use rustix::process::{Pid, Signal, kill_process};

use super::apps;
use super::case::{Graph, HELD_PACKETS};
use super::task::{GAPS, HOLDER, Outcome, Setup, Task, VICTIM};
use crate::error::Error;
use crate::usage::Usage;

/// Kills in a sample.
const KILLS: usize = 5;
/// How long a worker may take to get its packets.
const HELD_WITHIN: Duration = Duration::from_secs(10);
/// How long a successor may take.
const RESTARTED_WITHIN: Duration = Duration::from_secs(10);
/// How long the first packet that counts may take.
const FIRST_WITHIN: Duration = Duration::from_secs(10);
/// Between two looks at what a worker holds.
const LOOK: Duration = Duration::from_millis(2);

/// Runs the engine that the task describes, and measures.
pub fn measure(task: &Task) -> Result<Outcome, Error> {
    let setup = task.setup()?;
    let options = Options { headroom: setup.headroom, restarts: Restarts::Always, ..Options::default() };
    let mut engine = Engine::start(apps::registry(), options)?;
    engine.configure(&setup.config)?;
    run_for(&mut engine, Duration::from_nanos(task.warm_up_ns))?;
    let outcome = match task.graph {
        Graph::Recovery => recoveries(&mut engine, Duration::from_nanos(task.run_ns))?,
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

/// Counters at one instant.
struct Reading {
    at: Instant,
    packets: u64,
    usages: Vec<Usage>,
}

impl Reading {
    fn take(engine: &Engine, setup: &Setup) -> Result<Self, Error> {
        let ids: Option<Vec<LinkId>> = setup.counted.iter().map(|link| engine.link_id(link)).collect();
        let ids = ids.ok_or_else(|| failed("a link is not there"))?;
        let taken = |&id: &LinkId| {
            // A count of packets, by which nothing is ordered.
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

    /// After so much more time.
    fn later(engine: &mut Engine, setup: &Setup, span: Duration) -> Result<Self, Error> {
        run_for(engine, span)?;
        Self::take(engine, setup)
    }
}

fn rate(engine: &mut Engine, setup: &Setup, span: Duration) -> Result<Outcome, Error> {
    let mut before = Reading::take(engine, setup)?;
    // On a machine that is busy with other work it takes its time until the first packets come.
    let end = Instant::now() + FIRST_WITHIN;
    while before.packets == 0 && Instant::now() < end {
        before = Reading::later(engine, setup, span)?;
    }
    let mut after = Reading::later(engine, setup, span)?;
    while after.packets == before.packets && Instant::now() < end {
        after = Reading::later(engine, setup, span)?;
    }
    let ns = (after.at - before.at).as_nanos() as u64;
    let used = after.usages.iter().zip(&before.usages).map(|(after, before)| {
        let cores = after.since(before);
        cores.user + cores.system
    });
    let packets = after.packets - before.packets;
    if packets == 0 {
        return Err(failed("no packet came through"));
    }
    Ok(Outcome { packets, ns, cpu_ns: used.sum::<f64>() * ns as f64, ..Outcome::default() })
}

/// The supervisor's work until the span is over. A worker that ends meanwhile ends the sample.
fn run_for(engine: &mut Engine, span: Duration) -> Result<(), Error> {
    let end = Instant::now() + span;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        for event in engine.poll(Some(left))? {
            if let Event::Crashed { worker, how, .. } = event {
                return Err(failed(format!("worker {worker} ended: {how}")));
            }
        }
        if left.is_zero() {
            return Ok(());
        }
    }
}

fn recoveries(engine: &mut Engine, quiet: Duration) -> Result<Outcome, Error> {
    let mut outcome = Outcome::default();
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

/// The longest gap in the other worker's traffic since it was asked for last.
fn gap_ns(engine: &mut Engine) -> Result<f64, Error> {
    let reports = engine.reports()?;
    let gap = reports.get(GAPS).and_then(|figures| figures.get("longest_gap_ns"));
    gap.map(|&ns| ns as f64).ok_or_else(|| failed("the other worker does not answer"))
}

/// Kills the worker: the time until its successor runs.
fn kill(engine: &mut Engine) -> Result<Duration, Error> {
    let pid = engine.pid_of(VICTIM).and_then(Pid::from_raw).ok_or_else(|| failed("no worker to kill"))?;
    let start = Instant::now();
    kill_process(pid, Signal::KILL).map_err(failed)?;
    while start.elapsed() < RESTARTED_WITHIN {
        for event in engine.poll(Some(RESTARTED_WITHIN))? {
            match event {
                Event::Restarted { worker, .. } if worker == VICTIM => return Ok(start.elapsed()),
                Event::Parked { worker, why } => return Err(failed(format!("worker {worker}: {why}"))),
                _ => {}
            }
        }
    }
    Err(failed("the worker that was killed has no successor"))
}

fn failed(reason: impl std::fmt::Display) -> Error {
    // Who started this process says in front of it that the engine failed.
    Error::Sentence(reason.to_string())
}
