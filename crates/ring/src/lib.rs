//! A ring: a one-directional channel between two sides that share memory.
//!
//! A buffer and two 64-bit positions that only grow. The producer owns `tail_position`, the
//! consumer owns `head_position`; each keeps a private copy of its own and a mirror of the other's.
//! `offset = position & mask`; free space, credits and flow control are one subtraction.
//!
//! - [`ProducerCursor`] and [`ConsumerCursor`]: the positions, sleep and wake-up. No bytes, no
//!   clock, no thread, no system call: they run unchanged on mapped memory and under a model
//!   checker.
//! - [`ByteProducer`] and [`ByteConsumer`]: a stream of bytes on those cursors.
//! - [`SlotProducer`] and [`SlotConsumer`]: fixed-size items (packet indices) on the same cursors.
//! - [`Pace`]: when to look next, for a consumer that does nothing else.
//! - [`SpinPolicy`]: when to poll and when to sleep; one object for every face.
//! - [`record`]: records with a length in front, of any size, on a byte ring of any size.
//!
//! What the other side can write is checked on every refresh: an impossible position is
//! [`Corrupt`], never an access out of bounds.

#![forbid(unsafe_code)]

mod byte_ring;
mod cursor;
mod memory;
pub mod record;
mod slot_ring;
mod spin;

pub use byte_ring::{ByteConsumer, ByteProducer};
pub use cursor::{ConsumerCursor, Corrupt, ProducerCursor, Span, Spans, Wake};
pub use memory::{
    Cursors, HEAD_AT, HEADER_BYTES, MappedBytes, MappedCursors, MappedSlots, RingBytes, SharedWord, Slots,
    TAIL_AT,
};
pub use slot_ring::{SlotConsumer, SlotProducer};
pub use spin::{SpinMode, SpinPolicy, Turn};
