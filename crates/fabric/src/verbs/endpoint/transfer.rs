//! Turns the contract's operations into work requests, and completions and the peer's messages into events.

use std::ffi::c_int;

use super::super::abi::*;
use super::super::fault::Fault;
use super::super::limits::*;
use super::super::resources::{CompletionQueue, RemoteMemory, WorkKind, WorkRequest};
use super::{COUNT, FlightKind, VerbsEndpoint, WAKE, WorkInFlight};
use crate::contract::{Completion, Error, Event, Local, OperationBounds, Provider};

impl VerbsEndpoint {
    pub(super) fn bounds(&self) -> OperationBounds {
        OperationBounds {
            provider: Provider::Rdma,
            arena_bytes: self.resources.arena().bytes(),
            peer_exposed: self.peer.exposed.clone(),
            compare_and_swap: self.capabilities.compare_and_swap,
            operation_bytes_max: self.capabilities.operation_bytes_max,
        }
    }

    /// True if the send queue has room for `work_requests` of the user.
    pub(super) fn has_room(&self, work_requests: u32) -> bool {
        self.free >= work_requests + SEND_RESERVE
    }

    pub(super) fn write(
        &mut self,
        from: Local,
        to: RemoteMemory,
        immediate: Option<u32>,
        context: u64,
    ) -> bool {
        let message = immediate.filter(|_| !self.immediates);
        let work_requests = 1 + u32::from(message.is_some());
        if !self.has_room(work_requests) || (immediate.is_some() && !self.credit.may_send()) {
            return false;
        }
        let immediate = immediate.filter(|_| self.immediates);
        if message.is_some() || immediate.is_some() {
            self.credit.sent();
        }
        let write = WorkKind::Write { from, to, immediate };
        let Some(message) = message else {
            self.push(&[write], Some(context), FlightKind::Write, false);
            return true;
        };
        let slot = self.slot();
        self.push(
            &[write, WorkKind::Message { body: u64::from(message), slot }],
            Some(context),
            FlightKind::Write,
            false,
        );
        true
    }

    /// Returns the place that the next message leaves from. There are as many places as the send queue has work
    /// requests, so that one is free again when its turn comes.
    fn slot(&self) -> u32 {
        (self.next_id % u64::from(SEND_DEPTH)) as u32
    }

    pub(super) fn read(&mut self, from: RemoteMemory, into: Local, context: u64) -> bool {
        if !self.has_room(1) || self.reads_under_way >= self.peer.reads {
            return false;
        }
        self.reads_under_way += 1;
        self.push(&[WorkKind::Read { from, into }], Some(context), FlightKind::Read, true);
        true
    }

    pub(super) fn swap(&mut self, at: RemoteMemory, [expected, desired]: [u64; 2], context: u64) -> bool {
        let slot = self.slots.trailing_ones();
        if !self.has_room(1) || self.reads_under_way >= self.peer.reads || slot >= READS_MAX {
            return false;
        }
        self.slots |= 1 << slot;
        self.reads_under_way += 1;
        self.push(
            &[WorkKind::Swap { at, expected, desired, slot }],
            Some(context),
            FlightKind::Swap(slot),
            true,
        );
        true
    }

    /// Adds work of the backend's own; the caller has made sure that there is room for it.
    pub(super) fn own(&mut self, work: WorkKind) {
        self.push(&[work], None, FlightKind::Write, false);
    }

    pub(super) fn push(
        &mut self,
        works: &[WorkKind],
        context: Option<u64>,
        kind: FlightKind,
        signaled: bool,
    ) {
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
            self.posted.push(WorkRequest { work, id, signaled: signaled && i + 1 == works.len() });
        }
        self.free -= work_requests;
        self.flights.push_back(WorkInFlight { id, context, work_requests, kind, region: None });
    }

    /// Sends an acknowledgement, a greeting, or a wake-up; the caller has made sure that there is room for it.
    pub(super) fn tell(&mut self, count: u32) -> Result<(), Error> {
        if self.free == 0 {
            return Err(Error::Full(Provider::Rdma));
        }
        let slot = self.slot();
        self.own(match self.immediates {
            true => WorkKind::Acknowledge { count },
            false => WorkKind::Message { body: COUNT | u64::from(count), slot },
        });
        Ok(())
    }

    pub(super) fn ring(&mut self) -> Result<(), Error> {
        if self.posted.is_empty() {
            return Ok(());
        }
        self.counts.doorbells += 1;
        let rung = self.resources.post(&self.posted);
        self.posted.clear();
        if let Err(error) = rung {
            // Work that was not taken never completes, so the endpoint has ended. If another failure is the cause, most
            // often the peer's end, it is known by now.
            let _ = self.take_completions().and_then(|()| self.check_manager());
            self.fault.get_or_insert(error.into());
            return self.check_fault();
        }
        Ok(())
    }
}

