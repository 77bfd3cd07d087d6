//! Reads of an object in a lent region while its owner writes it all the time. The reader has nothing but a checksum to
//! tell whether its bytes are of one write, as a store's reader on another host.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::time::{Duration, Instant};

use caravan_fabric::contract::{Event, Local, Operation};
use caravan_fabric::sim::Random;
use caravan_fabric::{Exposure, Region, RegionAccess};

use super::PATIENCE;
use super::pair::Pair;

/// The bytes of an object in front of its payload: the version, of which bit 0 is the lock, and the checksum of the
/// version without the lock and the payload.
const HEAD: usize = 16;
/// Payloads of which each write takes the next one. All of their bytes differ.
const PAYLOADS: u64 = 16;
/// The bytes of each payload that is hunted for, and how many reads of it there are in a short hunt.
const SIZES: [(usize, u64); 9] = [
    (1, 2000),
    (8, 2000),
    (40, 2000),
    (64, 2000),
    (200, 1000),
    (1000, 1000),
    (4096, 500),
    (65_536, 60),
    (1_000_000, 10),
];
/// Reads that are under way together.
const READS_UNDER_WAY: u64 = 4;

/// Returns an exposure with room for the reads under way.
pub fn exposure() -> Exposure {
    Exposure::all(READS_UNDER_WAY * (1 << 20))
}

/// What reads found.
#[derive(Clone, Copy, Debug, Default)]
pub struct Hunted {
    /// Reads that were taken for whole.
    pub accepted: u64,
    /// Reads that met a writer.
    pub refused: u64,
    /// Reads that were taken for whole, with bytes of several writes.
    pub torn: u64,
}

/// Ends the writer, also when the reader fails.
struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn payload(version: u64, bytes: usize) -> Vec<u8> {
    let number = version / 2 % PAYLOADS;
    (0..bytes as u64).map(|at| (number * 16 + at % 15) as u8).collect()
}

fn checksum(version: u64, payload: &[u8]) -> u64 {
    twox_hash::XxHash3_64::oneshot_with_seed(version, payload)
}

/// Writes the object until `is_done`, and leaves pauses of at most the length of some reads: after a write, so that one
/// can succeed, and in the middle of it.
fn write(region: &Region, bytes: usize, is_done: &AtomicBool, read_ns: &AtomicU64) {
    let memory = region.memory();
    let payloads: Vec<Vec<u8>> = (0..PAYLOADS).map(|number| payload(2 * number, bytes)).collect();
    let mut random = Random::new(bytes as u64);
    let mut pause_at_times = || {
        if random.below(4) == 0 {
            let pause = Duration::from_nanos(random.below(read_ns.load(Ordering::Relaxed) + 1));
            let begun = Instant::now();
            while begun.elapsed() < pause {
                std::thread::yield_now();
            }
        }
    };
    for version in (2_u64..).step_by(2) {
        if is_done.load(Ordering::Relaxed) {
            break;
        }
        let payload = &payloads[(version / 2 % PAYLOADS) as usize];
        let locked = memory.word(0).load(Ordering::Relaxed) | 1;
        memory.word(0).store(locked, Ordering::Relaxed);
        fence(Ordering::Release);
        memory.word(8).store(checksum(version, payload), Ordering::Relaxed);
        let (first, second) = payload.split_at(bytes / 2);
        memory.copy_in(HEAD, first);
        // Where writer and device share a core, hardly any read comes in the middle of a write by itself.
        pause_at_times();
        memory.copy_in(HEAD + first.len(), second);
        memory.word(0).store(version, Ordering::Release);
        // Most of the time the next write follows at once.
        pause_at_times();
    }
}

