//! Transactions of a client whose thread waits.

use std::time::Instant;

use super::{AsyncTransaction, ConnectedStore};
use crate::entry::{EntryHead, KeyVersion, KeyWatch, ObjectAddress, StoreEntry};
use crate::error::StoreError;
use crate::limits;
use crate::owner::back_off;

/// What the body of [`ConnectedStore::transaction`] reads and writes by, as by a
/// [`Transaction`](crate::Transaction).
#[derive(Debug)]
pub struct ConnectedTransaction<'s>(pub(super) AsyncTransaction<'s>);

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
            let mut tx = ConnectedTransaction(AsyncTransaction::new(self));
            let result = run(&mut tx);
            let finished = self.shared.block_on(tx.0.finish(result));
            if let Some(result) = finished.ok_or_else(|| self.shared.no_answer(true))? {
                return result;
            }
            drop(tx);
            if begin.elapsed() > limits::CONFLICT_WAIT {
                break;
            }
            back_off(attempt);
        }
        Err(StoreError::Conflict.into())
    }
}

impl ConnectedTransaction<'_> {
    /// Waits for what `start` starts.
    pub(super) fn wait<T>(
        &mut self,
        start: impl AsyncFnOnce(&mut AsyncTransaction<'_>) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let store = self.0.store;
        store.shared.block_on(start(&mut self.0)).unwrap_or_else(|| Err(store.shared.no_answer(true)))
    }

    /// Returns the value of `key`: what this transaction has put, or else what is in the store.
    pub fn get(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        self.wait(async |tx| tx.get(key).await)
    }

    /// Returns the values of several keys, as [`get`](Self::get) does for each, with one call instead of one for each.
    pub fn get_many<K: AsRef<[u8]>>(&mut self, keys: &[K]) -> Result<Vec<Option<Vec<u8>>>, StoreError> {
        self.wait(async |tx| tx.get_many(keys).await)
    }

    /// Returns the value of `key` with its version and expiry. What this transaction has put has no version yet
    /// ([`KeyVersion::ABSENT`]).
    pub fn entry(&mut self, key: &[u8]) -> Result<Option<StoreEntry>, StoreError> {
        self.wait(async |tx| tx.entry(key).await)
    }

    /// Returns the version and expiry of `key` without its value.
    pub fn head(&mut self, key: &[u8]) -> Result<Option<EntryHead>, StoreError> {
        self.wait(async |tx| tx.head(key).await)
    }

    /// Fails with [`StoreError::VersionChanged`] unless `key` has this version in the store, now and at the commit.
    pub fn require(&mut self, key: &[u8], version: KeyVersion) -> Result<(), StoreError> {
        self.wait(async |tx| tx.require(key, version).await)
    }

    /// Fails with [`StoreError::VersionChanged`] if `key` was written since [`ConnectedStore::watch`] returned `watch`,
    /// until the commit.
    pub fn require_unchanged(&mut self, key: &[u8], watch: &KeyWatch) -> Result<(), StoreError> {
        self.wait(async |tx| tx.require_unchanged(key, watch).await)
    }

    /// Sets the value of `key`, which then never expires.
    pub fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), StoreError> {
        self.0.put(key, value)
    }

    /// Sets the value of `key`, which expires when the store's clock reaches `expires_at_ms`.
    pub fn put_until(
        &mut self,
        key: &[u8],
        value: &[u8],
        expires_at_ms: Option<u64>,
    ) -> Result<(), StoreError> {
        self.0.put_until(key, value, expires_at_ms)
    }

    /// Deletes `key`, and returns whether it existed.
    pub fn delete(&mut self, key: &[u8]) -> Result<bool, StoreError> {
        self.wait(async |tx| tx.delete(key).await)
    }

    /// Allocates an object with these `bytes`, if possible in the same block of memory as `near`. It exists from the
    /// commit on.
    pub fn alloc(&mut self, bytes: &[u8], near: Option<ObjectAddress>) -> Result<ObjectAddress, StoreError> {
        self.wait(async |tx| tx.alloc(bytes, near).await)
    }

    /// Returns the bytes of the object at `address`: what this transaction has written, or else what is in the store.
    pub fn read(&mut self, address: ObjectAddress) -> Result<Vec<u8>, StoreError> {
        self.wait(async |tx| tx.read(address).await)
    }

    /// Replaces the bytes of the object at `address`. If they do not fit there, the commit fails with
    /// [`StoreError::ObjectTooSmall`].
    pub fn write(&mut self, address: ObjectAddress, bytes: &[u8]) -> Result<(), StoreError> {
        self.wait(async |tx| tx.write(address, bytes).await)
    }

    /// Frees the object at `address`.
    pub fn free(&mut self, address: ObjectAddress) -> Result<(), StoreError> {
        self.wait(async |tx| tx.free(address).await)
    }
}
