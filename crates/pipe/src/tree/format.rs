//! The frames between the two halves of `caravan cp`.
//!
//! Each direction begins with [`MAGIC`]. Then come frames: a header of [`HEADER_BYTES`] bytes (the kind, the number
//! of bytes, their XXH3-128), then that many bytes. All numbers are little-endian.
//!
//! | frame | from | holds |
//! |---|---|---|
//! | [`TreeFrameKind::Hello`] | sink | JSON: what is there |
//! | [`TreeFrameKind::Batch`] | source | directories to make, then small files, links and ends of directories |
//! | [`TreeFrameKind::Begin`], [`TreeFrameKind::Data`], [`TreeFrameKind::End`] | source | a large file; nothing but offers is in between |
//! | [`TreeFrameKind::Offer`] | source | files; does the sink have any of them? |
//! | [`TreeFrameKind::Answer`] | sink | what it has of each of them |
//! | [`TreeFrameKind::Finish`] | source | that was all |
//! | [`TreeFrameKind::Done`] | sink | all of it is written |
//!
//! Frames of one direction are in the order of the walk. A directory comes before its content, and its end after
//! that.

use std::io::Read;

use twox_hash::XxHash3_128;

use crate::Error;

/// The beginning of a stream; the digit changes with any frame or record.
pub const MAGIC: &[u8; 8] = b"cvntree3";
/// The bytes of a frame's header.
pub const HEADER_BYTES: usize = 24;
/// The most bytes of a file in one piece; a smaller file travels whole, with others.
pub const PIECE_BYTES: usize = 1 << 20;
/// The most bytes of a frame: a piece, and room for records around it.
pub const FRAME_BYTES_MAX: usize = PIECE_BYTES + (64 << 10);

/// The kind of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TreeFrameKind {
    /// Directories, small files, links.
    Batch = 1,
    /// The beginning of a large file.
    Begin = 2,
    /// A piece of a large file.
    Data = 3,
    /// The end of a large file.
    End = 4,
    /// Files that the sink may already have.
    Offer = 5,
    /// The source has sent everything.
    Finish = 6,
    /// The sink is ready.
    Hello = 7,
    /// What the sink has of the offered files.
    Answer = 8,
    /// The sink has written everything.
    Done = 9,
}

impl TreeFrameKind {
    fn from_byte(byte: u8) -> Option<Self> {
        Some(match byte {
            1 => Self::Batch,
            2 => Self::Begin,
            3 => Self::Data,
            4 => Self::End,
            5 => Self::Offer,
            6 => Self::Finish,
            7 => Self::Hello,
            8 => Self::Answer,
            9 => Self::Done,
            _ => return None,
        })
    }
}

/// A frame's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TreeHeader {
    /// The kind of the frame.
    pub kind: TreeFrameKind,
    /// The number of bytes that follow.
    pub bytes: usize,
    digest: u128,
}

impl TreeHeader {
    /// Checks that these are the bytes that were sent.
    pub fn check(&self, payload: &[u8]) -> Result<(), Error> {
        if payload.len() == self.bytes && XxHash3_128::oneshot(payload) == self.digest {
            return Ok(());
        }
        Err(Error::Damaged("a frame of the tree does not have its digest".to_owned()))
    }
}

/// Prepares `frame` for bytes behind a header, which [`seal`] writes.
pub fn begin(frame: &mut Vec<u8>) {
    frame.clear();
    frame.resize(HEADER_BYTES, 0);
}

/// Writes the header of a frame that [`begin`] has prepared.
pub fn seal(frame: &mut [u8], kind: TreeFrameKind) {
    let Some((header, payload)) = frame.split_at_mut_checked(HEADER_BYTES) else { return };
    header[0] = kind as u8;
    header[1..4].fill(0);
    // A frame is never longer than FRAME_BYTES_MAX; the other end refuses a longer one.
    header[4..8].copy_from_slice(&(payload.len() as u32).to_le_bytes());
    header[8..].copy_from_slice(&XxHash3_128::oneshot(payload).to_le_bytes());
}

