//! A store as another process, or another host, uses it.
//!
//! A client reads memory itself where it can, and never writes any: what it changes, it asks a server for in one call.
//! So it holds no lock, and may end anywhere.

mod address;
mod attach;
mod blocking;
mod board;
mod cluster;
mod dial;
mod fixed;
mod lookup;
mod mapped;
mod one_sided;
mod pending;
mod places;
mod transaction;
mod unanswered;
mod waiting;

use std::sync::Arc;
use std::time::Instant;

use self::board::{CallBoard, CallOutcome};
use self::mapped::MappedReads;
use self::waiting::SharedCalls;
use crate::calls::{
    FoundKey, RequestKind, append_address, append_put, decode_counts, decode_scan, decode_watch,
};
use crate::entry::{EntryHead, KeyVersion, KeyWatch, ObjectAddress, ScanCursor, StoreCounts, StoreEntry};
use crate::error::StoreError;
use crate::image::check_key;
use crate::limits;
use crate::store::Store;

pub use address::{ConnectOptions, socket_of_name};
pub use attach::ATTACH_VERSION;
pub(crate) use attach::StoreGreeting;
pub use blocking::ConnectedTransaction;
pub use cluster::{ClusterStore, ClusterTransaction};
#[doc(hidden)]
pub use dial::{ConnectLimit, ServerSocket};
pub use pending::Pending;
pub use transaction::AsyncTransaction;

/// How many lookups `get_many` has under way.
const GET_MANY: usize = 64;

/// How a client reads a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StoreTransport {
    /// By plain loads from mapped memory of the same host.
    Mapped,
    /// By one-sided reads of an RDMA device.
    Rdma,
    /// By one-sided reads over a TCP connection, which a thread of the server's process serves.
    Tcp,
}

impl StoreTransport {
    /// Returns the name that users see.
    pub fn name(self) -> &'static str {
        match self {
            Self::Mapped => "mapped",
            Self::Rdma => "rdma",
            Self::Tcp => "tcp",
        }
    }
}

/// A store that a server of this or another host has, with the methods of [`Store`] that read and write. What concerns
/// the store as a whole (its clock, expiry, `save`, `scrub`) is the server's. Threads share it by
/// reference; each takes the others' answers off the link while it waits for its own. A child of fork(2) connects anew.
///
/// If the connection breaks, what has no answer is repeated over a new one, for [`limits::RECONNECT_WAIT`]. A write is
/// done once all the same, because the store keeps the replies to a client's writes until the client has them. If no
/// server comes back, a write returns [`StoreError::Disconnected`], as nobody knows whether it was done; if another
/// store does, [`StoreError::Replaced`].
///
/// Values are of the moment of the call, as in [`Store`]. `caravan_store_server` has the other side; its tests and
/// `docs/store.md` show both together.
#[derive(Debug)]
pub struct ConnectedStore {
    shared: Arc<SharedCalls>,
}

impl Store {
    /// Connects to the store of a server: `unix:PATH`, `HOST:PORT`, or the name of a store of this host and user.
    /// Blocks.
    ///
    /// ```no_run
    /// use caravan_store::Store;
    ///
    /// let store = Store::connect("cache")?;
    /// store.put(b"colour", b"blue")?;
    /// assert_eq!(store.get(b"colour")?.as_deref(), Some(&b"blue"[..]));
    /// # Ok::<(), caravan_store::StoreError>(())
    /// ```
    pub fn connect(options: impl Into<ConnectOptions>) -> Result<ConnectedStore, StoreError> {
        ConnectedStore::connect(options.into())
    }
}

impl ConnectedStore {
    fn connect(options: ConnectOptions) -> Result<Self, StoreError> {
        Ok(Self { shared: Arc::new(SharedCalls::connect(options)?) })
    }

    fn mapped(&self) -> &MappedReads {
        &self.shared.mapped
    }

    /// Returns how this client reads; of a part, by its last connection.
    pub fn transport(&self) -> StoreTransport {
        self.shared.transport()
    }

