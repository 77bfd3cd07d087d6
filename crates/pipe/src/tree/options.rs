//! What each half of `caravan cp` is told: its options, as one argument in JSON, and the sink's greeting.

use std::os::fd::OwnedFd;

use rustix::fs::{Mode, Stat};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::trust::DIRECTORY;
use crate::Error;
use crate::place::Place;

/// Threads of one half that read or write small files, unless the user wants another number: one a core,
/// and a few even where there are no cores, because they wait for disks.
const JOBS_MIN: usize = 4;
/// Beyond this many threads it is the file system that is the limit.
const JOBS_DEFAULT_MAX: usize = 16;
/// The most that a user may ask for: each holds a few descriptors and blocks of 1 MiB.
pub const JOBS_MAX: usize = 64;

/// Bytes of a path: text in JSON where they are UTF-8, else a list of numbers.
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

/// What the half that sends is told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceOptions {
    /// What is to be copied, as the user wrote it.
    pub paths: Vec<Name>,
    /// Directories with all that is in them.
    pub recursive: bool,
    /// Files that are there already, with the same size and time of modification, are left alone.
    pub update: bool,
    /// Threads that read; by default as many as there are cores.
    pub jobs: Option<usize>,
}

/// What the half that receives is told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SinkOptions {
    /// Where to, as the user wrote it.
    pub destination: Name,
    /// For each source, its name in the destination if that is a directory; nothing where the content of a
    /// directory is meant (`dir/.`).
    pub names: Vec<Option<Name>>,
    /// The destination has to be a directory that is there.
    pub into_directory: bool,
    /// Directories may come.
    pub recursive: bool,
    /// Threads that write; by default as many as there are cores.
    pub jobs: Option<usize>,
    /// Says at the end how much it was.
    pub verbose: bool,
    /// Each file is on the disk before it has its name.
    pub fsync: bool,
}

/// How many threads that makes.
pub(super) fn jobs(wanted: Option<usize>) -> usize {
    let cores = std::thread::available_parallelism().map_or(JOBS_MIN, |cores| cores.get());
    wanted.unwrap_or_else(|| cores.clamp(JOBS_MIN, JOBS_DEFAULT_MAX)).clamp(1, JOBS_MAX)
}

/// Reads what one of the halves was told.
pub(super) fn parse<'a, T: Deserialize<'a>>(options: &'a str) -> Result<T, Error> {
    serde_json::from_str(options).map_err(|error| {
        Error::Usage(format!("the options of this half of `caravan cp` cannot be read: {error}"))
    })
}

/// A file or directory, for as long as it exists: the numbers mean something on one host alone.
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

/// The first frame of the sink: what is there already, and where exactly it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TreeHello {
    /// Nothing of what is copied is there, not even in part: nothing need be offered.
    pub is_fresh: bool,
    /// What is there was left by a copy that was cut off: what it has completed need not be sent again.
    pub is_resumed: bool,
    /// Where the sink runs: the source compares ids only on the same host.
    place: Place,
    /// What sources are copied to, as far as that is there.
    targets: Vec<FileId>,
    /// Directories, and the names in them of what is not there yet.
    future: Vec<(FileId, Name)>,
    /// The directories that these places are in, up to the root.
    above: Vec<FileId>,
    #[serde(skip)]
    is_same_host: bool,
}

impl TreeHello {
    /// Returns the hello of a sink here, for the sink to fill.
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

    /// Adds a target that is there.
    pub fn add_target(&mut self, stat: &Stat) {
        self.is_fresh = false;
        self.targets.push(FileId::of(stat));
    }

    /// Adds a target that is to be made in this directory.
    pub fn add_future(&mut self, folder: &Stat, name: &[u8]) {
        self.future.push((FileId::of(folder), Name(name.to_vec())));
    }

    /// Adds a directory that a target is in, and all above it.
    pub fn add_above(&mut self, folder: &OwnedFd) {
        let mut next = folder.try_clone().map_err(|_| Errno::MFILE);
        while let Ok((fd, stat)) = next.and_then(|fd| rustix::fs::fstat(&fd).map(|stat| (fd, stat))) {
            // Above the root there is the root again.
            if self.above.contains(&FileId::of(&stat)) {
                break;
            }
            self.above.push(FileId::of(&stat));
            next = rustix::fs::openat(&fd, "..", DIRECTORY, Mode::empty());
        }
    }

    /// Returns the hello as the source uses it, which has received it.
    pub fn received(mut self) -> Self {
        self.is_same_host = self.place.is_same_host(&Place::here());
        self
    }

    /// Whether something is copied into that directory, at whatever depth.
    pub fn is_above(&self, stat: &Stat) -> bool {
        self.is_same_host && self.above.contains(&FileId::of(stat))
    }

    /// Whether something is copied to that file or directory.
    pub fn is_target(&self, stat: &Stat) -> bool {
        self.is_same_host && self.targets.contains(&FileId::of(stat))
    }

    /// Returns the names in that directory to which something is copied and that were not there at the beginning.
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
