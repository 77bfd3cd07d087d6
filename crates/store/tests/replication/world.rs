//! A small world: which servers, regions, requests and readers there are, what may fail in it, and its state.
//!
//! | in the model | stands for |
//! |---|---|
//! | a region | a region with one object |
//! | a value | the request that wrote it; 0 is the value at first |
//! | epoch 0, epoch 1 | before and after the one change of members |
//! | a step that is not taken for long | a stopped process, a slow line |
//!
//! Nothing here has a clock. "The lease has ended at its holder" is a step, and what must come later requires it.

use crate::fault::ProtocolFault;

/// The most servers, regions, requests and readers of a world.
pub const SERVERS: usize = 3;
pub const REGIONS: usize = 2;
pub const REQUESTS: usize = 3;
pub const READERS: usize = 2;

/// What a client asks for: a commit of what it has read. A request is an INCR of each region that it writes.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// Regions that are read only.
    pub reads: &'static [usize],
    /// Regions that are read and written; the first one is the request's home.
    pub writes: &'static [usize],
    /// The request that this one repeats.
    pub repeats: Option<usize>,
}

/// A reader of memory: a host, and regions that it reads one after the other as one transaction.
#[derive(Clone, Copy, Debug)]
pub struct ReaderSpec {
    pub host: usize,
    pub regions: &'static [usize],
}

/// A world, and the fault that is planted in it.
#[derive(Clone, Copy, Debug)]
pub struct ModelWorld {
    pub name: &'static str,
    pub servers: usize,
    /// The primary and the backup of each region in epoch 0.
    pub copies: &'static [[usize; 2]],
    pub requests: &'static [Request],
    pub readers: &'static [ReaderSpec],
    /// Which servers may end with their memory; end while their keeper lives; be expelled, whether they live or not. One fails.
    pub may_crash: &'static [usize],
    pub may_testify: &'static [usize],
    pub may_expel: &'static [usize],
    /// Which servers may end and be started again by their keeper, once and in the same epoch.
    pub may_restart: &'static [usize],
    /// A host with readers, whose keeper is no member and acknowledges nothing: readers there have leases only.
    pub outsider: Option<usize>,
    /// Whether a coordinator may give up before it has all answers.
    pub may_give_up: bool,
    /// Whether records are truncated.
    pub truncates: bool,
    pub fault: Option<ProtocolFault>,
}

impl ModelWorld {
    /// A world in which nothing fails.
    pub const CALM: ModelWorld = ModelWorld {
        name: "calm",
        servers: 2,
        copies: &[[0, 1]],
        requests: &[],
        readers: &[],
        may_crash: &[],
        may_testify: &[],
        may_expel: &[],
        may_restart: &[],
        outsider: None,
        may_give_up: false,
        truncates: false,
        fault: None,
    };

    pub fn has(&self, fault: ProtocolFault) -> bool {
        self.fault == Some(fault)
    }

    /// The primary of a region in an epoch: the first of its copies that is not expelled.
    pub fn primary(&self, state: &ClusterState, region: usize, epoch: u8) -> usize {
        let [first, second] = self.copies[region];
        if epoch == 1 && state.expelled == Some(first) { second } else { first }
    }

    /// The backup of a region in an epoch. An expelled copy is not replaced.
    pub fn backup(&self, state: &ClusterState, region: usize, epoch: u8) -> Option<usize> {
        let [first, second] = self.copies[region];
        let is_whole = epoch == 0 || ![Some(first), Some(second)].contains(&state.expelled);
        is_whole.then_some(second)
    }

    /// The members of the epoch that the configuration names.
    pub fn members(&self, state: &ClusterState) -> impl Iterator<Item = usize> {
        let others = [state.expelled, self.outsider];
        (0..self.servers).filter(move |server| !others.contains(&Some(*server)))
    }
}

/// A copy of a region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct RegionCopy {
    pub value: u8,
    pub version: u8,
    pub locked_by: Option<u8>,
    /// The table of replies: a bit for each request that was done here.
    pub replies: u8,
}

/// A server and its keeper.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ServerState {
    /// Whether the server runs. One that is stopped runs: it may go on at any time.
    pub runs: bool,
    /// Whether the host and its keeper live, and with them the memory.
    pub has_memory: bool,
    pub testified: bool,
    pub holds_lease: bool,
    /// Whether the words of its regions say that they may be read.
    pub word_is_open: bool,
    /// The epoch that it has acknowledged.
    pub epoch: u8,
    /// Whether it serves in epoch 1.
    pub is_unblocked: bool,
    /// The newest time that it has stamped.
    pub stamped: u8,
}

/// Records of a transaction and a region in the memory of a server, as bits.
pub mod record {
    pub const LOCK: u8 = 1;
    pub const COMMIT_BACKUP: u8 = 2;
    pub const COMMIT_PRIMARY: u8 = 4;
    pub const TRUNCATED: u8 = 8;
}

