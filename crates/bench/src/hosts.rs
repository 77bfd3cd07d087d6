//! `caravan bench pipe`: measures pipes between hosts, beside common tools, in turn.

mod bed;
mod cpu;
mod tool;

use std::fmt::Write as _;
use std::path::Path;

use serde_json::json;

use crate::args::{PipeBench, PipeNetwork};
use crate::chart::{CARAVAN, PEER};
use crate::error::Error;
use crate::hosts::bed::{Bed, Net};
use crate::hosts::tool::{PipeTool, ShellLine};
use crate::interrupt::Interrupt;
use crate::number::binary;
use crate::output;
use crate::report::{self, BenchCase, BenchReport, Bound, Contender, Figure, Goal, Sample, Shown};

/// The default number of bytes of a stream.
const BYTES: u64 = 2 << 30;

/// The rate of the line of `veth-10g`, in GB/s.
const LINE_GB_PER_S: f64 = 1.25;

/// The figures of a stream through a line: those of [`STREAMS`], and its part of the line.
const LINE: [Figure; 5] = {
    let [rate, cpu, machine, wall] = STREAMS;
    [rate, Figure::new("percent_of_line", "% of line", Shown::Median), cpu, machine, wall]
};
const STREAMS: [Figure; 4] = [
    Figure::new("gb_per_s", "GB/s", Shown::Chart),
    Figure::new("cpu_s_per_gb", "CPU s/GB", Shown::Median),
    Figure::new("machine_cpu_s_per_gb", "machine", Shown::Median),
    Figure::new("wall_s", "s in all", Shown::Median),
];
const STARTS: [Figure; 3] = [
    Figure::new("wall_s", "s", Shown::Chart),
    Figure::new("cpu_s", "CPU s", Shown::Median),
    Figure::new("machine_cpu_s", "machine", Shown::Median),
];

/// Measures and reports.
pub fn run(args: &PipeBench) -> Result<(), Error> {
    if args.list {
        return list();
    }
    let cases = PipeCase::chosen(&args.only)?;
    let interrupt = Interrupt::watch()?;
    cpu::adopt()?;
    let bytes = args.bytes.unwrap_or(BYTES).next_multiple_of(8).max(8);
    let title = format!("Pipes of {} from one host to another", binary(bytes));
    let mut report = BenchReport::begin("pipe", args.rounds, title, json!({ "bytes": bytes }));
    let about = "CPU: processes of both ends; machine: all of it, kernel threads included.";
    report.notes.push(about.to_owned());
    let bed = match cases.iter().any(|case| case.needs_hosts()) {
        true => Some(Bed::new(network(args, &mut report.notes)?, bytes, &interrupt)?),
        false => None,
    };
    let tools = tools(&cases, &mut report.notes);
    for case in cases {
        let measured = match (case, &bed) {
            (PipeCase::SameHost, _) => lines(args, case, &ShellLine::same_host(bytes), &interrupt)?,
            (PipeCase::Veth, Some(bed)) => streams(args, case, &tools, bed)?,
            (PipeCase::Veth10g, Some(bed)) => match bed.net.limit(true) {
                Ok(()) => {
                    let measured = streams(args, case, &tools, bed)?;
                    bed.net.limit(false)?;
                    measured
                }
                Err(why) => {
                    report.notes.push(format!("No {}: {why}.", case.key()));
                    continue;
                }
            },
            (PipeCase::Start, Some(bed)) => {
                tool::warm(bed)?;
                lines(args, case, &ShellLine::start(bed), &interrupt)?
            }
            (_, None) => continue,
        };
        report.add(&[measured]);
    }
    drop(bed);
    report.write(&args.files, Path::new(""))
}

/// Returns the network that was asked for, or the best that is possible.
fn network(args: &PipeBench, notes: &mut Vec<String>) -> Result<Net, Error> {
    match (args.network, bed::obstacle()) {
        (Some(PipeNetwork::Loopback), _) => Ok(Net::loopback()),
        (Some(PipeNetwork::Veth), Some(why)) => Err(Error::Sentence(why.to_owned())),
        (None, Some(why)) => {
            notes.push(format!("Over loopback, not between network namespaces: {why}."));
            Ok(Net::loopback())
        }
        (_, None) => Net::veth(),
    }
}

