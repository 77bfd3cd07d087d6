//! `head <= tail_seen <= head + capacity`.

use std::sync::atomic::Ordering;

use super::{Corrupt, Spans, Wake};
use crate::memory::{Cursors, Word};

/// The reading side's positions. One thread at a time.
#[derive(Debug)]
pub struct ConsumerCursor<C> {
    shared: C,
    capacity: u64,
    head: u64,
    tail_seen: u64,
}

impl<C: Cursors> ConsumerCursor<C> {
    /// The consumer of an empty ring. `capacity` is a power of two.
    pub fn new(shared: C, capacity: u64) -> Self {
        assert!(capacity.is_power_of_two(), "a ring's capacity is a power of two, not {capacity}");
        Self { shared, capacity, head: 0, tail_seen: 0 }
    }

    /// The consumer of a ring that another process has read so far: it has ended, or hands over.
    /// What it had polled and not released is in the ring still.
    pub fn resume(shared: C, capacity: u64) -> Result<Self, Corrupt> {
        let mut cursor = Self::new(shared, capacity);
        // Written by this side alone; what brought us here ordered it.
        cursor.head = cursor.shared.head_position().load(Ordering::Acquire);
        cursor.tail_seen = cursor.head;
        cursor.refresh()?;
        Ok(cursor)
    }

    /// What always holds; tests call it after each step.
    pub fn invariants(&self) -> bool {
        self.head <= self.tail_seen && self.tail_seen - self.head <= self.capacity
    }

    /// The shared words.
    pub fn shared(&self) -> &C {
        &self.shared
    }

    /// Units in the buffer.
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Everything before it has been released.
    pub fn head_position(&self) -> u64 {
        self.head
    }

    /// Units published and not released, when this side last looked.
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

    /// What can be read: at least `length` units if that many are there, else all there are.
    #[inline]
    pub fn poll(&mut self, length: u64) -> Result<Spans, Corrupt> {
        if self.available() < length {
            self.refresh()?;
        }
        Ok(Spans::of(self.head, self.available(), self.capacity))
    }

    /// Gives the first `length` units of what was polled back to the producer.
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

    /// Says that this side is about to wait for its bell. False if there is something that it has
    /// not released after all, or if the fence has failed: then it must not wait, but look again.
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

    /// Says that this side no longer waits. False if it had not said so; if the producer was first,
    /// its bell is on its way.
    pub fn wake(&mut self) -> bool {
        self.shared.consumer_asleep().swap(0, Ordering::AcqRel) != 0
    }
}
