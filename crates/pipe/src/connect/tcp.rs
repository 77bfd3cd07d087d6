//! Data connections over TCP.
//!
//! A [`DataListener`] accepts a peer that knows a key, and [`connect`] finds the listener at any of its addresses.
//! Both prove to each other that they know the key before they send anything else. Several streams of one
//! connection are in the same order on both sides.

mod accepting;
mod connecting;
mod handshake;
mod tuning;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::os::fd::OwnedFd;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use caravan_fabric::verbs::own_addresses;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketFlags, SocketType, bind, getpeername, getsockname, ipproto, listen, socket_with,
    sockopt,
};

use self::accepting::Accepting;
use self::connecting::{AddressFailure, CallTerms, FailedAddress};
pub(crate) use self::tuning::keep_alive;
use super::{DataChannel, DataConnection, PortRange};
use crate::cancel::Cancel;
use crate::limits::{ADDRESSES_MAX, CONNECT_AGAIN, CONNECT_LIMIT, CONNECTIONS_MAX, STRANGERS_MAX};
use crate::{Error, PipeKey};

/// A listening socket on all addresses, for one connection with a peer that knows the key.
#[derive(Debug)]
pub struct DataListener {
    socket: OwnedFd,
    port: u16,
}

impl DataListener {
    /// Listens on a port of the system's choice, or on the first free one of `ports`.
    pub fn open(ports: Option<PortRange>) -> Result<Self, Error> {
        let Some(ports) = ports else { return Self::at(0).map_err(Error::system("listen")) };
        let (mut taken, mut forbidden) = (false, false);
        for port in ports.first..=ports.last {
            match Self::at(port) {
                Ok(listener) => return Ok(listener),
                Err(Errno::ADDRINUSE) => taken = true,
                Err(Errno::ACCESS | Errno::PERM) => forbidden = true,
                Err(errno) => return Err(Error::system("listen")(errno)),
            }
        }
        Err(Error::Unreachable(none_free(ports, taken, forbidden)))
    }

    /// Returns the port of the listener.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Accepts `streams` connections of one peer that knows the key. Strangers are turned away and do not keep the
    /// listener from accepting the peer.
    pub fn accept(
        self,
        key: &PipeKey,
        streams: u32,
        limit: Duration,
        cancel: &Cancel,
    ) -> Result<DataConnection, Error> {
        let count = count(streams)?;
        self.accept_counted(key, Some(count), limit, cancel)
    }

    /// Accepts as many connections of one peer that knows the key as the peer makes.
    pub fn accept_any(
        self,
        key: &PipeKey,
        limit: Duration,
        cancel: &Cancel,
    ) -> Result<DataConnection, Error> {
        self.accept_counted(key, None, limit, cancel)
    }

    fn accept_counted(
        self,
        key: &PipeKey,
        count: Option<u16>,
        limit: Duration,
        cancel: &Cancel,
    ) -> Result<DataConnection, Error> {
        let session = handshake::session()?;
        let until = Instant::now().checked_add(limit);
        let taken = match Accepting::new(key, session, count).run(&self.socket, until, cancel)? {
            Ok(taken) => taken,
            Err(strangers) => {
                let (port, seconds) = (self.port, limit.as_secs_f64());
                let why =
                    format!("the other side has not come to port {port} within {seconds} s: {strangers}");
                return Err(Error::Unreachable(why));
            }
        };
        let secret = handshake::secret(key, &taken.session, &session)?;
        let here = taken
            .sockets
            .first()
            .and_then(|(socket, _)| SocketAddr::try_from(getsockname(socket).ok()?).ok());
        let here = here.unwrap_or((Ipv6Addr::UNSPECIFIED, self.port).into());
        Ok(connection(taken.sockets, here, secret))
    }

    fn at(port: u16) -> Result<Self, Errno> {
        match Self::of(AddressFamily::INET6, (Ipv6Addr::UNSPECIFIED, port).into()) {
            // The kernel has no IPv6, or it is switched off.
            Err(Errno::AFNOSUPPORT | Errno::ADDRNOTAVAIL | Errno::PROTONOSUPPORT) => {
                Self::of(AddressFamily::INET, (Ipv4Addr::UNSPECIFIED, port).into())
            }
            other => other,
        }
    }

