//! The growth of the table: one shard becomes two, while readers go on.
//!
//! The two new shards are complete before an entry of the directory leads to them, and the old one stays as
//! it is until all entries do: as no commit runs meanwhile, a reader finds the same keys in either. Then
//! every bucket of the old shard says that its keys are elsewhere, under a new version.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::blocks::{rewrite, store_word};
use crate::error::StoreError;
use crate::layout::{BUCKET_BYTES, HEADER_WORDS, ObjectShape, SHARD_BYTES, version, word};
use crate::limits::{CHAIN_BUCKETS_MAX, SHARD_FULL_PERCENT};
use crate::owner::{StoreCore, count};
use crate::protocol::{UnitWords, lock, set, unlock};
use crate::table::{
    BucketWord, CHAIN_PAYLOAD, CHAIN_SLOTS, HOMES, HashSuffix, SHARD_LINES, SLOTS, SLOTS_FROM, TableSlot,
    home_line,
};
use crate::view::AtPlace;

/// The words of a bucket.
const BUCKET_WORDS: usize = BUCKET_BYTES as usize / 8;

impl StoreCore {
    /// Makes the table of an empty store: one shard.
    pub(crate) fn first_shard(&self) -> Result<(), StoreError> {
        let shard = self.blocks.reserve_shard(&self.view)?;
        self.start_shard(shard, self.time());
        self.finish_shard(shard, self.next_time(), HashSuffix { depth: 0, bits: 0 });
        store_word(&self.view, self.view.layout.directory_place, shard);
        Ok(())
    }

    /// Tells whether a shard with so many keys should be split. Where there is no memory for that, not every
    /// further key tries again.
    pub(crate) fn is_too_full(&self, keys: u64) -> bool {
        let threshold = HOMES * SLOTS as u64 * SHARD_FULL_PERCENT / 100;
        keys > threshold && (keys - threshold) % 64 == 1
    }

    /// Splits the shard of a hash, if it is still too full and there is memory.
    pub(crate) fn split(&self, hash: u64) {
        let _alone = self.gate.alone();
        if self.is_restoring() {
            // A lock of the owner before may be on what would move.
            return;
        }
        let shard = self.view.shard(hash);
        let keys = self.shard_keys(shard + BUCKET_BYTES).map_or(0, |keys| keys.load(Ordering::Relaxed));
        if keys > HOMES * SLOTS as u64 * SHARD_FULL_PERCENT / 100 {
            // Without memory, chains grow instead.
            let _ = self.split_shard(shard);
        }
    }

    fn split_shard(&self, shard: u64) -> Result<(), StoreError> {
        let view = &self.view;
        let Some(first) = view.unit(shard + BUCKET_BYTES, BUCKET_WORDS) else { return Ok(()) };
        let keys = BucketWord::from_word(first.load(1)).keys;
        let Some(HashSuffix { depth, bits }) = keys.filter(|keys| keys.depth < view.layout.depth_max) else {
            return Ok(());
        };
        let halves = [self.blocks.reserve_shard(view)?, 0];
        let second =
            self.blocks.reserve_shard(view).inspect_err(|_| self.blocks.give_back_shard(halves[0]))?;
        let halves = [halves[0], second];
        halves.iter().for_each(|half| self.start_shard(*half, self.time()));
        let mut slots = Vec::new();
        self.each_slot(shard, |cell| slots.push(TableSlot(cell.load(Ordering::Relaxed))));
        let filled = self.fill_halves(&slots, halves, depth);
        if let Err(error) = filled {
            for half in halves {
                self.retire_shard(half);
            }
            return Err(error);
        }
        let time = self.next_time();
        for (bit, half) in (0..).zip(halves) {
            self.finish_shard(half, time, HashSuffix { depth: depth + 1, bits: bits | bit << depth });
        }
        self.swing(HashSuffix { depth, bits }, halves);
        self.retire_shard(shard);
        Ok(())
    }

    /// Puts all slots of a shard into the halves, which nobody else sees.
    fn fill_halves(&self, slots: &[TableSlot], halves: [u64; 2], depth: u32) -> Result<(), StoreError> {
        slots.iter().for_each(|slot| self.view.words.prefetch(slot.address().place));
        let mut key = Vec::new();
        for slot in slots {
            key.clear();
            let at = self.view.object(slot.address().place, |payload| payload.copy_key(&mut key));
            let Ok(AtPlace::Object(_)) = at else {
                return Err(StoreError::Damaged(format!(
                    "a slot leads to {}, where no object is",
                    slot.address()
                )));
            };
            let hash = self.view.hash(&key);
            let half = halves[(hash >> depth & 1) as usize];
            self.put_slot(half + BUCKET_BYTES * home_line(hash), *slot)?;
            if let Some(keys) = self.shard_keys(half + BUCKET_BYTES) {
                keys.fetch_add(1, Ordering::Relaxed);
            }
        }
        Ok(())
    }

