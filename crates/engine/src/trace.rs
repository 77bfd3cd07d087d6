//! Traces: another process reads the packets of a link while they pass (`caravan engine trace`).
//!
//! The engine's memory has [`TRACES_MAX`] places for traces, each with a ring of bytes. A **tracer** claims a
//! place, and names it in the link's word; the worker that sends on the link then copies each packet
//! into the ring. The worker never waits: it counts the packets for which there is no room. A tracer that is
//! killed costs the engine a full ring, until the supervisor [sweeps](sweep).
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
//! The ring has one writer at a time. A worker that finds another one there is late: the trace no longer belongs
//! to its link. A worker announces in `WRITER` that it is about to write, fences, and
//! checks that it still should. A process that has claimed a place takes it out of every link, fences, and waits
//! until `WRITER` is 0. One of the two sees the other (Dekker). The link's next worker, after a
//! move or a crash, goes on in the same ring: bytes that its predecessor had not published do not count.
//!
//! A record is its length, 32 bits, then 12 bytes of time and length, then the data.

mod claim;
mod tap;
mod tracer;

use std::sync::atomic::{Ordering, fence};

use crate::layout::{SharedWords, link, trace};
use crate::limits::{LINKS_MAX, PACKET_BYTES_MAX, TRACES_MAX};
use crate::owner::LinkId;

pub use tap::LinkRecorder;
pub use tracer::{TraceEnd, TraceRecord, Tracer};

pub(crate) use claim::TraceClaim;

/// Bytes in front of a record's data: the time at which its packet was sent, in nanoseconds of the monotonic
/// clock, and the packet's length, 32 bits.
const HEADER_BYTES: usize = 12;
/// Bytes of a record at most.
const RECORD_BYTES_MAX: usize = HEADER_BYTES + PACKET_BYTES_MAX;

/// Frees the places of tracers that have died. The supervisor calls it now and then. It reads
/// a file of `/proc` for each trace that goes on.
pub fn sweep(shared: &SharedWords) {
    for place in 0..TRACES_MAX {
        let claimed = shared.trace(place, trace::CLAIM);
        let was = claimed.load(Ordering::Relaxed);
        if was == 0 || TraceClaim(was).is_alive() {
            continue;
        }
        let Some(ours) = TraceClaim::ours() else { return };
        // No other process may claim the place while a link names it.
        if claimed.compare_exchange(was, ours.0, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            forget(shared, place);
            // pairs with the Acquire in Tracer's claim
            claimed.store(0, Ordering::Release);
        }
    }
}

/// Takes a place out of every link that names it.
fn forget(shared: &SharedWords, place: usize) {
    let name = place as u64 + 1;
    for id in (0..LINKS_MAX).filter_map(LinkId::new) {
        // Another trace of the link stays.
        let _ = shared.link(id, link::TRACE).compare_exchange(name, 0, Ordering::AcqRel, Ordering::Relaxed);
    }
    // pairs with the fence in LinkRecorder::record
    fence(Ordering::SeqCst);
}

#[cfg(test)]
mod tests;
