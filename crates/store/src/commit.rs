//! The commit of a transaction on the owner: lock what it writes, take a time, check that what it read has
//! not changed, note it in the log, apply.
//!
//! | step | what | if it fails | if the owner dies |
//! |---|---|---|---|
//! | locate | find the object or the bucket of each key to write | conflict | |
//! | lock | lock objects and buckets at the versions found; choose slots | unlock, conflict | locks are removed |
//! | time | the clock's next | | as before |
//! | validate | all that was read has the version of then, and no lock of others | unlock, conflict | as before |
//! | prepare | the bytes of new objects, which nothing leads to | | as before |
//! | record | what is to be stored, complete in the log ([`crate::log`]) | unlock; full | as before |
//! | copies | the record arrives at all [copies](crate::copies) | not answered | is done again |
//! | apply | bytes, checksums and slots, then the new versions | cannot fail | is done again |
//! | release | the record is done with | | |
//!
//! No step waits for a lock, so there is no deadlock: a transaction that meets one gives up and is tried
//! again. Before the record, nothing is stored but locks and the bytes of objects that are free; both are harmless at
//! any time.

mod parked;
mod slots;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::AtomicU64;

use crate::blocks::store_word;
use crate::entry::ObjectAddress;
use crate::error::StoreError;
use crate::faults::{self, FaultMoment, PlantedFault, is_planted};
use crate::gate::CommitLane;
use crate::image::ObjectImage;
use crate::layout::{BUCKET_BYTES, HEADER_WORDS, ObjectShape, version};
use crate::ledger::LedgerChange;
use crate::limits::{IN_PLACE_BYTES_MAX, READ_ATTEMPTS};
use crate::log;
use crate::owner::{StoreCore, count};
use crate::protocol::{self, UnitWords};
use crate::session::SessionReply;
use crate::table::{LocatedKey, TableSlot};

use crate::writes::KeyWrites;

pub(crate) use parked::ParkedCommit;

/// What a transaction has read: the unit at `place` had this version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReadRecord {
    pub(crate) place: u64,
    pub(crate) version: u64,
    pub(crate) kind: UnitKind,
}

/// What kind of unit a version belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UnitKind {
    /// An object.
    Object,
    /// A bucket of the table, whose version proves that a key is absent.
    Bucket,
}

/// What a transaction does with an object without a key.
#[derive(Clone, Debug)]
pub(crate) enum ObjectWrite {
    /// It writes one that it has reserved.
    New(ObjectImage),
    /// It replaces the bytes of one that it has read.
    Replace(ObjectImage),
    /// It frees one that it has read.
    Free,
}

/// What a transaction writes.
#[derive(Clone, Debug, Default)]
pub(crate) struct WriteSet {
    pub(crate) keys: KeyWrites,
    /// The objects without a key. A place names one: the incarnations have been compared.
    pub(crate) objects: BTreeMap<ObjectAddress, ObjectWrite>,
    /// The reply of the request that the transaction does.
    pub(crate) reply: Option<SessionReply>,
    /// What becomes of the ledger.
    pub(crate) entry: Option<LedgerChange>,
}

impl WriteSet {
    pub(crate) fn is_empty(&self) -> bool {
        self.keys.is_empty() && self.objects.is_empty() && self.reply.is_none()
    }
}

/// What happens to a unit at the end.
#[derive(Debug)]
enum UnitChange {
    /// An object gets these bytes.
    Store { image: ObjectImage, incarnation: u16 },
    /// An object is freed.
    Free { incarnation: u16 },
    /// Slots of a bucket change, or of its chain.
    Slots,
    /// A session gets a reply.
    Reply(SessionReply),
    /// The unit was only read, and stays as it is.
    Nothing,
}

/// A slot that changes at the end, or the word of a bucket that says where its chain is.
struct SlotChange<'c> {
    /// The index in `held` of the bucket that it lies in, or whose chain.
    bucket: usize,
    place: u64,
    cell: &'c AtomicU64,
    slot: u64,
}

/// A unit that the commit has locked.
struct HeldUnit<'c> {
    place: u64,
    unit: &'c [AtomicU64],
    before: u64,
    change: UnitChange,
}

