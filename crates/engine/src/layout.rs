//! The layout of the engine's memory, and its words.
//!
//! ```text
//! engine | workers | links | traces | packets ...
//! ```
//!
//! All parts except the packets are backed by memory from the start. The packets follow; the number of those that
//! are backed grows. For every word, its comment names the writer. A process that can open the memory may read
//! all words at any time, as `caravan engine top` does.

mod words;

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

pub use words::{engine, link, trace, worker};

/// The name of the memory in `/proc/PID/fd`.
pub const SEGMENT_NAME: &str = "caravan-engine";
/// The value of the first word. Its last digit changes with the layout.
pub const MAGIC: u64 = 0x6361_7261_7661_6e02;

const ENGINE_BYTES: usize = 4096;
/// Bytes of a worker's place.
pub const WORKER_BYTES: usize = 4096;
const LINK_BYTES: usize = 32 << 10;
const TRACE_BYTES: usize = trace::BYTES_AT + TRACE_RING_BYTES;
const WORKERS_AT: usize = ENGINE_BYTES;
const LINKS_AT: usize = WORKERS_AT + WORKERS_MAX * WORKER_BYTES;
const TRACES_AT: usize = LINKS_AT + LINKS_MAX * LINK_BYTES;
/// The offset of the first packet.
pub const PACKETS_AT: usize = TRACES_AT + TRACES_MAX * TRACE_BYTES;

/// Returns the number of bytes up to the end of the first `packets` packets.
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

/// One of a link's four rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LinkRing {
    /// Packets on their way to the consumer.
    Full,
    /// Empty packets on their way back.
    Empty,
    /// Packets that waited at the consumer's end when an app moved.
    Head,
    /// Packets that waited at the producer's end when an app moved.
    Tail,
}

impl LinkRing {
    /// All rings of a link.
    pub const ALL: [Self; 4] = [Self::Full, Self::Empty, Self::Head, Self::Tail];

    /// Returns the ring's offset in a link's place.
    pub fn offset(self) -> usize {
        match self {
            Self::Full => link::FULL,
            Self::Empty => link::EMPTY,
            Self::Head => link::HEAD,
            Self::Tail => link::TAIL,
        }
    }

    /// Returns the number of packets that the ring holds.
    pub fn packets(self) -> usize {
        match self {
            Self::Full | Self::Empty => RING_PACKETS,
            Self::Head | Self::Tail => QUEUE_PACKETS,
        }
    }
}

/// Offsets of the two positions of a ring: of packets given, and of packets taken.
pub const TAIL_AND_HEAD: [usize; 2] = [TAIL_AT, HEAD_AT];

/// Returns the offset of a worker's place in the memory.
pub fn worker_at(worker: WorkerId) -> usize {
    WORKERS_AT + worker.place() * WORKER_BYTES
}

/// Returns the offset of a link's place in the memory.
pub fn link_at(link: LinkId) -> usize {
    LINKS_AT + link.place() * LINK_BYTES
}

/// Returns the offset of the place of trace `place`, below [`TRACES_MAX`], in the memory.
pub fn trace_at(place: usize) -> usize {
    TRACES_AT + place * TRACE_BYTES
}

/// Returns the offset of a packet in the memory.
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
    /// Returns the words at the start of `segment`, which must be backed by memory up to [`PACKETS_AT`].
    pub fn new(segment: &Arc<Segment>, fences: Fences) -> Result<Self, caravan_segment::Error> {
        Ok(Self { memory: segment.slice(0, PACKETS_AT as u64)?, fences })
    }

    /// Returns the memory of all words.
    pub fn memory(&self) -> &SharedSlice {
        &self.memory
    }

    /// Returns a word of the engine.
    pub fn engine(&self, offset: usize) -> &AtomicU64 {
        self.memory.word(offset)
    }

    /// Returns a word of a worker.
    #[inline]
    pub fn worker(&self, worker: WorkerId, offset: usize) -> &AtomicU64 {
        self.memory.word(worker_at(worker) + offset)
    }

    /// Returns a word of a link.
    #[inline]
    pub fn link(&self, link: LinkId, offset: usize) -> &AtomicU64 {
        self.memory.word(link_at(link) + offset)
    }

    /// Returns one of a link's rings.
    pub fn ring(
        &self,
        link: LinkId,
        ring: LinkRing,
    ) -> Result<(MappedCursors, MappedSlots), caravan_segment::Error> {
        let at = link_at(link) + ring.offset();
        let slots = self.memory.part((at + HEADER_BYTES) as u64, 4 * ring.packets() as u64)?;
        Ok((self.cursors(at)?, MappedSlots::new(slots)?))
    }

    /// Returns a word of a trace.
    #[inline]
    pub fn trace(&self, place: usize, offset: usize) -> &AtomicU64 {
        self.memory.word(trace_at(place) + offset)
    }

    /// Returns a trace's ring.
    pub fn trace_ring(&self, place: usize) -> Result<(MappedCursors, MappedBytes), caravan_segment::Error> {
        let at = trace_at(place);
        let bytes = self.memory.part((at + trace::BYTES_AT) as u64, TRACE_RING_BYTES as u64)?;
        Ok((self.cursors(at + trace::RING)?, MappedBytes::new(bytes)?))
    }

    fn cursors(&self, at: usize) -> Result<MappedCursors, caravan_segment::Error> {
        MappedCursors::new(&self.memory.part(at as u64, HEADER_BYTES as u64)?, self.fences)
    }

    /// Writes a name, cut to `room` bytes.
    pub fn write_name(&self, at: usize, room: usize, name: &str) {
        let mut bytes = vec![0; room];
        let length = name.len().min(room);
        bytes[..length].copy_from_slice(&name.as_bytes()[..length]);
        self.memory.copy_in(at, &bytes);
    }

    /// Adds to a word that only this process writes.
    #[inline]
    pub fn add(word: &AtomicU64, more: u64) {
        // Only viewers read it; they want a count, and nothing is ordered by it.
        word.store(word.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
    }
}

