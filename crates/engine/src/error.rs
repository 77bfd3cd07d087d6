//! What can go wrong, and what to do about it.

use std::io;

use caravan_ring::Corrupt;

use crate::owner::LinkId;

/// Every failure of an engine.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A link that is not written as links are.
    #[error("`{0}` is not a link: write it as `app.output -> app.input`")]
    LinkForm(String),
    /// A configuration that cannot be carried out: each sentence names what is wrong. Nothing has
    /// been changed.
    #[error("{}", .0.join("\n"))]
    Refused(Vec<String>),
    /// An app did not start, and what ran before was put back.
    #[error("{app}: {reason}")]
    App {
        /// Its name.
        app: String,
        /// Its words.
        reason: String,
    },
    /// Forking a process with more than one thread leaves locks that nobody opens again.
    #[error("the engine forks its workers, and this process has {0} threads: start it before they are")]
    Threads(usize),
    /// The kernel has no more memory, or the control group allows no more.
    #[error(
        "no memory for an engine of {bytes} bytes: {source}; free memory, raise the control group's memory.max, or lower packets_max in [engine]"
    )]
    NoMemory {
        /// Bytes asked for.
        bytes: u64,
        /// What the kernel said.
        source: io::Error,
    },
    /// Any other trouble with shared memory.
    #[error(transparent)]
    Memory(caravan_segment::Error),
    /// Another process has written what cannot be into a ring.
    #[error("link {link}: {source}")]
    Corrupt {
        /// Its name.
        link: String,
        /// The word.
        source: Corrupt,
    },
    /// No engine can be found there.
    #[error("{0}")]
    NoEngine(String),
    /// A link cannot be traced, or not any longer.
    #[error("{0}")]
    Trace(String),
    /// Any other failure of a system call.
    #[error("{call}: {source}")]
    System {
        /// The call that failed.
        call: &'static str,
        /// What the kernel said.
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
