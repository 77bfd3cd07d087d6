//! When to poll on, and when to sleep.
//!
//! A wake-up costs 16 to 18 us on either side; an empty poll a fraction of one. Spinning for as
//! long as a wake-up costs before sleeping is never worse than twice the best (the ski-rental
//! bound), if the core is this thread's. If it is not, spinning keeps the peer itself from
//! running. The policy therefore spins only where it has lately paid off, for about as long as it
//! took to pay off, and stops for a while as soon as it sees that the core is wanted elsewhere: a
//! gap between two polls of an idle spin means that something else ran in between.
//!
//! Time is an argument; all values are nanoseconds of a monotonic clock.

/// What a wake-up costs both sides together; the unit of every decision here.
pub const WAKE_NS: u64 = 20_000;
/// The longest spin.
pub const SPIN_NS_MAX: u64 = 50_000;
/// The shortest spin worth starting.
const SPIN_NS_MIN: u64 = 2_000;
/// A gap between two polls of a spin that means another thread had the core.
const GAP_NS: u64 = 15_000;
/// How long spinning stops after such a gap, at first and at most.
const PAUSE_NS_MIN: u64 = 5_000_000;
const PAUSE_NS_MAX: u64 = 500_000_000;

/// What the user asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpinMode {
    /// Never: sleep as soon as there is nothing.
    Off,
    /// Where it pays.
    Auto,
    /// Always for [`SPIN_NS_MAX`], for machines with cores to spare.
    On,
}

/// What to do after a poll that found nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Poll again, after letting others run.
    Spin,
    /// Arm and wait.
    Sleep,
}

/// One waiter's memory of whether spinning has paid.
#[derive(Clone, Debug)]
pub struct SpinPolicy {
    mode: SpinMode,
    /// How long the next idle spell may spin.
    budget_ns: u64,
    /// Since when there has been nothing.
    idle_since: Option<u64>,
    last_poll: u64,
    slept_at: Option<u64>,
    paused_until: u64,
    pause_ns: u64,
    spins: u64,
    hits: u64,
}

impl SpinPolicy {
    /// A policy that knows nothing yet.
    pub fn new(mode: SpinMode) -> Self {
        Self {
            mode,
            budget_ns: if mode == SpinMode::Off { 0 } else { SPIN_NS_MAX },
            idle_since: None,
            last_poll: 0,
            slept_at: None,
            paused_until: 0,
            pause_ns: PAUSE_NS_MIN,
            spins: 0,
            hits: 0,
        }
    }

    /// Idle spells that were spun through.
    pub fn spins(&self) -> u64 {
        self.spins
    }

    /// Of those, how many ended with something found.
    pub fn hits(&self) -> u64 {
        self.hits
    }

    /// How long the next idle spell may spin.
    pub fn budget_ns(&self) -> u64 {
        self.budget_ns
    }

    /// A poll found something.
    #[inline]
    pub fn found(&mut self, now: u64) {
        if let Some(since) = self.idle_since.take() {
            self.hits += 1;
            if self.mode == SpinMode::Auto {
                if now.saturating_sub(self.last_poll) > GAP_NS {
                    self.pause(now);
                } else {
                    let took = now.saturating_sub(since);
                    self.budget_ns = self.budget_ns.max(2 * took).clamp(SPIN_NS_MIN, SPIN_NS_MAX);
                    self.pause_ns = (self.pause_ns / 2).max(PAUSE_NS_MIN);
                }
            }
        }
        self.last_poll = now;
    }

    /// A poll found nothing.
    #[inline]
    pub fn nothing(&mut self, now: u64) -> Turn {
        let Some(since) = self.idle_since else {
            self.last_poll = now;
            if self.budget_ns < SPIN_NS_MIN || now < self.paused_until {
                return self.sleep(now);
            }
            self.spins += 1;
            self.idle_since = Some(now);
            return Turn::Spin;
        };
        if self.mode == SpinMode::Auto && now.saturating_sub(self.last_poll) > GAP_NS {
            self.pause(now);
            return self.sleep(now);
        }
        self.last_poll = now;
        if now.saturating_sub(since) < self.budget_ns {
            return Turn::Spin;
        }
        if self.mode == SpinMode::Auto {
            self.budget_ns /= 2;
        }
        self.sleep(now)
    }

