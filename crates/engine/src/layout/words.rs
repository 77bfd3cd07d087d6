//! Where each word lies, for the engine and for who reads its memory from outside ([`crate::view`]).

/// Offsets of words, for who reads the memory from outside, as [`crate::view`] does.
pub mod engine {
    /// [`crate::layout::MAGIC`], written last.
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
    /// 1 while a worker waits for packets and there are no more: others give back what they can do
    /// without. Written by the supervisor.
    pub const SHORT: usize = 56;
    /// Packets dropped with links and workers that are no more, and by those workers before, in the
    /// order of [`crate::layout::DropReason::ALL`]. Written by the supervisor.
    pub const DROPS: usize = 64;
    /// The supervisor's process, as it sees itself: tells it from workers and from who looks on,
    /// which have this memory open too. Written by the supervisor, before [`MAGIC`].
    pub const PID: usize = 48;
}

/// Offsets within a worker's place.
pub mod worker {
    /// [`crate::layout::WorkerState`]. Written by the supervisor.
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
    /// First of the packets given last. Written by the supervisor.
    pub const GRANT_FIRST: usize = 40;
    /// End of the packets given last. Written by the supervisor.
    pub const GRANT_END: usize = 48;
    /// Messages sent to it so far; the worker sees by it that there is one to read. Written by the
    /// supervisor.
    pub const ORDERS: usize = 56;
    /// Its name. Written by the supervisor.
    pub const NAME: usize = 64;
    /// [`crate::layout::WorkerStage`]. Written by the worker, as all below.
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
    /// Numbers that it has found in rings and whose packets were not the link's.
    pub const SKIPPED: usize = 312;
    /// Of the times packets were given to it, those it has noticed.
    pub const GRANTS_TAKEN: usize = 320;
    /// Packets that it gave back because it had far too many.
    pub const RETURNED: usize = 328;
    /// Drops by cause, in the order of [`crate::layout::DropReason::ALL`].
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
    pub const EMPTY: usize = FULL + crate::layout::ring_bytes(crate::limits::RING_PACKETS);
    /// Packets that waited at the consumer's end when an app moved: older than those in the ring.
    pub const HEAD: usize = EMPTY + crate::layout::ring_bytes(crate::limits::RING_PACKETS);
    /// Packets that waited at the producer's end when an app moved: younger than those in the ring.
    pub const TAIL: usize = HEAD + crate::layout::ring_bytes(crate::limits::QUEUE_PACKETS);
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
    pub const RING: usize = BYTES_AT - caravan_ring::HEADER_BYTES;
    /// Its bytes.
    pub const BYTES_AT: usize = 4096;
}