    /// Puts a slot where it belongs in a shard that nobody else sees.
    fn put_slot(&self, home: u64, slot: TableSlot) -> Result<(), StoreError> {
        let lost = || StoreError::Damaged(format!("a bucket at {home:#x} is outside the memory"));
        let both = self.view.unit(home, 2 * BUCKET_WORDS).ok_or_else(lost)?;
        let cells = both[SLOTS_FROM..8].iter().chain(&both[8 + SLOTS_FROM..]);
        let mut empty = cells.into_iter().find(|cell| cell.load(Ordering::Relaxed) == 0);
        let bucket = BucketWord::from_word(both.load(1));
        if empty.is_none() {
            let newest = (bucket.chain != 0).then(|| self.chain_cells(bucket.chain)).flatten();
            empty = newest.and_then(|cells| cells[1..].iter().find(|cell| cell.load(Ordering::Relaxed) == 0));
        }
        if empty.is_none() {
            let chain = self.new_chain_bucket(bucket.chain)?;
            both.store(1, BucketWord { chain, ..bucket }.to_word());
            empty = self.chain_cells(chain).map(|cells| &cells[1]);
        }
        set(empty.ok_or_else(lost)?, slot.0);
        Ok(())
    }

    fn chain_cells(&self, chain: u64) -> Option<&[AtomicU64]> {
        self.view.unit(chain + 8 * HEADER_WORDS as u64, 1 + CHAIN_SLOTS)
    }

    /// Locks and empties all lines of a shard that no entry leads to. A reader may still come by an old
    /// entry.
    fn start_shard(&self, shard: u64, time: u64) {
        for unit in self.lines(shard) {
            // The first shards of a block have the version 0.
            unit.store(0, unit.load(0).max(version::new(time, false)) & !version::LOCKED);
            lock(unit, unit.load(0));
            unit.store(1, 0);
            (SLOTS_FROM..BUCKET_WORDS).for_each(|slot| unit.store(slot, 0));
        }
    }

    fn is_counter_line(&self, unit: &[AtomicU64], shard: u64) -> bool {
        self.view.words.place_of(&unit[0]) == shard
    }

    /// Says in all buckets of a started shard which keys they are for, and unlocks them.
    fn finish_shard(&self, shard: u64, time: u64, keys: HashSuffix) {
        for unit in self.lines(shard) {
            if !self.is_counter_line(unit, shard) {
                let chain = BucketWord::from_word(unit.load(1)).chain;
                unit.store(1, BucketWord { keys: Some(keys), chain }.to_word());
            }
            unlock(unit, version::new(time, false));
        }
    }

    /// Says in all buckets of a shard that their keys are elsewhere, and gives its chains and its memory
    /// back.
    fn retire_shard(&self, shard: u64) {
        let mut chains = Vec::new();
        for unit in self.lines(shard) {
            if !self.is_counter_line(unit, shard) {
                let mut chain = BucketWord::from_word(unit.load(1)).chain;
                while let Some(cells) = (chain != 0).then(|| self.chain_cells(chain)).flatten() {
                    chains.push(chain);
                    chain = cells.load(0) << 3;
                }
            }
        }
        self.retire_lines(shard);
        chains.into_iter().for_each(|chain| self.free_chain_bucket(chain));
        self.blocks.give_back_shard(shard);
    }

    /// Says in all buckets of a shard that their keys are elsewhere.
    fn retire_lines(&self, shard: u64) {
        let version = version::new(self.next_time(), false);
        for unit in self.lines(shard) {
            // A shard that was given up while it was filled is locked still.
            let old = unit.load(0) & !version::LOCKED;
            unit.store(0, old);
            rewrite(unit, version, || unit.store(1, 0));
        }
    }

    /// Frees a shard of a memory that is taken over, to which no entry of the directory leads. Its chains have
    /// been freed.
    pub(crate) fn restore_free_shard(&self, shard: u64) {
        let is_retired = |unit: &[AtomicU64]| unit.load(1) == 0 && unit.load(0) & version::LOCKED == 0;
        if !self.lines(shard).skip(1).all(is_retired) {
            self.retire_lines(shard);
        }
        self.blocks.give_back_shard(shard);
    }

