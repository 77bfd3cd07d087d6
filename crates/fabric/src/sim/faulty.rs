//! Faults that any backend may show its user, and breaches of the contract that none may, in front of any backend.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use caravan_segment::{SegmentView, SharedSlice};

use super::Random;
use crate::contract::{
    Armed, Capabilities, Completion, Endpoint, EndpointCounts, Error, Event, Local, Operation, Provider,
};
use crate::region::{Region, RegionAccess, RegionNumber, RegionToken};

/// How often each fault comes: once in this many calls; 0 is never.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// A post finds the queue full; only while completions are still to come.
    pub full: u64,
    /// A poll returns fewer events than there are, perhaps none.
    pub short_poll: u64,
    /// An arming says "look again" without a reason.
    pub empty_look: u64,
    /// The descriptor becomes readable without a reason.
    pub empty_wake: u64,
    /// The peer is gone from this call on.
    pub end_at_call: u64,
    /// The peer's arena cannot be reached with loads and stores.
    pub unmapped: bool,
}

/// A breach of the contract, planted to prove that a checker notices it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlantedBreach {
    /// An immediate comes before the bytes of its write.
    EarlyImmediate,
    /// A write completes before its source has been read.
    EarlyCompletion,
    /// A write is completed, and its bytes never come.
    LostWrite,
    /// A write brings a byte more than it was asked for.
    LongWrite,
    /// A read brings a byte more than it was asked for.
    LongRead,
    /// A compare-and-swap says that it found 0, whatever it found.
    FalseSwap,
    /// An operation that must be refused is taken, and not done.
    TakesAnything,
    /// A queue that was full once is full for ever.
    FullForEver,
    /// An arming that found nothing does not arm: no bell rings.
    Unarmed,
    /// A peer that is to be woken is not.
    Unwoken,
    /// A completion has a context with another top bit.
    WrongContext,
    /// The endpoint promises what its backend does not.
    EmptyPromises,
    /// A region is lent under two numbers, of which the peer was given one.
    LendsTwice,
    /// A region that is revoked is still lent.
    Unrevoked,
    /// A region is registered anew for each peer.
    RegistersAgain,
    /// A region has no window, though memory is mapped.
    NoWindow,
}

/// The bit of the contexts of operations whose completions the user does not get.
const HIDDEN: u64 = 1 << 62;
/// The number of polls for which a planted breach keeps an operation back.
const KEPT_POLLS: u64 = 20;

/// An endpoint with faults in front of it.
#[derive(Debug)]
pub struct Faulty<E> {
    inner: E,
    faults: Faults,
    random: Random,
    under_way: usize,
    calls: u64,
    planted: Option<PlantedBreach>,
    /// What a planted breach posts later, and after how many more polls.
    kept: VecDeque<(Operation, u64)>,
    /// Completions that a planted breach makes up.
    made_up: Vec<Event>,
    was_full: bool,
    /// A readable descriptor, while a wake-up without a reason is not acknowledged.
    rung: Option<OwnedFd>,
    registered_bytes: u64,
}

impl<E: Endpoint> Faulty<E> {
    /// Puts faults in front of `inner`, as `seed` decides.
    pub fn new(inner: E, faults: Faults, seed: u64) -> Self {
        Self {
            inner,
            faults,
            random: Random::new(seed),
            under_way: 0,
            calls: 0,
            planted: None,
            kept: VecDeque::new(),
            made_up: Vec::new(),
            was_full: false,
            rung: None,
            registered_bytes: 0,
        }
    }

    /// Plants a breach of the contract in front of `inner`.
    pub fn planted(inner: E, breach: PlantedBreach) -> Self {
        Self { planted: Some(breach), ..Self::new(inner, Faults::default(), 0) }
    }

    fn breaches(&self, breach: PlantedBreach) -> bool {
        self.planted == Some(breach)
    }

