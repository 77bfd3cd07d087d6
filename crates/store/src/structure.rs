//! Changes of the structure of a store: what is done to its memory besides commits. Each holds the gate alone, and is
//! noted in the log before the first word of it is stored, as a commit is.
//!
//! A change follows from what its record says and from the memory. So the owner that makes it, the next owner that finds its
//! record in the log, and a copy of the memory all make it by one function, [`StructureChange::make`].
//!
//! | change | the record says | what is stored |
//! |---|---|---|
//! | a block gets a class | block, class, number of changes, version | the headers of free places, and the class |
//! | a shard is replaced by two | the shards, their keys, the chains that come and go, time | chains and entries of the directory |
//! | all keys are deleted | version | empty slots and the headers of free places |
//!
//! **Why making it again is safe.** Each change, made once more after any part of it, ends in the same memory. Nobody has
//! written since: the gate is held, or was when the owner died.

use std::sync::atomic::{Ordering, fence};

use crate::blocks::{slot_offsets, store_word};
use crate::layout::{BUCKET_BYTES, BlockClass, BlockWord, DEPTH_MAX, ObjectShape, version, word};
use crate::protocol::{UnitWords, set, unlock};
use crate::table::{BucketWord, HashSuffix, SHARD_LINES, TableSlot};
use crate::view::StoreView;

/// A change of the structure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum StructureChange {
    /// A block in which nothing is in use gets a class. All of its places are then free, with a version that is not below
    /// any that was there.
    FormatBlock { block: u64, class: u8, changes: u64, version: u64 },
    /// Two shards take the place of one.
    SwingShard(ShardSwing),
    /// All keys are deleted, which leaves a version behind.
    DeleteKeys { version: u64 },
}

/// Two shards that take the place of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ShardSwing {
    pub(crate) shard: u64,
    pub(crate) keys: HashSuffix,
    /// Complete, but for the versions of their chains.
    pub(crate) halves: [u64; 2],
    pub(crate) time: u64,
    /// The buckets of the chains of the halves.
    pub(crate) new_chains: Vec<u64>,
    /// The buckets of the chains of the shard.
    pub(crate) old_chains: Vec<u64>,
}

impl StructureChange {
    /// Returns the words of a record.
    pub(crate) fn to_words(&self) -> Vec<u64> {
        match self {
            Self::FormatBlock { block, class, changes, version } => {
                vec![1, *block, u64::from(*class), *changes, *version]
            }
            Self::SwingShard(swing) => {
                let HashSuffix { depth, bits } = swing.keys;
                let [first, second] = swing.halves;
                let count = swing.new_chains.len() as u64;
                let mut words = vec![2, swing.shard, depth.into(), bits, first, second, swing.time, count];
                words.extend(swing.new_chains.iter().chain(&swing.old_chains));
                words
            }
            Self::DeleteKeys { version } => vec![3, *version],
        }
    }

    /// Returns the change that the words of a record say.
    pub(crate) fn from_words(words: &[u64]) -> Option<Self> {
        Some(match *words {
            [1, block, class, changes, version] => {
                Self::FormatBlock { block, class: class.try_into().ok()?, changes, version }
            }
            [2, shard, depth, bits, first, second, time, count, ref chains @ ..] => {
                let (new, old) = chains.split_at_checked(usize::try_from(count).ok()?)?;
                Self::SwingShard(ShardSwing {
                    shard,
                    keys: HashSuffix {
                        depth: u32::try_from(depth).ok().filter(|depth| *depth <= DEPTH_MAX)?,
                        bits,
                    },
                    halves: [first, second],
                    time,
                    new_chains: new.to_vec(),
                    old_chains: old.to_vec(),
                })
            }
            [3, version] => Self::DeleteKeys { version },
            _ => return None,
        })
    }

    /// Makes the change, and calls `freed` with each place that is free after it, which may have been free before.
    pub(crate) fn make(&self, view: &StoreView, mut freed: impl FnMut(u64)) {
        match self {
            Self::FormatBlock { block, class, changes, version } => {
                format_block(view, *block, *changes, *class, *version);
            }
            Self::SwingShard(swing) => {
                swing.make(view);
                swing.old_chains.iter().for_each(|place| freed(*place));
            }
            Self::DeleteKeys { version } => delete_keys(view, *version, &mut freed),
        }
    }
}

/// Gives a block in which nothing is in use to the class `new`, whose places then are free, with `version`.
fn format_block(view: &StoreView, block: u64, changes: u64, new: u8, version: u64) {
    let class_place = view.layout.class_place(block);
    // Readers by an old address see the block without a class until its headers are there.
    store_word(view, class_place, BlockWord { changes, class: None }.to_word());
    // Pairs with the acquire fence in `protocol::read`: who sees a word stored below sees the changed class,
    // too.
    fence(Ordering::Release);
    // An address of before most likely has another incarnation than a number that is new for each change.
    let incarnation = (changes as u16).wrapping_sub(1).wrapping_mul(0x9e37);
    let shape = ObjectShape { incarnation, ..ObjectShape::default() };
    for offset in slot_offsets(new) {
        if let Some(unit) = view.unit(view.layout.block_place(block) + offset, 2) {
            unit.store(0, version);
            unit.store(1, shape.to_word());
        }
    }
    // Pairs with the acquire fence in `protocol::read`, after the class was loaded.
    store_word(view, class_place, BlockWord { changes, class: Some(BlockClass::Objects(new)) }.to_word());
}