/// Declares an enum whose codes are places in `ALL`, with the names by which users know its values.
macro_rules! codes {
    ($(#[$meta:meta])* pub enum $enum:ident { $($(#[$doc:meta])* $value:ident = $name:literal,)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize)]
        #[repr(u64)]
        pub enum $enum { $($(#[$doc])* #[serde(rename = $name)] $value,)* }

        impl $enum {
            /// The number of values.
            pub const COUNT: usize = Self::ALL.len();
            /// All values, in the order of their codes.
            pub const ALL: &[Self] = &[$(Self::$value),*];

            /// Returns the name that users read.
            pub fn name(self) -> &'static str {
                [$($name),*][self as usize]
            }
        }
    };
}

codes! {
    /// The reasons for which packets are dropped; each worker counts them for itself.
    #[non_exhaustive]
    pub enum DropReason {
        /// The link was full: its consumer is too slow.
        Full = "full",
        /// There was no empty packet.
        NoPacket = "no_packet",
        /// The app has no link at this output.
        Unlinked = "unlinked",
        /// The app drops such packets on purpose.
        Filtered = "filtered",
        /// The packet came faster than its rate allows.
        Limited = "limited",
        /// The packet does not follow its protocol.
        Malformed = "malformed",
        /// The packet does not fit: a frame longer than a packet, or no room for one more header.
        Oversize = "oversize",
        /// The device or the file did not take it.
        Device = "device",
        /// The packet was in a worker that crashed.
        Crashed = "crashed",
        /// The packet was in an app or a link that has been removed.
        Removed = "removed",
    }
}

codes! {
    /// The state of a worker's place in the table.
    pub enum WorkerState {
        /// The place is free.
        None = "none",
        /// The place has a process that runs its apps.
        Running = "running",
        /// The place has no process, as the last one ended unasked or the first has not started: one is about to start.
        Restarting = "restarting",
        /// The worker has crashed too often: it is not started again before the next change of the configuration.
        Parked = "parked",
    }
}

codes! {
    /// The stage of a worker, which a crash interrupts.
    pub enum WorkerStage {
        /// Its first steps: making its apps, taking over the packets that it owns.
        Starting = "starting",
        /// Taking packets from other workers.
        Receiving = "receiving",
        /// In an app's `pull`.
        Pulling = "pulling",
        /// In an app's `push`.
        Pushing = "pushing",
        /// Giving packets to other workers.
        Sending = "sending",
        /// Changing its apps and links.
        Configuring = "configuring",
        /// Waiting for packets that it has asked for, or taking them over.
        Growing = "growing",
        /// Waiting for something to do.
        Idle = "idle",
    }
}

/// How the two ends of a link hand packets over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LinkMode {
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

/// Returns the bucket of a duration.
#[inline]
pub fn bucket(ns: u64) -> usize {
    if ns < HISTOGRAM_STEPS as u64 {
        return ns as usize;
    }
    let power = ns.ilog2() as usize;
    let step = (ns >> (power - 3)) as usize & (HISTOGRAM_STEPS - 1);
    ((power - 2) * HISTOGRAM_STEPS + step).min(HISTOGRAM_BUCKETS - 1)
}

/// Returns the least duration in a bucket.
pub fn bucket_floor(bucket: usize) -> u64 {
    if bucket < HISTOGRAM_STEPS {
        return bucket as u64;
    }
    let power = bucket / HISTOGRAM_STEPS + 2;
    ((HISTOGRAM_STEPS + bucket % HISTOGRAM_STEPS) as u64) << (power - 3)
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
}
