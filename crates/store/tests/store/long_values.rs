//! Values that take several objects.

use std::sync::atomic::{AtomicBool, Ordering};

use caravan_store::{Eviction, Reader, Store, StoreError, StoreOptions, limits};

const LONG: usize = 3 * limits::OBJECT_BYTES_MAX + 17;

fn store(bytes: u64) -> Store {
    Store::embedded(StoreOptions::new(bytes)).unwrap()
}

fn reader_of(store: &Store) -> Reader {
    Reader::open(store.reader_descriptor().unwrap()).unwrap()
}

/// A value in which any mixture with another one shows.
fn value(seed: u8, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at / 1000) as u8 ^ seed).collect()
}

fn is_value(found: &[u8], seed: u8) -> bool {
    found.iter().enumerate().all(|(at, byte)| *byte == (at / 1000) as u8 ^ seed)
}

#[test]
fn a_long_value_is_read_as_it_was_put() {
    let store = store(64 << 20);
    let reader = reader_of(&store);
    let long_key = vec![b'k'; limits::KEY_BYTES_MAX];
    let limit = limits::OBJECT_BYTES_MAX;
    for key in [&b"key"[..], b"", &long_key] {
        for bytes in [limit, limit + 1, 2 * limit, LONG, 5, LONG - 1] {
            store.put_until(key, &value(bytes as u8, bytes), Some(1000)).unwrap();
            let expected = value(bytes as u8, bytes);
            assert!(store.get(key).unwrap().unwrap() == expected, "{bytes}");
            let entry = reader.entry(key).unwrap().unwrap();
            assert!(entry.value == expected && entry.head.expires_at_ms == Some(1000), "{bytes}");
            let mut many = 0;
            reader
                .get_many(&[key, b"none"], |index, found| {
                    many += usize::from(found.is_some_and(|found| found == expected && index == 0));
                })
                .unwrap();
            assert_eq!(many, 1);
            let read = reader.transaction(|tx| tx.get(key)).unwrap();
            assert!(read.unwrap() == expected, "{bytes}");
            store.audit().unwrap();
        }
    }
    store.scrub(usize::MAX, |address| panic!("{address} is damaged")).unwrap();
    // What is behind them goes with them: by deletion, expiry and all at once.
    assert!(store.delete(b"").unwrap());
    store.audit().unwrap();
    store.publish_now(1000);
    while store.counts().keys > 0 {
        store.remove_expired(1000).unwrap();
    }
    store.audit().unwrap();
    store.put(b"key", &value(1, LONG)).unwrap();
    store.clear().unwrap();
    store.audit().unwrap();
    assert_eq!(store.scrub(usize::MAX, |_| ()).unwrap(), 0);
}

#[test]
fn a_part_of_a_long_value_is_what_a_part_of_the_whole_is() {
    let store = store(64 << 20);
    let whole = value(7, LONG);
    store.put(b"key", &whole).unwrap();
    let (section, last) = (limits::OBJECT_BYTES_MAX, 3 * limits::OBJECT_BYTES_MAX);
    let own = store.transaction(|tx| {
        tx.put(b"own", &whole)?;
        tx.part(b"own", |bytes| bytes - 20..bytes)
    });
    assert_eq!(own.unwrap().as_deref(), Some(&whole[LONG - 20..]));
    for (start, end) in [
        (0, 0),
        (0, 1),
        (5, 5),
        (0, LONG),
        (section - 1, section),
        (section, section + 1),
        (section - 1, section + 1),
        (section, 2 * section),
        (section - 10, last + 3),
        (last, LONG),
        (LONG - 1, LONG + 100),
        (LONG, LONG + 100),
        (LONG + 1, usize::MAX),
    ] {
        let expected = &whole[start.min(LONG)..end.min(LONG)];
        let found = store.transaction(|tx| {
            tx.part(b"key", |bytes| {
                assert_eq!(bytes, LONG);
                start..end
            })
        });
        assert!(found.unwrap().as_deref() == Some(expected), "{start}..{end}");
    }
}

