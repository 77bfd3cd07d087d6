//! Errors: those of commands, in Redis's words, and those of the server.

use std::io;
use std::net::IpAddr;
use std::path::PathBuf;

use caravan_store::StoreError;

use crate::slots::NotServed;

/// Why a command failed. [`words`](Self::words) is what the client gets.
#[derive(Debug)]
pub(crate) enum CommandError {
    /// A sentence that begins with a code, such as `ERR`.
    Said(&'static str),
    /// The same, put together.
    Told(String),
    /// The same with bytes of the client in it.
    Quoted(Vec<u8>),
    /// The reply is longer than a reply may be.
    LongReply,
    /// The store refused.
    Store(StoreError),
}

pub(crate) const SYNTAX: CommandError = CommandError::Said("ERR syntax error");
pub(crate) const NOT_AN_INTEGER: CommandError =
    CommandError::Said("ERR value is not an integer or out of range");
pub(crate) const TOO_LONG: CommandError =
    CommandError::Said("ERR string exceeds maximum allowed size (proto-max-bulk-len)");

impl From<StoreError> for CommandError {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl From<NotServed> for CommandError {
    fn from(error: NotServed) -> Self {
        Self::Told(error.words())
    }
}

impl CommandError {
    /// Returns the error as the client gets it.
    pub(crate) fn words(&self) -> Vec<u8> {
        match self {
            Self::Said(text) => text.as_bytes().to_vec(),
            Self::Told(text) => text.as_bytes().to_vec(),
            Self::Quoted(text) => text.clone(),
            Self::LongReply => {
                b"ERR the reply is longer than 513 MiB: ask for less, for example with SCAN".to_vec()
            }
            Self::Store(StoreError::Conflict) => {
                b"TRYAGAIN other transactions on these keys were always first: try again".to_vec()
            }
            Self::Store(error) if error.is_host_full() => {
                b"OOM this host, or the control group, has no memory left for the store: free some, or raise memory.max"
                    .to_vec()
            }
            Self::Store(StoreError::Full { .. }) => {
                b"OOM command not allowed when used memory > 'maxmemory'.".to_vec()
            }
            Self::Store(error @ StoreError::Undecided) => format!("TRYAGAIN {error}").into_bytes(),
            Self::Store(error) => format!("ERR {error}").into_bytes(),
        }
    }
}

/// Why a server does not start, or ends.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// An address that other hosts reach needs a password.
    #[error(
        "cannot listen on {0} without a password, because other hosts can reach that address: give it one, or listen on 127.0.0.1"
    )]
    Exposed(IpAddr),
    /// Somebody serves at this socket.
    #[error(
        "a store is already served at {}{}; stop that one first, or give this one another name",
        .path.display(), .pid.map_or_else(String::new, |pid| format!(" by process {pid}"))
    )]
    Taken {
        /// The socket.
        path: PathBuf,
        /// The process that serves there.
        pid: Option<i32>,
    },
    /// The socket's path has no parent folder, or is too long.
    #[error(
        "{}: this is no path for a socket: it takes a file in an existing folder, of at most 100 bytes", .0.display()
    )]
    Path(PathBuf),
    /// The file beside the socket that keeps a second server away cannot be written.
    #[error(
        "cannot make the socket {} and its lock beside it: {source}. The path takes a folder that exists and that you can write",
        .path.display()
    )]
    Socket {
        /// The socket.
        path: PathBuf,
        /// Why the lock cannot be written.
        source: io::Error,
    },
    /// A file that is no socket is where the socket would be.
    #[error("{}: this is a file, not the socket of a store: give another path, or remove it", .0.display())]
    NoSocket(PathBuf),
    /// A certificate or a key for TLS cannot be used.
    #[error("{}: cannot use this for TLS: {reason}; it takes a certificate, and its private key, in PEM", .path.display())]
    Certificate {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The options contradict a limit.
    #[error("{0}")]
    Options(String),
    /// A keeper could not go on.
    #[error("{0}")]
    Keeper(String),
    /// The store's memory cannot be used.
    #[error("the memory of the store cannot be used: {0}")]
    Store(#[source] StoreError),
    /// The server cannot be a member of its cluster.
    #[error("{0}")]
    Member(String),
    /// The configuration of the cluster cannot be read or changed.
    #[error(transparent)]
    Cluster(#[from] caravan_cluster::ClusterError),
    /// A system call failed.
    #[error("cannot {what}: {source}")]
    System {
        /// What the call was for.
        what: String,
        /// The call's error.
        source: io::Error,
    },
}

impl ServeError {
    pub(crate) fn system<E: Into<io::Error>>(what: impl Into<String>) -> impl FnOnce(E) -> Self {
        let what = what.into();
        move |source| Self::System { what, source: source.into() }
    }
}
