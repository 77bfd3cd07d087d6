//! The server's side of one client's calls: requests in, replies out. It owns no link and no clock.

use std::collections::BTreeSet;
use std::sync::Arc;

use caravan_fabric::{Error as FabricError, RegionToken};

use super::reply::{
    FoundKey, FoundObject, ShardHint, append_counts, append_scan, append_watch, error_fields,
};
use super::request::{CommitRequest, NumberedRequest, RequestKind, StoreRequest, append_address};
use super::sessions::{ClientSessions, JoinedSession};
use super::{CallRecord, DONE, MalformedCall, append_bytes, append_record};
use crate::commit::{ReadRecord, UnitKind};
use crate::entry::ObjectAddress;
use crate::error::StoreError;
use crate::fixed::FixedTable;
use crate::functions::StoreFunctions;
use crate::layout::{BUCKET_BYTES, ObjectShape};
use crate::ledger::{DecisionPlace, TransactionId};
use crate::limits;
use crate::lookup;
use crate::owner::count;
use crate::store::Store;
use crate::table::{BucketWord, LocatedKey};
use crate::transaction::{Transaction, are_current};

/// The kinds of calls that are counted apart, as users see them; the last one is all others.
// The others are in the order of `RequestKind`.
pub const CALL_NAMES: [&str; 6] = ["get", "read", "put", "delete", "commit", "other"];
const OTHER_CALL: usize = CALL_NAMES.len() - 1;

const _: () = assert!(RequestKind::Get as usize == 1 && RequestKind::Commit as usize == OTHER_CALL);

/// The number of calls of each kind.
pub type CallCounts = [u64; CALL_NAMES.len()];

/// Lends a client the extents of a store that it does not have yet; for clients that map nothing.
pub trait RegionLender {
    /// Returns the place and the token of each extent from number `known` on.
    fn lend(&mut self, known: u32) -> Result<Vec<(u64, RegionToken)>, FabricError>;
}

/// What a server keeps of one client: the store, and the objects that the client has allocated and not
/// committed yet, which go back to the store when this is dropped.
#[derive(Debug)]
pub struct CallService {
    store: Arc<Store>,
    sessions: Arc<ClientSessions>,
    session: Option<JoinedSession>,
    functions: Arc<StoreFunctions>,
    /// `reserved.len() <= limits::ALLOCATIONS_HELD_MAX`
    reserved: BTreeSet<ObjectAddress>,
    /// The numbers of transactions that the client has opened; `opened.len() <= limits::TRANSACTIONS_OPEN_MAX`
    opened: BTreeSet<u64>,
    value: Vec<u8>,
    /// The next request waits until the commits of the store no longer do.
    is_put_aside: bool,
}

impl CallService {
    /// Returns the service of a new client.
    pub fn new(store: Arc<Store>, sessions: Arc<ClientSessions>) -> Self {
        Self::with_functions(store, sessions, Arc::default())
    }

    /// The same of a client that may call these functions.
    pub fn with_functions(
        store: Arc<Store>,
        sessions: Arc<ClientSessions>,
        functions: Arc<StoreFunctions>,
    ) -> Self {
        Self {
            store,
            sessions,
            session: None,
            functions,
            reserved: BTreeSet::new(),
            opened: BTreeSet::new(),
            value: Vec::new(),
            is_put_aside: false,
        }
    }

    /// Serves the requests that `input` begins with, appends the replies to `output`, and returns the number of
    /// bytes that were served, which the caller removes, and how many requests of each kind they were. Stops at an incomplete
    /// request, and when `output` is longer than [`limits::REPLIES_PAUSE_BYTES`]. An error means that the client
    /// does not keep to the protocol: the caller closes its connection. A store that has lost its lease in the middle of a request
    /// does not answer it: the client repeats it where the part is next, once this connection is closed. While [commits
    /// wait](Store::commits_wait), it stops at a request that may write.
    pub fn serve(
        &mut self,
        input: &[u8],
        output: &mut Vec<u8>,
        lender: &mut impl RegionLender,
    ) -> Result<(usize, CallCounts), MalformedCall> {
        let (mut taken, mut counts) = (0, CallCounts::default());
        self.is_put_aside = false;
        let mut served = 0;
        while output.len() < limits::REPLIES_PAUSE_BYTES {
            if served % limits::LOOKUPS_UNDER_WAY == 0 {
                self.ask_for_keys(&input[taken..]);
            }
            let Some((record, bytes)) = CallRecord::split(&input[taken..])? else { break };
            if self.store.commits_wait() && !RequestKind::only_reads(record.kind) {
                self.is_put_aside = true;
                break;
            }
            (taken, served) = (taken + bytes, served + 1);
            counts[usize::from(record.kind.max(1) - 1).min(OTHER_CALL)] += 1;
            let start = output.len();
            let request = NumberedRequest::decode(record.kind, record.body)?;
            if let Err(error) = self.run(request, record.call, output, lender) {
                output.truncate(start);
                // A copy may have it, and the next owner says what became of it.
                if matches!(error, StoreError::NotPrimary) {
                    continue;
                }
                let (status, fields) = error_fields(&error);
                append_record(output, record.call, status, |to| to.extend_from_slice(&fields));
            }
        }
        Ok((taken, counts))
    }

