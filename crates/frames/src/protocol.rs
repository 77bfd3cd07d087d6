//! Who may touch a frame slot, and until when: the race-prone part, without memory, clock or system call of its own, so that a
//! model checker can run it (`tests/loom`).
//!
//! The frames of a stream have numbers from 1 on; frame `n` is in slot `n % slots`. A slot has a **version**:
//!
//! | version | the slot holds | who changes it | to |
//! |---|---|---|---|
//! | 0 | nothing | the producer, before it writes frame `n` | `2n - 1` |
//! | `2n - 1` | frame `n`, of which a part may be missing | the producer, once the frame is complete | `2n` |
//! | `2n` | frame `n` | the producer, before it writes frame `n + slots` | `2(n + slots) - 1` |
//!
//! No other change happens, and only the producer writes. A consumer reads in place: it looks at the version before and after, and
//! what it has read counts only if both are `2n` (a seqlock: Boehm, "Can seqlocks get along with programming language memory
//! models?", MSPC 2012).
//!
//! The **head** is the number of the newest frame, shifted by one, with a bit for the end of the stream. Consumers sleep on its
//! lower half, which the kernel compares as it puts them to sleep.
//!
//! A lossless producer also reads each consumer's **seat**: the lower half of the number up to which that consumer has released
//! all frames. It writes frame `n` once every seat has released frame `n - slots`.

/// What a producer reaches. Every word has 64 bits.
pub trait SenderWords {
    /// The number of slots.
    fn slots(&self) -> u64;
    /// Stores the version of a slot, with release order.
    fn set_version(&self, slot: usize, version: u64);
    /// Stores the head, with release order, and wakes all who sleep on it.
    fn advance(&self, head: u64);
    /// A release fence: what is stored behind it is not seen before what was stored in front of it.
    fn release_fence(&self);
}

/// What a consumer reaches.
pub trait ReceiverWords {
    /// The number of slots.
    fn slots(&self) -> u64;
    /// Loads the version of a slot, with relaxed order.
    fn version(&self, slot: usize) -> u64;
    /// Loads the head, with relaxed order.
    fn head(&self) -> u64;
    /// An acquire fence: what is loaded behind it is not older than what was loaded in front of it.
    fn acquire_fence(&self);
}

/// The producer's side.
#[derive(Debug)]
pub struct SlotWriter {
    /// The number of the newest frame that is complete.
    newest: u64,
}

impl SlotWriter {
    /// Begins at a frame: the first one has the number 1.
    #[allow(clippy::new_without_default)]
    pub fn new() -> Self {
        Self { newest: 0 }
    }

    /// Returns the number of the newest complete frame, 0 if there is none.
    pub fn newest(&self) -> u64 {
        self.newest
    }

    /// Begins to write the next frame, and returns its number. From here on no consumer takes the slot's old frame for good.
    pub fn begin(&self, words: &impl SenderWords) -> u64 {
        let next = self.newest + 1;
        // pairs with the acquire fence in SlotReader::is_complete: who sees the mark sees a newer head than that frame's
        words.set_version((next % words.slots()) as usize, 2 * next - 1);
        // pairs with the acquire fence in SlotReader::is_good: who has seen a byte of the new frame sees the mark
        words.release_fence();
        next
    }

    /// Makes the frame that [`begin`](Self::begin) has begun the newest one.
    pub fn publish(&mut self, words: &impl SenderWords) {
        self.newest += 1;
        words.set_version((self.newest % words.slots()) as usize, 2 * self.newest);
        // pairs with the acquire fence in SlotReader::find: who sees the head sees all bytes and the version
        words.advance(self.newest << 1);
    }

    /// Says that no frame follows.
    pub fn end(&self, words: &impl SenderWords) {
        words.advance(self.newest << 1 | 1);
    }

    /// Tells whether the next frame may be written as far as one seat is concerned, whose word this is. The word must have been
    /// loaded with acquire order, which pairs with the release store of its consumer. `None` if it is impossible.
    pub fn has_room(&self, words: &impl SenderWords, released: u32) -> Option<bool> {
        let behind = u64::from((self.newest as u32).wrapping_sub(released));
        (behind <= words.slots()).then(|| behind < words.slots())
    }
}