/// Returns the tools that are installed.
fn tools(cases: &[PipeCase], notes: &mut Vec<String>) -> Vec<PipeTool> {
    let is_needed = cases.iter().any(|case| matches!(case, PipeCase::Veth | PipeCase::Veth10g));
    let (here, missing): (Vec<PipeTool>, Vec<PipeTool>) =
        PipeTool::ALL.into_iter().partition(|tool| tool.missing().is_none());
    if is_needed && !missing.is_empty() {
        let names: Vec<_> = missing.iter().map(|tool| tool.key()).collect();
        let packages: Vec<_> = missing.iter().filter_map(|tool| tool.missing()).collect();
        notes.push(format!("Not installed: {} (apt install {}).", names.join(", "), packages.join(" ")));
    }
    here
}

/// Measures the streams of all tools, in turn.
fn streams(args: &PipeBench, case: PipeCase, tools: &[PipeTool], bed: &Bed) -> Result<BenchCase, Error> {
    // The first copy of the program to a host, and the start of ssh's sessions, do not belong to a stream.
    tool::warm(bed)?;
    let between = match (bed.net.is_veth(), case) {
        (true, PipeCase::Veth10g) => "two network namespaces, a veth pair, tbf 10 Gbit/s",
        (true, _) => "two network namespaces, a veth pair, no limit",
        (false, _) => "two addresses of loopback: no namespaces",
    };
    let is_limited = case == PipeCase::Veth10g;
    let contender = |tool: &PipeTool| Contender::new(tool.key(), tool.title(), tool.colour());
    let contenders = tools.iter().map(contender).collect();
    let figures = if is_limited { &LINE[..] } else { &STREAMS };
    let measured = BenchCase::new(case.key(), format!("{}: {between}", case.key()), figures, contenders);
    let goals = if is_limited { line_goals() } else { stream_goals() };
    let mut cases = [BenchCase { goals, ..measured }];
    report::measure(&mut cases, args.rounds, &bed.interrupt, |turn| {
        let mut samples = tool::stream(tools[turn.contender], bed)?;
        if is_limited {
            // The rate is the first sample.
            samples.push(Sample::new("percent_of_line", 100.0 * samples[0].value / LINE_GB_PER_S));
        }
        Ok(samples)
    })?;
    let [measured] = cases;
    Ok(measured)
}

/// Measures lines of a shell, in turn.
fn lines(
    args: &PipeBench,
    case: PipeCase,
    lines: &[ShellLine],
    interrupt: &Interrupt,
) -> Result<BenchCase, Error> {
    let contender = |line: &ShellLine| {
        Contender::new(line.key, line.title, if line.key == "caravan" { CARAVAN } else { PEER })
    };
    let contenders = lines.iter().map(contender).collect();
    let (title, figures, goal) = match case {
        PipeCase::Start => {
            let goal = goal("caravan", "under 0.5 s", "wall_s", Bound::Below(0.5));
            ("start: one line through two hosts, sessions being there", &STARTS[..], goal)
        }
        _ => {
            let text = "at least a bare shell pipe (ratio in the same round)";
            let goal = goal("caravan", text, "gb_per_s", Bound::AtLeast(1.0));
            let goal = Goal { ratio_to: Some("shell".to_owned()), ..goal };
            ("same-host: two commands of one host", &STREAMS[..], goal)
        }
    };
    let mut cases =
        [BenchCase { goals: vec![goal], ..BenchCase::new(case.key(), title, figures, contenders) }];
    report::measure(&mut cases, args.rounds, interrupt, |turn| lines[turn.contender].run(interrupt))?;
    let [measured] = cases;
    Ok(measured)
}

fn goal(contender: &str, text: impl Into<String>, figure: &'static str, bound: Bound) -> Goal {
    Goal {
        text: text.into(),
        contender: contender.to_owned(),
        figure,
        ratio_to: None,
        bound,
        placement: None,
    }
}

