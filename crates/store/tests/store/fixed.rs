//! Fixed tables: against a map, beside readers of all kinds, and how many reads a lookup takes.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use caravan_store::faults::PlantedFault;
use caravan_store::{
    Eviction, FixedProbe, FixedTable, ObjectAddress, Reader, ScanCursor, Store, StoreError, StoreOptions,
    limits,
};
use proptest::prelude::*;

use crate::children::{self, CAUGHT};

/// For how long a planted fault may stay unnoticed.
const PATIENCE: Duration = Duration::from_secs(60);
/// The slots of a shard of a table with small pairs.
const SHARD_SLOTS: u64 = limits::FIXED_SHARD_BUCKETS_MAX * 4;

fn store(bytes: u64) -> Store {
    Store::embedded(StoreOptions::new(bytes)).unwrap()
}

fn reader_of(store: &Store) -> Reader {
    Reader::open(store.reader_descriptor().unwrap()).unwrap()
}

fn create(store: &Store, key_bytes: usize, value_bytes: usize) -> FixedTable {
    store.transaction(|tx| FixedTable::create(tx, key_bytes, value_bytes)).unwrap()
}

fn key(number: u64) -> [u8; 16] {
    let mut key = [b'k'; 16];
    key[8..].copy_from_slice(&number.to_be_bytes());
    key
}

fn value(number: u64) -> [u8; 32] {
    [number as u8; 32]
}

fn put(store: &Store, table: &FixedTable, number: u64) {
    store.transaction(|tx| table.put(tx, &key(number), &value(number))).unwrap();
}

fn all(table: &FixedTable, store: &Store) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut pairs = BTreeMap::new();
    let mut cursor = ScanCursor::START;
    loop {
        let each = |key: &[u8], value: &[u8]| assert!(pairs.insert(key.to_vec(), value.to_vec()).is_none());
        cursor = table.scan(store, cursor, 50, each).unwrap();
        if cursor == ScanCursor::START {
            return pairs;
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Put(u16),
    Delete(u16),
    /// Deletes a key, puts others, and puts it again, at one moment.
    Reinsert(u16),
    Abort(u16),
    PutMany(u16),
}

fn step() -> impl Strategy<Value = Step> {
    let key = 0..1500_u16;
    prop_oneof![
        20 => key.clone().prop_map(Step::Put),
        12 => key.clone().prop_map(Step::Delete),
        4 => key.clone().prop_map(Step::Reinsert),
        2 => key.clone().prop_map(Step::Abort),
        4 => key.clone().prop_map(Step::PutMany),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    /// Pairs of all sizes: few buckets in a shard, and many.
    #[test]
    fn a_fixed_table_does_what_a_map_does(
        key_bytes in 2..40_usize,
        value_bytes in prop_oneof![0..100_usize, 900..984_usize],
        steps in prop::collection::vec(step(), 1..300),
    ) {
        let store = store(64 << 20);
        let (reader, file) = (reader_of(&store), File::from(store.reader_descriptor().unwrap()));
        let table = create(&store, key_bytes, value_bytes);
        let mut probe = FixedProbe::new(&table);
        let key = |number: u16| {
            let mut key = vec![7; key_bytes];
            key[..2].copy_from_slice(&number.to_be_bytes());
            key
        };
        let value = |at: usize| vec![at as u8; value_bytes];
        let mut model = BTreeMap::new();
        for (at, step) in steps.iter().enumerate() {
            match *step {
                Step::Put(number) => {
                    store.transaction(|tx| table.put(tx, &key(number), &value(at))).unwrap();
                    model.insert(key(number), value(at));
                }
                Step::Delete(number) => {
                    let existed = store.transaction(|tx| table.delete(tx, &key(number))).unwrap();
                    prop_assert_eq!(existed, model.remove(&key(number)).is_some());
                }
                Step::Reinsert(number) => {
                    let body = |tx: &mut caravan_store::Transaction<'_>| {
                        let existed = table.delete(tx, &key(number))?;
                        assert_eq!(table.get(&mut *tx, &key(number))?, None);
                        (1..6).try_for_each(|more| table.put(tx, &key(number + more), &value(at)))?;
                        table.put(tx, &key(number), &value(at))?;
                        Ok::<_, StoreError>(existed)
                    };
                    let existed = store.transaction(body).unwrap();
                    prop_assert_eq!(existed, model.contains_key(&key(number)));
                    model.extend((0..6).map(|more| (key(number + more), value(at))));
                }
                Step::Abort(number) => {
                    let aborted = store.transaction(|tx| {
                        (0..80).try_for_each(|more| table.put(tx, &key(number + more), &value(at)))?;
                        Err::<(), _>(StoreError::VersionChanged)
                    });
                    prop_assert!(matches!(aborted, Err(StoreError::VersionChanged)));
                }
                Step::PutMany(number) => {
                    let body = |tx: &mut caravan_store::Transaction<'_>| {
                        (0..200).try_for_each(|more| table.put(tx, &key(number + more), &value(at)))
                    };
                    store.transaction(body).unwrap();
                    model.extend((0..200).map(|more| (key(number + more), value(at))));
                }
            }
        }
        let mut read = |place, bytes: &mut [u8]| file.read_exact_at(bytes, place).map_err(|_| StoreError::Contended);
        for number in 0..1800 {
            let expected = model.get(&key(number)).cloned();
            prop_assert_eq!(&table.get(&store, &key(number)).unwrap(), &expected);
            prop_assert_eq!(&table.get(&reader, &key(number)).unwrap(), &expected);
            prop_assert_eq!(&probe.get(&key(number), &mut read).unwrap(), &expected);
        }
        prop_assert_eq!(&all(&table, &store), &model);
        store.audit().unwrap();
        store.scrub(usize::MAX, |address| panic!("{address} is damaged")).unwrap();
        // Nothing of a table is left when it is freed.
        store.transaction(|tx| table.free(tx)).unwrap();
        prop_assert_eq!(store.scrub(usize::MAX, |_| ()).unwrap(), 0);
        prop_assert!(matches!(table.get(&reader, &key(0)), Err(StoreError::NoObject(_))));
    }
}

