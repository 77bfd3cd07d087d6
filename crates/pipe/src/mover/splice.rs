//! Bytes that nobody has to copy: from a descriptor to a stream by splice(2), through a pipe of the mover's own.
//!
//! Where blocks are sealed or compressed this is not for them. Where the end of the stream carries a digest, it is for
//! files that can be looked at where they are ([`Looker`]).

use std::os::fd::OwnedFd;

use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};

use super::DigestKind;
use super::descriptor::Did;
use super::digest::Digests;
use super::inlet::Source;
use super::looker::Looker;
use super::outlet::Sink;
use super::start::Shape;
use crate::Error;
use crate::limits::PIPE_BYTES;

/// The pipe between; empty after each piece.
pub(super) struct Splice {
    reading: OwnedFd,
    writing: OwnedFd,
    block_bytes: usize,
    /// Where a digest is wanted.
    looker: Option<Looker>,
    /// The rest is copied.
    is_over: bool,
}

impl Splice {
    /// `None` where it is not for these two.
    pub fn between(source: &Source, sink: &Sink, shape: &Shape) -> Option<Self> {
        let (Source::Descriptor(descriptor), Sink::Hop(sender)) = (source, sink) else { return None };
        if !descriptor.splices() || !sender.takes_pipes() {
            return None;
        }
        let (reading, writing) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).ok()?;
        // A smaller one only makes smaller pieces.
        let _ = fcntl_setpipe_size(&writing, PIPE_BYTES);
        let is_looked_at = shape.digests.iter().any(|digest| *digest != DigestKind::Off);
        let looker = match is_looked_at {
            // Where the rate is limited nothing is won.
            true if shape.rate.is_some() => return None,
            true => {
                let looker = Looker::of(descriptor)?;
                // What the digests have seen is not to turn out to need a copy after all.
                let mut position = descriptor.position()?;
                let did =
                    splice(descriptor.file(), Some(&mut position), &writing, None, 1, SpliceFlags::NONBLOCK);
                (did == Ok(1) && rustix::io::read(&reading, &mut [0]) == Ok(1)).then_some(())?;
                Some(looker)
            }
            false => None,
        };
        Some(Self { reading, writing, block_bytes: shape.block_bytes, looker, is_over: false })
    }

    /// Takes the next piece of the source, up to `most` bytes, which the digests then have seen; `None` if the rest
    /// has to be copied.
    pub fn fill(
        &mut self,
        source: &Source,
        digests: &mut Digests,
        most: usize,
    ) -> Result<Option<Did>, Error> {
        let Source::Descriptor(descriptor) = source else { return Ok(None) };
        if self.is_over {
            return Ok(None);
        }
        let most = match &mut self.looker {
            Some(looker) => looker.look(descriptor, digests).map(|ahead| most.min(ahead)),
            None => Some(most),
        };
        let did = match most {
            Some(most) => descriptor.splice(&self.writing, most.min(self.block_bytes))?,
            None => None,
        };
        match (&did, &mut self.looker) {
            (Some(Did::Nothing), _) => {}
            (Some(Did::Bytes(bytes)), Some(looker)) if *bytes > 0 => looker.took(*bytes),
            (Some(Did::Bytes(bytes)), None) => digests.count(*bytes),
            // The digests have seen what does not come.
            (_, Some(looker)) if looker.is_ahead() => {
                let shorter = std::io::Error::other("it has become shorter meanwhile");
                return Err(descriptor.error("read", shorter));
            }
            _ => {}
        }
        self.is_over = did.is_none();
        Ok(did)
    }

    /// Where the piece is.
    pub fn pipe(&self) -> &OwnedFd {
        &self.reading
    }
}
