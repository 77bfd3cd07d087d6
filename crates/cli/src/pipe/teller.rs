//! What is told while a pipe runs, on standard error. Somebody who does not listen any more is no reason
//! to stop: what cannot be written is not.

use std::io::{IsTerminal, Write, stderr};

use caravan_pipe::coordinator::{HopFigures, Observer};

use super::progress::{Bars, Lines};
use crate::args::Telling;

/// Tells notes, warnings, lines of stages and progress. Dropping it clears what was drawn.
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
    /// Elsewhere.
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

/// Writes a line in one piece, so that lines of several programs on one terminal stay lines.
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
