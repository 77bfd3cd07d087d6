//! The ends of a mover: hops and descriptors alike.

use std::os::fd::OwnedFd;
use std::time::Instant;

use super::descriptor::{DescriptorIo, IoOutcome, LineOutlet};
use super::frame::{Block, OutletPiece};
use super::payload::Total;
use super::receiver::{Filled, HopReceiver};
use super::sender::HopSender;
use super::wait::{MoverTiming, WaitSet, Watch, Woken, is_there};
use super::wire::CLOSED;
use super::{DigestKind, MoverInlet, MoverOutlet, OutletEnd, block_bytes};
use crate::Error;
use crate::limits::PING_INTERVAL;

/// The bytes of one read from a descriptor if no hop sets them: a block and its processed form fit a core's cache.
const READ_BYTES: usize = 256 << 10;

/// An inlet in use.
pub(super) enum InletReader {
    Descriptor(DescriptorIo),
    Hop(Box<HopReceiver>),
}

impl InletReader {
    /// Starts an inlet.
    pub fn new(inlet: MoverInlet, timing: MoverTiming) -> Result<Self, Error> {
        match inlet {
            MoverInlet::Descriptor(fd) => Ok(Self::Descriptor(DescriptorIo::to_read(fd))),
            MoverInlet::Hop(connection, options) => {
                Ok(Self::Hop(Box::new(HopReceiver::new(*connection, options, timing)?)))
            }
        }
    }

    /// Returns the most bytes of one piece: a hop's blocks come as they are, and pieces of a descriptor fit the hop
    /// that they go to.
    pub fn block_bytes(inlet: &MoverInlet, outlets: &[MoverOutlet]) -> usize {
        match inlet {
            MoverInlet::Hop(_, options) => block_bytes(options),
            MoverInlet::Descriptor(_) => outlets
                .iter()
                .find_map(|outlet| match outlet {
                    MoverOutlet::Hop(_, options) => Some(block_bytes(options)),
                    _ => None,
                })
                .unwrap_or(READ_BYTES),
        }
    }

    /// Fills a block with the next piece, from a descriptor up to `most` bytes. After [`Filled::Nothing`], call it
    /// again with the same block: part of the piece may be in it.
    pub fn fill(&mut self, block: &mut Block, most: usize) -> Result<Filled, Error> {
        match self {
            Self::Hop(receiver) => receiver.get(block),
            Self::Descriptor(descriptor) => {
                let most = block.payload_max().min(most);
                match descriptor.read(&mut block.memory()[..most])? {
                    IoOutcome::Bytes(0) | IoOutcome::Closed => Ok(Filled::End),
                    IoOutcome::Bytes(bytes) => {
                        block.set_length(bytes);
                        Ok(Filled::Data)
                    }
                    IoOutcome::Nothing => Ok(Filled::Nothing),
                }
            }
        }
    }

    /// Waits until there may be a piece, something else happens, or it is time to check.
    pub fn wait(&mut self, other: Option<Watch>, waits: &WaitSet) -> Result<Woken, Error> {
        match self {
            Self::Hop(receiver) => receiver.wait(other, waits),
            Self::Descriptor(descriptor) => descriptor.wait(other, waits, Instant::now() + PING_INTERVAL),
        }
    }

    /// Returns what to poll to learn that the inlet is gone while nobody reads.
    pub fn hung_up(&self) -> Option<Watch<'_>> {
        match self {
            Self::Descriptor(_) => None,
            Self::Hop(receiver) => receiver.hung_up(),
        }
    }

    /// Fails if the inlet is gone.
    pub fn check(&self) -> Result<(), Error> {
        match self {
            Self::Hop(receiver) if receiver.hung_up().is_some_and(is_there) => {
                Err(receiver.cut(CLOSED.into()))
            }
            _ => Ok(()),
        }
    }

    /// Checks that the stream arrived as it was sent.
    pub fn verify(&self, total: &Total) -> Result<(), Error> {
        match self {
            Self::Descriptor(_) => Ok(()),
            Self::Hop(receiver) => receiver.verify(total),
        }
    }

    /// Returns the number of bytes that came over the wire, if the inlet is a hop.
    pub fn wire_bytes(&self) -> Option<u64> {
        match self {
            Self::Descriptor(_) => None,
            Self::Hop(receiver) => Some(receiver.wire_bytes()),
        }
    }

    /// Reports that the whole stream was delivered.
    pub fn done(self, waits: &WaitSet) {
        if let Self::Hop(receiver) = self {
            receiver.done(waits);
        }
    }

    /// Reports that nobody wants the rest.
    pub fn stop(self, waits: &WaitSet) {
        if let Self::Hop(receiver) = self {
            receiver.stop(waits);
        }
    }

    /// Reports that the stream is damaged, if the sender is still there.
    pub fn refuse(self, error: &Error, waits: &WaitSet) {
        if !matches!(error, Error::Truncated { .. } | Error::Told(_) | Error::Cancelled) {
            self.fail(&error.to_string(), waits);
        }
    }

    /// Reports that the stream cannot be delivered.
    pub fn fail(self, why: &str, waits: &WaitSet) {
        if let Self::Hop(receiver) = self {
            receiver.fail(why, waits);
        }
    }
}

