//! Memory of a process that is killed after a number of stores: it stops before the next one.
//!
//! Only stores to words count: positions of rings and packet headers. Nobody reads a slot before its position is
//! published, nor a packet's contents before its header names another owner, so it is the same to all others whether a
//! process is killed before or after it writes one of those.

use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use caravan_engine::handover::PacketHeaders;
use caravan_engine::owner::PacketHeader;
use caravan_ring::{Cursors, SharedWord};
use loom::sync::atomic::{AtomicU64, fence};

use crate::world::{Fault, ModelCursors, ModelSlots, ModelWord};

/// The number of stores that a process still makes.
#[derive(Clone, Debug)]
pub struct Life(Arc<AtomicUsize>);

/// The panic payload of a process that has no stores left.
#[derive(Debug)]
pub struct Killed;

impl Life {
    /// Makes a life that ends before the store after `stores`.
    pub fn of(stores: usize) -> Self {
        Self(Arc::new(AtomicUsize::new(stores)))
    }

    /// Makes a life without end.
    pub fn long() -> Self {
        Self::of(usize::MAX)
    }

    fn spend(&self) {
        if self.0.load(Ordering::Relaxed) == 0 {
            // This panics without a message.
            resume_unwind(Box::new(Killed));
        }
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A shared word of a ring.
#[derive(Debug)]
pub struct MortalWord {
    side: Arc<ModelCursors>,
    which: fn(&ModelCursors) -> &ModelWord,
    life: Life,
}

impl SharedWord for MortalWord {
    fn load(&self, order: Ordering) -> u64 {
        (self.which)(&self.side).load(order)
    }
    fn store(&self, value: u64, order: Ordering) {
        self.life.spend();
        (self.which)(&self.side).store(value, order);
    }
    fn swap(&self, value: u64, order: Ordering) -> u64 {
        self.life.spend();
        (self.which)(&self.side).swap(value, order)
    }
}

/// The shared words of a ring.
#[derive(Debug)]
pub struct MortalCursors {
    words: [MortalWord; 4],
}

impl MortalCursors {
    pub fn new(side: &Arc<ModelCursors>, life: &Life) -> Self {
        let which: [fn(&ModelCursors) -> &ModelWord; 4] = [
            ModelCursors::tail_position,
            ModelCursors::head_position,
            ModelCursors::consumer_asleep,
            ModelCursors::producer_wants,
        ];
        Self { words: which.map(|which| MortalWord { side: Arc::clone(side), which, life: life.clone() }) }
    }
}

impl Cursors for MortalCursors {
    type Word = MortalWord;
    fn tail_position(&self) -> &MortalWord {
        &self.words[0]
    }
    fn head_position(&self) -> &MortalWord {
        &self.words[1]
    }
    fn consumer_asleep(&self) -> &MortalWord {
        &self.words[2]
    }
    fn producer_wants(&self) -> &MortalWord {
        &self.words[3]
    }
    fn fence(&self) {
        fence(Ordering::SeqCst);
    }
}

/// The packet headers.
#[derive(Clone, Debug)]
pub struct MortalHeaders {
    words: Arc<Vec<AtomicU64>>,
    life: Life,
}

impl MortalHeaders {
    pub fn new(words: impl Iterator<Item = PacketHeader>) -> Self {
        Self { words: Arc::new(words.map(|header| AtomicU64::new(header.0)).collect()), life: Life::long() }
    }

    pub fn seen_by(&self, life: &Life) -> Self {
        Self { words: Arc::clone(&self.words), life: life.clone() }
    }
}

impl PacketHeaders for MortalHeaders {
    fn load(&self, index: u32) -> PacketHeader {
        PacketHeader(self.words[index as usize].load(Ordering::Relaxed))
    }
    fn store(&self, index: u32, header: PacketHeader) {
        self.life.spend();
        self.words[index as usize].store(header.0, Ordering::Relaxed);
    }
}

/// A ring in memory: each of its two sides has a view of the words.
#[derive(Clone, Debug)]
pub struct Ring {
    pub producer: Arc<ModelCursors>,
    pub consumer: Arc<ModelCursors>,
    pub slots: ModelSlots,
}

impl Ring {
    pub fn new(fault: Fault, capacity: usize) -> Self {
        let (producer, consumer) = ModelCursors::pair(fault);
        Self { producer: Arc::new(producer), consumer: Arc::new(consumer), slots: ModelSlots::new(capacity) }
    }
}
