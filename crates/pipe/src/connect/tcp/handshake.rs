//! How two ends of a TCP connection prove to each other that they know the key.
//!
//! | connecting side | | listening side |
//! |---|---|---|
//! | hello: version, which stream of how many, session, nonce | -> | |
//! | | <- | greeting: version, session, nonce; its proof |
//! | the path's round trip; its proof | -> | |
//!
//! A proof is an HMAC-SHA256 with the key over its side's label and all that was sent before. Both nonces are fresh
//! for each connection, so an earlier message proves nothing. The labels differ, so a proof that is sent back to
//! its maker proves nothing. The sessions are the same in all connections of two ends; the secret is derived from
//! them and the key.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use aead::hmac;
use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use rustix::rand::{GetRandomFlags, getrandom};

use crate::connect::Secret;
use crate::limits::CONNECTIONS_MAX;
use crate::{Error, PipeKey};

/// The bytes at the beginning of every hello and greeting, and of no other protocol.
pub const MAGIC: [u8; 8] = *b"\x89caravan";
/// The version of the handshake; it changes with any message.
pub const VERSION: u16 = 2;
/// The bytes of a hello.
pub const HELLO_BYTES: usize = MAGIC.len() + 2 + 2 + 2 + SESSION_BYTES + NONCE_BYTES;
/// The bytes of a greeting with its proof.
pub const GREETING_BYTES: usize = HEAD_BYTES + PROOF_BYTES;
/// The bytes of the answer to a greeting.
pub const ANSWER_BYTES: usize = 4 + PROOF_BYTES;

const PROOF_BYTES: usize = 32;
const SESSION_BYTES: usize = 32;
const NONCE_BYTES: usize = 32;
const HEAD_BYTES: usize = MAGIC.len() + 2 + SESSION_BYTES + NONCE_BYTES;

/// The bytes that identify one end in all its connections to the other.
pub type SessionId = [u8; SESSION_BYTES];

/// Why the other end is turned away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerRefusal {
    /// It speaks another protocol.
    Stranger,
    /// It speaks another version.
    Version(u16),
    /// It does not know the key.
    Key,
    /// It has another number of connections.
    Count,
    /// Its session is not that of the peer that answered first.
    Session,
}

/// Returns a new session.
pub fn session() -> Result<SessionId, Error> {
    random()
}

/// The connecting side's handshake on one connection.
#[derive(Debug)]
pub struct HandshakeCaller {
    hello: [u8; HELLO_BYTES],
}

impl HandshakeCaller {
    /// Returns the handshake of stream `index` of `count`.
    pub fn new(session: &SessionId, index: u16, count: u16) -> Result<Self, Error> {
        let nonce: [u8; NONCE_BYTES] = random()?;
        let mut hello = [0; HELLO_BYTES];
        let numbers = [VERSION, index, count].map(u16::to_be_bytes);
        join(&mut hello, &[&MAGIC, numbers.as_flattened(), session, &nonce]);
        Ok(Self { hello })
    }

    /// Returns the first message.
    pub fn hello(&self) -> &[u8; HELLO_BYTES] {
        &self.hello
    }

    /// Checks a greeting. Returns the answer, which reports how long the greeting took, and the other side's
    /// session.
    pub fn answer(
        &self,
        key: &PipeKey,
        greeting: &[u8; GREETING_BYTES],
        round_trip: Duration,
    ) -> Result<([u8; ANSWER_BYTES], SessionId), PeerRefusal> {
        let (head, proof) = greeting.split_at(HEAD_BYTES);
        let (_, rest) = versioned(head)?;
        let Some((session, _)) = rest.split_first_chunk() else { return Err(PeerRefusal::Stranger) };
        verify(key, LISTENER, &[&self.hello, head], proof)?;
        let round_trip = u32::try_from(round_trip.as_micros()).unwrap_or(u32::MAX).to_be_bytes();
        let proof = sign(key, CALLER, &[&self.hello, greeting, &round_trip]);
        let mut answer = [0; ANSWER_BYTES];
        join(&mut answer, &[&round_trip, &proof]);
        Ok((answer, *session))
    }
}

/// The listening side's handshake on a connection that has sent its hello.
#[derive(Debug)]
pub struct HandshakeListener {
    hello: [u8; HELLO_BYTES],
    greeting: [u8; GREETING_BYTES],
    /// The index of the stream.
    pub index: u16,
    /// The number of streams.
    pub count: u16,
    /// The session of the other side.
    pub session: SessionId,
}

