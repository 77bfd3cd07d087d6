#![doc = include_str!("../README.md")]
#![deny(unsafe_code)]

mod blocks;
mod bytes;
#[doc(hidden)]
pub mod calls;
mod commit;
pub mod connected;
mod copies;
mod entry;
mod error;
#[doc(hidden)]
pub mod faults;
mod fixed;
mod functions;
mod gate;
mod host_room;
mod image;
mod layout;
mod ledger;
pub mod limits;
mod log;
mod lookup;
mod memory;
mod options;
mod owner;
#[doc(hidden)]
pub mod protocol;
mod reader;
mod recovery;
mod save;
mod scan;
mod sections;
mod session;
mod slots;
mod snapshot;
mod split;
mod store;
mod structure;
mod table;
mod transaction;
mod upkeep;
mod view;
mod words;
mod writes;

pub use connected::{
    AsyncTransaction, ClusterStore, ClusterTransaction, ConnectOptions, ConnectedStore, ConnectedTransaction,
    Pending, StoreTransport,
};
pub use copies::{CopyCounts, CopyId, CopyWriter, FabricRing, MappedRing, StoreCopy, StreamEnd};
pub use entry::{
    ClassCounts, EntryHead, KeyVersion, KeyWatch, MemoryCounts, ObjectAddress, ScanCursor, StoreCounts,
    StoreEntry,
};
pub use error::StoreError;
pub use fixed::{FixedProbe, FixedTable, ObjectSource};
pub use functions::StoreFunctions;
pub use ledger::{Outcome, TransactionId};
pub use options::{Eviction, StoreOptions};
pub use reader::{ReadTransaction, Reader};
pub use save::SnapshotCounts;
pub use session::SessionId;
pub use slots::{SLOTS, slot_of};
pub use store::Store;
pub use transaction::Transaction;