    /// Posts an operation as the planted breach has it.
    fn post_planted(&mut self, operation: Operation) -> Result<(), Error> {
        let longer = |local: Local| Local { bytes: local.bytes + 1, ..local };
        match (self.planted, operation) {
            (
                Some(PlantedBreach::EarlyImmediate),
                Operation::Write { from, to, immediate: Some(immediate), context },
            ) => {
                let nothing = Local { bytes: 0, ..from };
                let (early, context) = (Some(immediate), context | HIDDEN);
                self.inner.post(Operation::Write { from: nothing, to, immediate: early, context })?;
                self.keep(Operation::Write { from, to, immediate: None, context: context & !HIDDEN });
                Ok(())
            }
            (Some(PlantedBreach::EarlyCompletion), Operation::Write { from, to, immediate, context }) => {
                self.made_up.push(Event::Done(Completion { context, found: None }));
                self.keep(Operation::Write { from, to, immediate, context: context | HIDDEN });
                Ok(())
            }
            (Some(PlantedBreach::LostWrite), Operation::Write { from, to, immediate, context }) => {
                let nothing = Local { bytes: 0, ..from };
                self.inner.post(Operation::Write { from: nothing, to, immediate, context })
            }
            (Some(PlantedBreach::LongWrite), Operation::Write { from, to, immediate, context }) => {
                self.inner.post(Operation::Write { from: longer(from), to, immediate, context })
            }
            (Some(PlantedBreach::LongRead), Operation::Read { from, into, context }) => {
                self.inner.post(Operation::Read { from, into: longer(into), context })
            }
            (Some(PlantedBreach::FullForEver), _) if self.was_full => Err(Error::Full(self.inner.provider())),
            (Some(PlantedBreach::TakesAnything), _) => match self.inner.post(operation) {
                Err(Error::OutOfArena { .. } | Error::NoRegion { .. }) => Ok(()),
                posted => posted,
            },
            _ => self.inner.post(operation),
        }
    }

    fn keep(&mut self, operation: Operation) {
        self.kept.push_back((operation, KEPT_POLLS));
    }

    /// Posts what was kept for long enough.
    fn post_kept(&mut self) -> Result<(), Error> {
        self.kept.iter_mut().for_each(|(_, polls)| *polls = polls.saturating_sub(1));
        while let Some(&(operation, 0)) = self.kept.front() {
            match self.inner.post(operation) {
                Ok(()) => drop(self.kept.pop_front()),
                Err(Error::Full(_)) => break,
                Err(error) => return Err(error),
            }
        }
        self.inner.doorbell()
    }

    /// Changes the events behind the first `before`, as the planted breach has it.
    fn change(&mut self, events: &mut Vec<Event>, before: usize) {
        let mut polled = events.split_off(before);
        polled.retain(|event| !matches!(event, Event::Done(done) if done.context & HIDDEN != 0));
        for event in &mut polled {
            let Event::Done(done) = event else { continue };
            if self.breaches(PlantedBreach::FalseSwap) {
                done.found = done.found.map(|_| 0);
            }
            if self.breaches(PlantedBreach::WrongContext) {
                done.context ^= 1 << 63;
            }
        }
        events.append(&mut polled);
        events.append(&mut self.made_up);
    }

    fn strikes(&mut self, once_in: u64) -> bool {
        once_in != 0 && self.random.once_in(once_in)
    }

    fn end(&mut self) -> Result<(), Error> {
        self.calls += 1;
        if self.faults.end_at_call != 0 && self.calls >= self.faults.end_at_call {
            return Err(Error::PeerGone(self.inner.provider(), "an injected fault"));
        }
        Ok(())
    }
}

impl<E: Endpoint> Endpoint for Faulty<E> {
    fn provider(&self) -> Provider {
        self.inner.provider()
    }

    fn capabilities(&self) -> Capabilities {
        let inner = self.inner.capabilities();
        let promises = self.breaches(PlantedBreach::EmptyPromises);
        Capabilities {
            mapped: inner.mapped && !self.faults.unmapped,
            immediates_ordered: inner.immediates_ordered || promises,
            reads_words_atomically: inner.reads_words_atomically || promises,
            ..inner
        }
    }

    fn arena(&self) -> &SharedSlice {
        self.inner.arena()
    }

    fn peer_arena_bytes(&self) -> u64 {
        self.inner.peer_arena_bytes()
    }

