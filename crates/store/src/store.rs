//! The store in the process that owns it.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::entry::{Address, EntryHead, KeyVersion, ScanCursor, StoreCounts, StoreEntry};
use crate::error::StoreError;
use crate::limits;
use crate::options::StoreOptions;
use crate::transaction::Transaction;

thread_local! {
    /// The store whose transaction this thread runs.
    static RUNNING: Cell<usize> = const { Cell::new(0) };
}

/// A store in the memory of this process. Threads share it by reference; no method needs `&mut`.
///
/// ```
/// use caravan_store::{Store, StoreOptions};
///
/// let store = Store::embedded(StoreOptions::new(16 << 20))?;
/// store.put(b"colour", b"blue")?;
/// assert_eq!(store.get(b"colour")?.as_deref(), Some(&b"blue"[..]));
/// assert!(store.delete(b"colour")?);
/// assert_eq!(store.get(b"colour")?, None);
/// # Ok::<(), caravan_store::StoreError>(())
/// ```
#[derive(Debug)]
pub struct Store {
    options: StoreOptions,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) keys: BTreeMap<Vec<u8>, StoreEntry>,
    pub(crate) objects: BTreeMap<u64, (u64, Vec<u8>)>,
    pub(crate) clock: u64,
    pub(crate) now_ms: u64,
    pub(crate) next_place: u64,
    pub(crate) counts: StoreCounts,
}

impl State {
    pub(crate) fn live(&self, key: &[u8]) -> Option<&StoreEntry> {
        self.keys.get(key).filter(|entry| entry.head.expires_at_ms.is_none_or(|at| at > self.now_ms))
    }

    pub(crate) fn used(&self) -> u64 {
        let keys = self.keys.iter().map(|(key, entry)| key.len() + entry.value.len() + 80).sum::<usize>();
        let objects = self.objects.values().map(|object| object.1.len() + 40).sum::<usize>();
        (keys + objects) as u64
    }
}

impl Store {
    /// Makes an empty store in this process.
    pub fn embedded(options: StoreOptions) -> Result<Self, StoreError> {
        options.check()?;
        Ok(Self { options, state: Mutex::default() })
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn options(&self) -> &StoreOptions {
        &self.options
    }

    /// Returns the value of `key`.
    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        Ok(self.entry(key)?.map(|entry| entry.value))
    }

    /// Appends the value of `key` to `value`, and returns the version and expiry; for callers that reuse a buffer.
    pub fn get_into(&self, key: &[u8], value: &mut Vec<u8>) -> Result<Option<EntryHead>, StoreError> {
        Ok(self.entry(key)?.map(|entry| {
            value.extend_from_slice(&entry.value);
            entry.head
        }))
    }

    /// Returns the value of `key` with its version and expiry.
    pub fn entry(&self, key: &[u8]) -> Result<Option<StoreEntry>, StoreError> {
        check_key(key)?;
        let mut state = self.state();
        let found = state.live(key).cloned();
        *(if found.is_some() { &mut state.counts.hits } else { &mut state.counts.misses }) += 1;
        Ok(found)
    }

    /// Returns the version and expiry of `key` without its value.
    pub fn head(&self, key: &[u8]) -> Result<Option<EntryHead>, StoreError> {
        Ok(self.entry(key)?.map(|entry| entry.head))
    }

    /// Returns the version of `key`, [`KeyVersion::ABSENT`] if there is no such key. A later
    /// [`Transaction::require`] of this version fails if the key has changed.
    pub fn version(&self, key: &[u8]) -> Result<KeyVersion, StoreError> {
        Ok(self.head(key)?.map_or(KeyVersion::ABSENT, |head| head.version))
    }

    /// Looks up all `keys`, and calls `each` with the index of each key and its value, in order. Each
    /// value is read on its own: together they are no snapshot.
    pub fn get_many<K: AsRef<[u8]>>(
        &self,
        keys: &[K],
        mut each: impl FnMut(usize, Option<&[u8]>),
    ) -> Result<(), StoreError> {
        for (index, key) in keys.iter().enumerate() {
            each(index, self.get(key.as_ref())?.as_deref());
        }
        Ok(())
    }

    /// Sets the value of `key`, which then never expires.
    pub fn put(&self, key: &[u8], value: &[u8]) -> Result<(), StoreError> {
        self.put_until(key, value, None)
    }

    /// Sets the value of `key`, which expires when the store's clock reaches `expires_at_ms`.
    pub fn put_until(&self, key: &[u8], value: &[u8], expires_at_ms: Option<u64>) -> Result<(), StoreError> {
        self.transaction(|tx| tx.put_until(key, value, expires_at_ms))
    }

    /// Deletes `key`, and returns whether it existed.
    pub fn delete(&self, key: &[u8]) -> Result<bool, StoreError> {
        self.transaction(|tx| tx.delete(key))
    }

    /// Allocates an object of `bytes` zero bytes, if possible in the same block of memory as `near`.
    pub fn alloc(&self, bytes: usize, near: Option<Address>) -> Result<Address, StoreError> {
        self.transaction(|tx| tx.alloc(&vec![0; bytes], near))
    }

    /// Returns the bytes of the object at `address`.
    pub fn read(&self, address: Address) -> Result<Vec<u8>, StoreError> {
        self.transaction(|tx| tx.read(address))
    }

