//! Lets packets pass no faster than a rate.

mod bucket;

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use crate::app::{App, AppError};
use crate::io::Io;
use crate::layout::DropReason;
use crate::limits::PACKET_BYTES_MAX;
use crate::packet::Packet;
use bucket::Bucket;

/// Packets that may wait in a rate limit at most.
const QUEUED_MAX: usize = 4096;
/// Bytes of a burst at most.
const BURST_BYTES_MAX: u64 = 1 << 30;
/// Without a burst in the configuration: what passes in one second divided by this.
const BURST_PART: u64 = 100;

/// A token bucket: `burst` bytes pass at once, and `rate` bits each second after that. What comes
/// faster is dropped ([`DropReason::Limited`]), or waits if the configuration allows it. A packet counts
/// with all its bytes, headers of Ethernet included, preamble and checksum not.
#[derive(Debug)]
pub struct RateLimit {
    bucket: Bucket,
    queued_max: usize,
    /// Oldest first, at most `queued_max`, unless that has just been lowered.
    queued: VecDeque<Packet>,
    /// When the oldest can go.
    wake_ns: Option<u64>,
    passed: u64,
    limited: u64,
}

/// How fast, and what happens to the rest.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RateLimitConfig {
    /// Bits per second.
    pub rate: u64,
    /// Bytes that pass at once after a pause; what passes in 10 ms, if it is not given, and at least
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

/// What the next one of the same name goes on with, so that moving it opens no gap in the limit.
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
            bucket.set_level(state.rate_limit_bytes, state.filled_ns);
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
        let (rate_limit_bytes, filled_ns) = self.bucket.level()?;
        serde_json::to_vec(&RateLimitState { rate_limit_bytes, filled_ns }).ok()
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::AppBench;

    const PACKETS: usize = 100;
    /// 1,000 bytes a millisecond.
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
}
