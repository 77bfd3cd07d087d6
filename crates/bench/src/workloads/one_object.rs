//! Transactions of one object: the read, modify and write of a small value.

use crate::error::Error;
use crate::process::failed;
use crate::store::pairs::{RandomKeys, VALUE_BYTES, key};
use crate::workloads::client::{KeyWrite, PlannedTransaction, WorkloadClient};

/// Returns the pairs with which a store is filled.
pub fn pairs(keys: u64) -> impl Iterator<Item = (Vec<u8>, Vec<u8>)> {
    (0..keys).map(|number| (key(number).to_vec(), vec![0; VALUE_BYTES]))
}

/// Sets a random key.
pub fn set(client: &mut dyn WorkloadClient, random: &mut RandomKeys) -> Result<(), Error> {
    client.put(&random.next(), &[0; VALUE_BYTES])
}

/// Adds 1 to the number with which the value of a random key begins.
pub fn update(client: &mut dyn WorkloadClient, random: &mut RandomKeys) -> Result<(), Error> {
    match client.run(&Addition([random.next().to_vec()]))? {
        1 => Ok(()),
        _ => Err(failed("workload", &"a key was not written")),
    }
}

struct Addition([Vec<u8>; 1]);

impl PlannedTransaction for Addition {
    fn reads(&self) -> &[Vec<u8>] {
        &self.0
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn decide(&self, values: &[Option<Vec<u8>>]) -> Result<Vec<KeyWrite>, Error> {
        let value = values.first().and_then(Option::as_ref).filter(|value| value.len() == VALUE_BYTES);
        let mut value =
            value.cloned().ok_or_else(|| failed("workload", &"a key had no value, or another one"))?;
        let number = value.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        value[..8].copy_from_slice(&(number + 1).to_le_bytes());
        Ok(vec![(self.0[0].clone(), Some(value))])
    }
}
