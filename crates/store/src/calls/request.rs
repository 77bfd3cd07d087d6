//! What clients ask.

use std::collections::{BTreeMap, BTreeSet};

use caravan_fabric::byte_reader::ByteReader;

use super::{MalformedCall, append_bytes, take_bytes};
use crate::commit::{ObjectWrite, ReadRecord, UnitKind, WriteSet};
use crate::entry::{ObjectAddress, ScanCursor};
use crate::error::StoreError;
use crate::ledger::TransactionId;
use crate::transaction::Transaction;

/// The handlers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub(crate) enum RequestKind {
    Get = 1,
    Read = 2,
    Put = 3,
    Delete = 4,
    Commit = 5,
    Validate = 6,
    Alloc = 7,
    Release = 8,
    Scan = 9,
    Stat = 10,
    Regions = 11,
    Session = 12,
    End = 13,
    Ping = 14,
    CreateFixed = 15,
    PutFixed = 16,
    DeleteFixed = 17,
    FreeFixed = 18,
    Watch = 19,
    RandomKey = 20,
    Clear = 21,
    Begin = 22,
    Prepare = 23,
    CommitHome = 24,
    Decide = 25,
    Ended = 26,
    Outcome = 27,
    Ask = 28,
    Run = 29,
    GetMany = 30,
}

impl RequestKind {
    /// Tells whether requests of this kind never commit.
    pub(super) fn only_reads(kind: u16) -> bool {
        let reads = [
            Self::Get,
            Self::GetMany,
            Self::Read,
            Self::Validate,
            Self::Scan,
            Self::Stat,
            Self::Regions,
            Self::Ping,
            Self::Ask,
        ];
        reads.iter().any(|read| *read as u16 == kind)
    }

    const ALL: [Self; 30] = [
        Self::Get,
        Self::Read,
        Self::Put,
        Self::Delete,
        Self::Commit,
        Self::Validate,
        Self::Alloc,
        Self::Release,
        Self::Scan,
        Self::Stat,
        Self::Regions,
        Self::Session,
        Self::End,
        Self::Ping,
        Self::CreateFixed,
        Self::PutFixed,
        Self::DeleteFixed,
        Self::FreeFixed,
        Self::Watch,
        Self::RandomKey,
        Self::Clear,
        Self::Begin,
        Self::Prepare,
        Self::CommitHome,
        Self::Decide,
        Self::Ended,
        Self::Outcome,
        Self::Ask,
        Self::Run,
        Self::GetMany,
    ];

    /// Tells whether requests of this kind are transactions that change the store, and so have numbers.
    fn is_write(self) -> bool {
        matches!(
            self,
            Self::Put
                | Self::Delete
                | Self::Commit
                | Self::CommitHome
                | Self::Run
                | Self::CreateFixed
                | Self::PutFixed
                | Self::DeleteFixed
                | Self::FreeFixed
        )
    }

    fn from_number(number: u16) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| *kind as u16 == number)
    }
}

/// The bytes of the number of a write.
pub(crate) const NUMBER_BYTES: usize = 8;

/// A request, decoded.
#[derive(Debug)]
pub(crate) struct NumberedRequest<'a> {
    pub(crate) request: StoreRequest<'a>,
    /// The number of a write in the client's session, so that it is done once; it precedes the body, in 64 bits. 0 for all
    /// other requests, and for writes of a client without a session, which are never repeated.
    pub(crate) number: u64,
}

