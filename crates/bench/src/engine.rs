//! `caravan bench engine`: named benchmarks of the packet engine, in turn, on near and far cores.
//!
//! This process takes samples and draws the results. Each sample runs in a process of its own, which forks the
//! engine's workers and therefore has one thread; this process has more.

mod apps;
mod case;
mod task;

use std::path::Path;
use std::time::Duration;

use serde_json::json;

use crate::args::EngineBench;
use crate::chart::{CARAVAN, PEER};
use crate::choice;
use crate::engine::case::{BENCHMARKS, BenchGraph, EngineCase};
use crate::engine::task::EngineOutcome;
pub use crate::engine::task::EngineTask;
use crate::error::Error;
use crate::history::{self, HistoryLine};
use crate::interrupt::Interrupt;
use crate::placement::CorePair;
use crate::process::{self, CLoop, PeerTask, failed};
use crate::report::{self, BenchCase, BenchReport, Contender, Figure, Sample, Shown};
use crate::{output, placement};

const PACKETS: [Figure; 4] = [
    Figure::new("mpps", "Mpps", Shown::Chart),
    Figure::new("ns", "ns", Shown::Median),
    Figure::new("cpu_ns", "CPU ns", Shown::Spread),
    Figure::new("gbit_per_s", "Gbit/s", Shown::Median),
];
const RECOVERY: [Figure; 3] = [
    Figure::new("ms", "ms until its successor runs", Shown::Chart),
    Figure::new("gap_ms", "largest gap in another's traffic meanwhile", Shown::Chart),
    Figure::new("quiet_gap_ms", "in a quiet time", Shown::Chart),
];

/// Measures, reports, and appends to the history.
pub fn run(args: &EngineBench) -> Result<(), Error> {
    if args.list {
        return choice::list(&BENCHMARKS, 18);
    }
    let cores = placement::cores();
    let chosen = case::chosen(args, cores.len())?;
    let interrupt = Interrupt::watch()?;
    let sampler = Sampler::new(args, cores, &chosen, &interrupt)?;
    let on = sampler.pair.map_or_else(String::new, |pair| format!("; two processes on cores {pair}"));
    let seconds = args.seconds.as_secs_f64();
    let facts = json!({ "cores": sampler.pair, "seconds": seconds });
    let mut report = BenchReport::begin("engine", args.samples, format!("Packet engine{on}"), facts);
    report.notes.push(format!("Packets are counted for {seconds} s in each round."));
    let runs: Vec<_> = chosen.chunk_by(EngineCase::is_variant_of).map(engine_runs).collect();
    let mut cases: Vec<_> = runs.iter().map(|runs| sampler.case(runs)).collect();
    report::measure(&mut cases, args.samples, &interrupt, |turn| match runs[turn.case][turn.contender] {
        Some(case) => sampler.engine(case),
        None => sampler.bare(),
    })?;
    report.add(&cases);
    report.write(&args.files, &args.history)?;
    history::append(&args.history, &history_lines(&report))
}

/// Returns what takes turns in a case: its variants, and in front of the swap the bare loop in C (`None`).
fn engine_runs(variants: &[EngineCase]) -> Vec<Option<&EngineCase>> {
    let bare = (variants[0].graph == BenchGraph::Swap).then_some(None);
    bare.into_iter().chain(variants.iter().map(Some)).collect()
}

/// Returns the lines for the history: all times, and the ratio of the swap to the bare loop.
fn history_lines(report: &BenchReport) -> Vec<HistoryLine> {
    let times =
        [("ns", "", 1.0), ("ms", "", 1e6), ("gap_ms", "/gap", 1e6), ("quiet_gap_ms", "/quiet-gap", 1e6)];
    let mut lines = Vec::new();
    for case in &report.cases {
        let placement = case.placement.unwrap_or("none");
        for one in &case.contenders {
            let key = &one.contender.key;
            let mut line = |key: String, unit, samples: &[f64]| {
                lines.push(report.run.line(&key, placement, unit, samples));
            };
            for (figure, suffix, ns) in times {
                let Some(result) = one.figures.get(figure) else { continue };
                line(format!("{key}{suffix}"), "ns", &result.value.scaled(ns).samples);
                if let Some(ratio) = result.ratio.as_ref().filter(|_| key == "swap") {
                    line("swap/ratio".to_owned(), "ratio", &ratio.value.samples);
                }
            }
        }
    }
    lines
}

/// Runs the engine of a sample, as a process of its own.
pub fn peer(task: &EngineTask) -> Result<(), Error> {
    output::json(&task::measure(task)?, Path::new("-"))
}

