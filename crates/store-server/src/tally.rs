//! What the server counts of each command: calls, failures, and how long they took.
//!
//! Counters order nothing, so all accesses are relaxed.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use caravan_store::calls::{CALL_NAMES, CallCounts};

use crate::command::{CommandSpec, all_specs};
use crate::limits;
use crate::state::count;

/// What is counted of all commands.
#[derive(Debug)]
pub(crate) struct CommandTallies {
    /// In the order of `all_specs`.
    rows: Vec<CommandTally>,
    /// The errors that clients got, by the first word.
    errors: Mutex<BTreeMap<Vec<u8>, u64>>,
    /// Calls over links, in the order of [`CALL_NAMES`].
    calls: [AtomicU64; CALL_NAMES.len()],
    is_timing: AtomicBool,
    /// The percentiles of INFO's section Latencystats.
    percentiles: RwLock<Vec<f64>>,
}

/// What is counted of one command.
#[derive(Debug, Default)]
pub(crate) struct CommandTally {
    pub(crate) calls: AtomicU64,
    /// Refused before they ran: the wrong number of words, or no password.
    pub(crate) rejected: AtomicU64,
    /// Ran, and replied with an error.
    pub(crate) failed: AtomicU64,
    pub(crate) times: TimeHistogram,
}

impl CommandTally {
    /// Returns whether any client has sent the command.
    pub(crate) fn is_used(&self) -> bool {
        self.calls.load(Ordering::Relaxed) + self.rejected.load(Ordering::Relaxed) > 0
    }
}

impl Default for CommandTallies {
    fn default() -> Self {
        Self {
            rows: all_specs().map(|_| CommandTally::default()).collect(),
            errors: Mutex::default(),
            calls: Default::default(),
            is_timing: AtomicBool::new(true),
            percentiles: RwLock::new(limits::PERCENTILES_DEFAULT.to_vec()),
        }
    }
}

impl CommandTallies {
    /// Returns what is counted of a command.
    pub(crate) fn of(&self, spec: &'static CommandSpec) -> Option<&CommandTally> {
        self.rows.get(spec.number())
    }

    /// Returns all commands with what is counted of them.
    pub(crate) fn all(&self) -> impl Iterator<Item = (&'static CommandSpec, &CommandTally)> {
        all_specs().zip(&self.rows)
    }

    /// Counts calls over a link, and returns how many they are.
    pub(crate) fn count_calls(&self, counts: &CallCounts) -> u64 {
        let called = self.calls.iter().zip(counts).filter(|(_, calls)| **calls > 0);
        called.for_each(|(tally, calls)| count(tally, *calls));
        counts.iter().sum()
    }

    /// Returns the kinds of calls that there were, as users see them, with their number.
    pub(crate) fn calls(&self) -> impl Iterator<Item = (String, u64)> {
        let calls = CALL_NAMES.iter().zip(&self.calls);
        let calls = calls.map(|(name, calls)| (format!("call|{name}"), calls.load(Ordering::Relaxed)));
        calls.filter(|(_, calls)| *calls > 0)
    }

    /// Counts the error that a client gets.
    pub(crate) fn count_error(&self, words: &[u8]) {
        let code = words.split(|byte| *byte == b' ').next().unwrap_or_default();
        let mut errors = self.errors.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = errors.get_mut(code) {
            *count += 1;
        } else if errors.len() < limits::ERROR_CODES_MAX {
            errors.insert(code.to_vec(), 1);
        }
    }

