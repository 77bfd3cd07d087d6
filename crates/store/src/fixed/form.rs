//! The form of a fixed table's objects, as bytes: pure functions, for mapped memory, for transactions, and for
//! bytes that came over a network.
//!
//! | word of the head | contents |
//! |---|---|
//! | 0 | [`MAGIC`] |
//! | 1 | bytes of a key 32, bytes of a value 32 |
//! | 2 | seed of the hash |
//! | 3 | depth of the directory 8, buckets of a shard 24, bytes from bucket to bucket 32 |
//! | 4 | address of the directory |
//!
//! An address is a word: place 40, incarnation 16. A word of the directory is the address of the first bucket of
//! a shard, and above it the depth of the shard, 8.
//!
//! | word of a bucket | contents |
//! |---|---|
//! | 0 | slots in use 8, filter of the chain 8, from the lowest bit up |
//! | 1 | moves of the keys whose home is this bucket 32, those of the bucket before it 32 |
//! | 2 | address of the first object of the chain, or 0 |
//! | then | slots: key, value |
//!
//! An object of a chain has the same form; its word 1 holds the moves of the home, and its word 2 leads to the next
//! object.

use crate::entry::ObjectAddress;
use crate::error::StoreError;
use crate::layout::HEADER_BYTES;
use crate::limits;

/// "CaraFix1" in the order of the machine's bytes.
pub(crate) const MAGIC: u64 = u64::from_be_bytes(*b"CaraFix1");
/// The bytes of a table's head.
pub(crate) const HEAD_BYTES: usize = 40;
/// The slots of a bucket. A key is in its home or the next bucket, which have H = 8 slots.
pub(crate) const BUCKET_SLOTS: usize = 4;
/// The slots of an object of a chain. Few chains have more keys; objects of another size than the buckets leave
/// the memory between shards whole.
pub(crate) const CHAIN_OBJECT_SLOTS: usize = 2;
/// The bytes of a bucket before its slots.
const SLOTS_AT: usize = 24;

fn word(bytes: &[u8], index: usize) -> u64 {
    bytes.get(8 * index..).and_then(|bytes| bytes.first_chunk()).map_or(0, |word| u64::from_ne_bytes(*word))
}

fn set_word(bytes: &mut [u8], index: usize, value: u64) {
    bytes[8 * index..8 * index + 8].copy_from_slice(&value.to_ne_bytes());
}

/// The bytes of a key and of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PairForm {
    pub(crate) key_bytes: usize,
    pub(crate) value_bytes: usize,
}

impl PairForm {
    pub(crate) fn new(key_bytes: usize, value_bytes: usize) -> Result<Self, StoreError> {
        if key_bytes == 0 || key_bytes.saturating_add(value_bytes) > limits::FIXED_PAIR_BYTES_MAX {
            return Err(StoreError::FixedSizes { key_bytes, value_bytes });
        }
        Ok(Self { key_bytes, value_bytes })
    }

    pub(crate) fn pair_bytes(self) -> usize {
        self.key_bytes + self.value_bytes
    }

    /// Returns the bytes of the payload of a bucket, or of an object of a chain, with so many slots.
    pub(crate) fn bucket_bytes(self, slots: usize) -> usize {
        SLOTS_AT + slots * self.pair_bytes()
    }

    pub(crate) fn check_key(self, key: &[u8]) -> Result<(), StoreError> {
        match key.len() == self.key_bytes {
            true => Ok(()),
            false => Err(StoreError::FixedKey { bytes: key.len(), takes: self.key_bytes }),
        }
    }

    pub(crate) fn check_value(self, value: &[u8]) -> Result<(), StoreError> {
        match value.len() == self.value_bytes {
            true => Ok(()),
            false => Err(StoreError::FixedValue { bytes: value.len(), takes: self.value_bytes }),
        }
    }
}

/// What the head of a table says. Only the depth and the directory change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FixedHead {
    pub(crate) form: PairForm,
    pub(crate) seed: u64,
    pub(crate) depth: u32,
    /// The buckets of a shard. The last one is the home of no key.
    pub(crate) buckets: u64,
    /// The bytes from a bucket to the next one.
    pub(crate) stride: u64,
    pub(crate) directory: ObjectAddress,
}

