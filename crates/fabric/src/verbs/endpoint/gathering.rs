//! What the device has for this side: messages of the peer's, and completions.

use std::ffi::c_int;

use super::super::abi::*;
use super::super::fault::Fault;
use super::super::limits::*;
use super::super::resources::Queue;
use super::{COUNT, Flight, Kind, VerbsEndpoint, WAKE};
use crate::contract::{Completion, Error, Event};

impl VerbsEndpoint {
    /// Takes what the device has for this side, and does what follows from it.
    pub(super) fn gather(&mut self) {
        let mut flushed = None;
        let outcome = self.take_messages(&mut flushed).and_then(|()| self.take_completions());
        if let Err(error) = outcome {
            self.fault.get_or_insert(Fault::from(error));
        }
        // Receives only follow: where something under way failed, that is the cause.
        if let Some(status) = flushed {
            self.fault.get_or_insert_with(|| Fault::of_receive(&self.resources, status));
        }
    }

    fn take_messages(&mut self, flushed: &mut Option<c_int>) -> Result<(), Error> {
        let Self {
            resources, flow, ready, fault, came, taken, greeted, immediates, refused, relieved, ..
        } = self;
        let count = resources.poll(Queue::Receive, &mut |completion| {
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
                    taken.0 += 1;
                    ready.push_back(Event::Immediate(immediate));
                }
                None if told == WAKE => taken.0 += 1,
                None => {
                    taken.1 += 1;
                    *relieved |= std::mem::take(refused);
                    if !flow.acknowledged(told) {
                        fault.get_or_insert(Fault::Protocol("it acknowledged what was never sent"));
                    }
                }
            }
        })?;
        self.counts.completions += count as u64;
        if self.taken.0 >= REPOST_EVERY || self.taken.1 > 0 {
            let (immediates, acknowledgements) = std::mem::take(&mut self.taken);
            self.resources.post_receives(immediates + acknowledgements)?;
            self.flow.reposted(immediates);
        }
        if let Some(count) = self.flow.due().filter(|_| self.free > 0) {
            self.flow.told(count);
            self.tell(count)?;
            self.ring()?;
        }
        Ok(())
    }

    pub(super) fn take_completions(&mut self) -> Result<(), Error> {
        if self.flights.is_empty() {
            return Ok(());
        }
        let mut newest = 0;
        let Self { resources, fault, .. } = self;
        let count = resources.poll(Queue::Send, &mut |completion| {
            if completion.status == IBV_WC_SUCCESS {
                newest = completion.wr_id;
            } else {
                fault.get_or_insert_with(|| Fault::of_completion(resources, completion.status));
            }
        })?;
        self.counts.completions += count as u64;
        while let Some(flight) = self.flights.front().copied().filter(|flight| flight.id <= newest) {
            self.flights.pop_front();
            self.end(flight);
        }
        Ok(())
    }

    fn end(&mut self, flight: Flight) {
        self.free += flight.work_requests;
        self.relieved |= std::mem::take(&mut self.refused);
        self.silent_since = None;
        let mut found = None;
        if flight.kind != Kind::Write {
            self.reads_under_way -= 1;
        }
        if let Kind::Swap(slot) = flight.kind {
            self.slots &= !(1 << slot);
            found = Some(self.resources.found(slot));
        }
        let done = flight.context.map(|context| Event::Done(Completion { context, found }));
        self.ready.extend(done);
    }
}
