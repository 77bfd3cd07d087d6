//! The Erlang port driver of Caravan: the distribution carried over a [`caravan_fabric::Link`].
//!
//! The emulator calls the driver with the port's lock held, so one port's code never runs twice at
//! once; different ports run on different schedulers.
//!
//! - [`connection`]: one distribution connection: turns, waiting, ending. Knows no emulator but
//!   the [`emulator::Emulator`] trait.
//! - [`late_poller`]: when a stream does without the poller process.
//! - [`inbound`] and [`outbound`]: records to distribution messages and back.
//! - [`reassembly`], with [`atom_cache`] and [`dist_header`]: large messages come in fragments and
//!   are put together once, in place.
//! - [`seal`]: encryption, for fabrics that others can read or write.
//! - [`control`]: what `caravan_dist` asks of a port.
//! - `port`: the emulator's C interface (`erl_driver.h`), and all `unsafe` of this crate.

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
