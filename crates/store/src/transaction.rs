//! A transaction: what it has read, and what it will write.
//!
//! What it has read is at each moment the state of one moment (opacity). Each version carries the time of its
//! commit, and the transaction begins with the clock's time. When it meets a later time, it first checks that
//! everything it has read before is unchanged. The commit with that time held all its locks when it took the
//! time, and so did all commits with earlier times: at that moment every value read was current. A version
//! with an earlier time was there by then, or locked.

use std::collections::btree_map::Entry;
use std::ops::Range;

use crate::commit::{ObjectWrite, ReadRecord, UnitKind, WriteSet};
use crate::entry::{EntryHead, KeyVersion, KeyWatch, ObjectAddress, StoreEntry, WatchedUnit};
use crate::error::StoreError;
use crate::faults::{PlantedFault, is_planted};
use crate::gate::CommitLane;
use crate::image::{ObjectImage, check_key, check_value};
use crate::layout::{HEADER_BYTES, ObjectShape, version};
use crate::limits::{OBJECT_BYTES_MAX, READ_ATTEMPTS, TRANSACTION_OPERATIONS_MAX};
use crate::owner::{StoreCore, count};
use crate::protocol::Unsettled;
use crate::table::LocatedKey;
use crate::view::{ObjectHead, ObjectPayload, StoreView, within};
use crate::writes::KeyWrite;

/// What the body of [`Store::transaction`](crate::Store::transaction) reads and writes by.
#[derive(Debug)]
pub struct Transaction<'s> {
    pub(crate) core: &'s StoreCore,
    pub(crate) snapshot: ReadSet,
    pub(crate) writes: WriteSet,
    /// The places of the objects that this transaction allocates.
    pub(crate) reserved: Vec<u64>,
    pub(crate) retry: Option<RetryCause>,
}

/// Why a transaction has to be run again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RetryCause {
    Conflict,
    /// So many objects of so many bytes had no room.
    Room {
        bytes: u64,
        objects: usize,
    },
}

/// What a transaction has read.
#[derive(Debug)]
pub(crate) struct ReadSet {
    reads: Vec<ReadRecord>,
    /// All that was read was current at a moment when all commits up to this time held their locks.
    newest_time: u64,
}

impl ReadSet {
    pub(crate) fn new(view: &StoreView) -> Self {
        Self { reads: Vec::new(), newest_time: view.time() }
    }

    /// Returns the set of a transaction that sees no clock: its first read makes it begin.
    pub(crate) fn without_clock() -> Self {
        Self { reads: Vec::new(), newest_time: 0 }
    }

    /// Returns the newest time that it has seen.
    pub(crate) fn newest_time(&self) -> u64 {
        self.newest_time
    }

    /// Returns what was read.
    pub(crate) fn reads(&self) -> &[ReadRecord] {
        &self.reads
    }

    /// Records a read, and checks that all reads together are of one moment.
    fn record(&mut self, view: &StoreView, read: ReadRecord) -> Result<(), StoreError> {
        if self.is_raised_by(&read) && !are_current(view, &self.reads) {
            return Err(StoreError::Conflict);
        }
        self.add(read)
    }

    /// Tells whether this read is newer than all before: then those are revalidated, before it is added.
    pub(crate) fn is_raised_by(&self, read: &ReadRecord) -> bool {
        version::time(read.version) > self.newest_time && !is_planted(PlantedFault::NoRevalidation)
    }

    /// Adds a read that is of one moment with those before.
    pub(crate) fn add(&mut self, read: ReadRecord) -> Result<(), StoreError> {
        if self.reads.len() >= TRANSACTION_OPERATIONS_MAX {
            return Err(StoreError::TransactionTooLarge);
        }
        self.newest_time = self.newest_time.max(version::time(read.version));
        self.reads.push(read);
        Ok(())
    }

