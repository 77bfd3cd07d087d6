#![doc = include_str!("../README.md")]
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
