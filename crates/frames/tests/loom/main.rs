//! Frame slots, sleeping and seats in every interleaving of a producer and a consumer. The protocol is that of the crate; the
//! memory is loom's, and each fault breaks one of its promises.

use std::panic::catch_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed as Counting};

use caravan_frames::protocol::{Found, Looking, ReceiverWords, SenderWords, SlotReader, SlotWriter};
use loom::sync::atomic::{AtomicU64, Ordering, fence};
use loom::sync::{Condvar, Mutex};
use loom::thread;

const SLOTS: usize = 2;
/// Words of a frame.
const WORDS: usize = 2;
const FRAMES: u64 = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    None,
    /// A slot that is written again keeps its version.
    NoMark,
    /// A version does not tell that the head has moved on before.
    VersionRelaxed,
    /// Bytes may be seen before the mark.
    NoReleaseFence,
    /// Versions may be older than bytes that were read before.
    NoAcquireFence,
    /// A head may be seen before the bytes.
    HeadRelaxed,
    /// Nobody is woken.
    NoWake,
    /// Those who sleep are woken before there is something.
    WakeFirst,
    /// A consumer looks at the head, and sleeps without looking again.
    SleepBlindly,
    /// A consumer releases a frame before it reads it.
    EarlyRelease,
    /// A lossless producer does not look at seats.
    NoSeat,
}

/// A word on which others sleep, as the kernel's futex.
struct Futex {
    word: AtomicU64,
    sleepers: Mutex<()>,
    bell: Condvar,
}

impl Futex {
    fn new() -> Self {
        Self { word: AtomicU64::new(0), sleepers: Mutex::new(()), bell: Condvar::new() }
    }

    fn wake(&self) {
        drop(self.sleepers.lock().unwrap());
        self.bell.notify_all();
    }

    fn sleep_while(&self, value: u32, is_blind: bool) {
        let guard = self.sleepers.lock().unwrap();
        if is_blind || self.word.load(Ordering::Relaxed) as u32 == value {
            drop(self.bell.wait(guard).unwrap());
        }
    }
}

struct Memory {
    fault: Fault,
    versions: [AtomicU64; SLOTS],
    bytes: [[AtomicU64; WORDS]; SLOTS],
    head: Futex,
    seat: Futex,
}

impl Memory {
    fn new(fault: Fault) -> Arc<Self> {
        let zeros = || std::array::from_fn(|_| AtomicU64::new(0));
        let bytes = std::array::from_fn(|_| std::array::from_fn(|_| AtomicU64::new(0)));
        Arc::new(Self { fault, versions: zeros(), bytes, head: Futex::new(), seat: Futex::new() })
    }

    fn has(&self, fault: Fault) -> bool {
        self.fault == fault
    }
}

impl SenderWords for Memory {
    fn slots(&self) -> u64 {
        SLOTS as u64
    }
    fn set_version(&self, slot: usize, version: u64) {
        let order = if self.has(Fault::VersionRelaxed) { Ordering::Relaxed } else { Ordering::Release };
        if version % 2 == 0 || !self.has(Fault::NoMark) {
            self.versions[slot].store(version, order);
        }
    }
    fn advance(&self, head: u64) {
        if self.has(Fault::WakeFirst) {
            self.head.wake();
        }
        let order = if self.has(Fault::HeadRelaxed) { Ordering::Relaxed } else { Ordering::Release };
        self.head.word.store(head, order);
        if !self.has(Fault::WakeFirst) && !self.has(Fault::NoWake) {
            self.head.wake();
        }
    }
    fn release_fence(&self) {
        if !self.has(Fault::NoReleaseFence) {
            fence(Ordering::Release);
        }
    }
}

impl ReceiverWords for Memory {
    fn slots(&self) -> u64 {
        SLOTS as u64
    }
    fn version(&self, slot: usize) -> u64 {
        self.versions[slot].load(Ordering::Relaxed)
    }
    fn head(&self) -> u64 {
        self.head.word.load(Ordering::Relaxed)
    }
    fn acquire_fence(&self) {
        if !self.has(Fault::NoAcquireFence) {
            fence(Ordering::Acquire);
        }
    }
}

