//! Everything that can go wrong with the configuration of a cluster.

use std::io;
use std::path::PathBuf;

use crate::configuration::StoreInstance;

/// Why a configuration cannot be read, changed or watched.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClusterError {
    /// What was read is no configuration, or contradicts itself.
    #[error("the configuration is damaged: {0}")]
    Damaged(String),
    /// A newer program has written it.
    #[error("the configuration has form {found}, and this program knows form {known}: use the newer program")]
    Form {
        /// The form of what was read.
        found: u32,
        /// The form that this program reads and writes.
        known: u32,
    },
    /// There is no configuration.
    #[error("{0}: there is no configuration yet; start the store's first server to make one")]
    Absent(String),
    /// It is the configuration of another store.
    #[error(
        "{place}: this is the configuration of store {found} (instance {found_instance}), not of {wanted}: give this store a place of its own"
    )]
    Foreign {
        /// Where it is.
        place: String,
        /// The store that it describes.
        found: String,
        /// Which store of that name it is.
        found_instance: StoreInstance,
        /// The store that was expected.
        wanted: String,
    },
    /// A file that holds something else, or was not written to its end.
    #[error("{}: {reason}; restore it from a copy, or remove it if the store is to be made anew", .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The file lies where several hosts can write, or where locks mean nothing.
    #[error(
        "{}: this file system ({file_system}) is shared by hosts, and a file holds the configuration of one host: give a path on a local file system, or use etcd for several hosts",
        .path.display()
    )]
    SharedFileSystem {
        /// The file.
        path: PathBuf,
        /// What kind of file system it is.
        file_system: &'static str,
    },
    /// The disk or the quota is full. The configuration is as it was.
    #[error("{}: the disk is full, so the configuration stays as it was: free some room", .0.display())]
    DiskFull(PathBuf),
    /// Files cannot be made in this folder.
    #[error("{}: cannot write in this folder, which holds the configuration: {reason}", .folder.display())]
    Folder {
        /// The folder.
        folder: PathBuf,
        /// The system's words.
        reason: io::Error,
    },
    /// Another process has held the lock for too long.
    #[error("{}: another process has held the lock of the configuration until the deadline; it may be stopped", .0.display())]
    Locked(PathBuf),
    /// No endpoint of etcd has answered in time.
    #[error("no endpoint of etcd has answered in time: {0}")]
    Unreachable(String),
    /// etcd refused.
    #[error("etcd at {endpoint} refused: {reason}")]
    Refused {
        /// Who refused.
        endpoint: String,
        /// Why, and what to do.
        reason: String,
    },
    /// An option or an address is not usable.
    #[error("{0}")]
    Options(String),
    /// A system call failed.
    #[error("cannot {what}: {source}")]
    System {
        /// What the call was for.
        what: String,
        /// The call's error.
        source: io::Error,
    },
}

impl ClusterError {
    pub(crate) fn system<E: Into<io::Error>>(what: impl Into<String>) -> impl FnOnce(E) -> Self {
        let what = what.into();
        move |source| Self::System { what, source: source.into() }
    }
}
