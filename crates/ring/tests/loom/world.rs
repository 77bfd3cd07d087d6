//! The ring's memory and bells, in loom's terms.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use caravan_ring::{Cursors, RingBytes, SharedWord, Slots};
use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicU64, fence};
use loom::sync::{Condvar, Mutex};

use crate::kernel::Presence;

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
    /// Nothing, where only the side that goes to sleep fences, through the kernel.
    Asymmetric,
    /// As that, but the kernel does not reach the other side.
    NoBarrier,
}

impl Fault {
    /// Whether fences go through the kernel.
    pub fn is_asymmetric(self) -> bool {
        matches!(self, Self::Asymmetric | Self::NoBarrier)
    }
}

/// One side's view of a shared word.
#[derive(Debug)]
pub struct ModelWord {
    value: Arc<AtomicU64>,
    fault: Fault,
    presence: Presence,
}

impl ModelWord {
    fn interruptible(&self) {
        if self.fault.is_asymmetric() {
            self.presence.interruptible();
        }
    }
}

impl SharedWord for ModelWord {
    fn load(&self, order: Ordering) -> u64 {
        self.interruptible();
        let order = if self.fault == Fault::NoAcquire { Ordering::Relaxed } else { order };
        self.value.load(order)
    }

    fn store(&self, value: u64, order: Ordering) {
        self.interruptible();
        let order = if self.fault == Fault::NoRelease { Ordering::Relaxed } else { order };
        self.value.store(value, order);
    }

    fn swap(&self, value: u64, order: Ordering) -> u64 {
        self.interruptible();
        if self.fault == Fault::TornSwap {
            let old = self.value.load(Ordering::Acquire);
            self.value.store(value, Ordering::Release);
            return old;
        }
        self.value.swap(value, order)
    }
}

/// One side's view of the four shared words. Dropped when that side ends.
#[derive(Debug)]
pub struct ModelCursors {
    words: [ModelWord; 4],
    fault: Fault,
    presence: Presence,
}

impl ModelCursors {
    /// The producer's view and the consumer's.
    pub fn pair(fault: Fault) -> (Self, Self) {
        let values = [0; 4].map(|zero| Arc::new(AtomicU64::new(zero)));
        let (ours, theirs) = Presence::pair(fault != Fault::NoBarrier);
        let view = |presence: Presence| {
            let word = |value| ModelWord { value: Arc::clone(value), fault, presence: presence.clone() };
            Self { words: values.each_ref().map(word), fault, presence: presence.clone() }
        };
        (view(ours), view(theirs))
    }

    /// This side, to wait as.
    pub fn presence(&self) -> Presence {
        self.presence.clone()
    }
}

impl Drop for ModelCursors {
    fn drop(&mut self) {
        if self.fault.is_asymmetric() && !std::thread::panicking() {
            self.presence.leave();
        }
    }
}

impl Cursors for ModelCursors {
    type Word = ModelWord;
    fn tail_position(&self) -> &ModelWord {
        &self.words[0]
    }
    fn head_position(&self) -> &ModelWord {
        &self.words[1]
    }
    fn consumer_asleep(&self) -> &ModelWord {
        &self.words[2]
    }
    fn producer_wants(&self) -> &ModelWord {
        &self.words[3]
    }
    fn fence(&self) {
        match self.fault {
            Fault::NoFence | Fault::Asymmetric | Fault::NoBarrier => {}
            Fault::WeakFence => fence(Ordering::AcqRel),
            _ => fence(Ordering::SeqCst),
        }
    }
    fn sleep_fence(&self) -> bool {
        if self.fault.is_asymmetric() {
            self.presence.barrier()
        } else {
            self.fence()
        }
        true
    }
}

/// A byte or an item that loom watches: a read and a write that nothing orders are reported as a
/// race, and a stale value cannot hide behind luck.
#[derive(Debug)]
struct Place {
    access: UnsafeCell<()>,
    value: AtomicU32,
}

#[allow(unsafe_code)]
// SAFETY: the cell holds nothing and is never dereferenced: it only tells loom who comes by.
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

impl RingBytes for ModelBytes {
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