    fn of(family: AddressFamily, address: SocketAddr) -> Result<Self, Errno> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP))?;
        if family == AddressFamily::INET6 {
            sockopt::set_ipv6_v6only(&socket, false)?;
        }
        // A port of the range may have connections that have only just ended.
        sockopt::set_socket_reuseaddr(&socket, true)?;
        // Accepted sockets inherit this.
        tuning::prepare(&socket);
        bind(&socket, &address)?;
        listen(&socket, STRANGERS_MAX as i32)?;
        let port = SocketAddr::try_from(getsockname(&socket)?)?.port();
        Ok(Self { socket, port })
    }
}

/// Tries all addresses, a moment apart, and takes the first peer that knows the key.
pub fn connect(
    addresses: &[SocketAddr],
    key: &PipeKey,
    streams: u32,
    limit: Duration,
    cancel: &Cancel,
) -> Result<DataConnection, Error> {
    attempt(addresses, key, count(streams)?, limit, cancel)?.map_err(|failed| nowhere(&failed))
}

/// Connects to a host by its name before it listens: tries all its addresses again until `patience` is over, or a
/// listener answers that has another key.
pub fn connect_patiently(
    host: (&str, u16),
    key: &PipeKey,
    streams: u32,
    patience: Duration,
    cancel: &Cancel,
) -> Result<DataConnection, Error> {
    let until = Instant::now().checked_add(patience);
    let (addresses, failures) = look_up(&[(host.0.to_owned(), host.1)], patience, cancel)?;
    if let (true, Some(failure)) = (addresses.is_empty(), failures.first()) {
        return Err(Error::Unreachable(failure.clone()));
    }
    loop {
        let failed = match attempt(&addresses, key, count(streams)?, CONNECT_LIMIT, cancel)? {
            Ok(connection) => return Ok(connection),
            Err(failed) => failed,
        };
        let is_final = failed.iter().any(|failed| matches!(failed.why, AddressFailure::Refused(_)));
        let next = Instant::now() + CONNECT_AGAIN;
        if is_final || until.is_some_and(|until| until < next) {
            return Err(nowhere(&failed));
        }
        wait(&mut [PollFd::new(cancel, PollFlags::IN)], Some(next))?;
        if cancel.is_fired() {
            return Err(Error::Cancelled);
        }
    }
}

fn attempt(
    addresses: &[SocketAddr],
    key: &PipeKey,
    count: u16,
    limit: Duration,
    cancel: &Cancel,
) -> Result<Result<DataConnection, Vec<FailedAddress>>, Error> {
    let session = handshake::session()?;
    let until = Instant::now().checked_add(limit);
    let terms = CallTerms { key, session: &session, count, limit, until, cancel };
    let won = match connecting::first(&in_turn(addresses), &terms)? {
        Ok(won) => won,
        Err(failed) => return Ok(Err(failed)),
    };
    let others = match connecting::others(&won, &terms)? {
        Ok(others) => others,
        Err(failed) => return Ok(Err(vec![failed])),
    };
    let secret = handshake::secret(key, &session, &won.session)?;
    let address = won.address;
    let all = std::iter::once(won).chain(others).map(|won| (won.socket, won.round_trip));
    Ok(Ok(connection(all.collect(), address, secret)))
}

fn connection(
    sockets: Vec<(OwnedFd, Duration)>,
    listener: SocketAddr,
    secret: crate::connect::Secret,
) -> DataConnection {
    // The path is the same for all connections: a longer wait on one of them has other causes. Both sides have the
    // same figures, and so compute the same minimum.
    let round_trip = sockets.iter().map(|(_, round_trip)| *round_trip).min().unwrap_or_default();
    let round_trip =
        if sockets.iter().any(|(socket, _)| is_here(socket)) { Duration::ZERO } else { round_trip };
    sockets.iter().for_each(|(socket, _)| tuning::tune(socket, round_trip));
    let listener = SocketAddr::new(listener.ip().to_canonical(), listener.port());
    let mut description = format!("TCP {listener}");
    if let Some(congestion) = sockets.first().and_then(|(socket, _)| tuning::congestion(socket)) {
        description += &format!(", {congestion}");
    }
    if sockets.len() > 1 {
        description += &format!(", {} streams", sockets.len());
    }
    let streams = sockets.into_iter().map(|(socket, _)| socket).collect();
    DataConnection { channel: DataChannel::Streams(streams), secret, description }
}

