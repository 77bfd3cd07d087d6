//! The contract over a queue pair: what is posted, what has completed, what the peer has said.
//!
//! Completions cost a device something, so writes ask for one only now and then; it stands for all that
//! was posted before it. `flights` are in order of posting; `free` is what the send queue still takes;
//! `ready` is polled before `fault` is told.

mod gathering;
mod life;
mod sending;

use std::collections::VecDeque;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::time::Instant;

use caravan_segment::SharedSlice;

use super::fault::Fault;
use super::flow::Flow;
use super::limits::*;
use super::message::Port;
use super::resources::{Queue, Resources, Target};
use super::work::{Request, Work};
use crate::contract::{
    Armed, Capabilities, Endpoint, EndpointCounts, Error, Event, Local, Operation, Provider,
};

/// In a message of iWARP, above the 32 bits of an immediate or of a count: it is a count.
const COUNT: u64 = 1 << 32;
/// A count that says nothing, and is to be counted as an immediate: it wakes who sleeps.
const WAKE: u32 = 1 << 31;

/// What the peer has exposed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Where, and the key to it.
    pub target: Target,
    /// Places in its arena.
    pub exposed: Range<u64>,
    /// Immediates it takes unacknowledged.
    pub window: u32,
    /// Reads and swaps that may be under way.
    pub reads: u32,
}

/// One side of a connection over a device.
#[derive(Debug)]
pub struct VerbsEndpoint {
    resources: Resources,
    peer: Peer,
    capabilities: Capabilities,
    port: Port,
    description: String,
    /// The device has writes with immediates; else a message goes behind the write.
    immediates: bool,
    flow: Flow,
    /// Before the doorbell.
    posted: Vec<Request>,
    /// After [`post`](Endpoint::post), before the completion.
    flights: VecDeque<Flight>,
    next_id: u64,
    /// Everything up to it has a completion coming, or has had it.
    signaled_id: u64,
    /// Somebody waits for the completion of everything up to it.
    flushed_id: u64,
    since_signal: u32,
    free: u32,
    /// Places for what swaps find, one bit each.
    slots: u32,
    reads_under_way: u32,
    /// Messages that came so far.
    came: u32,
    /// Of these, immediates, and acknowledgements, for which no receive is posted again.
    taken: (u32, u32),
    greeted: bool,
    /// A post was refused, and nothing has made room since.
    refused: bool,
    /// There is room again for what was refused, and the user has not polled since.
    relieved: bool,
    ready: VecDeque<Event>,
    fault: Option<Fault>,
    /// When the peer's device was first found to owe an answer.
    silent_since: Option<Instant>,
    counts: EndpointCounts,
}

/// One operation.
#[derive(Clone, Copy, Debug)]
struct Flight {
    id: u64,
    /// None for work of the backend's own.
    context: Option<u64>,
    work_requests: u32,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Write,
    Read,
    Swap(u32),
}

impl VerbsEndpoint {
    /// An endpoint whose queue pair is connected.
    pub fn new(
        resources: Resources,
        peer: Peer,
        capabilities: Capabilities,
        (port, description): (Port, String),
    ) -> Self {
        let counts = EndpointCounts { registered_bytes: resources.registered_bytes(), ..Default::default() };
        Self {
            immediates: resources.context().has_immediates(),
            flow: Flow::new(peer.window),
            resources,
            peer,
            capabilities,
            port,
            description,
            posted: Vec::new(),
            flights: VecDeque::new(),
            next_id: 1,
            signaled_id: 0,
            flushed_id: 0,
            since_signal: 0,
            free: SEND_DEPTH,
            slots: 0,
            reads_under_way: 0,
            came: 0,
            taken: (0, 0),
            greeted: false,
            refused: false,
            relieved: false,
            ready: VecDeque::new(),
            fault: None,
            silent_since: None,
            counts,
        }
    }

    /// What it is made of.
    pub(super) fn resources(&self) -> &Resources {
        &self.resources
    }

    /// This side's port.
    pub(super) fn port(&self) -> &Port {
        &self.port
    }

