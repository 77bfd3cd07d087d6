//! Copies of a store's memory, in the memory of other processes or hosts: the owner's side.
//!
//! The owner writes all that changes its memory as records, in one order: the **stream**. Each copy keeps the records in a ring
//! until it has applied them. A commit is answered only when its record has arrived in the rings of all copies, and is applied only
//! then: so its locks are held until that moment, and records of commits that conflict are in the stream in their order.
//!
//! | record | contents | in a lane of the log first? |
//! |---|---|---|
//! | commit | what its lane has, and the bytes of new objects | yes |
//! | structure | a [change of the structure](crate::structure) | yes |
//! | grow | another block | no: it is sent before it is made, and does no harm if it never is |
//! | data | words to which nothing leads: new objects, halves of a shard; or whole pieces of memory for a new copy | no |
//! | complete | the whole memory has been sent | no |
//!
//! Locks, `now`, the counters of keys and the headers of free places are not sent: [`crate::recovery`] finds them again.
//!
//! **Group commit.** Whoever finds nobody writing writes all records that have come by then; others wait for that, and one of
//! them writes the next ones.
//!
//! **An owner that is started again** over the same memory begins a stream that continues the one before. A copy that was complete
//! follows it once it has applied all that has arrived of the old one, and stays complete. Before anything else, the new owner
//! sends again what it has found in the lanes of the log: nothing else can be missing, because whatever the owner before had done,
//! it had sent. The memory says which stream its copies follow (`word::STREAM`).
//!
//! **A copy that becomes the owner** goes on with the other copies, too. They may have less of the old stream than it has, never
//! anything else: it sends them the records that they lack, which its own ring still has. One that has more was not the one to
//! choose, and begins anew. An owner that [leaves](crate::Store::leave) with nothing under way has a memory that is a complete
//! copy. Each of them has a new ring: an owner that was thought dead may write into the old one for as long as it likes.
//!
//! **Filling.** A new copy gets all records from some position on, and piece by piece the whole memory as it is at the piece's
//! position. A piece is read while the gate is held alone, so nothing is under way. The deletion of all keys reads the memory, which
//! an incomplete copy does not have: then the filling begins again.

pub(crate) mod format;
mod joining;
pub(crate) mod lease;
mod send;
mod store_copy;
mod waits;
mod writer;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

pub use joining::StreamEnd;
pub(crate) use joining::{StreamBefore, random_identity};
pub use store_copy::StoreCopy;
pub use writer::{CopyWriter, FabricRing, MappedRing};

use crate::copies::format::{
    COPY_WORDS_BYTES, COPY_WORDS_PLACE, CopyWords, StreamBegin, StreamRecord, parts,
};
use crate::copies::lease::Lease;
use crate::copies::waits::{CommitWait, LongWaits};
use crate::error::StoreError;
use crate::faults::{self, FaultMoment, PlantedFault, is_planted};
use crate::limits::{COMMIT_WAIT_LONG, COPY_ROOM_PAUSE_MAX, COPY_ROOM_PAUSE_MIN, STREAM_PENDING_BYTES_MAX};

/// Names a copy of a store to its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CopyId(u64);

/// What is known of a copy.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CopyCounts {
    /// The copy.
    pub id: CopyId,
    /// The position of the stream up to which it has arrived in the copy's ring.
    pub arrived: u64,
    /// How many bytes of the stream the copy had not applied when it was last asked.
    pub behind_bytes: u64,
    /// The whole memory has arrived: the copy can take over.
    pub is_complete: bool,
    /// Why the copy is out of reach. No commit is answered until it is [back](crate::Store::mend_copy) or
    /// [removed](crate::Store::remove_copy).
    pub broken: Option<String>,
}

/// The stream of an owner, and the copies that get it.
#[derive(Debug)]
pub(crate) struct CopyStream {
    /// There are copies, or a lease: commits must look here.
    is_active: AtomicBool,
    state: Mutex<StreamState>,
    /// Notified when something has arrived, or will not.
    moved: Condvar,
    lease: Lease,
    pub(crate) waits: LongWaits,
}

