//! Bells that a port rings itself, to be called back.

use std::os::fd::RawFd;

use caravan_fabric::contract::Provider;
use rustix::event::{EventfdFlags, eventfd};

use super::super::{duplicate, watch};
use super::{Port, Stage};
use crate::error::Error;

impl Port {
    /// Rings a bell of this side's: the emulator calls back when it has looked after its other
    /// ports and a process or two. With shared memory that is the bell which the peer rings, too; a
    /// device's cannot be rung by hand.
    pub(super) fn ring(&mut self) -> Result<(), Error> {
        let Stage::Connected(connection) = &mut self.stage else { return Ok(()) };
        let bell = match connection.link().provider() {
            Provider::Shm => self.watched_bell,
            _ => self.own_bell()?,
        };
        let Some(bell) = bell else { return Ok(()) };
        let rung = duplicate(bell).and_then(|bell| Ok(rustix::io::write(&bell, &1u64.to_ne_bytes())?));
        match rung {
            Ok(_) => Ok(()),
            // It has not been answered yet, and is as loud as it can be.
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => Ok(()),
            Err(source) => Err(caravan_fabric::Error::System { call: "write(bell)", source }.into()),
        }
    }

    /// Made when it is first needed.
    fn own_bell(&mut self) -> Result<Option<RawFd>, Error> {
        if self.own_bell.is_none() {
            let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
                .map_err(|source| caravan_fabric::Error::System { call: "eventfd", source: source.into() })?;
            self.own_bell = watch(self.handle, bell);
        }
        Ok(self.own_bell)
    }
}

/// Makes a bell of this side's own unreadable again.
pub(super) fn silence(bell: RawFd) {
    if let Ok(bell) = duplicate(bell) {
        // Nothing to read is as good.
        let _ = rustix::io::read(&bell, &mut [0; 8][..]);
    }
}
