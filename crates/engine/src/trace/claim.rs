//! Identifies a process in one word, by its number and its start time, so that a later process of the same
//! number differs.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use caravan_ring::{Cursors, MappedCursors};
use caravan_segment::process::ProcessStat;

use super::forget;
use crate::error::Error;
use crate::layout::{SharedWords, trace};
use crate::limits::TRACES_MAX;

/// Bits of a process's number: on Linux it is at most 2^22 (`PID_MAX_LIMIT`).
const PID_BITS: u32 = 22;

/// The identity of a process, as it is in memory; the word 0 stands for no process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TraceClaim(pub u64);

impl TraceClaim {
    /// Returns this process, or `None` if `/proc` cannot be read.
    pub fn ours() -> Option<Self> {
        Self::of_process(std::process::id().into())
    }

    /// Returns the process of a number, if there is one.
    pub fn of_process(pid: u64) -> Option<Self> {
        Some(Self(status(pid)?.started_ticks << PID_BITS | pid))
    }

    /// Returns the process's number.
    pub fn pid(self) -> u64 {
        self.0 & ((1 << PID_BITS) - 1)
    }

    /// True if the process still runs.
    pub fn is_alive(self) -> bool {
        status(self.pid()).is_some_and(|stat| !stat.has_ended() && stat.started_ticks == self.0 >> PID_BITS)
    }
}

/// True if a process of that number runs.
pub(super) fn runs(pid: u64) -> bool {
    status(pid).is_some_and(|stat| !stat.has_ended())
}

fn status(pid: u64) -> Option<ProcessStat> {
    ProcessStat::of(i32::try_from(pid).ok()?).ok()
}

/// How long a worker may take to finish what it writes for a trace that has ended.
const SETTLE_MAX: Duration = Duration::from_millis(500);
/// How often the tracer checks whether the worker has finished.
const SETTLE_GLANCE: Duration = Duration::from_micros(100);

/// Takes a place that is free, or whose owner has died, and waits until no worker writes there.
pub(super) fn claim(shared: &SharedWords, ours: TraceClaim) -> Result<usize, Error> {
    let mut owners = Vec::new();
    for place in 0..TRACES_MAX {
        let claimed = shared.trace(place, trace::CLAIM);
        let was = claimed.load(Ordering::Relaxed);
        if was != 0 && TraceClaim(was).is_alive() {
            owners.push(TraceClaim(was).pid().to_string());
            continue;
        }
        if claimed.compare_exchange(was, ours.0, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            continue;
        }
        forget(shared, place);
        if settle(shared, place) {
            return Ok(place);
        }
        claimed.store(0, Ordering::Release);
    }
    Err(Error::Trace(format!(
        "an engine takes {TRACES_MAX} traces at a time, and has them: end one of processes {}",
        owners.join(", ")
    )))
}

/// Waits until no worker writes into a ring that no link names any more. Returns false if a writer does not
/// finish, for example because it is stopped.
fn settle(shared: &SharedWords, place: usize) -> bool {
    let writer = shared.trace(place, trace::WRITER);
    let end = Instant::now() + SETTLE_MAX;
    loop {
        // pairs with the Release in LinkRecorder::record
        let process = writer.load(Ordering::Acquire);
        if process == 0 {
            return true;
        }
        if !runs(process) {
            // If a later writer has put its own number there, that number stays.
            let _ = writer.compare_exchange(process, 0, Ordering::AcqRel, Ordering::Relaxed);
            continue;
        }
        if Instant::now() > end {
            return false;
        }
        std::thread::sleep(SETTLE_GLANCE);
    }
}

/// Empties the ring of a place that this process has claimed.
pub(super) fn clear(shared: &SharedWords, place: usize, ring: &MappedCursors) {
    for word in [ring.tail_position(), ring.head_position(), ring.consumer_asleep(), ring.producer_wants()] {
        // No worker reads these words before a link names this place, which is a Release.
        word.store(0, Ordering::Relaxed);
    }
    shared.trace(place, trace::DROPPED).store(0, Ordering::Relaxed);
    SharedWords::add(shared.trace(place, trace::EPOCH), 1);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_alive_until_it_is_killed_and_another_of_its_number_is_not_it() {
        let ours = TraceClaim::ours().unwrap();
        assert!(ours.is_alive() && ours.pid() == u64::from(std::process::id()));
        assert!(!TraceClaim(ours.0 + (1 << PID_BITS)).is_alive(), "it started later");
        assert!(!TraceClaim(0).is_alive());

        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let pid = u64::from(child.id());
        let theirs = TraceClaim::of_process(pid).unwrap();
        assert!(theirs.is_alive());
        child.kill().unwrap();
        let process = caravan_segment::process::Process::open(pid as i32).unwrap();
        rustix::event::poll(&mut [rustix::event::PollFd::new(&process, rustix::event::PollFlags::IN)], None)
            .unwrap();
        assert!(!theirs.is_alive() && !runs(pid), "dead, if not reaped yet");
        child.wait().unwrap();
        assert!(!theirs.is_alive());
    }
}
