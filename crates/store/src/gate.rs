//! Who may commit when. A commit holds one lane of the log, which nobody else needs as long as there are not
//! more committing threads than lanes. What changes the structure holds all of them.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use crate::limits::{LANES, RECORD_BUFFER_BYTES_MAX};
use crate::log::RecordBuffer;

/// The lanes of the log.
#[derive(Debug)]
pub(crate) struct CommitGate {
    lanes: [LaneLock; LANES],
    /// How many threads want to be alone, and whose turn that is: commits that have not begun let them go first. A thread that
    /// waits for one lane after the other would hardly ever find them all free.
    alone_wanted: AtomicUsize,
    alone_turn: Mutex<()>,
}

/// In two cache lines of its own, as processors fetch them in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
struct LaneLock(Mutex<RecordBuffer>);

/// The right to commit beside others.
#[derive(Debug)]
pub(crate) struct CommitLane<'g> {
    pub(crate) number: usize,
    pub(crate) record: MutexGuard<'g, RecordBuffer>,
}

/// The right to commit while nobody else does.
#[derive(Debug)]
pub(crate) struct CommitAlone<'g> {
    pub(crate) lane: CommitLane<'g>,
    _others: Vec<CommitLane<'g>>,
}

thread_local! {
    /// The lane that this thread tries first.
    static FIRST_LANE: Cell<usize> = Cell::new(THREADS.fetch_add(1, Ordering::Relaxed) % LANES);
}

/// How many threads have committed.
static THREADS: AtomicUsize = AtomicUsize::new(0);

impl CommitGate {
    pub(crate) fn new() -> Self {
        Self {
            lanes: std::array::from_fn(|_| LaneLock::default()),
            alone_wanted: AtomicUsize::new(0),
            alone_turn: Mutex::new(()),
        }
    }

    /// Returns the bytes of private memory that the lanes take.
    pub(crate) fn private_bytes() -> u64 {
        (LANES * (size_of::<LaneLock>() + RECORD_BUFFER_BYTES_MAX)) as u64
    }

    fn wait(&self, number: usize) -> CommitLane<'_> {
        // Nothing in the buffer is used after a panic: each record begins anew.
        let record = self.lanes[number].0.lock().unwrap_or_else(PoisonError::into_inner);
        CommitLane { number, record }
    }

    /// Returns a lane; waits if all of them are held.
    #[inline]
    pub(crate) fn beside_others(&self) -> CommitLane<'_> {
        // A hint, which orders nothing.
        if self.alone_wanted.load(Ordering::Relaxed) > 0 {
            self.let_others_go_first();
        }
        let first = FIRST_LANE.get();
        for number in (first..LANES).chain(0..first) {
            match self.lanes[number].0.try_lock() {
                Ok(record) => return CommitLane { number, record },
                Err(TryLockError::Poisoned(poisoned)) => {
                    return CommitLane { number, record: poisoned.into_inner() };
                }
                Err(TryLockError::WouldBlock) => {}
            }
        }
        self.wait(first)
    }

    /// Waits until whoever wants to be alone holds all lanes.
    #[cold]
    fn let_others_go_first(&self) {
        drop(self.alone_turn.lock());
    }

    /// Waits until nobody holds a lane, and takes all of them.
    pub(crate) fn alone(&self) -> CommitAlone<'_> {
        self.alone_wanted.fetch_add(1, Ordering::Relaxed);
        let turn = self.alone_turn.lock();
        let lane = self.wait(0);
        let others = (1..LANES).map(|number| self.wait(number)).collect();
        self.alone_wanted.fetch_sub(1, Ordering::Relaxed);
        drop(turn);
        CommitAlone { lane, _others: others }
    }
}
