//! Every limit of the carrier, in one place.

/// The longest record that a peer may announce: the emulator's limit for one message.
pub const RECORD_BYTES_MAX: u32 = u32::MAX >> 1;
/// Messages up to this size share a binary; larger ones get one of their own.
pub const SMALL_MESSAGE_BYTES: usize = 2 << 10;
/// The number of bytes of the binary that small messages share. A message in a mailbox keeps all of
/// it, so it is not large.
pub const SHARED_BINARY_BYTES: usize = 8 << 10;
/// The number of bytes taken from the ring in one turn, before others get the scheduler.
pub const TURN_BYTES: usize = 256 << 10;
/// The number of messages delivered in one turn.
pub const TURN_MESSAGES: usize = 512;
/// The number of bytes read before they are released to the peer, so that it can go on meanwhile.
pub const RELEASE_BYTES: usize = 64 << 10;
/// The number of fragmented messages put together at once; more are delivered in fragments.
pub const HELD_MESSAGES_MAX: usize = 64;
/// The number of bytes of one fragmented message that is put together; a larger one is delivered in fragments.
pub const HELD_MESSAGE_BYTES_MAX: u64 = 1 << 30;
/// The number of nanoseconds after which a poller that was called is late.
pub const LATE_NS: u64 = 2_000_000;
/// The shortest time for which streams do without a late poller, in nanoseconds.
pub const LATE_SPELL_NS_MIN: u64 = 100_000_000;
/// The longest time for which streams do without a late poller, in nanoseconds.
pub const LATE_SPELL_NS_MAX: u64 = 10_000_000_000;
/// The number of milliseconds that a closing port waits for a peer to take what is queued.
pub const FLUSH_MS: u64 = 5_000;
/// The number of milliseconds that a port's job waits for the peer before other ports' jobs get the thread.
pub const JOB_SLICE_MS: u64 = 10;
/// The number of milliseconds that a closing port waits until its bytes are in the peer's memory: what was
/// sent before an orderly end then arrives, as over TCP.
pub const SETTLE_MS: u64 = 1_000;
/// The number of milliseconds that a port waits for the end of the control connection when its device reports that
/// the peer is gone: by then it is known whether that was an orderly end.
pub const LIFELINE_MS: u64 = 100;
/// The number of polls in a row for room in the ring after which a closing port drops what is queued.
pub const FLUSH_TURNS: usize = 1_000;
/// The largest number of bytes of a label (node name, reason, cookie) in a control call.
pub const LABEL_BYTES_MAX: usize = 1024;