impl HeldUnit<'_> {
    /// Returns the version that the unit has after a commit at `time`.
    fn after(&self, time: u64) -> u64 {
        if matches!(self.change, UnitChange::Nothing) {
            return self.before;
        }
        version::new(time, matches!(self.change, UnitChange::Store { .. } | UnitChange::Reply(_)))
    }

    /// Tells whether the unit is a free place that becomes an object.
    fn is_new(&self) -> bool {
        matches!(self.change, UnitChange::Store { .. }) && !version::is_allocated(self.before)
    }
}

/// How many held units or slots are looked through; more are found by a B-tree, which costs nothing as long as it is empty.
const FEW: usize = 12;

/// A commit under way. Dropped before its end, it unlocks what it has locked.
struct CommitSteps<'c> {
    core: &'c StoreCore,
    held: Vec<HeldUnit<'c>>,
    /// Where in `held` a place is.
    index: BTreeMap<u64, usize>,
    slots: Vec<SlotChange<'c>>,
    /// The places of `slots`, if there are many.
    slot_places: BTreeSet<u64>,
    /// Places reserved by this commit, those of pieces of its record included.
    reserved: Vec<u64>,
    /// The hashes of keys that come, and their homes.
    come: Vec<(u64, u64)>,
    /// The homes of keys that go.
    gone: Vec<u64>,
    /// The buckets of chains that come: the home of each, and its place. The newest of a home is its first one.
    new_chains: Vec<(u64, u64)>,
    /// What becomes of the ledger, under the lock of the object that it names.
    entry: Option<LedgerChange>,
    /// Locks are those of an owner that has ended, and become this commit's.
    adopts: bool,
}

impl StoreCore {
    /// Commits; the caller holds a lane. Returns the hash of a key whose shard should be split. An error means
    /// that nothing has happened.
    pub(crate) fn commit(
        &self,
        lane: &mut CommitLane<'_>,
        reads: &[ReadRecord],
        writes: WriteSet,
    ) -> Result<Option<u64>, StoreError> {
        if self.copies.is_active() {
            self.copies.check_primary()?;
        }
        let mut commit = CommitSteps::new(self);
        let changed: Vec<Vec<u8>> = if self.changed.is_saving() {
            writes.keys.iter().map(|write| write.key().to_vec()).collect()
        } else {
            Vec::new()
        };
        commit.lock_writes(reads, writes)?;
        let time = self.next_time();
        commit.validate(reads)?;
        commit.prepare(time);
        let pieces = commit.record(lane, time)?;
        let full = commit.apply(lane, time, pieces);
        if !changed.is_empty() {
            self.changed.note(changed);
        }
        Ok(full)
    }

    fn locate(&self, hash: u64, key: &[u8]) -> Result<LocatedKey, StoreError> {
        for _ in 0..READ_ATTEMPTS {
            if let Ok(located) = self.view.locate(hash, key) {
                return Ok(located);
            }
        }
        Err(StoreError::Conflict)
    }
}

impl<'c> CommitSteps<'c> {
    fn new(core: &'c StoreCore) -> Self {
        Self {
            core,
            held: Vec::with_capacity(4),
            index: BTreeMap::new(),
            slots: Vec::new(),
            slot_places: BTreeSet::new(),
            reserved: Vec::new(),
            come: Vec::new(),
            gone: Vec::new(),
            new_chains: Vec::new(),
            entry: None,
            adopts: false,
        }
    }

    /// Locks all that is written.
    #[inline(always)]
    fn lock_writes(&mut self, reads: &[ReadRecord], writes: WriteSet) -> Result<(), StoreError> {
        let mut located = Vec::with_capacity(writes.keys.len());
        for write in writes.keys {
            let hash = self.core.view.hash(write.key());
            located.push((hash, self.core.locate(hash, write.key())?, write.into_image()));
        }
        for (hash, at, image) in located {
            self.lock_key(hash, at, image)?;
        }
        // Even an empty map takes instructions to walk through.
        if !writes.objects.is_empty() {
            for (address, write) in writes.objects {
                self.lock_object(reads, address, write)?;
            }
        }
        if let Some(reply) = writes.reply {
            self.lock_session(reply)?;
        }
        self.entry = writes.entry;
        Ok(())
    }

