//! The worlds that are explored, and in which of them each planted fault is found.

use crate::clock::{ClockFault, ClockWorld, Writer};
use crate::fault::ProtocolFault;
use crate::model::property::{EQUAL, ONCE, SERIALIZABLE, UNLOCKED};
use crate::world::{ModelWorld, ReaderSpec, Request};

const ONE: Request = Request { reads: &[], writes: &[0], repeats: None };
const BOTH: Request = Request { reads: &[], writes: &[0, 1], repeats: None };
/// As `BOTH`, with the other region as its home.
const BOTH_BACK: Request = Request { reads: &[], writes: &[1, 0], repeats: None };

const SKEW: ModelWorld = ModelWorld {
    name: "two transactions that each read what the other writes; either server dies or is expelled",
    copies: &[[0, 1], [1, 0]],
    requests: &[
        Request { reads: &[1], writes: &[0], repeats: None },
        Request { reads: &[0], writes: &[1], repeats: None },
    ],
    may_crash: &[0, 1],
    may_expel: &[0, 1],
    ..ModelWorld::CALM
};
const ONE_REGION: ModelWorld = ModelWorld {
    name: "one region, two commits, a mapped reader; either server dies or is expelled",
    requests: &[ONE, ONE],
    readers: &[ReaderSpec { host: 0, regions: &[0] }],
    may_crash: &[0, 1],
    may_expel: &[0, 1],
    truncates: true,
    ..ModelWorld::CALM
};
const TESTIFIED: ModelWorld = ModelWorld {
    name: "one region, two commits, a mapped reader; the keeper testifies to the primary's death",
    requests: &[ONE, ONE],
    readers: &[ReaderSpec { host: 0, regions: &[0] }],
    may_testify: &[0],
    may_expel: &[0],
    ..ModelWorld::CALM
};
const SAME_COPIES: ModelWorld = ModelWorld {
    name: "two regions of the same servers, written at once; either server dies or is expelled",
    copies: &[[0, 1], [0, 1]],
    requests: &[BOTH],
    may_crash: &[0, 1],
    may_expel: &[0, 1],
    truncates: true,
    ..ModelWorld::CALM
};
const CROSSED: ModelWorld = ModelWorld {
    name: "two regions, each server the backup of the other, and a reader of both; either dies or is expelled",
    copies: &[[0, 1], [1, 0]],
    requests: &[BOTH],
    readers: &[ReaderSpec { host: 0, regions: &[0, 1] }],
    may_crash: &[0, 1],
    may_expel: &[0, 1],
    may_give_up: true,
    truncates: true,
    ..ModelWorld::CALM
};
const THREE: ModelWorld = ModelWorld {
    name: "three servers, two regions written at once; any server dies or is expelled",
    servers: 3,
    copies: &[[0, 1], [2, 1]],
    requests: &[BOTH],
    may_crash: &[0, 1, 2],
    may_expel: &[0, 1, 2],
    may_give_up: true,
    truncates: true,
    ..ModelWorld::CALM
};
const EXPELLED_READER: ModelWorld = ModelWorld {
    name: "three servers, two regions written at once; a host is expelled on which a reader reads both",
    servers: 3,
    copies: &[[0, 1], [2, 1]],
    requests: &[BOTH],
    readers: &[ReaderSpec { host: 0, regions: &[1, 0] }],
    may_expel: &[0],
    ..ModelWorld::CALM
};
const MEMBER_READER: ModelWorld = ModelWorld {
    name: "three servers, two regions written at once; a reader of one on its primary's host, which stays; another server goes",
    readers: &[ReaderSpec { host: 2, regions: &[1] }],
    may_crash: &[0, 1],
    may_expel: &[0, 1],
    ..EXPELLED_READER
};
const SLOW_MEMBER: ModelWorld = ModelWorld {
    name: "one region; a reader on a third host, which hears of the epoch at any time",
    servers: 3,
    requests: &[ONE],
    readers: &[ReaderSpec { host: 2, regions: &[0] }],
    may_crash: &[0],
    may_expel: &[0],
    ..ModelWorld::CALM
};
const OUTSIDER: ModelWorld = ModelWorld {
    name: "one region; a reader on a third host, which is no member",
    outsider: Some(2),
    ..SLOW_MEMBER
};
const REPEATED: ModelWorld = ModelWorld {
    name: "a request and its repeat; either server dies or is expelled",
    requests: &[ONE, Request { repeats: Some(0), ..ONE }],
    may_crash: &[0, 1],
    may_expel: &[0, 1],
    may_give_up: true,
    truncates: true,
    ..ModelWorld::CALM
};
const REPEATED_CROSSED: ModelWorld = ModelWorld {
    name: "a request that writes two regions with different homes, and its repeat",
    copies: &[[0, 1], [1, 0]],
    requests: &[BOTH, Request { repeats: Some(0), ..BOTH }],
    may_expel: &[0],
    ..ModelWorld::CALM
};
const RESTARTED: ModelWorld = ModelWorld {
    name: "two commits of two regions that cross; a server is started again",
    copies: &[[0, 1], [1, 0]],
    requests: &[BOTH, BOTH_BACK],
    may_restart: &[0],
    may_give_up: true,
    truncates: true,
    ..ModelWorld::CALM
};
const RESTARTED_EXPELLED: ModelWorld = ModelWorld {
    name: "a commit of two regions and a mapped reader; a server is started again, and one dies or is expelled",
    copies: &[[0, 1], [1, 0]],
    requests: &[BOTH],
    readers: &[ReaderSpec { host: 0, regions: &[0] }],
    may_crash: &[0, 1],
    may_expel: &[0, 1],
    may_restart: &[0, 1],
    truncates: true,
    ..ModelWorld::CALM
};
const RESTARTED_REPEATED: ModelWorld = ModelWorld {
    name: "a request and its repeat; the server is started again, and one is expelled",
    requests: &[ONE, Request { repeats: Some(0), ..ONE }],
    may_expel: &[0, 1],
    may_restart: &[0],
    truncates: true,
    ..ModelWorld::CALM
};

