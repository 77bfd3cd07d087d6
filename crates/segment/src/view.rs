//! A segment of another process, mapped for reading alone. `unsafe`: the mapping, and every access to its bytes.
//!
//! Invariants of a [`SegmentView`]: `mapping` is `bytes` long, shared and readable until drop; nothing here
//! writes to it. The file is sealed against shrinking, so no read inside the mapping raises SIGBUS for want of
//! a file.

#![allow(unsafe_code, reason = "maps memory, and reads it through raw pointers")]

use std::os::fd::OwnedFd;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use rustix::mm::ProtFlags;

use crate::error::{Error, system};
use crate::memory::{SEGMENT_BYTES_MAX, Segment, USUAL_PAGE_BYTES_MAX, map_file, resizable};
use crate::slice::SharedSlice;

/// The bytes of another process's [`Segment`], which this process can read and cannot write.
///
/// A breach of bounds is a programming error, as for a [`SharedSlice`], and panics.
///
/// ```
/// use std::sync::Arc;
/// use std::sync::atomic::Ordering;
///
/// use caravan_segment::{Pages, Segment, SegmentView};
///
/// let segment = Arc::new(Segment::create("example", 4096, Pages::Small)?);
/// segment.grow(4096)?;
/// // Another process gets the descriptor.
/// let view = SegmentView::attach(segment.read_only_descriptor()?, 4096)?;
/// segment.slice(0, 64)?.word(8).store(42, Ordering::Release);
/// assert_eq!(view.load(8), 42);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct SegmentView {
    mapping: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the mapping is plain memory owned by this value until drop; every access goes through atomic loads or
// raw copies out, which any thread may make.
unsafe impl Send for SegmentView {}
// SAFETY: as above.
unsafe impl Sync for SegmentView {}

impl Segment {
    /// Returns a descriptor with which another process can map the segment for reading, and cannot map it for
    /// writing. Also takes the permission to write from the file itself, because whoever has a descriptor may
    /// open the file again (a memfd is born with all permissions). Needs `/proc`.
    pub fn read_only_descriptor(&self) -> Result<OwnedFd, Error> {
        use std::os::fd::{AsFd, AsRawFd};
        rustix::fs::fchmod(self.as_fd(), Mode::RUSR).map_err(system("fchmod"))?;
        let path = format!("/proc/self/fd/{}", self.as_fd().as_raw_fd());
        rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
            .map_err(system("open(/proc/self/fd)"))
    }
}

impl SegmentView {
    /// Maps the first `bytes` bytes of a segment received from another process. Refuses a file that is not sealed
    /// against a change of its size, that is shorter, or that has huge pages: its owner could take those
    /// away again, and the next read would end this process.
    pub fn attach(file: OwnedFd, bytes: u64) -> Result<Self, Error> {
        if resizable(&file)? {
            return Err(Error::Foreign("it is not sealed against a change of its size"));
        }
        let status = rustix::fs::fstat(&file).map_err(system("fstat"))?;
        if status.st_blksize as u64 > USUAL_PAGE_BYTES_MAX {
            return Err(Error::Foreign("its pages are huge ones, which the peer could take back"));
        }
        let is_there = u64::try_from(status.st_size).is_ok_and(|size| bytes <= size);
        if bytes == 0 || bytes > SEGMENT_BYTES_MAX || !is_there {
            return Err(Error::Foreign("it is shorter than what is looked for in it"));
        }
        let length = usize::try_from(bytes).map_err(|_| Error::Size { bytes, maximum: usize::MAX as u64 })?;
        let mapping = map_file(&file, length, ProtFlags::READ).map_err(system("mmap"))?;
        Ok(Self { mapping, bytes: length })
    }

    /// Returns the address of the first byte, for code that reads the words by itself. The view must outlive the use,
    /// and no Rust reference to bytes that are no atomics may be made while the owner can write.
    pub fn address(&self) -> *const u8 {
        self.mapping.as_ptr()
    }

    /// Returns the number of bytes in the view.
    pub fn bytes(&self) -> u64 {
        self.bytes as u64
    }

    #[inline]
    fn check(&self, offset: usize, bytes: usize) {
        assert!(
            offset <= self.bytes && bytes <= self.bytes - offset,
            "bytes {offset}..{offset}+{bytes} are outside a view of {}",
            self.bytes
        );
    }

    /// Loads the 64-bit word at `offset`, a multiple of 8, all at once. The load is relaxed: Rust promises no other
    /// order for memory that cannot be written. An acquire fence after it orders what the caller loads next.
    #[inline]
    pub fn load(&self, offset: usize) -> u64 {
        self.check(offset, 8);
        assert!(offset % 8 == 0, "a word at {offset} would not be aligned");
        // SAFETY: the word is in bounds and aligned, since the mapping begins on a page; a relaxed load of 8 bytes
        // is allowed on memory that is mapped for reading alone (std::sync::atomic, "Atomic accesses to read-only
        // memory"), and may race with the owner's stores.
        unsafe { AtomicU64::from_ptr(self.mapping.as_ptr().add(offset).cast()) }.load(Ordering::Relaxed)
    }

