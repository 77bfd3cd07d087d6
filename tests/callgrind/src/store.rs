//! The paths of an owner's and a reader's lookup and of an owner's write.

use caravan_store::{Reader, Store, StoreOptions};

/// Keys, few enough that hardly any two share a bucket: where they lie is random.
const KEYS: u64 = 64;
const KEY_BYTES: usize = 16;
const VALUE: [u8; 32] = [7; 32];

/// A store with some keys, and a reader of it.
struct StoreWorld {
    store: Store,
    reader: Reader,
    keys: Vec<[u8; KEY_BYTES]>,
    /// The key that comes next.
    next: usize,
    value: Vec<u8>,
}

fn key(number: u64) -> [u8; KEY_BYTES] {
    let mut key = [b'k'; KEY_BYTES];
    key[8..].copy_from_slice(&number.to_be_bytes());
    key
}

impl StoreWorld {
    fn new() -> Self {
        let store = Store::embedded(StoreOptions::new(64 << 20)).expect("a store");
        let keys: Vec<_> = (0..KEYS).map(key).collect();
        keys.iter().for_each(|key| store.put(key, &VALUE).expect("room"));
        let reader = Reader::open(store.reader_descriptor().expect("a descriptor")).expect("a reader");
        Self { store, reader, keys, next: 0, value: Vec::with_capacity(64) }
    }

    fn turn(&mut self) {
        self.next = (self.next + 1) % self.keys.len();
        self.value.clear();
    }

    fn key(&self) -> &[u8] {
        &self.keys[self.next]
    }
}

fn nothing(_: &mut StoreWorld) {}

fn is_found(world: &mut StoreWorld) {
    assert_eq!(world.value, VALUE);
}

probes! {
    StoreWorld, 1000;
    // A lookup by a thread of the owner.
    probe_store_get, StoreWorld::turn, |world| {
        let mut value = std::mem::take(&mut world.value);
        let _ = world.store.get_into(world.key(), &mut value);
        world.value = value;
    }, is_found;
    // A lookup by a reader, of another process in real life.
    probe_reader_get, StoreWorld::turn, |world| {
        let mut value = std::mem::take(&mut world.value);
        let _ = world.reader.get_into(world.key(), &mut value);
        world.value = value;
    }, is_found;
    // Lookups of all keys by a reader, many under way at once.
    probe_reader_get_many, nothing, |world| {
        let _ = world.reader.get_many(&world.keys, |_, value| assert!(value.is_some()));
    }, nothing;
    // A new value of the same length for a key that exists.
    probe_store_put, StoreWorld::turn, |world| world.store.put(world.key(), &VALUE).expect("room"), nothing;
    // A key that did not exist. It is deleted afterwards.
    probe_store_put_new, |world| {
        world.turn();
        world.store.delete(world.key()).expect("deleted");
    }, |world| world.store.put(world.key(), &VALUE).expect("room"), nothing;
}
