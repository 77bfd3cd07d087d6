//! Writes of a fixed table: the units of one shard that a transaction changes, in private memory until all of them
//! are known.

use std::collections::BTreeMap;

use super::form::{BUCKET_SLOTS, CHAIN_OBJECT_SLOTS, FixedBucket, FixedHead, FixedShard, filter_bit};
use super::source::damaged;
use super::{FixedTable, shard_of, split};
use crate::entry::ObjectAddress;
use crate::error::StoreError;
use crate::limits::{CHAIN_BUCKETS_MAX, FIXED_DEPTH_MAX, FIXED_FULL_PERCENT, FIXED_PATH_MAX};
use crate::transaction::Transaction;

/// A bucket or an object of a chain that is being changed.
struct EditedBucket {
    bucket: FixedBucket<Vec<u8>>,
    is_changed: bool,
    /// This transaction has written it before.
    was_written: bool,
}

/// The buckets around the home of a key.
pub(crate) struct ShardEditor<'t, 's> {
    tx: &'t mut Transaction<'s>,
    head: FixedHead,
    shard: FixedShard,
    hash: u64,
    home: u64,
    buckets: BTreeMap<ObjectAddress, EditedBucket>,
}

impl<'t, 's> ShardEditor<'t, 's> {
    pub(crate) fn new(
        table: &FixedTable,
        tx: &'t mut Transaction<'s>,
        key: &[u8],
    ) -> Result<Self, StoreError> {
        let head = table.head(tx)?;
        let hash = head.hash(key);
        let Some(shard) = shard_of(&head, head.entry(hash), tx)? else { return Err(damaged()) };
        Ok(Self { tx, head, shard, hash, home: head.home(hash), buckets: BTreeMap::new() })
    }

    /// Replaces the value of a key, and returns whether the key exists.
    pub(crate) fn replace(&mut self, key: &[u8], value: &[u8]) -> Result<bool, StoreError> {
        let Some((address, slot)) = self.locate(key)? else { return Ok(false) };
        self.change(address, |bucket| bucket.set_value(slot, value));
        Ok(true)
    }

    /// Inserts a key that does not exist into its home or the next bucket, and returns whether there is room, maybe
    /// after other keys have moved on to the buckets after them.
    pub(crate) fn insert(&mut self, key: &[u8], value: &[u8]) -> Result<bool, StoreError> {
        for line in [self.home, self.home + 1] {
            if self.insert_in_line(line, key, value)? {
                return Ok(true);
            }
        }
        Ok(self.make_way(self.home + 1)? && self.insert_in_line(self.home + 1, key, value)?)
    }

    fn insert_in_line(&mut self, line: u64, key: &[u8], value: &[u8]) -> Result<bool, StoreError> {
        let (address, bucket) = self.line(line)?;
        if !bucket.has_room() {
            return Ok(false);
        }
        self.change(address, |bucket| bucket.insert(key, value));
        self.count_reinsertion()?;
        Ok(true)
    }

    /// Inserts a key that does not exist into the chain of its home.
    pub(crate) fn insert_in_chain(&mut self, key: &[u8], value: &[u8]) -> Result<(), StoreError> {
        let (home, bucket) = self.line(self.home)?;
        let (moves, filter) = (bucket.moves(), bucket.filter());
        let chain = self.chain(self.home)?;
        let room =
            chain.iter().copied().find(|address| self.bucket(address).is_some_and(FixedBucket::has_room));
        if let Some(address) = room {
            self.change(address, |bucket| bucket.insert(key, value));
        } else {
            if chain.len() >= CHAIN_BUCKETS_MAX {
                return Err(self.tx.full(self.head.form.bucket_bytes(CHAIN_OBJECT_SLOTS)));
            }
            let mut new = FixedBucket::empty(self.head.form, CHAIN_OBJECT_SLOTS);
            new.insert(key, value);
            new.set_moves(moves);
            let address = self.tx.alloc(new.as_bytes(), None)?;
            // At the end: the keys before it are found by fewer reads.
            self.change(chain.last().copied().unwrap_or(home), |bucket| bucket.set_chain(Some(address)));
        }
        let filter = filter | filter_bit(self.hash);
        self.change(home, |bucket| bucket.set_filter(filter));
        self.count_reinsertion()
    }

