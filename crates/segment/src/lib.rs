#![doc = include_str!("../README.md")]
#![deny(unsafe_code)]

pub mod barrier;
pub mod counters;
mod error;
mod futex;
mod host;
mod memory;
pub mod passing;
mod printable;
pub mod process;
mod slice;
mod transfer;
mod view;

pub use error::Error;
pub use host::HostMemory;
pub use memory::{JOINED_PAGE_BYTES, Pages, Segment};
pub use printable::printable;
pub use slice::{SharedSlice, expect_write};
pub use transfer::close;
pub use view::SegmentView;
