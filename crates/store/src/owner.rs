//! What all threads of the owner share.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use crate::blocks::Blocks;
use crate::copies::{CopyStream, StreamBefore};
use crate::error::StoreError;
use crate::faults::may_store;
use crate::gate::CommitGate;
use crate::layout::word;
use crate::ledger::Ledger;
use crate::limits;
use crate::log::RedoneRecord;
use crate::memory::{self, OwnedMemory};
use crate::options::{Eviction, StoreOptions};
use crate::recovery::Restoration;
use crate::save::ChangedKeys;
use crate::view::StoreView;
use crate::words::ProcessWord;

/// The memory of a store, and what its owner keeps beside it.
#[derive(Debug)]
pub(crate) struct StoreCore {
    pub(crate) view: StoreView,
    pub(crate) blocks: Blocks,
    /// Alone hold it: a split, a change of a block's class, the deletion of all keys, and a transaction that
    /// others have thwarted too often.
    pub(crate) gate: CommitGate,
    pub(crate) tallies: StoreTallies,
    pub(crate) touched: TouchedMarks,
    /// The number of sessions, those included that are being opened. After another owner's end it may be below 0: some
    /// have been closed that are not counted yet.
    pub(crate) sessions: AtomicI64,
    pub(crate) hands: SweepHands,
    /// The copies of the memory.
    pub(crate) copies: Arc<CopyStream>,
    /// What the owner before had begun, until no copy needs it any more.
    pub(crate) redone: Mutex<Vec<RedoneRecord>>,
    /// The stream that copies of this memory followed when this owner took it over.
    pub(crate) stream_before: Mutex<Option<StreamBefore>>,
    /// Transactions over several parts.
    pub(crate) ledger: Ledger,
    /// What a save still has to write.
    pub(crate) changed: ChangedKeys,
    /// What is not restored yet after another owner's end. Locked after the gate.
    pub(crate) restoration: Mutex<Option<Restoration>>,
    /// A child of fork(2) is no owner.
    process: ProcessWord,
    /// Keeps other owners out. The last field, as fields are dropped in order.
    _ownership: OwnedFd,
}

/// Where a walk through all places in use goes on: a block and a slot.
pub(crate) type SweepHand = Mutex<(u32, u32)>;

/// The walks of a store.
#[derive(Debug, Default)]
pub(crate) struct SweepHands {
    pub(crate) evict: SweepHand,
    pub(crate) expire: SweepHand,
    pub(crate) round: Mutex<ExpiryRound>,
    pub(crate) scrub: SweepHand,
}

/// What the walk that removes expired keys has seen since it began at the first place.
#[derive(Debug, Default)]
pub(crate) struct ExpiryRound {
    pub(crate) place: u64,
    pub(crate) expiring: u64,
}

/// The counters of a store.
#[derive(Debug, Default)]
pub(crate) struct StoreTallies {
    pub(crate) keys: AtomicU64,
    pub(crate) hits: AtomicU64,
    pub(crate) misses: AtomicU64,
    pub(crate) commits: AtomicU64,
    pub(crate) conflicts: AtomicU64,
    /// Keys with an expiry, as the last whole walk counted them.
    pub(crate) expiring: AtomicU64,
    pub(crate) expired: AtomicU64,
    pub(crate) evicted: AtomicU64,
}

/// Adds to a counter.
pub(crate) fn count(tally: &AtomicU64, more: u64) {
    // A counter orders nothing.
    tally.fetch_add(more, Ordering::Relaxed);
}

impl StoreCore {
    /// Makes a store in an empty memory, or takes over the one that is there, of which
    /// [`restore`](Self::restore) does the rest.
    pub(crate) fn open(memory: OwnedFd, options: &StoreOptions) -> Result<Self, StoreError> {
        options.check()?;
        let touched = TouchedMarks::new(options);
        let private_bytes = touched.private_bytes() + CommitGate::private_bytes();
        let OwnedMemory { segment, view, ownership, is_new } = OwnedMemory::open(memory, options)?;
        let copies = Arc::new(CopyStream::new());
        let core = Self {
            view,
            blocks: Blocks::new(segment, options.memory_bytes, private_bytes, Arc::clone(&copies)),
            copies,
            gate: CommitGate::new(),
            tallies: StoreTallies::default(),
            touched,
            sessions: AtomicI64::new(0),
            hands: SweepHands::default(),
            ledger: Ledger::new(),
            changed: ChangedKeys::default(),
            redone: Mutex::default(),
            stream_before: Mutex::default(),
            restoration: Mutex::new(None),
            process: ProcessWord::new()?,
            _ownership: ownership,
        };
        if is_new {
            core.first_shard()?;
            memory::finish(&core.view);
        } else {
            core.take_over()?;
            core.reopen_ledger()?;
        }
        Ok(core)
    }

    /// Fails in a child of the owner.
    #[inline]
    pub(crate) fn check_owner(&self) -> Result<(), StoreError> {
        if self.process.is_ours() { Ok(()) } else { Err(StoreError::Forked) }
    }

    /// Returns the time of a commit that has locked all that it writes.
    ///
    /// A reader that sees this time in a version then sees the locks of all commits with earlier times: each
    /// of them locked before it took its time (release, here), and this one took its own after it (acquire,
    /// here), before it published its versions.
    pub(crate) fn next_time(&self) -> u64 {
        let clock = self.view.unit(word::TIME, 1).and_then(|words| words.first());
        let clock = clock.filter(|_| may_store());
        clock.map_or(0, |clock| clock.fetch_add(1, Ordering::AcqRel) + 1)
    }

    /// Returns the time of the newest commit.
    pub(crate) fn time(&self) -> u64 {
        self.view.time()
    }
}

/// Which places the owner's threads have touched since the eviction last came by: a bit for each 64 bytes of
/// the region. Without eviction there are none.
#[derive(Debug)]
pub(crate) struct TouchedMarks {
    bits: Vec<AtomicU64>,
}

impl TouchedMarks {
    fn new(options: &StoreOptions) -> Self {
        let words = match options.eviction {
            Eviction::Refuse => 0,
            Eviction::LeastRecentlyUsed => options.memory_bytes / 64 / 64,
        };
        Self { bits: (0..words).map(|_| AtomicU64::new(0)).collect() }
    }

    fn private_bytes(&self) -> u64 {
        8 * self.bits.len() as u64
    }

    /// Tells whether the store evicts.
    pub(crate) fn is_enabled(&self) -> bool {
        !self.bits.is_empty()
    }

    /// Marks a place.
    #[inline]
    pub(crate) fn touch(&self, place: u64) {
        if let Some(bits) = self.bits.get((place / 64 / 64) as usize) {
            let bit = 1 << (place / 64 % 64);
            // Most marks are there already: a load alone leaves the line shared.
            if bits.load(Ordering::Relaxed) & bit == 0 {
                bits.fetch_or(bit, Ordering::Relaxed);
            }
        }
    }

    /// Clears the mark of a place, and returns whether it was there.
    pub(crate) fn clear(&self, place: u64) -> bool {
        let bit = 1 << (place / 64 % 64);
        let bits = self.bits.get((place / 64 / 64) as usize);
        bits.is_some_and(|bits| bits.fetch_and(!bit, Ordering::Relaxed) & bit != 0)
    }
}

/// Gives way to whom a transaction lost against: the longer, the more often it has lost.
pub(crate) fn back_off(attempt: u32) {
    if attempt < limits::BACK_OFF_SPINS_MAX {
        for _ in 0..16 << attempt {
            std::hint::spin_loop();
        }
    } else {
        std::thread::yield_now();
    }
}
