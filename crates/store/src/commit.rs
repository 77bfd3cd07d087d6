//! The commit of a transaction on the owner: lock what it writes, take a time, check that what it read has
//! not changed, apply.
//!
//! | step | what | if it fails |
//! |---|---|---|
//! | locate | find the object or the bucket of each key to write | conflict |
//! | lock | lock objects and home buckets at the versions found; slots of the table change under these locks | undo, conflict |
//! | time | the clock's next | |
//! | validate | all that was read has the version of then, and no lock of others | undo, conflict |
//! | apply | bytes, checksum, new version, for each object; then the buckets' versions | cannot fail |
//!
//! No step waits for a lock, so there is no deadlock: a transaction that meets one gives up and is tried
//! again.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::entry::ObjectAddress;
use crate::error::StoreError;
use crate::faults::{PlantedFault, is_planted};
use crate::image::ObjectImage;
use crate::layout::{BUCKET_BYTES, HEADER_WORDS, ObjectShape, SHARD_BYTES, version};
use crate::limits::{CHAIN_BUCKETS_MAX, READ_ATTEMPTS};
use crate::owner::{StoreCore, count};
use crate::protocol::{self, UnitWords};
use crate::table::{BucketWord, CHAIN_PAYLOAD, CHAIN_SLOTS, LocatedKey, SLOTS_FROM, TableSlot};
use crate::writes::KeyWrites;

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
}

impl WriteSet {
    pub(crate) fn is_empty(&self) -> bool {
        self.keys.is_empty() && self.objects.is_empty()
    }
}

/// What happens to an object at the end.
enum ObjectChange {
    Store { image: ObjectImage, incarnation: u16 },
    Free { incarnation: u16 },
}

/// A unit that the commit has locked.
struct HeldUnit<'c> {
    place: u64,
    unit: &'c [AtomicU64],
    before: u64,
    /// A bucket: whether keys whose home it is have come or gone.
    is_changed: bool,
    change: Option<ObjectChange>,
}

/// How many held units are looked through; more are found by a map.
const FEW: usize = 12;

/// A commit under way. Dropped before its end, it undoes what it has done.
struct CommitSteps<'c> {
    core: &'c StoreCore,
    held: Vec<HeldUnit<'c>>,
    /// Where in `held` a place is.
    index: HashMap<u64, usize>,
    /// Slots that have changed, with what was in them.
    slots: Vec<(&'c AtomicU64, u64)>,
    /// Places reserved by this commit.
    reserved: Vec<u64>,
    /// The hashes of keys that have come.
    come: Vec<(u64, u64)>,
    /// The homes of keys that have gone.
    gone: Vec<u64>,
}

