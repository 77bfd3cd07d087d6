//! Every limit of a stream of frames.

use std::time::Duration;

/// The fewest frame slots: one that is written, one that is the newest, and one that is still read.
pub const SLOTS_MIN: u32 = 3;
/// The most frame slots.
pub const SLOTS_MAX: u32 = 64;
/// The slots of a stream that does not ask for another number.
pub const SLOTS_DEFAULT: u32 = 4;
/// The most bytes of a frame; one of 8k with 4 bytes for each pixel has 133 million.
pub const FRAME_BYTES_MAX: u64 = 1 << 30;
/// The largest width and height.
pub const EDGE_MAX: u32 = 32_768;
/// The most letters of a stream's name.
pub const NAME_BYTES_MAX: usize = 64;
/// The most consumers of a stream at a time; further ones are refused.
pub const CONSUMERS_MAX: usize = 64;
/// How long a consumer may take to say what it wants, and its producer to answer.
pub const ATTACH_LIMIT: Duration = Duration::from_secs(10);
/// How long a side sleeps before it looks whether the other one still lives.
pub(crate) const LOOK: Duration = Duration::from_millis(100);
/// How long a lossless producer waits for one frame to be released before it cuts the consumer off.
pub const PATIENCE: Duration = Duration::from_secs(10);
