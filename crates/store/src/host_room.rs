//! Whether the host has memory for another block. To ask it takes some files of the kernel's, so one answer counts for
//! several blocks and for a short time: for a part of what is left, as others take memory, too.

use std::time::Instant;

use crate::limits::{HOST_MEMORY_LEFT, HOST_ROOM_BYTES_MAX, HOST_ROOM_INTERVAL, HOST_ROOM_PART};

/// The bytes that the last answer still allows to take.
#[derive(Debug, Default)]
pub(crate) struct HostRoom {
    bytes: u64,
    asked: Option<Instant>,
}

impl HostRoom {
    /// Takes `bytes` if the host has them beside what it keeps. `ask` returns what is left, `None` where the kernel does not
    /// say.
    pub(crate) fn take(&mut self, bytes: u64, now: Instant, ask: impl FnOnce() -> Option<u64>) -> bool {
        let is_current = self.asked.is_some_and(|asked| now.duration_since(asked) < HOST_ROOM_INTERVAL);
        if !is_current || self.bytes < bytes {
            let spare = ask().unwrap_or(u64::MAX).saturating_sub(HOST_MEMORY_LEFT);
            if spare < bytes {
                *self = Self::default();
                return false;
            }
            let part = (spare / HOST_ROOM_PART).min(HOST_ROOM_BYTES_MAX);
            *self = Self { bytes: part.max(bytes), asked: Some(now) };
        }
        self.bytes -= bytes;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// Takes blocks from a host with this much left until it is asked again or refuses; returns how many it gave.
    fn blocks_of_an_answer(left: u64) -> u64 {
        let (mut room, now) = (HostRoom::default(), Instant::now());
        let mut answers = 0;
        let mut take = || {
            room.take(MIB, now, || {
                answers += 1;
                (answers == 1).then_some(left).or(Some(0))
            })
        };
        (0..).take_while(|_| take()).count() as u64
    }

    #[test]
    fn one_answer_counts_for_a_part_of_what_is_left() {
        for (left, blocks) in
            [(32 * MIB, 0), (33 * MIB, 1), (64 * MIB, 2), (32 * MIB + 160 * MIB, 10), (1 << 40, 64)]
        {
            assert_eq!(blocks_of_an_answer(left), blocks, "{left}");
        }
    }

    #[test]
    fn an_old_answer_counts_no_more() {
        let (mut room, now) = (HostRoom::default(), Instant::now());
        assert!(room.take(MIB, now, || Some(1 << 40)));
        assert!(room.take(MIB, now, || panic!("it has just been asked")));
        assert!(!room.take(MIB, now + HOST_ROOM_INTERVAL, || Some(HOST_MEMORY_LEFT)));
        // A refusal is no answer for later.
        assert!(room.take(MIB, now + HOST_ROOM_INTERVAL, || None));
    }
}
