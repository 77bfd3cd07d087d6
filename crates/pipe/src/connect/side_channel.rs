//! Messages between the two ends of a connection beside the data, where no ssh session carries them.
//!
//! A message is a [frame](crate::framing) of JSON and an HMAC-SHA256 over its number and its text, with a key of
//! its own for each direction. An attacker between the hosts can read messages, and end the connection, but cannot
//! change a message, leave one out or repeat one.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use aead::{hkdf, hmac};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown, getpeername, recv, send, shutdown};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{DataChannel, DataConnection, HopSide};
use crate::limits::WORD_BYTES_MAX;
use crate::{Error, framing};

const TAG_BYTES: usize = 32;

/// One end of a side channel.
#[derive(Debug)]
pub struct SideChannel {
    socket: OwnedFd,
    ours: Voice,
    theirs: Voice,
    /// The bytes that have arrived of the next messages.
    inbox: Vec<u8>,
}

/// What has arrived on a side channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Incoming<T> {
    /// A message.
    Word(T),
    /// No complete message yet.
    Nothing,
    /// The other end has closed the channel.
    End,
}

#[derive(Debug)]
struct Voice {
    key: hmac::Key,
    next: u64,
}

impl SideChannel {
    /// Uses the last stream of a connection as a side channel. Both ends must do so.
    pub fn beside(connection: &mut DataConnection, side: HopSide) -> Result<Self, Error> {
        let socket = match &mut connection.channel {
            DataChannel::Streams(streams) if streams.len() > 1 => streams.pop(),
            _ => None,
        };
        let socket = socket.ok_or_else(|| Error::Protocol("has no stream for words".to_owned()))?;
        let of_sender = Voice::new(&connection.secret.0, b"caravan 1 words of the sender")?;
        let of_receiver = Voice::new(&connection.secret.0, b"caravan 1 words of the receiver")?;
        let (ours, theirs) = match side {
            HopSide::Sender => (of_sender, of_receiver),
            HopSide::Receiver => (of_receiver, of_sender),
        };
        Ok(Self { socket, ours, theirs, inbox: Vec::new() })
    }

    /// Returns the address of the other end.
    pub fn peer(&self) -> Option<SocketAddr> {
        let peer = SocketAddr::try_from(getpeername(&self.socket).ok()??).ok()?;
        Some(SocketAddr::new(peer.ip().to_canonical(), peer.port()))
    }

