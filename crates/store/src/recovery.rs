//! A new owner takes over the memory of one that has ended, maybe in the middle of anything.
//!
//! Readers go on meanwhile: they wait for what is locked, and find everything else as it was. What the owner
//! before kept privately is found again in the memory:
//!
//! | what | from |
//! |---|---|
//! | the clock | the clock's word; it is raised above all versions, if it should be below one |
//! | which places are in use | the headers: what says that it is allocated |
//! | which shards are in use | the directory |
//! | the numbers of keys | the slots of the table |
//! | the number of sessions | the headers |
//!
//! Only the log, the classes and the directory are looked at before the new owner commits: that takes milliseconds,
//! however large the store is. The rest follows in steps, each of which holds the gate alone, block by block and shard
//! by shard ([`StoreCore::restore`]). Until then a block counts as full, no shard is split, a lock that is left
//! keeps what it is on from being read or written, and the number of keys is what the shards' own counters say. Nothing
//! else depends on it: what a slot leads to is compared with the key at every use.
//!
//! And what was under way is ended, so that it has happened completely or not at all:
//!
//! | what was under way | what the memory may hold | what is done |
//! |---|---|---|
//! | a commit, after its record | the record, and some of what it says | what the record says |
//! | a commit or another change, before its record | locks | they are removed |
//! | a [change of the structure](crate::structure), after its record | the record, and some of what it says | what the record says |
//! | a split, before its record or after it | shards that no entry of the directory leads to | they are freed |
//! | a reservation | nothing | its place is free |