/// What `make test` explores.
pub const WORLDS: [ModelWorld; 15] = [
    SKEW,
    ONE_REGION,
    TESTIFIED,
    SAME_COPIES,
    CROSSED,
    THREE,
    EXPELLED_READER,
    MEMBER_READER,
    SLOW_MEMBER,
    OUTSIDER,
    REPEATED,
    REPEATED_CROSSED,
    RESTARTED,
    RESTARTED_EXPELLED,
    RESTARTED_REPEATED,
];

/// What `make test-long` explores: minutes each.
pub const LARGE_WORLDS: [ModelWorld; 4] = [
    ModelWorld {
        name: "two servers that back each other up, two commits, two readers",
        copies: &[[0, 1], [1, 0]],
        requests: &[BOTH, Request { reads: &[0], writes: &[1], repeats: None }],
        readers: &[ReaderSpec { host: 0, regions: &[0, 1] }, ReaderSpec { host: 1, regions: &[1] }],
        may_crash: &[0, 1],
        may_expel: &[0, 1],
        may_give_up: true,
        truncates: true,
        ..ModelWorld::CALM
    },
    ModelWorld {
        name: "three servers, two commits that cross, a reader; any server fails in any way",
        servers: 3,
        copies: &[[0, 1], [2, 0]],
        requests: &[BOTH, BOTH_BACK],
        readers: &[ReaderSpec { host: 2, regions: &[0] }],
        may_crash: &[0, 1, 2],
        may_testify: &[0],
        may_expel: &[0, 1, 2],
        may_give_up: true,
        truncates: true,
        ..ModelWorld::CALM
    },
    ModelWorld {
        name: "three servers, a request with its repeat and another one",
        servers: 3,
        copies: &[[0, 1], [2, 1]],
        requests: &[BOTH, Request { repeats: Some(0), ..BOTH }, ONE],
        may_crash: &[0],
        may_testify: &[0],
        may_expel: &[0, 1],
        may_give_up: true,
        truncates: true,
        ..ModelWorld::CALM
    },
    ModelWorld {
        name: "three servers, two commits that cross; one is started again, and one dies or is expelled",
        servers: 3,
        copies: &[[0, 1], [2, 0]],
        requests: &[BOTH, BOTH_BACK],
        may_crash: &[0, 2],
        may_expel: &[0, 1, 2],
        may_restart: &[0, 2],
        may_give_up: true,
        truncates: true,
        ..ModelWorld::CALM
    },
];

