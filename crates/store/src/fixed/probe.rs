//! Lookups in a fixed table by plain bytes of the region, as a one-sided read over a network returns them.

use super::form::{BUCKET_SLOTS, CHAIN_OBJECT_SLOTS, FixedHead, FixedShard, HEAD_BYTES};
use super::{Attempt, FixedTable, find};
use crate::entry::ObjectAddress;
use crate::error::StoreError;
use crate::image::checksum;
use crate::layout::{HEADER_BYTES, ObjectShape, version};
use crate::limits::READ_ATTEMPTS;
use crate::protocol::Unsettled;

/// Looks keys up in a fixed table without the store's memory mapped: by reads of any bytes of its region, which
/// may be torn. It keeps the directory, so that a lookup is one read of two buckets, seldom one more for a chain,
/// and reads the directory again when a shard has been split.
///
/// `read` fills its second argument with the bytes of the region from a place on; each call counts as one read.
///
/// ```
/// use std::os::unix::fs::FileExt;
/// use caravan_store::{FixedProbe, FixedTable, Store, StoreError, StoreOptions};
///
/// let store = Store::embedded(StoreOptions::new(16 << 20))?;
/// let table = store.transaction(|tx| FixedTable::create(tx, 2, 3))?;
/// store.transaction(|tx| table.put(tx, b"ab", b"123"))?;
/// let file = std::fs::File::from(store.reader_descriptor()?);
/// let mut read = |place, bytes: &mut [u8]| file.read_exact_at(bytes, place).map_err(|_| StoreError::Contended);
/// let mut probe = FixedProbe::new(&table);
/// assert_eq!(probe.get(b"ab", &mut read)?.as_deref(), Some(&b"123"[..]));
/// # Ok::<(), StoreError>(())
/// ```
#[derive(Clone, Debug)]
pub struct FixedProbe {
    table: FixedTable,
    /// The head and the directory, once they have been read.
    shards: Option<(FixedHead, Vec<u8>)>,
}

impl FixedProbe {
    /// Returns a probe for a table. It reads nothing yet.
    pub fn new(table: &FixedTable) -> Self {
        Self { table: *table, shards: None }
    }

    pub(crate) fn table(&self) -> &FixedTable {
        &self.table
    }

    /// Returns the value of `key`. Fails with [`StoreError::Contended`] if what it read was being changed eight
    /// times in turn, which says nothing about the key, and with any error that `read` returns.
    pub fn get<E: From<StoreError>>(
        &mut self,
        key: &[u8],
        read: &mut impl FnMut(u64, &mut [u8]) -> Result<(), E>,
    ) -> Result<Option<Vec<u8>>, E> {
        self.table.form.check_key(key)?;
        for _ in 0..READ_ATTEMPTS {
            if let Ok(found) = self.attempt(key, read)? {
                return Ok(found);
            }
            // Most likely a writer was at work; but maybe the shard has been split.
            self.shards = None;
        }
        Err(StoreError::Contended.into())
    }

    fn attempt<E: From<StoreError>>(
        &mut self,
        key: &[u8],
        read: &mut impl FnMut(u64, &mut [u8]) -> Result<(), E>,
    ) -> Attempt<Option<Vec<u8>>, E> {
        if self.shards.is_none() {
            self.shards = self.directory(read)?.ok();
        }
        let Some((head, directory)) = &self.shards else { return Ok(Err(Unsettled)) };
        let hash = head.hash(key);
        let word = directory.get(8 * head.entry(hash) as usize..).and_then(<[u8]>::first_chunk);
        let Some(word) = word else { return Ok(Err(Unsettled)) };
        let shard = FixedShard::from_word(u64::from_ne_bytes(*word));
        let payload = head.form.bucket_bytes(BUCKET_SLOTS);
        let address = head.bucket(shard, head.home(hash));
        let mut bytes = vec![0; head.stride as usize + HEADER_BYTES + payload];
        read(address.place, &mut bytes)?;
        let (first, second) = bytes.split_at(head.stride as usize);
        let [Ok(first), Ok(second)] =
            [first, second].map(|bytes| object_in(bytes, address.incarnation, payload))
        else {
            return Ok(Err(Unsettled));
        };
        let payload = head.form.bucket_bytes(CHAIN_OBJECT_SLOTS);
        find(head, hash, key, &[first, second].concat(), |at, to| object_at(at, payload, to, read))
    }

    /// Reads the head and the directory.
    fn directory<E: From<StoreError>>(
        &self,
        read: &mut impl FnMut(u64, &mut [u8]) -> Result<(), E>,
    ) -> Attempt<(FixedHead, Vec<u8>), E> {
        let mut bytes = Vec::new();
        if !object_at(self.table.address(), HEAD_BYTES, &mut bytes, read)? {
            return Ok(Err(Unsettled));
        }
        let head = FixedHead::parse(&bytes).filter(|head| head.form == self.table.form);
        let head = head.ok_or(StoreError::NotAFixedTable(self.table.address()))?;
        let mut directory = Vec::new();
        let is_there = object_at(head.directory, 8 << head.depth, &mut directory, read)?;
        Ok(is_there.then_some((head, directory)).ok_or(Unsettled))
    }
}

/// Reads an object with a payload of `size` bytes; returns whether it was there and whole.
fn object_at<E>(
    address: ObjectAddress,
    size: usize,
    to: &mut Vec<u8>,
    read: &mut impl FnMut(u64, &mut [u8]) -> Result<(), E>,
) -> Result<bool, E> {
    let mut bytes = vec![0; HEADER_BYTES + size];
    read(address.place, &mut bytes)?;
    let payload = object_in(&bytes, address.incarnation, size);
    to.extend_from_slice(payload.unwrap_or_default());
    Ok(payload.is_ok())
}

/// Returns the payload of `size` bytes of the object with which `bytes` begin, if that is unlocked, whole, and has
/// this incarnation.
fn object_in(bytes: &[u8], incarnation: u16, size: usize) -> Result<&[u8], Unsettled> {
    let word = |index: usize| {
        bytes.get(8 * index..).and_then(<[u8]>::first_chunk).map_or(0, |word| u64::from_ne_bytes(*word))
    };
    let (stamp, shape) = (word(0), ObjectShape::from_word(word(1)));
    let payload = bytes.get(HEADER_BYTES..HEADER_BYTES + size).ok_or(Unsettled)?;
    let is_here = stamp & version::LOCKED == 0
        && version::is_allocated(stamp)
        && shape.incarnation == incarnation
        && shape.size as usize == size;
    if is_here && checksum(stamp, shape, payload) == word(2) { Ok(payload) } else { Err(Unsettled) }
}
