//! What a fixed table needs of a transaction beyond whole objects: parts of them, and runs.

use std::ops::Range;

use crate::commit::ObjectWrite;
use crate::entry::ObjectAddress;
use crate::error::StoreError;
use crate::image::ObjectImage;
use crate::layout::HEADER_BYTES;
use crate::limits::TRANSACTION_OPERATIONS_MAX;
use crate::transaction::Transaction;

impl Transaction<'_> {
    /// Appends the bytes `range` of the object at `address` to `to`, as far as there are any, and returns whether
    /// there is an object.
    pub(crate) fn object_part(
        &mut self,
        address: ObjectAddress,
        range: Range<usize>,
        to: &mut Vec<u8>,
    ) -> Result<bool, StoreError> {
        match self.writes.objects.get(&address) {
            Some(ObjectWrite::New(image) | ObjectWrite::Replace(image)) => {
                let payload = image.payload();
                let end = range.end.min(payload.len());
                to.extend_from_slice(payload.get(range.start..end).unwrap_or_default());
                Ok(true)
            }
            Some(ObjectWrite::Free) => Ok(false),
            None => {
                let read = self.snapshot.object_part(&self.core.view, address, range, to);
                Ok(self.noted(read)?.is_some())
            }
        }
    }

    /// Appends the bytes of the object at `address` to `to`, without a promise that they stay so: empty if the
    /// object is being written or is gone.
    pub(crate) fn peek(&self, address: ObjectAddress, to: &mut Vec<u8>) {
        match self.writes.objects.get(&address) {
            Some(ObjectWrite::New(image) | ObjectWrite::Replace(image)) => {
                to.extend_from_slice(image.payload())
            }
            Some(ObjectWrite::Free) => {}
            None => {
                let old = to.len();
                let found = self.core.view.object_at(address, |payload| payload.copy(to));
                if !matches!(found, Ok(Some(_))) {
                    to.truncate(old);
                }
            }
        }
    }

    /// Tells whether this transaction has written the object at `address`.
    pub(crate) fn has_written(&self, address: ObjectAddress) -> bool {
        self.writes.objects.contains_key(&address)
    }

    /// Allocates objects of equal sizes next to each other, and returns the address of the first. The others have
    /// its incarnation.
    pub(crate) fn alloc_run<'b>(
        &mut self,
        payloads: impl ExactSizeIterator<Item = &'b [u8]>,
    ) -> Result<ObjectAddress, StoreError> {
        let count = payloads.len();
        let mut payloads = payloads.peekable();
        let bytes = payloads.peek().map_or(0, |first| first.len());
        if self.writes.keys.len() + self.writes.objects.len() + count > TRANSACTION_OPERATIONS_MAX {
            return Err(StoreError::TransactionTooLarge);
        }
        let reserved = self.core.blocks.reserve_run(&self.core.view, bytes, count as u32);
        let first = self.noted(reserved)?;
        let stride = self.core.blocks.capacity(&self.core.view, first.place) as u64;
        for (step, payload) in payloads.enumerate() {
            let address = ObjectAddress { place: first.place + step as u64 * stride, ..first };
            self.reserved.push(address.place);
            self.writes.objects.insert(address, ObjectWrite::New(ObjectImage::of_object(payload)?));
        }
        Ok(first)
    }

    /// Returns the seed of the store's hashes.
    pub(crate) fn hash_seed(&self) -> u64 {
        self.core.view.hash_seed
    }

    /// Returns the error that there is no room for `payload` bytes.
    pub(crate) fn full(&self, payload: usize) -> StoreError {
        self.core.blocks.full((HEADER_BYTES + payload) as u64)
    }
}
