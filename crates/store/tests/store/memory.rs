//! A memory that is used up.

use std::os::fd::{AsFd, OwnedFd};

use caravan_store::{Eviction, Reader, Store, StoreError, StoreOptions};

use crate::children::status_of;

const MEMORY: u64 = 8 << 20;

#[test]
fn a_full_store_says_so_and_loses_nothing() {
    let store = Store::embedded(StoreOptions::new(MEMORY)).unwrap();
    let mut count = 0_u32;
    let error = loop {
        match store.put(&count.to_ne_bytes(), &[count as u8; 3000]) {
            Ok(()) => count += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(error, StoreError::Full { memory_bytes: MEMORY, .. }), "{error}");
    assert!(!error.is_host_full(), "{error}");
    assert!(store.counts().used_bytes <= MEMORY);
    assert!(u64::from(count) * 3000 > MEMORY / 2, "only {count} values fitted");
    for number in 0..count {
        assert_eq!(store.get(&number.to_ne_bytes()).unwrap().unwrap(), [number as u8; 3000]);
    }
    // A transaction that does not fit as a whole changes nothing.
    let result = store.transaction(|tx| {
        tx.delete(&0_u32.to_ne_bytes())?;
        (0..2000).try_for_each(|number: u64| tx.put(&number.to_ne_bytes(), &[1; 3000]))
    });
    assert!(matches!(result, Err(StoreError::Full { .. })));
    assert!(store.get(&0_u32.to_ne_bytes()).unwrap().is_some());
    store.audit().unwrap();
    // What is deleted makes room, for the same class and then for others.
    assert!(store.delete(&0_u32.to_ne_bytes()).unwrap());
    store.put(b"again", &[1; 3000]).unwrap();
    store.clear().unwrap();
    for number in 0..8_000_u32 {
        store.put(&number.to_ne_bytes(), &[number as u8; 400]).unwrap();
    }
    store.audit().unwrap();
    for number in 0..8_000_u32 {
        assert_eq!(store.get(&number.to_ne_bytes()).unwrap().unwrap(), [number as u8; 400]);
    }
    assert!(store.counts().used_bytes <= MEMORY);
}

#[test]
fn a_store_that_evicts_keeps_what_is_touched() {
    let options = StoreOptions::new(MEMORY).eviction(Eviction::LeastRecentlyUsed);
    let store = Store::embedded(options).unwrap();
    store.put(b"touched", &[1; 1000]).unwrap();
    for number in 0..20_000_u32 {
        store.put(&number.to_ne_bytes(), &[number as u8; 1000]).unwrap();
        assert!(store.get(b"touched").unwrap().is_some(), "evicted at {number}");
    }
    let counts = store.counts();
    assert!(counts.evicted > 10_000 && counts.keys > 4_000 && counts.used_bytes <= MEMORY, "{counts:?}");
    store.audit().unwrap();
    // Objects of another size get blocks of their own.
    for number in 0..100_u32 {
        store.put(&number.to_ne_bytes(), &vec![number as u8; 200_000]).unwrap();
    }
    assert_eq!(store.get(&99_u32.to_ne_bytes()).unwrap().unwrap().len(), 200_000);
    store.audit().unwrap();
}

#[test]
fn an_address_of_a_block_that_changed_leads_to_nothing() {
    let store = Store::embedded(StoreOptions::new(MEMORY)).unwrap();
    let mut addresses = Vec::new();
    while let Ok(address) = store.alloc(100_000, None) {
        addresses.push(address);
    }
    for address in &addresses {
        store.transaction(|tx| tx.free(*address)).unwrap();
    }
    // The new objects imitate headers everywhere.
    let imitation = [2_u8, 0, 1, 0, 0, 0, 0, 0].repeat(50);
    while store.transaction(|tx| tx.alloc(&imitation, None)).is_ok() {}
    for address in addresses {
        assert!(matches!(store.read(address), Err(StoreError::NoObject(_))), "{address}");
        assert!(matches!(store.transaction(|tx| tx.write(address, b"x")), Err(StoreError::NoObject(_))));
    }
    store.audit().unwrap();
}

#[test]
fn a_reader_has_no_right_to_write() {
    let store = Store::embedded(StoreOptions::new(MEMORY)).unwrap();
    let descriptor = store.reader_descriptor().unwrap();
    let status = rustix::fs::fstat(&descriptor).unwrap();
    assert_eq!(status.st_mode & 0o777, 0o400);
    assert!(rustix::io::write(&descriptor, b"x").is_err());
    assert!(rustix::fs::ftruncate(&descriptor, 0).is_err());
    let flags = rustix::fs::fcntl_getfl(descriptor.as_fd()).unwrap();
    assert!(!flags.intersects(rustix::fs::OFlags::RDWR | rustix::fs::OFlags::WRONLY));
}

/// Makes a store in a process that may map less memory than the store is to have.
pub fn make_within_a_limit(_: OwnedFd, _: bool) -> Result<(), String> {
    use rustix::process::{Resource, Rlimit, setrlimit};
    let limit = Rlimit { current: Some(1 << 30), maximum: Some(1 << 30) };
    setrlimit(Resource::As, limit).map_err(|error| error.to_string())?;
    match Store::embedded(StoreOptions::new(4 << 30)) {
        Err(error @ StoreError::Memory(_))
            if error.to_string().starts_with("no shared memory for the store") => {}
        other => return Err(format!("{other:?}")),
    }
    // A smaller one is possible, and works.
    let store = Store::embedded(StoreOptions::new(64 << 20)).map_err(|error| error.to_string())?;
    store.put(b"k", b"v").map_err(|error| error.to_string())
}

#[test]
fn a_process_that_may_not_map_so_much_is_told_so() {
    assert_eq!(status_of("limited", None), 0);
}

#[test]
fn what_is_no_store_is_refused() {
    let null = std::fs::File::open("/dev/null").unwrap();
    assert!(matches!(Reader::open(null.into()), Err(StoreError::NotAStore(_))));
    let segment = caravan_segment::Segment::create("other", 1 << 20, caravan_segment::Pages::Small).unwrap();
    segment.grow(1 << 20).unwrap();
    let descriptor = segment.as_fd().try_clone_to_owned().unwrap();
    assert!(matches!(Reader::open(descriptor), Err(StoreError::NotAStore(_))));
    for memory_bytes in [0, 1 << 20, u64::MAX] {
        let store = Store::embedded(StoreOptions::new(memory_bytes));
        assert!(matches!(store, Err(StoreError::Options(_))));
    }
}

#[test]
fn blocks_change_their_class_under_readers_and_writers() {
    let options = StoreOptions::new(MEMORY).eviction(Eviction::LeastRecentlyUsed);
    let store = Store::embedded(options).unwrap();
    let reader = Reader::open(store.reader_descriptor().unwrap()).unwrap();
    let is_done = std::sync::atomic::AtomicUsize::new(0);
    // All bytes of a value are the same, and the words that it consists of look like versions of objects.
    let size = |number: u64, byte: u8| (number as usize * 7919 + usize::from(byte) * 4001) % 60_000 + 1;
    std::thread::scope(|scope| {
        for thread in 0..2_u64 {
            let (store, is_done) = (&store, &is_done);
            scope.spawn(move || {
                let mut state = thread;
                for step in 0..2500_u64 {
                    state =
                        state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    // The sizes in use wander, so that classes run empty and others come.
                    let (number, byte) = (step / 10 + (state >> 33) % 200, 2 * (state >> 60) as u8);
                    match (state >> 50) % 8 {
                        0 => drop(store.delete(&number.to_ne_bytes()).unwrap()),
                        _ => store.put(&number.to_ne_bytes(), &vec![byte; size(number, byte)]).unwrap(),
                    }
                }
                is_done.fetch_add(1, std::sync::atomic::Ordering::Release);
            });
        }
        let mut found = 0;
        for step in 0_u64.. {
            let number = step * 31 % 450;
            if let Some(value) = reader.get(&number.to_ne_bytes()).unwrap() {
                assert!(value.iter().all(|byte| *byte == value[0]));
                assert_eq!(value.len(), size(number, value[0]));
                found += 1;
            }
            if is_done.load(std::sync::atomic::Ordering::Acquire) == 2 && step > 450 {
                break;
            }
        }
        assert!(found > 0);
    });
    let counts = store.counts();
    assert!(counts.evicted > 0 && counts.used_bytes <= MEMORY, "{counts:?}");
    store.audit().unwrap();
    store.scrub(usize::MAX, |address| panic!("{address} is damaged")).unwrap();
}
