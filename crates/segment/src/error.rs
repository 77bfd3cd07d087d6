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
        /// The requested number of bytes.
        bytes: u64,
        /// The error of the kernel.
        source: io::Error,
    },
    /// The process may not have files of that size, which includes shared memory.
    #[error(
        "a segment of {bytes} bytes is above this process's limit on the size of files, {limit} bytes, which counts for shared memory, too; raise it (`ulimit -f unlimited`)"
    )]
    FileSize {
        /// The requested number of bytes.
        bytes: u64,
        /// The limit `RLIMIT_FSIZE`.
        limit: u64,
    },
    /// No segment can have that size.
    #[error("a segment cannot have {bytes} bytes: it takes 1 to {maximum}")]
    Size {
        /// The requested number of bytes.
        bytes: u64,
        /// The largest number of bytes.
        maximum: u64,
    },
    /// A range is not inside the segment.
    #[error("bytes {offset}..{offset}+{bytes} are outside a segment of {segment_bytes}")]
    Range {
        /// The offset of the first requested byte.
        offset: u64,
        /// The requested number of bytes.
        bytes: u64,
        /// The number of bytes of the segment.
        segment_bytes: u64,
    },
    /// A descriptor received from a peer is not a sealed memfd of the announced size.
    #[error("the peer's memory is not usable: {0}")]
    Foreign(&'static str),
    /// The other process runs as another user.
    #[error(
        "the other process runs as user {theirs}, this one as user {ours}: shared memory needs the same user"
    )]
    OtherUser {
        /// The effective user id of the other process.
        theirs: u32,
        /// The effective user id of this process.
        ours: u32,
    },
    /// No process listens under that name: it is on another host, in another network namespace, or has ended.
    #[error(
        "the peer's UNIX socket cannot be reached from here: it is on another host or in another network namespace"
    )]
    Unreachable,
    /// Some descriptors of a hand-over are missing: this process has reached its limit, or there were too many.
    #[error(
        "the peer's descriptors did not fit: this process has no more of its own (raise `ulimit -n`), or the peer sent too many"
    )]
    Descriptors,
    /// The peer's message has not come.
    #[error("the peer has not sent its memory")]
    NotThere,
    /// A message does not have the agreed form.
    #[error("the peer's hand-over message is malformed: {0}")]
    Malformed(&'static str),
    /// A process has no more words that say whether it lives.
    #[error("a process can say in at most {maximum} places that it lives")]
    TooManyLives {
        /// The largest number of places.
        maximum: usize,
    },
    /// Any other failure of a system call.
    #[error("{call}: {source}")]
    System {
        /// The call that failed.
        call: &'static str,
        /// The error of the kernel.
        source: io::Error,
    },
}

/// Names the system call in an error: `.map_err(system("mmap"))`.
pub(crate) fn system<E: Into<io::Error>>(call: &'static str) -> impl FnOnce(E) -> Error {
    move |source| Error::System { call, source: source.into() }
}
