//! The store in the process that owns it.

use std::cell::RefCell;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use caravan_fabric::Region;
use caravan_segment::Segment;

use rustix::fs::FallocateFlags;

use crate::commit::{ReadRecord, UnitKind};
use crate::copies::{CopyCounts, CopyId, CopyWriter};
use crate::entry::{
    EntryHead, KeyVersion, KeyWatch, MemoryCounts, ObjectAddress, ScanCursor, StoreCounts, StoreEntry,
    WatchedUnit,
};
use crate::error::StoreError;
use crate::image::{check_key, check_object};
use crate::layout::word;
use crate::limits;
use crate::lookup;
use crate::options::StoreOptions;
use crate::owner::{StoreCore, back_off, count};
use crate::table::LocatedKey;
use crate::transaction::{RetryCause, Transaction};

thread_local! {
    /// The stores whose transactions this thread runs, one within the other.
    static RUNNING: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// Marks that this thread runs a transaction of a store, until it is dropped.
pub(crate) struct RunningBody;

impl RunningBody {
    pub(crate) fn of(store: &Store) -> Result<Self, StoreError> {
        store.core.check_owner()?;
        let this = std::ptr::from_ref(store).addr();
        RUNNING.with_borrow_mut(|running| {
            if running.contains(&this) {
                return Err(StoreError::Nested);
            }
            running.push(this);
            Ok(Self)
        })
    }
}

impl Drop for RunningBody {
    fn drop(&mut self) {
        RUNNING.with_borrow_mut(|running| running.pop());
    }
}

/// A store in the memory of this process. Threads share it by reference; no method needs `&mut`. A child of fork(2) cannot
/// write its parent's store ([`StoreError::Forked`]): it opens a [`Reader`](crate::Reader), or connects to a server.
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
    pub(crate) core: StoreCore,
}

impl Store {
    /// Makes an empty store in this process.
    pub fn embedded(options: StoreOptions) -> Result<Self, StoreError> {
        Self::open(Self::new_memory(&options.name)?, options)
    }

