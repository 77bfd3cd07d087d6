//! The contract over a queue pair: operations posted, operations completed, messages of the peer.
//!
//! Completions cost a device something, so only some writes ask for one; it stands for everything that
//! was posted before it. `flights` are in order of posting; `free` is the number of work requests that the send
//! queue still takes; `ready` is polled before `fault` is reported.

mod transfer;

use std::collections::VecDeque;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::time::Instant;

use caravan_segment::SharedSlice;

use super::cm::CmEvent;
use super::credit::ImmediateCredit;
use super::fault::{Fault, SILENT, STOPPED};
use super::limits::*;
use super::message::Port;
use super::resources::{CompletionQueue, RemoteMemory, Resources, WorkKind, WorkRequest};
use crate::contract::{
    Armed, Capabilities, Endpoint, EndpointCounts, Error, Event, Local, Operation, Provider,
};
use crate::region::{
    self, BorrowedBounds, Region, RegionAccess, RegionNumber, RegionTable, RegionToken, not_borrowed,
};

/// In a message over iWARP, the bit above an immediate or a count of 32 bits: set for a count.
const COUNT: u64 = 1 << 32;
/// A count that acknowledges nothing, and is itself counted as an immediate: it wakes a sleeping peer.
const WAKE: u32 = 1 << 31;

/// What the peer allows this side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExposedPeer {
    /// The address of the peer's arena, and the key to the exposed part.
    pub memory: RemoteMemory,
    /// The exposed part of the peer's arena.
    pub exposed: Range<u64>,
    /// The number of immediates that the peer takes without having acknowledged any.
    pub immediate_credit: u32,
    /// The number of reads and swaps of this side that may be under way.
    pub reads: u32,
}

impl ExposedPeer {
    /// Returns the first place that this side may reach.
    fn start(&self) -> RemoteMemory {
        self.memory.at(self.exposed.start)
    }
}

/// One side of a connection over a device.
#[derive(Debug)]
pub struct VerbsEndpoint {
    resources: Resources,
    peer: ExposedPeer,
    capabilities: Capabilities,
    port: Port,
    description: String,
    /// The device has writes with immediates; otherwise a message follows the write.
    immediates: bool,
    credit: ImmediateCredit,
    /// Work requests before the doorbell.
    posted: Vec<WorkRequest>,
    /// Work requests after [`post`](Endpoint::post), before their completion.
    flights: VecDeque<WorkInFlight>,
    next_id: u64,
    /// Every work request up to this id has a completion coming, or has had it.
    signaled_id: u64,
    /// The user waits for the completion of every work request up to this id.
    flushed_id: u64,
    since_signal: u32,
    free: u32,
    /// The places for the words that swaps find, one bit each.
    slots: u32,
    reads_under_way: u32,
    /// The number of messages that have arrived.
    came: u32,
    /// The number of immediates taken whose receives are not yet posted again.
    immediates_taken: u32,
    /// The number of acknowledgements taken whose receives are not yet posted again.
    acknowledgements_taken: u32,
    greeted: bool,
    /// A post was refused, and nothing has made room since.
    refused: bool,
    /// There is room again after a refused post, and the user has not polled since.
    relieved: bool,
    ready: VecDeque<Event>,
    fault: Option<Fault>,
    borrowed: RegionTable<(BorrowedBounds, RemoteMemory)>,
    /// When the peer's device was first found to owe an answer.
    silent_since: Option<Instant>,
    counts: EndpointCounts,
}

