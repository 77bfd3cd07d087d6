//! A transaction of a client: it reads memory, gathers what it writes, and has a server commit both in one call.

use std::collections::btree_map::Entry;
use std::time::Instant;

use super::board::CallOutcome;
use super::{ConnectedStore, body, found};
use crate::calls::{
    FoundObject, NUMBER_BYTES, RequestKind, append_address, append_alloc, append_commit, append_reads,
    decode_address,
};
use crate::commit::{ObjectWrite, ReadRecord, UnitKind, WriteSet};
use crate::entry::{EntryHead, KeyVersion, ObjectAddress, StoreEntry};
use crate::error::StoreError;
use crate::image::ObjectImage;
use crate::layout::ObjectShape;
use crate::limits;
use crate::owner::back_off;
use crate::transaction::{ReadSet, own_head};
use crate::writes::KeyWrite;

/// What the body of [`ConnectedStore::transaction`] reads and writes by, as by a
/// [`Transaction`](crate::Transaction). Fixed tables are read here, and written by the process that has the store.
#[derive(Debug)]
pub struct ConnectedTransaction<'s> {
    store: &'s ConnectedStore,
    snapshot: ReadSet,
    writes: WriteSet,
    /// The objects that this transaction has allocated.
    reserved: Vec<ObjectAddress>,
    must_retry: bool,
}