    /// Reads a key; `body` sees its object, and maybe before that others or torn ones, whose results are
    /// dropped.
    pub(crate) fn key<R>(
        &mut self,
        view: &StoreView,
        key: &[u8],
        mut body: impl FnMut(ObjectPayload<'_>) -> R,
    ) -> Result<Option<(ObjectHead, R)>, StoreError> {
        check_key(key)?;
        let hash = view.hash(key);
        for _ in 0..READ_ATTEMPTS {
            match view.lookup(hash, key, &mut body) {
                Ok((LocatedKey::Present { address, head, .. }, result)) => {
                    let (place, version) = (address.place, head.version);
                    self.record(view, ReadRecord { place, version, kind: UnitKind::Object })?;
                    let result = result.filter(|_| !head.is_expired(view.now_ms()));
                    return Ok(result.map(|result| (head, result)));
                }
                Ok((LocatedKey::Absent { home, version }, _)) => {
                    self.record(view, ReadRecord { place: home, version, kind: UnitKind::Bucket })?;
                    return Ok(None);
                }
                Err(_) => std::hint::spin_loop(),
            }
        }
        Err(StoreError::Conflict)
    }

    /// Reads a key and its value.
    pub(crate) fn entry(&mut self, view: &StoreView, key: &[u8]) -> Result<Option<StoreEntry>, StoreError> {
        let found = self.part(view, key, |bytes| 0..bytes)?;
        Ok(found.map(|(head, value)| StoreEntry { value, head }))
    }

    /// Reads a key and the part of its value that `part` chooses by the number of bytes.
    fn part(
        &mut self,
        view: &StoreView,
        key: &[u8],
        part: impl Fn(usize) -> Range<usize>,
    ) -> Result<Option<(EntryHead, Vec<u8>)>, StoreError> {
        let found = self.key(view, key, |payload| {
            // Of a long value, this is the list of its sections.
            if payload.is_long_value() { payload.part(|bytes| 0..bytes) } else { payload.part(&part) }
        })?;
        let Some((head, mut copied)) = found else { return Ok(None) };
        if head.shape.has(ObjectShape::LONG_VALUE) {
            let list = std::mem::take(&mut copied);
            let read = view.copy_sections_part(&list, part, &mut copied);
            read.map_err(|Unsettled| StoreError::Conflict)?;
        }
        Ok(Some((head.entry(), copied)))
    }

    /// Reads an object; returns its shape and its bytes.
    pub(crate) fn object(
        &mut self,
        view: &StoreView,
        address: ObjectAddress,
    ) -> Result<(ObjectShape, Vec<u8>), StoreError> {
        let mut bytes = Vec::new();
        let shape = self.object_part(view, address, 0..usize::MAX, &mut bytes)?;
        Ok((shape.ok_or(StoreError::NoObject(address))?, bytes))
    }

    /// Appends the bytes `range` of an object to `to`, as far as there are any; returns its shape, or `None` if
    /// there is no object.
    pub(crate) fn object_part(
        &mut self,
        view: &StoreView,
        address: ObjectAddress,
        range: Range<usize>,
        to: &mut Vec<u8>,
    ) -> Result<Option<ObjectShape>, StoreError> {
        let old = to.len();
        for _ in 0..READ_ATTEMPTS {
            to.truncate(old);
            match view.object_at(address, |payload| payload.copy_part(range.clone(), to)) {
                Ok(Some((head, ()))) => {
                    let read =
                        ReadRecord { place: address.place, version: head.version, kind: UnitKind::Object };
                    self.record(view, read)?;
                    return Ok(Some(head.shape));
                }
                // It is gone at a moment when all else that was read is still true, or this state has passed.
                Ok(None) if self.is_current(view) => return Ok(None),
                Ok(None) => return Err(StoreError::Conflict),
                Err(_) => std::hint::spin_loop(),
            }
        }
        Err(StoreError::Conflict)
    }

    /// Tells whether everything that was read is unchanged.
    pub(crate) fn is_current(&self, view: &StoreView) -> bool {
        are_current(view, &self.reads)
    }
}

/// Tells whether everything that was read is unchanged.
pub(crate) fn are_current(view: &StoreView, reads: &[ReadRecord]) -> bool {
    // The checks come after the reads.
    view.fence_acquire();
    reads.iter().all(|read| view.version_of(read.place, read.kind) == Some(read.version))
}

impl<'s> Transaction<'s> {
    pub(crate) fn new(core: &'s StoreCore) -> Self {
        let snapshot = ReadSet::new(&core.view);
        Self { core, snapshot, writes: WriteSet::default(), reserved: Vec::new(), retry: None }
    }

