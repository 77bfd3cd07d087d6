//! The bytes that the benchmarks of pipes send.

use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::path::PathBuf;

use rustix::fs::{MemfdFlags, SealFlags};

use crate::error::Error;

/// The number of bytes written at once.
const CHUNK_BYTES: usize = 1 << 20;

/// Returns the word at a position that is a multiple of 8: no two of a file are alike (the factor is odd).
pub fn word(position: u64) -> u64 {
    (position + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// A file without a name, which leaves nothing behind however this process ends.
#[derive(Debug)]
pub struct PipeInput {
    file: File,
    pub bytes: u64,
}

impl PipeInput {
    /// Creates a file of `bytes` bytes, a multiple of 8, and writes them into the page cache.
    pub fn create(bytes: u64) -> Result<Self, Error> {
        let path = || PathBuf::from("(memory)");
        let failed = |source| Error::File { what: "fill", path: path(), source };
        let memory =
            rustix::fs::memfd_create("caravan-bench", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING);
        let mut file = File::from(memory.map_err(|why| failed(why.into()))?);
        let mut chunk = Vec::with_capacity(CHUNK_BYTES);
        for start in (0..bytes).step_by(CHUNK_BYTES) {
            chunk.clear();
            let end = bytes.min(start + CHUNK_BYTES as u64);
            chunk.extend((start..end).step_by(8).flat_map(|position| word(position).to_le_bytes()));
            file.write_all(&chunk).map_err(failed)?;
        }
        // The seals make it as good as a file on a disk of which the kernel knows that nobody writes to it.
        rustix::fs::fcntl_add_seals(&file, SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW)
            .map_err(|why| failed(why.into()))?;
        Ok(Self { file, bytes })
    }

    /// Returns the file as this process has it open.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Returns the path at which other processes of this user open the file.
    pub fn path(&self) -> PathBuf {
        format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd()).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    #[test]
    fn each_word_is_that_of_its_place() {
        let input = PipeInput::create(CHUNK_BYTES as u64 + 64).expect("made");
        let file = File::open(input.path()).expect("another may open it");
        assert_eq!(file.metadata().expect("a length").len(), input.bytes);
        for position in [0, 8, CHUNK_BYTES as u64, CHUNK_BYTES as u64 + 56] {
            let mut bytes = [0; 8];
            file.read_exact_at(&mut bytes, position).expect("read");
            assert_eq!(u64::from_le_bytes(bytes), word(position), "{position}");
        }
    }
}
