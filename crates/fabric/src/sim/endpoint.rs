//! The contract on top of the simulated network.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use caravan_segment::SharedSlice;

use super::SimShared;
use super::party::SimParty;
use super::state::{SimEnd, SimState};
use crate::contract::{Armed, Capabilities, Endpoint, Error, Event, Operation, OperationBounds, Provider};
use crate::region::{
    self, BorrowedBounds, Region, RegionAccess, RegionNumber, RegionTable, RegionToken, not_borrowed,
};

/// The largest number of steps of the network that a poll makes.
const POLL_STEPS_MAX: u64 = 4;

/// One side of a simulated connection. Dropping it ends the side, as the end of a process does.
#[derive(Debug)]
pub struct SimEndpoint {
    end: SimEnd,
    shared: Arc<SimShared>,
    capabilities: Capabilities,
    arena: SharedSlice,
    peer_arena: SharedSlice,
    bell: OwnedFd,
    borrowed: RegionTable<BorrowedBounds>,
}

impl SimEndpoint {
    pub(super) fn new(end: SimEnd, shared: &Arc<SimShared>) -> Result<Self, Error> {
        let mut state = shared.lock();
        let capabilities = state.connections[end.connection].capabilities;
        let peer_arena = state.party(end.peer()).arena.clone();
        let party = state.party(end);
        let bell = party
            .bell
            .try_clone()
            .map_err(|source| Error::System { call: "fcntl(F_DUPFD_CLOEXEC)", source })?;
        let arena = party.arena.clone();
        Ok(Self {
            end,
            shared: Arc::clone(shared),
            capabilities,
            arena,
            peer_arena,
            bell,
            borrowed: RegionTable::default(),
        })
    }

    fn bounds(&self) -> OperationBounds {
        OperationBounds {
            provider: Provider::Sim,
            arena_bytes: self.arena.bytes(),
            peer_exposed: 0..self.peer_arena.bytes(),
            compare_and_swap: self.capabilities.compare_and_swap,
            operation_bytes_max: self.capabilities.operation_bytes_max,
        }
    }

    fn check(&self, operation: &Operation) -> Result<(), Error> {
        let bounds = self.bounds();
        if !region::is_far(region::target(operation).0) {
            return bounds.check(operation);
        }
        let of = |number| self.borrowed.row(number).copied().ok_or_else(|| not_borrowed(number));
        bounds.check_far(operation, of).map(drop)
    }

    /// Makes a few steps of the network, and of the operations towards this side if they wait for its poll.
    fn go_on(&self, state: &mut SimState) {
        for _ in 0..=state.random.below(POLL_STEPS_MAX) {
            state.step();
            if !self.capabilities.target_progress {
                state.step_towards(self.end);
            }
        }
    }
}

impl Endpoint for SimEndpoint {
    fn provider(&self) -> Provider {
        Provider::Sim
    }

    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    fn arena(&self) -> &SharedSlice {
        &self.arena
    }

    fn peer_arena_bytes(&self) -> u64 {
        self.peer_arena.bytes()
    }

    fn peer_arena(&self) -> Option<&SharedSlice> {
        self.capabilities.mapped.then_some(&self.peer_arena)
    }

    fn post(&mut self, operation: Operation) -> Result<(), Error> {
        self.check(&operation)?;
        let mut state = self.shared.lock();
        gone(state.party(self.end))?;
        let queue_depth = state.connections[self.end.connection].queue_depth;
        if state.party(self.end).under_way >= queue_depth {
            return Err(Error::Full(Provider::Sim));
        }
        state.clock += 1;
        let posted_at = state.clock;
        let party = state.party(self.end);
        party.under_way += 1;
        party.posted.push((operation, posted_at));
        Ok(())
    }

    fn doorbell(&mut self) -> Result<(), Error> {
        let mut state = self.shared.lock();
        gone(state.party(self.end))?;
        state.ring_doorbell(self.end);
        self.shared.stir();
        Ok(())
    }

    fn flush(&mut self) -> Result<(), Error> {
        let mut state = self.shared.lock();
        state.flush(self.end);
        let now = state.clock;
        let party = state.party(self.end);
        party.flushed_at = now;
        gone(party)
    }

    fn poll(&mut self, events: &mut Vec<Event>, limit: usize) -> Result<usize, Error> {
        let mut state = self.shared.lock();
        self.go_on(&mut state);
        state.clock += 1;
        let now = state.clock;
        let party = state.party(self.end);
        let count = party.events.len().min(limit);
        for (event, flight) in party.events.drain(..count) {
            events.push(event);
            if matches!(event, Event::Done(_)) {
                party.under_way -= 1;
            }
            if let Some(flight) = party.flights.iter_mut().find(|other| Some(other.id) == flight) {
                flight.acknowledged_at = Some(now);
            }
        }
        self.shared.stir();
        if count == 0 && limit > 0 {
            gone(party)?;
        }
        Ok(count)
    }

    fn arm(&mut self) -> Result<Armed, Error> {
        let mut state = self.shared.lock();
        let waits_for_us = !self.capabilities.target_progress && state.can_progress(self.end);
        let party = state.party(self.end);
        if waits_for_us || !party.events.is_empty() || gone(party).is_err() {
            return Ok(Armed::LookAgain);
        }
        party.armed = true;
        self.shared.stir();
        Ok(Armed::Wait)
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.bell.as_fd())
    }

    fn acknowledge(&mut self) -> Result<(), Error> {
        match rustix::io::read(&self.bell, &mut [0; 8]) {
            Ok(_) | Err(rustix::io::Errno::AGAIN) => Ok(()),
            Err(source) => Err(Error::System { call: "read(eventfd)", source: source.into() }),
        }
    }

    fn wake_peer(&mut self) -> Result<(), Error> {
        let mut state = self.shared.lock();
        state.party(self.end.peer()).wakes += 1;
        self.shared.stir();
        Ok(())
    }

    fn check_peer(&mut self) -> Result<(), Error> {
        gone(self.shared.lock().party(self.end))
    }

    fn lend(&mut self, region: &Region, access: RegionAccess) -> Result<RegionToken, Error> {
        let mut state = self.shared.lock();
        let lent = &mut state.party(self.end).lent;
        let number = lent.next()?;
        lent.insert(number, (region.clone(), access));
        Ok(RegionToken { number, access, bytes: region.bytes(), address: 0, key: 0 })
    }

    fn borrow(&mut self, token: &RegionToken) -> Result<RegionNumber, Error> {
        self.borrowed.insert(token.number, BorrowedBounds::of(token));
        Ok(token.number)
    }

    fn revoke(&mut self, number: RegionNumber) -> Result<(), Error> {
        self.shared.lock().party(self.end).lent.revoke(number).map(drop)
    }
}

impl Drop for SimEndpoint {
    fn drop(&mut self) {
        self.shared.lock().end(self.end);
        self.shared.stir();
    }
}

fn gone(party: &SimParty) -> Result<(), Error> {
    match (party.refused, party.notice) {
        _ if party.ended => Err(Error::PeerGone(Provider::Sim, "this node was killed")),
        (Some(number), _) => Err(Error::Revoked(Provider::Sim, number)),
        (None, Some(0)) => Err(Error::PeerGone(Provider::Sim, "it was killed, or the link to it was cut")),
        _ => Ok(()),
    }
}