    /// Deletes a key, and returns whether it existed. A key of the chain takes its slot.
    pub(crate) fn delete(&mut self, key: &[u8]) -> Result<bool, StoreError> {
        let Some((address, slot)) = self.locate(key)? else { return Ok(false) };
        self.change(address, |bucket| bucket.take(slot));
        let chain = self.chain(self.home)?;
        if chain.is_empty() {
            return Ok(true);
        }
        let mut has_moved = false;
        if !chain.contains(&address) {
            let donor =
                chain.iter().find(|other| self.bucket(other).is_some_and(|bucket| !bucket.is_empty()));
            let slot =
                donor.and_then(|donor| self.bucket(donor)?.pairs().next().map(|(slot, ..)| (*donor, slot)));
            if let Some((donor, slot)) = slot {
                if let Some((key, value)) = self.change(donor, |bucket| bucket.take(slot)) {
                    self.change(address, |bucket| bucket.insert(&key, &value));
                }
                has_moved = true;
            }
        }
        self.tidy_chain(&chain)?;
        if has_moved {
            self.count_move(self.home)?;
        }
        Ok(true)
    }

    /// Frees the empty objects of the home's chain, and renews its filter.
    fn tidy_chain(&mut self, chain: &[ObjectAddress]) -> Result<(), StoreError> {
        let (home, _) = self.line(self.home)?;
        let (mut filter, mut before) = (0, home);
        for address in chain {
            let Some(bucket) = self.bucket(address) else { continue };
            for (_, key, _) in bucket.pairs() {
                filter |= filter_bit(self.head.hash(key));
            }
            if bucket.is_empty() {
                let next = bucket.chain();
                self.change(before, |bucket| bucket.set_chain(next));
                self.buckets.remove(address);
                self.tx.free(*address)?;
            } else {
                before = *address;
            }
        }
        self.change(home, |bucket| bucket.set_filter(filter));
        Ok(())
    }

    /// Tells whether the shard has so many keys that it should be split.
    pub(crate) fn is_too_full(&mut self) -> Result<bool, StoreError> {
        if self.shard.depth >= FIXED_DEPTH_MAX {
            return Ok(false);
        }
        let form = self.head.form;
        let mut pairs = 0;
        let mut bytes = Vec::new();
        for line in 0..self.head.buckets {
            let mut at = (Some(self.head.bucket(self.shard, line)), BUCKET_SLOTS);
            for _ in 0..CHAIN_BUCKETS_MAX {
                let Some(address) = at.0 else { break };
                bytes.clear();
                // An estimate: it need not stay true until the commit.
                self.tx.peek(address, &mut bytes);
                let Some(bucket) = FixedBucket::new(form, at.1, &bytes[..]) else { break };
                pairs += bucket.pairs().count() as u64;
                at = (bucket.chain(), CHAIN_OBJECT_SLOTS);
            }
        }
        Ok(pairs * 100 >= self.head.buckets * BUCKET_SLOTS as u64 * FIXED_FULL_PERCENT)
    }

    /// Splits the shard, instead of all that this editor was to do.
    pub(crate) fn split(self, table: ObjectAddress) -> Result<(), StoreError> {
        split::split(self.tx, table, self.head, self.head.entry(self.hash))
    }

    /// Writes what has changed.
    pub(crate) fn finish(self) -> Result<(), StoreError> {
        for (address, edited) in self.buckets.iter().filter(|(_, edited)| edited.is_changed) {
            self.tx.write(*address, edited.bucket.as_bytes())?;
        }
        Ok(())
    }

    /// Makes room in a full bucket: one of its own keys moves to the next bucket, where one of that bucket's moves
    /// on if it is full, too, and so on.
    fn make_way(&mut self, line: u64) -> Result<bool, StoreError> {
        let head = self.head;
        let mut path = Vec::new();
        for line in line..head.buckets {
            let (_, bucket) = self.line(line)?;
            if bucket.has_room() {
                for (from, slot) in path.into_iter().rev() {
                    self.move_on(from, slot)?;
                }
                return Ok(true);
            }
            let own = bucket.pairs().find(|(_, key, _)| head.home(head.hash(key)) == line);
            let Some(slot) = own.map(|(slot, ..)| slot).filter(|_| path.len() < FIXED_PATH_MAX) else {
                break;
            };
            path.push((line, slot));
        }
        Ok(false)
    }

