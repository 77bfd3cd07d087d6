//! Where a mover's bytes come from.

use std::time::Instant;

use super::block::Block;
use super::descriptor::{Descriptor, Did};
use super::digest::Total;
use super::receiver::{Got, Receiver};
use super::start::block_bytes;
use super::wait::{Timing, Waits, Watch, Woken, is_there};
use super::wire::CLOSED;
use super::{Inlet, Outlet};
use crate::Error;
use crate::limits::PING_INTERVAL;

/// Bytes that are read from a descriptor at once where no hop says: fits a core's cache beside what it becomes.
const READ_BYTES: usize = 256 << 10;

/// An inlet at work.
pub(super) enum Source {
    Descriptor(Descriptor),
    Hop(Box<Receiver>),
}

impl Source {
    /// Begins.
    pub fn new(inlet: Inlet, timing: Timing) -> Result<Self, Error> {
        match inlet {
            Inlet::Descriptor(fd) => Ok(Self::Descriptor(Descriptor::to_read(fd))),
            Inlet::Hop(connection, options) => {
                Ok(Self::Hop(Box::new(Receiver::new(*connection, options, timing)?)))
            }
        }
    }

    /// Bytes that it gives at once at most: what comes over a hop comes as it is, what is read from a
    /// descriptor is made to fit the hop that it goes to.
    pub fn block_bytes(inlet: &Inlet, outlets: &[Outlet]) -> usize {
        match inlet {
            Inlet::Hop(_, options) => block_bytes(options),
            Inlet::Descriptor(_) => outlets
                .iter()
                .find_map(|outlet| match outlet {
                    Outlet::Hop(_, options) => Some(block_bytes(options)),
                    _ => None,
                })
                .unwrap_or(READ_BYTES),
        }
    }

    /// Fills a block with the next piece, up to `most` bytes of a descriptor. After [`Got::Nothing`] it
    /// wants the same block again: part of the piece may be there.
    pub fn fill(&mut self, block: &mut Block, most: usize) -> Result<Got, Error> {
        match self {
            Self::Hop(receiver) => receiver.get(block),
            Self::Descriptor(descriptor) => {
                let most = block.payload_max().min(most);
                match descriptor.read(&mut block.memory()[..most])? {
                    Did::Bytes(0) | Did::Closed => Ok(Got::End),
                    Did::Bytes(bytes) => {
                        block.set_length(bytes);
                        Ok(Got::Data)
                    }
                    Did::Nothing => Ok(Got::Nothing),
                }
            }
        }
    }

    /// Waits until there may be something to fill a block with, or something else happens, or it is
    /// time to look whether anything has.
    pub fn wait(&mut self, other: Option<Watch>, waits: &Waits) -> Result<Woken, Error> {
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
    pub fn done(self, waits: &Waits) {
        if let Self::Hop(receiver) = self {
            receiver.done(waits);
        }
    }

    /// Nobody wants the rest.
    pub fn stop(self, waits: &Waits) {
        if let Self::Hop(receiver) = self {
            receiver.stop(waits);
        }
    }

    /// What came is not what it should be: a sender that is still there is told.
    pub fn refuse(self, error: &Error, waits: &Waits) {
        if !matches!(error, Error::Truncated { .. } | Error::Told(_) | Error::Cancelled) {
            self.fail(&error.to_string(), waits);
        }
    }

    /// It cannot go where it should.
    pub fn fail(self, why: &str, waits: &Waits) {
        if let Self::Hop(receiver) = self {
            receiver.fail(why, waits);
        }
    }
}
