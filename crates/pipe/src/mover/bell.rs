//! What wakes a thread that waits for other things as well.

use std::os::fd::{AsFd, OwnedFd};

use rustix::event::{EventfdFlags, PollFlags, eventfd};

use super::wait::Watch;
use crate::Error;

/// An eventfd.
pub(super) struct WakeEvent(OwnedFd);

impl WakeEvent {
    /// One that was not rung.
    pub fn new() -> Result<Self, Error> {
        eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map(Self)
            .map_err(|source| Error::System { call: "eventfd", source: source.into() })
    }

    /// Wakes who waits, or will.
    pub fn ring(&self) {
        // It cannot be full: each ring follows a sleep.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }

    /// Readable once it has been rung.
    pub fn watch(&self) -> Watch<'_> {
        (self.0.as_fd(), PollFlags::IN)
    }

    /// It was heard.
    pub fn quiet(&self) {
        let mut count = [0; 8];
        // If it was not rung after all, there is nothing to be done.
        let _ = rustix::io::read(&self.0, &mut count);
    }
}
