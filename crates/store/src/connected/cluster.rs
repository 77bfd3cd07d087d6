//! A store of several servers: the parts of a store, one client of each, and transactions over several of them
//! ([`crate::ledger`] says how they commit).

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use super::address::ConnectOptions;
use super::blocking::ConnectedTransaction;
use super::dial::{ConnectLimit, ServerSocket};
use super::pending::Pending;
use super::transaction::AsyncTransaction;
use super::{ConnectedStore, GET_MANY, body};
use crate::calls::{NUMBER_BYTES, RequestKind, append_commit};
use crate::entry::{EntryHead, KeyVersion, KeyWatch, StoreEntry};
use crate::error::StoreError;
use crate::faults::{self, FaultMoment};
use crate::ledger::{Outcome, TransactionId};
use crate::limits;
use crate::owner::back_off;
use crate::slots::{SLOTS, slot_of};

/// A store of several servers, or of one: each key is read and written in its part, at the server that has that part then.
///
/// Each part is connected to when it is first used, and followed when another server takes it over. Threads share this by
/// reference.
///
/// ```no_run
/// use caravan_store::{ClusterStore, StoreError};
///
/// let store = ClusterStore::connect("10.0.0.7:6379")?;
/// store.put(b"alice", b"10")?;
/// // The keys may be in different parts, at different servers.
/// store.transaction(|tx| {
///     let value = tx.get(b"alice")?.unwrap_or_default();
///     tx.put(b"bob", &value)?;
///     tx.delete(b"alice")
/// })?;
/// # Ok::<(), StoreError>(())
/// ```
#[derive(Debug)]
pub struct ClusterStore {
    options: ConnectOptions,
    /// The part of each hash slot.
    slots: Vec<u16>,
    parts: BTreeMap<u16, PartClient>,
    decided: Mutex<VecDeque<DecidedTransaction>>,
}

/// The client of a part.
#[derive(Debug, Default)]
struct PartClient {
    store: OnceLock<ConnectedStore>,
    connecting: Mutex<()>,
    /// How often connecting has failed.
    failures: AtomicU64,
    /// The numbers of transactions that are open at the part's owner.
    open: Mutex<OpenNumbers>,
}

/// Invariant: `first <= next <= end`
#[derive(Debug, Default)]
struct OpenNumbers {
    owner: u64,
    first: u64,
    next: u64,
    end: u64,
}

/// A transaction that has happened, and the answers of the parts that were told.
#[derive(Debug)]
struct DecidedTransaction {
    id: TransactionId,
    told: Vec<Pending<()>>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ClusterStore {
    /// Connects to a server of the store, which says what parts there are. Blocks.
    pub fn connect(options: impl Into<ConnectOptions>) -> Result<Self, StoreError> {
        let mut options = options.into();
        let (slots, servers) = ask_one_for_parts(&options)?;
        let parts = slots.iter().map(|part| (*part, PartClient::default())).collect();
        for server in servers {
            if server != options.address && !options.others.contains(&server) {
                options.others.push(server);
            }
        }
        Ok(Self { options, slots, parts, decided: Mutex::default() })
    }

    /// Returns the part of a key.
    pub fn part_of(&self, key: &[u8]) -> u16 {
        self.slots[usize::from(slot_of(key))]
    }

    /// Returns the numbers of the parts.
    pub fn parts(&self) -> impl Iterator<Item = u16> + '_ {
        self.parts.keys().copied()
    }

    /// Returns the client of a part, with all that is not about several parts. Blocks if it is not connected yet.
    pub fn part(&self, part: u16) -> Result<&ConnectedStore, StoreError> {
        let client = self.client(part)?;
        if let Some(store) = client.store.get() {
            return Ok(store);
        }
        let failures = client.failures.load(Ordering::Relaxed);
        let _turn = locked(&client.connecting);
        if client.store.get().is_none() {
            if client.failures.load(Ordering::Relaxed) != failures {
                // Threads that have waited for one that failed do not wait as long again, one after the other.
                return Err(StoreError::NoAnswer { wait: self.options.connect_wait, is_started: false });
            }
            let connected = ConnectedStore::connect(self.options.clone().part(part));
            let connected = connected.inspect_err(|_| _ = client.failures.fetch_add(1, Ordering::Relaxed))?;
            let _ = client.store.set(connected);
        }
        client.store.get().ok_or(StoreError::Disconnected)
    }

