//! How a ring reaches the memory that its two sides share.
//!
//! The cursors reach it through [`Cursors`] and [`SharedWord`], so that a model checker can put its own
//! atomics there; data goes through [`RingBytes`] or [`Slots`].

use std::sync::atomic::{AtomicU64, Ordering};

use caravan_segment::barrier::Fences;
use caravan_segment::{Error, SharedSlice};

/// A 64-bit word that both sides can reach.
pub trait SharedWord {
    /// Loads the word atomically.
    fn load(&self, order: Ordering) -> u64;
    /// Stores the word atomically.
    fn store(&self, value: u64, order: Ordering);
    /// Exchanges the word atomically, and returns its old value.
    fn swap(&self, value: u64, order: Ordering) -> u64;
}

impl SharedWord for AtomicU64 {
    #[inline]
    fn load(&self, order: Ordering) -> u64 {
        self.load(order)
    }
    #[inline]
    fn store(&self, value: u64, order: Ordering) {
        self.store(value, order);
    }
    #[inline]
    fn swap(&self, value: u64, order: Ordering) -> u64 {
        self.swap(value, order)
    }
}

/// The four shared words of a ring.
///
/// | word | written by | read by | means |
/// |---|---|---|---|
/// | `tail_position` | producer | consumer | everything before it may be read |
/// | `head_position` | consumer | producer | everything before it may be overwritten |
/// | `consumer_asleep` | consumer: 1; producer: 0 by swap | producer | 1: ring the bell after publishing |
/// | `producer_wants` | producer: position; consumer: 0 by swap | consumer | not 0: ring the bell once `head_position` has reached it |
pub trait Cursors {
    /// The type of the words.
    type Word: SharedWord;
    /// The end of what may be read.
    fn tail_position(&self) -> &Self::Word;
    /// The end of what may be overwritten.
    fn head_position(&self) -> &Self::Word;
    /// 1 while the consumer sleeps.
    fn consumer_asleep(&self) -> &Self::Word;
    /// The head position that a blocked producer waits for, or 0.
    fn producer_wants(&self) -> &Self::Word;
    /// Called by the side that has moved a position, before it looks at the other's flag: orders the
    /// store before the load, together with the other side's [`sleep_fence`](Self::sleep_fence).
    fn fence(&self);
    /// Called by the side that has set its flag, before it looks at the other's position. False if nothing was
    /// ordered: then that side must not sleep.
    #[must_use = "without the fence a wake-up can be lost"]
    fn sleep_fence(&self) -> bool {
        self.fence();
        true
    }
}

/// The buffer of a byte ring. Offsets are always below `capacity`, and `offset + len` is at most `capacity`.
pub trait RingBytes {
    /// Returns the number of bytes in the buffer: a power of two.
    fn capacity(&self) -> u64;
    /// Copies `from` to `offset`.
    fn copy_in(&self, offset: usize, from: &[u8]);
    /// Copies the bytes at `offset` to `to`.
    fn copy_out(&self, offset: usize, to: &mut [u8]);
    /// Hints that the cache line at `offset` will be written soon.
    fn expect_write(&self, offset: usize) {
        let _ = offset;
    }
}

/// The buffer of a slot ring.
pub trait Slots {
    /// Returns the number of slots in the buffer: a power of two.
    fn capacity(&self) -> u64;
    /// Puts `item` into slot `index`.
    fn put(&self, index: usize, item: u32);
    /// Returns the item in slot `index`.
    fn take(&self, index: usize) -> u32;
}

/// The number of bytes of the four words in shared memory: each on a pair of cache lines of its own, because
/// processors fetch lines in pairs.
pub const HEADER_BYTES: usize = 512;

/// The offset of `tail_position` in the header.
pub const TAIL_AT: usize = 0;
/// The offset of `head_position` in the header.
pub const HEAD_AT: usize = 128;
const ASLEEP_AT: usize = 256;
const WANTS_AT: usize = 384;

/// The four words, in mapped memory. If all are zero the ring is empty, so new memory is an empty ring.
#[derive(Clone, Debug)]
pub struct MappedCursors {
    header: SharedSlice,
    fences: Fences,
}

impl MappedCursors {
    /// Returns the words in the first [`HEADER_BYTES`] of `slice`. Both sides must use the same `fences`.
    pub fn new(slice: &SharedSlice, fences: Fences) -> Result<Self, Error> {
        Ok(Self { header: slice.part(0, HEADER_BYTES as u64)?, fences })
    }
}

impl Cursors for MappedCursors {
    type Word = AtomicU64;
    #[inline]
    fn tail_position(&self) -> &AtomicU64 {
        self.header.word(TAIL_AT)
    }
    #[inline]
    fn head_position(&self) -> &AtomicU64 {
        self.header.word(HEAD_AT)
    }
    #[inline]
    fn consumer_asleep(&self) -> &AtomicU64 {
        self.header.word(ASLEEP_AT)
    }
    #[inline]
    fn producer_wants(&self) -> &AtomicU64 {
        self.header.word(WANTS_AT)
    }
    #[inline]
    fn fence(&self) {
        self.fences.light();
    }
    fn sleep_fence(&self) -> bool {
        self.fences.heavy()
    }
}

/// The buffer of a byte ring in mapped memory.
#[derive(Clone, Debug)]
pub struct MappedBytes {
    slice: SharedSlice,
}

impl MappedBytes {
    /// Makes a buffer of all of `slice`, whose size must be a power of two.
    pub fn new(slice: SharedSlice) -> Result<Self, Error> {
        power_of_two(slice.bytes())?;
        Ok(Self { slice })
    }

    /// Returns the memory of the buffer, for system calls that read or write it in place.
    pub fn slice(&self) -> &SharedSlice {
        &self.slice
    }
}

impl RingBytes for MappedBytes {
    #[inline]
    fn capacity(&self) -> u64 {
        self.slice.bytes()
    }
    #[inline]
    fn copy_in(&self, offset: usize, from: &[u8]) {
        self.slice.copy_in(offset, from);
    }
    #[inline]
    fn copy_out(&self, offset: usize, to: &mut [u8]) {
        self.slice.copy_out(offset, to);
    }
    #[inline]
    fn expect_write(&self, offset: usize) {
        self.slice.expect_write(offset);
    }
}

/// The buffer of a slot ring in mapped memory: 32-bit items.
#[derive(Clone, Debug)]
pub struct MappedSlots {
    slice: SharedSlice,
}

impl MappedSlots {
    /// Makes a buffer of all of `slice`, whose size must be a power of two.
    pub fn new(slice: SharedSlice) -> Result<Self, Error> {
        power_of_two(slice.bytes())?;
        Ok(Self { slice })
    }
}

impl Slots for MappedSlots {
    #[inline]
    fn capacity(&self) -> u64 {
        self.slice.bytes() / 4
    }
    #[inline]
    fn put(&self, index: usize, item: u32) {
        self.slice.half_word(index * 4).store(item, Ordering::Relaxed);
    }
    #[inline]
    fn take(&self, index: usize) -> u32 {
        self.slice.half_word(index * 4).load(Ordering::Relaxed)
    }
}

fn power_of_two(bytes: u64) -> Result<(), Error> {
    if bytes.is_power_of_two() && bytes >= 8 { Ok(()) } else { Err(Error::Size { bytes, maximum: 1 << 40 }) }
}