    pub(crate) fn retry(&self) -> Option<RetryCause> {
        self.retry
    }

    pub(crate) fn has_writes(&self) -> bool {
        !self.writes.is_empty()
    }

    /// Notes what the transaction has to be run again for, whatever the body makes of the error.
    pub(crate) fn noted<T>(&mut self, result: Result<T, StoreError>) -> Result<T, StoreError> {
        match &result {
            Err(StoreError::Conflict) => self.retry = Some(RetryCause::Conflict),
            Err(StoreError::Full { needed_bytes, .. }) => {
                self.retry = Some(RetryCause::Room { bytes: *needed_bytes, objects: 1 })
            }
            _ => {}
        }
        result
    }

    /// Adds what a client has read before: fails with [`StoreError::Conflict`], and is not run again, if that has changed.
    pub(crate) fn read_before(&mut self, reads: &[ReadRecord]) -> Result<(), StoreError> {
        if !are_current(&self.core.view, reads) {
            count(&self.core.tallies.conflicts, 1);
            return Err(StoreError::Conflict);
        }
        reads.iter().try_for_each(|read| self.snapshot.add(*read))
    }

    /// Returns the value of `key`: what this transaction has put, or else what is in the store.
    pub fn get(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        Ok(self.entry(key)?.map(|entry| entry.value))
    }

    /// Returns the value of `key` with its version and expiry. What this transaction has put has no version
    /// yet ([`KeyVersion::ABSENT`]).
    pub fn entry(&mut self, key: &[u8]) -> Result<Option<StoreEntry>, StoreError> {
        match self.writes.keys.get(key) {
            Some(write) => Ok(write
                .image()
                .map(|image| StoreEntry { value: self.own_value(image), head: own_head(image) })),
            None => {
                let read = self.snapshot.entry(&self.core.view, key);
                self.noted(read)
            }
        }
    }

    /// Returns the version and expiry of `key` without its value.
    pub fn head(&mut self, key: &[u8]) -> Result<Option<EntryHead>, StoreError> {
        if let Some(write) = self.writes.keys.get(key) {
            return Ok(write.image().map(own_head));
        }
        let read = self.snapshot.key(&self.core.view, key, |_| ());
        Ok(self.noted(read)?.map(|(head, ())| head.entry()))
    }

    /// Returns the number of bytes of the value of `key`.
    pub fn value_bytes(&mut self, key: &[u8]) -> Result<Option<usize>, StoreError> {
        if let Some(write) = self.writes.keys.get(key) {
            return Ok(write.image().map(|image| self.own_value(image).len()));
        }
        let read = self.snapshot.key(&self.core.view, key, |payload| payload.value_bytes());
        Ok(self.noted(read)?.map(|(_, bytes)| bytes))
    }

    /// Returns a part of the value of `key` without copying all of it. `part` gets the number of bytes of the value
    /// and returns which of them are wanted; what is beyond the end is left out.
    ///
    /// ```
    /// # use caravan_store::{Store, StoreError, StoreOptions};
    /// # let store = Store::embedded(StoreOptions::new(16 << 20))?;
    /// store.put(b"greeting", b"hello world")?;
    /// let last = store.transaction(|tx| tx.part(b"greeting", |bytes| bytes.saturating_sub(5)..bytes))?;
    /// assert_eq!(last.as_deref(), Some(&b"world"[..]));
    /// # Ok::<(), StoreError>(())
    /// ```
    pub fn part(
        &mut self,
        key: &[u8],
        part: impl Fn(usize) -> Range<usize>,
    ) -> Result<Option<Vec<u8>>, StoreError> {
        if let Some(write) = self.writes.keys.get(key) {
            let value = write.image().map(|image| self.own_value(image));
            return Ok(value.map(|value| value[within(part(value.len()), value.len())].to_vec()));
        }
        let read = self.snapshot.part(&self.core.view, key, part);
        Ok(self.noted(read)?.map(|(_, copied)| copied))
    }

    /// Returns the value that this transaction has put.
    fn own_value(&self, image: &ObjectImage) -> Vec<u8> {
        let key_bytes = image.key().len();
        if image.is_long_value() {
            return self.own_sections(image.value(key_bytes), key_bytes);
        }
        image.value(key_bytes).to_vec()
    }

