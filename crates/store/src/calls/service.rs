//! The server's side of one client's calls: requests in, replies out. It owns no link and no clock.

use std::collections::BTreeSet;
use std::sync::Arc;

use caravan_fabric::{Error as FabricError, RegionToken};

use super::reply::{FoundKey, FoundObject, ShardHint, append_counts, append_scan, error_fields};
use super::request::{NumberedRequest, RequestError, RequestKind, StoreRequest, append_address};
use super::sessions::{ClientSessions, JoinedSession};
use super::{CallRecord, DONE, MalformedCall, append_record};
use crate::commit::{ObjectWrite, ReadRecord, UnitKind, WriteSet};
use crate::entry::ObjectAddress;
use crate::error::StoreError;
use crate::fixed::FixedTable;
use crate::layout::{BUCKET_BYTES, HEADER_BYTES, ObjectShape};
use crate::limits;
use crate::owner::{StoreCore, back_off, count};
use crate::session::SessionReply;
use crate::store::Store;
use crate::table::{BucketWord, LocatedKey};
use crate::transaction::Transaction;

/// The kinds of calls that are counted apart, as users see them; the last one is all others.
// The others are in the order of `RequestKind`.
pub const CALL_NAMES: [&str; 6] = ["get", "read", "put", "delete", "commit", "other"];
const OTHER_CALL: usize = CALL_NAMES.len() - 1;

const _: () = assert!(RequestKind::Get as usize == 1 && RequestKind::Commit as usize == OTHER_CALL);

/// The number of calls of each kind.
pub type CallCounts = [u64; CALL_NAMES.len()];

/// Lends a client the parts of a store that it does not have yet; for clients that map nothing.
pub trait RegionLender {
    /// Returns the place and the token of each part from number `known` on.
    fn lend(&mut self, known: u32) -> Result<Vec<(u64, RegionToken)>, FabricError>;
}

/// What a server keeps of one client: the store, and the objects that the client has allocated and not
/// committed yet, which go back to the store when this is dropped.
#[derive(Debug)]
pub struct CallService {
    store: Arc<Store>,
    sessions: Arc<ClientSessions>,
    session: Option<JoinedSession>,
    /// `reserved.len() <= limits::ALLOCATIONS_HELD_MAX`
    reserved: BTreeSet<ObjectAddress>,
    value: Vec<u8>,
}

impl CallService {
    /// Returns the service of a new client.
    pub fn new(store: Arc<Store>, sessions: Arc<ClientSessions>) -> Self {
        Self { store, sessions, session: None, reserved: BTreeSet::new(), value: Vec::new() }
    }

