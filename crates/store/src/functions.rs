//! Functions that a server runs for its clients, where the data are: one call in the place of a round trip for each read.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use crate::error::StoreError;
use crate::transaction::Transaction;

type ReadFunction = dyn Fn(&mut Transaction<'_>, &[u8]) -> Result<Vec<u8>, StoreError> + Send + Sync;
type WriteFunction = dyn Fn(&mut Transaction<'_>, &[u8]) -> Result<u64, StoreError> + Send + Sync;

/// The functions of a server, by numbers that it agrees on with its clients. Each call is one transaction of the part of the store
/// that the client is connected to, on a thread that serves other clients, too: so a function takes no longer than they should wait.
///
/// A function gets bytes of its client, which it must not believe, and runs again if others interfere, so it should have no other effects.
/// [`ConnectedStore::ask`](crate::ConnectedStore::ask) and [`run`](crate::ConnectedStore::run) call them.
///
/// ```
/// use caravan_store::StoreFunctions;
///
/// // Adds up the values of the keys that the client names, each one byte long.
/// let functions = StoreFunctions::new()
///     .read(1, |tx, keys| {
///         let mut sum = 0_u64;
///         for key in keys.chunks(1) {
///             sum += tx.get(key)?.map_or(0, |value| u64::from(value[0]));
///         }
///         Ok(sum.to_be_bytes().to_vec())
///     })
///     .write(2, |tx, key| {
///         let count = tx.get(key)?.map_or(0, |value| value[0]).wrapping_add(1);
///         tx.put(key, &[count])?;
///         Ok(count.into())
///     });
/// # drop(functions);
/// ```
#[derive(Clone, Default)]
pub struct StoreFunctions {
    reads: BTreeMap<u16, Arc<ReadFunction>>,
    writes: BTreeMap<u16, Arc<WriteFunction>>,
}

impl StoreFunctions {
    /// Returns no functions.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a function that only reads, with any answer. A client that loses its connection calls it again.
    pub fn read(
        mut self,
        number: u16,
        function: impl Fn(&mut Transaction<'_>, &[u8]) -> Result<Vec<u8>, StoreError> + Send + Sync + 'static,
    ) -> Self {
        self.reads.insert(number, Arc::new(function));
        self
    }

    /// Adds a function that may write. Its answer is one number, which the store keeps as the reply: so each call is done once,
    /// whatever happens to connections and servers.
    pub fn write(
        mut self,
        number: u16,
        function: impl Fn(&mut Transaction<'_>, &[u8]) -> Result<u64, StoreError> + Send + Sync + 'static,
    ) -> Self {
        self.writes.insert(number, Arc::new(function));
        self
    }

    pub(crate) fn find_read(&self, number: u16) -> Result<&ReadFunction, StoreError> {
        self.reads.get(&number).map(|function| &**function).ok_or(StoreError::NoFunction { number })
    }

    pub(crate) fn find_write(&self, number: u16) -> Result<&WriteFunction, StoreError> {
        self.writes.get(&number).map(|function| &**function).ok_or(StoreError::NoFunction { number })
    }
}

impl fmt::Debug for StoreFunctions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (reads, writes) = (self.reads.keys(), self.writes.keys());
        f.debug_struct("StoreFunctions")
            .field("reads", &reads.collect::<Vec<_>>())
            .field("writes", &writes.collect::<Vec<_>>())
            .finish()
    }
}