impl HandshakeListener {
    /// Reads a hello.
    pub fn new(
        key: &PipeKey,
        session: &SessionId,
        hello: &[u8; HELLO_BYTES],
    ) -> Result<Self, HandshakeError> {
        let (_, rest) = versioned(hello).map_err(HandshakeError::Here)?;
        let numbers = rest.split_first_chunk().and_then(|(index, rest)| {
            let (count, rest) = rest.split_first_chunk()?;
            let (theirs, _) = rest.split_first_chunk()?;
            Some((u16::from_be_bytes(*index), u16::from_be_bytes(*count), *theirs))
        });
        let Some((index, count, theirs)) = numbers else {
            return Err(HandshakeError::Here(PeerRefusal::Stranger));
        };
        if index >= count || u32::from(count) > CONNECTIONS_MAX {
            return Err(HandshakeError::Here(PeerRefusal::Count));
        }
        let nonce: [u8; NONCE_BYTES] = random().map_err(HandshakeError::System)?;
        let mut greeting = [0; GREETING_BYTES];
        let (head, proof) = greeting.split_at_mut(HEAD_BYTES);
        join(head, &[&MAGIC, &VERSION.to_be_bytes(), session, &nonce]);
        proof.copy_from_slice(&sign(key, LISTENER, &[hello, head]));
        Ok(Self { hello: *hello, greeting, index, count, session: theirs })
    }

    /// Returns the answer to the hello.
    pub fn greeting(&self) -> &[u8; GREETING_BYTES] {
        &self.greeting
    }

    /// Checks that the other side knows the key. Returns the round trip that it has measured.
    pub fn verify(&self, key: &PipeKey, answer: &[u8]) -> Result<Duration, PeerRefusal> {
        let (round_trip, proof) = answer.split_first_chunk().ok_or(PeerRefusal::Key)?;
        verify(key, CALLER, &[&self.hello, &self.greeting, round_trip], proof)?;
        Ok(Duration::from_micros(u32::from_be_bytes(*round_trip).into()))
    }
}

/// Why a handshake failed.
#[derive(Debug)]
pub enum HandshakeError {
    /// The peer is refused.
    Here(PeerRefusal),
    /// A system call failed.
    System(Error),
}

/// Returns the beginning of a greeting, for a peer of another version, which sees from it why it is turned away.
pub fn version_only() -> [u8; MAGIC.len() + 2] {
    let mut head = [0; MAGIC.len() + 2];
    join(&mut head, &[&MAGIC, &VERSION.to_be_bytes()]);
    head
}

/// Checks that the bytes so far may become a hello or a greeting of this version.
pub fn check_start(bytes: &[u8]) -> Result<(), PeerRefusal> {
    let compared = bytes.len().min(MAGIC.len());
    if bytes[..compared] != MAGIC[..compared] {
        return Err(PeerRefusal::Stranger);
    }
    if bytes.len() >= MAGIC.len() + 2 { versioned(bytes).map(|_| ()) } else { Ok(()) }
}

/// Returns the secret of two sessions that have both proved that they know the key.
pub fn secret(key: &PipeKey, caller: &SessionId, listener: &SessionId) -> Result<Secret, Error> {
    let mut salt = [0; 2 * SESSION_BYTES];
    join(&mut salt, &[caller, listener]);
    Secret::derive(key, &salt, b"caravan 1 tcp")
}

const LISTENER: &[u8] = b"caravan 1 listener\0";
const CALLER: &[u8] = b"caravan 1 caller\0";

/// Returns the version behind the magic, and the bytes behind the version.
fn versioned(bytes: &[u8]) -> Result<(u16, &[u8]), PeerRefusal> {
    let rest = bytes.strip_prefix(&MAGIC).ok_or(PeerRefusal::Stranger)?;
    let (version, rest) = rest.split_first_chunk().ok_or(PeerRefusal::Stranger)?;
    match u16::from_be_bytes(*version) {
        VERSION => Ok((VERSION, rest)),
        other => Err(PeerRefusal::Version(other)),
    }
}

fn sign(key: &PipeKey, label: &[u8], parts: &[&[u8]]) -> [u8; PROOF_BYTES] {
    let mut context = hmac::Context::with_key(&hmac::Key::new(hmac::HMAC_SHA256, key.bytes()));
    context.update(label);
    parts.iter().for_each(|part| context.update(part));
    let mut proof = [0; PROOF_BYTES];
    proof.copy_from_slice(context.sign().as_ref());
    proof
}

