//! How a store is written to a snapshot while commits go on, and read again.
//!
//! The saver walks through all keys and writes each. From before the walk until its end, every commit notes
//! the keys that it has changed, and the saver writes these again, as they are by then. At the end it keeps
//! all commits out, and writes the few that are left: the last record of each key is its state at that moment.
//! A commit waits when the saver is far behind.

use std::collections::HashSet;
use std::io::{Read, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use crate::entry::ScanCursor;
use crate::error::StoreError;
use crate::faults::{PlantedFault, is_planted};
use crate::limits::{SAVE_BACKLOG_BYTES_MAX, SAVE_REST_KEYS, SAVE_ROUNDS_MAX, SAVE_STEP_KEYS};
use crate::lookup;
use crate::owner::StoreCore;
use crate::snapshot::{SnapshotReader, SnapshotRecord, SnapshotWriter};
use crate::store::{RunningBody, Store};
use crate::table::LocatedKey;

/// What a snapshot has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SnapshotCounts {
    /// The number of records: one for each key, and more for what was written during the save.
    pub records: u64,
    /// The number of bytes.
    pub bytes: u64,
}

impl Store {
    /// Writes a snapshot: all keys with their values and expiry, as they were at one moment during the call.
    /// Other threads go on reading, and writing except for a moment at the end; if they write faster than
    /// `out` takes bytes, they wait. `out` has a whole snapshot only if this returns no error. Objects without
    /// a key are not saved, as their addresses are of this memory alone; nor are the sessions of clients.
    ///
    /// ```
    /// # use caravan_store::{Store, StoreError, StoreOptions};
    /// # let store = Store::embedded(StoreOptions::new(16 << 20))?;
    /// store.put(b"colour", b"blue")?;
    /// let mut snapshot = Vec::new();
    /// store.save(&mut snapshot)?;
    ///
    /// let other = Store::embedded(StoreOptions::new(16 << 20))?;
    /// other.load(&snapshot[..])?;
    /// assert_eq!(other.get(b"colour")?.as_deref(), Some(&b"blue"[..]));
    /// // A damaged snapshot leaves the store empty.
    /// snapshot[30] ^= 1;
    /// other.clear()?;
    /// let error = other.load(&snapshot[..]).unwrap_err();
    /// assert!(error.to_string().starts_with("the snapshot is damaged at byte 24"), "{error}");
    /// # Ok::<(), StoreError>(())
    /// ```
    pub fn save(&self, out: impl Write) -> Result<SnapshotCounts, StoreError> {
        let _running = RunningBody::of(self)?;
        self.core.save(out)
    }

    /// Reads a snapshot into this store, which must have no keys. After an error it has none again. Keys that
    /// have expired by the store's clock ([`publish_now`](Self::publish_now)) are left out.
    pub fn load(&self, input: impl Read) -> Result<SnapshotCounts, StoreError> {
        let keys = self.counts().keys;
        if keys != 0 {
            return Err(StoreError::NotEmpty { keys });
        }
        self.load_records(input).inspect_err(|_| _ = self.clear())
    }

    fn load_records(&self, input: impl Read) -> Result<SnapshotCounts, StoreError> {
        let mut reader = SnapshotReader::new(input)?;
        let now_ms = self.now_ms();
        let mut records = 0;
        while let Some(record) = reader.next()? {
            records += 1;
            match record {
                SnapshotRecord::Put { key, expires_at_ms, .. }
                    if expires_at_ms.is_some_and(|at| at <= now_ms) =>
                {
                    self.delete(key)?;
                }
                SnapshotRecord::Put { key, value, expires_at_ms } => {
                    self.put_until(key, value, expires_at_ms).map_err(|error| self.load_error(error))?;
                }
                SnapshotRecord::Delete { key } => _ = self.delete(key)?,
                SnapshotRecord::Clear => self.clear()?,
            }
        }
        Ok(SnapshotCounts { records, bytes: reader.bytes() })
    }

    fn load_error(&self, error: StoreError) -> StoreError {
        match error {
            StoreError::Full { memory_bytes, .. } => {
                StoreError::SnapshotTooLarge { memory_bytes, keys: self.counts().keys }
            }
            error => error,
        }
    }
}

/// What one changed key counts for beside its bytes.
const KEY_OVERHEAD_BYTES: usize = 64;

/// The keys that commits have changed since a saver last wrote such keys.
///
/// Invariant: `is_saving` becomes true while nobody commits, so all commits of a save are noted.
#[derive(Debug, Default)]
pub(crate) struct ChangedKeys {
    is_saving: AtomicBool,
    backlog: Mutex<SaveBacklog>,
    /// Signalled when the backlog has been taken.
    taken: Condvar,
}

#[derive(Debug, Default)]
struct SaveBacklog {
    /// All keys were deleted at one moment, before any of `keys` was changed.
    is_cleared: bool,
    keys: HashSet<Vec<u8>>,
    bytes: usize,
}