    fn client(&self, part: u16) -> Result<&PartClient, StoreError> {
        self.parts.get(&part).ok_or(StoreError::Protocol("the store has no such part"))
    }

    /// Returns the client of the part of a key.
    pub fn of(&self, key: &[u8]) -> Result<&ConnectedStore, StoreError> {
        self.part(self.part_of(key))
    }

    /// Returns the value of `key`.
    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        self.of(key)?.get(key)
    }

    /// Looks all `keys` up, wherever they are, and calls `each` with the index of each key and its value, in order. Each value is read
    /// on its own: together they are no snapshot. [`ClusterTransaction::get_many`] reads one.
    pub fn get_many<K: AsRef<[u8]>>(
        &self,
        keys: &[K],
        mut each: impl FnMut(usize, Option<&[u8]>),
    ) -> Result<(), StoreError> {
        for (batch, keys) in keys.chunks(GET_MANY).enumerate() {
            let mut parts = BTreeSet::new();
            let mut started = Vec::with_capacity(keys.len());
            for key in keys {
                let part = self.part_of(key.as_ref());
                parts.insert(part);
                started.push(self.part(part)?.start_get(key.as_ref()));
            }
            for part in parts {
                self.part(part)?.flush();
            }
            for (index, (key, pending)) in keys.iter().zip(started).enumerate() {
                let value = self.of(key.as_ref())?.got(key.as_ref(), pending)?;
                each(batch * GET_MANY + index, value.as_deref());
            }
        }
        Ok(())
    }

    /// Sets the value of `key`, which then never expires.
    pub fn put(&self, key: &[u8], value: &[u8]) -> Result<(), StoreError> {
        self.of(key)?.put(key, value)
    }

    /// Deletes `key`, and returns whether it existed.
    pub fn delete(&self, key: &[u8]) -> Result<bool, StoreError> {
        self.of(key)?.delete(key)
    }

    /// Runs `body` as one transaction, whatever parts its keys are in, as [`Store::transaction`](crate::Store::transaction) does: all of
    /// its writes happen, at one moment and with all of its reads still true, or none; what it sees is always the state of one
    /// moment. It is run again while others interfere, for at most [`limits::CONFLICT_WAIT`]; then this returns
    /// [`StoreError::Conflict`]. If a connection breaks in the middle of the commit and no server comes back,
    /// [`StoreError::Disconnected`] says that nobody knows whether the transaction has happened.
    pub fn transaction<T, E: From<StoreError>>(
        &self,
        mut body: impl FnMut(&mut ClusterTransaction<'_>) -> Result<T, E>,
    ) -> Result<T, E> {
        let begin = Instant::now();
        for attempt in 0.. {
            let mut tx = ClusterTransaction {
                store: self,
                branches: BTreeMap::new(),
                home: None,
                must_retry: false,
                checked: 0,
            };
            let result = body(&mut tx);
            let has_written = tx.home.is_some();
            let must_retry = tx.must_retry || tx.branches.values().any(|branch| branch.0.must_retry);
            if !must_retry {
                let value = result?;
                match tx.commit() {
                    Ok(()) => return Ok(value),
                    Err(StoreError::Conflict | StoreError::Undecided | StoreError::Closed) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            if begin.elapsed() > limits::CONFLICT_WAIT {
                break;
            }
            // What is locked elsewhere stays so for some round trips. Who writes nothing locks nothing, and gets in nobody's way.
            match attempt {
                0..4 => back_off(attempt),
                _ if !has_written => std::thread::sleep(limits::UNDECIDED_PAUSE),
                _ => std::thread::sleep(limits::UNDECIDED_PAUSE * attempt.min(64)),
            }
        }
        Err(StoreError::Conflict.into())
    }

    /// Returns the number of a transaction with this home.
    fn open(&self, home: u16) -> Result<TransactionId, StoreError> {
        let store = self.part(home)?;
        let mut open = locked(&self.client(home)?.open);
        if open.next == open.end {
            *open = begin(store)?;
        }
        if open.next == open.end {
            // Others of this client have all of them.
            return Err(StoreError::Undecided);
        }
        open.next += 1;
        Ok(TransactionId { home, owner: open.owner, number: open.next - 1 })
    }

    /// Opens other numbers in the place of those that were opened with one that is closed now: the others are, too, if their link
    /// has ended, or their owner.
    fn closed(&self, id: TransactionId) -> Result<(), StoreError> {
        let store = self.part(id.home)?;
        let mut open = locked(&self.client(id.home)?.open);
        if open.owner == id.owner && open.first <= id.number {
            (open.next..open.end).for_each(|number| store.tell_ended(TransactionId { number, ..id }));
            *open = begin(store)?;
        }
        Ok(())
    }

    /// Ends transactions whose parts have all been told.
    fn end_decided(&self, more: DecidedTransaction) {
        let ended = {
            let mut decided = locked(&self.decided);
            decided.push_back(more);
            if decided.len() > limits::DECISIONS_UNENDED_MAX { decided.pop_front() } else { None }
        };
        if let Some(DecidedTransaction { id, told }) = ended {
            // If one has not been told, the home tells it.
            let are_told = told.into_iter().map(Pending::wait).fold(true, |all, told| all & told.is_ok());
            if let (true, Ok(store)) = (are_told, self.part(id.home)) {
                store.tell_ended(id);
                store.flush();
            }
        }
    }

    /// Tells a part what became of a transaction.
    fn decide(&self, part: u16, id: TransactionId, is_committed: bool) -> Result<Pending<()>, StoreError> {
        let store = self.part(part)?;
        let told = store.start_decide(id, is_committed);
        store.flush();
        Ok(told)
    }
}

impl ConnectedStore {
    fn start_decide(&self, id: TransactionId, is_committed: bool) -> Pending<()> {
        let append = |to: &mut Vec<u8>| {
            id.append(to);
            to.push(u8::from(is_committed));
        };
        self.call(RequestKind::Decide, append, |outcome| body(outcome).map(drop))
    }

    /// Tells this part, the home of a transaction, that the client does no more about it. [`flush`](Self::flush) sends that.
    fn tell_ended(&self, id: TransactionId) {
        drop(self.call(RequestKind::Ended, |to| id.append(to), body));
    }

    /// Tells this part what became of a transaction that has a branch here.
    #[doc(hidden)]
    pub fn decide(&self, id: TransactionId, is_committed: bool) -> Result<(), StoreError> {
        self.start_decide(id, is_committed).wait()
    }

    /// Asks this part, the home of a transaction, what became of it.
    #[doc(hidden)]
    pub fn outcome(&self, id: TransactionId, is_final: bool) -> Result<Outcome, StoreError> {
        let append = |to: &mut Vec<u8>| {
            id.append(to);
            to.push(u8::from(is_final));
        };
        let answer = self.call(RequestKind::Outcome, append, body).wait()?;
        Outcome::from_byte(&answer).ok_or(StoreError::Protocol("an outcome is malformed"))
    }
}

/// Opens numbers of transactions at an owner.
fn begin(store: &ConnectedStore) -> Result<OpenNumbers, StoreError> {
    let answer = store.call(RequestKind::Begin, |_| (), body).wait()?;
    let words: Vec<u64> =
        answer.chunks_exact(8).map(|word| u64::from_be_bytes(word.try_into().unwrap_or_default())).collect();
    match words[..] {
        [owner, first, count] => {
            Ok(OpenNumbers { owner, first, next: first, end: first.saturating_add(count) })
        }
        _ => Err(StoreError::Protocol("the numbers of transactions are malformed")),
    }
}

/// Asks the servers that the options name, one after the other, until one says which part each hash slot belongs to, and where all
/// servers are.
fn ask_one_for_parts(options: &ConnectOptions) -> Result<(Vec<u16>, Vec<String>), StoreError> {
    let (begin, candidates) = (Instant::now(), options.candidates(&options.address));
    let mut round = 0;
    loop {
        let (mut first, mut is_slow) = (None, false);
        for address in &candidates {
            let wait = options.answer_wait_in(round, candidates.len());
            let limit = ConnectLimit::of(options).within(wait);
            match ask_for_parts(&ConnectOptions { address: address.clone(), ..options.clone() }, limit) {
                Err(error) => {
                    is_slow |= matches!(error, StoreError::NoAnswer { .. });
                    first = first.or(Some(error));
                }
                parts => return parts,
            }
        }
        if !is_slow || begin.elapsed() >= options.connect_wait {
            return Err(first.unwrap_or(StoreError::Disconnected));
        }
        round += 1;
    }
}

fn ask_for_parts(
    options: &ConnectOptions,
    limit: ConnectLimit,
) -> Result<(Vec<u16>, Vec<String>), StoreError> {
    let malformed = StoreError::Protocol("its list of parts is malformed");
    let mut socket = ServerSocket::connect(options, limit)?;
    let mut words = vec![&b"CARAVAN.PARTS"[..]];
    words.extend(socket.is_local().then_some(&b"HERE"[..]));
    let answer = socket.command_for(options, &words, limits::PARTS_ANSWER_BYTES_MAX)?;
    parse_parts(&String::from_utf8_lossy(&answer)).ok_or(malformed)
}

/// Parses the answer to `CARAVAN.PARTS`: lines `PART FIRST LAST`, for each range of slots, and `SERVER ADDRESS`.
fn parse_parts(text: &str) -> Option<(Vec<u16>, Vec<String>)> {
    let (mut slots, mut servers) = (vec![None; usize::from(SLOTS)], Vec::new());
    for line in text.lines() {
        match line.split(' ').collect::<Vec<_>>()[..] {
            ["SERVER", address] => servers.push(address.to_owned()),
            [part, first, last] => {
                let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
                slots.get_mut(first..=last).filter(|slots| !slots.is_empty())?.fill(Some(part.parse().ok()?));
            }
            _ => return None,
        }
    }
    slots.into_iter().collect::<Option<_>>().map(|slots| (slots, servers))
}

/// What the body of [`ClusterStore::transaction`] reads and writes by.
#[derive(Debug)]
pub struct ClusterTransaction<'s> {
    store: &'s ClusterStore,
    /// By the numbers of their parts.
    branches: BTreeMap<u16, ConnectedTransaction<'s>>,
    /// The part of the first key that is written.
    home: Option<u16>,
    must_retry: bool,
    /// How many reads there were when all of them were last found to be of one moment.
    checked: usize,
}

impl<'s> ClusterTransaction<'s> {
    fn branch(&mut self, key: &[u8]) -> Result<&mut ConnectedTransaction<'s>, StoreError> {
        let part = self.store.part_of(key);
        if !self.branches.contains_key(&part) {
            let store = self.store.part(part)?;
            self.branches.insert(part, ConnectedTransaction(AsyncTransaction::new(store)));
        }
        self.branches.get_mut(&part).ok_or(StoreError::Disconnected)
    }

    /// Reads in the part of a key. If that shows a time of this part that the transaction has not seen, all that it has read in other
    /// parts is checked: then all of it is of one moment, as `transaction.rs` says.
    fn read<T>(
        &mut self,
        key: &[u8],
        read: impl FnOnce(&mut ConnectedTransaction<'s>) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let branch = self.branch(key)?;
        let before = branch.0.snapshot.newest_time();
        let value = read(branch)?;
        if branch.0.snapshot.newest_time() > before {
            let part = self.store.part_of(key);
            self.check(|other| other != part)?;
        }
        Ok(value)
    }

    /// Reads several keys, in all of their parts at once: then they are read without waiting for a server again.
    ///
    /// What is read in one part is of one moment, at its server. After the last answer all parts are asked whether all that was read
    /// is unchanged: so it was current when the last one answered.
    pub fn read_ahead<'k>(&mut self, keys: impl IntoIterator<Item = &'k [u8]>) -> Result<(), StoreError> {
        let mut keys_of_parts: BTreeMap<u16, Vec<&[u8]>> = BTreeMap::new();
        for key in keys {
            self.branch(key)?;
            keys_of_parts.entry(self.store.part_of(key)).or_default().push(key);
        }
        let before = self.reads();
        let branches =
            self.branches.iter().filter_map(|(part, branch)| Some((*part, branch, keys_of_parts.get(part)?)));
        let start = |(part, branch, keys): (u16, &ConnectedTransaction<'_>, &Vec<&'k [u8]>)| {
            let started = branch.0.start_ahead(keys);
            branch.0.store.flush();
            (part, started)
        };
        let started: Vec<_> = branches.map(start).collect();
        for (part, started) in started {
            if let Some(branch) = self.branches.get_mut(&part) {
                branch.wait(async |tx| tx.take_ahead(started).await)?;
            }
        }
        if self.reads() > before { self.check(|_| true) } else { Ok(()) }
    }

    /// Returns the number of reads of all parts.
    fn reads(&self) -> usize {
        self.branches.values().map(|branch| branch.0.snapshot.reads().len()).sum()
    }

    /// Checks what was read in these parts, while all else is known to be unchanged: then all of it is of one moment.
    fn check(&mut self, is_meant: impl Fn(u16) -> bool) -> Result<(), StoreError> {
        let is_apart =
            self.branches.values().filter(|branch| !branch.0.snapshot.reads().is_empty()).count() > 1;
        // What is read in one part is of one moment anyway.
        let validated = if is_apart { self.validate(is_meant) } else { Ok(()) };
        self.must_retry |=
            matches!(validated, Err(StoreError::Conflict | StoreError::Undecided | StoreError::Disconnected));
        validated?;
        self.checked = self.reads();
        Ok(())
    }

    /// Checks that all that was read in these parts is unchanged.
    fn validate(&self, is_meant: impl Fn(u16) -> bool) -> Result<(), StoreError> {
        let read = |(part, branch): &(&u16, &ConnectedTransaction<'_>)| {
            is_meant(**part) && !branch.0.snapshot.reads().is_empty()
        };
        let started: Vec<Pending<()>> =
            self.branches.iter().filter(read).map(|(_, branch)| branch.0.start_validate()).collect();
        started.into_iter().map(Pending::wait).fold(Ok(()), Result::and)
    }

    fn written(&mut self, key: &[u8]) {
        if self.home.is_none() {
            self.home = Some(self.store.part_of(key));
        }
    }

    /// Returns the value of `key`: what this transaction has put, or else what is in the store.
    pub fn get(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        self.read(key, |branch| branch.get(key))
    }

    /// Returns the values of several keys, as [`get`](Self::get) does for each; all parts are asked at once.
    pub fn get_many<K: AsRef<[u8]>>(&mut self, keys: &[K]) -> Result<Vec<Option<Vec<u8>>>, StoreError> {
        self.read_ahead(keys.iter().map(AsRef::as_ref))?;
        keys.iter().map(|key| self.get(key.as_ref())).collect()
    }

    /// Returns the value of `key` with its version and expiry. What this transaction has put has no version yet
    /// ([`KeyVersion::ABSENT`]).
    pub fn entry(&mut self, key: &[u8]) -> Result<Option<StoreEntry>, StoreError> {
        self.read(key, |branch| branch.entry(key))
    }

    /// Returns the version and expiry of `key` without its value.
    pub fn head(&mut self, key: &[u8]) -> Result<Option<EntryHead>, StoreError> {
        self.read(key, |branch| branch.head(key))
    }

    /// Fails with [`StoreError::VersionChanged`] unless `key` has this version in the store, now and at the commit.
    pub fn require(&mut self, key: &[u8], version: KeyVersion) -> Result<(), StoreError> {
        self.read(key, |branch| branch.require(key, version))
    }

    /// Fails with [`StoreError::VersionChanged`] if `key` was written since [`ConnectedStore::watch`] of its part returned `watch`,
    /// until the commit.
    pub fn require_unchanged(&mut self, key: &[u8], watch: &KeyWatch) -> Result<(), StoreError> {
        self.read(key, |branch| branch.require_unchanged(key, watch))
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
        self.written(key);
        self.branch(key)?.put_until(key, value, expires_at_ms)
    }

    /// Deletes `key`, and returns whether it existed.
    pub fn delete(&mut self, key: &[u8]) -> Result<bool, StoreError> {
        self.written(key);
        self.read(key, |branch| branch.delete(key))
    }

    fn commit(mut self) -> Result<(), StoreError> {
        let used = |branch: &ConnectedTransaction<'_>| {
            !branch.0.snapshot.reads().is_empty() || !branch.0.writes.is_empty()
        };
        self.branches.retain(|_, branch| used(branch));
        let Some(home) = self.home.filter(|home| self.branches.contains_key(home)) else {
            // All that was read in one part was true at one moment within the transaction.
            let is_known = self.branches.len() < 2 || self.checked == self.reads();
            return if is_known { Ok(()) } else { unwritten(self.validate(|_| true)) };
        };
        let Some(mut own) = self.branches.remove(&home) else { return Ok(()) };
        if self.branches.is_empty() {
            return own.wait(async |tx| tx.commit().await);
        }
        let parts: Vec<u16> = self.branches.keys().copied().collect();
        if parts.len() > limits::PARTICIPANTS_MAX {
            return Err(StoreError::TooManyParts { parts: parts.len() + 1 });
        }
        let id = unwritten(self.store.open(home))?;
        let done = unwritten(self.prepare(id)).and_then(|()| {
            faults::has_come(FaultMoment::HomeCommit);
            commit_home(id, &own, &parts)
        });
        match done {
            Ok(()) => {
                let told = parts.iter().filter_map(|part| self.store.decide(*part, id, true).ok());
                let told: Vec<Pending<()>> = told.collect();
                if told.len() == parts.len() {
                    self.store.end_decided(DecidedTransaction { id, told });
                }
                Ok(())
            }
            // Nobody knows whether it has happened but the home, which its parts will ask.
            Err(error @ (StoreError::Disconnected | StoreError::Replaced | StoreError::NoAnswer { .. })) => {
                Err(error)
            }
            Err(error) => {
                let told: Vec<_> =
                    parts.iter().filter_map(|part| self.store.decide(*part, id, false).ok()).collect();
                // The next attempt would meet these locks.
                told.into_iter().for_each(|told| _ = told.wait());
                if matches!(error, StoreError::Closed) {
                    unwritten(self.store.closed(id))?;
                } else {
                    // Nobody commits by its number any more.
                    own.0.store.tell_ended(id);
                }
                Err(error)
            }
        }
    }

    /// Has all parts but the home prepare their branches.
    fn prepare(&self, id: TransactionId) -> Result<(), StoreError> {
        let prepare = |branch: &ConnectedTransaction<'_>| {
            let mut request = Vec::new();
            id.append(&mut request);
            append_commit(&mut request, branch.0.snapshot.reads(), &branch.0.writes);
            if request.len() > limits::BRANCH_BYTES_MAX {
                return Pending::ready(Err(StoreError::TransactionTooLarge));
            }
            let append = |to: &mut Vec<u8>| to.extend_from_slice(&request);
            let prepared =
                branch.0.store.call(RequestKind::Prepare, append, |outcome| body(outcome).map(drop));
            branch.0.store.flush();
            prepared
        };
        let started: Vec<Pending<()>> = self.branches.values().map(prepare).collect();
        started.into_iter().map(Pending::wait).fold(Ok(()), Result::and)
    }
}

