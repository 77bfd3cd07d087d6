//! Lines for people or programs, from a process that must not wait for them: a terminal that is held up
//! (Ctrl-S) or a pipe that nobody reads keeps lines, not the engine.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::error::Error;

/// Bytes that a pipe which has room takes without waiting: PIPE_BUF, pipe(7).
const CHUNK_BYTES: usize = 4096;
/// Bytes that wait for their reader. More are left out, the oldest first, and it is told how many lines.
const WAITING_BYTES_MAX: usize = 256 << 10;
/// How long the last lines may take.
const LAST_MAX: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// Where lines go.
#[derive(Debug)]
pub struct Outlet {
    file: OwnedFd,
    waiting: VecDeque<Vec<u8>>,
    bytes: usize,
    left_out: u64,
    /// What tells how many lines were left out.
    gap: fn(u64) -> String,
}

impl Outlet {
    /// To an open file, such as standard error.
    pub fn new(file: impl AsFd, gap: fn(u64) -> String) -> Result<Self, Error> {
        let file = file.as_fd().try_clone_to_owned().map_err(Error::Output)?;
        Ok(Self { file, waiting: VecDeque::new(), bytes: 0, left_out: 0, gap })
    }

    /// The file, while it should be written to.
    pub fn wants(&self) -> Option<BorrowedFd<'_>> {
        (!self.waiting.is_empty()).then(|| self.file.as_fd())
    }

    /// Adds a line, and writes what can be written now. An error if there is no reader any more.
    pub fn say(&mut self, line: &str) -> Result<(), Error> {
        if self.left_out > 0 && self.bytes < WAITING_BYTES_MAX / 2 {
            let gap = (self.gap)(std::mem::take(&mut self.left_out));
            self.add(&gap);
        }
        self.add(line);
        self.write()
    }

    fn add(&mut self, line: &str) {
        let line = format!("{line}\n").into_bytes();
        self.bytes += line.len();
        self.waiting.push_back(line);
        // The first may have been written in part.
        while self.bytes > WAITING_BYTES_MAX && self.waiting.len() > 2 {
            self.bytes -= self.waiting.remove(1).map_or(0, |line| line.len());
            self.left_out += 1;
        }
    }

    /// Writes what can be written now.
    pub fn write(&mut self) -> Result<(), Error> {
        self.write_within(&Timespec::default())
    }

    /// Writes what is left, as long as it is read.
    pub fn finish(mut self) -> Result<(), Error> {
        if self.left_out > 0 {
            let gap = (self.gap)(self.left_out);
            self.add(&gap);
        }
        self.write_within(&LAST_MAX)
    }

    fn write_within(&mut self, wait: &Timespec) -> Result<(), Error> {
        while let Some(line) = self.waiting.front_mut() {
            let mut ready = [PollFd::new(&self.file, PollFlags::OUT)];
            match poll(&mut ready, Some(wait)) {
                Ok(0) => return Ok(()),
                Ok(_) => {}
                Err(Errno::INTR) => continue,
                Err(error) => return Err(Error::Output(error.into())),
            }
            let chunk = line.len().min(CHUNK_BYTES);
            match rustix::io::write(&self.file, &line[..chunk]) {
                Ok(written) => {
                    self.bytes -= written;
                    line.drain(..written);
                    if line.is_empty() {
                        self.waiting.pop_front();
                    }
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(()),
                Err(error) => return Err(Error::Output(error.into())),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{ErrorKind, Read};

    use rustix::pipe::pipe;

    use super::*;

    fn gap(lines: u64) -> String {
        format!("({lines} lines left out)")
    }

    #[test]
    fn a_reader_that_does_not_read_holds_up_nobody() {
        let (reader, writer) = pipe().expect("a pipe");
        let mut outlet = Outlet::new(&writer, gap).expect("a copy");
        drop(writer);
        outlet.say("first").expect("written");
        let line = "x".repeat(999);
        // Far more than a pipe and the outlet hold together; a write that waited would never end.
        for _ in 0..2000 {
            outlet.say(&line).expect("kept");
        }
        assert!(outlet.bytes <= WAITING_BYTES_MAX && outlet.wants().is_some());
        let read = std::thread::spawn(move || {
            let mut text = String::new();
            File::from(reader).read_to_string(&mut text).map(|_| text)
        });
        outlet.finish().expect("written");
        let text = read.join().expect("ended").expect("read");
        let lines: Vec<_> = text.lines().collect();
        let told = lines.last().and_then(|last| last.strip_prefix('(')?.split(' ').next()?.parse().ok());
        assert_eq!(lines[0], "first");
        assert!(lines[1..lines.len() - 1].iter().all(|found| **found == line));
        assert_eq!(told, Some(2001 - (lines.len() - 1)), "{:?}", lines.last());
    }

    #[test]
    fn a_reader_that_has_gone_is_an_error() {
        let (reader, writer) = pipe().expect("a pipe");
        let mut outlet = Outlet::new(&writer, gap).expect("a copy");
        drop(reader);
        let Err(Error::Output(error)) = outlet.say("line") else { panic!("no error") };
        assert_eq!(error.kind(), ErrorKind::BrokenPipe);
    }
}
