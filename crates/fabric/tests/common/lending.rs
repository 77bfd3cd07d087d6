//! What every backend must do with regions. Each test takes a way to make pairs, whose first ends share one domain
//! where the backend has those. The first end of each pair owns the region, the second one borrows it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use caravan_fabric::contract::{Armed, Event, Local, Operation};
use caravan_fabric::sim::Random;
use caravan_fabric::{Error, Link, RING_BYTES_MIN, Region, RegionAccess, RegionNumber, RegionToken};

use super::pair::Pair;
use super::pattern::Pattern;
use super::{PATIENCE, readable};

/// The number of bytes of each region in these tests.
const REGION_BYTES: u64 = 32 << 10;
/// The number of borrowers of one region.
const PEERS: u64 = 64;
/// The number of reads after which a write must have landed.
const READS_MAX: u32 = 100_000;

/// Makes a new pair for a seed.
pub type MakePair<'a> = &'a mut dyn FnMut(u64) -> Pair;

fn region(seed: u64) -> Region {
    let region = Region::create("caravan-test", REGION_BYTES).unwrap();
    let mut bytes = vec![0; REGION_BYTES as usize];
    Pattern::new(seed).fill(0, &mut bytes);
    region.memory().copy_in(0, &bytes);
    region
}

fn is_untouched(region: &Region, seed: u64) {
    let mut bytes = vec![0; REGION_BYTES as usize];
    region.memory().copy_out(0, &mut bytes);
    Pattern::new(seed).check(0, &bytes);
}

/// Lends a region to the other end of a pair, by a token that has been through a message.
fn lend(pair: &mut Pair, region: &Region, access: RegionAccess) -> (RegionToken, RegionNumber) {
    let token = pair.ends[0].lend(region, access).unwrap();
    let sent = RegionToken::from_bytes(&token.to_bytes()).unwrap();
    let number = pair.ends[1].borrow(&sent).unwrap();
    assert_eq!((number, sent.bytes()), (token.number(), region.bytes()));
    (token, number)
}

/// Returns a token in which one byte is another.
fn forged(token: &RegionToken, at: usize, byte: u8) -> RegionToken {
    let mut bytes = token.to_bytes();
    bytes[at] = byte;
    RegionToken::from_bytes(&bytes).unwrap()
}

fn read(from: u64, into: u64, bytes: u32, context: u64) -> Operation {
    Operation::Read { from, into: Local { offset: into, bytes }, context }
}

fn write(from: u64, to: u64, bytes: u32) -> Operation {
    Operation::Write { from: Local { offset: from, bytes }, to, immediate: None, context: 9 }
}

fn done_count(events: &[Event]) -> usize {
    events.iter().filter(|event| matches!(event, Event::Done(_))).count()
}

/// Does one operation at the second end.
fn complete(pair: &mut Pair, operation: Operation) {
    let before = done_count(&pair.seen[1]);
    pair.start(1, operation);
    pair.until(|seen| done_count(&seen[1]) > before);
}

/// Reads all of a region, and checks the bytes.
fn reads_all(pair: &mut Pair, number: RegionNumber, seed: u64) {
    const BYTES: u32 = 4096;
    for from in (0..REGION_BYTES).step_by(BYTES as usize) {
        complete(pair, read(number.place(from), 1000, BYTES, 3));
        let mut bytes = vec![0; BYTES as usize];
        pair.ends[1].arena().copy_out(1000, &mut bytes);
        Pattern::new(seed).check(from, &bytes);
    }
}

