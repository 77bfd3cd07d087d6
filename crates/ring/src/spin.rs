//! When to poll on, and when to sleep.
//!
//! A wake-up costs 16 to 18 us on either side; an empty poll a fraction of one. Spinning for about
//! as long as wake-ups cost before sleeping is never worse than twice the best (the ski-rental
//! bound), if this thread has the core to itself. Otherwise, spinning keeps the peer itself from
//! running. The policy therefore spins only where it pays:
//!
//! | seen | then |
//! |---|---|
//! | woken soon after going to sleep | the next spell is spun for, as long as allowed: the answer may come much sooner to a peer that need not wake this side |
//! | a spin found something | the next one may take twice as long as it took |
//! | a spin found nothing | the next one is half as long, down to none |
//! | a whole spin found nothing, yet the bell rang soon after | the peer ran only once this side slept: they share a core. Spinning pauses |
//! | a gap within a spin | something else had the core. Spinning pauses |
//!
//! A pause doubles each time up to 20 ms, in which a spin costs 0.25 %, and is short again after a run
//! of successes.
//!
//! Time is an argument; all values are nanoseconds of a monotonic clock.

/// The time that the wake-ups of an exchange cost both sides together.
pub const WAKE_NS: u64 = 35_000;
/// The duration of the longest spin.
pub const SPIN_NS_MAX: u64 = 50_000;
/// The duration of the shortest spin worth starting.
const SPIN_NS_MIN: u64 = 2_000;
/// A gap between two polls of a spin that means another thread had the core.
const GAP_NS: u64 = 40_000;
/// A gap between two polls within which nothing but this waiter ran.
const PROMPT_NS: u64 = 4_000;
/// The number of empty polls that make a spin: before that, a gap may be other work of this thread.
const GAP_POLLS: u32 = 4;
/// How long spinning pauses at first, and at most.
const PAUSE_NS_MIN: u64 = 1_000_000;
const PAUSE_NS_MAX: u64 = 20_000_000;
/// The number of successes in a row that make the next pause short again.
const TRUSTED_HITS: u32 = 32;

/// When a waiter spins, as the user has chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpinMode {
    /// The waiter never spins: it sleeps as soon as there is nothing.
    Off,
    /// The waiter spins where it pays.
    Auto,
    /// The waiter always spins for `SPIN_NS_MAX`, for machines with cores to spare.
    On,
}

/// What to do after a poll that found nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Poll again, after letting other threads run.
    Spin,
    /// Arm and wait.
    Sleep,
}

/// Remembers for one waiter whether spinning has paid. Every waiter has a value of its own.
///
/// ```
/// use caravan_ring::{SpinMode, SpinPolicy, Turn};
///
/// let mut policy = SpinPolicy::new(SpinMode::Auto);
/// // A poll at 1,000 ns found nothing: poll again. One at 2,000 ns found something.
/// assert_eq!(policy.nothing(1_000), Turn::Spin);
/// policy.found(2_000);
/// // With `Off` the waiter sleeps as soon as there is nothing.
/// assert_eq!(SpinPolicy::new(SpinMode::Off).nothing(1_000), Turn::Sleep);
/// ```
#[derive(Clone, Debug)]
pub struct SpinPolicy {
    mode: SpinMode,
    /// How long the next idle spell may spin.
    budget_ns: u64,
    idle: Option<IdleSpell>,
    last_poll: u64,
    slept: Option<Sleep>,
    paused_until: u64,
    pause_ns: u64,
    hits_in_row: u32,
    spins: u64,
    hits: u64,
}

/// A time during which polls find nothing.
#[derive(Clone, Copy, Debug)]
struct IdleSpell {
    since: u64,
    polls: u32,
}

/// The last time that the waiter went to sleep.
#[derive(Clone, Copy, Debug)]
struct Sleep {
    at: u64,
    after_full_spin: bool,
}