/// Why an outlet takes no more.
#[derive(Debug)]
pub(super) enum Halt {
    /// The reader has closed.
    Stopped,
    /// The other end of the hop reports that it has delivered the whole stream, of so many bytes.
    Done(u64),
    /// The outlet failed.
    Failed(Error),
}

impl From<Error> for Halt {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl Halt {
    /// Returns the result for the mover's outcome.
    pub fn into_end(self) -> Result<OutletEnd, Error> {
        match self {
            Self::Stopped => Ok(OutletEnd::Stopped),
            Self::Done(_) => Err(Error::Protocol("says that it has all before it was sent".into())),
            Self::Failed(error) => Err(error),
        }
    }
}

/// An outlet in use.
pub(super) enum OutletWriter {
    Descriptor(DescriptorIo),
    Lines(LineOutlet),
    Hop(Box<HopSender>),
}

impl OutletWriter {
    /// Starts an outlet.
    pub fn new(outlet: MoverOutlet, timing: MoverTiming) -> Result<Self, Error> {
        match outlet {
            MoverOutlet::Descriptor(fd) => Ok(Self::Descriptor(DescriptorIo::to_write(fd))),
            MoverOutlet::Lines { prefix, to } => Ok(Self::Lines(LineOutlet::new(prefix, to))),
            MoverOutlet::Hop(connection, options) => {
                Ok(Self::Hop(Box::new(HopSender::new(*connection, options, timing)?)))
            }
        }
    }

    /// Returns the digest that the end of the outlet's stream carries.
    pub fn digest(outlet: &MoverOutlet) -> Option<DigestKind> {
        match outlet {
            MoverOutlet::Hop(_, options) => Some(options.digest),
            _ => None,
        }
    }

    /// Puts a whole piece into the outlet.
    pub fn put(&mut self, piece: OutletPiece, waits: &WaitSet) -> Result<(), Halt> {
        match self {
            Self::Hop(sender) => sender.put(piece, waits),
            Self::Lines(lines) => lines.put(piece.bytes(), waits),
            Self::Descriptor(descriptor) => put(descriptor, piece.bytes(), waits),
        }
    }

    /// Ends the stream: for a hop, waits until the other end has delivered it. A descriptor ends with its close.
    pub fn finish(&mut self, total: &Total, waits: &WaitSet) -> Result<(), Halt> {
        match self {
            Self::Descriptor(_) => Ok(()),
            Self::Lines(lines) => lines.finish(waits),
            Self::Hop(sender) => sender.finish(total, waits),
        }
    }

    /// Returns what to poll to learn that the outlet takes no more, while nothing is put into it. Call this before
    /// a wait, and [`look`](Self::look) after it.
    pub fn watch(&mut self) -> Result<Option<Watch<'_>>, Halt> {
        match self {
            Self::Descriptor(descriptor) => Ok(descriptor.watch()),
            Self::Lines(_) => Ok(None),
            Self::Hop(sender) => sender.watch(),
        }
    }

    /// Fails if the outlet takes no more.
    pub fn look(&mut self) -> Result<(), Halt> {
        match self {
            Self::Descriptor(descriptor) if descriptor.watch().is_some_and(is_there) => Err(Halt::Stopped),
            Self::Descriptor(_) | Self::Lines(_) => Ok(()),
            Self::Hop(sender) => sender.look(),
        }
    }

    /// Returns the number of bytes that went over the wire.
    pub fn wire_bytes(&self) -> Option<u64> {
        match self {
            Self::Hop(sender) => Some(sender.wire_bytes()),
            _ => None,
        }
    }

    /// Ends an outlet that does not have the whole stream. Returns its descriptor, whose close would look like an
    /// end.
    pub fn fail(self, why: Option<&str>, waits: &WaitSet) -> Option<OwnedFd> {
        match self {
            Self::Descriptor(descriptor) => Some(descriptor.into_fd()),
            Self::Lines(_) => None,
            Self::Hop(sender) => {
                if let Some(why) = why {
                    sender.fail(why, waits);
                }
                None
            }
        }
    }
}

fn put(descriptor: &DescriptorIo, mut bytes: &[u8], waits: &WaitSet) -> Result<(), Halt> {
    while !bytes.is_empty() {
        // A write to a file never waits, so nothing else would check.
        waits.check()?;
        match descriptor.write(bytes, waits)? {
            IoOutcome::Bytes(0) => {
                let full = std::io::Error::other("it takes no more bytes");
                return Err(Error::System { call: "write", source: full }.into());
            }
            IoOutcome::Bytes(written) => bytes = bytes.get(written..).unwrap_or_default(),
            IoOutcome::Closed => return Err(Halt::Stopped),
            IoOutcome::Nothing => {}
        }
    }
    Ok(())
}
