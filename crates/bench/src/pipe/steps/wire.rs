//! What messages and acknowledgements go over: buffers at both sides, and the way between them.

use std::fs::File;
use std::time::{Duration, Instant};

use crate::error::Error;

/// Many times what a sample takes.
const SAMPLE_LIMIT: Duration = Duration::from_secs(100);

/// One side of it. Each side has as many buffers as there are messages under way; message n goes from buffer n
/// to buffer n of the other side, modulo their number.
pub trait Wire {
    /// Reads bytes of the file into a buffer for sending, once what was sent from there before has left it.
    fn fill(&mut self, buffer: Buffer, file: &File, at: u64) -> Result<(), Error>;
    /// Sends a buffer.
    fn send(&mut self, buffer: Buffer) -> Result<(), Error>;
    /// Waits until the message has come into the buffer.
    fn receive(&mut self, buffer: Buffer) -> Result<(), Error>;
    /// Copies a message out of the buffer.
    fn copy_out(&self, buffer: Buffer, to: &mut [u8]);
    /// Sends an acknowledgement of so many bytes.
    fn acknowledge(&mut self, bytes: usize) -> Result<(), Error>;
    /// Waits for one.
    fn await_acknowledgement(&mut self, bytes: usize) -> Result<(), Error>;
}

/// A buffer for a message.
#[derive(Clone, Copy, Debug)]
pub struct Buffer {
    pub number: usize,
    pub bytes: usize,
}

impl Buffer {
    /// Where it begins: the buffers of a step lie one behind the other.
    pub fn offset(self) -> usize {
        self.number * self.bytes
    }
}

/// Waiting with an end.
#[derive(Debug)]
pub struct Deadline(Instant);

impl Deadline {
    pub fn new() -> Self {
        Self(Instant::now() + SAMPLE_LIMIT)
    }

    pub fn check(&self) -> Result<(), Error> {
        match Instant::now() < self.0 {
            true => Ok(()),
            false => Err(Error::BenchSlow(SAMPLE_LIMIT.as_secs())),
        }
    }
}

/// A failure of the wire itself.
pub fn failed(why: &dyn std::fmt::Display) -> Error {
    Error::BenchProcess { process: "pipe", reason: why.to_string() }
}
