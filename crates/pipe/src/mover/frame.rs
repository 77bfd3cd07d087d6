//! The frames that the two ends of a hop exchange.
//!
//! A frame is a header of [`HEADER_BYTES`], its payload and, where the hop is sealed, a tag:
//!
//! | bytes | what |
//! |---|---|
//! | 0 | the kind |
//! | 1 | how the payload is coded |
//! | 2, 3 | 0 |
//! | 4 to 7 | bytes of payload on the wire, little-endian |
//! | 8 to 11 | bytes of payload as the stream has them |
//!
//! | forward | payload | meaning |
//! |---|---|---|
//! | `Data` | a block | the next piece of the stream |
//! | `Idle` | | nothing to send, but alive |
//! | `End` | length, digest | that was all |
//! | `Failed` | a sentence | there will be no more |
//!
//! | backward | payload | meaning |
//! |---|---|---|
//! | `Alive` | | alive |
//! | `Stop` | | nobody wants the rest |
//! | `Done` | length | all of it is where it belongs |
//! | `Failed` | a sentence | it cannot go there |
//!
//! With several streams, each `Data`, and the `End` or `Failed` behind them, is on the next stream in turn;
//! `Idle` is on the one whose turn it is. All that goes backward is on the first.
//!
//! Two kinds differ in at least two bits: one flipped bit does not turn a kind into another.

use super::payload::DigestBytes;

/// The bytes of a header.
pub(super) const HEADER_BYTES: usize = 12;
/// The bytes of the tag behind a sealed payload.
pub(super) const TAG_BYTES: usize = 16;
/// The most bytes of a sentence in a frame.
pub(super) const SENTENCE_BYTES_MAX: usize = 1 << 10;
/// The most bytes of a payload that is not a `Data`'s.
pub(super) const WORD_BYTES_MAX: usize = SENTENCE_BYTES_MAX;

/// The kind of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FrameKind {
    Data = 0x03,
    Idle = 0x05,
    End = 0x06,
    Failed = 0x09,
    Alive = 0x0a,
    Stop = 0x0c,
    Done = 0x11,
    CannotPut = 0x12,
}

impl FrameKind {
    const ALL: [Self; 8] = [
        Self::Data,
        Self::Idle,
        Self::End,
        Self::Failed,
        Self::Alive,
        Self::Stop,
        Self::Done,
        Self::CannotPut,
    ];

    /// True if the frame goes from the sender to the receiver.
    fn is_forward(self) -> bool {
        matches!(self, Self::Data | Self::Idle | Self::End | Self::Failed)
    }

    /// Returns the lengths that the payload may have, unless the frame is a `Data`.
    fn lengths(self) -> std::ops::RangeInclusive<usize> {
        match self {
            Self::Data | Self::Idle | Self::Alive | Self::Stop => 0..=0,
            Self::End => 8..=8 + DigestBytes::BYTES_MAX,
            Self::Done => 8..=8,
            Self::Failed | Self::CannotPut => 0..=SENTENCE_BYTES_MAX,
        }
    }
}

/// The header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FrameHeader {
    pub kind: FrameKind,
    /// Whether the payload is compressed.
    pub is_compressed: bool,
    /// Bytes of payload on the wire, without the tag.
    pub length: usize,
    /// Bytes of payload as the stream has them.
    pub raw_length: usize,
}

impl FrameHeader {
    /// Returns the header of a frame whose payload is not compressed.
    pub fn plain(kind: FrameKind, length: usize) -> Self {
        Self { kind, is_compressed: false, length, raw_length: length }
    }

    /// Returns the header as it goes over the wire.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[0] = self.kind as u8;
        bytes[1] = u8::from(self.is_compressed);
        // Both lengths are at most a block's.
        bytes[4..8].copy_from_slice(&(self.length as u32).to_le_bytes());
        bytes[8..].copy_from_slice(&(self.raw_length as u32).to_le_bytes());
        bytes
    }

    /// Parses a header. The error says what is wrong with it. `block_bytes` is the most that a block may have;
    /// `None` asks for a backward frame.
    pub fn decode(bytes: &[u8; HEADER_BYTES], block_bytes: Option<usize>) -> Result<Self, &'static str> {
        let [kind, coding, zero, zero_too, length @ ..] = *bytes;
        let [l0, l1, l2, l3, r0, r1, r2, r3] = length;
        let length = u32::from_le_bytes([l0, l1, l2, l3]) as usize;
        let raw_length = u32::from_le_bytes([r0, r1, r2, r3]) as usize;
        let kind = FrameKind::ALL.into_iter().find(|known| *known as u8 == kind);
        let Some(kind) = kind.filter(|kind| kind.is_forward() == block_bytes.is_some()) else {
            return Err("sent a frame of an unknown kind");
        };
        if coding > 1 || zero != 0 || zero_too != 0 {
            return Err("sent a frame whose header is none");
        }
        let header = Self { kind, is_compressed: coding == 1, length, raw_length };
        let fits = match (kind, block_bytes) {
            (FrameKind::Data, Some(block_bytes)) => {
                (1..=block_bytes).contains(&raw_length) && length > 0 && header.compares()
            }
            _ => kind.lengths().contains(&length) && !header.is_compressed && header.compares(),
        };
        if fits { Ok(header) } else { Err("sent a frame of a length that cannot be") }
    }

    fn compares(&self) -> bool {
        if self.is_compressed { self.length < self.raw_length } else { self.length == self.raw_length }
    }
}