    /// Makes a store in an empty memory, or takes over the store that is there, after its owner has ended in
    /// whatever way: everything that a transaction has committed is there, and nothing of any other one. A
    /// [`Reader`](crate::Reader) that has mapped the memory before goes on; reads of what was just being
    /// written wait for this.
    ///
    /// `memory` is a descriptor from [`new_memory`](Self::new_memory) with the right to write, a copy of which
    /// somebody else may keep, so that the memory outlives this process. At a time, one process owns it
    /// ([`StoreError::Owned`], after a wait of a second); that ends when the process ends or drops the store. The options have the same
    /// `memory_bytes` each time.
    ///
    /// ```
    /// use caravan_store::{Store, StoreError, StoreOptions};
    ///
    /// let memory = Store::new_memory("example")?;
    /// let store = Store::open(memory.try_clone()?, StoreOptions::new(16 << 20))?;
    /// store.put(b"colour", b"blue")?;
    /// drop(store);
    ///
    /// let store = Store::open(memory, StoreOptions::new(16 << 20))?;
    /// assert_eq!(store.get(b"colour")?.as_deref(), Some(&b"blue"[..]));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn open(memory: OwnedFd, options: StoreOptions) -> Result<Self, StoreError> {
        let store = Self::take_over(memory, options)?;
        store.core.restore(None)?;
        Ok(store)
    }

    /// Opens a store as [`open`](Self::open) does, but returns long before that if the store is large and another
    /// owner has ended: as soon as what this one had promised is there. The caller then calls
    /// [`restore`](Self::restore) on a thread of its own, and uses the store meanwhile. Until that is done,
    ///
    /// - what the owner before had locked waits: reads do, and writes may do the work themselves;
    /// - places that were free are not used, but new memory is; when there is none, a write does the work itself;
    /// - the number of keys may be wrong by what was being written when that owner ended.
    pub fn take_over(memory: OwnedFd, options: StoreOptions) -> Result<Self, StoreError> {
        Ok(Self { core: StoreCore::open(memory, &options)? })
    }

    /// Finishes what [`take_over`](Self::take_over) has begun, in small steps between which others commit. Returns at
    /// once if nothing is left to do. [`StoreError::Damaged`] says that the memory is not what an owner leaves behind.
    pub fn restore(&self) -> Result<(), StoreError> {
        self.core.check_owner()?;
        self.core.restore(Some(limits::RESTORE_PAUSE))
    }

    /// Makes an empty memory for [`open`](Self::open). `name` is its name in `/proc/PID/maps`.
    pub fn new_memory(name: &str) -> Result<OwnedFd, StoreError> {
        Ok(Segment::empty_file(name)?)
    }

    /// Gives back what a memory takes that nobody owns any more, also where readers have it mapped, who read nothing but zeroes
    /// from now on.
    #[doc(hidden)]
    pub fn discard_memory(memory: impl AsFd) -> Result<(), StoreError> {
        let status = rustix::fs::fstat(&memory).map_err(|error| StoreError::system("fstat", error))?;
        let (flags, bytes) = (FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, status.st_size as u64);
        let discarded = if bytes > 0 { rustix::fs::fallocate(&memory, flags, 0, bytes) } else { Ok(()) };
        discarded.map_err(|error| StoreError::system("fallocate", error))
    }

    /// Returns a descriptor by which another process can open a [`Reader`](crate::Reader): it gives the right
    /// to read all of the store, and not to write. The caller hands it over, by `caravan_segment::passing`
    /// for example.
    pub fn reader_descriptor(&self) -> Result<OwnedFd, StoreError> {
        self.core.blocks.reader_descriptor()
    }

    /// Returns the descriptors for a reader of a part, whose owner has a lease: of the memory, and of what says how long it may be read.
    #[doc(hidden)]
    pub fn leased_descriptors(&self) -> Result<[OwnedFd; 2], StoreError> {
        Ok([self.reader_descriptor()?, self.core.copies.lease_descriptor()?])
    }

    /// Returns what all threads of the owner share.
    pub(crate) fn core(&self) -> &StoreCore {
        &self.core
    }

    /// Returns what a server says of the memory to a client that attaches, before the client reads any of it.
    #[doc(hidden)]
    pub fn greeting(&self) -> Vec<u8> {
        crate::connected::StoreGreeting::of(&self.core.view).to_bytes()
    }

    /// Returns the memory from the byte `from` on as a region, for a server to lend to clients that map nothing;
    /// `None` if the store has no memory there yet.
    #[doc(hidden)]
    pub fn extent_from(&self, from: u64) -> Result<Option<Region>, StoreError> {
        self.core.blocks.extent_from(from)
    }

    /// Returns the value of `key`.
    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        Ok(self.entry(key)?.map(|entry| entry.value))
    }

    /// Appends the value of `key` to `value`, and returns the version and expiry; for callers that reuse a
    /// buffer.
    pub fn get_into(&self, key: &[u8], value: &mut Vec<u8>) -> Result<Option<EntryHead>, StoreError> {
        let located = lookup::one(&self.core.view, key, Some(value))?;
        Ok(self.seen(located))
    }

    /// Counts a lookup, and marks what it found as touched.
    fn seen(&self, located: Option<LocatedKey>) -> Option<EntryHead> {
        let Some(LocatedKey::Present { address, head, .. }) = located else {
            count(&self.core.tallies.misses, 1);
            return None;
        };
        count(&self.core.tallies.hits, 1);
        self.core.touched.touch(address.place);
        Some(head.entry())
    }

    /// Returns the value of `key` with its version and expiry.
    pub fn entry(&self, key: &[u8]) -> Result<Option<StoreEntry>, StoreError> {
        let mut value = Vec::new();
        Ok(self.get_into(key, &mut value)?.map(|head| StoreEntry { value, head }))
    }

    /// Returns the version and expiry of `key` without its value.
    pub fn head(&self, key: &[u8]) -> Result<Option<EntryHead>, StoreError> {
        let located = lookup::one(&self.core.view, key, None)?;
        Ok(self.seen(located))
    }

    /// Returns the version of `key`, [`KeyVersion::ABSENT`] if there is no such key. A later
    /// [`Transaction::require`] of this version fails if the key has changed.
    pub fn version(&self, key: &[u8]) -> Result<KeyVersion, StoreError> {
        Ok(self.head(key)?.map_or(KeyVersion::ABSENT, |head| head.version))
    }

    /// Returns what `key` is now. A later [`Transaction::require_unchanged`] fails if the key was written meanwhile,
    /// also if it has come and gone. For a key that does not exist, it may also fail because a key beside it in the
    /// table came or went.
    ///
    /// ```
    /// # use caravan_store::{Store, StoreError, StoreOptions};
    /// # let store = Store::embedded(StoreOptions::new(16 << 20))?;
    /// let watch = store.watch(b"a")?;
    /// store.put(b"a", b"1")?;
    /// store.delete(b"a")?;
    /// let late = store.transaction(|tx| tx.require_unchanged(b"a", &watch));
    /// assert!(matches!(late, Err(StoreError::VersionChanged)));
    /// # Ok::<(), StoreError>(())
    /// ```
    pub fn watch(&self, key: &[u8]) -> Result<KeyWatch, StoreError> {
        check_key(key)?;
        let view = &self.core.view;
        let hash = view.hash(key);
        let mut located = view.settle(|| view.locate(hash, key))?;
        // A key that has expired is removed first, because its removal would look like a write later. Within a body it
        // cannot be.
        match &located {
            LocatedKey::Present { address, head, .. } if head.is_expired(view.now_ms()) => {
                if let Ok(_running) = RunningBody::of(self) {
                    self.core.remove_version(key.to_vec(), address.place, head.version);
                    located = view.settle(|| view.locate(hash, key))?;
                }
            }
            _ => {}
        }
        Ok(KeyWatch(match located {
            LocatedKey::Present { head, .. } if !head.is_expired(view.now_ms()) => {
                WatchedUnit::Live(head.entry().version)
            }
            LocatedKey::Present { address, head, .. } => {
                let (place, version) = (address.place, head.version);
                WatchedUnit::Gone(ReadRecord { place, version, kind: UnitKind::Object })
            }
            LocatedKey::Absent { home, version } => {
                WatchedUnit::Gone(ReadRecord { place: home, version, kind: UnitKind::Bucket })
            }
        }))
    }

    /// Looks up all `keys`, and calls `each` with the index of each key and its value, in order. Each value
    /// is read on its own: together they are no snapshot.
    ///
    /// The memory of many keys is on its way to the processor at once, so this is several times as fast as
    /// looking them up one by one.
    ///
    /// ```
    /// # use caravan_store::{Store, StoreError, StoreOptions};
    /// # let store = Store::embedded(StoreOptions::new(16 << 20))?;
    /// store.put(b"a", b"1")?;
    /// let mut found = Vec::new();
    /// store.get_many(&[b"a", b"b"], |index, value| found.push((index, value.map(<[u8]>::to_vec))))?;
    /// assert_eq!(found, [(0, Some(b"1".to_vec())), (1, None)]);
    /// # Ok::<(), StoreError>(())
    /// ```
    pub fn get_many<K: AsRef<[u8]>>(
        &self,
        keys: &[K],
        each: impl FnMut(usize, Option<&[u8]>),
    ) -> Result<(), StoreError> {
        let hits = lookup::many(&self.core.view, keys, |place| self.core.touched.touch(place), each)?;
        count(&self.core.tallies.hits, hits);
        count(&self.core.tallies.misses, keys.len() as u64 - hits);
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
    ///
    /// ```
    /// # use caravan_store::{Store, StoreError, StoreOptions};
    /// # let store = Store::embedded(StoreOptions::new(16 << 20))?;
    /// let address = store.alloc(5, None)?;
    /// store.transaction(|tx| tx.write(address, b"hello"))?;
    /// assert_eq!(store.read(address)?, b"hello");
    /// store.transaction(|tx| tx.free(address))?;
    /// assert!(matches!(store.read(address), Err(StoreError::NoObject(_))));
    /// # Ok::<(), StoreError>(())
    /// ```
    pub fn alloc(&self, bytes: usize, near: Option<ObjectAddress>) -> Result<ObjectAddress, StoreError> {
        check_object(bytes)?;
        let zeroes = vec![0; bytes];
        self.transaction(|tx| tx.alloc(&zeroes, near))
    }

    /// Returns the bytes of the object at `address`.
    pub fn read(&self, address: ObjectAddress) -> Result<Vec<u8>, StoreError> {
        lookup::object(&self.core.view, address)
    }

    /// Runs `body` as one transaction: all of its writes happen, at one moment and with all of its reads
    /// still true, or none.
    ///
    /// If another transaction interferes, a method of [`Transaction`] returns [`StoreError::Conflict`], which
    /// `body` must hand on, or the commit fails; `body` is then run again, so it should have no other
    /// effects. What a body sees is always the state of one moment, even if it is then run again. Any other
    /// error of `body` ends the transaction without a write, and is returned. `body` may not call writing
    /// methods of the store ([`StoreError::Nested`]).
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
        let _running = RunningBody::of(self)?;
        let (mut rooms, mut branches_since) = (0, None);
        for attempt in 0.. {
            // Who has lost often enough runs while nobody else commits, and cannot lose again.
            let may_be_alone = attempt >= limits::ATTEMPTS_BESIDE_OTHERS && !self.core.ledger.has_parked();
            let mut alone = may_be_alone.then(|| {
                self.core.changed.wait_for_room();
                self.core.gate.alone()
            });
            let mut tx = Transaction::new(&self.core);
            let result = body(&mut tx);
            let mut retry = tx.retry();
            if retry.is_none() {
                let value = result?;
                if alone.is_none() && tx.has_writes() {
                    self.core.changed.wait_for_room();
                }
                let committed = match &mut alone {
                    Some(alone) => tx.commit(&mut alone.lane),
                    None => tx.commit(&mut self.core.gate.beside_others()),
                };
                drop(alone);
                match committed {
                    Ok(full) => {
                        full.into_iter().for_each(|hash| self.core.split(hash));
                        return Ok(value);
                    }
                    Err(StoreError::Conflict) => retry = Some(RetryCause::Conflict),
                    Err(StoreError::Full { needed_bytes, .. }) => {
                        retry = Some(RetryCause::Room { bytes: needed_bytes, objects: 1 })
                    }
                    Err(error) => return Err(error.into()),
                }
            } else {
                drop((tx, alone));
            }
            match retry {
                Some(RetryCause::Room { bytes, objects }) => {
                    self.core.make_room(bytes, rooms)?;
                    let mut more = 1..objects;
                    while more.next().is_some() && self.core.make_room(bytes, rooms).is_ok() {}
                    rooms += 1;
                }
                _ => {
                    count(&self.core.tallies.conflicts, 1);
                    if attempt >= limits::ATTEMPTS_BESIDE_OTHERS && !may_be_alone {
                        // It may have met the lock of a branch, which the end of the branch removes.
                        let since = *branches_since.get_or_insert_with(Instant::now);
                        if since.elapsed() >= self.core.view.lock_wait() {
                            return Err(StoreError::Undecided.into());
                        }
                        std::thread::sleep(limits::READ_PAUSE_MIN);
                    } else if may_be_alone {
                        // Nobody else commits: it may have met a lock of the owner before.
                        self.restore()?;
                    }
                    back_off(attempt);
                }
            }
        }
        Err(StoreError::Conflict.into())
    }

    /// Returns some keys and where to go on: about `count` of them, more where many lie together, none where
    /// there are none. A key that exists from the start of a scan to its end is returned at least once,
    /// whatever else changes; a key may be returned twice.
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
        self.core.view.scan(cursor, count, &mut each)
    }

    /// Returns a key that exists, chosen at random, or `None` if the store is empty. `random` is a random
    /// number.
    pub fn random_key(&self, random: u64) -> Result<Option<Vec<u8>>, StoreError> {
        self.core.random_key(random)
    }

    /// Deletes all keys, at one moment. Objects without a key stay.
    pub fn clear(&self) -> Result<(), StoreError> {
        let _running = RunningBody::of(self)?;
        self.core.clear()
    }

    /// Sets the store's clock, by which keys expire, to `now_ms`; an earlier time than before changes
    /// nothing. The store has no clock of its own: without this call, no key expires. Milliseconds since 1970
    /// are what the Redis protocol speaks.
    pub fn publish_now(&self, now_ms: u64) {
        if let Some([now]) = self.core.view.unit(word::NOW_MS, 1) {
            now.fetch_max(now_ms, std::sync::atomic::Ordering::Relaxed);
        }
    }

    /// Returns the store's clock.
    pub fn now_ms(&self) -> u64 {
        self.core.view.now_ms()
    }

    /// Removes keys that have expired: looks at about `count` keys, going on where the last call stopped, and
    /// returns how many it removed. An expired key is invisible at once; this gives its memory back.
    pub fn remove_expired(&self, count: usize) -> Result<u64, StoreError> {
        let _running = RunningBody::of(self)?;
        self.core.remove_expired(count)
    }

    /// Returns the counters.
    pub fn counts(&self) -> StoreCounts {
        self.core.counts()
    }

    /// Returns what the blocks of memory are used for. It looks at each block, and allocations wait meanwhile: some
    /// microseconds for each gigabyte.
    pub fn memory_counts(&self) -> MemoryCounts {
        self.core.blocks.memory_counts()
    }

    /// Compares objects with their checksums: about `count` of them, going on where the last call stopped.
    /// Calls `damaged` with the address of each whose bytes have changed without a write, which is a fault of
    /// the machine's memory or of a program with the right to write. Returns the number of objects compared,
    /// less than `count` only at the end of a round through all of them.
    ///
    /// ```
    /// # use caravan_store::{Store, StoreError, StoreOptions};
    /// # let store = Store::embedded(StoreOptions::new(16 << 20))?;
    /// # store.put(b"a", b"1")?;
    /// assert_eq!(store.scrub(1000, |address| panic!("{address} is damaged"))?, 1);
    /// # Ok::<(), StoreError>(())
    /// ```
    pub fn scrub(&self, count: usize, damaged: impl FnMut(ObjectAddress)) -> Result<usize, StoreError> {
        self.core.scrub(count, damaged)
    }

    /// Adds a copy of the memory. From now on each commit waits until its record has arrived there; the copy can take over once
    /// [`fill_copies`](Self::fill_copies) has returned. See [`StoreCopy`](crate::StoreCopy).
    /// Waits for commits under way, so a copy that is
    /// out of reach is first mended or removed.
    pub fn add_copy(&self, writer: Box<dyn CopyWriter>) -> Result<CopyId, StoreError> {
        let _running = RunningBody::of(self)?;
        self.core.add_copy(writer)
    }

    /// Returns whether copies of the memory may [go on](Self::resume_copy) with this owner: it was one of them, or the owner before
    /// had some.
    pub fn had_copies(&self) -> bool {
        self.core.stream_before().is_some()
    }

    /// Says that no further copy is to go on: gives back what it would have needed.
    pub fn end_resuming(&self) {
        *self.core.stream_before() = None;
        self.core.redone.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clear();
    }

    /// Goes on with a copy that the owner before this one had, and had not removed, when it ended: one that was complete then stays
    /// so. Fails with [`StoreError::OtherStream`] if it is none, lacks what cannot be sent again, or has what this owner has not: then
    /// it is to be [added](Self::add_copy) as a new one. No writer of the owner before may reach the copy any more, so if that one
    /// may still run, its keeper has given it a [new ring](crate::StoreCopy::new_ring_at). Nothing may have been committed since.
    pub fn resume_copy(&self, writer: Box<dyn CopyWriter>) -> Result<CopyId, StoreError> {
        let _running = RunningBody::of(self)?;
        self.core.resume_copy(writer)
    }

    /// Sends the whole memory to the copies that do not have it yet, in pieces of 64 KiB with a pause after each; returns when all
    /// are complete. Others commit meanwhile, but for some 10 us a piece. The caller does this on a thread of its own.
    pub fn fill_copies(&self, pause: std::time::Duration) -> Result<(), StoreError> {
        let _running = RunningBody::of(self)?;
        self.core.fill_copies(pause)
    }

    /// Goes on with a copy that is out of reach, by a new writer to the same ring.
    pub fn mend_copy(&self, copy: CopyId, writer: Box<dyn CopyWriter>) -> Result<(), StoreError> {
        self.core.copies.mend(copy, writer)
    }

    /// Removes a copy: commits do not wait for it any more, those that wait now included. What was answered before may then be on
    /// the other copies alone, so the caller first makes sure that nobody takes over with this one.
    pub fn remove_copy(&self, copy: CopyId) -> Result<(), StoreError> {
        self.core.copies.remove(copy)
    }

    /// Returns the position of the stream of records that copies get.
    pub fn stream_position(&self) -> u64 {
        self.core.copies.position()
    }

    /// Returns whether a copy waits for [`fill_copies`](Self::fill_copies).
    pub fn is_filling(&self) -> bool {
        self.core.copies.is_filling()
    }

    /// Returns how much of the memory has been sent to copies that are being filled, in per cent; `None` if there are none.
    pub fn filled_percent(&self) -> Option<u64> {
        let filled_to = self.core.copies.filled_to()?;
        Some(
            (filled_to * 100)
                .checked_div(self.core.view.load(crate::layout::word::COMMITTED))
                .unwrap_or(0)
                .min(100),
        )
    }

    /// Returns what is known of the copies; asks each of them how far it is.
    pub fn copies(&self) -> Vec<CopyCounts> {
        self.core.copies.counts()
    }

    /// Returns whether a commit has waited for a copy for [`limits::COMMIT_WAIT_LONG`], and waits still. A further commit would wait as
    /// well; reads of what no such commit has locked do not.
    #[inline]
    pub fn commits_wait(&self) -> bool {
        self.core.copies.waits.are_any()
    }

    /// Calls `watcher` when a commit has waited for so long, on the thread that waits. There is one watcher, the last one.
    pub fn watch_waits(&self, watcher: impl Fn() + Send + Sync + 'static) {
        self.core.copies.waits.watch(Arc::new(watcher));
    }

    /// Sets the lease: commits are applied and answered before `until`, a time of `CLOCK_BOOTTIME`, and wait for the next one
    /// after it. `None`, as at first: no lease is needed. Reads do not look at it.
    pub fn set_lease(&self, until: Option<std::time::Duration>) {
        self.core.copies.set_lease(until);
    }

    /// Waits until no commit is under way, and then ends the lease as [`end_lease`](Self::end_lease) does. Returns where the stream of
    /// copies has ended: once this store is dropped, the memory is a [complete copy](crate::StoreCopy::new_ring_at). `None` if a
    /// commit was given up in the middle, a copy lacks something, or there was none: then the lease may not have ended. Commits
    /// wait for a silent copy, so who cannot wait as long calls this on another thread, and `end_lease` after a while.
    pub fn leave(&self) -> Option<crate::copies::StreamEnd> {
        self.core.leave()
    }

    /// Ends the lease for ever: somebody else may own the store by now. Commits under way and all later ones fail with
    /// [`StoreError::NotPrimary`], and what they had locked stays locked.
    pub fn end_lease(&self) {
        self.core.copies.end_lease();
    }

    /// Checks, while no commit runs, that all memory in use can be reached: each key is where its hash leads
    /// to, once, each object in use has a key, is a part of the table, or was allocated, and all counters
    /// agree. For tests: it takes as long as a read of everything, and what a transaction that is still
    /// running has allocated counts as damage. Branches of transactions over several parts must have been decided
    /// ([`StoreError::Undecided`]).
    pub fn audit(&self) -> Result<(), StoreError> {
        let _running = RunningBody::of(self)?;
        self.core.audit()
    }
}