/// One operation.
#[derive(Clone, Copy, Debug)]
struct WorkInFlight {
    id: u64,
    /// `None` for work of the backend's own.
    context: Option<u64>,
    work_requests: u32,
    kind: FlightKind,
    /// The region of the peer's that the operation reaches.
    region: Option<RegionNumber>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FlightKind {
    Write,
    Read,
    Swap(u32),
}

impl VerbsEndpoint {
    /// Makes an endpoint of a queue pair that is connected.
    pub fn new(
        resources: Resources,
        peer: ExposedPeer,
        capabilities: Capabilities,
        port: Port,
        description: String,
    ) -> Self {
        let counts = EndpointCounts { registered_bytes: resources.registered_bytes(), ..Default::default() };
        Self {
            immediates: resources.context().has_immediates(),
            credit: ImmediateCredit::new(peer.immediate_credit),
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
            immediates_taken: 0,
            acknowledgements_taken: 0,
            greeted: false,
            refused: false,
            relieved: false,
            ready: VecDeque::new(),
            fault: None,
            borrowed: RegionTable::default(),
            silent_since: None,
            counts,
        }
    }

    /// Returns the connection's objects at the device.
    pub(super) fn resources(&self) -> &Resources {
        &self.resources
    }

    /// Returns this side's port.
    pub(super) fn port(&self) -> &Port {
        &self.port
    }

    /// True if a work request before the last flush is under way. Nobody waits for what the backend itself has sent
    /// since, such as acknowledgements.
    fn awaits_flushed(&self) -> bool {
        self.flights.front().is_some_and(|flight| flight.id <= self.flushed_id)
    }

    /// True if the user waits for a completion of anything under way.
    fn awaits_completion(&self) -> bool {
        self.refused || self.reads_under_way > 0 || self.awaits_flushed()
    }
}

impl VerbsEndpoint {
    /// Sends the greeting: once it has completed, the peer's device has it.
    pub(super) fn greet(&mut self) -> Result<(), Error> {
        self.tell(0)?;
        self.flush()?;
        self.doorbell()
    }

    /// Takes what the device has for this side. Returns an error if the connection has ended.
    pub(super) fn collect(&mut self) -> Result<(), Error> {
        self.gather();
        self.check_fault()
    }

    /// True once the peer's greeting, or anything else of the peer's, has arrived.
    pub(super) fn is_greeted(&self) -> bool {
        self.greeted
    }

    /// True once everything up to the last [`flush`](Endpoint::flush) has completed.
    pub(super) fn is_flushed(&self) -> bool {
        !self.awaits_flushed()
    }

    /// Returns an error if the connection manager has reported the end of the connection.
    pub(super) fn check_manager(&mut self) -> Result<(), Error> {
        if let Some(id) = self.resources.managed() {
            while let Some(happened) = id.poll()? {
                if let CmEvent::Ended(why) = happened {
                    // The device may know the cause.
                    let cause = self.resources.trouble().map(|(event, text)| Fault::of_event(event, text));
                    self.fault.get_or_insert(cause.unwrap_or(Fault::PeerGone(why)));
                }
            }
        }
        self.check_fault()
    }

    /// Binds the memory window; the completion follows.
    pub(super) fn bind(&mut self) -> Result<(), Error> {
        self.own(WorkKind::Bind);
        self.flush()?;
        self.doorbell()
    }

    /// Waits for the binding of a loan's window, which sends no packet.
    fn finish_binding(&mut self) -> Result<(), Error> {
        self.flush()?;
        self.doorbell()?;
        let until = Instant::now() + BINDING_LIMIT;
        while !self.is_flushed() {
            if Instant::now() > until {
                let what = format!("it has not bound a memory window within {} s", BINDING_LIMIT.as_secs());
                return Err(self.resources.device_error(what));
            }
            std::hint::spin_loop();
            self.collect()?;
        }
        Ok(())
    }

    /// Returns the place that an operation names, as the peer's device knows it, and its region.
    fn target(&self, operation: &Operation) -> Result<(RemoteMemory, Option<RegionNumber>), Error> {
        let (place, _) = region::target(operation);
        if !region::is_far(place) {
            self.bounds().check(operation)?;
            return Ok((self.peer.memory.at(place), None));
        }
        let row = |number| self.borrowed.row(number).ok_or_else(|| not_borrowed(number));
        let (number, offset) =
            self.bounds().check_far(operation, |number| row(number).map(|(bounds, _)| *bounds))?;
        Ok((row(number)?.1.at(offset), Some(number)))
    }

