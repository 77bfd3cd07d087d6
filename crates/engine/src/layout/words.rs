//! The offset of each word, for the engine and for processes that read its memory from outside ([`crate::view`]).

/// Offsets of the engine's own words.
pub mod engine {
    /// [`crate::layout::MAGIC`], written last.
    pub const MAGIC: usize = 0;
    /// The number of packets that are backed by memory. Written by the supervisor.
    pub const PACKET_COUNT: usize = 8;
    /// The number of packets that there may be.
    pub const PACKETS_MAX: usize = 16;
    /// 1 if the pages are huge.
    pub const HUGE: usize = 24;
    /// Nanoseconds of the monotonic clock when the engine started.
    pub const STARTED_NS: usize = 32;
    /// Changes of the configuration that have been carried out.
    pub const CONFIGURED: usize = 40;
    /// 1 while a worker waits for packets and the pool is empty, so that the others give back packets that they do
    /// not need. Written by the supervisor.
    pub const SHORT: usize = 56;
    /// Packets dropped with links and workers that have been removed, and earlier by those workers, in the
    /// order of [`crate::layout::DropReason::ALL`]. Written by the supervisor.
    pub const DROPS: usize = 64;
    /// The supervisor's process, as the supervisor sees it. It tells the supervisor from workers and viewers,
    /// which have this memory open too. Written by the supervisor, before [`MAGIC`].
    pub const PID: usize = 48;
}

/// Offsets within a worker's place.
pub mod worker {
    /// [`crate::layout::WorkerState`]. Written by the supervisor.
    pub const STATE: usize = 0;
    /// Its process. Written by the supervisor.
    pub const PID: usize = 8;
    /// Times it was started again after a crash. Written by the supervisor.
    pub const RESTARTS: usize = 16;
    /// The core that it runs on, plus 1; 0 for any core. Written by the supervisor.
    pub const CORE: usize = 24;
    /// Grants to it so far; a change tells the worker that there are new ones. Written by the
    /// supervisor.
    pub const GRANTS: usize = 32;
    /// The first of the packets given last. Written by the supervisor.
    pub const GRANT_FIRST: usize = 40;
    /// The end of the packets given last. Written by the supervisor.
    pub const GRANT_END: usize = 48;
    /// Messages sent to it so far; a change tells the worker that there is one to read. Written by the
    /// supervisor.
    pub const ORDERS: usize = 56;
    /// Its name. Written by the supervisor.
    pub const NAME: usize = 64;
    /// [`crate::layout::WorkerStage`]. Written by the worker, as are all words below.
    pub const STAGE: usize = 256;
    /// Packets that it has asked for and not received yet.
    pub const WANTED: usize = 264;
    /// Breaths that moved packets.
    pub const BREATHS: usize = 272;
    /// Breaths that moved no packets.
    pub const IDLE_BREATHS: usize = 280;
    /// Times it went to sleep.
    pub const SLEEPS: usize = 288;
    /// Its free packets.
    pub const FREE: usize = 296;
    /// Nanoseconds spent in breaths that moved packets.
    pub const BUSY_NS: usize = 304;
    /// Numbers that it has found in rings and whose packets did not belong to the link.
    pub const SKIPPED: usize = 312;
    /// The number of grants that it has taken over.
    pub const GRANTS_TAKEN: usize = 320;
    /// Packets that it gave back because it had far too many.
    pub const RETURNED: usize = 328;
    /// Drops by reason, in the order of [`crate::layout::DropReason::ALL`].
    pub const DROPS: usize = 384;
    /// Buckets of the durations of breaths.
    pub const HISTOGRAM: usize = 1024;
}

/// Offsets within a link's place.
pub mod link {
    /// 1 where there is a link, 2 where it runs between two processes. Written by the supervisor.
    pub const STATE: usize = 0;
    /// The producer's worker, plus 1. Written by the supervisor.
    pub const PRODUCER: usize = 8;
    /// The consumer's worker, plus 1. Written by the supervisor.
    pub const CONSUMER: usize = 16;
    /// 1 in copy mode. Written by the supervisor.
    pub const COPY: usize = 24;
    /// If not 0, its packets are copied into that trace, counted from 1. A tracer writes it by compare-and-swap, from
    /// 0 to its trace; the supervisor sets it to 0 when the link is removed or the tracer has died.
    pub const TRACE: usize = 32;
    /// Its name, `app.port -> app.port`. Written by the supervisor.
    pub const NAME: usize = 64;
    /// Bytes of [`NAME`].
    pub const NAME_BYTES: usize = 320;
    /// Packets that the producing app sent. Written by the producer's worker.
    pub const PACKETS: usize = 384;
    /// Bytes in them.
    pub const BYTES: usize = 392;
    /// Packets that the app could not send.
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
    pub const EMPTY: usize = FULL + crate::layout::ring_bytes(crate::limits::RING_PACKETS);
    /// Packets that waited at the consumer's end when an app moved: older than those in the ring.
    pub const HEAD: usize = EMPTY + crate::layout::ring_bytes(crate::limits::RING_PACKETS);
    /// Packets that waited at the producer's end when an app moved: younger than those in the ring.
    pub const TAIL: usize = HEAD + crate::layout::ring_bytes(crate::limits::QUEUE_PACKETS);
}

/// Offsets within a trace's place; [`crate::trace`] describes their use.
pub mod trace {
    /// The process that reads it; 0 for none. Claimed by compare-and-swap.
    pub const CLAIM: usize = 0;
    /// The link that is traced, plus 1. Written by the process that has claimed the place, as is the next word.
    pub const LINK: usize = 8;
    /// The number of bytes of each packet that the tracer wants at most.
    pub const SNAP_BYTES: usize = 16;
    /// The number of traces that have used this place; it tells whether the ring is still the same.
    pub const EPOCH: usize = 24;
    /// The process that writes into the ring at this moment; 0 for none. Written by the worker that
    /// sends on the link, as is the next word.
    pub const WRITER: usize = 128;
    /// Packets for which there was no room.
    pub const DROPPED: usize = 136;
    /// The positions of the ring.
    pub const RING: usize = BYTES_AT - caravan_ring::HEADER_BYTES;
    /// The bytes of the ring.
    pub const BYTES_AT: usize = 4096;
}
