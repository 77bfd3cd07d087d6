//! The connections of a world, their operations under way, and how a step changes them.
//!
//! Invariants: flights are in order of posting; an end's `events` are polled before it learns that
//! its peer has ended; an armed end is rung, once, by the next event.
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
//! | network | pieces are lost | the source ended before the completion, or its link broke |
//! | network | refused | its region is not lent, or not so much of it: the source's connection has ended |

use std::sync::atomic::Ordering;

use super::Random;
use super::flight::{Flight, FlightStep, possible};
use super::nodes::SimNodes;
use super::party::SimParty;
use crate::contract::{Capabilities, Completion, Error, Event, Operation};
use crate::region::{self, RegionAccess};

/// The largest number of steps after which an end learns that its peer has ended.
const NOTICE_STEPS_MAX: u64 = 40;

/// The largest number of steps that a connection outlives a cut of its link.
const CUT_STEPS_MAX: u64 = 200;

/// The largest number of completions of writes that an end's device gathers, in connections that gather.
const GATHERED_MAX: u64 = 40;

/// One end of a connection of the world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SimEnd {
    pub(super) connection: usize,
    /// 0 or 1.
    pub(super) side: usize,
}

impl SimEnd {
    /// Returns the other end of the connection.
    pub(super) fn peer(self) -> Self {
        Self { connection: self.connection, side: 1 - self.side }
    }
}

/// A connection between two nodes.
#[derive(Debug)]
pub(super) struct SimConnection {
    pub(super) nodes: [usize; 2],
    pub(super) capabilities: Capabilities,
    pub(super) queue_depth: usize,
    /// The number of completions of writes that are reported at once; 1: each by itself.
    gather: usize,
    parties: [SimParty; 2],
    /// The link is cut: the number of steps until the connection breaks.
    breaks_in: Option<u64>,
    /// The connection is broken: nothing is carried any more.
    broken: bool,
}

impl SimConnection {
    /// True if nothing is carried now.
    fn is_still(&self) -> bool {
        self.broken || self.breaks_in.is_some()
    }
}

/// Everything in the world.
#[derive(Debug)]
pub(crate) struct SimState {
    pub(super) random: Random,
    pub(super) nodes: SimNodes,
    pub(super) connections: Vec<SimConnection>,
    /// Counts the events, so that their order can be compared.
    pub(super) clock: u64,
    /// A hash of all that has happened.
    pub(super) digest: u64,
}

impl SimState {
    pub(super) fn new(seed: u64, nodes: usize) -> Self {
        Self {
            random: Random::new(seed),
            nodes: SimNodes::new(nodes),
            connections: Vec::new(),
            clock: 0,
            digest: seed,
        }
    }

    /// Makes a connection between two nodes.
    pub(super) fn connect(
        &mut self,
        nodes: [usize; 2],
        arena_bytes: u64,
        capabilities: Capabilities,
    ) -> Result<SimEnd, Error> {
        self.nodes.check_way(nodes)?;
        let random = &mut self.random;
        self.connections.push(SimConnection {
            nodes,
            capabilities,
            queue_depth: 1 + random.below(24) as usize,
            gather: if random.once_in(2) { 1 } else { 1 + random.below(GATHERED_MAX) as usize },
            parties: [SimParty::new(arena_bytes)?, SimParty::new(arena_bytes)?],
            breaks_in: None,
            broken: false,
        });
        Ok(SimEnd { connection: self.connections.len() - 1, side: 0 })
    }

    pub(super) fn party(&mut self, end: SimEnd) -> &mut SimParty {
        &mut self.connections[end.connection].parties[end.side]
    }

    /// Adds something that has happened to the digest.
    pub(super) fn note(&mut self, what: u64) {
        self.digest = Random::new(self.digest ^ what).number();
    }

    /// Returns the connections between two nodes, in any order.
    pub(super) fn between(&self, nodes: [usize; 2]) -> Vec<usize> {
        let [one, other] = nodes;
        let joins = |nodes: [usize; 2]| nodes == [one, other] || nodes == [other, one];
        (0..self.connections.len()).filter(|&at| joins(self.connections[at].nodes)).collect()
    }

    /// Returns the ends that a node has.
    pub(super) fn ends_of(&self, node: usize) -> Vec<SimEnd> {
        let ends =
            (0..self.connections.len()).flat_map(|connection| [0, 1].map(|side| SimEnd { connection, side }));
        ends.filter(|end| self.connections[end.connection].nodes[end.side] == node).collect()
    }

