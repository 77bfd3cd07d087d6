//! Both sides of a simulated connection, their operations under way, and how a step changes them.
//!
//! Invariants: flights are in order of posting; a side's `events` are polled before it learns that
//! its peer has ended; an armed side is rung, once, by the next event.
//!
//! What happens to a flight:
//!
//! | who | change | why |
//! |---|---|---|
//! | network | a piece lands | its bytes are copied from the source, or from the wire once taken |
//! | network | taken | the operation completes: the source may change from now on |
//! | network | told | all pieces have landed, and the order that is promised allows the immediate |
//! | network | loaded, then stored | a compare-and-swap: in one step where atomic, in two where not |
//! | source | acknowledged | it polled the completion |
//! | network | pieces are lost | the source ended before the completion |
//! | network | refused | its region is not lent, or not so much of it: the source's connection has ended |

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use caravan_segment::{Pages, Segment, SharedSlice};

use super::{NetworkSide, Random};
use crate::contract::{Capabilities, Completion, Error, Event, Operation};
use crate::region::{self, Region, RegionAccess, RegionNumber, RegionTable};

/// The largest number of steps after which a side learns that its peer has ended.
const NOTICE_STEPS_MAX: u64 = 40;

/// The largest number of completions of writes that a side's device gathers, in networks that gather.
const GATHERED_MAX: u64 = 40;

/// What the network knows about one side.
#[derive(Debug)]
pub(super) struct SimParty {
    pub(super) arena: SharedSlice,
    pub(super) bell: OwnedFd,
    pub(super) armed: bool,
    /// The events that the side can poll; a completion with the id of its flight.
    pub(super) events: VecDeque<(Event, Option<u64>)>,
    /// Completions of writes that are gathered, to be reported all at once.
    pub(super) gathered: VecDeque<(Event, Option<u64>)>,
    /// Operations posted before this are not gathered.
    pub(super) flushed_at: u64,
    /// Operations before their doorbell.
    pub(super) posted: Vec<(Operation, u64)>,
    /// Operations after their doorbell.
    pub(super) flights: Vec<Flight>,
    /// The number of operations posted whose completion the side has not polled.
    pub(super) under_way: usize,
    /// The number of rings of the side's bell that are under way.
    pub(super) wakes: u64,
    pub(super) ended: bool,
    /// The number of steps until the side learns that its peer has ended, and then 0.
    pub(super) notice: Option<u64>,
    /// The regions that the side lends.
    pub(super) lent: RegionTable<(Region, RegionAccess)>,
    /// The side asked for what its peer does not lend: nothing of it is carried any more.
    pub(super) refused: Option<RegionNumber>,
}

/// Both sides.
#[derive(Debug)]
pub(crate) struct SimState {
    pub(super) capabilities: Capabilities,
    pub(super) random: Random,
    pub(super) queue_depth: usize,
    /// The number of completions of writes that are reported at once; 1: each by itself.
    pub(super) gather: usize,
    pub(super) left: SimParty,
    pub(super) right: SimParty,
    /// Counts the events, so that their order can be compared.
    pub(super) clock: u64,
}

impl SimState {
    pub(super) fn new(seed: u64, arena_bytes: u64, capabilities: Capabilities) -> Result<Self, Error> {
        let mut random = Random::new(seed);
        Ok(Self {
            capabilities,
            queue_depth: 1 + random.below(24) as usize,
            gather: if random.once_in(2) { 1 } else { 1 + random.below(GATHERED_MAX) as usize },
            random,
            left: SimParty::new(arena_bytes)?,
            right: SimParty::new(arena_bytes)?,
            clock: 0,
        })
    }

    pub(super) fn party(&mut self, side: NetworkSide) -> &mut SimParty {
        match side {
            NetworkSide::Left => &mut self.left,
            NetworkSide::Right => &mut self.right,
        }
    }

