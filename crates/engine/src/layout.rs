//! What lies where in the engine's memory, and the words of it.
//!
//! ```text
//! engine | workers | links | traces | packets ...
//! ```
//!
//! All but the packets is committed from the start. Packets follow, as many as have been asked for;
//! their memory grows. Every word says who writes it; whoever can open the memory may read all of
//! them at any time, as `caravan engine top` does.

mod codes;
mod histogram;
mod words;

pub use codes::{DropReason, LinkMode, WorkerStage, WorkerState};
pub use histogram::{HISTOGRAM_BUCKETS, HISTOGRAM_STEPS, bucket, bucket_floor};
pub use words::{engine, link, trace, worker};

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use caravan_ring::{HEAD_AT, HEADER_BYTES, MappedBytes, MappedCursors, MappedSlots, TAIL_AT};
use caravan_segment::barrier::Fences;
use caravan_segment::{Segment, SharedSlice};

use crate::limits::{
    LINKS_MAX, NAME_BYTES_MAX, PACKET_STRIDE, QUEUE_PACKETS, QUEUE_PACKETS_MAX, RING_PACKETS,
    TRACE_RING_BYTES, TRACES_MAX, WORKERS_MAX,
};
use crate::owner::{LinkId, WorkerId};

/// The name of the memory, as it stands in `/proc/PID/fd`.
pub const SEGMENT_NAME: &str = "caravan-engine";
/// What the first word holds. Its last digit changes with the layout.
pub const MAGIC: u64 = 0x6361_7261_7661_6e02;

const ENGINE_BYTES: usize = 4096;
/// Bytes of a worker's place.
pub const WORKER_BYTES: usize = 4096;
const LINK_BYTES: usize = 32 << 10;
const TRACE_BYTES: usize = trace::BYTES_AT + TRACE_RING_BYTES;
const WORKERS_AT: usize = ENGINE_BYTES;
const LINKS_AT: usize = WORKERS_AT + WORKERS_MAX * WORKER_BYTES;
const TRACES_AT: usize = LINKS_AT + LINKS_MAX * LINK_BYTES;
/// Where packets start.
pub const PACKETS_AT: usize = TRACES_AT + TRACES_MAX * TRACE_BYTES;

/// Bytes up to the end of the first `packets` packets.
pub fn bytes(packets: u32) -> u64 {
    PACKETS_AT as u64 + u64::from(packets) * PACKET_STRIDE as u64
}

const fn ring_bytes(packets: usize) -> usize {
    HEADER_BYTES + 4 * packets
}

const _: () = assert!(link::TAIL + ring_bytes(QUEUE_PACKETS) <= LINK_BYTES);
const _: () = assert!(engine::DROPS + 8 * DropReason::COUNT <= ENGINE_BYTES);
const _: () = assert!(2 * QUEUE_PACKETS + RING_PACKETS <= QUEUE_PACKETS_MAX);
const _: () = assert!(worker::HISTOGRAM + 8 * HISTOGRAM_BUCKETS <= WORKER_BYTES);
const _: () = assert!(worker::DROPS + 8 * DropReason::COUNT <= worker::HISTOGRAM);
const _: () = assert!(NAME_BYTES_MAX + 2 <= 64 && 4 * (NAME_BYTES_MAX + 1) + 4 <= link::NAME_BYTES);

/// Which of a link's four rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LinkRing {
    /// Packets on their way to the consumer.
    Full,
    /// Empty packets on their way back.
    Empty,
    /// What waited at the consumer's end when an app moved.
    Head,
    /// What waited at the producer's end when an app moved.
    Tail,
}

impl LinkRing {
    /// All rings of a link.
    pub const ALL: [Self; 4] = [Self::Full, Self::Empty, Self::Head, Self::Tail];

    /// Where it lies in a link's place, and how many packets it holds.
    pub fn place(self) -> (usize, usize) {
        match self {
            Self::Full => (link::FULL, RING_PACKETS),
            Self::Empty => (link::EMPTY, RING_PACKETS),
            Self::Head => (link::HEAD, QUEUE_PACKETS),
            Self::Tail => (link::TAIL, QUEUE_PACKETS),
        }
    }
}

