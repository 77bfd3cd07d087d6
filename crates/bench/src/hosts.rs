//! `caravan bench pipe`: measures pipes between hosts, beside common tools, in turn.

mod bed;
mod cpu;
mod report;
mod tool;

use std::fmt::Write as _;
use std::path::Path;

use crate::args::{PipeBench, PipeNetwork};
use crate::error::Error;
use crate::hosts::bed::{Bed, Net};
use crate::hosts::report::{CaseResult, PipeResults, ToolSeries};
use crate::hosts::tool::{PipeTool, ShellLine};
use crate::interrupt::Interrupt;
use crate::output;
use crate::output::BenchProgress;

/// The default number of bytes of a stream.
const BYTES: u64 = 2 << 30;

/// Measures, prints the tables, and writes the files.
pub fn run(args: &PipeBench) -> Result<(), Error> {
    if args.list {
        return list();
    }
    let cases = PipeCase::chosen(&args.only)?;
    let interrupt = Interrupt::watch()?;
    cpu::adopt()?;
    let bytes = args.bytes.unwrap_or(BYTES).next_multiple_of(8).max(8);
    let mut results = PipeResults::new(args.rounds, bytes);
    let bed = match cases.iter().any(|case| case.needs_hosts()) {
        true => Some(Bed::new(network(args, &mut results.notes)?, bytes, &interrupt)?),
        false => None,
    };
    let tools = tools(&cases, &mut results.notes);
    for case in cases {
        let result = match (case, &bed) {
            (PipeCase::SameHost, _) => lines(args, case, &ShellLine::same_host(bytes), &interrupt)?,
            (PipeCase::Veth, Some(bed)) => Some(streams(args, case, &tools, bed)?),
            (PipeCase::Veth10g, Some(bed)) => limited(args, &tools, bed, &mut results.notes)?,
            (PipeCase::Start, Some(bed)) => {
                tool::warm(bed)?;
                lines(args, case, &ShellLine::start(bed), &interrupt)?
            }
            (_, None) => None,
        };
        results.cases.extend(result);
    }
    drop(bed);
    crate::pipe::write(args, "pipe", &results.text(), &results, &results.chart())
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
fn streams(args: &PipeBench, case: PipeCase, tools: &[PipeTool], bed: &Bed) -> Result<CaseResult, Error> {
    let mut progress = BenchProgress::new(tools.len() * args.rounds + 1);
    progress.round(format!("{}: caravan gets to both hosts", case.key()));
    // The first copy of the program to a host, and the start of ssh's sessions, do not belong to a stream.
    tool::warm(bed)?;
    let mut series: Vec<_> = tools.iter().map(|&tool| ToolSeries::of(tool.key(), tool.title())).collect();
    for round in 0..args.rounds {
        progress.round(format!("{}: round {} of {}", case.key(), round + 1, args.rounds));
        for (&tool, series) in tools.iter().zip(&mut series) {
            progress.step(tool.key());
            bed.interrupt.check()?;
            let sample = tool::stream(tool, bed)?;
            series.value.push(sample.gb_per_s);
            series.wall_s.push(sample.wall_s);
            series.cpu.push(sample.cpu_s_per_gb);
            series.machine_cpu.push(sample.machine_cpu_s_per_gb);
        }
    }
    Ok(CaseResult::streams(case, bed.net.is_veth(), series))
}

/// Measures the same streams through a queue of ten gigabits per second, if that is possible.
fn limited(
    args: &PipeBench,
    tools: &[PipeTool],
    bed: &Bed,
    notes: &mut Vec<String>,
) -> Result<Option<CaseResult>, Error> {
    let mut skip = |why: String| {
        notes.push(format!("No {}: {why}.", PipeCase::Veth10g.key()));
        Ok(None)
    };
    if !bed.net.is_veth() {
        return skip("it takes network namespaces".to_owned());
    }
    if let Err(error) = bed.net.limit() {
        return skip(error.to_string());
    }
    let result = streams(args, PipeCase::Veth10g, tools, bed)?;
    bed.net.unlimit()?;
    Ok(Some(result))
}

/// Measures lines of a shell, in turn.
fn lines(
    args: &PipeBench,
    case: PipeCase,
    lines: &[ShellLine],
    interrupt: &Interrupt,
) -> Result<Option<CaseResult>, Error> {
    let mut progress = BenchProgress::new(lines.len() * args.rounds);
    let mut series: Vec<_> = lines.iter().map(|line| ToolSeries::of(line.key, line.title)).collect();
    for round in 0..args.rounds {
        progress.round(format!("{}: round {} of {}", case.key(), round + 1, args.rounds));
        for (line, series) in lines.iter().zip(&mut series) {
            progress.step(line.key);
            interrupt.check()?;
            let (wall_s, cpu, machine_cpu) = line.run(interrupt)?;
            series.value.push(line.bytes.map_or(wall_s, |bytes| bytes as f64 / 1e9 / wall_s));
            series.wall_s.push(wall_s);
            let gigabytes = line.bytes.map_or(1.0, |bytes| bytes as f64 / 1e9);
            series.cpu.push(cpu / gigabytes);
            series.machine_cpu.push(machine_cpu / gigabytes);
        }
    }
    Ok(Some(CaseResult::lines(case, series)))
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
    fn names_are_chosen_in_order_and_others_refused() {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        assert_eq!(PipeCase::chosen(&[]).expect("all"), PipeCase::ALL);
        let chosen = PipeCase::chosen(&names(&["start", "veth", "veth"])).expect("two");
        assert_eq!(chosen, [PipeCase::Veth, PipeCase::Start]);
        let error = PipeCase::chosen(&names(&["vet"])).expect_err("refused").to_string();
        assert!(error.contains("same-host, veth, veth-10g, start"), "{error}");
    }
}
