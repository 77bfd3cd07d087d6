//! The parts of a store that a server serves.
//!
//! A store of one server has one part, which is all of it. A server of a cluster serves the parts of which it is the primary;
//! they come and go while it runs.
//!
//! All of this is one table, which is replaced as a whole: what serves a batch of requests holds the table of that moment, and no
//! lock. A part that is removed is in no further table, so nothing serves it once the last table that has it is gone.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::time::Duration;

use caravan_cluster::{BootTime, Configuration, MemberId, PartId};
use caravan_store::calls::ClientSessions;
use caravan_store::limits::BRANCH_LOCK_WAIT;
use caravan_store::{MemoryCounts, Store, StoreCounts, StoreError};

use crate::links::StoreExtents;
use crate::member::MemberDoor;
use crate::seat::WaitBell;
use crate::slots::{ClusterPlace, NotServed};

/// The parts of a store that a server serves, and where the others are.
///
/// The members of a cluster and their parts are a [`Configuration`]; a server answers for the parts that are [added](Self::add),
/// and sends clients elsewhere for all others. So whoever takes a part over first adds it and then sets the configuration that
/// says so, and whoever hands one over first removes it, so that nothing is written there any more.
///
/// ```
/// use std::sync::Arc;
///
/// use caravan_cluster::{Configuration, MemberId, NewMember, PartId, StoreInstance};
/// use caravan_store::{Store, StoreOptions};
/// use caravan_store_server::ServedParts;
///
/// let member = |name: &str, port| NewMember {
///     name: name.to_owned(),
///     client_address: format!("127.0.0.1:{port}"),
///     member_address: format!("127.0.0.1:{}", port + 1000),
///     kept: Vec::new(),
/// };
/// let members = [member("one", 7001), member("two", 7002)];
/// let configuration = Configuration::create("example", StoreInstance(1), 1, 2, &members)?;
/// let parts = ServedParts::of_cluster(&configuration, MemberId(0));
/// parts.add(PartId(0), Arc::new(Store::embedded(StoreOptions::new(16 << 20))?))?;
/// // Later another server takes it over, with its memory.
/// let store = parts.remove(PartId(0)).expect("it was served");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct ServedParts {
    /// Locked only to exchange or to copy the pointer.
    table: RwLock<Arc<PartTable>>,
    /// What a connection holds between two batches of requests: of a cluster, a table without a part.
    idle: Arc<PartTable>,
    /// Locked while a change is made, so that one change comes after the other.
    changes: Mutex<PartChanges>,
    watcher: PartsWatcher,
    /// Until when this server may answer, in nanoseconds of `BootTime`.
    lease_until: AtomicU64,
    /// Where other members come in.
    door: OnceLock<MemberDoor>,
    /// Rung by commits that wait for copies.
    pub(crate) waits: Arc<WaitBell>,
}

/// What changes of the parts need.
#[derive(Debug, Default)]
struct PartChanges {
    /// The number of parts that were added so far.
    added: u64,
    /// For each part that is served, what ends when nothing serves it any more.
    ends: Vec<(PartId, Receiver<()>)>,
}

/// Who is told on the changing thread that a part is served no longer.
#[derive(Default)]
struct PartsWatcher(OnceLock<Box<dyn Fn() + Send + Sync>>);

impl std::fmt::Debug for PartsWatcher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PartsWatcher")
    }
}

impl ServedParts {
    /// Returns the one part of a store that is on no other server.
    pub fn whole(store: Arc<Store>) -> Result<Arc<Self>, StoreError> {
        let (held, _) = channel();
        let part = ServedPart::new(PartId(0), 0, store, held)?;
        let table = Arc::new(PartTable { served: vec![Arc::new(part)], cluster: None });
        Ok(Arc::new(Self::of(Arc::clone(&table), table)))
    }

    /// Returns the parts of a server that is the member `own` of a cluster, and serves none of them yet.
    pub fn of_cluster(configuration: &Configuration, own: MemberId) -> Arc<Self> {
        let cluster = Some(Arc::new(ClusterPlace::new(configuration.clone(), own)));
        let table = Arc::new(PartTable { served: Vec::new(), cluster });
        Arc::new(Self::of(Arc::clone(&table), table))
    }

