use std::io;

/// What can go wrong with shared memory, and what to do about it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The kernel has no more memory (or the control group allows no more).
    #[error(
        "no memory for a segment of {bytes} bytes: {source}; free memory, raise the control group's memory.max, or ask for smaller rings"
    )]
    OutOfMemory {
        /// Bytes asked for.
        bytes: u64,
        /// What the kernel said.
        source: io::Error,
    },
    /// The process may not have files of that size, and memory counts as one.
    #[error(
        "a segment of {bytes} bytes is above this process's limit on the size of files, {limit} bytes, which counts for shared memory, too; raise it (`ulimit -f unlimited`)"
    )]
    FileSize {
        /// Bytes asked for.
        bytes: u64,
        /// `RLIMIT_FSIZE`.
        limit: u64,
    },
    /// A size that no segment can have.
    #[error("a segment cannot have {bytes} bytes: it takes 1 to {maximum}")]
    Size {
        /// Bytes asked for.
        bytes: u64,
        /// The largest that is allowed.
        maximum: u64,
    },
    /// A range that is not inside the segment.
    #[error("bytes {offset}..{offset}+{bytes} are outside a segment of {segment_bytes}")]
    Range {
        /// First byte asked for.
        offset: u64,
        /// Bytes asked for.
        bytes: u64,
        /// Bytes that there are.
        segment_bytes: u64,
    },
    /// A descriptor received from a peer is not a sealed memfd of the size it said.
    #[error("the peer's memory is not usable: {0}")]
    Foreign(&'static str),
    /// The other process runs as another user.
    #[error(
        "the other process runs as user {theirs}, this one as user {ours}: shared memory needs the same user"
    )]
    OtherUser {
        /// Their effective user id.
        theirs: u32,
        /// Ours.
        ours: u32,
    },
    /// Nobody listens under that name: another host, network namespace, or an ended process.
    #[error(
        "the peer's UNIX socket cannot be reached from here: it is on another host or in another network namespace"
    )]
    Unreachable,
    /// Descriptors of a hand-over that are missing: this process can have no more, or there were too many.
    #[error(
        "the peer's descriptors did not fit: this process has no more of its own (raise `ulimit -n`), or the peer sent too many"
    )]
    Descriptors,
    /// The message has not come.
    #[error("the peer has not sent its memory")]
    NotThere,
    /// A message that does not have the agreed form.
    #[error("the peer's hand-over message is malformed: {0}")]
    Malformed(&'static str),
    /// Any other failure of a system call.
    #[error("{call}: {source}")]
    System {
        /// The call that failed.
        call: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
}

/// Names the system call in an error: `.map_err(system("mmap"))`.
pub(crate) fn system<E: Into<io::Error>>(call: &'static str) -> impl FnOnce(E) -> Error {
    move |source| Error::System { call, source: source.into() }
}