impl StoreCore {
    /// Commits; the caller holds the gate. Returns the hash of a key whose shard should be split. An error
    /// means that nothing has happened.
    pub(crate) fn commit(&self, reads: &[ReadRecord], writes: WriteSet) -> Result<Option<u64>, StoreError> {
        let mut commit = CommitSteps {
            core: self,
            held: Vec::with_capacity(4),
            index: HashMap::new(),
            slots: Vec::new(),
            reserved: Vec::new(),
            come: Vec::new(),
            gone: Vec::new(),
        };
        let mut located = Vec::with_capacity(writes.keys.len());
        for write in writes.keys {
            let hash = self.view.hash(write.key());
            located.push((hash, self.locate(hash, write.key())?, write.into_image()));
        }
        for (hash, at, image) in located {
            commit.lock_key(hash, at, image)?;
        }
        for (address, write) in writes.objects {
            commit.lock_object(reads, address, write)?;
        }
        let time = self.next_time();
        commit.validate(reads)?;
        Ok(commit.apply(time))
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
    /// Locks the unit at `place`, at `version` if that is given, and returns its index in `held`.
    fn lock(&mut self, place: u64, words: usize, version: Option<u64>) -> Result<usize, StoreError> {
        if let Some(index) = self.held_index(place) {
            let is_same = version.is_none_or(|version| version == self.held[index].before);
            return if is_same { Ok(index) } else { Err(StoreError::Conflict) };
        }
        let unit = self.core.view.unit(place, words).ok_or(StoreError::Conflict)?;
        let before = version.unwrap_or_else(|| unit.load(0));
        if before & version::LOCKED != 0 || !protocol::lock(unit, before) {
            return Err(StoreError::Conflict);
        }
        self.held.push(HeldUnit { place, unit, before, is_changed: false, change: None });
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

    fn lock_at_object(&mut self, place: u64, version: u64, change: ObjectChange) -> Result<(), StoreError> {
        let words = self.core.blocks.capacity(&self.core.view, place) / 8;
        if words < HEADER_WORDS {
            return Err(StoreError::Conflict);
        }
        let index = self.lock(place, words, Some(version))?;
        self.held[index].change = Some(change);
        Ok(())
    }

    fn lock_key(&mut self, hash: u64, at: LocatedKey, image: Option<ObjectImage>) -> Result<(), StoreError> {
        match (at, image) {
            (LocatedKey::Absent { .. }, None) => Ok(()),
            (LocatedKey::Absent { home, version }, Some(image)) => {
                let index = self.lock_bucket(home, Some(version))?;
                self.held[index].is_changed = true;
                let cell = self.empty_slot(home)?;
                let address = self.lock_new(image, None)?;
                self.change_slot(cell, TableSlot::new(hash, address).0);
                self.come.push((hash, home));
                Ok(())
            }
            (LocatedKey::Present { address, head, home, slot_place }, image) => {
                let incarnation = address.incarnation;
                if let Some(image) = image {
                    let capacity = self.core.blocks.capacity(&self.core.view, address.place);
                    // An object that would leave most of its memory unused moves to a smaller class.
                    if (capacity / 4..=capacity).contains(&image.object_bytes())
                        || capacity <= 128 && image.object_bytes() <= capacity
                    {
                        let change = ObjectChange::Store { image, incarnation };
                        return self.lock_at_object(address.place, head.version, change);
                    }
                    let cell = self.lock_slot(home, slot_place, TableSlot::new(hash, address))?;
                    let new = self.lock_new(image, Some(address))?;
                    self.change_slot(cell, TableSlot::new(hash, new).0);
                } else {
                    let cell = self.lock_slot(home, slot_place, TableSlot::new(hash, address))?;
                    self.change_slot(cell, 0);
                    self.gone.push(home);
                }
                self.lock_at_object(address.place, head.version, ObjectChange::Free { incarnation })
            }
        }
    }

    fn lock_bucket(&mut self, home: u64, version: Option<u64>) -> Result<usize, StoreError> {
        self.lock(home, BUCKET_BYTES as usize / 8, version)
    }

    /// Locks the home bucket of a key, and returns the cell of its slot if that is still the same.
    fn lock_slot(&mut self, home: u64, place: u64, slot: TableSlot) -> Result<&'c AtomicU64, StoreError> {
        let index = self.lock_bucket(home, None)?;
        self.held[index].is_changed = true;
        match self.core.view.unit(place, 1) {
            Some([cell]) if cell.load(Ordering::Relaxed) == slot.0 => Ok(cell),
            _ => Err(StoreError::Conflict),
        }
    }

    /// Changes a slot. Nobody believes a slot of a key whose home is locked: readers follow it to an
    /// object that says itself whether it is there.
    fn change_slot(&mut self, cell: &'c AtomicU64, slot: u64) {
        self.slots.push((cell, cell.load(Ordering::Relaxed)));
        cell.store(slot, Ordering::Relaxed);
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
        let change = ObjectChange::Store { image, incarnation: address.incarnation };
        self.lock_at_object(address.place, version, change)?;
        Ok(address)
    }

    /// Returns an empty slot for a key whose home is locked: in the home bucket, the next one, or the chain.
    fn empty_slot(&mut self, home: u64) -> Result<&'c AtomicU64, StoreError> {
        let view = &self.core.view;
        let both = view.unit(home, 2 * BUCKET_BYTES as usize / 8).ok_or(StoreError::Conflict)?;
        let is_empty = |cell: &&AtomicU64| cell.load(Ordering::Relaxed) == 0;
        if let Some(cell) = both[SLOTS_FROM..8].iter().find(is_empty) {
            return Ok(cell);
        }
        // The next bucket's keys do not change, so it is unlocked at the version of before.
        if let Some(cell) = both[8 + SLOTS_FROM..].iter().find(is_empty) {
            self.lock_bucket(home + BUCKET_BYTES, None)?;
            if is_empty(&cell) {
                return Ok(cell);
            }
        }
        let bucket = BucketWord::from_word(both.load(1));
        let mut chain = bucket.chain;
        for _ in 0..CHAIN_BUCKETS_MAX {
            let place = chain + 8 * HEADER_WORDS as u64;
            let Some(unit) = (chain != 0).then(|| view.unit(place, 1 + CHAIN_SLOTS)).flatten() else { break };
            if let Some(cell) = unit[1..].iter().find(is_empty) {
                return Ok(cell);
            }
            chain = unit.load(0) << 3;
        }
        let chain = self.core.new_chain_bucket(bucket.chain)?;
        both.store(1, BucketWord { chain, ..bucket }.to_word());
        let unit = view.unit(chain + 8 * HEADER_WORDS as u64, 1 + CHAIN_SLOTS).ok_or(StoreError::Conflict)?;
        Ok(&unit[1])
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
                (self.core.view.load(at.place), ObjectChange::Store { image, incarnation })
            }
            ObjectWrite::Replace(image) => {
                (read_version(reads, at)?, ObjectChange::Store { image, incarnation })
            }
            ObjectWrite::Free => (read_version(reads, at)?, ObjectChange::Free { incarnation }),
        };
        self.lock_at_object(at.place, version, change)
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

    /// Makes the changes visible, each object and each bucket by its version.
    fn apply(mut self, time: u64) -> Option<u64> {
        let mut freed = Vec::new();
        for held in &mut self.held {
            let version = match held.change.take() {
                Some(ObjectChange::Store { mut image, incarnation }) => {
                    let version = version::new(time, true);
                    image.store(held.unit, version, incarnation);
                    // A new object is not marked: a key that is never used again goes before one that is.
                    if version::is_allocated(held.before) {
                        self.core.touched.touch(held.place);
                    }
                    version
                }
                Some(ObjectChange::Free { incarnation }) => {
                    let shape =
                        ObjectShape { incarnation: incarnation.wrapping_add(1), ..ObjectShape::default() };
                    held.unit.store(1, shape.to_word());
                    freed.push(held.place);
                    version::new(time, false)
                }
                None if held.is_changed => version::new(time, false),
                None => held.before,
            };
            protocol::unlock(held.unit, version);
        }
        self.held.clear();
        self.slots.clear();
        self.reserved.clear();
        let core = self.core;
        freed.into_iter().for_each(|place| core.blocks.give_back(&core.view, place));
        count(&core.tallies.commits, 1);
        let (come, gone) = (std::mem::take(&mut self.come), std::mem::take(&mut self.gone));
        core.count_keys(&come, &gone)
    }
}