    /// Sleeps while the 32-bit word at `offset`, a multiple of 4, is `value`, at most for `limit`. May return early: the
    /// caller looks at the word again. The owner wakes with [`SharedSlice::wake_all`].
    pub fn sleep_while(&self, offset: usize, value: u32, limit: Duration) {
        self.check(offset, 4);
        assert!(offset % 4 == 0, "a half word at {offset} would not be aligned");
        // SAFETY: the word is in bounds and aligned, and mapped as long as `self` lives; the kernel only reads it.
        let word = unsafe { AtomicU32::from_ptr(self.mapping.as_ptr().add(offset).cast()) };
        crate::futex::sleep_while(word, value, limit);
    }

    /// Copies the bytes at `offset` to `to`. Bytes that their owner changes meanwhile may be torn.
    #[inline]
    pub fn copy_out(&self, offset: usize, to: &mut [u8]) {
        self.check(offset, to.len());
        // SAFETY: the bytes are in bounds; `to` is private and exclusive. The owner may write at the same time: then
        // `to` holds bytes of its choice.
        unsafe { ptr::copy_nonoverlapping(self.mapping.as_ptr().add(offset), to.as_mut_ptr(), to.len()) }
    }

    /// Copies `bytes` bytes at `offset` to `to_offset` of `to`. Where both offsets are multiples of 8, each whole word
    /// is copied all at once.
    pub fn copy_to(&self, offset: usize, bytes: usize, to: &SharedSlice, to_offset: usize) {
        self.check(offset, bytes);
        let words = if offset % 8 == 0 && to_offset % 8 == 0 { bytes / 8 * 8 } else { 0 };
        for at in (0..words).step_by(8) {
            to.word(to_offset + at).store(self.load(offset + at), Ordering::Relaxed);
        }
        let target = to.address(to_offset + words, bytes - words);
        // SAFETY: both ranges are in bounds, as `check` and `address` have found; they may overlap if this process
        // has lent the memory to itself.
        unsafe { ptr::copy(self.mapping.as_ptr().add(offset + words), target, bytes - words) }
    }
}

impl Drop for SegmentView {
    fn drop(&mut self) {
        // SAFETY: `attach` mapped the memory with this length, and nothing that borrows it is left.
        let unmapped = unsafe { rustix::mm::munmap(self.mapping.as_ptr().cast(), self.bytes) };
        debug_assert!(unmapped.is_ok());
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsFd, AsRawFd};
    use std::sync::Arc;

    use super::*;
    use crate::memory::Pages;

    fn segment(bytes: u64) -> Arc<Segment> {
        let segment = Arc::new(Segment::create("caravan-test", bytes, Pages::Small).unwrap());
        segment.grow(bytes).unwrap();
        segment
    }

    #[test]
    fn a_view_sees_what_its_owner_writes() {
        let owner = segment(8192);
        let view = SegmentView::attach(owner.read_only_descriptor().unwrap(), 8192).unwrap();
        let slice = owner.slice(0, 8192).unwrap();
        slice.copy_in(4090, b"hello, world");
        let mut seen = [0; 12];
        view.copy_out(4090, &mut seen);
        assert_eq!(&seen, b"hello, world");
        let target = segment(4096).slice(0, 4096).unwrap();
        for (from, to) in [(4090, 3), (4088, 8)] {
            view.copy_to(from, 14, &target, to);
            let (mut got, mut wanted) = ([0; 14], [0; 14]);
            target.copy_out(to, &mut got);
            slice.copy_out(from, &mut wanted);
            assert_eq!(got, wanted);
        }
        slice.word(8).store(7, Ordering::Release);
        assert_eq!(view.load(8), 7);
    }

    /// Neither the descriptor nor the file behind it lets another process of an ordinary user write.
    #[test]
    fn a_read_only_descriptor_cannot_write() {
        let owner = segment(4096);
        let descriptor = owner.read_only_descriptor().unwrap();
        assert!(rustix::io::write(&descriptor, b"x").is_err());
        let status = rustix::fs::fstat(owner.as_fd()).unwrap();
        assert_eq!(status.st_mode & 0o777, 0o400);
        // Root may open anything.
        if !rustix::process::geteuid().is_root() {
            let path = format!("/proc/self/fd/{}", descriptor.as_raw_fd());
            assert!(rustix::fs::open(path, OFlags::RDWR, Mode::empty()).is_err());
        }
        // SAFETY: nothing is mapped unless the call succeeds, and then the test fails.
        let mapped = unsafe {
            let writable = ProtFlags::READ | ProtFlags::WRITE;
            rustix::mm::mmap(ptr::null_mut(), 4096, writable, rustix::mm::MapFlags::SHARED, &descriptor, 0)
        };
        assert!(mapped.is_err());
    }

    #[test]
    fn what_could_shrink_or_is_too_short_is_refused() {
        let owner = segment(4096);
        for bytes in [0, 4097, u64::MAX] {
            assert!(SegmentView::attach(owner.read_only_descriptor().unwrap(), bytes).is_err(), "{bytes}");
        }
        let loose = rustix::fs::memfd_create("caravan-test", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&loose, 4096).unwrap();
        assert!(SegmentView::attach(loose, 4096).is_err());
        assert!(SegmentView::attach(std::fs::File::open("/dev/zero").unwrap().into(), 4096).is_err());
    }

    #[test]
    #[should_panic(expected = "outside a view of 4096")]
    fn a_load_outside_panics() {
        let owner = segment(4096);
        SegmentView::attach(owner.read_only_descriptor().unwrap(), 4096).unwrap().load(4096);
    }
}
