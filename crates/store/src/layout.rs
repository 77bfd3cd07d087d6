//! Where everything lies in the memory of a store, and how its words are packed.
//!
//! | bytes | contents |
//! |---|---|
//! | 0 .. 4096 | the words of the store (`word`), the unchanging ones first |
//! | `directory_place` .. | a word for each entry of the directory: the place of a shard of the table |
//! | `classes_place` .. | a word for each block: its class and how often that has changed |
//! | `lanes_place` .. | the lanes of the log (`log`) |
//! | `blocks_place` .. | blocks of 1 MiB |

use crate::error::StoreError;
use crate::limits::LANES;
use crate::words::StoreWords;

/// The bytes before everything else, which hold the words of the store.
pub(crate) const FIRST_PAGE_BYTES: u64 = 4096;
/// The bytes of a block, which holds objects of one size class, or shards.
pub(crate) const BLOCK_BYTES: u64 = 1 << 20;
/// The bytes of a shard of the table.
pub(crate) const SHARD_BYTES: u64 = 64 << 10;
/// The bytes of a lane of the log: the record of a commit of a few small pairs fits.
pub(crate) const LANE_BYTES: u64 = 4 << 10;
/// The bytes of a bucket: a cache line.
pub(crate) const BUCKET_BYTES: u64 = 64;
/// The words of an object's header: version, shape, checksum.
pub(crate) const HEADER_WORDS: usize = 3;
/// The bytes of an object's header.
pub(crate) const HEADER_BYTES: usize = 8 * HEADER_WORDS;

/// "CaraStr3" in the order of the machine's bytes: another format, or a machine of the other order, does not
/// match.
pub(crate) const MAGIC: u64 = u64::from_be_bytes(*b"CaraStr3");
/// Stands in the place of [`MAGIC`] while a store is made.
pub(crate) const MAGIC_UNFINISHED: u64 = u64::from_be_bytes(*b"CaraStr?");
/// The most bits of a hash that choose a shard.
pub(crate) const DEPTH_MAX: u32 = 24;

/// The places of the store's own words.
pub(crate) mod word {
    pub(crate) const MAGIC: u64 = 0;
    pub(crate) const REGION_BYTES: u64 = 8;
    pub(crate) const HASH_SEED: u64 = 16;
    /// XXH3-64 of the words before.
    pub(crate) const CHECKSUM: u64 = 24;
    /// These change, each in a cache line of its own.
    pub(crate) const COMMITTED: u64 = 64;
    pub(crate) const NOW_MS: u64 = 128;
    pub(crate) const DEPTH: u64 = 192;
    pub(crate) const TIME: u64 = 256;
    /// The identity of the stream that the owner's copies follow, 0 if it has none.
    pub(crate) const STREAM: u64 = 320;
}

/// How many objects the ledger leads to: branches and decisions of transactions over several parts ([`crate::ledger`]). They
/// are the second half of the first page.
pub(crate) const LEDGER_ENTRIES: usize = 256;

/// Returns the place of an entry of the ledger: the address of its object, or 0.
pub(crate) fn ledger_place(entry: usize) -> u64 {
    FIRST_PAGE_BYTES - 8 * (LEDGER_ENTRIES - entry) as u64
}

/// The places that follow from the size of the region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StoreLayout {
    pub(crate) directory_place: u64,
    pub(crate) depth_max: u32,
    pub(crate) classes_place: u64,
    pub(crate) lanes_place: u64,
    pub(crate) blocks_place: u64,
    pub(crate) blocks_max: u64,
}

impl StoreLayout {
    /// Returns the layout of a region of at most `bytes` bytes.
    pub(crate) fn of(bytes: u64) -> Self {
        let shards = (bytes / SHARD_BYTES).max(2);
        let depth_max = (u64::BITS - (shards - 1).leading_zeros()).min(DEPTH_MAX);
        let directory_place = FIRST_PAGE_BYTES;
        let classes_place = directory_place + (8 << depth_max);
        let lanes_place = (classes_place + 8 * (bytes / BLOCK_BYTES)).next_multiple_of(4096);
        let blocks_place = lanes_place + LANES as u64 * LANE_BYTES;
        let blocks_max = bytes.saturating_sub(blocks_place) / BLOCK_BYTES;
        Self { directory_place, depth_max, classes_place, lanes_place, blocks_place, blocks_max }
    }

    /// Returns the bytes of a region with all of its blocks.
    pub(crate) fn region_bytes(&self) -> u64 {
        self.blocks_place + self.blocks_max * BLOCK_BYTES
    }

    /// Returns the place of a block.
    pub(crate) fn block_place(&self, block: u64) -> u64 {
        self.blocks_place + block * BLOCK_BYTES
    }

    /// Returns the block in which `place` lies, and the offset there.
    #[inline]
    pub(crate) fn block_of(&self, place: u64) -> Option<(u64, u32)> {
        let offset = place.checked_sub(self.blocks_place)?;
        Some((offset / BLOCK_BYTES, (offset % BLOCK_BYTES) as u32))
    }

    /// Returns the place of the word that says the class of a block.
    #[inline]
    pub(crate) fn class_place(&self, block: u64) -> u64 {
        self.classes_place + 8 * block
    }
}

/// A version: time 48, coordinator 13, one bit unused, allocated, locked, from the highest bit down.
///
/// There is one coordinator, the process that owns the store: its threads take times from one clock.
pub(crate) mod version {
    pub(crate) use crate::protocol::LOCKED;
    pub(crate) const ALLOCATED: u64 = 2;

