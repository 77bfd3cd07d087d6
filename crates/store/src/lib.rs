#![doc = include_str!("../README.md")]
#![deny(unsafe_code)]

mod entry;
mod error;
pub mod limits;
mod options;
mod store;
mod transaction;

pub use entry::{Address, EntryHead, KeyVersion, ScanCursor, StoreCounts, StoreEntry};
pub use error::StoreError;
pub use options::{Eviction, StoreOptions};
pub use store::Store;
pub use transaction::Transaction;
