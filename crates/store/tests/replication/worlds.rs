//! The worlds that are explored, and in which of them each planted fault is found.

use crate::clock::{ClockFault, ClockWorld, Writer};
use crate::fault::PartFault;
use crate::model::property::{GOES_ON, ONCE, SERIALIZABLE, UNLOCKED};
use crate::world::{PartWorld, Plan};

const fn plan(reads: &'static [usize], writes: &'static [usize]) -> Plan {
    Plan { reads, writes }
}

const SKEW: PartWorld = PartWorld {
    name: "two transactions that each read what the other one writes",
    plans: [plan(&[0, 1], &[0]), plan(&[0, 1], &[1])],
    may_fall: &[0, 1],
    falls: 1,
    ..PartWorld::CALM
};
const CROSSED: PartWorld = PartWorld {
    name: "two increments of both parts, with different homes; an owner is taken over",
    plans: [plan(&[0, 1], &[0, 1]), plan(&[0, 1], &[1, 0])],
    may_fall: &[0, 1],
    falls: 1,
    ..PartWorld::CALM
};
const SAME_HOME: PartWorld = PartWorld {
    name: "two transactions with one home, where one decision has room; an owner is taken over",
    plans: [plan(&[], &[0, 1]), plan(&[], &[0, 2])],
    may_fall: &[0, 1],
    falls: 1,
    ..PartWorld::CALM
};
const READER: PartWorld = PartWorld {
    name: "a transaction over two parts, and one that reads both; an owner is taken over",
    plans: [plan(&[], &[0, 1]), plan(&[1, 0], &[])],
    may_fall: &[0, 1],
    falls: 1,
    ..PartWorld::CALM
};
const THREE: PartWorld = PartWorld {
    name: "a transaction over three parts, and one that reads two of them; an owner is taken over",
    plans: [plan(&[], &[0, 1, 2]), plan(&[2, 1], &[])],
    may_fall: &[0, 1],
    falls: 1,
    ..PartWorld::CALM
};
const OVERWRITTEN: PartWorld = PartWorld {
    name: "a transaction over two parts, and a write in one of them; owners are taken over twice",
    plans: [plan(&[0], &[0, 1]), plan(&[], &[1])],
    may_fall: &[0, 1],
    falls: 2,
    ..PartWorld::CALM
};
const REPEATED: PartWorld = PartWorld {
    name: "COMMIT of a transaction over two parts, and of one in one part, are repeated; owners are taken over twice",
    plans: [plan(&[0], &[0, 1]), plan(&[0], &[0])],
    may_fall: &[0],
    falls: 2,
    repeats: 1,
    ..PartWorld::CALM
};

/// What `make test` explores.
pub const WORLDS: [PartWorld; 7] = [SKEW, CROSSED, SAME_HOME, READER, THREE, OVERWRITTEN, REPEATED];

/// What `make test-long` explores: a minute in all.
pub const LARGE_WORLDS: [PartWorld; 3] = [
    PartWorld {
        name: "two increments of both parts, with different homes; owners are taken over twice, COMMIT is repeated",
        falls: 2,
        repeats: 1,
        ..CROSSED
    },
    PartWorld {
        name: "two increments of three parts; an owner is taken over",
        plans: [plan(&[0, 1, 2], &[0, 1, 2]), plan(&[0, 1, 2], &[0, 2, 1])],
        may_fall: &[0, 1],
        ..CROSSED
    },
    PartWorld {
        name: "one home, three parts; owners are taken over twice, COMMIT is repeated",
        falls: 2,
        repeats: 1,
        ..SAME_HOME
    },
];