    /// Starts the operations that `side` has queued.
    pub(super) fn ring_doorbell(&mut self, side: NetworkSide) {
        for (operation, posted_at) in std::mem::take(&mut self.party(side).posted) {
            self.clock += 1;
            let flight = Flight::new(self.clock, operation, posted_at, &self.capabilities, &mut self.random);
            self.party(side).flights.push(flight);
        }
        if !self.capabilities.target_progress && self.can_progress(side.peer()) {
            self.ring(side.peer(), false);
        }
    }

    /// True if operations at `target` wait for its polling.
    pub(super) fn can_progress(&mut self, target: NetworkSide) -> bool {
        let capabilities = self.capabilities;
        let ended = self.party(target).ended;
        let flights = &self.party(target.peer()).flights;
        !ended && (0..flights.len()).any(|index| !possible(flights, index, &capabilities).is_empty())
    }

    /// True once a side has ended and nothing is left to happen.
    pub(super) fn is_over(&self) -> bool {
        self.left.ended && self.right.ended
    }

    /// Lets one thing happen to any operation under way.
    pub(super) fn step(&mut self) -> bool {
        let first = if self.random.once_in(2) { NetworkSide::Left } else { NetworkSide::Right };
        [first, first.peer()].into_iter().any(|side| {
            self.deliver_wake(side)
                || (self.capabilities.target_progress && self.step_towards(side))
                || self.notice_end(side)
        })
    }

    fn deliver_wake(&mut self, side: NetworkSide) -> bool {
        let party = self.party(side);
        if party.wakes == 0 {
            return false;
        }
        party.wakes -= 1;
        self.ring(side, true);
        true
    }

    /// Lets one thing happen to an operation whose target is `target`.
    pub(super) fn step_towards(&mut self, target: NetworkSide) -> bool {
        if self.party(target).ended {
            return false;
        }
        let capabilities = self.capabilities;
        let flights = &self.party(target.peer()).flights;
        let choices: Vec<(usize, FlightStep)> = (0..flights.len())
            .flat_map(|index| {
                possible(flights, index, &capabilities).into_iter().map(move |step| (index, step))
            })
            .collect();
        if choices.is_empty() {
            return false;
        }
        let (index, step) = choices[self.random.below(choices.len() as u64) as usize];
        self.advance(target, index, step);
        true
    }

    fn advance(&mut self, target: NetworkSide, index: usize, step: FlightStep) {
        self.clock += 1;
        let source = target.peer();
        match step {
            FlightStep::Land => self.land(target, index),
            FlightStep::Swap => self.swap(target, index),
            FlightStep::Tell => {
                let flight = &mut self.party(source).flights[index];
                flight.told = true;
                if let Operation::Write { immediate: Some(immediate), .. } = flight.operation {
                    self.tell(target, Event::Immediate(immediate), None);
                }
            }
            FlightStep::Complete => {
                let party = self.party(source);
                let flight = &mut party.flights[index];
                flight.take(&party.arena);
                flight.completed = true;
                let completion = Completion { context: flight.context(), found: flight.found };
                let event = (Event::Done(completion), Some(flight.id));
                if flight.is_write() && flight.posted_at > party.flushed_at {
                    party.gathered.push_back(event);
                    // A full queue waits for the gathered completions.
                    if party.gathered.len() >= self.gather.min(self.queue_depth) {
                        self.flush(source);
                    }
                } else {
                    self.tell(source, event.0, event.1);
                }
            }
        }
        self.party(source).flights.retain(|flight| !flight.is_over());
        if self.party(source).refused.is_some() {
            self.ring(source, false);
        }
    }

