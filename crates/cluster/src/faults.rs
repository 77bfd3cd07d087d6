//! Faults that tests plant, to prove that their checks notice them. Without the feature `faults` there are none, and no
//! code for them.

#[cfg(feature = "faults")]
use std::cell::Cell;

/// Something that the members of a simulated cluster leave out, in all worlds of this thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseFault {
    /// A holder counts its lease from the arrival of the answer.
    CountedFromAnswer,
    /// A granter takes both clocks for equal.
    NoDrift,
    /// The manager does not wait for the leases of those who were expelled.
    LeaseNotAwaited,
    /// A member acknowledges although a manager that was expelled has a lease of its.
    GrantNotAwaited,
    /// The manager unblocks before all members have acknowledged.
    AcknowledgementNotAwaited,
    /// A member acknowledges while it still has something under way.
    ClosedTooEarly,
    /// The manager grants leases when it has none itself.
    GrantedWithoutLease,
    /// Any number of members may expel all others.
    MinorityExpels,
    /// Former members are forgotten although their epoch was never unblocked.
    FormerForgotten,
    /// A part is served before its epoch is unblocked.
    ServedBlocked,
    /// The end of a process ends the lease of a later one of the same member, too.
    EndOfAnotherProcess,
    /// Nobody replaces a manager that is gone.
    ManagerNotReplaced,
}

#[cfg(feature = "faults")]
thread_local! {
    static PLANTED: Cell<Option<LeaseFault>> = const { Cell::new(None) };
}

/// Plants a fault in this thread, or removes it.
#[cfg(feature = "faults")]
pub fn plant(fault: Option<LeaseFault>) {
    PLANTED.set(fault);
}

/// Tells whether a fault is planted.
#[inline(always)]
pub(crate) fn is_planted(fault: LeaseFault) -> bool {
    #[cfg(feature = "faults")]
    return PLANTED.get() == Some(fault);
    #[cfg(not(feature = "faults"))]
    {
        let _ = fault;
        false
    }
}
