//! Shared memory between processes: the ground that rings and links stand on.
//!
//! - [`Segment`]: a memfd mapped whole at its maximum, grown with `fallocate(2)` so that a full
//!   machine is an error and never a SIGBUS; [`SharedSlice`] is a checked part of one.
//! - [`passing`]: hands descriptors to another process of the same user and network namespace,
//!   proven by a nonce and by what the kernel says of the sender.
//! - [`counters`]: a labelled table of 64-bit counters that anybody of the same user can read
//!   while its owner writes; `caravan top` does.
//! - [`barrier`]: fences of which only the side that goes to sleep pays.
//! - [`process`]: whether another process still lives (pidfd).
//!
//! Bytes that a peer can write are never viewed as `&[u8]`: they are copied through raw pointers
//! (`copy_in`, `copy_out`) or read as atomic words.

#![deny(unsafe_code)]

pub mod barrier;
pub mod counters;
mod error;
mod memory;
pub mod passing;
pub mod process;
mod slice;
mod transfer;

pub use error::Error;
pub use memory::{Pages, Segment};
pub use slice::{SharedSlice, expect_write};
pub use transfer::close;