    /// Moves a key from its home to the next bucket.
    fn move_on(&mut self, line: u64, slot: usize) -> Result<(), StoreError> {
        let (from, _) = self.line(line)?;
        let (to, _) = self.line(line + 1)?;
        if let Some((key, value)) = self.change(from, |bucket| bucket.take(slot)) {
            self.change(to, |bucket| bucket.insert(&key, &value));
        }
        self.count_move(line)
    }

    /// Counts a move if this transaction has changed the home's buckets before: it may have deleted the key.
    fn count_reinsertion(&mut self) -> Result<(), StoreError> {
        let mut family = self.chain(self.home)?;
        family.extend([self.line(self.home)?.0, self.line(self.home + 1)?.0]);
        let was_written = |address| self.buckets.get(address).is_some_and(|edited| edited.was_written);
        if family.iter().any(was_written) { self.count_move(self.home) } else { Ok(()) }
    }

    /// Counts that a key whose home is `line` moves, wherever that count is.
    fn count_move(&mut self, line: u64) -> Result<(), StoreError> {
        let (home, bucket) = self.line(line)?;
        let moves = bucket.moves().wrapping_add(1);
        let (next, _) = self.line(line + 1)?;
        self.change(home, |bucket| bucket.set_moves(moves));
        self.change(next, |bucket| bucket.set_moves_before(moves));
        for address in self.chain(line)? {
            self.change(address, |bucket| bucket.set_moves(moves));
        }
        Ok(())
    }

    /// Returns where a key is.
    fn locate(&mut self, key: &[u8]) -> Result<Option<(ObjectAddress, usize)>, StoreError> {
        for line in [self.home, self.home + 1] {
            let (address, bucket) = self.line(line)?;
            if let Some((slot, _)) = bucket.find(key) {
                return Ok(Some((address, slot)));
            }
        }
        for address in self.chain(self.home)? {
            if let Some((slot, _)) = self.bucket(&address).and_then(|bucket| bucket.find(key)) {
                return Ok(Some((address, slot)));
            }
        }
        Ok(None)
    }

    fn line(&mut self, line: u64) -> Result<(ObjectAddress, &FixedBucket<Vec<u8>>), StoreError> {
        let address = self.head.bucket(self.shard, line);
        Ok((address, self.load(address, BUCKET_SLOTS)?))
    }

    /// Loads the chain of a bucket, and returns the addresses of its objects.
    fn chain(&mut self, line: u64) -> Result<Vec<ObjectAddress>, StoreError> {
        let mut next = self.line(line)?.1.chain();
        let mut chain = Vec::new();
        while let Some(address) = next {
            if chain.len() > CHAIN_BUCKETS_MAX {
                return Err(StoreError::Damaged(format!("the chain of {address} has no end")));
            }
            chain.push(address);
            next = self.load(address, CHAIN_OBJECT_SLOTS)?.chain();
        }
        Ok(chain)
    }

    fn load(&mut self, address: ObjectAddress, slots: usize) -> Result<&FixedBucket<Vec<u8>>, StoreError> {
        if !self.buckets.contains_key(&address) {
            let was_written = self.tx.has_written(address);
            let mut bytes = Vec::new();
            if !self.tx.object_part(address, 0..usize::MAX, &mut bytes)? {
                return Err(damaged());
            }
            let bucket = FixedBucket::new(self.head.form, slots, bytes);
            let bucket = bucket.ok_or_else(|| StoreError::Damaged(format!("no bucket is at {address}")))?;
            self.buckets.insert(address, EditedBucket { bucket, is_changed: false, was_written });
        }
        self.bucket(&address).ok_or(StoreError::NoObject(address))
    }

    /// Returns what has been loaded.
    fn bucket(&self, address: &ObjectAddress) -> Option<&FixedBucket<Vec<u8>>> {
        self.buckets.get(address).map(|edited| &edited.bucket)
    }

    /// Changes what has been loaded.
    fn change<R>(
        &mut self,
        address: ObjectAddress,
        change: impl FnOnce(&mut FixedBucket<Vec<u8>>) -> R,
    ) -> Option<R> {
        let edited = self.buckets.get_mut(&address)?;
        edited.is_changed = true;
        Some(change(&mut edited.bucket))
    }
}
