//! The last steps of a port. None of them blocks: a callback that did would hold a scheduler.
//!
//! | the port waits to learn | how | until |
//! |---|---|---|
//! | whether the device's report of a peer's end means an orderly end | the control connection tells, which the emulator watches | `LIFELINE_MS` |
//! | whether, while the port closes, what is queued and what was sent is in the peer's memory | the queue is not empty as long, see [`LiveEmulator::keep`](super::super::live::Live::keep); the link's bell | `FLUSH_MS`, and `SETTLE_MS` |

use std::os::fd::RawFd;

use super::super::{WatchedDescriptor, send, set_timer, unwatch};
use super::{DriverPort, PortPhase, now, set_up};
use crate::emulator::Emulator;
use crate::error::Error;
use crate::limits::{LIFELINE_MS, SETTLE_MS};

impl DriverPort {
    /// True if the port must not send or receive any more.
    pub(super) fn is_over(&self) -> bool {
        self.ended.is_some() || self.doubt.is_some()
    }

    /// Handles the end of the link, or a broken port. A device reports a peer's orderly end as a failure,
    /// and may do so a moment before the control connection ends, so the port waits for that.
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

    /// Remembers why the port must be closed, and tells the poller, which logs it.
    pub(super) fn ended(&mut self, error: Error) {
        self.ended = Some(error.exit_reason());
        let orderly = matches!(error, Error::PeerClosed);
        if let (false, Some(poller)) = (orderly, self.poller) {
            send(self.handle, poller, c"error", Some(error.to_string().as_bytes()));
        }
    }

    /// Handles a watched descriptor that is readable after the link has ended.
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

    /// Delivers what the peer had sent before its end, as over TCP, whichever callback noticed the end. Called
    /// before the port is closed for good, while messages can be delivered.
    pub fn last_words(&mut self) {
        let mut live = self.live();
        if let (true, PortPhase::Connected(connection)) = (self.peer_is_gone, &mut self.phase) {
            self.peer_is_gone = false;
            // The call returns the error that ended the link, which is known.
            let _ = connection.drain(&mut live);
        }
    }

    /// Continues with closing the port: once its queue is empty, the emulator ends it.
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
        // An error says that the peer is gone, and nobody misses the bytes under way.
        if connection.settle().unwrap_or(true) {
            live.let_go();
        }
        Ok(())
    }
}

impl Drop for DriverPort {
    fn drop(&mut self) {
        // The control connection goes last: its end tells the peer of the link's end.
        let watched = [self.watched_bell.take(), self.own_bell.take(), self.watched_lifeline.take()];
        for descriptor in watched.into_iter().flatten() {
            unwatch(self.handle, descriptor);
        }
    }
}

/// Returns what is wrong with the control connection, if anything.
pub(super) fn lifeline_state(lifeline: &WatchedDescriptor) -> Option<Error> {
    use rustix::net::RecvFlags;
    match rustix::net::recv(lifeline, &mut [0; 1][..], RecvFlags::PEEK | RecvFlags::DONTWAIT) {
        Ok((_, 0)) => Some(Error::PeerClosed),
        Ok(_) => Some(Error::LifelineData),
        Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => None,
        Err(_) => Some(Error::PeerClosed),
    }
}
