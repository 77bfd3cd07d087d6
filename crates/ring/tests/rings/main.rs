//! The rings against models that anybody can check by reading: a queue and a few flags. Random
//! operations, each result predicted, the invariants checked after each step. `kill` has the other side in a
//! process that is killed.

#![forbid(unsafe_code)]

mod bytes;
mod cases;
mod hostile;
mod kill;
mod records;
mod slots;
mod transitions;

use std::sync::Arc;

use caravan_ring::{
    ByteConsumer, ByteProducer, HEADER_BYTES, MappedBytes, MappedCursors, MappedSlots, SlotConsumer,
    SlotProducer,
};
use caravan_segment::barrier::Fences;
use caravan_segment::{Pages, Segment, SharedSlice};

type Producer = ByteProducer<MappedCursors, MappedBytes>;
type Consumer = ByteConsumer<MappedCursors, MappedBytes>;

fn memory(bytes: u64) -> (MappedCursors, SharedSlice) {
    let total = HEADER_BYTES as u64 + bytes;
    let segment = Arc::new(Segment::create("caravan-test", total, Pages::Small).unwrap());
    segment.grow(total).unwrap();
    let slice = segment.slice(0, total).unwrap();
    (MappedCursors::new(&slice, Fences::Symmetric).unwrap(), slice.part(HEADER_BYTES as u64, bytes).unwrap())
}

fn byte_ring(capacity: u64) -> (Producer, Consumer) {
    let (cursors, slice) = memory(capacity);
    let bytes = MappedBytes::new(slice).unwrap();
    (ByteProducer::new(cursors.clone(), bytes.clone()), ByteConsumer::new(cursors, bytes))
}

fn slot_ring(
    capacity: u64,
) -> (SlotProducer<MappedCursors, MappedSlots>, SlotConsumer<MappedCursors, MappedSlots>) {
    let (cursors, slice) = memory(capacity * 4);
    let slots = MappedSlots::new(slice).unwrap();
    (SlotProducer::new(cursors.clone(), slots.clone()), SlotConsumer::new(cursors, slots))
}
