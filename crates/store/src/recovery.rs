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
//! And what was under way is ended, so that it has happened completely or not at all:
//!
//! | what was under way | what the memory may hold | what is done |
//! |---|---|---|
//! | a commit, after its record | the record, and some of what it says | what the record says |
//! | a commit, before its record | locks | they are removed |
//! | the deletion of all keys, once its word says so | locks on all that goes | all that is locked goes |
//! | a new block | committed memory, no class | it gets one |
//! | a change of a block's class | no class, and headers of either class; nothing was in use | it gets one |
//! | a split, before the first entry of the directory | two shards that no entry leads to, with chains | they are freed |
//! | a split, while entries change | some entries lead to the old shard, which is as it was | all do again |
//! | a split, after that | an old shard that no entry leads to | it is freed |
//! | a new bucket of a chain | an object of a chain that no bucket leads to | it is freed |
//! | a reservation | nothing | its place is free |

use std::collections::HashSet;
use std::sync::atomic::Ordering;

use crate::blocks::store_word;
use crate::error::StoreError;
use crate::faults::{PlantedFault, is_planted};
use crate::layout::{
    BLOCK_BYTES, BUCKET_BYTES, BlockClass, BlockWord, CLASS_BYTES, HEADER_BYTES, HEADER_WORDS, ObjectShape,
    SHARD_BYTES, version, word,
};
use crate::limits::CHAIN_BUCKETS_MAX;
use crate::log;
use crate::owner::StoreCore;
use crate::protocol::{UnitWords, set, unlock};
use crate::table::{BucketWord, HashSuffix, TableSlot};

/// What the headers of a memory say.
#[derive(Debug, Default)]
struct FoundObjects {
    /// The newest version.
    newest: u64,
    keyed: u64,
    sessions: u64,
    /// The places of the buckets of chains.
    chains: Vec<u64>,
}

