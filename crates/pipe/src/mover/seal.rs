//! Frames sealed with AES-256-GCM: `caravan_fabric::seal` with the labels of a hop's streams.
//!
//! ```text
//! label = "caravan hop 1 " direction stream
//! ```
//!
//! `direction` is one byte (0: forward), `stream` the number of the stream as four bytes, little-endian. The secret is
//! the connection's, which is fresh.

use caravan_fabric::seal::{self, SealError};

use super::frame::TAG_BYTES;
use crate::Error;
use crate::connect::Secret;

const DIRECTION_INFO: &[u8] = b"caravan hop 1 ";

/// The direction of frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FrameDirection {
    Forward = 0,
    Backward = 1,
}

/// The keys of one stream in one direction, for the side that seals and the side that opens.
pub(super) struct FrameSeal(seal::Seal);

impl FrameSeal {
    /// Returns a seal with its first key.
    pub fn new(secret: &Secret, direction: FrameDirection, stream: u32) -> Result<Self, Error> {
        let label: &[&[u8]] = &[DIRECTION_INFO, &[direction as u8], &stream.to_le_bytes()];
        seal::Seal::new(&secret.0, label).map(Self).map_err(damaged)
    }

    /// Encrypts the next payload in place. Returns the tag, which authenticates `header`, too.
    pub fn seal(&mut self, header: &[u8], payload: &mut [u8]) -> Result<[u8; TAG_BYTES], Error> {
        self.0.seal(header, payload).map_err(damaged)
    }

    /// Decrypts the next payload in place.
    pub fn open(&mut self, header: &[u8], tag: [u8; TAG_BYTES], payload: &mut [u8]) -> Result<(), Error> {
        self.0.open(header, tag, payload).map_err(damaged)
    }
}

fn damaged(error: SealError) -> Error {
    Error::Damaged(match error {
        SealError::Forged => {
            "a frame is not as it was sealed: something between the hosts changes data".to_owned()
        }
        SealError::Library(_) => error.to_string(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sealed_opens_in_its_direction_and_stream_alone() {
        let seal = |direction, stream| FrameSeal::new(&Secret([7; 32]), direction, stream).expect("a key");
        let mut payload = *b"abc";
        let tag = seal(FrameDirection::Forward, 0).seal(b"head", &mut payload).expect("sealed");
        for (direction, stream) in [(FrameDirection::Backward, 0), (FrameDirection::Forward, 1)] {
            assert!(seal(direction, stream).open(b"head", tag, &mut payload.clone()).is_err());
        }
        seal(FrameDirection::Forward, 0).open(b"head", tag, &mut payload).expect("opened");
        assert_eq!(&payload, b"abc");
    }
}
