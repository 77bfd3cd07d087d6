//! The results, as the JSON file and the history contain them; table and chart are drawn from them.

use std::fmt::Write;

use serde::Serialize;

use crate::chart::{Bar, BarChart, BarGroup};
use crate::engine::case::{BenchGraph, EngineCase, EngineGoal, goal};
use crate::engine::{EngineSample, NO_PLACEMENT};
use crate::history;
use crate::machine::Machine;
use crate::number::number;
use crate::stats::SampleSummary;
use crate::stats::p_value;

/// The version of the format, which changes when a reader of the file has to.
const SCHEMA: &str = "caravan-bench-engine/1";

#[derive(Clone, Debug, Serialize)]
pub struct EngineResults {
    pub schema: &'static str,
    pub caravan: &'static str,
    pub commit: Option<String>,
    pub date: String,
    pub machine: Machine,
    /// The producer's core and the consumer's, if there are two.
    pub cores: Option<(usize, usize)>,
    /// The seconds in which the packets of a sample are counted.
    pub seconds: f64,
    pub samples: usize,
    /// Samples that were taken again because the cores moved.
    pub moved: usize,
    pub figures: Vec<EngineFigure>,
}

/// The unit of a figure's samples. Less is better in all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    NsPerPacket,
    /// Nanoseconds.
    Ns,
    Ratio,
}

/// One figure of one benchmark in one placement.
#[derive(Clone, Debug, Serialize)]
pub struct EngineFigure {
    pub benchmark: &'static str,
    /// The key, such as `interlink/60/swap`.
    pub key: String,
    pub placement: &'static str,
    pub unit: Unit,
    pub value: SampleSummary,
    /// Millions of packets per second, in the same order; for packets alone.
    pub mpps: Option<SampleSummary>,
    /// Processor nanoseconds of all processes per packet; for packets alone.
    pub cpu_ns: Option<SampleSummary>,
    /// The bytes of a packet and, below, their rate; for packets alone.
    pub bytes: Option<usize>,
    pub gbit_per_s: Option<f64>,
    /// The time of a cache line between the two cores, if there are two.
    pub line_ns: Option<SampleSummary>,
    pub goal: Option<EngineGoal>,
    pub reached: Option<bool>,
}

/// The samples of one case.
#[derive(Clone, Debug)]
pub struct EngineSeries {
    pub case: EngineCase,
    pub samples: Vec<EngineSample>,
}

impl EngineSeries {
    /// Returns the number of samples of the placement that has most.
    pub fn most(&self) -> usize {
        self.placements().map(|placement| self.of(placement).count()).max().unwrap_or(0)
    }

    fn placements(&self) -> impl Iterator<Item = &'static str> {
        let all = ["near", "far", NO_PLACEMENT];
        all.into_iter().filter(|placement| self.of(placement).next().is_some())
    }

    fn of(&self, placement: &'static str) -> impl Iterator<Item = &EngineSample> {
        self.samples.iter().filter(move |sample| sample.placement == placement)
    }

    /// Summarizes the samples: one or more figures for each placement.
    pub fn figures(&self) -> Vec<EngineFigure> {
        self.placements().flat_map(|placement| self.figures_in(placement)).collect()
    }

    fn figures_in(&self, placement: &'static str) -> Vec<EngineFigure> {
        let samples: Vec<_> = self.of(placement).collect();
        let line_ns = SampleSummary::of(samples.iter().filter_map(|sample| sample.line_ns).collect());
        let figure = |key: String, unit, values: Vec<f64>| {
            let goal = goal(&key, placement);
            let value = SampleSummary::of(values)?;
            Some(EngineFigure {
                benchmark: self.case.benchmark,
                placement,
                unit,
                mpps: None,
                cpu_ns: None,
                bytes: None,
                gbit_per_s: None,
                line_ns: line_ns.clone(),
                reached: goal.map(|goal| is_reached(goal, value.median)),
                goal,
                key,
                value,
            })
        };
        let key = &self.case.key;
        if self.case.graph == BenchGraph::Recovery {
            let all = |of: fn(&EngineSample) -> &Vec<f64>| {
                samples.iter().flat_map(|&sample| of(sample)).copied().collect()
            };
            let figures = [
                figure(key.clone(), Unit::Ns, all(|sample| &sample.outcome.recovery_ns)),
                figure(format!("{key}/gap"), Unit::Ns, all(|sample| &sample.outcome.gap_ns)),
                figure(format!("{key}/quiet-gap"), Unit::Ns, all(|sample| &sample.outcome.quiet_gap_ns)),
            ];
            return figures.into_iter().flatten().collect();
        }
        let outcomes: Vec<_> = samples.iter().map(|sample| &sample.outcome).collect();
        let bare: Vec<_> = samples.iter().filter_map(|sample| sample.bare.as_ref()).collect();
        let mut figures = Vec::new();
        for (key, outcomes) in [(key.clone(), &outcomes), (format!("{key}/c-loop"), &bare)] {
            let ns = outcomes.iter().map(|outcome| outcome.ns as f64 / outcome.packets as f64);
            let Some(plain) = figure(key, Unit::NsPerPacket, ns.collect()) else { continue };
            let cpu = outcomes.iter().map(|outcome| outcome.cpu_ns / outcome.packets as f64);
            figures.push(EngineFigure {
                mpps: SampleSummary::of(plain.value.samples.iter().map(|ns| 1e3 / ns).collect()),
                cpu_ns: SampleSummary::of(cpu.collect()),
                bytes: Some(self.case.size),
                gbit_per_s: Some(8.0 * self.case.size as f64 / plain.value.median),
                ..plain
            });
        }
        if let [own, bare] = &figures[..] {
            let ratio = own.value.ratio(&bare.value);
            figures
                .extend(ratio.and_then(|ratio| figure(format!("{key}/ratio"), Unit::Ratio, ratio.samples)));
        }
        figures
    }
}