    /// The bell rang: how soon says whether a spin would have caught it.
    pub fn woken(&mut self, now: u64) {
        self.last_poll = now;
        let Some(slept_at) = self.slept_at.take() else { return };
        if self.mode != SpinMode::Auto {
            return;
        }
        if now.saturating_sub(slept_at) <= SPIN_NS_MAX + WAKE_NS {
            self.budget_ns = (self.budget_ns * 2).clamp(4 * SPIN_NS_MIN, SPIN_NS_MAX);
        }
    }

    fn sleep(&mut self, now: u64) -> Turn {
        self.idle_since = None;
        self.slept_at = Some(now);
        Turn::Sleep
    }

    /// The core is wanted elsewhere.
    fn pause(&mut self, now: u64) {
        self.paused_until = now + self.pause_ns;
        self.pause_ns = (self.pause_ns * 2).min(PAUSE_NS_MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLL_NS: u64 = 300;

    /// Polls from `now` until it sleeps or `until` passes; returns when that was.
    fn spin(policy: &mut SpinPolicy, mut now: u64, until: u64) -> (u64, Turn) {
        loop {
            if policy.nothing(now) == Turn::Sleep {
                return (now, Turn::Sleep);
            }
            now += POLL_NS;
            if now >= until {
                return (now, Turn::Spin);
            }
        }
    }

    #[test]
    fn quick_answers_are_spun_for() {
        let mut policy = SpinPolicy::new(SpinMode::Auto);
        let mut now = 1_000_000;
        for _ in 0..100 {
            policy.found(now);
            let (at, turn) = spin(&mut policy, now + POLL_NS, now + 3_000);
            assert_eq!(turn, Turn::Spin);
            now = at;
        }
        assert_eq!((policy.spins(), policy.hits()), (100, 99));
    }

    #[test]
    fn rare_messages_stop_the_spinning() {
        let mut policy = SpinPolicy::new(SpinMode::Auto);
        let (mut now, mut spun) = (1_000_000, 0);
        for _ in 0..100 {
            policy.woken(now);
            policy.found(now);
            let (at, turn) = spin(&mut policy, now + POLL_NS, u64::MAX);
            assert_eq!(turn, Turn::Sleep);
            spun += at - now;
            now = at + 10_000_000;
        }
        assert!(spun < 3 * SPIN_NS_MAX, "{spun} ns were spun for nothing");
    }

    #[test]
    fn a_core_that_is_wanted_elsewhere_is_given_up() {
        let mut policy = SpinPolicy::new(SpinMode::Auto);
        let mut now = 1_000_000;
        assert_eq!(policy.nothing(now), Turn::Spin);
        now += 40_000; // another thread ran
        assert_eq!(policy.nothing(now), Turn::Sleep);
        policy.woken(now + 1_000);
        policy.found(now + 1_000);
        assert_eq!(policy.nothing(now + 1_300), Turn::Sleep, "not again so soon");
        let later = now + 2 * PAUSE_NS_MIN;
        policy.woken(later);
        policy.found(later);
        assert_eq!(policy.nothing(later + POLL_NS), Turn::Spin, "it is tried again");
    }

    #[test]
    fn off_is_off_and_on_is_bounded() {
        let mut off = SpinPolicy::new(SpinMode::Off);
        off.found(1_000);
        assert_eq!(off.nothing(1_300), Turn::Sleep);
        let mut on = SpinPolicy::new(SpinMode::On);
        for round in 0..10 {
            let start = round * 1_000_000_000;
            on.woken(start);
            on.found(start);
            let (at, turn) = spin(&mut on, start + POLL_NS, u64::MAX);
            assert_eq!(turn, Turn::Sleep);
            assert!((SPIN_NS_MAX..SPIN_NS_MAX + 3 * POLL_NS).contains(&(at - start - POLL_NS)));
        }
    }
}