/// What a coordinator writes into the memory of another server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RecordKind {
    Lock,
    Abort,
    CommitBackup,
    CommitPrimary,
    TruncateBackup,
    TruncatePrimary,
}

/// How far a transaction is at its coordinator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    /// The client has not sent it, or nobody has taken it.
    #[default]
    New,
    /// It is claimed at its home.
    Claimed,
    /// All of it was read.
    Read,
    /// Step 1: the LOCKs are posted.
    Locking,
    /// Step 4: all locks were held, a time was taken, reads were validated; the COMMIT-BACKUPs are posted.
    Backing,
    /// All completed, and the lease and the epoch are as they were.
    Checked,
    /// Step 5: the own primary has applied it; the COMMIT-PRIMARYs are posted.
    Applied,
    /// The coordinator was started again, and knows of it only by records.
    Orphaned,
    /// The coordinator, or the votes, are done with it.
    Ended,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Answer {
    Committed,
    Aborted,
}

/// A request as its coordinator and its client see it. Sets of regions are bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct TransactionState {
    pub phase: Phase,
    pub coordinator: usize,
    pub epoch: u8,
    pub read_values: [u8; REGIONS],
    pub read_versions: [u8; REGIONS],
    pub stamp: u8,
    pub granted: u8,
    pub refused: u8,
    pub backed: u8,
    pub applied: u8,
    /// What the votes or the coordinator decided and nobody has answered yet.
    pub decided: Option<Answer>,
    /// What the client knows.
    pub answer: Option<Answer>,
    /// The answer is the recorded reply of the request that it repeats.
    pub is_reply: bool,
    /// The requests and readers (after the requests) that had their answer when this one began.
    pub after: u8,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ReaderState {
    /// How many regions it has loaded.
    pub loaded: u8,
    pub has_begun: bool,
    pub has_answer: bool,
    pub epoch: u8,
    pub values: [u8; REGIONS],
    pub versions: [u8; REGIONS],
    pub after: u8,
}

/// The state of a world.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ClusterState {
    pub servers: [ServerState; SERVERS],
    /// By server and region.
    pub copies: [[RegionCopy; REGIONS]; SERVERS],
    /// By server, transaction and region.
    pub records: [[[u8; REGIONS]; REQUESTS]; SERVERS],
    /// Which writes are under way: a bit for each kind, transaction and region.
    pub under_way: u64,
    pub transactions: [TransactionState; REQUESTS],
    pub readers: [ReaderState; READERS],
    /// Who is no member since epoch 1.
    pub expelled: Option<usize>,
    pub has_voted: bool,
    pub has_restarted: bool,
}

impl ClusterState {
    pub fn new() -> Self {
        let server = ServerState {
            runs: true,
            has_memory: true,
            testified: false,
            holds_lease: true,
            word_is_open: true,
            epoch: 0,
            is_unblocked: false,
            stamped: 0,
        };
        Self {
            servers: [server; SERVERS],
            copies: Default::default(),
            records: Default::default(),
            under_way: 0,
            transactions: Default::default(),
            readers: Default::default(),
            expelled: None,
            has_voted: false,
            has_restarted: false,
        }
    }

    /// The epoch that the configuration names.
    pub fn epoch(&self) -> u8 {
        u8::from(self.expelled.is_some())
    }

    fn bit(kind: RecordKind, transaction: usize, region: usize) -> u64 {
        1 << ((kind as usize * REQUESTS + transaction) * REGIONS + region)
    }

    pub fn is_under_way(&self, kind: RecordKind, transaction: usize, region: usize) -> bool {
        self.under_way & Self::bit(kind, transaction, region) != 0
    }

    pub fn set_under_way(&mut self, kind: RecordKind, transaction: usize, region: usize, is: bool) {
        let bit = Self::bit(kind, transaction, region);
        if is { self.under_way |= bit } else { self.under_way &= !bit }
    }

    /// Nothing arrives any more of what is under way for a transaction.
    pub fn lose_under_way(&mut self, transaction: usize) {
        let transactions = (REGIONS * REQUESTS) as u64;
        let own = |bit: &u64| bit % transactions / REGIONS as u64 == transaction as u64;
        self.under_way &= !(0..64).filter(own).fold(0, |bits, bit| bits | 1 << bit);
    }

    /// Whether a request was done on some copy.
    pub fn is_done(&self, request: usize) -> bool {
        self.copies.iter().flatten().any(|copy| copy.replies & 1 << request != 0)
    }

    /// Which requests and readers have their answer.
    pub fn answered(&self) -> u8 {
        let requests = self.transactions.iter().map(|transaction| transaction.answer.is_some());
        let readers = self.readers.iter().map(|reader| reader.has_answer);
        (0..).zip(requests.chain(readers)).fold(0, |bits, (place, is)| bits | u8::from(is) << place)
    }
}
