//! Random operations, against a map that does the same.

use std::collections::BTreeMap;

use caravan_store::{KeyVersion, Reader, ScanCursor, Store, StoreError, StoreOptions, limits};
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Step {
    Put { key: usize, bytes: usize, expires_in: Option<u64> },
    Delete { key: usize },
    Swap { keys: [usize; 2] },
    Abort { key: usize },
    Pass { ms: u64 },
    RemoveExpired,
    Clear,
}

fn step() -> impl Strategy<Value = Step> {
    let key = 0..KEYS;
    // Sizes of every class, most of them small.
    let bytes = prop_oneof![8 => 0..200_usize, 2 => 0..20_000_usize, 1 => 0..3 * limits::OBJECT_BYTES_MAX];
    let expires_in = prop_oneof![3 => Just(None), 1 => (0..50_u64).prop_map(Some)];
    prop_oneof![
        20 => (key.clone(), bytes, expires_in).prop_map(|(key, bytes, expires_in)| Step::Put { key, bytes, expires_in }),
        8 => key.clone().prop_map(|key| Step::Delete { key }),
        4 => [key.clone(), key.clone()].prop_map(|keys| Step::Swap { keys }),
        2 => key.clone().prop_map(|key| Step::Abort { key }),
        4 => (0..40_u64).prop_map(|ms| Step::Pass { ms }),
        1 => Just(Step::RemoveExpired),
        1 => Just(Step::Clear),
    ]
}

const KEYS: usize = 40;

/// Keys of every form: empty, short, of 254 and 255 bytes, where their length is stored elsewhere, and the
/// longest.
fn key(number: usize) -> Vec<u8> {
    let length = match number {
        0 => 0,
        1 => 254,
        2 => 255,
        3 => 256,
        4 => limits::KEY_BYTES_MAX,
        _ => return format!("key {number}").into_bytes(),
    };
    (0..length).map(|at| (at * 7 + number) as u8).collect()
}

fn value(seed: usize, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at * 31 + seed) as u8).collect()
}

type Model = BTreeMap<Vec<u8>, (Vec<u8>, Option<u64>)>;

fn apply(store: &Store, model: &mut Model, now_ms: &mut u64, number: usize, step: &Step) {
    match *step {
        Step::Put { key: k, bytes, expires_in } => {
            let (k, value) = (key(k), value(number, bytes));
            let expires_at_ms = expires_in.map(|ms| *now_ms + ms);
            let before = store.version(&k).unwrap();
            store.put_until(&k, &value, expires_at_ms).unwrap();
            model.insert(k.clone(), (value, expires_at_ms));
            let after = store.version(&k).unwrap();
            assert!(after == KeyVersion::ABSENT || after != before);
        }
        Step::Delete { key: k } => {
            let is_there = model.remove(&key(k)).is_some_and(|(_, at)| at.is_none_or(|at| at > *now_ms));
            assert_eq!(store.delete(&key(k)).unwrap(), is_there);
        }
        Step::Swap { keys } => {
            let [a, b] = keys.map(key);
            let body = |tx: &mut caravan_store::Transaction<'_>| {
                let (x, y) = (tx.get(&a)?, tx.get(&b)?);
                for (key, value) in [(&a, y), (&b, x)] {
                    match value {
                        Some(value) => tx.put(key, &value)?,
                        None => drop(tx.delete(key)?),
                    }
                }
                Ok::<_, StoreError>(())
            };
            store.transaction(body).unwrap();
            let mut live = |key| model.remove(key).filter(|(_, at)| at.is_none_or(|at| at > *now_ms));
            let (x, y) = (live(&a), live(&b));
            // Of one key twice, the second write holds.
            let x = if a == b { x.clone() } else { x };
            let y = if a == b { x.clone() } else { y };
            model.extend(y.map(|(value, _)| (a, (value, None))));
            model.extend(x.map(|(value, _)| (b, (value, None))));
        }
        Step::Abort { key: k } => {
            let aborted = store.transaction(|tx| {
                tx.put(&key(k), b"never")?;
                tx.delete(&key(0))?;
                tx.alloc(b"never", None)?;
                Err::<(), _>(StoreError::VersionChanged)
            });
            assert!(matches!(aborted, Err(StoreError::VersionChanged)));
        }
        Step::Pass { ms } => {
            *now_ms += ms;
            store.publish_now(*now_ms);
        }
        Step::RemoveExpired => drop(store.remove_expired(1000).unwrap()),
        Step::Clear => {
            store.clear().unwrap();
            model.clear();
        }
    }
}

fn compare(store: &Store, reader: &Reader, model: &Model, now_ms: u64) {
    let live: Model = model
        .iter()
        .filter(|(_, (_, at))| at.is_none_or(|at| at > now_ms))
        .map(|(k, v)| (k.clone(), v.clone()))
        .collect();
    let keys: Vec<_> = (0..KEYS).map(key).collect();
    for key in &keys {
        let found = store.entry(key).unwrap();
        assert_eq!(found, reader.entry(key).unwrap());
        assert_eq!(found.map(|entry| (entry.value, entry.head.expires_at_ms)), live.get(key).cloned());
    }
    let mut many = Vec::new();
    reader.get_many(&keys, |_, value| many.push(value.map(<[u8]>::to_vec))).unwrap();
    let expected: Vec<_> = keys.iter().map(|key| live.get(key).map(|(value, _)| value.clone())).collect();
    assert_eq!(many, expected);
    let mut scanned = Vec::new();
    let mut cursor = ScanCursor::START;
    loop {
        cursor = reader.scan(cursor, 7, |key| scanned.push(key.to_vec())).unwrap();
        if cursor == ScanCursor::START {
            break;
        }
    }
    scanned.sort();
    assert_eq!(scanned, live.keys().cloned().collect::<Vec<_>>(), "nothing has grown, so no key comes twice");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn a_store_does_what_a_map_does(steps in prop::collection::vec(step(), 1..120)) {
        let store = Store::embedded(StoreOptions::new(256 << 20)).unwrap();
        let reader = Reader::open(store.reader_descriptor().unwrap()).unwrap();
        let (mut model, mut now_ms) = (Model::new(), 0);
        for (number, step) in steps.iter().enumerate() {
            apply(&store, &mut model, &mut now_ms, number, step);
        }
        compare(&store, &reader, &model, now_ms);
        store.audit().unwrap();
        store.scrub(usize::MAX, |address| panic!("{address} is damaged")).unwrap();
        store.clear().unwrap();
        compare(&store, &reader, &Model::new(), now_ms);
        store.audit().unwrap();
    }
}
