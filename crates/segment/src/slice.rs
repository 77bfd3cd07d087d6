//! A checked part of a segment. `unsafe`: every access to shared bytes.

#![allow(unsafe_code, reason = "reads and writes shared memory through raw pointers")]

use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::error::Error;
use crate::memory::Segment;

/// A part of a [`Segment`], with every access checked against its bounds.
///
/// A breach of bounds is a programming error: a face checks a peer's numbers before it uses them here,
/// so a breach panics.
#[derive(Clone, Debug)]
pub struct SharedSlice {
    start: NonNull<u8>,
    bytes: usize,
    segment: Arc<Segment>,
}

// SAFETY: as for `Segment`, which the slice keeps alive.
unsafe impl Send for SharedSlice {}
// SAFETY: as for `Segment`.
unsafe impl Sync for SharedSlice {}

/// Asks for the cache line at `address`, to be written soon. A hint: it changes no memory, and processors
/// that have no such instruction ignore it.
#[inline]
pub fn expect_write(address: *const u8) {
    // SAFETY: a prefetch may name any address; it neither reads nor writes nor faults.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        std::arch::asm!("prefetchw [{}]", in(reg) address, options(nostack, preserves_flags));
    }
    // SAFETY: as above.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        std::arch::asm!("prfm pstl1keep, [{}]", in(reg) address, options(nostack, preserves_flags));
    }
}

/// A function of its own: to format numbers here and now, every access would first store them for it.
#[cold]
#[inline(never)]
fn outside(offset: usize, bytes: usize, slice_bytes: usize) -> ! {
    panic!("bytes {offset}..{offset}+{bytes} are outside a slice of {slice_bytes}");
}

impl SharedSlice {
    /// Returns the slice of `bytes` bytes from `start` on.
    ///
    /// # Safety
    /// The bytes are committed memory of `segment`'s mapping, and `start` is a multiple of 8.
    pub(crate) unsafe fn new(start: NonNull<u8>, bytes: usize, segment: Arc<Segment>) -> Self {
        Self { start, bytes, segment }
    }

    /// Returns the number of bytes in the slice.
    pub fn bytes(&self) -> u64 {
        self.bytes as u64
    }

    /// Returns the segment of the slice.
    pub fn segment(&self) -> &Arc<Segment> {
        &self.segment
    }

    /// Returns a part of this slice; `offset` is a multiple of 8.
    pub fn part(&self, offset: u64, bytes: u64) -> Result<SharedSlice, Error> {
        match offset.checked_add(bytes) {
            Some(end) if end <= self.bytes() && offset % 8 == 0 => {}
            _ => {
                return Err(Error::Range { offset, bytes, segment_bytes: self.bytes() });
            }
        }
        // SAFETY: `offset` is inside the slice.
        let start = unsafe { self.start.add(offset as usize) };
        Ok(SharedSlice { start, bytes: bytes as usize, segment: Arc::clone(&self.segment) })
    }

    #[inline]
    fn check(&self, offset: usize, bytes: usize) {
        if offset > self.bytes || bytes > self.bytes - offset {
            outside(offset, bytes, self.bytes);
        }
    }

    /// Returns the 64-bit word at `offset`, a multiple of 8.
    #[inline]
    pub fn word(&self, offset: usize) -> &AtomicU64 {
        self.check(offset, 8);
        assert!(offset % 8 == 0, "a word at {offset} would not be aligned");
        // SAFETY: the word is in bounds and aligned (slices start on multiples of 8 of a page-aligned
        // mapping); the memory lives as long as `self` does; an atomic may be shared with writers
        // in this or another process.
        unsafe { AtomicU64::from_ptr(self.start.as_ptr().add(offset).cast()) }
    }

    /// Returns the 32-bit word at `offset`, a multiple of 4.
    #[inline]
    pub fn half_word(&self, offset: usize) -> &AtomicU32 {
        self.check(offset, 4);
        assert!(offset % 4 == 0, "a half word at {offset} would not be aligned");
        // SAFETY: as in `word`.
        unsafe { AtomicU32::from_ptr(self.start.as_ptr().add(offset).cast()) }
    }

    /// Asks for the cache line at `offset`, to be written soon. A hint.
    #[inline]
    pub fn expect_write(&self, offset: usize) {
        expect_write(self.start.as_ptr().wrapping_add(offset));
    }

    /// Copies `from` to `offset`.
    #[inline]
    pub fn copy_in(&self, offset: usize, from: &[u8]) {
        self.check(offset, from.len());
        // SAFETY: the bytes are in bounds; `from` is private memory of this process, so the two do not overlap.
        // A peer may read at the same time: it gets torn bytes, which it must not use before the
        // cursor says so.
        unsafe { ptr::copy_nonoverlapping(from.as_ptr(), self.start.as_ptr().add(offset), from.len()) }
    }

    /// Copies the bytes at `offset` to `to`.
    #[inline]
    pub fn copy_out(&self, offset: usize, to: &mut [u8]) {
        self.check(offset, to.len());
        // SAFETY: the bytes are in bounds; `to` is private and exclusive. A hostile peer may write at the same
        // time: then `to` holds bytes of its choice, which it could have sent anyway.
        unsafe { ptr::copy_nonoverlapping(self.start.as_ptr().add(offset), to.as_mut_ptr(), to.len()) }
    }

    /// Does what [`copy_out`](Self::copy_out) does, and loads each whole word all at once where `offset` is a multiple of 8.
    pub fn copy_words_out(&self, offset: usize, to: &mut [u8]) {
        let words = if offset % 8 == 0 { to.len() / 8 * 8 } else { 0 };
        let (whole, rest) = to.split_at_mut(words);
        for (at, word) in (offset..).step_by(8).zip(whole.chunks_exact_mut(8)) {
            word.copy_from_slice(&self.word(at).load(Ordering::Relaxed).to_ne_bytes());
        }
        self.copy_out(offset + words, rest);
    }

    /// Copies `bytes` bytes from this slice at `offset` to `to_offset` of another one.
    pub fn copy_to(&self, offset: usize, bytes: usize, to: &SharedSlice, to_offset: usize) {
        self.check(offset, bytes);
        to.check(to_offset, bytes);
        // SAFETY: both ranges are in bounds; `copy` allows them to overlap.
        unsafe { ptr::copy(self.start.as_ptr().add(offset), to.start.as_ptr().add(to_offset), bytes) }
    }

    /// Does what [`copy_to`](Self::copy_to) does, and copies each whole word all at once where both offsets are multiples
    /// of 8.
    pub fn copy_words_to(&self, offset: usize, bytes: usize, to: &SharedSlice, to_offset: usize) {
        let words = if offset % 8 == 0 && to_offset % 8 == 0 { bytes / 8 * 8 } else { 0 };
        for at in (0..words).step_by(8) {
            // Relaxed, both: whoever waits for these words is told by other means.
            let word = self.word(offset + at).load(Ordering::Relaxed);
            to.word(to_offset + at).store(word, Ordering::Relaxed);
        }
        self.copy_to(offset + words, bytes - words, to, to_offset + words);
    }

    /// Returns the address of the bytes `offset..offset + bytes`, for a system call or a foreign function
    /// that reads or writes there. The slice must outlive the use, and no Rust
    /// reference to the bytes may be made while a peer can write.
    #[inline]
    pub fn address(&self, offset: usize, bytes: usize) -> *mut u8 {
        self.check(offset, bytes);
        // SAFETY: the address is in bounds.
        unsafe { self.start.as_ptr().add(offset) }
    }
}
