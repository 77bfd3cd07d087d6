//! What lies where in the engine's memory, and the words of it.
//!
//! ```text
//! engine | workers | links | traces | packets ...
//! ```
//!
//! All but the packets is committed from the start. Packets follow, as many as have been asked for;
//! their memory grows. Every word says who writes it; whoever can open the memory may read all of
//! them at any time, as `caravan engine top` does.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use caravan_ring::{HEAD_AT, HEADER_BYTES, MappedBytes, MappedCursors, MappedSlots, TAIL_AT};
use caravan_segment::barrier::Fences;
use caravan_segment::{Segment, Window};

use crate::limits::{
    LINKS_MAX, NAME_BYTES_MAX, PACKET_STRIDE, QUEUE_PACKETS, QUEUE_PACKETS_MAX, RING_PACKETS,
    TRACE_RING_BYTES, TRACES_MAX, WORKERS_MAX,
};
use crate::owner::{LinkId, WorkerId};

/// The name of the memory, as it stands in `/proc/PID/fd`.
pub const SEGMENT_NAME: &str = "caravan-engine";
/// What the first word holds. Its last digit changes with the layout.
pub const MAGIC: u64 = 0x6361_7261_7661_6e01;

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

/// Causes for which packets are dropped; each worker counts them for itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
#[repr(usize)]
pub enum Drop {
    /// The link was full: its consumer does not keep up.
    Full,
    /// There was no empty packet.
    NoPacket,
    /// The app has no link there.
    Unlinked,
    /// The app is there to drop such packets.
    Filtered,
    /// It came faster than its rate allows.
    Limited,
    /// It is not what its protocol says.
    Malformed,
    /// It does not fit: a frame longer than a packet, or no room for one more header.
    Oversize,
    /// The device or the file did not take it.
    Device,
    /// It was in a worker that crashed.
    Crashed,
    /// It was in an app or a link that is no more.
    Removed,
}

/// All causes, in the order of their counters.
pub const DROPS: [Drop; 10] = [
    Drop::Full,
    Drop::NoPacket,
    Drop::Unlinked,
    Drop::Filtered,
    Drop::Limited,
    Drop::Malformed,
    Drop::Oversize,
    Drop::Device,
    Drop::Crashed,
    Drop::Removed,
];

impl Drop {
    /// As users read it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::NoPacket => "no_packet",
            Self::Unlinked => "unlinked",
            Self::Filtered => "filtered",
            Self::Limited => "limited",
            Self::Malformed => "malformed",
            Self::Oversize => "oversize",
            Self::Device => "device",
            Self::Crashed => "crashed",
            Self::Removed => "removed",
        }
    }
}

/// What a worker's place in the table holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
#[repr(u64)]
pub enum State {
    /// Nothing.
    None,
    /// A process that runs its apps.
    Running,
    /// A process that ended unasked, and is about to be started again.
    Restarting,
    /// It has crashed too often: not started again before the next change of the configuration.
    Parked,
}

/// What a worker is doing: what a crash interrupts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "snake_case")]
#[repr(u64)]
pub enum Stage {
    /// Its first steps: making its apps, taking over what it owns.
    Starting,
    /// Taking packets from other workers.
    Receiving,
    /// In an app's `pull`.
    Pulling,
    /// In an app's `push`.
    Pushing,
    /// Giving packets to other workers.
    Sending,
    /// Changing its apps and links.
    Configuring,
    /// Waiting for packets it has asked for, or taking them over.
    Growing,
    /// Waiting for something to do.
    Idle,
}

/// All stages, in the order of their codes.
pub const STAGES: [Stage; 8] = [
    Stage::Starting,
    Stage::Receiving,
    Stage::Pulling,
    Stage::Pushing,
    Stage::Sending,
    Stage::Configuring,
    Stage::Growing,
    Stage::Idle,
];

/// How two ends of a link hand packets over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// The packet itself changes its owner; an empty one goes back for it.
    #[default]
    Swap,
    /// The consumer copies the data into a packet of its own, before it looks at them.
    Copy,
}

/// Sub-buckets of each power of two in the histogram of breaths.
pub const HISTOGRAM_STEPS: usize = 8;
/// Buckets of the histogram of breaths: up to 2^36 ns.
pub const HISTOGRAM_BUCKETS: usize = 34 * HISTOGRAM_STEPS;

/// The bucket of a duration.
#[inline]
pub fn bucket(ns: u64) -> usize {
    if ns < HISTOGRAM_STEPS as u64 {
        return ns as usize;
    }
    let power = ns.ilog2() as usize;
    let step = (ns >> (power - 3)) as usize & (HISTOGRAM_STEPS - 1);
    ((power - 2) * HISTOGRAM_STEPS + step).min(HISTOGRAM_BUCKETS - 1)
}