/// Starts an operation that the owner must refuse, and returns the error.
fn refused(pair: &mut Pair, operation: Operation) -> Error {
    let before = done_count(&pair.seen[1]);
    let mut started = loop {
        match pair.ends[1].post(operation) {
            Err(Error::Full(_)) => drop(pair.ends[1].poll(&mut pair.seen[1], 16).unwrap()),
            started => break started,
        }
    };
    let begun = Instant::now();
    while begun.elapsed() < PATIENCE {
        started = started.and_then(|()| pair.ends[1].doorbell()).and_then(|()| pair.ends[1].flush());
        started = started.and_then(|()| pair.ends[1].poll(&mut pair.seen[1], 16).map(drop));
        // A write may complete before it is refused; what a read completes with was read.
        let is_read = matches!(operation, Operation::Read { .. });
        assert!(
            !is_read || started.is_err() || done_count(&pair.seen[1]) == before,
            "{operation:?} was done"
        );
        if let Err(error) = started {
            return error;
        }
        // The owner's end may end, too.
        let _ = pair.ends[0].poll(&mut pair.seen[0], 16);
    }
    panic!("{operation:?} is not refused; so far {:?}", pair.seen[1]);
}

/// A peer reads, writes and swaps in a region that is lent for that; the owner's processor sees it.
pub fn a_lent_region_is_within_reach(make: MakePair<'_>, seed: u64) {
    let (mut pair, region) = (make(seed), region(seed));
    let (_, number) = lend(&mut pair, &region, RegionAccess::Write);
    reads_all(&mut pair, number, seed);
    pair.ends[1].arena().copy_in(0, &[0xEE; 3000]);
    complete(&mut pair, write(0, number.place(5001), 3000));
    // A later read by the same peer finds what was written, once the write has landed.
    for _ in 0..READS_MAX {
        complete(&mut pair, read(number.place(5000), 4000, 3002, 4));
        let mut bytes = vec![0; 3002];
        pair.ends[1].arena().copy_out(4000, &mut bytes);
        if bytes[1..3001].iter().all(|&byte| byte == 0xEE) {
            break;
        }
    }
    let mut bytes = vec![0; 3002];
    region.memory().copy_out(5000, &mut bytes);
    assert!(bytes[1..3001].iter().all(|&byte| byte == 0xEE));
    Pattern::new(seed).check(5000, &bytes[..1]);
    Pattern::new(seed).check(8001, &bytes[3001..]);
    if pair.ends[1].capabilities().compare_and_swap {
        region.memory().word(64).store(5, Ordering::Release);
        let swap = Operation::CompareAndSwap { at: number.place(64), expected: 5, desired: 6, context: 8 };
        complete(&mut pair, swap);
        let found = pair.seen[1].iter().find_map(|event| match event {
            Event::Done(completion) if completion.context == 8 => completion.found,
            _ => None,
        });
        assert_eq!((found, region.memory().word(64).load(Ordering::Acquire)), (Some(5), 6));
    }
}

/// An immediate with a write to a region proves that the bytes have arrived.
pub fn an_immediate_comes_behind_bytes_of_a_region(make: MakePair<'_>, seed: u64) {
    let (mut pair, region) = (make(seed), region(seed));
    let (_, number) = lend(&mut pair, &region, RegionAccess::Write);
    pair.ends[1].arena().copy_in(0, &[0xEE; 2000]);
    let from = Local { offset: 0, bytes: 2000 };
    pair.start(1, Operation::Write { from, to: number.place(100), immediate: Some(77), context: 1 });
    pair.until(|seen| seen[0].contains(&Event::Immediate(77)));
    let mut bytes = vec![0; 2000];
    region.memory().copy_out(100, &mut bytes);
    assert!(bytes.iter().all(|&byte| byte == 0xEE));
}

/// Places that no region has, or that this side was not lent, are refused before anything starts.
pub fn wrong_places_of_regions_are_refused(make: MakePair<'_>, seed: u64) {
    let (mut pair, region) = (make(seed), region(seed));
    let (token, number) = lend(&mut pair, &region, RegionAccess::Read);
    for (offset, bytes) in [(REGION_BYTES, 1), (REGION_BYTES - 7, 8), (1 << 40, 1), (u64::MAX, 8)] {
        let outside = pair.ends[1].post(read(number.place(offset), 0, bytes, 0));
        assert!(matches!(outside, Err(Error::OutOfArena { .. })), "{offset}: {outside:?}");
    }
    let unlent = forged(&token, 1, 99).number();
    for operation in [read(unlent.place(0), 0, 8, 0), write(0, number.place(0), 8)] {
        let wrong = pair.ends[1].post(operation);
        assert!(matches!(wrong, Err(Error::NoRegion { .. })), "{operation:?}: {wrong:?}");
    }
    if pair.ends[1].capabilities().compare_and_swap {
        let swap = |at| Operation::CompareAndSwap { at, expected: 0, desired: 1, context: 0 };
        let refused = pair.ends[1].post(swap(number.place(0)));
        assert!(matches!(refused, Err(Error::NoRegion { .. })), "{refused:?}");
    }
    assert!(matches!(pair.ends[0].revoke(unlent), Err(Error::NoRegion { .. })));
    reads_all(&mut pair, number, seed);
    is_untouched(&region, seed);
}

