//! From the contract's operations to work requests.

use super::super::limits::*;
use super::super::work::{Request, Work};
use super::{COUNT, Flight, Kind, VerbsEndpoint};
use crate::contract::{Bounds, Error, Local, Provider};

impl VerbsEndpoint {
    pub(super) fn bounds(&self) -> Bounds {
        Bounds {
            provider: Provider::Rdma,
            arena_bytes: self.resources.arena().bytes(),
            peer_exposed: self.peer.exposed.clone(),
            compare_and_swap: self.capabilities.compare_and_swap,
            operation_bytes_max: self.capabilities.operation_bytes_max,
        }
    }

    /// The send queue has room for `work_requests` of the user's.
    pub(super) fn has_room(&self, work_requests: u32) -> bool {
        self.free >= work_requests + SEND_RESERVE
    }

    pub(super) fn write(&mut self, from: Local, to: u64, immediate: Option<u32>, context: u64) -> bool {
        let message = immediate.filter(|_| !self.immediates);
        let work_requests = 1 + u32::from(message.is_some());
        if !self.has_room(work_requests) || (immediate.is_some() && !self.flow.may_send()) {
            return false;
        }
        let immediate = immediate.filter(|_| self.immediates);
        if message.is_some() || immediate.is_some() {
            self.flow.sent();
        }
        let write = Work::Write { from, to, immediate };
        let Some(message) = message else {
            self.push(&[write], Some(context), Kind::Write, false);
            return true;
        };
        let slot = self.slot();
        self.push(
            &[write, Work::Message { body: u64::from(message), slot }],
            Some(context),
            Kind::Write,
            false,
        );
        true
    }

    /// Where the next message leaves from. There are as many places as the send queue has work
    /// requests, so that one is free again when its turn comes.
    fn slot(&self) -> u32 {
        (self.next_id % u64::from(SEND_DEPTH)) as u32
    }

    pub(super) fn read(&mut self, from: u64, into: Local, context: u64) -> bool {
        if !self.has_room(1) || self.reads_under_way >= self.peer.reads {
            return false;
        }
        self.reads_under_way += 1;
        self.push(&[Work::Read { from, into }], Some(context), Kind::Read, true);
        true
    }

    pub(super) fn swap(&mut self, at: u64, (expected, desired): (u64, u64), context: u64) -> bool {
        let slot = self.slots.trailing_ones();
        if !self.has_room(1) || self.reads_under_way >= self.peer.reads || slot >= READS_MAX {
            return false;
        }
        self.slots |= 1 << slot;
        self.reads_under_way += 1;
        self.push(&[Work::Swap { at, expected, desired, slot }], Some(context), Kind::Swap(slot), true);
        true
    }

    /// Work of this backend's own; there is room for it.
    pub(super) fn own(&mut self, work: Work) {
        self.push(&[work], None, Kind::Write, false);
    }

    pub(super) fn push(&mut self, works: &[Work], context: Option<u64>, kind: Kind, signaled: bool) {
        let id = self.next_id;
        self.next_id += 1;
        let work_requests = works.len() as u32;
        self.since_signal += work_requests;
        let signaled = signaled || self.since_signal >= SIGNAL_EVERY;
        if signaled {
            self.since_signal = 0;
            self.signaled_id = id;
        }
        for (i, &work) in works.iter().enumerate() {
            self.posted.push(Request { work, id, signaled: signaled && i + 1 == works.len() });
        }
        self.free -= work_requests;
        self.flights.push_back(Flight { id, context, work_requests, kind });
    }

    /// Sends an acknowledgement, a greeting, or a wake-up. There is room for it.
    pub(super) fn tell(&mut self, count: u32) -> Result<(), Error> {
        if self.free == 0 {
            return Err(Error::Full(Provider::Rdma));
        }
        let slot = self.slot();
        self.own(match self.immediates {
            true => Work::Acknowledge { count },
            false => Work::Message { body: COUNT | u64::from(count), slot },
        });
        Ok(())
    }

    pub(super) fn ring(&mut self) -> Result<(), Error> {
        if self.posted.is_empty() {
            return Ok(());
        }
        self.counts.doorbells += 1;
        let rung = self.resources.post(&self.posted, self.peer.target);
        self.posted.clear();
        if let Err(error) = rung {
            // What was not taken never completes, so the endpoint has ended. If that is not the cause but
            // follows of one, it is known by now: the peer's end, most often.
            let _ = self.take_completions().and_then(|()| self.check_manager());
            self.fault.get_or_insert(error.into());
            return self.check_fault();
        }
        Ok(())
    }
}
