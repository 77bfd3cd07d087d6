//! What the workloads ask of a store: transactions that read some keys and then write what follows from the values.

use crate::error::Error;

/// A write of a transaction: a key, and its value or `None` to delete it.
pub type KeyWrite = (Vec<u8>, Option<Vec<u8>>);

/// A transaction whose keys are known before anything is read.
pub trait PlannedTransaction {
    /// Returns the keys that it reads.
    fn reads(&self) -> &[Vec<u8>];

    /// Returns whether it writes nothing, whatever it reads.
    fn is_read_only(&self) -> bool;

    /// Returns what it writes if these are the values of its keys. An error says that a value is wrong.
    fn decide(&self, values: &[Option<Vec<u8>>]) -> Result<Vec<KeyWrite>, Error>;
}

/// A client with one operation under way at a time. A write has returned once all copies have it.
pub trait WorkloadClient: Send {
    /// Appends the value of a key, and returns whether there is one.
    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool, Error>;

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), Error>;

    /// Runs a transaction, again if others interfere. Returns the number of its writes.
    fn run(&mut self, transaction: &dyn PlannedTransaction) -> Result<usize, Error>;

    /// Sets many keys, of which no other client knows.
    fn fill(&mut self, pairs: &mut dyn Iterator<Item = (Vec<u8>, Vec<u8>)>) -> Result<(), Error>;
}
