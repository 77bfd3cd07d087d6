//! What a connection needs of the emulator. The real one is in `port`; tests have their own.

use std::ops::Range;

/// A reference-counted binary of the emulator.
pub trait Binary: Sized {
    /// The bytes `range` of it, to be filled: none that has been delivered, for those are being read.
    fn bytes_mut(&mut self, range: Range<usize>) -> &mut [u8];
    /// Bytes in it.
    fn length(&self) -> usize;
    /// Changes its size; its contents up to the smaller size stay. `None`, and the binary is gone,
    /// if there is no memory.
    fn resized(self, bytes: usize) -> Option<Self>;
}

/// The emulator, as one port sees it during a callback.
pub trait Emulator {
    /// Its binaries.
    type Binary: Binary;

    /// A binary of `bytes` bytes, contents arbitrary.
    fn allocate(&mut self, bytes: usize) -> Option<Self::Binary>;

    /// Hands the distribution message at `offset` over. The emulator may keep `binary`, so the
    /// bytes delivered must not be written any more.
    fn deliver(&mut self, binary: &Self::Binary, offset: usize, length: usize);

    /// Bytes in the port's queue.
    fn queued_bytes(&self) -> usize;

    /// Appends a copy of `bytes` to the queue.
    fn enqueue(&mut self, bytes: &[u8]);

    /// Appends what the emulator is sending to the queue, without its first `skip` bytes, by
    /// reference.
    fn enqueue_output(&mut self, skip: usize);

    /// Shows the queue's bytes in pieces to `each`, until that says false.
    fn peek_queue(&self, each: &mut dyn FnMut(&[u8]) -> bool);

    /// Drops the first `bytes` of the queue.
    fn dequeue(&mut self, bytes: usize);

    /// Tells the emulator to hold its messages back, or to send them again.
    fn set_busy(&mut self, busy: bool);
}
