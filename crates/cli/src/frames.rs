//! `caravan frames`: streams of uncompressed video between processes of this host.

mod recv;
mod send;

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use caravan_bench::BenchCommand;
use caravan_bench::Error as Shared;
use caravan_bench::number::{bytes, number};
use caravan_frames::Picture;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use crate::args::{FramesCommand, FramesEnd, TopArgs};
use crate::error::Error;
use crate::top;

/// The time between two progress lines.
const PROGRESS: Duration = Duration::from_millis(500);

/// Runs the command.
pub fn run(command: &FramesCommand) -> Result<(), Error> {
    match command {
        FramesCommand::Send(args) => send::run(args),
        FramesCommand::Recv(args) => recv::run(args),
        FramesCommand::Top(args) => {
            top::frames(&TopArgs { once: args.once, json: args.json, interval: args.interval })
        }
        FramesCommand::Bench(args) => Ok(caravan_bench::run(&BenchCommand::Frames(args.clone()))?),
    }
}

fn file_error(what: &'static str, path: &std::path::Path, source: std::io::Error) -> Error {
    Shared::File { what, path: path.to_owned(), source }.into()
}

/// When a side ends, and its line of progress.
struct Course<'a> {
    end: &'a FramesEnd,
    begun: Instant,
    picture: Picture,
    frames: u64,
    bar: ProgressBar,
    /// When the line was drawn last, and how many frames there were.
    shown: (Instant, u64),
}

impl<'a> Course<'a> {
    fn begin(end: &'a FramesEnd, name: &str, picture: Picture) -> Self {
        let bar = match end.quiet || !std::io::stderr().is_terminal() {
            true => ProgressBar::hidden(),
            false => ProgressBar::new_spinner(),
        };
        if let Ok(style) = ProgressStyle::with_template("{prefix}: {msg}") {
            bar.set_style(style);
        }
        bar.set_prefix(format!("{name} ({picture})"));
        let now = Instant::now();
        Self { end, begun: now, picture, frames: 0, bar, shown: (now, 0) }
    }

    /// True once there were enough frames, or the time is over.
    fn is_over(&self) -> bool {
        self.end.frames.is_some_and(|most| self.frames >= most)
            || self.end.seconds.is_some_and(|limit| self.begun.elapsed() >= limit)
    }

    /// Counts a frame; `more` is what the line says besides the rate.
    fn frame(&mut self, more: impl FnOnce() -> String) {
        self.frames += 1;
        let (at, before) = self.shown;
        let passed = at.elapsed();
        if passed >= PROGRESS {
            let rate = (self.frames - before) as f64 / passed.as_secs_f64();
            let bytes_per_s = bytes(rate * self.picture.frame_bytes() as f64);
            self.bar.set_message(format!("{} frames/s, {bytes_per_s}B/s{}", number(rate), more()));
            self.shown = (Instant::now(), self.frames);
        }
    }

    fn figures(&self) -> Figures {
        let seconds = self.begun.elapsed().as_secs_f64();
        let frames_per_s = if seconds > 0.0 { self.frames as f64 / seconds } else { 0.0 };
        Figures {
            picture: self.picture.to_string(),
            frames: self.frames,
            seconds,
            frames_per_s,
            bytes_per_s: frames_per_s * self.picture.frame_bytes() as f64,
        }
    }
}

impl Drop for Course<'_> {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// What both sides tell at the end.
#[derive(Debug, Serialize)]
struct Figures {
    picture: String,
    frames: u64,
    seconds: f64,
    frames_per_s: f64,
    bytes_per_s: f64,
}

impl Figures {
    fn text(&self, verb: &str) -> String {
        format!(
            "{verb} {} frames of {} in {:.1} s: {} frames/s, {}B/s",
            self.frames,
            self.picture,
            self.seconds,
            number(self.frames_per_s),
            bytes(self.bytes_per_s)
        )
    }
}