/// True if both ends are on this host: the path has no length, however long the other side took to answer.
fn is_here(socket: &OwnedFd) -> bool {
    let ours = getsockname(socket).ok().and_then(|address| SocketAddr::try_from(address).ok());
    let theirs = getpeername(socket).ok().flatten().and_then(|address| SocketAddr::try_from(address).ok());
    let (Some(ours), Some(theirs)) = (ours, theirs) else { return false };
    ours.ip() == theirs.ip() || ours.ip().to_canonical().is_loopback()
}

/// Returns each address once, with both families in turn: if one family leads nowhere, the other waits for only one
/// attempt (RFC 8305, 4).
fn in_turn(addresses: &[SocketAddr]) -> Vec<SocketAddr> {
    let mut once = Vec::new();
    for address in addresses.iter().take(ADDRESSES_MAX) {
        let address = SocketAddr::new(address.ip().to_canonical(), address.port());
        if !once.contains(&address) {
            once.push(address);
        }
    }
    let first_is_ipv4 = once.first().is_some_and(SocketAddr::is_ipv4);
    let (ours, others): (Vec<_>, Vec<_>) = once.into_iter().partition(|a| a.is_ipv4() == first_is_ipv4);
    let mut others = others.into_iter();
    let mut turns: Vec<_> =
        ours.into_iter().flat_map(|address| [Some(address), others.next()]).flatten().collect();
    turns.extend(others);
    turns
}

/// Waits for any of `set`, or until `until`.
fn wait(set: &mut [PollFd<'_>], until: Option<Instant>) -> Result<(), Error> {
    let left = until.map(|until| until.saturating_duration_since(Instant::now()));
    // A wait that is too long for the system is endless.
    let left = left.and_then(|left| Timespec::try_from(left).ok());
    match poll(set, left.as_ref()) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(source) => Err(Error::system("poll")(source)),
    }
}

fn count(streams: u32) -> Result<u16, Error> {
    let fitting = u16::try_from(streams).ok().filter(|_| (1..=CONNECTIONS_MAX).contains(&streams));
    fitting
        .ok_or_else(|| Error::Usage(format!("a hop has from 1 to {CONNECTIONS_MAX} streams, not {streams}")))
}

fn nowhere(failed: &[FailedAddress]) -> Error {
    let each: Vec<_> = failed.iter().map(|failed| format!("{} {}", failed.address, failed.why)).collect();
    Error::Unreachable(match each.is_empty() {
        true => "the other side has no address that this host could connect to".to_owned(),
        false => each.join("; "),
    })
}

fn none_free(ports: PortRange, taken: bool, forbidden: bool) -> String {
    let PortRange { first, last } = ports;
    let range = if first == last { format!("port {first}") } else { format!("ports {first}:{last}") };
    let why = match (taken, forbidden) {
        (true, false) => "taken by other programs: wait for one to end, or name others",
        (false, true) => "for privileged programs alone: name others, from 1024",
        (true, true) => "taken by other programs, or for privileged ones alone: name others",
        (false, false) => "not one: name the lower one first",
    };
    format!("cannot listen on {range}: {why}")
}

/// How often a wait for the resolver checks whether it was cancelled.
const GLANCE: Duration = Duration::from_millis(50);

/// Returns the addresses of this host that another host may reach: up, not loopback, not link-local. The addresses
/// from which this host reaches the Internet come first.
pub fn addresses() -> Result<Vec<IpAddr>, Error> {
    // Addresses for documentation (RFC 5737, RFC 3849) belong to nobody, so the route to them is the route to the
    // Internet. Nothing is sent.
    let everybody: [IpAddr; 2] =
        [Ipv4Addr::new(198, 51, 100, 1).into(), Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).into()];
    let mut all: Vec<_> = everybody.into_iter().filter_map(source).collect();
    let own = own_addresses();
    all.retain(|address| own.contains(address));
    for address in own {
        if !all.contains(&address) {
            all.push(address);
        }
    }
    all.truncate(ADDRESSES_MAX);
    Ok(all)
}

/// Returns the address from which this host sends to `to`.
fn source(to: IpAddr) -> Option<IpAddr> {
    let any: IpAddr = if to.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0)).ok()?;
    // Any port will do (this is discard).
    socket.connect((to, 9)).ok()?;
    Some(socket.local_addr().ok()?.ip())
}

/// Returns the addresses of names, in the names' order, as far as they are found within `limit`.
pub fn resolve(names: &[(String, u16)], limit: Duration) -> Vec<SocketAddr> {
    Cancel::new()
        .and_then(|never| look_up(names, limit, &never))
        .map_or_else(|_| Vec::new(), |(found, _)| found)
}

