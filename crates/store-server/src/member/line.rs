//! A connection between two members: messages as JSON, each with its length in front. Never blocks.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::limits::{LINE_MESSAGE_BYTES_MAX, LINE_UNSENT_BYTES_MAX, READ_BYTES};

/// The bytes of a message's length.
const LENGTH_BYTES: usize = 4;

/// One end of a connection between members.
#[derive(Debug)]
pub(crate) struct MemberLine {
    socket: OwnedFd,
    input: Vec<u8>,
    output: Vec<u8>,
}

/// The connection is at its end, for this reason.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct LineEnd(pub(crate) String);

fn end(why: impl Into<String>) -> LineEnd {
    LineEnd(why.into())
}

impl MemberLine {
    pub(crate) fn new(socket: OwnedFd) -> Result<Self, LineEnd> {
        rustix::io::ioctl_fionbio(&socket, true).map_err(|error| end(error.to_string()))?;
        Ok(Self { socket, input: Vec::new(), output: Vec::new() })
    }

    /// Sends a message, or as much of it as the connection takes now; [`flush`](Self::flush) sends the rest.
    pub(crate) fn send(&mut self, message: &impl Serialize) -> Result<(), LineEnd> {
        let bytes = serde_json::to_vec(message).map_err(|error| end(error.to_string()))?;
        if self.output.len() + bytes.len() > LINE_UNSENT_BYTES_MAX {
            return Err(end("it takes no messages"));
        }
        self.output.extend_from_slice(&(bytes.len() as u32).to_be_bytes());
        self.output.extend_from_slice(&bytes);
        self.flush()
    }

    /// Sends what waits.
    pub(crate) fn flush(&mut self) -> Result<(), LineEnd> {
        while !self.output.is_empty() {
            match send(&self.socket, &self.output, SendFlags::NOSIGNAL) {
                Ok(sent) => drop(self.output.drain(..sent)),
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(error) => return Err(end(error.to_string())),
            }
        }
        Ok(())
    }

    /// Returns whether something waits to be sent.
    pub(crate) fn is_blocked(&self) -> bool {
        !self.output.is_empty()
    }

    /// Takes what has arrived, and calls `each` with each message. An error comes after the messages before it.
    pub(crate) fn receive<M: DeserializeOwned>(&mut self, mut each: impl FnMut(M)) -> Result<(), LineEnd> {
        let mut ended = None;
        while ended.is_none() {
            let before = self.input.len();
            self.input.resize(before + READ_BYTES, 0);
            let read =
                recv(&self.socket, &mut self.input[before..], RecvFlags::empty()).map(|(bytes, _)| bytes);
            self.input.truncate(before + *read.as_ref().unwrap_or(&0));
            match read {
                Ok(0) => ended = Some(end("it closed the connection")),
                Ok(_) => {}
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => {}
                Err(error) => ended = Some(end(error.to_string())),
            }
            self.take(&mut each)?;
        }
        ended.map_or(Ok(()), Err)
    }

    fn take<M: DeserializeOwned>(&mut self, each: &mut impl FnMut(M)) -> Result<(), LineEnd> {
        let mut taken = 0;
        while let Some((length, rest)) = self.input[taken..].split_first_chunk::<LENGTH_BYTES>() {
            let length = u32::from_be_bytes(*length) as usize;
            if length > LINE_MESSAGE_BYTES_MAX {
                return Err(end("a message is too long"));
            }
            let Some(message) = rest.get(..length) else { break };
            let message = serde_json::from_slice(message);
            each(message.map_err(|error| end(format!("a message is of another version: {error}")))?);
            taken += LENGTH_BYTES + length;
        }
        self.input.drain(..taken);
        Ok(())
    }
}

impl AsFd for MemberLine {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    use super::*;

    fn pair() -> (MemberLine, UnixStream) {
        let (one, other) = UnixStream::pair().unwrap();
        (MemberLine::new(one.into()).unwrap(), other)
    }

    fn received(line: &mut MemberLine) -> (Vec<String>, Result<(), LineEnd>) {
        let mut messages = Vec::new();
        let outcome = line.receive(|message: String| messages.push(message));
        (messages, outcome)
    }

    #[test]
    fn messages_arrive_whole_and_in_order_however_they_are_cut() {
        let (mut line, other) = pair();
        let mut sender = MemberLine::new(other.into()).unwrap();
        let mut other = UnixStream::from(sender.socket.try_clone().unwrap());
        assert_eq!(received(&mut line), (vec![], Ok(())));
        sender.send(&"one").unwrap();
        other.write_all(&[0, 0, 0]).unwrap();
        assert_eq!(received(&mut line), (vec!["one".to_owned()], Ok(())));
        other.write_all(b"\x05\"two\"\0\0\0\x07\"three\"").unwrap();
        drop((sender, other));
        let (messages, outcome) = received(&mut line);
        assert_eq!(
            (messages, outcome),
            (vec!["two".to_owned(), "three".to_owned()], Err(end("it closed the connection")))
        );
    }

    #[test]
    fn a_line_that_takes_nothing_or_sends_nonsense_is_at_its_end() {
        let (mut line, mut other) = pair();
        let long = "x".repeat(LINE_UNSENT_BYTES_MAX / 2);
        let ended = std::iter::repeat_with(|| line.send(&long)).take(1000).find_map(Result::err);
        assert_eq!(ended, Some(end("it takes no messages")));
        other.write_all(&u32::MAX.to_be_bytes()).unwrap();
        assert_eq!(received(&mut line), (vec![], Err(end("a message is too long"))));
        let (mut line, mut other) = pair();
        other.write_all(b"\0\0\0\x011").unwrap();
        assert!(received(&mut line).1.unwrap_err().0.starts_with("a message is of another version"));
    }
}
