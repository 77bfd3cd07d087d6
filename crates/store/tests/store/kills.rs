//! An owner that is killed at any moment while it commits as fast as it can, again and again over the same memory.
//!
//! The owner is another process. It notes in a second shared memory which operation each of its threads has begun
//! and which one has ended; what an operation does follows from its number. Each new owner first checks that all
//! that had ended is there, and that what had only begun is there as a whole or not at all. A reader in this
//! process reads all the time, and no read may fail. CARAVAN_KILLS is the number of kills, 800 by default.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use caravan_segment::process::start_heir;
use caravan_segment::{Pages, Segment, SharedSlice};
use caravan_store::{ObjectAddress, Reader, Store, StoreError, StoreOptions};
use rustix::process::{Pid, WaitOptions, waitpid};

use crate::children::{self, CAUGHT, SetOnDrop};

/// With the kills of servers and clients (`crates/store-server/tests/store_server/histories`), 2,000 in `make test`.
const KILLS: u64 = 800;
pub const THREADS: u64 = 2;
const KEYS: u64 = 64;
const GROWTH: u64 = 6000;
const ACCOUNTS: u64 = 16;
const BALANCE: i64 = 1000;
/// How far back an owner looks for the last operation on a key.
const LOOK_BACK: u64 = 3000;
/// After so many kills, the memory is a new one: the table grows again.
const KILLS_OF_A_MEMORY: u64 = 50;

pub const NOTES_BYTES: u64 = 16384;
/// The harness of the tests writes to the start of the file, which is its output.
const NOTES_FROM: usize = 8192;

/// What owners note.
#[derive(Clone)]
pub struct Notes(SharedSlice);

impl Notes {
    pub fn of(segment: &Arc<Segment>) -> Self {
        Self(segment.slice(0, NOTES_BYTES).unwrap())
    }
    /// Set when an owner has checked what it found.
    pub fn is_ready(&self) -> &AtomicU64 {
        self.0.word(NOTES_FROM)
    }
    /// The process that outlives the owner.
    fn heir(&self) -> &AtomicU64 {
        self.0.word(NOTES_FROM + 8)
    }
    /// The number of owners that were started.
    fn owners(&self) -> &AtomicU64 {
        self.0.word(NOTES_FROM + 16)
    }
    /// 1 when a copy has the whole memory.
    pub fn complete(&self) -> &AtomicU64 {
        self.0.word(NOTES_FROM + 24)
    }
    fn begun(&self, thread: u64) -> &AtomicU64 {
        self.0.word(NOTES_FROM + 64 + 128 * thread as usize)
    }
    fn ended(&self, thread: u64) -> &AtomicU64 {
        self.0.word(NOTES_FROM + 128 + 128 * thread as usize)
    }
}

/// A number that follows from a number (splitmix64).
pub fn mixed(number: u64) -> u64 {
    let mut z = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

/// What one operation does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    Put(u64),
    Delete(u64),
    /// Another object for a key that says where one is.
    Exchange(u64),
    /// A key that may be new to the table.
    Grow(u64),
    Transfer(u64, u64),
    /// Four keys at once.
    PutFour(u64),
    Expire,
}

fn operation(thread: u64, number: u64) -> Operation {
    let random = mixed(number << 8 | thread);
    let which = random >> 32;
    match random % 16 {
        0..5 => Operation::Put(which % KEYS),
        5 => Operation::Delete(which % KEYS),
        6 | 7 => Operation::Exchange(which % 8),
        8..11 => Operation::Grow(number % GROWTH),
        11..14 => Operation::Transfer(which % ACCOUNTS, (which >> 16) % ACCOUNTS),
        14 => Operation::PutFour(which % (KEYS - 4)),
        _ => Operation::Expire,
    }
}

fn value(thread: u64, number: u64) -> Vec<u8> {
    let random = mixed(number << 8 | thread | 128);
    let size = match random % 64 {
        0 => 100_000,
        1..4 => 8 + random as usize / 64 % 20_000,
        4..20 => 8 + random as usize / 64 % 1500,
        _ => 8 + random as usize / 64 % 80,
    };
    let mut value = number.to_ne_bytes().to_vec();
    value.resize(size, number as u8);
    value
}

