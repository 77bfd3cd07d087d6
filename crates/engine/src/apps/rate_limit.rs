//! An app that passes packets no faster than a rate.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use crate::app::{App, AppError};
use crate::io::Io;
use crate::layout::DropReason;
use crate::limits::PACKET_BYTES_MAX;
use crate::packet::Packet;

/// Packets that may wait in a rate limit at most.
const QUEUED_MAX: usize = 4096;
/// Bytes of a burst at most.
const BURST_BYTES_MAX: u64 = 1 << 30;
/// The default burst is what passes in one second, divided by this.
const BURST_PART: u64 = 100;

/// A token bucket: `burst` bytes pass at once, and `rate` bits each second after that. Packets that come
/// faster are dropped ([`DropReason::Limited`]), or wait if the configuration allows it. A packet counts
/// with all its bytes, including the Ethernet header but not preamble and checksum.
#[derive(Debug)]
pub struct RateLimit {
    bucket: Bucket,
    queued_max: usize,
    /// The waiting packets, oldest first: at most `queued_max`, unless that has just been lowered.
    queued: VecDeque<Packet>,
    /// The time at which the oldest packet can go.
    wake_ns: Option<u64>,
    passed: u64,
    limited: u64,
}

/// The configuration of a rate limit.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RateLimitConfig {
    /// Bits per second.
    pub rate: u64,
    /// Bytes that pass at once after a pause; by default what passes in 10 ms, and at least
    /// one packet.
    pub burst: Option<u64>,
    /// Packets that wait instead of being dropped.
    #[serde(default)]
    pub queue: usize,
}

impl RateLimitConfig {
    fn burst_bytes(&self) -> u64 {
        let usual = (self.rate / 8 / BURST_PART).clamp(PACKET_BYTES_MAX as u64, BURST_BYTES_MAX);
        self.burst.unwrap_or(usual)
    }
}

/// The state that a rate limit leaves to its successor, so that moving it opens no gap in the limit.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RateLimitState {
    rate_limit_bytes: u64,
    filled_ns: u64,
}

const INPUT: usize = 0;
const OUTPUT: usize = 0;

impl App for RateLimit {
    type Config = RateLimitConfig;

    fn check(config: &RateLimitConfig) -> Result<(), AppError> {
        let burst = config.burst_bytes();
        if config.rate == 0 {
            return Err(AppError::new("rate = 0: nothing would ever pass; it is in bits per second"));
        }
        if !(PACKET_BYTES_MAX as u64..=BURST_BYTES_MAX).contains(&burst) {
            return Err(AppError(format!(
                "burst = {burst}: {PACKET_BYTES_MAX} bytes, so that the longest packet can pass, to {BURST_BYTES_MAX}"
            )));
        }
        if config.queue > QUEUED_MAX {
            return Err(AppError(format!("queue = {}: at most {QUEUED_MAX} packets can wait", config.queue)));
        }
        Ok(())
    }

    fn start(config: RateLimitConfig, state: Option<Vec<u8>>) -> Result<Self, AppError> {
        let mut bucket = Bucket::new(config.rate, config.burst_bytes());
        if let Some(state) = state.and_then(|state| serde_json::from_slice::<RateLimitState>(&state).ok()) {
            bucket.set_level(&state);
        }
        let queued = VecDeque::new();
        Ok(Self { bucket, queued_max: config.queue, queued, wake_ns: None, passed: 0, limited: 0 })
    }

    fn push(&mut self, io: &mut Io) {
        self.bucket.fill(io.now_ns());
        while self.queued.front().is_some_and(|packet| self.bucket.take(packet.length())) {
            let Some(packet) = self.queued.pop_front() else { break };
            self.passed += 1;
            io.transmit(OUTPUT, packet);
        }
        for _ in 0..io.waiting(INPUT) {
            let Some(packet) = io.receive(INPUT) else { break };
            self.admit(io, packet);
        }
        self.wake_ns = self.queued.front().map(|packet| self.bucket.ready_ns(packet.length()));
    }

    fn reconfigure(&mut self, config: &RateLimitConfig) -> bool {
        self.bucket.set_rate(config.rate, config.burst_bytes());
        self.queued_max = config.queue;
        true
    }

