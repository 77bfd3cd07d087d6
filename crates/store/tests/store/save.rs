//! Snapshots: what is saved is what is loaded, as of one moment; and whatever a file has instead is refused.

use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use caravan_store::faults::PlantedFault;
use caravan_store::limits::{KEY_BYTES_MAX, OBJECT_BYTES_MAX};
use caravan_store::{Store, StoreError, StoreOptions};

use crate::children::{CAUGHT, status_of};

const PATIENCE: Duration = Duration::from_secs(60);

fn store(mebibytes: u64) -> Store {
    Store::embedded(StoreOptions::new(mebibytes << 20)).unwrap()
}

fn saved(store: &Store) -> Vec<u8> {
    let mut snapshot = Vec::new();
    let counts = store.save(&mut snapshot).unwrap();
    assert_eq!(counts.bytes, snapshot.len() as u64);
    snapshot
}

#[test]
fn what_is_saved_is_loaded() {
    let first = store(64);
    first.publish_now(1000);
    let (long_key, long_value) = (vec![b'k'; KEY_BYTES_MAX], vec![b'v'; 3 * OBJECT_BYTES_MAX]);
    first.put(b"", b"").unwrap();
    first.put(&long_key, &long_value).unwrap();
    first.put_until(b"later", b"5", Some(5000)).unwrap();
    first.put_until(b"soon", b"2", Some(2000)).unwrap();
    first.put_until(b"gone", b"1", Some(1000)).unwrap();
    for number in 0..20_000_u32 {
        first.put(&number.to_le_bytes(), &vec![7; number as usize % 200]).unwrap();
    }
    let snapshot = saved(&first);
    let second = store(64);
    second.publish_now(2000);
    let counts = second.load(&snapshot[..]).unwrap();
    assert_eq!((counts.records, counts.bytes), (20_004, snapshot.len() as u64));
    second.audit().unwrap();
    assert_eq!(second.counts().keys, 20_003);
    assert_eq!(second.get(b"").unwrap().as_deref(), Some(&b""[..]));
    assert_eq!(second.get(&long_key).unwrap(), Some(long_value));
    assert_eq!(second.head(b"later").unwrap().unwrap().expires_at_ms, Some(5000));
    assert_eq!((second.get(b"soon").unwrap(), second.get(b"gone").unwrap()), (None, None));
    for number in 0..20_000_u32 {
        assert_eq!(second.get(&number.to_le_bytes()).unwrap(), Some(vec![7; number as usize % 200]));
    }
    assert!(matches!(second.load(&snapshot[..]), Err(StoreError::NotEmpty { keys: 20_003 })));
}

#[test]
fn a_changed_or_cut_file_is_refused_and_nothing_of_it_stays() {
    let first = store(16);
    for number in 0..40_u8 {
        first.put_until(&[number], &[number; 9], (number % 2 == 0).then_some(9)).unwrap();
    }
    let snapshot = saved(&first);
    let target = store(16);
    let refused = |bytes: &[u8], at: usize| {
        let error = target.load(bytes).unwrap_err();
        let (named, first_bad) = match &error {
            StoreError::NotASnapshot => (at < 16, 0),
            StoreError::SnapshotFormat { .. } => (at < 24, 0),
            StoreError::SnapshotDamaged { position, .. } => (true, *position as usize),
            _ => (false, 0),
        };
        // The place that it names is not after the one that is wrong.
        assert!(named && first_bad <= at, "byte {at}: {error}");
        assert_eq!(target.counts().keys, 0, "byte {at}");
    };
    for at in 0..snapshot.len() {
        let mut flipped = snapshot.clone();
        flipped[at] ^= 1 << (at % 8);
        refused(&flipped, at);
        refused(&snapshot[..at], at);
    }
    refused(&[&snapshot[..], b"x"].concat(), snapshot.len());
    target.load(&snapshot[..]).unwrap();
    assert_eq!(target.counts().keys, 40);
}

#[test]
fn parts_that_changed_places_are_refused() {
    let first = store(32);
    for number in 0..8_u8 {
        first.put(&[number], &vec![number; 300 << 10]).unwrap();
    }
    let snapshot = saved(&first);
    let chunk = |at: usize| 16 + u32::from_le_bytes(snapshot[at..at + 4].try_into().unwrap()) as usize;
    let second = 24 + chunk(24);
    let third = second + chunk(second);
    let swapped =
        [&snapshot[..24], &snapshot[second..third], &snapshot[24..second], &snapshot[third..]].concat();
    let missing = [&snapshot[..24], &snapshot[second..]].concat();
    let twice = [&snapshot[..second], &snapshot[24..]].concat();
    for bytes in [swapped, missing, twice] {
        assert!(matches!(store(32).load(&bytes[..]), Err(StoreError::SnapshotDamaged { .. })));
    }
    store(32).load(&snapshot[..]).unwrap();
}

