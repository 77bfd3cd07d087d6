//! The table: which object holds a key. Chained associative hopscotch: a key is in its bucket or the next
//! one, or else in the chain of its bucket.
//!
//! Invariants: a key has at most one slot. All slots of keys whose home is a bucket, wherever they lie,
//! change only while that bucket is locked, and then its version changes: so an unchanged, unlocked version
//! proves that a key is absent. A bucket says which hashes it is for, so a reader that came by an old entry
//! of the directory notices.
//!
//! | word of a bucket | contents |
//! |---|---|
//! | 0 | version |
//! | 1 | depth plus 1 (0 if its keys are elsewhere) 6, suffix 24, place of the first bucket of the chain divided by 8, 34 |
//! | 2 to 7 | slots: 0, or tag 8, incarnation 16, place 40 |
//!
//! A shard has 1,024 lines of 64 bytes: line 0 is a bucket that holds nothing but the number of keys in the
//! shard, the last line is only the next one of the line before. A bucket of a chain is an object: next / 8
//! in word 0 of its payload, slots in the others.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::entry::ObjectAddress;
use crate::faults::{PlantedFault, is_planted};
use crate::layout::{BUCKET_BYTES, HEADER_BYTES, HEADER_WORDS, ObjectShape, SHARD_BYTES, version, word};
use crate::limits::CHAIN_BUCKETS_MAX;
use crate::protocol::{UnitWords, Unsettled};
use crate::view::{AtPlace, ObjectHead, ObjectPayload, StoreView};

/// The lines of a shard, the line of counters included.
pub(crate) const SHARD_LINES: u64 = SHARD_BYTES / BUCKET_BYTES;
/// The buckets of a shard that are the home of keys.
pub(crate) const HOMES: u64 = SHARD_LINES - 2;
/// The words of a bucket.
pub(crate) const BUCKET_WORDS: usize = BUCKET_BYTES as usize / 8;
/// The slots of a bucket.
pub(crate) const SLOTS: usize = 6;
/// The slots of a bucket of a chain.
pub(crate) const CHAIN_SLOTS: usize = 6;
/// The words of a bucket before its slots.
pub(crate) const SLOTS_FROM: usize = 2;
/// The payload bytes of a bucket of a chain.
pub(crate) const CHAIN_PAYLOAD: usize = 8 + 8 * CHAIN_SLOTS;
/// The bits of a place in a slot.
const PLACE_BITS: u32 = 40;
/// The second word of a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BucketWord {
    /// How many low bits of a hash the keys here have in common, and those bits; `None` if the keys are
    /// elsewhere.
    pub(crate) keys: Option<HashSuffix>,
    /// The place of the first bucket of the chain, or 0.
    pub(crate) chain: u64,
}

/// The low bits that some hashes have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HashSuffix {
    pub(crate) depth: u32,
    pub(crate) bits: u64,
}

impl BucketWord {
    #[inline]
    pub(crate) fn from_word(word: u64) -> Self {
        let chain = (word & ((1 << 34) - 1)) << 3;
        let depth = ((word >> 58) as u32).checked_sub(1);
        Self { keys: depth.map(|depth| HashSuffix { depth, bits: word >> 34 & 0xff_ffff }), chain }
    }

    pub(crate) fn to_word(self) -> u64 {
        // 34 bits of eights are `limits::MEMORY_BYTES_MAX`.
        let keys = self.keys.map_or(0, |keys| u64::from(keys.depth + 1) << 58 | keys.bits << 34);
        keys | self.chain >> 3
    }

    /// Tells whether keys with this hash are here.
    #[inline]
    pub(crate) fn is_for(self, hash: u64) -> bool {
        self.keys.is_some_and(|keys| hash & ((1 << keys.depth) - 1) == keys.bits)
    }
}

/// A slot of a bucket that is not empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TableSlot(pub(crate) u64);

impl TableSlot {
    pub(crate) fn new(hash: u64, address: ObjectAddress) -> Self {
        Self(tag(hash) << 56 | u64::from(address.incarnation) << PLACE_BITS | address.place)
    }

    #[inline]
    pub(crate) fn address(self) -> ObjectAddress {
        ObjectAddress { place: self.0 & ((1 << PLACE_BITS) - 1), incarnation: (self.0 >> PLACE_BITS) as u16 }
    }
}

/// Returns the bits of a hash that a slot keeps.
#[inline]
pub(crate) fn tag(hash: u64) -> u64 {
    hash >> 24 & 0xff
}

