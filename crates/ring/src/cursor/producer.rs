//! `head_seen <= published <= committed <= head_seen + capacity`.

use std::sync::atomic::Ordering;

use super::{Corrupt, Spans, Wake};
use crate::memory::{Cursors, Word};

/// The writing side's positions. One thread at a time.
#[derive(Debug)]
pub struct ProducerCursor<C> {
    shared: C,
    capacity: u64,
    committed: u64,
    published: u64,
    head_seen: u64,
}

impl<C: Cursors> ProducerCursor<C> {
    /// The producer of an empty ring. `capacity` is a power of two.
    pub fn new(shared: C, capacity: u64) -> Self {
        assert!(capacity.is_power_of_two(), "a ring's capacity is a power of two, not {capacity}");
        Self { shared, capacity, committed: 0, published: 0, head_seen: 0 }
    }

    /// The producer of a ring that another process has filled so far: it has ended, or hands over.
    /// What it had committed and not published is not in the ring.
    pub fn resume(shared: C, capacity: u64) -> Result<Self, Corrupt> {
        let mut cursor = Self::new(shared, capacity);
        // Written by this side alone; what brought us here ordered it.
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

    /// What always holds; tests call it after each step.
    pub fn invariants(&self) -> bool {
        self.head_seen <= self.published
            && self.published <= self.committed
            && self.committed - self.head_seen <= self.capacity
    }

    /// The shared words.
    pub fn shared(&self) -> &C {
        &self.shared
    }

    /// Units in the buffer.
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Everything before it has been published.
    pub fn published_position(&self) -> u64 {
        self.published
    }

    /// Everything before it has been filled.
    pub fn committed_position(&self) -> u64 {
        self.committed
    }

    /// Units that the consumer had not released when this side last looked.
    pub fn used(&self) -> u64 {
        self.committed - self.head_seen
    }

    /// Units that the consumer has not released now, for who only wants to know: a position that
    /// cannot be is left to [`refresh`](Self::refresh) to refuse.
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

    /// Room for up to `length` units after what is committed; less, or nothing, if the ring is
    /// that full. The room is this side's until it is committed.
    #[inline]
    pub fn claim(&mut self, length: u64) -> Result<Spans, Corrupt> {
        if self.free() < length {
            self.refresh()?;
        }
        Ok(Spans::of(self.committed, length.min(self.free()), self.capacity))
    }

    /// Says that the first `length` units of the last claim are filled.
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
    /// has failed: then it must not wait, but look again. Everything committed must have been published: what the consumer
    /// does not see, it can never release.
    pub fn wait_for_room(&mut self, length: u64) -> Result<bool, Corrupt> {
        debug_assert!(self.published == self.committed, "waiting for room with bytes that are not published");
        let length = length.clamp(1, self.capacity);
        if self.free() >= length {
            return Ok(false);
        }
        // Above 0: with less than `length` free, more than the rest of the capacity is committed.
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

    /// Takes back what [`wait_for_room`](Self::wait_for_room) asked for. False if there was nothing
    /// to take back; if the consumer was first, its bell is on its way.
    pub fn stop_waiting(&mut self) -> bool {
        self.shared.producer_wants().swap(0, Ordering::AcqRel) != 0
    }
}
