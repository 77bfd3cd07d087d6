//! Many keys: shards are split while readers, scans and writers go on.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use caravan_store::{Reader, ScanCursor, Store, StoreOptions};

use crate::children::SetOnDrop;

fn key(number: usize) -> Vec<u8> {
    format!("key {number}").into_bytes()
}

#[test]
fn what_is_written_is_found_while_the_table_grows() {
    const KEYS: usize = 40_000;
    let store = Store::embedded(StoreOptions::new(256 << 20)).unwrap();
    let reader = Reader::open(store.reader_descriptor().unwrap()).unwrap();
    let written = AtomicUsize::new(0);
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let _done = SetOnDrop(&is_done);
            for number in 0..KEYS {
                store.put(&key(number), &number.to_ne_bytes()).unwrap();
                written.store(number + 1, Ordering::Release);
            }
        });
        let mut step = 0;
        while !is_done.load(Ordering::Acquire) {
            let count = written.load(Ordering::Acquire);
            if count == 0 {
                continue;
            }
            for _ in 0..100 {
                step += 7919;
                let number = step % count;
                let found = reader.get(&key(number)).unwrap();
                assert_eq!(found.as_deref(), Some(&number.to_ne_bytes()[..]), "key {number} of {count}");
                assert_eq!(reader.get(&key(KEYS + number)).unwrap(), None);
            }
        }
    });
    assert_eq!(store.counts().keys, KEYS as u64);
    store.audit().unwrap();
    for number in 0..KEYS {
        assert!(store.delete(&key(number)).unwrap());
    }
    store.audit().unwrap();
    assert_eq!(store.counts().keys, 0);
}

#[test]
fn a_scan_finds_all_that_was_there_all_the_time() {
    let store = Store::embedded(StoreOptions::new(256 << 20)).unwrap();
    for number in 0..5_000 {
        store.put(&key(number), b"stays").unwrap();
    }
    let mut seen: HashMap<Vec<u8>, u32> = HashMap::new();
    let mut cursor = ScanCursor::START;
    let mut number = 5_000;
    loop {
        cursor = store.scan(cursor, 100, |key| *seen.entry(key.to_vec()).or_default() += 1).unwrap();
        if cursor == ScanCursor::START {
            break;
        }
        // The table is split several times on the way.
        for _ in 0..if number < 30_000 { 500 } else { 0 } {
            store.put(&key(number), b"comes").unwrap();
            number += 1;
        }
        cursor = ScanCursor::from_u64(cursor.to_u64());
    }
    assert!(number > 20_000, "only {number} keys: the table has hardly grown");
    for number in 0..5_000 {
        assert!(seen.contains_key(&key(number)), "key {number} was not found");
    }
    for cursor in [1, u64::MAX, 0xffff, 1 << 39, 12345678901] {
        store.scan(ScanCursor::from_u64(cursor), 10, |_| ()).unwrap();
    }
    assert!(store.random_key(12345).unwrap().is_some());
    store.clear().unwrap();
    assert_eq!(store.random_key(12345).unwrap(), None);
    store.audit().unwrap();
}

#[test]
fn each_key_is_as_likely_as_a_random_one() {
    let store = Store::embedded(StoreOptions::new(16 << 20)).unwrap();
    // Of three classes, so that they lie in several blocks.
    for (key, bytes) in [("a", 1), ("b", 1), ("c", 1000), ("d", 100_000)] {
        store.put(key.as_bytes(), &vec![b'x'; bytes]).unwrap();
    }
    let mut seen = std::collections::BTreeMap::new();
    for random in 0..400 {
        *seen.entry(store.random_key(random).unwrap().unwrap()).or_insert(0) += 1;
    }
    assert_eq!(seen.into_values().collect::<Vec<_>>(), [100; 4]);
}