/// Returns the line of the home bucket in its shard.
#[inline]
pub(crate) fn home_line(hash: u64) -> u64 {
    1 + ((hash >> 32) * HOMES >> 32)
}

/// Where a key is, or would be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LocatedKey {
    /// The key has an object.
    Present { address: ObjectAddress, head: ObjectHead, home: u64, slot_place: u64 },
    /// The key has none as long as the bucket at `home` has this version.
    Absent { home: u64, version: u64 },
}

/// The object of a key, the place of its slot, and what a body made of its payload.
struct FoundKey<R> {
    slot_place: u64,
    address: ObjectAddress,
    head: ObjectHead,
    result: R,
}

impl StoreView {
    /// Returns the place of the home bucket of a hash, by the directory.
    #[inline]
    pub(crate) fn home(&self, hash: u64) -> u64 {
        self.shard(hash) + BUCKET_BYTES * home_line(hash)
    }

    /// Returns the place of the shard of a hash, by the directory.
    #[inline]
    pub(crate) fn shard(&self, hash: u64) -> u64 {
        let depth = self.load(word::DEPTH).min(u64::from(self.layout.depth_max));
        // Entries are stored before the depth: pairs with the release store in `Table::split`.
        self.fence_acquire();
        let shard = self.load(self.layout.directory_place + 8 * (hash & ((1 << depth) - 1)));
        // What is in the shard was stored before its entry.
        self.fence_acquire();
        shard
    }

