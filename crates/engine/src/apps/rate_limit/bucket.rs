//! A token bucket, exact to the nanosecond.
//!
//! `level <= full`, both in tokens. A byte costs [`TOKENS_PER_BYTE`], so that one nanosecond at one
//! bit per second is one token and nothing is ever rounded away.

/// Bits in a byte times nanoseconds in a second.
const TOKENS_PER_BYTE: u64 = 8_000_000_000;

#[derive(Debug)]
pub struct Bucket {
    /// Tokens per nanosecond: bits per second.
    rate: u64,
    full: u64,
    level: u64,
    /// The time that `level` is of; `None` before the first look at the clock.
    filled_ns: Option<u64>,
}

impl Bucket {
    /// A full bucket. `rate` in bits per second, at least 1; `burst` in bytes, at most 2^30, whose
    /// tokens a word just holds.
    pub fn new(rate: u64, burst: u64) -> Self {
        let full = burst.saturating_mul(TOKENS_PER_BYTE);
        Self { rate: rate.max(1), full, level: full, filled_ns: None }
    }

    /// Another rate and size from here on; what is in it stays, as far as there is room.
    pub fn set_rate(&mut self, rate: u64, burst: u64) {
        let changed = Self::new(rate, burst);
        (self.rate, self.full) = (changed.rate, changed.full);
        self.level = self.level.min(self.full);
    }

    /// The bytes in it, and when they were; `None` if it has not been used.
    pub fn level(&self) -> Option<(u64, u64)> {
        Some((self.level / TOKENS_PER_BYTE, self.filled_ns?))
    }

    /// Goes on from what [`Self::level`] said.
    pub fn set_level(&mut self, bytes: u64, filled_ns: u64) {
        self.level = bytes.saturating_mul(TOKENS_PER_BYTE).min(self.full);
        self.filled_ns = Some(filled_ns);
    }

    /// Adds what has accrued up to `now_ns`.
    pub fn fill(&mut self, now_ns: u64) {
        let elapsed = now_ns.saturating_sub(self.filled_ns.unwrap_or(now_ns));
        self.level = self.level.saturating_add(elapsed.saturating_mul(self.rate)).min(self.full);
        self.filled_ns = Some(now_ns.max(self.filled_ns.unwrap_or(0)));
    }

    /// Takes out what `bytes` cost. False, and nothing done, if it is not there.
    #[inline]
    pub fn take(&mut self, bytes: usize) -> bool {
        match self.level.checked_sub(cost(bytes)) {
            Some(level) => {
                self.level = level;
                true
            }
            None => false,
        }
    }

    /// When it will hold what `bytes` cost.
    pub fn ready_ns(&self, bytes: usize) -> u64 {
        let missing = cost(bytes).saturating_sub(self.level);
        self.filled_ns.unwrap_or(0).saturating_add(missing.div_ceil(self.rate))
    }
}

#[inline]
fn cost(bytes: usize) -> u64 {
    (bytes as u64).saturating_mul(TOKENS_PER_BYTE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn it_is_full_at_first_and_fills_at_its_rate() {
        let mut bucket = Bucket::new(8_000, 3_000);
        bucket.fill(500);
        assert!(bucket.take(3_000) && !bucket.take(1));
        assert_eq!(bucket.ready_ns(1), 500 + 1_000_000, "1,000 bytes a second");
        bucket.fill(500 + 999_999);
        assert!(!bucket.take(1));
        bucket.fill(500 + 1_000_000);
        assert!(bucket.take(1) && !bucket.take(1));
        bucket.fill(u64::MAX);
        assert!(bucket.take(3_000) && !bucket.take(1));
    }

    #[test]
    fn a_clock_that_goes_back_gives_nothing() {
        let mut bucket = Bucket::new(8_000_000_000, 3_000);
        bucket.fill(1_000);
        assert!(bucket.take(3_000));
        bucket.fill(10);
        bucket.fill(1_000);
        assert!(!bucket.take(1));
    }

    proptest! {
        /// However the time is cut up: never more than the burst and what has accrued, and a packet
        /// passes at the very instant that was foretold.
        #[test]
        fn no_more_passes_than_may(
            rate in 1_u64..100_000_000_000,
            steps in prop::collection::vec((0_u64..2_000_000, 1_usize..2_100), 1..200),
        ) {
            let burst = 2_104;
            let mut bucket = Bucket::new(rate, burst);
            let (mut now, mut passed) = (7, 0_u128);
            for (wait, bytes) in steps {
                now += wait;
                bucket.fill(now);
                let ready = bucket.ready_ns(bytes);
                let takes = bucket.take(bytes);
                prop_assert_eq!(takes, ready <= now);
                if !takes {
                    prop_assert!(ready > now);
                    bucket.fill(ready - 1);
                    prop_assert!(!bucket.take(bytes));
                    bucket.fill(ready);
                    prop_assert!(bucket.take(bytes));
                    now = ready;
                }
                passed += bytes as u128;
                let accrued = u128::from(now - 7) * u128::from(rate) / u128::from(TOKENS_PER_BYTE);
                prop_assert!(passed <= u128::from(burst) + accrued);
            }
        }
    }
}