    /// Locks the unit at `place`, at `version` if that is given, and returns its index in `held`.
    fn lock(
        &mut self,
        place: u64,
        words: usize,
        version: Option<u64>,
        change: UnitChange,
    ) -> Result<usize, StoreError> {
        if let Some(index) = self.held_index(place) {
            let is_same = version.is_none_or(|version| version == self.held[index].before);
            return if is_same { Ok(index) } else { Err(StoreError::Conflict) };
        }
        let unit = self.core.view.unit(place, words).ok_or(StoreError::Conflict)?;
        if self.adopts {
            self.core.remove_old_lock(place, unit);
        }
        let before = version.unwrap_or_else(|| unit.load(0));
        if before & version::LOCKED != 0 || !protocol::lock(unit, before) {
            return Err(StoreError::Conflict);
        }
        self.held.push(HeldUnit { place, unit, before, change });
        let index = self.held.len() - 1;
        if index >= FEW {
            let from = if index == FEW { 0 } else { index };
            self.index.extend((from..=index).map(|index| (self.held[index].place, index)));
        }
        Ok(index)
    }

    /// Returns where in `held` a place is: few are looked through.
    fn held_index(&self, place: u64) -> Option<usize> {
        if self.held.len() <= FEW {
            return self.held.iter().position(|held| held.place == place);
        }
        self.index.get(&place).copied()
    }

    fn lock_at_object(&mut self, place: u64, version: u64, change: UnitChange) -> Result<(), StoreError> {
        let words = self.core.blocks.capacity(&self.core.view, place) / 8;
        if words < HEADER_WORDS {
            return Err(StoreError::Conflict);
        }
        self.lock(place, words, Some(version), change)?;
        Ok(())
    }

    fn lock_key(&mut self, hash: u64, at: LocatedKey, image: Option<ObjectImage>) -> Result<(), StoreError> {
        match (at, image) {
            (LocatedKey::Absent { .. }, None) => Ok(()),
            (LocatedKey::Absent { home, version }, Some(image)) => {
                let bucket = self.lock_bucket(home, Some(version))?;
                let (bucket, place) = self.empty_slot(home, bucket)?;
                let address = self.lock_new(image, None)?;
                self.change_slot(bucket, place, TableSlot::new(hash, address).0)?;
                self.come.push((hash, home));
                Ok(())
            }
            (LocatedKey::Present { address, head, home, slot_place }, image) => {
                for section in self.core.view.sections_of(address.place, &head)? {
                    let version = self.core.view.load(section.place);
                    let change = UnitChange::Free { incarnation: section.incarnation };
                    self.lock_at_object(section.place, version, change)?;
                }
                let incarnation = address.incarnation;
                let old = TableSlot::new(hash, address);
                if let Some(image) = image {
                    if self.fits_in_place(&image, address) {
                        let change = UnitChange::Store { image, incarnation };
                        return self.lock_at_object(address.place, head.version, change);
                    }
                    let bucket = self.lock_slot(home, slot_place, old)?;
                    let new = self.lock_new(image, Some(address))?;
                    // To the eviction it is a key that is used, not a new one.
                    self.core.touched.touch(new.place);
                    self.change_slot(bucket, slot_place, TableSlot::new(hash, new).0)?;
                } else {
                    let bucket = self.lock_slot(home, slot_place, old)?;
                    self.change_slot(bucket, slot_place, 0)?;
                    self.gone.push(home);
                }
                self.lock_at_object(address.place, head.version, UnitChange::Free { incarnation })
            }
        }
    }

    /// Tells whether an object is overwritten where it is. One that would leave most of its memory unused moves
    /// to a smaller class.
    fn fits_in_place(&self, image: &ObjectImage, address: ObjectAddress) -> bool {
        let capacity = self.core.blocks.capacity(&self.core.view, address.place);
        let bytes = image.object_bytes();
        bytes <= capacity.min(IN_PLACE_BYTES_MAX) && (bytes >= capacity / 4 || capacity <= 128)
    }

    fn lock_bucket(&mut self, place: u64, version: Option<u64>) -> Result<usize, StoreError> {
        self.lock(place, BUCKET_BYTES as usize / 8, version, UnitChange::Slots)
    }