    /// Serves the requests that `input` begins with, appends the replies to `output`, and returns the number of
    /// bytes that were served, which the caller removes, and how many requests of each kind they were. Stops at an incomplete
    /// request, and when `output` is longer than [`limits::REPLIES_PAUSE_BYTES`]. An error means that the client
    /// does not keep to the protocol: the caller closes its connection.
    pub fn serve(
        &mut self,
        input: &[u8],
        output: &mut Vec<u8>,
        lender: &mut impl RegionLender,
    ) -> Result<(usize, CallCounts), MalformedCall> {
        let (mut taken, mut counts) = (0, CallCounts::default());
        while output.len() < limits::REPLIES_PAUSE_BYTES {
            let Some((record, bytes)) = CallRecord::split(&input[taken..])? else { break };
            taken += bytes;
            counts[usize::from(record.kind.max(1) - 1).min(OTHER_CALL)] += 1;
            let start = output.len();
            let result = match NumberedRequest::decode(record.kind, record.body) {
                Ok(request) => self.run(request, record.call, output, lender),
                Err(RequestError::Refused(error)) => Err(error),
                Err(RequestError::Malformed(error)) => return Err(error),
            };
            if let Err(error) = result {
                output.truncate(start);
                let (status, fields) = error_fields(&error);
                append_record(output, record.call, status, |to| to.extend_from_slice(&fields));
            }
        }
        Ok((taken, counts))
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
            StoreRequest::Commit { reads, writes } => {
                self.commit(number, reads, writes)?;
                reply(&mut |_| ());
            }
            StoreRequest::Validate(reads) => {
                let view = &self.store.core().view;
                view.fence_acquire();
                let is_current =
                    |read: &ReadRecord| view.version_of(read.place, read.kind) == Some(read.version);
                if !reads.iter().all(is_current) {
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
            StoreRequest::Ping(bytes) => reply(&mut |to| to.extend_from_slice(bytes)),
            StoreRequest::Regions(known) => {
                let lent = lender.lend(known)?;
                reply(&mut |to| {
                    for (place, token) in &lent {
                        to.extend_from_slice(&place.to_be_bytes());
                        to.extend_from_slice(&token.to_bytes());
                    }
                });
            }
        }
        Ok(())
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

    /// Commits. Nothing that the client says of objects is believed: a lie ends as a conflict at most.
    fn commit(
        &mut self,
        number: u64,
        reads: Vec<ReadRecord>,
        mut writes: WriteSet,
    ) -> Result<(), StoreError> {
        let joined = (number > 0).then(|| self.session.as_ref().ok_or(StoreError::NoSession)).transpose()?;
        let _turn = joined.map(JoinedSession::turn).transpose()?;
        let core = self.store.core();
        if let Some(joined) = joined {
            // Once done, its reads have changed, and its objects are no longer reserved.
            if core.reply(joined.id, number)?.is_some() {
                return Ok(());
            }
            writes.reply = Some(SessionReply { session: joined.id.0, request: number, reply: 0 });
        }
        for (address, write) in &writes.objects {
            self.check_object(&reads, *address, write)?;
        }
        let new: Vec<ObjectAddress> = writes
            .objects
            .iter()
            .filter(|(_, write)| matches!(write, ObjectWrite::New(_)))
            .map(|(address, _)| *address)
            .collect();
        commit(core, reads, writes)?;
        new.iter().for_each(|address| _ = self.reserved.remove(address));
        Ok(())
    }

    fn check_object(
        &self,
        reads: &[ReadRecord],
        address: ObjectAddress,
        write: &ObjectWrite,
    ) -> Result<(), StoreError> {
        let core = self.store.core();
        let capacity = core.blocks.capacity(&core.view, address.place);
        let bytes = match write {
            ObjectWrite::New(image) | ObjectWrite::Replace(image) => image.payload().len(),
            ObjectWrite::Free => 0,
        };
        if HEADER_BYTES + bytes > capacity {
            return Err(StoreError::ObjectTooSmall {
                bytes,
                capacity: capacity.saturating_sub(HEADER_BYTES),
            });
        }
        if let ObjectWrite::New(_) = write {
            let is_reserved = self.reserved.contains(&address);
            return if is_reserved { Ok(()) } else { Err(StoreError::NoObject(address)) };
        }
        let (version, is_owned, _) = self.read(address)?;
        if is_owned {
            return Err(StoreError::Keyed(address));
        }
        let read = ReadRecord { place: address.place, version, kind: UnitKind::Object };
        if reads.contains(&read) { Ok(()) } else { Err(StoreError::Conflict) }
    }
}

impl Drop for CallService {
    fn drop(&mut self) {
        while let Some(address) = self.reserved.first().copied() {
            self.give_back(address);
        }
    }
}

/// Commits what a client has read and writes. A client that has read nothing cannot run its transaction again with
/// another result, so that is done here until it succeeds.
fn commit(core: &StoreCore, reads: Vec<ReadRecord>, writes: WriteSet) -> Result<(), StoreError> {
    let is_blind = reads.is_empty();
    for attempt in 0.. {
        core.changed.wait_for_room();
        let writes = writes.clone();
        let committed = if attempt >= limits::ATTEMPTS_BESIDE_OTHERS {
            core.commit(&mut core.gate.alone().lane, &reads, writes)
        } else {
            core.commit(&mut core.gate.beside_others(), &reads, writes)
        };
        match committed {
            Ok(full) => {
                full.into_iter().for_each(|hash| core.split(hash));
                return Ok(());
            }
            Err(StoreError::Full { needed_bytes, .. }) => core.make_room(needed_bytes, attempt)?,
            Err(StoreError::Conflict) if is_blind => {
                count(&core.tallies.conflicts, 1);
                back_off(attempt);
            }
            Err(error) => {
                count(&core.tallies.conflicts, u64::from(matches!(error, StoreError::Conflict)));
                return Err(error);
            }
        }
    }
    Err(StoreError::Conflict)
}