/// Invariants: `pending` are the bytes of the stream from `pending_from` to `position`; no copy's `arrived` is below
/// `pending_from` unless somebody is writing.
#[derive(Debug)]
struct StreamState {
    identity: u64,
    position: u64,
    pending_from: u64,
    pending: Vec<u8>,
    /// Memory to reuse.
    spare: Vec<u8>,
    copies: Vec<KnownCopy>,
    is_writing: bool,
    waiting: usize,
    next_id: u64,
    /// How far the memory has been sent to new copies, if there are any.
    filled_to: Option<u64>,
}

/// A copy, as its owner knows it.
#[derive(Debug)]
struct KnownCopy {
    counts: CopyCounts,
    /// `None` while somebody writes, and if the copy is broken.
    link: Option<CopyLink>,
    is_removed: Arc<AtomicBool>,
    /// What its ring says of the stream at first.
    begin: StreamBegin,
    /// Once the stream has arrived up to here, the copy has the whole memory.
    complete_at: Option<u64>,
}

/// The way to a copy.
#[derive(Debug)]
struct CopyLink {
    id: CopyId,
    writer: Box<dyn CopyWriter>,
    capacity: u64,
    identity: u64,
    arrived: u64,
    /// What the copy has said that it has applied.
    applied: u64,
    is_removed: Arc<AtomicBool>,
}

impl CopyLink {
    /// Writes the stream from where it has arrived, as far as `bytes` go, which begin at `from`. Waits while the ring is full.
    fn write(
        &mut self,
        from: u64,
        bytes: &[u8],
        lease: &Lease,
        wait: &mut CommitWait<'_>,
    ) -> Result<(), StoreError> {
        let end = from + bytes.len() as u64;
        let mut at = self.arrived.max(from);
        let mut pause = COPY_ROOM_PAUSE_MIN;
        while at < end {
            let mut room = (self.applied + self.capacity).saturating_sub(at);
            if room == 0 {
                self.ask()?;
                room = (self.applied + self.capacity).saturating_sub(at);
            }
            if room == 0 {
                if self.is_removed.load(Ordering::Acquire) || lease.has_ended() {
                    return Ok(());
                }
                if pause == COPY_ROOM_PAUSE_MAX {
                    wait.is_long_now();
                }
                std::thread::sleep(pause);
                pause = (2 * pause).min(COPY_ROOM_PAUSE_MAX);
                continue;
            }
            let now = room.min(end - at);
            for (place, count) in parts(self.capacity, at, now) {
                let offset = (at - from) as usize;
                if count > 0 {
                    self.writer.write(place, &bytes[offset..offset + count as usize])?;
                }
                at += count;
            }
        }
        Ok(())
    }

