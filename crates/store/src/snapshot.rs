//! The form of a snapshot: what a store holds, as bytes for a file.
//!
//! | bytes | what |
//! |---|---|
//! | 16 | `caravan snapshot` |
//! | 8 | the version of the format |
//! | any number of chunks | 4 bytes length, 4 bytes kind, 8 bytes checksum, and as many bytes as the length says |
//!
//! A chunk is of records, or the last one of all, which has the number of records. Its checksum is the XXH3-64
//! of its position in the file, its length, its kind and its bytes, so a chunk that is changed, missing, twice
//! there or elsewhere is noticed. Records are read in order, and a later one of a key replaces an earlier one.
//! All numbers are little-endian.

use std::io::{self, Read, Write};

use crate::error::StoreError;
use crate::limits::{KEY_BYTES_MAX, VALUE_BYTES_MAX};

const MAGIC: [u8; 16] = *b"caravan snapshot";
const FORMAT: u64 = 1;
const FILE_HEAD_BYTES: u64 = 24;

/// Position, length and kind, as the checksum covers them. The position is not in the file.
const CHUNK_HEAD_BYTES: usize = 16;
/// A chunk is written when it has this many bytes.
const CHUNK_BYTES: usize = 256 << 10;
/// A chunk can be longer by one record.
const CHUNK_BYTES_MAX: usize = CHUNK_BYTES + 32 + KEY_BYTES_MAX + VALUE_BYTES_MAX;

const RECORDS: u32 = 1;
const END: u32 = 2;

const PUT: u8 = 1;
const PUT_UNTIL: u8 = 2;
const DELETE: u8 = 3;
const CLEAR: u8 = 4;

/// One change of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SnapshotRecord<'a> {
    Put { key: &'a [u8], value: &'a [u8], expires_at_ms: Option<u64> },
    Delete { key: &'a [u8] },
    Clear,
}

/// Writes a snapshot.
pub(crate) struct SnapshotWriter<W> {
    out: W,
    /// The chunk to be written: its head, and its bytes so far.
    chunk: Vec<u8>,
    position: u64,
    records: u64,
}

impl<W: Write> SnapshotWriter<W> {
    pub(crate) fn new(mut out: W) -> Result<Self, StoreError> {
        let head = [&MAGIC[..], &FORMAT.to_le_bytes()].concat();
        out.write_all(&head).map_err(StoreError::SnapshotWrite)?;
        Ok(Self { out, chunk: vec![0; CHUNK_HEAD_BYTES], position: FILE_HEAD_BYTES, records: 0 })
    }

    pub(crate) fn write(&mut self, record: SnapshotRecord<'_>) -> Result<(), StoreError> {
        self.records += 1;
        let chunk = &mut self.chunk;
        let mut add_key = |kind: u8, key: &[u8]| {
            chunk.push(kind);
            chunk.extend_from_slice(&(key.len() as u32).to_le_bytes());
            chunk.extend_from_slice(key);
        };
        match record {
            SnapshotRecord::Put { key, value, expires_at_ms } => {
                add_key(if expires_at_ms.is_some() { PUT_UNTIL } else { PUT }, key);
                chunk.extend(expires_at_ms.into_iter().flat_map(u64::to_le_bytes));
                chunk.extend_from_slice(&(value.len() as u32).to_le_bytes());
                chunk.extend_from_slice(value);
            }
            SnapshotRecord::Delete { key } => add_key(DELETE, key),
            SnapshotRecord::Clear => chunk.push(CLEAR),
        }
        if self.chunk.len() >= CHUNK_BYTES { self.end_chunk(RECORDS) } else { Ok(()) }
    }

    /// Writes the end, and returns the number of records and bytes.
    pub(crate) fn finish(mut self) -> Result<(u64, u64), StoreError> {
        if self.chunk.len() > CHUNK_HEAD_BYTES {
            self.end_chunk(RECORDS)?;
        }
        self.chunk.extend_from_slice(&self.records.to_le_bytes());
        self.end_chunk(END)?;
        self.out.flush().map_err(StoreError::SnapshotWrite)?;
        Ok((self.records, self.position))
    }

    fn end_chunk(&mut self, kind: u32) -> Result<(), StoreError> {
        let bytes = self.chunk.len() - CHUNK_HEAD_BYTES;
        let head = ChunkHead { position: self.position, bytes: bytes as u32, kind };
        self.chunk[..CHUNK_HEAD_BYTES].copy_from_slice(&head.to_bytes());
        let sum = twox_hash::XxHash3_64::oneshot(&self.chunk).to_le_bytes();
        let parts = [&self.chunk[8..CHUNK_HEAD_BYTES], &sum, &self.chunk[CHUNK_HEAD_BYTES..]];
        for part in parts {
            self.out.write_all(part).map_err(StoreError::SnapshotWrite)?;
        }
        self.position += (CHUNK_HEAD_BYTES + bytes) as u64;
        self.chunk.truncate(CHUNK_HEAD_BYTES);
        Ok(())
    }
}

/// What a checksum covers beside the bytes of its chunk.
#[derive(Clone, Copy, Debug)]
struct ChunkHead {
    position: u64,
    bytes: u32,
    kind: u32,
}

impl ChunkHead {
    fn to_bytes(self) -> [u8; CHUNK_HEAD_BYTES] {
        let mut bytes = [0; CHUNK_HEAD_BYTES];
        bytes[..8].copy_from_slice(&self.position.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.bytes.to_le_bytes());
        bytes[12..].copy_from_slice(&self.kind.to_le_bytes());
        bytes
    }
}

