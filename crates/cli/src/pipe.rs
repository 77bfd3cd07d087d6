//! `caravan pipe`: commands on hosts, joined.

mod ending;
mod figures;
mod progress;
mod teller;

use std::io::{Write, stdout};
use std::process::ExitCode;

use caravan_pipe::coordinator::{self, Request, describe};

use crate::args::{Pipe, Reach, Telling};
use crate::error::Error;
use crate::remote::Agents;
use caravan_bench::interrupt::Interrupt;

pub use self::ending::Ending;
pub use self::teller::Teller;

/// Runs the pipeline to its end; the exit status is its own.
pub fn run(args: &Pipe) -> Result<ExitCode, Error> {
    let request = Request { stages: args.stages.clone(), is_ring: false, options: args.options() };
    conduct(&request, &args.reach, &args.telling)
}

/// Runs, or only describes, any pipeline, and tells of it.
pub fn conduct(request: &Request, reach: &Reach, telling: &Telling) -> Result<ExitCode, Error> {
    if telling.dry_run {
        let lines = describe(request)?.join("\n");
        writeln!(stdout(), "{lines}").map_err(Error::Output)?;
        return Ok(ExitCode::SUCCESS);
    }
    // Before anything runs: nobody wants to learn at the end that there is nowhere to put the figures.
    let ending = Ending::prepare(telling).map_err(Error::pipe_setup)?;
    let interrupt = Interrupt::watch().map_err(Error::pipe_setup)?;
    let stopped = Interrupt::stops().map_err(Error::pipe_setup)?;
    let launcher = Agents::new(reach);
    let mut teller = Teller::new(telling);
    let outcome = coordinator::run(request, &launcher, &mut teller, interrupt.flag(), &stopped);
    drop(teller);
    Ok(ending.tell(outcome))
}