    /// Returns whether [`serve`](Self::serve) has stopped because commits wait: the caller then calls it again some time later.
    pub fn is_put_aside(&self) -> bool {
        self.is_put_aside
    }

    /// Asks the processor for the keys of the next requests, so that the lookups do not wait for memory one after the
    /// other.
    fn ask_for_keys(&self, mut input: &[u8]) {
        let next = || {
            let (record, bytes) = CallRecord::split(input).ok()??;
            input = &input[bytes..];
            Some(record)
        };
        let records = std::iter::from_fn(next).take(limits::LOOKUPS_UNDER_WAY);
        let gets = records.filter(|record| record.kind == RequestKind::Get as u16);
        lookup::ask_for(&self.store.core().view, gets.map(|record| record.body));
    }

    fn run(
        &mut self,
        NumberedRequest { request, number }: NumberedRequest<'_>,
        call: u32,
        output: &mut Vec<u8>,
        lender: &mut impl RegionLender,
    ) -> Result<(), StoreError> {
        let mut reply = |body: &mut dyn FnMut(&mut Vec<u8>)| append_record(output, call, DONE, |to| body(to));
        match request {
            StoreRequest::Get(key) => {
                let (read, hint, head) = self.get(key)?;
                let value = &self.value;
                reply(&mut |to| FoundKey::append(to, &read, hint, head.map(|head| (head, &value[..]))));
            }
            StoreRequest::Read(address) => {
                let (version, is_owned, bytes) = self.read(address)?;
                reply(&mut |to| FoundObject::append(to, version, is_owned, &bytes));
            }
            StoreRequest::Put { key, value, expires_at_ms } => {
                self.once(number, |tx| tx.put_until(key, value, expires_at_ms).map(|()| 0))?;
                reply(&mut |_| ());
            }
            StoreRequest::Delete(key) => {
                let existed = self.once(number, |tx| tx.delete(key).map(u64::from))?;
                reply(&mut |to| to.push(existed as u8));
            }
            StoreRequest::Commit(request) => {
                self.commit(number, &request)?;
                reply(&mut |_| ());
            }
            StoreRequest::GetMany(keys) => {
                let found = self.get_many(&keys)?;
                reply(&mut |to| to.extend_from_slice(&found));
            }
            StoreRequest::Validate(reads) => {
                if !are_current(&self.store.core().view, &reads) {
                    return Err(StoreError::Conflict);
                }
                reply(&mut |_| ());
            }
            StoreRequest::Alloc { bytes, near } => {
                let address = self.alloc(bytes as usize, near)?;
                reply(&mut |to| append_address(to, address));
            }
            StoreRequest::Release(addresses) => {
                addresses.into_iter().for_each(|address| self.give_back(address));
                reply(&mut |_| ());
            }
            StoreRequest::Scan { cursor, count } => {
                let mut keys = Vec::new();
                let count = (count as usize).min(limits::SCAN_KEYS_MAX);
                let cursor = self.store.scan(cursor, count, |key| keys.push(key.to_vec()))?;
                reply(&mut |to| append_scan(to, cursor, &keys));
            }
            StoreRequest::Stat => {
                let counts = self.store.counts();
                reply(&mut |to| append_counts(to, &counts));
            }
            StoreRequest::Session(session) => {
                let session = self.join(session)?;
                reply(&mut |to| to.extend_from_slice(&session.to_be_bytes()));
            }
            StoreRequest::End => {
                if let Some(joined) = self.session.take() {
                    self.sessions.close(&self.store, &joined)?;
                }
                reply(&mut |_| ());
            }
            StoreRequest::CreateFixed { key_bytes, value_bytes } => {
                let (key_bytes, value_bytes) = (key_bytes as usize, value_bytes as usize);
                let table = self.once(number, |tx| {
                    Ok(FixedTable::create(tx, key_bytes, value_bytes)?.address().to_word())
                })?;
                reply(&mut |to| append_address(to, ObjectAddress::from_word(table)));
            }
            StoreRequest::PutFixed { table, key, value } => {
                self.once(number, |tx| FixedTable::open(&mut *tx, table)?.put(tx, key, value).map(|()| 0))?;
                reply(&mut |_| ());
            }
            StoreRequest::DeleteFixed { table, key } => {
                let existed = self
                    .once(number, |tx| FixedTable::open(&mut *tx, table)?.delete(tx, key).map(u64::from))?;
                reply(&mut |to| to.push(existed as u8));
            }
            StoreRequest::FreeFixed(table) => {
                self.once(number, |tx| FixedTable::open(&mut *tx, table)?.free(tx).map(|()| 0))?;
                reply(&mut |_| ());
            }
            StoreRequest::Watch(key) => {
                let watch = self.store.watch(key)?;
                reply(&mut |to| append_watch(to, watch));
            }
            StoreRequest::RandomKey(random) => {
                let key = self.store.random_key(random)?;
                reply(&mut |to| {
                    to.push(u8::from(key.is_some()));
                    to.extend_from_slice(key.as_deref().unwrap_or_default());
                });
            }
            StoreRequest::Clear => {
                self.store.clear()?;
                reply(&mut |_| ());
            }
            StoreRequest::Begin => {
                let (owner, first, count) = self.begin()?;
                reply(&mut |to| {
                    [owner, first, count].iter().for_each(|word| to.extend_from_slice(&word.to_be_bytes()))
                });
            }
            StoreRequest::Prepare { id, body, request } => {
                self.store.prepare(id, body, &request)?;
                reply(&mut |_| ());
            }
            StoreRequest::CommitHome { id, parts, request } => {
                self.commit_home(number, id, &parts, &request)?;
                reply(&mut |_| ());
            }
            StoreRequest::Decide { id, is_committed } => {
                self.store.decide(id, is_committed)?;
                reply(&mut |_| ());
            }
            StoreRequest::Ended(id) => {
                let ledger = &self.store.core().ledger;
                if ledger.is_owner(id) && self.opened.remove(&id.number) {
                    ledger.close([id.number]);
                }
                self.store.end_transaction(id);
                reply(&mut |_| ());
            }
            StoreRequest::Outcome { id, is_final } => {
                let outcome = self.store.outcome(id, is_final);
                reply(&mut |to| to.push(outcome as u8));
            }
            StoreRequest::Ask { number: function, bytes } => {
                let answer = self.ask(function, bytes)?;
                reply(&mut |to| to.extend_from_slice(&answer));
            }
            StoreRequest::Run { number: function, bytes } => {
                let function = self.functions.find_write(function)?;
                let answer = self.once(number, |tx| function(tx, bytes))?;
                reply(&mut |to| to.extend_from_slice(&answer.to_be_bytes()));
            }
            StoreRequest::Ping(bytes) => reply(&mut |to| to.extend_from_slice(bytes)),
            StoreRequest::Regions(known) => {
                let lent = lender.lend(known)?;
                let left_ns = self.store.core().copies.lease_left_ns();
                reply(&mut |to| {
                    to.extend_from_slice(&left_ns.to_be_bytes());
                    for (place, token) in &lent {
                        to.extend_from_slice(&place.to_be_bytes());
                        to.extend_from_slice(&token.to_bytes());
                    }
                });
            }
        }
        Ok(())
    }