impl StoreCore {
    /// Takes over the memory. Nobody else has this core yet.
    pub(crate) fn recover(&self) -> Result<(), StoreError> {
        // First, as it is what readers wait for most.
        log::redo(&self.view)?;
        let classes = self.block_classes()?;
        let shards = self.shard_places(&classes);
        let mut found = FoundObjects::default();
        for shard in &shards {
            found.newest = self.lines(*shard).map(|unit| unit.load(0)).fold(found.newest, u64::max);
        }
        for (block, class) in (0..).zip(&classes) {
            if class.is_none() {
                // The clock is in the memory, too, and below no version unless that is damaged.
                self.blocks.restore_class(&self.view, block, self.next_time());
            }
            let class = class.unwrap_or(BlockClass::Objects(0));
            self.blocks.restore_block(&self.view, class, |place| self.restore_object(place, &mut found))?;
        }
        if let Some([clock]) = self.view.unit(word::TIME, 1) {
            clock.fetch_max(version::time(found.newest), Ordering::AcqRel);
        }
        self.restore_directory(&shards)?;
        self.restore_table(&shards, found)?;
        store_word(&self.view, word::CLEARING, 0);
        Ok(())
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

    fn shard_places(&self, classes: &[Option<BlockClass>]) -> HashSet<u64> {
        let blocks = (0..).zip(classes).filter(|(_, class)| **class == Some(BlockClass::Shards));
        let places = |block| {
            let place = self.view.layout.block_place(block);
            (0..BLOCK_BYTES / SHARD_BYTES).map(move |shard| place + shard * SHARD_BYTES)
        };
        blocks.flat_map(|(block, _)| places(block)).collect()
    }

    /// Unlocks what is at `place`, and returns whether it is an object.
    fn restore_object(&self, place: u64, found: &mut FoundObjects) -> Result<bool, StoreError> {
        let Some((unit, ..)) = self.view.slot(place) else { return Ok(false) };
        let mut version = unit.load(0) & !version::LOCKED;
        found.newest = found.newest.max(version);
        let is_locked = version != unit.load(0);
        let shape = ObjectShape::from_word(unit.load(1));
        if is_locked {
            let clearing = self.view.load(word::CLEARING);
            if clearing != 0 && version::is_allocated(version) {
                // Its key goes. Maybe its shape says so already.
                unit.fence_release();
                if shape.has(ObjectShape::KEYED) || shape.has(ObjectShape::SECTION) {
                    unit.store(1, ObjectShape::free_after(shape.incarnation).to_word());
                }
                version = clearing;
            }
            unlock(unit, version);
        }
        if !version::is_allocated(version) {
            return Ok(is_locked && is_planted(PlantedFault::LeakedReservation));
        }
        if shape.size as usize > 8 * unit.len() - HEADER_BYTES {
            return Err(StoreError::Damaged(format!("the object at {place:#x} has {} bytes", shape.size)));
        }
        found.keyed += u64::from(shape.has(ObjectShape::KEYED));
        found.sessions += u64::from(shape.has(ObjectShape::SESSION));
        if shape.has(ObjectShape::CHAIN) {
            found.chains.push(place);
        }
        Ok(true)
    }

    /// Makes all entries of a shard that was being split lead to it again.
    fn restore_directory(&self, shards: &HashSet<u64>) -> Result<(), StoreError> {
        let view = &self.view;
        let depth = view.load(word::DEPTH);
        if depth > u64::from(view.layout.depth_max) {
            return Err(StoreError::Damaged(format!("the directory has the depth {depth}")));
        }
        let entry_place = |entry: u64| view.layout.directory_place + 8 * entry;
        let mut found: Vec<(HashSuffix, u64)> = Vec::new();
        for entry in 0..1 << depth {
            let shard = view.load(entry_place(entry));
            let keys = shards.contains(&shard).then(|| self.shard_suffix(shard)).flatten();
            let Some(keys) = keys.filter(|keys| u64::from(keys.depth) <= depth) else {
                return Err(StoreError::Damaged(format!("entry {entry} of the directory leads to no shard")));
            };
            if entry & ((1 << keys.depth) - 1) != keys.bits {
                return Err(StoreError::Damaged(format!("entry {entry} leads to the shard of {keys:?}")));
            }
            found.push((keys, shard));
        }
        // The old shard of a split after its halves: it has the last word on the entries that they share.
        found.sort_unstable_by_key(|(keys, shard)| (std::cmp::Reverse(keys.depth), *shard));
        found.dedup();
        for (HashSuffix { depth: shard_depth, bits }, shard) in found {
            for entry in (bits..1 << depth).step_by(1 << shard_depth) {
                if view.load(entry_place(entry)) != shard {
                    store_word(view, entry_place(entry), shard);
                }
            }
        }
        Ok(())
    }

    /// Returns for which hashes a shard is.
    fn shard_suffix(&self, shard: u64) -> Option<HashSuffix> {
        BucketWord::from_word(self.view.load(shard + BUCKET_BYTES + 8)).keys
    }

    /// Unlocks the buckets of the table, counts its keys, and frees what it does not lead to.
    fn restore_table(&self, shards: &HashSet<u64>, found: FoundObjects) -> Result<(), StoreError> {
        let live: HashSet<u64> = self.shards().into_iter().collect();
        let mut keys = 0;
        let mut places = Vec::new();
        let mut linked = HashSet::new();
        for shard in &live {
            self.unlock_lines(*shard);
            self.each_chain(*shard, |place| linked.insert(place))?;
            places.clear();
            self.each_slot(*shard, |cell| {
                places.push(TableSlot(cell.load(Ordering::Relaxed)).address().place);
            });
            if let Some(place) = self.blocks.first_unused(&self.view, &places) {
                return Err(StoreError::Damaged(format!("a slot leads to {place:#x}, where no object is")));
            }
            let shard_keys = places.len() as u64;
            if let Some(count) = self.shard_keys(shard + BUCKET_BYTES) {
                count.store(shard_keys, Ordering::Relaxed);
            }
            keys += shard_keys;
        }
        if keys != found.keyed {
            let text = format!("{} objects have keys, and {keys} slots lead to one", found.keyed);
            return Err(StoreError::Damaged(text));
        }
        self.tallies.keys.store(keys, Ordering::Relaxed);
        self.sessions.store(found.sessions, Ordering::Relaxed);
        found
            .chains
            .iter()
            .filter(|place| !linked.contains(place))
            .for_each(|place| self.free_chain_bucket(*place));
        shards.difference(&live).for_each(|shard| self.restore_free_shard(*shard));
        Ok(())
    }

    /// Unlocks the buckets of a shard, and empties them if all keys were being deleted.
    fn unlock_lines(&self, shard: u64) {
        let clearing = self.view.load(word::CLEARING);
        if clearing != 0 {
            // The owner before locked them: pairs with the second acquire fence in `protocol::read`.
            self.view.fence_release();
            self.each_slot(shard, |cell| set(cell, 0));
        }
        for unit in self.lines(shard) {
            let version = unit.load(0);
            if version & version::LOCKED != 0 {
                unlock(unit, if clearing == 0 { version & !version::LOCKED } else { clearing });
            }
        }
    }

    /// Calls `each` with the places of the chains' buckets of a shard.
    fn each_chain(&self, shard: u64, mut each: impl FnMut(u64) -> bool) -> Result<(), StoreError> {
        for unit in self.lines(shard).skip(1) {
            let mut chain = BucketWord::from_word(unit.load(1)).chain;
            for _ in 0..CHAIN_BUCKETS_MAX {
                if chain == 0 {
                    break;
                }
                if self.blocks.first_unused(&self.view, &[chain]).is_some() || !each(chain) {
                    return Err(StoreError::Damaged(format!("a chain leads to {chain:#x}, where none is")));
                }
                chain = self.view.load(chain + 8 * HEADER_WORDS as u64) << 3;
            }
        }
        Ok(())
    }
}
