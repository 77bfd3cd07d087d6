//! RDMA devices, through rdma-core: InfiniBand, RoCE and iWARP.
//!
//! A connection is one reliable queue pair between two arenas, each in a protection domain of its own, or in a
//! [`Domain`] that several connections share.
//! The library is loaded when it is first asked for, and only if the kernel knows a device. This module
//! has no thread; a caller that waits does so on the completion channel's descriptor.
//!
//! - [`offer`], [`connect`], [`accept`], [`PendingEndpoint`]: how two sides make a connection, by messages
//!   over a face's control channel.
//! - [`offer_of`], [`connect_from`], [`pairs`]: how two sides connect between ports that a face has picked.
//! - [`usable`], [`towards`], [`device`]: what this machine has.
//! - [`Obstacle`]: why RDMA cannot be used, in the sentences that every face shows.
//!
//! ```
//! let usable = caravan_fabric::verbs::usable();
//! // Without a device, the first obstacle says what is missing.
//! assert!(!usable.ports.is_empty() || !usable.obstacles.is_empty());
//! ```

mod abi;
mod choose;
mod cm;
mod connect;
mod credit;
pub mod device;
mod domain;
mod endpoint;
mod fault;
mod library;
pub mod limits;
mod message;
mod obstacle;
mod ports;
mod quirks;
mod resources;

pub use choose::{Route, pairs, towards};
pub use connect::{ConnectProgress, PendingEndpoint, accept, connect, connect_from, offer};
pub use domain::Domain;
pub use message::{Port, offer as offer_of, overstate, parse_offer};
pub use obstacle::{MEMORY_LOCK_REMEDY, Obstacle};
pub use ports::{
    Usable, is_here, library_version, memory_lock_limit, own_addresses, registered_bytes, usable,
};
