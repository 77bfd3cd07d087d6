//! Faults that tests plant, to prove that their checks notice them. Without the feature `faults` there are
//! none, and no code for them.

#[cfg(feature = "faults")]
use std::cell::Cell;
#[cfg(feature = "faults")]
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

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
    /// A commit does not wait until its record has arrived at the copies.
    AnsweredEarly = 15,
    /// A copy leaves a record out now and then.
    SkippedRecord = 16,
    /// The bytes of new objects are not sent to copies.
    NoNewBytes = 17,
    /// A piece of memory is read for a new copy while commits are under way.
    FillBesideCommits = 18,
    /// The records of changes of the structure are not sent to copies.
    NoStructureRecord = 19,
    /// A copy applies two records in the wrong order now and then.
    OutOfOrder = 20,
    /// Positions are not compared, so a record of an earlier lap of a ring counts as new.
    RecordOfAnyLap = 21,
    /// A commit does not look at the lease.
    IgnoredLease = 22,
    /// Nothing leads to the note of a branch.
    UnnotedBranch = 23,
    /// Nothing leads to a decision.
    UnnotedDecision = 24,
    /// A new owner does not take branches over.
    ForgottenBranch = 25,
    /// A transaction that was given up may be committed later.
    NeverClosed = 26,
    /// A reader of a part's memory does not look at the lease of its owner.
    UnseenLease = 27,
    /// A copy goes on with a new owner although it has applied what that one has not.
    ForeignRecords = 28,
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

/// A moment at which a process can be told to end itself, so that a test needs no luck to meet it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultMoment {
    /// The reply to a client's request is committed, and not sent.
    Reply = 1,
    /// A branch of a transaction over several parts is to happen, as its home has decided, and has not happened yet.
    Branch = 2,
    /// A transaction over several parts has happened, and nobody else knows.
    Decision = 3,
    /// A commit is about to send its record to the copies.
    Record = 4,
    /// The client of a transaction over several parts has prepared all branches, and is about to commit at the home.
    HomeCommit = 5,
}

/// The moment, how many of its kind come until then, and whether the process is only stopped.
#[cfg(feature = "faults")]
static MOMENT: (AtomicU8, AtomicU64, AtomicBool) =
    (AtomicU8::new(0), AtomicU64::new(0), AtomicBool::new(false));

/// Kills this process at such a moment, the one with this number from now.
#[cfg(feature = "faults")]
pub fn kill_at(moment: FaultMoment, number: u64) {
    end_at(moment, number, false);
}

/// Stops this process at such a moment, as SIGSTOP does.
#[cfg(feature = "faults")]
pub fn stop_at(moment: FaultMoment, number: u64) {
    end_at(moment, number, true);
}

#[cfg(feature = "faults")]
fn end_at(moment: FaultMoment, number: u64, is_stop: bool) {
    MOMENT.1.store(number, Ordering::Relaxed);
    MOMENT.2.store(is_stop, Ordering::Relaxed);
    // Pairs with the Acquire in `has_come`.
    MOMENT.0.store(moment as u8, Ordering::Release);
}

/// Is called at each such moment.
#[inline(always)]
pub(crate) fn has_come(moment: FaultMoment) {
    #[cfg(feature = "faults")]
    if MOMENT.0.load(Ordering::Acquire) == moment as u8 && MOMENT.1.fetch_sub(1, Ordering::Relaxed) == 1 {
        use rustix::process::{Signal, getpid, kill_process};
        let signal = if MOMENT.2.load(Ordering::Relaxed) { Signal::STOP } else { Signal::KILL };
        let _ = kill_process(getpid(), signal);
    }
    #[cfg(not(feature = "faults"))]
    let _ = moment;
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