    fn of(table: Arc<PartTable>, idle: Arc<PartTable>) -> Self {
        Self {
            table: RwLock::new(table),
            idle,
            changes: Mutex::default(),
            watcher: PartsWatcher::default(),
            lease_until: AtomicU64::new(u64::MAX),
            door: OnceLock::new(),
            waits: Arc::default(),
        }
    }

    /// Sets who has which part from now on. It neither adds nor removes a part here.
    pub fn set_configuration(&self, configuration: &Configuration, own: MemberId) {
        let cluster = Some(Arc::new(ClusterPlace::new(configuration.clone(), own)));
        let _changes = self.changes();
        let served = self.table().served.clone();
        self.exchange(PartTable { served, cluster });
    }

    /// Serves a part from now on. If the part is served already, by another `Store`, that one is [removed](Self::remove) first.
    /// Fails if the memory cannot be read.
    pub fn add(&self, part: PartId, store: Arc<Store>) -> Result<(), StoreError> {
        let mut changes = self.changes();
        if let Some((_, end)) = self.take_out(part, &mut changes) {
            let _ = end.recv();
        }
        changes.added += 1;
        if self.table().cluster.is_some() {
            store.set_lock_wait(BRANCH_LOCK_WAIT);
            let waits = Arc::clone(&self.waits);
            store.watch_waits(move || waits.ring());
        }
        let (held, end) = channel();
        let added = ServedPart::new(part, changes.added, Arc::clone(&store), held)?;
        let table = self.table();
        let mut served = table.served.clone();
        served.push(Arc::new(added));
        served.sort_by_key(|served| served.id);
        changes.ends.push((part, end));
        self.exchange(PartTable { served, cluster: table.cluster.clone() });
        // After the exchange: the next change of the lease finds the store.
        self.lease(&store);
        Ok(())
    }

    /// Serves a part no longer, and returns its store; `None` if it is not served. Waits until the commands on it that are under
    /// way have ended and its links are closed: afterwards the server neither reads nor writes the store. Requests that come
    /// later are sent elsewhere, as the configuration says.
    pub fn remove(&self, part: PartId) -> Option<Arc<Store>> {
        let (store, end) = self.take_out(part, &mut self.changes())?;
        let _ = end.recv();
        Some(store)
    }

    /// Takes a part out of the table, and returns its store with what ends, without a message, when nothing uses the part.
    fn take_out(&self, part: PartId, changes: &mut PartChanges) -> Option<(Arc<Store>, Receiver<()>)> {
        let table = self.table();
        let store = Arc::clone(&table.served[table.index(part)?].store);
        let end = changes.ends.iter().position(|(id, _)| *id == part)?;
        let (_, end) = changes.ends.swap_remove(end);
        let served = table.served.iter().filter(|served| served.id != part).cloned().collect();
        self.exchange(PartTable { served, cluster: table.cluster.clone() });
        self.watcher.0.get().into_iter().for_each(|watcher| watcher());
        Some((store, end))
    }

    /// Sets until when this server may answer, and its stores may commit; at first there is no end.
    pub(crate) fn set_lease(&self, until: BootTime) {
        self.lease_until.store(until.0, Ordering::Release);
        self.table().stores().for_each(|store| self.lease(store));
    }

    /// Tells a store until when it may commit.
    pub(crate) fn lease(&self, store: &Store) {
        let until = self.lease_until.load(Ordering::Acquire);
        if until != u64::MAX {
            store.set_lease(Some(Duration::from_nanos(until)));
        }
    }

    /// Returns whether what was read of the parts before this call may be answered.
    pub(crate) fn may_answer(&self) -> bool {
        let until = self.lease_until.load(Ordering::Acquire);
        until == u64::MAX || BootTime::now().0 < until || self.table().served.is_empty()
    }

