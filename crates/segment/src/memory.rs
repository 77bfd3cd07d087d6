//! The mapping of a segment. All `unsafe` of this crate is here, in `slice`, in `transfer` and in `passing::socket`.
//!
//! Invariants of a [`Segment`]: `mapping` is `maximum_bytes` long, shared, readable and writable
//! until drop; `committed_bytes <= maximum_bytes`; bytes below `committed_bytes` are backed by
//! memory that the kernel has already promised, so touching them never raises SIGBUS. The file is
//! sealed against shrinking, so no peer can take that promise back.

#![allow(unsafe_code, reason = "maps memory")]

use std::ffi::c_void;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use rustix::process::Resource;

use crate::error::{Error, system};
use crate::host::HostMemory;
use crate::slice::SharedSlice;

/// The largest segment: an eighth of the address space that x86-64 and aarch64 give a process.
pub(crate) const SEGMENT_BYTES_MAX: u64 = 1 << 44;

/// The largest usual page of any Linux; a memfd's block size is its page size.
pub(crate) const USUAL_PAGE_BYTES_MAX: u64 = 64 << 10;
/// The pages that the kernel joins usual ones into, on x86-64 and on aarch64 with pages of 4 KiB.
pub const JOINED_PAGE_BYTES: u64 = 2 << 20;
/// Growth below this is not checked against the memory that is available: the check costs more
/// than it is worth.
const CHECKED_GROWTH_BYTES: u64 = 64 << 20;