#[test]
fn a_transaction_sees_its_own_long_values_and_leaves_none_behind() {
    let store = store(64 << 20);
    store.put(b"old", &value(1, LONG)).unwrap();
    let body = |tx: &mut caravan_store::Transaction<'_>| {
        let old = tx.get(b"old")?.unwrap_or_default();
        tx.put(b"new", &value(2, LONG))?;
        assert!(is_value(&tx.get(b"new")?.unwrap(), 2));
        // Each of these replaces the one before.
        tx.put(b"new", &value(3, 2 * LONG))?;
        tx.put(b"new", b"short")?;
        tx.put(b"new", &old)?;
        tx.put(b"gone", &old)?;
        tx.delete(b"gone")?;
        tx.delete(b"old").map(drop)
    };
    let aborted = store.transaction(|tx| {
        body(tx)?;
        Err::<(), _>(StoreError::VersionChanged)
    });
    assert!(matches!(aborted, Err(StoreError::VersionChanged)));
    store.audit().unwrap();
    assert!(is_value(&store.get(b"old").unwrap().unwrap(), 1));
    store.transaction(body).unwrap();
    store.audit().unwrap();
    assert_eq!(store.get(b"old").unwrap(), None);
    assert_eq!(store.get(b"gone").unwrap(), None);
    assert!(is_value(&store.get(b"new").unwrap().unwrap(), 1));
}

#[test]
fn a_value_for_which_there_is_no_room_changes_nothing() {
    let store = store(16 << 20);
    store.put(b"key", &value(1, LONG)).unwrap();
    for bytes in [13 << 20, 17 << 20] {
        let error = store.put(b"key", &vec![0; bytes]).unwrap_err();
        assert!(matches!(error, StoreError::Full { .. }), "{error}");
        assert!(is_value(&store.get(b"key").unwrap().unwrap(), 1));
        store.audit().unwrap();
    }
    // Blocks that are empty again serve for objects of other sizes, and those again for long values.
    store.delete(b"key").unwrap();
    let mut count = 0_u32;
    while store.put(&count.to_ne_bytes(), &[1; 1000]).is_ok() {
        count += 1;
    }
    store.clear().unwrap();
    store.put(b"key", &value(2, 8 << 20)).unwrap();
    assert!(is_value(&store.get(b"key").unwrap().unwrap(), 2));
    store.audit().unwrap();
}

#[test]
fn long_values_that_are_not_used_are_evicted_as_a_whole() {
    let store = Store::embedded(StoreOptions::new(32 << 20).eviction(Eviction::LeastRecentlyUsed)).unwrap();
    for number in 0..40_u8 {
        store.put(&[number], &value(number, LONG)).unwrap();
        assert!(is_value(&store.get(&[number]).unwrap().unwrap(), number));
    }
    let counts = store.counts();
    assert!(counts.evicted > 20 && counts.keys > 3 && counts.used_bytes <= counts.memory_bytes, "{counts:?}");
    store.audit().unwrap();
}

#[test]
fn no_long_value_is_torn() {
    let store = store(64 << 20);
    let reader = reader_of(&store);
    store.put(b"key", &value(0, LONG)).unwrap();
    store.put(b"twin", &value(0, LONG)).unwrap();
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for seed in 1..40_u8 {
                let value = value(seed, LONG - usize::from(seed) * 10_000);
                let both = store.transaction(|tx| {
                    tx.put(b"key", &value)?;
                    tx.put(b"twin", &value)
                });
                both.unwrap();
                // Time for a reader: each value that is being read goes.
                std::thread::yield_now();
            }
            is_done.store(true, Ordering::Release);
        });
        let mut found = 0;
        loop {
            let is_last = is_done.load(Ordering::Acquire);
            match reader.get(b"key") {
                Ok(read) => {
                    let read = read.unwrap();
                    assert!(is_value(&read, read[0]) && read.len() == LONG - usize::from(read[0]) * 10_000);
                    found += 1;
                }
                Err(error) => assert!(matches!(error, StoreError::Contended), "{error}"),
            }
            let both = reader.transaction(|tx| {
                let both = [tx.get(b"key")?.unwrap_or_default(), tx.get(b"twin")?.unwrap_or_default()];
                // Also a body that is then run again sees one moment.
                assert!(both[0] == both[1] && !both[0].is_empty());
                Ok::<_, StoreError>(())
            });
            assert!(matches!(both, Ok(()) | Err(StoreError::Contended)));
            if is_last {
                break;
            }
        }
        assert!(found > 0);
    });
    store.audit().unwrap();
}
