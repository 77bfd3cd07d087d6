//! `caravan bench engine`: named benchmarks of the packet engine, in turn, near and far apart.
//!
//! This process takes samples and draws the results. Each sample is a process of its own, which forks
//! the engine's workers and therefore has one thread; this one has more.

mod apps;
mod case;
pub mod history;
mod measure;
mod report;
mod results;
mod sampler;
mod task;

use std::fmt::Write as _;
use std::path::Path;

use self::case::{BENCHMARKS, Case};
use self::results::{Results, Series};
use self::sampler::Sampler;
use self::task::Task;
use crate::args::{EngineBench, EnginePeer};
use crate::error::Error;
use crate::interrupt::Interrupt;
use crate::machine::Machine;
use crate::output;
use crate::placement;
use crate::progress::Progress;

/// Measures, prints the tables, writes the files, and adds to the history.
pub fn run(args: &EngineBench) -> Result<(), Error> {
    if args.list {
        return list();
    }
    let cases = case::chosen(args, placement::cores().len())?;
    let interrupt = Interrupt::watch()?;
    let machine = Machine::here();
    let history = history::Run::begin(&machine);
    let mut sampler = Sampler::new(args, &cases, &interrupt)?;
    let series = rounds(args, cases, &mut sampler)?;
    let mut results = Results::of(&history, machine, &series);
    results.cores = sampler.pair();
    results.moved = sampler.moved;
    results.seconds = args.seconds.as_secs_f64();
    results.samples = args.samples;
    let (table, chart) = (report::text(&results), results.chart());
    output::all(&table, &results, &chart, &args.json, &args.svg, &args.history)?;
    history::append(&args.history, &results.lines(&history))
}

/// Rounds in each of which every case is sampled that has not yet enough samples of one placement.
fn rounds(args: &EngineBench, cases: Vec<Case>, sampler: &mut Sampler) -> Result<Vec<Series>, Error> {
    let mut progress = Progress::new(cases.len() * args.samples);
    let mut series: Vec<_> = cases.into_iter().map(|case| Series { case, samples: Vec::new() }).collect();
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

/// The process that runs the engine of a sample.
pub fn peer(args: &EnginePeer) -> Result<(), Error> {
    let task: Task = serde_json::from_str(&args.task).map_err(|error| Error::Output(error.into()))?;
    let outcome = measure::measure(&task)?;
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
