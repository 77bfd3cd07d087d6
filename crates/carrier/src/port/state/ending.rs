//! What a port does last.

use std::time::{Duration, Instant};

use caravan_fabric::Link;
use caravan_fabric::contract::Armed;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::super::live::Live;
use super::super::{Watched, unwatch};
use super::{Port, Stage};
use crate::error::Error;
use crate::limits::{LIFELINE_MS, SETTLE_MS};

impl Port {
    /// Called before the port is closed for good, where messages can be delivered: hands over what the
    /// peer had sent before its end, as over TCP, whichever callback noticed the end.
    pub fn last_words(&mut self) {
        if let (true, Stage::Connected(connection)) = (self.peer_is_gone, &mut self.stage) {
            self.peer_is_gone = false;
            // It ends with the error that ended the link.
            let _ = connection.drain(&mut Live::new(self.handle));
        }
    }

    /// True if the peer has ended in good order: a device tells of that as of a failure, and it may do
    /// so a moment before the control connection.
    pub(super) fn peer_ended(&mut self, error: &Error) -> bool {
        self.peer_is_gone = matches!(error, Error::Fabric(caravan_fabric::Error::PeerGone(..)));
        let Some(lifeline) = self.watched_lifeline.as_ref().filter(|_| self.peer_is_gone) else {
            return false;
        };
        let wait = timespec(Duration::from_millis(LIFELINE_MS));
        // Whatever comes of the waiting, the state says it.
        let _ = poll(&mut [PollFd::new(lifeline, PollFlags::IN)], Some(&wait));
        matches!(lifeline_state(lifeline), Some(Error::PeerClosed))
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        // Only an orderly end: a link that has failed takes nothing to the peer any more.
        if let (None, Stage::Connected(connection)) = (self.ended, &mut self.stage) {
            // An error says that the peer is gone, and nobody misses what was under way.
            let _ = settle(connection.link(), Duration::from_millis(SETTLE_MS));
        }
        // The control connection goes last: its end is what tells the peer of the link's.
        let watched = [self.watched_bell.take(), self.own_bell.take(), self.watched_lifeline.take()];
        for descriptor in watched.into_iter().flatten() {
            unwatch(self.handle, descriptor);
        }
    }
}

/// Waits until all that was sent is in the peer's memory. With shared memory it is there already; a
/// device needs this side's until it has written it.
fn settle(link: &mut Link, limit: Duration) -> Result<(), Error> {
    let end = Instant::now() + limit;
    loop {
        // What the peer sends meanwhile is for nobody; unread, it would keep this side from waiting.
        let unread = link.refresh()?;
        link.skip(unread);
        link.release()?;
        // Last, so that it has the device tell of all that is under way.
        if link.is_settled()? {
            return Ok(());
        }
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        if link.arm(0)? == Armed::LookAgain {
            continue;
        }
        let Some(bell) = link.wait_fd() else { return Ok(()) };
        let wait = timespec(left);
        match poll(&mut [PollFd::new(&bell, PollFlags::IN)], Some(&wait)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => {}
            Ok(_) => link.acknowledge()?,
            Err(source) => {
                return Err(caravan_fabric::Error::System { call: "poll", source: source.into() }.into());
            }
        }
    }
}

fn timespec(duration: Duration) -> Timespec {
    Timespec { tv_sec: duration.as_secs() as i64, tv_nsec: i64::from(duration.subsec_nanos()) }
}

/// What is wrong with the control connection, if anything.
pub(super) fn lifeline_state(lifeline: &Watched) -> Option<Error> {
    use rustix::net::RecvFlags;
    match rustix::net::recv(lifeline, &mut [0; 1][..], RecvFlags::PEEK | RecvFlags::DONTWAIT) {
        Ok((_, 0)) => Some(Error::PeerClosed),
        Ok(_) => Some(Error::LifelineData),
        Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => None,
        Err(_) => Some(Error::PeerClosed),
    }
}