/// Reads a snapshot.
pub(crate) struct SnapshotReader<R> {
    input: R,
    /// The head and the bytes of the chunk that was read last.
    chunk: Vec<u8>,
    /// Where in `chunk` the next record is.
    next: usize,
    /// Where the last chunk begins, and where the next one does.
    chunk_position: u64,
    position: u64,
    records: u64,
}

impl<R: Read> SnapshotReader<R> {
    pub(crate) fn new(mut input: R) -> Result<Self, StoreError> {
        let mut head = Vec::new();
        input.by_ref().take(FILE_HEAD_BYTES).read_to_end(&mut head).map_err(StoreError::SnapshotRead)?;
        if !head.starts_with(&MAGIC) {
            return Err(StoreError::NotASnapshot);
        }
        match head[MAGIC.len()..].try_into().map(u64::from_le_bytes) {
            Ok(FORMAT) => {}
            Ok(format) => return Err(StoreError::SnapshotFormat { format, known: FORMAT }),
            Err(_) => return Err(damaged(MAGIC.len() as u64, "the file ends here")),
        }
        let (chunk_position, position, records) = (FILE_HEAD_BYTES, FILE_HEAD_BYTES, 0);
        Ok(Self { input, chunk: Vec::new(), next: 0, chunk_position, position, records })
    }

    /// Returns the next record, or `None` after the last one, where the file ends.
    pub(crate) fn next(&mut self) -> Result<Option<SnapshotRecord<'_>>, StoreError> {
        while self.next >= self.chunk.len() {
            if self.read_chunk()? == END {
                self.check_end()?;
                return Ok(None);
            }
        }
        self.records += 1;
        let mut rest = self.chunk.get(self.next..).unwrap_or_default();
        let all = rest.len();
        let record = take_record(&mut rest);
        self.next += all - rest.len();
        // The checksum was right, so whoever wrote the chunk wrote nonsense.
        record.map(Some).ok_or_else(|| damaged(self.chunk_position, "a record has no valid form"))
    }

    /// Returns the number of bytes read.
    pub(crate) fn bytes(&self) -> u64 {
        self.position
    }

    /// Reads a chunk whole, compares it with its checksum, and returns its kind.
    fn read_chunk(&mut self) -> Result<u32, StoreError> {
        let position = self.position;
        let mut head = [0; 16];
        self.fill(&mut head, position)?;
        let number = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let (bytes, kind) = (number(0), number(4));
        if bytes as usize > CHUNK_BYTES_MAX || ![RECORDS, END].contains(&kind) {
            return Err(damaged(position, "the head of a part has no valid form"));
        }
        let mut chunk = std::mem::take(&mut self.chunk);
        chunk.resize(CHUNK_HEAD_BYTES + bytes as usize, 0);
        chunk[..CHUNK_HEAD_BYTES].copy_from_slice(&ChunkHead { position, bytes, kind }.to_bytes());
        self.fill(&mut chunk[CHUNK_HEAD_BYTES..], position)?;
        if twox_hash::XxHash3_64::oneshot(&chunk).to_le_bytes() != head[8..] {
            return Err(damaged(position, &format!("the next {bytes} bytes do not have their checksum")));
        }
        (self.chunk, self.next, self.chunk_position) = (chunk, CHUNK_HEAD_BYTES, position);
        Ok(kind)
    }

    fn check_end(&mut self) -> Result<(), StoreError> {
        let records = self.chunk.get(CHUNK_HEAD_BYTES..).and_then(|bytes| bytes.try_into().ok());
        if records.map(u64::from_le_bytes) != Some(self.records) {
            return Err(damaged(self.chunk_position, "the number of records is another one than was read"));
        }
        match self.input.read(&mut [0]).map_err(StoreError::SnapshotRead)? {
            0 => Ok(()),
            _ => Err(damaged(self.position, "the snapshot ends here, and the file does not")),
        }
    }

    /// Reads exactly so many bytes of the chunk at a position.
    fn fill(&mut self, bytes: &mut [u8], chunk: u64) -> Result<(), StoreError> {
        self.input.read_exact(bytes).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => damaged(chunk, "the file ends in the part that begins here"),
            _ => StoreError::SnapshotRead(error),
        })?;
        self.position += bytes.len() as u64;
        Ok(())
    }
}

fn damaged(position: u64, what: &str) -> StoreError {
    StoreError::SnapshotDamaged { position, what: what.to_owned() }
}

fn take_record<'a>(rest: &mut &'a [u8]) -> Option<SnapshotRecord<'a>> {
    let (kind, after) = rest.split_first()?;
    *rest = after;
    if *kind == CLEAR {
        return Some(SnapshotRecord::Clear);
    }
    let key = take_bytes(rest)?;
    match *kind {
        PUT => Some(SnapshotRecord::Put { key, expires_at_ms: None, value: take_bytes(rest)? }),
        PUT_UNTIL => {
            let expires_at_ms = Some(u64::from_le_bytes(*take_array(rest)?));
            Some(SnapshotRecord::Put { key, expires_at_ms, value: take_bytes(rest)? })
        }
        DELETE => Some(SnapshotRecord::Delete { key }),
        _ => None,
    }
}

/// Takes a length, and as many bytes.
fn take_bytes<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let bytes = u32::from_le_bytes(*take_array(rest)?);
    let (taken, left) = rest.split_at_checked(bytes as usize)?;
    *rest = left;
    Some(taken)
}

fn take_array<'a, const N: usize>(rest: &mut &'a [u8]) -> Option<&'a [u8; N]> {
    let (taken, left) = rest.split_first_chunk()?;
    *rest = left;
    Some(taken)
}
