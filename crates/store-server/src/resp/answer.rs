//! Replies as a client reads them.

use crate::limits;
use crate::number::integer;

/// A reply of a server.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum StoreAnswer {
    /// A simple string, such as `OK`.
    Simple(Vec<u8>),
    /// An error, which begins with its code.
    Error(Vec<u8>),
    /// An integer.
    Integer(i64),
    /// A string of any bytes.
    Bulk(Vec<u8>),
    /// Nothing.
    Null,
    /// An array, a set, or the keys and values of a map in turn.
    Array(Vec<StoreAnswer>),
}

/// The server sent something that is no reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the server's reply breaks the Redis protocol: {0}")]
pub struct AnswerError(&'static str);

/// Parses the reply that `input` begins with, and returns it with its number of bytes; `None` if bytes are missing.
pub fn parse(input: &[u8]) -> Result<Option<(StoreAnswer, usize)>, AnswerError> {
    nested(input, limits::NESTING_MAX)
}

fn nested(input: &[u8], depth_left: usize) -> Result<Option<(StoreAnswer, usize)>, AnswerError> {
    let Some(end) = input.windows(2).take(limits::LINE_BYTES_MAX).position(|pair| pair == b"\r\n") else {
        let is_long = input.len() > limits::LINE_BYTES_MAX;
        return if is_long { Err(AnswerError("a line is too long")) } else { Ok(None) };
    };
    let Some((kind, text)) = input[..end].split_first() else {
        return Err(AnswerError("a line is empty"));
    };
    let after = end + 2;
    let number = || integer(text).ok_or(AnswerError("a number is malformed"));
    let answer = match kind {
        b'+' | b',' | b'(' | b'#' => StoreAnswer::Simple(text.to_vec()),
        b'-' => StoreAnswer::Error(text.to_vec()),
        b':' => StoreAnswer::Integer(number()?),
        b'_' => StoreAnswer::Null,
        b'$' | b'=' => return bulk(input, after, number()?),
        b'*' | b'~' | b'>' => return elements(input, after, number()?, depth_left),
        b'%' => {
            let pairs = number()?;
            return elements(input, after, pairs.saturating_mul(2), depth_left);
        }
        _ => return Err(AnswerError("a reply begins with an unknown letter")),
    };
    Ok(Some((answer, after)))
}

fn bulk(input: &[u8], from: usize, bytes: i64) -> Result<Option<(StoreAnswer, usize)>, AnswerError> {
    if bytes == -1 {
        return Ok(Some((StoreAnswer::Null, from)));
    }
    let bytes = usize::try_from(bytes).ok().filter(|bytes| *bytes <= limits::REPLY_BYTES_MAX);
    let end = from + bytes.ok_or(AnswerError("a string is too long"))?;
    Ok(input.get(from..end + 2).map(|value| (StoreAnswer::Bulk(value[..value.len() - 2].to_vec()), end + 2)))
}

fn elements(
    input: &[u8],
    from: usize,
    count: i64,
    depth_left: usize,
) -> Result<Option<(StoreAnswer, usize)>, AnswerError> {
    if count == -1 {
        return Ok(Some((StoreAnswer::Null, from)));
    }
    let depth_left = depth_left.checked_sub(1).ok_or(AnswerError("arrays are nested too deeply"))?;
    let count = usize::try_from(count).ok().filter(|count| *count <= limits::REPLY_BYTES_MAX);
    let count = count.ok_or(AnswerError("an array is too long"))?;
    let mut found = Vec::new();
    let mut at = from;
    for _ in 0..count {
        let Some((element, bytes)) = nested(&input[at..], depth_left)? else { return Ok(None) };
        found.push(element);
        at += bytes;
    }
    Ok(Some((StoreAnswer::Array(found), at)))
}
