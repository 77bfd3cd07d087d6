#![doc = include_str!("../README.md")]
#![deny(unsafe_code)]

mod blocks;
mod bytes;
mod commit;
mod entry;
mod error;
#[doc(hidden)]
pub mod faults;
mod image;
mod layout;
pub mod limits;
mod lookup;
mod options;
mod owner;
#[doc(hidden)]
pub mod protocol;
mod reader;
mod scan;
mod split;
mod store;
mod table;
mod transaction;
mod upkeep;
mod view;
mod words;

pub use entry::{
    ClassCounts, EntryHead, KeyVersion, MemoryCounts, ObjectAddress, ScanCursor, StoreCounts, StoreEntry,
};
pub use error::StoreError;
pub use options::{Eviction, StoreOptions};
pub use reader::{ReadTransaction, Reader};
pub use store::Store;
pub use transaction::Transaction;
