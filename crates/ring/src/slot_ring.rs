//! A ring that carries items of fixed size (packet indices).

use crate::cursor::{ConsumerCursor, Corrupt, ProducerCursor, Spans, Wake};
use crate::memory::{Cursors, Slots};

/// The writing side of a slot ring.
///
/// ```
/// use std::sync::Arc;
///
/// use caravan_ring::{HEADER_BYTES, MappedCursors, MappedSlots, SlotConsumer, SlotProducer};
/// use caravan_segment::barrier::Fences;
/// use caravan_segment::{Pages, Segment};
///
/// let segment = Arc::new(Segment::create("example", 4096, Pages::Small)?);
/// segment.grow(4096)?;
/// let cursors = MappedCursors::new(&segment.slice(0, HEADER_BYTES as u64)?, Fences::Symmetric)?;
/// let slots = MappedSlots::new(segment.slice(HEADER_BYTES as u64, 1024)?)?;
/// let mut producer = SlotProducer::new(cursors.clone(), slots.clone());
/// let mut consumer = SlotConsumer::new(cursors, slots);
/// assert!(producer.push(7)?);
/// let _awake = producer.publish();
/// let mut items = Vec::new();
/// let (count, _awake) = consumer.drain(16, |item| items.push(item))?;
/// assert_eq!((count, items), (1, vec![7]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct SlotProducer<C, S> {
    cursor: ProducerCursor<C>,
    slots: S,
}

impl<C: Cursors, S: Slots> SlotProducer<C, S> {
    /// Makes the producer of an empty ring.
    pub fn new(cursors: C, slots: S) -> Self {
        Self { cursor: ProducerCursor::new(cursors, slots.capacity()), slots }
    }

    /// Makes the producer of a ring that another process has filled so far.
    pub fn resume(cursors: C, slots: S) -> Result<Self, Corrupt> {
        Ok(Self { cursor: ProducerCursor::resume(cursors, slots.capacity())?, slots })
    }

    /// Returns the cursor.
    pub fn cursor(&mut self) -> &mut ProducerCursor<C> {
        &mut self.cursor
    }

    /// Returns how many of `wanted` items can be pushed now.
    #[inline]
    pub fn room(&mut self, wanted: usize) -> Result<usize, Corrupt> {
        Ok(self.cursor.claim(wanted as u64)?.length())
    }

    /// Puts `item` after the committed ones, and commits it. False if the ring is full.
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

    /// Puts up to `count` items after the committed ones, and commits them. There must be
    /// [room](Self::room) for as many.
    #[inline]
    pub fn extend(&mut self, count: usize, items: impl Iterator<Item = u32>) -> Result<(), Corrupt> {
        let spans = self.cursor.claim(count as u64)?;
        let mut count = 0;
        let slots = &self.slots;
        spans.offsets().zip(items).for_each(|(offset, item)| {
            slots.put(offset, item);
            count += 1;
        });
        self.cursor.commit(count);
        Ok(())
    }

    /// Makes all pushed items visible to the consumer.
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
    /// Makes the consumer of an empty ring.
    pub fn new(cursors: C, slots: S) -> Self {
        Self { cursor: ConsumerCursor::new(cursors, slots.capacity()), slots }
    }

    /// Makes the consumer of a ring that another process has read so far.
    pub fn resume(cursors: C, slots: S) -> Result<Self, Corrupt> {
        Ok(Self { cursor: ConsumerCursor::resume(cursors, slots.capacity())?, slots })
    }

    /// Returns the cursor.
    pub fn cursor(&mut self) -> &mut ConsumerCursor<C> {
        &mut self.cursor
    }

    /// Returns the spans of up to `limit` items, oldest first; their slots stay this side's until
    /// [`release`](Self::release).
    #[inline]
    pub fn poll(&mut self, limit: usize) -> Result<Spans, Corrupt> {
        Ok(self.cursor.poll(limit as u64)?.first(limit))
    }

    /// Returns the item in the slot at `offset`, which [`poll`](Self::poll) returned.
    #[inline]
    pub fn item(&self, offset: usize) -> u32 {
        self.slots.take(offset)
    }

    /// Returns the item `place` places after the oldest. It means nothing beyond the polled items.
    #[inline]
    pub fn peek(&self, place: usize) -> u32 {
        let mask = self.cursor.capacity() - 1;
        self.slots.take(((self.cursor.head_position() + place as u64) & mask) as usize)
    }

    /// Releases the slots of the first `count` polled items.
    #[inline]
    pub fn release(&mut self, count: usize) -> Wake {
        self.cursor.release(count as u64)
    }

    /// Hands up to `limit` items to `each`, oldest first, then releases their slots at once.
    /// Returns the number of items, and whether the producer must be woken.
    #[inline]
    pub fn drain(&mut self, limit: usize, mut each: impl FnMut(u32)) -> Result<(usize, Wake), Corrupt> {
        let spans = self.poll(limit)?;
        spans.offsets().for_each(|offset| each(self.item(offset)));
        let count = spans.length();
        Ok((count, if count == 0 { Wake::Quiet } else { self.release(count) }))
    }
}