    /// Returns the number of one-sided reads that were started.
    pub fn one_sided_reads(&self) -> u64 {
        self.shared.with_board(|board| board.reads.as_ref().map_or(0, |reads| reads.started))
    }

    /// Returns whether a thread waits on behalf of futures; for tests.
    #[doc(hidden)]
    pub fn has_helper(&self) -> bool {
        self.shared.has_helper()
    }

    fn call<T>(
        &self,
        kind: RequestKind,
        body: impl FnOnce(&mut Vec<u8>),
        decode: pending::Decode<T>,
    ) -> Pending<T> {
        self.started(|board| board.start(kind, body), decode)
    }

    /// Starts a write.
    fn call_once<T>(
        &self,
        kind: RequestKind,
        body: impl FnOnce(&mut Vec<u8>),
        decode: pending::Decode<T>,
    ) -> Pending<T> {
        match self.shared.start_write(kind, body) {
            Ok(call) => Pending::call(&self.shared, call, decode),
            Err(error) => Pending::ready(Err(error)),
        }
    }

    fn started<T>(
        &self,
        start: impl FnOnce(&mut CallBoard) -> u32,
        decode: pending::Decode<T>,
    ) -> Pending<T> {
        match self.shared.start(start) {
            Ok(call) => Pending::call(&self.shared, call, decode),
            Err(error) => Pending::ready(Err(error)),
        }
    }

    /// Repeats an operation without effects over new connections, and as [`decided`](Self::decided) does.
    fn repeated<T>(&self, mut operation: impl FnMut() -> Result<T, StoreError>) -> Result<T, StoreError> {
        let begin = Instant::now();
        loop {
            match self.decided(&mut operation) {
                Err(StoreError::Disconnected) if begin.elapsed() < limits::RECONNECT_WAIT => {}
                result => return result,
            }
        }
    }

    /// Does an operation again as long as it meets what a transaction over several parts has locked.
    fn decided<T>(&self, mut operation: impl FnMut() -> Result<T, StoreError>) -> Result<T, StoreError> {
        let begin = Instant::now();
        loop {
            match operation() {
                Err(StoreError::Undecided) if begin.elapsed() < limits::CONFLICT_WAIT => {
                    std::thread::sleep(limits::UNDECIDED_PAUSE);
                }
                result => return result,
            }
        }
    }

    /// Starts to look a key up where memory is not mapped; `is_waited_for` says that the caller waits at once.
    fn start_found<T>(&self, key: &[u8], is_waited_for: bool, decode: pending::Decode<T>) -> Pending<T> {
        if let Err(error) = check_key(key) {
            return Pending::ready(Err(error));
        }
        let hash = twox_hash::XxHash3_64::oneshot_with_seed(self.shared.greeting.hash_seed, key);
        self.started(|board| board.start_lookup(hash, key, is_waited_for), decode)
    }

    /// Sends what was started and not waited for yet.
    pub fn flush(&self) {
        self.shared.flush();
    }

    /// Starts a [`get`](Self::get). Where memory is mapped, it is done at once.
    pub fn start_get(&self, key: &[u8]) -> Pending<Option<Vec<u8>>> {
        match self.mapped().read(|reader| reader.get(key)) {
            Some(found) => Pending::ready(found),
            None => self.start_found(key, false, |outcome| Ok(entry_of(outcome)?.map(|entry| entry.value))),
        }
    }

    /// Starts a [`put_until`](Self::put_until).
    pub fn start_put(&self, key: &[u8], value: &[u8], expires_at_ms: Option<u64>) -> Pending<()> {
        if let Err(error) = check_key(key).and_then(|()| check_call(value, limits::CALL_VALUE_BYTES_MAX)) {
            return Pending::ready(Err(error));
        }
        self.call_once(
            RequestKind::Put,
            |to| append_put(to, key, value, expires_at_ms),
            |outcome| body(outcome).map(drop),
        )
    }

