//! Waits for one thing, or for whatever makes the wait pointless; wakes a thread that waits; keeps to a rate.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;

use crate::Error;
use crate::cancel::Cancel;
use crate::limits::PING_INTERVAL;

/// Durations that a test makes shorter.
#[derive(Clone, Copy, Debug)]
pub(super) struct MoverTiming {
    /// How often both ends of a hop report that they are alive.
    pub ping: Duration,
    /// How long an outlet may keep a queue full.
    pub slow: Duration,
    /// How long an end waits for the other end to read its last word.
    pub linger: Duration,
}

impl Default for MoverTiming {
    fn default() -> Self {
        let second = Duration::from_secs(1);
        Self { ping: PING_INTERVAL, slow: second, linger: second }
    }
}

/// A descriptor, and the events to wait for. Errors and hang-ups always count.
pub(super) type Watch<'a> = (BorrowedFd<'a>, PollFlags);

/// Why a wait has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Woken {
    /// The awaited event has happened.
    Ready,
    /// The other event has happened.
    Other,
    /// The time is over.
    Late,
}

/// What may end a wait at any time.
#[derive(Clone, Copy, Debug)]
pub(super) struct WaitSet<'a> {
    cancel: &'a Cancel,
    halt: Option<&'a Cancel>,
    source: Option<Watch<'a>>,
    waited_ns: Option<&'a AtomicU64>,
}

impl<'a> WaitSet<'a> {
    /// Returns a set that ends waits when `cancel` is fired.
    pub fn new(cancel: &'a Cancel) -> Self {
        Self { cancel, halt: None, source: None, waited_ns: None }
    }

    /// Adds the time of all waits to `waited_ns`.
    pub fn counted(self, waited_ns: &'a AtomicU64) -> Self {
        Self { waited_ns: Some(waited_ns), ..self }
    }

    /// Ends waits also when `halt` is fired.
    pub fn with_halt(self, halt: &'a Cancel) -> Self {
        Self { halt: Some(halt), ..self }
    }

    /// Ends waits also when this source of the stream is gone.
    pub fn with_source(self, source: Option<Watch<'a>>) -> Self {
        Self { source, ..self }
    }

    /// Fails if one of the signals was fired.
    pub fn check(&self) -> Result<(), Error> {
        match self.cancel.is_fired() || self.halt.is_some_and(Cancel::is_fired) {
            true => Err(Error::Cancelled),
            false => Ok(()),
        }
    }

    /// Waits for `first`, for `other`, or until `until`.
    pub fn wait(
        &self,
        first: Option<Watch>,
        other: Option<Watch>,
        until: Option<Instant>,
    ) -> Result<Woken, Error> {
        let Some(waited_ns) = self.waited_ns else { return self.wait_uncounted(first, other, until) };
        let since = Instant::now();
        let woken = self.wait_uncounted(first, other, until);
        // The figure is for people: it needs no order.
        waited_ns.fetch_add(since.elapsed().as_nanos() as u64, Ordering::Relaxed);
        woken
    }

    fn wait_uncounted(
        &self,
        first: Option<Watch>,
        other: Option<Watch>,
        until: Option<Instant>,
    ) -> Result<Woken, Error> {
        // A missing entry is replaced by a second copy of `cancel`.
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
                Err(source) => return Err(Error::system("poll")(source)),
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

/// True if an event is there right now.
pub(super) fn is_there((fd, flags): Watch) -> bool {
    let mut set = [PollFd::from_borrowed_fd(fd, flags)];
    poll(&mut set, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|count| count > 0)
}

fn timespec(duration: Duration) -> Timespec {
    Timespec { tv_sec: duration.as_secs() as i64, tv_nsec: duration.subsec_nanos().into() }
}

/// An eventfd that wakes a thread.
pub(super) struct WakeEvent(OwnedFd);

impl WakeEvent {
    /// Returns an event that was not rung.
    pub fn new() -> Result<Self, Error> {
        eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map(Self).map_err(Error::system("eventfd"))
    }

    /// Wakes the thread that waits, now or later.
    pub fn ring(&self) {
        // The counter cannot be full: each ring follows a sleep.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }

    /// Returns what becomes readable once the event was rung.
    pub fn watch(&self) -> Watch<'_> {
        (self.0.as_fd(), PollFlags::IN)
    }

    /// Takes a ring back.
    pub fn quiet(&self) {
        let mut count = [0; 8];
        // If the event was not rung, there is nothing to take back.
        let _ = rustix::io::read(&self.0, &mut count);
    }
}

/// The time that may be caught up on after a pause; also the time that one read covers, so that the stream flows
/// evenly.
const BURST: Duration = Duration::from_millis(50);

/// A rate that holds over any time longer than a burst. It does not drift: every time is counted from the start.
#[derive(Clone, Copy, Debug)]
pub(super) struct MoverRate {
    rate: u64,
    since: Instant,
    bytes: u64,
}

impl MoverRate {
    /// Returns a rate that starts at `now`.
    pub fn new(rate: u64, now: Instant) -> Self {
        Self { rate: rate.max(1), since: now, bytes: 0 }
    }

    /// Returns the most bytes that a piece should have.
    pub fn piece_bytes(&self) -> usize {
        let bytes = u128::from(self.rate) * BURST.as_nanos() / 1_000_000_000;
        usize::try_from(bytes).unwrap_or(usize::MAX).max(1)
    }

    /// Counts `bytes` more. Returns when the next bytes may go.
    pub fn take(&mut self, bytes: usize, now: Instant) -> Instant {
        if now > self.due() + BURST {
            (self.since, self.bytes) = (now - BURST, 0);
        }
        self.bytes += bytes as u64;
        self.due()
    }

    fn due(&self) -> Instant {
        let ns = u128::from(self.bytes) * 1_000_000_000 / u128::from(self.rate);
        // 500 years are as good as for ever.
        self.since + Duration::from_nanos(u64::try_from(ns).unwrap_or(u64::MAX / 2))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_exact_over_time_and_catches_up_on_a_burst_alone() {
        let begin = Instant::now() + Duration::from_secs(1);
        let mut pace = MoverRate::new(1_000_003, begin);
        let mut now = begin;
        let mut bytes = 0;
        while bytes < 10_000_030 {
            // Sleeps last a little too long.
            now = pace.take(777, now) + Duration::from_micros(300);
            bytes += 777;
        }
        let took = (now - begin).as_secs_f64();
        let wanted = bytes as f64 / 1_000_003.0;
        assert!((took - wanted).abs() < 0.001, "{took} s of {wanted}");
        now += Duration::from_secs(100);
        let due = pace.take(1_000_003, now);
        assert_eq!(due, now + Duration::from_secs(1) - BURST);
        assert_eq!(pace.piece_bytes(), 50_000);
        assert_eq!(MoverRate::new(0, now).piece_bytes(), 1);
    }
}
