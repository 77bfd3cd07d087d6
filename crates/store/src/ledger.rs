//! Transactions over several parts of a store, as each of the parts knows them.
//!
//! What a transaction reads and writes in one part is its **branch** there. One of its parts, that of the first key that it writes,
//! is its **home**: there its writes, and the **decision** that the transaction has happened, are one commit.
//!
//! | step | who | what it changes |
//! |---|---|---|
//! | begin | the client, at the home | the home has opened the transaction's number |
//! | prepare | the client, at all other parts at once | the branch is checked and noted, and locks all that it has read and writes |
//! | commit | the client, at the home | locks, checks, and commits the home's branch with the decision, if the number is still open |
//! | decide | the client, at all other parts at once | the branches happen, or are undone |
//! | end | the client, at the home | the decision is needed no longer; or the number of a transaction that was given up |
//!
//! The client is answered after the third step. All locks are held at that moment, so it is the transaction's moment. A part gives a
//! branch its time in the fourth step, when all locks are held: so what `transaction.rs` says of times holds among parts.
//!
//! **A client may end anywhere.** Whoever serves a part asks the home about branches that are older than
//! [`limits::BRANCH_PATIENCE`] ([`Store::outcome`](crate::Store::outcome)). The home knows the decision; or the number is open, and is closed if the branch
//! has waited for [`limits::BRANCH_WAIT`]; or it is not, and nobody can commit by it any more. So the answer is final.
//! Decisions that no client ends are told to all parts again, and then ended.
//!
//! **An owner may end anywhere.** Branches and decisions are objects, whose places are in the **ledger**, an array of words in the
//! first page. They are written and freed by commits, so they are in the log and at all copies; the commit of a branch frees
//! its note. A new owner takes over from the ledger what was decided, and locks the branches again before anybody else commits.
//! Open numbers are kept privately: those of an owner that has ended are open no longer.

mod branches;
mod decision;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use caravan_fabric::byte_reader::ByteReader;

use crate::commit::ParkedCommit;
use crate::entry::ObjectAddress;
use crate::error::StoreError;
use crate::layout::{self, LEDGER_ENTRIES};
use crate::limits;

pub(crate) use decision::DecisionPlace;

/// A transaction over several parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TransactionId {
    /// The part that decides.
    pub home: u16,
    /// The owner of that part that has opened it: a random number.
    pub(crate) owner: u64,
    pub(crate) number: u64,
}

/// What became of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Its client may still commit it.
    Open,
    /// It has happened.
    Committed,
    /// It has not happened, and never will.
    Aborted,
}

impl Outcome {
    pub(crate) fn from_byte(bytes: &[u8]) -> Option<Self> {
        let all = [Self::Open, Self::Committed, Self::Aborted];
        all.into_iter().find(|outcome| bytes == [*outcome as u8])
    }
}

/// A change of an entry of the ledger, under the lock of the object that it leads to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LedgerChange {
    /// The place of the object.
    pub(crate) object: u64,
    pub(crate) entry: usize,
    /// The address of the object, or 0.
    pub(crate) word: u64,
}

impl LedgerChange {
    pub(crate) fn place(&self) -> u64 {
        layout::ledger_place(self.entry)
    }
}

/// The transactions over several parts that are under way in this one.
#[derive(Debug)]
pub(crate) struct Ledger {
    state: Mutex<LedgerState>,
    /// How many branches are parked.
    parked: AtomicUsize,
    /// Of this owner, a random number; 0 until it is needed.
    owner: AtomicU64,
}

#[derive(Debug)]
struct LedgerState {
    next: u64,
    open: BTreeMap<u64, OpenState>,
    branches: BTreeMap<TransactionId, Branch>,
    decisions: BTreeMap<TransactionId, Decision>,
    /// Entries whose object is a decision that nobody needs any more: the next decision takes its place.
    ended: Vec<(usize, ObjectAddress)>,
    /// Entries that are 0.
    free: Vec<usize>,
    /// How many entries decisions have, those included that nobody needs any more. At most half of all, as nothing else gets these.
    of_decisions: usize,
    /// What the branches have locked.
    places: BTreeSet<u64>,
}

/// What a number that was opened is open for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OpenState {
    Begun,
    /// A commit is under way.
    Committing,
}

#[derive(Debug)]
struct Branch {
    entry: usize,
    /// None while it is being prepared, decided, or cannot be.
    parked: Option<(ObjectAddress, ParkedCommit)>,
    since: Instant,
}

#[derive(Clone, Debug)]
struct Decision {
    entry: usize,
    object: ObjectAddress,
    parts: Vec<u16>,
    since: Instant,
}

