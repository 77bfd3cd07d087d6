//! When a link's user may sleep, and which events wake it.

use std::os::fd::BorrowedFd;

use super::Link;
use crate::contract::{Armed, Error};

impl Link {
    /// Announces that this side is about to wait on [`wait_fd`](Self::wait_fd): for bytes to read,
    /// for [completions](Self::completions), and, if `room` is not 0, for that many free bytes to write. Returns [`Armed::LookAgain`] if there
    /// are either already. First publishes what is committed and releases what has been read:
    /// the peer may be waiting for just that.
    pub fn arm(&mut self, room: usize) -> Result<Armed, Error> {
        match self.try_arm(room) {
            Err(Error::PeerGone(..)) => self.refresh().map(|_| Armed::LookAgain),
            armed => armed,
        }
    }

    fn try_arm(&mut self, room: usize) -> Result<Armed, Error> {
        self.publish()?;
        self.release()?;
        if self.has_completions()? {
            return Ok(Armed::LookAgain);
        }
        let awaits_completions = self.awaits_completions();
        let armed = match &mut self.staged {
            Some(staged) => {
                let Self { endpoint, outbound, inbound, user, .. } = self;
                // An event that came just now may be what the caller waits for.
                let came = staged.progress(&mut **endpoint, outbound, inbound, user)?;
                staged.credit(&mut *self.endpoint, &self.inbound, true)?;
                let unread = self.inbound.refresh()?;
                if came || unread > 0 { Armed::LookAgain } else { self.endpoint.arm()? }
            }
            None if !self.inbound.cursor().sleep()? => Armed::LookAgain,
            // Completions of the user's come by events even where the rings need none.
            None if awaits_completions => self.endpoint.arm()?,
            None => Armed::Wait,
        };
        if armed == Armed::LookAgain {
            if awaits_completions {
                self.awake();
            }
            return Ok(Armed::LookAgain);
        }
        // Any credit wakes a staged producer; nobody reads its request, which does no harm.
        if room > 0 && !self.outbound.cursor().wait_for_room(room as u64)? {
            self.awake();
            return Ok(Armed::LookAgain);
        }
        Ok(Armed::Wait)
    }

    /// Announces that this side no longer waits. Harmless at any time.
    pub fn awake(&mut self) {
        if self.staged.is_none() {
            self.inbound.cursor().wake();
        }
        self.outbound.cursor().stop_waiting();
    }

    /// Clears the bell. Call it after the descriptor was readable.
    pub fn acknowledge(&mut self) -> Result<(), Error> {
        self.counts.wakeups_received += 1;
        self.endpoint.acknowledge()
    }

    /// True once everything published and everything released is on its way to the peer: then
    /// nothing is lost if this side ends.
    pub fn is_settled(&mut self) -> Result<bool, Error> {
        self.progress()?;
        if let Some(staged) = &mut self.staged {
            staged.credit(&mut *self.endpoint, &self.inbound, true)?;
            let settled = staged.is_settled(&self.outbound, &self.inbound);
            if !settled {
                self.endpoint.flush()?;
            }
            return Ok(settled);
        }
        Ok(true)
    }

    /// True once everything published has arrived: either its completion says so, or the peer has released all
    /// of it. Returns an error if the peer ends instead.
    pub fn is_delivered(&mut self) -> Result<bool, Error> {
        let is_settled = self.is_settled()?;
        Ok(is_settled && (!self.endpoint.capabilities().completes_early || self.outbound_used_bytes() == 0))
    }

    /// Returns a descriptor that becomes readable when an armed link has news.
    pub fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        self.endpoint.wait_fd()
    }

    /// Returns an error if the peer is known to have ended. May ask the kernel.
    pub fn check_peer(&mut self) -> Result<(), Error> {
        self.endpoint.check_peer()
    }
}