impl ChangedKeys {
    /// Tells whether a commit has to note what it changes; the caller holds a lane.
    #[inline]
    pub(crate) fn is_saving(&self) -> bool {
        // It changes while somebody holds the gate alone, which orders it.
        self.is_saving.load(Ordering::Relaxed) && !is_planted(PlantedFault::UnnotedChange)
    }

    /// Waits until the saver is not far behind; the caller holds no lane. Threads that have waited
    /// may exceed the limit by one commit each.
    #[inline]
    pub(crate) fn wait_for_room(&self) {
        if self.is_saving() {
            let is_full = |backlog: &mut SaveBacklog| {
                backlog.bytes > SAVE_BACKLOG_BYTES_MAX && self.is_saving.load(Ordering::Relaxed)
            };
            drop(self.taken.wait_while(self.backlog(), is_full));
        }
    }

    /// Notes keys that a commit has changed, after the change and before it gives its lane up.
    pub(crate) fn note(&self, keys: impl IntoIterator<Item = Vec<u8>>) {
        let mut backlog = self.backlog();
        for key in keys {
            let bytes = key.len() + KEY_OVERHEAD_BYTES;
            if backlog.keys.insert(key) {
                backlog.bytes += bytes;
            }
        }
    }

    /// Notes that all keys have been deleted; the caller holds the gate alone.
    pub(crate) fn note_clear(&self) {
        if self.is_saving() {
            *self.backlog() = SaveBacklog { is_cleared: true, ..SaveBacklog::default() };
        }
    }

    fn backlog(&self) -> MutexGuard<'_, SaveBacklog> {
        self.backlog.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self) -> SaveBacklog {
        let backlog = std::mem::take(&mut *self.backlog());
        self.taken.notify_all();
        backlog
    }
}

/// A save under way. Dropped, it ends the notes of commits.
struct RunningSave<'c> {
    changed: &'c ChangedKeys,
}

impl<'c> RunningSave<'c> {
    fn begin(core: &'c StoreCore) -> Result<Self, StoreError> {
        let _alone = core.gate.alone();
        if core.changed.is_saving.swap(true, Ordering::Relaxed) {
            return Err(StoreError::SaveUnderWay);
        }
        // What commits noted after a save had failed is not of this one.
        *core.changed.backlog() = SaveBacklog::default();
        Ok(Self { changed: &core.changed })
    }
}

impl Drop for RunningSave<'_> {
    fn drop(&mut self) {
        self.changed.is_saving.store(false, Ordering::Relaxed);
        drop(self.changed.take());
    }
}

impl StoreCore {
    fn save(&self, out: impl Write) -> Result<SnapshotCounts, StoreError> {
        let running = RunningSave::begin(self)?;
        let mut writer = SnapshotWriter::new(out)?;
        let mut cursor = ScanCursor::START;
        let mut keys = Vec::new();
        loop {
            keys.clear();
            cursor = self.view.scan(cursor, SAVE_STEP_KEYS, &mut |key: &[u8]| keys.push(key.to_vec()))?;
            for key in &keys {
                self.save_key(&mut writer, key, false)?;
            }
            if running.changed.backlog().bytes > SAVE_BACKLOG_BYTES_MAX / 2 {
                self.save_backlog(&mut writer)?;
            }
            if cursor == ScanCursor::START {
                break;
            }
        }
        for _ in 0..SAVE_ROUNDS_MAX {
            if self.save_backlog(&mut writer)? < SAVE_REST_KEYS {
                break;
            }
        }
        // Who waits for room holds no lane.
        let alone = self.gate.alone();
        self.save_backlog(&mut writer)?;
        drop(running);
        drop(alone);
        let (records, bytes) = writer.finish()?;
        Ok(SnapshotCounts { records, bytes })
    }

    /// Writes what was noted since the last time; returns the number of keys.
    fn save_backlog(&self, writer: &mut SnapshotWriter<impl Write>) -> Result<usize, StoreError> {
        let SaveBacklog { is_cleared, keys, .. } = self.changed.take();
        if is_cleared {
            writer.write(SnapshotRecord::Clear)?;
        }
        keys.iter().try_for_each(|key| self.save_key(writer, key, true))?;
        Ok(keys.len())
    }

    /// Writes a key as it is now; if it does not exist, a record of that where an earlier record may differ.
    fn save_key(
        &self,
        writer: &mut SnapshotWriter<impl Write>,
        key: &[u8],
        is_changed: bool,
    ) -> Result<(), StoreError> {
        let mut value = Vec::new();
        match lookup::one(&self.view, key, Some(&mut value))? {
            Some(LocatedKey::Present { head, .. }) => {
                let expires_at_ms = head.entry().expires_at_ms;
                writer.write(SnapshotRecord::Put { key, value: &value, expires_at_ms })
            }
            _ if is_changed => writer.write(SnapshotRecord::Delete { key }),
            _ => Ok(()),
        }
    }
}
