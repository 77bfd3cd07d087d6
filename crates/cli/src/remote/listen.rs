//! What comes from the other side before its program is ready, and then.

use std::io::{self, BufRead, BufReader, Read};
use std::process::{ChildStdin, ChildStdout};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;

use super::complaints::printable;

/// Bytes that a login shell may print before.
pub const GREETING_BYTES_MAX: u64 = 1 << 20;

/// What came from the other side.
pub enum Heard {
    /// A line with the mark.
    Line(String),
    /// All that comes now belongs to the program.
    Ready(BufReader<ChildStdout>),
    /// It ended, and why if there is a reason.
    End(Option<io::Error>),
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
    let end = loop {
        match next_line(&mut from, mark) {
            Ok(Some(line)) if line == "ready" => break Heard::Ready(from),
            Ok(Some(line)) => {
                if to.send(Heard::Line(line)).is_err() {
                    return;
                }
            }
            Ok(None) => break Heard::End(None),
            Err(error) if error.kind() == io::ErrorKind::FileTooLarge => break Heard::Noise,
            Err(error) => break Heard::End(Some(error)),
        }
    };
    // Nobody may want it any more.
    let _ = to.send(end);
}

/// What stands behind the mark in the next line that has it; `FileTooLarge` after too much else.
fn next_line(from: &mut impl BufRead, mark: &str) -> io::Result<Option<String>> {
    let mut left = GREETING_BYTES_MAX;
    while left > 0 {
        let mut line = Vec::new();
        let count = from.take(left).read_until(b'\n', &mut line)?;
        if count == 0 {
            return Ok(None);
        }
        left = left.saturating_sub(count as u64);
        // A greeting may lack the end of its line.
        let line = printable(&line);
        if let Some((_, said)) = line.split_once(mark) {
            return Ok(Some(said.trim_start().to_owned()));
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
        assert_eq!(next_line(&mut bytes, "caravan-x").expect("a line").as_deref(), Some("send"));
        assert_eq!(next_line(&mut bytes, "caravan-x").expect("a line").as_deref(), Some("ready"));
        assert_eq!(bytes, b"left");
        assert!(next_line(&mut bytes, "caravan-x").expect("an end").is_none());
    }

    #[test]
    fn greetings_without_end_are_noise() {
        for noise in [&b"y\n"[..], b"y"] {
            let noise = noise.repeat(1 << 20);
            let error = next_line(&mut &noise[..], "caravan-x").expect_err("too much");
            assert_eq!(error.kind(), io::ErrorKind::FileTooLarge);
        }
    }
}
