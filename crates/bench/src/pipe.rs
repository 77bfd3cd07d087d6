//! `caravan bench pipe`: pipes between hosts beside the tools that people use for it, and a pipe over a
//! fabric built step by step.

mod hosts;
mod input;
mod steps;

use std::path::{Path, PathBuf};

use crate::args::PipeBench;
use crate::chart::BarChart;
use crate::error::Error;
use crate::output;

/// Measures, prints the table, and writes the files.
pub fn run(args: &PipeBench) -> Result<(), Error> {
    if args.steps { steps::run(args) } else { hosts::run(args) }
}

/// The receiving process of the steps.
pub fn peer() -> Result<(), Error> {
    steps::peer()
}

/// Prints the table and writes the files as the user wants them; `name` is that of those which he has not named.
fn write(
    args: &PipeBench,
    name: &str,
    table: &str,
    results: &impl serde::Serialize,
    chart: &BarChart,
) -> Result<(), Error> {
    let file = |wanted: &Option<PathBuf>, ending: &str| {
        wanted.clone().unwrap_or_else(|| format!("results/{name}.{ending}").into())
    };
    let (json, svg) = (file(&args.json, "json"), file(&args.svg, "svg"));
    output::all(table, results, chart, &json, &svg, Path::new(""))
}