    fn check_fault(&self) -> Result<(), Error> {
        match &self.fault {
            Some(fault) => Err(fault.error(self.resources.context().name())),
            None => Ok(()),
        }
    }

    /// Posts a write that the peer's device must answer. It has no bytes, so it reaches no memory.
    fn probe(&mut self) -> Result<(), Error> {
        if !self.flights.is_empty() {
            return self.flush();
        }
        let nothing = Local { offset: 0, bytes: 0 };
        let work = WorkKind::Write { from: nothing, to: self.peer.start(), immediate: None };
        self.push(&[work], None, FlightKind::Write, true);
        self.ring()
    }

    /// Notices a peer's device that never answers. Most devices give up sooner by themselves; one that cannot send
    /// at all does not.
    ///
    /// On iWARP a write completes once this side's TCP has it. The probe makes TCP send, and so
    /// notice a silent peer: after `net.ipv4.tcp_retries2`, a quarter of an hour. (The peer's device would answer a
    /// read; but this side may read nothing there, and soft iWARP answers a read of no bytes with what it
    /// last sent: `siw_activate_tx`, Linux 6.1.)
    fn check_silence(&mut self) {
        if self.flights.is_empty() {
            self.silent_since = None;
        } else if self.silent_since.get_or_insert_with(Instant::now).elapsed() > SILENCE_MAX {
            self.fault.get_or_insert(Fault::PeerGone(SILENT));
        }
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
        let (target, region) = self.target(&operation)?;
        let posted = match operation {
            Operation::Write { from, immediate, context, .. } => self.write(from, target, immediate, context),
            Operation::Read { into, context, .. } => self.read(target, into, context),
            Operation::CompareAndSwap { expected, desired, context, .. } => {
                self.swap(target, [expected, desired], context)
            }
        };
        if let (true, Some(flight)) = (posted, self.flights.back_mut()) {
            flight.region = region;
        }
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
            // The device has everything already: one more write, which ends after it, asks for the completion.
            let nothing = Local { offset: 0, bytes: 0 };
            let work = WorkKind::Write { from: nothing, to: self.peer.start(), immediate: None };
            self.push(&[work], None, FlightKind::Write, true);
            self.doorbell()?;
        }
        Ok(())
    }

    fn poll(&mut self, events: &mut Vec<Event>, limit: usize) -> Result<usize, Error> {
        if self.ready.len() < limit {
            let failed = self.fault.is_some();
            self.gather();
            if !failed && self.fault.is_some() {
                // Messages that the peer sent before its end may have come between the polls of the two queues.
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
        self.resources.arm(CompletionQueue::Receive)?;
        if self.awaits_completion() {
            self.resources.arm(CompletionQueue::Send)?;
        }
        // What came before the queues were armed raises no event.
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
        // A peer that has not taken earlier immediates is woken by those.
        if self.credit.may_send() && self.has_room(1) {
            self.credit.sent();
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

    fn lend(&mut self, region: &Region, access: RegionAccess) -> Result<RegionToken, Error> {
        self.check_fault()?;
        if self.resources.binds_loans() && !self.has_room(1) {
            return Err(Error::Full(Provider::Rdma));
        }
        let (token, registered) = self.resources.lend(region, access)?;
        self.counts.registered_bytes += registered;
        if self.resources.binds_loans() {
            self.own(WorkKind::BindLoan(token.number));
            self.finish_binding()?;
        }
        Ok(token)
    }

    fn borrow(&mut self, token: &RegionToken) -> Result<RegionNumber, Error> {
        let memory = RemoteMemory { address: token.address, key: token.key };
        self.borrowed.insert(token.number, (BorrowedBounds::of(token), memory));
        Ok(token.number)
    }

    fn revoke(&mut self, number: RegionNumber) -> Result<(), Error> {
        if !self.resources.revoke(number)? {
            self.fault.get_or_insert(Fault::PeerGone(STOPPED));
        }
        Ok(())
    }

    fn description(&self) -> String {
        self.description.clone()
    }

    fn counts(&self) -> EndpointCounts {
        self.counts
    }
}