    /// Waits until all that was written has arrived. Returns `false` if that does not matter any more.
    fn wait(&mut self, lease: &Lease, wait: &mut CommitWait<'_>) -> Result<bool, StoreError> {
        while !self.writer.has_arrived(COMMIT_WAIT_LONG)? {
            wait.is_long_now();
            if self.is_removed.load(Ordering::Acquire) || lease.has_ended() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Asks the copy how far it is.
    fn ask(&mut self) -> Result<(), StoreError> {
        let mut bytes = [0; COPY_WORDS_BYTES];
        self.writer.read(COPY_WORDS_PLACE, &mut bytes)?;
        let words = CopyWords::from_bytes(&bytes);
        // Before it follows this stream, it has applied none of it. It cannot be further than it was sent.
        if words.identity == self.identity && words.applied <= self.arrived.max(self.applied) + self.capacity
        {
            self.applied = self.applied.max(words.applied);
        }
        Ok(())
    }
}

impl CopyStream {
    pub(crate) fn new() -> Self {
        let state = StreamState {
            identity: 0,
            position: 0,
            pending_from: 0,
            pending: Vec::new(),
            spare: Vec::new(),
            copies: Vec::new(),
            is_writing: false,
            waiting: 0,
            next_id: 1,
            filled_to: None,
        };
        Self {
            is_active: AtomicBool::new(false),
            state: Mutex::new(state),
            moved: Condvar::new(),
            lease: Lease::none(),
            waits: LongWaits::default(),
        }
    }

    /// Tells whether commits have to look here. Who excludes all commits changes it.
    #[inline]
    pub(crate) fn is_active(&self) -> bool {
        self.is_active.load(Ordering::Relaxed)
    }

    fn state(&self) -> MutexGuard<'_, StreamState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn notify(&self, state: &StreamState) {
        // A call of the kernel, which most commits do not need.
        if state.waiting > 0 {
            self.moved.notify_all();
        }
    }

    /// Returns the position of the stream.
    pub(crate) fn position(&self) -> u64 {
        self.state().position
    }

    /// Tells whether the memory is still to be sent to a copy.
    pub(crate) fn is_filling(&self) -> bool {
        self.state().filled_to.is_some()
    }

    /// Returns up to which place of the memory it has been sent to copies that are being filled.
    pub(crate) fn filled_to(&self) -> Option<u64> {
        self.state().filled_to
    }

    /// Returns what is known of each copy.
    pub(crate) fn counts(&self) -> Vec<CopyCounts> {
        let mut state = self.state();
        if !state.is_writing && !state.copies.is_empty() {
            let mut links = state.take_links();
            drop(state);
            let asked: Vec<_> = links.iter_mut().map(|link| link.ask().err()).collect();
            state = self.state();
            state.put_back(links, asked);
            self.notify(&state);
        }
        state.copies.iter().map(|copy| copy.counts.clone()).collect()
    }

    fn wait_for_writers<'s>(&'s self, mut state: MutexGuard<'s, StreamState>) -> MutexGuard<'s, StreamState> {
        while state.is_writing {
            state.waiting += 1;
            state = self.moved.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.waiting -= 1;
        }
        state
    }

    /// Appends a record, and returns the position after it. Never waits.
    pub(crate) fn append(&self, record: &mut StreamRecord) -> u64 {
        self.append_to(&mut self.state(), record)
    }

    fn append_to(&self, state: &mut StreamState, record: &mut StreamRecord) -> u64 {
        record.finish();
        let bytes = record.at(state.identity, state.position);
        if !state.copies.is_empty() {
            state.pending.extend_from_slice(bytes);
        }
        state.position += bytes.len() as u64;
        if state.copies.is_empty() {
            state.pending.clear();
            state.pending_from = state.position;
        }
        state.position
    }

    /// Appends a record, and waits while too much has not arrived.
    pub(crate) fn append_slowly(&self, record: &mut StreamRecord) -> Result<u64, StoreError> {
        let mut state = self.state();
        let end = self.append_to(&mut state, record);
        if state.pending.len() > STREAM_PENDING_BYTES_MAX {
            drop(self.wait_in(state, end)?);
        }
        Ok(end)
    }

    /// Appends a record, and waits until it and all before it have arrived at every copy, and the lease still holds.
    pub(crate) fn send(&self, record: &mut StreamRecord) -> Result<(), StoreError> {
        faults::has_come(FaultMoment::Record);
        let mut state = self.state();
        let end = self.append_to(&mut state, record);
        // With the fault, some do not wait.
        if !is_planted(PlantedFault::AnsweredEarly) || end % 16 == 0 {
            state = self.wait_in(state, end)?;
        }
        drop(state);
        self.lease.check()
    }

    /// Waits until the stream up to `position` has arrived at every copy.
    fn wait(&self, position: u64) -> Result<(), StoreError> {
        drop(self.wait_in(self.state(), position)?);
        Ok(())
    }

    fn wait_in<'s>(
        &'s self,
        mut state: MutexGuard<'s, StreamState>,
        position: u64,
    ) -> Result<MutexGuard<'s, StreamState>, StoreError> {
        let mut wait = self.waits.begin();
        loop {
            if self.lease.has_ended() {
                return Err(StoreError::NotPrimary);
            }
            if state.copies.iter().all(|copy| copy.counts.arrived >= position) {
                return Ok(state);
            }
            // While a copy is out of reach, nothing can be answered, so nothing is written.
            if state.is_writing || state.copies.iter().any(|copy| copy.counts.broken.is_some()) {
                state.waiting += 1;
                if wait.is_long() {
                    state = self.moved.wait(state).unwrap_or_else(PoisonError::into_inner);
                } else {
                    let waited = self.moved.wait_timeout(state, COMMIT_WAIT_LONG);
                    let (after, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
                    state = after;
                    if timeout.timed_out() {
                        wait.is_long_now();
                    }
                }
                state.waiting -= 1;
                continue;
            }
            state = self.write(state, &mut wait);
        }
    }