/// What an object of the ledger says, in the order of the machine's bytes as all of the memory.
const BRANCH: u16 = 1;
const DECISION: u16 = 2;
/// The bytes of a decision.
const DECISION_BYTES: usize = 2 + ID_BYTES + 2 * (1 + limits::PARTICIPANTS_MAX);
/// The bytes of a transaction's identity.
const ID_BYTES: usize = 18;

impl TransactionId {
    pub(crate) fn append(self, to: &mut Vec<u8>) {
        to.extend_from_slice(&self.home.to_be_bytes());
        to.extend_from_slice(&self.owner.to_be_bytes());
        to.extend_from_slice(&self.number.to_be_bytes());
    }

    pub(crate) fn take(reader: &mut ByteReader<'_>) -> Option<Self> {
        Some(Self { home: reader.u16()?, owner: reader.u64()?, number: reader.u64()? })
    }
}

impl Ledger {
    pub(crate) fn new() -> Self {
        Self {
            state: Mutex::new(LedgerState {
                next: 1,
                open: BTreeMap::new(),
                branches: BTreeMap::new(),
                decisions: BTreeMap::new(),
                ended: Vec::new(),
                free: (0..LEDGER_ENTRIES).rev().collect(),
                of_decisions: 0,
                places: BTreeSet::new(),
            }),
            parked: AtomicUsize::new(0),
            owner: AtomicU64::new(0),
        }
    }

    fn state(&self) -> MutexGuard<'_, LedgerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells whether branches hold locks.
    pub(crate) fn has_parked(&self) -> bool {
        self.parked.load(Ordering::Acquire) > 0
    }

    /// Tells whether a branch has locked the unit at `place`.
    pub(crate) fn holds(&self, place: u64) -> bool {
        self.has_parked() && self.state().places.contains(&place)
    }

    fn owner(&self) -> Result<u64, StoreError> {
        let owner = self.owner.load(Ordering::Relaxed);
        if owner != 0 {
            return Ok(owner);
        }
        let random = crate::copies::random_identity()?;
        let first = self.owner.compare_exchange(0, random, Ordering::Relaxed, Ordering::Relaxed);
        Ok(first.err().unwrap_or(random))
    }

    /// Opens numbers of transactions whose home this part is; returns the owner's number and the first of them.
    pub(crate) fn open(&self, count: u64) -> Result<(u64, u64), StoreError> {
        let owner = self.owner()?;
        let mut state = self.state();
        let first = state.next;
        state.next += count;
        state.open.extend((first..first + count).map(|number| (number, OpenState::Begun)));
        Ok((owner, first))
    }

    /// Tells whether this owner has opened the number of a transaction.
    pub(crate) fn is_owner(&self, id: TransactionId) -> bool {
        id.owner == self.owner.load(Ordering::Relaxed)
    }

    /// Closes numbers by which nobody will commit.
    pub(crate) fn close(&self, numbers: impl IntoIterator<Item = u64>) {
        let mut state = self.state();
        for number in numbers {
            // A commit that is under way decides.
            if state.open.get(&number) == Some(&OpenState::Begun) {
                state.open.remove(&number);
            }
        }
    }

    /// Begins the commit of a transaction; returns whether it may happen.
    pub(crate) fn begin_commit(&self, id: TransactionId) -> bool {
        let mut state = self.state();
        match state.open.get_mut(&id.number).filter(|open| self.is_owner(id) && **open == OpenState::Begun) {
            Some(open) => {
                *open = OpenState::Committing;
                true
            }
            None => false,
        }
    }

    /// Ends the commit of a transaction that has begun: it has not happened.
    pub(crate) fn end_commit(&self, id: TransactionId) {
        self.state().open.remove(&id.number);
    }

    /// Takes an entry for a decision: one with an object to write anew, or an empty one.
    fn take_entry(&self) -> Result<(usize, Option<ObjectAddress>), StoreError> {
        let mut state = self.state();
        if let Some((entry, object)) = state.ended.pop() {
            return Ok((entry, Some(object)));
        }
        if state.of_decisions >= LEDGER_ENTRIES / 2 {
            return Err(StoreError::Undecided);
        }
        let entry = state.free.pop().ok_or(StoreError::Undecided)?;
        state.of_decisions += 1;
        Ok((entry, None))
    }

    fn give_entry_back(&self, entry: usize, object: Option<ObjectAddress>) {
        let mut state = self.state();
        match object {
            Some(object) => state.ended.push((entry, object)),
            None => {
                state.free.push(entry);
                state.of_decisions -= 1;
            }
        }
    }
}