/// What is asked.
#[derive(Debug)]
pub(crate) enum StoreRequest<'a> {
    /// key
    Get(&'a [u8]),
    /// place 64, incarnation 16
    Read(ObjectAddress),
    /// 0, or 1 and the expiry 64; key with its length; value
    Put {
        key: &'a [u8],
        value: &'a [u8],
        expires_at_ms: Option<u64>,
    },
    /// key
    Delete(&'a [u8]),
    Commit(CommitRequest<'a>),
    /// count 32; for each: kind 8, place 64, version 64
    Validate(Vec<ReadRecord>),
    /// bytes 32; 0, or 1 and the address of the object to be near
    Alloc {
        bytes: u32,
        near: Option<ObjectAddress>,
    },
    /// addresses that `Alloc` returned and no commit has used
    Release(Vec<ObjectAddress>),
    /// cursor 64, count 32
    Scan {
        cursor: ScanCursor,
        count: u32,
    },
    /// nothing
    Stat,
    /// the number of regions that the client has been lent, 32
    Regions(u32),
    /// the number of the session to go on with, or 0 to open one, 64
    Session(u64),
    /// nothing: the session ends
    End,
    /// any bytes, which come back
    Ping(&'a [u8]),
    /// bytes of a key 32, bytes of a value 32
    CreateFixed {
        key_bytes: u32,
        value_bytes: u32,
    },
    /// table; key with its length; value
    PutFixed {
        table: ObjectAddress,
        key: &'a [u8],
        value: &'a [u8],
    },
    /// table; key
    DeleteFixed {
        table: ObjectAddress,
        key: &'a [u8],
    },
    /// table
    FreeFixed(ObjectAddress),
    /// key
    Watch(&'a [u8]),
    /// a random number 64
    RandomKey(u64),
    /// nothing. It has no number: a client does not repeat it.
    Clear,
    /// nothing: opens numbers of transactions over several parts, whose home this part is
    Begin,
    /// transaction; what it reads and writes here, as in `Commit`
    Prepare {
        id: TransactionId,
        body: &'a [u8],
        request: CommitRequest<'a>,
    },
    /// transaction; count 16 of the other parts, and each of them; what it reads and writes here
    CommitHome {
        id: TransactionId,
        parts: Vec<u16>,
        request: CommitRequest<'a>,
    },
    /// transaction; 1 if it has happened, or 0
    Decide {
        id: TransactionId,
        is_committed: bool,
    },
    /// transaction: all parts know the decision
    Ended(TransactionId),
    /// number of a function that only reads, 16; its bytes
    Ask {
        number: u16,
        bytes: &'a [u8],
    },
    /// number of a function that writes, 16; its bytes
    Run {
        number: u16,
        bytes: &'a [u8],
    },
    /// transaction; 1 if its branch waits no longer for its client, or 0
    Outcome {
        id: TransactionId,
        is_final: bool,
    },
    /// each key with its length
    GetMany(Vec<&'a [u8]>),
}

/// What a transaction of a client has read and writes: reads as in `Validate`; count 32 of keys, and for each the key with
/// its length, and 0 or 1 and its new value with expiry and length; count 32 of objects, and for each address, kind 8, and
/// bytes with their length unless it is freed.
#[derive(Debug, Default)]
pub(crate) struct CommitRequest<'a> {
    pub(crate) reads: Vec<ReadRecord>,
    pub(crate) keys: Vec<KeyChange<'a>>,
    pub(crate) objects: BTreeMap<ObjectAddress, ObjectChange<'a>>,
}

/// A key, and its expiry and value, or `None` if it is deleted.
pub(crate) type KeyChange<'a> = (&'a [u8], Option<(Option<u64>, &'a [u8])>);

/// What becomes of an object without a key.
#[derive(Debug)]
pub(crate) enum ObjectChange<'a> {
    New(&'a [u8]),
    Replace(&'a [u8]),
    Free,
}

impl CommitRequest<'_> {
    /// Tells whether it allocates objects.
    pub(crate) fn has_new_objects(&self) -> bool {
        self.objects.values().any(|change| matches!(change, ObjectChange::New(_)))
    }

    /// Has a transaction read and write what is asked for. `reserved` are the objects that the client has allocated. Nothing that it
    /// says of objects is believed: a lie ends as a conflict at most.
    pub(crate) fn write_by(
        &self,
        tx: &mut Transaction<'_>,
        reserved: &BTreeSet<ObjectAddress>,
    ) -> Result<(), StoreError> {
        tx.read_before(&self.reads)?;
        for (address, change) in &self.objects {
            match change {
                ObjectChange::New(bytes) if reserved.contains(address) => {
                    tx.write_reserved(*address, bytes)?;
                }
                ObjectChange::New(_) => return Err(StoreError::NoObject(*address)),
                ObjectChange::Replace(bytes) => tx.write(*address, bytes)?,
                ObjectChange::Free => tx.free(*address)?,
            }
        }
        for (key, put) in &self.keys {
            match put {
                Some((expires_at_ms, value)) => tx.put_until(key, value, *expires_at_ms)?,
                None => tx.delete_unread(key)?,
            }
        }
        Ok(())
    }
}

impl<'a> NumberedRequest<'a> {
    pub(crate) fn decode(kind: u16, body: &'a [u8]) -> Result<Self, MalformedCall> {
        let cut = MalformedCall("a request is cut short");
        let kind = RequestKind::from_number(kind).ok_or(MalformedCall("a request has an unknown handler"))?;
        let mut reader = ByteReader::new(body);
        let is_write = kind.is_write();
        let number = if is_write { reader.u64() } else { Some(0) };
        let number = number.ok_or(cut)?;
        let request = StoreRequest::fields(kind, &mut reader).ok_or(cut)?;
        if !reader.is_empty() {
            return Err(MalformedCall("a request is longer than its fields"));
        }
        Ok(Self { request, number })
    }
}

impl<'a> StoreRequest<'a> {
    fn fields(kind: RequestKind, reader: &mut ByteReader<'a>) -> Option<Self> {
        match kind {
            RequestKind::Get => Some(Self::Get(reader.rest())),
            RequestKind::Delete => Some(Self::Delete(reader.rest())),
            RequestKind::Read => address(reader).map(Self::Read),
            RequestKind::Put => put(reader),
            RequestKind::Commit => commit(reader).map(Self::Commit),
            RequestKind::Validate => reads(reader).map(Self::Validate),
            RequestKind::Alloc => {
                let bytes = reader.u32();
                bytes.zip(optional(reader, address)).map(|(bytes, near)| Self::Alloc { bytes, near })
            }
            RequestKind::Release => many(reader, address).map(Self::Release),
            RequestKind::Scan => {
                let cursor = reader.u64().map(ScanCursor::from_u64);
                cursor.zip(reader.u32()).map(|(cursor, count)| Self::Scan { cursor, count })
            }
            RequestKind::Stat => Some(Self::Stat),
            RequestKind::Regions => reader.u32().map(Self::Regions),
            RequestKind::Session => reader.u64().map(Self::Session),
            RequestKind::End => Some(Self::End),
            RequestKind::Ping => Some(Self::Ping(reader.rest())),
            RequestKind::CreateFixed => {
                let sizes = reader.u32().zip(reader.u32());
                sizes.map(|(key_bytes, value_bytes)| Self::CreateFixed { key_bytes, value_bytes })
            }
            RequestKind::PutFixed => {
                let to = address(reader).zip(take_bytes(reader));
                to.map(|(table, key)| Self::PutFixed { table, key, value: reader.rest() })
            }
            RequestKind::DeleteFixed => {
                address(reader).map(|table| Self::DeleteFixed { table, key: reader.rest() })
            }
            RequestKind::FreeFixed => address(reader).map(Self::FreeFixed),
            RequestKind::Watch => Some(Self::Watch(reader.rest())),
            RequestKind::RandomKey => reader.u64().map(Self::RandomKey),
            RequestKind::Clear => Some(Self::Clear),
            RequestKind::Begin => Some(Self::Begin),
            RequestKind::Prepare => {
                let id = TransactionId::take(reader)?;
                let body = reader.rest();
                Some(Self::Prepare { id, body, request: decode_commit(body)? })
            }
            RequestKind::CommitHome => {
                let id = TransactionId::take(reader)?;
                let count = reader.u16()?;
                let parts = (0..count).map(|_| reader.u16()).collect::<Option<_>>()?;
                Some(Self::CommitHome { id, parts, request: commit(reader)? })
            }
            RequestKind::Decide => {
                let id = TransactionId::take(reader)?;
                Some(Self::Decide { id, is_committed: reader.u8()? != 0 })
            }
            RequestKind::Ask => reader.u16().map(|number| Self::Ask { number, bytes: reader.rest() }),
            RequestKind::Run => reader.u16().map(|number| Self::Run { number, bytes: reader.rest() }),
            RequestKind::Ended => TransactionId::take(reader).map(Self::Ended),
            RequestKind::Outcome => {
                let id = TransactionId::take(reader)?;
                Some(Self::Outcome { id, is_final: reader.u8()? != 0 })
            }
            RequestKind::GetMany => {
                let mut keys = Vec::new();
                while !reader.is_empty() {
                    keys.push(take_bytes(reader)?);
                }
                Some(Self::GetMany(keys))
            }
        }
    }
}

fn address(reader: &mut ByteReader<'_>) -> Option<ObjectAddress> {
    let place = reader.u64()?;
    Some(ObjectAddress { place, incarnation: reader.u16()? })
}

/// Takes 0, or 1 and what `take` takes.
fn optional<'a, T>(
    reader: &mut ByteReader<'a>,
    take: impl FnOnce(&mut ByteReader<'a>) -> Option<T>,
) -> Option<Option<T>> {
    match reader.u8()? {
        0 => Some(None),
        1 => take(reader).map(Some),
        _ => None,
    }
}

/// Takes a count, and that many of what `take` takes. The count reserves no memory: it may be a lie.
fn many<'a, T>(
    reader: &mut ByteReader<'a>,
    mut take: impl FnMut(&mut ByteReader<'a>) -> Option<T>,
) -> Option<Vec<T>> {
    let count = reader.u32()?;
    let mut all = Vec::new();
    for _ in 0..count {
        all.push(take(reader)?);
    }
    Some(all)
}

fn put<'a>(reader: &mut ByteReader<'a>) -> Option<StoreRequest<'a>> {
    let expires_at_ms = optional(reader, ByteReader::u64)?;
    let key = take_bytes(reader)?;
    Some(StoreRequest::Put { key, value: reader.rest(), expires_at_ms })
}

/// Takes what [`append_reads`] appended.
pub(super) fn reads(reader: &mut ByteReader<'_>) -> Option<Vec<ReadRecord>> {
    many(reader, read)
}

/// Takes one read, without the number of reads before it.
pub(super) fn read(reader: &mut ByteReader<'_>) -> Option<ReadRecord> {
    let kind = match reader.u8()? {
        0 => UnitKind::Object,
        1 => UnitKind::Bucket,
        _ => return None,
    };
    Some(ReadRecord { kind, place: reader.u64()?, version: reader.u64()? })
}

/// Returns what [`append_commit`] appended.
pub(crate) fn decode_commit(body: &[u8]) -> Option<CommitRequest<'_>> {
    let mut reader = ByteReader::new(body);
    commit(&mut reader).filter(|_| reader.is_empty())
}

fn commit<'a>(reader: &mut ByteReader<'a>) -> Option<CommitRequest<'a>> {
    let (reads, keys) = (reads(reader)?, many(reader, key_change)?);
    let objects = many(reader, object_change)?.into_iter().collect();
    Some(CommitRequest { reads, keys, objects })
}

