//! `caravan bench engine`: named benchmarks of the packet engine, in turn, on near and far cores.
//!
//! This process takes samples and draws the results. Each sample runs in a process of its own, which forks the
//! engine's workers and therefore has one thread; this process has more.

mod apps;
mod case;
mod results;
mod task;

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::args::{EngineBench, EnginePeer};
use crate::engine::case::{BENCHMARKS, BenchGraph, EngineCase};
use crate::engine::results::{EngineResults, EngineSeries};
use crate::engine::task::{EngineOutcome, EngineTask};
use crate::error::Error;
use crate::history;
use crate::interrupt::Interrupt;
use crate::machine::Machine;
use crate::output::BenchProgress;
use crate::process::{self, CLoop, failed};
use crate::{output, placement};

/// Measures, prints the tables, writes the files, and appends to the history.
pub fn run(args: &EngineBench) -> Result<(), Error> {
    if args.list {
        return list();
    }
    let cases = case::chosen(args, placement::cores().len())?;
    let interrupt = Interrupt::watch()?;
    let machine = Machine::here();
    let history = history::HistoryRun::begin(&machine);
    let mut sampler = Sampler::new(args, &cases, &interrupt)?;
    let series = rounds(args, cases, &mut sampler)?;
    let mut results = EngineResults::of(&history, machine, &series);
    results.cores = sampler.pair();
    results.moved = sampler.moved;
    results.seconds = args.seconds.as_secs_f64();
    results.samples = args.samples;
    let (table, chart) = (results.text(), results.chart());
    output::all(&table, &results, &chart, &args.json, &args.svg, &args.history)?;
    history::append(&args.history, &results.lines(&history))
}

/// Runs rounds; each samples every case that does not have enough samples of one placement yet.
fn rounds(
    args: &EngineBench,
    cases: Vec<EngineCase>,
    sampler: &mut Sampler,
) -> Result<Vec<EngineSeries>, Error> {
    let mut progress = BenchProgress::new(cases.len() * args.samples);
    let mut series: Vec<_> =
        cases.into_iter().map(|case| EngineSeries { case, samples: Vec::new() }).collect();
    for round in 0.. {
        let mut unfinished: Vec<_> = series.iter_mut().filter(|one| one.most() < args.samples).collect();
        if unfinished.is_empty() {
            break;
        }
        progress.round(format!("round {}", round + 1));
        for one in &mut unfinished {
            progress.step(&one.case.key);
            one.samples.push(sampler.sample(&one.case, round % 2 == 0)?);
        }
    }
    Ok(series)
}

/// Runs the engine of a sample, as a process of its own.
pub fn peer(args: &EnginePeer) -> Result<(), Error> {
    let task: EngineTask = serde_json::from_str(&args.task).map_err(|error| Error::Output(error.into()))?;
    let outcome = task::measure(&task)?;
    output::json(&outcome, Path::new("-"))
}

fn list() -> Result<(), Error> {
    let mut text = String::new();
    for benchmark in BENCHMARKS {
        // Writing into a String cannot fail.
        let _ = writeln!(text, "{:<18}{}", benchmark.name, benchmark.what);
    }
    output::table(&text, Path::new(""))
}

const LOOP_SOURCE: &str = include_str!("../../../bench/engine/swap_loop.c");

/// The time before packets are counted: memory grows, caches fill, idle workers wake up.
const WARM_UP: Duration = Duration::from_millis(60);
/// The limit of a sample beyond its own time: many times what it takes.
const SAMPLE_LIMIT: Duration = Duration::from_secs(60);
/// The number of samples in a row in which the cores may move.
const MOVED_MAX: usize = 20;
/// The placement of a figure that does not depend on it.
pub const NO_PLACEMENT: &str = "none";

/// One sample, and the placement of the two cores while it was taken.
#[derive(Clone, Debug, PartialEq)]
pub struct EngineSample {
    pub placement: &'static str,
    /// Nanoseconds of a cache line one way, if the placement matters.
    pub line_ns: Option<f64>,
    pub outcome: EngineOutcome,
    /// The outcome of the bare loop, for the swap alone.
    pub bare: Option<EngineOutcome>,
}

