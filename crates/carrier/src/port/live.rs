//! The emulator behind a port, as the logic sees it: [`Emulator`] by means of `erl_driver.h`.

use std::ffi::c_int;
use std::ops::Range;
use std::ptr::NonNull;
use std::slice;

use super::abi::*;
use crate::emulator::{Binary, Emulator};

/// A driver binary that this side holds one reference to.
#[derive(Debug)]
pub struct DriverBinary {
    binary: NonNull<ErlDrvBinary>,
    length: usize,
}

// SAFETY: any thread of the emulator may use a driver binary, one at a time; a port moves
// between schedulers under its lock.
unsafe impl Send for DriverBinary {}

impl DriverBinary {
    fn of(binary: *mut ErlDrvBinary, length: usize) -> Option<Self> {
        NonNull::new(binary).map(|binary| Self { binary, length })
    }
}

impl Binary for DriverBinary {
    fn bytes_mut(&mut self, range: Range<usize>) -> &mut [u8] {
        assert!(range.start <= range.end && range.end <= self.length, "bytes outside their binary");
        // SAFETY: the allocation has `length` bytes from `orig_bytes` on, which came from
        // `driver_alloc_binary` and so may be viewed as bytes; `range` is within them. The caller asks
        // for no bytes that it has delivered, and nobody else knows of the others.
        unsafe {
            let first = (&raw mut (*self.binary.as_ptr()).orig_bytes).cast::<u8>();
            slice::from_raw_parts_mut(first.add(range.start), range.len())
        }
    }

    fn length(&self) -> usize {
        self.length
    }

    fn resized(self, bytes: usize) -> Option<Self> {
        // SAFETY: this value owns the binary, which has not been delivered: its count is 1.
        let resized = unsafe { driver_realloc_binary(self.binary.as_ptr(), bytes) };
        if resized.is_null() {
            // The old binary still exists: dropping `self` frees it.
            return None;
        }
        std::mem::forget(self);
        Self::of(resized, bytes)
    }
}

impl Drop for DriverBinary {
    fn drop(&mut self) {
        // SAFETY: this gives back the one reference that this value holds.
        unsafe { driver_free_binary(self.binary.as_ptr()) }
    }
}

/// The bytes that keep a port's queue from being empty.
const KEPT: [u8; 1] = [0];

/// The emulator during one callback of one port.
#[derive(Debug)]
pub struct LiveEmulator {
    port: ErlDrvPort,
    /// The number of bytes at the head of the port's queue that belong to no message: see [`LiveEmulator::keep`].
    kept: usize,
    /// The argument of `outputv`, while it runs.
    output: *mut ErlIOVec,
}

impl LiveEmulator {
    /// For any callback but `outputv`. `kept` is what [`LiveEmulator::keep`] has returned for this port.
    pub fn new(port: ErlDrvPort, kept: usize) -> Self {
        Self { port, kept, output: std::ptr::null_mut() }
    }

    /// Adds the argument of `outputv`, for its callback.
    pub fn with_output(self, output: *mut ErlIOVec) -> Self {
        Self { output, ..self }
    }

    /// Puts a byte into the queue that stays at its head: before the emulator closes the port, it therefore asks
    /// the port to flush, and waits until the queue is empty. Returns the number of bytes kept.
    pub fn keep(&self) -> usize {
        if self.kept == 0 {
            self.push_kept();
        }
        KEPT.len()
    }

    fn push_kept(&self) {
        // SAFETY: the port is this callback's own; the emulator copies the bytes and does not write them.
        unsafe { driver_pushq(self.port, KEPT.as_ptr().cast_mut().cast(), KEPT.len()) };
    }

    /// Empties the queue, with the kept bytes: a port that is closing closes now.
    pub fn let_go(&self) {
        // SAFETY: the port is this callback's own.
        unsafe { driver_deq(self.port, driver_sizeq(self.port)) };
    }
}

/// Returns the bytes of `vector`, without empty parts.
///
/// # Safety
/// `vector` has `count` parts, valid for reads and unchanged as long as the result is used.
pub unsafe fn parts<'a>(vector: *const SysIOVec, count: c_int) -> impl Iterator<Item = &'a [u8]> {
    (0..usize::try_from(count).unwrap_or(0)).filter_map(move |i| {
        // SAFETY: `i < count`, and the caller promises `count` parts.
        let part = unsafe { *vector.add(i) };
        if part.iov_len == 0 || part.iov_base.is_null() {
            return None;
        }
        // SAFETY: the caller promises it.
        Some(unsafe { slice::from_raw_parts(part.iov_base, part.iov_len) })
    })
}

impl Emulator for LiveEmulator {
    type Binary = DriverBinary;

    fn allocate(&mut self, bytes: usize) -> Option<DriverBinary> {
        // SAFETY: any thread of the emulator may call this.
        DriverBinary::of(unsafe { driver_alloc_binary(bytes) }, bytes)
    }

    fn deliver(&mut self, binary: &DriverBinary, offset: usize, length: usize) {
        assert!(offset <= binary.length && length <= binary.length - offset, "a message outside its binary");
        // SAFETY: the range is in bounds; the port is this callback's own. The emulator takes references of
        // its own if it keeps the bytes.
        let failed = unsafe {
            driver_output_binary(self.port, std::ptr::null_mut(), 0, binary.binary.as_ptr(), offset, length)
        };
        // If the emulator refuses a message, it closes the port by itself.
        let _ = failed;
    }

    fn queued_bytes(&self) -> usize {
        // SAFETY: the port is this callback's own.
        let queued = unsafe { driver_sizeq(self.port) };
        // No byte is kept any more once the queue has been emptied.
        queued.saturating_sub(self.kept)
    }

    fn enqueue(&mut self, bytes: &[u8]) {
        // SAFETY: the emulator copies `bytes` and does not write them.
        unsafe { driver_enq(self.port, bytes.as_ptr().cast_mut().cast(), bytes.len()) };
    }

    fn enqueue_output(&mut self, skip: usize) {
        if !self.output.is_null() {
            // SAFETY: `output` is the argument of `outputv`, which still runs; the emulator
            // takes references to its binaries, and copies the rest.
            unsafe { driver_enqv(self.port, self.output, skip) };
        }
    }

    fn peek_queue(&self, each: &mut dyn FnMut(&[u8]) -> bool) {
        let (mut count, mut kept): (c_int, usize) = (0, self.kept);
        let unkept = |part: &[u8]| {
            let skipped = kept.min(part.len());
            kept -= skipped;
            skipped == part.len() || each(&part[skipped..])
        };
        // SAFETY: the port is this callback's own; the vector is valid until its queue changes,
        // which nothing in `each` does.
        unsafe {
            let vector = driver_peekq(self.port, &mut count);
            if !vector.is_null() {
                parts(vector, count).all(unkept);
            }
        }
    }

    fn dequeue(&mut self, bytes: usize) {
        if bytes == 0 {
            return;
        }
        // SAFETY: the port is this callback's own.
        unsafe { driver_deq(self.port, bytes + self.kept) };
        if self.kept > 0 {
            self.push_kept();
        }
    }

    fn set_busy(&mut self, busy: bool) {
        // SAFETY: the port is this callback's own.
        unsafe { set_busy_port(self.port, c_int::from(busy)) }
    }
}
