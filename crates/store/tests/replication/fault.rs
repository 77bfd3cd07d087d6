//! What can be planted in a world.

/// Something that a step leaves out, or does too early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartFault {
    /// PREPARE leaves no note: a later owner knows nothing of the branch.
    UnnotedBranch,
    /// The commit of the home leaves no note of the decision.
    UnnotedDecision,
    /// A later owner knows the branches, and does not lock again what they have read and write.
    UnlockedBranch,
    /// OUTCOME says "aborted" of a number that is open, and leaves it open.
    NeverClosed,
    /// OUTCOME closes a number whose commit is under way.
    ClosedAmidCommit,
    /// A number counts as open whichever owner has opened it.
    NumberOfAnyOwner,
    /// The client sends DECIDE along with COMMIT.
    DecideBeforeCommit,
    /// The client ends a decision when it has sent DECIDE, and does not wait for the answers.
    EndedUnheard,
    /// The home ends a decision when it has told one part again.
    EndedAfterOne,
    /// A decision takes the entry of one that is needed.
    EntryTaken,
    /// PREPARE compares what was only read, and locks what is written.
    ReadsUnlocked,
    /// PREPARE does not compare what was read.
    ReadsUncompared,
    /// The home does not compare what was read there.
    HomeUncompared,
    /// The check of a transaction that only reads compares versions, and no locks.
    LocksIgnored,
    /// A transaction that only reads several parts checks nothing at its end.
    NothingChecked,
    /// The reply of a session is not in the commit.
    ForgottenReply,
    /// A later link repeats COMMIT while the first one is still being done.
    RepeatBesideFirst,
    /// A client without an answer to COMMIT tells the parts "aborted".
    SilenceIsAbort,
    /// An owner whose lease has ended in the middle of a commit answers that nothing has happened, and its copies have it.
    ReplacedDenies,
    /// An owner whose lease has ended answers COMMIT, and its copies do not have it.
    ReplacedCommits,
    /// An owner without a lease answers DECIDE and OUTCOME.
    ReplacedAnswers,
    /// DECIDE writes what the transaction writes, whether its branch is there or not.
    DecideTwice,
    /// PREPARE is repeated over later links, as COMMIT is.
    PrepareRepeated,
    /// A branch that is undone keeps its locks.
    LockKept,
    /// Nobody asks the home of a branch that waits.
    NobodyAsks,
    /// Nobody tells the parts again what nobody has ended.
    NobodyTellsAgain,
}