/// Returns the goals of streams without a limit.
fn stream_goals() -> Vec<Goal> {
    use PipeTool::{Caravan, CaravanBare, CaravanInsecure, Iperf3, Iperf3File, Mbuffer, Nc, Socat, Ssh};
    let rate = |own: PipeTool, least, text| goal(own.key(), text, "gb_per_s", Bound::AtLeast(least));
    let ratio = |own, other: PipeTool, least, text: String| Goal {
        ratio_to: Some(other.key().to_owned()),
        text,
        ..rate(own, least, "")
    };
    let iperf3 = |tool, what| {
        let text = format!("at least 0.9 of iperf3 with {what}, not encrypted");
        ratio(CaravanInsecure, tool, 0.9, text)
    };
    let faster = |tool: PipeTool| {
        let text = format!("faster than {}, not encrypted (ratio)", tool.key());
        ratio(CaravanInsecure, tool, 1.0, text)
    };
    let less_time = |own: PipeTool, what| {
        let text = format!("less processor time than socat, {what} (ratio)");
        let goal = goal(own.key(), text, "cpu_s_per_gb", Bound::Below(1.0));
        Goal { ratio_to: Some(Socat.key().to_owned()), ..goal }
    };
    vec![
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
    ]
}

/// Returns the goals of streams through a line of a known rate.
fn line_goals() -> Vec<Goal> {
    let goal = |(tool, what): (PipeTool, &str)| {
        let text = format!("at least 95 % of the line, {what}");
        goal(tool.key(), text, "percent_of_line", Bound::AtLeast(95.0))
    };
    [(PipeTool::CaravanInsecure, "not encrypted"), (PipeTool::Caravan, "encrypted")].map(goal).into()
}

/// Prints the names of all benchmarks.
fn list() -> Result<(), Error> {
    let mut text = String::new();
    for case in PipeCase::ALL {
        // Writing into a String cannot fail.
        let _ = writeln!(text, "{:<12}{}", case.key(), case.about());
    }
    output::table(&text, Path::new(""))
}

/// A named benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PipeCase {
    SameHost,
    Veth,
    Veth10g,
    Start,
}

impl PipeCase {
    pub const ALL: [Self; 4] = [Self::SameHost, Self::Veth, Self::Veth10g, Self::Start];

    pub fn key(self) -> &'static str {
        match self {
            Self::SameHost => "same-host",
            Self::Veth => "veth",
            Self::Veth10g => "veth-10g",
            Self::Start => "start",
        }
    }

    /// Returns what the benchmark measures.
    pub fn about(self) -> &'static str {
        match self {
            Self::SameHost => "two commands of this host, beside the same in a shell's pipe",
            Self::Veth => {
                "a file in memory from one host to another, no limit, beside nc, socat, mbuffer, ssh, iperf3"
            }
            Self::Veth10g => "the same through a queue of 10 Gbit/s (tbf)",
            Self::Start => "one line through two hosts, ssh sessions being there, beside ssh | ssh",
        }
    }

    /// True if the benchmark needs two hosts.
    pub fn needs_hosts(self) -> bool {
        self != Self::SameHost
    }

    /// Returns the named benchmarks, or all if none are named.
    pub fn chosen(names: &[String]) -> Result<Vec<Self>, Error> {
        if names.is_empty() {
            return Ok(Self::ALL.to_vec());
        }
        let case = |name: &String| {
            Self::ALL.into_iter().find(|case| case.key() == name).ok_or_else(|| Error::NoBenchmark {
                name: name.clone(),
                names: Self::ALL.map(Self::key).join(", "),
            })
        };
        let named: Result<Vec<_>, _> = names.iter().map(case).collect();
        named.map(|named| Self::ALL.into_iter().filter(|case| named.contains(case)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_goal_is_of_tools_and_of_a_figure() {
        let keys = PipeTool::ALL.map(PipeTool::key);
        let figures = LINE.map(|figure| figure.key);
        for goal in stream_goals().iter().chain(&line_goals()) {
            let mut tools = std::iter::once(&goal.contender).chain(&goal.ratio_to);
            assert!(
                tools.all(|tool| keys.contains(&tool.as_str())) && figures.contains(&goal.figure),
                "{goal:?}"
            );
        }
        assert_eq!((stream_goals().len(), line_goals().len()), (10, 2));
    }

    #[test]
    fn names_are_chosen_in_order_and_others_refused() {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        assert_eq!(PipeCase::chosen(&[]).expect("all"), PipeCase::ALL);
        let chosen = PipeCase::chosen(&names(&["start", "veth", "veth"])).expect("two");
        assert_eq!(chosen, [PipeCase::Veth, PipeCase::Start]);
        let error = PipeCase::chosen(&names(&["vet"])).expect_err("refused").to_string();
        assert!(error.contains("same-host, veth, veth-10g, start"), "{error}");
    }
}