    fn peer_arena(&self) -> Option<&SharedSlice> {
        self.inner.peer_arena().filter(|_| !self.faults.unmapped)
    }

    fn post(&mut self, operation: Operation) -> Result<(), Error> {
        self.end()?;
        if self.under_way > 0 && self.strikes(self.faults.full) {
            // A full queue does not wait for more completions to gather.
            self.inner.flush()?;
            return Err(Error::Full(self.inner.provider()));
        }
        let posted = self.post_planted(operation);
        self.was_full |= matches!(posted, Err(Error::Full(_)));
        posted?;
        self.under_way += 1;
        Ok(())
    }

    fn doorbell(&mut self) -> Result<(), Error> {
        self.end()?;
        self.inner.doorbell()
    }

    fn flush(&mut self) -> Result<(), Error> {
        self.end()?;
        self.inner.flush()
    }

    fn poll(&mut self, events: &mut Vec<Event>, limit: usize) -> Result<usize, Error> {
        self.end()?;
        let limit = match self.strikes(self.faults.short_poll) {
            true => self.random.below(limit as u64 + 1) as usize,
            false => limit,
        };
        let before = events.len();
        let mut count = self.inner.poll(events, limit)?;
        if self.planted.is_some() {
            self.post_kept()?;
            self.change(events, before);
            count = events.len() - before;
        }
        let done = events[before..].iter().filter(|event| matches!(event, Event::Done(_))).count();
        self.under_way = self.under_way.saturating_sub(done);
        Ok(count)
    }

    fn arm(&mut self) -> Result<Armed, Error> {
        self.end()?;
        if self.strikes(self.faults.empty_look) {
            return Ok(Armed::LookAgain);
        }
        if self.breaches(PlantedBreach::Unarmed) {
            return Ok(Armed::Wait);
        }
        let armed = self.inner.arm()?;
        if self.strikes(self.faults.empty_wake) && self.inner.wait_fd().is_some() {
            let rung = rustix::event::eventfd(1, rustix::event::EventfdFlags::CLOEXEC)
                .map_err(|source| Error::System { call: "eventfd", source: source.into() })?;
            self.rung = Some(rung);
        }
        Ok(armed)
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        self.rung.as_ref().map(AsFd::as_fd).or_else(|| self.inner.wait_fd())
    }

    fn acknowledge(&mut self) -> Result<(), Error> {
        self.rung = None;
        self.inner.acknowledge()
    }

    fn wake_peer(&mut self) -> Result<(), Error> {
        self.end()?;
        if self.breaches(PlantedBreach::Unwoken) {
            return Ok(());
        }
        self.inner.wake_peer()
    }

    fn check_peer(&mut self) -> Result<(), Error> {
        self.end()?;
        self.inner.check_peer()
    }

    fn lend(&mut self, region: &Region, access: RegionAccess) -> Result<RegionToken, Error> {
        self.end()?;
        self.registered_bytes += region.bytes();
        let token = self.inner.lend(region, access)?;
        if self.breaches(PlantedBreach::LendsTwice) {
            self.inner.lend(region, access)?;
        }
        Ok(token)
    }

    fn borrow(&mut self, token: &RegionToken) -> Result<RegionNumber, Error> {
        self.end()?;
        self.inner.borrow(token)
    }

    fn revoke(&mut self, number: RegionNumber) -> Result<(), Error> {
        self.end()?;
        if self.breaches(PlantedBreach::Unrevoked) {
            return Ok(());
        }
        self.inner.revoke(number)
    }

    fn window(&self, number: RegionNumber) -> Option<&SegmentView> {
        let hidden = self.faults.unmapped || self.breaches(PlantedBreach::NoWindow);
        self.inner.window(number).filter(|_| !hidden)
    }

    fn description(&self) -> String {
        self.inner.description()
    }

    fn counts(&self) -> EndpointCounts {
        let inner = self.inner.counts();
        let again = if self.breaches(PlantedBreach::RegistersAgain) { self.registered_bytes } else { 0 };
        EndpointCounts { registered_bytes: inner.registered_bytes + again, ..inner }
    }
}
