//! `caravan bench limits`: the figures of memory beside those of a loop in C, and those of a file beside fio's.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};

use super::args::LimitsBench;
use super::disk::requests::{self, Pattern, Requests, Until};
use super::disk::target::DiskTarget;
use super::memory::WholeMemory;
use crate::chart::{CARAVAN, PEER};
use crate::error::Error;
use crate::interrupt::Interrupt;
use crate::number::binary;
use crate::placement;
use crate::process::{self, CLoop, is_installed};
use crate::report::{self, BenchCase, BenchReport, Bound, Contender, Figure, Goal, Sample, Shown};

const SOURCE: &str = include_str!("../../../../bench/limits/memory_loop.c");
/// A sample of another program ends within this time beyond its own, in which memory is laid out.
const LIMIT: Duration = Duration::from_secs(120);
const FIO: &str = "fio";
/// What is read of a file: block, depth, pattern.
const CELLS: [(u64, u32, Pattern); 8] = [
    (4 << 10, 1, Pattern::Random),
    (4 << 10, 8, Pattern::Random),
    (4 << 10, 64, Pattern::Random),
    (64 << 10, 8, Pattern::Random),
    (1 << 20, 8, Pattern::Random),
    (4 << 10, 1, Pattern::InOrder),
    (64 << 10, 8, Pattern::InOrder),
    (1 << 20, 8, Pattern::InOrder),
];
const NANOSECONDS: [Figure; 1] = [Figure::new("ns", "ns", Shown::Chart)];
const RATE: [Figure; 1] = [Figure::new("mb_per_s", "MB/s", Shown::Chart)];

/// Measures and reports.
pub fn run(args: &LimitsBench) -> Result<(), Error> {
    let interrupt = Interrupt::watch()?;
    match &args.path {
        Some(path) => beside_fio(args, path, &interrupt),
        None => beside_c(args, &interrupt),
    }
}

/// A case with the goal of this benchmark: within 5 % of the peer.
fn case(key: String, title: String, figures: &'static [Figure], peer: (&str, &str)) -> BenchCase {
    let contenders =
        vec![Contender::new(peer.0, peer.1, PEER), Contender::new("caravan", "caravan limits", CARAVAN)];
    let mut case = BenchCase::new(key, title, figures, contenders);
    for (text, bound) in
        [("at least 0.95 of the peer", Bound::AtLeast(0.95)), ("below 1.05 of the peer", Bound::Below(1.05))]
    {
        case.goals.push(Goal {
            text: text.to_owned(),
            contender: "caravan".to_owned(),
            figure: figures[0].key,
            ratio_to: Some(peer.0.to_owned()),
            bound,
            placement: None,
        });
    }
    case
}

fn beside_c(args: &LimitsBench, interrupt: &Interrupt) -> Result<(), Error> {
    let program = CLoop::compile(&args.cc, SOURCE, &["-lpthread"])?;
    let cores = placement::cores();
    let memory = WholeMemory::take()?;
    let size = binary(memory.bytes());
    // Latency on one core, then bandwidth on one, and on all if there are more.
    let mut counts = vec![1, cores.len()];
    counts.dedup();
    let mut cases = vec![case(
        "dram/latency".into(),
        "DRAM: a load that waits for the one before".into(),
        &NANOSECONDS,
        ("c", "loop in C"),
    )];
    cases.extend(counts.iter().map(|count| {
        case(
            format!("dram/bandwidth/{count}"),
            format!("DRAM: in order, {count} cores"),
            &RATE,
            ("c", "loop in C"),
        )
    }));
    let title = format!("{size} of memory, beside a loop in C");
    let mut report = BenchReport::begin("limits", args.rounds, title, json!({ "bytes": memory.bytes() }));
    report::measure(&mut cases, args.rounds, interrupt, |turn| {
        let count = turn.case.checked_sub(1).map(|place| counts[place]);
        let used = &cores[..count.unwrap_or(1)];
        let words = |task: &str| {
            let numbers = [memory.bytes().to_string(), args.seconds.as_nanos().to_string()];
            let cores = used.iter().map(ToString::to_string);
            [task.to_owned()].into_iter().chain(numbers).chain(cores).collect::<Vec<_>>()
        };
        let c = |task: &str| program.run::<1>(&words(task), LIMIT + args.seconds, interrupt);
        let sample = match (count, turn.contender) {
            (None, 0) => Sample::new("ns", c("latency")?[0]),
            (None, _) => Sample::new("ns", memory.latency_s(used[0], args.seconds)? * 1e9),
            (Some(_), 0) => Sample::new("mb_per_s", c("bandwidth")?[0] / 1e6),
            (Some(_), _) => Sample::new("mb_per_s", memory.bandwidth(used, args.seconds)? / 1e6),
        };
        Ok(vec![sample])
    })?;
    report.add(&cases);
    report.write(&args.files, Path::new(""))
}

