//! The copies of a memory when its owner becomes another one: the same memory's next owner, one of the copies, or none because it
//! leaves. A copy that has what the next owner has, or can get it, goes on; any other begins anew.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use caravan_store::faults::PlantedFault;
use caravan_store::{CopyWriter, MappedRing, Store, StoreCopy, StoreError, StoreOptions, StreamEnd};

use crate::children::{CAUGHT, status_of};
use crate::copies::{CutWay, Known, MEMORY, Memories, NO_CUT, RING, contents, keep_while, key, until};

/// Makes a store with a complete copy, whose owner ends while a record is on its way there: after so many writes.
fn end_owner(memory: &OwnedFd, copy: &Memories, writes: u64) {
    let store = Store::open(memory.try_clone().unwrap(), copy.options.clone()).unwrap();
    (0..30).for_each(|number| store.put(&key(number), &[1; 200]).unwrap());
    let writes_left = Arc::new(AtomicU64::new(NO_CUT));
    let way = CutWay { way: *copy.writer(), writes_left: Arc::clone(&writes_left) };
    store.add_copy(Box::new(way)).unwrap();
    keep_while(&store, copy, || store.fill_copies(Duration::ZERO).unwrap());
    writes_left.store(writes, Ordering::Release);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for number in 0.. {
                let value = vec![number as u8; [90, 200, 3000, 40_000][number as usize % 4]];
                store.put(&key(number), &value)?;
                store.delete(&key(number / 2))?;
            }
            Ok::<_, StoreError>(())
        });
        until("the way is cut", || store.copies()[0].broken.is_some());
        store.end_lease();
        assert!(matches!(writer.join().unwrap(), Err(StoreError::NotPrimary)));
    });
}

#[test]
fn an_owner_that_is_started_again_goes_on_with_its_copy() {
    let options = StoreOptions::new(MEMORY);
    for cut in 0..24 {
        let (memory, copy) = (Store::new_memory("owner").unwrap(), Memories::new(&options));
        end_owner(&memory, &copy, 1 + cut);
        let store = Store::open(memory, options.clone()).unwrap();
        keep_while(&store, &copy, || store.resume_copy(copy.writer()).unwrap());
        assert!(store.copies()[0].is_complete, "the copy is to be filled, after {cut}");
        keep_while(&store, &copy, || store.put(b"more", b"after it").unwrap());
        let expected = contents(&store, &Known::default()).unwrap();
        drop(store);
        let copy = copy.open().promote().unwrap();
        copy.restore().unwrap();
        assert_eq!(contents(&copy, &Known::default()).unwrap(), expected, "{cut}");
    }
}

#[test]
fn a_copy_that_lacks_anything_is_filled_again() {
    let options = StoreOptions::new(MEMORY);
    let (memory, copy) = (Store::new_memory("owner").unwrap(), Memories::new(&options));
    end_owner(&memory, &copy, 10);
    let open = || Store::open(memory.try_clone().unwrap(), options.clone()).unwrap();
    // It was written without the copy.
    let store = open();
    store.end_resuming();
    store.put(b"beside", b"it").unwrap();
    let resume = |store: &Store| keep_while(store, &copy, || store.resume_copy(copy.writer()));
    assert!(matches!(resume(&store), Err(StoreError::OtherStream)));
    drop(store);
    // The owner after that does not know what the copy has.
    let store = open();
    assert!(!store.had_copies());
    assert!(matches!(resume(&store), Err(StoreError::OtherStream)));
    keep_while(&store, &copy, || store.add_copy(copy.writer()).unwrap());
    assert!(!store.copies()[0].is_complete);
    keep_while(&store, &copy, || store.fill_copies(Duration::ZERO).unwrap());
    // It was removed, and comes back to the same owner.
    store.remove_copy(store.copies()[0].id).unwrap();
    store.put(b"without", b"it").unwrap();
    keep_while(&store, &copy, || {
        store.add_copy(copy.writer()).unwrap();
        store.put(b"with", b"it").unwrap();
    });
    assert!(!store.copies()[0].is_complete);
    assert!(matches!(copy.open().promote(), Err(StoreError::IncompleteCopy)));
    // It has everything once it was filled, and takes over.
    keep_while(&store, &copy, || store.fill_copies(Duration::ZERO).unwrap());
    drop(store);
    let promoted = copy.open().promote().unwrap();
    assert_eq!(promoted.get(b"without").unwrap().as_deref(), Some(&b"it"[..]));
}