impl Drop for CommitSteps<'_> {
    fn drop(&mut self) {
        for (cell, slot) in self.slots.drain(..).rev() {
            cell.store(slot, Ordering::Relaxed);
        }
        for held in self.held.drain(..) {
            // A reader may have seen a slot that is now as it was before: the old version must not tell it
            // that nothing was different meanwhile.
            let version =
                if held.is_changed { version::new(self.core.next_time(), false) } else { held.before };
            protocol::unlock(held.unit, version);
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

impl StoreCore {
    /// Makes a bucket of a chain, whose next one is at `next`.
    pub(crate) fn new_chain_bucket(&self, next: u64) -> Result<u64, StoreError> {
        let address = self.blocks.reserve(&self.view, CHAIN_PAYLOAD, None)?;
        let words = HEADER_WORDS + CHAIN_PAYLOAD / 8;
        let unit = self.view.unit(address.place, words).ok_or(StoreError::NoObject(address))?;
        let shape = ObjectShape {
            incarnation: address.incarnation,
            key: 0,
            flags: ObjectShape::CHAIN,
            size: CHAIN_PAYLOAD as u32,
        };
        crate::blocks::rewrite(unit, version::new(self.time(), true), || {
            unit.store(1, shape.to_word());
            unit.store(HEADER_WORDS, next >> 3);
            (1..=CHAIN_SLOTS).for_each(|slot| unit.store(HEADER_WORDS + slot, 0));
        });
        Ok(address.place)
    }

    /// Frees a bucket of a chain.
    pub(crate) fn free_chain_bucket(&self, place: u64) {
        if let Some(unit) = self.view.unit(place, HEADER_WORDS) {
            let shape = ObjectShape::from_word(unit.load(1));
            let shape =
                ObjectShape { incarnation: shape.incarnation.wrapping_add(1), ..ObjectShape::default() };
            crate::blocks::rewrite(unit, version::new(self.next_time(), false), || {
                unit.store(1, shape.to_word())
            });
            self.blocks.give_back(&self.view, place);
        }
    }

    /// Returns the counter of the keys in the shard of a bucket.
    pub(crate) fn shard_keys(&self, bucket: u64) -> Option<&AtomicU64> {
        let offset = (bucket - self.view.layout.blocks_place) % SHARD_BYTES;
        self.view.unit(bucket - offset + 8, 1)?.first()
    }

    /// Counts keys, and returns the hash of one whose shard is too full.
    fn count_keys(&self, come: &[(u64, u64)], gone: &[u64]) -> Option<u64> {
        let mut full = None;
        for (hash, home) in come {
            let keys = self.shard_keys(*home).map_or(0, |keys| keys.fetch_add(1, Ordering::Relaxed) + 1);
            if self.is_too_full(keys) {
                full = Some(*hash);
            }
        }
        for home in gone {
            self.shard_keys(*home).map(|keys| keys.fetch_sub(1, Ordering::Relaxed));
        }
        count(&self.tallies.keys, come.len() as u64);
        self.tallies.keys.fetch_sub(gone.len() as u64, Ordering::Relaxed);
        full
    }
}
