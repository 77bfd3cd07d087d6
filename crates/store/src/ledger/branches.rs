//! What an owner does with branches and decisions: prepares, decides, answers what became of a transaction, and takes over what the
//! owner before has left.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use caravan_fabric::byte_reader::ByteReader;

use super::{
    BRANCH, Branch, DECISION, Decision, LedgerChange, LedgerState, OpenState, Outcome, TransactionId,
};
use crate::calls::{CommitRequest, decode_commit};
use crate::commit::{ObjectWrite, ParkedCommit, ReadRecord, UnitKind, WriteSet};
use crate::entry::ObjectAddress;
use crate::error::StoreError;
use crate::faults::{self, FaultMoment, PlantedFault, is_planted};
use crate::image::ObjectImage;
use crate::layout::{self, BUCKET_BYTES, LEDGER_ENTRIES, ObjectShape, version};
use crate::limits;
use crate::owner::{StoreCore, back_off};
use crate::protocol::{UnitWords, unlock};
use crate::store::{RunningBody, Store};
use crate::table::{BUCKET_WORDS, TableSlot};
use crate::transaction::{RetryCause, Transaction};

impl StoreCore {
    /// Prepares a branch. [`StoreError::Conflict`] says that something it has read or writes has changed, or is locked.
    pub(crate) fn prepare(
        &self,
        id: TransactionId,
        body: &[u8],
        request: &CommitRequest<'_>,
    ) -> Result<(), StoreError> {
        if request.has_new_objects() {
            return Err(StoreError::ObjectElsewhere);
        }
        let entry = {
            let mut state = self.ledger.state();
            if state.branches.contains_key(&id) {
                return Err(StoreError::Conflict);
            }
            let entry = state.free.pop().ok_or(StoreError::Undecided)?;
            state.branches.insert(id, Branch { entry, parked: None, since: Instant::now() });
            entry
        };
        let mut note = BRANCH.to_be_bytes().to_vec();
        id.append(&mut note);
        note.extend_from_slice(body);
        let prepared =
            self.with_room(limits::BRANCH_ATTEMPTS, || self.prepare_once(id, request, entry, Some(&note)));
        // What a copy may have is not taken back: all stays as if this owner had ended now.
        if !matches!(prepared, Ok(()) | Err(StoreError::NotPrimary)) {
            let mut state = self.ledger.state();
            state.branches.remove(&id);
            state.free.push(entry);
        }
        prepared
    }

    /// Runs `attempt` again while room can be made for it, and up to `conflicts` times after it has lost against others.
    fn with_room<T>(
        &self,
        conflicts: u32,
        mut attempt: impl FnMut() -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let (mut rooms, mut lost) = (0, 0);
        loop {
            match attempt() {
                Err(StoreError::Full { needed_bytes, .. }) => {
                    self.make_room(needed_bytes, rooms)?;
                    rooms += 1;
                }
                Err(StoreError::Conflict) if lost < conflicts => {
                    back_off(lost);
                    lost += 1;
                }
                result => return result,
            }
        }
    }

    /// Locks what a branch reads and writes, and notes it. Without a note it is noted already, and this is a later owner: all locks
    /// are the branch's own.
    fn prepare_once(
        &self,
        id: TransactionId,
        request: &CommitRequest<'_>,
        entry: usize,
        note: Option<&[u8]>,
    ) -> Result<(), StoreError> {
        let mut tx = Transaction::new(self);
        let done = request.write_by(&mut tx, &BTreeSet::new());
        if let Some(RetryCause::Room { bytes, .. }) = tx.retry() {
            return Err(self.blocks.full(bytes));
        }
        done?;
        let mut object = ObjectAddress::from_word(self.view.load(layout::ledger_place(entry)));
        let writes = std::mem::take(&mut tx.writes);
        // Whoever holds the gate alone sees either none of the locks, or the branch.
        let mut lane = self.gate.beside_others();
        let mut parked = self.park(&mut lane, tx.snapshot.reads(), writes, note.is_none(), |lane| {
            let Some(note) = note else { return Ok(()) };
            object = self.blocks.reserve(&self.view, note.len(), None)?;
            let mut writes = WriteSet::default();
            writes.objects.insert(object, ObjectWrite::New(ObjectImage::of_ledger(note)));
            let word = if is_planted(PlantedFault::UnnotedBranch) { 0 } else { object.to_word() };
            writes.entry = Some(LedgerChange { object: object.place, entry, word });
            let noted = self.commit(lane, &[], writes).map(drop);
            if !matches!(noted, Ok(()) | Err(StoreError::NotPrimary)) {
                self.blocks.give_back(&self.view, object.place);
            }
            noted
        })?;
        // They would be given back with the transaction.
        parked.reserve(tx.reserved.drain(..));
        let mut state = self.ledger.state();
        let LedgerState { branches, places, .. } = &mut *state;
        places.extend(parked.places());
        if let Some(branch) = branches.get_mut(&id) {
            branch.parked = Some((object, parked));
        }
        self.ledger.parked.fetch_add(1, Ordering::AcqRel);
        Ok(())
    }

