//! The second model: how a transaction that only reads sees one moment, with a vector of times and no commit step.
//!
//! Nothing fails here but a coordinator that is started again. A commit is: read, lock, take a time, validate, apply. The
//! reader reads two objects, one after the other or as one batch. When it meets a time that is newer than the one it knows
//! of that coordinator, it looks at all that it has read once more, header by header, and only then knows the time.

use stateright::{Model, Property};

use crate::commit::when;
use crate::history::{Act, VALUES, is_strictly_serializable};

const WRITERS: usize = 3;
const COORDINATORS: usize = 2;

/// A part of the clock that is left out. The numbers are those of the protocol's rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClockFault {
    /// The reader keeps one time for all coordinators.
    Scalar,
    /// The reader looks at nothing once more.
    NoRevalidation,
    /// 4: Each read of a batch is taken by itself: only those that arrived before it are looked at once more.
    BatchOneByOne,
    /// 5: A coordinator that is started again stamps from 0 on.
    NoFloor,
}

/// A transaction of a coordinator: it reads all that it names, and writes some of it.
#[derive(Clone, Copy, Debug)]
pub struct Writer {
    pub coordinator: usize,
    pub reads: &'static [usize],
    pub writes: &'static [usize],
}

#[derive(Clone, Copy, Debug)]
pub struct ClockWorld {
    pub name: &'static str,
    pub writers: [Writer; WRITERS],
    /// Whether the reader has both reads under way at once.
    pub is_batch: bool,
    /// The coordinator that may be started again.
    pub may_restart: Option<usize>,
    pub fault: Option<ClockFault>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Object {
    value: u8,
    time: u8,
    coordinator: usize,
    locked_by: Option<u8>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
enum WriterPhase {
    #[default]
    New,
    Read,
    Locked,
    Stamped,
    Applying,
    Done,
    GaveUp,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct WriterState {
    phase: WriterPhase,
    found: [Object; VALUES],
    stamp: u8,
    unapplied: u8,
    after: u8,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct ClockReader {
    has_begun: bool,
    /// What was loaded, and is on its way to the reader.
    loaded: [Option<Object>; VALUES],
    /// What has arrived.
    arrived: [Option<Object>; VALUES],
    /// What must be looked at once more, as bits, before `times` rises to `met`.
    doubtful: u8,
    met: [u8; COORDINATORS],
    times: [u8; COORDINATORS],
    gave_up: bool,
    after: u8,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct ClockState {
    objects: [Object; VALUES],
    stamped: [u8; COORDINATORS],
    has_restarted: bool,
    writers: [WriterState; WRITERS],
    reader: ClockReader,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClockStep {
    Read { writer: usize },
    Lock { writer: usize },
    Stamp { writer: usize },
    Validate { writer: usize },
    Apply { writer: usize, object: usize },
    Restart { coordinator: usize },
    Load { object: usize },
    Arrive { object: usize },
    LookAgain { object: usize },
}

impl ClockWorld {
    fn has(&self, fault: ClockFault) -> bool {
        self.fault == Some(fault)
    }

    fn writer_step(&self, state: &ClockState, step: ClockStep) -> Option<ClockState> {
        let mut next = state.clone();
        match step {
            ClockStep::Read { writer } => {
                when(state.writers[writer].phase == WriterPhase::New)?;
                let plan = &self.writers[writer];
                let mut objects = plan.reads.iter().chain(plan.writes);
                when(objects.all(|object| state.objects[*object].locked_by.is_none()))?;
                let it = &mut next.writers[writer];
                (it.phase, it.found, it.after) = (WriterPhase::Read, state.objects, state.ended());
            }
            ClockStep::Lock { writer } => {
                let it = &mut next.writers[writer];
                when(it.phase == WriterPhase::Read)?;
                let writes = self.writers[writer].writes;
                if writes.iter().any(|object| state.objects[*object] != it.found[*object]) {
                    it.phase = WriterPhase::GaveUp;
                    return Some(next);
                }
                it.phase = WriterPhase::Locked;
                writes.iter().for_each(|object| next.objects[*object].locked_by = Some(writer as u8));
            }
            ClockStep::Stamp { writer } => {
                let it = &mut next.writers[writer];
                when(it.phase == WriterPhase::Locked)?;
                let plan = &self.writers[writer];
                let own = &mut next.stamped[plan.coordinator];
                // Rule 5: only versions under the locks count, not what the client has read.
                *own = plan.writes.iter().map(|object| it.found[*object].time).fold(*own, u8::max) + 1;
                (it.phase, it.stamp) = (WriterPhase::Stamped, *own);
            }
            ClockStep::Validate { writer } => {
                let it = &mut next.writers[writer];
                when(it.phase == WriterPhase::Stamped)?;
                let plan = &self.writers[writer];
                if plan.reads.iter().any(|object| state.objects[*object] != it.found[*object]) {
                    it.phase = WriterPhase::GaveUp;
                    plan.writes.iter().for_each(|object| next.objects[*object].locked_by = None);
                    return Some(next);
                }
                it.phase = WriterPhase::Applying;
                it.unapplied = plan.writes.iter().fold(0, |bits, object| bits | 1 << object);
            }
            ClockStep::Apply { writer, object } => {
                let it = &mut next.writers[writer];
                when(it.phase == WriterPhase::Applying && it.unapplied & 1 << object != 0)?;
                let coordinator = self.writers[writer].coordinator;
                next.objects[object] =
                    Object { value: writer as u8 + 1, time: it.stamp, coordinator, locked_by: None };
                it.unapplied &= !(1 << object);
                if it.unapplied == 0 {
                    it.phase = WriterPhase::Done;
                }
            }
            // What it was doing ends first: this is about its id, which somebody has next.
            ClockStep::Restart { coordinator } => {
                when(self.may_restart == Some(coordinator) && !state.has_restarted)?;
                let is_idle =
                    |phase| matches!(phase, WriterPhase::New | WriterPhase::Done | WriterPhase::GaveUp);
                let mut own = (0..WRITERS).filter(|writer| self.writers[*writer].coordinator == coordinator);
                when(own.all(|writer| is_idle(state.writers[writer].phase)))?;
                next.has_restarted = true;
                // The floor is above everything that the id has stamped.
                next.stamped[coordinator] =
                    if self.has(ClockFault::NoFloor) { 0 } else { state.stamped[coordinator] };
            }
            _ => return None,
        }
        Some(next)
    }

    fn load(&self, state: &ClockState, object: usize) -> Option<ClockState> {
        let it = &state.reader;
        when(!it.gave_up && it.loaded[object].is_none() && it.arrived[object].is_none())?;
        when(self.is_batch || (it.doubtful == 0 && it.loaded.iter().all(Option::is_none)))?;
        when(state.objects[object].locked_by.is_none())?;
        let mut next = state.clone();
        if !it.has_begun {
            (next.reader.has_begun, next.reader.after) = (true, state.ended());
        }
        next.reader.loaded[object] = Some(state.objects[object]);
        Some(next)
    }

    /// A read arrives. Rule 4: reads that are under way together count as one, when the last has arrived.
    fn arrive(&self, state: &ClockState, object: usize) -> Option<ClockState> {
        let one_by_one = self.has(ClockFault::BatchOneByOne);
        let mut next = state.clone();
        let it = &mut next.reader;
        when(!it.gave_up && it.doubtful == 0)?;
        let before = it.arrived;
        it.arrived[object] = Some(it.loaded[object].take()?);
        let is_whole = !self.is_batch || it.arrived.iter().all(Option::is_some);
        if !is_whole && !one_by_one {
            return Some(next);
        }
        let scalar = |times: &[u8; COORDINATORS]| times.iter().copied().max().unwrap_or(0);
        let mut rises = false;
        it.met = it.times;
        let fresh =
            it.arrived.iter().flatten().filter(|fresh| !one_by_one || Some(**fresh) == it.arrived[object]);
        for found in fresh {
            let known =
                if self.has(ClockFault::Scalar) { scalar(&it.times) } else { it.times[found.coordinator] };
            rises |= found.time > known;
            it.met[found.coordinator] = it.met[found.coordinator].max(found.time);
        }
        let again = if one_by_one { before } else { it.arrived };
        if rises && !self.has(ClockFault::NoRevalidation) {
            it.doubtful =
                (0..VALUES).filter(|place| again[*place].is_some()).fold(0, |bits, place| bits | 1 << place);
        }
        if it.doubtful == 0 {
            it.times = it.met;
        }
        Some(next)
    }

    fn look_again(&self, state: &ClockState, object: usize) -> Option<ClockState> {
        let mut next = state.clone();
        let it = &mut next.reader;
        when(!it.gave_up && it.doubtful & 1 << object != 0)?;
        it.doubtful &= !(1 << object);
        it.gave_up = it.arrived[object] != Some(state.objects[object]);
        if it.doubtful == 0 {
            it.times = it.met;
        }
        Some(next)
    }

    /// Nothing that the reader's body has seen contradicts the writers' order.
    fn is_one_moment(&self, state: &ClockState) -> bool {
        let it = &state.reader;
        if it.gave_up || it.doubtful != 0 || it.arrived.iter().any(Option::is_none) {
            return true;
        }
        let mut acts = vec![Act {
            number: WRITERS as u8,
            is_answered: true,
            reads: it.arrived.map(|found| found.map(|found| found.value)),
            after: it.after,
            ..Act::default()
        }];
        for (number, (plan, writer)) in self.writers.iter().zip(&state.writers).enumerate() {
            if !matches!(writer.phase, WriterPhase::Applying | WriterPhase::Done) {
                continue;
            }
            let mut act =
                Act { number: number as u8, value: number as u8 + 1, after: writer.after, ..Act::default() };
            act.is_answered = writer.phase == WriterPhase::Done;
            for object in plan.reads.iter().chain(plan.writes) {
                act.reads[*object] = Some(writer.found[*object].value);
            }
            act.writes = plan.writes.iter().fold(0, |bits, object| bits | 1 << object);
            acts.push(act);
        }
        is_strictly_serializable(&acts)
    }
}

impl ClockState {
    /// Which writers had ended.
    fn ended(&self) -> u8 {
        let is_done = |writer: &WriterState| u8::from(writer.phase == WriterPhase::Done);
        (0..).zip(&self.writers).fold(0, |bits, (place, writer)| bits | is_done(writer) << place)
    }

    /// Whether the reader has both objects.
    pub fn has_read(&self) -> bool {
        self.reader.arrived.iter().all(Option::is_some) && self.reader.doubtful == 0 && !self.reader.gave_up
    }
}

pub const ONE_MOMENT: &str = "a reader's values are of one moment";
pub const READS: &str = "a reader reads both objects after each writer has written";

impl Model for ClockWorld {
    type State = ClockState;
    type Action = ClockStep;

    fn init_states(&self) -> Vec<ClockState> {
        vec![ClockState::default()]
    }

    fn actions(&self, _: &ClockState, steps: &mut Vec<ClockStep>) {
        for writer in 0..WRITERS {
            steps.extend([ClockStep::Read { writer }, ClockStep::Lock { writer }]);
            steps.extend([ClockStep::Stamp { writer }, ClockStep::Validate { writer }]);
            steps.extend((0..VALUES).map(|object| ClockStep::Apply { writer, object }));
        }
        for object in 0..VALUES {
            let (load, arrive) = (ClockStep::Load { object }, ClockStep::Arrive { object });
            steps.extend([load, arrive, ClockStep::LookAgain { object }]);
        }
        steps.extend(self.may_restart.map(|coordinator| ClockStep::Restart { coordinator }));
    }

    fn next_state(&self, state: &ClockState, step: ClockStep) -> Option<ClockState> {
        match step {
            ClockStep::Load { object } => self.load(state, object),
            ClockStep::Arrive { object } => self.arrive(state, object),
            ClockStep::LookAgain { object } => self.look_again(state, object),
            step => self.writer_step(state, step),
        }
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let all_done = |_: &Self, state: &ClockState| state.has_read() && state.ended() == (1 << WRITERS) - 1;
        vec![Property::always(ONE_MOMENT, Self::is_one_moment), Property::sometimes(READS, all_done)]
    }
}
