//! `caravan top`: every Caravan link on this host of this user, by their counters in shared memory.

mod screen;
mod view;

use std::io::{self, IsTerminal, Write, stdout};
use std::time::{Duration, Instant};

use caravan_segment::counters;
use console::Term;

use self::view::{Sample, View};
use crate::args::Top;
use crate::error::Error;
use caravan_bench::interrupt::{GLANCE, Interrupt};

/// Width of a table that goes to no terminal.
pub const WIDTH: usize = 160;

/// Shows the links until it is interrupted, or once.
pub fn run(args: &Top) -> Result<(), Error> {
    let interrupt = Interrupt::watch()?;
    let mut before = sample();
    let mut is_first = true;
    loop {
        // A host without links has no rates to wait for.
        if !before.processes.is_empty() || !is_first {
            match wait(args.interval, &interrupt) {
                // Ctrl-C is how this view is left.
                Err(Error::Interrupted) => return Ok(()),
                other => other?,
            }
        }
        let now = sample();
        show(args, &View::between(&before, &now), is_first).map_err(Error::Output)?;
        if args.once {
            return Ok(());
        }
        before = now;
        is_first = false;
    }
}

fn sample() -> Sample {
    Sample { at: Instant::now(), processes: counters::read_all() }
}

/// Waits for the next refresh.
pub fn wait(interval: Duration, interrupt: &Interrupt) -> Result<(), Error> {
    let deadline = Instant::now() + interval;
    loop {
        interrupt.check()?;
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        std::thread::sleep(left.min(GLANCE));
    }
}

fn show(args: &Top, view: &View, is_first: bool) -> io::Result<()> {
    let mut out = stdout().lock();
    if args.json {
        writeln!(out, "{}", serde_json::to_string(view)?)?;
    } else if stdout().is_terminal() && !args.once {
        redraw(|width, height| screen::text(view, width, height), is_first)?;
    } else {
        write!(out, "{}", screen::text(view, WIDTH, usize::MAX))?;
        if !args.once {
            writeln!(out)?;
        }
    }
    out.flush()
}

/// Writes over the table before, so that nothing flickers: a text made for a width and a height.
pub fn redraw(text: impl FnOnce(usize, usize) -> String, is_first: bool) -> io::Result<()> {
    let term = Term::buffered_stdout();
    let (height, width) = term.size();
    if is_first {
        term.clear_screen()?;
    }
    term.move_cursor_to(0, 0)?;
    // The last line stays free for the cursor.
    for line in text(width.into(), usize::from(height).saturating_sub(1)).lines() {
        term.clear_line()?;
        term.write_line(line)?;
    }
    term.clear_to_end_of_screen()?;
    term.flush()
}