/// A peer that pretends to have been lent more gets nothing of it.
pub fn nothing_beside_what_was_lent_is_reached(make: MakePair<'_>, seed: u64) {
    let number_at = 1;
    let access_at = 2;
    let bytes_at = 3 + 8 - 2;
    for case in 0..4 {
        let (mut pair, region) = (make(seed), region(seed));
        let token = pair.ends[0].lend(&region, RegionAccess::Read).unwrap();
        let (claimed, attack): (_, fn(RegionNumber) -> Operation) = match case {
            0 => (forged(&token, bytes_at, 0xff), |number| read(number.place(REGION_BYTES), 0, 64, 0)),
            1 => (forged(&token, bytes_at, 0xff), |number| read(number.place(REGION_BYTES - 8), 0, 64, 0)),
            2 => (forged(&token, access_at, 2), |number| write(0, number.place(0), 64)),
            _ => (forged(&token, number_at, 2), |number| read(number.place(0), 0, 64, 0)),
        };
        // On some devices, the number alone does not decide what is reached.
        if case == 3 && pair.ends[0].provider() == caravan_fabric::contract::Provider::Rdma {
            continue;
        }
        let error = match pair.ends[1].borrow(&claimed) {
            Ok(number) => refused(&mut pair, attack(number)),
            Err(error) => error,
        };
        assert!(
            matches!(
                error,
                Error::Revoked(..) | Error::Protocol(..) | Error::PeerGone(..) | Error::Device { .. }
            ),
            "case {case}: {error:?}"
        );
        is_untouched(&region, seed);
        let mut bytes = [0; 64];
        pair.ends[1].arena().copy_out(0, &mut bytes);
        // Of a read across the end, the bytes before the end may come.
        let allowed = if case == 1 { 8 } else { 0 };
        assert_eq!(bytes[allowed..], [0; 64][allowed..], "case {case}: something was read");
        // The owner can lend the region to somebody else.
        let mut other = make(!seed);
        let (_, number) = lend(&mut other, &region, RegionAccess::Read);
        reads_all(&mut other, number, seed);
    }
}

/// A region that was revoked can be reached no more, also by operations that were posted before.
pub fn a_revoked_region_is_out_of_reach(make: MakePair<'_>, seed: u64) {
    for access in [RegionAccess::Read, RegionAccess::Write] {
        let (mut pair, region) = (make(seed), region(seed));
        let (_, first) = lend(&mut pair, &region, access);
        let (_, second) = lend(&mut pair, &region, access);
        assert_ne!(first, second);
        reads_all(&mut pair, first, seed);
        pair.ends[0].revoke(second).unwrap();
        let attack = match access {
            RegionAccess::Read => read(second.place(64), 0, 64, 0),
            RegionAccess::Write => write(0, second.place(64), 64),
        };
        let error = refused(&mut pair, attack);
        assert!(matches!(error, Error::Revoked(..) | Error::PeerGone(..)), "{error:?}");
        is_untouched(&region, seed);
        let _ = pair.ends[0].poll(&mut pair.seen[0], 16);
        assert!(matches!(pair.ends[0].revoke(second), Err(Error::NoRegion { .. })));
    }
}

