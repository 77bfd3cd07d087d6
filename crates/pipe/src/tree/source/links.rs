//! Files with several names: each is sent once.

use std::collections::HashMap;
use std::sync::Mutex;

use rustix::fs::Stat;

/// Files whose other names are still to come.
const FILES_MAX: usize = 1 << 20;

/// Those that were sent and have more names.
#[derive(Debug, Default)]
pub struct LinkedFiles(Mutex<HashMap<(u64, u64), FirstName>>);

#[derive(Debug)]
struct FirstName {
    root: u32,
    path: Vec<u8>,
    /// Names that were not found yet. They may be outside of what is copied.
    rest: u64,
}

/// What is to be done with a file that has several names.
#[derive(Debug, PartialEq, Eq)]
pub enum LinkClaim {
    /// It is the first one.
    First,
    /// It was sent under this name, below that source.
    Again(u32, Vec<u8>),
    /// There are too many to remember: it is sent again, and becomes a file of its own.
    Unknown,
}

impl LinkedFiles {
    /// Says which it is. Has to be called in the order in which files are sent.
    pub fn claim(&self, stat: &Stat, root: u32, path: impl FnOnce() -> Vec<u8>) -> LinkClaim {
        let mut files = self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let key = (stat.st_dev, stat.st_ino);
        if let Some(first) = files.get_mut(&key) {
            let (root, path) = (first.root, first.path.clone());
            first.rest = first.rest.saturating_sub(1);
            if first.rest == 0 {
                files.remove(&key);
            }
            return LinkClaim::Again(root, path);
        }
        if files.len() >= FILES_MAX {
            return LinkClaim::Unknown;
        }
        #[allow(clippy::useless_conversion, reason = "the field is narrower on some architectures")]
        let rest = u64::from(stat.st_nlink).saturating_sub(1);
        files.insert(key, FirstName { root, path: path(), rest });
        LinkClaim::First
    }

    /// The file could not be sent after all: its next name is the first.
    pub fn withdraw(&self, stat: &Stat) {
        let mut files = self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        files.remove(&(stat.st_dev, stat.st_ino));
    }
}
