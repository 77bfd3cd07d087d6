//! What the two sides of a connection say to each other. Integers are big-endian.
//!
//! The bytes of a connection are records: a length of 4 bytes, that many bytes of body, and, if the connection is
//! sealed, a tag. A body consists of whole frames. A record is one `send(2)`, so operations that start together travel
//! together.
//!
//! | code | frame | from | what |
//! |---|---|---|---|
//! | 1 | place 8, length 4, bytes | initiator | a piece of a write |
//! | 2 | place 8, length 4, bytes | initiator | its last piece |
//! | 3 | place 8, length 4, immediate 4, bytes | initiator | its last piece, with an immediate |
//! | 4 | place 8, length 4 | initiator | a read |
//! | 5 | place 8, expected 8, desired 8 | initiator | a compare-and-swap |
//! | 6 | count 4 | target | so many writes are done |
//! | 7 | length 4, bytes | target | a piece of what a read asked for |
//! | 8 | length 4, bytes | target | its last piece |
//! | 9 | word 8 | target | the word that a compare-and-swap found |
//! | 10 | place 8 | target | the operation names a region that was revoked |
//! | 11 | | either | wakes the peer |
//! | 12 | count 4 | either | so many immediates were taken |
//!
//! Operations are answered in the order in which they came, so an answer names none.

use crate::byte_reader::ByteReader;

/// The number of bytes of the longest head of a frame.
pub const FRAME_HEAD_BYTES: usize = 1 + 8 + 8 + 8;

/// One frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TcpFrame<'a> {
    /// A piece of a write; the last one `ends` it, and may carry an immediate.
    Write {
        /// The place of the first byte.
        place: u64,
        /// The bytes.
        bytes: &'a [u8],
        /// True for the last piece.
        ends: bool,
        /// The immediate of the write.
        immediate: Option<u32>,
    },
    /// A read.
    Read {
        /// The place of the first byte.
        place: u64,
        /// The number of bytes.
        bytes: u32,
    },
    /// A compare-and-swap.
    Swap {
        /// The place of the word.
        place: u64,
        /// The value that the word must have.
        expected: u64,
        /// The value that the word gets.
        desired: u64,
    },
    /// So many writes are done.
    Written(u32),
    /// A piece of what a read asked for; the last one `ends` it.
    Bytes {
        /// The bytes.
        bytes: &'a [u8],
        /// True for the last piece.
        ends: bool,
    },
    /// The word that a compare-and-swap found.
    Found(u64),
    /// The operation names a region that was revoked.
    Revoked(u64),
    /// Wakes the peer.
    Wake,
    /// So many immediates were taken.
    Taken(u32),
}

impl<'a> TcpFrame<'a> {
    /// Takes the next frame from a body. `None` if there is no whole one of a known kind.
    pub fn parse(reader: &mut ByteReader<'a>) -> Option<Self> {
        let code = reader.u8()?;
        Some(match code {
            1..=3 => {
                let (place, length) = (reader.u64()?, reader.u32()?);
                let immediate = if code == 3 { Some(reader.u32()?) } else { None };
                Self::Write { place, bytes: reader.bytes(length as usize)?, ends: code != 1, immediate }
            }
            4 => Self::Read { place: reader.u64()?, bytes: reader.u32()? },
            5 => Self::Swap { place: reader.u64()?, expected: reader.u64()?, desired: reader.u64()? },
            6 => Self::Written(reader.u32()?),
            7 | 8 => {
                let length = reader.u32()?;
                Self::Bytes { bytes: reader.bytes(length as usize)?, ends: code == 8 }
            }
            9 => Self::Found(reader.u64()?),
            10 => Self::Revoked(reader.u64()?),
            11 => Self::Wake,
            12 => Self::Taken(reader.u32()?),
            _ => return None,
        })
    }

