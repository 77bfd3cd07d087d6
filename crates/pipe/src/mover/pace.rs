//! So many bytes a second.

use std::time::{Duration, Instant};

/// What may be caught up on after a pause; also what is read at once, so that it flows evenly.
const BURST: Duration = Duration::from_millis(50);

/// A rate that is kept to over any time longer than a burst. It drifts by nothing: every time is
/// counted from when it began.
#[derive(Clone, Copy, Debug)]
pub(super) struct RateLimit {
    rate: u64,
    since: Instant,
    bytes: u64,
}

impl RateLimit {
    /// From now on.
    pub fn new(rate: u64, now: Instant) -> Self {
        Self { rate: rate.max(1), since: now, bytes: 0 }
    }

    /// Bytes that a piece should have at most.
    pub fn piece_bytes(&self) -> usize {
        let bytes = u128::from(self.rate) * BURST.as_nanos() / 1_000_000_000;
        usize::try_from(bytes).unwrap_or(usize::MAX).max(1)
    }

    /// So many more bytes go; returns when the next ones may.
    pub fn take(&mut self, bytes: usize, now: Instant) -> Instant {
        if now > self.due() + BURST {
            (self.since, self.bytes) = (now - BURST, 0);
        }
        self.bytes += bytes as u64;
        self.due()
    }

    fn due(&self) -> Instant {
        let ns = u128::from(self.bytes) * 1_000_000_000 / u128::from(self.rate);
        // 500 years are as good as for ever.
        self.since + Duration::from_nanos(u64::try_from(ns).unwrap_or(u64::MAX / 2))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_exact_over_time_and_catches_up_on_a_burst_alone() {
        let begin = Instant::now() + Duration::from_secs(1);
        let mut pace = RateLimit::new(1_000_003, begin);
        let mut now = begin;
        let mut bytes = 0;
        while bytes < 10_000_030 {
            // Sleeps last a little too long.
            now = pace.take(777, now) + Duration::from_micros(300);
            bytes += 777;
        }
        let took = (now - begin).as_secs_f64();
        let wanted = bytes as f64 / 1_000_003.0;
        assert!((took - wanted).abs() < 0.001, "{took} s of {wanted}");
        now += Duration::from_secs(100);
        let due = pace.take(1_000_003, now);
        assert_eq!(due, now + Duration::from_secs(1) - BURST);
        assert_eq!(pace.piece_bytes(), 50_000);
        assert_eq!(RateLimit::new(0, now).piece_bytes(), 1);
    }
}
