//! The positions of a ring, and the two hand-shakes of sleeping and waking.
//!
//! Invariant of a producer: `head_seen <= published <= committed <= head_seen + capacity`.
//! Invariant of a consumer: `head <= tail_seen <= head + capacity`.
//!
//! Waiting is Dekker's pattern, once in each direction. The waiter writes its flag, fences, looks
//! again, and only then sleeps; the other side writes its position, fences, and looks at the flag.
//! With both fences sequentially consistent, at least one of them sees the other; where the two
//! processes share a [barrier](caravan_segment::barrier), only the waiter pays for it. The flag is
//! cleared by a swap, so exactly one side acts on it.
//!
//! | who | change | why |
//! |---|---|---|
//! | consumer | `consumer_asleep` 0 -> 1 | it found nothing and is about to wait |
//! | consumer | 1 -> 0 | it found something after all, or woke by itself |
//! | producer | 1 -> 0 | it published, and now rings the bell |
//! | producer | `producer_wants` 0 -> position | there is no room, and it is about to wait |
//! | producer | position -> position | it waits for another amount of room |
//! | producer | position -> 0 | there is room after all, or it woke by itself |
//! | consumer | position -> 0 | it released that far, and now rings the bell |
//!
//! Nothing else may happen: neither side moves the other's position or a position back, and
//! neither says that the other waits. `tests/model/transitions.rs` runs the table.

mod consumer;
mod producer;
mod span;

pub use consumer::ConsumerCursor;
pub use producer::ProducerCursor;
pub use span::{Span, Spans};

/// The other side wrote a position that it cannot have: it is broken or hostile, and the ring is
/// not to be used any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the peer wrote {cursor} = {value} where only {low}..={high} is possible")]
pub struct Corrupt {
    /// Which word.
    pub cursor: &'static str,
    /// What it holds.
    pub value: u64,
    /// The least it could hold.
    pub low: u64,
    /// The most it could hold.
    pub high: u64,
}

/// Whether the other side must be woken.
#[must_use = "a wake-up that nobody delivers leaves the peer asleep"]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wake {
    /// It sleeps, and its flag has been cleared: ring its bell, once.
    Bell,
    /// It is awake.
    Quiet,
}
