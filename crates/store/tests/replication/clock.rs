//! The second model: what the body of a transaction over several parts sees is of one moment, before anything is committed.
//!
//! Each part has a clock of its own. A part gives a transaction its time when all locks are held, in all parts: the home in its commit,
//! the others when they are told of the decision. The reader knows a time of each part. When a part shows a newer one, the reader looks
//! at all that it has read once more, and only then knows that time. A reader that reads ahead asks for everything at once, and looks at
//! all of it once more after the last answer. Nothing fails here but an owner that is taken over.

use stateright::{Model, Property};

use crate::history::{Act, VALUES, is_strictly_serializable};
use crate::world::{bit, when};

const WRITERS: usize = 3;
const PARTS: usize = 2;
/// The part of each object.
const PART_OF: [usize; VALUES] = [0, 1, 1];

/// A part of the clocks that is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClockFault {
    /// The reader keeps one time for all parts.
    Scalar,
    /// The reader looks at nothing once more.
    NoRevalidation,
    /// The reader looks once more at what it has read in that part, and not in others.
    OwnPartOnly,
    /// A branch gets its time when it is prepared.
    StampAtPrepare,
    /// An owner stamps from 0 on.
    NoFloor,
    /// A reader that reads ahead looks once more before it has all answers.
    LooksEarly,
}

/// A transaction: it reads all that it names, and writes some of it. The part of the first object that it writes is its home.
#[derive(Clone, Copy, Debug)]
pub struct Writer {
    pub reads: &'static [usize],
    pub writes: &'static [usize],
}

