//! A transaction of a client: it reads memory, gathers what it writes, and has a server commit both in one call.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;
use std::task::Poll;
use std::time::Instant;

use super::board::CallOutcome;
use super::mapped::MappedMemory;
use super::pending::Pending;
use super::{ConnectedStore, body, found};
use crate::calls::{
    FoundKey, FoundObject, NUMBER_BYTES, RequestKind, append_address, append_alloc, append_bytes,
    append_commit, append_reads, decode_address, decode_found_keys,
};
use crate::commit::{ObjectWrite, ReadRecord, UnitKind, WriteSet};
use crate::entry::{EntryHead, KeyVersion, KeyWatch, ObjectAddress, StoreEntry, WatchedUnit};
use crate::error::StoreError;
use crate::image::{ObjectImage, check_key};
use crate::layout::{ObjectShape, version};
use crate::limits;
use crate::transaction::{ReadSet, own_head};
use crate::writes::KeyWrite;

/// What the body of [`ConnectedStore::transaction_async`] reads and writes by: the methods of a
/// [`ConnectedTransaction`](super::ConnectedTransaction), of which those that may ask the server are awaited.
#[derive(Debug)]
pub struct AsyncTransaction<'s> {
    pub(super) store: &'s ConnectedStore,
    /// What is mapped, and believed when the transaction began.
    memory: Option<Arc<MappedMemory>>,
    pub(super) snapshot: ReadSet,
    pub(super) writes: WriteSet,
    /// What was read before the body asks for it.
    ahead: BTreeMap<Vec<u8>, Option<StoreEntry>>,
    /// The objects that this transaction has allocated.
    reserved: Vec<ObjectAddress>,
    pub(super) must_retry: bool,
}

impl ConnectedStore {
    /// Runs `body` as one transaction, as [`transaction`](Self::transaction) does, in any runtime.
    ///
    /// ```no_run
    /// use caravan_store::{Store, StoreError};
    ///
    /// # async fn example() -> Result<(), StoreError> {
    /// let store = Store::connect("accounts")?;
    /// let moved = store
    ///     .transaction_async(async |tx| {
    ///         let amount = tx.get(b"from").await?.unwrap_or_default();
    ///         tx.delete(b"from").await?;
    ///         tx.put(b"to", &amount)?;
    ///         Ok::<_, StoreError>(amount)
    ///     })
    ///     .await?;
    /// # drop(moved);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn transaction_async<T, E: From<StoreError>>(
        &self,
        mut run: impl AsyncFnMut(&mut AsyncTransaction<'_>) -> Result<T, E>,
    ) -> Result<T, E> {
        let begin = Instant::now();
        loop {
            let mut tx = AsyncTransaction::new(self);
            let result = run(&mut tx).await;
            if let Some(result) = tx.finish(result).await {
                return result;
            }
            drop(tx);
            if begin.elapsed() > limits::CONFLICT_WAIT {
                return Err(StoreError::Conflict.into());
            }
            give_way().await;
        }
    }

    fn start_object(&self, address: ObjectAddress) -> Pending<FoundObject> {
        self.call(RequestKind::Read, |to| append_address(to, address), object_of)
    }

    pub(super) fn found_object(&self, address: ObjectAddress) -> Result<FoundObject, StoreError> {
        self.start_object(address).wait()
    }
}

/// Keys of one part, and the call that looks them up.
pub(super) struct StartedReads<'k> {
    keys: Vec<&'k [u8]>,
    found: Pending<Vec<FoundKey>>,
}

/// Returns what the lookup of several keys has found.
fn found_keys(outcome: CallOutcome) -> Result<Vec<FoundKey>, StoreError> {
    decode_found_keys(&body(outcome)?).ok_or(StoreError::Protocol("found keys are malformed"))
}

