//! The extents of a store that clients are lent which map nothing: made once, for all clients.

use std::sync::{Mutex, PoisonError};

use caravan_fabric::{Error, Link, Region, RegionAccess, RegionToken};
use caravan_store::calls::RegionLender;
use caravan_store::{Store, StoreError};

use crate::limits::{EXTENT_BYTES_MIN, EXTENT_SHARE};
use crate::parts::ServedPart;

/// All extents, each with its place. They follow on one another from place 0.
#[derive(Debug, Default)]
pub(crate) struct StoreExtents {
    extents: Mutex<Vec<(u64, Region)>>,
}

impl StoreExtents {
    /// Returns the extents from number `known` on, with what the store has grown by, if that is enough for an extent.
    fn from(&self, known: usize, store: &Store) -> Result<Vec<(u64, Region)>, StoreError> {
        let mut extents = self.extents.lock().unwrap_or_else(PoisonError::into_inner);
        let end = extents.last().map_or(0, |(place, region)| place + region.bytes());
        let least = if extents.is_empty() { 0 } else { EXTENT_BYTES_MIN.max(end / EXTENT_SHARE) };
        if let Some(region) = store.extent_from(end)?.filter(|region| region.bytes() >= least) {
            extents.push((end, region));
        }
        Ok(extents.get(known..).unwrap_or_default().to_vec())
    }
}

/// Lends extents over a link.
pub(crate) struct LinkLender<'l> {
    pub(crate) link: &'l mut Link,
    pub(crate) part: &'l ServedPart,
}

impl RegionLender for LinkLender<'_> {
    fn lend(&mut self, known: u32) -> Result<Vec<(u64, RegionToken)>, Error> {
        let extents = self.part.extents.from(known as usize, &self.part.store);
        let mut lent = Vec::new();
        // Without a further extent the client asks by calls.
        for (place, region) in extents.unwrap_or_default() {
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
