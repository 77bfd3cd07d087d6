//! What all test programs share.
#![allow(dead_code, reason = "each test program uses a part")]

pub mod conformance;
pub mod forge;
pub mod hostile;
pub mod hosts;
pub mod lending;
pub mod pair;
pub mod party;
pub mod pattern;
pub mod process;
pub mod tcp_liar;
pub mod torn;

use std::os::fd::BorrowedFd;
use std::time::Duration;

use caravan_fabric::sim::Random;
use rustix::event::{PollFd, PollFlags, Timespec};

pub use pair::PATIENCE;

/// Waits until `descriptor` is readable. False if it takes longer than `limit`.
pub fn readable(descriptor: BorrowedFd<'_>, limit: Duration) -> bool {
    readable_any([descriptor], limit)
}

/// Waits until one of `descriptors` is readable. False if it takes longer than `limit`.
pub fn readable_any<const N: usize>(descriptors: [BorrowedFd<'_>; N], limit: Duration) -> bool {
    let limit = Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: i64::from(limit.subsec_nanos()) };
    let mut set = descriptors.each_ref().map(|descriptor| PollFd::new(descriptor, PollFlags::IN));
    rustix::event::poll(&mut set, Some(&limit)).is_ok_and(|count| count > 0)
}

/// Returns a number from 1 to `end` that is small as often as it is large.
pub fn any_size(random: &mut Random, end: u64) -> u64 {
    let bits = 1 + random.below(u64::from(end.ilog2()) + 1);
    1 + random.number() % (1 << bits).min(end)
}

/// Returns the seeds of a test: the first `count`; CARAVAN_SEED=N gives only that one, CARAVAN_SEEDS=N gives N.
pub fn seeds(count: u64) -> std::ops::Range<u64> {
    let variable = |name| std::env::var(name).ok()?.parse::<u64>().ok();
    match (variable("CARAVAN_SEED"), variable("CARAVAN_SEEDS")) {
        (Some(seed), _) => seed..seed + 1,
        (None, count_wanted) => 0..count_wanted.unwrap_or(count),
    }
}
