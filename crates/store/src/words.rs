//! The memory of a store, as words; and a word by which a process knows that it owns one. `unsafe`: the words of an owner's or
//! a reader's mapping, and the one that is a process's own.
//!
//! Invariants of [`StoreWords`]: `bytes` bytes from `base` on are mapped, shared and readable until drop, and
//! writable if this process is the owner; no slice reaches past `committed` bytes, which the owner has backed
//! with memory; the file is sealed against shrinking, so no access can fault.

#![allow(unsafe_code, reason = "reads mapped memory as atomic words")]

use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use caravan_segment::{Segment, SegmentView, SharedSlice};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use crate::error::StoreError;
use crate::layout::FIRST_PAGE_BYTES;

/// The memory of a store, mapped by its owner or, without the right to write, by a reader.
#[derive(Debug)]
pub(crate) struct StoreWords {
    base: NonNull<u8>,
    bytes: u64,
    committed: AtomicU64,
    #[allow(dead_code, reason = "keeps the memory mapped")]
    kept: MappingHolder,
}

/// What keeps the mapping.
#[derive(Debug)]
#[allow(dead_code, reason = "keeps the memory mapped")]
enum MappingHolder {
    /// The owner's segment, all of which is addressed from the first word of the slice on.
    Owner(SharedSlice),
    Reader(SegmentView),
}

// SAFETY: the mapping is plain memory, which lives until drop, and is accessed by atomics alone.
unsafe impl Send for StoreWords {}
// SAFETY: as above.
unsafe impl Sync for StoreWords {}

impl StoreWords {
    /// Addresses a segment of which at least the first word is committed.
    pub(crate) fn of_owner(segment: &Arc<Segment>) -> Result<Self, StoreError> {
        let first = segment.slice(0, 8)?;
        let base = NonNull::new(first.address(0, 8)).ok_or(StoreError::NotAStore("it is not mapped"))?;
        let committed = AtomicU64::new(segment.committed_bytes());
        Ok(Self { base, bytes: segment.maximum_bytes(), committed, kept: MappingHolder::Owner(first) })
    }

    /// Maps a store's file for reading.
    pub(crate) fn of_reader(file: OwnedFd) -> Result<Self, StoreError> {
        let status = rustix::fs::fstat(&file).map_err(|error| StoreError::system("fstat", error))?;
        let bytes = u64::try_from(status.st_size).unwrap_or(0);
        let view = SegmentView::attach(file, bytes).map_err(|error| match error {
            caravan_segment::Error::Foreign(why) => StoreError::NotAStore(why),
            error => error.into(),
        })?;
        if bytes < FIRST_PAGE_BYTES {
            return Err(StoreError::NotAStore("it is too small"));
        }
        let base =
            NonNull::new(view.address().cast_mut()).ok_or(StoreError::NotAStore("it is not mapped"))?;
        let committed = AtomicU64::new(FIRST_PAGE_BYTES);
        Ok(Self { base, bytes, committed, kept: MappingHolder::Reader(view) })
    }

    /// Returns the number of bytes that are mapped.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Says that the owner has backed the first `bytes` bytes.
    pub(crate) fn set_committed(&self, bytes: u64) {
        // A number like any other: what is in the memory is ordered by the fences of its readers.
        self.committed.fetch_max(bytes.min(self.bytes), Ordering::Relaxed);
    }

    /// Returns `count` words from `place` on, or `None` if they are not inside the committed memory or
    /// `place` is not a multiple of 8. A reader may load from them, with relaxed order (loads of 8 bytes from
    /// read-only memory are defined for relaxed order alone), and never store.
    #[inline]
    pub(crate) fn words(&self, place: u64, count: usize) -> Option<&[AtomicU64]> {
        let end = place.checked_add((count as u64).checked_mul(8)?)?;
        if place % 8 != 0 || end > self.committed.load(Ordering::Relaxed) {
            return None;
        }
        // SAFETY: the words are in bounds of the mapping, which lives as long as `self`, and aligned, as the
        // mapping starts on a page. Atomics may be shared with writers in this or another process.
        Some(unsafe { std::slice::from_raw_parts(self.base.as_ptr().add(place as usize).cast(), count) })
    }

    /// Returns the place of a word that [`words`](Self::words) returned.
    #[inline]
    pub(crate) fn place_of(&self, word: &AtomicU64) -> u64 {
        (word.as_ptr().addr() - self.base.as_ptr().addr()) as u64
    }

    /// Asks for the cache line at `place`, to be read soon. A hint: any place is safe.
    #[inline]
    pub(crate) fn prefetch(&self, place: u64) {
        let address = self.base.as_ptr().wrapping_add(place as usize);
        // SAFETY: a prefetch may name any address; it neither reads nor writes nor faults.
        #[cfg(target_arch = "x86_64")]
        unsafe {
            std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(address.cast());
        }
        // SAFETY: as above.
        #[cfg(target_arch = "aarch64")]
        unsafe {
            std::arch::asm!("prfm pldl1keep, [{}]", in(reg) address, options(nostack, preserves_flags));
        }
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        let _ = address;
    }
}

/// Says that this process owns a store. A child of fork(2) has a copy of everything that the owner has but of this: the kernel
/// empties it there. So the child notices that it is not the owner, at the cost of a load.
///
/// Invariant: a page of private memory is mapped at the address until drop.
#[derive(Debug)]
pub(crate) struct ProcessWord(NonNull<AtomicU64>);

/// The bytes that are mapped: the kernel rounds them up to a page.
const PROCESS_WORD_BYTES: usize = 8;

// SAFETY: the word is plain memory, which lives until drop, and is accessed by atomics alone.
unsafe impl Send for ProcessWord {}
// SAFETY: as above.
unsafe impl Sync for ProcessWord {}

impl ProcessWord {
    /// Sets the word of this process.
    pub(crate) fn new() -> Result<Self, StoreError> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses where the new mapping lies, so it replaces none.
        let page = unsafe {
            mmap_anonymous(std::ptr::null_mut(), PROCESS_WORD_BYTES, protection, MapFlags::PRIVATE)
        };
        let page = page.map_err(|error| StoreError::system("mmap", error))?;
        let own =
            Self(NonNull::new(page.cast()).ok_or(StoreError::system("mmap", rustix::io::Errno::NOMEM))?);
        // SAFETY: the page was just mapped and is this word's alone; the advice concerns its contents in children.
        let advised = unsafe { madvise(page, PROCESS_WORD_BYTES, Advice::LinuxWipeOnFork) };
        advised.map_err(|error| StoreError::system("madvise", error))?;
        own.word().store(1, Ordering::Relaxed);
        Ok(own)
    }

    /// Tells whether this process has set the word.
    #[inline]
    pub(crate) fn is_ours(&self) -> bool {
        // Nothing else is ordered by it.
        self.word().load(Ordering::Relaxed) != 0
    }

    #[inline]
    fn word(&self) -> &AtomicU64 {
        // SAFETY: the word is mapped until drop (invariant), aligned to a page, and zero or one.
        unsafe { self.0.as_ref() }
    }
}

impl Drop for ProcessWord {
    fn drop(&mut self) {
        // SAFETY: the mapping is this word's own (invariant), and nobody borrows it any more.
        let _ = unsafe { munmap(self.0.as_ptr().cast(), PROCESS_WORD_BYTES) };
    }
}
