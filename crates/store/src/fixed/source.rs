//! What a fixed table is read from.

use std::ops::Range;
use std::time::Instant;

use crate::entry::ObjectAddress;
use crate::error::StoreError;
use crate::limits::{READ_ATTEMPTS, READ_WAIT};
use crate::owner::back_off;
use crate::reader::{ReadTransaction, Reader};
use crate::store::Store;
use crate::transaction::Transaction;
use crate::view::StoreView;

/// Where a [`FixedTable`](crate::FixedTable) reads from: `&Store`, `&Reader`, `&ConnectedStore`, `&mut Transaction` or `&mut
/// ReadTransaction`. Nothing else implements it.
pub trait ObjectSource {
    /// Appends the bytes `range` of the object at `address` to `to`, as far as there are any, and returns whether
    /// there is an object.
    #[doc(hidden)]
    fn part(
        &mut self,
        address: ObjectAddress,
        range: Range<usize>,
        to: &mut Vec<u8>,
    ) -> Result<bool, StoreError>;

    /// Called when what was read does not belong together: returns when it is time to read again, or an error if
    /// that cannot help or has taken too long. `begin` is when the first attempt failed.
    #[doc(hidden)]
    fn again(&mut self, attempt: u32, begin: Instant) -> Result<(), StoreError>;
}

impl ObjectSource for &Store {
    fn part(
        &mut self,
        address: ObjectAddress,
        range: Range<usize>,
        to: &mut Vec<u8>,
    ) -> Result<bool, StoreError> {
        part_of_view(&self.core().view, address, range, to)
    }

    fn again(&mut self, attempt: u32, begin: Instant) -> Result<(), StoreError> {
        wait_to_settle(attempt, begin)
    }
}

impl ObjectSource for &Reader {
    fn part(
        &mut self,
        address: ObjectAddress,
        range: Range<usize>,
        to: &mut Vec<u8>,
    ) -> Result<bool, StoreError> {
        part_of_view(self.view(), address, range, to)
    }

    fn again(&mut self, attempt: u32, begin: Instant) -> Result<(), StoreError> {
        wait_to_settle(attempt, begin)
    }
}

impl ObjectSource for Transaction<'_> {
    fn part(
        &mut self,
        address: ObjectAddress,
        range: Range<usize>,
        to: &mut Vec<u8>,
    ) -> Result<bool, StoreError> {
        Transaction::object_part(self, address, range, to)
    }

    fn again(&mut self, _: u32, _: Instant) -> Result<(), StoreError> {
        Err(damaged())
    }
}

impl ObjectSource for ReadTransaction<'_> {
    fn part(
        &mut self,
        address: ObjectAddress,
        range: Range<usize>,
        to: &mut Vec<u8>,
    ) -> Result<bool, StoreError> {
        ReadTransaction::object_part(self, address, range, to)
    }

    fn again(&mut self, _: u32, _: Instant) -> Result<(), StoreError> {
        Err(damaged())
    }
}

impl<S: ObjectSource> ObjectSource for &mut S {
    fn part(
        &mut self,
        address: ObjectAddress,
        range: Range<usize>,
        to: &mut Vec<u8>,
    ) -> Result<bool, StoreError> {
        (**self).part(address, range, to)
    }

    fn again(&mut self, attempt: u32, begin: Instant) -> Result<(), StoreError> {
        (**self).again(attempt, begin)
    }
}

/// What a transaction has read is of one moment, so it belongs together.
pub(super) fn damaged() -> StoreError {
    StoreError::Damaged("a fixed table leads to an object that is gone".to_owned())
}

/// Returns the bytes `range` of `bytes`, as far as there are any.
pub(crate) fn part_of(bytes: &[u8], range: Range<usize>) -> &[u8] {
    let range = crate::view::within(range, bytes.len());
    &bytes[range]
}

fn part_of_view(
    view: &StoreView,
    address: ObjectAddress,
    range: Range<usize>,
    to: &mut Vec<u8>,
) -> Result<bool, StoreError> {
    let old = to.len();
    let found = view.settle(|| {
        to.truncate(old);
        view.object_at(address, |payload| payload.copy_part(range.clone(), to))
    })?;
    Ok(found.is_some())
}

/// Waits until what was read may belong together.
pub(crate) fn wait_to_settle(attempt: u32, begin: Instant) -> Result<(), StoreError> {
    if attempt >= READ_ATTEMPTS && begin.elapsed() > READ_WAIT {
        return Err(StoreError::Contended);
    }
    back_off(attempt);
    Ok(())
}
