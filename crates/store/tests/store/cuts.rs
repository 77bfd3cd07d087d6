//! An owner that ends after each of its stores to shared memory in turn, and the next one that takes over.
//!
//! Each case has a store in some state and does something to it: once to the end, and then again and again on a
//! copy of the memory, cut after one store more each time. CARAVAN_CUTS is how many cuts of a case are tried
//! (evenly spread if there are more stores).

use std::os::fd::{AsRawFd, OwnedFd};

use caravan_store::faults::{PlantedFault, cut_after, directory_places, lane_places, stores_of};
use caravan_store::{Eviction, ObjectAddress, Reader, ScanCursor, Store, StoreError};

use crate::children::{CAUGHT, status_of};
use crate::cut_cases::{Case, MEMORY, State, cases, options};

/// Returns a copy of the memory of a store that nobody owns.
fn copy(memory: &OwnedFd) -> OwnedFd {
    let copy = Store::new_memory("copy").unwrap();
    let open = |descriptor: &OwnedFd| {
        let path = format!("/proc/self/fd/{}", descriptor.as_raw_fd());
        std::fs::File::options().read(true).write(true).open(path).unwrap()
    };
    std::io::copy(&mut open(memory), &mut open(&copy)).unwrap();
    copy
}

fn state(store: &Store, objects: &[ObjectAddress]) -> Result<State, StoreError> {
    let mut state = State::default();
    let (mut keys, mut cursor) = (Vec::new(), ScanCursor::START);
    loop {
        cursor = store.scan(cursor, 1000, |key| keys.push(key.to_vec()))?;
        if cursor == ScanCursor::START {
            break;
        }
    }
    for key in keys {
        let entry = store.entry(&key)?.ok_or_else(|| StoreError::Damaged(format!("{key:?} is gone")))?;
        state.keys.insert(key, (entry.value, entry.head.expires_at_ms));
    }
    state.objects = objects.iter().map(|address| store.read(*address).ok()).collect();
    Ok(state)
}

/// Checks everything that can be checked of a store, and returns its state.
fn check(store: &Store, reader: &Reader, objects: &[ObjectAddress]) -> Result<State, String> {
    store.audit().map_err(|error| error.to_string())?;
    let mut damaged = None;
    store.scrub(usize::MAX, |address| damaged = Some(address)).map_err(|error| error.to_string())?;
    if let Some(address) = damaged {
        return Err(format!("{address} is damaged"));
    }
    let state = state(store, objects).map_err(|error| error.to_string())?;
    for (key, (value, _)) in &state.keys {
        match reader.get(key) {
            Ok(found) if found.as_ref() == Some(value) => {}
            other => return Err(format!("a reader sees {other:?} for {key:?}")),
        }
    }
    Ok(state)
}

fn cuts_of_a_case() -> u64 {
    std::env::var("CARAVAN_CUTS").map_or(30, |text| text.parse().expect("CARAVAN_CUTS is a number"))
}

/// Tries `cuts` cuts of a case, evenly spread.
fn run(case: &Case, cuts: u64) -> Result<(), String> {
    run_at(case, |stores, _| {
        let cuts = cuts.min(stores);
        (0..cuts).map(|cut| cut * stores / cuts).collect()
    })
}

/// Runs a case with the cuts that `cuts_of` chooses, given the number of stores and a function that returns the
/// memory after a cut.
fn run_at(case: &Case, cuts_of: impl FnOnce(u64, &dyn Fn(u64) -> OwnedFd) -> Vec<u64>) -> Result<(), String> {
    let open = |memory: &OwnedFd| Store::open(memory.try_clone().unwrap(), case.options.clone());
    let memory = Store::new_memory("cut").unwrap();
    let store = open(&memory).unwrap();
    let objects = (case.begin)(&store);
    let before = state(&store, &objects).unwrap();
    drop(store);
    let whole = copy(&memory);
    let store = open(&whole).unwrap();
    let stores = stores_of(|| (case.action)(&store, &objects));
    let after = state(&store, &objects).unwrap();
    drop(store);
    let after_cut = |cut: u64| {
        let memory = copy(&memory);
        let store = open(&memory).unwrap();
        cut_after(cut, || (case.action)(&store, &objects));
        memory
    };
    for cut in cuts_of(stores, &after_cut) {
        let at = |text: String| format!("{}, cut after {cut} of {stores} stores: {text}", case.name);
        let memory = copy(&memory);
        let store = open(&memory).unwrap();
        let reader = Reader::open(store.reader_descriptor().unwrap()).unwrap();
        if !cut_after(cut, || (case.action)(&store, &objects)) {
            return Err(at("it ended".to_owned()));
        }
        drop(store);
        // The next owner may end as well.
        let second = copy(&memory);
        let recovery = stores_of(|| drop(open(&second)));
        if recovery > 0 {
            cut_after(cut * 7919 % recovery, || drop(open(&memory)));
        }
        let store = open(&memory).map_err(|error| at(error.to_string()))?;
        let now = check(&store, &reader, &objects).map_err(at)?;
        if !(case.may_be)(&before, &after, &now) {
            return Err(at(format!("{} keys, neither before nor after", now.keys.len())));
        }
        if cut % 8 == 0 {
            // It goes on as if nothing had happened.
            if now == before {
                (case.action)(&store, &objects);
                let now = check(&store, &reader, &objects).map_err(at)?;
                if now != after && case.options.eviction == Eviction::Refuse {
                    return Err(at("it does not come to the same end".to_owned()));
                }
            }
        }
    }
    Ok(())
}