/// Many peers borrow one region, which is registered once. Some end in the middle of an operation, and one's loan is
/// revoked; the others never notice.
pub fn many_peers_borrow_one_region(make: MakePair<'_>, seed: u64) {
    let (region, mut random) = (region(seed), Random::new(seed));
    let mut pairs = Vec::new();
    for peer in 0..PEERS {
        let mut pair = make(seed.wrapping_mul(PEERS).wrapping_add(peer));
        let before = pair.ends[0].counts().registered_bytes;
        let (token, number) = lend(&mut pair, &region, RegionAccess::Read);
        let registered = pair.ends[0].counts().registered_bytes - before;
        assert!(registered == 0 || peer == 0, "peer {peer}: {registered} bytes are registered again");
        pairs.push((pair, token, number));
    }
    for round in 0..4 {
        for (pair, _, number) in &mut pairs {
            let from = 8 * random.below(REGION_BYTES / 8 - 128);
            pair.start(1, read(number.place(from), 0, 1024, from));
        }
        // As SIGKILL does: nothing more of this peer is taken.
        pairs.swap_remove(random.below(pairs.len() as u64) as usize);
        if round == 1 {
            let (mut revoked, token, _) = pairs.swap_remove(0);
            revoked.ends[0].revoke(token.number()).unwrap();
        }
        for (pair, _, _) in &mut pairs {
            pair.until(|seen| done_count(&seen[1]) == 1);
            let Some(Event::Done(completion)) = pair.seen[1].pop() else { panic!("{:?}", pair.seen[1]) };
            let mut bytes = vec![0; 1024];
            pair.ends[1].arena().copy_out(0, &mut bytes);
            Pattern::new(seed).check(completion.context, &bytes);
        }
    }
    is_untouched(&region, seed);
}

/// Where words are promised to be read whole, none is torn while the owner's processor stores to it all the time.
pub fn words_are_read_whole_where_that_is_promised(make: MakePair<'_>, seed: u64) {
    const WORDS: u64 = 32;
    const READS: u64 = 200;
    let (mut pair, region) = (make(seed), region(seed));
    if !pair.ends[1].capabilities().reads_words_atomically {
        return;
    }
    // Both halves of a word are the same.
    let store = |word: u64, value: u64| {
        let half = value & 0xffff_ffff;
        region.memory().word(word as usize * 8).store(half << 32 | half, Ordering::Relaxed);
    };
    (0..WORDS).for_each(|word| store(word, 0));
    let (_, number) = lend(&mut pair, &region, RegionAccess::Read);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for value in 0.. {
                (0..WORDS).for_each(|word| store(word, value));
                if over.load(Ordering::Relaxed) {
                    return;
                }
            }
        });
        for number_of_read in 0..READS {
            complete(&mut pair, read(number.place(0), 8, WORDS as u32 * 8 + 4, number_of_read));
            for word in 0..WORDS {
                let seen = pair.ends[1].arena().word(8 + word as usize * 8).load(Ordering::Relaxed);
                if seen >> 32 != seen & 0xffff_ffff {
                    over.store(true, Ordering::Relaxed);
                    panic!("word {word} is torn: {seen:x}");
                }
            }
        }
        over.store(true, Ordering::Relaxed);
    });
}

