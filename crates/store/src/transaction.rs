//! A transaction: what it has read, and what it will write.

use std::collections::BTreeMap;

use crate::entry::{Address, EntryHead, KeyVersion, StoreEntry};
use crate::error::StoreError;
use crate::store::{Store, check_key, check_value};

/// A value and its expiry.
type Written = (Vec<u8>, Option<u64>);

/// What the body of [`Store::transaction`] reads and writes by.
#[derive(Debug)]
pub struct Transaction<'s> {
    store: &'s Store,
    reads: BTreeMap<Vec<u8>, KeyVersion>,
    objects_read: BTreeMap<u64, u64>,
    writes: BTreeMap<Vec<u8>, Option<Written>>,
    objects_written: BTreeMap<u64, Option<Vec<u8>>>,
    conflicted: bool,
}

impl<'s> Transaction<'s> {
    pub(crate) fn new(store: &'s Store) -> Self {
        Self {
            store,
            reads: BTreeMap::new(),
            objects_read: BTreeMap::new(),
            writes: BTreeMap::new(),
            objects_written: BTreeMap::new(),
            conflicted: false,
        }
    }

    pub(crate) fn is_conflicted(&self) -> bool {
        self.conflicted
    }

    /// Returns the value of `key`: what this transaction has put, or else what is in the store.
    pub fn get(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        Ok(self.entry(key)?.map(|entry| entry.value))
    }

    /// Returns the value of `key` with its version and expiry. What this transaction has put has the version of before,
    /// [`KeyVersion::ABSENT`] if the key is new.
    pub fn entry(&mut self, key: &[u8]) -> Result<Option<StoreEntry>, StoreError> {
        let stored = self.stored(key)?;
        let version = stored.as_ref().map_or(KeyVersion::ABSENT, |entry| entry.head.version);
        Ok(match self.writes.get(key) {
            Some(Some((value, expires_at_ms))) => {
                let head = EntryHead { version, expires_at_ms: *expires_at_ms };
                Some(StoreEntry { value: value.clone(), head })
            }
            Some(None) => None,
            None => stored,
        })
    }

    fn stored(&mut self, key: &[u8]) -> Result<Option<StoreEntry>, StoreError> {
        check_key(key)?;
        let state = self.store.state();
        let stored = state.live(key).cloned();
        let version = stored.as_ref().map_or(KeyVersion::ABSENT, |entry| entry.head.version);
        let unchanged = |(key, version): (&Vec<u8>, &KeyVersion)| {
            state.live(key).map_or(KeyVersion::ABSENT, |entry| entry.head.version) == *version
        };
        if *self.reads.entry(key.to_vec()).or_insert(version) != version || !self.reads.iter().all(unchanged)
        {
            self.conflicted = true;
            return Err(StoreError::Conflict);
        }
        Ok(stored)
    }

    /// Fails with [`StoreError::VersionChanged`] unless `key` has this version now and at the commit.
    pub fn require(&mut self, key: &[u8], version: KeyVersion) -> Result<(), StoreError> {
        let stored = self.stored(key)?.map_or(KeyVersion::ABSENT, |entry| entry.head.version);
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
        check_key(key)?;
        check_value(value)?;
        self.writes.insert(key.to_vec(), Some((value.to_vec(), expires_at_ms)));
        Ok(())
    }

    /// Deletes `key`, and returns whether it existed.
    pub fn delete(&mut self, key: &[u8]) -> Result<bool, StoreError> {
        let existed = self.entry(key)?.is_some();
        self.writes.insert(key.to_vec(), None);
        Ok(existed)
    }

    /// Allocates an object with these `bytes`, if possible in the same block of memory as `near`. It exists from the commit on.
    pub fn alloc(&mut self, bytes: &[u8], near: Option<Address>) -> Result<Address, StoreError> {
        check_value(bytes)?;
        let _ = near;
        let mut state = self.store.state();
        state.next_place += 64;
        let place = state.next_place;
        self.objects_written.insert(place, Some(bytes.to_vec()));
        Ok(Address { place, incarnation: 1 })
    }

    /// Returns the bytes of the object at `address`.
    pub fn read(&mut self, address: Address) -> Result<Vec<u8>, StoreError> {
        match self.objects_written.get(&address.place) {
            Some(Some(bytes)) => return Ok(bytes.clone()),
            Some(None) => return Err(StoreError::NoObject(address)),
            None => {}
        }
        let state = self.store.state();
        let (version, bytes) = state.objects.get(&address.place).ok_or(StoreError::NoObject(address))?;
        self.objects_read.insert(address.place, *version);
        Ok(bytes.clone())
    }

    /// Replaces the bytes of the object at `address`. The object keeps its address, so `bytes` may not be more than its size class holds.
    pub fn write(&mut self, address: Address, bytes: &[u8]) -> Result<(), StoreError> {
        check_value(bytes)?;
        self.read(address)?;
        self.objects_written.insert(address.place, Some(bytes.to_vec()));
        Ok(())
    }

    /// Frees the object at `address`.
    pub fn free(&mut self, address: Address) -> Result<(), StoreError> {
        self.read(address)?;
        self.objects_written.insert(address.place, None);
        Ok(())
    }

    pub(crate) fn commit(self) -> Result<(), StoreError> {
        let mut state = self.store.state();
        let version_of =
            |key: &Vec<u8>| state.live(key).map_or(KeyVersion::ABSENT, |entry| entry.head.version);
        let object_of = |place| state.objects.get(place).map(|object| object.0);
        if !self.reads.iter().all(|(key, version)| version_of(key) == *version)
            || !self.objects_read.iter().all(|(place, version)| object_of(place) == Some(*version))
        {
            return Err(StoreError::Conflict);
        }
        if self.writes.is_empty() && self.objects_written.is_empty() {
            return Ok(());
        }
        let needed = self
            .writes
            .iter()
            .map(|(key, write)| write.as_ref().map_or(0, |write| key.len() + write.0.len()));
        let (needed_bytes, used_bytes) = (needed.sum::<usize>() as u64, state.used());
        let memory_bytes = self.store.options().memory_bytes;
        if used_bytes + needed_bytes > memory_bytes && needed_bytes > 0 {
            return Err(StoreError::Full { needed_bytes, used_bytes, memory_bytes });
        }
        state.clock += 1;
        state.counts.commits += 1;
        let version = state.clock;
        for (key, write) in self.writes {
            match write {
                Some((value, expires_at_ms)) => {
                    let head = EntryHead { version: KeyVersion(version), expires_at_ms };
                    state.keys.insert(key, StoreEntry { value, head });
                }
                None => drop(state.keys.remove(&key)),
            }
        }
        for (place, write) in self.objects_written {
            match write {
                Some(bytes) => drop(state.objects.insert(place, (version, bytes))),
                None => drop(state.objects.remove(&place)),
            }
        }
        Ok(())
    }
}