    /// Makes a branch happen, or undoes it. Without effect if there is no such branch: it was decided before.
    pub(crate) fn decide(&self, id: TransactionId, is_committed: bool) -> Result<(), StoreError> {
        let (entry, object, parked) = {
            let mut state = self.ledger.state();
            let Some(branch) = state.branches.get_mut(&id) else { return Ok(()) };
            // It is being prepared or decided.
            let (object, parked) = branch.parked.take().ok_or(StoreError::Undecided)?;
            (branch.entry, object, parked)
        };
        if is_committed {
            faults::has_come(FaultMoment::Branch);
        }
        let change = LedgerChange { object: object.place, entry, word: 0 };
        let places: Vec<u64> = parked.places().collect();
        let mut parked = Some(parked);
        let decided = self.with_room(0, || {
            let mut lane = self.gate.beside_others();
            if is_committed {
                let full = self.finish_parked(&mut lane, &mut parked, object, change)?;
                self.forget_places(&places);
                return Ok(full);
            }
            // Nothing is locked any more, whatever becomes of the note.
            if let Some(parked) = parked.take() {
                self.undo_parked(parked);
                self.forget_places(&places);
            }
            let version = self.view.load(object.place);
            let read = ReadRecord { place: object.place, version, kind: UnitKind::Object };
            let mut writes = WriteSet { entry: Some(change), ..WriteSet::default() };
            writes.objects.insert(object, ObjectWrite::Free);
            self.commit(&mut lane, &[read], writes)
        });
        let mut state = self.ledger.state();
        if decided.is_ok() {
            state.branches.remove(&id);
            state.free.push(entry);
        } else if let Some(branch) = state.branches.get_mut(&id) {
            if parked.is_none() && !is_committed {
                // It is undone once more, until its note is gone.
                parked = Some(ParkedCommit::default());
                self.ledger.parked.fetch_add(1, Ordering::AcqRel);
            }
            branch.parked = parked.map(|parked| (object, parked));
        }
        drop(state);
        decided?.into_iter().for_each(|hash| self.split(hash));
        Ok(())
    }

    /// Notes that a branch has no locks any more. The caller holds a lane.
    fn forget_places(&self, places: &[u64]) {
        let mut state = self.ledger.state();
        places.iter().for_each(|place| _ = state.places.remove(place));
        self.ledger.parked.fetch_sub(1, Ordering::AcqRel);
    }

    /// Takes over what the owner before had prepared and decided. Nobody else uses this core yet.
    pub(crate) fn reopen_ledger(&self) -> Result<(), StoreError> {
        let damaged = |entry: usize| {
            StoreError::Damaged(format!("entry {entry} of the ledger is not what was written"))
        };
        for entry in 0..LEDGER_ENTRIES {
            let word = self.view.load(layout::ledger_place(entry));
            if word == 0 {
                continue;
            }
            self.ledger.state().free.retain(|free| *free != entry);
            let object = ObjectAddress::from_word(word);
            if let Some((unit, ..)) = self.view.slot(object.place) {
                self.remove_old_lock(object.place, unit);
            }
            let mut payload = Vec::new();
            let found = self.view.object_at(object, |payload_of| {
                payload.clear();
                payload_of.copy(&mut payload);
            });
            let is_ledger = matches!(found, Ok(Some((head, ()))) if head.shape.has(ObjectShape::LEDGER));
            let mut reader = ByteReader::new(&payload);
            let kind = reader.u16().filter(|_| is_ledger);
            let (kind, id) = kind.zip(TransactionId::take(&mut reader)).ok_or_else(|| damaged(entry))?;
            if kind == BRANCH && is_planted(PlantedFault::ForgottenBranch) {
                continue;
            }
            if kind == BRANCH {
                let request = decode_commit(reader.rest()).ok_or_else(|| damaged(entry))?;
                self.ledger
                    .state()
                    .branches
                    .insert(id, Branch { entry, parked: None, since: Instant::now() });
                for read in &request.reads {
                    if let Some(unit) = self.view.unit_of(read.place, read.kind) {
                        self.remove_old_lock(read.place, unit);
                    }
                }
                self.with_room(0, || self.prepare_once(id, &request, entry, None))?;
            } else {
                let count = reader.u16().filter(|_| kind == DECISION).ok_or_else(|| damaged(entry))?;
                let parts: Option<Vec<u16>> = (0..count).map(|_| reader.u16()).collect();
                let parts = parts.ok_or_else(|| damaged(entry))?;
                let decision = Decision { entry, object, parts, since: Instant::now() };
                let mut state = self.ledger.state();
                state.decisions.insert(id, decision);
                state.of_decisions += 1;
            }
        }
        Ok(())
    }