/// A link and its user share one endpoint: a stream and reads of a region go on at the same time, neither takes what is
/// the other's, and a user that sleeps is woken by its completions.
pub fn a_link_shares_its_endpoint_with_its_user(make: MakePair<'_>, seed: u64) {
    const STREAM_BYTES: u64 = 5 * RING_BYTES_MIN;
    const READS: u64 = 40;
    let (region, stream) = (region(seed), Pattern::new(!seed));
    let ([mut owner, mut user], world) = make(seed).links(RING_BYTES_MIN);
    let token = owner.lend(&region, RegionAccess::Read).unwrap();
    let number = user.borrow(&token).unwrap();
    let at = Link::arena_bytes(RING_BYTES_MIN).unwrap();
    for (from, into) in [(0, at), (number.place(0), at - 8), (number.place(0), 0)] {
        assert!(matches!(user.post(read(from, into, 8, 0)), Err(Error::OutOfArena { .. })), "{from} {into}");
    }
    assert!(matches!(user.post(read(number.place(0), at, 8, 1 << 63)), Err(Error::Unsupported(..))));
    let (mut sent, mut received, mut reads, mut posted) = (0, 0, 0, 0);
    let (begun, mut done) = (Instant::now(), Vec::new());
    while received < STREAM_BYTES || reads < READS {
        assert!(begun.elapsed() < PATIENCE, "{sent} sent, {received} received, {reads} reads");
        let mut bytes = vec![0; (STREAM_BYTES - sent).min(777) as usize];
        stream.fill(sent, &mut bytes);
        sent += owner.append(&bytes).unwrap() as u64;
        owner.publish().unwrap();
        owner.refresh().unwrap();
        user.refresh().unwrap();
        let mut bytes = [0; 777];
        let count = user.read(&mut bytes);
        stream.check(received, &bytes[..count]);
        received += count as u64;
        user.release().unwrap();
        if posted < READS && posted == reads {
            let from = posted * 512 % REGION_BYTES;
            if user.post(read(number.place(from), at + 64, 500, from)).is_ok() {
                posted += 1;
                user.start().unwrap();
            }
        }
        user.completions(&mut done, 16).unwrap();
        for completion in done.drain(..) {
            let mut bytes = vec![0; 500];
            user.arena().copy_out(at as usize + 64, &mut bytes);
            Pattern::new(seed).check(completion.context, &bytes);
            reads += 1;
        }
        world.as_ref().map(|world| world.step());
        if user.arm(0).unwrap() == Armed::Wait {
            let has_work = sent < STREAM_BYTES || owner.room().unwrap() < RING_BYTES_MIN as usize;
            while !has_work && posted > reads && !readable(user.wait_fd().unwrap(), Duration::from_millis(1))
            {
                assert!(begun.elapsed() < PATIENCE, "it sleeps for ever");
                owner.refresh().unwrap();
                world.as_ref().map(|world| world.step());
            }
            user.acknowledge().unwrap();
            user.awake();
        }
    }
}

/// Where memory is mapped, a borrower reads it by loads.
pub fn a_window_shows_the_region(make: MakePair<'_>, seed: u64) {
    let (mut pair, region) = (make(seed), region(seed));
    for access in [RegionAccess::Read, RegionAccess::Write] {
        let (_, number) = lend(&mut pair, &region, access);
        let Some(window) = pair.ends[1].window(number) else {
            assert!(!pair.ends[1].capabilities().mapped);
            return;
        };
        let mut bytes = vec![0; REGION_BYTES as usize];
        window.copy_out(0, &mut bytes);
        Pattern::new(seed).check(0, &bytes);
        region.memory().word(0).store(u64::from(access == RegionAccess::Read), Ordering::Relaxed);
        assert_eq!(window.load(0), u64::from(access == RegionAccess::Read));
        let mut word = [0; 8];
        Pattern::new(seed).fill(0, &mut word);
        region.memory().copy_in(0, &word);
    }
}

/// Makes a test of each function of the suite, which `each` calls with a way to make pairs; or one test of all of
/// them, which `each` calls with the name of a function, the breach that it must catch, and the function.
#[macro_export]
macro_rules! lending {
    (tests $each:ident: $($test:ident $breach:ident)*) => {
        $(#[test]
        fn $test() {
            $each(common::lending::$test);
        })*
    };
    (breaches $each:ident: $($test:ident $breach:ident)*) => {
        #[test]
        fn each_checker_of_lending_catches_a_breach() {
            $($each(stringify!($test), PlantedBreach::$breach, lending::$test);)*
        }
    };
    ($each:ident) => {
        lending!(tests $each);
    };
    ($kind:ident $each:ident) => {
        lending! { $kind $each:
            a_lent_region_is_within_reach LongWrite
            an_immediate_comes_behind_bytes_of_a_region EarlyImmediate
            wrong_places_of_regions_are_refused TakesAnything
            nothing_beside_what_was_lent_is_reached LendsTwice
            a_revoked_region_is_out_of_reach Unrevoked
            many_peers_borrow_one_region RegistersAgain
            words_are_read_whole_where_that_is_promised EmptyPromises
            a_window_shows_the_region NoWindow
            a_link_shares_its_endpoint_with_its_user WrongContext
        }
    };
}
