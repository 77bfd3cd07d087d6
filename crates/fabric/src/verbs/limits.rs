//! Every limit of a connection over a device. They bound its queues: no completion queue can overflow,
//! because it has an entry for each work request of the queues that it serves.

use std::time::Duration;

/// Work requests of the send queue.
pub const SEND_DEPTH: u32 = 256;
/// Work requests of the send queue that are kept for messages of the backend's own.
pub const SEND_RESERVE: u32 = 8;
/// A write's completion is asked for at least once in so many work requests.
pub const SIGNAL_EVERY: u32 = 64;
/// Immediates that a peer may have on their way to this side, or untaken there.
pub const IMMEDIATE_CREDIT: u32 = 128;
/// An acknowledgement goes out after so many immediates have been taken: a quarter of the credit, so that
/// a peer in full flow never waits for one.
pub const ACKNOWLEDGE_EVERY: u32 = IMMEDIATE_CREDIT / 4;
/// Receives posted beyond the credit: for acknowledgements, of which there are at most
/// `IMMEDIATE_CREDIT / ACKNOWLEDGE_EVERY + 1` untaken, and the greeting.
pub const RECEIVE_RESERVE: u32 = 8;
/// Receives are posted again so many at once.
pub const REPOST_EVERY: u32 = 16;
/// Bytes of a write that travel within its work request, where the device can.
pub const INLINE_BYTES: u32 = 160;
/// Compare-and-swaps, and reads, under way; devices have fewer.
pub const READS_MAX: u32 = 16;
/// Completions taken from a device at once.
pub const POLL_BATCH: usize = 32;
/// Bytes of a message of the backend's own, where they are not immediates.
pub const MESSAGE_BYTES: u32 = 8;
/// Ports in an offer.
pub const OFFER_PORTS_MAX: usize = 16;
/// Connection requests of strangers at a listener before it gives up.
pub const REFUSALS_MAX: u32 = 16;
/// 4.096 us * 2^17 = 0.54 s: how long a device waits for an acknowledgement before it sends again, and
/// how often it does: a peer that is silently gone is noticed 3.8 s after the next write (some
/// devices take up to four times as long).
pub const ACKNOWLEDGEMENT_TIMEOUT: u8 = 17;
/// See [`ACKNOWLEDGEMENT_TIMEOUT`]. Not 7, which is without end for Soft-RoCE.
pub const RETRIES: u8 = 6;
/// How long the peer's device may owe an answer to whoever asks after it again and again: longer than
/// any device tries.
pub const SILENCE_MAX: Duration = Duration::from_secs(16);
/// How long a device waits before it sends again to a peer whose receives have run out, which a peer of
/// ours never lets happen: 0.64 ms.
pub const RECEIVER_NOT_READY_TIMER: u8 = 12;
/// How often it does: without end.
pub const RECEIVER_NOT_READY_RETRIES: u8 = 7;
/// Bytes of the longest operation, whatever the device would take.
pub const OPERATION_BYTES_MAX: u32 = 1 << 30;
/// Arenas begin on pages: what is registered is pinned page by page.
pub const PAGE_BYTES: u64 = 4096;