    fn stop(&mut self, io: &mut Io) -> Option<Vec<u8>> {
        for packet in self.queued.drain(..) {
            io.transmit(OUTPUT, packet);
        }
        serde_json::to_vec(&self.bucket.level()?).ok()
    }

    fn wake_ns(&self) -> Option<u64> {
        self.wake_ns
    }

    fn report(&self) -> Vec<(&'static str, u64)> {
        vec![("passed", self.passed), ("limited", self.limited), ("queued", self.queued.len() as u64)]
    }
}

impl RateLimit {
    /// Sends the packet, keeps it behind those that wait, or drops it.
    fn admit(&mut self, io: &mut Io, packet: Packet) {
        if self.queued.is_empty() && self.bucket.take(packet.length()) {
            self.passed += 1;
            io.transmit(OUTPUT, packet);
        } else if self.queued.len() < self.queued_max {
            self.queued.push_back(packet);
        } else {
            self.limited += 1;
            io.discard(packet, DropReason::Limited);
        }
    }
}

/// Bits in a byte times nanoseconds in a second.
const TOKENS_PER_BYTE: u64 = 8_000_000_000;

#[derive(Debug)]
/// A token bucket, exact to the nanosecond: `level <= full`, both in tokens.
///
/// A byte costs [`TOKENS_PER_BYTE`], so that one nanosecond at one bit per second is one token and nothing is ever
/// rounded away.
struct Bucket {
    /// Tokens per nanosecond, which is the rate in bits per second.
    rate: u64,
    full: u64,
    level: u64,
    /// The time at which `level` was computed; `None` before the first look at the clock.
    filled_ns: Option<u64>,
}

impl Bucket {
    /// Makes a full bucket. `rate` is in bits per second, at least 1; `burst` is in bytes, at most 2^30, whose
    /// tokens just fit into a word.
    fn new(rate: u64, burst: u64) -> Self {
        let full = burst.saturating_mul(TOKENS_PER_BYTE);
        Self { rate: rate.max(1), full, level: full, filled_ns: None }
    }

    /// Sets another rate and size; the bucket keeps its tokens, as far as there is room.
    fn set_rate(&mut self, rate: u64, burst: u64) {
        let changed = Self::new(rate, burst);
        (self.rate, self.full) = (changed.rate, changed.full);
        self.level = self.level.min(self.full);
    }

    /// Returns the level, or `None` if the bucket has not been used.
    fn level(&self) -> Option<RateLimitState> {
        Some(RateLimitState { rate_limit_bytes: self.level / TOKENS_PER_BYTE, filled_ns: self.filled_ns? })
    }

    /// Goes on from a state that [`Self::level`] returned.
    fn set_level(&mut self, state: &RateLimitState) {
        self.level = state.rate_limit_bytes.saturating_mul(TOKENS_PER_BYTE).min(self.full);
        self.filled_ns = Some(state.filled_ns);
    }

    /// Adds the tokens that have accrued up to `now_ns`.
    fn fill(&mut self, now_ns: u64) {
        let elapsed = now_ns.saturating_sub(self.filled_ns.unwrap_or(now_ns));
        self.level = self.level.saturating_add(elapsed.saturating_mul(self.rate)).min(self.full);
        self.filled_ns = Some(now_ns.max(self.filled_ns.unwrap_or(0)));
    }

    /// Takes the tokens of `bytes` bytes. Returns false, and does nothing, if there are too few.
    #[inline]
    fn take(&mut self, bytes: usize) -> bool {
        match self.level.checked_sub(cost(bytes)) {
            Some(level) => {
                self.level = level;
                true
            }
            None => false,
        }
    }

