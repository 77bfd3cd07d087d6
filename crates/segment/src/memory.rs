//! The mapping itself. All `unsafe` of this crate is here and in `transfer`.
//!
//! Invariants of a [`Segment`]: `mapping` is `maximum_bytes` long, shared, readable and writable
//! until drop; `committed_bytes <= maximum_bytes`; bytes below `committed_bytes` are backed by
//! memory that the kernel has already promised, so touching them never raises SIGBUS. The file is
//! sealed against shrinking, so no peer can take that promise back.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

use crate::error::{Error, system};

/// The largest segment: an eighth of the address space that x86-64 and aarch64 give a process.
const SEGMENT_BYTES_MAX: u64 = 1 << 44;

/// The largest usual page of any Linux; a memfd's block size is its page size.
const USUAL_PAGE_BYTES_MAX: u64 = 64 << 10;
/// Growth below this is not checked against the memory that is available: the check costs more
/// than it is worth.
const CHECKED_GROWTH_BYTES: u64 = 64 << 20;

/// Which pages a segment asks the kernel for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pages {
    /// The machine's usual pages.
    Small,
    /// 2 MiB pages if the administrator has reserved enough of them, else the usual ones;
    /// [`Segment::pages`] says what was got.
    HugeIfOffered,
}

/// Shared memory: a memfd, mapped once at its maximum size.
#[derive(Debug)]
pub struct Segment {
    file: OwnedFd,
    mapping: NonNull<u8>,
    maximum_bytes: u64,
    committed_bytes: AtomicU64,
    pages: Pages,
}

// SAFETY: the mapping is plain memory owned by this value until drop; every access goes through
// atomics or raw copies, which any thread may make.
unsafe impl Send for Segment {}
// SAFETY: as above; no method hands out a reference to non-atomic shared bytes.
unsafe impl Sync for Segment {}

impl Segment {
    /// Makes a segment of `maximum_bytes`, of which none is backed by memory until
    /// [`grow`](Self::grow). `name` shows up in `/proc/PID/fd` and `/proc/PID/maps`.
    pub fn create(name: &str, maximum_bytes: u64, pages: Pages) -> Result<Self, Error> {
        if maximum_bytes == 0 || maximum_bytes > SEGMENT_BYTES_MAX {
            return Err(Error::Size { bytes: maximum_bytes, maximum: SEGMENT_BYTES_MAX });
        }
        if pages == Pages::HugeIfOffered {
            let bytes = maximum_bytes.next_multiple_of(2 << 20);
            if let Ok(segment) =
                Self::create_with(name, bytes, MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB, pages)
            {
                // Reserved pages are taken at once: a promise the kernel may break later is none.
                if segment.grow(bytes).is_ok() {
                    return Ok(segment);
                }
            }
        }
        Self::create_with(name, maximum_bytes, MemfdFlags::empty(), Pages::Small)
    }

