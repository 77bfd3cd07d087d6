//! What each half of `caravan cp` is told, as one argument in JSON.

use serde::{Deserialize, Serialize};

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