    /// Starts a [`read`](Self::read). Where memory is mapped, it is done at once.
    pub fn start_read(&self, address: ObjectAddress) -> Pending<Vec<u8>> {
        match self.mapped().read(|reader| reader.read(address)) {
            Some(found) => Pending::ready(found),
            None => self.call(
                RequestKind::Read,
                |to| append_address(to, address),
                |outcome| Ok(transaction::object_of(outcome)?.bytes),
            ),
        }
    }

    /// Starts a [`delete`](Self::delete).
    pub fn start_delete(&self, key: &[u8]) -> Pending<bool> {
        if let Err(error) = check_key(key) {
            return Pending::ready(Err(error));
        }
        self.call_once(RequestKind::Delete, |to| to.extend_from_slice(key), existed)
    }

    /// Starts a [`ping`](Self::ping).
    pub fn start_ping(&self, bytes: &[u8]) -> Pending<Vec<u8>> {
        match check_call(bytes, limits::CALL_VALUE_BYTES_MAX) {
            Ok(()) => self.call(RequestKind::Ping, |to| to.extend_from_slice(bytes), body),
            Err(error) => Pending::ready(Err(error)),
        }
    }

    /// Returns the same bytes once the server has sent them back. Reads of mapped memory do not show whether a server
    /// runs; this does.
    pub fn ping(&self, bytes: &[u8]) -> Result<Vec<u8>, StoreError> {
        self.repeated(|| self.start_ping(bytes).wait())
    }

