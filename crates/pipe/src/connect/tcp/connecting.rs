//! The connecting side: all addresses, a moment apart (RFC 8305), and the first that knows the key is it.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};
use std::{fmt, io};

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, ipproto, socket_with, sockopt};

use super::handshake::{
    Exchange, GREETING_BYTES, HandshakeCaller, PeerRefusal, SessionId, VERSION, check_start,
};
use super::{tuning, wait};
use crate::cancel::Cancel;
use crate::limits::CONNECT_STAGGER;
use crate::{Error, PipeKey};

/// A connection that has proved itself.
#[derive(Debug)]
pub struct ProvenConnection {
    /// Blocks.
    pub socket: OwnedFd,
    /// Where it leads.
    pub address: SocketAddr,
    /// Who is there.
    pub session: SessionId,
    /// How long an answer took.
    pub round_trip: Duration,
}

/// One address, and why it is not it.
#[derive(Debug)]
pub struct FailedAddress {
    /// Which.
    pub address: SocketAddr,
    /// Why.
    pub why: AddressFailure,
}

/// Why an attempt ended.
#[derive(Debug)]
pub enum AddressFailure {
    /// Nobody is there who speaks this protocol; in the words of an error.
    Unreached(String),
    /// Somebody is.
    Refused(PeerRefusal),
}

impl fmt::Display for AddressFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreached(words) => f.write_str(words),
            Self::Refused(PeerRefusal::Stranger) => {
                f.write_str("is no Caravan: something else listens there")
            }
            Self::Refused(PeerRefusal::Version(version)) => write!(
                f,
                "speaks version {version} of the protocol, and this host version {VERSION}: install the same Caravan"
            ),
            Self::Refused(PeerRefusal::Key) => {
                f.write_str("does not know the key: another transfer listens there, or the key is wrong")
            }
            Self::Refused(PeerRefusal::Count) => f.write_str("wants another number of streams"),
            Self::Refused(PeerRefusal::Session) => {
                f.write_str("is another process than the one that answered first")
            }
        }
    }
}

/// What every attempt of a call is made with.
#[derive(Clone, Copy)]
pub struct CallTerms<'a> {
    /// What the other side must know.
    pub key: &'a PipeKey,
    /// Our side of all its connections.
    pub session: &'a SessionId,
    /// How many there are to be.
    pub count: u16,
    /// For the words of an error.
    pub limit: Duration,
    /// When that is over.
    pub until: Option<Instant>,
    /// To end it.
    pub cancel: &'a Cancel,
}

/// One attempt at an address, for one stream.
struct Attempt {
    address: SocketAddr,
    exchange: Exchange,
    caller: HandshakeCaller,
    since: Instant,
    is_connected: bool,
    round_trip: Duration,
}

/// The first of all addresses, for stream 0; or why none.
pub fn first(
    addresses: &[SocketAddr],
    terms: &CallTerms,
) -> Result<Result<ProvenConnection, Vec<FailedAddress>>, Error> {
    let mut waiting: VecDeque<_> = addresses.iter().copied().collect();
    let (mut attempts, mut failed) = (Vec::<Attempt>::new(), Vec::new());
    let mut next = Instant::now();
    loop {
        let now = Instant::now();
        // The next one's turn also comes when nobody is left to wait for.
        if now >= next || attempts.is_empty() {
            if let Some(address) = waiting.pop_front() {
                match Attempt::new(address, 0, terms)? {
                    Ok(attempt) => {
                        attempts.push(attempt);
                        next = now + CONNECT_STAGGER;
                    }
                    Err(why) => failed.push(FailedAddress { address, why }),
                }
                continue;
            }
        }
        if attempts.is_empty() {
            return Ok(Err(failed));
        }
        if terms.is_over(now) {
            let late = |attempt: &Attempt| FailedAddress {
                address: attempt.address,
                why: attempt.late(terms.limit),
            };
            failed.extend(attempts.iter().map(late));
            failed.extend(waiting.into_iter().map(|address| FailedAddress {
                address,
                why: AddressFailure::Unreached("was not tried".to_owned()),
            }));
            return Ok(Err(failed));
        }
        let ready = poll_all(&attempts, (!waiting.is_empty()).then_some(next), terms)?;
        for (mut attempt, ready) in std::mem::take(&mut attempts).into_iter().zip(ready) {
            let address = attempt.address;
            match if ready { attempt.step(terms.key) } else { Ok(None) } {
                Ok(None) => attempts.push(attempt),
                // All others are closed by being dropped.
                Ok(Some(session)) => return Ok(Ok(attempt.won(session)?)),
                Err(why) => {
                    failed.push(FailedAddress { address, why });
                    next = now;
                }
            }
        }
    }
}

/// The streams behind the first, to the same place, all at once and in their order.
pub fn others(
    first: &ProvenConnection,
    terms: &CallTerms,
) -> Result<Result<Vec<ProvenConnection>, FailedAddress>, Error> {
    let address = first.address;
    let fail = |why| Ok(Err(FailedAddress { address, why }));
    let mut attempts = Vec::new();
    for index in 1..terms.count {
        match Attempt::new(address, index, terms)? {
            Ok(attempt) => attempts.push((index, attempt)),
            Err(why) => return fail(why),
        }
    }
    let mut won = Vec::new();
    while !attempts.is_empty() {
        if let Some((_, attempt)) = attempts.first().filter(|_| terms.is_over(Instant::now())) {
            return fail(attempt.late(terms.limit));
        }
        let ready = poll_all(attempts.iter().map(|(_, attempt)| attempt), None, terms)?;
        for ((index, mut attempt), ready) in std::mem::take(&mut attempts).into_iter().zip(ready) {
            match if ready { attempt.step(terms.key) } else { Ok(None) } {
                Ok(None) => attempts.push((index, attempt)),
                Ok(Some(session)) if session == first.session => won.push((index, attempt.won(session)?)),
                Ok(Some(_)) => return fail(AddressFailure::Refused(PeerRefusal::Session)),
                Err(why) => return fail(why),
            }
        }
    }
    won.sort_by_key(|(index, _)| *index);
    Ok(Ok(won.into_iter().map(|(_, won)| won).collect()))
}

