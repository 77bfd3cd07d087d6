//! Readers in other processes, while hostile writers change values of 1 byte to 1 MB all the time.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use caravan_store::faults::PlantedFault;
use caravan_store::{Reader, Store, StoreError, StoreOptions};

use crate::children::{self, CAUGHT};

/// The sizes that a key's value takes in turn: within one class of objects, and across classes.
const SIZES: [&[usize]; 5] =
    [&[1, 2, 7, 8], &[9, 63, 64, 65, 200], &[1000, 1001, 1024], &[4000, 40_000, 4096], &[1_000_000, 999_000]];
/// How often each reader reads each key.
const READS: [usize; 5] = [50_000, 50_000, 20_000, 8_000, 50];
/// For how long a planted fault may stay unnoticed.
const PATIENCE: Duration = Duration::from_secs(60);

/// `CARAVAN_READS` says how many times the reads of a short hunt.
fn times() -> usize {
    std::env::var("CARAVAN_READS").map_or(1, |times| times.parse().expect("a number"))
}

fn key(number: usize) -> [u8; 8] {
    number.to_ne_bytes()
}

/// All bytes of a value are the same, and say its size: any mixture of two values shows.
fn size(number: usize, byte: u8) -> usize {
    SIZES[number][usize::from(byte) % SIZES[number].len()]
}

/// Writes until all readers have ended; returns whether all of them were content.
fn write_beside(store: &Store, readers: &mut [children::Running], keys: usize) -> Vec<i32> {
    let mut byte = 0_u8;
    let values: Vec<Vec<u8>> = (0..=255).map(|byte| vec![byte; 1_000_000]).take(4).collect();
    for round in 0_usize.. {
        if readers.iter_mut().all(children::Running::has_ended) {
            break;
        }
        for number in 0..keys {
            // The large values take long: more of them would leave no time in which they can be read.
            for _ in 0..[40, 40, 20, 5, usize::from(round % 20 == 0)][number] {
                byte = (byte + 1) % 4;
                let value = &values[usize::from(byte)][..size(number, byte)];
                store.put(&key(number), value).unwrap();
            }
        }
    }
    readers.iter_mut().map(children::Running::status).collect()
}

fn store() -> Store {
    let store = Store::embedded(StoreOptions::new(256 << 20)).unwrap();
    for number in 0..SIZES.len() {
        store.put(&key(number), &vec![0; size(number, 0)]).unwrap();
    }
    store
}

pub fn read_values(descriptor: OwnedFd, is_faulty: bool) -> Result<(), String> {
    let reader = Reader::open(descriptor).map_err(|error| error.to_string())?;
    let begin = Instant::now();
    let (mut value, mut rounds) = (Vec::new(), 0);
    loop {
        rounds += 1;
        for (number, reads) in READS.iter().enumerate() {
            for _ in 0..*reads {
                value.clear();
                match reader.get_into(&key(number), &mut value) {
                    Ok(found) => found.map(|_| ()).ok_or("absent")?,
                    // On a slow machine, a writer may leave no time for 1 MB.
                    Err(StoreError::Contended) if number == 4 => continue,
                    Err(error) => return Err(format!("key {number}: {error}")),
                }
                let byte = value.first().copied().ok_or("empty")?;
                if value.len() != size(number, byte) {
                    return Err(format!("{} bytes of {byte} for key {number}", value.len()));
                }
                if let Some(at) = value.iter().position(|other| *other != byte) {
                    return Err(format!("byte {at} of {} of key {number} is of another value", value.len()));
                }
            }
        }
        if !is_faulty && rounds >= times() || is_faulty && begin.elapsed() > PATIENCE {
            return Ok(());
        }
    }
}

#[test]
fn no_value_is_torn() {
    let store = store();
    let mut readers = [0, 1].map(|_| children::start("torn", None, store.reader_descriptor().unwrap()));
    assert_eq!(write_beside(&store, &mut readers, SIZES.len()), [0, 0]);
    store.audit().unwrap();
}

#[test]
fn a_torn_value_would_be_noticed() {
    let store = store();
    let fault = Some(PlantedFault::TornRead);
    let mut readers = [children::start("torn", fault, store.reader_descriptor().unwrap())];
    assert_eq!(write_beside(&store, &mut readers, SIZES.len()), [CAUGHT]);
}

/// Sizes that go up by less than a size class does: there is one of each class.
fn class_sizes() -> impl Iterator<Item = usize> {
    std::iter::successors(Some(1_usize), |size| Some(size + (size / 10).max(4)))
        .take_while(|size| *size < 1_000_000)
}