/// The pages that a segment asks the kernel for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pages {
    /// The machine's usual pages.
    Small,
    /// The machine's usual pages, which the kernel is asked to join into pages of [`JOINED_PAGE_BYTES`] once they are
    /// backed (madvise(2), `MADV_COLLAPSE`, Linux 6.1). Whether it does so makes no difference but to speed: one entry of
    /// the processor's and the kernel's tables then stands for 512.
    Joined,
    /// 2 MiB pages if the administrator has reserved enough of them, otherwise the usual ones;
    /// [`Segment::pages`] returns which.
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
    /// Makes a segment of `maximum_bytes`, without memory until
    /// [`grow`](Self::grow). `name` appears in `/proc/PID/fd` and `/proc/PID/maps`.
    pub fn create(name: &str, maximum_bytes: u64, pages: Pages) -> Result<Self, Error> {
        if maximum_bytes == 0 || maximum_bytes > SEGMENT_BYTES_MAX {
            return Err(Error::Size { bytes: maximum_bytes, maximum: SEGMENT_BYTES_MAX });
        }
        if pages == Pages::HugeIfOffered {
            let bytes = maximum_bytes.next_multiple_of(2 << 20);
            if let Ok(segment) =
                Self::create_with(name, bytes, MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB, pages)
            {
                // Takes reserved pages at once, because the kernel may give them to others later.
                if segment.grow(bytes).is_ok() {
                    return Ok(segment);
                }
            }
        }
        Self::create_with(name, maximum_bytes, MemfdFlags::empty(), Pages::Small)
    }

    fn create_with(name: &str, bytes: u64, extra: MemfdFlags, pages: Pages) -> Result<Self, Error> {
        let file = Self::new_file(name, extra)?;
        Self::fix_size(&file, bytes)?;
        Self::map(file, bytes, 0, pages)
    }

    fn new_file(name: &str, extra: MemfdFlags) -> Result<OwnedFd, Error> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | extra;
        rustix::fs::memfd_create(name, flags).map_err(system("memfd_create"))
    }

    fn fix_size(file: &OwnedFd, bytes: u64) -> Result<(), Error> {
        allowed(bytes)?;
        rustix::fs::ftruncate(file, bytes).map_err(system("ftruncate"))?;
        // Neither side can change the size any more: no access inside the file can ever fault.
        rustix::fs::fcntl_add_seals(file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)
            .map_err(system("fcntl(F_ADD_SEALS)"))
    }

    /// Makes an empty file in memory, which [`adopt`](Self::adopt) turns into a segment, in this or another
    /// process. `name` appears in `/proc/PID/fd` and `/proc/PID/maps`.
    pub fn empty_file(name: &str) -> Result<OwnedFd, Error> {
        Self::new_file(name, MemfdFlags::empty())
    }

    /// Maps a file that another process keeps, as its owner: either an empty one from
    /// [`empty_file`](Self::empty_file), which gets `maximum_bytes` bytes without memory, or one that was a
    /// segment of that size before. The caller says how many of its first bytes the owner before has backed with
    /// memory; the other processes that hold the file are trusted not to take that memory back. The segment has
    /// [`Pages::Joined`].
    pub fn adopt(file: OwnedFd, maximum_bytes: u64, committed_bytes: u64) -> Result<Self, Error> {
        if maximum_bytes == 0 || maximum_bytes > SEGMENT_BYTES_MAX || committed_bytes > maximum_bytes {
            return Err(Error::Size { bytes: maximum_bytes, maximum: SEGMENT_BYTES_MAX });
        }
        let status = rustix::fs::fstat(&file).map_err(system("fstat"))?;
        if status.st_blksize as u64 > USUAL_PAGE_BYTES_MAX {
            return Err(Error::Foreign("its pages are huge ones"));
        }
        let is_empty = status.st_size == 0;
        if !is_empty && u64::try_from(status.st_size) != Ok(maximum_bytes) {
            return Err(Error::Foreign("it has another size"));
        }
        // The owner before may have died between the size and the seals.
        if is_empty || resizable(&file)? {
            Self::fix_size(&file, maximum_bytes)?;
        }
        sealed(&file)?;
        Self::map(file, maximum_bytes, committed_bytes, Pages::Joined)
    }

    /// Maps a segment received from another process. Refuses a file that is not sealed against
    /// shrinking and growing, or that does not have exactly `bytes` bytes, all backed by memory.
    pub fn attach(file: OwnedFd, bytes: u64) -> Result<Self, Error> {
        sealed(&file)?;
        let status = rustix::fs::fstat(&file).map_err(system("fstat"))?;
        if bytes == 0 || bytes > SEGMENT_BYTES_MAX || u64::try_from(status.st_size) != Ok(bytes) {
            return Err(Error::Foreign("its size is not what the peer said"));
        }
        // A peer can remove pages of either kind from the file again. Usual ones are replaced on the
        // next touch; huge ones come from a pool that may be empty, and then the touch is fatal.
        if status.st_blksize as u64 > USUAL_PAGE_BYTES_MAX {
            return Err(Error::Foreign("its pages are huge ones, which the peer could take back"));
        }
        let missing = bytes.saturating_sub(u64::try_from(status.st_blocks).unwrap_or(0).saturating_mul(512));
        affordable(missing)?;
        // The kernel would fill a hole only on the first touch, where a full machine means SIGBUS.
        rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, bytes)
            .map_err(|error| Error::OutOfMemory { bytes, source: error.into() })?;
        Self::map(file, bytes, bytes, Pages::Small)
    }

    /// Maps the first `bytes` bytes of another process's segment, for an observer: those that its owner says
    /// are backed by memory. Commits nothing, so that looking at a segment that has hardly grown does
    /// not fill it. Refuses a file that is not sealed against shrinking and growing, or is shorter.
    ///
    /// If the owner's number is wrong, a missing usual page is added on the first touch. The touch of a missing
    /// huge page is fatal to this process: call this only for an owner that is trusted to tell the truth.
    pub fn attach_committed(file: OwnedFd, bytes: u64) -> Result<Self, Error> {
        sealed(&file)?;
        let status = rustix::fs::fstat(&file).map_err(system("fstat"))?;
        let page = u64::try_from(status.st_blksize).unwrap_or(1).max(1);
        // Huge pages must be mapped whole, or they cannot be unmapped again.
        let whole = bytes.checked_next_multiple_of(page).unwrap_or(u64::MAX);
        if bytes == 0
            || whole > SEGMENT_BYTES_MAX
            || u64::try_from(status.st_size).is_ok_and(|size| whole > size)
        {
            return Err(Error::Foreign("it is shorter than what is looked for in it"));
        }
        let pages = if page > USUAL_PAGE_BYTES_MAX { Pages::HugeIfOffered } else { Pages::Small };
        Self::map(file, whole, bytes, pages)
    }

    fn map(file: OwnedFd, bytes: u64, committed: u64, pages: Pages) -> Result<Self, Error> {
        let length = usize::try_from(bytes).map_err(|_| Error::Size { bytes, maximum: usize::MAX as u64 })?;
        let mapping = map_file(&file, length, ProtFlags::READ | ProtFlags::WRITE);
        let mapping = mapping.map_err(|source| match source {
            Errno::NOMEM => Error::OutOfMemory { bytes, source: source.into() },
            _ => Error::System { call: "mmap", source: source.into() },
        })?;
        Ok(Self { file, mapping, maximum_bytes: bytes, committed_bytes: AtomicU64::new(committed), pages })
    }

    /// Makes the kernel back the first `bytes` bytes with memory. Any process that shares the segment may
    /// call it; all of them then see the memory.
    pub fn grow(&self, bytes: u64) -> Result<(), Error> {
        if bytes > self.maximum_bytes {
            return Err(Error::Size { bytes, maximum: self.maximum_bytes });
        }
        let committed = self.committed_bytes.load(Ordering::Relaxed);
        if bytes > committed {
            // Huge pages come from a pool of their own, which reports by itself when it is empty.
            if self.pages != Pages::HugeIfOffered {
                affordable(bytes - committed)?;
            }
            // If the range began at 0, the kernel would visit every page that is there already.
            rustix::fs::fallocate(&self.file, FallocateFlags::empty(), committed, bytes - committed)
                .map_err(|error| Error::OutOfMemory { bytes, source: error.into() })?;
            if self.pages == Pages::Joined {
                self.join(committed, bytes);
            }
            self.committed_bytes.fetch_max(bytes, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Has the kernel join the pages between two offsets, as far as they are whole joined ones.
    fn join(&self, from: u64, to: u64) {
        let [from, to] = [from, to].map(|offset| offset / JOINED_PAGE_BYTES * JOINED_PAGE_BYTES);
        if from < to {
            // SAFETY: the bytes are within the mapping, and keep their values: the kernel copies pages that nobody can
            // reach meanwhile. A kernel that does not know the advice, or has no such page, changes nothing.
            unsafe {
                let start = self.mapping.as_ptr().add(from as usize);
                libc::madvise(start.cast(), (to - from) as usize, libc::MADV_COLLAPSE);
            }
        }
    }

    /// Returns the largest number of bytes that can be addressed.
    pub fn maximum_bytes(&self) -> u64 {
        self.maximum_bytes
    }

    /// Returns the number of bytes that are backed by memory.
    pub fn committed_bytes(&self) -> u64 {
        self.committed_bytes.load(Ordering::Relaxed)
    }

    /// Returns the kind of pages that the segment has.
    pub fn pages(&self) -> Pages {
        self.pages
    }

    /// Returns a checked part of the segment, which must be committed already and start on a multiple
    /// of 8 bytes.
    pub fn slice(self: &Arc<Self>, offset: u64, bytes: u64) -> Result<SharedSlice, Error> {
        let committed = self.committed_bytes();
        match offset.checked_add(bytes) {
            Some(end) if end <= committed && offset % 8 == 0 => {}
            _ => {
                return Err(Error::Range { offset, bytes, segment_bytes: committed });
            }
        }
        // SAFETY: `offset <= committed_bytes <= maximum_bytes`, the length of the mapping.
        let start = unsafe { self.mapping.add(offset as usize) };
        // SAFETY: that many bytes of the mapping from `start` on are committed.
        Ok(unsafe { SharedSlice::new(start, bytes as usize, Arc::clone(self)) })
    }
}

/// Maps the first `length` bytes of a file, and not none. The address is a multiple of a joined page's size if there is
/// such an address: else the kernel could map no such page.
pub(crate) fn map_file(file: &OwnedFd, length: usize, access: ProtFlags) -> Result<NonNull<u8>, Errno> {
    // SAFETY: without `FIXED` the address is a hint, and the kernel chooses addresses that nothing else uses.
    let mapping =
        unsafe { rustix::mm::mmap(free_address(length), length, access, MapFlags::SHARED, file, 0)? };
    NonNull::new(mapping.cast()).ok_or(Errno::FAULT)
}

/// Returns an address for a mapping with joined pages, where nothing was mapped a moment ago; or null.
fn free_address(length: usize) -> *mut c_void {
    let page = JOINED_PAGE_BYTES as usize;
    let (Some(enough), true) = (length.checked_add(page), length >= page) else { return ptr::null_mut() };
    // SAFETY: the kernel chooses addresses that nothing else uses. They hold no memory, and are given back at once.
    unsafe {
        let Ok(found) =
            rustix::mm::mmap_anonymous(ptr::null_mut(), enough, ProtFlags::empty(), MapFlags::PRIVATE)
        else {
            return ptr::null_mut();
        };
        let unmapped = rustix::mm::munmap(found, enough);
        debug_assert!(unmapped.is_ok());
        found.map_addr(|address| address.next_multiple_of(page))
    }
}

/// Refuses a file that its owner could shrink under a mapping of it, or that cannot
/// be written.
fn sealed(file: &OwnedFd) -> Result<(), Error> {
    if resizable(file)? {
        return Err(Error::Foreign("it is not sealed against a change of its size"));
    }
    let seals = rustix::fs::fcntl_get_seals(file).map_err(|_| Error::Foreign("it is not a memfd"))?;
    if seals.intersects(SealFlags::WRITE | SealFlags::FUTURE_WRITE) {
        return Err(Error::Foreign("it is sealed against writing"));
    }
    Ok(())
}

/// True if a file's size can still change.
pub(crate) fn resizable(file: &OwnedFd) -> Result<bool, Error> {
    let seals = rustix::fs::fcntl_get_seals(file).map_err(|_| Error::Foreign("it is not a memfd"))?;
    Ok(!seals.contains(SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL))
}

/// Refuses what the limit on the size of files forbids, which holds for a memfd, too: exceeding it is not only
/// an error, but sends SIGXFSZ, which ends a process that does not expect it.
fn allowed(bytes: u64) -> Result<(), Error> {
    match rustix::process::getrlimit(Resource::Fsize).current {
        Some(limit) if bytes > limit => Err(Error::FileSize { bytes, limit }),
        _ => Ok(()),
    }
}

/// Refuses more memory than the machine has: `fallocate` on a memfd takes page after page, and on a
/// machine without that much memory ends in the OOM killer rather than in an error.
fn affordable(bytes: u64) -> Result<(), Error> {
    if bytes < CHECKED_GROWTH_BYTES {
        return Ok(());
    }
    match HostMemory::read() {
        Some(host) if bytes > host.available_bytes => {
            Err(Error::OutOfMemory { bytes, source: Errno::NOMEM.into() })
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
        // SAFETY: `map` mapped the memory with this length; every slice holds an `Arc` to this value, so
        // no slice is left.
        let unmapped =
            unsafe { rustix::mm::munmap(self.mapping.as_ptr().cast(), self.maximum_bytes as usize) };
        debug_assert!(unmapped.is_ok());
    }
}

#[cfg(test)]
mod tests;
