//! The parser of requests.

use crate::limits;
use crate::number::integer;
use crate::resp::inline;
use crate::resp::words::{CommandWords, WordPlace};

/// Why a request is malformed, in Redis's words. The connection is closed after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    /// An inline command has no end within the limit.
    #[error("too big inline request")]
    LongInline,
    /// An inline command opens a quote and does not close it.
    #[error("unbalanced quotes in request")]
    UnbalancedQuotes,
    /// The line with the number of words has no end within the limit.
    #[error("too big mbulk count string")]
    LongCount,
    /// The number of words is no number, or above the limit.
    #[error("invalid multibulk length")]
    Count,
    /// The number of words is above the limit for clients without the password.
    #[error("unauthenticated multibulk length")]
    CountUnauthenticated,
    /// A word begins with another letter than `$`.
    #[error("expected '$', got '{}'", char::from(*.0))]
    NoBulk(u8),
    /// The line with the length of a word has no end within the limit.
    #[error("too big bulk count string")]
    LongLength,
    /// The length of a word is no number, or above the limit.
    #[error("invalid bulk length")]
    Length,
    /// The length of a word is above the limit for clients without the password.
    #[error("unauthenticated bulk length")]
    LengthUnauthenticated,
    /// The request is longer than a request may be.
    #[error("too big request")]
    LongRequest,
}

/// Parses requests out of a buffer that grows.
///
/// Invariants: `position` is the number of bytes of the request that are parsed, and never above the bytes that there
/// were; `words_left` is `None` until the number of words is known.
#[derive(Debug, Default)]
pub struct RequestParser {
    position: usize,
    words_left: Option<usize>,
    bulk_bytes: Option<usize>,
    places: Vec<WordPlace>,
    /// The words of an inline command, whose quotes are removed.
    unquoted: Vec<u8>,
    is_inline: bool,
    is_complete: bool,
}

impl RequestParser {
    /// Parses the request that `input` begins with. Returns its number of bytes once it is complete, and `None` if
    /// bytes are missing; the next call then gets the same bytes and more. A request may have no words: it is to be ignored.
    pub fn parse(&mut self, input: &[u8], is_authenticated: bool) -> Result<Option<usize>, ProtocolError> {
        if std::mem::take(&mut self.is_complete) {
            self.start_over();
        }
        let is_complete = match (self.words_left, input.first()) {
            (_, None) => false,
            (None, Some(b'*')) => {
                self.count(input, is_authenticated)? && self.bulks(input, is_authenticated)?
            }
            (None, Some(_)) => self.inline(input)?,
            (Some(_), Some(_)) => self.bulks(input, is_authenticated)?,
        };
        self.is_complete = is_complete;
        Ok(is_complete.then_some(self.position))
    }

    /// Returns the words of the complete request in `input`, which is the same as for [`parse`](Self::parse).
    pub fn words<'a>(&'a self, input: &'a [u8]) -> CommandWords<'a> {
        CommandWords::new(if self.is_inline { &self.unquoted } else { input }, &self.places)
    }

    fn start_over(&mut self) {
        (self.position, self.words_left, self.bulk_bytes, self.is_inline) = (0, None, None, false);
        self.places.clear();
        self.unquoted.clear();
        self.places.shrink_to(limits::BUFFER_KEPT_BYTES / size_of::<WordPlace>());
        self.unquoted.shrink_to(limits::BUFFER_KEPT_BYTES);
    }

    fn inline(&mut self, input: &[u8]) -> Result<bool, ProtocolError> {
        let Some(end) = input.iter().take(limits::LINE_BYTES_MAX).position(|byte| *byte == b'\n') else {
            let is_long = input.len() >= limits::LINE_BYTES_MAX;
            return if is_long { Err(ProtocolError::LongInline) } else { Ok(false) };
        };
        let line = &input[..end];
        inline::split(line.strip_suffix(b"\r").unwrap_or(line), &mut self.unquoted, &mut self.places)?;
        self.position = end + 1;
        self.is_inline = true;
        Ok(true)
    }

    /// Parses `*3\r\n`.
    fn count(&mut self, input: &[u8], is_authenticated: bool) -> Result<bool, ProtocolError> {
        let Some(line) = self.line(input, ProtocolError::LongCount)? else { return Ok(false) };
        let count = integer(&line[1..]).ok_or(ProtocolError::Count)?;
        let count = usize::try_from(count).unwrap_or(0);
        if count > limits::WORDS_MAX {
            return Err(ProtocolError::Count);
        }
        if count > limits::WORDS_UNAUTHENTICATED_MAX && !is_authenticated {
            return Err(ProtocolError::CountUnauthenticated);
        }
        self.words_left = Some(count);
        Ok(true)
    }

    /// Parses words, `$3\r\nGET\r\n`. As in Redis, the two bytes after a word may be any.
    fn bulks(&mut self, input: &[u8], is_authenticated: bool) -> Result<bool, ProtocolError> {
        while let Some(left @ 1..) = self.words_left {
            let bytes = match self.bulk_bytes {
                Some(bytes) => bytes,
                None => match self.length(input, is_authenticated)? {
                    Some(bytes) => *self.bulk_bytes.insert(bytes),
                    None => return Ok(false),
                },
            };
            let end = self.position + bytes;
            if end + 2 > limits::REQUEST_BYTES_MAX {
                return Err(ProtocolError::LongRequest);
            }
            if input.len() < end + 2 {
                return Ok(false);
            }
            self.places.push((self.position as u32, end as u32));
            (self.position, self.bulk_bytes, self.words_left) = (end + 2, None, Some(left - 1));
        }
        Ok(true)
    }

    /// Parses `$3\r\n`.
    fn length(&mut self, input: &[u8], is_authenticated: bool) -> Result<Option<usize>, ProtocolError> {
        let begin = self.position;
        let Some(line) = self.line(input, ProtocolError::LongLength)? else { return Ok(None) };
        match line.first() {
            Some(b'$') => {}
            other => return Err(ProtocolError::NoBulk(other.copied().unwrap_or(input[begin]))),
        }
        let bytes = integer(&line[1..]).and_then(|bytes| usize::try_from(bytes).ok());
        let bytes = bytes.ok_or(ProtocolError::Length)?;
        if bytes > limits::BULK_UNAUTHENTICATED_BYTES_MAX && !is_authenticated {
            return Err(ProtocolError::LengthUnauthenticated);
        }
        if bytes > limits::BULK_BYTES_MAX {
            return Err(ProtocolError::Length);
        }
        Ok(Some(bytes))
    }

    /// Returns the next line without its end, if it is complete.
    fn line<'a>(&mut self, input: &'a [u8], long: ProtocolError) -> Result<Option<&'a [u8]>, ProtocolError> {
        let rest = &input[self.position..];
        let Some(end) = rest.iter().take(limits::LINE_BYTES_MAX).position(|byte| *byte == b'\r') else {
            return if rest.len() >= limits::LINE_BYTES_MAX { Err(long) } else { Ok(None) };
        };
        if rest.len() < end + 2 {
            return Ok(None);
        }
        self.position += end + 2;
        Ok(Some(&rest[..end]))
    }
}