    fn land(&mut self, target: NetworkSide, index: usize) {
        let (source, target, random) = match target {
            NetworkSide::Left => (&mut self.right, &self.left, &mut self.random),
            NetworkSide::Right => (&mut self.left, &self.right, &mut self.random),
        };
        let flight = &mut source.flights[index];
        let piece = flight.pieces.remove(flight.next_piece(random));
        let (place, _) = region::target(&flight.operation);
        let access = if flight.is_write() { RegionAccess::Write } else { RegionAccess::Read };
        let Some((memory, at)) = target.reach(place + piece.at, piece.bytes as u64, access) else {
            return source.refuse(place);
        };
        match (flight.operation, piece.taken) {
            (Operation::Write { .. }, Some(bytes)) => memory.copy_in(at, &bytes),
            (Operation::Write { from, .. }, None) => {
                source.arena.copy_to((from.offset + piece.at) as usize, piece.bytes, memory, at);
            }
            (Operation::Read { into, .. }, _) => {
                memory.copy_words_to(at, piece.bytes, &source.arena, (into.offset + piece.at) as usize);
            }
            (Operation::CompareAndSwap { .. }, _) => {}
        }
    }

    /// Makes one half of a compare-and-swap, or both if it is atomic.
    fn swap(&mut self, target: NetworkSide, index: usize) {
        let atomic = self.capabilities.atomic_with_processor;
        let source = self.party(target.peer());
        let Operation::CompareAndSwap { at, expected, desired, .. } = source.flights[index].operation else {
            return;
        };
        let Some((memory, offset)) = self
            .party(target)
            .reach(at, 8, RegionAccess::Write)
            .map(|(memory, offset)| (memory.clone(), offset))
        else {
            return self.party(target.peer()).refuse(at);
        };
        let word = memory.word(offset);
        let flight = &mut self.party(target.peer()).flights[index];
        if atomic {
            let found = word.compare_exchange(expected, desired, Ordering::AcqRel, Ordering::Acquire);
            flight.found = Some(found.unwrap_or_else(|other| other));
            flight.stored = true;
        } else if let Some(found) = flight.found {
            if found == expected {
                word.store(desired, Ordering::Release);
            }
            flight.stored = true;
        } else {
            flight.found = Some(word.load(Ordering::Acquire));
        }
    }

    /// Reports the gathered completions.
    pub(super) fn flush(&mut self, side: NetworkSide) {
        for (event, flight) in std::mem::take(&mut self.party(side).gathered) {
            self.tell(side, event, flight);
        }
    }

    fn tell(&mut self, side: NetworkSide, event: Event, flight: Option<u64>) {
        self.party(side).events.push_back((event, flight));
        self.ring(side, false);
    }

    /// Makes the side's descriptor readable, if the side is armed or if `must`.
    pub(super) fn ring(&mut self, side: NetworkSide, must: bool) {
        let party = self.party(side);
        if must || party.armed {
            party.armed = false;
            // A full counter is readable already; no test can go on without its eventfd.
            let _ = rustix::io::write(&party.bell, &1u64.to_ne_bytes());
        }
    }

    /// Ends a side: a part of the operations that it had not seen completed is lost.
    pub(super) fn end(&mut self, side: NetworkSide) {
        if std::mem::replace(&mut self.party(side).ended, true) {
            return;
        }
        self.party(side).posted.clear();
        let mut flights = std::mem::take(&mut self.party(side).flights);
        // Completed operations land, and with them all earlier ones that they may be ordered after.
        let certain = flights.iter().rposition(|flight| flight.completed).map_or(0, |last| last + 1);
        let keep = certain + self.random.below((flights.len() - certain) as u64 + 1) as usize;
        if let Some(torn) = flights.get_mut(keep) {
            let left = self.random.below(torn.pieces.len() as u64 + 1) as usize;
            torn.pieces.truncate(left);
            torn.told = true;
        }
        flights.truncate(keep + 1);
        let party = self.party(side);
        for flight in &mut flights {
            flight.take(&party.arena);
            flight.completed = true;
        }
        flights.retain(|flight| !flight.is_over() && matches!(flight.operation, Operation::Write { .. }));
        party.flights = flights;
        let notice = 1 + self.random.below(NOTICE_STEPS_MAX);
        self.party(side.peer()).notice = Some(notice);
        self.ring(side.peer(), false);
    }

