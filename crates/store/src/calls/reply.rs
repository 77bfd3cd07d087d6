//! What servers answer.

use caravan_fabric::byte_reader::ByteReader;

use super::{append_bytes, take_bytes};
use crate::commit::ReadRecord;
use crate::entry::{EntryHead, KeyVersion, KeyWatch, ObjectAddress, ScanCursor, StoreCounts, WatchedUnit};
use crate::error::StoreError;
use crate::table::HashSuffix;

/// The answer to a lookup of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FoundKey {
    /// What a transaction that has read the key records: its object, or the bucket that proves its absence.
    pub(crate) read: ReadRecord,
    /// `None` if there is no such key, or it has expired.
    pub(crate) entry: Option<(EntryHead, Vec<u8>)>,
    /// Where the key lies, for one-sided reads.
    pub(crate) hint: Option<ShardHint>,
}

/// Where a key lies. It may have moved by the time that the hint arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ShardHint {
    pub(crate) shard: u64,
    pub(crate) keys: HashSuffix,
    /// The class word of the block of the key's object, 0 if there is none.
    pub(crate) class_word: u64,
}

/// The answer to a read of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FoundObject {
    pub(crate) version: u64,
    /// The object belongs to a key or to the table.
    pub(crate) is_owned: bool,
    pub(crate) bytes: Vec<u8>,
}

impl FoundKey {
    pub(crate) fn append(
        to: &mut Vec<u8>,
        read: &ReadRecord,
        hint: Option<ShardHint>,
        entry: Option<(EntryHead, &[u8])>,
    ) {
        super::request::append_reads(to, std::slice::from_ref(read));
        to.push(u8::from(hint.is_some()));
        if let Some(ShardHint { shard, keys, class_word }) = hint {
            for word in [shard, u64::from(keys.depth), keys.bits, class_word] {
                to.extend_from_slice(&word.to_be_bytes());
            }
        }
        let Some((head, value)) = entry else { return to.push(0) };
        to.push(1 + u8::from(head.expires_at_ms.is_some()));
        to.extend_from_slice(&head.version.0.to_be_bytes());
        head.expires_at_ms.iter().for_each(|at| to.extend_from_slice(&at.to_be_bytes()));
        to.extend_from_slice(value);
    }

    /// Decodes the body of a reply, whose memory the value then has.
    pub(crate) fn decode(mut body: Vec<u8>) -> Option<Self> {
        let mut reader = ByteReader::new(&body);
        if reader.u32()? != 1 {
            return None;
        }
        let read = super::request::read(&mut reader)?;
        let hint = match reader.u8()? {
            0 => None,
            _ => {
                let (shard, depth) = (reader.u64()?, reader.u64()?);
                let keys = HashSuffix { depth: u32::try_from(depth).ok()?, bits: reader.u64()? };
                Some(ShardHint { shard, keys, class_word: reader.u64()? })
            }
        };
        let entry = match reader.u8()? {
            0 => None,
            kind => {
                let version = KeyVersion(reader.u64()?);
                let expires_at_ms = if kind == 2 { Some(reader.u64()?) } else { None };
                Some(EntryHead { version, expires_at_ms })
            }
        };
        let head_bytes = body.len() - reader.remaining();
        body.drain(..head_bytes);
        Some(Self { read, entry: entry.map(|head| (head, body)), hint })
    }
}

/// Decodes the reply to a lookup of several keys: what was found of each, with its length.
pub(crate) fn decode_found_keys(body: &[u8]) -> Option<Vec<FoundKey>> {
    let mut reader = ByteReader::new(body);
    let mut found = Vec::new();
    while !reader.is_empty() {
        found.push(FoundKey::decode(take_bytes(&mut reader)?.to_vec())?);
    }
    Some(found)
}

impl FoundObject {
    pub(crate) fn append(to: &mut Vec<u8>, version: u64, is_owned: bool, bytes: &[u8]) {
        to.extend_from_slice(&version.to_be_bytes());
        to.push(u8::from(is_owned));
        to.extend_from_slice(bytes);
    }

    pub(crate) fn decode(body: &[u8]) -> Option<Self> {
        let mut reader = ByteReader::new(body);
        let (version, is_owned) = (reader.u64()?, reader.u8()? != 0);
        Some(Self { version, is_owned, bytes: reader.rest().to_vec() })
    }
}

/// Appends what proves that a key was not written: its version, or the read by which it was absent.
pub(crate) fn append_watch(to: &mut Vec<u8>, KeyWatch(watched): KeyWatch) {
    match watched {
        WatchedUnit::Live(version) => {
            super::request::append_reads(to, &[]);
            to.extend_from_slice(&version.0.to_be_bytes());
        }
        WatchedUnit::Gone(read) => super::request::append_reads(to, &[read]),
    }
}

pub(crate) fn decode_watch(body: &[u8]) -> Option<KeyWatch> {
    let mut reader = ByteReader::new(body);
    let watched = match super::request::reads(&mut reader)?[..] {
        [] => WatchedUnit::Live(KeyVersion(reader.u64()?)),
        [read] => WatchedUnit::Gone(read),
        _ => return None,
    };
    reader.is_empty().then_some(KeyWatch(watched))
}

pub(crate) fn append_scan(to: &mut Vec<u8>, cursor: ScanCursor, keys: &[Vec<u8>]) {
    to.extend_from_slice(&cursor.to_u64().to_be_bytes());
    keys.iter().for_each(|key| append_bytes(to, key));
}

