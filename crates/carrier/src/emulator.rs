//! What a connection needs from the emulator. The real emulator is in `port`; tests have their own.

use std::ops::Range;

/// A reference-counted binary of the emulator.
pub trait Binary: Sized {
    /// Returns the bytes `range` of the binary, to be filled. No delivered byte may be in it: those are being read.
    fn bytes_mut(&mut self, range: Range<usize>) -> &mut [u8];
    /// Returns the number of bytes of the binary.
    fn length(&self) -> usize;
    /// Changes the size; the contents up to the smaller size stay. Returns `None`, and frees the binary,
    /// if there is no memory.
    fn resized(self, bytes: usize) -> Option<Self>;
}

/// The emulator, as one port sees it during a callback.
pub trait Emulator {
    /// The emulator's binaries.
    type Binary: Binary;

    /// Allocates a binary of `bytes` bytes with arbitrary contents.
    fn allocate(&mut self, bytes: usize) -> Option<Self::Binary>;

    /// Delivers the distribution message at `offset`. The emulator may keep `binary`, so the
    /// bytes delivered must not be written any more.
    fn deliver(&mut self, binary: &Self::Binary, offset: usize, length: usize);

    /// Returns the number of bytes in the port's queue.
    fn queued_bytes(&self) -> usize;

    /// Appends a copy of `bytes` to the queue.
    fn enqueue(&mut self, bytes: &[u8]);

    /// Appends the message that the emulator is sending to the queue, without its first `skip` bytes, by
    /// reference.
    fn enqueue_output(&mut self, skip: usize);

    /// Shows the queue's bytes in pieces to `each`, until `each` returns false.
    fn peek_queue(&self, each: &mut dyn FnMut(&[u8]) -> bool);

    /// Drops the first `bytes` bytes of the queue.
    fn dequeue(&mut self, bytes: usize);

    /// Tells the emulator to hold its messages back, or to send them again.
    fn set_busy(&mut self, busy: bool);
}