    /// Returns the value of `key`.
    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        match self.mapped().read(|reader| reader.get(key)) {
            Some(found) => found,
            None => Ok(self.called_entry(key)?.map(|entry| entry.value)),
        }
    }

    /// Appends the value of `key` to `value`, and returns the version and expiry.
    pub fn get_into(&self, key: &[u8], value: &mut Vec<u8>) -> Result<Option<EntryHead>, StoreError> {
        let old = value.len();
        if let Some(found) = self.mapped().read(|reader| reader.get_into(key, value)) {
            return found;
        }
        value.truncate(old);
        Ok(self.called_entry(key)?.map(|entry| {
            value.extend_from_slice(&entry.value);
            entry.head
        }))
    }

    /// Returns the value of `key` with its version and expiry.
    pub fn entry(&self, key: &[u8]) -> Result<Option<StoreEntry>, StoreError> {
        self.mapped().read(|reader| reader.entry(key)).unwrap_or_else(|| self.called_entry(key))
    }

    fn called_entry(&self, key: &[u8]) -> Result<Option<StoreEntry>, StoreError> {
        self.repeated(|| self.start_found(key, true, entry_of).wait())
    }

    /// Returns the version and expiry of `key`.
    pub fn head(&self, key: &[u8]) -> Result<Option<EntryHead>, StoreError> {
        match self.mapped().read(|reader| reader.head(key)) {
            Some(found) => found,
            None => Ok(self.called_entry(key)?.map(|entry| entry.head)),
        }
    }

    /// Returns the version of `key`, [`KeyVersion::ABSENT`] if there is no such key.
    pub fn version(&self, key: &[u8]) -> Result<KeyVersion, StoreError> {
        Ok(self.head(key)?.map_or(KeyVersion::ABSENT, |head| head.version))
    }

    /// Looks up all `keys`, and calls `each` with the index of each key and its value, in order. Each value is read on
    /// its own: together they are no snapshot.
    pub fn get_many<K: AsRef<[u8]>>(
        &self,
        keys: &[K],
        mut each: impl FnMut(usize, Option<&[u8]>),
    ) -> Result<(), StoreError> {
        if let Some(reader) = self.mapped().always() {
            return reader.get_many(keys, each);
        }
        let (mut values, mut ends) = (Vec::new(), Vec::new());
        for (batch, keys) in keys.chunks(GET_MANY).enumerate() {
            // Nothing is told before it is believed.
            let read = self.mapped().read(|reader| {
                reader.get_many(keys, |_, value| {
                    values.extend_from_slice(value.unwrap_or_default());
                    ends.push((value.is_some(), values.len()));
                })
            });
            if let Some(read) = read {
                read?;
                let mut begin = 0;
                for (index, (is_there, end)) in ends.drain(..).enumerate() {
                    each(batch * GET_MANY + index, is_there.then_some(&values[begin..end]));
                    begin = end;
                }
                values.clear();
                continue;
            }
            values.clear();
            ends.clear();
            let started: Vec<_> = keys.iter().map(|key| self.start_get(key.as_ref())).collect();
            for (index, (key, pending)) in keys.iter().zip(started).enumerate() {
                let value = self.got(key.as_ref(), pending)?;
                each(batch * GET_MANY + index, value.as_deref());
            }
        }
        Ok(())
    }

    /// Waits for a lookup of one of several keys. Without an answer, or beside an undecided transaction, the key is looked up again.
    fn got(&self, key: &[u8], pending: Pending<Option<Vec<u8>>>) -> Result<Option<Vec<u8>>, StoreError> {
        match pending.wait() {
            Err(StoreError::Disconnected | StoreError::Undecided) => self.get(key),
            value => value,
        }
    }

    /// Sets the value of `key`, which then never expires.
    pub fn put(&self, key: &[u8], value: &[u8]) -> Result<(), StoreError> {
        self.put_until(key, value, None)
    }

    /// Sets the value of `key`, which expires when the store's clock reaches `expires_at_ms`.
    pub fn put_until(&self, key: &[u8], value: &[u8], expires_at_ms: Option<u64>) -> Result<(), StoreError> {
        self.decided(|| self.start_put(key, value, expires_at_ms).wait())
    }

    /// Deletes `key`, and returns whether it existed.
    pub fn delete(&self, key: &[u8]) -> Result<bool, StoreError> {
        self.decided(|| self.start_delete(key).wait())
    }

    /// Allocates an object of `bytes` zero bytes, if possible in the same block of memory as `near`.
    pub fn alloc(&self, bytes: usize, near: Option<ObjectAddress>) -> Result<ObjectAddress, StoreError> {
        crate::image::check_object(bytes)?;
        let zeroes = vec![0; bytes];
        self.transaction(|tx| tx.alloc(&zeroes, near))
    }

    /// Returns the bytes of the object at `address`.
    pub fn read(&self, address: ObjectAddress) -> Result<Vec<u8>, StoreError> {
        match self.mapped().read(|reader| reader.read(address)) {
            Some(found) => found,
            None => Ok(self.repeated(|| self.found_object(address))?.bytes),
        }
    }

    /// Returns some keys and where to go on, as [`Store::scan`] does.
    pub fn scan(
        &self,
        cursor: ScanCursor,
        count: usize,
        mut each: impl FnMut(&[u8]),
    ) -> Result<ScanCursor, StoreError> {
        let mut keys = Vec::new();
        if let Some(next) =
            self.mapped().read(|reader| reader.scan(cursor, count, |key| keys.push(key.to_vec())))
        {
            keys.iter().for_each(|key| each(key));
            return next;
        }
        let count = count.min(limits::SCAN_KEYS_MAX) as u32;
        let append = |to: &mut Vec<u8>| {
            to.extend_from_slice(&cursor.to_u64().to_be_bytes());
            to.extend_from_slice(&count.to_be_bytes());
        };
        let answer = self.repeated(|| self.call(RequestKind::Scan, append, body).wait())?;
        decode_scan(&answer, &mut each).ok_or(StoreError::Protocol("the answer to a scan is malformed"))
    }

    /// Returns what `key` is now, for [`ConnectedTransaction::require_unchanged`], as [`Store::watch`] does.
    pub fn watch(&self, key: &[u8]) -> Result<KeyWatch, StoreError> {
        check_key(key)?;
        let start = || self.call(RequestKind::Watch, |to| to.extend_from_slice(key), body);
        let answer = self.repeated(|| start().wait())?;
        decode_watch(&answer).ok_or(StoreError::Protocol("the answer to a watch is malformed"))
    }

    /// Returns a key that exists, chosen at random, or `None` if the store is empty. `random` is a random number.
    pub fn random_key(&self, random: u64) -> Result<Option<Vec<u8>>, StoreError> {
        let start =
            || self.call(RequestKind::RandomKey, |to| to.extend_from_slice(&random.to_be_bytes()), body);
        match &self.repeated(|| start().wait())?[..] {
            [0] => Ok(None),
            [1, key @ ..] => Ok(Some(key.to_vec())),
            _ => Err(StoreError::Protocol("the answer with a random key is malformed")),
        }
    }

    /// Deletes all keys, at one moment. Objects without a key stay. Unlike other writes it is never repeated: if the server
    /// ends before its answer, this returns [`StoreError::Disconnected`], and whether the keys are deleted is unknown.
    pub fn clear(&self) -> Result<(), StoreError> {
        // Connects again first if that is needed.
        self.ping(&[])?;
        self.call(RequestKind::Clear, |_| (), body).wait().map(drop)
    }

    /// Has the server run its [function](crate::StoreFunctions) `number`, which only reads, with these `bytes`, as one transaction of this
    /// part of the store; returns its answer.
    pub fn ask(&self, number: u16, bytes: &[u8]) -> Result<Vec<u8>, StoreError> {
        let request = function_call(number, bytes)?;
        let append = |to: &mut Vec<u8>| to.extend_from_slice(&request);
        self.repeated(|| self.call(RequestKind::Ask, append, body).wait())
    }

    /// Has the server run its [function](crate::StoreFunctions) `number`, which may write, once; returns its answer.
    pub fn run(&self, number: u16, bytes: &[u8]) -> Result<u64, StoreError> {
        let request = function_call(number, bytes)?;
        let append = |to: &mut Vec<u8>| to.extend_from_slice(&request);
        let answer = self.decided(|| self.call_once(RequestKind::Run, append, body).wait())?;
        let answer = answer.try_into().map(u64::from_be_bytes);
        answer.map_err(|_| StoreError::Protocol("the answer of a function is malformed"))
    }

    /// Returns the counters of the store.
    pub fn counts(&self) -> Result<StoreCounts, StoreError> {
        let answer = self.repeated(|| self.call(RequestKind::Stat, |_| (), body).wait())?;
        decode_counts(&answer).ok_or(StoreError::Protocol("the counters are malformed"))
    }
}

