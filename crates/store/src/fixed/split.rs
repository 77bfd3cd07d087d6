//! The shards of a fixed table: how one is made, split and freed.

use super::form::{
    BUCKET_SLOTS, CHAIN_OBJECT_SLOTS, FixedBucket, FixedHead, FixedShard, PairForm, filter_bit,
};
use super::source::damaged;
use super::{FixedTable, shard_of};
use crate::entry::ObjectAddress;
use crate::error::StoreError;
use crate::layout::{BLOCK_BYTES, CLASS_BYTES, HEADER_BYTES, class_for};
use crate::limits::{CHAIN_BUCKETS_MAX, FIXED_SHARD_BUCKETS_MAX};
use crate::transaction::Transaction;

/// A key and its value.
type Pair = (Vec<u8>, Vec<u8>);

/// Makes an empty table of one shard, and returns its address.
pub(crate) fn create(tx: &mut Transaction<'_>, form: PairForm) -> Result<ObjectAddress, StoreError> {
    let payload = form.bucket_bytes(BUCKET_SLOTS);
    let class = class_for(HEADER_BYTES + payload).ok_or(StoreError::ObjectTooLong { bytes: payload })?;
    let stride = u64::from(CLASS_BYTES[usize::from(class)]);
    let buckets = (BLOCK_BYTES / stride).min(FIXED_SHARD_BUCKETS_MAX);
    let nowhere = ObjectAddress { place: 0, incarnation: 0 };
    let head = FixedHead { form, seed: tx.hash_seed(), depth: 0, buckets, stride, directory: nowhere };
    let shard = make_shard(tx, &head, 0, Vec::new())?;
    let directory = tx.alloc(&shard.to_word().to_ne_bytes(), None)?;
    tx.alloc(&FixedHead { directory, ..head }.to_bytes(), None)
}

/// Replaces the shard of an entry of the directory by two.
pub(crate) fn split(
    tx: &mut Transaction<'_>,
    table: ObjectAddress,
    mut head: FixedHead,
    entry: u64,
) -> Result<(), StoreError> {
    let mut directory = Vec::new();
    if !tx.object_part(head.directory, 0..usize::MAX, &mut directory)? {
        return Err(damaged());
    }
    let mut words: Vec<u64> = directory
        .chunks_exact(8)
        .filter_map(|word| word.first_chunk().map(|word| u64::from_ne_bytes(*word)))
        .collect();
    let mut entry = entry as usize;
    let old = words.get(entry).map(|word| FixedShard::from_word(*word));
    let old = old
        .filter(|old| old.depth <= head.depth)
        .ok_or_else(|| StoreError::Damaged(format!("the directory of {table} does not lead to a shard")))?;
    if old.depth == head.depth {
        words = words.into_iter().flat_map(|word| [word; 2]).collect();
        entry *= 2;
        head.depth += 1;
    }
    let mut halves = [Vec::new(), Vec::new()];
    for (key, value) in take_shard(tx, &head, old)? {
        let half = head.hash(&key) >> (u64::BITS - 1 - old.depth) & 1;
        halves[half as usize].push((key, value));
    }
    let width = 1 << (head.depth - old.depth);
    let from = entry / width * width;
    for (half, pairs) in halves.into_iter().enumerate() {
        let shard = make_shard(tx, &head, old.depth + 1, pairs)?;
        let from = from + half * width / 2;
        let entries = words.get_mut(from..from + width / 2);
        entries
            .ok_or_else(|| StoreError::Damaged(format!("the directory of {table} is too short")))?
            .fill(shard.to_word());
    }
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    if bytes.len() == directory.len() {
        return tx.write(head.directory, &bytes);
    }
    tx.free(head.directory)?;
    head.directory = tx.alloc(&bytes, None)?;
    tx.write(table, &head.to_bytes())
}

/// Frees a table.
pub(crate) fn free(table: &FixedTable, tx: &mut Transaction<'_>) -> Result<(), StoreError> {
    let head = table.head(tx)?;
    let mut entry = 0;
    while entry < 1 << head.depth {
        let Some(shard) = shard_of(&head, entry, tx)? else { return Err(damaged()) };
        take_shard(tx, &head, shard)?;
        entry += 1 << head.depth.saturating_sub(shard.depth);
    }
    tx.free(head.directory)?;
    tx.free(table.address())
}

/// Frees a shard, and returns its pairs.
fn take_shard(
    tx: &mut Transaction<'_>,
    head: &FixedHead,
    shard: FixedShard,
) -> Result<Vec<Pair>, StoreError> {
    let mut pairs = Vec::new();
    for line in 0..head.buckets {
        let mut next = (Some(head.bucket(shard, line)), BUCKET_SLOTS);
        for _ in 0..=CHAIN_BUCKETS_MAX {
            let Some(address) = next.0 else { break };
            let mut bytes = Vec::new();
            if !tx.object_part(address, 0..usize::MAX, &mut bytes)? {
                return Err(damaged());
            }
            let bucket = FixedBucket::new(head.form, next.1, bytes);
            let bucket = bucket.ok_or_else(|| StoreError::Damaged(format!("no bucket is at {address}")))?;
            pairs.extend(bucket.pairs().map(|(_, key, value)| (key.to_vec(), value.to_vec())));
            tx.free(address)?;
            next = (bucket.chain(), CHAIN_OBJECT_SLOTS);
        }
    }
    Ok(pairs)
}

/// Makes a shard with some pairs.
fn make_shard(
    tx: &mut Transaction<'_>,
    head: &FixedHead,
    depth: u32,
    pairs: Vec<Pair>,
) -> Result<FixedShard, StoreError> {
    let mut buckets = vec![FixedBucket::empty(head.form, BUCKET_SLOTS); head.buckets as usize];
    for (key, value) in pairs {
        let hash = head.hash(&key);
        let home = head.home(hash) as usize;
        // A half is half full: hardly a key finds no room here.
        if buckets[home].insert(&key, &value) || buckets[home + 1].insert(&key, &value) {
            continue;
        }
        let mut object = FixedBucket::empty(head.form, CHAIN_OBJECT_SLOTS);
        object.insert(&key, &value);
        object.set_chain(buckets[home].chain());
        let address = tx.alloc(object.as_bytes(), None)?;
        let filter = buckets[home].filter() | filter_bit(hash);
        buckets[home].set_chain(Some(address));
        buckets[home].set_filter(filter);
    }
    let first = tx.alloc_run(buckets.iter().map(FixedBucket::as_bytes))?;
    Ok(FixedShard { first, depth })
}