fn is_reached(goal: EngineGoal, median: f64) -> bool {
    match goal {
        EngineGoal::AtLeastMpps(mpps) => 1e3 / median >= mpps,
        EngineGoal::BelowMs(ms) => median < ms * 1e6,
        EngineGoal::RatioAtMost(ratio) => median <= ratio,
    }
}

impl EngineResults {
    pub fn of(run: &history::HistoryRun, machine: Machine, series: &[EngineSeries]) -> Self {
        Self {
            schema: SCHEMA,
            caravan: env!("CARGO_PKG_VERSION"),
            commit: run.commit.clone(),
            date: run.date.clone(),
            machine,
            cores: None,
            seconds: 0.0,
            samples: 0,
            moved: 0,
            figures: series.iter().flat_map(EngineSeries::figures).collect(),
        }
    }

    pub fn figure(&self, key: &str, placement: &str) -> Option<&EngineFigure> {
        self.figures.iter().find(|figure| figure.key == key && figure.placement == placement)
    }

    /// Returns the chart of packet rates, the curve of N processes, and the times of a recovery.
    pub fn chart(&self) -> BarChart {
        let is_curve = |figure: &&EngineFigure| figure.benchmark == "scale";
        let (curve, rates): (Vec<_>, Vec<_>) =
            self.figures.iter().filter(|figure| figure.mpps.is_some()).partition(is_curve);
        let times: Vec<_> = self.figures.iter().filter(|figure| figure.unit == Unit::Ns).collect();
        let cores = self.machine.cores;
        let groups = [
            ("millions of packets per second".to_owned(), rates),
            (
                format!(
                    "tunnels in N processes, all together ({cores} cores): millions of packets per second"
                ),
                curve,
            ),
            ("a worker is killed: ms".to_owned(), times),
        ];
        let groups = groups.into_iter().filter(|(_, figures)| !figures.is_empty());
        let bars = |figures: Vec<&EngineFigure>| figures.into_iter().map(|figure| self.bar(figure)).collect();
        BarChart {
            title: "Packet engine".to_owned(),
            subtitle: format!(
                "medians of {} samples or more of {} s, lines from least to most; near, far: the two processes' cores",
                self.samples, self.seconds
            ),
            groups: groups.map(|(name, figures)| BarGroup { name, bars: bars(figures) }).collect(),
            footer: format!(
                "{}; {} {}",
                self.machine.without_distance(),
                self.caravan,
                self.commit.as_deref().unwrap_or("")
            ),
        }
    }

    /// Returns a bar; those of one packet size have one colour.
    fn bar(&self, figure: &EngineFigure) -> Bar {
        let mut sizes: Vec<_> = self.figures.iter().filter_map(|figure| figure.bytes).collect();
        sizes.sort_unstable();
        sizes.dedup();
        let placement = if figure.placement == NO_PLACEMENT { "" } else { figure.placement };
        Bar {
            name: format!("{} {placement}", figure.key).trim_end().to_owned(),
            value: figure.mpps.clone().unwrap_or_else(|| figure.value.scaled(1e-6)),
            colour: sizes.iter().position(|size| Some(*size) == figure.bytes).unwrap_or(0),
            note: String::new(),
        }
    }