    pub(crate) fn new(time: u64, allocated: bool) -> u64 {
        time << 16 | if allocated { ALLOCATED } else { 0 }
    }
    #[inline]
    pub(crate) fn time(version: u64) -> u64 {
        version >> 16
    }
    #[inline]
    pub(crate) fn is_allocated(version: u64) -> bool {
        version & ALLOCATED != 0
    }
}

/// The second word of an object: incarnation 16, key 8, flags 8, size 32, from the highest bit down.
///
/// The class of an object is known by its block, so its byte here holds the length of the key, which
/// makes a small pair 8 bytes smaller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ObjectShape {
    pub(crate) incarnation: u16,
    /// The bytes of the key; [`LONG_KEY`] if the payload begins with a word that says so.
    pub(crate) key: u8,
    pub(crate) flags: u8,
    /// The bytes of the payload: expiry (8, if flagged), length of a long key (8, if long), key, value.
    pub(crate) size: u32,
}

/// The value of [`ObjectShape::key`] for keys of at least as many bytes.
pub(crate) const LONG_KEY: u8 = 255;

impl ObjectShape {
    /// The object holds a key and its value.
    pub(crate) const KEYED: u8 = 1;
    /// The payload begins with the time at which the key expires.
    pub(crate) const EXPIRES: u8 = 2;
    /// The object is a bucket of a chain.
    pub(crate) const CHAIN: u8 = 4;
    /// The object is a session.
    pub(crate) const SESSION: u8 = 8;
    /// The value of the key is long: the object holds the list of its sections.
    pub(crate) const LONG_VALUE: u8 = 16;
    /// The object is a branch or a decision that the ledger leads to.
    pub(crate) const LEDGER: u8 = 64;
    /// The object is a section of a long value: it holds the key, and a part of the value.
    pub(crate) const SECTION: u8 = 32;

    #[inline]
    pub(crate) fn from_word(word: u64) -> Self {
        Self {
            incarnation: (word >> 48) as u16,
            key: (word >> 40) as u8,
            flags: (word >> 32) as u8,
            size: word as u32,
        }
    }

    pub(crate) fn to_word(self) -> u64 {
        u64::from(self.incarnation) << 48
            | u64::from(self.key) << 40
            | u64::from(self.flags) << 32
            | u64::from(self.size)
    }

    /// Returns the shape of a free place after an object of this incarnation.
    pub(crate) fn free_after(incarnation: u16) -> Self {
        Self { incarnation: incarnation.wrapping_add(1), ..Self::default() }
    }

    #[inline]
    pub(crate) fn has(self, flag: u8) -> bool {
        self.flags & flag != 0
    }
}

/// The class of a block, as its word says: how often it has changed, and the class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockWord {
    pub(crate) changes: u64,
    pub(crate) class: Option<BlockClass>,
}

/// What a block holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BlockClass {
    /// Shards of the table.
    Shards,
    /// Objects of the size class with this number.
    Objects(u8),
}

impl BlockWord {
    #[inline]
    pub(crate) fn from_word(word: u64) -> Self {
        let class = match word & 0xffff {
            0 => None,
            1 => Some(BlockClass::Shards),
            class => Some(BlockClass::Objects((class - 2) as u8)),
        };
        Self { changes: word >> 16, class }
    }

    pub(crate) fn to_word(self) -> u64 {
        let class = match self.class {
            None => 0,
            Some(BlockClass::Shards) => 1,
            Some(BlockClass::Objects(class)) => u64::from(class) + 2,
        };
        self.changes << 16 | class
    }
}

/// The sizes of objects with their headers: each multiple of 8 up to 128, then steps of about an eighth, each
/// dividing a block with little left.
pub(crate) static CLASS_BYTES: [u32; CLASSES] = class_bytes();
/// The number of size classes.
pub(crate) const CLASSES: usize = 69;

const fn class_bytes() -> [u32; CLASSES] {
    let mut sizes = [0; CLASSES];
    let (mut count, mut size) = (0, 32);
    while size <= 128 {
        sizes[count] = size;
        (count, size) = (count + 1, size + 8);
    }
    let mut slots = BLOCK_BYTES as u32 / 128;
    while slots > 1 {
        slots = if slots >= 8 { slots * 7 / 8 } else { slots - 1 };
        sizes[count] = BLOCK_BYTES as u32 / slots / 8 * 8;
        count += 1;
    }
    assert!(count == CLASSES);
    sizes
}

/// Returns the least class whose objects have at least `bytes` bytes, header included.
pub(crate) fn class_for(bytes: usize) -> Option<u8> {
    let class = CLASS_BYTES.partition_point(|size| (*size as usize) < bytes);
    (class < CLASSES).then_some(class as u8)
}

/// Returns the checksum of the words that never change.
pub(crate) fn words_checksum(region_bytes: u64, hash_seed: u64) -> u64 {
    let bytes = [MAGIC, region_bytes, hash_seed].map(u64::to_ne_bytes).concat();
    twox_hash::XxHash3_64::oneshot(&bytes)
}

/// Reads the layout from a mapped region, and refuses one that is none.
pub(crate) fn read_layout(words: &StoreWords) -> Result<StoreLayout, StoreError> {
    let load = |place| words.words(place, 1).map(|word| crate::protocol::UnitWords::load(word, 0));
    if load(word::MAGIC) != Some(MAGIC) {
        return Err(StoreError::NotAStore("it does not begin as the memory of a store of this version"));
    }
    let layout = StoreLayout::of(load(word::REGION_BYTES).unwrap_or(0));
    if layout.region_bytes() != words.bytes() || layout.blocks_max == 0 {
        return Err(StoreError::NotAStore("its size is not what it says"));
    }
    Ok(layout)
}
