//! The bells of a link: the one that its peer or its device rings, and one that a port rings itself, to
//! be called back.

use std::os::fd::OwnedFd;

use caravan_fabric::Link;
use caravan_fabric::contract::Provider;
use rustix::event::{EventfdFlags, eventfd};

use super::super::{Watched, watch};
use super::Port;
use crate::error::Error;

/// The descriptors of a link's bells, until they are watched. They are taken before this side agrees to
/// the link: later there may be none to be had.
#[derive(Debug)]
pub(super) struct Bells {
    links: OwnedFd,
    own: Option<OwnedFd>,
}

impl Bells {
    pub(super) fn of(link: &Link) -> std::io::Result<Self> {
        let links = link.wait_fd().ok_or(std::io::ErrorKind::Unsupported)?;
        let own = match link.provider() {
            // The link's own bell can be rung by hand.
            Provider::Shm => None,
            _ => Some(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?),
        };
        // The emulator closes what it watched at a time of its own: it gets a descriptor of its own.
        Ok(Self { links: links.try_clone_to_owned()?, own })
    }
}

impl Port {
    /// Has the emulator watch the bells. False if it does not.
    pub(super) fn watch_bells(&mut self) -> bool {
        let Some(Bells { links, own }) = self.bells.take() else { return false };
        let has_own = own.is_some();
        self.watched_bell = watch(self.handle, links);
        self.own_bell = own.and_then(|own| watch(self.handle, own));
        self.watched_bell.is_some() && self.own_bell.is_some() == has_own
    }

    /// Rings a bell of this side's: the emulator calls back when it has looked after its other
    /// ports and a process or two.
    pub(super) fn ring(&mut self) -> Result<(), Error> {
        let Some(bell) = self.own_bell.as_ref().or(self.watched_bell.as_ref()) else { return Ok(()) };
        match rustix::io::write(bell, &1u64.to_ne_bytes()) {
            // It may not have been answered yet, and be as loud as it can be.
            Ok(_) | Err(rustix::io::Errno::AGAIN) => Ok(()),
            Err(source) => {
                Err(caravan_fabric::Error::System { call: "write(bell)", source: source.into() }.into())
            }
        }
    }
}

/// Makes a bell of this side's own unreadable again.
pub(super) fn silence(bell: &Watched) {
    // Nothing to read is as good.
    let _ = rustix::io::read(bell, &mut [0; 8][..]);
}