/// Verifies a proof in constant time.
fn verify(key: &PipeKey, label: &[u8], parts: &[&[u8]], proof: &[u8]) -> Result<(), PeerRefusal> {
    let signed = [&[label], parts].concat().concat();
    hmac::verify(&hmac::Key::new(hmac::HMAC_SHA256, key.bytes()), &signed, proof)
        .map_err(|_| PeerRefusal::Key)
}

fn random<const N: usize>() -> Result<[u8; N], Error> {
    let mut bytes = [0; N];
    // getrandom(2) returns up to 256 bytes at once.
    getrandom(&mut bytes, GetRandomFlags::empty()).map_err(|error| Error::Random(error.into()))?;
    Ok(bytes)
}

/// Copies the parts into `whole`, one behind the other; together they are as long as `whole`.
fn join(whole: &mut [u8], parts: &[&[u8]]) {
    let mut rest = whole;
    for part in parts {
        let (here, behind) = rest.split_at_mut(part.len());
        here.copy_from_slice(part);
        rest = behind;
    }
}

/// Both directions of a handshake on a socket.
#[derive(Debug)]
pub struct Exchange {
    socket: OwnedFd,
    out: Vec<u8>,
    said: usize,
    heard: Vec<u8>,
    wanted: usize,
}

impl Exchange {
    /// Returns an exchange over a non-blocking socket.
    pub fn new(socket: OwnedFd) -> Self {
        Self { socket, out: Vec::new(), said: 0, heard: Vec::new(), wanted: 0 }
    }

    /// Queues bytes to send.
    pub fn say(&mut self, bytes: &[u8]) {
        self.out.extend_from_slice(bytes);
    }

    /// Expects `count` more bytes, behind those that are already expected.
    pub fn hear(&mut self, count: usize) {
        self.heard.clear();
        self.wanted = count;
    }

    /// Returns the expected bytes that have arrived.
    pub fn heard(&self) -> &[u8] {
        &self.heard
    }

    /// True if all bytes were sent and all expected bytes have arrived.
    pub fn is_over(&self) -> bool {
        self.is_said() && self.heard.len() == self.wanted
    }

    /// Returns the socket.
    pub fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    /// Returns the events to wait for.
    pub fn events(&self) -> PollFlags {
        let mut events = PollFlags::empty();
        events.set(PollFlags::OUT, !self.is_said());
        events.set(PollFlags::IN, self.heard.len() < self.wanted);
        events
    }