/// Returns a whole frame.
pub fn frame(kind: TreeFrameKind, payload: &[u8]) -> Vec<u8> {
    let mut frame = Vec::with_capacity(HEADER_BYTES + payload.len());
    begin(&mut frame);
    frame.extend_from_slice(payload);
    seal(&mut frame, kind);
    frame
}

/// Reads [`MAGIC`].
pub fn read_magic(from: &mut impl Read) -> Result<(), Error> {
    let mut magic = [0; MAGIC.len()];
    from.read_exact(&mut magic).map_err(|error| cut_off(0, &error))?;
    if &magic == MAGIC {
        return Ok(());
    }
    Err(Error::Protocol("sends no tree of files, or is of another version of Caravan".to_owned()))
}

/// Reads a frame into `payload`, which it overwrites. `position` counts the bytes read so far. The caller still has
/// to check the digest, in any thread.
pub fn read(from: &mut impl Read, payload: &mut Vec<u8>, position: &mut u64) -> Result<TreeHeader, Error> {
    let mut bytes = [0; HEADER_BYTES];
    from.read_exact(&mut bytes).map_err(|error| cut_off(*position, &error))?;
    let [kind, 0, 0, 0, l0, l1, l2, l3, digest @ ..] = bytes else { return Err(nonsense("frame")) };
    let kind = TreeFrameKind::from_byte(kind).ok_or_else(|| nonsense("frame"))?;
    let length = u32::from_le_bytes([l0, l1, l2, l3]) as usize;
    if length > FRAME_BYTES_MAX {
        return Err(Error::Protocol(format!(
            "announces {length} bytes at once, where {FRAME_BYTES_MAX} is the most"
        )));
    }
    // In a used buffer, only the part that it has never held is cleared.
    payload.resize(length, 0);
    from.read_exact(payload).map_err(|error| cut_off(*position, &error))?;
    *position += (HEADER_BYTES + length) as u64;
    Ok(TreeHeader { kind, bytes: length, digest: u128::from_le_bytes(digest) })
}

/// Returns the error for bytes that break the protocol.
pub(super) fn nonsense(what: &str) -> Error {
    Error::Protocol(format!("sends a {what} that makes no sense"))
}

fn cut_off(bytes: u64, error: &std::io::Error) -> Error {
    let why = match error.kind() {
        std::io::ErrorKind::UnexpectedEof => "the other half of the copy has ended".to_owned(),
        _ => error.to_string(),
    };
    Error::Truncated { bytes, why }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_arrives_as_it_was_sent_or_not_at_all() {
        let sent = frame(TreeFrameKind::Batch, b"some bytes");
        let (mut payload, mut position) = (Vec::new(), 0);
        let header = read(&mut &sent[..], &mut payload, &mut position).expect("a frame");
        header.check(&payload).expect("undamaged");
        assert_eq!(
            (header.kind, payload.as_slice(), position),
            (TreeFrameKind::Batch, &b"some bytes"[..], 34)
        );
        for cut in 0..sent.len() {
            let error = read(&mut &sent[..cut], &mut payload, &mut 0).expect_err("cut off");
            assert!(matches!(error, Error::Truncated { .. }), "{cut}: {error}");
        }
        for bit in 0..sent.len() * 8 {
            let mut damaged = sent.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            let header = read(&mut &damaged[..], &mut payload, &mut 0);
            let found = header.and_then(|header| {
                header.check(&payload)?;
                Ok(header.kind)
            });
            // Only the kind is outside of the digest: each side refuses the kinds that are not due.
            assert!(bit < 8 || found.is_err(), "bit {bit}: {found:?}");
        }
    }

    #[test]
    fn a_length_beyond_all_measure_is_refused_before_any_memory_is_taken() {
        let mut sent = frame(TreeFrameKind::Data, b"");
        sent[4..8].copy_from_slice(&u32::MAX.to_le_bytes());
        let mut payload = Vec::new();
        let error = read(&mut &sent[..], &mut payload, &mut 0).expect_err("refused");
        assert!(error.to_string().contains("announces 4294967295 bytes"), "{error}");
        assert_eq!(payload.capacity(), 0);
    }
}