/// Lets other tasks run before this one goes on.
async fn give_way() {
    let mut has_given_way = false;
    std::future::poll_fn(|context| {
        if std::mem::replace(&mut has_given_way, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// Returns the object that a reply tells of.
pub(super) fn object_of(outcome: CallOutcome) -> Result<FoundObject, StoreError> {
    FoundObject::decode(&body(outcome)?).ok_or(StoreError::Protocol("a found object is malformed"))
}

impl<'s> AsyncTransaction<'s> {
    pub(super) fn new(store: &'s ConnectedStore) -> Self {
        let memory = store.mapped().memory();
        let snapshot = match store.mapped().always() {
            Some(reader) => ReadSet::new(&reader.view),
            // Also where a part is mapped: the clock of one part says nothing of others.
            None => ReadSet::without_clock(),
        };
        let (writes, ahead) = (WriteSet::default(), BTreeMap::new());
        Self { store, memory, snapshot, writes, ahead, reserved: Vec::new(), must_retry: false }
    }

    /// Starts to check that all that was read is unchanged: at once where it is mapped.
    pub(super) fn start_validate(&self) -> Pending<()> {
        if let Some(memory) = &self.memory {
            let is_current = self.snapshot.is_current(&memory.reader.view);
            return Pending::ready(memory.believed(if is_current {
                Ok(())
            } else {
                Err(StoreError::Conflict)
            }));
        }
        let append = |to: &mut Vec<u8>| append_reads(to, self.snapshot.reads());
        let validated = self.store.call(RequestKind::Validate, append, |outcome| body(outcome).map(drop));
        self.store.flush();
        validated
    }

    /// Commits if the body has succeeded, and returns what the transaction returns; `None` if it has to be run again.
    pub(super) async fn finish<T, E: From<StoreError>>(
        &mut self,
        result: Result<T, E>,
    ) -> Option<Result<T, E>> {
        if self.must_retry {
            return None;
        }
        let Ok(value) = result else { return Some(result) };
        match self.commit().await {
            Ok(()) => Some(Ok(value)),
            Err(StoreError::Conflict | StoreError::Undecided) => None,
            Err(error) => Some(Err(error.into())),
        }
    }

    /// Notes that the transaction has to be run again, whatever the body makes of the error.
    fn noted<T>(&mut self, result: Result<T, StoreError>) -> Result<T, StoreError> {
        // Nothing was written, so a lost connection does no harm before the commit.
        self.must_retry |=
            matches!(result, Err(StoreError::Conflict | StoreError::Disconnected | StoreError::Undecided));
        result
    }

    /// Starts to look keys up, which are of one moment then; [`flush`](ConnectedStore::flush) sends that. What is mapped is not
    /// read ahead.
    pub(super) fn start_ahead<'k>(&self, keys: &[&'k [u8]]) -> Vec<StartedReads<'k>> {
        let is_new = |key: &&&[u8]| {
            check_key(key).is_ok() && !self.ahead.contains_key(**key) && self.writes.keys.get(key).is_none()
        };
        let keys: Vec<&[u8]> = keys.iter().filter(is_new).copied().collect();
        if self.memory.is_some() {
            return Vec::new();
        }
        let start = |keys: &[&'k [u8]]| {
            let append = |to: &mut Vec<u8>| keys.iter().for_each(|key| append_bytes(to, key));
            StartedReads {
                keys: keys.to_vec(),
                found: self.store.call(RequestKind::GetMany, append, found_keys),
            }
        };
        keys.chunks(limits::KEYS_OF_CALL).map(start).collect()
    }

    /// Takes what was started: then these keys are read without a call. What is too long for a call is left.
    pub(super) async fn take_ahead(&mut self, started: Vec<StartedReads<'_>>) -> Result<(), StoreError> {
        for StartedReads { keys, found } in started {
            let found = match found.await {
                Err(StoreError::CallTooLong { .. }) => continue,
                found => self.noted(found)?,
            };
            if found.len() != keys.len() {
                return Err(StoreError::Protocol("there are more or fewer found keys than were asked for"));
            }
            // These are of one moment, and what was read before is checked after it.
            let newest = found.iter().map(|found| found.read).max_by_key(|read| version::time(read.version));
            if let Some(newest) = newest {
                self.revalidate_for(&newest).await?;
            }
            for (key, found) in keys.into_iter().zip(found) {
                self.snapshot.add(found.read)?;
                let entry = found.entry.map(|(head, value)| StoreEntry { value, head });
                self.ahead.insert(key.to_vec(), entry);
            }
        }
        Ok(())
    }

    /// Returns the values of several keys, as [`get`](Self::get) does for each, with one call instead of one for each.
    pub async fn get_many<K: AsRef<[u8]>>(&mut self, keys: &[K]) -> Result<Vec<Option<Vec<u8>>>, StoreError> {
        let wanted: Vec<&[u8]> = keys.iter().map(AsRef::as_ref).collect();
        let started = self.start_ahead(&wanted);
        self.take_ahead(started).await?;
        let mut values = Vec::with_capacity(keys.len());
        for key in wanted {
            values.push(self.get(key).await?);
        }
        Ok(values)
    }

    async fn read_key(&mut self, key: &[u8], copy: bool) -> Result<Option<StoreEntry>, StoreError> {
        if let Some(entry) = self.ahead.get(key) {
            return Ok(entry.clone());
        }
        if let Some(memory) = &self.memory {
            let view = &memory.reader.view;
            let read = if copy {
                self.snapshot.entry(view, key)
            } else {
                let head = self.snapshot.key(view, key, |_| ());
                head.map(|found| found.map(|(head, ())| StoreEntry { value: Vec::new(), head: head.entry() }))
            };
            let read = memory.believed(read);
            return self.noted(read);
        }
        let found = self.store.start_found(key, true, found).await;
        let found = self.noted(found)?;
        self.record(found.read).await?;
        Ok(found.entry.map(|(head, value)| StoreEntry { value, head }))
    }

    /// Returns whether an object belongs to a key or to the table, and its bytes.
    async fn read_object(&mut self, address: ObjectAddress) -> Result<(bool, Vec<u8>), StoreError> {
        if let Some(memory) = &self.memory {
            let read = memory.believed(self.snapshot.object(&memory.reader.view, address));
            let (shape, bytes) = self.noted(read)?;
            return Ok((shape.has(ObjectShape::KEYED) || shape.has(ObjectShape::CHAIN), bytes));
        }
        let found = self.store.start_object(address).await;
        let found = self.noted(found)?;
        let read = ReadRecord { place: address.place, version: found.version, kind: UnitKind::Object };
        self.record(read).await?;
        Ok((found.is_owned, found.bytes))
    }

    /// Records what a call has read, after the server has revalidated what was read before, if that must be.
    async fn record(&mut self, read: ReadRecord) -> Result<(), StoreError> {
        self.revalidate_for(&read).await?;
        self.snapshot.add(read)
    }

    /// Has the server revalidate what was read, if this read shows a newer time than that.
    async fn revalidate_for(&mut self, read: &ReadRecord) -> Result<(), StoreError> {
        if self.snapshot.is_raised_by(read) && !self.snapshot.reads().is_empty() {
            let validated = self.start_validate().await;
            self.noted(validated)?;
        }
        Ok(())
    }

    /// Returns the value of `key`: what this transaction has put, or else what is in the store.
    pub async fn get(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        Ok(self.entry(key).await?.map(|entry| entry.value))
    }

    /// Returns the value of `key` with its version and expiry. What this transaction has put has no version yet
    /// ([`KeyVersion::ABSENT`]).
    pub async fn entry(&mut self, key: &[u8]) -> Result<Option<StoreEntry>, StoreError> {
        let Some(write) = self.writes.keys.get(key) else { return self.read_key(key, true).await };
        Ok(write
            .image()
            .map(|image| StoreEntry { value: image.value(key.len()).to_vec(), head: own_head(image) }))
    }

    /// Returns the version and expiry of `key` without its value.
    pub async fn head(&mut self, key: &[u8]) -> Result<Option<EntryHead>, StoreError> {
        if let Some(write) = self.writes.keys.get(key) {
            return Ok(write.image().map(own_head));
        }
        Ok(self.read_key(key, false).await?.map(|entry| entry.head))
    }

    /// Fails with [`StoreError::VersionChanged`] unless `key` has this version in the store, now and at the commit.
    pub async fn require(&mut self, key: &[u8], version: KeyVersion) -> Result<(), StoreError> {
        let stored = self.read_key(key, false).await?.map_or(KeyVersion::ABSENT, |entry| entry.head.version);
        if stored == version { Ok(()) } else { Err(StoreError::VersionChanged) }
    }

    /// Fails with [`StoreError::VersionChanged`] if `key` was written since [`ConnectedStore::watch`] returned `watch`,
    /// until the commit.
    pub async fn require_unchanged(&mut self, key: &[u8], watch: &KeyWatch) -> Result<(), StoreError> {
        let gone = match watch.0 {
            WatchedUnit::Live(version) => return self.require(key, version).await,
            WatchedUnit::Gone(gone) => gone,
        };
        let append = |to: &mut Vec<u8>| append_reads(to, &[gone]);
        match self.store.call(RequestKind::Validate, append, body).await {
            Err(StoreError::Conflict) => return Err(StoreError::VersionChanged),
            validated => drop(self.noted(validated)?),
        }
        self.record(gone).await
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
        super::check_call(value, limits::CALL_VALUE_BYTES_MAX)?;
        let image = ObjectImage::of_sent_key(key, value, expires_at_ms)?;
        self.check_size()?;
        self.writes.keys.insert(KeyWrite::Put(image));
        Ok(())
    }

    /// Deletes `key`, and returns whether it existed.
    pub async fn delete(&mut self, key: &[u8]) -> Result<bool, StoreError> {
        let existed = match self.writes.keys.get(key) {
            Some(write) => write.image().is_some(),
            None => self.read_key(key, false).await?.is_some(),
        };
        self.check_size()?;
        self.writes.keys.insert(KeyWrite::Delete(key.to_vec()));
        Ok(existed)
    }

    fn check_size(&self) -> Result<(), StoreError> {
        if self.writes.keys.len() + self.writes.objects.len() >= limits::TRANSACTION_OPERATIONS_MAX {
            return Err(StoreError::TransactionTooLarge);
        }
        Ok(())
    }

    /// Allocates an object with these `bytes`, if possible in the same block of memory as `near`. It exists from the
    /// commit on.
    pub async fn alloc(
        &mut self,
        bytes: &[u8],
        near: Option<ObjectAddress>,
    ) -> Result<ObjectAddress, StoreError> {
        let image = ObjectImage::of_object(bytes)?;
        self.check_size()?;
        let answer =
            self.store.call(RequestKind::Alloc, |to| append_alloc(to, bytes.len() as u32, near), body).await;
        let answer = self.noted(answer)?;
        let address = decode_address(&answer).ok_or(StoreError::Protocol("an address is malformed"))?;
        self.reserved.push(address);
        self.writes.objects.insert(address, ObjectWrite::New(image));
        Ok(address)
    }

    /// Returns the bytes of the object at `address`: what this transaction has written, or else what is in the store.
    pub async fn read(&mut self, address: ObjectAddress) -> Result<Vec<u8>, StoreError> {
        match self.writes.objects.get(&address) {
            Some(ObjectWrite::New(image) | ObjectWrite::Replace(image)) => Ok(image.payload().to_vec()),
            Some(ObjectWrite::Free) => Err(StoreError::NoObject(address)),
            None => Ok(self.read_object(address).await?.1),
        }
    }

    /// Replaces the bytes of the object at `address`. If they do not fit there, the commit fails with
    /// [`StoreError::ObjectTooSmall`].
    pub async fn write(&mut self, address: ObjectAddress, bytes: &[u8]) -> Result<(), StoreError> {
        let image = ObjectImage::of_object(bytes)?;
        self.check_owned(address).await?;
        match self.writes.objects.entry(address) {
            Entry::Occupied(mut entry) => {
                let is_new = matches!(entry.get(), ObjectWrite::New(_));
                entry.insert(if is_new { ObjectWrite::New(image) } else { ObjectWrite::Replace(image) });
            }
            Entry::Vacant(entry) => drop(entry.insert(ObjectWrite::Replace(image))),
        }
        Ok(())
    }

    /// Frees the object at `address`.
    pub async fn free(&mut self, address: ObjectAddress) -> Result<(), StoreError> {
        self.check_owned(address).await?;
        if let Some(ObjectWrite::New(_)) = self.writes.objects.insert(address, ObjectWrite::Free) {
            self.writes.objects.remove(&address);
            self.reserved.retain(|reserved| *reserved != address);
            self.release(&[address]);
        }
        Ok(())
    }

    /// Checks that there is an object at `address`, which belongs to no key; the commit finds it unchanged.
    async fn check_owned(&mut self, address: ObjectAddress) -> Result<(), StoreError> {
        match self.writes.objects.get(&address) {
            Some(ObjectWrite::Free) => Err(StoreError::NoObject(address)),
            Some(_) => Ok(()),
            None => {
                let (is_owned, _) = self.read_object(address).await?;
                self.check_size()?;
                if is_owned { Err(StoreError::Keyed(address)) } else { Ok(()) }
            }
        }
    }

    pub(super) async fn commit(&mut self) -> Result<(), StoreError> {
        if self.writes.is_empty() {
            // All that was read was true at one moment within the transaction.
            return Ok(());
        }
        let mut request = Vec::new();
        append_commit(&mut request, self.snapshot.reads(), &self.writes);
        if NUMBER_BYTES + request.len() > limits::CALL_BYTES_MAX {
            return Err(StoreError::TransactionTooLarge);
        }
        let append = |to: &mut Vec<u8>| to.extend_from_slice(&request);
        match self.store.call_once(RequestKind::Commit, append, body).await {
            Ok(_) => {
                self.reserved.clear();
                Ok(())
            }
            // The connection on which it was allocated broke before the commit.
            Err(StoreError::NoObject(address)) if self.reserved.contains(&address) => {
                Err(StoreError::Conflict)
            }
            Err(error) => Err(error),
        }
    }

    /// Gives objects back that were allocated and not committed. Nobody waits for the answer.
    fn release(&self, addresses: &[ObjectAddress]) {
        let append = |to: &mut Vec<u8>| {
            to.extend_from_slice(&(addresses.len() as u32).to_be_bytes());
            addresses.iter().for_each(|address| append_address(to, *address));
        };
        drop(self.store.call(RequestKind::Release, append, body));
    }
}

impl Drop for AsyncTransaction<'_> {
    fn drop(&mut self) {
        if !self.reserved.is_empty() {
            self.release(&self.reserved);
        }
    }
}
