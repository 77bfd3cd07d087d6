//! A stream in which a seed and the position determine each byte.

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

    fn word(self, position: u64) -> [u8; 8] {
        Random::new(self.seed ^ (position / 8).wrapping_mul(0x9E37_79B9)).number().to_le_bytes()
    }

    /// Fills `bytes` with the bytes from `position` on.
    pub fn fill(self, position: u64, bytes: &mut [u8]) {
        let mut word = self.word(position);
        for (at, byte) in (position..).zip(bytes) {
            if at % 8 == 0 {
                word = self.word(at);
            }
            *byte = word[(at % 8) as usize];
        }
    }

    /// Panics at the first wrong byte.
    pub fn check(self, position: u64, bytes: &[u8]) {
        let mut expected = vec![0; bytes.len()];
        self.fill(position, &mut expected);
        if let Some(at) = bytes.iter().zip(&expected).position(|(byte, expected)| byte != expected) {
            let place = position + at as u64;
            panic!("byte {place} of the stream is {}, not {}", bytes[at], expected[at]);
        }
    }
}