impl FixedHead {
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        let sizes = word(bytes, 1);
        let shape = word(bytes, 3);
        let head = Self {
            form: PairForm::new((sizes >> 32) as usize, sizes as u32 as usize).ok()?,
            seed: word(bytes, 2),
            depth: (shape >> 56) as u32,
            buckets: shape >> 32 & 0xff_ffff,
            stride: shape & 0xffff_ffff,
            directory: ObjectAddress::from_word(word(bytes, 4)),
        };
        let least = HEADER_BYTES + head.form.bucket_bytes(BUCKET_SLOTS);
        let is_sound = word(bytes, 0) == MAGIC
            && bytes.len() == HEAD_BYTES
            && head.depth <= limits::FIXED_DEPTH_MAX
            && (2..=limits::FIXED_SHARD_BUCKETS_MAX).contains(&head.buckets)
            && head.stride >= least as u64;
        is_sound.then_some(head)
    }

    pub(crate) fn to_bytes(self) -> Vec<u8> {
        let sizes = (self.form.key_bytes as u64) << 32 | self.form.value_bytes as u64;
        let shape = u64::from(self.depth) << 56 | self.buckets << 32 | self.stride;
        let words = [MAGIC, sizes, self.seed, shape, self.directory.to_word()];
        words.iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    pub(crate) fn hash(&self, key: &[u8]) -> u64 {
        twox_hash::XxHash3_64::oneshot_with_seed(self.seed, key)
    }

    /// Returns the entry of the directory for a hash: its high bits, so that the entries of a shard are
    /// neighbours.
    pub(crate) fn entry(&self, hash: u64) -> u64 {
        hash.checked_shr(u64::BITS - self.depth).unwrap_or(0)
    }

    /// Returns the bucket of a shard that is the home of a hash.
    pub(crate) fn home(&self, hash: u64) -> u64 {
        (hash >> 16 & 0xffff_ffff) * (self.buckets - 1) >> 32
    }

    /// Returns the address of a bucket of a shard: all of them have the incarnation of the first.
    pub(crate) fn bucket(&self, shard: FixedShard, line: u64) -> ObjectAddress {
        ObjectAddress { place: shard.first.place + line * self.stride, ..shard.first }
    }
}

/// A shard, as an entry of the directory says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FixedShard {
    pub(crate) first: ObjectAddress,
    pub(crate) depth: u32,
}

impl FixedShard {
    pub(crate) fn from_word(word: u64) -> Self {
        Self { first: ObjectAddress::from_word(word & ((1 << 56) - 1)), depth: (word >> 56) as u32 }
    }

    pub(crate) fn to_word(self) -> u64 {
        u64::from(self.depth) << 56 | self.first.to_word()
    }
}

/// The payload of a bucket, or of an object of a chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FixedBucket<B> {
    bytes: B,
    form: PairForm,
}

impl<B: AsRef<[u8]>> FixedBucket<B> {
    /// Takes the bytes of a payload; `None` if they are not those of a bucket with `slots` slots.
    pub(crate) fn new(form: PairForm, slots: usize, bytes: B) -> Option<Self> {
        (bytes.as_ref().len() == form.bucket_bytes(slots)).then_some(Self { bytes, form })
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        self.bytes.as_ref()
    }

    fn slots(&self) -> usize {
        (self.as_bytes().len() - SLOTS_AT) / self.form.pair_bytes()
    }

    fn is_used(&self, slot: usize) -> bool {
        word(self.as_bytes(), 0) >> slot & 1 != 0
    }

    pub(crate) fn has_room(&self) -> bool {
        (0..self.slots()).any(|slot| !self.is_used(slot))
    }

    pub(crate) fn is_empty(&self) -> bool {
        word(self.as_bytes(), 0) & 0xff == 0
    }

    fn slot_at(&self, slot: usize) -> usize {
        SLOTS_AT + slot * self.form.pair_bytes()
    }

