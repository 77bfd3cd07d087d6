//! `caravan pipe`: commands on hosts, joined.

use std::process::ExitCode;

use caravan_pipe::coordinator::{Request, describe};

use crate::args::Pipe;
use crate::error::Error;

/// Runs the pipeline to its end; the exit status is its own.
pub fn run(args: &Pipe) -> Result<ExitCode, Error> {
    let request = Request { stages: args.stages.clone(), is_ring: false, options: args.options() };
    if args.telling.dry_run {
        let lines = describe(&request)?.join("\n");
        eprintln!("{lines}");
        return Ok(ExitCode::SUCCESS);
    }
    Err(Error::Sentence("pipes cannot be run yet".to_owned()))
}
