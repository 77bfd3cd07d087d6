//! Faults that tests plant, to prove that their checks notice them. Without the feature `faults` there are
//! none, and no code for them.

#[cfg(feature = "faults")]
use std::cell::Cell;
#[cfg(feature = "faults")]
use std::sync::atomic::{AtomicU8, Ordering};

/// Something that is left out, in all of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlantedFault {
    /// A reader does not look at the version again after the read; a one-sided one takes whatever bytes come.
    TornRead = 1,
    /// A commit does not check that what was read has not changed.
    NoValidation = 2,
    /// A transaction does not check what it has read when it meets a later time.
    NoRevalidation = 3,
    /// A key counts as absent although its bucket has changed during the lookup.
    HastyAbsence = 4,
    /// A commit writes no record.
    NoRecord = 5,
    /// A new owner removes locks, and does not do again what the records say.
    NoRedo = 6,
    /// A new owner does again what the records say, whatever has happened since.
    RedoAlways = 7,
    /// A new owner takes the rest of an older record for a part of the newest.
    RecordOfAnyTime = 8,
    /// A new owner takes a place for used because its last owner had reserved it.
    LeakedReservation = 9,
    /// A commit does not note what it changes while a save runs.
    UnnotedChange = 10,
    /// Any version counts as the required one (WATCH).
    IgnoredRequirement = 11,
    /// A lookup in a fixed table does not compare the counts of moves of what it reads.
    UnjoinedBuckets = 12,
    /// A server does a request again although its session has the reply.
    RepeatedRequest = 13,
    /// An owner does not lock its memory against others.
    UnlockedMemory = 14,
}

#[cfg(feature = "faults")]
static PLANTED: AtomicU8 = AtomicU8::new(0);

/// Plants a fault, for the rest of the process's life.
#[cfg(feature = "faults")]
pub fn plant(fault: PlantedFault) {
    PLANTED.store(fault as u8, Ordering::Relaxed);
}

/// Tells whether a fault is planted.
#[inline(always)]
pub(crate) fn is_planted(fault: PlantedFault) -> bool {
    #[cfg(feature = "faults")]
    return PLANTED.load(Ordering::Relaxed) == fault as u8;
    #[cfg(not(feature = "faults"))]
    {
        let _ = fault;
        false
    }
}

#[cfg(feature = "faults")]
thread_local! {
    /// How many more stores to shared memory this thread makes before it is cut.
    static STORES_LEFT: Cell<u64> = const { Cell::new(u64::MAX) };
}

/// What a thread panics with when it is cut.
#[cfg(feature = "faults")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CutShort;

/// Runs `body` until this thread has made `stores` stores to shared memory, as if its process were killed then: no
/// later store of it has an effect, not even of a destructor. Returns whether it was cut.
#[cfg(feature = "faults")]
pub fn cut_after(stores: u64, body: impl FnOnce()) -> bool {
    STORES_LEFT.set(stores);
    let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body));
    STORES_LEFT.set(u64::MAX);
    match ended {
        Ok(()) => false,
        Err(cause) if cause.is::<CutShort>() => true,
        Err(cause) => std::panic::resume_unwind(cause),
    }
}

/// Runs `body`, and returns how many stores to shared memory this thread made.
#[cfg(feature = "faults")]
pub fn stores_of(body: impl FnOnce()) -> u64 {
    STORES_LEFT.set(u64::MAX - 1);
    body();
    u64::MAX - 1 - STORES_LEFT.replace(u64::MAX)
}

/// Returns where the lanes of the log are in a memory of so many bytes: word 0 of a lane is not 0 as long as there
/// is a record that is not done with.
#[cfg(feature = "faults")]
pub fn lane_places(memory_bytes: u64) -> impl Iterator<Item = u64> {
    let first = crate::layout::StoreLayout::of(memory_bytes).lanes_place;
    (0..crate::limits::LANES as u64).map(move |lane| first + lane * crate::layout::LANE_BYTES)
}

/// Returns where the directory of the table is, and the word that says its depth.
#[cfg(feature = "faults")]
pub fn directory_places(memory_bytes: u64) -> (u64, u64) {
    (crate::layout::StoreLayout::of(memory_bytes).directory_place, crate::layout::word::DEPTH)
}

/// Tells whether a store to shared memory has an effect.
#[inline(always)]
pub(crate) fn may_store() -> bool {
    #[cfg(feature = "faults")]
    return match STORES_LEFT.get() {
        u64::MAX => true,
        0 if std::thread::panicking() => false,
        0 => std::panic::resume_unwind(Box::new(CutShort)),
        left => {
            STORES_LEFT.set(left - 1);
            true
        }
    };
    #[cfg(not(feature = "faults"))]
    true
}
