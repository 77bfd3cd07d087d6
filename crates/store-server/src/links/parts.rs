//! The parts of a store that clients are lent which map nothing: made once, for all clients.

use std::sync::{Mutex, PoisonError};

use caravan_fabric::{Error, Link, Region, RegionAccess, RegionToken};
use caravan_store::calls::RegionLender;
use caravan_store::{Store, StoreError};

use crate::limits::{PART_BYTES_MIN, PART_SHARE};

/// All parts, each with its place. They follow on one another from place 0.
#[derive(Debug, Default)]
pub(crate) struct StoreParts {
    parts: Mutex<Vec<(u64, Region)>>,
}

impl StoreParts {
    /// Returns the parts from number `known` on, with what the store has grown by, if that is enough for a part.
    fn from(&self, known: usize, store: &Store) -> Result<Vec<(u64, Region)>, StoreError> {
        let mut parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
        let end = parts.last().map_or(0, |(place, region)| place + region.bytes());
        let least = if parts.is_empty() { 0 } else { PART_BYTES_MIN.max(end / PART_SHARE) };
        if let Some(region) = store.part_from(end)?.filter(|region| region.bytes() >= least) {
            parts.push((end, region));
        }
        Ok(parts.get(known..).unwrap_or_default().to_vec())
    }
}

/// Lends parts over a link.
pub(crate) struct LinkLender<'l> {
    pub(crate) link: &'l mut Link,
    pub(crate) parts: &'l StoreParts,
    pub(crate) store: &'l Store,
}

impl RegionLender for LinkLender<'_> {
    fn lend(&mut self, known: u32) -> Result<Vec<(u64, RegionToken)>, Error> {
        let parts = self.parts.from(known as usize, self.store);
        let mut lent = Vec::new();
        // Without a further part the client asks by calls.
        for (place, region) in parts.unwrap_or_default() {
            match self.link.lend(&region, RegionAccess::Read) {
                Ok(token) => lent.push((place, token)),
                // The client asks again for the rest.
                Err(Error::Full(_)) => break,
                Err(error) => return Err(error),
            }
        }
        Ok(lent)
    }
}
