//! The connecting side: tries all addresses, a moment apart (RFC 8305), and takes the first peer that knows the
//! key.

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

/// A connection whose peer has proved that it knows the key.
#[derive(Debug)]
pub struct ProvenConnection {
    /// The socket, which blocks.
    pub socket: OwnedFd,
    /// The address of the peer.
    pub address: SocketAddr,
    /// The session of the peer.
    pub session: SessionId,
    /// The round trip of the path.
    pub round_trip: Duration,
}

/// An address at which the attempt failed.
#[derive(Debug)]
pub struct FailedAddress {
    /// The address.
    pub address: SocketAddr,
    /// Why the attempt failed.
    pub why: AddressFailure,
}

/// Why an attempt failed.
#[derive(Debug)]
pub enum AddressFailure {
    /// Nobody there speaks this protocol; the words of an error.
    Unreached(String),
    /// A listener answered that is not the wanted peer.
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

/// What all attempts of a call have in common.
#[derive(Clone, Copy)]
pub struct CallTerms<'a> {
    /// The key that the other side must know.
    pub key: &'a PipeKey,
    /// This side's session in all connections.
    pub session: &'a SessionId,
    /// The number of connections to make.
    pub count: u16,
    /// The time limit, for the words of an error.
    pub limit: Duration,
    /// When the limit is over.
    pub until: Option<Instant>,
    /// Ends the call.
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

/// Tries all addresses for stream 0. Returns the first connection, or why each address failed.
pub fn first(
    addresses: &[SocketAddr],
    terms: &CallTerms,
) -> Result<Result<ProvenConnection, Vec<FailedAddress>>, Error> {
    let mut waiting: VecDeque<_> = addresses.iter().copied().collect();
    let (mut attempts, mut failed) = (Vec::<Attempt>::new(), Vec::new());
    let mut next = Instant::now();
    loop {
        let now = Instant::now();
        // The next address also gets its turn when no attempt is left to wait for.
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
                // Dropping the other attempts closes them.
                Ok(Some(session)) => return Ok(Ok(attempt.won(session)?)),
                Err(why) => {
                    failed.push(FailedAddress { address, why });
                    next = now;
                }
            }
        }
    }
}

/// Connects the streams after the first, to the same address, all at once and in order.
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

/// Returns which attempts have something to do.
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
    /// Starts an attempt; the inner error says why it cannot start.
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

    /// Advances the attempt. Returns the other side's session once that side has proved that it knows the key and
    /// this side has sent its own proof.
    fn step(&mut self, key: &PipeKey) -> Result<Option<SessionId>, AddressFailure> {
        if !self.is_connected {
            match sockopt::socket_error(self.exchange.socket()) {
                Ok(Ok(())) => {}
                Ok(Err(errno)) | Err(errno) => return Err(unreached(errno)),
            }
            self.is_connected = true;
            self.exchange.say(self.caller.hello());
            self.exchange.hear(GREETING_BYTES);
            // The shorter of the two round trips is nearer to the path's: the longer one includes a lost packet, or
            // a busy processor.
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
        // The proof fits into an empty socket buffer.
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