    /// Locks the home bucket of a key, and the bucket in which its slot lies, if that is still the same.
    /// Returns the index in `held` of the latter.
    fn lock_slot(&mut self, home: u64, place: u64, slot: TableSlot) -> Result<usize, StoreError> {
        let mut bucket = self.lock_bucket(home, None)?;
        let next = home + BUCKET_BYTES;
        if (next..next + BUCKET_BYTES).contains(&place) {
            bucket = self.lock_bucket(next, None)?;
        }
        if self.core.view.load(place) == slot.0 { Ok(bucket) } else { Err(StoreError::Conflict) }
    }

    fn change_slot(&mut self, bucket: usize, place: u64, slot: u64) -> Result<(), StoreError> {
        let Some([cell]) = self.core.view.unit(place, 1) else { return Err(StoreError::Conflict) };
        self.slots.push(SlotChange { bucket, place, cell, slot });
        if self.slots.len() > FEW {
            let new = if self.slots.len() == FEW + 1 { 0 } else { FEW.max(self.slots.len() - 1) };
            self.slot_places.extend(self.slots[new..].iter().map(|slot| slot.place));
        }
        Ok(())
    }

    /// Reserves and locks a new object.
    fn lock_new(
        &mut self,
        image: ObjectImage,
        near: Option<ObjectAddress>,
    ) -> Result<ObjectAddress, StoreError> {
        let address = self.core.blocks.reserve(&self.core.view, image.payload().len(), near)?;
        self.reserved.push(address.place);
        let version = self.core.view.load(address.place);
        let change = UnitChange::Store { image, incarnation: address.incarnation };
        self.lock_at_object(address.place, version, change)?;
        Ok(address)
    }

    fn lock_object(
        &mut self,
        reads: &[ReadRecord],
        at: ObjectAddress,
        write: ObjectWrite,
    ) -> Result<(), StoreError> {
        let incarnation = at.incarnation;
        let (version, change) = match write {
            ObjectWrite::New(image) => {
                (self.core.view.load(at.place), UnitChange::Store { image, incarnation })
            }
            ObjectWrite::Replace(image) => {
                (read_version(reads, at)?, UnitChange::Store { image, incarnation })
            }
            ObjectWrite::Free => (read_version(reads, at)?, UnitChange::Free { incarnation }),
        };
        self.lock_at_object(at.place, version, change)
    }

    /// Locks a session at any version: no commit but one of the same request changes what this one depends on.
    fn lock_session(&mut self, reply: SessionReply) -> Result<(), StoreError> {
        let place = reply.session.place;
        let Some((unit, ..)) = self.core.view.slot(place) else { return Err(StoreError::Conflict) };
        self.lock(place, unit.len(), None, UnitChange::Reply(reply))?;
        let is_next = reply.is_next(ObjectShape::from_word(unit.load(1)), &unit[HEADER_WORDS..]);
        if is_next { Ok(()) } else { Err(StoreError::Conflict) }
    }

    fn validate(&self, reads: &[ReadRecord]) -> Result<(), StoreError> {
        if is_planted(PlantedFault::NoValidation) {
            return Ok(());
        }
        for read in reads {
            let held = self.held_index(read.place).map(|index| self.held[index].before);
            if held.or_else(|| self.core.view.version_of(read.place, read.kind)) != Some(read.version) {
                return Err(StoreError::Conflict);
            }
        }
        Ok(())
    }

    /// Stamps the objects, and stores the new ones, which are locked and free: nobody reads them.
    fn prepare(&mut self, time: u64) {
        for held in &mut self.held {
            let (is_new, after) = (held.is_new(), held.after(time));
            if let UnitChange::Store { image, incarnation } = &mut held.change {
                image.stamp(after, *incarnation);
                if is_new {
                    image.store(held.unit);
                }
            }
        }
    }

