use std::fmt;
use std::iter::Sum;

use crate::commit::ReadRecord;

/// The version of a key. It is new after each write of the key, and never comes back while the key exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KeyVersion(pub(crate) u64);

impl KeyVersion {
    /// The version of a key that does not exist.
    pub const ABSENT: Self = Self(0);

    /// Returns the version as a number, which is 0 for [`ABSENT`](Self::ABSENT) only.
    pub fn to_u64(self) -> u64 {
        self.0
    }

    /// Returns the version that [`to_u64`](Self::to_u64) returned as a number.
    pub fn from_u64(version: u64) -> Self {
        Self(version)
    }
}

/// What a key was at a moment, to notice later that it was written since. A version alone would not do for a key
/// that did not exist, and does not exist again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyWatch(pub(crate) WatchedUnit);

/// What proves that a key was not written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WatchedUnit {
    /// The key existed with this version.
    Live(KeyVersion),
    /// It did not, and does not as long as this unit is as it was: its bucket, or its object, which had expired.
    Gone(ReadRecord),
}

/// What a store says of a key beside its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryHead {
    /// The version of the key.
    pub version: KeyVersion,
    /// When the key expires, in milliseconds on the store's clock (`Store::publish_now`); `None` for never.
    pub expires_at_ms: Option<u64>,
}

/// The value of a key, with its version and expiry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreEntry {
    /// The value.
    pub value: Vec<u8>,
    /// The version and the expiry.
    pub head: EntryHead,
}

/// The address of an object: where it is, and which of the objects that were there over time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectAddress {
    pub(crate) place: u64,
    pub(crate) incarnation: u16,
}

impl ObjectAddress {
    /// Returns the place (56 bits: a region in bits 40 to 55, an offset below) and the incarnation as
    /// numbers.
    pub fn to_parts(self) -> (u64, u16) {
        (self.place, self.incarnation)
    }

    /// Returns the address that [`to_parts`](Self::to_parts) returned as numbers. Any numbers are safe: where
    /// there is no object, reads return an error.
    pub fn from_parts(place: u64, incarnation: u16) -> Self {
        Self { place, incarnation }
    }
}

impl ObjectAddress {
    /// Returns the address as one word: place 40, incarnation 16.
    pub(crate) fn to_word(self) -> u64 {
        u64::from(self.incarnation) << 40 | self.place
    }

    pub(crate) fn from_word(word: u64) -> Self {
        Self { place: word & ((1 << 40) - 1), incarnation: (word >> 40) as u16 }
    }
}

impl fmt::Display for ObjectAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}.{}", self.place, self.incarnation)
    }
}

/// Where a scan of all keys goes on. A new scan starts at [`ScanCursor::START`], and a scan is complete when
/// it returns that value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ScanCursor(pub(crate) u64);

impl ScanCursor {
    /// The start of a scan, and its end.
    pub const START: Self = Self(0);

    /// Returns the cursor as a number, 0 for [`START`](Self::START) only.
    pub fn to_u64(self) -> u64 {
        self.0
    }

    /// Returns the cursor with this number. Any number is safe: the scan goes on somewhere.
    pub fn from_u64(cursor: u64) -> Self {
        Self(cursor)
    }
}

/// The counters of a store since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoreCounts {
    /// The number of keys, those included that have expired and are not removed yet.
    pub keys: u64,
    /// The limit that the options set.
    pub memory_bytes: u64,
    /// The number of bytes in use, everything included.
    pub used_bytes: u64,
    /// Keys that the owner's threads looked up and found.
    pub hits: u64,
    /// Keys that the owner's threads looked up and did not find.
    pub misses: u64,
    /// Commits that wrote.
    pub commits: u64,
    /// Attempts that another transaction thwarted.
    pub conflicts: u64,
    /// Keys that have an expiry, as the last walk of [`Store::remove_expired`](crate::Store::remove_expired) through all
    /// keys counted them.
    pub expiring: u64,
    /// Keys removed because they had expired.
    pub expired: u64,
    /// Keys removed for want of memory.
    pub evicted: u64,
    /// Sessions that are open.
    pub sessions: u64,
}

impl Sum for StoreCounts {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |left, right| Self {
            keys: left.keys + right.keys,
            memory_bytes: left.memory_bytes + right.memory_bytes,
            used_bytes: left.used_bytes + right.used_bytes,
            hits: left.hits + right.hits,
            misses: left.misses + right.misses,
            commits: left.commits + right.commits,
            conflicts: left.conflicts + right.conflicts,
            expiring: left.expiring + right.expiring,
            expired: left.expired + right.expired,
            evicted: left.evicted + right.evicted,
            sessions: left.sessions + right.sessions,
        })
    }
}

/// What a store uses its blocks of memory for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryCounts {
    /// The bytes of a block.
    pub block_bytes: u64,
    /// Blocks of the table of keys.
    pub table_blocks: u64,
    /// The size classes of objects that have blocks, by size.
    pub classes: Vec<ClassCounts>,
}

impl Sum for MemoryCounts {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        let mut sum = Self::default();
        for counts in all {
            sum.block_bytes = counts.block_bytes;
            sum.table_blocks += counts.table_blocks;
            for class in counts.classes {
                match sum.classes.binary_search_by_key(&class.place_bytes, |known| known.place_bytes) {
                    Ok(index) => {
                        let known = &mut sum.classes[index];
                        known.blocks += class.blocks;
                        known.places += class.places;
                        known.used_places += class.used_places;
                    }
                    Err(index) => sum.classes.insert(index, class),
                }
            }
        }
        sum
    }
}

/// The blocks of one size class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClassCounts {
    /// The bytes of a place, which holds one object with its header.
    pub place_bytes: u64,
    /// The number of blocks.
    pub blocks: u64,
    /// The number of places in these blocks.
    pub places: u64,
    /// The number of places in use.
    pub used_places: u64,
}
