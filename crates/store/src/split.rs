//! The growth of the table: one shard becomes two, while readers go on.
//!
//! The two new shards are complete before an entry of the directory leads to them, and the old one stays as
//! it is until all entries do: as no commit runs meanwhile, a reader finds the same keys in either. Then
//! every bucket of the old shard says that its keys are elsewhere, under a new version
//! ([`StructureChange`]).

use std::sync::atomic::{AtomicU64, Ordering};

use crate::blocks::store_word;
use crate::error::StoreError;
use crate::faults::{PlantedFault, is_planted};
use crate::gate::{CommitAlone, CommitLane};
use crate::image::ObjectImage;
use crate::layout::{BUCKET_BYTES, HEADER_WORDS, SHARD_BYTES, version};
use crate::limits::SHARD_FULL_PERCENT;
use crate::log;
use crate::owner::{StoreCore, count};
use crate::protocol::{UnitWords, lock, set, unlock};
use crate::structure::{ShardSwing, StructureChange, retire_lines};
use crate::table::{
    BUCKET_WORDS, BucketWord, CHAIN_PAYLOAD, HOMES, HashSuffix, SLOTS, SLOTS_FROM, TableSlot, home_line,
};
use crate::view::AtPlace;

impl StoreCore {
    /// Makes a change of the structure, and calls `freed` with each place that is free after it. An error means that nothing
    /// has happened, but for [`StoreError::NotPrimary`]: then it must not be taken back.
    pub(crate) fn change_structure(
        &self,
        alone: &mut CommitAlone<'_>,
        change: &StructureChange,
        freed: impl FnMut(u64),
    ) -> Result<(), StoreError> {
        let CommitLane { number, record } = &mut alone.lane;
        let mut pieces = Vec::new();
        record.structure(self.next_time(), change);
        let written = record.write(&self.view, &self.blocks, *number, &mut pieces);
        if written.is_ok() {
            if self.copies.is_active() && !is_planted(PlantedFault::NoStructureRecord) {
                self.send_record(record, &pieces, std::iter::empty())?;
                if matches!(change, StructureChange::DeleteKeys { .. }) {
                    // It follows from the memory, so a copy that has not all of it cannot make it.
                    self.copies.fill_again();
                }
            }
            change.make(&self.view, freed);
            log::release(&self.view, *number);
        }
        record.shrink();
        pieces.into_iter().for_each(|place| self.blocks.give_back(&self.view, place));
        written
    }

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
        let mut alone = self.gate.alone();
        if self.is_restoring() || self.ledger.has_parked() {
            // A lock of the owner before, or of a branch, may be on what would move.
            return;
        }
        let shard = self.view.shard(hash);
        let keys = self.view.shard_keys(shard + BUCKET_BYTES).map_or(0, |keys| keys.load(Ordering::Relaxed));
        if keys > HOMES * SLOTS as u64 * SHARD_FULL_PERCENT / 100 {
            // Without memory, chains grow instead.
            let _ = self.split_shard(&mut alone, shard);
        }
    }

    fn split_shard(&self, alone: &mut CommitAlone<'_>, shard: u64) -> Result<(), StoreError> {
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
        self.view.each_slot(shard, |cell| slots.push(TableSlot(cell.load(Ordering::Relaxed))));
        let mut new_chains = Vec::new();
        let filled = self.fill_halves(&slots, halves, depth, &mut new_chains);
        let time = self.next_time();
        for (bit, half) in (0..).zip(halves) {
            self.finish_shard(half, time, HashSuffix { depth: depth + 1, bits: bits | bit << depth });
        }
        let keys = HashSuffix { depth, bits };
        let old_chains = self.chains_of(shard);
        let swing = ShardSwing { shard, keys, halves, time, new_chains, old_chains };
        let given_up = swing.new_chains.clone();
        let freed = |place| self.blocks.give_back(view, place);
        let swung = filled
            .and_then(|()| self.send_halves(&swing))
            .and_then(|()| self.change_structure(alone, &StructureChange::SwingShard(swing), freed));
        if matches!(swung, Err(StoreError::NotPrimary)) {
            return swung;
        }
        if swung.is_err() {
            for half in halves {
                retire_lines(view, half, version::new(self.next_time(), false));
                self.blocks.give_back_shard(half);
            }
            given_up.into_iter().for_each(freed);
        } else {
            self.blocks.give_back_shard(shard);
        }
        swung
    }

    /// Sends the halves and their chains to the copies.
    fn send_halves(&self, swing: &ShardSwing) -> Result<(), StoreError> {
        if self.copies.is_active() {
            for half in swing.halves {
                self.copies.send_memory(&self.view, half, SHARD_BYTES as usize / 8)?;
            }
            for chain in &swing.new_chains {
                self.copies.send_memory(&self.view, *chain, HEADER_WORDS + CHAIN_PAYLOAD / 8)?;
            }
        }
        Ok(())
    }

    /// Returns the places of all buckets of the chains of a shard.
    fn chains_of(&self, shard: u64) -> Vec<u64> {
        let mut chains = Vec::new();
        for unit in self.view.lines(shard).skip(1) {
            let mut chain = BucketWord::from_word(unit.load(1)).chain;
            while let Some(cells) = (chain != 0).then(|| self.view.chain_cells(chain)).flatten() {
                chains.push(chain);
                chain = cells.load(0) << 3;
            }
        }
        chains
    }

    /// Puts all slots of a shard into the halves, which nobody else sees.
    fn fill_halves(
        &self,
        slots: &[TableSlot],
        halves: [u64; 2],
        depth: u32,
        new_chains: &mut Vec<u64>,
    ) -> Result<(), StoreError> {
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
            self.put_slot(half + BUCKET_BYTES * home_line(hash), *slot, new_chains)?;
            if let Some(keys) = self.view.shard_keys(half + BUCKET_BYTES) {
                keys.fetch_add(1, Ordering::Relaxed);
            }
        }
        Ok(())
    }

    /// Puts a slot where it belongs in a shard that nobody else sees.
    fn put_slot(&self, home: u64, slot: TableSlot, new_chains: &mut Vec<u64>) -> Result<(), StoreError> {
        let lost = || StoreError::Damaged(format!("a bucket at {home:#x} is outside the memory"));
        let both = self.view.unit(home, 2 * BUCKET_WORDS).ok_or_else(lost)?;
        let cells = both[SLOTS_FROM..8].iter().chain(&both[8 + SLOTS_FROM..]);
        let mut empty = cells.into_iter().find(|cell| cell.load(Ordering::Relaxed) == 0);
        let bucket = BucketWord::from_word(both.load(1));
        if empty.is_none() {
            let newest = (bucket.chain != 0).then(|| self.view.chain_cells(bucket.chain)).flatten();
            empty = newest.and_then(|cells| cells[1..].iter().find(|cell| cell.load(Ordering::Relaxed) == 0));
        }
        if empty.is_none() {
            let chain = self.prepare_chain_bucket(bucket.chain)?;
            new_chains.push(chain);
            both.store(1, BucketWord { chain, ..bucket }.to_word());
            empty = self.view.chain_cells(chain).map(|cells| &cells[1]);
        }
        set(empty.ok_or_else(lost)?, slot.0);
        Ok(())
    }

    /// Locks and empties all lines of a shard that no entry leads to. A reader may still come by an old
    /// entry.
    fn start_shard(&self, shard: u64, time: u64) {
        for unit in self.view.lines(shard) {
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
        for unit in self.view.lines(shard) {
            if !self.is_counter_line(unit, shard) {
                let chain = BucketWord::from_word(unit.load(1)).chain;
                unit.store(1, BucketWord { keys: Some(keys), chain }.to_word());
            }
            unlock(unit, version::new(time, false));
        }
    }

    /// Frees a shard of a memory that is taken over, to which no entry of the directory leads. Its chains have
    /// been freed.
    pub(crate) fn restore_free_shard(&self, shard: u64) {
        let is_retired = |unit: &[AtomicU64]| unit.load(1) == 0 && unit.load(0) & version::LOCKED == 0;
        if !self.view.lines(shard).skip(1).all(is_retired) {
            retire_lines(&self.view, shard, version::new(self.next_time(), false));
        }
        self.blocks.give_back_shard(shard);
    }

    /// Puts an empty bucket of a chain, whose next one is at `next`, into a free place, which says as before that it is free.
    fn prepare_chain_bucket(&self, next: u64) -> Result<u64, StoreError> {
        let address = self.blocks.reserve(&self.view, CHAIN_PAYLOAD, None)?;
        let words = HEADER_WORDS + CHAIN_PAYLOAD / 8;
        let unit = self.view.unit(address.place, words).ok_or(StoreError::NoObject(address))?;
        // Pairs with the second acquire fence in `protocol::read`: who reads an object that was here sees that
        // it has been freed.
        self.view.fence_release();
        let mut image = ObjectImage::of_chain_bucket(next);
        image.stamp(unit.load(0), address.incarnation);
        image.store(unit);
        Ok(address.place)
    }

    /// Counts keys, and returns the hash of one whose shard is too full.
    pub(crate) fn count_keys(&self, come: &[(u64, u64)], gone: &[u64]) -> Option<u64> {
        let mut full = None;
        for (hash, home) in come {
            let keys = self.view.shard_keys(*home).map_or(0, |keys| {
                // Below 0 if the count of a key that has gone came before that of its coming.
                keys.fetch_add(1, Ordering::Relaxed).wrapping_add(1)
            });
            if self.is_too_full(keys) {
                full = Some(*hash);
            }
        }
        for home in gone {
            self.view.shard_keys(*home).map(|keys| keys.fetch_sub(1, Ordering::Relaxed));
        }
        // Most commits change values only: they need not share the counter.
        if come.len() != gone.len() {
            count(&self.tallies.keys, (come.len() as u64).wrapping_sub(gone.len() as u64));
        }
        full
    }
}
