//! Faults that any backend may show its user, in front of any backend.

use std::os::fd::BorrowedFd;

use caravan_segment::{SegmentView, SharedSlice};

use super::Random;
use crate::contract::{Armed, Capabilities, Endpoint, EndpointCounts, Error, Event, Operation, Provider};
use crate::region::{Region, RegionAccess, RegionNumber, RegionToken};

/// How often each fault comes: once in this many calls; 0 is never.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// A post finds the queue full; only while completions are still to come.
    pub full: u64,
    /// A poll returns fewer events than there are, perhaps none.
    pub short_poll: u64,
    /// An arming says "look again" without a reason.
    pub empty_look: u64,
    /// The descriptor becomes readable without a reason.
    pub empty_wake: u64,
    /// The peer is gone from this call on.
    pub end_at_call: u64,
    /// The peer's arena cannot be reached with loads and stores.
    pub unmapped: bool,
}

/// An endpoint with faults in front of it.
#[derive(Debug)]
pub struct Faulty<E> {
    inner: E,
    faults: Faults,
    random: Random,
    under_way: usize,
    calls: u64,
}

impl<E: Endpoint> Faulty<E> {
    /// Puts faults in front of `inner`, as `seed` decides.
    pub fn new(inner: E, faults: Faults, seed: u64) -> Self {
        Self { inner, faults, random: Random::new(seed), under_way: 0, calls: 0 }
    }

    fn strikes(&mut self, once_in: u64) -> bool {
        once_in != 0 && self.random.once_in(once_in)
    }

    fn end(&mut self) -> Result<(), Error> {
        self.calls += 1;
        if self.faults.end_at_call != 0 && self.calls >= self.faults.end_at_call {
            return Err(Error::PeerGone(self.inner.provider(), "an injected fault"));
        }
        Ok(())
    }
}

impl<E: Endpoint> Endpoint for Faulty<E> {
    fn provider(&self) -> Provider {
        self.inner.provider()
    }

    fn capabilities(&self) -> Capabilities {
        let inner = self.inner.capabilities();
        Capabilities { mapped: inner.mapped && !self.faults.unmapped, ..inner }
    }

    fn arena(&self) -> &SharedSlice {
        self.inner.arena()
    }

    fn peer_arena_bytes(&self) -> u64 {
        self.inner.peer_arena_bytes()
    }

    fn peer_arena(&self) -> Option<&SharedSlice> {
        self.inner.peer_arena().filter(|_| !self.faults.unmapped)
    }

    fn post(&mut self, operation: Operation) -> Result<(), Error> {
        self.end()?;
        if self.under_way > 0 && self.strikes(self.faults.full) {
            // A full queue does not wait for more completions to gather.
            self.inner.flush()?;
            return Err(Error::Full(self.inner.provider()));
        }
        self.inner.post(operation)?;
        self.under_way += 1;
        Ok(())
    }

    fn doorbell(&mut self) -> Result<(), Error> {
        self.end()?;
        self.inner.doorbell()
    }

    fn flush(&mut self) -> Result<(), Error> {
        self.end()?;
        self.inner.flush()
    }

    fn poll(&mut self, events: &mut Vec<Event>, limit: usize) -> Result<usize, Error> {
        self.end()?;
        let limit = match self.strikes(self.faults.short_poll) {
            true => self.random.below(limit as u64 + 1) as usize,
            false => limit,
        };
        let before = events.len();
        let count = self.inner.poll(events, limit)?;
        let done = events[before..].iter().filter(|event| matches!(event, Event::Done(_))).count();
        self.under_way = self.under_way.saturating_sub(done);
        Ok(count)
    }

    fn arm(&mut self) -> Result<Armed, Error> {
        self.end()?;
        if self.strikes(self.faults.empty_look) {
            return Ok(Armed::LookAgain);
        }
        let armed = self.inner.arm()?;
        if let (true, Some(bell)) = (self.strikes(self.faults.empty_wake), self.inner.wait_fd()) {
            rustix::io::write(bell, &1u64.to_ne_bytes())
                .map_err(|source| Error::System { call: "write(eventfd)", source: source.into() })?;
        }
        Ok(armed)
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        self.inner.wait_fd()
    }

    fn acknowledge(&mut self) -> Result<(), Error> {
        self.inner.acknowledge()
    }

    fn wake_peer(&mut self) -> Result<(), Error> {
        self.end()?;
        self.inner.wake_peer()
    }

    fn check_peer(&mut self) -> Result<(), Error> {
        self.end()?;
        self.inner.check_peer()
    }

    fn lend(&mut self, region: &Region, access: RegionAccess) -> Result<RegionToken, Error> {
        self.end()?;
        self.inner.lend(region, access)
    }

    fn borrow(&mut self, token: &RegionToken) -> Result<RegionNumber, Error> {
        self.end()?;
        self.inner.borrow(token)
    }

    fn revoke(&mut self, number: RegionNumber) -> Result<(), Error> {
        self.end()?;
        self.inner.revoke(number)
    }

    fn window(&self, number: RegionNumber) -> Option<&SegmentView> {
        self.inner.window(number).filter(|_| !self.faults.unmapped)
    }

    fn description(&self) -> String {
        self.inner.description()
    }

    fn counts(&self) -> EndpointCounts {
        self.inner.counts()
    }
}
