//! Bytes that can be told apart, and reproducible random numbers.

/// The bytes of a block between hosts.
pub const BLOCK_BYTES: usize = 256 << 10;

/// Returns pseudorandom bytes (xorshift64*) that differ everywhere, so that no two blocks can be confused.
pub fn pattern(seed: u64, length: usize) -> Vec<u8> {
    let mut random = Random::new(seed);
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        bytes.extend_from_slice(&random.next().to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

/// Describes where two streams differ.
pub fn difference(came: &[u8], expected: &[u8]) -> String {
    let at = came.iter().zip(expected).take_while(|(a, b)| a == b).count();
    format!("{} bytes came, {} were expected; they differ from {at} on", came.len(), expected.len())
}

/// xorshift64*, seeded.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        // The generator never leaves the state 0, and neighbouring seeds must differ.
        Self(seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Returns a number below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        // The upper bits are the better ones.
        (self.next() >> 16) % end
    }

    pub fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize].clone()
    }
}
