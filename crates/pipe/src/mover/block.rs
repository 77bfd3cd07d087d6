//! A piece of a stream, and the memory that it is in.

use super::frame::{HEADER_BYTES, TAG_BYTES};

/// Bytes behind the payload, so that a tag and the next frame's header can be read along with it.
pub(super) const SLACK_BYTES: usize = TAG_BYTES + HEADER_BYTES;

/// Up to a block of a stream. `length <= payload_max == bytes.len() - SLACK_BYTES`.
#[derive(Debug)]
pub(super) struct Block {
    bytes: Vec<u8>,
    length: usize,
}

impl Block {
    /// An empty one.
    pub fn new(payload_max: usize) -> Self {
        Self { bytes: vec![0; payload_max + SLACK_BYTES], length: 0 }
    }

    /// What it holds.
    pub fn payload(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    /// The same, to be encrypted in place.
    pub fn payload_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[..self.length]
    }

    /// All its memory, to be filled; then [`set_length`](Self::set_length).
    pub fn memory(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    /// Bytes of payload that there is room for.
    pub fn payload_max(&self) -> usize {
        self.bytes.len() - SLACK_BYTES
    }

    /// Says that so many bytes are filled.
    pub fn set_length(&mut self, length: usize) {
        self.length = length.min(self.payload_max());
    }

    /// The same payload in no more memory than it takes.
    pub fn shrunk(&self) -> Self {
        let mut shrunk = Self::new(self.length);
        shrunk.bytes[..self.length].copy_from_slice(self.payload());
        shrunk.length = self.length;
        shrunk
    }
}

/// A piece of the stream that is to be sent.
pub(super) enum OutletPiece<'a> {
    /// It is needed no more: it may be encrypted in place.
    Own(&'a mut [u8]),
    /// Others read it, too.
    Shared(&'a [u8]),
}

impl OutletPiece<'_> {
    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::Own(bytes) => bytes,
            Self::Shared(bytes) => bytes,
        }
    }
}
