//! What commands read and write keys by: a transaction of one part that is served here, or of several parts, wherever these are.

use std::ops::Range;

use caravan_store::limits::CALL_VALUE_BYTES_MAX;
use caravan_store::{ClusterTransaction, EntryHead, StoreEntry, StoreError, Transaction};

/// The transaction of a command.
#[derive(Debug)]
pub(crate) enum KeyTransaction<'a, 's> {
    /// All keys are in one part that this server has.
    Here(&'a mut Transaction<'s>),
    /// The keys are in several parts, or elsewhere.
    Apart(&'a mut ClusterTransaction<'s>),
}

impl<'s> KeyTransaction<'_, 's> {
    /// Returns the same transaction for a command of it.
    pub(crate) fn again(&mut self) -> KeyTransaction<'_, 's> {
        match self {
            Self::Here(tx) => KeyTransaction::Here(tx),
            Self::Apart(tx) => KeyTransaction::Apart(tx),
        }
    }

    pub(crate) fn entry(&mut self, key: &[u8]) -> Result<Option<StoreEntry>, StoreError> {
        match self {
            Self::Here(tx) => tx.entry(key),
            Self::Apart(tx) => tx.entry(key),
        }
    }

    pub(crate) fn head(&mut self, key: &[u8]) -> Result<Option<EntryHead>, StoreError> {
        match self {
            Self::Here(tx) => tx.head(key),
            Self::Apart(tx) => tx.head(key),
        }
    }

    pub(crate) fn value_bytes(&mut self, key: &[u8]) -> Result<Option<usize>, StoreError> {
        match self {
            Self::Here(tx) => tx.value_bytes(key),
            Self::Apart(tx) => Ok(tx.get(key)?.map(|value| value.len())),
        }
    }

    /// Returns the bytes of a value in the range that `part` makes of its length, which lies within that.
    pub(crate) fn part(
        &mut self,
        key: &[u8],
        part: impl Fn(usize) -> Range<usize>,
    ) -> Result<Option<Vec<u8>>, StoreError> {
        match self {
            Self::Here(tx) => tx.part(key, part),
            Self::Apart(tx) => Ok(tx.get(key)?.map(|value| value[part(value.len())].to_vec())),
        }
    }

    /// Fails early if the store has no room for a value, or if none of that length can be sent. Whether another server has room is
    /// known at the commit.
    pub(crate) fn require_room(&mut self, bytes: usize) -> Result<(), StoreError> {
        match self {
            Self::Here(tx) => tx.require_room(bytes),
            Self::Apart(_) if bytes > CALL_VALUE_BYTES_MAX => {
                Err(StoreError::CallTooLong { bytes, limit: CALL_VALUE_BYTES_MAX })
            }
            Self::Apart(_) => Ok(()),
        }
    }

    pub(crate) fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), StoreError> {
        self.put_until(key, value, None)
    }

    pub(crate) fn put_until(
        &mut self,
        key: &[u8],
        value: &[u8],
        expires_at_ms: Option<u64>,
    ) -> Result<(), StoreError> {
        match self {
            Self::Here(tx) => tx.put_until(key, value, expires_at_ms),
            Self::Apart(tx) => tx.put_until(key, value, expires_at_ms),
        }
    }

    pub(crate) fn delete(&mut self, key: &[u8]) -> Result<bool, StoreError> {
        match self {
            Self::Here(tx) => tx.delete(key),
            Self::Apart(tx) => tx.delete(key),
        }
    }
}