const LOOP_SOURCE: &str = include_str!("../../../bench/engine/swap_loop.c");

/// The time before packets are counted: memory grows, caches fill, idle workers wake up.
const WARM_UP: Duration = Duration::from_millis(60);
/// The limit of a sample beyond its own time: many times what it takes.
const SAMPLE_LIMIT: Duration = Duration::from_secs(60);
/// The state that all samples share.
struct Sampler<'a> {
    args: &'a EngineBench,
    cores: Vec<usize>,
    /// The two cores of measurements between two processes, if there are such.
    pair: Option<CorePair>,
    bare: Option<CLoop>,
    interrupt: &'a Interrupt,
}

impl<'a> Sampler<'a> {
    /// Compiles the bare loop, if there is a swap, and chooses two cores, if any case needs them.
    fn new(
        args: &'a EngineBench,
        cores: Vec<usize>,
        cases: &[EngineCase],
        interrupt: &'a Interrupt,
    ) -> Result<Self, Error> {
        let is_of_two = cases.iter().any(|case| case.graph.is_of_two());
        let pair = is_of_two.then(|| placement::pair_by_distance(&cores, args.placement)).transpose()?;
        let has_swap = cases.iter().any(|case| case.graph == BenchGraph::Swap);
        let bare = has_swap.then(|| CLoop::compile(&args.cc, LOOP_SOURCE, &[])).transpose()?;
        Ok(Self { args, cores, pair, bare, interrupt })
    }

    /// Returns the case of what takes turns. The bars of one packet size have one colour.
    fn case(&self, runs: &[Option<&EngineCase>]) -> BenchCase {
        let contender = |run: &Option<&EngineCase>| match run {
            Some(case) => {
                let size = self.args.sizes.iter().position(|&size| size == case.size);
                Contender::new(&case.key, &case.key, size.unwrap_or(CARAVAN))
            }
            None => Contender::new(case::C_LOOP, case::C_LOOP, PEER),
        };
        let first = runs.iter().flatten().next();
        let graph = first.map_or(BenchGraph::Swap, |case| case.graph);
        let (title, figures) = match graph {
            BenchGraph::Recovery => ("a worker that holds 4,096 packets is killed".to_owned(), &RECOVERY[..]),
            BenchGraph::Scale { .. } => {
                let cores = self.cores.len();
                (format!("tunnels in N processes, all together ({cores} cores)"), &PACKETS[..])
            }
            _ => ("packets".to_owned(), &PACKETS[..]),
        };
        let key = first.map_or("", |case| case.without_mode());
        BenchCase {
            goals: runs.iter().flatten().flat_map(|case| case::goals(&case.key)).collect(),
            pair: self.pair.filter(|_| graph.is_of_two()),
            ..BenchCase::new(key, title, figures, runs.iter().map(contender).collect())
        }
    }

    fn engine(&self, case: &EngineCase) -> Result<Vec<Sample>, Error> {
        let pair = self.pair.filter(|_| case.graph.is_of_two());
        let task = EngineTask {
            graph: case.graph,
            size: case.size,
            mode: case.mode,
            cores: pair.map_or_else(|| self.cores.clone(), |pair| vec![pair.first, pair.second]),
            warm_up_ns: WARM_UP.as_nanos() as u64,
            run_ns: self.args.seconds.as_nanos() as u64,
        };
        let command = PeerTask::Engine(task).command()?;
        let said = process::output("engine", command, SAMPLE_LIMIT + self.args.seconds, self.interrupt)?;
        let outcome: EngineOutcome = serde_json::from_str(&said)
            .map_err(|error| failed("engine", &format!("it said {said}: {error}")))?;
        Ok(outcome.samples(case.size))
    }

    fn bare(&self) -> Result<Vec<Sample>, Error> {
        let (Some(bare), Some(pair)) = (&self.bare, self.pair) else { return Ok(Vec::new()) };
        let times = [WARM_UP, self.args.seconds].map(|time| time.as_nanos().to_string());
        let words: Vec<_> =
            [pair.first, pair.second].map(|core| core.to_string()).into_iter().chain(times).collect();
        let [packets, ns, cpu_ns] = bare.run(&words, SAMPLE_LIMIT + self.args.seconds, self.interrupt)?;
        match packets > 0.0 {
            true => Ok(EngineOutcome {
                packets: packets as u64,
                ns: ns as u64,
                cpu_ns,
                ..EngineOutcome::default()
            }
            .samples(case::SWAP_BYTES)),
            false => Err(failed("bare loop in C", &"it counted no packets")),
        }
    }
}

