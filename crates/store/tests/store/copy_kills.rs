//! Owners with a copy of their memory, and keepers of that copy, killed at any moment while the owner commits as fast as it can.
//!
//! Both are other processes. After each round, the copy becomes the store if it is complete; else the memory of the owner stays
//! it. Owners and keepers are also replaced by others that go on. Each owner checks that all that was answered is there. CARAVAN_COPY_KILLS is the number of rounds, each of which kills
//! two or three processes.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use caravan_segment::{Pages, Segment};
use caravan_store::faults::PlantedFault;
use caravan_store::{MappedRing, Store, StoreCopy, StoreError, StoreOptions, limits};

use crate::children::{self, CAUGHT, Running};
use crate::kills::{NOTES_BYTES, Notes, THREADS, check, mixed, work_on};

const MEMORY: u64 = 80 << 20;
const RING: u64 = limits::RING_COPY_BYTES_MIN;
const RING_PATH: &str = "CARAVAN_STORE_TEST_RING";
/// After so many rounds, the memory is a new one.
const ROUNDS_OF_A_MEMORY: u64 = 30;

fn options() -> StoreOptions {
    StoreOptions::new(MEMORY)
}

/// Opens the ring that the parent holds.
fn ring() -> OwnedFd {
    let path = std::env::var(RING_PATH).expect("the parent names the ring");
    std::fs::File::options().read(true).write(true).open(path).unwrap().into()
}

fn notes() -> Notes {
    let notes = std::io::stdout().as_fd().try_clone_to_owned().unwrap();
    Notes::of(&Arc::new(Segment::attach(notes, NOTES_BYTES).unwrap()))
}

/// Takes the memory over, checks it, gets a copy, and works until it is killed.
pub fn own(memory: OwnedFd, _: bool) -> Result<(), String> {
    let text = |error: StoreError| error.to_string();
    let notes = notes();
    let store = Store::take_over(memory, options()).map_err(text)?;
    store.audit().map_err(text)?;
    (0..THREADS).try_for_each(|thread| check(&store, &notes, thread))?;
    let writer = || MappedRing::open(ring(), RING).map(Box::new).map_err(text);
    if !store.had_copies() || store.resume_copy(writer()?).is_err() {
        store.add_copy(writer()?).map_err(text)?;
    }
    std::thread::scope(|scope| {
        scope.spawn(|| store.fill_copies(Duration::ZERO));
        work_on(&store, &notes)
    })
}

/// Keeps the copy until it is killed.
pub fn keep(memory: OwnedFd, _: bool) -> Result<(), String> {
    let text = |error: StoreError| error.to_string();
    let notes = notes();
    let mut copy = StoreCopy::open(memory, ring(), options()).map_err(text)?;
    loop {
        if copy.apply(100).map_err(text)? == 0 {
            std::thread::sleep(Duration::from_micros(100));
        }
        if copy.is_complete() {
            notes.complete().store(1, Ordering::Release);
        }
    }
}

/// Runs rounds over one memory; returns how often the copy took over, or the status of the owner that found something wrong.
fn kill(rounds: u64, seed: u64, fault: Option<PlantedFault>) -> Result<u64, i32> {
    let mut memory = Store::new_memory("copied").unwrap();
    let notes_segment = Arc::new(Segment::create("notes", NOTES_BYTES, Pages::Small).unwrap());
    notes_segment.grow(NOTES_BYTES).unwrap();
    let notes = Notes::of(&notes_segment);
    let mut takeovers = 0;
    for round in 0..rounds {
        let random = |what: u64| mixed(seed + round * 16 + what);
        notes.is_ready().store(0, Ordering::Release);
        notes.complete().store(0, Ordering::Release);
        let copied = Store::new_memory("copy").unwrap();
        let ring = StoreCopy::new_ring("ring", RING).unwrap();
        let start = |role, fault, memory: &OwnedFd| {
            let path = format!("/proc/{}/fd/{}", std::process::id(), ring.as_raw_fd());
            let output = notes_segment.as_fd().try_clone_to_owned().unwrap();
            children::start_with(role, fault, memory.try_clone().unwrap(), output, Some((RING_PATH, path)))
        };
        let mut keeper = start("copy keeper", None, &copied);
        let mut owner = start("copied owner", fault, &memory);
        let wait = |owner: &mut Running, keeper: &mut Running, is_done: &dyn Fn() -> bool| {
            let begin = Instant::now();
            while !is_done() && !owner.has_ended() {
                assert!(!keeper.has_ended(), "the keeper of the copy has ended");
                assert!(begin.elapsed() < Duration::from_secs(60), "an owner does not get on");
                std::thread::sleep(Duration::from_micros(200));
            }
            if owner.has_ended() { Err(owner.status()) } else { Ok(()) }
        };
        wait(&mut owner, &mut keeper, &|| notes.is_ready().load(Ordering::Acquire) == 1)?;
        let is_complete = || notes.complete().load(Ordering::Acquire) == 1;
        if random(1) % 8 > 0 {
            wait(&mut owner, &mut keeper, &is_complete)?;
        }
        std::thread::sleep(Duration::from_micros(random(2) % 4000));
        if random(3) % 2 == 0 {
            // Another keeper goes on with the copy.
            drop(keeper);
            keeper = start("copy keeper", None, &copied);
            std::thread::sleep(Duration::from_micros(random(4) % 20_000));
        }
        if random(7) % 2 == 0 {
            // Another owner goes on with the same memory and the same copy.
            drop(owner);
            notes.is_ready().store(0, Ordering::Release);
            owner = start("copied owner", fault, &memory);
            wait(&mut owner, &mut keeper, &|| notes.is_ready().load(Ordering::Acquire) == 1)?;
            std::thread::sleep(Duration::from_micros(random(8) % 4000));
        }
        if random(5) % 2 == 0 {
            drop(keeper);
            std::thread::sleep(Duration::from_micros(random(6) % 2000));
            drop(owner);
        } else {
            drop(owner);
            std::thread::sleep(Duration::from_micros(random(6) % 1000));
            drop(keeper);
        }
        let copy = StoreCopy::open(copied.try_clone().unwrap(), ring.try_clone().unwrap(), options());
        match copy.unwrap().promote() {
            Ok(_) => (memory, takeovers) = (copied, takeovers + 1),
            Err(StoreError::IncompleteCopy) => {}
            Err(error) => panic!("{error}"),
        }
    }
    Ok(takeovers)
}

#[test]
fn nothing_answered_is_lost_with_an_owner_or_a_copy() {
    let rounds = std::env::var("CARAVAN_COPY_KILLS")
        .map_or(60, |text| text.parse().expect("CARAVAN_COPY_KILLS is a number"));
    let begin = Instant::now();
    let (mut left, mut takeovers) = (rounds, 0);
    while left > 0 {
        let count = ROUNDS_OF_A_MEMORY.min(left);
        let seed = begin.elapsed().as_nanos() as u64;
        takeovers += kill(count, seed, None)
            .unwrap_or_else(|status| panic!("an owner ended with {status}, with the delays of seed {seed}"));
        left -= count;
    }
    println!("{rounds} rounds, {takeovers} copies took over, in {:?}", begin.elapsed());
    assert!(takeovers > rounds / 2, "{takeovers} of {rounds} copies took over");
}

#[test]
fn an_answer_before_the_copy_has_it_would_be_noticed() {
    let caught = (0..20).any(|seed| kill(5, seed * 1000, Some(PlantedFault::AnsweredEarly)) == Err(CAUGHT));
    assert!(caught);
}
