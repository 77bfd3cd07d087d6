//! The ring's memory and bells, in loom's terms.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use caravan_ring::{Bytes, Cursors, Slots, Word};
use loom::cell::UnsafeCell;
use loom::sync::atomic::AtomicU64;
use loom::sync::{Condvar, Mutex};

/// What is wrong with the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Nothing.
    None,
    /// The fence does nothing.
    NoFence,
    /// The fence does not order a store before a later load.
    WeakFence,
    /// Release stores are relaxed.
    NoRelease,
    /// Acquire loads are relaxed.
    NoAcquire,
    /// An exchange is a load and a store.
    TornSwap,
}

#[derive(Debug)]
pub struct ModelWord {
    value: AtomicU64,
    fault: Fault,
}

impl ModelWord {
    fn new(fault: Fault) -> Self {
        Self { value: AtomicU64::new(0), fault }
    }
}

impl Word for ModelWord {
    fn load(&self, order: Ordering) -> u64 {
        let order = if self.fault == Fault::NoAcquire { Ordering::Relaxed } else { order };
        self.value.load(order)
    }

    fn store(&self, value: u64, order: Ordering) {
        let order = if self.fault == Fault::NoRelease { Ordering::Relaxed } else { order };
        self.value.store(value, order);
    }

    fn swap(&self, value: u64, order: Ordering) -> u64 {
        if self.fault == Fault::TornSwap {
            let old = self.value.load(Ordering::Acquire);
            self.value.store(value, Ordering::Release);
            return old;
        }
        self.value.swap(value, order)
    }
}

#[derive(Debug)]
struct Words {
    tail: ModelWord,
    head: ModelWord,
    asleep: ModelWord,
    wants: ModelWord,
    fault: Fault,
}

/// The four shared words.
#[derive(Clone, Debug)]
pub struct ModelCursors(Arc<Words>);

impl ModelCursors {
    pub fn new(fault: Fault) -> Self {
        let word = || ModelWord::new(fault);
        Self(Arc::new(Words { tail: word(), head: word(), asleep: word(), wants: word(), fault }))
    }
}

impl Cursors for ModelCursors {
    type Word = ModelWord;
    fn tail_position(&self) -> &ModelWord {
        &self.0.tail
    }
    fn head_position(&self) -> &ModelWord {
        &self.0.head
    }
    fn consumer_asleep(&self) -> &ModelWord {
        &self.0.asleep
    }
    fn producer_wants(&self) -> &ModelWord {
        &self.0.wants
    }
    fn fence(&self) {
        match self.0.fault {
            Fault::NoFence => {}
            Fault::WeakFence => loom::sync::atomic::fence(Ordering::AcqRel),
            _ => loom::sync::atomic::fence(Ordering::SeqCst),
        }
    }
}

/// A byte or an item that loom watches: a read and a write that nothing orders are reported as a
/// race, and a stale value cannot hide behind luck.
#[derive(Debug)]
struct Place {
    access: UnsafeCell<()>,
    value: AtomicU32,
}

// SAFETY: the cell holds nothing and is never dereferenced: it only tells loom who comes by.
#[allow(unsafe_code)]
unsafe impl Sync for Place {}

impl Place {
    fn row(count: usize) -> Arc<Vec<Self>> {
        Arc::new((0..count).map(|_| Self { access: UnsafeCell::new(()), value: AtomicU32::new(0) }).collect())
    }
    fn put(&self, value: u32) {
        self.access.with_mut(|_| self.value.store(value, Ordering::Relaxed));
    }
    fn take(&self) -> u32 {
        self.access.with(|_| self.value.load(Ordering::Relaxed))
    }
}

/// The buffer of a byte ring.
#[derive(Clone, Debug)]
pub struct ModelBytes(Arc<Vec<Place>>);

impl ModelBytes {
    pub fn new(capacity: usize) -> Self {
        Self(Place::row(capacity))
    }
}

impl Bytes for ModelBytes {
    fn capacity(&self) -> u64 {
        self.0.len() as u64
    }
    fn copy_in(&self, offset: usize, from: &[u8]) {
        for (place, byte) in self.0[offset..offset + from.len()].iter().zip(from) {
            place.put(u32::from(*byte));
        }
    }
    fn copy_out(&self, offset: usize, to: &mut [u8]) {
        let places = &self.0[offset..offset + to.len()];
        for (byte, place) in to.iter_mut().zip(places) {
            *byte = place.take() as u8;
        }
    }
}

/// The buffer of a slot ring.
#[derive(Clone, Debug)]
pub struct ModelSlots(Arc<Vec<Place>>);

impl ModelSlots {
    pub fn new(capacity: usize) -> Self {
        Self(Place::row(capacity))
    }
}

impl Slots for ModelSlots {
    fn capacity(&self) -> u64 {
        self.0.len() as u64
    }
    fn put(&self, index: usize, item: u32) {
        self.0[index].put(item);
    }
    fn take(&self, index: usize) -> u32 {
        self.0[index].take()
    }
}

/// An eventfd: rings add up, waiting takes them all.
#[derive(Clone, Debug)]
pub struct Bell(Arc<(Mutex<u32>, Condvar)>);

impl Bell {
    pub fn new() -> Self {
        Self(Arc::new((Mutex::new(0), Condvar::new())))
    }

    pub fn ring(&self) {
        *self.0.0.lock().unwrap() += 1;
        self.0.1.notify_one();
    }

    /// Blocks until it has been rung: loom reports a deadlock if nobody does.
    pub fn wait(&self) {
        let mut rung = self.0.0.lock().unwrap();
        while *rung == 0 {
            rung = self.0.1.wait(rung).unwrap();
        }
        *rung = 0;
    }
}

/// Explores `model` under `preemptions` forced switches at most (`None`: all); returns how many
/// interleavings that were.
pub fn explore(preemptions: Option<usize>, model: impl Fn() + Sync + Send + 'static) -> usize {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = preemptions;
    let runs = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let counted = Arc::clone(&runs);
    builder.check(move || {
        counted.fetch_add(1, Ordering::Relaxed);
        model();
    });
    runs.load(Ordering::Relaxed)
}
