//! `caravan bench pipe`: pipes between hosts beside the tools that people use for it, and a pipe over a
//! fabric built step by step.

mod bars;
mod hosts;
mod input;
mod steps;

use std::path::PathBuf;

use crate::args::PipeBench;
use crate::chart::{self, Picture};
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

/// Where results go.
struct Files {
    json: PathBuf,
    svg: PathBuf,
    png: PathBuf,
}

impl Files {
    /// As the user wants them; `name` is that of those which he has not named.
    fn of(args: &PipeBench, name: &str) -> Self {
        let file = |wanted: &Option<PathBuf>, ending: &str| {
            wanted.clone().unwrap_or_else(|| format!("results/{name}.{ending}").into())
        };
        Self { json: file(&args.json, "json"), svg: file(&args.svg, "svg"), png: file(&args.png, "png") }
    }

    /// Prints the table and writes all that is wanted.
    fn write(&self, table: &str, results: &impl serde::Serialize, picture: &Picture) -> Result<(), Error> {
        output::table(table, &self.json)?;
        output::json(results, &self.json)?;
        if !output::is_none(&self.svg) {
            output::file(&self.svg, chart::svg(picture).as_bytes())?;
        }
        if !output::is_none(&self.png) {
            let png =
                chart::png(picture).map_err(|source| Error::Chart { path: self.png.clone(), source })?;
            output::file(&self.png, &png)?;
        }
        let files = [&self.json, &self.svg, &self.png].into_iter();
        let files = files.filter(|path| !output::is_none(path) && path.as_os_str() != "-");
        let files: Vec<_> = files.map(|path| path.display().to_string()).collect();
        match files.is_empty() {
            true => Ok(()),
            false => output::table(&format!("\nWritten: {}\n", files.join(", ")), &self.json),
        }
    }
}
