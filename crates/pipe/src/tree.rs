//! Trees of files as a stream: the two halves of `caravan cp`, which are commands of a pipeline.
//!
//! The sink first says on its standard output what it has already; the source reads that, and sends the rest. Both
//! run as this program, with their options as one argument in JSON. [`mod@format`] is the stream.
//!
//! **The source** has one thread that walks the tree and cuts it into batches, several threads that read a batch
//! each, and one thread that writes the frames in the order of the batches. So the stream has the order of the
//! walk, whichever reader is faster.
//!
//! **The sink** makes directories as it reads of them. Several threads write small files, which travel whole; one
//! thread writes large files in their order, so that a cut stream leaves a prefix that can be resumed. Steps that
//! depend on earlier frames (links to files, permissions and times of directories) wait until all earlier frames
//! are done.
//!
//! The sink does not trust the source: a path is a sequence of plain names below one of the sink's targets, and the
//! sink opens it without following a symbolic link anywhere in it.

mod attributes;
pub mod format;
pub mod options;
pub mod records;
mod sink;
mod source;
pub mod trust;
mod walk;

use std::io::{Read, Write};
use std::sync::Mutex;

use caravan_segment::printable;
use twox_hash::XxHash3_128;

pub use self::attributes::Attributes;
use self::format::{FRAME_BYTES_MAX, HEADER_BYTES};
use self::records::NAME_BYTES_MAX;
use crate::{Error, lock};

const PART: &[u8] = b".part";

/// Sends trees. `options` is a [`options::SourceOptions`] as JSON.
pub fn source(options: &str, have: impl Read + Send, data: impl Write + Send) -> Result<(), Error> {
    source::run(options, have, data)
}

/// Receives trees. `options` is a [`options::SinkOptions`] as JSON.
pub fn sink(options: &str, data: impl Read + Send, have: impl Write + Send) -> Result<(), Error> {
    sink::run(options, data, have)
}

/// Returns the name of a file until it is complete: `.NAME.part`. A name that is too long for that is cut, and ends
/// with a digest of the rest.
fn part_name(name: &[u8]) -> Vec<u8> {
    if name.len() + 1 + PART.len() <= NAME_BYTES_MAX {
        return [b".", name, PART].concat();
    }
    let digest = format!(".{:016x}", XxHash3_128::oneshot(name) as u64);
    let kept = NAME_BYTES_MAX - 1 - digest.len() - PART.len();
    [b".", name.get(..kept).unwrap_or(name), digest.as_bytes(), PART].concat()
}

/// Buffers that are kept for reuse.
#[derive(Debug)]
pub struct Buffers {
    free: Mutex<Vec<Vec<u8>>>,
    kept_max: usize,
}

impl Buffers {
    /// Returns a pool that keeps at most `kept_max` buffers.
    pub fn new(kept_max: usize) -> Self {
        Self { free: Mutex::new(Vec::new()), kept_max }
    }

    /// Returns a buffer with room for a frame. Its content is arbitrary.
    pub fn take(&self) -> Vec<u8> {
        let free = lock(&self.free).pop();
        free.unwrap_or_else(|| Vec::with_capacity(HEADER_BYTES + FRAME_BYTES_MAX))
    }

    /// Takes back a buffer that is no longer needed.
    pub fn give_back(&self, buffer: Vec<u8>) {
        if buffer.capacity() < HEADER_BYTES + FRAME_BYTES_MAX {
            return;
        }
        let mut free = lock(&self.free);
        if free.len() < self.kept_max {
            free.push(buffer);
        }
    }
}

/// The most complaints that are printed: a full disk fails a million files in the same way.
const LINES_MAX: u64 = 50;

/// Complaints about single files in one half of a copy.
#[derive(Debug, Default)]
pub struct FileComplaints(Mutex<ComplaintCounts>);

#[derive(Debug, Default)]
struct ComplaintCounts {
    said: u64,
    unsaid: u64,
    failed: u64,
}

impl FileComplaints {
    /// Reports a file that could not be copied.
    pub fn fail(&self, sentence: &str) {
        self.count(sentence, 1);
    }

    /// Counts a failure whose cause was already reported.
    pub fn fail_silently(&self) {
        let mut counts = lock(&self.0);
        counts.failed += 1;
    }

    /// Reports something that users should know, although nothing failed.
    pub fn warn(&self, sentence: &str) {
        self.count(sentence, 0);
    }

    /// Prints how many lines were held back. Fails if any file failed.
    pub fn finish(&self) -> Result<(), Error> {
        let counts = lock(&self.0);
        if counts.unsaid > 0 {
            say(&format!("and {} more of this kind", counts.unsaid));
        }
        if counts.failed == 0 { Ok(()) } else { Err(Error::Files(counts.failed)) }
    }

    /// Returns the number of files that failed.
    pub fn failed(&self) -> u64 {
        lock(&self.0).failed
    }

    fn count(&self, sentence: &str, failed: u64) {
        let mut counts = lock(&self.0);
        counts.failed += failed;
        if counts.said == LINES_MAX {
            counts.unsaid += 1;
            return;
        }
        counts.said += 1;
        say(sentence);
    }
}

/// Prints a line on standard error. Ignores errors, because nobody could be told of them.
pub fn say(sentence: &str) {
    let _ = writeln!(std::io::stderr().lock(), "caravan: {sentence}");
}

/// Returns the path of a name in a directory, for messages.
pub fn shown_in(folder: &[u8], name: &[u8]) -> String {
    match (folder, name) {
        (b"", name) => printable(name),
        (folder, b"") => printable(folder),
        (folder, name) if folder.ends_with(b"/") => printable(folder) + &printable(name),
        (folder, name) => format!("{}/{}", printable(folder), printable(name)),
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

    #[test]
    fn names_cannot_forge_lines_or_move_the_cursor() {
        assert_eq!(printable(b"a\nb\x1b[2J\xff\xc3\xa4"), "a\\nb\\u{1b}[2J\\xff\u{e4}");
        assert_eq!(shown_in(b"dir", b"x"), "dir/x");
        assert_eq!(shown_in(b"/", b"x"), "/x");
        assert_eq!(shown_in(b"", b"x"), "x");
    }

    #[test]
    fn failures_are_counted_beyond_the_lines_that_are_said() {
        let complaints = FileComplaints::default();
        complaints.warn("only a word of warning, by a test");
        complaints.finish().expect("nothing failed");
        (0..LINES_MAX * 2).for_each(|_| complaints.fail("one of many failures, by a test"));
        assert_eq!(complaints.failed(), LINES_MAX * 2);
        assert!(complaints.finish().expect_err("failed").to_string().contains("100 "));
    }
}
