//! A named pipe as the place where packets go: never waited for, and open only while somebody reads it.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags, open};
use rustix::io::{Errno, write};

#[derive(Debug)]
pub struct PcapPipe {
    path: PathBuf,
    end: Option<OwnedFd>,
}

impl PcapPipe {
    pub fn new(path: &Path) -> Self {
        Self { path: path.to_owned(), end: None }
    }

    /// Whether somebody reads it, as far as is known.
    pub fn is_open(&self) -> bool {
        self.end.is_some()
    }

    /// Writes as much of `bytes` as the pipe takes now, and takes that out. Where nobody reads the pipe (any
    /// more), that is the error (ENXIO, EPIPE).
    pub fn write(&mut self, bytes: &mut Vec<u8>) -> io::Result<()> {
        let end = match self.end.take() {
            Some(end) => end,
            None => open(&self.path, OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty())?,
        };
        let mut written = 0;
        while written < bytes.len() {
            match write(&end, &bytes[written..]) {
                Ok(count) => written += count,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(error) => return Err(error.into()),
            }
        }
        bytes.drain(..written);
        self.end = Some(end);
        Ok(())
    }

    /// Waits until the pipe takes more, or its reader is gone, or `limit` has passed.
    pub fn wait(&self, limit: Duration) {
        let Some(end) = &self.end else { return };
        let until = Instant::now() + limit;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let left = Timespec::try_from(left).unwrap_or_default();
            if poll(&mut [PollFd::new(end, PollFlags::OUT)], Some(&left)) != Err(Errno::INTR) {
                return;
            }
        }
    }
}
