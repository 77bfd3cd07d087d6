//! Time as leases count it.

use std::ops::{Add, Sub};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds of `CLOCK_BOOTTIME`, which goes on while the machine sleeps and which nobody sets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BootTime(pub u64);

impl BootTime {
    /// Reads the clock. The logic of this crate gets its times as arguments.
    pub fn now() -> Self {
        let now = clock_gettime(ClockId::Boottime);
        Self(now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64)
    }

    /// Returns how long after `earlier` this is, or nothing at all.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for BootTime {
    type Output = Self;

    fn add(self, time: Duration) -> Self {
        Self(self.0.saturating_add(time.as_nanos() as u64))
    }
}

impl Sub<Duration> for BootTime {
    type Output = Self;

    fn sub(self, time: Duration) -> Self {
        Self(self.0.saturating_sub(time.as_nanos() as u64))
    }
}
