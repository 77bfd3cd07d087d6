//! How far a benchmark is: a bar on a terminal, a line for each round elsewhere.

use std::io::{IsTerminal, stderr};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// Draws on standard error. Dropping it clears the bar.
#[derive(Debug)]
pub struct Progress {
    bar: ProgressBar,
    is_terminal: bool,
    round: String,
}

impl Progress {
    /// A bar of so many steps.
    pub fn new(steps: usize) -> Self {
        let bar = ProgressBar::new(steps as u64);
        let template = "{spinner} [{elapsed_precise}] [{bar:30}] {percent:>3}%  {prefix}: {msg}";
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style.progress_chars("=> "));
        }
        bar.enable_steady_tick(Duration::from_millis(200));
        Self { bar, is_terminal: stderr().is_terminal(), round: String::new() }
    }

    /// A round begins: what is named so with each of its steps.
    pub fn round(&mut self, title: String) {
        if !self.is_terminal {
            eprintln!("caravan: {title}");
        }
        self.round = title;
        self.bar.set_prefix(self.round.clone());
    }

    /// A step begins; the one before it is done.
    pub fn step(&self, title: &str) {
        self.bar.set_message(title.to_owned());
        self.bar.inc(1);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