/// Where the two positions of a ring lie in it: what was given, and what was taken.
pub const TAIL_AND_HEAD: [usize; 2] = [TAIL_AT, HEAD_AT];

/// Where a worker's place starts, from the start of the memory.
pub fn worker_at(worker: WorkerId) -> usize {
    WORKERS_AT + worker.place() * WORKER_BYTES
}

/// Where a link's place starts, from the start of the memory.
pub fn link_at(link: LinkId) -> usize {
    LINKS_AT + link.place() * LINK_BYTES
}

/// Where the place of trace `place`, below [`TRACES_MAX`], starts, from the start of the memory.
pub fn trace_at(place: usize) -> usize {
    TRACES_AT + place * TRACE_BYTES
}

/// Where a packet starts, from the start of the memory.
pub fn packet_at(index: u32) -> usize {
    PACKETS_AT + index as usize * PACKET_STRIDE
}

/// The words of the engine's memory, in this process.
#[derive(Clone, Debug)]
pub struct SharedWords {
    memory: SharedSlice,
    fences: Fences,
}

impl SharedWords {
    /// The words at the start of `segment`, which must be backed by memory up to [`PACKETS_AT`].
    pub fn new(segment: &Arc<Segment>, fences: Fences) -> Result<Self, caravan_segment::Error> {
        Ok(Self { memory: segment.slice(0, PACKETS_AT as u64)?, fences })
    }

    /// All of them.
    pub fn memory(&self) -> &SharedSlice {
        &self.memory
    }

    /// A word of the engine.
    pub fn engine(&self, offset: usize) -> &AtomicU64 {
        self.memory.word(offset)
    }

    /// A word of a worker.
    #[inline]
    pub fn worker(&self, worker: WorkerId, offset: usize) -> &AtomicU64 {
        self.memory.word(worker_at(worker) + offset)
    }

    /// A word of a link.
    #[inline]
    pub fn link(&self, link: LinkId, offset: usize) -> &AtomicU64 {
        self.memory.word(link_at(link) + offset)
    }

    /// One of a link's rings.
    pub fn ring(
        &self,
        link: LinkId,
        ring: LinkRing,
    ) -> Result<(MappedCursors, MappedSlots), caravan_segment::Error> {
        let (at, packets) = ring.place();
        let at = (link_at(link) + at) as u64;
        let cursors = MappedCursors::new(&self.memory.part(at, HEADER_BYTES as u64)?, self.fences)?;
        let slots = MappedSlots::new(self.memory.part(at + HEADER_BYTES as u64, 4 * packets as u64)?)?;
        Ok((cursors, slots))
    }

    /// A word of a trace.
    #[inline]
    pub fn trace(&self, place: usize, offset: usize) -> &AtomicU64 {
        self.memory.word(trace_at(place) + offset)
    }

    /// A trace's ring.
    pub fn trace_ring(&self, place: usize) -> Result<(MappedCursors, MappedBytes), caravan_segment::Error> {
        let at = (trace_at(place) + trace::RING) as u64;
        let cursors = MappedCursors::new(&self.memory.part(at, HEADER_BYTES as u64)?, self.fences)?;
        let at = (trace_at(place) + trace::BYTES_AT) as u64;
        let bytes = MappedBytes::new(self.memory.part(at, TRACE_RING_BYTES as u64)?)?;
        Ok((cursors, bytes))
    }

    /// Writes a name, cut to what there is room for.
    pub fn write_name(&self, at: usize, room: usize, name: &str) {
        let mut bytes = vec![0; room];
        let length = name.len().min(room);
        bytes[..length].copy_from_slice(&name.as_bytes()[..length]);
        self.memory.copy_in(at, &bytes);
    }

    /// Adds to a word that this process alone writes.
    #[inline]
    pub fn add(word: &AtomicU64, more: u64) {
        // Read by viewers alone, which want a count and nothing ordered by it.
        word.store(word.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
    }
}