#[test]
fn a_snapshot_that_does_not_fit_is_refused_by_name() {
    let first = store(32);
    for number in 0..20_u8 {
        first.put(&[number], &vec![number; 900 << 10]).unwrap();
    }
    let small = store(8);
    let error = small.load(&saved(&first)[..]).unwrap_err();
    assert!(matches!(error, StoreError::SnapshotTooLarge { .. }), "{error}");
    assert_eq!(small.counts().keys, 0);
}

/// Takes some bytes, and then has no room.
struct FullDisk(usize);

impl Write for FullDisk {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 = self.0.checked_sub(bytes.len()).ok_or(io::ErrorKind::StorageFull)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_full_disk_is_an_error_and_the_next_save_is_whole() {
    let store = store(16);
    (0..1000_u32).for_each(|number| store.put(&number.to_le_bytes(), &[0; 100]).unwrap());
    for room in [0, 24, 50_000] {
        let error = store.save(FullDisk(room)).unwrap_err();
        assert!(matches!(error, StoreError::SnapshotWrite(_)), "{error}");
        store.put(b"after", b"1").unwrap();
    }
    let snapshot = saved(&store);
    let other = self::store(16);
    other.load(&snapshot[..]).unwrap();
    assert_eq!(other.counts().keys, 1001);
}

/// A disk that saves at the same moment do not get past.
struct Blocked<'b>(&'b Store, bool);

impl Write for Blocked<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if !std::mem::replace(&mut self.1, true) {
            std::thread::scope(|scope| {
                let second = scope.spawn(|| self.0.save(io::sink()));
                assert!(matches!(second.join().unwrap(), Err(StoreError::SaveUnderWay)));
            });
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_second_save_at_a_time_is_refused() {
    let store = store(16);
    store.save(Blocked(&store, false)).unwrap();
    store.save(io::sink()).unwrap();
}

const ACCOUNTS: u64 = 3000;
const BALANCE: u64 = 1000;

/// Moves amounts between accounts, some of which come and go, and now and then clears the store and gives all
/// accounts their first amount again. At each moment the sum is the same, or everything is gone.
fn transfer(store: &Store, mut seed: u64) {
    let mut random = |below: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (seed >> 33) % below
    };
    let moved = |from: u64, to: u64| {
        store.transaction(|tx| {
            let balance = |value: Option<Vec<u8>>| {
                value.map_or(0, |value| u64::from_le_bytes(value.try_into().unwrap()))
            };
            let (rich, poor) = (balance(tx.get(&from.to_le_bytes())?), balance(tx.get(&to.to_le_bytes())?));
            if from == to || rich == 0 {
                return Ok(());
            }
            // The emptied account is deleted.
            tx.delete(&from.to_le_bytes())?;
            tx.put(&to.to_le_bytes(), &(poor + rich).to_le_bytes())?;
            Ok::<_, StoreError>(())
        })
    };
    moved(random(ACCOUNTS), random(ACCOUNTS)).unwrap();
}

fn open_accounts(store: &Store) {
    store
        .transaction(|tx| {
            (0..ACCOUNTS).try_for_each(|account| tx.put(&account.to_le_bytes(), &BALANCE.to_le_bytes()))
        })
        .unwrap_or_else(|error: StoreError| panic!("{error}"));
}

/// Saves again and again while others move amounts: each snapshot has the right sum.
pub fn save_under_writes(_: OwnedFd, is_faulty: bool) -> Result<(), String> {
    let store = store(64);
    open_accounts(&store);
    let is_done = AtomicBool::new(false);
    let saves = || {
        let begin = Instant::now();
        for save in 0.. {
            if save >= 30 && (!is_faulty || begin.elapsed() > PATIENCE) {
                break;
            }
            let other = self::store(64);
            other.load(&saved(&store)[..]).map_err(|error| error.to_string())?;
            let mut sum = 0;
            for account in 0..ACCOUNTS {
                let value = other.get(&account.to_le_bytes()).map_err(|error| error.to_string())?;
                sum += value.map_or(0, |value| u64::from_le_bytes(value.try_into().unwrap()));
            }
            if sum != 0 && sum != ACCOUNTS * BALANCE {
                return Err(format!("save {save} has the sum {sum}"));
            }
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        for thread in 1..3 {
            let (store, is_done) = (&store, &is_done);
            scope.spawn(move || {
                for round in 0_u64.. {
                    if is_done.load(Ordering::Relaxed) {
                        break;
                    }
                    if thread == 1 && round % 50_000 == 49_999 {
                        store.clear().unwrap();
                        open_accounts(store);
                    }
                    transfer(store, thread << 40 | round);
                }
            });
        }
        let outcome = saves();
        is_done.store(true, Ordering::Relaxed);
        outcome
    })
}

#[test]
fn a_save_under_writes_is_of_one_moment() {
    assert_eq!(status_of("saves", Some(PlantedFault::UnnotedChange)), CAUGHT);
    assert_eq!(status_of("saves", None), 0);
}
