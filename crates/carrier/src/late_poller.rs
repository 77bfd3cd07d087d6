//! Lets a stream do without the poller process while that comes late.
//!
//! The poller is one process among many. When the schedulers have more to run than they can, its turn comes
//! late, and a stream that only moves in its turns crawls (with 100 processes that never
//! rest, to a tenth of what TCP carries). Ports are better off: the emulator gives them their share
//! before processes get theirs.

use crate::limits::{LATE_NS, LATE_SPELL_NS_MAX, LATE_SPELL_NS_MIN};

/// Remembers for one connection whether the poller came in time.
#[derive(Debug)]
pub struct LatePoller {
    called: Option<u64>,
    late_until: u64,
    spell_ns: u64,
}

impl Default for LatePoller {
    fn default() -> Self {
        Self { called: None, late_until: 0, spell_ns: LATE_SPELL_NS_MIN }
    }
}

impl LatePoller {
    /// Notes that the poller has been called.
    pub fn called(&mut self, now: u64) {
        self.called = Some(now);
    }

    /// Notes that the poller has come. Each time that it is late again, streams do without it for twice as long:
    /// finding out costs as much as the wait for it.
    pub fn came(&mut self, now: u64) {
        let Some(called) = self.called.take() else { return };
        if now.saturating_sub(called) < LATE_NS {
            if now >= self.late_until {
                self.spell_ns = LATE_SPELL_NS_MIN;
            }
        } else {
            self.late_until = now + self.spell_ns;
            self.spell_ns = (2 * self.spell_ns).min(LATE_SPELL_NS_MAX);
        }
    }

    /// True while streams do without the poller.
    pub fn is_late(&self, now: u64) -> bool {
        now < self.late_until
    }
}
