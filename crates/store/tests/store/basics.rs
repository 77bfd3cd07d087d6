//! Keys, versions, expiry and limits, by one thread.

use caravan_store::{KeyVersion, ObjectAddress, Store, StoreError, StoreOptions, limits};

fn store() -> Store {
    Store::embedded(StoreOptions::new(64 << 20)).unwrap()
}

#[test]
fn a_version_changes_with_each_write() {
    let store = store();
    assert_eq!(store.version(b"k").unwrap(), KeyVersion::ABSENT);
    store.put(b"k", b"1").unwrap();
    let first = store.version(b"k").unwrap();
    store.put(b"k", b"1").unwrap();
    let second = store.version(b"k").unwrap();
    assert_ne!(first, second);
    let stale = store.transaction(|tx| {
        tx.require(b"k", first)?;
        tx.put(b"k", b"2")
    });
    assert!(matches!(stale, Err(StoreError::VersionChanged)));
    store
        .transaction(|tx| {
            tx.require(b"k", second)?;
            tx.put(b"k", b"2")
        })
        .unwrap();
    assert_eq!(store.get(b"k").unwrap().unwrap(), b"2");
}

#[test]
fn a_key_expires_by_the_published_clock() {
    let store = store();
    store.publish_now(1000);
    store.put_until(b"k", b"v", Some(1500)).unwrap();
    assert_eq!(store.head(b"k").unwrap().unwrap().expires_at_ms, Some(1500));
    store.publish_now(1499);
    assert!(store.get(b"k").unwrap().is_some());
    store.publish_now(1500);
    assert!(store.get(b"k").unwrap().is_none());
    assert_eq!(store.version(b"k").unwrap(), KeyVersion::ABSENT);
    assert!(!store.delete(b"k").unwrap());
    store.put_until(b"l", b"v", Some(1)).unwrap();
    store.remove_expired(1 << 20).unwrap();
    assert_eq!(store.counts().keys, 0);
}

#[test]
fn keys_with_an_expiry_are_counted_when_a_walk_has_passed_all_keys() {
    let store = store();
    for number in 0..100 {
        store.put_until(&[number], b"v", (number < 30).then_some(1000)).unwrap();
    }
    // Each call looks at 40 of 100 keys; the sixth one begins the third round.
    for _ in 0..6 {
        store.remove_expired(40).unwrap();
    }
    assert_eq!(store.counts().expiring, 30);
    store.publish_now(1000);
    for _ in 0..6 {
        store.remove_expired(40).unwrap();
    }
    assert_eq!((store.counts().keys, store.counts().expiring), (70, 0));
}

#[test]
fn the_removal_of_a_key_that_had_expired_before_it_was_watched_is_no_write() {
    let store = store();
    store.put_until(b"k", b"v", Some(1000)).unwrap();
    store.publish_now(1000);
    let watch = store.watch(b"k").unwrap();
    store.remove_expired(100).unwrap();
    store.transaction(|tx| tx.require_unchanged(b"k", &watch)).unwrap();
    store.put(b"k", b"w").unwrap();
    let written = store.transaction(|tx| tx.require_unchanged(b"k", &watch));
    assert!(matches!(written, Err(StoreError::VersionChanged)), "{written:?}");
}

#[test]
fn what_is_too_long_is_refused_by_name() {
    let store = store();
    let key = vec![b'k'; limits::KEY_BYTES_MAX];
    let value = vec![b'v'; limits::OBJECT_BYTES_MAX];
    store.put(&key, &value).unwrap();
    assert_eq!(store.get(&key).unwrap().unwrap(), value);
    let (long_key, long_value) = ([&key[..], b"k"].concat(), vec![0; limits::VALUE_BYTES_MAX + 1]);
    assert!(matches!(store.put(&long_key, b""), Err(StoreError::KeyTooLong { .. })));
    assert!(matches!(store.get(&long_key), Err(StoreError::KeyTooLong { .. })));
    assert!(matches!(store.put(b"", &long_value), Err(StoreError::ValueTooLong { .. })));
    let long_object = limits::OBJECT_BYTES_MAX + 1;
    assert!(matches!(store.alloc(long_object, None), Err(StoreError::ObjectTooLong { .. })));
    store.put(b"", b"").unwrap();
    assert_eq!(store.get(b"").unwrap().unwrap(), b"");
}

#[test]
fn a_body_may_not_write_around_its_transaction() {
    let store = store();
    let result = store.transaction(|tx| {
        tx.put(b"k", b"1")?;
        store.put(b"k", b"2")
    });
    assert!(matches!(result, Err(StoreError::Nested)));
    let other = self::store();
    let result = store.transaction(|_| other.transaction(|_| store.put(b"k", b"2")));
    assert!(matches!(result, Err(StoreError::Nested)));
    assert_eq!(store.get(b"k").unwrap(), None);
    store
        .transaction(|tx| other.transaction(|other| other.put(b"k", b"3")).and_then(|()| tx.put(b"k", b"3")))
        .unwrap();
    assert_eq!(store.get(b"k").unwrap(), other.get(b"k").unwrap());
}

