//! Fixed tables as a connected client uses them: it reads them mapped, by one-sided reads, or else by calls for their
//! objects, and has the server write them.

use std::ops::Range;
use std::time::Instant;

use super::pending::Pending;
use super::{ConnectedStore, body, existed};
use crate::calls::{RequestKind, append_address, append_bytes, decode_address};
use crate::entry::ObjectAddress;
use crate::error::StoreError;
use crate::fixed::{FixedProbe, FixedTable, ObjectSource, part_of, wait_to_settle};
use crate::limits;

impl ConnectedStore {
    /// Makes an empty table of keys of `key_bytes` bytes and values of `value_bytes` bytes, as
    /// [`FixedTable::create`] does.
    ///
    /// ```no_run
    /// use caravan_store::{FixedProbe, Store};
    ///
    /// let store = Store::connect("accounts")?;
    /// let table = store.create_fixed(8, 4)?;
    /// store.put_fixed(&table, b"account1", &100_u32.to_ne_bytes())?;
    /// let amount = store.get_fixed(&mut FixedProbe::new(&table), b"account1")?;
    /// assert_eq!(amount, Some(100_u32.to_ne_bytes().to_vec()));
    /// # Ok::<(), caravan_store::StoreError>(())
    /// ```
    pub fn create_fixed(&self, key_bytes: usize, value_bytes: usize) -> Result<FixedTable, StoreError> {
        FixedTable::check_sizes(key_bytes, value_bytes)?;
        let append = |to: &mut Vec<u8>| {
            [key_bytes, value_bytes].iter().for_each(|bytes| to.extend((*bytes as u32).to_be_bytes()));
        };
        let answer = self.call_once(RequestKind::CreateFixed, append, body).wait()?;
        let address = decode_address(&answer).ok_or(StoreError::Protocol("an address is malformed"))?;
        FixedTable::open(self, address)
    }

    /// Sets the value of `key` in a fixed table, as [`FixedTable::put`] does.
    pub fn put_fixed(&self, table: &FixedTable, key: &[u8], value: &[u8]) -> Result<(), StoreError> {
        self.start_put_fixed(table, key, value).wait()
    }

    /// Starts a [`put_fixed`](Self::put_fixed).
    pub fn start_put_fixed(&self, table: &FixedTable, key: &[u8], value: &[u8]) -> Pending<()> {
        if let Err(error) = table.check(key, Some(value)) {
            return Pending::ready(Err(error));
        }
        let append = |to: &mut Vec<u8>| {
            append_address(to, table.address());
            append_bytes(to, key);
            to.extend_from_slice(value);
        };
        self.call_once(RequestKind::PutFixed, append, |outcome| body(outcome).map(drop))
    }

    /// Deletes `key` from a fixed table, and returns whether it existed.
    pub fn delete_fixed(&self, table: &FixedTable, key: &[u8]) -> Result<bool, StoreError> {
        self.start_delete_fixed(table, key).wait()
    }

    /// Starts a [`delete_fixed`](Self::delete_fixed).
    pub fn start_delete_fixed(&self, table: &FixedTable, key: &[u8]) -> Pending<bool> {
        if let Err(error) = table.check(key, None) {
            return Pending::ready(Err(error));
        }
        let append = |to: &mut Vec<u8>| {
            append_address(to, table.address());
            to.extend_from_slice(key);
        };
        self.call_once(RequestKind::DeleteFixed, append, existed)
    }

    /// Frees a fixed table with all that is in it, as [`FixedTable::free`] does.
    pub fn free_fixed(&self, table: FixedTable) -> Result<(), StoreError> {
        let append = |to: &mut Vec<u8>| append_address(to, table.address());
        self.call_once(RequestKind::FreeFixed, append, body).wait().map(drop)
    }

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
        if self.mapped().read(|_| Ok(())).is_none() {
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
        let old = to.len();
        let read = self.mapped().read(|mut reader| (&mut reader).part(address, range.clone(), to));
        if read.is_none() {
            to.truncate(old);
        }
        match read {
            Some(found) => found,
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