fn key(kind: u8, thread: u64, number: u64) -> Vec<u8> {
    format!("{}{thread}:{number}", kind as char).into_bytes()
}

fn account(number: u64) -> Vec<u8> {
    key(b'a', 0, number)
}

fn number(value: Option<Vec<u8>>) -> i64 {
    value.and_then(|value| value.first_chunk().copied()).map_or(0, i64::from_ne_bytes)
}

fn address_of(value: &[u8]) -> Option<ObjectAddress> {
    let place = u64::from_ne_bytes(*value.first_chunk()?);
    Some(ObjectAddress::from_parts(place, u16::from_ne_bytes(*value.get(8..)?.first_chunk()?)))
}

fn run(store: &Store, thread: u64, number: u64) -> Result<(), StoreError> {
    let own = |which| key(b'k', thread, which);
    match operation(thread, number) {
        Operation::Put(which) => store.put(&own(which), &value(thread, number)),
        Operation::Delete(which) => store.delete(&own(which)).map(drop),
        Operation::Grow(which) => store.put(&key(b'g', thread, which), &value(thread, number)[..8]),
        Operation::PutFour(which) => store.transaction(|tx| {
            (which..which + 4).try_for_each(|which| tx.put(&own(which), &value(thread, number)))
        }),
        Operation::Exchange(which) => store.transaction(|tx| {
            let key = key(b'o', thread, which);
            if let Some(old) = tx.get(&key)?.as_deref().and_then(address_of) {
                tx.free(old)?;
            }
            let (place, incarnation) = tx.alloc(&value(thread, number), None)?.to_parts();
            tx.put(
                &key,
                &[&place.to_ne_bytes()[..], &incarnation.to_ne_bytes(), &number.to_ne_bytes()].concat(),
            )
        }),
        Operation::Transfer(from, to) => store.transaction(|tx| {
            let amount = self::number(tx.get(&account(from))?);
            tx.put(&account(from), &(amount - 1).to_ne_bytes())?;
            let amount = self::number(tx.get(&account(to))?);
            tx.put(&account(to), &(amount + 1).to_ne_bytes())
        }),
        Operation::Expire => {
            store.put_until(&key(b'e', thread, number % 8), b"soon gone", Some(number / 16))?;
            store.publish_now(number / 16);
            store.remove_expired(20).map(drop)
        }
    }
}

/// The keys that an operation writes, as they are after it: the number of the operation, or nothing.
fn effects(thread: u64, number: u64) -> Vec<(Vec<u8>, bool)> {
    match operation(thread, number) {
        Operation::Put(which) => vec![(key(b'k', thread, which), true)],
        Operation::Delete(which) => vec![(key(b'k', thread, which), false)],
        Operation::Grow(which) => vec![(key(b'g', thread, which), true)],
        Operation::Exchange(which) => vec![(key(b'o', thread, which), true)],
        Operation::PutFour(which) => {
            (which..which + 4).map(|which| (key(b'k', thread, which), true)).collect()
        }
        Operation::Transfer(..) | Operation::Expire => Vec::new(),
    }
}

/// Tells whether a key is as operation `number` leaves it.
fn is_as_after(
    store: &Store,
    thread: u64,
    number: u64,
    key: &[u8],
    is_there: bool,
) -> Result<bool, StoreError> {
    let found = store.get(key)?;
    let Some(found) = found else { return Ok(!is_there) };
    Ok(is_there
        && match operation(thread, number) {
            Operation::Exchange(_) => match address_of(&found) {
                Some(address) if found[10..] == number.to_ne_bytes() => {
                    store.read(address)? == value(thread, number)
                }
                _ => false,
            },
            Operation::Grow(_) => found == number.to_ne_bytes(),
            _ => found == value(thread, number),
        })
}