fn beside_fio(args: &LimitsBench, path: &Path, interrupt: &Interrupt) -> Result<(), Error> {
    if !is_installed(FIO) {
        return Err(Error::Sentence(
            "fio is not here: install the package fio. `caravan limits PATH` needs no other program".into(),
        ));
    }
    let mut target = DiskTarget::open(path, false, 0)?;
    target.find_sector()?;
    let (way, note) = requests::way(&target);
    let asked: Vec<_> = CELLS
        .into_iter()
        .filter(|(block, ..)| *block >= target.sector && block * 4 <= target.bytes)
        .collect();
    let mut cases: Vec<_> = asked
        .iter()
        .map(|&(block, depth, pattern)| {
            let name = rw(pattern);
            let size = binary(block);
            case(
                format!("{name}/{block}/{depth}"),
                format!("{name}, {size}, depth {depth}"),
                &RATE,
                ("fio", "fio"),
            )
        })
        .collect();
    let title = format!("Reads of {}, beside fio", path.display());
    let mut report = BenchReport::begin("limits", args.rounds, title, json!({ "bytes": target.bytes }));
    report.notes.extend(target.notes.iter().cloned().chain(note));
    report::measure(&mut cases, args.rounds, interrupt, |turn| {
        let (block_bytes, parallel, pattern) = asked[turn.case];
        let wanted = Requests { block_bytes, parallel, pattern, is_write: false };
        let bytes_per_s = match turn.contender {
            0 => fio(&target, path, &wanted, args.seconds, interrupt)?,
            _ => requests::run(&target, &wanted, way, Until::After(args.seconds), interrupt)?.bytes_per_s,
        };
        Ok(vec![Sample::new("mb_per_s", bytes_per_s / 1e6)])
    })?;
    report.add(&cases);
    report.write(&args.files, Path::new(""))
}

/// Returns the word of fio for a pattern.
fn rw(pattern: Pattern) -> &'static str {
    match pattern {
        Pattern::Random => "randread",
        Pattern::InOrder => "read",
    }
}

/// Runs fio with the same settings. Returns bytes a second.
fn fio(
    target: &DiskTarget,
    path: &Path,
    wanted: &Requests,
    run: Duration,
    interrupt: &Interrupt,
) -> Result<f64, Error> {
    let failed = |why: &dyn std::fmt::Display| process::failed(FIO, why);
    let mut command = Command::new(FIO);
    // fio takes several files, separated by colons.
    let name =
        path.to_str().ok_or_else(|| failed(&"it takes no path that is not UTF-8"))?.replace(':', "\\:");
    command.args([
        "--name=limits",
        "--readonly",
        "--direct=1",
        "--ioengine=io_uring",
        "--time_based",
        "--norandommap",
    ]);
    command.args(["--randrepeat=0", "--output-format=json"]);
    command.arg(format!("--filename={name}")).arg(format!("--rw={}", rw(wanted.pattern)));
    command.arg(format!("--bs={}", wanted.block_bytes)).arg(format!("--iodepth={}", wanted.parallel));
    command.arg(format!("--size={}", target.bytes / wanted.block_bytes * wanted.block_bytes));
    command.arg(format!("--runtime={}ms", run.as_millis()));
    let text = process::output(FIO, command, LIMIT + run, interrupt)?;
    // fio may say something else before its JSON.
    let json = text.find('{').map(|start| &text[start..]).unwrap_or_default();
    let results: Value = serde_json::from_str(json).map_err(|why| failed(&why))?;
    results["jobs"][0]["read"]["bw_bytes"].as_f64().ok_or_else(|| failed(&"its output has no bandwidth"))
}