/// Decodes the reply to a scan, and calls `each` with each key.
pub(crate) fn decode_scan(body: &[u8], mut each: impl FnMut(&[u8])) -> Option<ScanCursor> {
    let mut reader = ByteReader::new(body);
    let cursor = ScanCursor::from_u64(reader.u64()?);
    while !reader.is_empty() {
        each(take_bytes(&mut reader)?);
    }
    Some(cursor)
}

pub(crate) fn append_counts(to: &mut Vec<u8>, counts: &StoreCounts) {
    let StoreCounts { keys, memory_bytes, used_bytes, hits, misses, .. } = *counts;
    let StoreCounts { commits, conflicts, expired, evicted, sessions, expiring, .. } = *counts;
    let first = [keys, memory_bytes, used_bytes, hits, misses];
    for count in first.into_iter().chain([commits, conflicts, expired, evicted, sessions, expiring]) {
        to.extend_from_slice(&count.to_be_bytes());
    }
}

pub(crate) fn decode_counts(body: &[u8]) -> Option<StoreCounts> {
    let mut reader = ByteReader::new(body);
    let mut next = || reader.u64();
    Some(StoreCounts {
        keys: next()?,
        memory_bytes: next()?,
        used_bytes: next()?,
        hits: next()?,
        misses: next()?,
        commits: next()?,
        conflicts: next()?,
        expired: next()?,
        evicted: next()?,
        sessions: next()?,
        // A server of before does not tell it.
        expiring: next().unwrap_or(0),
    })
}

/// The statuses of errors that a client's caller tells apart; every other one is text.
const TOLD: u16 = 1;
const CONFLICT: u16 = 2;
const FULL: u16 = 3;
const NO_OBJECT: u16 = 4;
const KEYED: u16 = 5;
const TOO_SMALL: u16 = 6;
const KEY_TOO_LONG: u16 = 7;
const VALUE_TOO_LONG: u16 = 8;
const TOO_LARGE: u16 = 9;
const CONTENDED: u16 = 10;
const CALL_TOO_LONG: u16 = 11;
const NO_SESSION: u16 = 12;
const UNDECIDED: u16 = 13;
const CLOSED: u16 = 14;

/// Returns the status of an error, and its numbers.
pub(crate) fn error_fields(error: &StoreError) -> (u16, Vec<u8>) {
    let numbers = |all: &[u64]| all.iter().flat_map(|number| number.to_be_bytes()).collect();
    let at = |address: &crate::ObjectAddress| numbers(&[address.place, address.incarnation.into()]);
    match error {
        StoreError::Conflict => (CONFLICT, Vec::new()),
        StoreError::Full { needed_bytes, used_bytes, memory_bytes } => {
            (FULL, numbers(&[*needed_bytes, *used_bytes, *memory_bytes]))
        }
        StoreError::NoObject(address) => (NO_OBJECT, at(address)),
        StoreError::Keyed(address) => (KEYED, at(address)),
        StoreError::ObjectTooSmall { bytes, capacity } => {
            (TOO_SMALL, numbers(&[*bytes as u64, *capacity as u64]))
        }
        StoreError::KeyTooLong { bytes } => (KEY_TOO_LONG, numbers(&[*bytes as u64])),
        StoreError::ValueTooLong { bytes } => (VALUE_TOO_LONG, numbers(&[*bytes as u64])),
        StoreError::CallTooLong { bytes, limit } => (CALL_TOO_LONG, numbers(&[*bytes as u64, *limit as u64])),
        StoreError::TransactionTooLarge => (TOO_LARGE, Vec::new()),
        StoreError::Contended => (CONTENDED, Vec::new()),
        StoreError::NoSession => (NO_SESSION, Vec::new()),
        StoreError::Undecided => (UNDECIDED, Vec::new()),
        StoreError::Closed => (CLOSED, Vec::new()),
        other => (TOLD, other.to_string().into_bytes()),
    }
}

/// Returns the error of a reply.
pub(crate) fn decode_error(status: u16, body: &[u8]) -> StoreError {
    let mut reader = ByteReader::new(body);
    let mut number = || reader.u64().unwrap_or(0);
    match status {
        CONFLICT => StoreError::Conflict,
        FULL => StoreError::Full { needed_bytes: number(), used_bytes: number(), memory_bytes: number() },
        NO_OBJECT => StoreError::NoObject(ObjectAddress { place: number(), incarnation: number() as u16 }),
        KEYED => StoreError::Keyed(ObjectAddress { place: number(), incarnation: number() as u16 }),
        TOO_SMALL => StoreError::ObjectTooSmall { bytes: number() as usize, capacity: number() as usize },
        KEY_TOO_LONG => StoreError::KeyTooLong { bytes: number() as usize },
        VALUE_TOO_LONG => StoreError::ValueTooLong { bytes: number() as usize },
        CALL_TOO_LONG => StoreError::CallTooLong { bytes: number() as usize, limit: number() as usize },
        TOO_LARGE => StoreError::TransactionTooLarge,
        CONTENDED => StoreError::Contended,
        NO_SESSION => StoreError::NoSession,
        UNDECIDED => StoreError::Undecided,
        CLOSED => StoreError::Closed,
        _ => StoreError::Refused(caravan_segment::printable(body)),
    }
}