/// Nothing is written before the commit, so a transaction that loses a connection there is run again.
fn unwritten<T>(result: Result<T, StoreError>) -> Result<T, StoreError> {
    result
        .map_err(|error| if matches!(error, StoreError::Disconnected) { StoreError::Conflict } else { error })
}

/// Commits the home's branch, with the decision.
fn commit_home(id: TransactionId, own: &ConnectedTransaction<'_>, parts: &[u16]) -> Result<(), StoreError> {
    let mut request = Vec::new();
    id.append(&mut request);
    request.extend_from_slice(&(parts.len() as u16).to_be_bytes());
    parts.iter().for_each(|part| request.extend_from_slice(&part.to_be_bytes()));
    append_commit(&mut request, own.0.snapshot.reads(), &own.0.writes);
    if NUMBER_BYTES + request.len() > limits::CALL_BYTES_MAX {
        return Err(StoreError::TransactionTooLarge);
    }
    let append = |to: &mut Vec<u8>| to.extend_from_slice(&request);
    own.0.store.call_once(RequestKind::CommitHome, append, |outcome| body(outcome).map(drop)).wait()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_parts_names_each_slot() {
        let (slots, servers) =
            parse_parts("0 0 8191\n7 8192 16383\nSERVER a:1\nSERVER b:2\n").expect("sound");
        assert_eq!((slots[0], slots[8191], slots[8192], slots[16383]), (0, 0, 7, 7));
        assert_eq!(servers, ["a:1", "b:2"]);
        for wrong in ["", "0 0 16382", "0 0 16384", "0 5 4\n0 0 16383", "x 0 16383", "SERVER"] {
            assert_eq!(parse_parts(wrong), None, "{wrong}");
        }
    }
}
