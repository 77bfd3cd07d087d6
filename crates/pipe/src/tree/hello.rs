//! What the sink says first: what is there already, and where exactly it is.

use std::os::fd::OwnedFd;

use rustix::fs::{Mode, Stat};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::options::Name;
use super::trust::DIRECTORY;

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