    /// Starts the operations that `source` has queued.
    pub(super) fn ring_doorbell(&mut self, source: SimEnd) {
        let capabilities = self.connections[source.connection].capabilities;
        for (operation, posted_at) in std::mem::take(&mut self.party(source).posted) {
            self.clock += 1;
            let flight = Flight::new(self.clock, operation, posted_at, &capabilities, &mut self.random);
            self.party(source).flights.push(flight);
        }
        self.wake_target(source.peer());
    }

    /// Rings a target that has to poll before anything happens to the operations towards it.
    fn wake_target(&mut self, target: SimEnd) {
        if !self.connections[target.connection].capabilities.target_progress && self.can_progress(target) {
            self.ring(target, false);
        }
    }

    /// Returns every step that an operation towards `target` may take, with the operation's index.
    fn choices(&self, target: SimEnd) -> Vec<(usize, FlightStep)> {
        let connection = &self.connections[target.connection];
        let flights = &connection.parties[target.peer().side].flights;
        if connection.is_still() || connection.parties[target.side].ended || flights.is_empty() {
            return Vec::new();
        }
        let swapping = self.swapping(connection.nodes[target.side]);
        let of = |index| possible(flights, index, &connection.capabilities, swapping);
        (0..flights.len()).flat_map(|index| of(index).into_iter().map(move |step| (index, step))).collect()
    }

    /// Returns the flight that is in the middle of a compare-and-swap in a node's memory.
    fn swapping(&self, node: usize) -> Option<u64> {
        let ends = self.ends_of(node).into_iter();
        ends.filter(|end| {
            let connection = &self.connections[end.connection];
            !connection.broken && !connection.parties[end.side].ended
        })
        .flat_map(|end| &self.connections[end.connection].parties[end.peer().side].flights)
        .find(|flight| flight.found.is_some() && !flight.stored)
        .map(|flight| flight.id)
    }

    /// True if operations at `target` wait for its polling.
    pub(super) fn can_progress(&self, target: SimEnd) -> bool {
        !self.choices(target).is_empty()
    }

    /// True once all ends have ended.
    pub(super) fn is_over(&self) -> bool {
        self.connections.iter().flat_map(|connection| &connection.parties).all(|party| party.ended)
    }

    /// Lets one thing happen to any operation under way.
    pub(super) fn step(&mut self) -> bool {
        let ends = 2 * self.connections.len();
        let first = if ends > 0 { self.random.below(ends as u64) as usize } else { 0 };
        (first..first + ends).any(|index| {
            let end = SimEnd { connection: index % ends / 2, side: index % 2 };
            self.near_break(end.connection)
                || self.deliver_wake(end)
                || (self.is_served(end) && self.step_towards(end))
                || self.notice_end(end)
        })
    }

    /// True if operations are done at `target` whether it polls or not.
    fn is_served(&self, target: SimEnd) -> bool {
        let connection = &self.connections[target.connection];
        connection.capabilities.target_progress && self.nodes.is_served(connection.nodes[target.side])
    }

    fn deliver_wake(&mut self, end: SimEnd) -> bool {
        let still = self.connections[end.connection].is_still();
        let party = self.party(end);
        if party.wakes == 0 || still {
            return false;
        }
        party.wakes -= 1;
        self.ring(end, true);
        true
    }

    /// Lets one thing happen to an operation whose target is `target`.
    pub(super) fn step_towards(&mut self, target: SimEnd) -> bool {
        let choices = self.choices(target);
        if choices.is_empty() {
            return false;
        }
        let (index, step) = choices[self.random.below(choices.len() as u64) as usize];
        // The number of a flight is its own in the whole world.
        let happens = self.party(target.peer()).flights[index].id << 2 | step as u64;
        self.note(happens);
        self.advance(target, index, step);
        true
    }