impl CallTerms<'_> {
    fn is_over(&self, now: Instant) -> bool {
        self.until.is_some_and(|until| until <= now)
    }
}

/// Which of them have something to do.
fn poll_all<'a>(
    attempts: impl IntoIterator<Item = &'a Attempt>,
    turn: Option<Instant>,
    terms: &CallTerms,
) -> Result<Vec<bool>, Error> {
    let mut set = vec![PollFd::new(terms.cancel, PollFlags::IN)];
    set.extend(attempts.into_iter().map(|attempt| {
        let events = if attempt.is_connected { attempt.exchange.events() } else { PollFlags::OUT };
        PollFd::from_borrowed_fd(attempt.exchange.socket().as_fd(), events)
    }));
    wait(&mut set, turn.into_iter().chain(terms.until).min())?;
    if terms.cancel.is_fired() {
        return Err(Error::Cancelled);
    }
    Ok(set[1..].iter().map(|polled| !polled.revents().is_empty()).collect())
}

impl Attempt {
    /// Begins; the inner error says why it cannot.
    fn new(
        address: SocketAddr,
        index: u16,
        terms: &CallTerms,
    ) -> Result<Result<Self, AddressFailure>, Error> {
        let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = match socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP)) {
            Ok(socket) => socket,
            Err(errno) => return Ok(Err(unreached(errno))),
        };
        let caller = HandshakeCaller::new(terms.session, index, terms.count)?;
        tuning::prepare(&socket);
        match connect(&socket, &address) {
            Ok(()) | Err(Errno::INPROGRESS | Errno::INTR) => {}
            Err(errno) => return Ok(Err(unreached(errno))),
        }
        let (since, round_trip) = (Instant::now(), Duration::MAX);
        let exchange = Exchange::new(socket);
        Ok(Ok(Self { address, exchange, caller, since, is_connected: false, round_trip }))
    }

    /// Goes on; the other side's session once it has proved itself and was given our proof.
    fn step(&mut self, key: &PipeKey) -> Result<Option<SessionId>, AddressFailure> {
        if !self.is_connected {
            match sockopt::socket_error(self.exchange.socket()) {
                Ok(Ok(())) => {}
                Ok(Err(errno)) | Err(errno) => return Err(unreached(errno)),
            }
            self.is_connected = true;
            self.exchange.say(self.caller.hello());
            self.exchange.hear(GREETING_BYTES);
            // The shorter of both round trips is nearer to the path's: a lost packet, or a busy processor, is
            // in the other.
            self.round_trip = self.since.elapsed();
            self.since = Instant::now();
        }
        let advanced = self.exchange.advance();
        check_start(self.exchange.heard()).map_err(AddressFailure::Refused)?;
        advanced.map_err(|error| lost(&error))?;
        if !self.exchange.is_over() {
            return Ok(None);
        }
        let Some(greeting) = self.exchange.heard().first_chunk() else { return Ok(None) };
        let round_trip = self.round_trip.min(self.since.elapsed());
        let (answer, session) =
            self.caller.answer(key, greeting, round_trip).map_err(AddressFailure::Refused)?;
        self.round_trip = round_trip;
        self.exchange.hear(0);
        self.exchange.say(&answer);
        // It fits into an empty socket's buffer.
        self.exchange.advance().map_err(|error| lost(&error))?;
        Ok(self.exchange.is_over().then_some(session))
    }

    fn won(self, session: SessionId) -> Result<ProvenConnection, Error> {
        let (address, round_trip) = (self.address, self.round_trip);
        let socket = self.exchange.into_blocking();
        let socket = socket.map_err(Error::system("ioctl(FIONBIO)"))?;
        Ok(ProvenConnection { socket, address, session, round_trip })
    }

    fn late(&self, limit: Duration) -> AddressFailure {
        let seconds = limit.as_secs_f64();
        AddressFailure::Unreached(match self.is_connected {
            false => format!("did not answer within {seconds} s (a firewall, or no such host)"),
            true => format!("took the connection and said nothing within {seconds} s"),
        })
    }
}

fn unreached(errno: Errno) -> AddressFailure {
    AddressFailure::Unreached(match errno {
        Errno::CONNREFUSED => {
            "refused the connection: nothing listens there, or a firewall says so".to_owned()
        }
        Errno::TIMEDOUT => "did not answer (a firewall, or no such host)".to_owned(),
        Errno::NETUNREACH | Errno::HOSTUNREACH | Errno::AFNOSUPPORT | Errno::ADDRNOTAVAIL => {
            "is unreachable from here: no route leads there".to_owned()
        }
        Errno::ACCESS | Errno::PERM => "is forbidden by this host's firewall".to_owned(),
        other => format!("cannot be reached: {}", io::Error::from(other)),
    })
}

fn lost(error: &io::Error) -> AddressFailure {
    AddressFailure::Unreached(match error.kind() {
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => {
            "took the connection and closed it again: it is taken already, or no Caravan listens there"
                .to_owned()
        }
        _ => format!("broke off: {error}"),
    })
}