    /// Writes the record, and returns the places that it takes outside its lane.
    fn record(&mut self, lane: &mut CommitLane<'_>, time: u64) -> Result<Vec<u64>, StoreError> {
        self.slots.sort_unstable_by_key(|slot| slot.bucket);
        let record = &mut *lane.record;
        record.begin(time);
        let mut slots = self.slots.iter().peekable();
        for (index, held) in self.held.iter().enumerate() {
            if matches!(held.change, UnitChange::Nothing) {
                continue;
            }
            record.unit(held.place, held.before, held.after(time));
            if let Some(entry) = self.entry.filter(|entry| entry.object == held.place) {
                record.words(entry.place(), &[entry.word]);
            }
            match &held.change {
                UnitChange::Nothing => {}
                UnitChange::Store { .. } if held.is_new() => {}
                UnitChange::Store { image, .. } => record.image(held.place, image),
                UnitChange::Free { incarnation } => {
                    record.words(held.place + 8, &[ObjectShape::free_after(*incarnation).to_word()]);
                }
                UnitChange::Reply(reply) => {
                    let place = held.place + 8 * (HEADER_WORDS + reply.index()) as u64;
                    record.words(place, &[reply.request, reply.reply]);
                }
                UnitChange::Slots => {
                    while let Some(change) = slots.next_if(|change| change.bucket == index) {
                        record.words(change.place, &[change.slot]);
                    }
                }
            }
        }
        let mut pieces = Vec::new();
        let written = record.write(&self.core.view, &self.core.blocks, lane.number, &mut pieces);
        // Given back with everything else if the memory does not suffice.
        if written.is_err() {
            self.reserved.append(&mut pieces);
        }
        written?;
        if self.core.copies.is_active() {
            self.send(lane, &pieces)?;
        }
        lane.record.shrink();
        Ok(pieces)
    }

    /// Sends the record that the lane has to the copies.
    #[cold]
    fn send(&mut self, lane: &mut CommitLane<'_>, pieces: &[u64]) -> Result<(), StoreError> {
        let new = self.held.iter().filter_map(|held| match &held.change {
            UnitChange::Store { image, .. } if held.is_new() => Some((held.place, image)),
            _ => None,
        });
        let sent = self.core.send_record(&mut lane.record, pieces, new);
        if sent.is_err() {
            // A copy may have it, so it is not taken back: all stays as if this owner had ended now.
            self.held.clear();
            self.reserved.clear();
        }
        sent
    }

    /// Makes the changes visible, each object and each bucket by its version. A slot may lie in another bucket
    /// than its key's home, so all that is stored is there before the first version.
    #[inline(always)]
    fn apply(mut self, lane: &CommitLane<'_>, time: u64, mut freed: Vec<u64>) -> Option<u64> {
        let core = self.core;
        self.slots.iter().for_each(|change| protocol::set(change.cell, change.slot));
        if let Some(entry) = self.entry {
            store_word(&core.view, entry.place(), entry.word);
        }
        for held in &self.held {
            match &held.change {
                // A new object is not marked: a key that is never used again goes before one that is.
                UnitChange::Store { .. } if held.is_new() => {}
                UnitChange::Store { image, .. } => {
                    image.store(held.unit);
                    core.touched.touch(held.place);
                }
                UnitChange::Free { incarnation } => {
                    held.unit.store(1, ObjectShape::free_after(*incarnation).to_word());
                    freed.push(held.place);
                }
                UnitChange::Reply(reply) => {
                    let index = HEADER_WORDS + reply.index();
                    held.unit.store(index, reply.request);
                    held.unit.store(index + 1, reply.reply);
                    faults::has_come(FaultMoment::Reply);
                }
                UnitChange::Slots | UnitChange::Nothing => {}
            }
        }
        for held in self.held.drain(..) {
            protocol::unlock(held.unit, held.after(time));
        }
        log::release(&core.view, lane.number);
        self.reserved.clear();
        freed.into_iter().for_each(|place| core.blocks.give_back(&core.view, place));
        count(&core.tallies.commits, 1);
        let (come, gone) = (std::mem::take(&mut self.come), std::mem::take(&mut self.gone));
        core.count_keys(&come, &gone)
    }
}

impl Drop for CommitSteps<'_> {
    fn drop(&mut self) {
        for held in self.held.drain(..) {
            protocol::unlock(held.unit, held.before);
        }
        for place in self.reserved.drain(..) {
            self.core.blocks.give_back(&self.core.view, place);
        }
    }
}

/// Returns the version that a transaction has read of an object that it writes.
fn read_version(reads: &[ReadRecord], address: ObjectAddress) -> Result<u64, StoreError> {
    let read = reads.iter().find(|read| read.place == address.place && read.kind == UnitKind::Object);
    read.map(|read| read.version).ok_or(StoreError::NoObject(address))
}
