//! The stream itself, and what became of it.

use std::io;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use caravan_pipe::Error;
use caravan_pipe::cancel::Cancel;
use caravan_pipe::connect::HopSide;
use caravan_pipe::coordinator::{HopFigures, Observer, PipelineSummary};
use caravan_pipe::mover::{
    self, DigestKind, Gauge, MoverFigures, MoverInlet, MoverOptions, MoverOutcome, MoverOutlet,
};

use rustix::time::{ClockId, clock_gettime};

use super::talk::{Fired, Talk};
use crate::pipe::{Ending, Teller};

/// How often progress is told.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(250);

/// What is known before it begins.
#[derive(Debug)]
pub struct Facts {
    pub from: String,
    pub to: String,
    /// What carries it.
    pub transport: String,
    pub total: Option<u64>,
    pub digest: DigestKind,
    /// Which of the two this is.
    pub side: HopSide,
}

/// A stream that is about to move.
pub struct Stream<'a> {
    pub facts: Facts,
    pub talk: &'a mut Talk,
    pub teller: &'a mut Teller,
    pub cancel: &'a Cancel,
}

/// A stream that has moved.
#[derive(Debug)]
pub struct Moved {
    figures: HopFigures,
    seconds: f64,
    failure: Option<Error>,
}

impl Stream<'_> {
    /// Moves it in a thread of its own, and listens meanwhile to the other side and to the user.
    pub fn run(
        &mut self,
        inlet: MoverInlet,
        outlet: MoverOutlet,
        options: &MoverOptions,
    ) -> Result<Moved, Error> {
        let (gauge, done, began) = (Gauge::default(), Cancel::new()?, Instant::now());
        let cpu = cpu_seconds();
        let (outcome, given_up) = thread::scope(|scope| {
            let (fired, gauge, cancel) = (Fired(done.clone()), &gauge, self.cancel);
            let mover = thread::Builder::new().name("mover".to_owned()).spawn_scoped(scope, move || {
                let _fired = fired;
                mover::run(inlet, vec![outlet], options, gauge, cancel)
            });
            let mover = mover.map_err(|source| Error::System { call: "a new thread", source })?;
            let given_up = self.attend(&done, gauge, began);
            let outcome = mover.join().map_err(|_| Error::System {
                call: "the mover",
                source: io::Error::other("it ended without a word"),
            });
            outcome.map(|outcome| (outcome, given_up))
        })?;
        let seconds = began.elapsed().as_secs_f64();
        let mut figures = self.figures(&gauge, seconds);
        figures.bytes = figures.bytes.max(outcome.bytes);
        figures.digest = outcome.digest.clone().map(|digest| (self.facts.digest, digest));
        figures.cpu = cpu_seconds() - cpu;
        let failure = self.cause(outcome, given_up);
        if let (Some(failure), HopSide::Sender) = (&failure, self.facts.side) {
            self.talk.tell_the_end(Some(failure));
        }
        Ok(Moved { figures, seconds, failure })
    }

    /// Until the mover has ended; why it was told to, if it was.
    fn attend(&mut self, done: &Cancel, gauge: &Gauge, began: Instant) -> Option<Error> {
        let (mut given_up, mut told_at) = (None, began);
        while !done.is_fired() {
            if let Err(error) = self.talk.attend(done) {
                self.cancel.fire();
                given_up = given_up.or(Some(error));
            }
            if told_at.elapsed() >= PROGRESS_INTERVAL {
                told_at = Instant::now();
                let figures = self.figures(gauge, began.elapsed().as_secs_f64());
                self.teller.progress(&[figures]);
            }
        }
        given_up
    }

    fn figures(&self, gauge: &Gauge, seconds: f64) -> HopFigures {
        let MoverFigures { bytes, wire_bytes, inlet_wait_ns, outlet_wait_ns } = gauge.read();
        let (inlet_wait, outlet_wait) = (inlet_wait_ns as f64 / 1e9, outlet_wait_ns as f64 / 1e9);
        let (reader_wait, network_wait, writer_wait) = match self.facts.side {
            HopSide::Sender => (inlet_wait, outlet_wait, 0.0),
            HopSide::Receiver => (0.0, inlet_wait, outlet_wait),
        };
        HopFigures {
            from: self.facts.from.clone(),
            to: self.facts.to.clone(),
            transport: self.facts.transport.clone(),
            is_measured: true,
            bytes,
            wire_bytes,
            seconds,
            reader_wait,
            network_wait,
            writer_wait,
            cpu: 0.0,
            total: self.facts.total,
            digest: None,
        }
    }

    /// Why it failed: what the user or the other side wanted, then what happened here, and where that is only
    /// that the other side is gone, why that is.
    fn cause(&mut self, outcome: MoverOutcome, given_up: Option<Error>) -> Option<Error> {
        let failed =
            outcome.inlet.err().into_iter().chain(outcome.outlets.into_iter().filter_map(Result::err));
        let failed =
            failed.reduce(|first, next| if matches!(first, Error::Cancelled) { next } else { first });
        match (failed, given_up) {
            (None, _) => None,
            (Some(_), Some(reason @ (Error::Cancelled | Error::Told(_)))) => Some(reason),
            (Some(Error::Cancelled), Some(reason)) => Some(reason),
            (Some(failed @ (Error::Truncated { .. } | Error::Told(_) | Error::Cancelled)), _) => {
                Some(self.talk.reason().unwrap_or(failed))
            }
            (Some(failed), _) => Some(failed),
        }
    }
}

impl Moved {
    /// What else has to succeed, once all has moved.
    pub fn and(mut self, rest: impl FnOnce() -> Result<(), Error>) -> Self {
        if self.failure.is_none() {
            self.failure = rest().err();
        }
        self
    }

    /// Why it failed, if it did.
    pub fn failure(&self) -> Option<&Error> {
        self.failure.as_ref()
    }
}

/// Tells it, and gives the exit status.
pub fn tell(ending: Ending, moved: Result<Moved, Error>) -> ExitCode {
    ending.tell(moved.map(|Moved { figures, seconds, failure }| PipelineSummary {
        status: failure.as_ref().map_or(0, status),
        failures: failure.iter().map(Error::to_string).collect(),
        hops: vec![figures],
        statuses: Vec::new(),
        seconds: (0.0, seconds),
    }))
}

/// Of all threads, those that have ended included.
fn cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// 1 for what is wrong with a file or a pipe on either side, 130 after Ctrl-C, 255 for what lies between both.
fn status(error: &Error) -> u8 {
    match error {
        Error::Cancelled => 130,
        Error::System { .. } | Error::File { .. } | Error::Told(_) => 1,
        _ => 255,
    }
}
