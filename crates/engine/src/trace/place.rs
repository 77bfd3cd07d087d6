//! A place for a trace: how it comes to have one tracer, and nobody who writes for an earlier one.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use caravan_ring::{Cursors, MappedCursors};

use super::claim::{TraceClaim, runs};
use super::forget;
use crate::error::Error;
use crate::layout::{SharedWords, trace};
use crate::limits::TRACES_MAX;

/// How long a worker may take to finish what it writes for a trace that has ended.
const SETTLE_MAX: Duration = Duration::from_millis(500);
/// How often that is looked at.
const SETTLE_GLANCE: Duration = Duration::from_micros(100);

/// Takes a place that nobody has, or whose owner has died, and waits until nobody writes there.
pub(super) fn claim(shared: &SharedWords, ours: TraceClaim) -> Result<usize, Error> {
    let mut owners = Vec::new();
    for place in 0..TRACES_MAX {
        let claimed = shared.trace(place, trace::CLAIM);
        let was = claimed.load(Ordering::Relaxed);
        if was != 0 && TraceClaim::of_word(was).is_alive() {
            owners.push(TraceClaim::of_word(was).pid().to_string());
            continue;
        }
        if claimed.compare_exchange(was, ours.word(), Ordering::AcqRel, Ordering::Relaxed).is_err() {
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

/// Waits until no worker writes into a ring that no link names any more. False if one does not
/// come to an end, as one that is stopped.
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
            // A later writer of the same place has put its own number there, which stays.
            let _ = writer.compare_exchange(process, 0, Ordering::AcqRel, Ordering::Relaxed);
            continue;
        }
        if Instant::now() > end {
            return false;
        }
        std::thread::sleep(SETTLE_GLANCE);
    }
}

/// Makes the ring of a place that is ours an empty one.
pub(super) fn clear(shared: &SharedWords, place: usize, ring: &MappedCursors) {
    for word in [ring.tail_position(), ring.head_position(), ring.consumer_asleep(), ring.producer_wants()] {
        // Nobody looks at them before a link names this place, which is a Release.
        word.store(0, Ordering::Relaxed);
    }
    shared.trace(place, trace::DROPPED).store(0, Ordering::Relaxed);
    SharedWords::add(shared.trace(place, trace::EPOCH), 1);
}