/// Returns the body of the call of a function.
fn function_call(number: u16, bytes: &[u8]) -> Result<Vec<u8>, StoreError> {
    check_call(bytes, limits::CALL_VALUE_BYTES_MAX)?;
    Ok([&number.to_be_bytes(), bytes].concat())
}

/// Returns the body of a reply.
fn body(outcome: CallOutcome) -> Result<Vec<u8>, StoreError> {
    match outcome {
        CallOutcome::Body(body) => Ok(body),
        CallOutcome::Failed(error) => Err(error),
        CallOutcome::Found(_) => Err(StoreError::Protocol("an answer is of another kind than expected")),
    }
}

/// Returns whether what was deleted existed.
fn existed(outcome: CallOutcome) -> Result<bool, StoreError> {
    match body(outcome)?[..] {
        [existed] => Ok(existed != 0),
        _ => Err(StoreError::Protocol("the answer to a deletion is malformed")),
    }
}

/// Returns what a lookup has found.
fn found(outcome: CallOutcome) -> Result<FoundKey, StoreError> {
    match outcome {
        CallOutcome::Found(found) => Ok(found),
        CallOutcome::Failed(error) => Err(error),
        CallOutcome::Body(body) => {
            FoundKey::decode(body).ok_or(StoreError::Protocol("a found key is malformed"))
        }
    }
}

fn entry_of(outcome: CallOutcome) -> Result<Option<StoreEntry>, StoreError> {
    Ok(found(outcome)?.entry.map(|(head, value)| StoreEntry { value, head }))
}

/// Checks that a value may travel in a call.
fn check_call(value: &[u8], limit: usize) -> Result<(), StoreError> {
    let bytes = value.len();
    if bytes > limit { Err(StoreError::CallTooLong { bytes, limit }) } else { Ok(()) }
}