impl EngineOutcome {
    /// Returns the samples of [`PACKETS`] or of [`RECOVERY`], for packets of so many bytes.
    fn samples(&self, bytes: usize) -> Vec<Sample> {
        let times =
            [("ms", &self.recovery_ns), ("gap_ms", &self.gap_ns), ("quiet_gap_ms", &self.quiet_gap_ns)];
        let times = times
            .into_iter()
            .flat_map(|(figure, all)| all.iter().map(move |ns| Sample::new(figure, ns / 1e6)));
        let mut samples: Vec<_> = times.collect();
        if self.packets > 0 && samples.is_empty() {
            let ns = self.ns as f64 / self.packets as f64;
            samples.push(Sample::new("mpps", 1e3 / ns));
            samples.push(Sample::new("ns", ns));
            samples.push(Sample::new("cpu_ns", self.cpu_ns / self.packets as f64));
            samples.push(Sample::new("gbit_per_s", 8.0 * bytes as f64 / ns));
        }
        samples
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::BenchCommand;
    use crate::args::tests::parse;

    /// Returns a report of made-up samples: two rounds of 4 and 5 ns a packet; the bare loop takes half of that.
    fn example(line: &str) -> BenchReport {
        let BenchCommand::Engine(args) = parse(&format!("engine {line}")) else { panic!("not engine") };
        let chosen = case::chosen(&args, 2).expect("chosen");
        let runs: Vec<_> = chosen.chunk_by(EngineCase::is_variant_of).map(engine_runs).collect();
        let interrupt = Interrupt::by(Default::default());
        let sampler =
            Sampler { args: &args, cores: vec![0, 1], pair: None, bare: None, interrupt: &interrupt };
        let mut report = BenchReport::begin("engine", 2, String::new(), json!({}));
        for runs in &runs {
            let mut case = sampler.case(runs);
            for ns in [4000, 5000] {
                let outcome = |run: &Option<&EngineCase>| match run {
                    None => EngineOutcome { packets: 1000, ns: ns / 2, ..EngineOutcome::default() },
                    Some(case) if case.graph == BenchGraph::Recovery => EngineOutcome {
                        recovery_ns: vec![2e6, 3e6],
                        gap_ns: vec![1e5; 2],
                        quiet_gap_ns: vec![5e4; 2],
                        ..EngineOutcome::default()
                    },
                    Some(_) => EngineOutcome { packets: 1000, ns, cpu_ns: 8e3, ..EngineOutcome::default() },
                };
                case.add(runs.iter().map(|run| outcome(run).samples(60)).collect());
            }
            report.add(&[case]);
        }
        report
    }

    #[test]
    fn swap_and_copy_are_contenders_of_one_case() {
        let report = example("--only interlink/60,tunnel/60");
        let keys: Vec<_> = report.cases.iter().map(|case| case.key.as_str()).collect();
        assert_eq!(keys, ["interlink/60", "tunnel/60"]);
        let text = report.text();
        let row = text.lines().find(|line| line.starts_with("  interlink/60/copy")).expect("a row");
        let cells: Vec<_> = row.split_whitespace().skip(1).collect();
        let (rate, ratio) = (["225", "(200..250)"], ["1.00", "(1.00..1.00)", "?"]);
        let cpu = ["4.50", "8.00", "(8.00..8.00)"];
        assert_eq!(cells, [&rate[..], &ratio, &cpu, &ratio, &["108"]].concat());
        let goal =
            text.lines().find(|line| line.starts_with("  tunnel/60: at least 80 Mpps ")).expect("a goal");
        assert_eq!(goal.split_whitespace().skip(5).collect::<Vec<_>>(), ["225", "reached"], "{text}");
    }

    #[test]
    fn every_time_has_a_line_in_the_history_and_so_has_the_ratio_to_the_bare_loop() {
        let lines = history_lines(&example("--only swap,recovery,interlink/60"));
        let line = |key: &str| {
            let line = lines.iter().find(|line| line.benchmark == key).expect(key);
            (line.unit.as_str(), line.samples.clone())
        };
        assert_eq!(lines.len(), 8);
        assert_eq!(line("interlink/60/copy"), ("ns", vec![4.0, 5.0]));
        assert_eq!(line("swap/c-loop"), ("ns", vec![2.0, 2.5]));
        assert_eq!(line("swap/ratio"), ("ratio", vec![2.0, 2.0]));
        assert_eq!(line("recovery"), ("ns", vec![2e6, 3e6, 2e6, 3e6]));
        assert_eq!(line("recovery/gap").1.len() + line("recovery/quiet-gap").1.len(), 8);
    }
}
