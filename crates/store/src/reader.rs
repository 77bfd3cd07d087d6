//! A store as another process of the host reads it.

use std::ops::Range;
use std::os::fd::OwnedFd;
use std::time::Instant;

use crate::entry::{EntryHead, KeyVersion, ObjectAddress, ScanCursor, StoreEntry};
use crate::error::StoreError;
use crate::limits;
use crate::lookup;
use crate::owner::back_off;
use crate::table::LocatedKey;
use crate::transaction::ReadSet;
use crate::view::StoreView;
use crate::words::StoreWords;

/// The keys and objects of a store that another process owns, read from its memory with plain loads.
///
/// A reader has no right to write to the memory, so whatever happens to it, the store and other readers do
/// not notice. It never calls the owner. If the owner was stopped or killed in the middle of a write, reads
/// of just that key wait for the next owner ([`Store::open`](crate::Store::open)), and fail with
/// [`StoreError::Contended`] if none comes; all other reads go on. Threads share a
/// reader by reference.
///
/// ```
/// use caravan_store::{Reader, Store, StoreOptions};
///
/// let store = Store::embedded(StoreOptions::new(16 << 20))?;
/// store.put(b"colour", b"blue")?;
///
/// // In another process, which was handed the descriptor:
/// let reader = Reader::open(store.reader_descriptor()?)?;
/// assert_eq!(reader.get(b"colour")?.as_deref(), Some(&b"blue"[..]));
/// # Ok::<(), caravan_store::StoreError>(())
/// ```
#[derive(Debug)]
pub struct Reader {
    pub(crate) view: StoreView,
}

impl Reader {
    /// Opens the memory of a store, by a descriptor from
    /// [`Store::reader_descriptor`](crate::Store::reader_descriptor).
    pub fn open(descriptor: OwnedFd) -> Result<Self, StoreError> {
        Ok(Self { view: StoreView::new(StoreWords::of_reader(descriptor)?)? })
    }

    pub(crate) fn view(&self) -> &StoreView {
        &self.view
    }

    /// Returns the value of `key`.
    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        Ok(self.entry(key)?.map(|entry| entry.value))
    }

    /// Appends the value of `key` to `value`, and returns the version and expiry; for callers that reuse a
    /// buffer.
    #[inline]
    pub fn get_into(&self, key: &[u8], value: &mut Vec<u8>) -> Result<Option<EntryHead>, StoreError> {
        Ok(head(lookup::one(&self.view, key, Some(value))?))
    }

    /// Returns the value of `key` with its version and expiry.
    pub fn entry(&self, key: &[u8]) -> Result<Option<StoreEntry>, StoreError> {
        let mut value = Vec::new();
        Ok(self.get_into(key, &mut value)?.map(|head| StoreEntry { value, head }))
    }

    /// Returns the version and expiry of `key` without its value.
    pub fn head(&self, key: &[u8]) -> Result<Option<EntryHead>, StoreError> {
        Ok(head(lookup::one(&self.view, key, None)?))
    }

    /// Returns the version of `key`, [`KeyVersion::ABSENT`] if there is no such key.
    pub fn version(&self, key: &[u8]) -> Result<KeyVersion, StoreError> {
        Ok(self.head(key)?.map_or(KeyVersion::ABSENT, |head| head.version))
    }

    /// Looks up all `keys`, and calls `each` with the index of each key and its value, in order. Each
    /// value is read on its own: together they are no snapshot.
    pub fn get_many<K: AsRef<[u8]>>(
        &self,
        keys: &[K],
        each: impl FnMut(usize, Option<&[u8]>),
    ) -> Result<(), StoreError> {
        lookup::many(&self.view, keys, |_| (), each).map(|_| ())
    }

    /// Returns the bytes of the object at `address`.
    pub fn read(&self, address: ObjectAddress) -> Result<Vec<u8>, StoreError> {
        lookup::object(&self.view, address)
    }

    /// Calls `each` with some keys, as [`Store::scan`](crate::Store::scan) does.
    pub fn scan(
        &self,
        cursor: ScanCursor,
        count: usize,
        mut each: impl FnMut(&[u8]),
    ) -> Result<ScanCursor, StoreError> {
        self.view.scan(cursor, count, &mut each)
    }

    /// Returns the store's clock, which its owner sets.
    pub fn now_ms(&self) -> u64 {
        self.view.now_ms()
    }

    /// Runs `body` on one state of the store: everything that it reads was true at one moment. If a write
    /// interferes, a method returns [`StoreError::Conflict`], which `body` hands on, and `body` is run again.
    ///
    /// ```
    /// # use caravan_store::{Reader, Store, StoreError, StoreOptions};
    /// # let store = Store::embedded(StoreOptions::new(16 << 20))?;
    /// # let reader = Reader::open(store.reader_descriptor()?)?;
    /// store.transaction(|tx| {
    ///     tx.put(b"debit", b"7")?;
    ///     tx.put(b"credit", b"7")
    /// })?;
    /// let both = reader.transaction(|tx| Ok::<_, StoreError>([tx.get(b"debit")?, tx.get(b"credit")?]))?;
    /// assert_eq!(both[0], both[1]);
    /// # Ok::<(), StoreError>(())
    /// ```
    pub fn transaction<T, E: From<StoreError>>(
        &self,
        mut body: impl FnMut(&mut ReadTransaction<'_>) -> Result<T, E>,
    ) -> Result<T, E> {
        let begin = Instant::now();
        let mut attempt = 0;
        while attempt < limits::READ_ATTEMPTS || begin.elapsed() < limits::READ_WAIT {
            let snapshot = ReadSet::new(&self.view);
            let mut tx = ReadTransaction { view: &self.view, snapshot, is_thwarted: false };
            let result = body(&mut tx);
            if !tx.is_thwarted {
                return result;
            }
            back_off(attempt);
            attempt += 1;
        }
        Err(StoreError::Contended.into())
    }
}

/// What the body of [`Reader::transaction`] reads by.
#[derive(Debug)]
pub struct ReadTransaction<'r> {
    view: &'r StoreView,
    snapshot: ReadSet,
    is_thwarted: bool,
}

impl ReadTransaction<'_> {
    /// Returns the value of `key`.
    pub fn get(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        Ok(self.entry(key)?.map(|entry| entry.value))
    }

    /// Returns the value of `key` with its version and expiry.
    pub fn entry(&mut self, key: &[u8]) -> Result<Option<StoreEntry>, StoreError> {
        let read = self.snapshot.entry(self.view, key);
        self.is_thwarted |= matches!(read, Err(StoreError::Conflict));
        read
    }

    /// Returns the bytes of the object at `address`.
    pub fn read(&mut self, address: ObjectAddress) -> Result<Vec<u8>, StoreError> {
        let read = self.snapshot.object(self.view, address);
        self.is_thwarted |= matches!(read, Err(StoreError::Conflict));
        Ok(read?.1)
    }
}

impl ReadTransaction<'_> {
    /// Appends the bytes `range` of the object at `address` to `to`, as far as there are any, and returns whether
    /// there is an object.
    pub(crate) fn object_part(
        &mut self,
        address: ObjectAddress,
        range: Range<usize>,
        to: &mut Vec<u8>,
    ) -> Result<bool, StoreError> {
        let read = self.snapshot.object_part(self.view, address, range, to);
        self.is_thwarted |= matches!(read, Err(StoreError::Conflict));
        Ok(read?.is_some())
    }
}

fn head(located: Option<LocatedKey>) -> Option<EntryHead> {
    match located {
        Some(LocatedKey::Present { head, .. }) => Some(head.entry()),
        _ => None,
    }
}