    /// Fails with [`StoreError::VersionChanged`] unless `key` has this version in the store, now and at the
    /// commit. What this transaction has put does not count.
    pub fn require(&mut self, key: &[u8], version: KeyVersion) -> Result<(), StoreError> {
        let read = self.snapshot.key(&self.core.view, key, |_| ());
        let stored = self.noted(read)?.map_or(KeyVersion::ABSENT, |(head, ())| head.entry().version);
        let is_required = stored == version || is_planted(PlantedFault::IgnoredRequirement);
        if is_required { Ok(()) } else { Err(StoreError::VersionChanged) }
    }

    /// Fails with [`StoreError::VersionChanged`] if `key` was written since [`Store::watch`](crate::Store::watch)
    /// returned `watch`, until the commit.
    pub fn require_unchanged(&mut self, key: &[u8], watch: &KeyWatch) -> Result<(), StoreError> {
        let gone = match watch.0 {
            WatchedUnit::Live(version) => return self.require(key, version),
            WatchedUnit::Gone(gone) => gone,
        };
        if is_planted(PlantedFault::IgnoredRequirement) {
            return Ok(());
        }
        if self.core.view.version_of(gone.place, gone.kind) != Some(gone.version) {
            return Err(StoreError::VersionChanged);
        }
        let recorded = self.snapshot.record(&self.core.view, gone);
        self.noted(recorded)
    }

    /// Sets the value of `key`, which then never expires.
    pub fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), StoreError> {
        self.put_until(key, value, None)
    }

    /// Sets the value of `key`, which expires when the store's clock reaches `expires_at_ms`.
    pub fn put_until(
        &mut self,
        key: &[u8],
        value: &[u8],
        expires_at_ms: Option<u64>,
    ) -> Result<(), StoreError> {
        check_value(value)?;
        self.check_size()?;
        let image = match value.len() > OBJECT_BYTES_MAX {
            true => self.put_sections(key, value, expires_at_ms)?,
            false => ObjectImage::of_key(key, value, expires_at_ms)?,
        };
        self.write_key(KeyWrite::Put(image));
        Ok(())
    }

    /// Deletes `key`, and returns whether it existed.
    pub fn delete(&mut self, key: &[u8]) -> Result<bool, StoreError> {
        let existed = self.head(key)?.is_some();
        self.delete_unread(key)?;
        Ok(existed)
    }

    /// Deletes `key` if it exists.
    pub(crate) fn delete_unread(&mut self, key: &[u8]) -> Result<(), StoreError> {
        check_key(key)?;
        self.check_size()?;
        self.write_key(KeyWrite::Delete(key.to_vec()));
        Ok(())
    }

    fn check_size(&self) -> Result<(), StoreError> {
        if self.writes.keys.len() + self.writes.objects.len() >= TRANSACTION_OPERATIONS_MAX {
            return Err(StoreError::TransactionTooLarge);
        }
        Ok(())
    }

    /// Allocates an object with these `bytes`, if possible in the same block of memory as `near`. It exists
    /// from the commit on. Its address stays the same until it is freed.
    pub fn alloc(&mut self, bytes: &[u8], near: Option<ObjectAddress>) -> Result<ObjectAddress, StoreError> {
        self.alloc_image(ObjectImage::of_object(bytes)?, near)
    }

    pub(crate) fn alloc_image(
        &mut self,
        image: ObjectImage,
        near: Option<ObjectAddress>,
    ) -> Result<ObjectAddress, StoreError> {
        self.check_size()?;
        let reserved = self.core.blocks.reserve(&self.core.view, image.payload().len(), near);
        let address = self.noted(reserved)?;
        self.reserved.push(address.place);
        self.writes.objects.insert(address, ObjectWrite::New(image));
        Ok(address)
    }

    /// Returns the bytes of the object at `address`: what this transaction has written, or else what is in
    /// the store.
    pub fn read(&mut self, address: ObjectAddress) -> Result<Vec<u8>, StoreError> {
        match self.writes.objects.get(&address) {
            Some(ObjectWrite::New(image) | ObjectWrite::Replace(image)) => Ok(image.payload().to_vec()),
            Some(ObjectWrite::Free) => Err(StoreError::NoObject(address)),
            None => Ok(self.read_object(address)?.1),
        }
    }