    /// Returns the slots in use, with key and value.
    pub(crate) fn pairs(&self) -> impl Iterator<Item = (usize, &[u8], &[u8])> {
        (0..self.slots()).filter(|slot| self.is_used(*slot)).map(|slot| {
            let (key, value) =
                self.as_bytes()[self.slot_at(slot)..self.slot_at(slot + 1)].split_at(self.form.key_bytes);
            (slot, key, value)
        })
    }

    /// Returns the slot and the value of a key.
    pub(crate) fn find(&self, key: &[u8]) -> Option<(usize, &[u8])> {
        self.pairs().find(|(_, found, _)| *found == key).map(|(slot, _, value)| (slot, value))
    }

    /// Returns how many times keys whose home is this bucket have moved; of an object of a chain, those of its
    /// home.
    pub(crate) fn moves(&self) -> u32 {
        word(self.as_bytes(), 1) as u32
    }

    /// Returns how many times keys whose home is the bucket before this one have moved.
    pub(crate) fn moves_before(&self) -> u32 {
        (word(self.as_bytes(), 1) >> 32) as u32
    }

    /// Returns the first object of the chain, or the next one.
    pub(crate) fn chain(&self) -> Option<ObjectAddress> {
        Some(word(self.as_bytes(), 2)).filter(|word| *word != 0).map(ObjectAddress::from_word)
    }

    /// Tells whether the chain may hold a key with this hash.
    pub(crate) fn chain_may_hold(&self, hash: u64) -> bool {
        word(self.as_bytes(), 0) >> 8 & filter_bit(hash) != 0
    }
}

/// Returns the bit of a hash in the filter of a chain.
pub(crate) fn filter_bit(hash: u64) -> u64 {
    1 << (hash & 7)
}

impl FixedBucket<Vec<u8>> {
    /// Returns an empty bucket, or an empty object of a chain.
    pub(crate) fn empty(form: PairForm, slots: usize) -> Self {
        Self { bytes: vec![0; form.bucket_bytes(slots)], form }
    }

    /// Puts a pair into a free slot, and returns whether there was one.
    pub(crate) fn insert(&mut self, key: &[u8], value: &[u8]) -> bool {
        let Some(slot) = (0..self.slots()).find(|slot| !self.is_used(*slot)) else { return false };
        let used = word(&self.bytes, 0) | 1 << slot;
        set_word(&mut self.bytes, 0, used);
        let at = self.slot_at(slot);
        self.bytes[at..at + key.len()].copy_from_slice(key);
        self.set_value(slot, value);
        true
    }

    pub(crate) fn set_value(&mut self, slot: usize, value: &[u8]) {
        let at = self.slot_at(slot) + self.form.key_bytes;
        self.bytes[at..at + value.len()].copy_from_slice(value);
    }

    /// Empties a slot, and returns what was in it.
    pub(crate) fn take(&mut self, slot: usize) -> (Vec<u8>, Vec<u8>) {
        let used = word(&self.bytes, 0) & !(1 << slot);
        set_word(&mut self.bytes, 0, used);
        let (from, to) = (self.slot_at(slot), self.slot_at(slot + 1));
        let pair = self.bytes[from..to].to_vec();
        self.bytes[from..to].fill(0);
        let (key, value) = pair.split_at(self.form.key_bytes);
        (key.to_vec(), value.to_vec())
    }

    pub(crate) fn set_moves(&mut self, moves: u32) {
        let words = u64::from(self.moves_before()) << 32 | u64::from(moves);
        set_word(&mut self.bytes, 1, words);
    }

    pub(crate) fn set_moves_before(&mut self, moves: u32) {
        let words = u64::from(moves) << 32 | u64::from(self.moves());
        set_word(&mut self.bytes, 1, words);
    }

    pub(crate) fn set_chain(&mut self, chain: Option<ObjectAddress>) {
        set_word(&mut self.bytes, 2, chain.map_or(0, ObjectAddress::to_word));
    }

    /// Sets the filter of the chain: the bits of all hashes in it.
    pub(crate) fn set_filter(&mut self, filter: u64) {
        let low = word(&self.bytes, 0) & 0xff;
        set_word(&mut self.bytes, 0, low | filter << 8);
    }

    pub(crate) fn filter(&self) -> u64 {
        word(&self.bytes, 0) >> 8 & 0xff
    }
}