#[test]
fn wrong_sizes_and_addresses_are_named() {
    let store = store(16 << 20);
    for (key_bytes, value_bytes) in [(0, 1), (1, limits::FIXED_PAIR_BYTES_MAX), (usize::MAX, usize::MAX)] {
        let created = store.transaction(|tx| FixedTable::create(tx, key_bytes, value_bytes));
        assert!(matches!(created, Err(StoreError::FixedSizes { .. })));
    }
    let table = create(&store, 16, 32);
    assert!(matches!(table.get(&store, b"short"), Err(StoreError::FixedKey { bytes: 5, takes: 16 })));
    let put = |key: &[u8], value: &[u8]| store.transaction(|tx| table.put(tx, key, value));
    assert!(matches!(put(&[0; 17], &[0; 32]), Err(StoreError::FixedKey { bytes: 17, takes: 16 })));
    assert!(matches!(put(&[0; 16], &[0; 33]), Err(StoreError::FixedValue { bytes: 33, takes: 32 })));
    let deleted = store.transaction(|tx| table.delete(tx, b""));
    assert!(matches!(deleted, Err(StoreError::FixedKey { bytes: 0, takes: 16 })));
    let other = store.alloc(40, None).unwrap();
    assert!(matches!(FixedTable::open(&store, other), Err(StoreError::NotAFixedTable(_))));
    let nowhere = ObjectAddress::from_parts(12345, 6);
    assert!(matches!(FixedTable::open(&store, nowhere), Err(StoreError::NoObject(_))));
    assert_eq!(FixedTable::open(&store, table.address()).unwrap(), table);
}