    /// Something that was flushed is under way. What the backend itself has sent since, acknowledgements
    /// among it, nobody waits for.
    fn awaits_flushed(&self) -> bool {
        self.flights.front().is_some_and(|flight| flight.id <= self.flushed_id)
    }

    /// Something under way has a completion that its user waits for.
    fn awaits_completion(&self) -> bool {
        self.refused || self.reads_under_way > 0 || self.awaits_flushed()
    }
}

impl Endpoint for VerbsEndpoint {
    fn provider(&self) -> Provider {
        Provider::Rdma
    }

    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    fn arena(&self) -> &SharedSlice {
        self.resources.arena()
    }

    fn peer_arena_bytes(&self) -> u64 {
        self.peer.exposed.end
    }

    fn peer_arena(&self) -> Option<&SharedSlice> {
        None
    }

    fn post(&mut self, operation: Operation) -> Result<(), Error> {
        self.bounds().check(&operation)?;
        let posted = match operation {
            Operation::Write { from, to, immediate, context } => self.write(from, to, immediate, context),
            Operation::Read { from, into, context } => self.read(from, into, context),
            Operation::CompareAndSwap { at, expected, desired, context } => {
                self.swap(at, (expected, desired), context)
            }
        };
        self.refused |= !posted;
        if posted { Ok(()) } else { Err(Error::Full(Provider::Rdma)) }
    }

    fn doorbell(&mut self) -> Result<(), Error> {
        self.check_fault()?;
        self.ring()
    }

    fn flush(&mut self) -> Result<(), Error> {
        let Some(newest) = self.flights.back().map(|flight| flight.id) else { return Ok(()) };
        self.flushed_id = newest;
        if newest == self.signaled_id {
            return Ok(());
        }
        if let Some(last) = self.posted.last_mut() {
            last.signaled = true;
            self.signaled_id = newest;
            self.since_signal = 0;
        } else if self.free > 0 {
            // The device has it all already: one more, which ends after it.
            let nothing = Local { offset: 0, bytes: 0 };
            let work = Work::Write { from: nothing, to: self.peer.exposed.start, immediate: None };
            self.push(&[work], None, Kind::Write, true);
            self.doorbell()?;
        }
        Ok(())
    }

    fn poll(&mut self, events: &mut Vec<Event>, limit: usize) -> Result<usize, Error> {
        if self.ready.len() < limit {
            let failed = self.fault.is_some();
            self.gather();
            if !failed && self.fault.is_some() {
                // What the peer did before its end may have come between the looks at both queues.
                self.gather();
            }
        }
        self.relieved = false;
        let count = self.ready.len().min(limit);
        events.extend(self.ready.drain(..count));
        if count == 0 && limit > 0 {
            self.check_fault()?;
        }
        Ok(count)
    }

    fn arm(&mut self) -> Result<Armed, Error> {
        self.resources.arm(Queue::Receive)?;
        if self.awaits_completion() {
            self.resources.arm(Queue::Send)?;
        }
        // What came before the queues were armed makes no event.
        self.gather();
        Ok(match self.ready.is_empty() && self.fault.is_none() && !self.relieved {
            true => Armed::Wait,
            false => Armed::LookAgain,
        })
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.resources.wait_fd())
    }

    fn acknowledge(&mut self) -> Result<(), Error> {
        self.resources.take_events();
        Ok(())
    }

    fn wake_peer(&mut self) -> Result<(), Error> {
        self.check_fault()?;
        // A peer that has not taken what came before is woken by that.
        if self.flow.may_send() && self.has_room(1) {
            self.flow.sent();
            self.tell(WAKE)?;
            self.ring()?;
        }
        Ok(())
    }

    fn check_peer(&mut self) -> Result<(), Error> {
        self.check_fault()?;
        if let Some((event, text)) = self.resources.trouble() {
            self.fault = Some(Fault::of_event(event, text));
            return self.check_fault();
        }
        self.check_manager()?;
        self.probe()?;
        self.gather();
        self.check_silence();
        self.check_fault()
    }

    fn description(&self) -> String {
        self.description.clone()
    }

    fn counts(&self) -> EndpointCounts {
        self.counts
    }
}
