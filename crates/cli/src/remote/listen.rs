//! What comes from the other side before its program is ready, and then.

use std::io::{self, BufRead, BufReader, Read};
use std::process::{ChildStdin, ChildStdout};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;

use caravan_segment::printable;

/// Bytes that a login shell may print before.
pub const GREETING_BYTES_MAX: u64 = 1 << 20;
/// What is kept of a line: more is none that anybody reads.
const LINE_CHARS_MAX: usize = 1 << 10;

/// What came from the other side.
pub enum Heard {
    /// A line with the mark.
    Line(String),
    /// All that comes now belongs to the program.
    Ready(BufReader<ChildStdout>),
    /// It ended, why if there is a reason, and the last line that it said without the mark.
    End(Option<io::Error>, String),
    /// It printed too much.
    Noise,
    /// This side has written what it was asked for.
    Written(ChildStdin),
    Piece,
}

/// What the other side says.
#[derive(Debug)]
pub struct Answers {
    pub from: BufReader<ChildStdout>,
    /// Set at its end.
    pub is_over: Arc<AtomicBool>,
}

impl Read for Answers {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = self.from.read(into)?;
        if count == 0 && !into.is_empty() {
            // Alone: whoever reads it only wants to know whether it was ever set.
            self.is_over.store(true, Ordering::Relaxed);
        }
        Ok(count)
    }
}

/// Lines with the mark, up to the one that says "ready".
pub fn listen(mut from: BufReader<ChildStdout>, mark: &str, to: &Sender<Heard>) {
    let mut last = String::new();
    let end = loop {
        match next_line(&mut from, mark, &mut last) {
            Ok(Some(line)) if line == "ready" => break Heard::Ready(from),
            Ok(Some(line)) => {
                if to.send(Heard::Line(line)).is_err() {
                    return;
                }
            }
            Ok(None) => break Heard::End(None, last),
            Err(error) if error.kind() == io::ErrorKind::FileTooLarge => break Heard::Noise,
            Err(error) => break Heard::End(Some(error), last),
        }
    };
    // Nobody may want it any more.
    let _ = to.send(end);
}

/// What stands behind the mark in the next line that has it; `FileTooLarge` after too much else, of which
/// the last line is kept.
fn next_line(from: &mut impl BufRead, mark: &str, last: &mut String) -> io::Result<Option<String>> {
    let mut left = GREETING_BYTES_MAX;
    while left > 0 {
        let mut line = Vec::new();
        let count = from.take(left).read_until(b'\n', &mut line)?;
        if count == 0 {
            return Ok(None);
        }
        left = left.saturating_sub(count as u64);
        let line = printable(line.trim_ascii_end());
        // A greeting may lack the end of its line.
        match line.split_once(mark) {
            Some((_, said)) => return Ok(Some(said.trim_start().chars().take(LINE_CHARS_MAX).collect())),
            None if line.is_empty() => {}
            None => *last = line.chars().take(LINE_CHARS_MAX).collect(),
        }
    }
    Err(io::ErrorKind::FileTooLarge.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn greetings_are_skipped() {
        let mut bytes =
            &b"Welcome\nhere\n\xff\x1b[1mcaravan-x send\r\nx\nno newline: caravan-x ready\nleft"[..];
        let mut last = String::new();
        let mut next = || next_line(&mut bytes, "caravan-x", &mut last).expect("no error");
        assert_eq!((next().as_deref(), next().as_deref(), next()), (Some("send"), Some("ready"), None));
        assert_eq!((bytes, last.as_str()), (&b""[..], "left"));
    }

    #[test]
    fn greetings_without_end_are_noise() {
        for noise in [&b"y\n"[..], b"y"] {
            let noise = noise.repeat(1 << 20);
            let error = next_line(&mut &noise[..], "caravan-x", &mut String::new()).expect_err("too much");
            assert_eq!(error.kind(), io::ErrorKind::FileTooLarge);
        }
    }
}
