//! The one program: what both sides do, as the settings say.

use std::os::unix::fs::FileExt;
use std::time::Instant;

use serde::{Deserialize, Serialize};

use super::plan::{Messages, Program, Sink, Source};
use super::wire::{Buffer, Wire, failed};
use crate::error::Error;
use crate::pipe::input::{Input, word};

/// Bytes of the file read at once for its digest.
const CHUNK_BYTES: usize = 1 << 20;

/// A sample.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Task {
    pub program: Program,
    pub bytes: u64,
    /// Bytes of the file, which is read from its start again after its end: a multiple of every message's.
    pub file_bytes: u64,
    /// Not measured: the receiving side takes the digest of all that came.
    pub is_check: bool,
}

/// The sending side: nanoseconds until the last acknowledgement.
pub fn send(wire: &mut dyn Wire, task: &Task, messages: &Messages, input: &Input) -> Result<f64, Error> {
    let Messages { message_bytes: bytes, ack_bytes, ack_every, buffers, source, .. } = *messages;
    // Read into one while the other is under way.
    let own = if source == Source::FileAhead { buffers.max(2) } else { buffers };
    let buffer = |n: u64| Buffer { number: (n % own as u64) as usize, bytes };
    let fill =
        |wire: &mut dyn Wire, n: u64| wire.fill(buffer(n), input.file(), n * bytes as u64 % task.file_bytes);
    if source == Source::Buffer {
        for n in 0..own {
            wire.fill(Buffer { number: n, bytes }, input.file(), 0)?;
        }
    }
    let start = Instant::now();
    if source == Source::FileAhead {
        fill(wire, 0)?;
    }
    let count = messages.count(task.bytes);
    let mut acknowledged = 0;
    for n in 0..count {
        while n - acknowledged >= buffers as u64 {
            wire.await_acknowledgement(ack_bytes)?;
            acknowledged += ack_every as u64;
        }
        if source == Source::File {
            fill(wire, n)?;
        }
        wire.send(buffer(n))?;
        if source == Source::FileAhead && n + 1 < count {
            fill(wire, n + 1)?;
        }
    }
    while acknowledged < count {
        wire.await_acknowledgement(ack_bytes)?;
        acknowledged += ack_every as u64;
    }
    Ok(start.elapsed().as_nanos() as f64)
}

/// The receiving side.
pub fn receive(
    wire: &mut dyn Wire,
    task: &Task,
    messages: &Messages,
    output: &mut Output,
) -> Result<(), Error> {
    let Messages { message_bytes: bytes, ack_bytes, ack_every, buffers, sink, source } = *messages;
    for n in 0..messages.count(task.bytes) {
        let buffer = Buffer { number: (n % buffers as u64) as usize, bytes };
        wire.receive(buffer)?;
        if sink == Sink::Copy || task.is_check {
            let position = if source == Source::Buffer { 0 } else { n * bytes as u64 };
            output.take(position, bytes, |to| {
                wire.copy_out(buffer, to);
                Ok(())
            })?;
        }
        if (n + 1) % ack_every as u64 == 0 {
            wire.acknowledge(ack_bytes)?;
        }
    }
    Ok(())
}

/// What the receiving side copies into, as a program would that reads a pipe.
pub struct Output {
    buffer: Vec<u8>,
    file_bytes: u64,
    digest: Option<digest::digest::Context>,
}

impl Output {
    pub fn of(task: &Task, bytes: usize) -> Self {
        let digest = task.is_check.then(|| digest::digest::Context::new(&digest::digest::SHA256));
        Self { buffer: vec![0; bytes], file_bytes: task.file_bytes, digest }
    }

    /// Takes bytes of the stream from `position` on, and sees whether their first word is of that place.
    pub fn take(
        &mut self,
        position: u64,
        bytes: usize,
        copy: impl FnOnce(&mut [u8]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let buffer = self.buffer.get_mut(..bytes).ok_or_else(|| failed(&"more came than fits"))?;
        copy(buffer)?;
        let place = position % self.file_bytes;
        match buffer.first_chunk() {
            Some(first) if place % 8 == 0 && u64::from_le_bytes(*first) != word(place) => {
                return Err(failed(&format!("the bytes from {position} on are others than were sent")));
            }
            _ => {}
        }
        if let Some(digest) = &mut self.digest {
            digest.update(buffer);
        }
        Ok(())
    }

    /// Of all that came, if it was taken.
    pub fn digest(self) -> Option<Vec<u8>> {
        self.digest.map(|digest| digest.finish().as_ref().to_vec())
    }
}

/// Of all that must come.
pub fn expected_digest(task: &Task, bytes: u64, input: &Input) -> Result<Vec<u8>, Error> {
    let repeated = match task.program {
        Program::Messages(Messages { source: Source::Buffer, message_bytes, .. }) => message_bytes as u64,
        _ => task.file_bytes,
    };
    let mut digest = digest::digest::Context::new(&digest::digest::SHA256);
    let mut chunk = vec![0; CHUNK_BYTES];
    let mut position = 0;
    while position < bytes {
        let place = position % repeated;
        let length = (bytes - position).min(repeated - place).min(CHUNK_BYTES as u64) as usize;
        let part = chunk.get_mut(..length).unwrap_or_default();
        input.file().read_exact_at(part, place).map_err(|why| failed(&why))?;
        digest.update(part);
        position += length as u64;
    }
    Ok(digest.finish().as_ref().to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TASK: Task = Task { program: Program::Stream, bytes: 4096, file_bytes: 4096, is_check: true };

    /// Bytes of the file from `position` on.
    fn bytes(position: u64) -> Vec<u8> {
        (position..position + 2048).step_by(8).flat_map(|place| word(place).to_le_bytes()).collect()
    }

    #[test]
    fn a_digest_is_of_all_that_came_and_of_nothing_else() {
        let input = Input::create(4096).expect("made");
        let expected = expected_digest(&TASK, 4096, &input).expect("read");
        let came = |second: Vec<u8>| {
            let mut output = Output::of(&TASK, 2048);
            for (position, bytes) in [(0, bytes(0)), (2048, second)] {
                let copy = |to: &mut [u8]| {
                    to.copy_from_slice(&bytes);
                    Ok(())
                };
                output.take(position, 2048, copy).expect("taken");
            }
            output.digest().expect("a digest")
        };
        assert_eq!(came(bytes(2048)), expected);
        let mut flipped = bytes(2048);
        flipped[1000] ^= 1;
        assert_ne!(came(flipped), expected);
    }

    #[test]
    fn a_message_that_is_not_the_next_one_is_seen_without_a_digest() {
        let mut output = Output::of(&Task { is_check: false, ..TASK }, 2048);
        let stale = |to: &mut [u8]| {
            to.copy_from_slice(&bytes(0));
            Ok(())
        };
        output.take(0, 2048, stale).expect("the first");
        let error = output.take(2048, 2048, stale).expect_err("the first again");
        assert!(error.to_string().contains("the bytes from 2048 on are others"), "{error}");
        // The file begins again.
        output.take(4096, 2048, stale).expect("the first of the next turn");
    }
}