    fn create_with(name: &str, bytes: u64, extra: MemfdFlags, pages: Pages) -> Result<Self, Error> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | extra;
        let file = rustix::fs::memfd_create(name, flags).map_err(system("memfd_create"))?;
        rustix::fs::ftruncate(&file, bytes).map_err(system("ftruncate"))?;
        // Neither side can change the size any more: no access inside it can ever fault.
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)
            .map_err(system("fcntl(F_ADD_SEALS)"))?;
        Self::map(file, bytes, 0, pages)
    }

    /// Maps a segment received from another process. Refuses a file that is not sealed against
    /// shrinking and growing, or that does not have exactly `bytes` bytes, all backed by memory.
    pub fn attach(file: OwnedFd, bytes: u64) -> Result<Self, Error> {
        let seals = rustix::fs::fcntl_get_seals(&file).map_err(|_| Error::Foreign("it is not a memfd"))?;
        if !seals.contains(SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL) {
            return Err(Error::Foreign("it is not sealed against a change of its size"));
        }
        if seals.intersects(SealFlags::WRITE | SealFlags::FUTURE_WRITE) {
            return Err(Error::Foreign("it is sealed against writing"));
        }
        let status = rustix::fs::fstat(&file).map_err(system("fstat"))?;
        if bytes == 0 || bytes > SEGMENT_BYTES_MAX || u64::try_from(status.st_size) != Ok(bytes) {
            return Err(Error::Foreign("its size is not what the peer said"));
        }
        // A peer can take pages of either kind out of the file again. Usual ones are replaced on the
        // next touch; huge ones come from a pool that may be empty, and then the touch is fatal.
        if status.st_blksize as u64 > USUAL_PAGE_BYTES_MAX {
            return Err(Error::Foreign("its pages are huge ones, which the peer could take back"));
        }
        let missing = bytes.saturating_sub(u64::try_from(status.st_blocks).unwrap_or(0).saturating_mul(512));
        affordable(missing)?;
        // A hole would only be filled on first touch, where a full machine means SIGBUS.
        rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, bytes)
            .map_err(|source| Error::OutOfMemory { bytes, source })?;
        Self::map(file, bytes, bytes, Pages::Small)
    }

    fn map(file: OwnedFd, bytes: u64, committed: u64, pages: Pages) -> Result<Self, Error> {
        let length = usize::try_from(bytes).map_err(|_| Error::Size { bytes, maximum: usize::MAX as u64 })?;
        // SAFETY: a null hint lets the kernel choose addresses that nothing else uses; `length` is
        // the file's size, and is not zero.
        let mapping = unsafe {
            rustix::mm::mmap(
                ptr::null_mut(),
                length,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                &file,
                0,
            )
        };
        let mapping = mapping.map_err(|source| match source {
            Errno::NOMEM => Error::OutOfMemory { bytes, source },
            _ => Error::System { call: "mmap", source },
        })?;
        let mapping =
            NonNull::new(mapping.cast::<u8>()).ok_or(Error::System { call: "mmap", source: Errno::FAULT })?;
        Ok(Self { file, mapping, maximum_bytes: bytes, committed_bytes: AtomicU64::new(committed), pages })
    }

    /// Has the kernel back the first `bytes` with memory. Any process that shares the segment may
    /// call it; all of them then see the memory.
    pub fn grow(&self, bytes: u64) -> Result<(), Error> {
        if bytes > self.maximum_bytes {
            return Err(Error::Size { bytes, maximum: self.maximum_bytes });
        }
        let committed = self.committed_bytes.load(Ordering::Relaxed);
        if bytes > committed {
            affordable(bytes - committed)?;
            rustix::fs::fallocate(&self.file, FallocateFlags::empty(), 0, bytes)
                .map_err(|source| Error::OutOfMemory { bytes, source })?;
            self.committed_bytes.fetch_max(bytes, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Bytes that can be addressed at most.
    pub fn maximum_bytes(&self) -> u64 {
        self.maximum_bytes
    }

    /// Bytes that are backed by memory.
    pub fn committed_bytes(&self) -> u64 {
        self.committed_bytes.load(Ordering::Relaxed)
    }

    /// Which pages it got.
    pub fn pages(&self) -> Pages {
        self.pages
    }

    /// A checked part of the segment, which must be committed already and start on a multiple
    /// of 8 bytes.
    pub fn window(self: &Arc<Self>, offset: u64, bytes: u64) -> Result<Window, Error> {
        let committed = self.committed_bytes();
        match offset.checked_add(bytes) {
            Some(end) if end <= committed && offset % 8 == 0 => {}
            _ => {
                return Err(Error::Range { offset, bytes, segment_bytes: committed });
            }
        }
        // SAFETY: `offset <= committed_bytes <= maximum_bytes`, the length of the mapping.
        let start = unsafe { self.mapping.add(offset as usize) };
        Ok(Window { start, bytes: bytes as usize, segment: Arc::clone(self) })
    }
}

/// Refuses what the machine cannot have: `fallocate` on a memfd takes page after page, and on a
/// machine without that much memory ends in the OOM killer rather than in an error.
fn affordable(bytes: u64) -> Result<(), Error> {
    if bytes < CHECKED_GROWTH_BYTES {
        return Ok(());
    }
    let available = std::fs::read_to_string("/proc/meminfo").ok().and_then(|text| {
        let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
        line.trim().strip_suffix(" kB")?.parse::<u64>().ok()
    });
    match available {
        Some(kilobytes) if bytes > kilobytes * 1024 => {
            Err(Error::OutOfMemory { bytes, source: Errno::NOMEM })
        }
        _ => Ok(()),
    }
}

impl AsFd for Segment {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        // SAFETY: mapped in `map` with this length; every window holds an `Arc` to this value, so
        // none is left.
        let unmapped =
            unsafe { rustix::mm::munmap(self.mapping.as_ptr().cast(), self.maximum_bytes as usize) };
        debug_assert!(unmapped.is_ok());
    }
}

/// A part of a [`Segment`], with every access checked against its bounds.
///
/// Bounds are programming errors, not input: a face checks what a peer says before it comes here,
/// so a breach panics rather than returns.
#[derive(Clone, Debug)]
pub struct Window {
    start: NonNull<u8>,
    bytes: usize,
    segment: Arc<Segment>,
}

// SAFETY: as for `Segment`, which it keeps alive.
unsafe impl Send for Window {}
// SAFETY: as for `Segment`.
unsafe impl Sync for Window {}

impl Window {
    /// Bytes in the window.
    pub fn bytes(&self) -> u64 {
        self.bytes as u64
    }

    /// The segment it belongs to.
    pub fn segment(&self) -> &Arc<Segment> {
        &self.segment
    }

    /// A part of this window; `offset` is a multiple of 8.
    pub fn part(&self, offset: u64, bytes: u64) -> Result<Window, Error> {
        match offset.checked_add(bytes) {
            Some(end) if end <= self.bytes() && offset % 8 == 0 => {}
            _ => {
                return Err(Error::Range { offset, bytes, segment_bytes: self.bytes() });
            }
        }
        // SAFETY: `offset` is inside the window.
        let start = unsafe { self.start.add(offset as usize) };
        Ok(Window { start, bytes: bytes as usize, segment: Arc::clone(&self.segment) })
    }

    #[inline]
    fn check(&self, offset: usize, bytes: usize) {
        assert!(
            offset <= self.bytes && bytes <= self.bytes - offset,
            "bytes {offset}..{offset}+{bytes} are outside a window of {}",
            self.bytes
        );
    }

    /// The 64-bit word at `offset`, a multiple of 8.
    #[inline]
    pub fn word(&self, offset: usize) -> &AtomicU64 {
        self.check(offset, 8);
        assert!(offset % 8 == 0, "a word at {offset} would not be aligned");
        // SAFETY: in bounds and aligned (windows start on multiples of 8 of a page-aligned
        // mapping); the memory lives as long as `self` does; an atomic may be shared with writers
        // in this or another process.
        unsafe { AtomicU64::from_ptr(self.start.as_ptr().add(offset).cast()) }
    }

    /// The 32-bit word at `offset`, a multiple of 4.
    #[inline]
    pub fn half_word(&self, offset: usize) -> &AtomicU32 {
        self.check(offset, 4);
        assert!(offset % 4 == 0, "a half word at {offset} would not be aligned");
        // SAFETY: as in `word`.
        unsafe { AtomicU32::from_ptr(self.start.as_ptr().add(offset).cast()) }
    }

    /// Asks for the cache line at `offset`, to be written soon. A hint: it changes no memory, and
    /// processors that have no such instruction ignore it.
    #[inline]
    pub fn expect_write(&self, offset: usize) {
        let line = self.start.as_ptr().wrapping_add(offset);
        // SAFETY: a prefetch may name any address; it neither reads nor writes nor faults.
        #[cfg(target_arch = "x86_64")]
        unsafe {
            std::arch::asm!("prefetchw [{}]", in(reg) line, options(nostack, preserves_flags));
        }
        // SAFETY: as above.
        #[cfg(target_arch = "aarch64")]
        unsafe {
            std::arch::asm!("prfm pstl1keep, [{}]", in(reg) line, options(nostack, preserves_flags));
        }
    }

    /// Copies `from` to `offset`.
    #[inline]
    pub fn copy_in(&self, offset: usize, from: &[u8]) {
        self.check(offset, from.len());
        // SAFETY: in bounds; `from` is private memory of this process, so the two do not overlap.
        // A peer may read at the same time: it gets torn bytes, which it must not use before the
        // cursor says so.
        unsafe { ptr::copy_nonoverlapping(from.as_ptr(), self.start.as_ptr().add(offset), from.len()) }
    }

    /// Copies the bytes at `offset` to `to`.
    #[inline]
    pub fn copy_out(&self, offset: usize, to: &mut [u8]) {
        self.check(offset, to.len());
        // SAFETY: in bounds; `to` is private and exclusive. A lying peer may write at the same
        // time: then `to` holds bytes of its choice, as it could have sent anyway.
        unsafe { ptr::copy_nonoverlapping(self.start.as_ptr().add(offset), to.as_mut_ptr(), to.len()) }
    }

    /// Copies `bytes` from this window at `offset` to `to_offset` of another one.
    pub fn copy_to(&self, offset: usize, bytes: usize, to: &Window, to_offset: usize) {
        self.check(offset, bytes);
        to.check(to_offset, bytes);
        // SAFETY: both are in bounds; `copy` allows them to overlap.
        unsafe { ptr::copy(self.start.as_ptr().add(offset), to.start.as_ptr().add(to_offset), bytes) }
    }

    /// The address of the bytes `offset..offset + bytes`, for a system call or a foreign function
    /// that reads or writes there. The window must outlive the use, and nobody may make a Rust
    /// reference of it while a peer can write.
    #[inline]
    pub fn address(&self, offset: usize, bytes: usize) -> *mut u8 {
        self.check(offset, bytes);
        // SAFETY: in bounds.
        unsafe { self.start.as_ptr().add(offset) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment(bytes: u64) -> Arc<Segment> {
        let segment = Segment::create("caravan-test", bytes, Pages::Small).unwrap();
        segment.grow(bytes).unwrap();
        Arc::new(segment)
    }

    #[test]
    fn two_mappings_of_one_file_see_the_same_bytes() {
        let ours = segment(8192);
        let theirs = Arc::new(Segment::attach(ours.as_fd().try_clone_to_owned().unwrap(), 8192).unwrap());
        ours.window(0, 8192).unwrap().copy_in(100, b"over there");
        let mut seen = [0; 10];
        theirs.window(96, 64).unwrap().copy_out(4, &mut seen);
        assert_eq!(&seen, b"over there");
    }

    #[test]
    fn a_window_must_be_committed_and_inside() {
        let segment = Arc::new(Segment::create("caravan-test", 1 << 20, Pages::Small).unwrap());
        assert!(matches!(segment.window(0, 4096), Err(Error::Range { .. })));
        segment.grow(4096).unwrap();
        assert!(segment.window(0, 4096).is_ok());
        assert!(matches!(segment.window(8, 4096), Err(Error::Range { .. })));
        assert!(matches!(segment.window(u64::MAX - 3, 8), Err(Error::Range { .. })));
        assert!(matches!(segment.grow((1 << 20) + 1), Err(Error::Size { .. })));
    }

    #[test]
    #[should_panic(expected = "outside a window")]
    fn a_copy_past_the_end_panics_instead_of_writing() {
        segment(4096).window(0, 64).unwrap().copy_in(60, b"12345");
    }

    #[test]
    fn a_file_that_could_shrink_is_refused() {
        let file = rustix::fs::memfd_create("caravan-test", MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&file, 4096).unwrap();
        assert!(matches!(Segment::attach(file, 4096), Err(Error::Foreign(_))));
        let sealed = segment(4096);
        let file = sealed.as_fd().try_clone_to_owned().unwrap();
        assert!(matches!(Segment::attach(file, 8192), Err(Error::Foreign(_))));
    }

    #[test]
    fn huge_pages_or_not_it_works_and_says_so() {
        let segment = Arc::new(Segment::create("caravan-test", 4 << 20, Pages::HugeIfOffered).unwrap());
        segment.grow(segment.maximum_bytes()).unwrap();
        let window = segment.window(0, 4 << 20).unwrap();
        window.word((4 << 20) - 8).store(7, Ordering::Relaxed);
        assert_eq!(window.word((4 << 20) - 8).load(Ordering::Relaxed), 7);
        let file = segment.as_fd().try_clone_to_owned().unwrap();
        let refused = Segment::attach(file, segment.maximum_bytes()).is_err();
        assert_eq!(refused, segment.pages() == Pages::HugeIfOffered, "a stranger's huge pages");
    }

    #[test]
    fn more_memory_than_there_is_is_an_error() {
        let segment = Segment::create("caravan-test", 1 << 43, Pages::Small).unwrap();
        assert!(matches!(segment.grow(1 << 43), Err(Error::OutOfMemory { .. })));
    }
}