impl SpinPolicy {
    /// Returns a policy that has learnt nothing yet.
    pub fn new(mode: SpinMode) -> Self {
        Self {
            mode,
            budget_ns: if mode == SpinMode::Off { 0 } else { SPIN_NS_MAX },
            idle: None,
            last_poll: 0,
            slept: None,
            paused_until: 0,
            pause_ns: PAUSE_NS_MIN,
            hits_in_row: 0,
            spins: 0,
            hits: 0,
        }
    }

    /// Returns the number of idle spells in which the waiter spun.
    pub fn spins(&self) -> u64 {
        self.spins
    }

    /// Returns the number of spins that ended with something found.
    pub fn hits(&self) -> u64 {
        self.hits
    }

    /// Returns how long the next idle spell may spin.
    pub fn budget_ns(&self) -> u64 {
        self.budget_ns
    }

    /// Tells the policy that a poll found something.
    #[inline]
    pub fn found(&mut self, now: u64) {
        if let Some(IdleSpell { since, polls }) = self.idle.take() {
            self.hits += 1;
            if self.mode == SpinMode::Auto {
                if self.gap(now, polls) {
                    self.pause(now);
                } else {
                    let took = now.saturating_sub(since);
                    self.budget_ns = self.budget_ns.max(2 * took).clamp(SPIN_NS_MIN, SPIN_NS_MAX);
                    // After a longer gap something else ran in between, perhaps the peer itself on
                    // this very core: no proof that the spin was worth it.
                    if now.saturating_sub(self.last_poll) <= PROMPT_NS {
                        self.hits_in_row += 1;
                    }
                    if self.hits_in_row >= TRUSTED_HITS {
                        self.pause_ns = PAUSE_NS_MIN;
                    }
                }
            }
        }
        self.last_poll = now;
    }

    /// Tells the policy that a poll found nothing, and returns what to do.
    #[inline]
    pub fn nothing(&mut self, now: u64) -> Turn {
        let Some(IdleSpell { since, polls }) = self.idle else {
            self.last_poll = now;
            if self.budget_ns < SPIN_NS_MIN || now < self.paused_until {
                return self.sleep(now, false);
            }
            self.spins += 1;
            self.idle = Some(IdleSpell { since: now, polls: 1 });
            return Turn::Spin;
        };
        if self.mode == SpinMode::Auto && self.gap(now, polls) {
            self.pause(now);
            return self.sleep(now, false);
        }
        self.last_poll = now;
        if now.saturating_sub(since) < self.budget_ns {
            self.idle = Some(IdleSpell { since, polls: polls.saturating_add(1) });
            return Turn::Spin;
        }
        let full = self.budget_ns == SPIN_NS_MAX;
        if self.mode == SpinMode::Auto {
            self.budget_ns /= 2;
            self.hits_in_row = 0;
        }
        self.sleep(now, full)
    }

    /// Tells the policy that the bell rang: how soon shows whether a spin could have caught it.
    pub fn woken(&mut self, now: u64) {
        self.last_poll = now;
        let Some(Sleep { at, after_full_spin }) = self.slept.take() else { return };
        if self.mode != SpinMode::Auto || now.saturating_sub(at) > SPIN_NS_MAX + WAKE_NS {
            return;
        }
        if after_full_spin {
            self.pause(now);
        } else {
            self.budget_ns = SPIN_NS_MAX;
        }
    }

    fn gap(&self, now: u64, polls: u32) -> bool {
        polls >= GAP_POLLS && now.saturating_sub(self.last_poll) > GAP_NS
    }

    fn sleep(&mut self, now: u64, after_full_spin: bool) -> Turn {
        self.idle = None;
        self.slept = Some(Sleep { at: now, after_full_spin });
        Turn::Sleep
    }

    /// Pauses spinning, because another thread wants the core.
    fn pause(&mut self, now: u64) {
        self.paused_until = now + self.pause_ns;
        self.pause_ns = (self.pause_ns * 2).min(PAUSE_NS_MAX);
        self.hits_in_row = 0;
    }
}

#[cfg(test)]
mod tests;
