//! Calls: what a connected client asks of a server over a link, as bytes. No socket, no clock.
//!
//! | bytes of a record | contents |
//! |---|---|
//! | 0 .. 4 | the number of bytes of the body |
//! | 4 .. 8 | call: the client's number for it; the reply has the same one |
//! | 8 .. 10 | handler: what is asked; in a reply the status, 0 for success |
//! | 10 .. 12 | flags: 0 |
//! | 12 .. | body |
//!
//! Integers are big-endian. Replies come in any order.

mod reply;
mod request;
mod service;
mod sessions;

use caravan_fabric::byte_reader::ByteReader;

use crate::limits;

pub(crate) use reply::{
    FoundKey, FoundObject, ShardHint, decode_counts, decode_error, decode_found_keys, decode_scan,
    decode_watch,
};
pub(crate) use request::{
    CommitRequest, NUMBER_BYTES, RequestKind, append_address, append_alloc, append_commit, append_put,
    append_reads, decode_address, decode_commit,
};
pub use service::{CALL_NAMES, CallCounts, CallService, RegionLender};
pub use sessions::ClientSessions;

/// The bytes of a record before its body.
pub(crate) const RECORD_HEAD_BYTES: usize = 12;

/// The status of a reply that is no error.
pub(crate) const DONE: u16 = 0;

/// The peer sent bytes that are no record, or no body of its kind: the link is useless from there on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct MalformedCall(pub(crate) &'static str);

/// A record as it was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CallRecord<'a> {
    pub(crate) call: u32,
    /// The handler, or the status.
    pub(crate) kind: u16,
    pub(crate) body: &'a [u8],
}

impl<'a> CallRecord<'a> {
    /// Takes the first record of `input`, and returns it with its number of bytes; `None` if bytes are missing.
    pub(crate) fn split(input: &'a [u8]) -> Result<Option<(Self, usize)>, MalformedCall> {
        let mut reader = ByteReader::new(input);
        let (Some(bytes), Some(call), Some(kind), Some(flags)) =
            (reader.u32(), reader.u32(), reader.u16(), reader.u16())
        else {
            return Ok(None);
        };
        let bytes = bytes as usize;
        if bytes > limits::CALL_BYTES_MAX {
            return Err(MalformedCall("a record is longer than 16 MiB"));
        }
        if flags != 0 {
            return Err(MalformedCall("a record has flags of another version"));
        }
        Ok(reader.bytes(bytes).map(|body| (Self { call, kind, body }, RECORD_HEAD_BYTES + bytes)))
    }
}

/// Appends a record, whose body `body` appends.
pub(crate) fn append_record(to: &mut Vec<u8>, call: u32, kind: u16, body: impl FnOnce(&mut Vec<u8>)) {
    let start = to.len();
    to.extend_from_slice(&[0; 4]);
    to.extend_from_slice(&call.to_be_bytes());
    to.extend_from_slice(&kind.to_be_bytes());
    to.extend_from_slice(&[0; 2]);
    body(to);
    let bytes = (to.len() - start - RECORD_HEAD_BYTES) as u32;
    to[start..start + 4].copy_from_slice(&bytes.to_be_bytes());
}

/// Appends bytes with their length in front, in 32 bits.
pub(crate) fn append_bytes(to: &mut Vec<u8>, bytes: &[u8]) {
    to.extend_from_slice(&(bytes.len() as u32).to_be_bytes());
    to.extend_from_slice(bytes);
}

/// Takes what [`append_bytes`] appended.
fn take_bytes<'a>(reader: &mut ByteReader<'a>) -> Option<&'a [u8]> {
    let length = reader.u32()?;
    reader.bytes(length as usize)
}