/// The least duration in a bucket.
pub fn bucket_floor(bucket: usize) -> u64 {
    if bucket < HISTOGRAM_STEPS {
        return bucket as u64;
    }
    let power = bucket / HISTOGRAM_STEPS + 2;
    ((HISTOGRAM_STEPS + bucket % HISTOGRAM_STEPS) as u64) << (power - 3)
}

/// Offsets of words, for who reads the memory from outside, as [`crate::view`] does.
pub mod engine {
    /// [`super::MAGIC`], written last.
    pub const MAGIC: usize = 0;
    /// Packets whose memory is there. Written by the supervisor.
    pub const PACKET_COUNT: usize = 8;
    /// Packets there may be.
    pub const PACKETS_MAX: usize = 16;
    /// 1 if the pages are huge.
    pub const HUGE: usize = 24;
    /// Nanoseconds of the monotonic clock when the engine started.
    pub const STARTED_NS: usize = 32;
    /// Changes of the configuration that have been carried out.
    pub const CONFIGURED: usize = 40;
    /// Packets with data that were in links when those were removed. Written by the supervisor.
    pub const REMOVED: usize = 56;
    /// The supervisor's process, as it sees itself: tells it from workers and from who looks on,
    /// which have this memory open too. Written by the supervisor, before [`MAGIC`].
    pub const PID: usize = 48;
}

/// Offsets within a worker's place.
pub mod worker {
    /// [`super::State`]. Written by the supervisor.
    pub const STATE: usize = 0;
    /// The process. Written by the supervisor.
    pub const PID: usize = 8;
    /// Times it was started again after a crash. Written by the supervisor.
    pub const RESTARTS: usize = 16;
    /// The core it is kept on, plus 1; 0: any. Written by the supervisor.
    pub const CORE: usize = 24;
    /// Packets given to it so far; the worker sees by it that there are new ones. Written by the
    /// supervisor.
    pub const GRANTS: usize = 32;
    /// First and end of the packets given last. Written by the supervisor.
    pub const GRANT_FIRST: usize = 40;
    /// See above.
    pub const GRANT_END: usize = 48;
    /// Messages sent to it so far; the worker sees by it that there is one to read. Written by the
    /// supervisor.
    pub const ORDERS: usize = 56;
    /// Its name. Written by the supervisor.
    pub const NAME: usize = 64;
    /// [`super::Stage`]. Written by the worker, as all below.
    pub const STAGE: usize = 256;
    /// Packets that it has asked for and not got yet.
    pub const WANTED: usize = 264;
    /// Breaths that moved packets.
    pub const BREATHS: usize = 272;
    /// Breaths that did not.
    pub const IDLE_BREATHS: usize = 280;
    /// Times it went to sleep.
    pub const SLEEPS: usize = 288;
    /// Free packets it has.
    pub const FREE: usize = 296;
    /// Nanoseconds spent in breaths that moved packets.
    pub const BUSY_NS: usize = 304;
    /// Packets it had received twice or not at all: words that were not what they had to be.
    pub const SKIPPED: usize = 312;
    /// Of the times packets were given to it, those it has noticed.
    pub const GRANTS_TAKEN: usize = 320;
    /// Packets that it gave back because it had far too many.
    pub const RETURNED: usize = 328;
    /// Drops by cause, in the order of [`super::DROPS`].
    pub const DROPS: usize = 384;
    /// Buckets of the durations of breaths.
    pub const HISTOGRAM: usize = 1024;
}

/// Offsets within a link's place.
pub mod link {
    /// 1 where there is a link, 2 where it runs between two processes. Written by the supervisor.
    pub const STATE: usize = 0;
    /// The producer's worker and the consumer's, plus 1. Written by the supervisor.
    pub const PRODUCER: usize = 8;
    /// See above.
    pub const CONSUMER: usize = 16;
    /// 1: packets are copied. Written by the supervisor.
    pub const COPY: usize = 24;
    /// Not 0: its packets are copied into that trace, counted from 1. Written by who traces it, 0 to
    /// a trace by compare-and-swap; and to 0 by the supervisor, when the link goes or the tracer has.
    pub const TRACE: usize = 32;
    /// Its name, `app.port -> app.port`. Written by the supervisor.
    pub const NAME: usize = 64;
    /// Bytes of [`NAME`].
    pub const NAME_BYTES: usize = 320;
    /// Packets that the producing app sent. Written by the producer's worker.
    pub const PACKETS: usize = 384;
    /// Bytes in them.
    pub const BYTES: usize = 392;
    /// Packets that it wanted to send and could not.
    pub const DROPS: usize = 400;
    /// Packets that wait at the producer's end.
    pub const QUEUED: usize = 408;
    /// Packets that the consuming app took. Written by the consumer's worker.
    pub const TAKEN: usize = 512;
    /// Packets that wait at the consumer's end.
    pub const WAITING: usize = 520;
    /// The ring of full packets.
    pub const FULL: usize = 1024;
    /// The ring of empty packets.
    pub const EMPTY: usize = FULL + super::ring_bytes(super::RING_PACKETS);
    /// Packets that waited at the consumer's end when an app moved: older than those in the ring.
    pub const HEAD: usize = EMPTY + super::ring_bytes(super::RING_PACKETS);
    /// Packets that waited at the producer's end when an app moved: younger than those in the ring.
    pub const TAIL: usize = HEAD + super::ring_bytes(super::QUEUE_PACKETS_MAX);
}