fn key_change<'a>(reader: &mut ByteReader<'a>) -> Option<KeyChange<'a>> {
    Some((take_bytes(reader)?, optional(reader, put_value)?))
}

fn object_change<'a>(reader: &mut ByteReader<'a>) -> Option<(ObjectAddress, ObjectChange<'a>)> {
    let address = address(reader)?;
    let change = match reader.u8()? {
        NEW => ObjectChange::New(take_bytes(reader)?),
        REPLACE => ObjectChange::Replace(take_bytes(reader)?),
        FREE => ObjectChange::Free,
        _ => return None,
    };
    Some((address, change))
}

fn put_value<'a>(reader: &mut ByteReader<'a>) -> Option<(Option<u64>, &'a [u8])> {
    Some((optional(reader, ByteReader::u64)?, take_bytes(reader)?))
}

const NEW: u8 = 0;
const REPLACE: u8 = 1;
const FREE: u8 = 2;

/// Returns the address that a body consists of.
pub(crate) fn decode_address(body: &[u8]) -> Option<ObjectAddress> {
    let mut reader = ByteReader::new(body);
    address(&mut reader).filter(|_| reader.is_empty())
}

pub(crate) fn append_address(to: &mut Vec<u8>, address: ObjectAddress) {
    to.extend_from_slice(&address.place.to_be_bytes());
    to.extend_from_slice(&address.incarnation.to_be_bytes());
}

