//! The results of pipes between hosts, as text, as JSON and as a chart.

use std::fmt::Write;

use serde::Serialize;

use crate::chart::{Bar, BarChart, BarGroup};
use crate::hosts::PipeCase;
use crate::hosts::tool::PipeTool;
use crate::machine::Machine;
use crate::number::{binary, number};
use crate::stats::SampleSummary;

/// The version of the format, which changes when a reader of the file has to.
const SCHEMA: &str = "caravan-bench-pipe/1";
/// The rate of the line of `veth-10g`, in GB/s.
const LINE_GB_PER_S: f64 = 1.25;

/// The samples of one contender.
#[derive(Clone, Debug)]
pub struct ToolSeries {
    key: &'static str,
    title: &'static str,
    /// GB/s, or the seconds of a start.
    pub value: Vec<f64>,
    pub wall_s: Vec<f64>,
    /// Processor seconds per GB, or per start.
    pub cpu: Vec<f64>,
    pub machine_cpu: Vec<f64>,
}

impl ToolSeries {
    pub fn of(key: &'static str, title: &'static str) -> Self {
        Self { key, title, value: Vec::new(), wall_s: Vec::new(), cpu: Vec::new(), machine_cpu: Vec::new() }
    }
}

#[derive(Clone, Debug, Serialize)]
pub struct PipeResults {
    pub schema: &'static str,
    pub caravan: &'static str,
    pub machine: Machine,
    pub rounds: usize,
    pub bytes: u64,
    /// What could not be measured, and why.
    pub notes: Vec<String>,
    pub cases: Vec<CaseResult>,
}

#[derive(Clone, Debug, Serialize)]
pub struct CaseResult {
    pub key: &'static str,
    pub title: String,
    /// `GB/s`, for which more is better, or `s`.
    pub unit: &'static str,
    pub rows: Vec<PipeRow>,
    pub goals: Vec<PipeGoal>,
}

/// A contender.
#[derive(Clone, Debug, Serialize)]
pub struct PipeRow {
    pub key: &'static str,
    pub title: &'static str,
    pub value: SampleSummary,
    /// The ratio to the first contender, in the same round.
    pub ratio: SampleSummary,
    /// Seconds from the start of its programs to their end.
    pub wall_s: SampleSummary,
    /// Processor seconds of its processes at both ends, per GB or per start.
    pub cpu_s: SampleSummary,
    /// Processor seconds of the whole machine, per GB or per start.
    pub machine_cpu_s: SampleSummary,
    /// The percentage of the line's rate, if that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub percent_of_line: Option<f64>,
}

impl CaseResult {
    /// Returns the result of streams of all tools.
    pub fn streams(case: PipeCase, is_veth: bool, series: Vec<ToolSeries>) -> Self {
        let between = match (is_veth, case) {
            (true, PipeCase::Veth10g) => "two network namespaces, a veth pair, tbf 10 Gbit/s",
            (true, _) => "two network namespaces, a veth pair, no limit",
            (false, _) => "two addresses of loopback: no namespaces",
        };
        let line = (case == PipeCase::Veth10g).then_some(LINE_GB_PER_S);
        let rows = rows(series, line);
        let goals = if line.is_some() { line_goals(&rows) } else { stream_goals(&rows) };
        Self { key: case.key(), title: between.to_owned(), unit: "GB/s", rows, goals }
    }

    /// Returns the result of Caravan and a shell.
    pub fn lines(case: PipeCase, series: Vec<ToolSeries>) -> Self {
        let rows = rows(series, None);
        let (title, unit, goals) = match case {
            PipeCase::Start => ("one line through two hosts, sessions being there", "s", start_goals(&rows)),
            _ => ("two commands of one host", "GB/s", same_host_goals(&rows)),
        };
        Self { key: case.key(), title: title.to_owned(), unit, rows, goals }
    }

    fn text(&self) -> String {
        let per = if self.unit == "s" { "CPU s" } else { "CPU s/GB" };
        let line = if self.rows.iter().any(|row| row.percent_of_line.is_some()) { "of line" } else { "" };
        let mut text = format!("\n{}: {}\n", self.key, self.title);
        // Writing into a String cannot fail.
        let _ = writeln!(
            text,
            "  {:<34}{:>22}{line:>9}{:>24}{per:>10}{:>10}{:>10}",
            "", self.unit, "to the first", "machine", "s in all"
        );
        for row in &self.rows {
            let percent = row.percent_of_line.map_or_else(String::new, |percent| format!("{percent:.1} %"));
            let line = format!(
                "  {:<34}{:>22}{percent:>9}{:>24}{:>10}{:>10}{:>10}",
                row.title,
                row.value.spread(),
                row.ratio.spread(),
                number(row.cpu_s.median),
                number(row.machine_cpu_s.median),
                number(row.wall_s.median),
            );
            let _ = writeln!(text, "{}", line.trim_end());
        }
        for PipeGoal { text: goal, value, is_reached } in &self.goals {
            let reached = if *is_reached { "reached" } else { "NOT REACHED" };
            let _ = writeln!(text, "  goal: {goal}: {}, {reached}", number(*value));
        }
        text
    }
}

