//! The options of the two halves of `caravan cp`, as one argument in JSON, and the sink's hello.

use std::os::fd::OwnedFd;

use rustix::fs::{Mode, Stat};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::trust::DIRECTORY;
use crate::Error;
use crate::place::Place;

/// The least default number of threads of one half that read or write small files. The default is one a core, and a
/// few even on few cores, because the threads wait for disks.
const JOBS_MIN: usize = 4;
/// The largest default: beyond this many threads, the file system is the limit.
const JOBS_DEFAULT_MAX: usize = 16;
/// The most threads that a user may ask for: each holds a few descriptors and blocks of 1 MiB.
pub const JOBS_MAX: usize = 64;

/// The bytes of a path: text in JSON if they are UTF-8, else a list of numbers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Spelled", into = "Spelled")]
pub struct Name(pub Vec<u8>);

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Spelled {
    Text(String),
    Bytes(Vec<u8>),
}

impl From<Spelled> for Name {
    fn from(spelled: Spelled) -> Self {
        match spelled {
            Spelled::Text(text) => Self(text.into_bytes()),
            Spelled::Bytes(bytes) => Self(bytes),
        }
    }
}

impl From<Name> for Spelled {
    fn from(name: Name) -> Self {
        String::from_utf8(name.0).map_or_else(|error| Self::Bytes(error.into_bytes()), Self::Text)
    }
}

/// The options of the source.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceOptions {
    /// The paths to copy, as the user wrote them.
    pub paths: Vec<Name>,
    /// Whether to copy directories with their content.
    pub recursive: bool,
    /// Whether to skip files that the sink already has with the same size and time of modification.
    pub update: bool,
    /// The number of threads that read; by default, the number of cores.
    pub jobs: Option<usize>,
}

/// The options of the sink.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SinkOptions {
    /// The destination, as the user wrote it.
    pub destination: Name,
    /// For each source, its name in the destination if that is a directory; `None` if only the content of the
    /// source directory is copied (`dir/.`).
    pub names: Vec<Option<Name>>,
    /// Whether the destination has to be an existing directory.
    pub into_directory: bool,
    /// Whether directories may come.
    pub recursive: bool,
    /// The number of threads that write; by default, the number of cores.
    pub jobs: Option<usize>,
    /// Whether to print the amount at the end.
    pub verbose: bool,
    /// Whether each file is on the disk before it gets its name.
    pub fsync: bool,
}

/// Returns the number of threads.
pub(super) fn jobs(wanted: Option<usize>) -> usize {
    let cores = std::thread::available_parallelism().map_or(JOBS_MIN, |cores| cores.get());
    wanted.unwrap_or_else(|| cores.clamp(JOBS_MIN, JOBS_DEFAULT_MAX)).clamp(1, JOBS_MAX)
}

/// Parses the options of one of the halves.
pub(super) fn parse<'a, T: Deserialize<'a>>(options: &'a str) -> Result<T, Error> {
    serde_json::from_str(options).map_err(|error| {
        Error::Usage(format!("the options of this half of `caravan cp` cannot be read: {error}"))
    })
}

/// Identifies a file or directory while it exists; the numbers have a meaning on one host only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) struct FileId {
    device: u64,
    inode: u64,
}

impl FileId {
    pub(super) fn of(stat: &Stat) -> Self {
        Self { device: stat.st_dev, inode: stat.st_ino }
    }
}

/// The first frame of the sink: what it already has, and where exactly.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TreeHello {
    /// Whether the sink has no part of the copy: the source need not offer anything.
    pub is_fresh: bool,
    /// Whether a copy that was cut off has left something: files that it completed need not be sent again.
    pub is_resumed: bool,
    /// The place of the sink: the source compares ids only on the same host.
    place: Place,
    /// The existing targets.
    targets: Vec<FileId>,
    /// Directories, and the names of targets in them that do not exist yet.
    future: Vec<(FileId, Name)>,
    /// The directories that hold these targets, up to the root.
    above: Vec<FileId>,
    #[serde(skip)]
    is_same_host: bool,
}

impl TreeHello {
    /// Returns an empty hello of a sink in this process.
    pub fn here() -> Self {
        Self {
            is_fresh: true,
            is_resumed: false,
            place: Place::here(),
            targets: Vec::new(),
            future: Vec::new(),
            above: Vec::new(),
            is_same_host: false,
        }
    }

    /// Adds an existing target.
    pub fn add_target(&mut self, stat: &Stat) {
        self.is_fresh = false;
        self.targets.push(FileId::of(stat));
    }

    /// Adds a target that is to be made in this directory.
    pub fn add_future(&mut self, folder: &Stat, name: &[u8]) {
        self.future.push((FileId::of(folder), Name(name.to_vec())));
    }

    /// Adds a directory that holds a target, and all directories above it.
    pub fn add_above(&mut self, folder: &OwnedFd) {
        let mut next = folder.try_clone().map_err(|_| Errno::MFILE);
        while let Ok((fd, stat)) = next.and_then(|fd| rustix::fs::fstat(&fd).map(|stat| (fd, stat))) {
            // The directory above the root is the root again.
            if self.above.contains(&FileId::of(&stat)) {
                break;
            }
            self.above.push(FileId::of(&stat));
            next = rustix::fs::openat(&fd, "..", DIRECTORY, Mode::empty());
        }
    }

    /// Returns the hello as the source that received it uses it.
    pub fn received(mut self) -> Self {
        self.is_same_host = self.place.is_same_host(&Place::here());
        self
    }

    /// True if something is copied into that directory, at any depth.
    pub fn is_above(&self, stat: &Stat) -> bool {
        self.is_same_host && self.above.contains(&FileId::of(stat))
    }

    /// True if something is copied to that file or directory.
    pub fn is_target(&self, stat: &Stat) -> bool {
        self.is_same_host && self.targets.contains(&FileId::of(stat))
    }

    /// Returns the names in that directory to which something is copied and which did not exist at the beginning.
    pub fn future_in(&self, folder: &Stat) -> Vec<&[u8]> {
        let here = self.future.iter().filter(|(id, _)| self.is_same_host && *id == FileId::of(folder));
        here.map(|(_, name)| name.0.as_slice()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_any_bytes_survive_json() {
        for bytes in [&b"plain"[..], b"", b"new\nline \"quoted\"", b"\xff\xfe/x", "säule".as_bytes()] {
            let name = Name(bytes.to_vec());
            let json = serde_json::to_string(&name).expect("written");
            assert_eq!(serde_json::from_str::<Name>(&json).expect("read"), name, "{json}");
        }
    }
}