/// What a consumer finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// Frame `sequence` is complete, and `dropped` frames before it are lost to this consumer.
    Frame {
        /// The number of the frame.
        sequence: u64,
        /// How many frames lie between it and the one before.
        dropped: u64,
    },
    /// There is no new frame. The caller may sleep while the lower half of the head is this.
    Nothing(u32),
    /// There is no new frame, and none follows.
    End,
    /// What the producer has written makes no sense.
    Corrupt,
}

/// Which frames a consumer looks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Looking {
    /// The newest one.
    Newest,
    /// Each in turn, as long as it cannot be overwritten at any moment.
    Every,
    /// Each in turn; none of them is overwritten before this consumer's seat releases it.
    Held,
}

/// A consumer's side.
#[derive(Debug)]
pub struct SlotReader {
    /// The number of the last frame that was found.
    last: u64,
    looking: Looking,
}

impl SlotReader {
    /// Looks for frames after `last`.
    pub fn new(last: u64, looking: Looking) -> Self {
        Self { last, looking }
    }

    /// Returns the number of the frame that was found last.
    pub fn last(&self) -> u64 {
        self.last
    }

    /// Looks for a frame. One that is overwritten while this looks is passed over.
    pub fn find(&mut self, words: &impl ReceiverWords) -> Found {
        let mut before = None;
        loop {
            let head = words.head();
            // pairs with the release in SenderWords::advance
            words.acquire_fence();
            let newest = head >> 1;
            if newest < self.last || before == Some(head) {
                return Found::Corrupt;
            }
            if newest == self.last {
                return if head & 1 == 1 { Found::End } else { Found::Nothing(head as u32) };
            }
            let sequence = self.wanted(newest, words.slots());
            if Self::is_complete(words, sequence) {
                let dropped = sequence - self.last - 1;
                self.last = sequence;
                return Found::Frame { sequence, dropped };
            }
            // It was overwritten, so the head has moved on; else it makes no sense.
            before = Some(head);
        }
    }

    /// Returns which frame to take. The slot after the newest one is written at any time, unless its frame is held.
    fn wanted(&self, newest: u64, slots: u64) -> u64 {
        let next = self.last + 1;
        match self.looking {
            Looking::Newest => newest,
            Looking::Every => next.max((newest + 2).saturating_sub(slots)),
            Looking::Held => next.max((newest + 1).saturating_sub(slots)),
        }
    }

    fn is_complete(words: &impl ReceiverWords, sequence: u64) -> bool {
        let version = words.version((sequence % words.slots()) as usize);
        // pairs with the release in SenderWords::set_version: who has seen the mark of a newer frame sees a newer head
        words.acquire_fence();
        version == 2 * sequence
    }

    /// Tells whether everything that was read of a frame up to now is of that frame.
    pub fn is_good(words: &impl ReceiverWords, sequence: u64) -> bool {
        // pairs with the release fence in SlotWriter::begin
        words.acquire_fence();
        words.version((sequence % words.slots()) as usize) == 2 * sequence
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct ThreeSlots;

    impl SenderWords for ThreeSlots {
        fn slots(&self) -> u64 {
            3
        }
        fn set_version(&self, _slot: usize, _version: u64) {}
        fn advance(&self, _head: u64) {}
        fn release_fence(&self) {}
    }

    /// A seat is written by a consumer, which may write anything.
    #[test]
    fn a_seat_is_believed_as_far_as_it_can_be_true() {
        // Also where the lower half of the numbers begins anew.
        for newest in [5, 1 << 32, (1 << 32) + 1] {
            let writer = SlotWriter { newest };
            for (behind, expected) in
                [(0, Some(true)), (2, Some(true)), (3, Some(false)), (4, None), (-1, None), (1 << 31, None)]
            {
                let released = (newest as i64 - behind) as u32;
                assert_eq!(writer.has_room(&ThreeSlots, released), expected, "{behind} behind {newest}");
            }
        }
    }
}
