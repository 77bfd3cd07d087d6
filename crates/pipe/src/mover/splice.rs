//! Bytes that nobody has to look at: from a descriptor to a stream without a copy, by splice(2) through a
//! pipe of the mover's own.
//!
//! Where the end of the stream carries a digest, or blocks are sealed or compressed, every byte passes the
//! processor, and this is not for it.

use std::os::fd::OwnedFd;

use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};

use super::descriptor::Did;
use super::inlet::Source;
use super::outlet::Sink;
use crate::Error;
use crate::limits::PIPE_BYTES;

/// The pipe between; empty after each piece.
pub(super) struct Splice {
    reading: OwnedFd,
    writing: OwnedFd,
    block_bytes: usize,
}

impl Splice {
    /// `None` where it is not for these two.
    pub fn between(source: &Source, sink: &Sink, block_bytes: usize) -> Option<Self> {
        let (Source::Descriptor(descriptor), Sink::Hop(sender)) = (source, sink) else { return None };
        if !descriptor.splices() || !sender.takes_pipes() {
            return None;
        }
        let (reading, writing) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).ok()?;
        // A smaller one only makes smaller pieces.
        let _ = fcntl_setpipe_size(&writing, PIPE_BYTES);
        Some(Self { reading, writing, block_bytes })
    }

    /// Takes the next piece of the source, up to `most` bytes; `None` if the system cannot after all.
    pub fn fill(&self, source: &Source, most: usize) -> Result<Option<Did>, Error> {
        match source {
            Source::Descriptor(descriptor) => descriptor.splice(&self.writing, most.min(self.block_bytes)),
            Source::Hop(_) => Ok(None),
        }
    }

    /// Where the piece is.
    pub fn pipe(&self) -> &OwnedFd {
        &self.reading
    }
}
