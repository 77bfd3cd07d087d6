//! Moves bytes that nobody here looks at: from a descriptor to a stream by splice(2), through a pipe of the mover's own.
//!
//! Blocks that are sealed or compressed, and streams that end with a digest, are read and written instead.

use std::os::fd::OwnedFd;

use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};

use super::DigestKind;
use super::descriptor::IoOutcome;
use super::digest::Digests;
use super::inlet::InletReader;
use super::outlet::OutletWriter;
use super::start::MoverShape;
use crate::Error;
use crate::limits::PIPE_BYTES;

/// The pipe between source and sink; it is empty after each piece.
pub(super) struct Splice {
    reading: OwnedFd,
    writing: OwnedFd,
    block_bytes: usize,
    /// The source cannot be spliced any further: its rest is copied.
    is_over: bool,
}

impl Splice {
    /// Returns `None` where the source's bytes must be seen, or either end cannot be spliced.
    pub fn between(source: &InletReader, sink: &OutletWriter, shape: &MoverShape) -> Option<Self> {
        let (InletReader::Descriptor(descriptor), OutletWriter::Hop(sender)) = (source, sink) else {
            return None;
        };
        let is_digested = shape.digests.iter().any(|digest| *digest != DigestKind::Off);
        if is_digested || !descriptor.splices() || !sender.takes_pipes() {
            return None;
        }
        let (reading, writing) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).ok()?;
        // A smaller pipe only makes smaller pieces.
        let _ = fcntl_setpipe_size(&writing, PIPE_BYTES);
        Some(Self { reading, writing, block_bytes: shape.block_bytes, is_over: false })
    }

    /// Moves the next piece of the source, up to `most` bytes, into the pipe and counts it. Returns `None` if the rest
    /// has to be copied.
    pub fn fill(
        &mut self,
        source: &InletReader,
        digests: &mut Digests,
        most: usize,
    ) -> Result<Option<IoOutcome>, Error> {
        let InletReader::Descriptor(descriptor) = source else { return Ok(None) };
        if self.is_over {
            return Ok(None);
        }
        let did = descriptor.splice(&self.writing, most.min(self.block_bytes))?;
        if let Some(IoOutcome::Bytes(bytes)) = &did {
            digests.count(*bytes);
        }
        self.is_over = did.is_none();
        Ok(did)
    }

    /// The end of the pipe from which the piece is read.
    pub fn pipe(&self) -> &OwnedFd {
        &self.reading
    }
}
