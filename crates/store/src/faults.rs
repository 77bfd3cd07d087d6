//! Faults that tests plant, to prove that their checks notice them. Without the feature `faults` there are
//! none, and no code for them.

#[cfg(feature = "faults")]
use std::sync::atomic::{AtomicU8, Ordering};

/// Something that is left out, in all of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlantedFault {
    /// A reader does not look at the version again after the read.
    TornRead = 1,
    /// A commit does not check that what was read has not changed.
    NoValidation = 2,
    /// A transaction does not check what it has read when it meets a later time.
    NoRevalidation = 3,
    /// A key counts as absent although its bucket has changed during the lookup.
    HastyAbsence = 4,
    /// A lookup in a fixed table does not compare the counts of moves of what it reads.
    UnjoinedBuckets = 5,
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
