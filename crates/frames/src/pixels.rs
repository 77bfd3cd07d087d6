//! The memory of a stream in its producer: it is made here, and the bytes of each slot are given out as a slice, to be filled in
//! place. The only `unsafe` of this crate.
//!
//! Invariant of [`StreamMemory`]: nobody but its holder writes to the bytes of slots. It is the only owner of their
//! slices, which do not overlap; the rest of this crate gets the words in front of them alone; and other processes get a
//! descriptor that can only read (`Segment::read_only_descriptor`).

#![allow(unsafe_code, reason = "makes slices of shared memory that only this process can write")]

use std::os::fd::OwnedFd;
use std::sync::Arc;

use caravan_segment::{Pages, Segment, SharedSlice};

use crate::error::Error;
use crate::layout::{PAGE_BYTES, StreamLayout};

/// The bytes of all slots of a stream.
#[derive(Debug)]
pub(crate) struct StreamMemory {
    slots: Vec<SharedSlice>,
}

impl StreamMemory {
    /// Makes the memory. Returns the words in front of the slots, and a descriptor for consumers, too.
    pub fn create(layout: &StreamLayout) -> Result<(Self, SharedSlice, OwnedFd), Error> {
        let memory_bytes = layout.memory_bytes();
        let segment = Arc::new(Segment::create("caravan-frames", memory_bytes, Pages::Small)?);
        segment.grow(memory_bytes)?;
        let words = segment.slice(0, layout.bytes_at(0) as u64)?;
        let slots = (0..layout.slots as usize)
            .map(|slot| segment.slice(layout.bytes_at(slot) as u64, layout.frame_bytes() as u64));
        let mut memory = Self { slots: slots.collect::<Result<_, _>>()? };
        // The first touch of each page costs a fault: not while the first frames are due.
        for slot in 0..memory.slots.len() {
            memory.slot_mut(slot).iter_mut().step_by(PAGE_BYTES).for_each(|byte| *byte = 0);
        }
        Ok((memory, words, segment.read_only_descriptor()?))
    }

    /// Returns the bytes of a slot.
    pub fn slot(&self, slot: usize) -> &[u8] {
        let length = self.slots[slot].bytes() as usize;
        // SAFETY: the bytes are in bounds and live as long as `self`, and nobody else writes them (the invariant).
        unsafe { std::slice::from_raw_parts(self.slots[slot].address(0, length), length) }
    }

    /// Returns the bytes of a slot, to be written.
    pub fn slot_mut(&mut self, slot: usize) -> &mut [u8] {
        let length = self.slots[slot].bytes() as usize;
        // SAFETY: as above, and `self` is borrowed for as long as the slice. What other processes read meanwhile does not
        // concern this one: they learn from the slot's version that it is no frame.
        unsafe { std::slice::from_raw_parts_mut(self.slots[slot].address(0, length), length) }
    }
}
