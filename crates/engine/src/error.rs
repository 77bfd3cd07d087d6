//! The errors of an engine.

use std::io;

use caravan_ring::Corrupt;

use crate::owner::LinkId;

/// Every failure of an engine.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A link in the wrong notation.
    #[error("`{0}` is not a link: write it as `app.output -> app.input`")]
    LinkForm(String),
    /// A configuration that cannot be carried out: each sentence names a mistake. Nothing has
    /// been changed.
    #[error("{}", .0.join("\n"))]
    Refused(Vec<String>),
    /// An app did not start. The engine runs the old configuration again.
    #[error("{app}: {reason}")]
    App {
        /// The app's name.
        app: String,
        /// The app's reason.
        reason: String,
    },
    /// The process has more than one thread. A lock that another thread holds stays locked in a forked process.
    #[error("the engine forks its workers, and this process has {0} threads: start it before they are")]
    Threads(usize),
    /// The kernel has no more memory, or the control group allows no more.
    #[error(
        "no memory for an engine of {bytes} bytes: {source}; free memory, raise the control group's memory.max, or lower packets_max in [engine]"
    )]
    NoMemory {
        /// The bytes that were asked for.
        bytes: u64,
        /// The kernel's error.
        source: io::Error,
    },
    /// Any other failure of shared memory.
    #[error(transparent)]
    Memory(caravan_segment::Error),
    /// Another process has written an impossible word into a ring.
    #[error("link {link}: {source}")]
    Corrupt {
        /// The link's name.
        link: String,
        /// The word.
        source: Corrupt,
    },
    /// No such engine can be found.
    #[error("{0}")]
    NoEngine(String),
    /// A link cannot be traced, or no longer.
    #[error("{0}")]
    Trace(String),
    /// Any other failure of a system call.
    #[error("{call}: {source}")]
    System {
        /// The call that failed.
        call: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
}

impl From<caravan_segment::Error> for Error {
    fn from(error: caravan_segment::Error) -> Self {
        match error {
            caravan_segment::Error::OutOfMemory { bytes, source } => Self::NoMemory { bytes, source },
            other => Self::Memory(other),
        }
    }
}

/// Names the link in an error: `.map_err(corrupt(link))`.
pub(crate) fn corrupt(link: LinkId) -> impl Fn(Corrupt) -> Error + Copy {
    move |source| Error::Corrupt { link: format!("number {}", link.place()), source }
}

/// Names the system call in an error: `.map_err(system("fork"))`.
pub(crate) fn system<E: Into<io::Error>>(call: &'static str) -> impl FnOnce(E) -> Error {
    move |source| Error::System { call, source: source.into() }
}
