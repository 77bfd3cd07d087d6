//! The positions of a ring, and the two hand-shakes of sleeping and waking.
//!
//! Waiting is Dekker's pattern, once in each direction. The waiter writes its flag, fences, looks
//! again, and only then sleeps; the other side writes its position, fences, and looks at the flag.
//! With both fences sequentially consistent, at least one of them sees the other; where the two
//! processes share a [barrier](caravan_segment::barrier), only the waiter pays for it. The flag is
//! cleared by a swap, so exactly one side acts on it.
//!
//! | who | change | why |
//! |---|---|---|
//! | consumer | `consumer_asleep` 0 -> 1 | it found nothing and is about to wait |
//! | consumer | 1 -> 0 | it found something after all, or woke by itself |
//! | producer | 1 -> 0 | it published, and now rings the bell |
//! | producer | `producer_wants` 0 -> position | there is no room, and it is about to wait |
//! | producer | position -> position | it waits for another amount of room |
//! | producer | position -> 0 | there is room after all, or it woke by itself |
//! | consumer | position -> 0 | it released that far, and now rings the bell |
//!
//! Nothing else may happen: neither side moves the other's position, or moves a position back, and
//! neither says that the other waits. `tests/rings/transitions.rs` runs the table.

use std::sync::atomic::Ordering;

use crate::memory::{Cursors, SharedWord};

/// The other side wrote an impossible position: it is broken or hostile, and the ring must
/// not be used any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the peer wrote {cursor} = {value} where only {low}..={high} is possible")]
pub struct Corrupt {
    /// The name of the word.
    pub cursor: &'static str,
    /// The value of the word.
    pub value: u64,
    /// The least possible value.
    pub low: u64,
    /// The greatest possible value.
    pub high: u64,
}

/// Whether the other side must be woken.
#[must_use = "a wake-up that nobody delivers leaves the peer asleep"]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wake {
    /// The other side sleeps, and its flag has been cleared: ring its bell, once.
    Bell,
    /// The other side is awake.
    Quiet,
}

/// The writing side's positions. One thread at a time may use them.
///
/// Invariant: `head_seen <= published <= committed <= head_seen + capacity`.
#[derive(Debug)]
pub struct ProducerCursor<C> {
    shared: C,
    capacity: u64,
    committed: u64,
    published: u64,
    head_seen: u64,
}

impl<C: Cursors> ProducerCursor<C> {
    /// Makes the producer of an empty ring. `capacity` is a power of two.
    pub fn new(shared: C, capacity: u64) -> Self {
        assert!(capacity.is_power_of_two(), "a ring's capacity is a power of two, not {capacity}");
        Self { shared, capacity, committed: 0, published: 0, head_seen: 0 }
    }

    /// Makes the producer of a ring that another process has filled so far, which has ended or hands it over.
    /// Units that it had committed and not published are not in the ring.
    pub fn resume(shared: C, capacity: u64) -> Result<Self, Corrupt> {
        let mut cursor = Self::new(shared, capacity);
        // Only this side writes this word, and whatever handed the ring over has ordered those writes.
        let tail = cursor.shared.tail_position().load(Ordering::Acquire);
        // pairs with the Release in ConsumerCursor::release
        let head = cursor.shared.head_position().load(Ordering::Acquire);
        let low = tail.saturating_sub(capacity);
        if head < low || head > tail {
            return Err(Corrupt { cursor: "head_position", value: head, low, high: tail });
        }
        (cursor.committed, cursor.published, cursor.head_seen) = (tail, tail, head);
        Ok(cursor)
    }

    /// True if the invariant holds; tests call it after each step.
    pub fn invariants(&self) -> bool {
        self.head_seen <= self.published
            && self.published <= self.committed
            && self.committed - self.head_seen <= self.capacity
    }

    /// Returns the shared words.
    pub fn shared(&self) -> &C {
        &self.shared
    }

    /// Returns the number of units in the buffer.
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Returns the position before which everything has been published.
    pub fn published_position(&self) -> u64 {
        self.published
    }

    /// Returns the position before which everything has been committed.
    pub fn committed_position(&self) -> u64 {
        self.committed
    }

    /// Returns the number of units that the consumer had not released when this side last looked.
    pub fn used(&self) -> u64 {
        self.committed - self.head_seen
    }

    /// Returns the number of units that the consumer has not released now, for information only: it leaves an
    /// impossible position to [`refresh`](Self::refresh) to refuse.
    pub fn used_now(&self) -> u64 {
        // pairs with the Release in ConsumerCursor::release
        let head = self.shared.head_position().load(Ordering::Acquire);
        self.committed - head.clamp(self.head_seen, self.published)
    }

