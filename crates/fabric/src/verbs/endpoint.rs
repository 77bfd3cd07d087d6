//! The contract over a queue pair: what is posted, what has completed, what the peer has said.
//!
//! Completions cost a device something, so writes ask for one only now and then; it stands for all that
//! was posted before it. `flights` are in order of posting; `free` is what the send queue still takes;
//! `ready` is polled before `fault` is told.

use std::collections::VecDeque;
use std::ffi::c_int;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::time::Instant;

use caravan_segment::Window;

use super::abi::*;
use super::cm::Happened;
use super::fault::{Fault, SILENT};
use super::flow::Flow;
use super::limits::*;
use super::message::Port;
use super::quirks::Quirk;
use super::resources::{Queue, Resources, Target};
use super::work::{Request, Work};
use crate::contract::{
    Armed, Capabilities, Completion, Endpoint, EndpointCounts, Error, Event, Local, Operation, Provider,
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
            immediates: !resources.context().has(Quirk::NoImmediates),
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

    /// Says the first word: once it has completed, the peer's device has it.
    pub(super) fn greet(&mut self) -> Result<(), Error> {
        self.tell(0)?;
        self.flush()?;
        self.doorbell()
    }

    /// The peer has said its first word, and ours has arrived.
    pub(super) fn is_greeted(&mut self) -> Result<(bool, bool), Error> {
        self.gather();
        self.check_fault()?;
        Ok((self.greeted, !self.awaits_flushed()))
    }

    /// An error if the connection manager has said that the connection has ended.
    pub(super) fn check_manager(&mut self) -> Result<(), Error> {
        if let Some(id) = self.resources.managed() {
            while let Some(happened) = id.poll()? {
                if let Happened::Ended(why) = happened {
                    // The device may know why.
                    let cause = self.resources.trouble().map(|(event, text)| Fault::of_event(event, text));
                    self.fault.get_or_insert(cause.unwrap_or(Fault::PeerGone(why)));
                }
            }
        }
        self.check_fault()
    }

    /// Binds the memory window; the completion follows.
    pub(super) fn bind(&mut self) -> Result<(), Error> {
        self.own(Work::Bind);
        self.flush()?;
        self.doorbell()
    }

    fn inside(&self, what: &'static str, offset: u64, bytes: u64) -> Result<(), Error> {
        let exposed = &self.peer.exposed;
        match offset.checked_add(bytes) {
            Some(end) if offset >= exposed.start && end <= exposed.end => Ok(()),
            // An immediate alone names no place.
            _ if bytes == 0 => Ok(()),
            _ => Err(Error::OutOfArena { what, offset, bytes, arena_bytes: exposed.end }),
        }
    }

    fn local(&self, what: &'static str, place: Local) -> Result<(), Error> {
        let (offset, bytes, arena_bytes) =
            (place.offset, u64::from(place.bytes), self.resources.arena().bytes());
        match offset.checked_add(bytes) {
            Some(end) if end <= arena_bytes => Ok(()),
            _ => Err(Error::OutOfArena { what, offset, bytes, arena_bytes }),
        }
    }

    /// Refuses what the contract calls a programming error.
    fn check(&self, operation: &Operation) -> Result<(), Error> {
        match *operation {
            Operation::Write { from, to, .. } => {
                self.local("write: source", from)?;
                self.inside("write: target", to, u64::from(from.bytes))?;
                self.capabilities.fits(Provider::Verbs, from.bytes)
            }
            Operation::Read { from, into, .. } => {
                self.inside("read: source", from, u64::from(into.bytes))?;
                self.local("read: target", into)?;
                self.capabilities.fits(Provider::Verbs, into.bytes)
            }
            Operation::CompareAndSwap { .. } if !self.capabilities.compare_and_swap => {
                Err(Error::Unsupported(Provider::Verbs, "compare-and-swap"))
            }
            Operation::CompareAndSwap { at, .. } => {
                if at % 8 != 0 {
                    return Err(Error::Misaligned { what: "compare-and-swap", offset: at });
                }
                self.inside("compare-and-swap", at, 8)
            }
        }
    }

    /// The send queue has room for `work_requests` of the user's.
    fn has_room(&self, work_requests: u32) -> bool {
        self.free >= work_requests + SEND_RESERVE
    }

    fn write(&mut self, from: Local, to: u64, immediate: Option<u32>, context: u64) -> bool {
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

    fn read(&mut self, from: u64, into: Local, context: u64) -> bool {
        if !self.has_room(1) || self.reads_under_way >= self.peer.reads {
            return false;
        }
        self.reads_under_way += 1;
        self.push(&[Work::Read { from, into }], Some(context), Kind::Read, true);
        true
    }

    fn swap(&mut self, at: u64, (expected, desired): (u64, u64), context: u64) -> bool {
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
    fn own(&mut self, work: Work) {
        self.push(&[work], None, Kind::Write, false);
    }

    fn push(&mut self, works: &[Work], context: Option<u64>, kind: Kind, signaled: bool) {
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
    fn tell(&mut self, count: u32) -> Result<(), Error> {
        if self.free == 0 {
            return Err(Error::Full(Provider::Verbs));
        }
        let slot = self.slot();
        self.own(match self.immediates {
            true => Work::Acknowledge { count },
            false => Work::Message { body: COUNT | u64::from(count), slot },
        });
        Ok(())
    }

    /// Takes what the device has for this side, and does what follows from it.
    fn gather(&mut self) {
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

    fn take_completions(&mut self) -> Result<(), Error> {
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

    fn ring(&mut self) -> Result<(), Error> {
        if self.posted.is_empty() {
            return Ok(());
        }
        self.counts.doorbells += 1;
        let rung = self.resources.post(&self.posted, self.peer.target);
        self.posted.clear();
        rung
    }

    fn check_fault(&self) -> Result<(), Error> {
        match &self.fault {
            Some(fault) => Err(fault.error(self.resources.context().name())),
            None => Ok(()),
        }
    }

    /// Has something under way that the peer's device must answer. Of no bytes, it reaches no memory.
    fn probe(&mut self) -> Result<(), Error> {
        if !self.flights.is_empty() {
            return self.flush();
        }
        let nothing = Local { offset: 0, bytes: 0 };
        let work = Work::Write { from: nothing, to: self.peer.exposed.start, immediate: None };
        self.push(&[work], None, Kind::Write, true);
        self.ring()
    }

    /// A device gives up sooner by itself, but for one that cannot send at all.
    ///
    /// On iWARP a write completes once it is with this side's TCP. The probe makes that send, and so
    /// notice: after `net.ipv4.tcp_retries2`, a quarter of an hour. (A read would be answered by the
    /// peer's device; but it may read nothing here, and soft iWARP answers a read of no bytes with what it
    /// last sent: `siw_activate_tx`, Linux 6.1.)
    fn check_silence(&mut self) {
        if self.flights.is_empty() {
            self.silent_since = None;
        } else if self.silent_since.get_or_insert_with(Instant::now).elapsed() > SILENCE_MAX {
            self.fault.get_or_insert(Fault::PeerGone(SILENT));
        }
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
        Provider::Verbs
    }

    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    fn arena(&self) -> &Window {
        self.resources.arena()
    }

    fn peer_arena_bytes(&self) -> u64 {
        self.peer.exposed.end
    }

    fn peer_arena(&self) -> Option<&Window> {
        None
    }

    fn post(&mut self, operation: Operation) -> Result<(), Error> {
        self.check(&operation)?;
        let posted = match operation {
            Operation::Write { from, to, immediate, context } => self.write(from, to, immediate, context),
            Operation::Read { from, into, context } => self.read(from, into, context),
            Operation::CompareAndSwap { at, expected, desired, context } => {
                self.swap(at, (expected, desired), context)
            }
        };
        self.refused |= !posted;
        if posted { Ok(()) } else { Err(Error::Full(Provider::Verbs)) }
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