fn rows(series: Vec<ToolSeries>, line: Option<f64>) -> Vec<PipeRow> {
    let base = series.first().and_then(|first| SampleSummary::of(first.value.clone()));
    let row = |series: ToolSeries| {
        let value = SampleSummary::of(series.value)?;
        Some(PipeRow {
            key: series.key,
            title: series.title,
            ratio: value.ratio(base.as_ref()?)?,
            percent_of_line: line.map(|line| 100.0 * value.median / line),
            value,
            wall_s: SampleSummary::of(series.wall_s)?,
            cpu_s: SampleSummary::of(series.cpu)?,
            machine_cpu_s: SampleSummary::of(series.machine_cpu)?,
        })
    };
    series.into_iter().filter_map(row).collect()
}

impl PipeResults {
    pub fn new(rounds: usize, bytes: u64) -> Self {
        Self {
            schema: SCHEMA,
            caravan: env!("CARGO_PKG_VERSION"),
            machine: Machine::here(),
            rounds,
            bytes,
            notes: Vec::new(),
            cases: Vec::new(),
        }
    }

    pub fn text(&self) -> String {
        let mut text = format!(
            "Pipes of {} from one host to another\n{}\n\
             Medians of {} rounds (least..most), all in turn; ratios are of the same round. CPU: processes of both \
             ends; machine: all of it, kernel threads included.\n",
            binary(self.bytes),
            self.machine.sentence(),
            self.rounds,
        );
        for note in &self.notes {
            text.push_str(note);
            text.push('\n');
        }
        self.cases.iter().for_each(|case| text.push_str(&case.text()));
        text
    }

    /// Returns the chart, with a group of bars for each benchmark.
    pub fn chart(&self) -> BarChart {
        let bar = |row: &PipeRow| Bar {
            name: row.title.to_owned(),
            value: row.value.clone(),
            colour: match row.key {
                "caravan-insecure" | "caravan-bare" => 0,
                "caravan" => 1,
                _ => 2,
            },
            note: String::new(),
        };
        let group = |case: &CaseResult| BarGroup {
            name: format!("{}: {}, {}", case.key, case.title, case.unit),
            bars: case.rows.iter().map(bar).collect(),
        };
        BarChart {
            title: "Pipes between hosts".to_owned(),
            subtitle: format!(
                "{} of data; medians of {} rounds, lines from least to most",
                binary(self.bytes),
                self.rounds
            ),
            groups: self.cases.iter().map(group).collect(),
            footer: self.machine.sentence(),
        }
    }
}

/// The goal of a figure, and whether it was reached.
#[derive(Clone, Debug, Serialize)]
pub struct PipeGoal {
    pub text: String,
    pub value: f64,
    pub is_reached: bool,
}

fn row(rows: &[PipeRow], tool: PipeTool) -> Option<&PipeRow> {
    rows.iter().find(|row| row.key == tool.key())
}

fn at_least(text: impl Into<String>, least: f64, value: f64) -> PipeGoal {
    PipeGoal { text: text.into(), value, is_reached: value >= least }
}

/// Returns the goals of two commands on one host.
fn same_host_goals(rows: &[PipeRow]) -> Vec<PipeGoal> {
    let ratio = |rows: &[PipeRow]| rows.first()?.value.ratio(&rows.get(1)?.value);
    let goal = |ratio: SampleSummary| {
        at_least("at least a bare shell pipe (ratio in the same round)", 1.0, ratio.median)
    };
    ratio(rows).map(goal).into_iter().collect()
}

/// Returns the goals of a line through two hosts.
fn start_goals(rows: &[PipeRow]) -> Vec<PipeGoal> {
    let seconds = rows.first().map(|row| row.value.median);
    let goal = |value| PipeGoal { text: "under 0.5 s".to_owned(), value, is_reached: value < 0.5 };
    seconds.map(goal).into_iter().collect()
}