    /// Returns the errors that clients got, by the first word.
    pub(crate) fn errors(&self) -> BTreeMap<Vec<u8>, u64> {
        self.errors.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Sets all counters back to zero.
    pub(crate) fn clear(&self) {
        for row in &self.rows {
            let counters = [&row.calls, &row.rejected, &row.failed, &row.times.sum_ns];
            counters
                .into_iter()
                .chain(&row.times.buckets)
                .for_each(|counter| counter.store(0, Ordering::Relaxed));
        }
        self.calls.iter().for_each(|calls| calls.store(0, Ordering::Relaxed));
        self.errors.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    pub(crate) fn is_timing(&self) -> bool {
        self.is_timing.load(Ordering::Relaxed)
    }

    pub(crate) fn set_timing(&self, is_timing: bool) {
        self.is_timing.store(is_timing, Ordering::Relaxed);
    }

    pub(crate) fn percentiles(&self) -> Vec<f64> {
        self.percentiles.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn set_percentiles(&self, percentiles: Vec<f64>) {
        *self.percentiles.write().unwrap_or_else(PoisonError::into_inner) = percentiles;
    }
}

/// Of the commands of one pipeline, the first one is timed and then each of this many: reading the clock twice for each
/// would cost more than the counting. The number is odd, so that it meets both halves of GET, SET, GET, SET.
const TIMED_OF: u32 = 17;

/// The calls of one batch of requests, which are added to the shared counters together.
#[derive(Debug, Default)]
pub(crate) struct BatchTally {
    commands: u32,
    /// The command of the last calls, and their number.
    last: Option<(&'static CommandSpec, u64)>,
}

impl BatchTally {
    /// Returns when a command begins, if it is to be timed.
    pub(crate) fn begin(&mut self, tallies: &CommandTallies) -> Option<Instant> {
        let is_timed = self.commands % TIMED_OF == 0 && tallies.is_timing();
        self.commands = self.commands.wrapping_add(1);
        is_timed.then(Instant::now)
    }

    /// Counts a command that ran.
    pub(crate) fn end(
        &mut self,
        tallies: &CommandTallies,
        spec: &'static CommandSpec,
        begun: Option<Instant>,
    ) {
        if let (Some(begun), Some(tally)) = (begun, tallies.of(spec)) {
            tally.times.add(begun.elapsed());
        }
        match &mut self.last {
            Some((last, calls)) if std::ptr::eq(*last, spec) => *calls += 1,
            _ => {
                self.flush(tallies);
                self.last = Some((spec, 1));
            }
        }
    }

    /// Adds to the shared counters.
    pub(crate) fn flush(&mut self, tallies: &CommandTallies) {
        if let Some((spec, calls)) = self.last.take() {
            tallies.of(spec).into_iter().for_each(|tally| count(&tally.calls, calls));
        }
    }

    /// Ends the batch.
    pub(crate) fn finish(&mut self, tallies: &CommandTallies) {
        self.flush(tallies);
        self.commands = 0;
    }
}

/// Buckets of a histogram of times: four for each power of two, up to 18 minutes.
const BUCKETS: usize = 160;

/// How often something took how long, on a logarithmic scale: a time is off by at most an eighth.
#[derive(Debug)]
pub(crate) struct TimeHistogram {
    buckets: [AtomicU64; BUCKETS],
    sum_ns: AtomicU64,
}

impl Default for TimeHistogram {
    fn default() -> Self {
        Self { buckets: [const { AtomicU64::new(0) }; BUCKETS], sum_ns: AtomicU64::new(0) }
    }
}

impl TimeHistogram {
    pub(crate) fn add(&self, time: Duration) {
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        count(&self.buckets[bucket(ns)], 1);
        count(&self.sum_ns, ns);
    }

    /// Returns the times as the nanoseconds in the middle of each bucket that is not empty, and how many there were.
    pub(crate) fn times(&self) -> Vec<(u64, u64)> {
        let counts = self.buckets.iter().map(|bucket| bucket.load(Ordering::Relaxed));
        counts
            .enumerate()
            .filter(|(_, count)| *count > 0)
            .map(|(bucket, count)| (middle_ns(bucket), count))
            .collect()
    }

    pub(crate) fn sum_ns(&self) -> u64 {
        self.sum_ns.load(Ordering::Relaxed)
    }
}

fn bucket(ns: u64) -> usize {
    if ns < 4 {
        return ns as usize;
    }
    let exponent = 63 - ns.leading_zeros();
    let quarter = (ns >> (exponent - 2)) & 3;
    (4 * (exponent as usize - 1) + quarter as usize).min(BUCKETS - 1)
}

fn middle_ns(bucket: usize) -> u64 {
    if bucket < 8 {
        return bucket as u64;
    }
    let (exponent, quarter) = (bucket / 4 + 1, bucket as u64 % 4);
    let width = 1 << (exponent - 2);
    (4 + quarter) * width + width / 2
}

/// Returns the time in nanoseconds that this percentage of times do not exceed; the times are sorted, each with how
/// often it came. Returns `None` if there are none.
pub fn percentile_ns(times: &[(u64, u64)], percentage: f64) -> Option<u64> {
    let all: u64 = times.iter().map(|(_, count)| count).sum();
    let wanted = (all as f64 * percentage / 100.0).ceil() as u64;
    let mut seen = 0;
    let reached = times.iter().find(|(_, count)| {
        seen += count;
        seen >= wanted.max(1)
    });
    reached.map(|(ns, _)| *ns)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_is_off_by_at_most_an_eighth() {
        for exponent in 0..40 {
            for ns in [0, 1, 3].map(|more| (1_u64 << exponent) + more * (1 << exponent) / 5) {
                let middle = middle_ns(bucket(ns));
                assert!(middle.abs_diff(ns) <= ns / 8, "{ns} is counted as {middle}");
            }
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
        let middles: Vec<u64> = (0..BUCKETS).map(middle_ns).collect();
        assert!(middles.windows(2).all(|pair| pair[0] < pair[1]));
    }

    #[test]
    fn a_percentile_is_reached_and_not_passed() {
        let times = [(10, 50), (20, 49), (1000, 1)];
        for (percentage, ns) in [(0.0, 10), (50.0, 10), (50.1, 20), (99.0, 20), (99.1, 1000), (100.0, 1000)] {
            assert_eq!(percentile_ns(&times, percentage), Some(ns), "{percentage}");
        }
        assert_eq!(percentile_ns(&[], 50.0), None);
    }
}
