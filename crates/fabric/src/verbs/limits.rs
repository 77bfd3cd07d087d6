//! Every limit of a connection over a device. They bound its queues: no completion queue can overflow,
//! because it has an entry for each work request of the queues that it serves.

use std::time::Duration;

/// The number of work requests of the send queue.
pub const SEND_DEPTH: u32 = 256;
/// The number of work requests of the send queue that are kept for messages of the backend's own.
pub const SEND_RESERVE: u32 = 8;
/// At least one in this many work requests asks for a completion.
pub const SIGNAL_EVERY: u32 = 64;
/// The number of immediates that a peer may have on their way to this side, or untaken there.
pub const IMMEDIATE_CREDIT: u32 = 128;
/// This side sends an acknowledgement after it has taken this many immediates: a quarter of the credit, so that
/// a peer in full flow never waits for one.
pub const ACKNOWLEDGE_EVERY: u32 = IMMEDIATE_CREDIT / 4;
/// The number of receives posted beyond the credit: for acknowledgements, of which at most
/// `IMMEDIATE_CREDIT / ACKNOWLEDGE_EVERY + 1` are untaken, and for the greeting.
pub const RECEIVE_RESERVE: u32 = 8;
/// The number of receives that are posted again at once.
pub const REPOST_EVERY: u32 = 16;
/// The number of bytes of a write that travel within its work request, if the device allows it.
pub const INLINE_BYTES: u32 = 160;
/// The number of compare-and-swaps and reads under way; devices may allow fewer.
pub const READS_MAX: u32 = 16;
/// The number of completions taken from a device at once.
pub const POLL_BATCH: usize = 32;
/// The number of bytes of a message of the backend's own, on devices without immediates.
pub const MESSAGE_BYTES: u32 = 8;
/// The number of ports in an offer.
pub const OFFER_PORTS_MAX: usize = 16;
/// The number of strangers' connection requests after which a listener gives up.
pub const REFUSALS_MAX: u32 = 16;
/// How long a device waits for an acknowledgement before it sends again: 4.096 us * 2^17 = 0.54 s. With
/// [`RETRIES`], this side notices a peer that is silently gone 3.8 s after the next write (some
/// devices take up to four times as long).
pub const ACKNOWLEDGEMENT_TIMEOUT: u8 = 17;
/// How often a device sends again. Not 7, which means for ever on Soft-RoCE.
pub const RETRIES: u8 = 6;
/// How long the peer's device may owe an answer to a side that checks for it again and again: longer than
/// any device tries.
pub const SILENCE_MAX: Duration = Duration::from_secs(16);
/// How long a device waits before it sends again to a peer whose receives have run out: 0.64 ms. A peer that
/// keeps to the protocol never lets that happen.
pub const RECEIVER_NOT_READY_TIMER: u8 = 12;
/// How often a device sends again to such a peer: for ever.
pub const RECEIVER_NOT_READY_RETRIES: u8 = 7;
/// How long the binding of a memory window, which sends no packet, may take.
pub const BINDING_LIMIT: Duration = Duration::from_secs(1);
/// The number of bytes of the longest operation, even if the device allows more.
pub const OPERATION_BYTES_MAX: u32 = 1 << 30;
/// Arenas begin on pages: registered memory is pinned page by page.
pub const PAGE_BYTES: u64 = 4096;
