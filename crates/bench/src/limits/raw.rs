//! Memory as the processor and the disks want it: aligned, on huge pages where the kernel allows them. The `unsafe` code of
//! this crate is here and in `raw/` alone.

mod uring;

use std::fs;
use std::io;
use std::ptr::{NonNull, null_mut};
use std::slice;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

pub use self::uring::Uring;

/// The bytes of a huge page, which is also the alignment of an area.
const HUGE_BYTES: usize = 2 << 20;

/// An aligned area of private memory that is zero at first.
///
/// Invariant: `mapped_bytes` are mapped at `mapping` until drop, and the `words` words at `start` lie within them.
#[derive(Debug)]
pub struct Area {
    mapping: NonNull<u64>,
    mapped_bytes: usize,
    start: NonNull<u64>,
    words: usize,
}

// SAFETY: an area is plain memory that it owns; shared references to it only read.
unsafe impl Send for Area {}
// SAFETY: as above.
unsafe impl Sync for Area {}

impl Area {
    /// Maps so many bytes, rounded up to whole words, on huge pages if the kernel allows them.
    pub fn new(bytes: usize) -> io::Result<Self> {
        Self::advised(bytes, Advice::LinuxHugepage)
    }

    /// The same on small pages, as the buffers of most programs are: a disk reads faster into huge ones.
    pub fn small(bytes: usize) -> io::Result<Self> {
        Self::advised(bytes, Advice::LinuxNoHugepage)
    }

    fn advised(bytes: usize, advice: Advice) -> io::Result<Self> {
        let words = bytes.div_ceil(8);
        let mapped_bytes = (words * 8).checked_add(HUGE_BYTES).ok_or(io::ErrorKind::OutOfMemory)?;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses where the new mapping lies, so it replaces none.
        let mapping = unsafe { mmap_anonymous(null_mut(), mapped_bytes, protection, MapFlags::PRIVATE) }?;
        // SAFETY: the advice concerns only the new mapping, and does not change what is in it. A kernel without huge
        // pages refuses it, and the area has small ones.
        let _ = unsafe { madvise(mapping, mapped_bytes, advice) };
        let mapping = NonNull::new(mapping.cast::<u64>()).ok_or(io::ErrorKind::OutOfMemory)?;
        let skipped = mapping.as_ptr().cast::<u8>().align_offset(HUGE_BYTES) / 8;
        // SAFETY: the mapping has room for the words behind any offset below HUGE_BYTES.
        let start = unsafe { mapping.add(skipped) };
        Ok(Self { mapping, mapped_bytes, start, words })
    }

    /// Returns the words.
    pub fn words(&self) -> &[u64] {
        // SAFETY: the words are mapped and initialized (the kernel's zeroes) until drop, and nothing writes them while
        // `self` is borrowed: every way to write takes `&mut self`.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.words) }
    }

    /// Returns the words, to be written.
    pub fn words_mut(&mut self) -> &mut [u64] {
        // SAFETY: as above, and `self` is borrowed mutably.
        unsafe { slice::from_raw_parts_mut(self.start.as_ptr(), self.words) }
    }

    /// Returns the bytes, to be written.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above; words are made of bytes, and any bytes are words.
        unsafe { slice::from_raw_parts_mut(self.start.as_ptr().cast(), self.words * 8) }
    }

    /// Returns the address of the first byte, for the kernel.
    fn start_mut(&mut self) -> *mut u8 {
        self.start.as_ptr().cast()
    }

    /// Returns how many of its bytes are on huge pages, as /proc/self/smaps says.
    pub fn huge_bytes(&self) -> u64 {
        let text = fs::read_to_string("/proc/self/smaps").unwrap_or_default();
        huge_bytes(&text, self.start.as_ptr() as u64)
    }
}

impl Drop for Area {
    fn drop(&mut self) {
        // SAFETY: nobody has a reference into the area any more. An error would leave it mapped.
        let _ = unsafe { munmap(self.mapping.as_ptr().cast(), self.mapped_bytes) };
    }
}

/// Returns the bytes on huge pages of the mapping that contains an address.
fn huge_bytes(smaps: &str, address: u64) -> u64 {
    let mut is_within = false;
    for line in smaps.lines() {
        let mut words = line.split_whitespace();
        let first = words.next().unwrap_or_default();
        if let Some((from, to)) = first.split_once('-') {
            let [from, to] = [from, to].map(|end| u64::from_str_radix(end, 16).unwrap_or(0));
            is_within = (from..to).contains(&address);
        } else if is_within && first == "AnonHugePages:" {
            return words.next().and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) << 10;
        }
    }
    0
}

/// Returns the sum of words, with the widest loads that this processor has among those that the compiler is told of.
pub fn sum(words: &[u64]) -> u64 {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has AVX2.
        return unsafe { sum_avx2(words) };
    }
    sum_plain(words)
}

/// # Safety
///
/// The processor must have AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn sum_avx2(words: &[u64]) -> u64 {
    sum_plain(words)
}

/// Adds in 32 lanes, so that no addition waits for the one before it.
#[inline(always)]
fn sum_plain(words: &[u64]) -> u64 {
    let mut lanes = [0_u64; 32];
    let chunks = words.chunks_exact(32);
    let rest = chunks.remainder().iter().fold(0_u64, |sum, word| sum.wrapping_add(*word));
    for chunk in chunks {
        for (lane, word) in lanes.iter_mut().zip(chunk) {
            *lane = lane.wrapping_add(*word);
        }
    }
    lanes.iter().fold(rest, |sum, lane| sum.wrapping_add(*lane))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_area_is_zero_aligned_and_writable() {
        let mut area = Area::new((3 << 20) + 1).expect("memory");
        assert_eq!(area.words().len(), (3 << 17) + 1);
        assert_eq!(area.words().as_ptr() as usize % HUGE_BYTES, 0);
        assert_eq!(sum(area.words()), 0);
        for (word, value) in area.words_mut().iter_mut().zip(0..) {
            *word = value;
        }
        let last = (3 << 17) as u64;
        assert_eq!(sum(area.words()), last * (last + 1) / 2);
        assert_eq!(sum_plain(&area.words()[..77]), 76 * 77 / 2);
        assert!(area.huge_bytes() <= 6 << 20);
    }

    #[test]
    fn huge_pages_are_counted_in_their_own_mapping() {
        let smaps = "1000-3000 rw-p 0 00:00 0\nSize: 8 kB\nAnonHugePages:      4 kB\n\
                     3000-9000 rw-p 0 00:00 0 \nAnonHugePages:   2048 kB\n";
        assert_eq!(
            [0x1000, 0x3000, 0x8fff, 0x9000].map(|at| huge_bytes(smaps, at)),
            [4 << 10, 2 << 20, 2 << 20, 0]
        );
    }
}