use std::sync::atomic::Ordering;
use std::sync::{MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::blocks::store_word;
use crate::copies::StreamBefore;
use crate::error::StoreError;
use crate::faults::{PlantedFault, is_planted};
use crate::layout::{
    BLOCK_BYTES, BUCKET_BYTES, BlockClass, BlockWord, CLASS_BYTES, HEADER_BYTES, HEADER_WORDS, ObjectShape,
    SHARD_BYTES, version, word,
};
use crate::limits::{CHAIN_BUCKETS_MAX, RESTORE_STEP};
use crate::log;
use crate::owner::{StoreCore, count};
use crate::protocol::UnitWords;
use crate::table::{BucketWord, HashSuffix, TableSlot};

/// What is still to be restored: first all blocks, then all shards, then what those do not lead to is freed.
#[derive(Debug)]
pub(crate) struct Restoration {
    /// The blocks of then.
    blocks: u32,
    next_block: u32,
    /// The shards of the table, and which of them is next. None is split meanwhile.
    shards: Vec<u64>,
    next_shard: usize,
}

/// What a unit of the memory says.
#[derive(Debug, Default)]
struct FoundObjects {
    /// The newest version.
    newest: u64,
    sessions: i64,
}

impl StoreCore {
    /// Takes over the memory, as far as must be done before anybody may use it. Nobody else has this core yet.
    pub(crate) fn take_over(&self) -> Result<(), StoreError> {
        // First, as it is what readers wait for most.
        // Whoever takes over after this owner cannot know what it has sent, before this owner has copies.
        let identity = self.view.load(word::STREAM);
        *self.stream_before() = (identity != 0).then_some(StreamBefore::OwnMemory { identity });
        store_word(&self.view, word::STREAM, 0);
        *self.redone.lock().unwrap_or_else(PoisonError::into_inner) = log::redo(&self.view)?;
        let classes = self.block_classes()?;
        for (block, class) in (0..).zip(&classes) {
            let lost = || StoreError::Damaged(format!("block {block} has no class"));
            self.blocks.add_unrestored(class.ok_or_else(lost)?);
        }
        self.check_directory(&classes)?;
        let shards = self.view.shards();
        let counters = shards.iter().filter_map(|shard| self.view.shard_keys(shard + BUCKET_BYTES));
        let keys = counters.map(|keys| keys.load(Ordering::Relaxed)).fold(0, u64::wrapping_add);
        self.tallies.keys.store(keys, Ordering::Relaxed);
        *self.restoration() =
            Some(Restoration { blocks: classes.len() as u32, next_block: 0, shards, next_shard: 0 });
        Ok(())
    }

    pub(crate) fn stream_before(&self) -> MutexGuard<'_, Option<StreamBefore>> {
        self.stream_before.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn restoration(&self) -> MutexGuard<'_, Option<Restoration>> {
        self.restoration.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells whether something of the memory is not restored yet.
    pub(crate) fn is_restoring(&self) -> bool {
        self.restoration().is_some()
    }

    /// Restores the rest of the memory; with a pause, in steps of [`RESTORE_STEP`], after each of which it lets others
    /// commit for so long. The caller does not hold the gate.
    ///
    /// While the gate is held alone no commit of this owner is under way, so every lock that is not a branch's is one of the owner
    /// before, and each header says whether its place is in use, unless that is reserved: for that, its block must have
    /// been restored.
    pub(crate) fn restore(&self, pause: Option<Duration>) -> Result<(), StoreError> {
        while self.is_restoring() {
            let alone = self.gate.alone();
            let mut restoration = self.restoration();
            let begin = Instant::now();
            while let Some(rest) = &mut *restoration {
                if !self.restore_next(rest)? {
                    *restoration = None;
                }
                if pause.is_some() && begin.elapsed() >= RESTORE_STEP {
                    break;
                }
            }
            let is_left = restoration.is_some();
            drop((restoration, alone));
            if let Some(pause) = pause.filter(|_| is_left) {
                std::thread::sleep(pause);
            }
        }
        Ok(())
    }

    /// Restores a block or a shard, or does what comes after all of them. Returns whether something is left to do.
    fn restore_next(&self, rest: &mut Restoration) -> Result<bool, StoreError> {
        let mut found = FoundObjects::default();
        if rest.next_block < rest.blocks {
            let restore_object = |place| self.restore_object(place, &mut found);
            self.blocks.restore_block(&self.view, rest.next_block, restore_object)?;
            rest.next_block += 1;
            self.sessions.fetch_add(found.sessions, Ordering::Relaxed);
        } else if let Some(shard) = rest.shards.get(rest.next_shard) {
            self.restore_shard(*shard, &mut found)?;
            rest.next_shard += 1;
        } else {
            self.free_unreached_shards(rest)?;
            return Ok(false);
        }
        if let Some([clock]) = self.view.unit(word::TIME, 1) {
            clock.fetch_max(version::time(found.newest), Ordering::AcqRel);
        }
        Ok(true)
    }

    /// Returns the classes of all blocks.
    fn block_classes(&self) -> Result<Vec<Option<BlockClass>>, StoreError> {
        let view = &self.view;
        let blocks = (view.load(word::COMMITTED) - view.layout.blocks_place) / BLOCK_BYTES;
        let class = |block| match BlockWord::from_word(view.load(view.layout.class_place(block))).class {
            Some(BlockClass::Objects(class)) if usize::from(class) >= CLASS_BYTES.len() => {
                Err(StoreError::Damaged(format!("block {block} has the class {class}")))
            }
            class => Ok(class),
        };
        (0..blocks).map(class).collect()
    }

    /// Unlocks what is at `place`, and returns whether it is an object.
    fn restore_object(&self, place: u64, found: &mut FoundObjects) -> Result<bool, StoreError> {
        let Some((unit, ..)) = self.view.slot(place) else { return Ok(false) };
        let version = unit.load(0) & !version::LOCKED;
        found.newest = found.newest.max(version);
        let is_locked = version != unit.load(0);
        let shape = ObjectShape::from_word(unit.load(1));
        self.remove_old_lock(place, unit);
        if !version::is_allocated(version) {
            return Ok(is_locked && is_planted(PlantedFault::LeakedReservation));
        }
        if shape.size as usize > 8 * unit.len() - HEADER_BYTES {
            return Err(StoreError::Damaged(format!("the object at {place:#x} has {} bytes", shape.size)));
        }
        found.sessions += i64::from(shape.has(ObjectShape::SESSION));
        Ok(true)
    }

    /// Checks that each entry of the directory leads to the shard of its hashes.
    fn check_directory(&self, classes: &[Option<BlockClass>]) -> Result<(), StoreError> {
        let view = &self.view;
        let is_shard = |place: u64| {
            let block =
                view.layout.block_of(place).filter(|(_, offset)| u64::from(*offset) % SHARD_BYTES == 0);
            block.is_some_and(|(block, _)| classes.get(block as usize) == Some(&Some(BlockClass::Shards)))
        };
        let depth = view.load(word::DEPTH);
        if depth > u64::from(view.layout.depth_max) {
            return Err(StoreError::Damaged(format!("the directory has the depth {depth}")));
        }
        let entry_place = |entry: u64| view.layout.directory_place + 8 * entry;
        for entry in 0..1 << depth {
            let shard = view.load(entry_place(entry));
            let keys = is_shard(shard).then(|| self.shard_suffix(shard)).flatten();
            let Some(keys) = keys.filter(|keys| u64::from(keys.depth) <= depth) else {
                return Err(StoreError::Damaged(format!("entry {entry} of the directory leads to no shard")));
            };
            if entry & ((1 << keys.depth) - 1) != keys.bits {
                return Err(StoreError::Damaged(format!("entry {entry} leads to the shard of {keys:?}")));
            }
        }
        Ok(())
    }

    /// Returns for which hashes a shard is.
    fn shard_suffix(&self, shard: u64) -> Option<HashSuffix> {
        BucketWord::from_word(self.view.load(shard + BUCKET_BYTES + 8)).keys
    }

    /// Unlocks the buckets of a shard, and counts its keys.
    fn restore_shard(&self, shard: u64, found: &mut FoundObjects) -> Result<(), StoreError> {
        self.unlock_lines(shard, found);
        self.check_chains(shard)?;
        let mut places = Vec::new();
        self.view.each_slot(shard, |cell| {
            places.push(TableSlot(cell.load(Ordering::Relaxed)).address().place);
        });
        if let Some(place) = self.blocks.first_unused(&self.view, &places) {
            return Err(StoreError::Damaged(format!("a slot leads to {place:#x}, where no object is")));
        }
        if let Some(counter) = self.view.shard_keys(shard + BUCKET_BYTES) {
            let keys = places.len() as u64;
            // The owner before may have died between a commit and its count.
            count(&self.tallies.keys, keys.wrapping_sub(counter.load(Ordering::Relaxed)));
            counter.store(keys, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Frees the shards to which nothing leads.
    fn free_unreached_shards(&self, rest: &Restoration) -> Result<(), StoreError> {
        let classes = self.block_classes()?;
        let blocks = (0..).zip(classes).take(rest.blocks as usize);
        for (block, _) in blocks.filter(|(_, class)| *class == Some(BlockClass::Shards)) {
            let place = self.view.layout.block_place(block);
            let shards = (0..BLOCK_BYTES / SHARD_BYTES).map(|shard| place + shard * SHARD_BYTES);
            shards
                .filter(|shard| rest.shards.binary_search(shard).is_err())
                .for_each(|shard| self.restore_free_shard(shard));
        }
        Ok(())
    }

    /// Unlocks the buckets of a shard.
    fn unlock_lines(&self, shard: u64, found: &mut FoundObjects) {
        for unit in self.view.lines(shard) {
            let version = unit.load(0);
            found.newest = found.newest.max(version);
            self.remove_old_lock(self.view.words.place_of(&unit[0]), unit);
        }
    }

    /// Checks that the chains of a shard lead to objects.
    fn check_chains(&self, shard: u64) -> Result<(), StoreError> {
        for unit in self.view.lines(shard).skip(1) {
            let mut chain = BucketWord::from_word(unit.load(1)).chain;
            for _ in 0..CHAIN_BUCKETS_MAX {
                if chain == 0 {
                    break;
                }
                if self.blocks.first_unused(&self.view, &[chain]).is_some() {
                    return Err(StoreError::Damaged(format!("a chain leads to {chain:#x}, where none is")));
                }
                chain = self.view.load(chain + 8 * HEADER_WORDS as u64) << 3;
            }
        }
        Ok(())
    }
}