/// Reads values of every size class, each of one byte and of one of two lengths.
pub fn read_classes(descriptor: OwnedFd, is_faulty: bool) -> Result<(), String> {
    let reader = Reader::open(descriptor).map_err(|error| error.to_string())?;
    let begin = Instant::now();
    let (mut value, mut rounds) = (Vec::new(), 0);
    while rounds < CLASS_ROUNDS * times() || is_faulty && begin.elapsed() < PATIENCE {
        rounds += 1;
        for (number, size) in class_sizes().enumerate() {
            // Small values are read at once, and large ones take as long as many of these.
            for _ in 0..(20_000 / size).clamp(1, 200) {
                value.clear();
                match reader.get_into(&key(number), &mut value) {
                    Ok(found) => found.map(|_| ()).ok_or("absent")?,
                    // On a slow machine, a writer may leave no time for a large one.
                    Err(StoreError::Contended) if size > 100_000 => continue,
                    Err(error) => return Err(format!("{size} bytes: {error}")),
                }
                let byte = value.first().copied().ok_or("empty")?;
                if value.len() != class_size(size, byte) || value.iter().any(|other| *other != byte) {
                    return Err(format!("a value of {size} bytes is of two writes"));
                }
            }
        }
    }
    Ok(())
}

/// How often the short hunt reads values of all classes.
const CLASS_ROUNDS: usize = 4;

fn class_size(size: usize, byte: u8) -> usize {
    size - usize::from(byte % 2).min(size - 1)
}

/// Writes values of every size class until the reader has ended, and returns its status.
fn write_classes_beside(store: &Store, reader: &mut children::Running) -> i32 {
    let values: Vec<Vec<u8>> = (0..4).map(|byte| vec![byte; 1_000_000]).collect();
    for round in 0_usize.. {
        let byte = (round % 4) as u8;
        for (number, size) in class_sizes().enumerate() {
            if reader.has_ended() {
                return reader.status();
            }
            for _ in 0..(20_000 / size).clamp(1, 20) {
                store.put(&key(number), &values[usize::from(byte)][..class_size(size, byte)]).unwrap();
            }
        }
    }
    unreachable!("the rounds do not end")
}

fn store_of_classes() -> Store {
    let store = Store::embedded(StoreOptions::new(256 << 20)).unwrap();
    for (number, size) in class_sizes().enumerate() {
        store.put(&key(number), &vec![0; size]).unwrap();
    }
    store
}

#[test]
fn no_value_of_any_class_is_torn() {
    let store = store_of_classes();
    let mut reader = children::start("classes", None, store.reader_descriptor().unwrap());
    assert_eq!(write_classes_beside(&store, &mut reader), 0);
    store.audit().unwrap();
}

#[test]
fn a_torn_value_of_some_class_would_be_noticed() {
    let store = store_of_classes();
    let fault = Some(PlantedFault::TornRead);
    let mut reader = children::start("classes", fault, store.reader_descriptor().unwrap());
    assert_eq!(write_classes_beside(&store, &mut reader), CAUGHT);
}

/// Reads keys that always exist, and whose objects and slots change all the time.
pub fn read_present(descriptor: OwnedFd, is_faulty: bool) -> Result<(), String> {
    let reader = Reader::open(descriptor).map_err(|error| error.to_string())?;
    let begin = Instant::now();
    loop {
        for step in 0..100_000_usize {
            let found = reader.head(&key(step % 2)).map_err(|error| error.to_string())?;
            found.ok_or_else(|| format!("key {} was not found", step % 2))?;
        }
        if !is_faulty || begin.elapsed() > PATIENCE {
            return Ok(());
        }
    }
}

/// Moves the two keys from object to object: each value is of another class than the one before.
fn move_beside(store: &Store, reader: &mut children::Running) -> i32 {
    let values = [vec![1; 10], vec![2; 2000]];
    while !reader.has_ended() {
        for value in values.iter().cycle().take(200) {
            (0..2).for_each(|number| store.put(&key(number), value).unwrap());
        }
    }
    reader.status()
}

#[test]
fn no_key_vanishes_while_it_moves() {
    let store = store();
    let mut reader = children::start("present", None, store.reader_descriptor().unwrap());
    assert_eq!(move_beside(&store, &mut reader), 0);
}

#[test]
fn a_vanished_key_would_be_noticed() {
    let store = store();
    let fault = Some(PlantedFault::HastyAbsence);
    let mut reader = children::start("present", fault, store.reader_descriptor().unwrap());
    assert_eq!(move_beside(&store, &mut reader), CAUGHT);
}