    /// Counts down to the notice of the peer's end, once nothing else is on its way to `side`.
    fn notice_end(&mut self, side: NetworkSide) -> bool {
        let pending = !self.party(side.peer()).flights.is_empty();
        let party = self.party(side);
        let Some(notice @ 1..) = party.notice else { return false };
        if pending || party.ended {
            return false;
        }
        party.notice = Some(notice - 1);
        if notice == 1 {
            self.ring(side, false);
        }
        true
    }
}

impl SimParty {
    fn new(arena_bytes: u64) -> Result<Self, Error> {
        let segment = Arc::new(Segment::create("caravan-sim", arena_bytes, Pages::Small)?);
        segment.grow(arena_bytes)?;
        let flags = rustix::event::EventfdFlags::CLOEXEC | rustix::event::EventfdFlags::NONBLOCK;
        let bell = rustix::event::eventfd(0, flags)
            .map_err(|source| Error::System { call: "eventfd", source: source.into() })?;
        Ok(Self {
            arena: segment.slice(0, arena_bytes)?,
            bell,
            armed: false,
            events: VecDeque::new(),
            gathered: VecDeque::new(),
            flushed_at: 0,
            posted: Vec::new(),
            flights: Vec::new(),
            under_way: 0,
            wakes: 0,
            ended: false,
            notice: None,
            lent: RegionTable::default(),
            refused: None,
        })
    }

    /// Ends what the side has under way: it asked for memory at `place` that its peer does not lend.
    fn refuse(&mut self, place: u64) {
        self.refused = region::split(place).map(|(number, _)| number);
        self.posted.clear();
        self.flights.clear();
    }

    /// Returns the memory at a place, and the offset there, for an operation of the peer on `bytes` bytes. `None` if the
    /// peer may not reach all of them so.
    fn reach(&self, place: u64, bytes: u64, access: RegionAccess) -> Option<(&SharedSlice, usize)> {
        let (memory, offset) = match region::is_far(place) {
            false => (&self.arena, place),
            true => {
                let (number, offset) = region::split(place)?;
                let (region, lent) = self.lent.row(number)?;
                if access == RegionAccess::Write && *lent == RegionAccess::Read {
                    return None;
                }
                (region.memory(), offset)
            }
        };
        (offset.checked_add(bytes)? <= memory.bytes()).then_some((memory, offset as usize))
    }
}

/// The largest number of pieces that a write or read is torn into.
const PIECES_MAX: u64 = 5;

/// A run of bytes of one operation that has not landed.
#[derive(Debug)]
pub(super) struct Piece {
    /// The offset of the run in the operation's bytes.
    pub(super) at: u64,
    pub(super) bytes: usize,
    /// The bytes of the run, once they are on the wire.
    pub(super) taken: Option<Vec<u8>>,
}

/// One operation between its doorbell and its last effect.
#[derive(Debug)]
pub(super) struct Flight {
    pub(super) id: u64,
    pub(super) operation: Operation,
    /// Sorted by `at`.
    pub(super) pieces: Vec<Piece>,
    /// The immediate has been delivered, or the flight has none.
    pub(super) told: bool,
    pub(super) completed: bool,
    /// The word that a compare-and-swap found.
    pub(super) found: Option<u64>,
    /// The compare-and-swap has ended.
    pub(super) stored: bool,
    pub(super) posted_at: u64,
    pub(super) acknowledged_at: Option<u64>,
}

/// What may happen to a flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FlightStep {
    Land,
    Tell,
    Swap,
    Complete,
}

impl Flight {
    pub(super) fn new(
        id: u64,
        operation: Operation,
        posted_at: u64,
        capabilities: &Capabilities,
        random: &mut Random,
    ) -> Self {
        let (bytes, told) = match operation {
            Operation::Write { from, immediate, .. } => (from.bytes, immediate.is_none()),
            Operation::Read { into, .. } => (into.bytes, true),
            Operation::CompareAndSwap { .. } => (0, true),
        };
        let word = match operation {
            Operation::Read { from, .. } if capabilities.reads_words_atomically => Some(from % 8),
            _ => None,
        };
        Self {
            id,
            operation,
            pieces: tear(u64::from(bytes), word, random),
            told,
            completed: false,
            found: None,
            stored: !matches!(operation, Operation::CompareAndSwap { .. }),
            posted_at,
            acknowledged_at: None,
        }
    }

