//! Scans of all keys, which growth of the table does not disturb.
//!
//! The shards are visited in the order of their suffixes with the bits reversed: a shard covers a range of
//! the reversed hashes, and the shards that it is split into cover the two halves of that range. A cursor is
//! the start of a range in its high bits, and a bucket there. If the shard has been split meanwhile, the scan
//! goes on in the first half at that bucket, and visits all of the second one.

use crate::entry::ScanCursor;
use crate::error::StoreError;
use crate::layout::{BUCKET_BYTES, DEPTH_MAX, HEADER_BYTES};
use crate::layout::{ObjectShape, version};
use crate::limits::CHAIN_BUCKETS_MAX;
use crate::protocol::{UnitWords, Unsettled};
use crate::table::{BucketWord, CHAIN_SLOTS, HOMES, SLOTS_FROM, TableSlot, home_line};
use crate::view::{AtPlace, StoreView};

/// The bits of a cursor that say the bucket.
const BUCKET_BITS: u32 = 16;

/// Reverses the low bits of a hash that can choose a shard.
fn reversed(bits: u64) -> u64 {
    bits.reverse_bits() >> (u64::BITS - DEPTH_MAX)
}

impl StoreView {
    /// Calls `each` with about `count` keys from `cursor` on, and returns where to go on.
    pub(crate) fn scan(
        &self,
        cursor: ScanCursor,
        count: usize,
        each: &mut impl FnMut(&[u8]),
    ) -> Result<ScanCursor, StoreError> {
        let mut range = cursor.0 >> BUCKET_BITS & ((1 << DEPTH_MAX) - 1);
        let mut line = (cursor.0 & ((1 << BUCKET_BITS) - 1)).clamp(1, HOMES);
        let (mut seen, mut lines) = (0, 0);
        let mut keys = Vec::new();
        while seen < count.max(1) && lines < 8 * count.max(16) {
            let suffix = reversed(range);
            let depth = self.settle(|| {
                keys.clear();
                self.keys_at(suffix, line, &mut keys)
            })?;
            seen += keys.len();
            lines += 1;
            keys.iter().for_each(|key| each(key));
            line += 1;
            if line > HOMES {
                // A cursor of nobody's may be within a range; the next range starts after its end.
                let width = 1 << DEPTH_MAX.saturating_sub(depth);
                (range, line) = ((range / width + 1) * width, 1);
                if range >> DEPTH_MAX != 0 {
                    return Ok(ScanCursor::START);
                }
            }
        }
        Ok(ScanCursor(range << BUCKET_BITS | line))
    }

    /// Collects the keys whose home is a line of the shard for `suffix`, as of one moment, and returns the
    /// shard's depth.
    fn keys_at(&self, suffix: u64, line: u64, keys: &mut Vec<Vec<u8>>) -> Result<u32, Unsettled> {
        let home = self.shard(suffix) + BUCKET_BYTES * line;
        let both = self.unit(home, 2 * BUCKET_BYTES as usize / 8).ok_or(Unsettled)?;
        let version = both.load(0);
        both.fence_acquire();
        let bucket = BucketWord::from_word(both.load(1));
        let mut slots: Vec<u64> =
            (SLOTS_FROM..8).chain(8 + SLOTS_FROM..16).map(|slot| both.load(slot)).collect();
        let mut chain = bucket.chain;
        for _ in 0..CHAIN_BUCKETS_MAX {
            if chain == 0 {
                break;
            }
            let unit = self.unit(chain + HEADER_BYTES as u64, 1 + CHAIN_SLOTS).ok_or(Unsettled)?;
            slots.extend((1..=CHAIN_SLOTS).map(|slot| unit.load(slot)));
            chain = unit.load(0) << 3;
        }
        both.fence_acquire();
        let now_ms = self.now_ms();
        for slot in slots.into_iter().filter(|slot| *slot != 0).map(TableSlot) {
            let mut key = Vec::new();
            let at = self.object(slot.address().place, |payload| {
                key.clear();
                payload.copy_key(&mut key);
            })?;
            let AtPlace::Object((head, ())) = at else { continue };
            let hash = self.hash(&key);
            let is_here = home_line(hash) == line && bucket.is_for(hash);
            if is_here && head.shape.has(ObjectShape::KEYED) && !head.is_expired(now_ms) {
                keys.push(key);
            }
        }
        both.fence_acquire();
        let is_unchanged = version & version::LOCKED == 0 && both.load(0) == version;
        let keys_here = bucket.keys.filter(|_| is_unchanged && bucket.is_for(suffix));
        keys_here.map(|keys| keys.depth).ok_or(Unsettled)
    }
}
