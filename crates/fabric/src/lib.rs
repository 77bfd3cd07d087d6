#![doc = include_str!("../README.md")]
#![deny(unsafe_code)]

pub mod byte_reader;
pub mod contract;
mod link;
mod link_staged;
mod region;
pub mod seal;
pub mod shm;
#[cfg(any(test, feature = "sim"))]
pub mod sim;
pub mod tcp;
pub mod verbs;

pub use caravan_ring::{SpinMode, SpinPolicy, Turn};
pub use contract::{Endpoint, Error, Exposure};
pub use link::{Link, LinkCounts, RING_BYTES_MAX, RING_BYTES_MIN, USER_OPERATIONS_MAX};
pub use region::{LOANS_MAX, REGION_BYTES_MAX, Region, RegionAccess, RegionNumber, RegionToken};
