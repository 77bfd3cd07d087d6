//! RDMA devices, through rdma-core: InfiniBand, RoCE and iWARP.
//!
//! A connection is one reliable queue pair between two arenas, each in a protection domain of its own.
//! The library is loaded when it is first asked for, and only where the kernel knows a device. Nothing
//! here has a thread; who waits does so on the completion channel's descriptor.
//!
//! - [`offer`], [`connect`], [`accept`], [`Pending`]: how two sides come to a connection, by messages
//!   over a face's control channel.
//! - [`offer_of`], [`connect_from`], [`pairs`]: the same for ports that a face has picked itself.
//! - [`usable`], [`towards`], [`device`]: what this machine has.
//! - [`Obstacle`]: why there is no RDMA to be had, in the sentences that every face shows.

mod abi;
mod choose;
mod cm;
mod connect;
pub mod device;
mod endpoint;
mod fault;
mod finish;
mod flow;
mod library;
pub mod limits;
mod message;
mod obstacle;
mod ports;
mod quirks;
mod resources;
mod survey;
mod towards;
mod wait;
mod work;

pub use choose::Route;
pub use connect::{Pending, accept, connect, connect_from, offer};
pub use finish::Progress;
pub use message::{Port, offer as offer_of, overstate, parse_offer};
pub use obstacle::{MEMORY_LOCK_REMEDY, Obstacle};
pub use ports::{Usable, own_addresses, usable};
pub use survey::{library_version, memory_lock_limit, registered_bytes};
pub use towards::{is_here, pairs, towards};
