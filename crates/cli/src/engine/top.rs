//! `caravan engine top`: what the workers and links of a running engine do.

mod screen;

use std::io::{self, IsTerminal, Write, stdout};
use std::time::{Duration, Instant};

use caravan_engine::view::{self, Found, Owners, Snapshot, View};

use super::print_json;
use crate::args::EngineTop;
use crate::error::Error;
use crate::top::{WIDTH, redraw, wait};
use caravan_bench::interrupt::Interrupt;

/// To count packets takes at most one part in so many of the time.
const OWNERS_SHARE: u32 = 10;

/// Shows the engine until it is interrupted, or as often as was asked for.
pub fn run(args: &EngineTop) -> Result<(), Error> {
    let interrupt = Interrupt::watch()?;
    let engine = view::find(args.pid)?;
    let refreshes = if args.once { Some(1) } else { args.count };
    let mut owners = Counted::default();
    let mut before = Snapshot::read(&engine)?;
    let mut shown = 0;
    while refreshes != Some(shown) {
        match wait(args.interval, &interrupt) {
            // Ctrl-C is how this view is left.
            Err(Error::Interrupted) => return Ok(()),
            other => other?,
        }
        let mut now = Snapshot::read(&engine)?;
        owners.count(&engine, &mut now)?;
        show(args, &View::between(&before, &now), shown == 0)?;
        before = now;
        shown += 1;
    }
    Ok(())
}

/// Whose the packets were when they were last counted.
#[derive(Default)]
struct Counted {
    last: Option<(Owners, Instant, Duration)>,
}

impl Counted {
    fn count(&mut self, engine: &Found, snapshot: &mut Snapshot) -> Result<(), Error> {
        if let Some((owners, at, took)) = &self.last {
            if at.elapsed() < *took * OWNERS_SHARE {
                snapshot.owners = owners.clone();
                return Ok(());
            }
        }
        let start = Instant::now();
        snapshot.count_owners(engine)?;
        self.last = Some((snapshot.owners.clone(), start, start.elapsed()));
        Ok(())
    }
}

fn show(args: &EngineTop, view: &View, is_first: bool) -> Result<(), Error> {
    if args.json {
        return print_json(view);
    }
    draw(args, view, is_first).map_err(Error::Output)
}

fn draw(args: &EngineTop, view: &View, is_first: bool) -> io::Result<()> {
    if stdout().is_terminal() && !args.once {
        return redraw(|width, height| screen::text(view, width, height), is_first);
    }
    let mut out = stdout().lock();
    if !is_first {
        writeln!(out)?;
    }
    write!(out, "{}", screen::text(view, WIDTH, usize::MAX))?;
    out.flush()
}
