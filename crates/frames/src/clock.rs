//! The clock of capture times.

use rustix::time::{ClockId, clock_gettime};

/// Returns the nanoseconds of `CLOCK_MONOTONIC`, which all processes of a host share.
pub fn monotonic_ns() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
