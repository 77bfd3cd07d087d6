//! Memory shared with the kernel: rings and packet buffers. `unsafe`: every access to it.
//!
//! What the kernel writes there is input: each access is checked against the mapping's bounds, and
//! one outside is refused rather than done.

use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};
use std::sync::atomic::AtomicU32;

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

/// A mapping of this process, unmapped on drop. Of one thread.
#[derive(Debug)]
pub(crate) struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
}

impl Mapping {
    /// Memory of zeros, in pages of its own.
    pub(crate) fn anonymous(bytes: usize) -> Result<Self, Errno> {
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory in use.
        let start = unsafe { mmap_anonymous(ptr::null_mut(), bytes, protection, flags)? };
        Ok(Self { start: NonNull::new(start.cast()).ok_or(Errno::NOMEM)?, bytes })
    }

    /// The `bytes` bytes that a descriptor has at `offset`.
    pub(crate) fn of(fd: BorrowedFd<'_>, offset: u64, bytes: usize) -> Result<Self, Errno> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory in use.
        let start = unsafe { mmap(ptr::null_mut(), bytes, protection, flags, fd, offset)? };
        Ok(Self { start: NonNull::new(start.cast()).ok_or(Errno::NOMEM)?, bytes })
    }

    /// Bytes in the mapping.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Where it lies, for the kernel.
    pub(crate) fn address(&self) -> u64 {
        self.start.as_ptr() as u64
    }

    #[inline]
    fn has(&self, at: usize, bytes: usize) -> bool {
        at <= self.bytes && bytes <= self.bytes - at
    }

    /// The 32-bit word at `at`; `None` if it is not inside, or `at` is no multiple of 4.
    #[inline]
    pub(crate) fn word(&self, at: usize) -> Option<&AtomicU32> {
        if !self.has(at, 4) || at % 4 != 0 {
            return None;
        }
        // SAFETY: in bounds, aligned (mappings start on pages), mapped as long as `self` lives; an
        // atomic may be shared with the kernel.
        Some(unsafe { AtomicU32::from_ptr(self.start.as_ptr().add(at).cast()) })
    }

    /// Copies the bytes at `at` to `to`. False, and nothing done, if they are not inside.
    #[inline]
    pub(crate) fn copy_out(&self, at: usize, to: &mut [u8]) -> bool {
        if !self.has(at, to.len()) {
            return false;
        }
        // SAFETY: in bounds; `to` is exclusive memory outside the mapping, of which no reference is
        // ever handed out.
        unsafe { ptr::copy_nonoverlapping(self.start.as_ptr().add(at), to.as_mut_ptr(), to.len()) }
        true
    }

    /// Copies `from` to `at`. False, and nothing done, if it would not fit there.
    #[inline]
    pub(crate) fn copy_in(&self, at: usize, from: &[u8]) -> bool {
        if !self.has(at, from.len()) {
            return false;
        }
        // SAFETY: as in `copy_out`.
        unsafe { ptr::copy_nonoverlapping(from.as_ptr(), self.start.as_ptr().add(at), from.len()) }
        true
    }

    /// The `N` bytes at `at`; `None` if they are not inside.
    #[inline]
    pub(crate) fn array<const N: usize>(&self, at: usize) -> Option<[u8; N]> {
        let mut array = [0; N];
        self.copy_out(at, &mut array).then_some(array)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this mapping, whole; all that was borrowed of it borrowed `self`.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;

    #[test]
    fn nothing_outside_is_touched() {
        let mapping = Mapping::anonymous(4096).unwrap();
        assert!(mapping.copy_in(4092, &[1, 2, 3, 4]));
        assert_eq!(mapping.array(4092), Some([1, 2, 3, 4]));
        assert_eq!(
            mapping.word(4092).map(|word| word.load(Ordering::Relaxed)),
            Some(u32::from_ne_bytes([1, 2, 3, 4]))
        );
        for at in [4093, 4096, 5000, usize::MAX] {
            assert!(!mapping.copy_in(at, &[1, 2, 3, 4]));
            assert_eq!(mapping.array::<4>(at), None);
            assert!(mapping.word(at).is_none());
        }
        assert!(mapping.word(2).is_none(), "not aligned");
        assert!(mapping.copy_in(4096, &[]));
    }
}