    /// Runs a function that only reads.
    fn ask(&self, number: u16, bytes: &[u8]) -> Result<Vec<u8>, StoreError> {
        let function = self.functions.find_read(number)?;
        let answer = self.store.transaction(|tx| {
            let answer = function(tx, bytes)?;
            // It may be called again.
            if tx.has_writes() { Err(StoreError::FunctionWrites { number }) } else { Ok(answer) }
        })?;
        let limit = limits::CALL_BYTES_MAX;
        match answer.len() {
            bytes if bytes > limit => Err(StoreError::CallTooLong { bytes, limit }),
            _ => Ok(answer),
        }
    }

    /// Opens a session, or goes on with one, and returns its number; 0 if there is no room for one.
    fn join(&mut self, number: u64) -> Result<u64, StoreError> {
        let joined = match (number, &self.session) {
            (0, Some(joined)) => return Ok(joined.id.to_u64()),
            (0, None) => match self.sessions.open(&self.store) {
                // The client's writes are done all the same, and not repeated; some may be deletions.
                Err(StoreError::Full { .. } | StoreError::TooManySessions) => return Ok(0),
                joined => joined?,
            },
            (number, _) => self.sessions.join(number)?,
        };
        Ok(self.session.insert(joined).id.to_u64())
    }

    /// Does a request in a transaction if it has not been done before. Returns the reply, of now or of then.
    fn once(
        &self,
        number: u64,
        mut run: impl FnMut(&mut Transaction<'_>) -> Result<u64, StoreError>,
    ) -> Result<u64, StoreError> {
        if number == 0 {
            return self.store.transaction(run);
        }
        let joined = self.session.as_ref().ok_or(StoreError::NoSession)?;
        let _turn = joined.turn()?;
        self.store.transaction(|tx| tx.once(joined.id, number, &mut run))
    }

    /// Looks several keys up, and returns what it has found, which is of one moment: with its length for each key.
    fn get_many(&mut self, keys: &[&[u8]]) -> Result<Vec<u8>, StoreError> {
        let limit = limits::CALL_VALUE_BYTES_MAX;
        for _ in 0..limits::READ_ATTEMPTS {
            let (mut all, mut reads, mut one) = (Vec::new(), Vec::with_capacity(keys.len()), Vec::new());
            for key in keys {
                let (read, _, head) = self.get(key)?;
                one.clear();
                FoundKey::append(&mut one, &read, None, head.map(|head| (head, &self.value[..])));
                append_bytes(&mut all, &one);
                if all.len() > limit {
                    return Err(StoreError::CallTooLong { bytes: all.len(), limit });
                }
                reads.push(read);
            }
            // Each was current when it was read: if all still are, they are of the moment of the last one.
            if keys.len() < 2 || are_current(&self.store.core().view, &reads) {
                return Ok(all);
            }
        }
        Err(StoreError::Conflict)
    }

    /// Looks a key up; its value is in `self.value` then.
    #[allow(clippy::type_complexity, reason = "the three parts of a reply")]
    fn get(
        &mut self,
        key: &[u8],
    ) -> Result<(ReadRecord, Option<ShardHint>, Option<crate::EntryHead>), StoreError> {
        crate::image::check_key(key)?;
        let core = self.store.core();
        let view = &core.view;
        let hash = view.hash(key);
        let value = &mut self.value;
        let (located, _) = view.settle(|| {
            let found = view.lookup(hash, key, |payload| {
                value.clear();
                payload.copy_value(value);
            })?;
            if matches!(found.0, LocatedKey::Present { head, .. } if head.shape.has(ObjectShape::LONG_VALUE))
            {
                let list = std::mem::take(value);
                view.copy_sections(&list, value)?;
            }
            Ok(found)
        })?;
        if value.len() > limits::CALL_VALUE_BYTES_MAX {
            return Err(StoreError::CallTooLong { bytes: value.len(), limit: limits::CALL_VALUE_BYTES_MAX });
        }
        let (read, home, head) = match located {
            LocatedKey::Present { address, head, home, .. } => {
                core.touched.touch(address.place);
                let read = ReadRecord { place: address.place, version: head.version, kind: UnitKind::Object };
                (read, home, (!head.is_expired(view.now_ms())).then(|| head.entry()))
            }
            LocatedKey::Absent { home, version } => {
                (ReadRecord { place: home, version, kind: UnitKind::Bucket }, home, None)
            }
        };
        count(if head.is_some() { &core.tallies.hits } else { &core.tallies.misses }, 1);
        let class_word = match (read.kind, view.layout.block_of(read.place)) {
            (UnitKind::Object, Some((block, _))) => view.load(view.layout.class_place(block)),
            _ => 0,
        };
        let shard = home - BUCKET_BYTES * crate::table::home_line(hash);
        let keys = BucketWord::from_word(view.load(home + 8)).keys;
        Ok((read, keys.map(|keys| ShardHint { shard, keys, class_word }), head))
    }

    /// Reads an object; returns its version, whether it belongs to a key or to the table, and its bytes.
    fn read(&self, address: ObjectAddress) -> Result<(u64, bool, Vec<u8>), StoreError> {
        let view = &self.store.core().view;
        let mut bytes = Vec::new();
        let found = view.settle(|| {
            bytes.clear();
            view.object_at(address, |payload| payload.copy(&mut bytes))
        })?;
        let (head, ()) = found.ok_or(StoreError::NoObject(address))?;
        let others = ObjectShape::KEYED | ObjectShape::CHAIN | ObjectShape::SECTION | ObjectShape::SESSION;
        let is_owned = head.shape.flags & others != 0;
        Ok((head.version, is_owned, bytes))
    }

    fn alloc(&mut self, bytes: usize, near: Option<ObjectAddress>) -> Result<ObjectAddress, StoreError> {
        crate::image::check_object(bytes)?;
        if self.reserved.len() >= limits::ALLOCATIONS_HELD_MAX {
            return Err(StoreError::TransactionTooLarge);
        }
        let core = self.store.core();
        for attempt in 0.. {
            match core.blocks.reserve(&core.view, bytes, near) {
                Ok(address) => {
                    self.reserved.insert(address);
                    return Ok(address);
                }
                Err(StoreError::Full { needed_bytes, .. }) => core.make_room(needed_bytes, attempt)?,
                Err(error) => return Err(error),
            }
        }
        Err(StoreError::Conflict)
    }

    fn give_back(&mut self, address: ObjectAddress) {
        if self.reserved.remove(&address) {
            let core = self.store.core();
            core.blocks.give_back(&core.view, address.place);
        }
    }

    /// Commits. What the client has read must still be true; a commit that only meets others is tried again here.
    fn commit(&mut self, number: u64, request: &CommitRequest<'_>) -> Result<(), StoreError> {
        self.once(number, |tx| request.write_by(tx, &self.reserved).map(|()| 0))?;
        self.forget_reserved(request);
        Ok(())
    }

    /// Commits the branch of a transaction over several parts whose home this part is, with the decision that it has happened.
    fn commit_home(
        &mut self,
        number: u64,
        id: TransactionId,
        parts: &[u16],
        request: &CommitRequest<'_>,
    ) -> Result<(), StoreError> {
        let ledger = &self.store.core().ledger;
        let may_commit = ledger.is_owner(id) && self.opened.remove(&id.number) && ledger.begin_commit(id);
        let mut decision = if may_commit { Some(DecisionPlace::take(ledger, id, parts)) } else { None };
        // A request that is repeated has its reply, and no number that is open.
        let done = self.once(number, |tx| {
            let decision = decision.as_mut().ok_or(StoreError::Closed)?;
            let decision =
                decision.as_mut().map_err(|error| std::mem::replace(error, StoreError::Undecided))?;
            request.write_by(tx, &self.reserved)?;
            decision.write(tx).map(|()| 0)
        });
        match (&done, decision) {
            (Ok(_), Some(Ok(decision))) => decision.keep(),
            (Err(StoreError::NotPrimary), Some(Ok(decision))) => decision.leave(),
            _ if may_commit => ledger.end_commit(id),
            _ => {}
        }
        done?;
        self.forget_reserved(request);
        Ok(())
    }

    /// Opens numbers of transactions whose home this part is, as many as the client may have more than it has. Returns that of the owner,
    /// the first one, and how many.
    fn begin(&mut self) -> Result<(u64, u64, u64), StoreError> {
        let count = limits::TRANSACTIONS_OPEN_MAX.saturating_sub(self.opened.len() as u64);
        let (owner, first) = self.store.core().ledger.open(count)?;
        self.opened.extend(first..first + count);
        Ok((owner, first, count))
    }

    fn forget_reserved(&mut self, request: &CommitRequest<'_>) {
        for address in request.objects.keys() {
            self.reserved.remove(address);
        }
    }
}

impl Drop for CallService {
    fn drop(&mut self) {
        if !self.opened.is_empty() {
            self.store.core().ledger.close(std::mem::take(&mut self.opened));
        }
        while let Some(address) = self.reserved.first().copied() {
            self.give_back(address);
        }
    }
}
