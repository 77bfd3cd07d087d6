//! The read protocol in every interleaving and with every value that weak memory may return (loom), and the
//! proof that the model notices each order that is left out.

use std::panic::catch_unwind;
use std::sync::atomic::Ordering;

use caravan_store::protocol::{self, LOCKED, UnitWords, Unsettled};
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, fence};

/// What is wrong with the memory or the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    None,
    /// The fence between the first look at the version and the copy is left out.
    NoFirstFence,
    /// The fence between the copy and the second look is left out.
    NoSecondFence,
    /// The fence between the lock and the first store is left out.
    NoReleaseFence,
    /// The version is published by a relaxed store.
    WeakPublish,
    /// The second look comes before the copy.
    HastyLook,
    /// There is no second look.
    NoSecondLook,
    /// The exchange of the lock is a load and a store.
    TornExchange,
}

/// A unit of three words: the version, and two numbers that are always equal.
struct ModelUnit {
    words: [AtomicU64; 3],
    fault: Fault,
}

impl UnitWords for ModelUnit {
    fn load(&self, index: usize) -> u64 {
        self.words[index].load(Ordering::Relaxed)
    }
    fn store(&self, index: usize, value: u64) {
        self.words[index].store(value, Ordering::Relaxed);
    }
    fn publish(&self, version: u64) {
        let order = if self.fault == Fault::WeakPublish { Ordering::Relaxed } else { Ordering::Release };
        self.words[0].store(version, order);
    }
    fn exchange(&self, current: u64, new: u64) -> bool {
        if self.fault == Fault::TornExchange {
            let is_current = self.words[0].load(Ordering::Acquire) == current;
            if is_current {
                self.words[0].store(new, Ordering::Relaxed);
            }
            return is_current;
        }
        self.words[0].compare_exchange(current, new, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }
    fn fence_acquire(&self) {
        fence(Ordering::Acquire);
    }
    fn fence_release(&self) {
        if self.fault != Fault::NoReleaseFence {
            fence(Ordering::Release);
        }
    }
}

/// The reader: the real one, or one with a step left out or moved.
fn read(unit: &ModelUnit) -> Result<(u64, (u64, u64)), Unsettled> {
    let copy = |_| (unit.load(1), unit.load(2));
    match unit.fault {
        Fault::NoFirstFence => {
            let version = unit.load(0);
            let numbers = copy(version);
            fence(Ordering::Acquire);
            if version & LOCKED == 0 && unit.load(0) == version {
                Ok((version, numbers))
            } else {
                Err(Unsettled)
            }
        }
        Fault::NoSecondFence | Fault::HastyLook | Fault::NoSecondLook => {
            let version = unit.load(0);
            fence(Ordering::Acquire);
            let hasty = if unit.fault == Fault::HastyLook { unit.load(0) } else { version };
            let numbers = copy(version);
            let second = if unit.fault == Fault::NoSecondFence { unit.load(0) } else { hasty };
            if version & LOCKED == 0 && second == version { Ok((version, numbers)) } else { Err(Unsettled) }
        }
        _ => protocol::read(unit, copy),
    }
}

fn explore(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

/// Writes the numbers that belong to the version that follows, if the unit has the version of before.
fn write(unit: &ModelUnit, before: u64) -> bool {
    let is_mine = protocol::lock(unit, before);
    if is_mine {
        let number = before / 2 + 1;
        unit.store(1, number);
        unit.store(2, number);
        protocol::unlock(unit, 2 * number);
    }
    is_mine
}

fn unit(fault: Fault) -> Arc<ModelUnit> {
    Arc::new(ModelUnit { words: [0, 0, 0].map(AtomicU64::new), fault })
}

/// A reader beside a writer sees the numbers of the version that it returns.
fn no_read_is_torn(fault: Fault) {
    explore(move || {
        let ours = unit(fault);
        let theirs = Arc::clone(&ours);
        let writer = loom::thread::spawn(move || {
            assert!(write(&theirs, 0));
            assert!(write(&theirs, 2));
        });
        if let Ok((version, (first, second))) = read(&ours) {
            assert_eq!((first, second), (version / 2, version / 2), "torn");
        }
        writer.join().unwrap();
    });
}

/// Of two writers that have seen the same version, one writes.
fn one_writer_wins(fault: Fault) {
    explore(move || {
        let ours = unit(fault);
        let theirs = Arc::clone(&ours);
        let writer = loom::thread::spawn(move || write(&theirs, 0));
        let mine = write(&ours, 0);
        assert!(mine != writer.join().unwrap(), "not one of two");
        assert_eq!(read(&ours), Ok((2, (1, 1))));
    });
}

type Row = (&'static str, fn(Fault), &'static [Fault]);

#[rustfmt::skip]
const CAUGHT: &[Row] = &[
    ("read", no_read_is_torn, &[
        Fault::NoFirstFence, Fault::NoSecondFence, Fault::NoReleaseFence, Fault::WeakPublish, Fault::HastyLook,
        Fault::NoSecondLook,
    ]),
    ("lock", one_writer_wins, &[Fault::TornExchange]),
];

#[test]
fn no_interleaving_tears_a_read() {
    no_read_is_torn(Fault::None);
}

#[test]
fn no_interleaving_lets_two_writers_in() {
    one_writer_wins(Fault::None);
}

#[test]
fn each_model_fails_where_something_is_left_out() {
    let mut missed = Vec::new();
    for (name, model, faults) in CAUGHT {
        for fault in *faults {
            if catch_unwind(|| model(*fault)).is_ok() {
                missed.push(format!("{name} does not notice {fault:?}"));
            }
        }
    }
    assert!(missed.is_empty(), "{missed:#?}");
}
