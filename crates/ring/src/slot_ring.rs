//! Fixed-size items (packet indices) on the cursors.

use crate::cursor::{ConsumerCursor, Corrupt, ProducerCursor, Wake};
use crate::memory::{Cursors, Slots};

/// The writing side of a slot ring.
#[derive(Debug)]
pub struct SlotProducer<C, S> {
    cursor: ProducerCursor<C>,
    slots: S,
}

impl<C: Cursors, S: Slots> SlotProducer<C, S> {
    /// The producer of an empty ring.
    pub fn new(cursors: C, slots: S) -> Self {
        Self { cursor: ProducerCursor::new(cursors, slots.capacity()), slots }
    }

    /// The positions.
    pub fn cursor(&mut self) -> &mut ProducerCursor<C> {
        &mut self.cursor
    }

    /// Puts `item` behind what is committed, and commits it. False if the ring is full.
    #[inline]
    pub fn push(&mut self, item: u32) -> Result<bool, Corrupt> {
        let spans = self.cursor.claim(1)?;
        if spans.is_empty() {
            return Ok(false);
        }
        self.slots.put(spans.first.offset, item);
        self.cursor.commit(1);
        Ok(true)
    }

    /// Makes everything pushed visible.
    #[inline]
    pub fn publish(&mut self) -> Wake {
        self.cursor.publish()
    }
}

/// The reading side of a slot ring.
#[derive(Debug)]
pub struct SlotConsumer<C, S> {
    cursor: ConsumerCursor<C>,
    slots: S,
}

impl<C: Cursors, S: Slots> SlotConsumer<C, S> {
    /// The consumer of an empty ring.
    pub fn new(cursors: C, slots: S) -> Self {
        Self { cursor: ConsumerCursor::new(cursors, slots.capacity()), slots }
    }

    /// The positions.
    pub fn cursor(&mut self) -> &mut ConsumerCursor<C> {
        &mut self.cursor
    }

    /// Hands up to `limit` items to `each`, oldest first, then gives their slots back at once.
    /// Returns how many there were, and whether the producer must be woken.
    #[inline]
    pub fn drain(&mut self, limit: usize, mut each: impl FnMut(u32)) -> Result<(usize, Wake), Corrupt> {
        let spans = self.cursor.poll(limit as u64)?;
        let count = spans.length().min(limit);
        let first = count.min(spans.first.length);
        for index in spans.first.offset..spans.first.offset + first {
            each(self.slots.take(index));
        }
        for index in 0..count - first {
            each(self.slots.take(spans.second.offset + index));
        }
        if count == 0 {
            return Ok((0, Wake::Quiet));
        }
        Ok((count, self.cursor.release(count as u64)))
    }
}
