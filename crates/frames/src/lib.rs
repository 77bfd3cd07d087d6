#![doc = include_str!("../README.md")]
#![deny(unsafe_code)]

mod audience;
pub mod clock;
mod counters;
mod error;
mod layout;
pub mod limits;
pub mod pattern;
mod picture;
mod pixels;
pub mod protocol;
mod receiver;
mod seat;
mod sender;
mod service;
mod view;
pub mod y4m;

pub use counters::COUNTER_NAMES;
pub use error::Error;
pub use picture::{Picture, PixelFormat, Plane, Rate};
pub use receiver::{FrameChoice, FrameReceiver, Received};
pub use sender::{FrameDelivery, FrameSender, FrameSlot, StreamOptions};
pub use view::{FrameView, Overwritten, PixelReader};
