//! What every backend must do, whatever it promises beyond that. Each test takes a new pair.

use std::sync::atomic::Ordering;
use std::time::Duration;

use caravan_fabric::Error;
use caravan_fabric::contract::{Event, Local, Operation};
use caravan_fabric::sim::Random;

use super::pair::Pair;
use super::pattern::Pattern;
use super::{PATIENCE, readable};

/// The number of bytes of each arena in these tests.
pub const ARENA_BYTES: u64 = 16 << 10;

fn write(at: u64, bytes: u32, immediate: Option<u32>, context: u64) -> Operation {
    Operation::Write { from: Local { offset: at, bytes }, to: at, immediate, context }
}

fn is_done(event: &Event, context: u64) -> bool {
    matches!(event, Event::Done(completion) if completion.context == context)
}

fn done_count(seen: &[Event]) -> usize {
    seen.iter().filter(|event| matches!(event, Event::Done(_))).count()
}

fn immediates(seen: &[Event]) -> Vec<u32> {
    seen.iter()
        .filter_map(|event| match event {
            Event::Immediate(immediate) => Some(*immediate),
            _ => None,
        })
        .collect()
}

/// How long a bell that must ring may take. Of a simulated network, nothing more comes by itself.
fn patience(pair: &Pair) -> Duration {
    if pair.world.is_some() { Duration::ZERO } else { PATIENCE }
}

/// Immediates prove that the bytes of their writes have arrived; each comes once.
pub fn immediates_come_once_behind_their_bytes(mut pair: Pair, seed: u64) {
    const WRITES: u32 = 40;
    const BYTES: u64 = 200;
    let pattern = Pattern::new(seed);
    let mut source = vec![0; (u64::from(WRITES) * BYTES) as usize];
    pattern.fill(0, &mut source);
    pair.ends[0].arena().copy_in(0, &source);
    let mut checked = 0;
    let mut check = |pair: &Pair| {
        let told = immediates(&pair.seen[1]);
        for &number in &told[checked..] {
            let mut bytes = vec![0; BYTES as usize];
            let at = u64::from(number) * BYTES;
            pair.ends[1].arena().copy_out(at as usize, &mut bytes);
            pattern.check(at, &bytes);
        }
        checked = told.len();
    };
    for number in 0..WRITES {
        pair.start(0, write(u64::from(number) * BYTES, BYTES as u32, Some(number), u64::from(number)));
        check(&pair);
    }
    while immediates(&pair.seen[1]).len() < WRITES as usize {
        let before = pair.seen[1].len();
        pair.until(|seen| seen[1].len() > before);
        check(&pair);
    }
    pair.until(|seen| done_count(&seen[0]) == WRITES as usize);
    let mut told = immediates(&pair.seen[1]);
    told.sort_unstable();
    assert_eq!(told, (0..WRITES).collect::<Vec<_>>());
}

/// Where that is promised, immediates come in the order of their writes, however long those are.
pub fn immediates_come_in_order_where_that_is_promised(mut pair: Pair, seed: u64) {
    const WRITES: u32 = 40;
    if !pair.ends[0].capabilities().immediates_ordered {
        return;
    }
    let mut random = Random::new(seed);
    for number in 0..WRITES {
        pair.start(0, write(0, random.below(1000) as u32, Some(number), 0));
    }
    pair.until(|seen| immediates(&seen[1]).len() == WRITES as usize);
    assert_eq!(immediates(&pair.seen[1]), (0..WRITES).collect::<Vec<_>>());
}

/// After the completion of a write its source may change; the written bytes do not.
pub fn a_completed_write_needs_its_source_no_more(mut pair: Pair, seed: u64) {
    let pattern = Pattern::new(seed);
    let mut source = vec![0; 1000];
    pattern.fill(0, &mut source);
    pair.ends[0].arena().copy_in(0, &source);
    pair.start(0, write(0, 1000, Some(7), 1));
    pair.until(|seen| seen[0].iter().any(|event| is_done(event, 1)));
    pair.ends[0].arena().copy_in(0, &[0xEE; 1000]);
    pair.until(|seen| !immediates(&seen[1]).is_empty());
    let mut landed = vec![0; 1000];
    pair.ends[1].arena().copy_out(0, &mut landed);
    pattern.check(0, &landed);
}