impl ConnectedStore {
    /// Runs `body` as one transaction, as [`Store::transaction`](crate::Store::transaction) does: all of its writes
    /// happen, at one moment and with all of its reads still true, or none; what it sees is always the state of one
    /// moment. It is run again while others interfere, for at most [`limits::CONFLICT_WAIT`]; then this returns
    /// [`StoreError::Conflict`].
    pub fn transaction<T, E: From<StoreError>>(
        &self,
        mut run: impl FnMut(&mut ConnectedTransaction<'_>) -> Result<T, E>,
    ) -> Result<T, E> {
        let begin = Instant::now();
        for attempt in 0.. {
            let mut tx = ConnectedTransaction::new(self);
            let result = run(&mut tx);
            if !tx.must_retry {
                let value = result?;
                match tx.commit() {
                    Ok(()) => return Ok(value),
                    Err(StoreError::Conflict) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            drop(tx);
            if begin.elapsed() > limits::CONFLICT_WAIT {
                break;
            }
            back_off(attempt);
        }
        Err(StoreError::Conflict.into())
    }

    pub(super) fn found_object(&self, address: ObjectAddress) -> Result<FoundObject, StoreError> {
        self.call(RequestKind::Read, |to| append_address(to, address), object_of).wait()
    }

    fn revalidate(&self, reads: &[ReadRecord]) -> Result<(), StoreError> {
        if reads.is_empty() {
            return Ok(());
        }
        self.call(RequestKind::Validate, |to| append_reads(to, reads), body).wait().map(drop)
    }
}

/// Returns the object that a reply tells of.
pub(super) fn object_of(outcome: CallOutcome) -> Result<FoundObject, StoreError> {
    FoundObject::decode(&body(outcome)?).ok_or(StoreError::Protocol("a found object is malformed"))
}

impl<'s> ConnectedTransaction<'s> {
    fn new(store: &'s ConnectedStore) -> Self {
        let snapshot = match &store.mapped {
            Some(reader) => ReadSet::new(&reader.view),
            None => ReadSet::without_clock(),
        };
        Self { store, snapshot, writes: WriteSet::default(), reserved: Vec::new(), must_retry: false }
    }

    /// Notes that the transaction has to be run again, whatever the body makes of the error.
    fn noted<T>(&mut self, result: Result<T, StoreError>) -> Result<T, StoreError> {
        // Nothing was written, so a lost connection does no harm before the commit.
        self.must_retry |= matches!(result, Err(StoreError::Conflict | StoreError::Disconnected));
        result
    }

    fn read_key(&mut self, key: &[u8], copy: bool) -> Result<Option<StoreEntry>, StoreError> {
        if let Some(reader) = &self.store.mapped {
            let read = if copy {
                self.snapshot.entry(&reader.view, key)
            } else {
                let head = self.snapshot.key(&reader.view, key, |_| ());
                head.map(|found| found.map(|(head, ())| StoreEntry { value: Vec::new(), head: head.entry() }))
            };
            return self.noted(read);
        }
        let store = self.store;
        let read = store.start_found(key, true, found).wait().and_then(|found| {
            self.snapshot.record_with(found.read, |reads| store.revalidate(reads))?;
            Ok(found.entry.map(|(head, value)| StoreEntry { value, head }))
        });
        self.noted(read)
    }

    /// Returns whether an object belongs to a key or to the table, and its bytes.
    fn read_object(&mut self, address: ObjectAddress) -> Result<(bool, Vec<u8>), StoreError> {
        if let Some(reader) = &self.store.mapped {
            let read = self.snapshot.object(&reader.view, address);
            let (shape, bytes) = self.noted(read)?;
            return Ok((shape.has(ObjectShape::KEYED) || shape.has(ObjectShape::CHAIN), bytes));
        }
        let store = self.store;
        let read = store.found_object(address).and_then(|found| {
            let read = ReadRecord { place: address.place, version: found.version, kind: UnitKind::Object };
            self.snapshot.record_with(read, |reads| store.revalidate(reads))?;
            Ok((found.is_owned, found.bytes))
        });
        self.noted(read)
    }

    /// Returns the value of `key`: what this transaction has put, or else what is in the store.
    pub fn get(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        Ok(self.entry(key)?.map(|entry| entry.value))
    }

    /// Returns the value of `key` with its version and expiry. What this transaction has put has no version yet
    /// ([`KeyVersion::ABSENT`]).
    pub fn entry(&mut self, key: &[u8]) -> Result<Option<StoreEntry>, StoreError> {
        let Some(write) = self.writes.keys.get(key) else { return self.read_key(key, true) };
        Ok(write
            .image()
            .map(|image| StoreEntry { value: image.value(key.len()).to_vec(), head: own_head(image) }))
    }

    /// Returns the version and expiry of `key` without its value.
    pub fn head(&mut self, key: &[u8]) -> Result<Option<EntryHead>, StoreError> {
        if let Some(write) = self.writes.keys.get(key) {
            return Ok(write.image().map(own_head));
        }
        Ok(self.read_key(key, false)?.map(|entry| entry.head))
    }

    /// Fails with [`StoreError::VersionChanged`] unless `key` has this version in the store, now and at the commit.
    pub fn require(&mut self, key: &[u8], version: KeyVersion) -> Result<(), StoreError> {
        let stored = self.read_key(key, false)?.map_or(KeyVersion::ABSENT, |entry| entry.head.version);
        if stored == version { Ok(()) } else { Err(StoreError::VersionChanged) }
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
        super::check_call(value, limits::OBJECT_BYTES_MAX)?;
        let image = ObjectImage::of_key(key, value, expires_at_ms)?;
        self.check_size()?;
        self.writes.keys.insert(KeyWrite::Put(image));
        Ok(())
    }

    /// Deletes `key`, and returns whether it existed.
    pub fn delete(&mut self, key: &[u8]) -> Result<bool, StoreError> {
        let existed = match self.writes.keys.get(key) {
            Some(write) => write.image().is_some(),
            None => self.read_key(key, false)?.is_some(),
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
    pub fn alloc(&mut self, bytes: &[u8], near: Option<ObjectAddress>) -> Result<ObjectAddress, StoreError> {
        let image = ObjectImage::of_object(bytes)?;
        self.check_size()?;
        let answer =
            self.store.call(RequestKind::Alloc, |to| append_alloc(to, bytes.len() as u32, near), body).wait();
        let answer = self.noted(answer)?;
        let address = decode_address(&answer).ok_or(StoreError::Protocol("an address is malformed"))?;
        self.reserved.push(address);
        self.writes.objects.insert(address, ObjectWrite::New(image));
        Ok(address)
    }

    /// Returns the bytes of the object at `address`: what this transaction has written, or else what is in the store.
    pub fn read(&mut self, address: ObjectAddress) -> Result<Vec<u8>, StoreError> {
        match self.writes.objects.get(&address) {
            Some(ObjectWrite::New(image) | ObjectWrite::Replace(image)) => Ok(image.payload().to_vec()),
            Some(ObjectWrite::Free) => Err(StoreError::NoObject(address)),
            None => Ok(self.read_object(address)?.1),
        }
    }

    /// Replaces the bytes of the object at `address`. If they do not fit there, the commit fails with
    /// [`StoreError::ObjectTooSmall`].
    pub fn write(&mut self, address: ObjectAddress, bytes: &[u8]) -> Result<(), StoreError> {
        let image = ObjectImage::of_object(bytes)?;
        self.check_owned(address)?;
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
    pub fn free(&mut self, address: ObjectAddress) -> Result<(), StoreError> {
        self.check_owned(address)?;
        if let Some(ObjectWrite::New(_)) = self.writes.objects.insert(address, ObjectWrite::Free) {
            self.writes.objects.remove(&address);
            self.reserved.retain(|reserved| *reserved != address);
            self.release(&[address]);
        }
        Ok(())
    }

    /// Checks that there is an object at `address`, which belongs to no key; the commit finds it unchanged.
    fn check_owned(&mut self, address: ObjectAddress) -> Result<(), StoreError> {
        match self.writes.objects.get(&address) {
            Some(ObjectWrite::Free) => Err(StoreError::NoObject(address)),
            Some(_) => Ok(()),
            None => {
                let (is_owned, _) = self.read_object(address)?;
                self.check_size()?;
                if is_owned { Err(StoreError::Keyed(address)) } else { Ok(()) }
            }
        }
    }

    fn commit(&mut self) -> Result<(), StoreError> {
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
        match self.store.call_once(RequestKind::Commit, append, body).wait() {
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

impl Drop for ConnectedTransaction<'_> {
    fn drop(&mut self) {
        if !self.reserved.is_empty() {
            self.release(&self.reserved);
        }
    }
}