    /// Returns the shape and the bytes of the object at `address` in the store.
    pub(crate) fn read_object(
        &mut self,
        address: ObjectAddress,
    ) -> Result<(ObjectShape, Vec<u8>), StoreError> {
        let read = self.snapshot.object(&self.core.view, address);
        self.noted(read)
    }

    /// Replaces the bytes of the object at `address`, if the new ones fit there
    /// ([`StoreError::ObjectTooSmall`]).
    pub fn write(&mut self, address: ObjectAddress, bytes: &[u8]) -> Result<(), StoreError> {
        let image = ObjectImage::of_object(bytes)?;
        self.check_owned(address)?;
        self.check_capacity(address, bytes)?;
        match self.writes.objects.entry(address) {
            Entry::Occupied(mut entry) if matches!(entry.get(), ObjectWrite::New(_)) => {
                entry.insert(ObjectWrite::New(image));
            }
            Entry::Occupied(mut entry) => drop(entry.insert(ObjectWrite::Replace(image))),
            Entry::Vacant(entry) => drop(entry.insert(ObjectWrite::Replace(image))),
        }
        Ok(())
    }

    /// Writes an object whose place a client has reserved.
    pub(crate) fn write_reserved(&mut self, address: ObjectAddress, bytes: &[u8]) -> Result<(), StoreError> {
        let image = ObjectImage::of_object(bytes)?;
        self.check_capacity(address, bytes)?;
        self.writes.objects.insert(address, ObjectWrite::New(image));
        Ok(())
    }

    fn check_capacity(&self, address: ObjectAddress, bytes: &[u8]) -> Result<(), StoreError> {
        let capacity = self.core.blocks.capacity(&self.core.view, address.place).saturating_sub(HEADER_BYTES);
        let bytes = bytes.len();
        if bytes > capacity { Err(StoreError::ObjectTooSmall { bytes, capacity }) } else { Ok(()) }
    }

    /// Frees the object at `address`.
    pub fn free(&mut self, address: ObjectAddress) -> Result<(), StoreError> {
        self.check_owned(address)?;
        if let Some(ObjectWrite::New(_)) = self.writes.objects.insert(address, ObjectWrite::Free) {
            self.writes.objects.remove(&address);
            self.reserved.retain(|place| *place != address.place);
            self.core.blocks.give_back(&self.core.view, address.place);
        }
        Ok(())
    }

    /// Checks that there is an object at `address`, which belongs to no key; a later commit finds it
    /// unchanged.
    fn check_owned(&mut self, address: ObjectAddress) -> Result<(), StoreError> {
        match self.writes.objects.get(&address) {
            Some(ObjectWrite::Free) => Err(StoreError::NoObject(address)),
            Some(_) => Ok(()),
            None => {
                let (shape, _) = self.read_object(address)?;
                self.check_size()?;
                if shape.flags & (ObjectShape::SESSION | ObjectShape::LEDGER) != 0 {
                    return Err(StoreError::NoObject(address));
                }
                let others = ObjectShape::KEYED | ObjectShape::CHAIN | ObjectShape::SECTION;
                let is_owned = shape.flags & others == 0;
                if is_owned { Ok(()) } else { Err(StoreError::Keyed(address)) }
            }
        }
    }

    /// Commits by a lane. Returns the hash of a key whose shard should be split.
    pub(crate) fn commit(mut self, lane: &mut CommitLane<'_>) -> Result<Option<u64>, StoreError> {
        if !self.has_writes() {
            // All that was read was true at one moment within the transaction.
            return Ok(None);
        }
        let writes = std::mem::take(&mut self.writes);
        let full = self.core.commit(lane, &self.snapshot.reads, writes)?;
        self.reserved.clear();
        Ok(full)
    }
}

impl Drop for Transaction<'_> {
    fn drop(&mut self) {
        for place in self.reserved.drain(..) {
            self.core.blocks.give_back(&self.core.view, place);
        }
    }
}

/// Returns the head of a key that a transaction has put.
pub(crate) fn own_head(image: &ObjectImage) -> EntryHead {
    EntryHead { version: KeyVersion::ABSENT, expires_at_ms: image.expires_at_ms() }
}
