//! `caravan pipe`: commands on several hosts, joined.

mod ending;
mod progress;

use std::io::{IsTerminal, Write, stderr, stdout};
use std::process::ExitCode;

use caravan_bench::Error as Shared;
use caravan_bench::interrupt::Interrupt;
use caravan_pipe::coordinator::{self, HopFigures, Observer, PipelineRequest, describe};

use crate::args::{PipeArgs, Reach, Telling};
use crate::error::Error;
use crate::pipe::progress::{Bars, Lines};
use crate::remote::Agents;

pub use crate::pipe::ending::Ending;

/// Runs the pipeline, or only describes it, and returns its exit status.
pub fn run(args: &PipeArgs) -> Result<ExitCode, Error> {
    let request = PipelineRequest { stages: args.stages.clone(), is_ring: false, options: args.options() };
    if args.dry_run {
        let lines = describe(&request)?.join("\n");
        writeln!(stdout(), "{lines}").map_err(Shared::Output)?;
        return Ok(ExitCode::SUCCESS);
    }
    conduct(&request, &args.reach, &args.telling)
}

/// Runs any pipeline and reports on it.
pub fn conduct(request: &PipelineRequest, reach: &Reach, telling: &Telling) -> Result<ExitCode, Error> {
    // The file for the figures is opened first: a user wants to know before anything runs that it cannot be written.
    let ending = Ending::prepare(telling).map_err(Error::pipe_setup)?;
    let interrupt = Interrupt::watch().map_err(Error::pipe_setup)?;
    let stopped = Interrupt::stops().map_err(Error::pipe_setup)?;
    let launcher = Agents::new(reach);
    let mut teller = Teller::new(telling);
    let outcome = coordinator::run(request, &launcher, &mut teller, interrupt.flag(), &stopped);
    drop(teller);
    Ok(ending.tell(outcome))
}

/// Prints notes, warnings, lines of stages and progress. Dropping it clears the progress.
#[derive(Debug)]
pub struct Teller {
    is_verbose: bool,
    progress: Progress,
}

#[derive(Debug)]
enum Progress {
    None,
    /// On a terminal.
    Bars(Bars),
    /// Not on a terminal.
    Lines(Lines),
}

impl Teller {
    pub fn new(telling: &Telling) -> Self {
        let progress = match (telling.progress, stderr().is_terminal()) {
            (false, _) => Progress::None,
            (true, true) => Progress::Bars(Bars::new()),
            (true, false) => Progress::Lines(Lines::new()),
        };
        Self { is_verbose: telling.verbose > 0, progress }
    }

    fn say(&self, line: &str) {
        match &self.progress {
            Progress::Bars(bars) => bars.beside(|| say(line)),
            _ => say(line),
        }
    }
}

/// Writes a line in one piece, so that lines of several programs on one terminal stay whole.
pub fn say(line: &str) {
    let _ = stderr().lock().write_all(format!("{line}\n").as_bytes());
}

impl Observer for Teller {
    fn note(&mut self, text: &str) {
        if self.is_verbose {
            self.say(&format!("caravan: {text}"));
        }
    }

    fn warn(&mut self, text: &str) {
        self.say(&format!("caravan: {text}"));
    }

    fn line(&mut self, host: &str, text: &str) {
        self.say(&format!("[{host}] {text}"));
    }

    fn progress(&mut self, hops: &[HopFigures]) {
        match &mut self.progress {
            Progress::None => {}
            Progress::Bars(bars) => bars.show(hops),
            Progress::Lines(lines) => lines.due(hops).iter().for_each(|line| say(line)),
        }
    }
}