    /// Returns the lines for the history.
    pub fn lines(&self, run: &history::HistoryRun) -> Vec<history::HistoryLine> {
        let line = |figure: &EngineFigure| {
            let unit = if figure.unit == Unit::Ratio { "ratio" } else { "ns" };
            run.line(&figure.key, figure.placement, unit, &figure.value.samples)
        };
        self.figures.iter().map(line).collect()
    }
}

/// Swap or copy is called better only if chance is less probable than this.
const CHANCE: f64 = 0.01;

impl EngineResults {
    /// Returns the whole table.
    pub fn text(&self) -> String {
        let results = self;

        let mut text = String::new();
        let cores =
            results.cores.map_or_else(String::new, |(a, b)| format!("; two processes on cores {a} and {b}"));
        // Writing into a String cannot fail.
        let _ = writeln!(
            text,
            "{}{cores}\n{} {}, {}\nMedians (least..most) of {} samples or more of {} s, in turn; {} taken again because \
         cores moved.\n",
            results.machine.without_distance(),
            results.caravan,
            results.commit.as_deref().unwrap_or("(unknown commit)"),
            results.date,
            results.samples,
            results.seconds,
            results.moved
        );
        packets(&mut text, results);
        swap_and_copy(&mut text, results);
        others(&mut text, results);
        text
    }
}

fn packets(text: &mut String, results: &EngineResults) {
    let rows: Vec<_> = results.figures.iter().filter(|figure| figure.unit == Unit::NsPerPacket).collect();
    if rows.is_empty() {
        return;
    }
    let _ = writeln!(
        text,
        "{:<28}{:<6}{:>4}{:>26}{:>9}{:>9}{:>9}   goal",
        "", "", "n", "Mpps", "ns", "CPU ns", "Gbit/s"
    );
    for figure in rows {
        let of = |summary: &Option<SampleSummary>| {
            summary.as_ref().map_or_else(String::new, SampleSummary::spread)
        };
        let median = |summary: &Option<SampleSummary>| {
            summary.as_ref().map_or_else(String::new, |summary| number(summary.median))
        };
        let row = format!(
            "{:<28}{:<6}{:>4}{:>26}{:>9}{:>9}{:>9}   {}",
            figure.key,
            shown(figure.placement),
            figure.value.samples.len(),
            of(&figure.mpps),
            number(figure.value.median),
            median(&figure.cpu_ns),
            figure.gbit_per_s.map_or_else(String::new, number),
            goal_text(figure)
        );
        let _ = writeln!(text, "{}", row.trim_end());
    }
}

/// Compares the two modes of a link between two processes: handing the packet over, and copying its data.
fn swap_and_copy(text: &mut String, results: &EngineResults) {
    let mut begun = false;
    for swap in &results.figures {
        let Some(name) = swap.key.strip_suffix("/swap") else { continue };
        let Some(copy) = results.figure(&format!("{name}/copy"), swap.placement) else { continue };
        if !begun {
            let _ = writeln!(
                text,
                "\nSwap or copy, between two processes{:>20}{:>10}{:>12}{:>12}{:>12}",
                "swap Mpps", "copy Mpps", "copy/swap", "CPU c/s", "better"
            );
            begun = true;
        }
        // The ratio of rates is the inverse of the ratio of times.
        let rate = swap.value.median / copy.value.median;
        let cpu = match (&swap.cpu_ns, &copy.cpu_ns) {
            (Some(swap), Some(copy)) => number(copy.median / swap.median),
            _ => String::new(),
        };
        let _ = writeln!(
            text,
            "  {:<27}{:<6}{:>20}{:>10}{:>12}{:>12}{:>12}",
            name,
            swap.placement,
            number(1e3 / swap.value.median),
            number(1e3 / copy.value.median),
            number(rate),
            cpu,
            better(&swap.value, &copy.value)
        );
    }
}

/// Returns the better mode, unless the difference may be chance.
fn better(swap: &SampleSummary, copy: &SampleSummary) -> &'static str {
    match () {
        () if p_value(&swap.samples, &copy.samples) >= CHANCE => "neither",
        () if swap.median < copy.median => "swap",
        () => "copy",
    }
}