    /// Runs `body` as one transaction: all of its writes happen, at one moment and with all of its reads still true, or none.
    ///
    /// If another transaction interferes, a method of [`Transaction`] returns [`StoreError::Conflict`], which `body`
    /// must hand on, or the commit fails; `body` is then run again, so it should have no other effects.
    /// What a body sees is always the state of one moment, even if it is then run again. Any other error of `body` ends the transaction without
    /// a write, and is returned. `body` may not call writing methods of the store ([`StoreError::Nested`]).
    ///
    /// ```
    /// # use caravan_store::{Store, StoreError, StoreOptions};
    /// # let store = Store::embedded(StoreOptions::new(16 << 20))?;
    /// # store.put(b"alice", b"10")?;
    /// // Moves alice's value to bob, whatever other threads do.
    /// store.transaction(|tx| {
    ///     let value = tx.get(b"alice")?.unwrap_or_default();
    ///     tx.put(b"bob", &value)?;
    ///     tx.delete(b"alice")
    /// })?;
    /// assert_eq!(store.get(b"bob")?.as_deref(), Some(&b"10"[..]));
    /// # Ok::<(), StoreError>(())
    /// ```
    pub fn transaction<T, E: From<StoreError>>(
        &self,
        mut body: impl FnMut(&mut Transaction<'_>) -> Result<T, E>,
    ) -> Result<T, E> {
        let this = std::ptr::from_ref(self).addr();
        if RUNNING.get() == this {
            return Err(StoreError::Nested.into());
        }
        loop {
            let mut tx = Transaction::new(self);
            let outer = RUNNING.replace(this);
            let result = body(&mut tx);
            RUNNING.set(outer);
            if !tx.is_conflicted() {
                let value = result?;
                match tx.commit() {
                    Ok(()) => return Ok(value),
                    Err(StoreError::Conflict) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            self.state().counts.conflicts += 1;
        }
    }

    /// Returns some keys and where to go on: about `count` of them, more where many lie together, none where there are none. A
    /// key that exists from the start of a scan to its end is returned at least once, whatever else changes; a key may be returned twice.
    ///
    /// ```
    /// # use caravan_store::{ScanCursor, Store, StoreError, StoreOptions};
    /// # let store = Store::embedded(StoreOptions::new(16 << 20))?;
    /// # store.put(b"a", b"1")?;
    /// # store.put(b"b", b"2")?;
    /// let mut keys = Vec::new();
    /// let mut cursor = ScanCursor::START;
    /// loop {
    ///     cursor = store.scan(cursor, 10, |key| keys.push(key.to_vec()))?;
    ///     if cursor == ScanCursor::START {
    ///         break;
    ///     }
    /// }
    /// keys.sort();
    /// assert_eq!(keys, [b"a", b"b"]);
    /// # Ok::<(), StoreError>(())
    /// ```
    pub fn scan(
        &self,
        cursor: ScanCursor,
        count: usize,
        mut each: impl FnMut(&[u8]),
    ) -> Result<ScanCursor, StoreError> {
        let keys: Vec<_> = self.state().keys.keys().cloned().collect();
        let from = usize::try_from(cursor.0).unwrap_or(usize::MAX).min(keys.len());
        let to = from.saturating_add(count.max(1)).min(keys.len());
        let state = self.state();
        keys[from..to].iter().filter(|key| state.live(key).is_some()).for_each(|key| each(key));
        Ok(ScanCursor(if to == keys.len() { 0 } else { to as u64 }))
    }

    /// Returns a key that exists, chosen at random, or `None` if the store is empty. `random` is a random number.
    pub fn random_key(&self, random: u64) -> Result<Option<Vec<u8>>, StoreError> {
        let state = self.state();
        let keys: Vec<_> = state.keys.keys().filter(|key| state.live(key).is_some()).collect();
        Ok((!keys.is_empty()).then(|| keys[(random % keys.len() as u64) as usize].clone()))
    }

    /// Deletes all keys, at one moment. Objects without a key stay.
    pub fn clear(&self) -> Result<(), StoreError> {
        self.state().keys.clear();
        Ok(())
    }

    /// Sets the store's clock, by which keys expire, to `now_ms`; an earlier time than before changes nothing. The store has no
    /// clock of its own: without this call, no key expires. Milliseconds since 1970 are what the Redis protocol speaks.
    pub fn publish_now(&self, now_ms: u64) {
        let mut state = self.state();
        state.now_ms = state.now_ms.max(now_ms);
    }

    /// Returns the store's clock.
    pub fn now_ms(&self) -> u64 {
        self.state().now_ms
    }

    /// Removes keys that have expired: looks at about `count` keys, going on where the last call stopped, and returns how many it removed. An
    /// expired key is invisible at once; this gives its memory back.
    pub fn remove_expired(&self, count: usize) -> Result<u64, StoreError> {
        let mut state = self.state();
        let dead = state.keys.keys().filter(|key| state.live(key).is_none()).take(count).cloned();
        let dead: Vec<_> = dead.collect();
        dead.iter().for_each(|key| drop(state.keys.remove(key)));
        state.counts.expired += dead.len() as u64;
        Ok(dead.len() as u64)
    }

    /// Returns the counters.
    pub fn counts(&self) -> StoreCounts {
        let state = self.state();
        let (keys, used_bytes) = (state.keys.len() as u64, state.used());
        StoreCounts { keys, used_bytes, memory_bytes: self.options.memory_bytes, ..state.counts }
    }
}

pub(crate) fn check_key(key: &[u8]) -> Result<(), StoreError> {
    if key.len() > limits::KEY_BYTES_MAX {
        return Err(StoreError::KeyTooLong { bytes: key.len() });
    }
    Ok(())
}

pub(crate) fn check_value(value: &[u8]) -> Result<(), StoreError> {
    if value.len() > limits::VALUE_BYTES_MAX {
        return Err(StoreError::ValueTooLong { bytes: value.len() });
    }
    Ok(())
}