    /// Sends and receives what it can without waiting. The error is `UnexpectedEof` if the other side has closed
    /// the connection.
    pub fn advance(&mut self) -> io::Result<()> {
        while !self.is_said() {
            match send(&self.socket, &self.out[self.said..], SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
                Ok(count) => self.said += count,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(error) => return Err(error.into()),
            }
        }
        while self.heard.len() < self.wanted {
            let mut room = [0; 256];
            let count = (self.wanted - self.heard.len()).min(room.len());
            match recv(&self.socket, &mut room[..count], RecvFlags::DONTWAIT) {
                Ok((0, _)) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok((count, _)) => self.heard.extend_from_slice(&room[..count]),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Returns the socket for data: it blocks from now on.
    pub fn into_blocking(self) -> io::Result<OwnedFd> {
        rustix::io::ioctl_fionbio(&self.socket, false)?;
        Ok(self.socket)
    }

    fn is_said(&self) -> bool {
        self.said == self.out.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRIP: Duration = Duration::from_micros(1234);

    fn key() -> PipeKey {
        PipeKey::from_bytes([7; PipeKey::BYTES])
    }

    fn caller() -> HandshakeCaller {
        HandshakeCaller::new(&[1; SESSION_BYTES], 2, 5).expect("random")
    }

    fn listening(caller: &HandshakeCaller) -> HandshakeListener {
        HandshakeListener::new(&key(), &[2; SESSION_BYTES], caller.hello()).expect("greets")
    }

    #[test]
    fn who_knows_the_key_is_known() {
        let caller = caller();
        let listening = listening(&caller);
        assert_eq!((listening.index, listening.count, listening.session), (2, 5, [1; SESSION_BYTES]));
        let (answer, session) = caller.answer(&key(), listening.greeting(), TRIP).expect("the key");
        assert_eq!(session, [2; SESSION_BYTES]);
        assert_eq!(listening.verify(&key(), &answer), Ok(TRIP));
    }

    #[test]
    fn another_key_is_noticed_by_both_sides() {
        let (caller, other) = (caller(), PipeKey::from_bytes([8; PipeKey::BYTES]));
        let listening = listening(&caller);
        assert_eq!(caller.answer(&other, listening.greeting(), TRIP), Err(PeerRefusal::Key));
        let (answer, _) = caller.answer(&key(), listening.greeting(), TRIP).expect("the key");
        assert_eq!(listening.verify(&other, &answer), Err(PeerRefusal::Key));
    }

    #[test]
    fn nothing_proves_anything_elsewhere() {
        let caller = caller();
        let first = listening(&caller);
        let (answer, _) = caller.answer(&key(), first.greeting(), TRIP).expect("the key");
        // The same hello and answer go to a fresh greeting.
        assert_eq!(listening(&caller).verify(&key(), &answer), Err(PeerRefusal::Key));
        // The listener's own proof is sent back.
        assert_eq!(first.verify(&key(), &first.greeting()[HEAD_BYTES - 4..]), Err(PeerRefusal::Key));
        // An old greeting answers a fresh hello.
        assert_eq!(self::caller().answer(&key(), first.greeting(), TRIP), Err(PeerRefusal::Key));
    }

    #[test]
    fn every_changed_bit_is_noticed() {
        let caller = caller();
        for bit in 0..HELLO_BYTES * 8 {
            let mut hello = *caller.hello();
            hello[bit / 8] ^= 1 << (bit % 8);
            let Ok(listening) = HandshakeListener::new(&key(), &[2; SESSION_BYTES], &hello) else { continue };
            assert!(caller.answer(&key(), listening.greeting(), TRIP).is_err(), "hello, bit {bit}");
        }
        let listening = listening(&caller);
        for bit in 0..GREETING_BYTES * 8 {
            let mut greeting = *listening.greeting();
            greeting[bit / 8] ^= 1 << (bit % 8);
            assert!(caller.answer(&key(), &greeting, TRIP).is_err(), "greeting, bit {bit}");
        }
        let (answer, _) = caller.answer(&key(), listening.greeting(), TRIP).expect("the key");
        for bit in 0..ANSWER_BYTES * 8 {
            let mut answer = answer;
            answer[bit / 8] ^= 1 << (bit % 8);
            assert!(listening.verify(&key(), &answer).is_err(), "answer, bit {bit}");
        }
        for cut in 0..ANSWER_BYTES {
            assert!(listening.verify(&key(), &answer[..cut]).is_err(), "answer of {cut} bytes");
        }
    }

    #[test]
    fn strangers_are_known_by_their_first_byte() {
        assert_eq!(check_start(b"G"), Err(PeerRefusal::Stranger));
        assert_eq!(check_start(b""), Ok(()));
        assert_eq!(check_start(&MAGIC), Ok(()));
        assert_eq!(check_start(&[&MAGIC[..], &[0, 9]].concat()), Err(PeerRefusal::Version(9)));
        assert_eq!(check_start(&version_only()), Ok(()));
    }

    #[test]
    fn counts_have_limits() {
        for (index, count) in [(0, 0), (5, 5), (0, CONNECTIONS_MAX as u16 + 1), (u16::MAX, u16::MAX)] {
            let caller = HandshakeCaller::new(&[1; SESSION_BYTES], index, count).expect("random");
            let refused = HandshakeListener::new(&key(), &[2; SESSION_BYTES], caller.hello());
            assert!(matches!(refused, Err(HandshakeError::Here(PeerRefusal::Count))), "{index} of {count}");
        }
    }

    #[test]
    fn secrets_hang_on_everything() {
        let secret = |key: u8, a: u8, b: u8| {
            let key = PipeKey::from_bytes([key; PipeKey::BYTES]);
            super::secret(&key, &[a; SESSION_BYTES], &[b; SESSION_BYTES]).expect("made").0
        };
        let all = [secret(1, 1, 2), secret(2, 1, 2), secret(1, 2, 2), secret(1, 1, 1), secret(1, 2, 1)];
        for (i, one) in all.iter().enumerate() {
            assert!(all[i + 1..].iter().all(|other| other != one), "{i}");
        }
        assert_eq!(secret(1, 1, 2), secret(1, 1, 2));
    }
}
