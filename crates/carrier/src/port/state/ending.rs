//! What a port does last. None of it waits: a callback that did would hold a scheduler.
//!
//! | what is waited for | how | until |
//! |---|---|---|
//! | the device says that the peer is gone: was that an orderly end? | the control connection tells, which the emulator watches | `LIFELINE_MS` |
//! | the port closes: what is queued, and what was sent, gets into the peer's memory | the queue is not empty as long, see [`LiveEmulator::keep`](super::super::live::Live::keep); the link's bell | `FLUSH_MS`, and `SETTLE_MS` |

use std::os::fd::RawFd;

use super::super::{WatchedDescriptor, send, set_timer, unwatch};
use super::{DriverPort, PortPhase, now, set_up};
use crate::emulator::Emulator;
use crate::error::Error;
use crate::limits::{LIFELINE_MS, SETTLE_MS};

impl DriverPort {
    /// True if nothing more is to be sent or received.
    pub(super) fn is_over(&self) -> bool {
        self.ended.is_some() || self.doubt.is_some()
    }

    /// The link has ended, or the port is broken. A device tells of a peer's orderly end as of a failure,
    /// and it may do so a moment before the control connection, which is waited for.
    pub fn end(&mut self, error: Error) {
        if self.is_over() {
            return;
        }
        self.peer_is_gone = matches!(error, Error::Fabric(caravan_fabric::Error::PeerGone(..)));
        let lifeline = self.watched_lifeline.as_ref().filter(|_| self.peer_is_gone && !self.closing);
        match lifeline.map(lifeline_state) {
            Some(None) => {
                self.doubt = Some(error);
                set_timer(self.handle, LIFELINE_MS);
            }
            Some(Some(Error::PeerClosed)) => self.ended(Error::PeerClosed),
            Some(Some(_)) | None => self.ended(error),
        }
    }

    /// Remembers why the port must be closed, and tells the poller, who logs it.
    pub(super) fn ended(&mut self, error: Error) {
        self.ended = Some(error.exit_reason());
        let orderly = matches!(error, Error::PeerClosed);
        if let (false, Some(poller)) = (orderly, self.poller) {
            send(self.handle, poller, c"error", Some(error.to_string().as_bytes()));
        }
    }

    /// A watched descriptor is readable, and the link is over.
    pub(super) fn ready_at_the_end(&mut self, descriptor: RawFd) -> Result<(), Error> {
        if let Some(lifeline) = self.watched_lifeline.as_ref().filter(|lifeline| lifeline.is(descriptor)) {
            let state = lifeline_state(lifeline);
            if let (Some(state), Some(doubt)) = (state, self.doubt.take()) {
                self.ended(if matches!(state, Error::PeerClosed) { state } else { doubt });
            }
        } else if let Some(bell) = self.own_bell.as_ref().filter(|bell| bell.is(descriptor)) {
            set_up::silence(bell);
        } else if let PortPhase::Connected(connection) = &mut self.phase {
            connection.link().acknowledge()?;
        }
        Ok(())
    }

    /// Called before the port is closed for good, where messages can be delivered: hands over what the
    /// peer had sent before its end, as over TCP, whichever callback noticed the end.
    pub fn last_words(&mut self) {
        let mut live = self.live();
        if let (true, PortPhase::Connected(connection)) = (self.peer_is_gone, &mut self.phase) {
            self.peer_is_gone = false;
            // It ends with the error that ended the link.
            let _ = connection.drain(&mut live);
        }
    }

    /// A port that is closing goes on with that: once its queue is empty, the emulator ends it.
    pub(super) fn leave(&mut self) -> Result<(), Error> {
        let mut live = self.live();
        let PortPhase::Connected(connection) = &mut self.phase else { return Ok(()) };
        connection.flush(&mut live, now())?;
        if live.queued_bytes() > 0 {
            return Ok(());
        }
        if !self.settling {
            self.settling = true;
            set_timer(self.handle, SETTLE_MS);
        }
        // An error says that the peer is gone, and nobody misses what was under way.
        if connection.settle().unwrap_or(true) {
            live.let_go();
        }
        Ok(())
    }
}

impl Drop for DriverPort {
    fn drop(&mut self) {
        // The control connection goes last: its end is what tells the peer of the link's.
        let watched = [self.watched_bell.take(), self.own_bell.take(), self.watched_lifeline.take()];
        for descriptor in watched.into_iter().flatten() {
            unwatch(self.handle, descriptor);
        }
    }
}

/// What is wrong with the control connection, if anything.
pub(super) fn lifeline_state(lifeline: &WatchedDescriptor) -> Option<Error> {
    use rustix::net::RecvFlags;
    match rustix::net::recv(lifeline, &mut [0; 1][..], RecvFlags::PEEK | RecvFlags::DONTWAIT) {
        Ok((_, 0)) => Some(Error::PeerClosed),
        Ok(_) => Some(Error::LifelineData),
        Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => None,
        Err(_) => Some(Error::PeerClosed),
    }
}