/// The state that all samples share.
pub struct Sampler<'a> {
    args: &'a EngineBench,
    cores: Vec<usize>,
    pair: Option<(usize, usize)>,
    bare: Option<CLoop>,
    interrupt: &'a Interrupt,
    /// The number of samples that were taken again.
    pub moved: usize,
}

impl<'a> Sampler<'a> {
    /// Compiles the bare loop, if there is a swap, and chooses two cores, if any case needs them.
    pub fn new(args: &'a EngineBench, cases: &[EngineCase], interrupt: &'a Interrupt) -> Result<Self, Error> {
        let cores = placement::cores();
        let farthest = args.placement == crate::args::Placement::Far;
        let pair = match cases.iter().any(|case| case.graph.is_of_two()) {
            true => {
                let pair = placement::pair_by_distance(&cores, farthest);
                Some(pair.ok_or(Error::CoresShort(cores.len()))?.0)
            }
            false => None,
        };
        let has_swap = cases.iter().any(|case| case.graph == BenchGraph::Swap);
        let bare = has_swap.then(|| CLoop::compile(&args.cc, LOOP_SOURCE)).transpose()?;
        Ok(Self { args, cores, pair, bare, interrupt, moved: 0 })
    }

    /// Returns the two cores of measurements between two processes.
    pub fn pair(&self) -> Option<(usize, usize)> {
        self.pair
    }

    /// Takes one sample of a case. If `first`, the engine comes before the bare loop.
    pub fn sample(&mut self, case: &EngineCase, first: bool) -> Result<EngineSample, Error> {
        let Some(pair) = self.pair.filter(|_| case.graph.is_of_two()) else {
            let outcome = self.engine(case, self.cores.clone())?;
            return Ok(EngineSample { placement: NO_PLACEMENT, line_ns: None, outcome, bare: None });
        };
        for _ in 0..MOVED_MAX {
            let before = distance(pair)?;
            let early = if first { None } else { self.bare(case, pair)? };
            let outcome = self.engine(case, vec![pair.0, pair.1])?;
            let bare = if first { self.bare(case, pair)? } else { early };
            let after = distance(pair)?;
            if placement::word(before) == placement::word(after) {
                let placement = placement::word(before);
                return Ok(EngineSample { placement, line_ns: Some(before.min(after)), outcome, bare });
            }
            self.moved += 1;
        }
        Err(Error::Unsteady(pair.0, pair.1, MOVED_MAX))
    }

    fn engine(&self, case: &EngineCase, cores: Vec<usize>) -> Result<EngineOutcome, Error> {
        let task = EngineTask {
            graph: case.graph,
            size: case.size,
            mode: case.mode,
            cores,
            warm_up_ns: WARM_UP.as_nanos() as u64,
            run_ns: self.args.seconds.as_nanos() as u64,
        };
        let text = serde_json::to_string(&task).map_err(|error| Error::Output(error.into()))?;
        // The program's path may meanwhile lead to another build.
        let mut command = Command::new("/proc/self/exe");
        command.args(["bench", "engine-peer", "--task", &text]);
        let said = process::output("engine", command, SAMPLE_LIMIT + self.args.seconds, self.interrupt)?;
        serde_json::from_str(&said).map_err(|error| failed("engine", &format!("it said {said}: {error}")))
    }

    fn bare(&self, case: &EngineCase, pair: (usize, usize)) -> Result<Option<EngineOutcome>, Error> {
        let Some(bare) = self.bare.as_ref().filter(|_| case.graph == BenchGraph::Swap) else {
            return Ok(None);
        };
        let times = [WARM_UP, self.args.seconds].map(|time| time.as_nanos().to_string());
        let words: Vec<_> = [pair.0.to_string(), pair.1.to_string()].into_iter().chain(times).collect();
        let [packets, ns, cpu_ns] = bare.run(&words, SAMPLE_LIMIT + self.args.seconds, self.interrupt)?;
        match packets > 0.0 {
            true => Ok(Some(EngineOutcome {
                packets: packets as u64,
                ns: ns as u64,
                cpu_ns,
                ..EngineOutcome::default()
            })),
            false => Err(failed("bare loop in C", &"it counted no packets")),
        }
    }
}

fn distance((a, b): (usize, usize)) -> Result<f64, Error> {
    placement::line_ns(a, b).ok_or(Error::CoresShort(1))
}