/// The way to a ring, which tells when the owner's words have been written.
#[derive(Debug)]
struct AnnouncedWay {
    way: MappedRing,
    has_begun: Arc<AtomicBool>,
}

impl CopyWriter for AnnouncedWay {
    fn ring_bytes(&self) -> u64 {
        self.way.ring_bytes()
    }
    fn write(&mut self, place: u64, bytes: &[u8]) -> Result<(), StoreError> {
        self.way.write(place, bytes)?;
        if place == 0 {
            self.has_begun.store(true, Ordering::Release);
        }
        Ok(())
    }
    fn has_arrived(&mut self, limit: Duration) -> Result<bool, StoreError> {
        self.way.has_arrived(limit)
    }
    fn read(&mut self, place: u64, bytes: &mut [u8]) -> Result<(), StoreError> {
        self.way.read(place, bytes)
    }
}

/// Ends an owner with two copies, of which the second one has less of the stream by up to a ring, and has applied none of that.
fn end_owner_of_two(writes: u64) -> [Memories; 2] {
    let options = StoreOptions::new(MEMORY);
    let copies = [(); 2].map(|()| Memories::new(&options));
    let store = Store::embedded(options).unwrap();
    (0..30).for_each(|number| store.put(&key(number), &[1; 200]).unwrap());
    let writes_left = Arc::new(AtomicU64::new(NO_CUT));
    store.add_copy(copies[0].writer()).unwrap();
    let way = CutWay { way: *copies[1].writer(), writes_left: Arc::clone(&writes_left) };
    store.add_copy(Box::new(way)).unwrap();
    let fill = || {
        store.fill_copies(Duration::ZERO).unwrap();
        until("the copies have applied all", || store.copies().iter().all(|copy| copy.behind_bytes == 0));
    };
    keep_while(&store, &copies[0], || keep_while(&store, &copies[1], fill));
    writes_left.store(writes, Ordering::Release);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for number in 0.. {
                store.put(&key(number), &vec![number as u8; [90, 200, 3000][number as usize % 3]])?;
                store.delete(&key(number / 2))?;
            }
            Ok::<_, StoreError>(())
        });
        until("the way is cut", || store.copies()[1].broken.is_some());
        store.end_lease();
        assert!(matches!(writer.join().unwrap(), Err(StoreError::NotPrimary)));
    });
    copies
}

/// Makes one of two copies the owner, and has the other one go on; with a new ring, or with the one that the old owner wrote into.
/// Returns whether it can go on.
fn promote(copies: [Memories; 2], chosen: usize, has_new_ring: bool) -> Result<bool, String> {
    let [first, second] = copies;
    let (chosen, mut other) = if chosen == 0 { (first, second) } else { (second, first) };
    if has_new_ring {
        let mut copy = other.open();
        while copy.apply(usize::MAX).unwrap() > 0 {}
        other.ring = StoreCopy::new_ring_at("ring", RING, copy.end().unwrap()).unwrap();
    }
    let store = chosen.open().promote().unwrap();
    let has_begun = Arc::new(AtomicBool::new(false));
    let way = AnnouncedWay { way: *other.writer(), has_begun: Arc::clone(&has_begun) };
    let resumed = std::thread::scope(|scope| {
        let resume = scope.spawn(|| store.resume_copy(Box::new(way)));
        until("the stream begins", || has_begun.load(Ordering::Acquire) || resume.is_finished());
        keep_while(&store, &other, || resume.join().unwrap())
    });
    if let Err(error) = resumed {
        assert!(matches!(error, StoreError::OtherStream), "{error}");
        return Ok(false);
    }
    keep_while(&store, &other, || (0..50).for_each(|number| store.put(&key(number), b"after it").unwrap()));
    store.restore().unwrap();
    let text = |error: StoreError| error.to_string();
    let expected = contents(&store, &Known::default()).map_err(text)?;
    drop(store);
    let copy = other.open().promote().unwrap();
    copy.restore().map_err(text)?;
    if contents(&copy, &Known::default()).map_err(text)? == expected {
        Ok(true)
    } else {
        Err("the copy differs from its owner".to_owned())
    }
}

