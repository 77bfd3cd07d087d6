//! An object as bytes in private memory, from which it is written.

use std::sync::atomic::AtomicU64;

use crate::bytes;
use crate::error::StoreError;
use crate::layout::{HEADER_BYTES, HEADER_WORDS, LONG_KEY, ObjectShape};
use crate::limits::{KEY_BYTES_MAX, OBJECT_BYTES_MAX, VALUE_BYTES_MAX};
use crate::protocol::UnitWords;
use crate::table::CHAIN_PAYLOAD;

/// The bytes before the payload: version and shape, which the checksum covers, too.
const HEAD: usize = 16;

/// The payload of an object, with room for what else its checksum covers.
#[derive(Clone, Debug)]
pub(crate) struct ObjectImage {
    bytes: Vec<u8>,
    key: u8,
    flags: u8,
    /// Of a stamped object.
    checksum: u64,
}

impl ObjectImage {
    /// Returns the image of a key and its value, which is not long.
    pub(crate) fn of_key(key: &[u8], value: &[u8], expires_at_ms: Option<u64>) -> Result<Self, StoreError> {
        check_object(value.len())?;
        Self::of_sent_key(key, value, expires_at_ms)
    }

    /// Returns the same of a value of any length, which a client sends to a server and nobody writes as one object.
    pub(crate) fn of_sent_key(
        key: &[u8],
        value: &[u8],
        expires_at_ms: Option<u64>,
    ) -> Result<Self, StoreError> {
        Self::with_key(key, value, expires_at_ms, ObjectShape::KEYED)
    }

    /// Returns the image of a key and the list of its value's sections.
    pub(crate) fn of_long_value(
        key: &[u8],
        sections: &[u8],
        expires_at_ms: Option<u64>,
    ) -> Result<Self, StoreError> {
        Self::with_key(key, sections, expires_at_ms, ObjectShape::KEYED | ObjectShape::LONG_VALUE)
    }

    /// Returns the image of a section of the value of a key.
    pub(crate) fn of_section(key: &[u8], part: &[u8]) -> Result<Self, StoreError> {
        Self::with_key(key, part, None, ObjectShape::SECTION)
    }

    fn with_key(
        key: &[u8],
        value: &[u8],
        expires_at_ms: Option<u64>,
        mut flags: u8,
    ) -> Result<Self, StoreError> {
        check_key(key)?;
        let mut bytes = Vec::with_capacity(HEAD + 16 + key.len() + value.len());
        bytes.resize(HEAD, 0);
        if let Some(at) = expires_at_ms {
            flags |= ObjectShape::EXPIRES;
            bytes.extend_from_slice(&at.to_ne_bytes());
        }
        if key.len() >= usize::from(LONG_KEY) {
            bytes.extend_from_slice(&(key.len() as u64).to_ne_bytes());
        }
        bytes.extend_from_slice(key);
        bytes.extend_from_slice(value);
        Ok(Self { bytes, key: key.len().min(usize::from(LONG_KEY)) as u8, flags, checksum: 0 })
    }

    /// Returns the image of an object without a key.
    pub(crate) fn of_object(payload: &[u8]) -> Result<Self, StoreError> {
        check_object(payload.len())?;
        Ok(Self { bytes: [&[0; HEAD], payload].concat(), key: 0, flags: 0, checksum: 0 })
    }

    /// Returns the image of a session.
    pub(crate) fn of_session(payload: &[u8]) -> Self {
        Self { bytes: [&[0; HEAD], payload].concat(), key: 0, flags: ObjectShape::SESSION, checksum: 0 }
    }

    /// Returns the image of a branch or a decision.
    pub(crate) fn of_ledger(payload: &[u8]) -> Self {
        Self { bytes: [&[0; HEAD], payload].concat(), key: 0, flags: ObjectShape::LEDGER, checksum: 0 }
    }

    /// Returns the image of an empty bucket of a chain, whose next one is at `next`.
    pub(crate) fn of_chain_bucket(next: u64) -> Self {
        let mut bytes = vec![0; HEAD + CHAIN_PAYLOAD];
        bytes[HEAD..HEAD + 8].copy_from_slice(&(next >> 3).to_ne_bytes());
        Self { bytes, key: 0, flags: ObjectShape::CHAIN, checksum: 0 }
    }

