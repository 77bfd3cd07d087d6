//! Carries a link's rings across where the peer's memory cannot be mapped.
//!
//! The producer's copy of the ring is written to the same places of the consumer's. Each write
//! carries an immediate with its number of bytes, which the other side adds to its
//! `tail_position` when it polls it; a publish is one write, or two where it passes the end of the
//! ring, and one doorbell. Releases go back as credits, batched to a quarter of the ring or to the
//! moment before waiting. A byte of the copy is overwritten only after its credit, which proves
//! that its write has landed.
//!
//! An immediate: bit 31 set for a credit, then 31 bits of bytes.

use std::sync::atomic::Ordering;

use caravan_ring::{Cursors, HEADER_BYTES};

use crate::contract::{Capabilities, Endpoint, Error, Event, Local, Operation};
use crate::link::{Consumer, Producer};

const CREDIT: u32 = 1 << 31;
/// Events taken from the endpoint at once.
const EVENTS_MAX: usize = 64;

/// What is under way between the local copies and the peer's rings.
#[derive(Debug)]
pub(crate) struct Staged {
    ring_bytes: u64,
    /// Where the copy's bytes begin in this side's arena.
    copy_at: u64,
    capabilities: Capabilities,
    /// Everything of the outbound ring before it has been posted.
    posted: u64,
    /// Everything of the inbound ring before it has been credited.
    credited: u64,
    /// Operations posted and not completed.
    under_way: usize,
    events: Vec<Event>,
}

impl Staged {
    pub(crate) fn new(ring_bytes: u64, ring_total: u64, capabilities: Capabilities) -> Self {
        Self {
            ring_bytes,
            copy_at: ring_total + HEADER_BYTES as u64,
            capabilities,
            posted: 0,
            credited: 0,
            under_way: 0,
            events: Vec::with_capacity(EVENTS_MAX),
        }
    }

    /// Posts what has been published, as far as the endpoint takes it now; the rest goes with
    /// later calls.
    pub(crate) fn push(&mut self, endpoint: &mut dyn Endpoint, outbound: &Producer) -> Result<(), Error> {
        let published = outbound.position().published_position();
        let mut rung = false;
        while self.posted < published && self.may_post() {
            let offset = self.posted % self.ring_bytes;
            let bytes = (published - self.posted).min(self.ring_bytes - offset) as u32;
            let from = Local { offset: self.copy_at + offset, bytes };
            if !self.post(endpoint, from, HEADER_BYTES as u64 + offset, bytes)? {
                break;
            }
            self.posted += u64::from(bytes);
            rung = true;
        }
        if rung { endpoint.doorbell() } else { Ok(()) }
    }

    /// Tells the peer what has been released: when it is a quarter of the ring, or `now`.
    pub(crate) fn credit(
        &mut self,
        endpoint: &mut dyn Endpoint,
        inbound: &Consumer,
        now: bool,
    ) -> Result<(), Error> {
        let owed = inbound.position().head_position() - self.credited;
        if owed == 0 || (!now && owed < self.ring_bytes / 4) || !self.may_post() {
            return Ok(());
        }
        let nothing = Local { offset: 0, bytes: 0 };
        if self.post(endpoint, nothing, 0, CREDIT | owed as u32)? {
            self.credited += owed;
            endpoint.doorbell()?;
        }
        Ok(())
    }

    /// True if nothing that the peer should know is still here.
    pub(crate) fn is_settled(&self, outbound: &Producer, inbound: &Consumer) -> bool {
        self.posted == outbound.position().published_position()
            && self.credited == inbound.position().head_position()
    }

    /// Takes completions and immediates, and posts what was held back.
    pub(crate) fn progress(
        &mut self,
        endpoint: &mut dyn Endpoint,
        outbound: &Producer,
        inbound: &Consumer,
    ) -> Result<(), Error> {
        let mut events = std::mem::take(&mut self.events);
        endpoint.poll(&mut events, EVENTS_MAX)?;
        for event in events.drain(..) {
            match event {
                Event::Done(_) => self.under_way = self.under_way.saturating_sub(1),
                Event::Immediate(told) if told & CREDIT != 0 => {
                    advance(outbound.position().shared().head_position(), told & !CREDIT);
                }
                Event::Immediate(told) => advance(inbound.position().shared().tail_position(), told),
            }
        }
        self.events = events;
        self.push(endpoint, outbound)?;
        self.credit(endpoint, inbound, false)
    }

    /// Where immediates can overtake one another, one operation is under way at a time.
    fn may_post(&self) -> bool {
        self.capabilities.immediates_ordered || self.under_way == 0
    }

    /// False if the endpoint's queue is full.
    fn post(&mut self, endpoint: &mut dyn Endpoint, from: Local, to: u64, told: u32) -> Result<bool, Error> {
        match endpoint.post(Operation::Write { from, to, immediate: Some(told), context: 0 }) {
            Ok(()) => {
                self.under_way += 1;
                Ok(true)
            }
            Err(Error::Full(_)) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// Adds what the peer told to a position in this side's memory. Whether the sum is possible is
/// checked where every position is: at the next refresh. Release, because a backend has made the
/// bytes visible to this thread, and the cursor reads the position with Acquire.
fn advance(position: &std::sync::atomic::AtomicU64, bytes: u32) {
    let sum = position.load(Ordering::Relaxed).saturating_add(u64::from(bytes));
    position.store(sum, Ordering::Release);
}