/// Checks what the owner before has left of a thread's operations.
pub fn check(store: &Store, notes: &Notes, thread: u64) -> Result<(), String> {
    let text = |error: StoreError| error.to_string();
    let ended = notes.ended(thread).load(Ordering::Acquire);
    let mut seen = std::collections::HashSet::new();
    // The one that had only begun may have happened, and then as a whole. If not, it is the next one again.
    let mut last = ended;
    let begun = notes.begun(thread).load(Ordering::Acquire);
    if begun > ended {
        let happened: Result<Vec<_>, _> = effects(thread, begun)
            .iter()
            .map(|(key, is_there)| is_as_after(store, thread, begun, key, *is_there))
            .collect();
        let happened = happened.map_err(text)?;
        match happened.iter().filter(|happened| **happened).count() {
            0 => {}
            count if count == happened.len() => last = begun,
            _ => {
                return Err(format!(
                    "operation {begun} of thread {thread} has happened by half: {happened:?}"
                ));
            }
        }
        notes.ended(thread).store(last, Ordering::Release);
    }
    for number in (1..=last).rev().take_while(|number| number + LOOK_BACK > last) {
        for (key, is_there) in effects(thread, number) {
            if seen.insert(key.clone())
                && !is_as_after(store, thread, number, &key, is_there).map_err(text)?
            {
                return Err(format!(
                    "{} is not as operation {number} of thread {thread} left it ({last} had ended)",
                    String::from_utf8_lossy(&key)
                ));
            }
        }
    }
    Ok(())
}

/// Takes the memory over, checks it, says so, and works until it is killed.
pub fn work(memory: OwnedFd, _: bool) -> Result<(), String> {
    let text = |error: StoreError| error.to_string();
    let notes = std::io::stdout().as_fd().try_clone_to_owned().unwrap();
    let notes = Notes::of(&Arc::new(Segment::attach(notes, NOTES_BYTES).unwrap()));
    // One in three checks all first, one checks what the owner before has left while that is restored, and one works
    // meanwhile.
    notes.heir().store(start_heir().map_err(|error| error.to_string())? as u64, Ordering::Release);
    let kind = notes.owners().load(Ordering::Acquire) % 3;
    let store = Store::take_over(memory, StoreOptions::new(64 << 20)).map_err(text)?;
    if kind == 0 {
        store.audit().map_err(text)?;
    }
    std::thread::scope(|scope| {
        scope.spawn(|| {
            if let Err(error) = store.restore() {
                eprintln!("what the owner before has left: {error}");
                std::process::exit(CAUGHT);
            }
        });
        if kind != 2 {
            (0..THREADS).try_for_each(|thread| check(&store, &notes, thread))?;
        }
        work_on(&store, &notes)
    })
}

pub fn work_on(store: &Store, notes: &Notes) -> Result<(), String> {
    let text = |error: StoreError| error.to_string();
    let exist = |number| store.get(&account(number)).map(|found| found.is_some());
    if !exist(0).map_err(text)? {
        let made = store.transaction(|tx| {
            (0..ACCOUNTS).try_for_each(|number| tx.put(&account(number), &BALANCE.to_ne_bytes()))
        });
        made.map_err(text)?;
    }
    let sum = |tx: &mut caravan_store::Transaction<'_>| {
        (0..ACCOUNTS).try_fold(0, |sum, which| Ok::<_, StoreError>(sum + number(tx.get(&account(which))?)))
    };
    let sum = store.transaction(sum).map_err(text)?;
    if sum != BALANCE * ACCOUNTS as i64 {
        return Err(format!("the accounts have {sum}"));
    }
    notes.is_ready().store(1, Ordering::Release);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            scope.spawn(move || {
                for number in notes.ended(thread).load(Ordering::Acquire) + 1.. {
                    notes.begun(thread).store(number, Ordering::Release);
                    if let Err(error) = self::run(store, thread, number) {
                        eprintln!("operation {number} of thread {thread}: {error}");
                        std::process::exit(CAUGHT);
                    }
                    notes.ended(thread).store(number, Ordering::Release);
                }
            });
        }
    });
    Ok(())
}

/// Reads. A read waits longer for a dead owner's lock than the next owner takes to come, except where the machine has much
/// else to do: then it is made again.
fn settled<T>(notes: &Notes, mut read: impl FnMut() -> Result<T, StoreError>) -> T {
    loop {
        match read() {
            Err(StoreError::Contended) if notes.is_ready().load(Ordering::Acquire) == 0 => {}
            result => return result.unwrap(),
        }
    }
}