/// Returns the bytes of a sentence for a frame.
pub(super) fn sentence_bytes(sentence: &str) -> &[u8] {
    let mut end = sentence.len().min(SENTENCE_BYTES_MAX);
    while !sentence.is_char_boundary(end) {
        end -= 1;
    }
    &sentence.as_bytes()[..end]
}

/// The bytes behind the payload, so that a read can include a tag and the next frame's header.
pub(super) const SLACK_BYTES: usize = TAG_BYTES + HEADER_BYTES;

/// Up to one block of a stream. `length <= payload_max == bytes.len() - SLACK_BYTES`.
#[derive(Debug)]
pub(super) struct Block {
    bytes: Vec<u8>,
    length: usize,
}

impl Block {
    /// Returns an empty block.
    pub fn new(payload_max: usize) -> Self {
        Self { bytes: vec![0; payload_max + SLACK_BYTES], length: 0 }
    }

    /// Returns the payload.
    pub fn payload(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    /// Returns the payload, for encryption in place.
    pub fn payload_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[..self.length]
    }

    /// Returns the whole memory, for the caller to fill; then call [`set_length`](Self::set_length).
    pub fn memory(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    /// Returns the number of payload bytes that fit.
    pub fn payload_max(&self) -> usize {
        self.bytes.len() - SLACK_BYTES
    }

    /// Sets the number of bytes that are filled.
    pub fn set_length(&mut self, length: usize) {
        self.length = length.min(self.payload_max());
    }

    /// Returns a block with this payload and no more memory than that takes.
    pub fn shrunk(&self) -> Self {
        let mut shrunk = Self::new(self.length);
        shrunk.bytes[..self.length].copy_from_slice(self.payload());
        shrunk.length = self.length;
        shrunk
    }
}

/// A piece of the stream to send.
pub(super) enum OutletPiece<'a> {
    /// Nobody else needs the bytes: they may be encrypted in place.
    Own(&'a mut [u8]),
    /// Others read the bytes, too.
    Shared(&'a [u8]),
}

impl OutletPiece<'_> {
    /// Returns the bytes of the piece.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::Own(bytes) => bytes,
            Self::Shared(bytes) => bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: usize = 1 << 10;

    #[test]
    fn a_header_comes_back_and_no_flipped_bit_makes_another_kind() {
        for kind in FrameKind::ALL {
            let length = if kind == FrameKind::Data { 100 } else { *kind.lengths().start() };
            let header = FrameHeader::plain(kind, length);
            let block = kind.is_forward().then_some(BLOCK);
            assert_eq!(FrameHeader::decode(&header.encode(), block), Ok(header));
            let other_way = if block.is_some() { None } else { Some(BLOCK) };
            assert!(FrameHeader::decode(&header.encode(), other_way).is_err());
            for bit in 0..8 * HEADER_BYTES {
                let mut bytes = header.encode();
                bytes[bit / 8] ^= 1 << (bit % 8);
                assert!(FrameHeader::decode(&bytes, block).is_err(), "{kind:?} with bit {bit} flipped");
            }
        }
    }

    #[test]
    fn lengths_have_limits() {
        let data = |is_compressed, length, raw_length| {
            let header = FrameHeader { kind: FrameKind::Data, is_compressed, length, raw_length };
            FrameHeader::decode(&header.encode(), Some(BLOCK)).is_ok()
        };
        assert!(data(false, BLOCK, BLOCK) && data(true, 1, BLOCK) && data(true, BLOCK - 1, BLOCK));
        assert!(!data(false, BLOCK + 1, BLOCK + 1) && !data(true, 5, BLOCK + 1));
        assert!(!data(false, 0, 0) && !data(true, 0, 7) && !data(true, 7, 7) && !data(false, 6, 7));
        let word = |kind, length| {
            FrameHeader::decode(&FrameHeader::plain(kind, length).encode(), Some(BLOCK)).is_ok()
        };
        assert!(
            word(FrameKind::Failed, SENTENCE_BYTES_MAX) && !word(FrameKind::Failed, SENTENCE_BYTES_MAX + 1)
        );
        assert!(!word(FrameKind::Idle, 1) && !word(FrameKind::End, 7));
    }

    #[test]
    fn a_sentence_is_cut_between_characters_and_steers_no_terminal() {
        let long = "ä".repeat(SENTENCE_BYTES_MAX);
        assert_eq!(sentence_bytes(&long), "ä".repeat(SENTENCE_BYTES_MAX / 2).as_bytes());
    }
}
