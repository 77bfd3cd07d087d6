//! A client of Caravan's servers by its Rust API.

use std::collections::BTreeSet;
use std::sync::Arc;

use caravan_store::{ClusterStore, ConnectedStore, StoreError};

use crate::error::Error;
use crate::process::failed;
use crate::workloads::client::{PlannedTransaction, WorkloadClient};

/// How many keys are set together while a store is filled.
const FILL_BATCH: usize = 64;

/// A store. Threads share it.
#[derive(Debug)]
pub enum ConnectedParts {
    /// Of one server.
    Alone(ConnectedStore),
    /// Of several servers.
    Cluster(ClusterStore),
}

impl ConnectedParts {
    fn part(&self, key: &[u8]) -> Result<&ConnectedStore, Error> {
        match self {
            Self::Alone(store) => Ok(store),
            Self::Cluster(store) => store.of(key).map_err(link_failed),
        }
    }

    /// Returns how often servers commit for a transaction that writes: twice in each of its parts but one, where it is decided.
    pub fn commits(&self, transaction: &dyn PlannedTransaction) -> u64 {
        let Self::Cluster(store) = self else { return 1 };
        let parts: BTreeSet<u16> = transaction.reads().iter().map(|key| store.part_of(key)).collect();
        (2 * parts.len() as u64).saturating_sub(1)
    }
}

/// One thread's client.
#[derive(Clone, Debug)]
pub struct LinkClient(pub Arc<ConnectedParts>);

fn link_failed(why: StoreError) -> Error {
    failed("link", &why)
}

/// The end of a transaction's body: the store's error, or that of a value which is wrong.
enum Stopped {
    Store(StoreError),
    Value(Error),
}

impl From<StoreError> for Stopped {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl WorkloadClient for LinkClient {
    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool, Error> {
        Ok(self.0.part(key)?.get_into(key, value).map_err(link_failed)?.is_some())
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        self.0.part(key)?.put(key, value).map_err(link_failed)
    }

    fn run(&mut self, transaction: &dyn PlannedTransaction) -> Result<usize, Error> {
        if let ([key], true) = (transaction.reads(), transaction.is_read_only()) {
            let value = self.0.part(key)?.get(key).map_err(link_failed)?;
            return Ok(transaction.decide(&[value])?.len());
        }
        let writes = |values: &[Option<Vec<u8>>]| transaction.decide(values).map_err(Stopped::Value);
        // Their transactions are of two types with the same methods.
        macro_rules! run_in {
            ($store:expr) => {
                $store.transaction(|tx| {
                    let writes = writes(&tx.get_many(transaction.reads())?)?;
                    for (key, value) in &writes {
                        match value {
                            Some(value) => tx.put(key, value)?,
                            None => drop(tx.delete(key)?),
                        }
                    }
                    Ok(writes.len())
                })
            };
        }
        let done = match &*self.0 {
            ConnectedParts::Alone(store) => run_in!(store),
            ConnectedParts::Cluster(store) => run_in!(store),
        };
        done.map_err(|stopped| match stopped {
            Stopped::Store(why) => link_failed(why),
            Stopped::Value(why) => why,
        })
    }

    fn fill(&mut self, pairs: &mut dyn Iterator<Item = (Vec<u8>, Vec<u8>)>) -> Result<(), Error> {
        loop {
            let batch: Vec<_> = pairs.take(FILL_BATCH).collect();
            if batch.is_empty() {
                return Ok(());
            }
            let start = |(key, value): &(Vec<u8>, Vec<u8>)| Ok(self.0.part(key)?.start_put(key, value, None));
            let started: Vec<_> = batch.iter().map(start).collect::<Result<_, Error>>()?;
            for pending in started {
                pending.wait().map_err(link_failed)?;
            }
        }
    }
}
