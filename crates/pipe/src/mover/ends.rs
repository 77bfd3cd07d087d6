//! Where a mover's bytes come from and where they go: hops and descriptors alike.

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

/// Bytes that are read from a descriptor at once where no hop says: fits a core's cache beside what it becomes.
const READ_BYTES: usize = 256 << 10;

/// An inlet at work.
pub(super) enum InletReader {
    Descriptor(DescriptorIo),
    Hop(Box<HopReceiver>),
}

impl InletReader {
    /// Begins.
    pub fn new(inlet: MoverInlet, timing: MoverTiming) -> Result<Self, Error> {
        match inlet {
            MoverInlet::Descriptor(fd) => Ok(Self::Descriptor(DescriptorIo::to_read(fd))),
            MoverInlet::Hop(connection, options) => {
                Ok(Self::Hop(Box::new(HopReceiver::new(*connection, options, timing)?)))
            }
        }
    }

    /// Bytes that it gives at once at most: what comes over a hop comes as it is, what is read from a
    /// descriptor is made to fit the hop that it goes to.
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

    /// Fills a block with the next piece, up to `most` bytes of a descriptor. After [`Filled::Nothing`] it
    /// wants the same block again: part of the piece may be there.
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

    /// Waits until there may be something to fill a block with, or something else happens, or it is
    /// time to look whether anything has.
    pub fn wait(&mut self, other: Option<Watch>, waits: &WaitSet) -> Result<Woken, Error> {
        match self {
            Self::Hop(receiver) => receiver.wait(other, waits),
            Self::Descriptor(descriptor) => descriptor.wait(other, waits, Instant::now() + PING_INTERVAL),
        }
    }

    /// What tells that it is gone while nothing is read.
    pub fn hung_up(&self) -> Option<Watch<'_>> {
        match self {
            Self::Descriptor(_) => None,
            Self::Hop(receiver) => receiver.hung_up(),
        }
    }

    /// An error if it is.
    pub fn check(&self) -> Result<(), Error> {
        match self {
            Self::Hop(receiver) if receiver.hung_up().is_some_and(is_there) => {
                Err(receiver.cut(CLOSED.into()))
            }
            _ => Ok(()),
        }
    }

    /// Whether what came is what was sent.
    pub fn verify(&self, total: &Total) -> Result<(), Error> {
        match self {
            Self::Descriptor(_) => Ok(()),
            Self::Hop(receiver) => receiver.verify(total),
        }
    }

    /// Bytes that have come over the wire, if one is there.
    pub fn wire_bytes(&self) -> Option<u64> {
        match self {
            Self::Descriptor(_) => None,
            Self::Hop(receiver) => Some(receiver.wire_bytes()),
        }
    }

    /// All of it is where it belongs.
    pub fn done(self, waits: &WaitSet) {
        if let Self::Hop(receiver) = self {
            receiver.done(waits);
        }
    }

    /// Nobody wants the rest.
    pub fn stop(self, waits: &WaitSet) {
        if let Self::Hop(receiver) = self {
            receiver.stop(waits);
        }
    }

    /// What came is not what it should be: a sender that is still there is told.
    pub fn refuse(self, error: &Error, waits: &WaitSet) {
        if !matches!(error, Error::Truncated { .. } | Error::Told(_) | Error::Cancelled) {
            self.fail(&error.to_string(), waits);
        }
    }

    /// It cannot go where it should.
    pub fn fail(self, why: &str, waits: &WaitSet) {
        if let Self::Hop(receiver) = self {
            receiver.fail(why, waits);
        }
    }
}

/// Why an outlet takes no more.
#[derive(Debug)]
pub(super) enum Halt {
    /// Its reader has closed.
    Stopped,
    /// The other end of the hop says that it has all, so many bytes.
    Done(u64),
    /// It failed.
    Failed(Error),
}

impl From<Error> for Halt {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl Halt {
    /// As the mover's outcome has it.
    pub fn into_end(self) -> Result<OutletEnd, Error> {
        match self {
            Self::Stopped => Ok(OutletEnd::Stopped),
            Self::Done(_) => Err(Error::Protocol("says that it has all before it was sent".into())),
            Self::Failed(error) => Err(error),
        }
    }
}

/// An outlet at work.
pub(super) enum OutletWriter {
    Descriptor(DescriptorIo),
    Lines(LineOutlet),
    Hop(Box<HopSender>),
}

impl OutletWriter {
    /// Begins.
    pub fn new(outlet: MoverOutlet, timing: MoverTiming) -> Result<Self, Error> {
        match outlet {
            MoverOutlet::Descriptor(fd) => Ok(Self::Descriptor(DescriptorIo::to_write(fd))),
            MoverOutlet::Lines { prefix, to } => Ok(Self::Lines(LineOutlet::new(prefix, to))),
            MoverOutlet::Hop(connection, options) => {
                Ok(Self::Hop(Box::new(HopSender::new(*connection, options, timing)?)))
            }
        }
    }

    /// What the end of its stream carries.
    pub fn digest(outlet: &MoverOutlet) -> Option<DigestKind> {
        match outlet {
            MoverOutlet::Hop(_, options) => Some(options.digest),
            _ => None,
        }
    }

    /// Puts all of a piece there.
    pub fn put(&mut self, piece: OutletPiece, waits: &WaitSet) -> Result<(), Halt> {
        match self {
            Self::Hop(sender) => sender.put(piece, waits),
            Self::Lines(lines) => lines.put(piece.bytes(), waits),
            Self::Descriptor(descriptor) => put(descriptor, piece.bytes(), waits),
        }
    }

    /// That was all: for a hop, waits until the other end has it. A descriptor ends with its close.
    pub fn finish(&mut self, total: &Total, waits: &WaitSet) -> Result<(), Halt> {
        match self {
            Self::Descriptor(_) => Ok(()),
            Self::Lines(lines) => lines.finish(waits),
            Self::Hop(sender) => sender.finish(total, waits),
        }
    }

    /// What tells that it takes no more, while nothing is put there. Before a wait; after it,
    /// [`look`](Self::look).
    pub fn watch(&mut self) -> Result<Option<Watch<'_>>, Halt> {
        match self {
            Self::Descriptor(descriptor) => Ok(descriptor.watch()),
            Self::Lines(_) => Ok(None),
            Self::Hop(sender) => sender.watch(),
        }
    }

    /// Whether it takes no more.
    pub fn look(&mut self) -> Result<(), Halt> {
        match self {
            Self::Descriptor(descriptor) if descriptor.watch().is_some_and(is_there) => Err(Halt::Stopped),
            Self::Descriptor(_) | Self::Lines(_) => Ok(()),
            Self::Hop(sender) => sender.look(),
        }
    }

    /// Bytes that have gone over the wire.
    pub fn wire_bytes(&self) -> Option<u64> {
        match self {
            Self::Hop(sender) => Some(sender.wire_bytes()),
            _ => None,
        }
    }

    /// There will be no more, though it has not all. Its descriptor, which nobody may take for ended.
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
        // A file never makes it wait.
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