fn append_expiry(to: &mut Vec<u8>, expires_at_ms: Option<u64>) {
    to.push(u8::from(expires_at_ms.is_some()));
    expires_at_ms.iter().for_each(|at| to.extend_from_slice(&at.to_be_bytes()));
}

/// Appends one read.
fn append_read(to: &mut Vec<u8>, read: &ReadRecord) {
    to.push(match read.kind {
        UnitKind::Object => 0,
        UnitKind::Bucket => 1,
    });
    to.extend_from_slice(&read.place.to_be_bytes());
    to.extend_from_slice(&read.version.to_be_bytes());
}

/// Appends reads, with their count in front.
pub(crate) fn append_reads(to: &mut Vec<u8>, reads: &[ReadRecord]) {
    to.extend_from_slice(&(reads.len() as u32).to_be_bytes());
    reads.iter().for_each(|read| append_read(to, read));
}

/// Appends the body of [`StoreRequest::Put`].
pub(crate) fn append_put(to: &mut Vec<u8>, key: &[u8], value: &[u8], expires_at_ms: Option<u64>) {
    append_expiry(to, expires_at_ms);
    append_bytes(to, key);
    to.extend_from_slice(value);
}

/// Appends the body of [`StoreRequest::Commit`].
pub(crate) fn append_commit(to: &mut Vec<u8>, reads: &[ReadRecord], writes: &WriteSet) {
    append_reads(to, reads);
    to.extend_from_slice(&(writes.keys.len() as u32).to_be_bytes());
    for write in writes.keys.iter() {
        append_bytes(to, write.key());
        to.push(u8::from(write.image().is_some()));
        if let Some(image) = write.image() {
            append_expiry(to, image.expires_at_ms());
            append_bytes(to, image.value(write.key().len()));
        }
    }
    to.extend_from_slice(&(writes.objects.len() as u32).to_be_bytes());
    for (address, write) in &writes.objects {
        append_address(to, *address);
        let (kind, image) = match write {
            ObjectWrite::New(image) => (NEW, Some(image)),
            ObjectWrite::Replace(image) => (REPLACE, Some(image)),
            ObjectWrite::Free => (FREE, None),
        };
        to.push(kind);
        image.iter().for_each(|image| append_bytes(to, image.payload()));
    }
}

/// Appends the body of [`StoreRequest::Alloc`].
pub(crate) fn append_alloc(to: &mut Vec<u8>, bytes: u32, near: Option<ObjectAddress>) {
    to.extend_from_slice(&bytes.to_be_bytes());
    to.push(u8::from(near.is_some()));
    near.iter().for_each(|near| append_address(to, *near));
}
