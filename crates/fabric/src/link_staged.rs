//! Carries a link's rings across where the peer's memory cannot be mapped.
//!
//! The producer's copy of the ring is written to the same places of the consumer's. Each write
//! carries an immediate with its number of bytes, which the other side adds to its
//! `tail_position` when it polls it; a publish is one write, or two where it passes the end of the
//! ring (more where it is longer than the longest operation), and one doorbell. Releases go back as
//! credits, batched to a quarter of the ring or to the moment before waiting. A byte of the copy is
//! overwritten only after its credit, which proves that its write has landed.
//!
//! Where immediates can overtake one another, one write of data is under way at a time; credits
//! need no order, because they are only added up.
//!
//! In an immediate, bit 31 is set for a credit; the other 31 bits are a number of bytes.

use std::sync::atomic::{AtomicU64, Ordering};

use caravan_ring::{Cursors, HEADER_BYTES};

use crate::contract::{Capabilities, Completion, Endpoint, Error, Event, Local, Operation};
use crate::link::{LINK_CONTEXT, LinkConsumer, LinkProducer, UserOperations};

const CREDIT: u32 = 1 << 31;
/// The number of events taken from the endpoint at once.
const EVENTS_MAX: usize = 64;
/// The number of empty polls in a row after which a reader that never sleeps gives credits all the same: a
/// fraction of a millisecond, which is longer than a round trip. If it came sooner, each message of a ping-pong
/// would cost a credit as well, and so twice the doorbells.
const EMPTY_POLLS_MAX: u32 = 1 << 14;
/// The context of a write of data, and of a credit.
const DATA_CONTEXT: u64 = LINK_CONTEXT;
const CREDIT_CONTEXT: u64 = LINK_CONTEXT | 1;

/// What is under way between the local copies and the peer's rings.
#[derive(Debug)]
pub(crate) struct StagedRings {
    ring_bytes: u64,
    /// The offset of the copy's bytes in this side's arena.
    copy_at: u64,
    capabilities: Capabilities,
    /// The position in the outbound ring before which everything has been posted.
    posted: u64,
    /// The position in the inbound ring before which everything has been credited.
    credited: u64,
    /// The number of writes of data posted and not completed.
    data_under_way: usize,
    /// The number of credits posted and not completed.
    credits_under_way: usize,
    /// The number of polls in a row that found nothing.
    empty_polls: u32,
    events: Vec<Event>,
}

impl StagedRings {
    pub(crate) fn new(ring_bytes: u64, ring_total: u64, capabilities: Capabilities) -> Self {
        Self {
            ring_bytes,
            copy_at: ring_total + HEADER_BYTES as u64,
            capabilities,
            posted: 0,
            credited: 0,
            data_under_way: 0,
            credits_under_way: 0,
            empty_polls: 0,
            events: Vec::with_capacity(EVENTS_MAX),
        }
    }

    /// Posts what has been published, as far as the endpoint takes it now; later calls post the rest.
    pub(crate) fn push(&mut self, endpoint: &mut dyn Endpoint, outbound: &LinkProducer) -> Result<(), Error> {
        let published = outbound.position().published_position();
        let mut rung = false;
        while self.posted < published && (self.capabilities.immediates_ordered || self.data_under_way == 0) {
            let offset = self.posted % self.ring_bytes;
            let bytes = (published - self.posted).min(self.ring_bytes - offset);
            let bytes = bytes.min(u64::from(self.capabilities.operation_bytes_max)) as u32;
            let from = Local { offset: self.copy_at + offset, bytes };
            let to = HEADER_BYTES as u64 + offset;
            let write = Operation::Write { from, to, immediate: Some(bytes), context: DATA_CONTEXT };
            if !posted(endpoint, write)? {
                break;
            }
            self.data_under_way += 1;
            self.posted += u64::from(bytes);
            rung = true;
        }
        if rung {
            endpoint.doorbell()?;
            if !self.capabilities.immediates_ordered {
                // The next write waits for the completion of this one.
                endpoint.flush()?;
            }
        }
        Ok(())
    }

