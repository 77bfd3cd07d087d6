//! Replies, in the version of the protocol that the client asked for.

use crate::error::CommandError;
use crate::limits;

/// The version of the protocol.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RespVersion {
    /// RESP2, with which each connection starts.
    #[default]
    Two,
    /// RESP3, after `HELLO 3`.
    Three,
}

/// Writes replies into a buffer.
#[derive(Debug, Default)]
pub struct ReplyWriter {
    bytes: Vec<u8>,
    version: RespVersion,
}

/// A place between two replies, to which a writer can go back.
#[derive(Clone, Copy, Debug)]
pub struct ReplyMark(usize);

impl ReplyWriter {
    /// Returns the version in which it writes.
    pub fn version(&self) -> RespVersion {
        self.version
    }

    /// Sets the version in which it writes.
    pub fn set_version(&mut self, version: RespVersion) {
        self.version = version;
    }

    /// Returns the buffer.
    pub fn bytes(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    pub(crate) fn mark(&self) -> ReplyMark {
        ReplyMark(self.bytes.len())
    }

    /// Removes what was written since the mark.
    pub(crate) fn go_back(&mut self, mark: ReplyMark) {
        self.bytes.truncate(mark.0);
    }

    /// Fails if the reply that began at the mark is too long.
    pub(crate) fn check(&self, mark: ReplyMark) -> Result<(), CommandError> {
        match self.bytes.len().saturating_sub(mark.0) > limits::REPLY_BYTES_MAX {
            true => Err(CommandError::LongReply),
            false => Ok(()),
        }
    }

    /// Writes `+OK`, or another simple string; it must have no line end.
    pub fn simple(&mut self, text: &str) {
        self.line(b'+', text.as_bytes());
    }

    /// Writes `+OK`.
    pub fn ok(&mut self) {
        self.simple("OK");
    }

    /// Writes an error, which begins with its code. Line ends become spaces, as in Redis.
    pub fn error(&mut self, text: &[u8]) {
        self.bytes.push(b'-');
        let plain = |byte: &u8| if matches!(byte, b'\r' | b'\n') { b' ' } else { *byte };
        self.bytes.extend(text.iter().map(plain));
        self.bytes.extend_from_slice(b"\r\n");
    }

    /// Writes an integer.
    pub fn integer(&mut self, value: i64) {
        self.head(b':', value);
    }

    /// Writes a count as an integer.
    pub fn count(&mut self, count: usize) {
        self.integer(i64::try_from(count).unwrap_or(i64::MAX));
    }

    /// Writes a string of any bytes.
    pub fn bulk(&mut self, value: &[u8]) {
        self.head(b'$', value.len() as i64);
        self.bytes.extend_from_slice(value);
        self.bytes.extend_from_slice(b"\r\n");
    }

    /// Writes a string or, for `None`, null.
    pub fn bulk_or_null(&mut self, value: Option<&[u8]>) {
        match value {
            Some(value) => self.bulk(value),
            None => self.null(),
        }
    }

    /// Writes a string that `append` appends to the buffer, or null if that returns false. The length is written in front of the
    /// value once it is known, which spares a buffer for each GET.
    pub(crate) fn bulk_with<E>(
        &mut self,
        append: impl FnOnce(&mut Vec<u8>) -> Result<bool, E>,
    ) -> Result<(), E> {
        /// Room for `$`, the digits of a length, and the end of the line.
        const HEAD_BYTES_MAX: usize = 23;
        let begin = self.bytes.len();
        let value = begin + HEAD_BYTES_MAX;
        self.bytes.resize(value, 0);
        let outcome = append(&mut self.bytes);
        let end = self.bytes.len();
        if !matches!(outcome, Ok(true)) {
            self.bytes.truncate(begin);
            return outcome.map(|_| self.null());
        }
        self.head(b'$', (end - value) as i64);
        let head_bytes = self.bytes.len() - end;
        self.bytes.copy_within(end.., begin);
        self.bytes.copy_within(value..end, begin + head_bytes);
        self.bytes.truncate(begin + head_bytes + end - value);
        self.bytes.extend_from_slice(b"\r\n");
        Ok(())
    }

    /// Writes a text for people.
    pub fn verbatim(&mut self, text: &str) {
        match self.version {
            RespVersion::Two => self.bulk(text.as_bytes()),
            RespVersion::Three => {
                self.head(b'=', text.len() as i64 + 4);
                self.bytes.extend_from_slice(b"txt:");
                self.bytes.extend_from_slice(text.as_bytes());
                self.bytes.extend_from_slice(b"\r\n");
            }
        }
    }

    /// Writes null in place of a string.
    pub fn null(&mut self) {
        self.bytes.extend_from_slice(if self.version == RespVersion::Two { b"$-1\r\n" } else { b"_\r\n" });
    }

    /// Writes null in place of an array.
    pub fn null_array(&mut self) {
        self.bytes.extend_from_slice(if self.version == RespVersion::Two { b"*-1\r\n" } else { b"_\r\n" });
    }

    /// Begins an array; its elements follow.
    pub fn array(&mut self, elements: usize) {
        self.head(b'*', elements as i64);
    }

    /// Begins a set, in RESP2 an array; its elements follow.
    pub fn set(&mut self, elements: usize) {
        self.head(if self.version == RespVersion::Two { b'*' } else { b'~' }, elements as i64);
    }

    /// Begins a map, in RESP2 an array; its keys and values follow in turn.
    pub fn map(&mut self, pairs: usize) {
        match self.version {
            RespVersion::Two => self.array(pairs * 2),
            RespVersion::Three => self.head(b'%', pairs as i64),
        }
    }

    fn line(&mut self, kind: u8, text: &[u8]) {
        self.bytes.push(kind);
        self.bytes.extend_from_slice(text);
        self.bytes.extend_from_slice(b"\r\n");
    }

    /// Writes a letter, a number and the end of the line. The digits are made here because `write!` takes several times
    /// as long, and each reply has at least one number.
    fn head(&mut self, kind: u8, value: i64) {
        let mut digits = [0; 20];
        let mut first = digits.len();
        let mut left = value.unsigned_abs();
        loop {
            first -= 1;
            digits[first] = b'0' + (left % 10) as u8;
            left /= 10;
            if left == 0 {
                break;
            }
        }
        self.bytes.push(kind);
        if value < 0 {
            self.bytes.push(b'-');
        }
        self.bytes.extend_from_slice(&digits[first..]);
        self.bytes.extend_from_slice(b"\r\n");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(version: RespVersion, write: impl FnOnce(&mut ReplyWriter)) -> String {
        let mut reply = ReplyWriter::default();
        reply.set_version(version);
        write(&mut reply);
        String::from_utf8(reply.bytes).expect("text")
    }

    #[test]
    fn each_version_has_its_own_nulls_maps_and_texts() {
        let all = |reply: &mut ReplyWriter| {
            reply.null();
            reply.null_array();
            reply.map(1);
            reply.set(2);
            reply.verbatim("hi");
        };
        assert_eq!(written(RespVersion::Two, all), "$-1\r\n*-1\r\n*2\r\n*2\r\n$2\r\nhi\r\n");
        assert_eq!(written(RespVersion::Three, all), "_\r\n_\r\n%1\r\n~2\r\n=6\r\ntxt:hi\r\n");
    }

    #[test]
    fn an_appended_value_is_a_string_like_any_other() {
        for bytes in [0, 1, 9, 10, 99_999, 1_000_000] {
            let value = vec![b'x'; bytes];
            let appended = |reply: &mut ReplyWriter| {
                reply.integer(7);
                let append = |buffer: &mut Vec<u8>| {
                    buffer.extend(&value);
                    Ok::<_, ()>(true)
                };
                reply.bulk_with(append).expect("no error");
            };
            let expected = |reply: &mut ReplyWriter| {
                reply.integer(7);
                reply.bulk(&value);
            };
            assert_eq!(written(RespVersion::Two, appended), written(RespVersion::Two, expected));
        }
        let absent = |reply: &mut ReplyWriter| reply.bulk_with(|_| Ok::<_, ()>(false)).expect("no error");
        assert_eq!(written(RespVersion::Two, absent), "$-1\r\n");
        assert_eq!(written(RespVersion::Two, |reply| _ = reply.bulk_with(|_| Err(()))), "");
    }

    #[test]
    fn numbers_are_decimal_and_errors_stay_in_their_line() {
        for value in [0, 7, -1, 10, i64::MAX, i64::MIN] {
            assert_eq!(written(RespVersion::Two, |reply| reply.integer(value)), format!(":{value}\r\n"));
        }
        assert_eq!(written(RespVersion::Two, |reply| reply.error(b"ERR a\r\nb")), "-ERR a  b\r\n");
    }
}
