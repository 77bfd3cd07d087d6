//! A link, looked at from another process while packets pass: `caravan engine trace`.
//!
//! The engine's memory has [`TRACES_MAX`] places for it, each with a ring of bytes. A **tracer** claims a
//! place, and names it in the link's word; the worker that sends on the link then copies each packet
//! into the ring. It never waits: what there is no room for is counted. A tracer that is killed costs
//! the engine a full ring, until the supervisor [sweeps](sweep).
//!
//! | word | who | change | why |
//! |---|---|---|---|
//! | `CLAIM` | tracer | 0, or a dead process, to itself | it wants to trace, or ends another's traces |
//! | `CLAIM` | tracer | itself to 0 | it ends |
//! | `CLAIM` | supervisor | a dead process to itself, then to 0 | it sweeps |
//! | link's `TRACE` | tracer | 0 to its place | the ring is ready |
//! | link's `TRACE` | tracer, supervisor, worker | that place to 0 | it ends; it is dead; the ring is broken |
//! | `WRITER` | worker | 0, or a dead process, to itself, then to 0 | it writes; it has written |
//! | `WRITER` | tracer | a dead process to 0 | a worker was killed while it wrote |
//!
//! The ring has one writer at a time: a worker that finds another one there is late, and its link is not the
//! trace's any more. A worker says in `WRITER` that it is about to write, fences, and
//! looks whether it still should; who has claimed a place takes it out of every link, fences, and waits
//! until no `WRITER` is left. One of the two sees the other (Dekker). The link's next worker, after a
//! move or a crash, goes on in the same ring: what its predecessor had not published, it had not written.
//!
//! A record is its length, 32 bits, then 12 bytes of time and length and the data.

mod claim;
mod tap;
mod tracer;

use std::sync::atomic::{Ordering, fence};

use crate::layout::{SharedWords, link, trace};
use crate::limits::{LINKS_MAX, PACKET_BYTES_MAX, TRACES_MAX};
use crate::owner::LinkId;

pub use tap::LinkRecorder;
pub use tracer::{TraceEnd, TraceRecord, Tracer};

use claim::TraceClaim;

/// Bytes in front of a record's data: when its packet was sent, in nanoseconds of the monotonic
/// clock, and how long it was, 32 bits.
const HEADER_BYTES: usize = 12;
/// Bytes of a record at most.
const RECORD_BYTES_MAX: usize = HEADER_BYTES + PACKET_BYTES_MAX;

/// Frees the places of tracers that have died. The supervisor calls it now and then: it takes a look
/// at a file for each trace that goes on.
pub fn sweep(shared: &SharedWords) {
    for place in 0..TRACES_MAX {
        let claimed = shared.trace(place, trace::CLAIM);
        let was = claimed.load(Ordering::Relaxed);
        if was == 0 || TraceClaim::of_word(was).is_alive() {
            continue;
        }
        let Some(ours) = TraceClaim::ours() else { return };
        // Nobody else may claim it before no link names it any more.
        if claimed.compare_exchange(was, ours.word(), Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            forget(shared, place);
            // pairs with the Acquire in Tracer's claim
            claimed.store(0, Ordering::Release);
        }
    }
}

/// The process that has claimed a place, of the place's word.
pub(crate) fn process_of(claim: u64) -> u64 {
    TraceClaim::of_word(claim).pid()
}

/// Takes a place out of every link that names it.
fn forget(shared: &SharedWords, place: usize) {
    let name = place as u64 + 1;
    for id in (0..LINKS_MAX).filter_map(LinkId::new) {
        // Another trace of the link than this one stays.
        let _ = shared.link(id, link::TRACE).compare_exchange(name, 0, Ordering::AcqRel, Ordering::Relaxed);
    }
    // pairs with the fence in LinkRecorder::record
    fence(Ordering::SeqCst);
}

#[cfg(test)]
mod tests;
