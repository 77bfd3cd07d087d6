//! Where a mover's bytes come from.

use std::time::Instant;

use super::block::Block;
use super::descriptor::{DescriptorIo, IoOutcome};
use super::digest::Total;
use super::receiver::{Filled, HopReceiver};
use super::start::block_bytes;
use super::wait::{MoverTiming, WaitSet, Watch, Woken, is_there};
use super::wire::CLOSED;
use super::{MoverInlet, MoverOutlet};
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