impl ShardSwing {
    /// Makes all entries of the directory lead to the halves. After that, a reader that has come by an old entry sees that the
    /// keys are elsewhere.
    fn make(&self, view: &StoreView) {
        for place in &self.new_chains {
            // Nothing leads there yet.
            store_word(view, *place, version::new(self.time, true));
        }
        let HashSuffix { depth, bits } = self.keys;
        let directory = view.layout.directory_place;
        let mut directory_depth = view.load(word::DEPTH).min(u64::from(view.layout.depth_max)) as u32;
        if directory_depth == depth && depth < view.layout.depth_max {
            for entry in 0..1 << depth {
                store_word(view, directory + 8 * ((1 << depth) + entry), view.load(directory + 8 * entry));
            }
            directory_depth += 1;
            // Pairs with the acquire fence in `StoreView::shard`: who sees the depth sees the entries.
            store_word(view, word::DEPTH, u64::from(directory_depth));
        }
        for entry in (bits..1 << directory_depth).step_by(1 << depth) {
            store_word(view, directory + 8 * entry, self.halves[(entry >> depth & 1) as usize]);
        }
        let version = version::new(self.time, false);
        retire_lines(view, self.shard, version);
        for place in &self.old_chains {
            store_word(view, *place, version);
        }
    }
}

/// Says in all buckets of a shard, which nobody else writes, that their keys are elsewhere.
pub(crate) fn retire_lines(view: &StoreView, shard: u64, version: u64) {
    for unit in view.lines(shard) {
        unit.store(0, unit.load(0) | version::LOCKED);
        unit.fence_release();
        unit.store(1, 0);
        unlock(unit, version);
    }
}

/// Deletes all keys at one moment: all of them are locked before the first one goes. What is locked for it already stays
/// locked.
fn delete_keys(view: &StoreView, version: u64, freed: &mut dyn FnMut(u64)) {
    let lock = |unit: &[std::sync::atomic::AtomicU64]| unit.store(0, unit.load(0) | version::LOCKED);
    let shards = view.shards();
    for shard in &shards {
        let mut is_occupied = [false; SHARD_LINES as usize + 1];
        view.each_slot(*shard, |cell| {
            let line = view.words.place_of(cell).wrapping_sub(*shard) / BUCKET_BYTES;
            if let Some(is_occupied) = is_occupied.get_mut(line as usize) {
                *is_occupied = true;
            }
            let place = TableSlot(cell.load(Ordering::Relaxed)).address().place;
            view.section_units(place).into_iter().for_each(|(_, section)| lock(section));
            if let Some((unit, ..)) = view.slot(place) {
                lock(unit);
            }
        });
        for (line, unit) in view.lines(*shard).enumerate().skip(1) {
            // A bucket that was the home of no key says as before that a key is absent. That is decided before its slots
            // are emptied, and stays so if this is done again.
            let is_empty = !is_occupied[line]
                && !is_occupied[line + 1]
                && BucketWord::from_word(unit.load(1)).chain == 0;
            unit.store(0, if is_empty { unit.load(0) } else { version } | version::LOCKED);
        }
    }
    view.fence_release();
    for shard in &shards {
        view.each_slot(*shard, |cell| {
            let address = TableSlot(cell.load(Ordering::Relaxed)).address();
            let head = view.slot(address.place).map(|(unit, ..)| (address, unit));
            // The sections first: their list is in the head. The slot last: it leads to the head.
            for (address, unit) in view.section_units(address.place).into_iter().chain(head) {
                unit.store(1, ObjectShape::free_after(address.incarnation).to_word());
                unlock(unit, version);
                freed(address.place);
            }
            set(cell, 0);
        });
        for unit in view.lines(*shard).skip(1) {
            unlock(unit, unit.load(0) & !version::LOCKED);
        }
        if let Some(keys) = view.shard_keys(shard + BUCKET_BYTES) {
            set(keys, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_change_comes_back_from_its_words() {
        let swing = ShardSwing {
            shard: 1,
            keys: HashSuffix { depth: 2, bits: 3 },
            halves: [4, 5],
            time: 6,
            new_chains: vec![7, 8],
            old_chains: vec![9],
        };
        let format = StructureChange::FormatBlock { block: 1, class: 2, changes: 3, version: 4 };
        for change in [format, StructureChange::SwingShard(swing), StructureChange::DeleteKeys { version: 5 }]
        {
            let words = change.to_words();
            assert_eq!(StructureChange::from_words(&words), Some(change));
            assert_eq!(StructureChange::from_words(&words[..1]), None);
        }
    }
}
