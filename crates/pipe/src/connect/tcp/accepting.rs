//! The listening side: accepts many connections and takes one session.

use std::fmt;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with};

use super::handshake::{
    ANSWER_BYTES, Exchange, HELLO_BYTES, HandshakeError, HandshakeListener, PeerRefusal, SessionId,
    check_start, version_only,
};
use super::wait;
use crate::cancel::Cancel;
use crate::limits::{HANDSHAKE_LIMIT, STRANGERS_MAX};
use crate::{Error, PipeKey};

/// The number of sessions of a peer whose connections are kept, if the peer starts again: those of its last tries.
const SESSIONS_MAX: usize = 4;

/// All connections of one session, in their order.
#[derive(Debug)]
pub struct AcceptedSession {
    /// The session.
    pub session: SessionId,
    /// The sockets, and the round trip of each, as the other side has measured it.
    pub sockets: Vec<(OwnedFd, Duration)>,
}

/// The connections that were turned away, by reason.
#[derive(Clone, Copy, Debug, Default)]
pub struct Strangers {
    /// They spoke another protocol, or sent nothing.
    others: u32,
    /// They did not know the key.
    key: u32,
    /// They had another version; the number of them, and the version of the last one.
    version: (u32, u16),
    /// They wanted another number of connections.
    count: u32,
}

/// A connection whose peer has not yet proved that it knows the key.
struct PendingPeer {
    exchange: Exchange,
    until: Instant,
    /// The handshake, once the peer has sent its hello.
    greeted: Option<HandshakeListener>,
}

/// The state of one call.
pub struct Accepting<'a> {
    /// The key that the peer must know.
    pub key: &'a PipeKey,
    /// This side's session in all connections.
    pub session: SessionId,
    /// How many connections the peer must make; `None`: as many as it says.
    pub count: Option<u16>,
    pending: Vec<PendingPeer>,
    /// Sessions that are not complete, the latest at the end.
    taken: Vec<PartialSession>,
    strangers: Strangers,
}

/// The connections of a session so far.
struct PartialSession {
    session: SessionId,
    sockets: Vec<Option<(OwnedFd, Duration)>>,
}

impl<'a> Accepting<'a> {
    /// Returns the state before the first connection.
    pub fn new(key: &'a PipeKey, session: SessionId, count: Option<u16>) -> Self {
        Self { key, session, count, pending: Vec::new(), taken: Vec::new(), strangers: Strangers::default() }
    }

    /// Accepts connections until one session is complete. Returns the reasons why connections were turned away if
    /// that has not happened by `until`.
    pub fn run(
        mut self,
        listener: &OwnedFd,
        until: Option<Instant>,
        cancel: &Cancel,
    ) -> Result<Result<AcceptedSession, Strangers>, Error> {
        loop {
            let now = Instant::now();
            if until.is_some_and(|until| until <= now) {
                return Ok(Err(self.strangers));
            }
            self.forget_late(now);
            let wakes = self.pending.iter().map(|pending| pending.until).chain(until);
            let ready = {
                let mut set = vec![PollFd::new(cancel, PollFlags::IN), PollFd::new(listener, PollFlags::IN)];
                let sockets = self.pending.iter().map(|pending| &pending.exchange);
                set.extend(
                    sockets.map(|exchange| {
                        PollFd::from_borrowed_fd(exchange.socket().as_fd(), exchange.events())
                    }),
                );
                wait(&mut set, wakes.min())?;
                set.iter().map(|polled| !polled.revents().is_empty()).collect::<Vec<_>>()
            };
            if cancel.is_fired() {
                return Err(Error::Cancelled);
            }
            self.advance(&ready[2..])?;
            if let Some(taken) = self.whole() {
                return Ok(Ok(taken));
            }
            if ready[1] {
                self.accept_all(listener)?;
            }
        }
    }

    /// Drops connections whose handshake has taken too long.
    fn forget_late(&mut self, now: Instant) {
        let before = self.pending.len();
        self.pending.retain(|pending| now < pending.until);
        self.strangers.others += (before - self.pending.len()) as u32;
    }

