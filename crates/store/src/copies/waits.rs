//! Commits that wait for a copy for long, as no copy that is well makes them wait: how others learn of them.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Who is told when a commit begins to wait for long.
type WaitWatcher = Arc<dyn Fn() + Send + Sync>;

/// The commits of a store that have waited for a copy for [`COMMIT_WAIT_LONG`](crate::limits::COMMIT_WAIT_LONG), and wait still.
#[derive(Default)]
pub(crate) struct LongWaits {
    count: AtomicUsize,
    watcher: Mutex<Option<WaitWatcher>>,
}

impl std::fmt::Debug for LongWaits {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LongWaits").field("count", &self.count).finish_non_exhaustive()
    }
}

impl LongWaits {
    pub(crate) fn watch(&self, watcher: WaitWatcher) {
        *self.watcher.lock().unwrap_or_else(PoisonError::into_inner) = Some(watcher);
    }

    /// Tells whether there are any.
    #[inline]
    pub(crate) fn are_any(&self) -> bool {
        // It orders nothing: who sees it late waits, too, or asks again.
        self.count.load(Ordering::Relaxed) > 0
    }

    /// Begins a wait, which is not long yet.
    pub(super) fn begin(&self) -> CommitWait<'_> {
        CommitWait { waits: self, is_long: false }
    }
}

/// The wait of one commit, until it is dropped.
pub(super) struct CommitWait<'w> {
    waits: &'w LongWaits,
    is_long: bool,
}

impl CommitWait<'_> {
    pub(super) fn is_long(&self) -> bool {
        self.is_long
    }

    /// Says that the wait has become long.
    #[cold]
    pub(super) fn is_long_now(&mut self) {
        if std::mem::replace(&mut self.is_long, true) {
            return;
        }
        self.waits.count.fetch_add(1, Ordering::Relaxed);
        let watcher = self.waits.watcher.lock().unwrap_or_else(PoisonError::into_inner).clone();
        watcher.into_iter().for_each(|watcher| watcher());
    }
}

impl Drop for CommitWait<'_> {
    fn drop(&mut self) {
        if self.is_long {
            self.waits.count.fetch_sub(1, Ordering::Relaxed);
        }
    }
}