impl VerbsEndpoint {
    /// Takes everything that the device has for this side, and handles it.
    pub(super) fn gather(&mut self) {
        let mut flushed = None;
        let outcome = self.take_messages(&mut flushed).and_then(|()| self.take_completions());
        if let Err(error) = outcome {
            self.fault.get_or_insert(Fault::from(error));
        }
        // Failed receives are only a consequence: if something under way failed, that is the cause.
        if let Some(status) = flushed {
            self.fault.get_or_insert_with(|| Fault::of_receive(&self.resources, status));
        }
    }

    fn take_messages(&mut self, flushed: &mut Option<c_int>) -> Result<(), Error> {
        let Self {
            resources,
            credit,
            ready,
            fault,
            came,
            immediates_taken,
            acknowledgements_taken,
            greeted,
            immediates,
            refused,
            relieved,
            ..
        } = self;
        let count = resources.poll(CompletionQueue::Receive, &mut |completion| {
            if completion.status != IBV_WC_SUCCESS {
                flushed.get_or_insert(completion.status);
                return;
            }
            *greeted = true;
            let number = *came;
            *came = came.wrapping_add(1);
            let (immediate, told) = match (*immediates, completion.opcode) {
                (true, IBV_WC_RECV_RDMA_WITH_IMM) => (Some(u32::from_be(completion.imm_data)), 0),
                (true, _) => (None, u32::from_be(completion.imm_data)),
                (false, _) => match resources.message(number) {
                    body if body & COUNT == 0 => (Some(body as u32), 0),
                    body => (None, body as u32),
                },
            };
            match immediate {
                Some(immediate) => {
                    *immediates_taken += 1;
                    ready.push_back(Event::Immediate(immediate));
                }
                None if told == WAKE => *immediates_taken += 1,
                None => {
                    *acknowledgements_taken += 1;
                    *relieved |= std::mem::take(refused);
                    if !credit.acknowledged(told) {
                        fault.get_or_insert(Fault::Protocol("it acknowledged what was never sent"));
                    }
                }
            }
        })?;
        self.counts.completions += count as u64;
        if self.immediates_taken >= REPOST_EVERY || self.acknowledgements_taken > 0 {
            let immediates = std::mem::take(&mut self.immediates_taken);
            let acknowledgements = std::mem::take(&mut self.acknowledgements_taken);
            self.resources.post_receives(immediates + acknowledgements)?;
            self.credit.reposted(immediates);
        }
        if let Some(count) = self.credit.due().filter(|_| self.free > 0) {
            self.credit.told(count);
            self.tell(count)?;
            self.ring()?;
        }
        Ok(())
    }

    fn take_completions(&mut self) -> Result<(), Error> {
        if self.flights.is_empty() {
            return Ok(());
        }
        let mut newest = 0;
        let Self { resources, fault, flights, .. } = self;
        let count = resources.poll(CompletionQueue::Send, &mut |completion| {
            if completion.status == IBV_WC_SUCCESS {
                newest = completion.wr_id;
            } else {
                fault.get_or_insert_with(|| {
                    let failed = flights.iter().find(|flight| flight.id == completion.wr_id);
                    let region = failed.and_then(|flight| flight.region);
                    Fault::of_completion(resources, completion.status).about(region)
                });
            }
        })?;
        self.counts.completions += count as u64;
        while let Some(flight) = self.flights.front().copied().filter(|flight| flight.id <= newest) {
            self.flights.pop_front();
            self.end(flight);
        }
        Ok(())
    }

    fn end(&mut self, flight: WorkInFlight) {
        self.free += flight.work_requests;
        self.relieved |= std::mem::take(&mut self.refused);
        self.silent_since = None;
        let mut found = None;
        if flight.kind != FlightKind::Write {
            self.reads_under_way -= 1;
        }
        if let FlightKind::Swap(slot) = flight.kind {
            self.slots &= !(1 << slot);
            found = Some(self.resources.found(slot));
        }
        let done = flight.context.map(|context| Event::Done(Completion { context, found }));
        self.ready.extend(done);
    }
}