/// A read copies the bytes to the requested place, and nowhere else.
pub fn reads_bring_bytes(mut pair: Pair, seed: u64) {
    let pattern = Pattern::new(seed);
    let mut source = vec![0; 3000];
    pattern.fill(0, &mut source);
    pair.ends[0].arena().copy_in(0, &source);
    pair.start(1, Operation::Read { from: 500, into: Local { offset: 8000, bytes: 1501 }, context: 3 });
    pair.until(|seen| seen[1].iter().any(|event| is_done(event, 3)));
    let mut read = vec![0; 1503];
    pair.ends[1].arena().copy_out(7999, &mut read);
    pattern.check(500, &read[1..1502]);
    assert_eq!((read[0], read[1502]), (0, 0));
}

/// One of several swaps succeeds, and all return the word that they found.
pub fn swaps_compare(mut pair: Pair, _seed: u64) {
    let swap = |expected, desired, context| Operation::CompareAndSwap { at: 64, expected, desired, context };
    if !pair.ends[0].capabilities().compare_and_swap {
        assert!(matches!(pair.ends[0].post(swap(0, 1, 0)), Err(Error::Unsupported(..))));
        return;
    }
    for context in 0..5 {
        pair.start(0, swap(0, 100 + context, context));
    }
    pair.until(|seen| done_count(&seen[0]) == 5);
    let found = |pair: &Pair, wanted: u64| {
        pair.seen[0].iter().find_map(|event| match event {
            Event::Done(completion) if completion.context == wanted => completion.found,
            _ => None,
        })
    };
    let winners: Vec<u64> = (0..5).filter(|&context| found(&pair, context) == Some(0)).collect();
    assert_eq!(winners.len(), 1, "{:?}", pair.seen[0]);
    let word = pair.ends[1].arena().word(64).load(Ordering::Acquire);
    assert_eq!(word, 100 + winners[0]);
    assert!((0..5).all(|context| matches!(found(&pair, context), Some(0 | 100..=104))));
    for at in [1, 4, 63] {
        let misaligned = Operation::CompareAndSwap { at, expected: 0, desired: 1, context: 0 };
        assert!(matches!(pair.ends[0].post(misaligned), Err(Error::Misaligned { .. })));
    }
}

/// Places outside an arena are refused, and the error names them.
pub fn places_outside_are_refused(mut pair: Pair, _seed: u64) {
    let capabilities = pair.ends[0].capabilities();
    for (offset, bytes) in [
        (ARENA_BYTES, 1),
        (ARENA_BYTES - 7, 8),
        (u64::MAX, 1),
        (u64::MAX - 7, 8),
        (0, ARENA_BYTES as u32 + 1),
    ] {
        let inside = Local { offset: 0, bytes };
        let outside = Local { offset, bytes };
        for operation in [
            Operation::Write { from: outside, to: 0, immediate: None, context: 0 },
            Operation::Write { from: inside, to: offset, immediate: Some(1), context: 0 },
            Operation::Read { from: offset, into: inside, context: 0 },
            Operation::Read { from: 0, into: outside, context: 0 },
        ] {
            let refused = pair.ends[0].post(operation);
            assert!(matches!(refused, Err(Error::OutOfArena { .. })), "{operation:?}: {refused:?}");
        }
    }
    if capabilities.compare_and_swap {
        for at in [ARENA_BYTES, u64::MAX - 7] {
            let swap = Operation::CompareAndSwap { at, expected: 0, desired: 1, context: 0 };
            assert!(matches!(pair.ends[0].post(swap), Err(Error::OutOfArena { .. })));
        }
    }
    pair.ends[0].doorbell().unwrap();
    pair.start(0, write(ARENA_BYTES - 8, 8, Some(9), 5));
    pair.until(|seen| immediates(&seen[1]) == [9] && done_count(&seen[0]) == 1);
}

