//! What clients ask.

use caravan_fabric::byte_reader::ByteReader;

use super::{MalformedCall, append_bytes, take_bytes};
use crate::commit::{ObjectWrite, ReadRecord, UnitKind, WriteSet};
use crate::entry::{ObjectAddress, ScanCursor};
use crate::error::StoreError;
use crate::image::ObjectImage;
use crate::writes::KeyWrite;

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
}

impl RequestKind {
    const ALL: [Self; 14] = [
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
    ];

    fn from_number(number: u16) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| *kind as u16 == number)
    }
}

/// Which request of its session a write is, so that it is done once. It precedes the body, as two numbers of 64 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RequestNumber {
    /// From 1 on; 0 if the client has no session.
    pub(crate) request: u64,
    /// The client has the replies to all requests up to this one.
    pub(crate) acknowledged: u64,
}

impl RequestNumber {
    pub(crate) const BYTES: usize = 16;
    /// Of a write that is never repeated.
    pub(crate) const NONE: Self = Self { request: 0, acknowledged: 0 };

    pub(crate) fn append(self, to: &mut Vec<u8>) {
        to.extend_from_slice(&self.request.to_be_bytes());
        to.extend_from_slice(&self.acknowledged.to_be_bytes());
    }

    fn take(reader: &mut ByteReader<'_>) -> Option<Self> {
        Some(Self { request: reader.u64()?, acknowledged: reader.u64()? })
    }
}

/// A request, decoded.
#[derive(Debug)]
pub(crate) struct NumberedRequest<'a> {
    pub(crate) request: StoreRequest<'a>,
    /// [`RequestNumber::NONE`] for all but writes.
    pub(crate) number: RequestNumber,
}

/// What is asked.
#[derive(Debug)]
pub(crate) enum StoreRequest<'a> {
    /// key
    Get(&'a [u8]),
    /// place 64, incarnation 16
    Read(ObjectAddress),
    /// 0, or 1 and the expiry 64; key with its length; value
    Put { key: &'a [u8], value: &'a [u8], expires_at_ms: Option<u64> },
    /// key
    Delete(&'a [u8]),
    /// reads as in `Validate`; writes of keys; writes of objects
    Commit { reads: Vec<ReadRecord>, writes: WriteSet },
    /// count 32; for each: kind 8, place 64, version 64
    Validate(Vec<ReadRecord>),
    /// bytes 32; 0, or 1 and the address of the object to be near
    Alloc { bytes: u32, near: Option<ObjectAddress> },
    /// addresses that `Alloc` returned and no commit has used
    Release(Vec<ObjectAddress>),
    /// cursor 64, count 32
    Scan { cursor: ScanCursor, count: u32 },
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
}

/// Why a request is not served.
#[derive(Debug)]
pub(crate) enum RequestError {
    Malformed(MalformedCall),
    /// It is well-formed, and asks for what no store can do.
    Refused(StoreError),
}

impl From<StoreError> for RequestError {
    fn from(error: StoreError) -> Self {
        Self::Refused(error)
    }
}

impl<'a> NumberedRequest<'a> {
    pub(crate) fn decode(kind: u16, body: &'a [u8]) -> Result<Self, RequestError> {
        let malformed = |text| RequestError::Malformed(MalformedCall(text));
        let kind = RequestKind::from_number(kind).ok_or(malformed("a request has an unknown handler"))?;
        let mut reader = ByteReader::new(body);
        let is_write = matches!(kind, RequestKind::Put | RequestKind::Delete | RequestKind::Commit);
        let number = if is_write { RequestNumber::take(&mut reader) } else { Some(RequestNumber::NONE) };
        let number = number.ok_or(malformed("a request is cut short"))?;
        let request = StoreRequest::fields(kind, &mut reader)?.ok_or(malformed("a request is cut short"))?;
        if !reader.is_empty() {
            return Err(malformed("a request is longer than its fields"));
        }
        Ok(Self { request, number })
    }
}

impl<'a> StoreRequest<'a> {
    fn fields(kind: RequestKind, reader: &mut ByteReader<'a>) -> Result<Option<Self>, StoreError> {
        Ok(match kind {
            RequestKind::Get => Some(Self::Get(reader.rest())),
            RequestKind::Delete => Some(Self::Delete(reader.rest())),
            RequestKind::Read => address(reader).map(Self::Read),
            RequestKind::Put => put(reader),
            RequestKind::Commit => {
                let Some(reads) = reads(reader) else { return Ok(None) };
                writes(reader)?.map(|writes| Self::Commit { reads, writes })
            }
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
        })
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

fn reads(reader: &mut ByteReader<'_>) -> Option<Vec<ReadRecord>> {
    many(reader, |reader| {
        let kind = match reader.u8()? {
            0 => UnitKind::Object,
            1 => UnitKind::Bucket,
            _ => return None,
        };
        Some(ReadRecord { kind, place: reader.u64()?, version: reader.u64()? })
    })
}

/// Takes the writes of a commit.
fn writes(reader: &mut ByteReader<'_>) -> Result<Option<WriteSet>, StoreError> {
    let mut writes = WriteSet::default();
    let Some(keys) = reader.u32() else { return Ok(None) };
    for _ in 0..keys {
        let Some(key) = take_bytes(reader) else { return Ok(None) };
        writes.keys.insert(match optional(reader, put_value) {
            Some(Some((expires_at_ms, value))) => {
                KeyWrite::Put(ObjectImage::of_key(key, value, expires_at_ms)?)
            }
            Some(None) => {
                crate::image::check_key(key)?;
                KeyWrite::Delete(key.to_vec())
            }
            None => return Ok(None),
        });
    }
    let Some(objects) = reader.u32() else { return Ok(None) };
    for _ in 0..objects {
        let (Some(address), Some(kind)) = (address(reader), reader.u8()) else { return Ok(None) };
        let write = match (kind, if kind == FREE { Some(&[][..]) } else { take_bytes(reader) }) {
            (NEW, Some(bytes)) => ObjectWrite::New(ObjectImage::of_object(bytes)?),
            (REPLACE, Some(bytes)) => ObjectWrite::Replace(ObjectImage::of_object(bytes)?),
            (FREE, Some(_)) => ObjectWrite::Free,
            _ => return Ok(None),
        };
        writes.objects.insert(address, write);
    }
    Ok(Some(writes))
}

fn put_value<'a>(reader: &mut ByteReader<'a>) -> Option<(Option<u64>, &'a [u8])> {
    Some((optional(reader, ByteReader::u64)?, take_bytes(reader)?))
}

const NEW: u8 = 0;
const REPLACE: u8 = 1;
const FREE: u8 = 2;

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
