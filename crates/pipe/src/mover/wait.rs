//! Waiting: for one thing, or for whatever makes the wait pointless.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::Error;
use crate::cancel::Cancel;
use crate::limits::PING_INTERVAL;

/// Durations that a test makes shorter.
#[derive(Clone, Copy, Debug)]
pub(super) struct MoverTiming {
    /// How often both ends of a hop say that they are there.
    pub ping: Duration,
    /// How long an outlet may keep a queue full.
    pub slow: Duration,
    /// How long an end that has said why it ends waits for the other to hear it.
    pub linger: Duration,
}

impl Default for MoverTiming {
    fn default() -> Self {
        let second = Duration::from_secs(1);
        Self { ping: PING_INTERVAL, slow: second, linger: second }
    }
}

/// A descriptor, and what is waited for there. Errors and hang-ups are, in any case.
pub(super) type Watch<'a> = (BorrowedFd<'a>, PollFlags);

/// Why a wait has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Woken {
    /// What was waited for is there.
    Ready,
    /// What could happen besides has happened.
    Other,
    /// It took too long.
    Late,
}

/// Who may end a wait at any time.
#[derive(Clone, Copy, Debug)]
pub(super) struct WaitSet<'a> {
    cancel: &'a Cancel,
    halt: Option<&'a Cancel>,
    source: Option<Watch<'a>>,
    waited_ns: Option<&'a AtomicU64>,
}

impl<'a> WaitSet<'a> {
    /// Whoever holds `cancel`.
    pub fn new(cancel: &'a Cancel) -> Self {
        Self { cancel, halt: None, source: None, waited_ns: None }
    }

    /// The same, and how long all waits take is counted there.
    pub fn counted(self, waited_ns: &'a AtomicU64) -> Self {
        Self { waited_ns: Some(waited_ns), ..self }
    }

    /// And whoever holds `halt`.
    pub fn with_halt(self, halt: &'a Cancel) -> Self {
        Self { halt: Some(halt), ..self }
    }

    /// And a source that is gone.
    pub fn with_source(self, source: Option<Watch<'a>>) -> Self {
        Self { source, ..self }
    }

    /// Fails once one of them has been fired.
    pub fn check(&self) -> Result<(), Error> {
        match self.cancel.is_fired() || self.halt.is_some_and(Cancel::is_fired) {
            true => Err(Error::Cancelled),
            false => Ok(()),
        }
    }

    /// Waits for `first`, for `other`, or until a time.
    pub fn wait(
        &self,
        first: Option<Watch>,
        other: Option<Watch>,
        until: Option<Instant>,
    ) -> Result<Woken, Error> {
        let Some(waited_ns) = self.waited_ns else { return self.wait_uncounted(first, other, until) };
        let since = Instant::now();
        let woken = self.wait_uncounted(first, other, until);
        // A figure for people: nothing hangs on its order.
        waited_ns.fetch_add(since.elapsed().as_nanos() as u64, Ordering::Relaxed);
        woken
    }

    fn wait_uncounted(
        &self,
        first: Option<Watch>,
        other: Option<Watch>,
        until: Option<Instant>,
    ) -> Result<Woken, Error> {
        // What is not there is a second look at what is.
        let cancel = (self.cancel.as_fd(), PollFlags::IN);
        let halt = self.halt.map_or(cancel, |halt| (halt.as_fd(), PollFlags::IN));
        let source = self.source.unwrap_or(cancel);
        let watched = [cancel, halt, source, first.unwrap_or(cancel), other.unwrap_or(cancel)];
        let mut set = watched.map(|(fd, flags)| PollFd::from_borrowed_fd(fd, flags));
        loop {
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            match poll(&mut set, left.map(timespec).as_ref()) {
                Ok(0) if left.is_some_and(|left| left.is_zero()) => return Ok(Woken::Late),
                Ok(0) | Err(Errno::INTR) => continue,
                Ok(_) => {}
                Err(source) => return Err(Error::System { call: "poll", source: source.into() }),
            }
            let [cancel, halt, source, first, _] = set.each_ref().map(|fd| !fd.revents().is_empty());
            return match cancel || halt || source {
                true => Err(Error::Cancelled),
                false if first => Ok(Woken::Ready),
                false => Ok(Woken::Other),
            };
        }
    }
}

/// Whether something is there right now.
pub(super) fn is_there((fd, flags): Watch) -> bool {
    let mut set = [PollFd::from_borrowed_fd(fd, flags)];
    poll(&mut set, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|count| count > 0)
}

fn timespec(duration: Duration) -> Timespec {
    Timespec { tv_sec: duration.as_secs() as i64, tv_nsec: duration.subsec_nanos().into() }
}
