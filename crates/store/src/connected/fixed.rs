//! Fixed tables as a connected client reads them: mapped, by one-sided reads, or else by calls for their objects.

use std::ops::Range;
use std::time::Instant;

use super::pending::Pending;
use super::{ConnectedStore, body};
use crate::entry::ObjectAddress;
use crate::error::StoreError;
use crate::fixed::{FixedProbe, ObjectSource, part_of, wait_to_settle};
use crate::limits;

impl ConnectedStore {
    /// Returns the value of `key` in a fixed table: where memory is mapped, by plain loads; elsewhere by one-sided
    /// reads, nearly always one. `probe` keeps what it knows of the table, so it is worth keeping.
    ///
    /// ```no_run
    /// use caravan_store::{FixedProbe, FixedTable, ObjectAddress, Store};
    ///
    /// let store = Store::connect("accounts")?;
    /// # let (place, incarnation) = (0, 0);
    /// let table = FixedTable::open(&store, ObjectAddress::from_parts(place, incarnation))?;
    /// let mut probe = FixedProbe::new(&table);
    /// let amount = store.get_fixed(&mut probe, b"account1")?;
    /// # Ok::<(), caravan_store::StoreError>(())
    /// ```
    pub fn get_fixed(&self, probe: &mut FixedProbe, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        if self.mapped.is_none() {
            match probe.get(key, &mut |place, bytes| self.read_part(place, bytes)) {
                // A part that is not lent, a writer that is always there, a link that is lost: by calls.
                Err(StoreError::Contended | StoreError::Disconnected) => {}
                found => return found,
            }
        }
        let table = *probe.table();
        table.get(self, key)
    }

    /// Reads bytes of the store one-sided, each piece by one read. Fails with [`StoreError::Contended`] where that
    /// cannot be.
    fn read_part(&self, place: u64, bytes: &mut [u8]) -> Result<(), StoreError> {
        let pieces = bytes.chunks_mut(limits::ONE_SIDED_BYTES_MAX);
        for (place, piece) in (place..).step_by(limits::ONE_SIDED_BYTES_MAX).zip(pieces) {
            let call = self.shared.start_read(place, piece.len())?.ok_or(StoreError::Contended)?;
            let read = Pending::call(&self.shared, call, body).wait()?;
            piece.copy_from_slice(read.get(..piece.len()).ok_or(StoreError::Contended)?);
        }
        Ok(())
    }
}

impl ObjectSource for &ConnectedStore {
    fn part(
        &mut self,
        address: ObjectAddress,
        range: Range<usize>,
        to: &mut Vec<u8>,
    ) -> Result<bool, StoreError> {
        match &self.mapped {
            Some(reader) => (&mut &*reader).part(address, range, to),
            None => match self.repeated(|| self.found_object(address)) {
                Ok(found) => {
                    to.extend_from_slice(part_of(&found.bytes, range));
                    Ok(true)
                }
                Err(StoreError::NoObject(_)) => Ok(false),
                Err(error) => Err(error),
            },
        }
    }

    fn again(&mut self, attempt: u32, begin: Instant) -> Result<(), StoreError> {
        wait_to_settle(attempt, begin)
    }
}
