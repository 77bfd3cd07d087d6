//! What is cut: something that is done to a store in some state, and what may be found of it afterwards.

use std::collections::BTreeMap;

use caravan_store::{Eviction, ObjectAddress, Store, StoreOptions};

/// What can be read of a store: each key with its value and expiry, and the objects that the case knows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    pub keys: BTreeMap<Vec<u8>, (Vec<u8>, Option<u64>)>,
    pub objects: Vec<Option<Vec<u8>>>,
}

/// Something that is cut.
pub struct Case {
    pub name: &'static str,
    pub options: StoreOptions,
    /// Makes the state of before, and returns objects to look at.
    pub begin: fn(&Store) -> Vec<ObjectAddress>,
    pub action: fn(&Store, &[ObjectAddress]),
    /// Judges what is found between nothing and all of it.
    pub may_be: fn(before: &State, after: &State, now: &State) -> bool,
}

fn all_or_nothing(before: &State, after: &State, now: &State) -> bool {
    now == before || now == after
}

/// Several commits: each key is as it was before or after.
fn each_key_alone(before: &State, after: &State, now: &State) -> bool {
    let known = before.keys.keys().chain(after.keys.keys());
    let is_right =
        |key| now.keys.get(key) == before.keys.get(key) || now.keys.get(key) == after.keys.get(key);
    known.into_iter().all(is_right) && now.objects == before.objects
}

pub fn options(memory_bytes: u64) -> StoreOptions {
    StoreOptions::new(memory_bytes)
}

fn key(number: u32) -> Vec<u8> {
    format!("key {number}").into_bytes()
}

fn put_keys(store: &Store, count: u32, bytes: usize) {
    (0..count).for_each(|number| store.put(&key(number), &vec![number as u8; bytes]).unwrap());
}

/// Fills the memory with values of `bytes` bytes, and returns how many there are.
fn fill(store: &Store, bytes: usize) -> u32 {
    (0..)
        .find(|number| store.put(&[b'f', *number as u8, (*number >> 8) as u8], &vec![7; bytes]).is_err())
        .unwrap()
}

pub const MEMORY: u64 = 8 << 20;