    fn advance(&mut self, target: SimEnd, index: usize, step: FlightStep) {
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
                    let gathered = party.gathered.len();
                    let connection = &self.connections[source.connection];
                    if gathered >= connection.gather.min(connection.queue_depth) {
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

    fn land(&mut self, target: SimEnd, index: usize) {
        let [left, right] = &mut self.connections[target.connection].parties;
        let (source, target) = if target.side == 0 { (right, &*left) } else { (left, &*right) };
        let flight = &mut source.flights[index];
        let piece = flight.pieces.remove(flight.next_piece(&mut self.random));
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
    fn swap(&mut self, target: SimEnd, index: usize) {
        let atomic = self.connections[target.connection].capabilities.atomic_with_processor;
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
    pub(super) fn flush(&mut self, end: SimEnd) {
        for (event, flight) in std::mem::take(&mut self.party(end).gathered) {
            self.tell(end, event, flight);
        }
    }

    fn tell(&mut self, end: SimEnd, event: Event, flight: Option<u64>) {
        self.party(end).events.push_back((event, flight));
        self.ring(end, false);
    }

    /// Makes the side's descriptor readable, if the side is armed or if `must`.
    pub(super) fn ring(&mut self, end: SimEnd, must: bool) {
        let party = self.party(end);
        if must || party.armed {
            party.armed = false;
            // A full counter is readable already; no test can go on without its eventfd.
            let _ = rustix::io::write(&party.bell, &1u64.to_ne_bytes());
        }
    }

    /// Ends an end: a part of the operations that it had not seen completed is lost.
    pub(super) fn end(&mut self, end: SimEnd) {
        if std::mem::replace(&mut self.party(end).ended, true) {
            return;
        }
        self.lose(end, false);
        let notice = 1 + self.random.below(NOTICE_STEPS_MAX);
        self.party(end.peer()).notice = Some(notice);
        self.ring(end.peer(), false);
    }

    /// Loses a part of the operations of an end that have not completed, or of all its operations.
    fn lose(&mut self, end: SimEnd, even_completed: bool) {
        self.party(end).posted.clear();
        let mut flights = std::mem::take(&mut self.party(end).flights);
        // Completed operations land, and with them all earlier ones that they may be ordered after.
        let last = flights.iter().rposition(|flight| flight.completed).filter(|_| !even_completed);
        let certain = last.map_or(0, |last| last + 1);
        let keep = certain + self.random.below((flights.len() - certain) as u64 + 1) as usize;
        if let Some(torn) = flights.get_mut(keep) {
            let left = self.random.below(torn.pieces.len() as u64 + 1) as usize;
            torn.pieces.truncate(left);
            torn.told = true;
        }
        flights.truncate(keep + 1);
        let party = self.party(end);
        for flight in &mut flights {
            flight.take(&party.arena);
            flight.completed = true;
        }
        flights.retain(|flight| !flight.is_over() && flight.is_write());
        party.flights = flights;
    }

    /// Cuts the link of a connection, which breaks some time later.
    pub(super) fn cut(&mut self, connection: usize) {
        let steps = self.random.below(CUT_STEPS_MAX);
        let connection = &mut self.connections[connection];
        connection.breaks_in = (!connection.broken).then_some(steps);
    }

    /// Joins the link of a connection again, which goes on if it has not broken.
    pub(super) fn mend(&mut self, connection: usize) {
        self.connections[connection].breaks_in = None;
        [0, 1].into_iter().for_each(|side| self.wake_target(SimEnd { connection, side }));
    }

    /// Counts down to the break of a connection whose link is cut.
    fn near_break(&mut self, connection: usize) -> bool {
        let Some(steps) = self.connections[connection].breaks_in else { return false };
        self.connections[connection].breaks_in = steps.checked_sub(1);
        if steps == 0 {
            self.break_up(connection);
        }
        true
    }

    /// Breaks a connection. What its operations had brought to the other side before lands; both ends learn of it.
    fn break_up(&mut self, connection: usize) {
        let early = self.connections[connection].capabilities.completes_early;
        for end in [0, 1].map(|side| SimEnd { connection, side }) {
            if !self.party(end).ended {
                self.lose(end, early);
            }
            while self.step_towards(end.peer()) {}
            let notice = 1 + self.random.below(NOTICE_STEPS_MAX);
            self.party(end).notice.get_or_insert(notice);
        }
        self.connections[connection].broken = true;
    }

    /// Counts down to the notice of the peer's end, once nothing else is on its way to `end`.
    fn notice_end(&mut self, end: SimEnd) -> bool {
        let connection = &mut self.connections[end.connection];
        let pending = !connection.broken && !connection.parties[end.peer().side].flights.is_empty();
        let cut = connection.breaks_in.is_some();
        let party = &mut connection.parties[end.side];
        let Some(notice @ 1..) = party.notice else { return false };
        if pending || cut || party.ended {
            return false;
        }
        party.notice = Some(notice - 1);
        if notice == 1 {
            self.ring(end, false);
        }
        true
    }
}