    /// Writes everything that is pending, and waits until it has arrived or a copy is out of reach.
    fn write<'s>(
        &'s self,
        mut state: MutexGuard<'s, StreamState>,
        wait: &mut CommitWait<'_>,
    ) -> MutexGuard<'s, StreamState> {
        let spare = std::mem::take(&mut state.spare);
        let mut batch = std::mem::replace(&mut state.pending, spare);
        let from = state.pending_from;
        let end = state.position;
        state.pending_from = end;
        let mut links = state.take_links();
        drop(state);
        let mut errors: Vec<_> =
            links.iter_mut().map(|link| link.write(from, &batch, &self.lease, wait).err()).collect();
        for (link, error) in links.iter_mut().zip(&mut errors).filter(|(_, error)| error.is_none()) {
            match link.wait(&self.lease, wait) {
                Ok(true) => link.arrived = end,
                Ok(false) => {}
                Err(cause) => *error = Some(cause),
            }
        }
        let is_whole = links.iter().all(|link| link.arrived == end);
        let mut state = self.state();
        state.put_back(links, errors);
        if is_whole {
            batch.clear();
            if batch.capacity() <= 2 * STREAM_PENDING_BYTES_MAX {
                state.spare = batch;
            }
        } else {
            batch.append(&mut state.pending);
            state.pending = batch;
            state.pending_from = from;
        }
        self.notify(&state);
        state
    }

    /// Sets the time until which this owner may answer.
    pub(crate) fn set_lease(&self, until: Option<Duration>) {
        self.lease.set(until);
        self.is_active.store(true, Ordering::Relaxed);
    }

    /// Returns a descriptor of what readers see of the lease.
    pub(crate) fn lease_descriptor(&self) -> Result<std::os::fd::OwnedFd, StoreError> {
        self.lease.descriptor()
    }

    /// Returns for how many nanoseconds the lease lasts; all ones if none is needed.
    pub(crate) fn lease_left_ns(&self) -> u64 {
        self.lease.left_ns()
    }

    /// Fails if this owner may never answer again.
    pub(crate) fn check_primary(&self) -> Result<(), StoreError> {
        if self.lease.has_ended() { Err(StoreError::NotPrimary) } else { Ok(()) }
    }

    /// Ends the lease for ever.
    pub(crate) fn end_lease(&self) {
        self.lease.end();
        self.is_active.store(true, Ordering::Relaxed);
        let _state = self.state();
        self.moved.notify_all();
    }
}

impl StreamState {
    /// Chooses the identity of the stream, if it has none.
    fn identify(&mut self) -> Result<(), StoreError> {
        if self.identity == 0 {
            self.identity = random_identity()?;
        }
        Ok(())
    }

    fn take_links(&mut self) -> Vec<CopyLink> {
        self.is_writing = true;
        self.copies.iter_mut().filter_map(|copy| copy.link.take()).collect()
    }

    /// Takes links back, each with why it is broken.
    fn put_back(&mut self, links: Vec<CopyLink>, errors: Vec<Option<StoreError>>) {
        self.is_writing = false;
        let position = self.position;
        for (link, error) in links.into_iter().zip(errors) {
            let Some(copy) = self.copies.iter_mut().find(|copy| copy.counts.id == link.id) else { continue };
            copy.counts.arrived = link.arrived;
            copy.counts.is_complete = copy.complete_at.is_some_and(|position| position <= link.arrived);
            copy.counts.behind_bytes = position.saturating_sub(link.applied);
            match error {
                Some(error) => copy.counts.broken = Some(error.to_string()),
                None => copy.link = Some(link),
            }
        }
        // Who removes one waits for this.
        self.copies.retain(|copy| !copy.is_removed.load(Ordering::Acquire));
    }
}