/// A full queue refuses, starts nothing of what it refused, and takes more after polling; a side that
/// waits for room is woken.
pub fn a_full_queue_refuses_and_recovers(mut pair: Pair, _seed: u64) {
    pair.ends[0].arena().copy_in(0, &[1; 8]);
    pair.ends[0].arena().copy_in(8, &[2; 8]);
    let mut posted = 0;
    let refused = loop {
        let post = pair.ends[0].post(write(0, 8, Some(posted), 0));
        match post {
            Ok(()) => posted += 1,
            Err(error) => break error,
        }
        assert!(posted < 100_000, "its queue has no end");
    };
    assert!(matches!(refused, Error::Full(_)), "{refused}");
    assert!(matches!(pair.ends[0].post(write(8, 8, Some(posted), 0)), Err(Error::Full(_)) | Ok(())));
    pair.ends[0].doorbell().unwrap();
    let mut told = 0;
    for _ in 0..100_000 {
        pair.ends[0].poll(&mut pair.seen[0], 16).unwrap();
        if let Ok(()) = pair.ends[0].post(write(16, 8, Some(u32::MAX), 1)) {
            pair.ends[0].doorbell().unwrap();
            pair.until(|seen| immediates(&seen[1]).contains(&u32::MAX));
            return;
        }
        told += pair.ends[1].poll(&mut pair.seen[1], 16).unwrap();
    }
    panic!("a full queue stays full; the peer has taken {told} of {posted}");
}

/// An event between arming and waiting makes the descriptor readable; afterwards it is unreadable again.
pub fn no_wake_up_is_lost(mut pair: Pair, seed: u64) {
    let mut random = Random::new(seed);
    for number in 0..20 {
        let early = random.once_in(2);
        if early {
            pair.start(0, write(0, 8, Some(number), 0));
        }
        // Polls until the endpoint may be waited for: an early event has then come, or rings the bell.
        pair.arm(1);
        if !early {
            pair.start(0, write(0, 8, Some(number), 0));
        }
        while immediates(&pair.seen[1]).len() <= number as usize {
            for _ in 0..10_000 {
                if readable(pair.ends[1].wait_fd().unwrap(), Duration::ZERO) {
                    break;
                }
                pair.ends[0].poll(&mut pair.seen[0], 16).unwrap();
                if let Some(world) = &pair.world {
                    world.step();
                }
            }
            assert!(readable(pair.ends[1].wait_fd().unwrap(), patience(&pair)), "it sleeps for ever");
            // An agent of TCP may ring for one event twice: once more while the first ring is answered.
            let mut rings = 0;
            while readable(pair.ends[1].wait_fd().unwrap(), Duration::ZERO) {
                assert!(rings < 10, "an acknowledged bell rings on");
                pair.ends[1].acknowledge().unwrap();
                rings += 1;
            }
            pair.arm(1);
        }
    }
    pair.until(|seen| immediates(&seen[1]).len() == 20);
}

/// An explicit wake-up arrives at a peer that is armed.
pub fn a_peer_can_be_woken(mut pair: Pair, _seed: u64) {
    for (from, to) in [(0, 1), (1, 0)] {
        pair.arm(to);
        pair.ends[from].wake_peer().unwrap();
        while let Some(true) = pair.world.as_ref().map(|world| world.step()) {}
        assert!(readable(pair.ends[to].wait_fd().unwrap(), patience(&pair)), "it sleeps for ever");
        pair.ends[to].acknowledge().unwrap();
    }
}

/// Makes a test of each function of the suite, which `each` calls with new pairs; or one test of all of them, which
/// `each` calls with the name of a function, the breach that it must catch, and the function.
#[macro_export]
macro_rules! conformance {
    (tests $each:ident: $($test:ident $breach:ident)*) => {
        $(#[test]
        fn $test() {
            $each(common::conformance::$test);
        })*
    };
    (breaches $each:ident: $($test:ident $breach:ident)*) => {
        #[test]
        fn each_checker_of_conformance_catches_a_breach() {
            $($each(stringify!($test), PlantedBreach::$breach, conformance::$test);)*
        }
    };
    ($each:ident) => {
        conformance!(tests $each);
    };
    ($kind:ident $each:ident) => {
        conformance! { $kind $each:
            immediates_come_once_behind_their_bytes EarlyImmediate
            immediates_come_in_order_where_that_is_promised EmptyPromises
            a_completed_write_needs_its_source_no_more EarlyCompletion
            reads_bring_bytes LongRead
            swaps_compare FalseSwap
            places_outside_are_refused TakesAnything
            a_full_queue_refuses_and_recovers FullForEver
            no_wake_up_is_lost Unarmed
            a_peer_can_be_woken Unwoken
        }
    };
}