    fn accept_all(&mut self, listener: &OwnedFd) -> Result<(), Error> {
        // The loop is bounded, so that connections in their handshake get their turn.
        for _ in 0..STRANGERS_MAX {
            match accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                Ok(socket) => self.add(socket),
                Err(Errno::AGAIN) => return Ok(()),
                // This process is out of descriptors or memory: the connection that has waited longest makes room.
                Err(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM)
                    if !self.pending.is_empty() =>
                {
                    self.forget_first();
                }
                Err(source @ (Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM | Errno::BADF)) => {
                    return Err(Error::system("accept")(source));
                }
                // A connection that failed before it was accepted (accept(2)) does not affect the others.
                Err(_) => {}
            }
        }
        Ok(())
    }

    fn add(&mut self, socket: OwnedFd) {
        if self.pending.len() == STRANGERS_MAX {
            self.forget_first();
        }
        let mut exchange = Exchange::new(socket);
        exchange.hear(HELLO_BYTES);
        self.pending.push(PendingPeer { exchange, until: Instant::now() + HANDSHAKE_LIMIT, greeted: None });
    }

    fn forget_first(&mut self) {
        self.pending.remove(0);
        self.strangers.others += 1;
    }

    fn advance(&mut self, ready: &[bool]) -> Result<(), Error> {
        let all = std::mem::take(&mut self.pending);
        for (mut pending, ready) in all.into_iter().zip(ready) {
            if !ready {
                self.pending.push(pending);
                continue;
            }
            match pending.step(self.key, &self.session, self.count) {
                Ok(None) => self.pending.push(pending),
                Ok(Some(round_trip)) => self.take(pending, round_trip),
                Err(HandshakeError::Here(refusal)) => {
                    if let PeerRefusal::Version(_) = refusal {
                        pending.exchange.say(&version_only());
                        let _ = pending.exchange.advance();
                    }
                    self.strangers.add(refusal);
                }
                Err(HandshakeError::System(error)) => return Err(error),
            }
        }
        Ok(())
    }

    /// Takes a connection that knows the key. A peer that comes with another session has started again; connections
    /// of its last try may still arrive after that.
    fn take(&mut self, pending: PendingPeer, round_trip: Duration) {
        let Some(listening) = pending.greeted else { return };
        let Ok(socket) = pending.exchange.into_blocking() else { return };
        let (session, count) = (listening.session, usize::from(listening.count));
        let is_same = |part: &PartialSession| part.session == session && part.sockets.len() == count;
        let part = self.taken.iter().position(is_same).unwrap_or_else(|| {
            if self.taken.len() == SESSIONS_MAX {
                self.taken.remove(0);
            }
            self.taken.push(PartialSession { session, sockets: (0..count).map(|_| None).collect() });
            self.taken.len() - 1
        });
        if let Some(place) = self.taken[part].sockets.get_mut(usize::from(listening.index)) {
            *place = Some((socket, round_trip));
        }
    }

    fn whole(&mut self) -> Option<AcceptedSession> {
        let whole = self.taken.iter().position(|part| part.sockets.iter().all(Option::is_some))?;
        let PartialSession { session, sockets } = self.taken.swap_remove(whole);
        Some(AcceptedSession { session, sockets: sockets.into_iter().flatten().collect() })
    }
}

impl PendingPeer {
    /// Advances a handshake. Returns the round trip once the peer has proved that it knows the key.
    fn step(
        &mut self,
        key: &PipeKey,
        session: &SessionId,
        count: Option<u16>,
    ) -> Result<Option<Duration>, HandshakeError> {
        self.advance().map_err(HandshakeError::Here)?;
        if self.greeted.is_none() && self.exchange.is_over() {
            self.greet(key, session, count)?;
            // The proof may have arrived already, and then nothing else announces it.
            self.advance().map_err(HandshakeError::Here)?;
        }
        match &self.greeted {
            Some(listening) if self.exchange.is_over() => {
                listening.verify(key, self.exchange.heard()).map(Some).map_err(HandshakeError::Here)
            }
            _ => Ok(None),
        }
    }

    fn advance(&mut self) -> Result<(), PeerRefusal> {
        let advanced = self.exchange.advance();
        if self.greeted.is_some() {
            // A peer that leaves after the greeting may have seen that this side has another key.
            return advanced.map_err(|_| PeerRefusal::Key);
        }
        check_start(self.exchange.heard())?;
        advanced.map_err(|_| PeerRefusal::Stranger)
    }

    fn greet(
        &mut self,
        key: &PipeKey,
        session: &SessionId,
        count: Option<u16>,
    ) -> Result<(), HandshakeError> {
        let Some(hello) = self.exchange.heard().first_chunk() else { return Ok(()) };
        let listening = HandshakeListener::new(key, session, hello)?;
        if count.is_some_and(|count| count != listening.count) {
            return Err(HandshakeError::Here(PeerRefusal::Count));
        }
        self.exchange.say(listening.greeting());
        self.exchange.hear(ANSWER_BYTES);
        self.greeted = Some(listening);
        Ok(())
    }
}

impl Strangers {
    fn add(&mut self, refusal: PeerRefusal) {
        match refusal {
            PeerRefusal::Stranger | PeerRefusal::Session => self.others += 1,
            PeerRefusal::Key => self.key += 1,
            PeerRefusal::Version(version) => self.version = (self.version.0 + 1, version),
            PeerRefusal::Count => self.count += 1,
        }
    }
}

impl fmt::Display for Strangers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        let mut part = |count: u32, what: &str| {
            if count > 0 {
                parts.push(format!("{count} {what}"));
            }
        };
        part(self.key, "did not know the key, or gave up");
        part(self.version.0, &format!("spoke version {} of the protocol", self.version.1));
        part(self.count, "wanted another number of streams");
        part(self.others, "said nothing, or something else");
        match parts.is_empty() {
            true => f.write_str("nobody came"),
            false => write!(f, "of those who came, {}", parts.join(", ")),
        }
    }
}