pub fn cases() -> Vec<Case> {
    vec![
        Case {
            name: "a new key",
            options: options(MEMORY),
            begin: |_| Vec::new(),
            action: |store, _| store.put(b"new", b"value").unwrap(),
            may_be: all_or_nothing,
        },
        Case {
            name: "a value that is overwritten",
            options: options(MEMORY),
            begin: |store| {
                put_keys(store, 3, 100);
                Vec::new()
            },
            action: |store, _| store.put_until(&key(1), &[9; 90], Some(5)).unwrap(),
            may_be: all_or_nothing,
        },
        Case {
            name: "a value that moves",
            options: options(MEMORY),
            begin: |store| {
                put_keys(store, 3, 3000);
                Vec::new()
            },
            action: |store, _| store.put(&key(1), &[9; 5000]).unwrap(),
            may_be: all_or_nothing,
        },
        Case {
            name: "a transaction of all kinds",
            options: options(MEMORY),
            begin: |store| {
                put_keys(store, 20, 40);
                let alloc = |byte: u8| store.transaction(|tx| tx.alloc(&[byte; 200], None)).unwrap();
                (0..3).map(alloc).collect()
            },
            action: |store, objects| {
                let all = store.transaction(|tx| {
                    for number in 0..4 {
                        tx.delete(&key(number))?;
                        tx.put(&key(4 + number), &[1; 45])?;
                        tx.put(&key(8 + number), &[2; 400])?;
                        tx.put(&key(100 + number), &[3; 30])?;
                    }
                    tx.write(objects[0], &[7; 150])?;
                    tx.free(objects[1])?;
                    let new = tx.alloc(&[1; 64], None)?;
                    // It is reachable, as the audit wants it.
                    tx.put(b"new", &new.to_parts().0.to_ne_bytes())
                });
                all.unwrap();
            },
            may_be: all_or_nothing,
        },
        Case {
            name: "a record that is longer than a lane",
            options: options(MEMORY),
            begin: |store| {
                put_keys(store, 40, 300);
                vec![store.transaction(|tx| tx.alloc(&[5; 20_000], None)).unwrap()]
            },
            action: |store, objects| {
                let all = store.transaction(|tx| {
                    (0..40).try_for_each(|number| tx.put(&key(number), &[200 + number as u8; 290]))?;
                    tx.write(objects[0], &[6; 19_000])
                });
                all.unwrap();
            },
            may_be: all_or_nothing,
        },
        Case {
            name: "keys that go into chains",
            options: options(MEMORY),
            begin: |store| {
                // No memory is left in which the table could grow.
                fill(store, 150_000);
                for number in 0..18_u8 {
                    assert!(store.delete(&[b'f', number, 0]).unwrap());
                }
                put_keys(store, 6500, 10);
                Vec::new()
            },
            action: |store, _| {
                store
                    .transaction(|tx| (7000..7020).try_for_each(|number| tx.put(&key(number), b"chained")))
                    .unwrap();
            },
            may_be: all_or_nothing,
        },
        Case {
            name: "a shard that is split",
            options: options(MEMORY),
            begin: |store| {
                put_keys(store, 4905, 8);
                Vec::new()
            },
            action: |store, _| (4905..4910).for_each(|number| store.put(&key(number), b"more").unwrap()),
            may_be: each_key_alone,
        },
        Case {
            name: "a block that changes its class",
            options: options(MEMORY),
            begin: |store| {
                let filled = fill(store, 50_000);
                for number in 0..filled {
                    assert!(store.delete(&[b'f', number as u8, (number >> 8) as u8]).unwrap());
                }
                Vec::new()
            },
            action: |store, _| store.put(b"small", &[1; 2000]).unwrap(),
            may_be: all_or_nothing,
        },
        Case {
            name: "an eviction",
            options: options(MEMORY).eviction(Eviction::LeastRecentlyUsed),
            begin: |store| {
                put_keys(store, 1500, 4000);
                Vec::new()
            },
            action: |store, _| (1500..1503).for_each(|number| store.put(&key(number), &[1; 4000]).unwrap()),
            may_be: each_key_alone,
        },
        Case {
            name: "keys that expire",
            options: options(MEMORY),
            begin: |store| {
                (0..5).for_each(|number| {
                    store.put_until(&key(number), b"v", Some(10 + u64::from(number))).unwrap()
                });
                Vec::new()
            },
            action: |store, _| {
                store.publish_now(12);
                store.remove_expired(100).unwrap();
            },
            may_be: each_key_alone,
        },
        Case {
            name: "the deletion of all keys",
            options: options(MEMORY),
            begin: |store| {
                put_keys(store, 300, 24);
                vec![store.transaction(|tx| tx.alloc(b"stays", None)).unwrap()]
            },
            action: |store, _| store.clear().unwrap(),
            may_be: all_or_nothing,
        },
        Case {
            name: "a long value that is exchanged for another",
            options: options(2 * MEMORY),
            begin: |store| {
                store.put(b"long", &vec![1; 1_200_000]).unwrap();
                Vec::new()
            },
            action: |store, _| store.put(b"long", &vec![2; 1_300_000]).unwrap(),
            may_be: all_or_nothing,
        },
        Case {
            name: "the deletion of long values with all keys",
            options: options(2 * MEMORY),
            begin: |store| {
                put_keys(store, 10, 24);
                store.put(b"long", &vec![1; 1_200_000]).unwrap();
                store.put(b"longer", &vec![2; 2_100_000]).unwrap();
                Vec::new()
            },
            action: |store, _| store.clear().unwrap(),
            may_be: all_or_nothing,
        },
    ]
}