    /// Returns the time at which the bucket will hold the tokens of `bytes` bytes.
    fn ready_ns(&self, bytes: usize) -> u64 {
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
    use proptest::prelude::*;

    use super::*;
    use crate::testing::AppBench;

    const PACKETS: usize = 100;
    /// 1,000 bytes per millisecond.
    const RATE: u64 = 8_000_000;
    const MS: u64 = 1_000_000;

    fn bench(queue: usize) -> AppBench<RateLimit> {
        let config = RateLimitConfig { rate: RATE, burst: Some(3_000), queue };
        AppBench::new(config, &["input"], &["output"], PACKETS as u32).expect("a rate limit")
    }

    fn put(bench: &mut AppBench<RateLimit>, count: usize) {
        (0..count).for_each(|place| bench.put("input", &[place as u8; 1_000]));
        bench.push();
    }

    fn sent(bench: &mut AppBench<RateLimit>) -> Vec<u8> {
        bench.sent("output").iter().map(|packet| packet[0]).collect()
    }

    #[test]
    fn a_burst_passes_then_the_rate_and_the_rest_is_dropped() {
        let mut bench = bench(0);
        put(&mut bench, 5);
        assert_eq!(sent(&mut bench), [0, 1, 2]);
        assert_eq!((bench.drops(DropReason::Limited), bench.app.wake_ns()), (2, None));
        bench.now_ns += 2 * MS;
        put(&mut bench, 5);
        assert_eq!(sent(&mut bench), [0, 1]);
        assert_eq!(bench.app.report(), [("passed", 5), ("limited", 5), ("queued", 0)]);
        assert_eq!(bench.free(), PACKETS);
    }

    #[test]
    fn what_waits_goes_in_its_turn_at_its_time() {
        let mut bench = bench(2);
        put(&mut bench, 6);
        assert_eq!(sent(&mut bench), [0, 1, 2]);
        assert_eq!((bench.drops(DropReason::Limited), bench.app.wake_ns()), (1, Some(bench.now_ns + MS)));
        bench.now_ns += MS - 1;
        bench.push();
        assert!(sent(&mut bench).is_empty());
        bench.now_ns += 1;
        put(&mut bench, 1);
        assert_eq!(sent(&mut bench), [3]);
        bench.now_ns = bench.app.wake_ns().expect("a time");
        bench.push();
        bench.now_ns += MS;
        bench.push();
        assert_eq!(sent(&mut bench), [4, 0]);
        assert_eq!((bench.app.wake_ns(), bench.free()), (None, PACKETS));
    }

    #[test]
    fn when_it_stops_nothing_waits_any_longer() {
        let mut bench = bench(10);
        put(&mut bench, 8);
        bench.stop();
        assert_eq!(sent(&mut bench), [0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(bench.free(), PACKETS);
    }

    #[test]
    fn moving_it_opens_no_gap() {
        let mut first = bench(0);
        put(&mut first, 3);
        let state = first.stop();
        let mut second = bench(0);
        let config = RateLimitConfig { rate: RATE, burst: Some(3_000), queue: 0 };
        second.app = RateLimit::start(config, state).expect("a rate limit");
        second.now_ns += MS;
        put(&mut second, 3);
        assert_eq!(sent(&mut second), [0]);
        sent(&mut first);
        assert_eq!((first.free(), second.free()), (PACKETS, PACKETS));
    }

    #[test]
    fn another_rate_takes_effect_at_once() {
        let mut bench = bench(10);
        put(&mut bench, 5);
        let faster = RateLimitConfig { rate: 2 * RATE, burst: Some(3_000), queue: 0 };
        assert!(bench.app.reconfigure(&faster));
        bench.now_ns += MS;
        put(&mut bench, 1);
        assert_eq!(sent(&mut bench), [0, 1, 2, 3, 4]);
        assert_eq!((bench.drops(DropReason::Limited), bench.free()), (1, PACKETS));
    }

    #[test]
    fn without_a_burst_one_packet_always_passes() {
        let config = RateLimitConfig { rate: 1, burst: None, queue: 0 };
        let mut bench = AppBench::<RateLimit>::new(config, &["input"], &["output"], 4).expect("a rate limit");
        bench.put("input", &[0; 1_900]);
        bench.push();
        assert_eq!((bench.sent("output").len(), bench.free()), (1, 4));
    }

    #[test]
    fn what_is_wrong_is_named() {
        let trouble = |rate, burst, queue| {
            RateLimit::check(&RateLimitConfig { rate, burst, queue }).expect_err("one").0
        };
        assert_eq!(trouble(0, None, 0), "rate = 0: nothing would ever pass; it is in bits per second");
        assert_eq!(
            trouble(1, Some(1_500), 0),
            "burst = 1500: 2104 bytes, so that the longest packet can pass, to 1073741824"
        );
        assert_eq!(trouble(1, None, 5_000), "queue = 5000: at most 4096 packets can wait");
    }

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
        /// However the time is divided, never more passes than the burst and what has accrued, and a packet
        /// passes at the very instant that was predicted.
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
