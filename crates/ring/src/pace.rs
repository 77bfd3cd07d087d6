//! When to look next, for a consumer that does nothing else.
//!
//! Each look takes the position's cache line away from a producer that is about to write it. A
//! consumer that keeps up with a stream so slows it to one line for each record. Left alone for a
//! moment, the producer writes dozens. The sign of a stream is that the first look finds
//! something; a consumer that waits for an answer looks in vain at first, and is not held up.

/// Pauses before a look at most. At 7, records of 64 bytes came as fast as through a bare loop in
/// C; without, they took twice as long.
const PAUSES_MAX: u32 = 7;

/// One consumer's memory of whether its first looks found something.
#[derive(Clone, Debug, Default)]
pub struct Pace {
    pauses: u32,
}

impl Pace {
    /// Leaves the producer alone for as long as is good. To be called before the first look of a
    /// row of looks; tens of nanoseconds at most.
    #[inline]
    pub fn pause(&self) {
        for _ in 0..self.pauses {
            std::hint::spin_loop();
        }
    }

    /// Tells whether that first look found something.
    #[inline]
    pub fn looked(&mut self, found: bool) {
        self.pauses = if found { (2 * self.pauses + 1).min(PAUSES_MAX) } else { self.pauses / 2 };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_is_left_alone_and_an_answer_is_not_waited_for() {
        let mut pace = Pace::default();
        let mut seen = Vec::new();
        for found in [true, true, true, true, false, false, false, false, true] {
            pace.looked(found);
            seen.push(pace.pauses);
        }
        assert_eq!(seen, [1, 3, PAUSES_MAX, PAUSES_MAX, 3, 1, 0, 0, 1]);
    }
}
