//! What a receiver says to its sender, and how the sender hears it.

use std::io::IoSlice;
use std::time::Instant;

use super::frame::{FrameHeader, FrameKind, HEADER_BYTES, TAG_BYTES, WORD_BYTES_MAX, sentence};
use super::seal::Seal;
use super::wait::{WaitSet, Woken};
use super::wire::{CLOSED, HopWire, Want};
use crate::Error;

/// Reads in a row: a receiver that never ends to say that it is alive is not listened to for ever.
const READS_MAX: usize = 16;

/// What the receiver has said last: nothing follows it.
#[derive(Debug)]
pub(super) enum LastWord {
    /// Nobody wants the rest.
    Stop,
    /// All of it, so many bytes, is where it belongs.
    Done(u64),
    /// It cannot go there.
    Failed(String),
    /// Nothing: its connection is gone.
    Cut(String),
    /// Nothing that makes sense.
    Bad(Error),
}

/// The receiver's mouth.
pub(super) struct BackwardWriter {
    seal: Option<Seal>,
    unsent: Vec<u8>,
}

impl BackwardWriter {
    /// One that has said nothing.
    pub fn new(seal: Option<Seal>) -> Self {
        Self { seal, unsent: Vec::new() }
    }

    /// Says that it is alive, unless there is no room for that now.
    pub fn say_alive(&mut self, wire: &mut dyn HopWire) -> Result<(), Error> {
        if self.unsent.is_empty() {
            self.add(FrameKind::Alive, &[])?;
        }
        self.flush(wire).map(drop)
    }

    /// Says its last word. Waits until a time at most.
    pub fn say_last(
        &mut self,
        wire: &mut dyn HopWire,
        (kind, payload): (FrameKind, &[u8]),
        waits: &WaitSet,
        until: Instant,
    ) -> Result<(), Error> {
        self.add(kind, payload)?;
        while !self.flush(wire)? {
            if wire.wait(0, Want::Write, None, waits, Some(until))? == Woken::Late {
                break;
            }
        }
        Ok(())
    }

    fn add(&mut self, kind: FrameKind, payload: &[u8]) -> Result<(), Error> {
        let header = FrameHeader::plain(kind, payload.len()).encode();
        let mut payload = payload.to_vec();
        let tag = self.seal.as_mut().map(|seal| seal.seal(&header, &mut payload)).transpose()?;
        self.unsent.extend_from_slice(&header);
        self.unsent.extend_from_slice(&payload);
        self.unsent.extend(tag.into_iter().flatten());
        Ok(())
    }

    /// Whether all is sent.
    fn flush(&mut self, wire: &mut dyn HopWire) -> Result<bool, Error> {
        while !self.unsent.is_empty() {
            match wire.write(0, &[IoSlice::new(&self.unsent)]) {
                Ok(Some(sent)) => drop(self.unsent.drain(..sent.min(self.unsent.len()))),
                Ok(None) => return Ok(false),
                Err(why) => return Err(Error::Truncated { bytes: 0, why }),
            }
        }
        Ok(true)
    }
}

/// The sender's ear.
pub(super) struct BackwardReader {
    seal: Option<Seal>,
    /// A frame, or the beginning of one.
    heard: Vec<u8>,
    /// When anything came last.
    pub heard_at: Instant,
}

impl BackwardReader {
    /// One that has heard nothing.
    pub fn new(seal: Option<Seal>) -> Self {
        Self { seal, heard: Vec::new(), heard_at: Instant::now() }
    }

    /// Listens to what is there: the last word, if it is among it.
    pub fn listen(&mut self, wire: &mut dyn HopWire) -> Option<LastWord> {
        let mut buffer = [0; HEADER_BYTES + WORD_BYTES_MAX + TAG_BYTES];
        for _ in 0..READS_MAX {
            match wire.read(0, &mut buffer) {
                Ok(None) => return None,
                Ok(Some(0)) => return Some(LastWord::Cut(CLOSED.into())),
                Ok(Some(bytes)) => {
                    self.heard_at = Instant::now();
                    self.heard.extend_from_slice(&buffer[..bytes.min(buffer.len())]);
                }
                Err(why) => return Some(LastWord::Cut(why)),
            }
            match self.parse() {
                Ok(None) => {}
                Ok(Some(word)) => return Some(word),
                Err(error) => return Some(LastWord::Bad(error)),
            }
        }
        None
    }

    /// Takes all whole frames out of what was heard.
    fn parse(&mut self) -> Result<Option<LastWord>, Error> {
        loop {
            let Some((head, rest)) = self.heard.split_first_chunk_mut::<HEADER_BYTES>() else {
                return Ok(None);
            };
            let header = FrameHeader::decode(head, None).map_err(|why| broken(why, self.seal.is_some()))?;
            let tag_bytes = if self.seal.is_some() { TAG_BYTES } else { 0 };
            let Some((frame, _)) = rest.split_at_mut_checked(header.length + tag_bytes) else {
                return Ok(None);
            };
            let (payload, tag) = frame.split_at_mut(header.length);
            if let (Some(seal), Some(tag)) = (&mut self.seal, tag.first_chunk()) {
                seal.open(head, *tag, payload)?;
            }
            let word = match header.kind {
                FrameKind::Stop => Some(LastWord::Stop),
                FrameKind::Done => {
                    payload.first_chunk().map(|bytes| LastWord::Done(u64::from_le_bytes(*bytes)))
                }
                FrameKind::CannotPut => Some(LastWord::Failed(sentence(payload))),
                _ => None,
            };
            if word.is_some() {
                return Ok(word);
            }
            self.heard.drain(..HEADER_BYTES + header.length + tag_bytes);
        }
    }
}

/// The peer's frame is none: on a sealed hop somebody else made it.
pub(super) fn broken(why: &str, is_sealed: bool) -> Error {
    match is_sealed {
        true => Error::Damaged(format!("something between the hosts changes data: one {why}")),
        false => Error::Protocol(why.into()),
    }
}
