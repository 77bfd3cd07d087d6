//! The faults that are planted in the model of commits and recovery; those of the clock are in `clock.rs`.

/// A step that the protocol needs and that is left out or done too early. The numbers are those of the protocol's rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProtocolFault {
    /// What was only read is not validated.
    NoValidate,
    /// The answer is sent when the locks are held.
    AnswerAfterLocks,
    /// The answer is sent when the backups have the records, before any primary has applied them.
    AnswerAfterBackups,
    /// A reader looks at the region word once, before its reads.
    WordBeforeReads,
    /// 1: A write counts as completed when it is posted.
    CompletedBeforeArrival,
    /// 2: A keeper testifies to its server's death and leaves the region word open.
    WordStaysOpen,
    /// 2: The votes do not wait for the leases of readers on hosts that are no members.
    OutsiderNotAwaited,
    /// 2: A server that is started again decides on its transactions while their records may still arrive.
    SettleWithOldRings,
    /// 3: A coordinator applies without looking at its lease and epoch.
    NoCheck,
    /// 3: A server acknowledges an epoch while a commit is between its check and its own record.
    AcknowledgeAmidCommit,
    /// 3: The votes begin while the expelled server holds its lease.
    VoteBeforeLeaseEnd,
    /// 3: Records that arrive after the acknowledgement and before the votes are not looked at, although they complete.
    RingsClosedUndrained,
    /// 3: The rings of the old epoch are read after the votes, too.
    OldRingsRead,
    /// 3: The votes and the new primaries do not wait for all acknowledgements.
    UnblockBeforeAcknowledged,
    /// 3: A new primary serves before the votes.
    UnblockBeforeVotes,
    /// 5: A stamp is above the coordinator's last one, and maybe not above the versions under the locks.
    StampOwnOnly,
    /// 6: A record names its own region only.
    RecordsWithoutRegions,
    /// 6: Records are truncated when the coordinator has applied its own.
    TruncateEarly,
    /// 6: A server removes all locks when it acknowledges an epoch.
    UnlockAtAcknowledgement,
    /// 6: A server that is started again removes all locks that it finds.
    UnlockAtRestart,
    /// 6: It is forgotten what was truncated before the votes.
    TruncationForgotten,
    /// 6: A record that is found truncated before the votes is not applied.
    TruncateUnapplied,
    /// 7: A coordinator gives up after it has posted a COMMIT-BACKUP.
    AbortAfterBackups,
    /// 7: ABORT goes only to primaries that have answered the LOCK.
    AbortToAnswered,
    /// 8: A request is not claimed while it is done.
    NoClaim,
    /// 8: A repeated request goes to the home of another of its writes.
    RepeatElsewhere,
    /// 8: A client that has repeated a request believes that the earlier one was aborted.
    OldAbortBelieved,
    /// 8: A request that was acknowledged is done again when it arrives late.
    ForgottenReply,
    /// 8: The table of replies does not move with its region.
    RepliesStayBehind,
    /// 9: The lease manager (server 0) needs no lease of the others.
    OneWayLease,
    /// 13: A backup applies a record though it has a newer version.
    ApplyOlder,
}