#[test]
fn a_full_store_refuses_a_key_and_loses_none() {
    const MEMORY: u64 = 16 << 20;
    let store = store(MEMORY);
    let table = create(&store, 16, 500);
    let value = |number: u64| [number as u8; 500];
    let mut count = 0;
    let error = loop {
        match store.transaction(|tx| table.put(tx, &key(count), &value(count))) {
            Ok(()) => count += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(error, StoreError::Full { .. }), "{error}");
    assert!(count * 516 > MEMORY / 6, "only {count} pairs fitted");
    for number in 0..count {
        assert_eq!(table.get(&store, &key(number)).unwrap().unwrap(), value(number));
    }
    store.audit().unwrap();
}

#[test]
fn a_fixed_table_takes_the_memory_of_keys_in_a_store_that_evicts() {
    let store = Store::embedded(StoreOptions::new(16 << 20).eviction(Eviction::LeastRecentlyUsed)).unwrap();
    (0..20_000).for_each(|number| store.put(&key(number), &[1; 1000]).unwrap());
    let evicted = store.counts().evicted;
    let table = create(&store, 16, 500);
    (0..3000).for_each(|number| {
        store.transaction(|tx| table.put(tx, &key(number), &[number as u8; 500])).unwrap();
    });
    assert!(store.counts().evicted > evicted);
    (0..3000).for_each(|number| {
        assert_eq!(table.get(&store, &key(number)).unwrap().unwrap(), [number as u8; 500]);
    });
    store.audit().unwrap();
}

/// Returns how many reads of the region a lookup takes on average, with the directory known: of keys that exist,
/// and of others.
fn reads_at(percent: u64, tables: u64) -> (f64, f64) {
    let store = store(64 << 20);
    let file = File::from(store.reader_descriptor().unwrap());
    let reads = Cell::new(0_u64);
    let mut read = |place, bytes: &mut [u8]| {
        reads.set(reads.get() + 1);
        file.read_exact_at(bytes, place).map_err(|_| StoreError::Contended)
    };
    let keys = SHARD_SLOTS * percent / 100;
    let (mut present, mut absent) = (0, 0);
    for at in 0..tables {
        // A table that has not been split, so that each shard is exactly so full.
        let table = create(&store, 16, 32);
        let base = at << 32;
        (base..base + keys).for_each(|number| put(&store, &table, number));
        let mut probe = FixedProbe::new(&table);
        probe.get(&key(base), &mut read).unwrap();
        let mut counted = |numbers: std::ops::Range<u64>, is_there: bool| {
            let before = reads.get();
            for number in numbers {
                assert_eq!(probe.get(&key(number), &mut read).unwrap().is_some(), is_there);
            }
            reads.get() - before
        };
        present += counted(base..base + keys, true);
        absent += counted(base + (1 << 31)..base + (1 << 31) + keys, false);
    }
    store.audit().unwrap();
    (present as f64 / (tables * keys) as f64, absent as f64 / (tables * keys) as f64)
}

#[test]
fn a_lookup_takes_one_read_with_few_exceptions() {
    for (percent, most, tables) in [(50, 1.005, 10), (80, 1.03, 10), (90, 1.05, 60)] {
        let (present, absent) = reads_at(percent, tables);
        println!("{percent} % full: {present:.4} reads for a key that exists, {absent:.4} for another");
        assert!(
            (1.0..most).contains(&present) && (1.0..most).contains(&absent),
            "{percent} %: {present} {absent}"
        );
    }
}

/// The keys that exist throughout, in `read_fixed`.
const LASTING: u64 = 40;

/// Looks for keys that always exist, and whose slots change all the time, in both ways; the table's address is the
/// value of a key.
pub fn read_fixed(descriptor: OwnedFd, is_faulty: bool) -> Result<(), String> {
    let text = |error: StoreError| error.to_string();
    let file = File::from(descriptor.try_clone().unwrap());
    let reader = Reader::open(descriptor).map_err(text)?;
    let address = reader.get(b"table").map_err(text)?.ok_or("no address")?;
    let (place, incarnation) = address.split_at(8);
    let place = u64::from_ne_bytes(place.try_into().unwrap());
    let incarnation = u16::from_ne_bytes(incarnation.try_into().unwrap());
    let table = FixedTable::open(&reader, ObjectAddress::from_parts(place, incarnation)).map_err(text)?;
    let mut probe = FixedProbe::new(&table);
    // Some reads take long, as over a network: much can happen between their two halves.
    let is_slow = Cell::new(false);
    let mut read = |place: u64, bytes: &mut [u8]| {
        let (first, second) = bytes.split_at_mut(bytes.len() / 2);
        let place_of_second = place + first.len() as u64;
        file.read_exact_at(first, place).map_err(|_| StoreError::Contended)?;
        if is_slow.get() {
            std::thread::yield_now();
        }
        file.read_exact_at(second, place_of_second).map_err(|_| StoreError::Contended)
    };
    let (begin, mut found) = (Instant::now(), 0);
    for round in 0.. {
        is_slow.set(round % 4 == 0);
        for number in 0..LASTING {
            let mapped = table.get(&reader, &key(number)).map_err(text)?;
            if mapped.as_deref() != Some(&value(number)[..]) {
                return Err(format!("key {number} was not found in the mapped memory: {mapped:?}"));
            }
            match probe.get(&key(number), &mut read) {
                // Nothing was read: a writer was at work each time.
                Err(StoreError::Contended) => {}
                probed => {
                    let probed = probed.map_err(text)?;
                    if probed.as_deref() != Some(&value(number)[..]) {
                        return Err(format!("key {number} was not found in bytes: {probed:?}"));
                    }
                    found += 1;
                }
            }
        }
        if if is_faulty { begin.elapsed() > PATIENCE } else { round >= 100 && found > 1_000 } {
            break;
        }
    }
    Ok(())
}

/// Makes a table with the lasting keys, whose address is the value of a key.
fn lasting_table(store: &Store) -> FixedTable {
    let table = create(store, 16, 32);
    let (place, incarnation) = table.address().to_parts();
    store.put(b"table", &[&place.to_ne_bytes()[..], &incarnation.to_ne_bytes()].concat()).unwrap();
    (0..LASTING).for_each(|number| put(store, &table, number));
    table
}

/// Moves the lasting keys of a nearly full shard to and fro, until the reader has ended; returns its status.
fn move_beside(fault: Option<PlantedFault>) -> i32 {
    let store = store(16 << 20);
    let table = lasting_table(&store);
    let others = SHARD_SLOTS * 89 / 100 - LASTING;
    (LASTING..LASTING + others).for_each(|number| put(&store, &table, number));
    let mut reader = children::start("fixed", fault, store.reader_descriptor().unwrap());
    let mut newest = LASTING + others;
    while !reader.has_ended() {
        // Other keys come between, so that many of the lasting ones find another place than before.
        let moved = store.transaction(|tx| {
            (0..LASTING).try_for_each(|number| table.delete(tx, &key(number)).map(drop))?;
            for number in newest..newest + LASTING {
                table.put(tx, &key(number), &value(number))?;
                table.delete(tx, &key(number - others))?;
            }
            (0..LASTING).try_for_each(|number| table.put(tx, &key(number), &value(number)))
        });
        moved.unwrap();
        newest += LASTING;
    }
    store.audit().unwrap();
    reader.status()
}

#[test]
fn no_key_of_a_fixed_table_vanishes_while_it_moves() {
    assert_eq!(move_beside(None), 0);
}

#[test]
fn a_vanished_key_of_a_fixed_table_would_be_noticed() {
    assert_eq!(move_beside(Some(PlantedFault::UnjoinedBuckets)), CAUGHT);
}

#[test]
fn a_fixed_table_grows_under_writers_and_readers() {
    const KEYS: u64 = 12_000;
    let store = store(64 << 20);
    let table = lasting_table(&store);
    let mut reader = children::start("fixed", None, store.reader_descriptor().unwrap());
    let write = |thread: u64| {
        for number in (LASTING + thread..KEYS).step_by(2) {
            put(&store, &table, number);
            if number % 8 < 2 {
                assert!(store.transaction(|tx| table.delete(tx, &key(number))).unwrap());
            }
        }
    };
    std::thread::scope(|scope| {
        (0..2).for_each(|thread| drop(scope.spawn(move || write(thread))));
        // A scan returns all keys that exist throughout.
        let mut seen = std::collections::BTreeSet::new();
        let mut cursor = ScanCursor::START;
        loop {
            cursor = table.scan(&store, cursor, 20, |key, _| seen.extend([key.to_vec()])).unwrap();
            if cursor == ScanCursor::START {
                break;
            }
        }
        (0..LASTING).for_each(|number| assert!(seen.contains(&key(number)[..])));
    });
    assert_eq!(reader.status(), 0);
    let expected = (0..KEYS).filter(|number| *number < LASTING || number % 8 >= 2);
    let expected: BTreeMap<_, _> =
        expected.map(|number| (key(number).to_vec(), value(number).to_vec())).collect();
    assert_eq!(all(&table, &store), expected);
    store.audit().unwrap();
}