#[test]
fn a_copy_that_becomes_the_owner_goes_on_with_one_that_has_less() {
    for cut in 0..16 {
        assert_eq!(promote(end_owner_of_two(1 + cut), 0, cut % 2 == 0), Ok(true), "{cut}");
    }
}

/// The second copy has less than the first one, which then has records that the owner knows nothing of.
fn promote_the_wrong_one() -> Result<(), String> {
    for cut in 0..8 {
        if promote(end_owner_of_two(1 + cut), 1, cut % 2 == 0)? {
            return Err("a copy goes on that has more than its owner".to_owned());
        }
    }
    Ok(())
}

/// For processes in which a fault is planted.
pub fn run_successors(_: OwnedFd, _: bool) -> Result<(), String> {
    promote_the_wrong_one()
}

#[test]
fn a_copy_that_has_more_than_its_owner_begins_anew() {
    promote_the_wrong_one().unwrap();
}

#[test]
fn a_copy_that_goes_on_with_foreign_records_would_be_noticed() {
    assert_eq!(status_of("successors", Some(PlantedFault::ForeignRecords)), CAUGHT);
}

#[test]
fn the_memory_of_an_owner_that_leaves_is_a_complete_copy() {
    let options = StoreOptions::new(MEMORY);
    for round in 0..10 {
        let memory = Store::new_memory("owner").unwrap();
        let store = Store::open(memory.try_clone().unwrap(), options.clone()).unwrap();
        let copy = Memories::new(&options);
        store.add_copy(copy.writer()).unwrap();
        let end = keep_while(&store, &copy, || {
            store.fill_copies(Duration::ZERO).unwrap();
            let written = AtomicU64::new(0);
            std::thread::scope(|scope| {
                let (written, store) = (&written, &store);
                for thread in 0..3 {
                    scope.spawn(move || {
                        let mut numbers = 0..;
                        let put = |number: u64| {
                            written.fetch_add(1, Ordering::Relaxed);
                            let value = vec![number as u8; [90, 3000, 40_000][number as usize % 3]];
                            store.put(&key(1000 * thread + number % 50), &value)
                        };
                        let refused = numbers.find_map(|number| put(number).err());
                        assert!(matches!(refused, Some(StoreError::NotPrimary)));
                    });
                }
                until("some is written", || written.load(Ordering::Relaxed) > 20 * (round + 1));
                store.leave().expect("nothing was given up")
            })
        });
        drop(store);
        let ring = StoreCopy::new_ring_at("ring", RING, end).unwrap();
        let left = Memories { memory, ring, options: options.clone() };
        assert_eq!(promote([copy, left], 0, false), Ok(true), "{round}");
    }
}

#[test]
fn an_owner_whose_copy_is_silent_leaves_no_copy() {
    let options = StoreOptions::new(MEMORY);
    let copy = Memories::new(&options);
    let store = Store::embedded(options.clone()).unwrap();
    let writes_left = Arc::new(AtomicU64::new(NO_CUT));
    let way = CutWay { way: *copy.writer(), writes_left: Arc::clone(&writes_left) };
    store.add_copy(Box::new(way)).unwrap();
    keep_while(&store, &copy, || store.fill_copies(Duration::ZERO).unwrap());
    writes_left.store(0, Ordering::Release);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| store.put(b"k", b"v"));
        until("the way is cut", || store.copies()[0].broken.is_some());
        let leaves = scope.spawn(|| store.leave());
        store.end_lease();
        assert_eq!(leaves.join().unwrap(), None);
        assert!(matches!(writer.join().unwrap(), Err(StoreError::NotPrimary)));
    });
}

#[test]
fn nobody_goes_on_with_a_memory_of_which_nothing_is_known() {
    let [first, mut second] = end_owner_of_two(4);
    second.ring = StoreCopy::new_ring_at("ring", RING, StreamEnd::UNKNOWN).unwrap();
    assert_eq!(promote([first, second], 0, false), Ok(false));
}
