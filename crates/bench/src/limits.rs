//! `caravan limits`: what this machine's memory, cores and disks can do, by the arithmetic of latency, block and
//! parallelism, and by measurement.

mod args;
mod beside;
mod between;
mod camels;
mod cap;
mod difference;
mod disk;
mod memory;
mod model;
mod pace;
mod picture;
#[allow(unsafe_code)]
mod raw;
mod report;
mod unit;

use std::path::Path;

pub use self::args::{LimitsArgs, LimitsBench, LimitsCommand, LimitsCompare};
use self::pace::Pace;
use self::report::LimitsReport;
use crate::error::Error;
use crate::interrupt::Interrupt;
use crate::machine::Machine;
use crate::output::{self, BenchProgress};
use crate::placement;

/// Measures, and reports.
pub fn run(args: &LimitsArgs) -> Result<(), Error> {
    if let Some(LimitsCommand::Compare(args)) = &args.command {
        return difference::run(args);
    }
    picture::check(&args.chart)?;
    let mut report = LimitsReport::begin(Vec::new());
    match args.camels {
        true => report.rows = camels::rows(),
        false => measure(args, &mut report)?,
    }
    let json = args.json.as_deref().unwrap_or(Path::new(""));
    output::table(&report.text(args.explain), json)?;
    output::json(&report, json)?;
    args.chart.iter().try_for_each(|path| picture::write(&report, path))
}

/// Runs `caravan bench limits`.
pub fn bench(args: &LimitsBench) -> Result<(), Error> {
    beside::run(args)
}

fn measure(args: &LimitsArgs, report: &mut LimitsReport) -> Result<(), Error> {
    let interrupt = Interrupt::watch()?;
    report.machine = Machine::here().sentence();
    let disk_steps = disk::steps(args.write) * args.paths.len();
    let steps = if args.paths.is_empty() { memory::steps() + 1 } else { disk_steps };
    let mut progress = BenchProgress::new(steps);
    progress.round("limits".to_owned());
    let pace = Pace::new(args.full, interrupt, progress);
    for path in &args.paths {
        report.add(disk::measure(path, args.write, args.size, &pace)?);
    }
    if args.paths.is_empty() {
        of_machine(&pace, report)?;
    }
    Ok(())
}

fn of_machine(pace: &Pace, report: &mut LimitsReport) -> Result<(), Error> {
    let cores = placement::cores();
    report.add(memory::measure(&cores, pace)?);
    pace.step("core to core")?;
    report.rows.extend(between::measure(&cores, pace)?);
    if cores.len() < 2 {
        report.notes.push("Core to core: not measured, because this process may use one core only.".into());
    }
    Ok(())
}
