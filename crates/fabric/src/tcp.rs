//! A TCP connection between two processes, which may be on two hosts: the contract where there is no card.
//!
//! Either the accepting side [listens](TcpListening) on a port of its own for the one peer that knows a secret, which went
//! over the face's control channel; or the face [brings](over) a connected socket, and a secret that both ends
//! have agreed on. The greeting of each side is sealed with the secret, which proves that the side knows it; by default
//! everything after it is sealed, too.
//!
//! One-sided operations are done by the target's [agent](self), one thread for all connections of a process, while the
//! target's own threads do what they like. It runs from the first connection to the end of the last. An
//! operation completes once it has been done there. Operations that start together travel in one record.
//!
//! A process that forks leaves its connections to the parent: the child has no agent for them.

mod agent;
mod connect;
mod connection;
mod fault;
mod frame;
pub mod limits;
mod records;
mod requests;
mod target;

use std::os::fd::{AsFd, BorrowedFd};

use caravan_segment::SharedSlice;

use self::agent::ServedConnection;
use self::connection::TcpState;
use self::limits::{OPERATION_BYTES_MAX, QUEUE_DEPTH};
use crate::contract::{
    Armed, Capabilities, Endpoint, EndpointCounts, Error, Event, Exposure, Operation, OperationBounds,
    Provider,
};
use crate::region::{
    self, BorrowedBounds, Region, RegionAccess, RegionNumber, RegionTable, RegionToken, not_borrowed,
};

pub use connect::{TcpListening, TcpSealing, connect, over, pair};
pub use records::TcpSide;

/// One side of a connection over TCP.
#[derive(Debug)]
pub struct TcpEndpoint {
    served: ServedConnection,
    arena: SharedSlice,
    peer: Exposure,
    borrowed: RegionTable<BorrowedBounds>,
    description: String,
}

impl TcpEndpoint {
    fn check(&self, operation: &Operation) -> Result<(), Error> {
        let bounds = OperationBounds {
            provider: Provider::Tcp,
            arena_bytes: self.arena.bytes(),
            peer_exposed: self.peer.exposed.clone(),
            compare_and_swap: true,
            operation_bytes_max: OPERATION_BYTES_MAX,
        };
        if !region::is_far(region::target(operation).0) {
            return bounds.check(operation);
        }
        let of = |number| self.borrowed.row(number).copied().ok_or_else(|| not_borrowed(number));
        bounds.check_far(operation, of).map(drop)
    }

    /// Returns the connection's fault, once the user has had all events from before it.
    fn alive(state: &TcpState) -> Result<(), Error> {
        match &state.fault {
            Some(fault) => Err(fault.error()),
            None => Ok(()),
        }
    }
}

impl Endpoint for TcpEndpoint {
    fn provider(&self) -> Provider {
        Provider::Tcp
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            immediates_ordered: true,
            compare_and_swap: true,
            // The agent uses the processor's own instruction.
            atomic_with_processor: true,
            target_progress: true,
            reads_words_atomically: true,
            revokes_for_certain: true,
            operation_bytes_max: OPERATION_BYTES_MAX,
            ..Capabilities::default()
        }
    }

    fn arena(&self) -> &SharedSlice {
        &self.arena
    }

    fn peer_arena_bytes(&self) -> u64 {
        self.peer.exposed.end
    }

    fn peer_arena(&self) -> Option<&SharedSlice> {
        None
    }

    fn post(&mut self, operation: Operation) -> Result<(), Error> {
        self.check(&operation)?;
        let immediate = matches!(operation, Operation::Write { immediate: Some(_), .. });
        let mut state = self.served.connection().lock();
        Self::alive(&state)?;
        if !state.requests.has_room(immediate) {
            state.refused = Some(immediate);
            return Err(Error::Full(Provider::Tcp));
        }
        state.requests.post(operation);
        Ok(())
    }

    fn doorbell(&mut self) -> Result<(), Error> {
        let mut state = self.served.connection().lock();
        Self::alive(&state)?;
        state.requests.start();
        self.served.push(&mut state);
        Ok(())
    }

    fn flush(&mut self) -> Result<(), Error> {
        Ok(())
    }

    fn poll(&mut self, events: &mut Vec<Event>, limit: usize) -> Result<usize, Error> {
        let mut state = self.served.connection().lock();
        (state.polled, state.armed) = (true, false);
        if !state.has_events() {
            // Sooner than the agent, if this side polls all the time.
            self.served.advance(&mut state);
        }
        let count = state.poll(events, limit);
        if state.owes_taken() {
            self.served.push(&mut state);
        }
        if count == 0 && limit > 0 {
            Self::alive(&state)?;
        }
        Ok(count)
    }

    fn arm(&mut self) -> Result<Armed, Error> {
        let mut state = self.served.connection().lock();
        // Of what comes after the last poll, the socket itself or the agent's bell tells.
        state.armed = !state.has_news();
        if state.armed {
            return Ok(Armed::Wait);
        }
        // Whoever looks again finds out whether there is room.
        (state.woken, state.refused) = (false, None);
        Ok(Armed::LookAgain)
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.served.connection().news().as_fd())
    }

    fn acknowledge(&mut self) -> Result<(), Error> {
        let connection = self.served.connection();
        let mut state = connection.lock();
        state.armed = false;
        connection.hear(&mut state)?;
        // The socket may have been what was readable.
        self.served.advance(&mut state);
        Ok(())
    }

    fn wake_peer(&mut self) -> Result<(), Error> {
        let mut state = self.served.connection().lock();
        Self::alive(&state)?;
        state.wakes_peer = true;
        self.served.push(&mut state);
        Ok(())
    }

    fn check_peer(&mut self) -> Result<(), Error> {
        let mut state = self.served.connection().lock();
        self.served.advance(&mut state);
        Self::alive(&state)
    }

    fn lend(&mut self, region: &Region, access: RegionAccess) -> Result<RegionToken, Error> {
        let mut state = self.served.connection().lock();
        Self::alive(&state)?;
        state.target.lend(region, access)
    }

    fn borrow(&mut self, token: &RegionToken) -> Result<RegionNumber, Error> {
        self.borrowed.insert(token.number, BorrowedBounds::of(token));
        Ok(token.number)
    }

    fn revoke(&mut self, number: RegionNumber) -> Result<(), Error> {
        self.served.connection().lock().target.revoke(number)
    }

    fn description(&self) -> String {
        self.description.clone()
    }

    fn counts(&self) -> EndpointCounts {
        self.served.connection().lock().counts
    }
}

// Every completion that a peer may send fits what is counted.
const _: () = assert!(QUEUE_DEPTH < u32::MAX as usize);
