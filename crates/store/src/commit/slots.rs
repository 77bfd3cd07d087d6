//! Where the slots of keys that come are put.

use std::sync::atomic::{AtomicU64, Ordering};

use super::{CommitSteps, FEW};
use crate::error::StoreError;
use crate::image::ObjectImage;
use crate::layout::{BUCKET_BYTES, HEADER_WORDS};
use crate::limits::CHAIN_BUCKETS_MAX;
use crate::protocol::UnitWords;
use crate::table::{BucketWord, CHAIN_SLOTS, SLOTS_FROM};

impl CommitSteps<'_> {
    /// Returns the place of an empty slot for a key whose home is locked, with the index in `held` of the bucket
    /// under whose lock it is: in the home bucket, the next one, or the chain.
    pub(super) fn empty_slot(&mut self, home: u64, bucket: usize) -> Result<(usize, u64), StoreError> {
        let core = self.core;
        let view = &core.view;
        let both = view.unit(home, 2 * BUCKET_BYTES as usize / 8).ok_or(StoreError::Conflict)?;
        let place = |cell: &AtomicU64| view.words.place_of(cell);
        if let Some(cell) = both[SLOTS_FROM..8].iter().find(|cell| self.is_empty(cell)) {
            return Ok((bucket, place(cell)));
        }
        if let Some(cell) = both[8 + SLOTS_FROM..].iter().find(|cell| self.is_empty(cell)) {
            match self.lock_bucket(home + BUCKET_BYTES, None) {
                Ok(next) if self.is_empty(cell) => return Ok((next, place(cell))),
                // Another branch has it, which need not have been so when this one was prepared.
                Err(_) if self.adopts => {}
                locked => drop(locked?),
            }
        }
        let home_word = BucketWord::from_word(both.load(1));
        let mut chain = home_word.chain;
        for _ in 0..CHAIN_BUCKETS_MAX {
            let place_of_slots = chain + 8 * HEADER_WORDS as u64;
            let Some(unit) = (chain != 0).then(|| view.unit(place_of_slots, 1 + CHAIN_SLOTS)).flatten()
            else {
                break;
            };
            if let Some(cell) = unit[1..].iter().find(|cell| self.is_empty(cell)) {
                return Ok((bucket, place(cell)));
            }
            chain = unit.load(0) << 3;
        }
        self.slot_of_new_chain(home, bucket, home_word)
    }

    /// Returns the place of an empty slot in a chain's bucket that comes with this commit.
    fn slot_of_new_chain(
        &mut self,
        home: u64,
        bucket: usize,
        home_word: BucketWord,
    ) -> Result<(usize, u64), StoreError> {
        let first_slot = |chain: u64| chain + 8 * (HEADER_WORDS as u64 + 1);
        let newest = self.new_chains.iter().rfind(|(of, _)| *of == home).map(|(_, chain)| *chain);
        if let Some(chain) = newest {
            let mut slots = (0..CHAIN_SLOTS as u64).map(|slot| first_slot(chain) + 8 * slot);
            if let Some(place) = slots.find(|place| !self.is_taken(*place)) {
                return Ok((bucket, place));
            }
        }
        let next = newest.unwrap_or(home_word.chain);
        let chain = self.lock_new(ObjectImage::of_chain_bucket(next), None)?.place;
        self.new_chains.push((home, chain));
        let word = BucketWord { chain, ..home_word }.to_word();
        match self.slots.iter_mut().find(|slot| slot.place == home + 8) {
            Some(change) => change.slot = word,
            None => self.change_slot(bucket, home + 8, word)?,
        }
        Ok((bucket, first_slot(chain)))
    }

    /// Tells whether a slot is empty, and stays so.
    fn is_empty(&self, cell: &AtomicU64) -> bool {
        cell.load(Ordering::Relaxed) == 0 && !self.is_taken(self.core.view.words.place_of(cell))
    }

    /// Tells whether this commit changes the slot at `place`.
    fn is_taken(&self, place: u64) -> bool {
        if self.slots.len() <= FEW {
            return self.slots.iter().any(|slot| slot.place == place);
        }
        self.slot_places.contains(&place)
    }
}