    /// True once nothing more will happen to the flight.
    pub(super) fn is_over(&self) -> bool {
        self.pieces.is_empty() && self.told && self.completed && self.stored
    }

    pub(super) fn context(&self) -> u64 {
        match self.operation {
            Operation::Write { context, .. }
            | Operation::Read { context, .. }
            | Operation::CompareAndSwap { context, .. } => context,
        }
    }

    pub(super) fn is_write(&self) -> bool {
        matches!(self.operation, Operation::Write { .. })
    }

    pub(super) fn is_read(&self) -> bool {
        matches!(self.operation, Operation::Read { .. })
    }

    /// Returns the index of the piece that lands next.
    pub(super) fn next_piece(&self, random: &mut Random) -> usize {
        random.below(self.pieces.len() as u64) as usize
    }

    /// Copies the bytes that have not landed to the wire, so that the source may change.
    pub(super) fn take(&mut self, source: &SharedSlice) {
        let Operation::Write { from, .. } = self.operation else { return };
        for piece in self.pieces.iter_mut().filter(|piece| piece.taken.is_none()) {
            let mut bytes = vec![0; piece.bytes];
            source.copy_out((from.offset + piece.at) as usize, &mut bytes);
            piece.taken = Some(bytes);
        }
    }
}

/// Cuts `bytes` into random pieces; if `word` is the number of bytes that the first byte lies behind a word's begin,
/// cuts only between words.
fn tear(bytes: u64, word: Option<u64>, random: &mut Random) -> Vec<Piece> {
    if bytes == 0 {
        return Vec::new();
    }
    let mut cuts: Vec<u64> = (0..random.below(PIECES_MAX)).map(|_| random.below(bytes)).collect();
    if let Some(behind) = word {
        cuts.iter_mut().for_each(|cut| *cut = ((*cut + behind) / 8 * 8).saturating_sub(behind));
    }
    cuts.extend([0, bytes]);
    cuts.sort_unstable();
    cuts.dedup();
    cuts.windows(2).map(|cut| Piece { at: cut[0], bytes: (cut[1] - cut[0]) as usize, taken: None }).collect()
}

/// Returns the steps that `flights[index]` may take. `flights` is in order of posting.
fn possible(flights: &[Flight], index: usize, capabilities: &Capabilities) -> Vec<FlightStep> {
    let flight = &flights[index];
    let before = &flights[..index];
    let mut steps = Vec::with_capacity(3);
    let earlier_read = |other: &Flight| other.is_read() && !other.pieces.is_empty();
    let held = capabilities.reads_ordered && flight.is_read() && before.iter().any(earlier_read);
    if !flight.pieces.is_empty() && !held {
        steps.push(FlightStep::Land);
    }
    if !flight.told && flight.pieces.is_empty() && may_tell(flight, before, capabilities) {
        steps.push(FlightStep::Tell);
    }
    // Two swaps of one side do not overlap: swaps are atomic among themselves.
    let swapping = |other: &Flight| other.id != flight.id && other.found.is_some() && !other.stored;
    if !flight.stored && !flights.iter().any(swapping) {
        steps.push(FlightStep::Swap);
    }
    // A write completes at any time; an operation that returns a value completes after the value has come.
    if !flight.completed && (flight.is_write() || (flight.pieces.is_empty() && flight.stored)) {
        steps.push(FlightStep::Complete);
    }
    steps
}

fn landed(flight: &Flight) -> bool {
    !flight.is_write() || flight.pieces.is_empty()
}

fn may_tell(flight: &Flight, before: &[Flight], capabilities: &Capabilities) -> bool {
    before.iter().all(|other| {
        let known = other.acknowledged_at.is_some_and(|at| at < flight.posted_at);
        let first = capabilities.immediates_ordered || known;
        !first || (landed(other) && other.told)
    })
}
