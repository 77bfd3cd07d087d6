//! A small world: its parts and clients, what may fail in it, and its state.
//!
//! | in the model | stands for |
//! |---|---|
//! | a part | a part of a store, with one object |
//! | a value | the transaction that has written it, plus 1; 0 is the value at first |
//! | a commit of a part, one step | a record that has arrived at all copies; its answer is another step, which may never come |
//! | an owner that is taken over | one that has died, and one that runs on without a lease: it commits nothing, and answers nothing |
//! | a step that is not taken for long, or never | a message that is late, or lost; a process that is stopped, or has ended |
//!
//! Nothing here has a clock. A branch may be given up at any time, and a session is repeated at any time.

use crate::fault::PartFault;
use crate::history::VALUES;

/// The most parts and clients of a world. Each client has one transaction, which has its number.
pub const PARTS: usize = VALUES;
pub const CLIENTS: usize = 2;

/// A transaction.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// The parts that it reads, in this order.
    pub reads: &'static [usize],
    /// The parts that it writes; the first one is its home.
    pub writes: &'static [usize],
}

/// A world, and the fault that is planted in it.
#[derive(Clone, Copy, Debug)]
pub struct PartWorld {
    pub name: &'static str,
    pub plans: [Plan; CLIENTS],
    /// The parts whose owners may be taken over, and how often one is.
    pub may_fall: &'static [usize],
    pub falls: u8,
    /// How often a client repeats COMMIT over a new link.
    pub repeats: u8,
    pub fault: Option<PartFault>,
}

/// A part. Sets of transactions are bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct PartState {
    pub value: u8,
    pub version: u8,
    pub locked_by: Option<u8>,
    /// The ledger: whose branches are noted; the one entry that there is for a decision.
    pub branches: u8,
    pub decision: Option<u8>,
    /// Sessions: which requests have been done.
    pub replies: u8,

    /// The number of the owner. All that follows it keeps privately.
    pub owner: u8,
    /// The next number of a transaction, and which numbers are open.
    pub next: u8,
    pub open: [OpenNumber; CLIENTS],
    /// Nobody needs the decision any more.
    pub is_ended: bool,
    /// Which parts were told the decision again.
    pub told: u8,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OpenNumber {
    #[default]
    Closed,
    Begun,
    /// The commit of this transaction is under way.
    Committing(u8),
}

/// How far a client is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    #[default]
    Reading,
    Preparing,
    Committing,
    /// It has committed, and tells the parts.
    Deciding,
    /// It does nothing any more.
    Ended,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Answer {
    Committed,
    Aborted,
}

/// A transaction as its client sees it, and its messages. Sets of parts are bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ClientState {
    pub phase: Phase,
    /// How many parts it has read.
    pub read: u8,
    pub values: [u8; PARTS],
    pub versions: [u8; PARTS],
    /// Which parts have said that what was read there is as it was.
    pub validated: u8,
    /// The transaction's identity: the owner of its home that has opened the number.
    pub owner: u8,
    pub number: u8,
    /// PREPAREs under way, and their answers.
    pub preparing: u8,
    pub granted: u8,
    pub refused: u8,
    /// COMMIT is under way; it is a repeat.
    pub is_asked: bool,
    pub is_repeat: bool,
    pub repeats: u8,
    /// The answer to COMMIT, on its way.
    pub reply: Option<Answer>,
    /// DECIDEs under way, and which parts have answered that the transaction has happened there.
    pub committing: u8,
    pub aborting: u8,
    pub told: u8,
    /// ENDED is under way.
    pub is_ending: bool,
    /// What the home has told whoever serves a part with a branch: which have heard something, and that it was "committed".
    pub heard: u8,
    pub heard_committed: u8,
    /// What the client knows.
    pub answer: Option<Answer>,
    /// How often the home has committed it.
    pub done: u8,
    /// Who had an answer when this one began.
    pub after: u8,
}

/// The state of a world.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct ClusterState {
    pub parts: [PartState; PARTS],
    pub clients: [ClientState; CLIENTS],
    pub falls: u8,
}

/// A set with one member.
pub fn bit(member: usize) -> u8 {
    1 << member
}

/// For the question mark: a step that cannot be taken ends there.
pub fn when(is_possible: bool) -> Option<()> {
    is_possible.then_some(())
}

impl Plan {
    pub fn home(&self) -> Option<usize> {
        self.writes.first().copied()
    }

    pub fn reads_part(&self, part: usize) -> bool {
        self.reads.contains(&part)
    }

    pub fn writes_part(&self, part: usize) -> bool {
        self.writes.contains(&part)
    }

    /// The parts that have a branch, but for the home.
    pub fn others(&self) -> u8 {
        let all = self.reads.iter().chain(self.writes).fold(0, |all, part| all | bit(*part));
        self.home().map_or(all, |home| all & !bit(home))
    }
}

impl PartWorld {
    /// A world in which nothing fails.
    pub const CALM: PartWorld = PartWorld {
        name: "calm",
        plans: [Plan { reads: &[], writes: &[0] }; CLIENTS],
        may_fall: &[],
        falls: 0,
        repeats: 0,
        fault: None,
    };

    pub fn has(&self, fault: PartFault) -> bool {
        self.fault == Some(fault)
    }
}

impl ClusterState {
    /// Which clients have an answer.
    pub fn answered(&self) -> u8 {
        let answered = (0..CLIENTS).filter(|client| self.clients[*client].answer.is_some());
        answered.fold(0, |all, client| all | bit(client))
    }
}