/// Each fault, a world in which it shows, and what it breaks there.
pub const FAULTS: [(ProtocolFault, ModelWorld, &str); 31] = [
    (ProtocolFault::NoValidate, SKEW, SERIALIZABLE),
    (ProtocolFault::AnswerAfterLocks, SAME_COPIES, SERIALIZABLE),
    (ProtocolFault::AnswerAfterBackups, SAME_COPIES, SERIALIZABLE),
    (ProtocolFault::WordBeforeReads, EXPELLED_READER, SERIALIZABLE),
    (ProtocolFault::CompletedBeforeArrival, SAME_COPIES, SERIALIZABLE),
    (ProtocolFault::WordStaysOpen, TESTIFIED, SERIALIZABLE),
    (ProtocolFault::OutsiderNotAwaited, OUTSIDER, SERIALIZABLE),
    (ProtocolFault::SettleWithOldRings, RESTARTED, UNLOCKED),
    (ProtocolFault::NoCheck, SAME_COPIES, SERIALIZABLE),
    (ProtocolFault::AcknowledgeAmidCommit, THREE, SERIALIZABLE),
    (ProtocolFault::VoteBeforeLeaseEnd, SAME_COPIES, SERIALIZABLE),
    (ProtocolFault::RingsClosedUndrained, SAME_COPIES, SERIALIZABLE),
    (ProtocolFault::OldRingsRead, THREE, UNLOCKED),
    (ProtocolFault::UnblockBeforeAcknowledged, SLOW_MEMBER, SERIALIZABLE),
    (ProtocolFault::UnblockBeforeVotes, SLOW_MEMBER, SERIALIZABLE),
    (ProtocolFault::StampOwnOnly, RESTARTED, SERIALIZABLE),
    (ProtocolFault::RecordsWithoutRegions, SAME_COPIES, SERIALIZABLE),
    (ProtocolFault::UnlockAtAcknowledgement, MEMBER_READER, SERIALIZABLE),
    (ProtocolFault::UnlockAtRestart, RESTARTED, SERIALIZABLE),
    (ProtocolFault::TruncateEarly, THREE, SERIALIZABLE),
    (ProtocolFault::TruncationForgotten, CROSSED, SERIALIZABLE),
    (ProtocolFault::TruncateUnapplied, SAME_COPIES, SERIALIZABLE),
    (ProtocolFault::AbortAfterBackups, SAME_COPIES, SERIALIZABLE),
    (ProtocolFault::AbortToAnswered, CROSSED, UNLOCKED),
    (ProtocolFault::NoClaim, REPEATED, ONCE),
    (ProtocolFault::RepeatElsewhere, REPEATED_CROSSED, ONCE),
    (ProtocolFault::OldAbortBelieved, REPEATED, ONCE),
    (ProtocolFault::ForgottenReply, REPEATED, ONCE),
    (ProtocolFault::RepliesStayBehind, REPEATED, ONCE),
    (ProtocolFault::OneWayLease, SLOW_MEMBER, SERIALIZABLE),
    (ProtocolFault::ApplyOlder, ONE_REGION, EQUAL),
];

const fn writer(coordinator: usize, reads: &'static [usize], writes: &'static [usize]) -> Writer {
    Writer { coordinator, reads, writes }
}

/// The last writer of these has read what the second wrote, and stamps with a lower time.
const ONE_BY_ONE: ClockWorld = ClockWorld {
    name: "two coordinators, objects read one by one",
    writers: [writer(0, &[], &[0]), writer(0, &[], &[0]), writer(1, &[0], &[1])],
    is_batch: false,
    may_restart: None,
    fault: None,
};
const BATCH: ClockWorld =
    ClockWorld { name: "two coordinators, objects read as one batch", is_batch: true, ..ONE_BY_ONE };
const SAME_ID: ClockWorld = ClockWorld {
    name: "a coordinator that is started again",
    writers: [writer(1, &[], &[0]), writer(0, &[], &[0]), writer(1, &[0], &[1])],
    may_restart: Some(1),
    ..ONE_BY_ONE
};

pub const CLOCK_WORLDS: [ClockWorld; 3] = [ONE_BY_ONE, BATCH, SAME_ID];

pub const CLOCK_FAULTS: [(ClockFault, ClockWorld); 4] = [
    (ClockFault::Scalar, ONE_BY_ONE),
    (ClockFault::NoRevalidation, BATCH),
    (ClockFault::BatchOneByOne, BATCH),
    (ClockFault::NoFloor, SAME_ID),
];
