//! What goes wrong with single files: said on standard error, a bounded number of times, and counted.

use std::fmt::Write as _;
use std::io::Write as _;
use std::sync::Mutex;

use crate::Error;

/// Lines that are of use to somebody; a full disk fails a million files in the same way.
const LINES_MAX: u64 = 50;

/// Of one half of a copy.
#[derive(Debug, Default)]
pub struct FileComplaints(Mutex<ComplaintCounts>);

#[derive(Debug, Default)]
struct ComplaintCounts {
    said: u64,
    unsaid: u64,
    failed: u64,
}

impl FileComplaints {
    /// A file could not be copied.
    pub fn fail(&self, sentence: &str) {
        self.count(sentence, 1);
    }

    /// More of what was said already.
    pub fn fail_silently(&self) {
        let mut counts = self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        counts.failed += 1;
    }

    /// Something that users should know, although nothing failed.
    pub fn warn(&self, sentence: &str) {
        self.count(sentence, 0);
    }

    /// Says how many lines were held back. An error if any file failed.
    pub fn finish(&self) -> Result<(), Error> {
        let counts = self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if counts.unsaid > 0 {
            say(&format!("and {} more of this kind", counts.unsaid));
        }
        if counts.failed == 0 { Ok(()) } else { Err(Error::Files(counts.failed)) }
    }

    /// How many files have failed.
    pub fn failed(&self) -> u64 {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).failed
    }

    fn count(&self, sentence: &str, failed: u64) {
        let mut counts = self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        counts.failed += failed;
        if counts.said == LINES_MAX {
            counts.unsaid += 1;
            return;
        }
        counts.said += 1;
        say(sentence);
    }
}

/// A line on standard error, which may be closed: then there is nobody to tell.
pub fn say(sentence: &str) {
    let _ = writeln!(std::io::stderr().lock(), "caravan: {sentence}");
}

/// A path for people: what could move the cursor of a terminal, or end the line, is escaped.
pub fn shown(path: &[u8]) -> String {
    let mut text = String::new();
    for chunk in path.utf8_chunks() {
        for letter in chunk.valid().chars() {
            if letter.is_control() { text.extend(letter.escape_default()) } else { text.push(letter) }
        }
        for byte in chunk.invalid() {
            // Writing to a String cannot fail.
            let _ = write!(text, "\\x{byte:02x}");
        }
    }
    text
}

/// A directory's path and a name in it, for people.
pub fn shown_in(folder: &[u8], name: &[u8]) -> String {
    match (folder, name) {
        (b"", name) => shown(name),
        (folder, b"") => shown(folder),
        (folder, name) if folder.ends_with(b"/") => shown(folder) + &shown(name),
        (folder, name) => format!("{}/{}", shown(folder), shown(name)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_forge_lines_or_move_the_cursor() {
        assert_eq!(shown(b"a\nb\x1b[2J\xff\xc3\xa4"), "a\\nb\\u{1b}[2J\\xff\u{e4}");
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