    /// Makes all entries of the directory for a suffix lead to the halves.
    fn swing(&self, HashSuffix { depth, bits }: HashSuffix, halves: [u64; 2]) {
        let view = &self.view;
        let directory = view.layout.directory_place;
        let mut directory_depth = view.load(word::DEPTH) as u32;
        if directory_depth == depth {
            for entry in 0..1 << depth {
                store_word(view, directory + 8 * ((1 << depth) + entry), view.load(directory + 8 * entry));
            }
            directory_depth += 1;
            // Pairs with the acquire fence in `StoreView::shard`: who sees the depth sees the entries.
            store_word(view, word::DEPTH, u64::from(directory_depth));
        }
        for entry in (bits..1 << directory_depth).step_by(1 << depth) {
            store_word(view, directory + 8 * entry, halves[(entry >> depth & 1) as usize]);
        }
    }

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
        rewrite(unit, version::new(self.time(), true), || {
            unit.store(1, shape.to_word());
            unit.store(HEADER_WORDS, next >> 3);
            (1..=CHAIN_SLOTS).for_each(|slot| unit.store(HEADER_WORDS + slot, 0));
        });
        Ok(address.place)
    }

    /// Frees a bucket of a chain, by one store: nothing else has changed if the owner dies. Its incarnation is
    /// that of no address.
    pub(crate) fn free_chain_bucket(&self, place: u64) {
        if let Some(unit) = self.view.unit(place, HEADER_WORDS) {
            unlock(unit, version::new(self.next_time(), false));
            self.blocks.give_back(&self.view, place);
        }
    }

    /// Returns the counter of the keys in the shard of a bucket.
    pub(crate) fn shard_keys(&self, bucket: u64) -> Option<&AtomicU64> {
        let offset = (bucket - self.view.layout.blocks_place) % SHARD_BYTES;
        self.view.unit(bucket - offset + 8, 1)?.first()
    }

    /// Counts keys, and returns the hash of one whose shard is too full.
    pub(crate) fn count_keys(&self, come: &[(u64, u64)], gone: &[u64]) -> Option<u64> {
        let mut full = None;
        for (hash, home) in come {
            let keys = self.shard_keys(*home).map_or(0, |keys| {
                // Below 0 if the count of a key that has gone came before that of its coming.
                keys.fetch_add(1, Ordering::Relaxed).wrapping_add(1)
            });
            if self.is_too_full(keys) {
                full = Some(*hash);
            }
        }
        for home in gone {
            self.shard_keys(*home).map(|keys| keys.fetch_sub(1, Ordering::Relaxed));
        }
        // Most commits change values only: they need not share the counter.
        if come.len() != gone.len() {
            count(&self.tallies.keys, (come.len() as u64).wrapping_sub(gone.len() as u64));
        }
        full
    }

    /// Returns the lines of a shard, the one of counters first.
    pub(crate) fn lines(&self, shard: u64) -> impl Iterator<Item = &[AtomicU64]> {
        (0..SHARD_LINES).filter_map(move |line| self.view.unit(shard + line * BUCKET_BYTES, BUCKET_WORDS))
    }

    /// Calls `each` with every slot of a shard that is not empty, chains included.
    pub(crate) fn each_slot(&self, shard: u64, mut each: impl FnMut(&AtomicU64)) {
        let mut each = |cells: &[AtomicU64]| {
            cells.iter().filter(|cell| cell.load(Ordering::Relaxed) != 0).for_each(&mut each);
        };
        for unit in self.lines(shard).skip(1) {
            each(&unit[SLOTS_FROM..]);
            let mut chain = BucketWord::from_word(unit.load(1)).chain;
            for _ in 0..CHAIN_BUCKETS_MAX {
                let Some(cells) = (chain != 0).then(|| self.chain_cells(chain)).flatten() else { break };
                each(&cells[1..]);
                chain = cells.load(0) << 3;
            }
        }
    }

    /// Returns the shards of the table.
    pub(crate) fn shards(&self) -> Vec<u64> {
        let entries = 1 << self.view.load(word::DEPTH);
        let mut shards: Vec<_> = (0..entries).map(|entry| self.view.shard(entry)).collect();
        shards.sort_unstable();
        shards.dedup();
        shards
    }
}