    /// Returns whether all parts of which this server is the primary are served.
    pub(crate) fn is_complete(&self) -> bool {
        let table = self.table();
        let Some(cluster) = &table.cluster else { return true };
        let own = cluster.configuration.parts.iter().filter(|part| part.primary == Some(cluster.own));
        own.into_iter().all(|part| table.index(part.id).is_some())
    }

    pub(crate) fn set_door(&self, door: MemberDoor) {
        let _ = self.door.set(door);
    }

    /// Returns where other members of the cluster come in.
    pub(crate) fn door(&self) -> Option<&MemberDoor> {
        self.door.get()
    }

    /// Returns the numbers of the parts that are served.
    pub fn numbers(&self) -> Vec<PartId> {
        self.table().served.iter().map(|part| part.id).collect()
    }

    fn changes(&self) -> std::sync::MutexGuard<'_, PartChanges> {
        self.changes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn exchange(&self, table: PartTable) {
        // The earlier table is dropped outside of the lock.
        let table = Arc::new(table);
        let _before =
            std::mem::replace(&mut *self.table.write().unwrap_or_else(PoisonError::into_inner), table);
    }

    /// Returns the parts as they are now. Who holds the table may use them: [`remove`](Self::remove) waits for it.
    pub(crate) fn table(&self) -> Arc<PartTable> {
        Arc::clone(&self.table.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns what to hold while no request is served.
    pub(crate) fn idle(&self) -> Arc<PartTable> {
        Arc::clone(&self.idle)
    }

    /// Calls `watcher` whenever a part is served no longer. There is one watcher.
    pub(crate) fn watch(&self, watcher: Box<dyn Fn() + Send + Sync>) {
        let _ = self.watcher.0.set(watcher);
    }
}

/// A part that a server serves.
#[derive(Debug)]
pub(crate) struct ServedPart {
    pub(crate) id: PartId,
    /// Which service of the part this is: another one may have another memory.
    pub(crate) tenure: u64,
    pub(crate) store: Arc<Store>,
    /// The sessions of clients that attach.
    pub(crate) sessions: Arc<ClientSessions>,
    /// What clients that map nothing are lent.
    pub(crate) extents: StoreExtents,
    /// Dropped last.
    _held: Sender<()>,
}

impl ServedPart {
    fn new(id: PartId, tenure: u64, store: Arc<Store>, held: Sender<()>) -> Result<Self, StoreError> {
        let sessions = Arc::new(ClientSessions::new(&store)?);
        Ok(Self { id, tenure, store, sessions, extents: StoreExtents::default(), _held: held })
    }
}

/// The parts that a server serves at a moment.
#[derive(Debug)]
pub(crate) struct PartTable {
    /// In the order of their numbers. Without a cluster there is one.
    pub(crate) served: Vec<Arc<ServedPart>>,
    pub(crate) cluster: Option<Arc<ClusterPlace>>,
}

impl PartTable {
    /// Returns which of the served parts has all these keys; any one if there is no key.
    #[inline]
    pub(crate) fn index_of<'k>(&self, keys: impl Iterator<Item = &'k [u8]>) -> Result<usize, NotServed> {
        match &self.cluster {
            None => Ok(0),
            Some(cluster) => self.index_in(cluster, keys),
        }
    }

    fn index_in<'k>(
        &self,
        cluster: &ClusterPlace,
        keys: impl Iterator<Item = &'k [u8]>,
    ) -> Result<usize, NotServed> {
        let Some((slot, part)) = cluster.part_of(keys)? else { return Ok(0) };
        self.index(part).ok_or_else(|| cluster.elsewhere(slot, part))
    }

    /// Returns the same without the parts that are served: what holds it keeps no part from being removed.
    pub(crate) fn without_parts(&self) -> Self {
        Self { served: Vec::new(), cluster: self.cluster.clone() }
    }

    /// Returns the place of a part among those that are served.
    pub(crate) fn index(&self, part: PartId) -> Option<usize> {
        self.served.binary_search_by_key(&part, |served| served.id).ok()
    }