#[derive(Clone, Copy, Debug)]
pub struct ClockWorld {
    pub name: &'static str,
    pub writers: [Writer; WRITERS],
    /// The part that may be taken over, once.
    pub may_fall: Option<usize>,
    pub reads_ahead: bool,
    pub fault: Option<ClockFault>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Object {
    value: u8,
    time: u8,
    locked_by: Option<u8>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
enum WriterPhase {
    #[default]
    New,
    /// It has read, and locks.
    Read,
    /// The home has committed, and applies it.
    Committed,
    /// The home has applied it, and the client is told.
    Answered,
    GaveUp,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct WriterState {
    phase: WriterPhase,
    found: [Object; VALUES],
    /// Parts that hold its locks, as bits, and those that have given it a time.
    locked: u8,
    stamped: u8,
    stamps: [u8; PARTS],
    unapplied: u8,
    after: u8,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct ClockReader {
    has_begun: bool,
    found: [Option<Object>; VALUES],
    /// What must be looked at once more, as bits, before `times` becomes `met`.
    doubtful: u8,
    met: [u8; PARTS],
    times: [u8; PARTS],
    gave_up: bool,
    after: u8,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct ClockState {
    objects: [Object; VALUES],
    clocks: [u8; PARTS],
    has_fallen: bool,
    writers: [WriterState; WRITERS],
    reader: ClockReader,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClockStep {
    Read { writer: usize },
    Lock { writer: usize, part: usize },
    Stamp { writer: usize, part: usize },
    Apply { writer: usize, object: usize },
    TakeOver { part: usize },
    Load { object: usize },
    LookAgain { object: usize },
}

impl Writer {
    fn home(&self) -> usize {
        PART_OF[self.writes[0]]
    }

    fn objects(&self) -> impl Iterator<Item = usize> + '_ {
        self.reads.iter().chain(self.writes).copied()
    }

    fn parts(&self) -> u8 {
        self.objects().fold(0, |all, object| all | bit(PART_OF[object]))
    }

    /// What it locks in a part: at the home what it writes, elsewhere also what it reads.
    fn locks(&self, part: usize) -> impl Iterator<Item = usize> + '_ {
        let reads = if part == self.home() { &[] } else { self.reads };
        reads.iter().chain(self.writes).copied().filter(move |object| PART_OF[*object] == part)
    }

    fn writes_in(&self, part: usize) -> u8 {
        let written = self.writes.iter().filter(|object| PART_OF[**object] == part);
        written.fold(0, |all, object| all | bit(*object))
    }
}

impl ClockWorld {
    fn has(&self, fault: ClockFault) -> bool {
        self.fault == Some(fault)
    }

    fn read(&self, state: &ClockState, writer: usize) -> Option<ClockState> {
        when(state.writers[writer].phase == WriterPhase::New)?;
        when(self.writers[writer].objects().all(|object| state.objects[object].locked_by.is_none()))?;
        let mut next = state.clone();
        let it = &mut next.writers[writer];
        (it.phase, it.found, it.after) = (WriterPhase::Read, state.objects, state.ended());
        it.unapplied = self.writers[writer].writes.iter().fold(0, |all, object| all | bit(*object));
        Some(next)
    }

    /// A part compares and locks; the home does so last, when it commits.
    fn lock(&self, state: &ClockState, writer: usize, part: usize) -> Option<ClockState> {
        let (plan, it) = (&self.writers[writer], &state.writers[writer]);
        when(it.phase == WriterPhase::Read && plan.parts() & !it.locked & bit(part) != 0)?;
        when(part != plan.home() || it.locked == plan.parts() & !bit(part))?;
        let mut next = state.clone();
        if plan.locks(part).any(|object| state.objects[object] != it.found[object]) {
            self.give_up(&mut next, writer);
            return Some(next);
        }
        plan.locks(part).for_each(|object| next.objects[object].locked_by = Some(writer as u8));
        next.writers[writer].locked |= bit(part);
        if part != plan.home() && self.has(ClockFault::StampAtPrepare) {
            self.next_time(&mut next, writer, part);
        }
        Some(next)
    }

    fn give_up(&self, next: &mut ClockState, writer: usize) {
        next.writers[writer].phase = WriterPhase::GaveUp;
        for object in &mut next.objects {
            object.locked_by = object.locked_by.filter(|by| *by != writer as u8);
        }
    }

    fn next_time(&self, next: &mut ClockState, writer: usize, part: usize) {
        next.clocks[part] += 1;
        next.writers[writer].stamps[part] = next.clocks[part];
    }

    /// A part gives the transaction its time: the home, which then looks at what was read there, before all others.
    fn stamp(&self, state: &ClockState, writer: usize, part: usize) -> Option<ClockState> {
        let (plan, it) = (&self.writers[writer], &state.writers[writer]);
        when(it.locked == plan.parts() && plan.parts() & !it.stamped & bit(part) != 0)?;
        let is_home = part == plan.home();
        when(it.phase == if is_home { WriterPhase::Read } else { WriterPhase::Answered })?;
        let mut next = state.clone();
        if is_home || !self.has(ClockFault::StampAtPrepare) {
            self.next_time(&mut next, writer, part);
        }
        next.writers[writer].stamped |= bit(part);
        if is_home {
            let is_same = |object: &usize| {
                let now = Object { locked_by: None, ..state.objects[*object] };
                let is_free = state.objects[*object].locked_by.is_none_or(|by| by == writer as u8);
                PART_OF[*object] != part || is_free && now == it.found[*object]
            };
            if !plan.reads.iter().all(is_same) {
                self.give_up(&mut next, writer);
                return Some(next);
            }
            next.writers[writer].phase = WriterPhase::Committed;
        }
        // What was only read is free again.
        let written = plan.writes_in(part);
        for object in plan.locks(part).filter(|object| written & bit(*object) == 0) {
            next.objects[object].locked_by = None;
        }
        Some(next)
    }

    fn apply(&self, state: &ClockState, writer: usize, object: usize) -> Option<ClockState> {
        let (plan, part) = (&self.writers[writer], PART_OF[object]);
        let it = &state.writers[writer];
        when(it.stamped & bit(part) != 0 && it.unapplied & bit(object) != 0)?;
        when(matches!(it.phase, WriterPhase::Committed | WriterPhase::Answered))?;
        let mut next = state.clone();
        next.objects[object] = Object { value: writer as u8 + 1, time: it.stamps[part], locked_by: None };
        let it = &mut next.writers[writer];
        it.unapplied &= !bit(object);
        if it.phase == WriterPhase::Committed && it.unapplied & plan.writes_in(plan.home()) == 0 {
            it.phase = WriterPhase::Answered;
        }
        Some(next)
    }

    /// The next owner of a part. A commit that was applied there is applied first.
    fn take_over(&self, state: &ClockState, part: usize) -> Option<ClockState> {
        let mut writers = self.writers.iter().zip(&state.writers);
        let is_applying = |it: &WriterState| it.stamped & bit(part) != 0 && it.phase != WriterPhase::GaveUp;
        when(!state.has_fallen)?;
        when(!writers.any(|(plan, it)| is_applying(it) && it.unapplied & plan.writes_in(part) != 0))?;
        let mut next = state.clone();
        next.has_fallen = true;
        if self.has(ClockFault::NoFloor) {
            next.clocks[part] = 0;
        }
        Some(next)
    }

    fn load(&self, state: &ClockState, object: usize) -> Option<ClockState> {
        let (it, found, part) = (&state.reader, state.objects[object], PART_OF[object]);
        when(!it.gave_up && it.found[object].is_none() && found.locked_by.is_none())?;
        when(it.doubtful == 0 || self.reads_ahead)?;
        let mut next = state.clone();
        let it = &mut next.reader;
        if !it.has_begun {
            (it.has_begun, it.after) = (true, state.ended());
        }
        if self.reads_ahead {
            it.doubtful |= bit(object);
            it.found[object] = Some(found);
            return Some(next);
        }
        let scalar = it.times.iter().copied().max().unwrap_or(0);
        let known = if self.has(ClockFault::Scalar) { scalar } else { it.times[part] };
        if found.time > known {
            let is_checked = |other: &usize| {
                it.found[*other].is_some()
                    && !self.has(ClockFault::NoRevalidation)
                    && (PART_OF[*other] == part || !self.has(ClockFault::OwnPartOnly))
            };
            it.doubtful = (0..VALUES).filter(is_checked).fold(0, |all, other| all | bit(other));
            it.met = it.times;
            it.met[part] = found.time;
            if it.doubtful == 0 {
                it.times = it.met;
            }
        }
        it.found[object] = Some(found);
        Some(next)
    }

    fn look_again(&self, state: &ClockState, object: usize) -> Option<ClockState> {
        let mut next = state.clone();
        let it = &mut next.reader;
        when(!it.gave_up && it.doubtful & bit(object) != 0)?;
        let has_all = it.found.iter().all(Option::is_some);
        when(!self.reads_ahead || has_all || self.has(ClockFault::LooksEarly))?;
        it.doubtful &= !bit(object);
        it.gave_up = it.found[object] != Some(state.objects[object]);
        if it.doubtful == 0 {
            it.times = it.met;
        }
        Some(next)
    }

    /// Nothing that the reader's body has seen contradicts the writers' order.
    fn is_one_moment(&self, state: &ClockState) -> bool {
        let it = &state.reader;
        if it.gave_up || it.doubtful != 0 || it.found.iter().flatten().count() < 2 {
            return true;
        }
        let reads = it.found.map(|found| found.map(|found| found.value));
        let number = WRITERS as u8;
        let mut acts = vec![Act { number, is_answered: true, reads, after: it.after, ..Act::default() }];
        for (number, (plan, writer)) in self.writers.iter().zip(&state.writers).enumerate() {
            if !matches!(writer.phase, WriterPhase::Committed | WriterPhase::Answered) {
                continue;
            }
            let mut act =
                Act { number: number as u8, value: number as u8 + 1, after: writer.after, ..Act::default() };
            act.is_answered = writer.phase == WriterPhase::Answered;
            plan.reads.iter().for_each(|object| act.reads[*object] = Some(writer.found[*object].value));
            act.writes = plan.writes.iter().fold(0, |all, object| all | bit(*object));
            acts.push(act);
        }
        is_strictly_serializable(&acts)
    }
}

impl ClockState {
    /// Which writers' clients have been told.
    fn ended(&self) -> u8 {
        let ended = (0..WRITERS).filter(|writer| self.writers[*writer].phase == WriterPhase::Answered);
        ended.fold(0, |all, writer| all | bit(writer))
    }

    /// Whether the reader has all objects.
    fn has_read(&self) -> bool {
        self.reader.found.iter().all(Option::is_some) && self.reader.doubtful == 0 && !self.reader.gave_up
    }
}

pub const ONE_MOMENT: &str = "a reader's values are of one moment";
pub const READS: &str = "a reader reads all objects after each writer has written";

impl Model for ClockWorld {
    type State = ClockState;
    type Action = ClockStep;

    fn init_states(&self) -> Vec<ClockState> {
        vec![ClockState::default()]
    }

    fn actions(&self, _: &ClockState, steps: &mut Vec<ClockStep>) {
        for writer in 0..WRITERS {
            steps.push(ClockStep::Read { writer });
            for part in 0..PARTS {
                steps.extend([ClockStep::Lock { writer, part }, ClockStep::Stamp { writer, part }]);
            }
            steps.extend((0..VALUES).map(|object| ClockStep::Apply { writer, object }));
        }
        for object in 0..VALUES {
            steps.extend([ClockStep::Load { object }, ClockStep::LookAgain { object }]);
        }
        steps.extend(self.may_fall.map(|part| ClockStep::TakeOver { part }));
    }

    fn next_state(&self, state: &ClockState, step: ClockStep) -> Option<ClockState> {
        match step {
            ClockStep::Read { writer } => self.read(state, writer),
            ClockStep::Lock { writer, part } => self.lock(state, writer, part),
            ClockStep::Stamp { writer, part } => self.stamp(state, writer, part),
            ClockStep::Apply { writer, object } => self.apply(state, writer, object),
            ClockStep::TakeOver { part } => self.take_over(state, part),
            ClockStep::Load { object } => self.load(state, object),
            ClockStep::LookAgain { object } => self.look_again(state, object),
        }
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let all_done = |_: &Self, state: &ClockState| state.has_read() && state.ended() == (1 << WRITERS) - 1;
        vec![Property::always(ONE_MOMENT, Self::is_one_moment), Property::sometimes(READS, all_done)]
    }
}
