//! What can go wrong, in sentences for whoever typed the command.

use std::io;
use std::path::PathBuf;

/// Every failure of this crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A system call failed that nobody expects to.
    #[error("{call}: {source}")]
    System {
        /// Which.
        call: &'static str,
        /// Why.
        source: io::Error,
    },
    /// getrandom(2) failed.
    #[error("the system gives no random bytes: {0}")]
    Random(io::Error),
    /// A file of a stage.
    #[error("cannot {what} {path}: {source}", path = path.display())]
    File {
        /// What was tried.
        what: &'static str,
        /// With which file.
        path: PathBuf,
        /// Why it did not work.
        source: io::Error,
    },
    /// Neither side could reach the other.
    #[error("{0}")]
    Unreachable(String),
    /// A hop ended without its end: the other side, or what is between, is gone.
    #[error("the stream was cut off after {bytes} bytes: {why}")]
    Truncated {
        /// Bytes that did arrive, or were sent.
        bytes: u64,
        /// What is known about it.
        why: String,
    },
    /// What arrived is not what was sent.
    #[error("the stream arrived damaged: {0}")]
    Damaged(String),
    /// The other side says that it failed.
    #[error("{0}")]
    Told(String),
    /// The other end of a data connection breaks the protocol, or is a stranger.
    #[error("the other end of the data connection {0}")]
    Protocol(String),
    /// A control channel ended, or fell silent.
    #[error("{host}: {why}")]
    Host {
        /// Which host's.
        host: String,
        /// What happened.
        why: String,
    },
    /// A stage, or an option, that cannot be.
    #[error("{0}")]
    Usage(String),
    /// Single files of a copy failed; each was said.
    #[error("{0} could not be copied; the lines above say why")]
    Files(u64),
    /// The fabric.
    #[error("{0}")]
    Fabric(#[from] caravan_fabric::Error),
    /// Shared memory.
    #[error("{0}")]
    Segment(#[from] caravan_segment::Error),
    /// Whoever waits was told to end.
    #[error("interrupted")]
    Cancelled,
}

impl Error {
    /// Returns what makes an error of the failure of that call.
    pub(crate) fn system<E: Into<io::Error>>(call: &'static str) -> impl Fn(E) -> Self {
        move |source| Self::System { call, source: source.into() }
    }
}