fn produce(memory: &Memory, is_lossless: bool) {
    let mut writer = SlotWriter::new();
    for _ in 0..FRAMES {
        while is_lossless && !memory.has(Fault::NoSeat) {
            let released = memory.seat.word.load(Ordering::Acquire) as u32;
            match writer.has_room(memory, released).expect("a possible seat") {
                true => break,
                false => memory.seat.sleep_while(released, false),
            }
        }
        let sequence = writer.begin(memory);
        for word in &memory.bytes[sequence as usize % SLOTS] {
            word.store(sequence, Ordering::Relaxed);
        }
        writer.publish(memory);
    }
    writer.end(memory);
}

fn release(memory: &Memory, sequence: u64) {
    memory.seat.word.store(sequence, Ordering::Release);
    memory.seat.wake();
}

/// Takes frames until the end.
fn consume(memory: &Memory, looking: Looking) {
    let is_lossless = looking == Looking::Held;
    let mut reader = SlotReader::new(0, looking);
    let mut accounted = 0;
    loop {
        match reader.find(memory) {
            Found::Frame { sequence, dropped } => {
                accounted += 1 + dropped;
                assert!(!is_lossless || dropped == 0, "a frame is lost");
                if is_lossless && memory.has(Fault::EarlyRelease) {
                    release(memory, sequence);
                }
                let slot = &memory.bytes[sequence as usize % SLOTS];
                let words: [u64; WORDS] = std::array::from_fn(|word| slot[word].load(Ordering::Relaxed));
                let is_good = SlotReader::is_good(memory, sequence);
                assert!(!is_good || words == [sequence; WORDS], "a torn frame is called good");
                assert!(!is_lossless || is_good, "a frame that is held was overwritten");
                if is_lossless {
                    release(memory, sequence);
                }
            }
            Found::Nothing(head) => memory.head.sleep_while(head, memory.has(Fault::SleepBlindly)),
            Found::End => break,
            Found::Corrupt => panic!("the memory makes no sense"),
        }
    }
    assert_eq!((reader.last(), accounted), (FRAMES, FRAMES), "the last frame, and no frame counted twice");
}

/// Runs a model, and returns the number of interleavings.
fn explore(fault: Fault, looking: Looking) -> usize {
    let count = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&count);
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(2);
    builder.check(move || {
        counted.fetch_add(1, Counting);
        let memory = Memory::new(fault);
        let theirs = Arc::clone(&memory);
        let producer = thread::spawn(move || produce(&theirs, looking == Looking::Held));
        consume(&memory, looking);
        producer.join().unwrap();
    });
    count.load(Counting)
}

fn newest(fault: Fault) -> usize {
    explore(fault, Looking::Newest)
}
fn every(fault: Fault) -> usize {
    explore(fault, Looking::Every)
}
fn lossless(fault: Fault) -> usize {
    explore(fault, Looking::Held)
}

/// A model that explored next to nothing would pass, too.
fn is_thorough(interleavings: usize) {
    assert!(interleavings > 1_000, "only {interleavings} interleavings");
}

#[test]
fn who_takes_the_newest_frame_gets_no_torn_one_and_sleeps_through_none() {
    is_thorough(newest(Fault::None));
}

#[test]
fn who_takes_every_frame_knows_of_each_that_is_lost() {
    is_thorough(every(Fault::None));
}

#[test]
fn a_lossless_stream_loses_nothing() {
    is_thorough(lossless(Fault::None));
}

/// The models must fail where the memory is wrong. The table says which fault each model is there to catch.
#[test]
fn each_model_fails_where_its_promise_is_broken() {
    use Fault::*;
    type Row = (&'static str, fn(Fault) -> usize, &'static [Fault]);
    let rows: [Row; 3] = [
        (
            "newest",
            newest,
            &[NoMark, NoReleaseFence, NoAcquireFence, HeadRelaxed, NoWake, WakeFirst, SleepBlindly],
        ),
        ("every", every, &[NoMark, VersionRelaxed, NoReleaseFence, NoAcquireFence, HeadRelaxed]),
        ("lossless", lossless, &[EarlyRelease, NoSeat]),
    ];
    let mut missed = Vec::new();
    for (name, model, faults) in rows {
        for fault in faults {
            if catch_unwind(|| model(*fault)).is_ok() {
                missed.push(format!("{name} does not notice {fault:?}"));
            }
        }
    }
    assert!(missed.is_empty(), "{missed:#?}");
}
