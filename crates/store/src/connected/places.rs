//! What a client that maps nothing remembers of where keys lie. All of it may be out of date: a read proves what it
//! finds, and a wrong guess costs a call, whose reply corrects it.

use std::collections::{BTreeMap, HashMap};

use crate::calls::ShardHint;
use crate::entry::ObjectAddress;
use crate::layout::{BUCKET_BYTES, BlockClass, BlockWord, CLASS_BYTES, StoreLayout};
use crate::limits;
use crate::table::home_line;

/// The shards, classes of blocks and addresses of keys that a client knows.
#[derive(Debug)]
pub(crate) struct KnownPlaces {
    layout: StoreLayout,
    /// By the least of a shard's hashes with all bits reversed, so that each shard is a range.
    shards: BTreeMap<u64, (u32, u64)>,
    classes: HashMap<u64, u64>,
    /// By some bits of the hash: the hash and the address. A later key takes the place of an earlier one.
    addresses: Vec<(u64, ObjectAddress)>,
}

impl KnownPlaces {
    pub(crate) fn new(layout: StoreLayout) -> Self {
        let nowhere = ObjectAddress { place: 0, incarnation: 0 };
        let addresses = vec![(0, nowhere); limits::ADDRESSES_REMEMBERED];
        Self { layout, shards: BTreeMap::new(), classes: HashMap::new(), addresses }
    }

    /// Returns the place of the home bucket of a hash.
    pub(crate) fn home(&self, hash: u64) -> Option<u64> {
        let reversed = hash.reverse_bits();
        let (start, (depth, shard)) = self.shards.range(..=reversed).next_back()?;
        let is_within = *depth == 0 || (reversed ^ start) >> (u64::BITS - depth) == 0;
        // The server may have said anything.
        shard.checked_add(BUCKET_BYTES * home_line(hash)).filter(|_| is_within)
    }

    /// Learns from the reply to a call where the key with this hash lies; `object` is the place of its object.
    pub(crate) fn learn(&mut self, hash: u64, hint: &ShardHint, object: Option<u64>) {
        let depth = hint.keys.depth.min(crate::layout::DEPTH_MAX);
        let start = hint.keys.bits.reverse_bits();
        let width = if depth == 0 { u64::MAX } else { (1 << (u64::BITS - depth)) - 1 };
        if let Some((block, _)) = object.and_then(|place| self.layout.block_of(place)) {
            self.classes.insert(block, hint.class_word);
        }
        if self.shards.get(&start) == Some(&(depth, hint.shard)) {
            return;
        }
        // The shard that was split, or parts of one that a lie puts here.
        let before = self.shards.range(..=hash.reverse_bits()).next_back().map(|(start, _)| *start);
        before.into_iter().for_each(|start| _ = self.shards.remove(&start));
        let within: Vec<u64> =
            self.shards.range(start..=start.saturating_add(width)).map(|(start, _)| *start).collect();
        within.iter().for_each(|start| _ = self.shards.remove(start));
        self.shards.insert(start, (depth, hint.shard));
    }

    /// Returns the bytes of the object at `place`, the place of its block's class word, and that word.
    pub(crate) fn class_at(&self, place: u64) -> Option<(usize, u64, u64)> {
        let (block, offset) = self.layout.block_of(place)?;
        let class_word = *self.classes.get(&block)?;
        let Some(BlockClass::Objects(class)) = BlockWord::from_word(class_word).class else { return None };
        let bytes = *CLASS_BYTES.get(usize::from(class))?;
        (offset % bytes == 0).then_some((bytes as usize, self.layout.class_place(block), class_word))
    }

    /// Forgets the class of the block of a place.
    pub(crate) fn forget_class(&mut self, place: u64) {
        if let Some((block, _)) = self.layout.block_of(place) {
            self.classes.remove(&block);
        }
    }

    fn row(hash: u64) -> usize {
        (hash >> 8) as usize % limits::ADDRESSES_REMEMBERED
    }

    /// Returns the address of a key's object, as of when it was last read.
    pub(crate) fn address(&self, hash: u64) -> Option<ObjectAddress> {
        let (of, address) = self.addresses[Self::row(hash)];
        (of == hash && address.place != 0).then_some(address)
    }

    /// Remembers the address of a key's object.
    pub(crate) fn remember(&mut self, hash: u64, address: ObjectAddress) {
        self.addresses[Self::row(hash)] = (hash, address);
    }

    /// Forgets the address of a key's object.
    pub(crate) fn forget(&mut self, hash: u64) {
        self.addresses[Self::row(hash)].1.place = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::HashSuffix;

    fn hint(shard: u64, depth: u32, bits: u64) -> ShardHint {
        ShardHint { shard, keys: HashSuffix { depth, bits }, class_word: 0 }
    }

    #[test]
    fn a_shard_beyond_all_memory_is_nowhere() {
        let mut places = KnownPlaces::new(StoreLayout::of(64 << 20));
        places.learn(5, &hint(u64::MAX, 0, 0), None);
        assert_eq!(places.home(5), None);
    }

    #[test]
    fn a_split_takes_the_place_of_its_shard_and_of_nothing_else() {
        let mut places = KnownPlaces::new(StoreLayout::of(64 << 20));
        let shard = |places: &KnownPlaces, hash: u64| places.home(hash).map(|home| home & !0xffff);
        assert_eq!(places.home(5), None);
        places.learn(0b101, &hint(0x10000, 0, 0), None);
        assert_eq!(shard(&places, 0b110), Some(0x10000));
        // The shard was split; the other half is not known yet.
        places.learn(0b101, &hint(0x20000, 1, 1), None);
        assert_eq!((shard(&places, 0b011), shard(&places, 0b110)), (Some(0x20000), None));
        places.learn(0b110, &hint(0x30000, 2, 0b10), None);
        places.learn(0b100, &hint(0x40000, 2, 0b00), None);
        places.learn(0b001, &hint(0x50000, 2, 0b01), None);
        let found = [0b000, 0b001, 0b010, 0b011].map(|hash| shard(&places, hash));
        assert_eq!(found, [Some(0x40000), Some(0x50000), Some(0x30000), None]);
    }
}