#[test]
fn an_owner_may_end_after_any_store() {
    for case in cases() {
        let begin = std::time::Instant::now();
        run(&case, cuts_of_a_case()).unwrap();
        println!("{}: {:?}", case.name, begin.elapsed());
    }
}

#[test]
fn a_store_may_be_cut_while_it_is_made() {
    let open = |memory: &OwnedFd| Store::open(memory.try_clone().unwrap(), options(MEMORY));
    let stores = stores_of(|| drop(open(&Store::new_memory("cut").unwrap()).unwrap()));
    let cuts = cuts_of_a_case().min(stores);
    for cut in 0..cuts {
        let memory = Store::new_memory("cut").unwrap();
        assert!(cut_after(cut * stores / cuts, || drop(open(&memory).unwrap())));
        let store = open(&memory).unwrap();
        store.put(b"k", b"v").unwrap();
        store.audit().unwrap();
        assert_eq!(store.counts().keys, 1);
    }
}

fn bytes_at(memory: &OwnedFd, place: u64, count: usize) -> Vec<u8> {
    let mut bytes = vec![0; count];
    assert_eq!(rustix::io::pread(memory, &mut bytes, place).unwrap(), count);
    bytes
}

#[test]
fn a_split_may_be_cut_between_any_entries_of_the_directory() {
    let case = cases().into_iter().find(|case| case.name == "a shard that is split").unwrap();
    let (directory, depth) = directory_places(MEMORY);
    let around_the_directory = |stores: u64, after_cut: &dyn Fn(u64) -> OwnedFd| {
        let words = |cut| {
            let memory = after_cut(cut);
            [bytes_at(&memory, directory, 64), bytes_at(&memory, depth, 8)].concat()
        };
        let before = words(0);
        let (mut same, mut other) = (0, stores);
        while other - same > 1 {
            let middle = (same + other) / 2;
            if words(middle) == before { same = middle } else { other = middle }
        }
        assert_ne!(words(other), before);
        (same - 2..same + 12).collect()
    };
    run_at(&case, around_the_directory).unwrap();
}

/// A commit that is complete but for its last store does not come back over one that follows.
pub fn cut_then_write(_: OwnedFd, _: bool) -> Result<(), String> {
    let memory = Store::new_memory("cut").unwrap();
    let open =
        || Store::open(memory.try_clone().unwrap(), options(MEMORY)).map_err(|error| error.to_string());
    let store = open()?;
    store.put(b"k", b"before").unwrap();
    let stores = stores_of(|| store.put(b"k", b"older").unwrap());
    assert!(cut_after(stores - 1, || store.put(b"k", b"older").unwrap()));
    // By another thread, which has another lane.
    std::thread::scope(|scope| scope.spawn(|| store.put(b"k", b"newer").unwrap()).join()).unwrap();
    let records = lane_places(MEMORY).filter(|lane| bytes_at(&memory, *lane, 8) != [0; 8]).count();
    assert_eq!(records, 1, "the first commit's record is not there any more");
    drop(store);
    let found = open()?.get(b"k").map_err(|error| error.to_string())?;
    if found.as_deref() == Some(b"newer") { Ok(()) } else { Err(format!("{found:?}")) }
}

/// A record whose first word is of another commit is refused.
pub fn mix_records(_: OwnedFd, _: bool) -> Result<(), String> {
    let memory = Store::new_memory("cut").unwrap();
    let open = || Store::open(memory.try_clone().unwrap(), options(MEMORY));
    let store = open().unwrap();
    store.put(b"k", b"before").unwrap();
    let stores = stores_of(|| store.put(b"k", b"after").unwrap());
    // All but the end of the record's use.
    assert!(cut_after(stores - 1, || store.put(b"k", b"after").unwrap()));
    drop(store);
    let lane = lane_places(MEMORY).find(|lane| bytes_at(&memory, *lane, 8) != [0; 8]).unwrap();
    let time = u64::from_ne_bytes(bytes_at(&memory, lane, 8).try_into().unwrap());
    rustix::io::pwrite(&memory, &(time + 1).to_ne_bytes(), lane).unwrap();
    match open() {
        Err(StoreError::Damaged(_)) => Ok(()),
        other => Err(format!("{other:?}")),
    }
}

#[test]
fn a_newer_commit_stays() {
    assert_eq!(status_of("newer", None), 0);
}

#[test]
fn an_older_commit_that_comes_back_would_be_noticed() {
    assert_eq!(status_of("newer", Some(PlantedFault::RedoAlways)), CAUGHT);
}

#[test]
fn a_mixture_of_records_is_refused() {
    assert_eq!(status_of("mixture", None), 0);
}

#[test]
fn a_mixture_of_records_that_is_believed_would_be_noticed() {
    assert_eq!(status_of("mixture", Some(PlantedFault::RecordOfAnyTime)), CAUGHT);
}

/// Runs the cases of commits, all of their cuts; for a process in which a fault is planted.
pub fn cut_commits(_: OwnedFd, _: bool) -> Result<(), String> {
    cases().iter().take(5).try_for_each(|case| run(case, 600))
}

#[test]
fn a_commit_without_a_record_would_be_noticed() {
    assert_eq!(status_of("cuts", Some(PlantedFault::NoRecord)), CAUGHT);
}

#[test]
fn a_record_that_is_not_done_again_would_be_noticed() {
    assert_eq!(status_of("cuts", Some(PlantedFault::NoRedo)), CAUGHT);
}

#[test]
fn a_reservation_that_is_kept_would_be_noticed() {
    assert_eq!(status_of("cuts", Some(PlantedFault::LeakedReservation)), CAUGHT);
}