    /// Removes the lock of an owner that has ended from a unit.
    pub(crate) fn remove_old_lock(&self, place: u64, unit: &[AtomicU64]) {
        let version = unit.load(0);
        if version & version::LOCKED != 0 && !self.ledger.holds(place) {
            unlock(unit, version & !version::LOCKED);
        }
    }

    /// Removes such locks from all that a search for a key looks at.
    pub(crate) fn remove_old_locks(&self, key: &[u8]) {
        let home = self.view.home(self.view.hash(key));
        for bucket in [home, home + BUCKET_BYTES] {
            if let Some(unit) = self.view.unit(bucket, BUCKET_WORDS) {
                self.remove_old_lock(bucket, unit);
            }
        }
        self.view.each_slot_of(home, &mut |cell| {
            let place = TableSlot(cell.load(Ordering::Relaxed)).address().place;
            if let Some((unit, ..)) = self.view.slot(place) {
                self.remove_old_lock(place, unit);
            }
            for (address, section) in self.view.section_units(place) {
                self.remove_old_lock(address.place, section);
            }
        });
    }
}

impl Store {
    /// Returns the branches that have waited for `least` to be decided.
    pub fn undecided(&self, least: Duration) -> Vec<TransactionId> {
        let state = self.core().ledger.state();
        let waiting = state
            .branches
            .iter()
            .filter(|(_, branch)| branch.parked.is_some() && branch.since.elapsed() >= least);
        waiting.map(|(id, _)| *id).collect()
    }

    /// Prepares the branch of a transaction.
    pub(crate) fn prepare(
        &self,
        id: TransactionId,
        body: &[u8],
        request: &CommitRequest<'_>,
    ) -> Result<(), StoreError> {
        let _running = RunningBody::of(self)?;
        self.core.prepare(id, body, request)
    }

    /// Makes the branch of a transaction happen, or undoes it, as its home has said. Without effect if it was decided before.
    pub fn decide(&self, id: TransactionId, is_committed: bool) -> Result<(), StoreError> {
        let _running = RunningBody::of(self)?;
        self.core().decide(id, is_committed)
    }

    /// Returns the decisions that nobody has ended for `least`, and the other parts that each of the transactions has.
    pub fn decisions(&self, least: Duration) -> Vec<(TransactionId, Vec<u16>)> {
        let state = self.core().ledger.state();
        let waiting = state.decisions.iter().filter(|(_, decision)| decision.since.elapsed() >= least);
        waiting.map(|(id, decision)| (*id, decision.parts.clone())).collect()
    }

    /// Says that all parts know the decision of a transaction whose home this part is.
    pub fn end_transaction(&self, id: TransactionId) {
        let mut state = self.core().ledger.state();
        if let Some(decision) = state.decisions.remove(&id) {
            state.ended.push((decision.entry, decision.object));
        }
    }

    /// Returns what became of a transaction whose home this part is. `is_final` closes it if it is still open.
    pub fn outcome(&self, id: TransactionId, is_final: bool) -> Outcome {
        let ledger = &self.core().ledger;
        let mut state = ledger.state();
        if state.decisions.contains_key(&id) {
            return Outcome::Committed;
        }
        match state.open.get(&id.number).filter(|_| ledger.is_owner(id)) {
            Some(OpenState::Begun) if is_final => {
                if !is_planted(PlantedFault::NeverClosed) {
                    state.open.remove(&id.number);
                }
                Outcome::Aborted
            }
            Some(_) => Outcome::Open,
            None => Outcome::Aborted,
        }
    }

    /// Sets how long reads and commits wait for what somebody else has locked, instead of [`limits::READ_WAIT`]. Where branches of
    /// transactions over several parts hold locks, a thread that serves many clients must not wait for one of them.
    pub fn set_lock_wait(&self, wait: Duration) {
        self.core().view.set_lock_wait(wait);
    }
}