    #[inline]
    fn free(&self) -> u64 {
        self.capacity - self.used()
    }

    /// Looks at the consumer's position.
    #[inline]
    pub fn refresh(&mut self) -> Result<(), Corrupt> {
        // pairs with the Release in ConsumerCursor::release
        let head = self.shared.head_position().load(Ordering::Acquire);
        if head < self.head_seen || head > self.published {
            return Err(Corrupt {
                cursor: "head_position",
                value: head,
                low: self.head_seen,
                high: self.published,
            });
        }
        self.head_seen = head;
        Ok(())
    }

    /// Claims room for up to `length` units after the committed ones; fewer, or none, if the ring is
    /// too full. The room is this side's until it is committed.
    #[inline]
    pub fn claim(&mut self, length: u64) -> Result<Spans, Corrupt> {
        if self.free() < length {
            self.refresh()?;
        }
        Ok(Spans::of(self.committed, length.min(self.free()), self.capacity))
    }

    /// Commits the first `length` units of the last claim, which the caller has filled.
    #[inline]
    pub fn commit(&mut self, length: u64) {
        assert!(length <= self.free(), "{length} committed where only {} were free", self.free());
        self.committed += length;
    }

    /// Makes everything committed visible to the consumer.
    #[inline]
    pub fn publish(&mut self) -> Wake {
        if self.published == self.committed {
            return Wake::Quiet;
        }
        self.published = self.committed;
        // pairs with the Acquire in ConsumerCursor::refresh
        self.shared.tail_position().store(self.published, Ordering::Release);
        // pairs with the fence in ConsumerCursor::sleep
        self.shared.fence();
        if self.shared.consumer_asleep().load(Ordering::Relaxed) == 0 {
            return Wake::Quiet;
        }
        if self.shared.consumer_asleep().swap(0, Ordering::AcqRel) == 0 { Wake::Quiet } else { Wake::Bell }
    }

    /// Asks for the bell once `length` units are free. False if they are free already, or if the fence
    /// has failed: then this side must not wait, but look again. Everything committed must have been published: the
    /// consumer can never release units that it does not see.
    pub fn wait_for_room(&mut self, length: u64) -> Result<bool, Corrupt> {
        debug_assert!(self.published == self.committed, "waiting for room with bytes that are not published");
        let length = length.clamp(1, self.capacity);
        if self.free() >= length {
            return Ok(false);
        }
        // `wanted` is above 0: with less than `length` free, more than the rest of the capacity is committed.
        let wanted = self.committed - (self.capacity - length);
        self.shared.producer_wants().store(wanted, Ordering::Relaxed);
        // pairs with the fence in ConsumerCursor::release
        let is_ordered = self.shared.sleep_fence();
        self.refresh()?;
        if self.free() >= length || !is_ordered {
            self.stop_waiting();
            return Ok(false);
        }
        Ok(true)
    }

    /// Takes back the request of [`wait_for_room`](Self::wait_for_room). False if there was no request
    /// left: the consumer may have taken it first, and then its bell is on its way.
    pub fn stop_waiting(&mut self) -> bool {
        self.shared.producer_wants().swap(0, Ordering::AcqRel) != 0
    }
}

/// The reading side's positions. One thread at a time may use them.
///
/// Invariant: `head <= tail_seen <= head + capacity`.
#[derive(Debug)]
pub struct ConsumerCursor<C> {
    shared: C,
    capacity: u64,
    head: u64,
    tail_seen: u64,
}

impl<C: Cursors> ConsumerCursor<C> {
    /// Makes the consumer of an empty ring. `capacity` is a power of two.
    pub fn new(shared: C, capacity: u64) -> Self {
        assert!(capacity.is_power_of_two(), "a ring's capacity is a power of two, not {capacity}");
        Self { shared, capacity, head: 0, tail_seen: 0 }
    }

    /// Makes the consumer of a ring that another process has read so far, which has ended or hands it over.
    /// Units that it had polled and not released are still in the ring.
    pub fn resume(shared: C, capacity: u64) -> Result<Self, Corrupt> {
        let mut cursor = Self::new(shared, capacity);
        // Only this side writes this word, and whatever handed the ring over has ordered those writes.
        cursor.head = cursor.shared.head_position().load(Ordering::Acquire);
        cursor.tail_seen = cursor.head;
        cursor.refresh()?;
        Ok(cursor)
    }

