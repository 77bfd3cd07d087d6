//! The lease of an owner: until when it may answer, and who has mapped its memory may read.
//!
//! Readers see it in a page that they map for reading ([`LeasePage`], [`LeaseView`]). They look at it after each read: what was read
//! before it ended was true then. The end of the owner's process ends it, too, before anybody can know of that
//! ([`LifeWord`]), and so before another owner takes over. A reader neither asks nor tells the owner.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use caravan_segment::process::{LifeWord, lives};
use caravan_segment::{Pages, Segment, SegmentView, SharedSlice};
use rustix::time::{ClockId, clock_gettime};

use crate::error::StoreError;
use crate::faults::{PlantedFault, is_planted};
use crate::limits::LEASE_PAUSE;

/// When it ends: a time on the clock that goes on while the machine sleeps, in nanoseconds; all ones: no lease is needed; 0: it has
/// ended for ever.
#[derive(Debug)]
pub(crate) struct Lease {
    until: AtomicU64,
    /// What readers see, once there are any. Locked while `until` changes.
    page: Mutex<Option<LeasePage>>,
}

const NONE: u64 = u64::MAX;
const ENDED: u64 = 0;

const PAGE_BYTES: u64 = 4096;
/// Where the page has the same word as [`Lease::until`], and the word of the owner's life.
const UNTIL: usize = 0;
const LIFE: usize = 8;

/// A page of shared memory with what readers see of a lease.
#[derive(Debug)]
struct LeasePage {
    segment: Arc<Segment>,
    until: SharedSlice,
    /// Says that nobody lives when it is dropped.
    _life: LifeWord,
}

/// The lease of the owner of a part, as a reader sees it.
#[derive(Debug)]
pub(crate) struct LeaseView(SegmentView);

impl Lease {
    pub(crate) fn none() -> Self {
        Self { until: AtomicU64::new(NONE), page: Mutex::default() }
    }

    fn page(&self) -> MutexGuard<'_, Option<LeasePage>> {
        self.page.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set(&self, until: Option<Duration>) {
        let until = until.map_or(NONE, |until| u64::try_from(until.as_nanos()).unwrap_or(NONE).max(1));
        let page = self.page();
        // An ended one stays so.
        if !self.has_ended() {
            self.store(until, &page);
        }
    }

    pub(crate) fn end(&self) {
        self.store(ENDED, &self.page());
    }

    fn store(&self, until: u64, page: &Option<LeasePage>) {
        self.until.store(until, Ordering::Release);
        if let Some(page) = page {
            page.until.word(0).store(until, Ordering::Release);
        }
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.until.load(Ordering::Acquire) == ENDED
    }

    /// Returns a descriptor of the page for readers.
    pub(crate) fn descriptor(&self) -> Result<OwnedFd, StoreError> {
        let mut page = self.page();
        let page = match &mut *page {
            Some(page) => page,
            page => page.insert(LeasePage::new(self.until.load(Ordering::Acquire))?),
        };
        Ok(page.segment.read_only_descriptor()?)
    }

    /// Returns for how many nanoseconds it lasts; all ones if none is needed.
    pub(crate) fn left_ns(&self) -> u64 {
        match self.until.load(Ordering::Acquire) {
            NONE => NONE,
            until => until.saturating_sub(now_ns()),
        }
    }

    /// Returns when the lease holds; waits for its renewal, or its end.
    pub(crate) fn check(&self) -> Result<(), StoreError> {
        loop {
            let until = self.until.load(Ordering::Acquire);
            if until == NONE || is_planted(PlantedFault::IgnoredLease) {
                return Ok(());
            }
            if until == ENDED {
                return Err(StoreError::NotPrimary);
            }
            if now_ns() < until {
                return Ok(());
            }
            std::thread::sleep(LEASE_PAUSE);
        }
    }
}

impl LeasePage {
    fn new(until: u64) -> Result<Self, StoreError> {
        let segment = Arc::new(Segment::create("caravan-lease", PAGE_BYTES, Pages::Small)?);
        segment.grow(PAGE_BYTES)?;
        let slice = segment.slice(UNTIL as u64, 8)?;
        slice.word(0).store(until, Ordering::Release);
        let life = LifeWord::new(segment.slice(LIFE as u64, LifeWord::BYTES)?)?;
        Ok(Self { segment, until: slice, _life: life })
    }
}

impl LeaseView {
    /// Maps the page of an owner.
    pub(crate) fn open(descriptor: OwnedFd) -> Result<Self, StoreError> {
        Ok(Self(SegmentView::attach(descriptor, PAGE_BYTES)?))
    }

    /// Tells whether what was read before this call was read while the lease held.
    #[inline]
    pub(crate) fn holds(&self) -> bool {
        if is_planted(PlantedFault::UnseenLease) {
            return true;
        }
        // The loads below come after the reads.
        fence(Ordering::Acquire);
        if !lives(self.0.load(LIFE)) {
            return false;
        }
        let until = self.0.load(UNTIL);
        // The clock is read after both.
        fence(Ordering::SeqCst);
        until == NONE || now_ns() < until
    }
}

/// Returns the time of the clock by which leases run.
pub(crate) fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
