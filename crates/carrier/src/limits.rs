//! Every limit of the carrier, in one place.

/// The longest record a peer may announce: what the emulator takes as one message.
pub const RECORD_BYTES_MAX: u32 = u32::MAX >> 1;
/// Messages up to this size share a binary; larger ones get one of their own.
pub const SMALL_MESSAGE_BYTES: usize = 2 << 10;
/// Bytes of the binary that small messages share. A message that lies in a mailbox keeps all of
/// it, so it is not large.
pub const SHARED_BINARY_BYTES: usize = 8 << 10;
/// Bytes taken from the ring in one turn, before others get the scheduler.
pub const TURN_BYTES: usize = 256 << 10;
/// Messages delivered in one turn.
pub const TURN_MESSAGES: usize = 512;
/// Bytes read before they are given back to the peer, so that it can go on meanwhile.
pub const RELEASE_BYTES: usize = 64 << 10;
/// Fragmented messages put together at once; more are passed on in fragments.
pub const HELD_MESSAGES_MAX: usize = 64;
/// Bytes of one fragmented message that is put together; a larger one is passed on in fragments.
pub const HELD_MESSAGE_BYTES_MAX: u64 = 1 << 30;
/// Nanoseconds after which a poller that was called has come late.
pub const LATE_NS: u64 = 2_000_000;
/// Nanoseconds for which streams do without a late poller at first.
pub const LATE_SPELL_NS_MIN: u64 = 100_000_000;
/// Nanoseconds for which streams do without a late poller at most.
pub const LATE_SPELL_NS_MAX: u64 = 10_000_000_000;
/// Milliseconds that a closing port waits for a peer to take what is queued.
pub const FLUSH_MS: u64 = 5_000;
/// Milliseconds that a job of a port waits for the peer before other ports' jobs get the thread.
pub const JOB_SLICE_MS: u64 = 10;
/// Milliseconds that a closing port waits for what it has written to be in the peer's memory: what was
/// sent before an orderly end then arrives, as over TCP.
pub const SETTLE_MS: u64 = 200;
/// Milliseconds that a port waits for the end of the control connection when its device says that the
/// peer is gone: whether that was an orderly end is known by then.
pub const LIFELINE_MS: u64 = 100;
/// Looks in a row that a closing port takes for room in the ring before it gives up what is queued.
pub const FLUSH_TURNS: usize = 1_000;
/// Bytes of a label (node name, reason, cookie) in a control call.
pub const LABEL_BYTES_MAX: usize = 1024;
