//! What each half of `caravan cp` is told: its options, as one argument in JSON, and the sink's greeting.

use std::os::fd::OwnedFd;

use rustix::fs::{Mode, Stat};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::trust::DIRECTORY;
use crate::Error;

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

/// The first frame of the sink.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TreeHello {
    /// Nothing of what is copied is there, not even in part: nothing need be offered.
    pub is_fresh: bool,
    /// What is there was left by a copy that was cut off: what it has completed need not be sent again.
    pub is_resumed: bool,
    /// Which boot of which machine: only there do the numbers below mean anything.
    boot: String,
    /// Device and inode of what sources are copied to, as far as that is there.
    targets: Vec<(u64, u64)>,
    /// The directories and names of what is not there.
    future: Vec<(u64, u64, Name)>,
    /// Device and inode of the directories that these places are in, up to the root.
    above: Vec<(u64, u64)>,
    #[serde(skip)]
    is_same_host: bool,
}

impl TreeHello {
    /// For a sink to fill.
    pub fn new() -> Self {
        Self { is_fresh: true, boot: boot(), ..Self::default() }
    }

    /// A target that is there.
    pub fn add_target(&mut self, stat: &Stat) {
        self.is_fresh = false;
        self.targets.push(identity(stat));
    }

    /// A target that is to be made in this directory.
    pub fn add_future(&mut self, folder: &Stat, name: &[u8]) {
        let (device, inode) = identity(folder);
        self.future.push((device, inode, Name(name.to_vec())));
    }

    /// A directory that a target is in.
    pub fn add_above(&mut self, folder: &OwnedFd) {
        let mut next = folder.try_clone().map_err(|_| Errno::MFILE);
        while let Ok((fd, stat)) = next.and_then(|fd| rustix::fs::fstat(&fd).map(|stat| (fd, stat))) {
            // Above the root there is the root again.
            if self.above.contains(&identity(&stat)) {
                break;
            }
            self.above.push(identity(&stat));
            next = rustix::fs::openat(&fd, "..", DIRECTORY, Mode::empty());
        }
    }

    /// Whether a directory is one that something is copied into, at whatever depth.
    pub fn is_above(&self, stat: &Stat) -> bool {
        self.is_same_host && self.above.contains(&identity(stat))
    }

    /// As the source has received it.
    pub fn received(mut self) -> Self {
        self.is_same_host = !self.boot.is_empty() && self.boot == boot();
        self
    }

    /// Whether that is a place to which something is copied.
    pub fn is_target(&self, stat: &Stat) -> bool {
        self.is_same_host && self.targets.contains(&identity(stat))
    }

    /// The names in that directory that are such places, and were not there at the beginning.
    pub fn future_in(&self, folder: &Stat) -> Vec<&[u8]> {
        let (device, inode) = identity(folder);
        let here = self.future.iter().filter(|future| future.0 == device && future.1 == inode);
        if self.is_same_host { here.map(|future| future.2.0.as_slice()).collect() } else { Vec::new() }
    }
}

fn identity(stat: &Stat) -> (u64, u64) {
    (stat.st_dev, stat.st_ino)
}

fn boot() -> String {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    id.trim().to_owned()
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
