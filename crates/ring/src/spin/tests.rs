use super::*;

const POLL_NS: u64 = 300;

/// Polls from `now` until the policy sleeps or `until` passes; returns when that was.
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
fn a_core_that_is_taken_away_is_given_up() {
    let mut policy = SpinPolicy::new(SpinMode::Auto);
    let mut now = 1_000_000;
    for _ in 0..GAP_POLLS {
        assert_eq!(policy.nothing(now), Turn::Spin);
        now += POLL_NS;
    }
    now += 2 * GAP_NS; // another thread ran
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
fn a_peer_that_runs_only_while_this_side_sleeps_is_slept_for() {
    let mut policy = SpinPolicy::new(SpinMode::Auto);
    let (mut now, mut spun) = (1_000_000, 0);
    for _ in 0..10_000 {
        policy.found(now);
        let (at, turn) = spin(&mut policy, now + POLL_NS, u64::MAX);
        assert_eq!(turn, Turn::Sleep);
        spun += at - now - POLL_NS;
        now = at + 10_000;
        policy.woken(now);
    }
    assert!(spun < now / 100, "{spun} ns of {now} were spun for nothing");
}

#[test]
fn two_sides_that_sleep_find_out_that_they_need_not() {
    let mut policy = SpinPolicy::new(SpinMode::Auto);
    let mut now = 1_000_000;
    // Rare messages first: the budget goes down to nothing.
    for _ in 0..10 {
        policy.woken(now);
        policy.found(now);
        now = spin(&mut policy, now + POLL_NS, u64::MAX).0 + 10_000_000;
    }
    assert!(policy.budget_ns() < SPIN_NS_MIN);
    // Then a ping-pong: each answer comes 35 us after going to sleep, or 20 into a spin.
    policy.woken(now);
    policy.found(now);
    assert_eq!(policy.nothing(now + POLL_NS), Turn::Sleep);
    now += 35_000;
    policy.woken(now);
    policy.found(now);
    assert_eq!(spin(&mut policy, now + POLL_NS, now + 20_000).1, Turn::Spin);
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
