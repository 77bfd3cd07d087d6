//! `caravan bench compare`: how the engine's benchmarks have changed between two runs.

mod mann_whitney;
mod runs;
mod verdict;

use std::path::Path;

pub use self::mann_whitney::p_value;
use self::runs::Runs;
use self::verdict::Comparison;
use crate::args::Compare;
use crate::error::Error;
use crate::{engine::history, output};

/// Compares two runs of the history and prints the table, or the JSON.
pub fn run(args: &Compare) -> Result<(), Error> {
    let lines = history::read(&args.history)?;
    let (a, b) = Runs::of(&lines).pair(args.a.as_deref(), args.b.as_deref()).map_err(Error::Sentence)?;
    let comparison = Comparison::of(&a, &b, args.threshold / 100.0, args.alpha);
    if args.json {
        output::json(&comparison, Path::new("-"))?;
    } else {
        output::table(&comparison.text(), Path::new(""))?;
    }
    match comparison.regressions() {
        0 => Ok(()),
        count if args.fail_on_regression => Err(Error::Regressions(count)),
        _ => Ok(()),
    }
}