#[test]
fn objects_without_a_key_are_read_written_and_freed() {
    let store = store();
    let (first, second) = store
        .transaction(|tx| {
            let first = tx.alloc(b"first", None)?;
            let second = tx.alloc(&first.to_parts().0.to_ne_bytes(), Some(first))?;
            assert_eq!(tx.read(first)?, b"first");
            Ok::<_, StoreError>((first, second))
        })
        .unwrap();
    assert_eq!(store.read(second).unwrap(), first.to_parts().0.to_ne_bytes());
    let aborted = store.transaction(|tx| {
        tx.write(first, b"other")?;
        tx.free(second)?;
        assert!(matches!(tx.read(second), Err(StoreError::NoObject(_))));
        tx.write(first, &[0; 1000])
    });
    assert!(matches!(aborted, Err(StoreError::ObjectTooSmall { bytes: 1000, .. })));
    assert_eq!(store.read(first).unwrap(), b"first");
    store.transaction(|tx| tx.write(first, b"other").and_then(|()| tx.free(second))).unwrap();
    assert_eq!(store.read(first).unwrap(), b"other");
    assert!(matches!(store.read(second), Err(StoreError::NoObject(_))));
    // What comes to the same place is another object.
    let third = store.alloc(8, Some(first)).unwrap();
    assert_eq!((third.to_parts().0, third == second), (second.to_parts().0, false));
    assert!(matches!(store.read(second), Err(StoreError::NoObject(_))));
    let (place, incarnation) = third.to_parts();
    assert_eq!(store.read(ObjectAddress::from_parts(place, incarnation)).unwrap(), [0; 8]);
    for wrong in [0, 8, place + 8, place + 1, 1 << 40, u64::MAX, u64::MAX - 7] {
        let wrong = ObjectAddress::from_parts(wrong, incarnation);
        assert!(matches!(store.read(wrong), Err(StoreError::NoObject(_))), "{wrong}");
        assert!(matches!(store.transaction(|tx| tx.free(wrong)), Err(StoreError::NoObject(_))));
    }
    store.audit().unwrap();
}

#[test]
fn a_transaction_of_many_keys_is_whole() {
    let store = store();
    let key = |number: u32| number.to_ne_bytes();
    for round in [1_u8, 2] {
        store.transaction(|tx| (0..8000).try_for_each(|number| tx.put(&key(number), &[round; 20]))).unwrap();
        let sum = store.transaction(|tx| {
            let mut sum = 0;
            for number in 0..8000 {
                sum += tx.get(&key(number))?.map_or(0, |value| u32::from(value[19]));
            }
            Ok::<_, StoreError>(sum)
        });
        assert_eq!(sum.unwrap(), 8000 * u32::from(round));
    }
    store.audit().unwrap();
}

#[test]
fn a_transaction_reads_parts_and_heads_of_what_is_stored_and_of_what_it_has_put() {
    let store = store();
    store.publish_now(1000);
    let long_key = vec![b'k'; 300];
    store.put_until(b"k", b"0123456789abcdef", Some(5000)).unwrap();
    store.put_until(&long_key, b"0123456789abcdef", Some(5000)).unwrap();
    store.put(b"empty", b"").unwrap();
    store.put_until(b"gone", b"x", Some(500)).unwrap();
    let check = |tx: &mut caravan_store::Transaction<'_>, key: &[u8]| {
        assert_eq!(tx.head(key)?.unwrap().expires_at_ms, Some(5000));
        assert_eq!(tx.value_bytes(key)?, Some(16));
        for (part, expected) in
            [(0..16, "0123456789abcdef"), (3..12, "3456789ab"), (14..99, "ef"), (20..30, ""), (7..7, "")]
        {
            let found = tx.part(key, |bytes| {
                assert_eq!(bytes, 16);
                part.clone()
            })?;
            assert_eq!(found.as_deref(), Some(expected.as_bytes()), "{part:?}");
        }
        Ok::<_, StoreError>(())
    };
    store
        .transaction(|tx| {
            check(tx, b"k")?;
            check(tx, &long_key)?;
            tx.put_until(b"new", b"0123456789abcdef", Some(5000))?;
            check(tx, b"new")?;
            assert_eq!(tx.head(b"new")?.unwrap().version, KeyVersion::ABSENT);
            assert_eq!(tx.value_bytes(b"empty")?, Some(0));
            for absent in [&b"gone"[..], b"none"] {
                assert_eq!(tx.head(absent)?, None);
                assert_eq!(tx.value_bytes(absent)?, None);
                assert_eq!(tx.part(absent, |bytes| 0..bytes)?, None);
            }
            tx.delete(b"k")?;
            assert_eq!(tx.head(b"k")?, None);
            Ok::<_, StoreError>(())
        })
        .unwrap();
}