    /// True if the invariant holds; tests call it after each step.
    pub fn invariants(&self) -> bool {
        self.head <= self.tail_seen && self.tail_seen - self.head <= self.capacity
    }

    /// Returns the shared words.
    pub fn shared(&self) -> &C {
        &self.shared
    }

    /// Returns the number of units in the buffer.
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Returns the position before which everything has been released.
    pub fn head_position(&self) -> u64 {
        self.head
    }

    /// Returns the number of units published and not released, when this side last looked.
    #[inline]
    pub fn available(&self) -> u64 {
        self.tail_seen - self.head
    }

    /// Looks at the producer's position.
    #[inline]
    pub fn refresh(&mut self) -> Result<(), Corrupt> {
        // pairs with the Release in ProducerCursor::publish
        let tail = self.shared.tail_position().load(Ordering::Acquire);
        if tail < self.tail_seen || tail - self.head > self.capacity {
            return Err(Corrupt {
                cursor: "tail_position",
                value: tail,
                low: self.tail_seen,
                high: self.head.saturating_add(self.capacity),
            });
        }
        self.tail_seen = tail;
        Ok(())
    }

    /// Returns the spans that can be read: at least `length` units if that many are there, otherwise all.
    #[inline]
    pub fn poll(&mut self, length: u64) -> Result<Spans, Corrupt> {
        if self.available() < length {
            self.refresh()?;
        }
        Ok(Spans::of(self.head, self.available(), self.capacity))
    }

    /// Releases the first `length` polled units to the producer.
    #[inline]
    pub fn release(&mut self, length: u64) -> Wake {
        assert!(
            length <= self.available(),
            "{length} released where only {} were available",
            self.available()
        );
        self.head += length;
        // pairs with the Acquire in ProducerCursor::refresh
        self.shared.head_position().store(self.head, Ordering::Release);
        // pairs with the fence in ProducerCursor::wait_for_room
        self.shared.fence();
        let wanted = self.shared.producer_wants().load(Ordering::Relaxed);
        if wanted == 0 || self.head < wanted {
            return Wake::Quiet;
        }
        if self.shared.producer_wants().swap(0, Ordering::AcqRel) == 0 { Wake::Quiet } else { Wake::Bell }
    }

    /// Announces that this side is about to wait for its bell. False if there are units that it has
    /// not released, or if the fence has failed: then this side must not wait, but look again.
    pub fn sleep(&mut self) -> Result<bool, Corrupt> {
        if self.available() > 0 {
            return Ok(false);
        }
        self.shared.consumer_asleep().store(1, Ordering::Relaxed);
        // pairs with the fence in ProducerCursor::publish
        let is_ordered = self.shared.sleep_fence();
        self.refresh()?;
        if self.available() > 0 || !is_ordered {
            self.wake();
            return Ok(false);
        }
        Ok(true)
    }

    /// Announces that this side no longer waits. False if its flag was not set: the producer may have been first,
    /// and then its bell is on its way.
    pub fn wake(&mut self) -> bool {
        self.shared.consumer_asleep().swap(0, Ordering::AcqRel) != 0
    }
}

/// A run of offsets in the buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    /// The first offset.
    pub offset: usize,
    /// The number of offsets.
    pub length: usize,
}

/// A run of positions: two spans where it passes the end of the buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spans {
    /// The part up to the end of the buffer.
    pub first: Span,
    /// The part from the start of the buffer; often empty.
    pub second: Span,
}

impl Spans {
    #[inline]
    fn of(position: u64, length: u64, capacity: u64) -> Self {
        let offset = (position & (capacity - 1)) as usize;
        let length = length as usize;
        let before_end = length.min(capacity as usize - offset);
        Self {
            first: Span { offset, length: before_end },
            second: Span { offset: 0, length: length - before_end },
        }
    }

    /// Returns the number of bytes or items in both spans.
    #[inline]
    pub fn length(&self) -> usize {
        self.first.length + self.second.length
    }

    /// Returns every offset in both spans, in order.
    #[inline]
    pub fn offsets(&self) -> impl Iterator<Item = usize> + use<> {
        let (first, second) = (self.first, self.second);
        (first.offset..first.offset + first.length).chain(second.offset..second.offset + second.length)
    }

    /// Returns the first `length` offsets, or all if there are fewer.
    #[inline]
    pub fn first(&self, length: usize) -> Self {
        let first = self.first.length.min(length);
        let second = self.second.length.min(length - first);
        Self { first: Span { length: first, ..self.first }, second: Span { length: second, ..self.second } }
    }

    /// True if both spans are empty.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.length() == 0
    }
}