/// Reads until it is told to stop; returns the number of reads.
fn read(memory: &OwnedFd, notes: &Notes, is_done: &AtomicBool) -> u64 {
    let reader = Reader::open(memory.try_clone().unwrap()).unwrap();
    let mut reads = 0;
    while !is_done.load(Ordering::Relaxed) {
        let sum = || {
            reader.transaction(|tx| {
                (0..ACCOUNTS)
                    .try_fold(0, |sum, which| Ok::<_, StoreError>(sum + number(tx.get(&account(which))?)))
            })
        };
        assert_eq!(settled(notes, sum), BALANCE * ACCOUNTS as i64);
        for which in 0..KEYS {
            let thread = which % THREADS;
            let key = key(b'k', thread, which);
            let Some(found) = settled(notes, || reader.get(&key)) else { continue };
            let number = number(Some(found.clone())) as u64;
            assert_eq!(found, value(thread, number), "key {which} of thread {thread}");
        }
        reads += ACCOUNTS + KEYS;
        // The owner needs the core.
        std::thread::sleep(Duration::from_micros(500));
    }
    reads
}

/// Kills owners of one memory; returns the status of the first one that found something wrong.
fn kill(kills: u64, seed: u64) -> Option<i32> {
    let memory = Store::new_memory("kills").unwrap();
    let notes_segment = Arc::new(Segment::create("notes", NOTES_BYTES, Pages::Small).unwrap());
    notes_segment.grow(NOTES_BYTES).unwrap();
    let notes = Notes::of(&notes_segment);
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let done = SetOnDrop(&is_done);
        let mut reader = None;
        let mut status = None;
        let mut heirs = Vec::new();
        for kill in 0..kills {
            notes.owners().store(kill, Ordering::Release);
            notes.is_ready().store(0, Ordering::Release);
            let output = notes_segment.as_fd().try_clone_to_owned().unwrap();
            let mut owner = children::start_with_output("kills", None, memory.try_clone().unwrap(), output);
            let begin = Instant::now();
            while notes.is_ready().load(Ordering::Acquire) == 0 && !owner.has_ended() {
                assert!(begin.elapsed() < Duration::from_secs(60), "an owner does not get ready");
                std::thread::sleep(Duration::from_micros(100));
            }
            if owner.has_ended() {
                status = Some(owner.status());
                break;
            }
            reader.get_or_insert_with(|| scope.spawn(|| read(&memory, &notes, &is_done)));
            std::thread::sleep(Duration::from_micros(mixed(seed + kill) % 4000));
            if owner.has_ended() {
                status = Some(owner.status());
                break;
            }
            drop(owner);
            heirs.push(notes.heir().load(Ordering::Acquire) as i32);
        }
        for heir in heirs {
            // It is this process's child. Its owner may have been caught before it noted this one.
            let _ = waitpid(Pid::from_raw(heir), WaitOptions::empty());
        }
        // The reader may wait for the last one's locks.
        Store::open(memory.try_clone().unwrap(), StoreOptions::new(64 << 20)).unwrap().audit().unwrap();
        drop(done);
        if let Some(reader) = reader {
            assert!(reader.join().unwrap() > 0);
        }
        status
    })
}

#[test]
fn nothing_acknowledged_is_lost_when_owners_are_killed() {
    let kills =
        std::env::var("CARAVAN_KILLS").map_or(KILLS, |text| text.parse().expect("CARAVAN_KILLS is a number"));
    let begin = Instant::now();
    let mut left: u64 = kills;
    while left > 0 {
        let seed = begin.elapsed().as_nanos() as u64;
        let count = left.min(KILLS_OF_A_MEMORY);
        let status = kill(count, seed);
        assert_eq!(status, None, "an owner found something wrong, with the delays of seed {seed}");
        left -= count;
        if (kills - left) % (20 * KILLS_OF_A_MEMORY) == 0 {
            println!("{} kills in {:?}", kills - left, begin.elapsed());
        }
    }
    println!("{kills} kills in {:?}", begin.elapsed());
}
