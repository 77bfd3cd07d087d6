//! Frames, and messages in JSON as frames.
//!
//! A frame is the length of its body as four bytes (big-endian), and the body. The control channels of pipelines,
//! the side channel of `caravan send` and `recv`, and `caravan fabric selftest` use frames; each has its own limit
//! on the length of a body.
//!
//! ```
//! use caravan_pipe::framing;
//!
//! let mut bytes = Vec::new();
//! framing::write_json(&mut bytes, &("hello", 7), 1024)?;
//! let message: (String, u32) = framing::read_json(&mut &bytes[..], 1024)?;
//! assert_eq!(message, ("hello".to_owned(), 7));
//! # Ok::<(), std::io::Error>(())
//! ```

use std::io::{self, Read, Write};

use serde::Serialize;
use serde::de::DeserializeOwned;

const LENGTH_BYTES: usize = 4;

/// Makes a frame from the parts of its body. Fails if the body has more than `bytes_max` bytes.
pub(crate) fn frame(parts: &[&[u8]], bytes_max: usize) -> io::Result<Vec<u8>> {
    let length: usize = parts.iter().map(|part| part.len()).sum();
    let length = u32::try_from(length).ok().filter(|_| length <= bytes_max);
    let length = length.ok_or_else(|| io::Error::other("a message is too long"))?;
    Ok([&[&length.to_be_bytes()[..]], parts].concat().concat())
}

/// Returns the body of the first frame in `bytes` and the length of that frame; `None` if part of it is missing.
pub(crate) fn first(bytes: &[u8], bytes_max: usize) -> io::Result<Option<(&[u8], usize)>> {
    let Some((length, rest)) = bytes.split_first_chunk() else { return Ok(None) };
    let length = checked(*length, bytes_max)?;
    Ok(rest.get(..length).map(|body| (body, LENGTH_BYTES + length)))
}

/// Reads a frame. The error is `UnexpectedEof` at the end of `from`.
pub(crate) fn read(from: &mut (impl Read + ?Sized), bytes_max: usize) -> io::Result<Vec<u8>> {
    let mut length = [0; LENGTH_BYTES];
    from.read_exact(&mut length)?;
    let length = checked(length, bytes_max)?;
    // Memory grows with the bytes that arrive, not with the announced length.
    let mut body = Vec::new();
    from.take(length as u64).read_to_end(&mut body)?;
    if body.len() == length { Ok(body) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

/// Writes a message, in one call if `to` takes it whole. Fails if it has more than `bytes_max` bytes of JSON.
pub fn write_json(
    to: &mut (impl Write + ?Sized),
    message: &impl Serialize,
    bytes_max: usize,
) -> io::Result<()> {
    to.write_all(&frame(&[&serde_json::to_vec(message)?], bytes_max)?)?;
    to.flush()
}

/// Reads a message that [`write_json`] has written. The error is `UnexpectedEof` at the end of `from`, and
/// `InvalidData` if the bytes are not such a message.
pub fn read_json<T: DeserializeOwned>(from: &mut (impl Read + ?Sized), bytes_max: usize) -> io::Result<T> {
    Ok(serde_json::from_slice(&read(from, bytes_max)?)?)
}

fn checked(length: [u8; LENGTH_BYTES], bytes_max: usize) -> io::Result<usize> {
    let length = usize::try_from(u32::from_be_bytes(length)).ok().filter(|length| *length <= bytes_max);
    length.ok_or_else(|| malformed("a message is too long"))
}

/// Returns the error for bytes that are not a message.
pub(crate) fn malformed(why: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES_MAX: usize = 100;

    #[test]
    fn messages_come_as_they_were_written_and_nothing_else_is_one() {
        let mut bytes = Vec::new();
        write_json(&mut bytes, &(1, "one"), BYTES_MAX).expect("written");
        write_json(&mut bytes, &(2, "two"), BYTES_MAX).expect("written");
        let read = |from: &mut &[u8]| read_json::<(u8, String)>(from, BYTES_MAX);
        let mut rest = &bytes[..];
        assert_eq!(read(&mut rest).expect("the first"), (1, "one".to_owned()));
        assert_eq!(read(&mut rest).expect("the second"), (2, "two".to_owned()));
        assert_eq!(read(&mut rest).expect_err("the end").kind(), io::ErrorKind::UnexpectedEof);
        for cut in 0..bytes.len() / 2 {
            assert!(read(&mut &bytes[..cut]).is_err(), "{cut}");
        }
        assert!(read(&mut &[0xff; 8][..]).is_err(), "too long");
        assert!(read(&mut &[0, 0, 0, 2, b'{', b'}'][..]).is_err(), "no message");
        assert!(write_json(&mut Vec::new(), &"x".repeat(BYTES_MAX), BYTES_MAX).is_err(), "too long");
    }
}