    /// Looks a key up once; `body` sees the payload of its object, and maybe before that others or torn ones,
    /// whose results are dropped.
    #[inline]
    pub(crate) fn lookup<R>(
        &self,
        hash: u64,
        key: &[u8],
        mut body: impl FnMut(ObjectPayload<'_>) -> R,
    ) -> Result<(LocatedKey, Option<R>), Unsettled> {
        let home = self.home(hash);
        let both = self.unit(home, 2 * BUCKET_BYTES as usize / 8).ok_or(Unsettled)?;
        let version = both.load(0);
        both.fence_acquire();
        let bucket = BucketWord::from_word(both.load(1));
        let slots = both[SLOTS_FROM..8].iter().chain(&both[8 + SLOTS_FROM..]);
        let mut is_settled = true;
        let mut found = self.find(hash, key, slots, &mut is_settled, &mut body);
        let mut chain = bucket.chain;
        let mut buckets = 0;
        while found.is_none() && chain != 0 {
            buckets += 1;
            let unit = self.unit(chain + HEADER_BYTES as u64, 1 + CHAIN_SLOTS).ok_or(Unsettled)?;
            found = self.find(hash, key, &unit[1..], &mut is_settled, &mut body);
            chain = unit.load(0) << 3;
            if buckets > CHAIN_BUCKETS_MAX {
                return Err(Unsettled);
            }
        }
        if let Some(FoundKey { slot_place, address, head, result }) = found {
            return Ok((LocatedKey::Present { address, head, home, slot_place }, Some(result)));
        }
        both.fence_acquire();
        if !is_settled {
            return Err(Unsettled);
        }
        let is_unchanged = version & version::LOCKED == 0 && both.load(0) == version && bucket.is_for(hash);
        if !is_unchanged && !is_planted(PlantedFault::HastyAbsence) {
            return Err(Unsettled);
        }
        Ok((LocatedKey::Absent { home, version }, None))
    }

    /// Looks for the key among slots. An object that holds it proves that it is there, however its slot was
    /// found; a slot whose object is gone proves nothing, as it may have changed since: the home bucket's
    /// version tells.
    #[inline]
    fn find<'w, R>(
        &self,
        hash: u64,
        key: &[u8],
        slots: impl IntoIterator<Item = &'w AtomicU64>,
        is_settled: &mut bool,
        body: &mut impl FnMut(ObjectPayload<'_>) -> R,
    ) -> Option<FoundKey<R>> {
        for cell in slots {
            let slot = cell.load(Ordering::Relaxed);
            if slot == 0 || slot >> 56 != tag(hash) {
                continue;
            }
            let followed = self.follow(TableSlot(slot), key, body);
            // It may be another key's, and this key further on.
            *is_settled &= followed.is_ok();
            if let Ok(Some((address, head, result))) = followed {
                return Some(FoundKey { slot_place: self.words.place_of(cell), address, head, result });
            }
        }
        None
    }

    /// Reads the object to which a slot leads once, and returns it if it holds the key.
    #[inline]
    pub(crate) fn follow<R>(
        &self,
        slot: TableSlot,
        key: &[u8],
        body: &mut impl FnMut(ObjectPayload<'_>) -> R,
    ) -> Result<Option<(ObjectAddress, ObjectHead, R)>, Unsettled> {
        // The object was stored before its slot.
        self.fence_acquire();
        let address = slot.address();
        let read = self.object(address.place, |payload| payload.has_key(key).then(|| body(payload)))?;
        let AtPlace::Object((head, Some(result))) = read else { return Ok(None) };
        let is_same = head.shape.incarnation == address.incarnation && head.shape.has(ObjectShape::KEYED);
        Ok(is_same.then_some((address, head, result)))
    }

    /// Returns the first slot near `home` with the tag of `hash`, and asks for its object.
    #[inline]
    pub(crate) fn expect_object(&self, hash: u64, home: u64) -> Option<TableSlot> {
        let both = self.unit(home, 2 * BUCKET_BYTES as usize / 8)?;
        let wanted = tag(hash);
        let is_wanted = |slot: &u64| *slot >> 56 == wanted && *slot != 0;
        let load = |cell: &AtomicU64| cell.load(Ordering::Relaxed);
        let slot = both[SLOTS_FROM..8].iter().map(load).find(is_wanted);
        let slot = slot.or_else(|| both[8 + SLOTS_FROM..].iter().map(load).find(is_wanted)).map(TableSlot)?;
        let place = slot.address().place;
        self.words.prefetch(place);
        self.words.prefetch(place + BUCKET_BYTES);
        Some(slot)
    }

    /// Looks a key up without its value, once.
    pub(crate) fn locate(&self, hash: u64, key: &[u8]) -> Result<LocatedKey, Unsettled> {
        self.lookup(hash, key, |_| ()).map(|(located, _)| located)
    }

    /// Returns the words of a chain's bucket: the next one's place divided by 8, and the slots.
    pub(crate) fn chain_cells(&self, chain: u64) -> Option<&[AtomicU64]> {
        self.unit(chain + 8 * HEADER_WORDS as u64, 1 + CHAIN_SLOTS)
    }

    /// Returns the counter of the keys in the shard of a bucket.
    pub(crate) fn shard_keys(&self, bucket: u64) -> Option<&AtomicU64> {
        let offset = (bucket - self.layout.blocks_place) % SHARD_BYTES;
        self.unit(bucket - offset + 8, 1)?.first()
    }

    /// Returns the lines of a shard, the one of counters first.
    pub(crate) fn lines(&self, shard: u64) -> impl Iterator<Item = &[AtomicU64]> {
        (0..SHARD_LINES).filter_map(move |line| self.unit(shard + line * BUCKET_BYTES, BUCKET_WORDS))
    }

    /// Calls `each` with every slot of a shard that is not empty, chains included.
    pub(crate) fn each_slot(&self, shard: u64, mut each: impl FnMut(&AtomicU64)) {
        self.lines(shard).skip(1).for_each(|unit| self.each_slot_of_bucket(unit, &mut each));
    }

    /// Calls `each` with every slot that is not empty of the two buckets and the chain where the keys of a home are.
    pub(crate) fn each_slot_of(&self, home: u64, each: &mut impl FnMut(&AtomicU64)) {
        for bucket in [home, home + BUCKET_BYTES] {
            if let Some(unit) = self.unit(bucket, BUCKET_WORDS) {
                self.each_slot_of_bucket(unit, each);
            }
        }
    }

    fn each_slot_of_bucket(&self, unit: &[AtomicU64], each: &mut impl FnMut(&AtomicU64)) {
        let mut each = |cells: &[AtomicU64]| {
            cells.iter().filter(|cell| cell.load(Ordering::Relaxed) != 0).for_each(&mut *each);
        };
        each(&unit[SLOTS_FROM..]);
        let mut chain = BucketWord::from_word(unit.load(1)).chain;
        for _ in 0..CHAIN_BUCKETS_MAX {
            let Some(cells) = (chain != 0).then(|| self.chain_cells(chain)).flatten() else { break };
            each(&cells[1..]);
            chain = cells.load(0) << 3;
        }
    }

    /// Returns the shards of the table.
    pub(crate) fn shards(&self) -> Vec<u64> {
        let entries = 1 << self.load(word::DEPTH);
        let mut shards: Vec<_> = (0..entries).map(|entry| self.shard(entry)).collect();
        shards.sort_unstable();
        shards.dedup();
        shards
    }
}