    /// Appends the frame to a body; `bytes` are copied.
    pub fn append_to(&self, body: &mut Vec<u8>) {
        match *self {
            Self::Write { place, bytes, ends, immediate } => {
                write_head(body, place, bytes.len() as u32, ends, immediate);
                body.extend_from_slice(bytes);
            }
            Self::Read { place, bytes } => {
                body.push(4);
                body.extend_from_slice(&place.to_be_bytes());
                body.extend_from_slice(&bytes.to_be_bytes());
            }
            Self::Swap { place, expected, desired } => {
                body.push(5);
                [place, expected, desired]
                    .iter()
                    .for_each(|word| body.extend_from_slice(&word.to_be_bytes()));
            }
            Self::Bytes { bytes, ends } => {
                bytes_head(body, bytes.len() as u32, ends);
                body.extend_from_slice(bytes);
            }
            Self::Written(count) | Self::Taken(count) => {
                body.push(if matches!(self, Self::Written(_)) { 6 } else { 12 });
                body.extend_from_slice(&count.to_be_bytes());
            }
            Self::Found(word) | Self::Revoked(word) => {
                body.push(if matches!(self, Self::Found(_)) { 9 } else { 10 });
                body.extend_from_slice(&word.to_be_bytes());
            }
            Self::Wake => body.push(11),
        }
    }
}

/// Appends a write without its bytes, which follow.
pub fn write_head(body: &mut Vec<u8>, place: u64, length: u32, ends: bool, immediate: Option<u32>) {
    body.push(match (ends, immediate) {
        (false, _) => 1,
        (true, None) => 2,
        (true, Some(_)) => 3,
    });
    body.extend_from_slice(&place.to_be_bytes());
    body.extend_from_slice(&length.to_be_bytes());
    if let (true, Some(immediate)) = (ends, immediate) {
        body.extend_from_slice(&immediate.to_be_bytes());
    }
}

/// Appends a piece of what a read asked for without its bytes, which follow.
pub fn bytes_head(body: &mut Vec<u8>, length: u32, ends: bool) {
    body.push(if ends { 8 } else { 7 });
    body.extend_from_slice(&length.to_be_bytes());
}

/// Returns how many of `left` bytes fit behind a frame's head into a body of at most `limit` bytes: whole words,
/// unless they are all.
pub fn fitting(body: &[u8], limit: usize, left: u32) -> Option<u32> {
    let room = limit.checked_sub(body.len() + FRAME_HEAD_BYTES)?;
    match usize::try_from(left).is_ok_and(|left| left <= room) {
        true => Some(left),
        false => Some(room as u32 / 8 * 8).filter(|&fitting| fitting > 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [TcpFrame<'static>; 12] = [
        TcpFrame::Write { place: 1 << 40, bytes: b"piece", ends: false, immediate: None },
        TcpFrame::Write { place: 2, bytes: b"", ends: true, immediate: None },
        TcpFrame::Write { place: 3, bytes: b"last", ends: true, immediate: Some(77) },
        TcpFrame::Read { place: 4, bytes: u32::MAX },
        TcpFrame::Swap { place: 8, expected: 1, desired: u64::MAX },
        TcpFrame::Written(9),
        TcpFrame::Bytes { bytes: b"some", ends: false },
        TcpFrame::Bytes { bytes: b"more", ends: true },
        TcpFrame::Found(5),
        TcpFrame::Revoked(6 << 40),
        TcpFrame::Wake,
        TcpFrame::Taken(256),
    ];

    #[test]
    fn frames_survive_the_wire() {
        let mut body = Vec::new();
        ALL.iter().for_each(|frame| frame.append_to(&mut body));
        let mut reader = ByteReader::new(&body);
        for frame in ALL {
            assert_eq!(TcpFrame::parse(&mut reader), Some(frame));
        }
        assert!(reader.is_empty());
    }

    #[test]
    fn a_cut_frame_is_none() {
        for frame in ALL {
            let mut body = Vec::new();
            frame.append_to(&mut body);
            assert!(body.len() <= FRAME_HEAD_BYTES + 5, "{frame:?}");
            for length in 0..body.len() {
                assert_eq!(TcpFrame::parse(&mut ByteReader::new(&body[..length])), None, "{frame:?}");
            }
        }
        for code in [0, 13, 255] {
            assert_eq!(TcpFrame::parse(&mut ByteReader::new(&[code; 64])), None);
        }
    }
}
