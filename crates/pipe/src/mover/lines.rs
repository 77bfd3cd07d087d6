//! Whole lines, each behind a prefix, to what others write to as well.

use std::fs::File;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, PoisonError};

use rustix::event::PollFlags;
use rustix::io::Errno;

use super::outlet::Halt;
use super::wait::WaitSet;
use crate::Error;
use crate::limits::LINE_BYTES_MAX;

/// Bytes that are written at once: a pipe that poll(2) says has room takes them without a wait.
const WRITE_BYTES: usize = 4096;

/// The outlet.
pub(super) struct LineOutlet {
    prefix: String,
    to: Arc<Mutex<File>>,
    /// The beginning of a line.
    line: Vec<u8>,
    /// Whole lines with their prefixes.
    whole: Vec<u8>,
}

impl LineOutlet {
    /// Nothing is written yet.
    pub fn new(prefix: String, to: Arc<Mutex<File>>) -> Self {
        Self { prefix, to, line: Vec::new(), whole: Vec::new() }
    }

    /// Writes all lines that end in there.
    pub fn put(&mut self, bytes: &[u8], waits: &WaitSet) -> Result<(), Halt> {
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            let (mut text, ends) = match part.strip_suffix(b"\n") {
                Some(text) => (text, true),
                None => (part, false),
            };
            while self.line.len() + text.len() > LINE_BYTES_MAX {
                let (now, later) = text.split_at(LINE_BYTES_MAX - self.line.len());
                self.line.extend_from_slice(now);
                text = later;
                self.end_line();
            }
            self.line.extend_from_slice(text);
            if ends {
                self.end_line();
            }
        }
        self.write(waits)
    }

    /// Writes what is left, as a line.
    pub fn finish(&mut self, waits: &WaitSet) -> Result<(), Halt> {
        if !self.line.is_empty() {
            self.end_line();
        }
        self.write(waits)
    }

    fn end_line(&mut self) {
        self.whole.extend_from_slice(self.prefix.as_bytes());
        self.whole.append(&mut self.line);
        self.whole.push(b'\n');
    }

    fn write(&mut self, waits: &WaitSet) -> Result<(), Halt> {
        if self.whole.is_empty() {
            return Ok(());
        }
        let to = self.to.lock().unwrap_or_else(PoisonError::into_inner);
        let mut left = &self.whole[..];
        while !left.is_empty() {
            waits.wait(Some((to.as_fd(), PollFlags::OUT)), None, None)?;
            match rustix::io::write(&*to, &left[..left.len().min(WRITE_BYTES)]) {
                Ok(bytes) => left = left.get(bytes..).unwrap_or_default(),
                Err(Errno::INTR | Errno::AGAIN) => {}
                Err(Errno::PIPE) => return Err(Halt::Stopped),
                Err(error) => return Err(Error::System { call: "write", source: error.into() }.into()),
            }
        }
        self.whole.clear();
        Ok(())
    }
}
