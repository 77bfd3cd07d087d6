//! What is asked of a device, as plain values.

use crate::contract::Local;

/// One work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// What to do.
    pub work: Work,
    /// Comes back with its completion.
    pub id: u64,
    /// Whether it has a completion of its own; those before it are then done, too.
    pub signaled: bool,
}

/// Places are offsets in arenas, and have been checked against their bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Copies to the peer's arena; with an immediate where the device has that.
    Write {
        /// Where the bytes are.
        from: Local,
        /// Where they go.
        to: u64,
        /// What the peer is told.
        immediate: Option<u32>,
    },
    /// Copies from the peer's arena.
    Read {
        /// Where the bytes are.
        from: u64,
        /// Where they go.
        into: Local,
    },
    /// Compares and swaps a word of the peer's arena.
    Swap {
        /// Where the word is.
        at: u64,
        /// What it must be.
        expected: u64,
        /// What it becomes.
        desired: u64,
        /// Which place of this side's is for what is found.
        slot: u32,
    },
    /// Tells the peer how many of its immediates have been taken.
    Acknowledge {
        /// How many more.
        count: u32,
    },
    /// Eight bytes for the peer, where the device has no immediates.
    Message {
        /// The bytes.
        body: u64,
        /// Which place of this side's they leave from.
        slot: u32,
    },
    /// Binds the memory window: the peer's key becomes valid.
    Bind,
}
