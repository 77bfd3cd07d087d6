//! `caravan bench pipe`: pipes between hosts, beside the tools that people use for it, in turn.

mod bed;
mod cpu;
mod report;
mod tool;

use std::fmt::Write as _;
use std::path::Path;

use crate::args::{PipeBench, PipeNetwork};
use crate::error::Error;
use crate::hosts::bed::{Bed, Net};
use crate::hosts::report::{CaseResult, Results, Series};
use crate::hosts::tool::{Line, Tool};
use crate::interrupt::Interrupt;
use crate::output;
use crate::output::Progress;

/// Bytes of a stream, unless others are wanted.
const BYTES: u64 = 2 << 30;

/// Measures, prints the tables, and writes the files.
pub fn run(args: &PipeBench) -> Result<(), Error> {
    if args.list {
        return list();
    }
    let cases = Case::chosen(&args.only)?;
    let interrupt = Interrupt::watch()?;
    cpu::adopt()?;
    let bytes = args.bytes.unwrap_or(BYTES).next_multiple_of(8).max(8);
    let mut results = Results::new(args.rounds, bytes);
    let bed = match cases.iter().any(|case| case.needs_hosts()) {
        true => Some(Bed::new(network(args, &mut results.notes)?, bytes, &interrupt)?),
        false => None,
    };
    let tools = tools(&cases, &mut results.notes);
    for case in cases {
        let result = match (case, &bed) {
            (Case::SameHost, _) => lines(args, case, &Line::same_host(bytes), &interrupt)?,
            (Case::Veth, Some(bed)) => Some(streams(args, case, &tools, bed)?),
            (Case::Veth10g, Some(bed)) => limited(args, &tools, bed, &mut results.notes)?,
            (Case::Start, Some(bed)) => {
                tool::warm(bed)?;
                lines(args, case, &Line::start(bed), &interrupt)?
            }
            (_, None) => None,
        };
        results.cases.extend(result);
    }
    drop(bed);
    crate::pipe::write(args, "pipe", &results.text(), &results, &results.chart())
}

/// What joins the hosts: what was asked for, or what there can be.
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

/// Those that are installed.
fn tools(cases: &[Case], notes: &mut Vec<String>) -> Vec<Tool> {
    let is_needed = cases.iter().any(|case| matches!(case, Case::Veth | Case::Veth10g));
    let (here, missing): (Vec<Tool>, Vec<Tool>) =
        Tool::ALL.into_iter().partition(|tool| tool.missing().is_none());
    if is_needed && !missing.is_empty() {
        let names: Vec<_> = missing.iter().map(|tool| tool.key()).collect();
        let packages: Vec<_> = missing.iter().filter_map(|tool| tool.missing()).collect();
        notes.push(format!("Not installed: {} (apt install {}).", names.join(", "), packages.join(" ")));
    }
    here
}

/// The streams of all tools, in turn.
fn streams(args: &PipeBench, case: Case, tools: &[Tool], bed: &Bed) -> Result<CaseResult, Error> {
    let mut progress = Progress::new(tools.len() * args.rounds + 1);
    progress.round(format!("{}: caravan gets to both hosts", case.key()));
    // What is copied to a host for the first time, and ssh's sessions, are no part of any stream.
    tool::warm(bed)?;
    let mut series: Vec<_> = tools.iter().map(|&tool| Series::of(tool.key(), tool.title())).collect();
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

/// The same through a queue of ten gigabits a second, if there can be one.
fn limited(
    args: &PipeBench,
    tools: &[Tool],
    bed: &Bed,
    notes: &mut Vec<String>,
) -> Result<Option<CaseResult>, Error> {
    let mut skip = |why: String| {
        notes.push(format!("No {}: {why}.", Case::Veth10g.key()));
        Ok(None)
    };
    if !bed.net.is_veth() {
        return skip("it takes network namespaces".to_owned());
    }
    if let Err(error) = bed.net.limit() {
        return skip(error.to_string());
    }
    let result = streams(args, Case::Veth10g, tools, bed)?;
    bed.net.unlimit()?;
    Ok(Some(result))
}

/// Lines of a shell, in turn.
fn lines(
    args: &PipeBench,
    case: Case,
    lines: &[Line],
    interrupt: &Interrupt,
) -> Result<Option<CaseResult>, Error> {
    let mut progress = Progress::new(lines.len() * args.rounds);
    let mut series: Vec<_> = lines.iter().map(|line| Series::of(line.key, line.title)).collect();
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

/// The names of all benchmarks.
fn list() -> Result<(), Error> {
    let mut text = String::new();
    for case in Case::ALL {
        // Writing into a String cannot fail.
        let _ = writeln!(text, "{:<12}{}", case.key(), case.about());
    }
    output::table(&text, Path::new(""))
}

/// A named benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Case {
    SameHost,
    Veth,
    Veth10g,
    Start,
}

impl Case {
    pub const ALL: [Self; 4] = [Self::SameHost, Self::Veth, Self::Veth10g, Self::Start];

    pub fn key(self) -> &'static str {
        match self {
            Self::SameHost => "same-host",
            Self::Veth => "veth",
            Self::Veth10g => "veth-10g",
            Self::Start => "start",
        }
    }

    /// What it measures.
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

    /// Whether it takes two hosts.
    pub fn needs_hosts(self) -> bool {
        self != Self::SameHost
    }

    /// Those that are wanted; all, if none are named.
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
        assert_eq!(Case::chosen(&[]).expect("all"), Case::ALL);
        let chosen = Case::chosen(&names(&["start", "veth", "veth"])).expect("two");
        assert_eq!(chosen, [Case::Veth, Case::Start]);
        let error = Case::chosen(&names(&["vet"])).expect_err("refused").to_string();
        assert!(error.contains("same-host, veth, veth-10g, start"), "{error}");
    }
}
