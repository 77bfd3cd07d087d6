//! A commit that has locked all that it reads and writes, and waits for somebody to decide whether it happens: the branch, in
//! this part, of a transaction over several parts ([`crate::ledger`]).

use std::collections::{BTreeMap, BTreeSet};

use super::{CommitSteps, HeldUnit, ReadRecord, SlotChange, UnitChange, WriteSet};
use crate::entry::ObjectAddress;
use crate::error::StoreError;
use crate::gate::CommitLane;
use crate::ledger::LedgerChange;
use crate::owner::StoreCore;

/// What a commit that waits has locked and reserved. It holds no lane.
#[derive(Debug, Default)]
pub(crate) struct ParkedCommit {
    held: Vec<ParkedUnit>,
    index: BTreeMap<u64, usize>,
    /// The index of the bucket, the place, the word.
    slots: Vec<(usize, u64, u64)>,
    slot_places: BTreeSet<u64>,
    reserved: Vec<u64>,
    come: Vec<(u64, u64)>,
    gone: Vec<u64>,
    new_chains: Vec<(u64, u64)>,
    /// The keys that it writes.
    keys: Vec<Vec<u8>>,
}

/// A unit that is locked.
#[derive(Debug)]
struct ParkedUnit {
    place: u64,
    words: usize,
    before: u64,
    change: UnitChange,
}

impl ParkedCommit {
    /// Returns the places of what is locked.
    pub(crate) fn places(&self) -> impl Iterator<Item = u64> + '_ {
        self.held.iter().map(|unit| unit.place)
    }

    /// Adds places that are given back if the commit does not happen.
    pub(crate) fn reserve(&mut self, places: impl IntoIterator<Item = u64>) {
        self.reserved.extend(places);
    }
}

impl<'c> CommitSteps<'c> {
    fn park(mut self, keys: Vec<Vec<u8>>) -> ParkedCommit {
        let unit = |HeldUnit { place, unit, before, change }: HeldUnit<'c>| ParkedUnit {
            place,
            words: unit.len(),
            before,
            change,
        };
        // Nothing is left for `drop` to take back.
        ParkedCommit {
            held: self.held.drain(..).map(unit).collect(),
            index: std::mem::take(&mut self.index),
            slots: self.slots.drain(..).map(|change| (change.bucket, change.place, change.slot)).collect(),
            slot_places: std::mem::take(&mut self.slot_places),
            reserved: std::mem::take(&mut self.reserved),
            come: std::mem::take(&mut self.come),
            gone: std::mem::take(&mut self.gone),
            new_chains: std::mem::take(&mut self.new_chains),
            keys,
        }
    }

    fn resume(core: &'c StoreCore, parked: ParkedCommit) -> (Self, Vec<Vec<u8>>) {
        let mut steps = Self::new(core);
        let unit = |unit: ParkedUnit| {
            let ParkedUnit { place, words, before, change } = unit;
            core.view.unit(place, words).map(|unit| HeldUnit { place, unit, before, change })
        };
        let slot = |(bucket, place, slot): (usize, u64, u64)| {
            core.view.unit(place, 1).map(|cells| SlotChange { bucket, place, cell: &cells[0], slot })
        };
        // The memory only grows, so all of them are there.
        steps.held = parked.held.into_iter().filter_map(unit).collect();
        steps.slots = parked.slots.into_iter().filter_map(slot).collect();
        (steps.index, steps.slot_places) = (parked.index, parked.slot_places);
        (steps.reserved, steps.new_chains) = (parked.reserved, parked.new_chains);
        (steps.come, steps.gone) = (parked.come, parked.gone);
        (steps, parked.keys)
    }

    /// Locks what is only read, at the version that was read.
    fn lock_reads(&mut self, reads: &[ReadRecord]) -> Result<(), StoreError> {
        for read in reads {
            let unit = self.core.view.unit_of(read.place, read.kind).ok_or(StoreError::Conflict)?;
            self.lock(read.place, unit.len(), Some(read.version), UnitChange::Nothing)?;
        }
        Ok(())
    }
}

impl StoreCore {
    /// Locks what a branch reads and writes, has `noted` note it for the owner after this one, and parks the commit. `adopts`
    /// says that this is an owner after the one that has prepared the branch: what is locked is the branch's.
    pub(crate) fn park(
        &self,
        lane: &mut CommitLane<'_>,
        reads: &[ReadRecord],
        writes: WriteSet,
        adopts: bool,
        noted: impl FnOnce(&mut CommitLane<'_>) -> Result<(), StoreError>,
    ) -> Result<ParkedCommit, StoreError> {
        let keys: Vec<Vec<u8>> = writes.keys.iter().map(|write| write.key().to_vec()).collect();
        let mut steps = CommitSteps::new(self);
        steps.adopts = adopts;
        if adopts {
            keys.iter().for_each(|key| self.remove_old_locks(key));
        }
        steps.lock_writes(reads, writes)?;
        steps.lock_reads(reads)?;
        let noted = noted(lane);
        if matches!(noted, Err(StoreError::NotPrimary)) {
            // A copy may have the note, so it is not taken back.
            drop(steps.park(Vec::new()));
            return Err(StoreError::NotPrimary);
        }
        noted.map(|()| steps.park(keys))
    }

    /// Makes a parked commit happen, together with a change of the ledger that frees the object with its note. Returns the hash of a
    /// key whose shard should be split. After an error the commit is parked as before, unless this owner is none any more.
    pub(crate) fn finish_parked(
        &self,
        lane: &mut CommitLane<'_>,
        parked: &mut Option<ParkedCommit>,
        note: ObjectAddress,
        entry: LedgerChange,
    ) -> Result<Option<u64>, StoreError> {
        let waiting = parked.take().ok_or(StoreError::NotPrimary)?;
        let (mut steps, keys) = CommitSteps::resume(self, waiting);
        let (held, reserved) = (steps.held.len(), steps.reserved.len());
        let change = UnitChange::Free { incarnation: note.incarnation };
        let locked = steps.lock_at_object(note.place, self.view.load(note.place), change);
        if let Err(error) = locked {
            *parked = Some(steps.park(keys));
            return Err(error);
        }
        steps.entry = Some(entry);
        // All locks of the transaction are held, in all parts.
        let time = self.next_time();
        steps.prepare(time);
        match steps.record(lane, time) {
            Ok(pieces) => {
                let full = steps.apply(lane, time, pieces);
                if self.changed.is_saving() {
                    self.changed.note(keys);
                }
                Ok(full)
            }
            Err(StoreError::NotPrimary) => Err(StoreError::NotPrimary),
            Err(error) => {
                for place in steps.reserved.drain(reserved..) {
                    self.blocks.give_back(&self.view, place);
                }
                steps.index.remove(&note.place);
                for note in steps.held.drain(held..) {
                    crate::protocol::unlock(note.unit, note.before);
                }
                *parked = Some(steps.park(keys));
                Err(error)
            }
        }
    }

    /// Takes a parked commit back: nothing of it has happened.
    pub(crate) fn undo_parked(&self, parked: ParkedCommit) {
        drop(CommitSteps::resume(self, parked));
    }
}