/// Waits until all reads have ended. On a machine with one core, writer and device need it meanwhile.
fn complete(pair: &mut Pair) {
    let begun = Instant::now();
    while pair.seen[1].iter().filter(|event| matches!(event, Event::Done(_))).count()
        < READS_UNDER_WAY as usize
    {
        for (end, seen) in pair.ends.iter_mut().zip(&mut pair.seen) {
            if end.poll(seen, 16).unwrap() == 0 {
                end.flush().unwrap();
                std::thread::yield_now();
            }
        }
        assert!(begun.elapsed() < PATIENCE, "nothing comes any more; so far {:?}", pair.seen);
    }
    pair.seen[1].clear();
}

/// Reads an object of so many bytes until there were enough reads, and one of them was accepted. Without `compares`, the
/// checksum is not looked at, and the hunt ends with the first torn read.
fn hunt(mut pair: Pair, bytes: usize, reads: u64, compares: bool) -> Hunted {
    let region = Region::create("caravan-torn", (HEAD + bytes).next_multiple_of(8) as u64).unwrap();
    let token = pair.ends[0].lend(&region, RegionAccess::Read).unwrap();
    let number = pair.ends[1].borrow(&token).unwrap();
    region.memory().word(8).store(checksum(0, &payload(0, bytes)), Ordering::Relaxed);
    region.memory().copy_in(HEAD, &payload(0, bytes));
    let (is_done, read_ns) = (AtomicBool::new(false), AtomicU64::new(1000));
    let mut hunted = Hunted::default();
    std::thread::scope(|scope| {
        scope.spawn(|| write(&region, bytes, &is_done, &read_ns));
        let _end = SetOnDrop(&is_done);
        let mut object = vec![0; HEAD + bytes];
        let begun = Instant::now();
        loop {
            let read_begun = Instant::now();
            for context in 0..READS_UNDER_WAY {
                let into = Local { offset: context << 20, bytes: object.len() as u32 };
                pair.start(1, Operation::Read { from: number.place(0), into, context });
            }
            complete(&mut pair);
            read_ns.store(read_begun.elapsed().as_nanos() as u64, Ordering::Relaxed);
            for context in 0..READS_UNDER_WAY {
                pair.ends[1].arena().copy_out((context << 20) as usize, &mut object);
                let word = |at: usize| u64::from_ne_bytes(object[at..at + 8].try_into().unwrap());
                // The lock tells nothing here: the checksum alone decides.
                let (version, found) = (word(0) & !1, &object[HEAD..]);
                if compares && checksum(version, found) != word(8) {
                    hunted.refused += 1;
                    continue;
                }
                hunted.accepted += 1;
                hunted.torn += u64::from(found != payload(version, bytes));
            }
            let is_found = if compares { hunted.accepted > 0 } else { hunted.torn > 0 };
            if is_found && hunted.accepted + hunted.refused >= reads
                || !is_found && begun.elapsed() > PATIENCE
            {
                break;
            }
        }
    });
    hunted
}

/// `CARAVAN_READS` says how many times the reads of a short hunt.
pub fn no_read_is_torn(make: impl Fn() -> Pair) {
    let times = std::env::var("CARAVAN_READS").map_or(1, |times| times.parse().expect("a number"));
    for (bytes, reads) in SIZES {
        let hunted = hunt(make(), bytes, reads * times, true);
        println!("{bytes} bytes: {hunted:?}");
        assert!(hunted.accepted > 0 && hunted.torn == 0, "{bytes} bytes: {hunted:?}");
    }
}

/// Without a look at the checksum, the same hunt finds torn reads.
pub fn a_torn_read_would_be_noticed(make: impl Fn() -> Pair) {
    let bytes = 65_536;
    let hunted = hunt(make(), bytes, 0, false);
    println!("{bytes} bytes: {hunted:?}");
    assert!(hunted.torn > 0, "{bytes} bytes: {hunted:?}");
}

/// Makes the two tests of a backend.
#[macro_export]
macro_rules! torn {
    ($make:expr) => {
        #[test]
        fn no_one_sided_read_is_torn() {
            $crate::common::torn::no_read_is_torn($make);
        }
        #[test]
        fn a_torn_one_sided_read_would_be_noticed() {
            $crate::common::torn::a_torn_read_would_be_noticed($make);
        }
    };
}