fn others(text: &mut String, results: &EngineResults) {
    for figure in &results.figures {
        let name = |what: &str| format!("{what} {}", shown(figure.placement)).trim_end().to_owned();
        let line = match (figure.unit, figure.key.as_str()) {
            (Unit::NsPerPacket, _) => continue,
            (Unit::Ratio, _) => {
                let what = name("swap: the engine to the bare loop in C, of each pair,");
                format!("{what}: {}   {}", figure.value.spread(), goal_text(figure))
            }
            (Unit::Ns, "recovery") => format!(
                "recovery of a killed worker: {} ms, {} kills   {}",
                figure.value.scaled(1e-6).spread(),
                figure.value.samples.len(),
                goal_text(figure)
            ),
            (Unit::Ns, key) => {
                let when = if key.ends_with("quiet-gap") { "in a quiet time" } else { "meanwhile" };
                let gaps = figure.value.scaled(1e-6);
                format!("largest gap in another's traffic {when}: {} ms", gaps.spread())
            }
        };
        let _ = writeln!(text, "\n{line}");
    }
}

fn shown(placement: &str) -> &str {
    if placement == NO_PLACEMENT { "" } else { placement }
}

/// Formats a goal: `at least 150 Mpps: reached`.
fn goal_text(figure: &EngineFigure) -> String {
    let Some(goal) = figure.goal else { return String::new() };
    let wanted = match goal {
        EngineGoal::AtLeastMpps(mpps) => format!("at least {mpps} Mpps"),
        EngineGoal::BelowMs(ms) => format!("below {ms} ms"),
        EngineGoal::RatioAtMost(ratio) => format!("at most {ratio}"),
    };
    format!("{wanted}: {}", if figure.reached == Some(true) { "reached" } else { "MISSED" })
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::args::BenchCommand;
    use crate::args::tests::parse;
    use crate::engine::case::chosen;
    use crate::engine::task::EngineOutcome;

    /// Returns results of made-up samples: `line` as for the command, 2 cores; each case has 3 samples near and 2 far
    /// of 4, 5, 6, 14, 15 ns per packet, and a bare loop of half of that.
    pub fn example(line: &str) -> EngineResults {
        let line = format!("engine {line}");
        let BenchCommand::Engine(args) = parse(&line) else { panic!("not engine") };
        let cases = chosen(&args, 2).expect("chosen");
        let series: Vec<_> = cases.into_iter().map(series).collect();
        let machine = Machine::here();
        EngineResults::of(&history::HistoryRun::begin(&machine), machine, &series)
    }

    fn series(case: EngineCase) -> EngineSeries {
        let samples =
            [("near", 4), ("near", 5), ("far", 14), ("near", 6), ("far", 15)].map(|(placement, ns)| {
                let outcome = |ns| EngineOutcome {
                    packets: 1000,
                    ns: ns * 1000,
                    cpu_ns: 2000.0 * ns as f64,
                    recovery_ns: vec![2e6, 3e6],
                    gap_ns: vec![1e5; 2],
                    quiet_gap_ns: vec![5e4; 2],
                };
                let of_two = case.graph.is_of_two();
                EngineSample {
                    placement: if of_two { placement } else { super::NO_PLACEMENT },
                    line_ns: of_two.then_some(60.0),
                    bare: (case.graph == BenchGraph::Swap)
                        .then(|| EngineOutcome { ns: ns * 500, ..outcome(ns) }),
                    outcome: outcome(ns),
                }
            });
        EngineSeries { case, samples: samples.into() }
    }

    #[test]
    fn near_and_far_are_reported_apart() {
        let results = example("--only interlink/60/swap");
        let near = results.figure("interlink/60/swap", "near").expect("near");
        assert_eq!((near.value.median, near.value.samples.len()), (5.0, 3));
        assert_eq!(near.mpps.as_ref().map(|mpps| mpps.median), Some(200.0));
        assert_eq!(near.cpu_ns.as_ref().map(|cpu| cpu.median), Some(10.0));
        assert_eq!(near.gbit_per_s, Some(96.0));
        assert_eq!((near.goal, near.reached), (Some(EngineGoal::AtLeastMpps(150.0)), Some(true)));
        let far = results.figure("interlink/60/swap", "far").expect("far");
        assert_eq!((far.value.samples.len(), far.reached), (2, Some(true)));
        assert_eq!(series(chosen_one("interlink/60/swap")).most(), 3);
    }

    fn chosen_one(key: &str) -> EngineCase {
        let BenchCommand::Engine(args) = parse(&format!("engine --only {key}")) else { panic!("not engine") };
        chosen(&args, 2).expect("chosen").remove(0)
    }

    #[test]
    fn the_swap_has_its_bare_loop_and_the_ratio_of_each_pair() {
        let results = example("--only swap");
        let bare = results.figure("swap/c-loop", "near").expect("the bare loop");
        assert_eq!(bare.value.samples, [2.0, 2.5, 3.0]);
        let ratio = results.figure("swap/ratio", "near").expect("the ratio");
        assert_eq!((ratio.value.median, ratio.unit, ratio.reached), (2.0, Unit::Ratio, Some(false)));
    }

    #[test]
    fn a_recovery_is_a_time_with_the_gaps_beside_it() {
        let results = example("--only recovery");
        let recovery = results.figure("recovery", "none").expect("a figure");
        assert_eq!((recovery.value.samples.len(), recovery.value.median), (10, 2.5e6));
        assert_eq!((recovery.reached, recovery.mpps.is_none()), (Some(true), true));
        assert_eq!(results.figure("recovery/gap", "none").map(|figure| figure.value.max), Some(1e5));
        assert!(results.figure("recovery/quiet-gap", "none").is_some());
    }

    #[test]
    fn every_figure_but_a_ratio_has_a_bar() {
        for line in ["", "--only recovery", "--only scale --sizes 60", "--only basic1", "--only swap"] {
            let results = example(line);
            let figures = results.figures.iter().filter(|figure| figure.unit != Unit::Ratio).count();
            let chart = results.chart();
            assert_eq!(chart.groups.iter().map(|group| group.bars.len()).sum::<usize>(), figures, "{line}");
            assert!(chart.svg().contains("Packet engine"));
        }
        let svg = example("--only interlink,scale").chart().svg();
        for expected in [">interlink/60/swap near<", ">interlink/1500/copy far<", ">scale/60/4<"] {
            assert!(svg.contains(expected), "{expected}: {svg}");
        }
    }

    #[test]
    fn every_figure_has_a_line_in_the_history() {
        let results = example("--only swap,tunnel/60");
        let run = history::HistoryRun::begin(&results.machine);
        let lines = results.lines(&run);
        assert_eq!(lines.len(), results.figures.len());
        let ratio = lines.iter().find(|line| line.benchmark == "swap/ratio" && line.placement == "far");
        assert_eq!(ratio.map(|line| (line.unit.as_str(), line.samples.len())), Some(("ratio", 2)));
    }

    #[test]
    fn rows_have_rates_and_goals() {
        let text = example("--only interlink/60,tunnel/60,swap,recovery").text();
        for expected in [
            "200 (167..250)",
            "at least 150 Mpps: reached",
            "at least 80 Mpps: reached",
            "swap/c-loop",
            "of each pair, near: 2.00 (2.00..2.00)   at most 1.3: MISSED",
            "recovery of a killed worker: 2.50 (2.00..3.00) ms, 10 kills   below 10 ms: reached",
            "largest gap in another's traffic meanwhile: 0.10 (0.10..0.10) ms",
        ] {
            assert!(text.contains(expected), "{expected}: {text}");
        }
    }

    #[test]
    fn swap_and_copy_are_side_by_side() {
        let text = example("--only interlink-touch/1500").text();
        let rows: Vec<_> = text.lines().filter(|line| line.starts_with("  interlink-touch/1500")).collect();
        assert_eq!(rows.len(), 2, "{text}");
        let cells: Vec<_> = rows[0].split_whitespace().collect();
        assert_eq!(cells, ["interlink-touch/1500", "near", "200", "200", "1.00", "1.00", "neither"]);
    }

    #[test]
    fn better_is_what_chance_hardly_does() {
        let about = |median: f64, count: i32| {
            let samples = (0..count).map(|n| median + f64::from(2 * n - count + 1) / 10.0);
            SampleSummary::of(samples.collect()).expect("samples")
        };
        for (swap, copy, expected) in [
            (about(5.0, 9), about(9.0, 9), "swap"),
            (about(9.0, 9), about(5.0, 9), "copy"),
            (about(5.0, 9), about(5.1, 9), "neither"),
            (about(5.0, 2), about(9.0, 2), "neither"),
        ] {
            assert_eq!(better(&swap, &copy), expected, "{swap:?} {copy:?}");
        }
    }
}
