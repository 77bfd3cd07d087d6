//! Trees of files as a stream: the two halves of `caravan cp`, which are commands of a pipeline.
//!
//! The sink first says what is there already, on its standard output; the source reads that, and sends
//! the rest. Both run as this program, with their options as one argument in JSON. [`mod@format`] is the stream.
//!
//! **The source** has a thread that walks and cuts what it finds into batches, several that read a batch
//! each, and one that writes their frames in the order of the batches. So the stream has the order of the
//! walk, whoever was faster.
//!
//! **The sink** makes directories as it reads of them. Several threads write small files, which travel
//! whole; one writes large files, in their order, so that what is cut off is a prefix and can be resumed.
//! What must come after all that was sent before (names of files that are there by then, permissions and
//! times of directories) waits until all earlier frames are done.
//!
//! The sink trusts nobody: a path is a row of plain names below one of its targets, and is opened without
//! following a symbolic link anywhere in it.

mod attributes;
mod batch;
mod buffers;
mod complaints;
pub mod format;
mod hello;
pub mod options;
mod parser;
pub mod records;
mod sink;
mod source;
pub mod trust;
mod walk;

use std::io::{Read, Write};

use rustix::process::{Resource, Rlimit};
use twox_hash::XxHash3_128;

pub use self::attributes::Attributes;
use self::records::NAME_BYTES_MAX;
use crate::Error;

const PART: &[u8] = b".part";

/// Sends trees. `options` are [`options::SourceOptions`] as JSON.
pub fn source(options: &str, have: impl Read + Send, data: impl Write + Send) -> Result<(), Error> {
    source::run(options, have, data)
}

/// Takes trees. `options` are [`options::SinkOptions`] as JSON.
pub fn sink(options: &str, data: impl Read + Send, have: impl Write + Send) -> Result<(), Error> {
    sink::run(options, data, have)
}

/// What a file is called until it is complete: `.NAME.part`. A name that is too long for that is cut, and
/// has a digest of the rest.
fn part_name(name: &[u8]) -> Vec<u8> {
    if name.len() + 1 + PART.len() <= NAME_BYTES_MAX {
        return [b".", name, PART].concat();
    }
    let digest = format!(".{:016x}", XxHash3_128::oneshot(name) as u64);
    let kept = NAME_BYTES_MAX - 1 - digest.len() - PART.len();
    [b".", name.get(..kept).unwrap_or(name), digest.as_bytes(), PART].concat()
}

/// Lets this process have more descriptors, as far as the system permits without asking.
fn allow_descriptors(wanted: u64) {
    let limit = rustix::process::getrlimit(Resource::Nofile);
    let allowed = limit.maximum.map_or(wanted, |maximum| maximum.min(wanted));
    if limit.current.is_some_and(|current| current < allowed) {
        let wider = Rlimit { current: Some(allowed), maximum: limit.maximum };
        // Then it goes on with what there is; a directory that cannot be opened is said.
        let _ = rustix::process::setrlimit(Resource::Nofile, wider);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_parts_fit_and_differ() {
        assert_eq!(part_name(b"film.mkv"), b".film.mkv.part");
        let (a, b) = (part_name(&[b'x'; 255]), part_name(&[[b'x'; 254].as_slice(), b"y"].concat()));
        assert_eq!((a.len(), b.len()), (NAME_BYTES_MAX, NAME_BYTES_MAX));
        assert_ne!(a, b);
        assert_eq!(part_name(&[b'x'; 249]).len(), NAME_BYTES_MAX);
    }
}