/// Returns the goals of streams without a limit.
fn stream_goals(rows: &[PipeRow]) -> Vec<PipeGoal> {
    use PipeTool::{Caravan, CaravanBare, CaravanInsecure, Iperf3, Iperf3File, Mbuffer, Nc, Socat, Ssh};
    let rate = |own, least, text| Some(at_least(text, least, row(rows, own)?.value.median));
    let ratio = |own, other, least, text: String| {
        let ratio = row(rows, own)?.value.ratio(&row(rows, other)?.value)?;
        Some(at_least(text, least, ratio.median))
    };
    let iperf3 = |tool, what| {
        let text = format!("at least 0.9 of iperf3 with {what}, not encrypted");
        ratio(CaravanInsecure, tool, 0.9, text)
    };
    let faster = |tool: PipeTool| {
        let text = format!("faster than {}, not encrypted (ratio)", tool.key());
        ratio(CaravanInsecure, tool, 1.0, text)
    };
    let less_time = |own, what| {
        let ratio = row(rows, own)?.cpu_s.ratio(&row(rows, Socat)?.cpu_s)?.median;
        let text = format!("less processor time than socat, {what} (ratio)");
        Some(PipeGoal { text, value: ratio, is_reached: ratio < 1.0 })
    };
    let goals = [
        rate(CaravanInsecure, 3.2, "at least 3.2 GB/s, not encrypted"),
        iperf3(Iperf3File, "the same file"),
        iperf3(Iperf3, "one buffer"),
        faster(Nc),
        faster(Socat),
        faster(Mbuffer),
        rate(CaravanBare, 4.0, "at least 4 GB/s, not encrypted, no digest"),
        less_time(CaravanBare, "no digest"),
        ratio(Caravan, Ssh, 1.0, "faster than ssh, encrypted (ratio)".to_owned()),
        less_time(CaravanInsecure, "not encrypted"),
    ];
    goals.into_iter().flatten().collect()
}

/// Returns the goals of streams through a line of a known rate.
fn line_goals(rows: &[PipeRow]) -> Vec<PipeGoal> {
    let goal = |(tool, text): (PipeTool, &str)| {
        let percent = row(rows, tool)?.percent_of_line?;
        Some(at_least(format!("at least 95 % of the line, {text}"), 95.0, percent))
    };
    [(PipeTool::CaravanInsecure, "not encrypted"), (PipeTool::Caravan, "encrypted")]
        .into_iter()
        .filter_map(goal)
        .collect()
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::hosts::tool::PipeTool;

    fn series(tool: PipeTool, gb_per_s: f64, cpu: f64) -> ToolSeries {
        let mut series = ToolSeries::of(tool.key(), tool.title());
        for round in [1.0, 2.0, 4.0] {
            series.value.push(gb_per_s * round);
            series.wall_s.push(1.0);
            series.cpu.push(cpu);
            series.machine_cpu.push(2.0 * cpu);
        }
        series
    }

    pub fn example(caravan: f64) -> PipeResults {
        let mut results = PipeResults::new(3, 2 << 30);
        let all = || {
            let others = PipeTool::ALL.into_iter().skip(1).map(|tool| series(tool, 1.0, 0.5));
            std::iter::once(series(PipeTool::CaravanInsecure, caravan, 0.25))
                .chain(others)
                .collect::<Vec<_>>()
        };
        results.cases.push(CaseResult::streams(PipeCase::Veth, true, all()));
        results.cases.push(CaseResult::streams(PipeCase::Veth10g, true, all()));
        results
    }

    #[test]
    fn a_line_has_the_rate_the_ratio_and_both_processor_times() {
        let text = example(2.0).text();
        let line = text.lines().find(|line| line.trim_start().starts_with("nc ")).expect("a line");
        let cells: Vec<_> = line.split_whitespace().collect();
        assert_eq!(cells, ["nc", "2.00", "(1.00..4.00)", "0.50", "(0.50..0.50)", "0.50", "1.00", "1.00"]);
        assert!(text.contains("160.0 %"), "{text}");
        assert!(text.contains("goal: at least 95 % of the line, encrypted: 160, reached"), "{text}");
    }

    #[test]
    fn the_json_has_the_shape_that_readers_rely_on() {
        let json = serde_json::to_value(example(2.0)).expect("JSON");
        assert_eq!(json["schema"], "caravan-bench-pipe/1");
        assert_eq!(json["cases"][0]["key"], "veth");
        let rows = json["cases"][0]["rows"].as_array().expect("rows");
        let nc = rows.iter().find(|row| row["key"] == "nc").expect("nc's row");
        assert_eq!(nc["ratio"]["median"], 0.5);
        assert_eq!(json["cases"][1]["rows"][0]["percent_of_line"], 320.0);
        assert_eq!(json["cases"][0]["goals"][0]["is_reached"], true);
    }

    #[test]
    fn goals_are_reached_or_not() {
        let reached = |caravan: f64| {
            let goals = example(caravan).cases.remove(0).goals;
            goals.iter().map(|goal| goal.is_reached).collect::<Vec<_>>()
        };
        // 3.2 GB/s; iperf3, twice; nc, socat, mbuffer; no digest, compared like the others: 4 GB/s, processor time;
        // ssh (encrypted, as fast as ssh); processor time.
        assert_eq!(reached(2.0), [true, true, true, true, true, true, false, false, true, true]);
        assert_eq!(reached(0.8), [false, false, false, false, false, false, false, false, true, true]);
    }
}
