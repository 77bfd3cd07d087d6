//! Transactions of several threads of the owner, and of a reader beside them. Each of these runs in a process
//! of its own, so that a fault can be planted in it.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use caravan_store::faults::PlantedFault;
use caravan_store::{Reader, Store, StoreError, StoreOptions};

use crate::children::{CAUGHT, SetOnDrop, status_of};

const THREADS: usize = 3;
const PATIENCE: Duration = Duration::from_secs(60);

fn store() -> Store {
    Store::embedded(StoreOptions::new(64 << 20)).unwrap()
}

fn number(value: Option<Vec<u8>>) -> i64 {
    value.map_or(0, |value| value.try_into().map_or(i64::MIN, i64::from_ne_bytes))
}

/// How a transaction of either kind reads a key.
type Get<'g> = dyn FnMut(&[u8]) -> Result<Option<Vec<u8>>, StoreError> + 'g;

/// Repeats `round` once, or until it fails where a fault is planted.
fn rounds(is_faulty: bool, mut round: impl FnMut() -> Result<(), String>) -> Result<(), String> {
    let begin = Instant::now();
    loop {
        round()?;
        if !is_faulty || begin.elapsed() > PATIENCE {
            return Ok(());
        }
    }
}

/// Threads move amounts between accounts, others sum all accounts up, in the owner and by a reader. Each sum
/// is zero, also in a body that is then run again.
pub fn move_and_sum(_: OwnedFd, is_faulty: bool) -> Result<(), String> {
    const ACCOUNTS: usize = 24;
    let account = |at: usize| format!("account {at}").into_bytes();
    let store = store();
    let reader = Reader::open(store.reader_descriptor().unwrap()).unwrap();
    let (is_done, wrong) = (AtomicBool::new(false), AtomicUsize::new(0));
    let sum = |get: &mut Get<'_>| {
        let mut sum = 0;
        for at in 0..ACCOUNTS {
            sum += number(get(&account(at))?);
        }
        if sum != 0 {
            wrong.fetch_add(1, Ordering::Relaxed);
        }
        Ok::<_, StoreError>(())
    };
    rounds(is_faulty, || {
        is_done.store(false, Ordering::Relaxed);
        std::thread::scope(|scope| {
            let done = SetOnDrop(&is_done);
            let movers: Vec<_> = (0..2)
                .map(|thread| {
                    let (store, account) = (&store, &account);
                    scope.spawn(move || {
                        for step in 0..4000_usize {
                            let (from, to) = ((step * 7 + thread) % ACCOUNTS, (step * 11 + 3) % ACCOUNTS);
                            let moved = store.transaction(|tx| {
                                let amount = number(tx.get(&account(from))?);
                                tx.put(&account(from), &(amount - 1).to_ne_bytes())?;
                                let amount = number(tx.get(&account(to))?);
                                tx.put(&account(to), &(amount + 1).to_ne_bytes())?;
                                Ok::<_, StoreError>(())
                            });
                            moved.unwrap();
                        }
                    })
                })
                .collect();
            scope.spawn(|| {
                while !is_done.load(Ordering::Relaxed) {
                    store.transaction(|tx| sum(&mut |key| tx.get(key))).unwrap();
                }
            });
            scope.spawn(|| {
                while !is_done.load(Ordering::Relaxed) {
                    match reader.transaction(|tx| sum(&mut |key| tx.get(key))) {
                        Ok(()) | Err(StoreError::Contended) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
            });
            movers.into_iter().for_each(|mover| mover.join().unwrap());
            drop(done);
        });
        match wrong.load(Ordering::Relaxed) {
            0 => store.audit().map_err(|error| error.to_string()),
            wrong => Err(format!("{wrong} sums were not of one moment")),
        }
    })
}

/// Threads claim keys that must be absent; each key has one owner, who then deletes it.
pub fn claim_keys(_: OwnedFd, is_faulty: bool) -> Result<(), String> {
    let store = store();
    let holders = [const { AtomicUsize::new(0) }; 4];
    let wrong = AtomicUsize::new(0);
    rounds(is_faulty, || {
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let (store, holders, wrong) = (&store, &holders, &wrong);
                scope.spawn(move || {
                    for step in 0..6000 {
                        let at = (step * 5 + thread) % holders.len();
                        let key = [at as u8; 300];
                        let is_mine = store.transaction(|tx| {
                            let is_free = tx.get(&key)?.is_none();
                            if is_free {
                                tx.put(&key, &thread.to_ne_bytes())?;
                            }
                            Ok::<_, StoreError>(is_free)
                        });
                        if is_mine.unwrap() {
                            wrong.fetch_add(holders[at].fetch_add(1, Ordering::AcqRel), Ordering::Relaxed);
                            std::thread::yield_now();
                            holders[at].fetch_sub(1, Ordering::AcqRel);
                            store.delete(&key).unwrap();
                        }
                    }
                });
            }
        });
        store.audit().map_err(|error| error.to_string())?;
        match (wrong.load(Ordering::Relaxed), store.counts().keys) {
            (0, 0) => Ok(()),
            other => Err(format!("claims that were not alone, and keys left: {other:?}")),
        }
    })
}

/// Threads increment the same counters, objects without a key among them. None is lost.
pub fn count_up(_: OwnedFd, is_faulty: bool) -> Result<(), String> {
    const STEPS: usize = 3000;
    let store = store();
    rounds(is_faulty, || {
        let object = store.alloc(8, None).unwrap();
        store.put(b"counter", &0_i64.to_ne_bytes()).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    for _ in 0..STEPS {
                        let counted = store.transaction(|tx| {
                            let count = number(tx.get(b"counter")?) + 1;
                            tx.put(b"counter", &count.to_ne_bytes())?;
                            let count = number(Some(tx.read(object)?)) + 1;
                            tx.write(object, &count.to_ne_bytes())
                        });
                        counted.unwrap();
                    }
                });
            }
        });
        let counts = (number(store.get(b"counter").unwrap()), number(store.read(object).ok()));
        store.transaction(|tx| tx.free(object)).unwrap();
        store.audit().map_err(|error| error.to_string())?;
        let expected = (THREADS * STEPS) as i64;
        if counts == (expected, expected) {
            Ok(())
        } else {
            Err(format!("{counts:?}, not {expected} of each"))
        }
    })
}

#[test]
fn every_sum_is_of_one_moment() {
    assert_eq!(status_of("sums", None), 0);
}

#[test]
fn a_sum_of_two_moments_would_be_noticed() {
    assert_eq!(status_of("sums", Some(PlantedFault::NoRevalidation)), CAUGHT);
}

#[test]
fn a_key_is_claimed_by_one_at_a_time() {
    assert_eq!(status_of("claims", None), 0);
}

#[test]
fn two_owners_of_a_key_would_be_noticed() {
    assert_eq!(status_of("claims", Some(PlantedFault::NoValidation)), CAUGHT);
}

#[test]
fn no_increment_is_lost() {
    assert_eq!(status_of("counts", None), 0);
}
