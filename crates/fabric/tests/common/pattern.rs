//! A stream whose every byte follows from a seed and its position.

use caravan_fabric::sim::Random;

/// Makes the bytes, or checks them.
#[derive(Clone, Copy, Debug)]
pub struct Pattern {
    seed: u64,
}

impl Pattern {
    pub fn new(seed: u64) -> Self {
        Self { seed }
    }

    fn byte(self, position: u64) -> u8 {
        let word = Random::new(self.seed ^ (position / 8).wrapping_mul(0x9E37_79B9)).number();
        (word >> (8 * (position % 8))) as u8
    }

    /// The bytes from `position` on.
    pub fn fill(self, position: u64, bytes: &mut [u8]) {
        for (at, byte) in (position..).zip(bytes) {
            *byte = self.byte(at);
        }
    }

    /// Panics at the first byte that is not as it must be.
    pub fn check(self, position: u64, bytes: &[u8]) {
        for (at, byte) in (position..).zip(bytes) {
            let expected = self.byte(at);
            assert!(*byte == expected, "byte {at} of the stream is {byte}, not {expected}");
        }
    }
}
