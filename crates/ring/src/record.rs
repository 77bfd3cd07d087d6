//! Records with their length in front, on a byte ring.
//!
//! A record is four bytes of length (little-endian) and that many bytes. It may be larger than
//! the ring: it then flows through in pieces, as the ring is a stream. Length 0 is a record too.

use crate::byte_ring::ByteConsumer;
use crate::memory::{Cursors, RingBytes};

/// The number of bytes of a record's length.
pub const LENGTH_BYTES: usize = 4;

/// A record is longer than its reader allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the peer announced a record of {length} bytes, where at most {maximum} are taken")]
pub struct TooLong {
    /// The length that the record claims.
    pub length: u64,
    /// The greatest length that the reader allows.
    pub maximum: u64,
}

/// Returns the length bytes of a record of `length` bytes.
#[inline]
pub fn prefix(length: u32) -> [u8; LENGTH_BYTES] {
    length.to_le_bytes()
}

/// Reads the lengths from a stream, in which a length can arrive in pieces.
#[derive(Debug)]
pub struct LengthReader {
    partial: [u8; LENGTH_BYTES],
    have: usize,
    maximum: u32,
}

impl LengthReader {
    /// Returns a reader of records of up to `maximum` bytes.
    pub fn new(maximum: u32) -> Self {
        Self { partial: [0; LENGTH_BYTES], have: 0, maximum }
    }

    /// Returns the length of the next record, once all four bytes of it are there.
    // Always inlined: it is on the path of every message, plain or sealed, and with two callers a mere
    // hint is not enough.
    #[inline(always)]
    pub fn next<C: Cursors, B: RingBytes>(
        &mut self,
        ring: &mut ByteConsumer<C, B>,
    ) -> Result<Option<u32>, TooLong> {
        self.have += ring.read(&mut self.partial[self.have..]);
        if self.have < LENGTH_BYTES {
            return Ok(None);
        }
        self.have = 0;
        let length = u32::from_le_bytes(self.partial);
        if length > self.maximum {
            return Err(TooLong { length: u64::from(length), maximum: u64::from(self.maximum) });
        }
        Ok(Some(length))
    }
}
