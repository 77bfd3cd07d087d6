#![doc = include_str!("../README.md")]
#![deny(unsafe_code)]

pub mod atom_cache;
pub mod connection;
pub mod control;
pub mod counters;
pub mod dist_header;
pub mod emulator;
mod error;
pub mod inbound;
pub mod late_poller;
pub mod limits;
pub mod outbound;
mod port;
pub mod reassembly;
pub mod seal;

pub use error::Error;
