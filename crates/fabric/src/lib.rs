//! Moving bytes between two processes by whatever the machine has.
//!
//! - [`contract`]: what a transport must do, and what must not be assumed of it.
//! - [`shm`]: the same host and user, through mapped memory.
//! - [`verbs`]: RDMA devices, through rdma-core where it is installed.
//! - [`sim`]: a seeded network that breaks whatever the contract leaves unpromised; for tests.
//! - [`Link`]: a ring each way over any of them, with waiting and waking.
//! - [`SpinPolicy`]: when to poll and when to sleep; one object for every face.
//!
//! Fabric never listens for strangers: a face has a control channel (an authenticated connection)
//! and carries a small descriptor across it.

#![deny(unsafe_code)]

pub mod byte_reader;
pub mod contract;
mod link;
mod link_staged;
pub mod shm;
#[cfg(any(test, feature = "sim"))]
pub mod sim;
pub mod verbs;

pub use caravan_ring::{SpinMode, SpinPolicy, Turn};
pub use contract::{Endpoint, Error, Exposure};
pub use link::{Link, LinkCounts, RING_BYTES_MAX, RING_BYTES_MIN};
