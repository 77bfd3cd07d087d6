//! Keys, versions, expiry and limits, by one thread.

use caravan_store::{KeyVersion, Store, StoreError, StoreOptions, limits};

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
fn what_is_too_long_is_refused_by_name() {
    let store = store();
    let key = vec![b'k'; limits::KEY_BYTES_MAX];
    let value = vec![b'v'; limits::VALUE_BYTES_MAX];
    store.put(&key, &value).unwrap();
    assert_eq!(store.get(&key).unwrap().unwrap(), value);
    let (long_key, long_value) = ([&key[..], b"k"].concat(), [&value[..], b"v"].concat());
    assert!(matches!(store.put(&long_key, b""), Err(StoreError::KeyTooLong { .. })));
    assert!(matches!(store.get(&long_key), Err(StoreError::KeyTooLong { .. })));
    assert!(matches!(store.put(b"", &long_value), Err(StoreError::ValueTooLong { .. })));
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
    assert_eq!(store.get(b"k").unwrap(), None);
}