/// Asks the system's resolver for all names at once. Returns their addresses, in the order of the names, and a
/// sentence for each name that has none. A name that takes longer than `limit` has none.
pub fn look_up(
    names: &[(String, u16)],
    limit: Duration,
    cancel: &Cancel,
) -> Result<(Vec<SocketAddr>, Vec<String>), Error> {
    let names = names.get(..ADDRESSES_MAX).unwrap_or(names);
    let (answer, answers) = channel();
    for (at, (name, port)) in names.iter().enumerate() {
        let (answer, name, port) = (answer.clone(), name.clone(), *port);
        // getaddrinfo(3) may take any time; a thread that nobody waits for any more ends when it returns.
        let thread = thread::Builder::new().name("resolver".to_owned());
        let spawned = thread.spawn(move || {
            let found = (name.as_str(), port).to_socket_addrs().map(Iterator::collect::<Vec<_>>);
            let _ = answer.send((at, found));
        });
        spawned.map_err(Error::system("clone"))?;
    }
    drop(answer);
    let until = Instant::now().checked_add(limit);
    let mut found: Vec<_> = names.iter().map(|_| None).collect();
    loop {
        let left = until.map_or(GLANCE, |until| until.saturating_duration_since(Instant::now()));
        match answers.recv_timeout(left.min(GLANCE)) {
            Ok((at, answer)) => found[at] = Some(answer),
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) if cancel.is_fired() => return Err(Error::Cancelled),
            Err(RecvTimeoutError::Timeout) if left.is_zero() => break,
            Err(RecvTimeoutError::Timeout) => {}
        }
    }
    let (mut addresses, mut failures) = (Vec::new(), Vec::new());
    for ((name, _), found) in names.iter().zip(found) {
        match found {
            Some(Ok(found)) => addresses.extend(found),
            Some(Err(error)) => failures.push(format!("{name} is not known here: {error}")),
            None => failures
                .push(format!("the resolver did not answer for {name} within {} s", limit.as_secs_f64())),
        }
    }
    Ok((addresses, failures))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_families_have_their_turns() {
        let all =
            ["10.0.0.1:5", "10.0.0.2:5", "[fd00::1]:5", "10.0.0.1:5", "[::ffff:10.0.0.2]:5", "10.0.0.3:5"];
        let all = all.map(|text| text.parse().expect("an address"));
        let turns: Vec<_> = in_turn(&all).iter().map(ToString::to_string).collect();
        assert_eq!(turns, ["10.0.0.1:5", "[fd00::1]:5", "10.0.0.2:5", "10.0.0.3:5"]);
        let turns: Vec<_> = in_turn(&all[2..4]).iter().map(ToString::to_string).collect();
        assert_eq!(turns, ["[fd00::1]:5", "10.0.0.1:5"]);
        assert_eq!(in_turn(&[]), []);
    }

    #[test]
    fn both_ends_have_the_same_secret_and_no_other_connection_has() {
        let connected = || {
            let key = PipeKey::from_bytes([5; PipeKey::BYTES]);
            let (listener, never) =
                (DataListener::open(None).expect("listens"), Cancel::new().expect("an event"));
            let (theirs, port, cancel) = (key.clone(), listener.port(), never.clone());
            let limit = Duration::from_secs(20);
            let acceptor = std::thread::spawn(move || listener.accept(&theirs, 2, limit, &cancel));
            let there = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
            let ours = connect(&[there], &key, 2, limit, &never).expect("connects").secret.0;
            let theirs = acceptor.join().expect("no panic").expect("accepts").secret.0;
            assert_eq!(ours, theirs);
            ours
        };
        assert_ne!(connected(), connected());
    }

    #[test]
    fn a_range_is_refused_with_its_reason() {
        let say = |first, last, taken, forbidden| none_free(PortRange { first, last }, taken, forbidden);
        assert!(say(4, 9, true, false).contains("ports 4:9: taken by other programs"));
        assert!(say(4, 4, false, true).contains("port 4: for privileged programs alone"));
        assert!(say(4, 9, true, true).contains("taken by other programs, or for privileged ones"));
        assert!(say(9, 4, false, false).contains("name the lower one first"));
    }

    #[test]
    fn counts_of_streams_have_limits() {
        for streams in [0, CONNECTIONS_MAX + 1, u32::MAX] {
            assert!(matches!(count(streams), Err(Error::Usage(_))), "{streams}");
        }
    }
}
