//! The errors of this crate, in sentences for the user who typed the command.

use std::io;
use std::path::PathBuf;

/// Every failure of this crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A system call failed unexpectedly.
    #[error("{call}: {source}")]
    System {
        /// The name of the call.
        call: &'static str,
        /// Why the call failed.
        source: io::Error,
    },
    /// getrandom(2) failed.
    #[error("the system gives no random bytes: {0}")]
    Random(io::Error),
    /// A file of a stage could not be used.
    #[error("cannot {what} {path}: {source}", path = path.display())]
    File {
        /// What was tried.
        what: &'static str,
        /// The path of the file.
        path: PathBuf,
        /// Why the attempt failed.
        source: io::Error,
    },
    /// Neither side could reach the other.
    #[error("{0}")]
    Unreachable(String),
    /// A hop's stream stopped before its end: the other side, or the network in between, is gone.
    #[error("the stream was cut off after {bytes} bytes: {why}")]
    Truncated {
        /// The number of bytes that arrived, or that were sent.
        bytes: u64,
        /// What is known about the cause.
        why: String,
    },
    /// The bytes that arrived are not the bytes that were sent.
    #[error("the stream arrived damaged: {0}")]
    Damaged(String),
    /// The other side reports that it failed.
    #[error("{0}")]
    Told(String),
    /// The other end of a data connection breaks the protocol, or does not know the key.
    #[error("the other end of the data connection {0}")]
    Protocol(String),
    /// A control channel ended, or its other end fell silent.
    #[error("{host}: {why}")]
    Host {
        /// The host at the other end of the channel.
        host: String,
        /// What happened.
        why: String,
    },
    /// A stage or an option is not valid.
    #[error("{0}")]
    Usage(String),
    /// Single files of a copy failed; each failure was printed.
    #[error("{0} could not be copied; the lines above say why")]
    Files(u64),
    /// The fabric failed.
    #[error("{0}")]
    Fabric(#[from] caravan_fabric::Error),
    /// Shared memory failed.
    #[error("{0}")]
    Segment(#[from] caravan_segment::Error),
    /// The operation was told to end while it waited.
    #[error("interrupted")]
    Cancelled,
}

impl Error {
    /// Returns a function that turns a failure of `call` into an error.
    pub fn system<E: Into<io::Error>>(call: &'static str) -> impl Fn(E) -> Self {
        move |source| Self::System { call, source: source.into() }
    }
}