/// Each fault, a world in which it shows, and what it breaks there.
pub const FAULTS: [(PartFault, PartWorld, &str); 26] = [
    (PartFault::UnnotedBranch, OVERWRITTEN, SERIALIZABLE),
    (PartFault::UnnotedDecision, OVERWRITTEN, SERIALIZABLE),
    (PartFault::UnlockedBranch, READER, SERIALIZABLE),
    (PartFault::NeverClosed, OVERWRITTEN, SERIALIZABLE),
    (PartFault::ClosedAmidCommit, OVERWRITTEN, SERIALIZABLE),
    (PartFault::NumberOfAnyOwner, SAME_HOME, SERIALIZABLE),
    (PartFault::DecideBeforeCommit, OVERWRITTEN, SERIALIZABLE),
    (PartFault::EndedUnheard, OVERWRITTEN, SERIALIZABLE),
    (PartFault::EndedAfterOne, THREE, SERIALIZABLE),
    (PartFault::EntryTaken, SAME_HOME, SERIALIZABLE),
    (PartFault::ReadsUnlocked, SKEW, SERIALIZABLE),
    (PartFault::ReadsUncompared, SKEW, SERIALIZABLE),
    (PartFault::HomeUncompared, REPEATED, SERIALIZABLE),
    (PartFault::LocksIgnored, READER, SERIALIZABLE),
    (PartFault::NothingChecked, READER, SERIALIZABLE),
    (PartFault::ForgottenReply, REPEATED, ONCE),
    (PartFault::RepeatBesideFirst, REPEATED, ONCE),
    (PartFault::SilenceIsAbort, OVERWRITTEN, SERIALIZABLE),
    (PartFault::ReplacedDenies, OVERWRITTEN, ONCE),
    (PartFault::ReplacedCommits, OVERWRITTEN, SERIALIZABLE),
    (PartFault::ReplacedAnswers, OVERWRITTEN, SERIALIZABLE),
    (PartFault::DecideTwice, OVERWRITTEN, SERIALIZABLE),
    (PartFault::PrepareRepeated, OVERWRITTEN, SERIALIZABLE),
    (PartFault::LockKept, READER, UNLOCKED),
    (PartFault::NobodyAsks, READER, GOES_ON),
    (PartFault::NobodyTellsAgain, READER, GOES_ON),
];

const fn writer(reads: &'static [usize], writes: &'static [usize]) -> Writer {
    Writer { reads, writes }
}

/// Object 0 is in one part, 1 and 2 are in another.
const OTHERS: ClockWorld = ClockWorld {
    name: "a transaction over two parts, and two others that stamp in one of them",
    writers: [writer(&[], &[0, 1]), writer(&[], &[2]), writer(&[], &[2])],
    may_fall: Some(1),
    reads_ahead: false,
    fault: None,
};
const BOTH_WAYS: ClockWorld = ClockWorld {
    name: "transactions over two parts with different homes, and one between them",
    writers: [writer(&[], &[0, 1]), writer(&[1], &[2]), writer(&[], &[2, 0])],
    may_fall: None,
    reads_ahead: false,
    fault: None,
};
const READ_ELSEWHERE: ClockWorld = ClockWorld {
    name: "a transaction that writes in one part what it has read in another",
    writers: [writer(&[], &[0]), writer(&[0], &[1]), writer(&[1], &[0])],
    may_fall: Some(0),
    reads_ahead: false,
    fault: None,
};

const fn ahead(world: ClockWorld) -> ClockWorld {
    ClockWorld { reads_ahead: true, ..world }
}

pub const CLOCK_WORLDS: [ClockWorld; 6] =
    [OTHERS, BOTH_WAYS, READ_ELSEWHERE, ahead(OTHERS), ahead(BOTH_WAYS), ahead(READ_ELSEWHERE)];

pub const CLOCK_FAULTS: [(ClockFault, ClockWorld); 6] = [
    (ClockFault::Scalar, BOTH_WAYS),
    (ClockFault::NoRevalidation, READ_ELSEWHERE),
    (ClockFault::OwnPartOnly, BOTH_WAYS),
    (ClockFault::StampAtPrepare, OTHERS),
    (ClockFault::NoFloor, OTHERS),
    (ClockFault::LooksEarly, ahead(OTHERS)),
];