    /// Sends a message. Messages are few and short; a full socket buffer counts as the end of the connection.
    pub fn say<T: Serialize>(&mut self, word: &T) -> io::Result<()> {
        let body = serde_json::to_vec(word)?;
        let tag = self.ours.sign(&body);
        let mut rest = &framing::frame(&[&body, tag.as_ref()], WORD_BYTES_MAX + TAG_BYTES)?[..];
        while !rest.is_empty() {
            match send(&self.socket, rest, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
                Ok(count) => rest = rest.get(count..).unwrap_or_default(),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Returns what has arrived. Never blocks; the descriptor is readable when there is something.
    pub fn hear<T: DeserializeOwned>(&mut self) -> Result<Incoming<T>, Error> {
        loop {
            if let Some(word) = self.next_word()? {
                return Ok(Incoming::Word(word));
            }
            let mut room = [0; 512];
            match recv(&self.socket, &mut room, RecvFlags::DONTWAIT) {
                Ok((0, _)) | Err(Errno::CONNRESET | Errno::PIPE) => return Ok(Incoming::End),
                Ok((count, _)) => self.inbox.extend(room.iter().take(count)),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(Incoming::Nothing),
                Err(source) => return Err(Error::system("recv")(source)),
            }
        }
    }

    /// Ends this direction of the channel.
    pub fn close(&self) {
        let _ = shutdown(&self.socket, Shutdown::Write);
    }

    fn next_word<T: DeserializeOwned>(&mut self) -> Result<Option<T>, Error> {
        let first = framing::first(&self.inbox, WORD_BYTES_MAX + TAG_BYTES);
        let first = first.map_err(|_| Error::Protocol("sent too long a message".to_owned()))?;
        let Some((body, bytes)) = first else { return Ok(None) };
        let split = body.split_last_chunk::<TAG_BYTES>();
        let (body, tag) =
            split.ok_or_else(|| Error::Protocol("sent a message without a proof".to_owned()))?;
        self.theirs.verify(body, tag)?;
        let word = serde_json::from_slice(body);
        let word = word.map_err(|_| Error::Protocol("sent a message that makes no sense".to_owned()))?;
        self.inbox.drain(..bytes);
        Ok(Some(word))
    }
}

impl AsFd for SideChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Voice {
    fn new(secret: &[u8; 32], label: &[u8]) -> Result<Self, Error> {
        let mut key = [0; 32];
        hkdf::Prk::new_less_safe(hkdf::HKDF_SHA256, secret)
            .expand(&[label], hkdf::HKDF_SHA256)
            .and_then(|material| material.fill(&mut key))
            .map_err(|_| Error::Protocol("gives no secret".to_owned()))?;
        Ok(Self { key: hmac::Key::new(hmac::HMAC_SHA256, &key), next: 0 })
    }

    fn sign(&mut self, body: &[u8]) -> hmac::Tag {
        let tag = hmac::sign(&self.key, &[&self.next.to_be_bytes(), body].concat());
        self.next += 1;
        tag
    }

    fn verify(&mut self, body: &[u8], tag: &[u8]) -> Result<(), Error> {
        hmac::verify(&self.key, &[&self.next.to_be_bytes(), body].concat(), tag).map_err(|_| {
            Error::Damaged(
                "a word is not as it was said: something between the hosts changes data".to_owned(),
            )
        })?;
        self.next += 1;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::connect::Secret;

    /// Returns a sender's and a receiver's end, each with its far socket: the test carries the bytes between them.
    fn ends() -> (SideChannel, UnixStream, SideChannel, UnixStream) {
        let of = |side| {
            let (ours, between) = UnixStream::pair().expect("a pair");
            let (data, _) = UnixStream::pair().expect("a pair");
            let streams = DataChannel::Streams(vec![data.into(), ours.into()]);
            let description = String::new();
            let mut connection = DataConnection { channel: streams, secret: Secret([9; 32]), description };
            (SideChannel::beside(&mut connection, side).expect("words"), between)
        };
        let ((sender, at_sender), (receiver, at_receiver)) = (of(HopSide::Sender), of(HopSide::Receiver));
        at_sender.set_nonblocking(true).expect("set");
        (sender, at_sender, receiver, at_receiver)
    }

    fn said(between: &UnixStream) -> Vec<u8> {
        let mut bytes = vec![0; 1 << 16];
        let count = io::Read::read(&mut &*between, &mut bytes).expect("said");
        bytes.truncate(count);
        bytes
    }

    #[test]
    fn words_come_as_they_were_said() {
        let (mut sender, at_sender, mut receiver, mut at_receiver) = ends();
        assert_eq!(receiver.hear::<u8>().expect("open"), Incoming::Nothing);
        sender.say(&"first").and_then(|()| sender.say(&"second")).expect("said");
        // The message arrives byte by byte.
        let (last, bytes) = {
            let mut bytes = said(&at_sender);
            (bytes.pop().expect("some"), bytes)
        };
        let mut heard = Vec::new();
        for byte in bytes {
            at_receiver.write_all(&[byte]).expect("passed on");
            if let Incoming::Word(word) = receiver.hear::<String>().expect("good") {
                heard.push(word);
            }
        }
        assert_eq!(heard, ["first"]);
        at_receiver.write_all(&[last]).expect("passed on");
        assert_eq!(receiver.hear::<String>().expect("good"), Incoming::Word("second".to_owned()));
        drop(at_receiver);
        assert_eq!(receiver.hear::<String>().expect("an end"), Incoming::End);
    }

    #[test]
    fn no_word_can_be_changed_said_again_left_out_or_sent_back() {
        let word = |number: usize| {
            let (mut sender, at_sender, receiver, at_receiver) = ends();
            (0..=number).for_each(|word| sender.say(&word).expect("said"));
            (said(&at_sender), sender, receiver, at_receiver)
        };
        let (bytes, ..) = word(0);
        for bit in 0..bytes.len() * 8 {
            let (_, _, mut receiver, mut at_receiver) = word(0);
            let mut changed = bytes.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            at_receiver.write_all(&changed).expect("passed on");
            let heard = receiver.hear::<usize>();
            assert!(matches!(heard, Err(_) | Ok(Incoming::Nothing)), "{bit}: {heard:?}");
        }
        let (_, mut sender, mut receiver, mut at_receiver) = word(0);
        at_receiver.write_all(&[&bytes[..], &bytes].concat()).expect("passed on");
        assert!(matches!(receiver.hear::<usize>(), Ok(Incoming::Word(0))));
        assert!(matches!(receiver.hear::<usize>(), Err(Error::Damaged(_))), "again");
        let (both, _, mut receiver, mut at_receiver) = word(1);
        at_receiver.write_all(&both[bytes.len()..]).expect("passed on");
        assert!(matches!(receiver.hear::<usize>(), Err(Error::Damaged(_))), "left out");
        // The message goes back to its sender.
        sender.inbox.extend(&bytes);
        assert!(matches!(sender.hear::<usize>(), Err(Error::Damaged(_))), "sent back");
    }

    #[test]
    fn long_words_are_refused_on_both_sides() {
        let (mut sender, _at_sender, mut receiver, mut at_receiver) = ends();
        assert!(sender.say(&"x".repeat(WORD_BYTES_MAX)).is_err());
        at_receiver.write_all(&[0xff; 64]).expect("passed on");
        assert!(matches!(receiver.hear::<String>(), Err(Error::Protocol(_))));
    }

    #[test]
    fn one_stream_is_none_to_spare() {
        let (stream, _) = UnixStream::pair().expect("a pair");
        let channel = DataChannel::Streams(vec![stream.into()]);
        let mut connection = DataConnection { channel, secret: Secret([9; 32]), description: String::new() };
        assert!(matches!(SideChannel::beside(&mut connection, HopSide::Sender), Err(Error::Protocol(_))));
    }
}