    /// Returns a part that is served, by its number; without a number, the only one of the store.
    pub(crate) fn part(&self, number: Option<PartId>) -> Result<&Arc<ServedPart>, NotServed> {
        let part = match (&self.cluster, number) {
            (None, None) => PartId(0),
            (Some(cluster), None) => cluster.only_part()?,
            (_, Some(part)) => part,
        };
        let unserved =
            || self.cluster.as_ref().map_or(NotServed::NoPart(part), |cluster| cluster.part_elsewhere(part));
        self.index(part).map(|index| &self.served[index]).ok_or_else(unserved)
    }

    /// Returns whether this service of any part goes on.
    pub(crate) fn has_tenure(&self, tenure: u64) -> bool {
        self.served.iter().any(|part| part.tenure == tenure)
    }

    /// Returns whether this service of a part goes on.
    pub(crate) fn serves(&self, part: &ServedPart) -> bool {
        self.index(part.id).is_some_and(|index| self.served[index].tenure == part.tenure)
    }

    /// Returns what Redis calls the mode of the server.
    pub(crate) fn mode(&self) -> &'static str {
        if self.cluster.is_some() { "cluster" } else { "standalone" }
    }

    pub(crate) fn stores(&self) -> impl Iterator<Item = &Arc<Store>> {
        self.served.iter().map(|part| &part.store)
    }

    /// Has reads of parts whose commits wait for copies not wait for what those have locked: they are tried again later.
    pub(crate) fn hurry_readers(&self) {
        for store in self.stores() {
            store.set_lock_wait(if store.commits_wait() { Duration::ZERO } else { BRANCH_LOCK_WAIT });
        }
    }

    /// Sets the clock of all parts, and returns the time that it shows.
    pub(crate) fn publish_now(&self, now_ms: u64) -> u64 {
        self.stores()
            .map(|store| {
                store.publish_now(now_ms);
                store.now_ms()
            })
            .fold(now_ms, u64::max)
    }

    /// Returns the counters of all parts together.
    pub(crate) fn counts(&self) -> StoreCounts {
        self.stores().map(|store| store.counts()).sum()
    }

    /// Returns what the memories of all parts are used for.
    pub(crate) fn memory_counts(&self) -> MemoryCounts {
        self.stores().map(|store| store.memory_counts()).sum()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::RecvTimeoutError;
    use std::time::{Duration, Instant};

    use caravan_cluster::{NewMember, StoreInstance};
    use caravan_store::StoreOptions;

    use super::*;

    fn store() -> Arc<Store> {
        Arc::new(Store::embedded(StoreOptions::new(16 << 20)).expect("a store"))
    }

    #[test]
    fn a_part_is_removed_once_nothing_uses_it() {
        let member = NewMember {
            name: "one".to_owned(),
            client_address: "127.0.0.1:1".to_owned(),
            member_address: "127.0.0.1:2".to_owned(),
            kept: Vec::new(),
        };
        let configuration = Configuration::create("test", StoreInstance(1), 1, 2, &[member]).expect("sound");
        let parts = ServedParts::of_cluster(&configuration, MemberId(0));
        assert!(parts.remove(PartId(0)).is_none());
        parts.add(PartId(1), store()).expect("added");
        parts.add(PartId(0), store()).expect("added");
        assert_eq!(parts.numbers(), [PartId(0), PartId(1)]);
        let used = parts.table();
        let (removed, is_removed) = channel();
        let other = Arc::clone(&parts);
        let thread = std::thread::spawn(move || {
            let store = other.remove(PartId(0)).expect("it was served");
            removed.send(()).expect("somebody listens");
            store
        });
        let deadline = Instant::now() + Duration::from_secs(60);
        while parts.numbers() != [PartId(1)] {
            assert!(Instant::now() < deadline, "later requests still find the part");
            std::thread::yield_now();
        }
        // It would return at once if it did not wait.
        assert_eq!(is_removed.recv_timeout(Duration::from_millis(50)), Err(RecvTimeoutError::Timeout));
        drop(used);
        is_removed.recv_timeout(Duration::from_secs(60)).expect("nothing uses the part any more");
        let store = thread.join().expect("no panic");
        assert_eq!(Arc::strong_count(&store), 1, "the server keeps the store");
    }
}
