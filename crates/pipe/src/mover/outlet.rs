//! Where a mover's bytes go.

use std::os::fd::OwnedFd;

use super::block::OutletPiece;
use super::descriptor::{DescriptorIo, IoOutcome};
use super::digest::Total;
use super::lines::LineOutlet;
use super::sender::HopSender;
use super::wait::{MoverTiming, WaitSet, Watch, is_there};
use super::{DigestKind, MoverOutlet, OutletEnd};
use crate::Error;

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
