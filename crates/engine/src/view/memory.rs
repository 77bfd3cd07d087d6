//! The memory of an engine, read from outside.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::error::{Error, system};
use crate::layout::{MAGIC, engine};

/// An engine's memory, opened to be read.
#[derive(Debug)]
pub(super) struct EngineMemory(File);

impl EngineMemory {
    /// Opens what `/proc/PID/fd/N` stands for; `None` if it cannot be opened, or holds no engine of
    /// this version.
    pub fn open(path: &Path) -> Option<Self> {
        let memory = Self(File::open(path).ok()?);
        (memory.word(engine::MAGIC).ok()? == MAGIC).then_some(memory)
    }

    /// Reads what lies at `at`.
    pub fn read(&self, at: usize, to: &mut [u8]) -> Result<(), Error> {
        let read = self.0.read_exact_at(to, at as u64);
        read.map_err(|error| {
            let source = rustix::io::Errno::from_io_error(&error).unwrap_or(rustix::io::Errno::IO);
            system("pread")(source)
        })
    }

    /// What lies at `at`.
    pub fn place<const BYTES: usize>(&self, at: usize) -> Result<MemoryPart<BYTES>, Error> {
        let mut bytes = [0; BYTES];
        self.read(at, &mut bytes)?;
        Ok(MemoryPart(bytes))
    }

    /// The word at `at`.
    pub fn word(&self, at: usize) -> Result<u64, Error> {
        let mut bytes = [0; 8];
        self.read(at, &mut bytes)?;
        Ok(u64::from_ne_bytes(bytes))
    }
}

/// Words and bytes read at one go.
pub(super) struct MemoryPart<const BYTES: usize>([u8; BYTES]);

impl<const BYTES: usize> MemoryPart<BYTES> {
    /// The word at `offset`, which is inside.
    pub fn word(&self, offset: usize) -> u64 {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(self.bytes(offset, 8));
        u64::from_ne_bytes(bytes)
    }

    /// The bytes at `offset`, which are inside.
    pub fn bytes(&self, offset: usize, bytes: usize) -> &[u8] {
        &self.0[offset..offset + bytes]
    }
}

/// The text in a place for one: up to the first zero.
pub(crate) fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    printable(&String::from_utf8_lossy(&bytes[..end]))
}

/// Another process wrote this text: nothing in it may steer a terminal.
pub(super) fn printable(text: &str) -> String {
    text.chars().map(|letter| if letter.is_control() { '?' } else { letter }).collect()
}
