//! A store whose owner ends, and another owner that takes over its memory.

use std::io::Read;
use std::os::fd::OwnedFd;

use caravan_store::faults::cut_after;
use caravan_store::{Reader, Store, StoreError, StoreOptions};

const MEMORY: u64 = 64 << 20;

fn open(memory: &OwnedFd) -> Result<Store, StoreError> {
    Store::open(memory.try_clone().unwrap(), StoreOptions::new(MEMORY))
}

fn key(number: u32) -> [u8; 4] {
    number.to_ne_bytes()
}

fn value(number: u32) -> Vec<u8> {
    vec![number as u8; (number as usize * 7919) % 3000]
}

#[test]
fn what_was_written_is_there_after_a_restart() {
    let memory = Store::new_memory("restart").unwrap();
    let mut store = open(&memory).unwrap();
    let reader = Reader::open(store.reader_descriptor().unwrap()).unwrap();
    let object = store.transaction(|tx| tx.alloc(b"object", None)).unwrap();
    store.publish_now(77);
    // Enough keys to split shards and to fill several classes.
    for number in 0..12_000 {
        store.put(&key(number), &value(number % 300)).unwrap();
        if number % 3000 == 2999 {
            let before = store.counts();
            let version = store.version(&key(number)).unwrap().to_u64();
            drop(store);
            store = open(&memory).unwrap();
            store.audit().unwrap();
            let after = store.counts();
            assert_eq!((after.keys, after.used_bytes), (before.keys, before.used_bytes));
            // No version comes again.
            store.put(b"other", b"").unwrap();
            assert!(store.version(b"other").unwrap().to_u64() > version);
            assert!(store.delete(b"other").unwrap());
        }
    }
    for number in 0..12_000 {
        let found = reader.get(&key(number)).unwrap();
        assert_eq!(found, Some(value(number % 300)));
        assert_eq!(found, store.get(&key(number)).unwrap());
    }
    assert_eq!((store.read(object).unwrap(), store.now_ms()), (b"object".to_vec(), 77));
    store.transaction(|tx| tx.free(object)).unwrap();
    store.audit().unwrap();
}

#[test]
fn an_owner_works_before_the_memory_is_restored() {
    let options = || StoreOptions::new(MEMORY);
    let memory = Store::new_memory("restart").unwrap();
    let mut store = open(&memory).unwrap();
    (0..3000).for_each(|number| store.put(&key(number), &value(number % 300)).unwrap());
    for round in 0..20 {
        (round..3000).step_by(7).for_each(|number| _ = store.delete(&key(number)).unwrap());
        // Sometimes its locks stay behind, sometimes its record.
        cut_after(u64::from(round) * 2, || drop(store.put(&key(3), b"cut")));
        drop(store);
        store = Store::take_over(memory.try_clone().unwrap(), options()).unwrap();
        // Here, nobody else restores anything.
        store.put(&key(3), b"whole").unwrap();
        assert_eq!(store.get(&key(3)).unwrap().unwrap(), b"whole");
        std::thread::scope(|scope| {
            scope.spawn(|| store.restore().unwrap());
            scope.spawn(|| {
                for number in (0..3000).rev() {
                    store.put(&key(number), &value((number + round) % 300)).unwrap();
                }
            });
        });
        store.audit().unwrap();
        assert_eq!(store.counts().keys, 3000);
        for number in 0..3000 {
            assert_eq!(store.get(&key(number)).unwrap(), Some(value((number + round) % 300)));
        }
    }
}

#[test]
fn a_full_memory_that_is_not_restored_has_the_room_that_was_free() {
    let options = || StoreOptions::new(8 << 20);
    let memory = Store::new_memory("restart").unwrap();
    let store = Store::open(memory.try_clone().unwrap(), options()).unwrap();
    let full = (0..).find(|number| store.put(&key(*number), &[1; 1000]).is_err()).unwrap();
    (0..full / 2).for_each(|number| assert!(store.delete(&key(number)).unwrap()));
    drop(store);
    let store = Store::take_over(memory.try_clone().unwrap(), options()).unwrap();
    (0..full / 2).for_each(|number| store.put(&key(number), &[2; 1000]).unwrap());
    assert_eq!(store.counts().keys, u64::from(full));
    store.audit().unwrap();
}

#[test]
fn a_memory_has_one_owner() {
    let memory = Store::new_memory("restart").unwrap();
    let store = open(&memory).unwrap();
    assert!(matches!(open(&memory), Err(StoreError::Owned)));
    drop(store);
    open(&memory).unwrap();
}

#[test]
fn what_is_no_memory_of_this_store_is_refused() {
    let memory = Store::new_memory("restart").unwrap();
    open(&memory).unwrap().put(b"k", b"v").unwrap();
    let other = Store::open(memory.try_clone().unwrap(), StoreOptions::new(MEMORY / 2));
    let Err(StoreError::Options(text)) = other else { panic!("{other:?}") };
    assert!(text.contains(&MEMORY.to_string()), "{text}");
    // Nothing happened to it.
    assert_eq!(open(&memory).unwrap().get(b"k").unwrap().unwrap(), b"v");
    let file = std::fs::File::open("/proc/self/exe").unwrap();
    assert!(matches!(open(&file.into()), Err(StoreError::NotAStore(_))));
    let foreign = Store::new_memory("foreign").unwrap();
    rustix::io::write(&foreign, b"something else").unwrap();
    assert!(matches!(open(&foreign), Err(StoreError::NotAStore(_))));
    let mut bytes = Vec::new();
    std::fs::File::open(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&foreign)))
        .unwrap()
        .read_to_end(&mut bytes)
        .unwrap();
    assert_eq!(bytes, b"something else");
}

/// A number that follows from a number (splitmix64).
fn mixed(number: u64) -> u64 {
    let mut z = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z ^ z >> 27
}

#[test]
fn a_damaged_memory_is_refused_or_read_and_nothing_worse() {
    let memory = Store::new_memory("restart").unwrap();
    let options = StoreOptions::new(8 << 20);
    let open = || Store::open(memory.try_clone().unwrap(), options.clone());
    let store = open().unwrap();
    // Full enough for chains.
    (0..4800).for_each(|number| store.put(&key(number), b"value").unwrap());
    let used = store.counts().used_bytes.min(3 << 20);
    drop(store);
    let mut whole = vec![0; used as usize];
    rustix::io::pread(&memory, &mut whole, 0).unwrap();
    let rounds =
        std::env::var("CARAVAN_CUTS").map_or(200, |text| text.parse().expect("CARAVAN_CUTS is a number"));
    let mut refused = 0;
    for seed in 0..rounds {
        rustix::io::pwrite(&memory, &whole, 0).unwrap();
        // In the words of the store, the directory and the classes; in the lanes; anywhere.
        let range = [8192, 150_000, used][seed as usize % 3];
        let place = (mixed(seed) % range) & !7;
        let mut word = [0; 8];
        rustix::io::pread(&memory, &mut word, place).unwrap();
        let word = match seed / 3 % 3 {
            0 => u64::from_ne_bytes(word) ^ 1 << (mixed(seed + 1) % 64),
            1 => mixed(seed + 1),
            _ => 0,
        };
        rustix::io::pwrite(&memory, &word.to_ne_bytes(), place).unwrap();
        match open() {
            Ok(store) => {
                let _ = store.audit();
                (0..20).for_each(|number| drop(store.head(&key(number))));
            }
            Err(_) => refused += 1,
        }
    }
    assert!(refused > 0);
}