    /// Sends the peer a credit for what has been released, if that is a quarter of the ring, or if `now`.
    pub(crate) fn credit(
        &mut self,
        endpoint: &mut dyn Endpoint,
        inbound: &LinkConsumer,
        now: bool,
    ) -> Result<(), Error> {
        let owed = inbound.position().head_position() - self.credited;
        let now = now || self.empty_polls >= EMPTY_POLLS_MAX;
        if owed == 0 || (!now && owed < self.ring_bytes / 4) {
            return Ok(());
        }
        // A peer can also move the position by writing to it, without an immediate.
        if owed > self.ring_bytes {
            return Err(self.overrun(endpoint, inbound.position().head_position()));
        }
        let immediate = Some(CREDIT | owed as u32);
        let from = Local { offset: 0, bytes: 0 };
        if posted(endpoint, Operation::Write { from, to: 0, immediate, context: CREDIT_CONTEXT })? {
            self.credits_under_way += 1;
            self.credited += owed;
            endpoint.doorbell()?;
        }
        Ok(())
    }

    /// True if this side no longer holds anything for the peer: only a completion says that an
    /// operation no longer needs this side.
    pub(crate) fn is_settled(&self, outbound: &LinkProducer, inbound: &LinkConsumer) -> bool {
        self.data_under_way + self.credits_under_way == 0
            && self.posted == outbound.position().published_position()
            && self.credited == inbound.position().head_position()
    }

    /// Takes completions and immediates, and posts what was held back. True if there were any.
    pub(crate) fn progress(
        &mut self,
        endpoint: &mut dyn Endpoint,
        outbound: &LinkProducer,
        inbound: &LinkConsumer,
        user: &mut UserOperations,
    ) -> Result<bool, Error> {
        let mut events = std::mem::take(&mut self.events);
        let came = endpoint.poll(&mut events, EVENTS_MAX)? > 0;
        self.empty_polls = if came { 0 } else { self.empty_polls.saturating_add(1) };
        for event in events.drain(..) {
            match event {
                Event::Done(completion) if user.take(completion) => {}
                event => self.take(event, endpoint, outbound, inbound)?,
            }
        }
        self.events = events;
        let sent = self.push(endpoint, outbound).and_then(|()| self.credit(endpoint, inbound, false));
        match sent {
            // The events that came may be the peer's last before its end: the next poll reports the end.
            Err(Error::PeerGone(..)) if came => Ok(true),
            sent => sent.map(|()| came),
        }
    }

    fn take(
        &mut self,
        event: Event,
        endpoint: &dyn Endpoint,
        outbound: &LinkProducer,
        inbound: &LinkConsumer,
    ) -> Result<(), Error> {
        match event {
            Event::Done(Completion { context: DATA_CONTEXT, .. }) => {
                self.data_under_way = self.data_under_way.saturating_sub(1);
            }
            Event::Done(_) => self.credits_under_way = self.credits_under_way.saturating_sub(1),
            Event::Immediate(told) if told & CREDIT != 0 => {
                advance(outbound.position().shared().head_position(), told & !CREDIT);
            }
            Event::Immediate(told) => {
                let tail = advance(inbound.position().shared().tail_position(), told);
                if tail > self.credited + self.ring_bytes {
                    return Err(self.overrun(endpoint, tail));
                }
            }
        }
        Ok(())
    }

    fn overrun(&self, endpoint: &dyn Endpoint, position: u64) -> Error {
        let allowed = self.credited + self.ring_bytes;
        let what = format!("it sent up to position {position}, with credits for {allowed}");
        Error::Protocol(endpoint.provider(), what)
    }
}

/// Posts an operation; false if the endpoint's queue is full.
fn posted(endpoint: &mut dyn Endpoint, operation: Operation) -> Result<bool, Error> {
    match endpoint.post(operation) {
        Ok(()) => Ok(true),
        Err(Error::Full(_)) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Adds the number of bytes that the peer reported to a position in this side's memory. The next refresh
/// checks that the sum is possible, as for every position. Release, because a backend has made the
/// bytes visible to this thread, and the cursor reads the position with Acquire.
fn advance(position: &AtomicU64, bytes: u32) -> u64 {
    let sum = position.load(Ordering::Relaxed).saturating_add(u64::from(bytes));
    position.store(sum, Ordering::Release);
    sum
}