    /// Returns the bytes of the payload.
    pub(crate) fn payload(&self) -> &[u8] {
        &self.bytes[HEAD..]
    }

    /// Returns the key; it is empty for an object without one.
    pub(crate) fn key(&self) -> &[u8] {
        let payload = self.payload();
        let payload = &payload[if self.flags & ObjectShape::EXPIRES != 0 { 8 } else { 0 }..];
        match payload.split_first_chunk::<8>() {
            Some((bytes, rest)) if self.key == LONG_KEY => &rest[..u64::from_ne_bytes(*bytes) as usize],
            _ => &payload[..usize::from(self.key)],
        }
    }

    /// Returns the bytes of the value, after a key of `key_bytes` bytes.
    pub(crate) fn value(&self, key_bytes: usize) -> &[u8] {
        let long = if self.key == LONG_KEY { 8 } else { 0 };
        let expiry = if self.flags & ObjectShape::EXPIRES != 0 { 8 } else { 0 };
        &self.payload()[expiry + long + key_bytes..]
    }

    /// Tells whether the value is the list of its sections.
    pub(crate) fn is_long_value(&self) -> bool {
        self.flags & ObjectShape::LONG_VALUE != 0
    }

    /// Returns when the key expires.
    pub(crate) fn expires_at_ms(&self) -> Option<u64> {
        let at = self.payload().first_chunk::<8>().filter(|_| self.flags & ObjectShape::EXPIRES != 0);
        at.map(|at| u64::from_ne_bytes(*at))
    }

    /// Returns the number of bytes of the object, header included.
    pub(crate) fn object_bytes(&self) -> usize {
        HEADER_BYTES + self.payload().len()
    }

    /// Prepares the words of an object that will have this version.
    pub(crate) fn stamp(&mut self, version: u64, incarnation: u16) {
        let size = self.payload().len() as u32;
        let shape = ObjectShape { incarnation, key: self.key, flags: self.flags, size }.to_word();
        self.bytes[..8].copy_from_slice(&version.to_ne_bytes());
        self.bytes[8..HEAD].copy_from_slice(&shape.to_ne_bytes());
        self.checksum = twox_hash::XxHash3_64::oneshot(&self.bytes);
    }

    fn shape(&self) -> u64 {
        self.bytes[8..].first_chunk().map_or(0, |shape| u64::from_ne_bytes(*shape))
    }

    /// Returns the number of words of the object.
    pub(crate) fn words(&self) -> usize {
        HEADER_WORDS + self.payload().len().div_ceil(8)
    }

    /// Stores all but the version of a stamped object into a locked one that is large enough.
    pub(crate) fn store(&self, unit: &[AtomicU64]) {
        unit.store(1, self.shape());
        unit.store(2, self.checksum);
        bytes::copy_in(&unit[HEADER_WORDS..], self.payload());
    }

    /// Appends all but the version of a stamped object.
    #[inline(always)]
    pub(crate) fn append_to(&self, to: &mut Vec<u8>) {
        to.extend_from_slice(&self.bytes[8..HEAD]);
        to.extend_from_slice(&self.checksum.to_ne_bytes());
        to.extend_from_slice(self.payload());
    }
}

/// Returns the checksum of an object: XXH3-64 of its version without the lock, its shape and its payload.
pub(crate) fn checksum(version: u64, shape: ObjectShape, payload: &[u8]) -> u64 {
    let head = [version.to_ne_bytes(), shape.to_word().to_ne_bytes()].concat();
    twox_hash::XxHash3_64::oneshot(&[&head, payload].concat())
}

pub(crate) fn check_key(key: &[u8]) -> Result<(), StoreError> {
    if key.len() > KEY_BYTES_MAX {
        return Err(StoreError::KeyTooLong { bytes: key.len() });
    }
    Ok(())
}

/// Checks the number of bytes of an object.
pub(crate) fn check_object(bytes: usize) -> Result<(), StoreError> {
    if bytes > OBJECT_BYTES_MAX { Err(StoreError::ObjectTooLong { bytes }) } else { Ok(()) }
}

pub(crate) fn check_value(value: &[u8]) -> Result<(), StoreError> {
    let bytes = value.len();
    if bytes > VALUE_BYTES_MAX { Err(StoreError::ValueTooLong { bytes }) } else { Ok(()) }
}