/// Offsets within a trace's place: [`crate::trace`] says how they are used.
pub mod trace {
    /// Who reads it, 0: nobody. Claimed by compare-and-swap.
    pub const CLAIM: usize = 0;
    /// The link that is traced, plus 1. Written by who has claimed it, as the next.
    pub const LINK: usize = 8;
    /// Bytes of each packet that are wanted at most.
    pub const SNAP_BYTES: usize = 16;
    /// Traces that have been here: whether the ring is still the same.
    pub const EPOCH: usize = 24;
    /// The process that writes into the ring at this moment; 0: none. Written by the worker that
    /// sends on the link, as the next.
    pub const WRITER: usize = 128;
    /// Packets for which there was no room.
    pub const DROPPED: usize = 136;
    /// The positions of the ring.
    pub const RING: usize = BYTES_AT - super::HEADER_BYTES;
    /// Its bytes.
    pub const BYTES_AT: usize = 4096;
}

const fn ring_bytes(packets: usize) -> usize {
    HEADER_BYTES + 4 * packets
}

const _: () = assert!(link::TAIL + ring_bytes(QUEUE_PACKETS) <= LINK_BYTES);
const _: () = assert!(worker::HISTOGRAM + 8 * HISTOGRAM_BUCKETS <= WORKER_BYTES);
const _: () = assert!(worker::DROPS + 8 * DROPS.len() <= worker::HISTOGRAM);
const _: () = assert!(NAME_BYTES_MAX + 2 <= 64 && 4 * (NAME_BYTES_MAX + 1) + 4 <= link::NAME_BYTES);

/// Which of a link's four rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Ring {
    /// Packets on their way to the consumer.
    Full,
    /// Empty packets on their way back.
    Empty,
    /// What waited at the consumer's end when an app moved.
    Head,
    /// What waited at the producer's end when an app moved.
    Tail,
}

/// All of them.
pub const RINGS: [Ring; 4] = [Ring::Full, Ring::Empty, Ring::Head, Ring::Tail];

impl Ring {
    /// Where it lies in a link's place, and how many packets it holds.
    pub fn place(self) -> (usize, usize) {
        match self {
            Self::Full => (link::FULL, RING_PACKETS),
            Self::Empty => (link::EMPTY, RING_PACKETS),
            Self::Head => (link::HEAD, QUEUE_PACKETS_MAX),
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
pub struct Shared {
    memory: Window,
    fences: Fences,
}

impl Shared {
    /// The words at the start of `segment`, which must be backed by memory up to [`PACKETS_AT`].
    pub fn new(segment: &Arc<Segment>, fences: Fences) -> Result<Self, caravan_segment::Error> {
        Ok(Self { memory: segment.window(0, PACKETS_AT as u64)?, fences })
    }

    /// All of them.
    pub fn memory(&self) -> &Window {
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
        ring: Ring,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_lies_in_its_bucket() {
        for ns in (0..5000).chain((12..36).flat_map(|power| [(1 << power) - 1, 1 << power, 3 << (power - 1)]))
        {
            let found = bucket(ns);
            assert!(bucket_floor(found) <= ns, "{ns} in {found}");
            if found + 1 < HISTOGRAM_BUCKETS {
                assert!(ns < bucket_floor(found + 1), "{ns} in {found}");
            }
        }
        assert_eq!(bucket(u64::MAX), HISTOGRAM_BUCKETS - 1);
    }

    #[test]
    fn codes_are_places() {
        for (place, drop) in DROPS.into_iter().enumerate() {
            assert_eq!(drop as usize, place);
        }
        for (place, stage) in STAGES.into_iter().enumerate() {
            assert_eq!(stage as usize, place);
        }
    }
}
