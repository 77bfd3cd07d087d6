//! How two sides come to a connection, and prove to each other that they know its secret.
//!
//! | connecting side | | listening side |
//! |---|---|---|
//! | | <- | its descriptor, over the control channel: secret, port, addresses |
//! | connects; its greeting, sealed | -> | turns away whoever's greeting does not open |
//! | | <- | its greeting, sealed |
//!
//! A greeting says what the side exposes. Each connection has a secret of its own, and each direction a key of its own, so a
//! greeting of another connection, or one that is sent back to its maker, does not open.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use caravan_segment::{Pages, Segment, SharedSlice};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, sockopt};

use super::TcpEndpoint;
use super::agent::TcpAgent;
use super::connection::{TcpConnection, TcpState};
use super::fault::TcpFault;
use super::limits::*;
use super::records::{RecordStream, TcpSide};
use super::target::TcpTarget;
use crate::byte_reader::ByteReader;
use crate::contract::{Error, Exposure, Provider};
use crate::region::{REGION_BYTES_MAX, RegionTable};
use crate::seal::SECRET_BYTES;
use crate::verbs::own_addresses;

/// The first bytes of a descriptor and of a greeting: name and version.
const MAGIC: [u8; 8] = *b"caravTP\x01";

/// Whether the bytes after the greetings are sealed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TcpSealing {
    /// They are encrypted and authenticated.
    Sealed,
    /// They are in the clear: anybody on the way can read and change them. For connections within one host, and
    /// where the way is protected otherwise.
    Plain,
}

/// The accepting side, before the peer has connected.
pub struct TcpListening {
    socket: TcpListener,
    secret: [u8; SECRET_BYTES],
    sealing: TcpSealing,
}

impl std::fmt::Debug for TcpListening {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("TcpListening").field("socket", &self.socket).finish_non_exhaustive()
    }
}

impl TcpListening {
    /// Listens on a port of the kernel's choice for one peer. The returned descriptor is for that peer alone, over a
    /// channel that has authenticated it and hides what it carries: whoever has the descriptor may connect.
    pub fn listen(sealing: TcpSealing) -> Result<(Self, Vec<u8>), Error> {
        // One socket for both families, or IPv4 where the kernel has no IPv6.
        let any = [IpAddr::from(Ipv6Addr::UNSPECIFIED), Ipv4Addr::UNSPECIFIED.into()];
        let mut own = own_addresses();
        own.truncate(ADDRESSES_MAX - 1);
        own.push(Ipv4Addr::LOCALHOST.into());
        Self::listen_at(&any.map(|ip| SocketAddr::new(ip, 0)), own, sealing)
    }

    /// Does the same on one address of this host only, such as the one by which the peer has come in.
    pub fn listen_on(address: IpAddr, sealing: TcpSealing) -> Result<(Self, Vec<u8>), Error> {
        Self::listen_at(&[SocketAddr::new(address, 0)], vec![address], sealing)
    }

    /// Listens at the first of `addresses` that is possible. `own` is where the peer tries to connect.
    fn listen_at(
        addresses: &[SocketAddr],
        own: Vec<IpAddr>,
        sealing: TcpSealing,
    ) -> Result<(Self, Vec<u8>), Error> {
        let socket = TcpListener::bind(addresses).map_err(system("bind"))?;
        socket.set_nonblocking(true).map_err(system("fcntl(F_SETFL)"))?;
        let port = socket.local_addr().map_err(system("getsockname"))?.port();
        let mut secret = [0; SECRET_BYTES];
        random(&mut secret)?;
        let mut descriptor = MAGIC.to_vec();
        descriptor.push(u8::from(sealing == TcpSealing::Sealed));
        descriptor.extend(secret);
        descriptor.extend(port.to_be_bytes());
        for address in own {
            let address = match address {
                IpAddr::V4(v4) => v4.to_ipv6_mapped(),
                IpAddr::V6(v6) => v6,
            };
            descriptor.extend(address.octets());
        }
        Ok((Self { socket, secret, sealing }, descriptor))
    }

    /// Blocks until the peer has connected, for `limit` at most. Strangers are turned away without a word.
    pub fn accept(self, exposure: &Exposure, limit: Duration) -> Result<TcpEndpoint, Error> {
        let until = Instant::now() + limit;
        let mut callers: Vec<TcpGreeting> = Vec::new();
        loop {
            match self.socket.accept() {
                Ok((socket, _)) => {
                    if callers.len() == STRANGERS_MAX {
                        callers.remove(0);
                    }
                    let greeting = TcpGreeting::new(socket.into(), &self.secret, TcpSide::Listening);
                    callers.push(greeting?);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let sockets: Vec<_> = callers.iter().map(|caller| caller.socket.as_fd()).collect();
                    wait(self.socket.as_fd(), &sockets, until)?;
                }
                // A caller that has gone again, or no descriptor for it now.
                Err(_) => wait(self.socket.as_fd(), &[], Instant::now() + ACCEPT_AGAIN)?,
            }
            let mut at = 0;
            while at < callers.len() {
                match callers[at].hear() {
                    Ok(None) => at += 1,
                    Ok(Some(peer)) => {
                        let mut caller = callers.swap_remove(at);
                        caller.say(self.sealing, exposure, until)?;
                        return caller.endpoint(self.sealing, exposure, peer);
                    }
                    Err(_) => drop(callers.swap_remove(at)),
                }
            }
            if Instant::now() >= until {
                let why = format!(
                    "the peer did not connect within {} s; a firewall that drops TCP connections to ephemeral \
                     ports is the usual cause",
                    limit.as_secs()
                );
                return Err(Error::NotConnected(why));
            }
        }
    }
}

/// How long a listener waits before it accepts again after an error.
const ACCEPT_AGAIN: Duration = Duration::from_millis(10);
/// How long a connection to one of several addresses may take.
const ADDRESS_LIMIT: Duration = Duration::from_secs(3);

/// Connects to the side that sent `descriptor`, by any of its addresses. Blocks, for `limit` at most.
pub fn connect(descriptor: &[u8], exposure: &Exposure, limit: Duration) -> Result<TcpEndpoint, Error> {
    let until = Instant::now() + limit;
    let TcpDescriptor { sealing, secret, addresses } = parse(descriptor).ok_or_else(|| {
        Error::Protocol(Provider::Tcp, "its descriptor is malformed or of another version".to_owned())
    })?;
    let mut reasons = Vec::new();
    for address in addresses {
        let left = until.saturating_duration_since(Instant::now()).min(ADDRESS_LIMIT);
        if left.is_zero() {
            break;
        }
        let connected = TcpStream::connect_timeout(&address, left).map_err(system("connect"));
        let begun = connected
            .and_then(|socket| over(socket.into(), TcpSide::Connecting, &secret, sealing, exposure, left));
        match begun {
            Ok(endpoint) => return Ok(endpoint),
            Err(error) => reasons.push(format!("{address}: {error}")),
        }
    }
    Err(Error::NotConnected(reasons.join("; ")))
}

/// Makes an endpoint of a connected socket. Both ends have agreed on the secret, which is this connection's alone, and on
/// the sealing. Blocks until the peer has proved that it knows the secret, for `limit` at most.
pub fn over(
    socket: OwnedFd,
    side: TcpSide,
    secret: &[u8; SECRET_BYTES],
    sealing: TcpSealing,
    exposure: &Exposure,
    limit: Duration,
) -> Result<TcpEndpoint, Error> {
    let until = Instant::now() + limit;
    let mut greeting = TcpGreeting::new(socket, secret, side)?;
    if side == TcpSide::Connecting {
        greeting.say(sealing, exposure, until)?;
    }
    let peer = loop {
        if let Some(peer) = greeting.hear().map_err(|fault| fault.error())? {
            break peer;
        }
        if Instant::now() >= until {
            let why = format!("the peer did not greet within {} ms", limit.as_millis());
            return Err(Error::NotConnected(why));
        }
        wait(greeting.socket.as_fd(), &[], until)?;
    };
    if side == TcpSide::Listening {
        greeting.say(sealing, exposure, until)?;
    }
    greeting.endpoint(sealing, exposure, peer)
}

/// Returns two connected endpoints in this process, the connecting side's first: for first steps and for tests.
///
/// ```
/// use caravan_fabric::contract::{Endpoint, Event, Local, Operation};
/// use caravan_fabric::tcp::{self, TcpSealing};
/// use caravan_fabric::Exposure;
///
/// let (mut near, mut far) = tcp::pair(&Exposure::all(4096), TcpSealing::Sealed)?;
/// near.arena().copy_in(0, b"hello");
/// let from = Local { offset: 0, bytes: 5 };
/// near.post(Operation::Write { from, to: 64, immediate: Some(7), context: 0 })?;
/// near.doorbell()?;
/// let mut events = Vec::new();
/// while far.poll(&mut events, 16)? == 0 {}
/// assert_eq!(events, [Event::Immediate(7)]);
/// # Ok::<(), caravan_fabric::Error>(())
/// ```
pub fn pair(exposure: &Exposure, sealing: TcpSealing) -> Result<(TcpEndpoint, TcpEndpoint), Error> {
    let limit = Duration::from_secs(60);
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(system("bind"))?;
    let address = listener.local_addr().map_err(system("getsockname"))?;
    let near = TcpStream::connect(address).map_err(system("connect"))?;
    let (far, _) = listener.accept().map_err(system("accept"))?;
    let mut secret = [0; SECRET_BYTES];
    random(&mut secret)?;
    std::thread::scope(|scope| {
        let far = scope.spawn(|| over(far.into(), TcpSide::Listening, &secret, sealing, exposure, limit));
        let near = over(near.into(), TcpSide::Connecting, &secret, sealing, exposure, limit)?;
        let ended = || Err(Error::NotConnected("the other side's thread has ended".to_owned()));
        Ok((near, far.join().unwrap_or_else(|_| ended())?))
    })
}

/// What a listening side's descriptor says.
struct TcpDescriptor {
    sealing: TcpSealing,
    secret: [u8; SECRET_BYTES],
    addresses: Vec<SocketAddr>,
}

fn parse(descriptor: &[u8]) -> Option<TcpDescriptor> {
    let mut reader = ByteReader::new(descriptor);
    if reader.take()? != MAGIC {
        return None;
    }
    let sealing = sealing_of(reader.u8()?)?;
    let (secret, port) = (reader.take()?, reader.u16()?);
    let mut addresses = Vec::new();
    while !reader.is_empty() && addresses.len() < ADDRESSES_MAX {
        let ip = Ipv6Addr::from(reader.take::<16>()?);
        addresses.push(SocketAddr::new(IpAddr::V6(ip).to_canonical(), port));
    }
    reader.is_empty().then_some(TcpDescriptor { sealing, secret, addresses })
}

fn sealing_of(byte: u8) -> Option<TcpSealing> {
    match byte {
        0 => Some(TcpSealing::Plain),
        1 => Some(TcpSealing::Sealed),
        _ => None,
    }
}

/// What a peer's greeting says.
struct PeerGreeting {
    sealing: TcpSealing,
    exposure: Exposure,
}

/// A connection whose greetings are under way.
struct TcpGreeting {
    socket: OwnedFd,
    stream: RecordStream,
}

impl TcpGreeting {
    fn new(socket: OwnedFd, secret: &[u8; SECRET_BYTES], side: TcpSide) -> Result<Self, Error> {
        rustix::io::ioctl_fionbio(&socket, true).map_err(refused("ioctl(FIONBIO)"))?;
        let stream = RecordStream::new(secret, side).map_err(|error| TcpFault::from(error).error())?;
        Ok(Self { socket, stream })
    }

    /// Sends this side's greeting, which is far shorter than what a new socket takes at once.
    fn say(&mut self, sealing: TcpSealing, exposure: &Exposure, until: Instant) -> Result<(), Error> {
        let fill = |body: &mut Vec<u8>, _| {
            body.extend(MAGIC);
            body.push(u8::from(sealing == TcpSealing::Sealed));
            for word in [exposure.arena_bytes, exposure.exposed.start, exposure.exposed.end] {
                body.extend(word.to_be_bytes());
            }
            body.extend([u8::from(exposure.peer_reads), u8::from(exposure.peer_swaps)]);
        };
        self.stream.produce(fill).map_err(|fault| fault.error())?;
        while !self.stream.unsent().is_empty() {
            match rustix::net::send(&self.socket, self.stream.unsent(), SendFlags::NOSIGNAL) {
                Ok(count) => self.stream.sent(count),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) if Instant::now() < until => std::thread::sleep(ACCEPT_AGAIN),
                Err(source) => return Err(refused("send")(source)),
            }
        }
        Ok(())
    }

    /// Takes the peer's greeting, if all of it has come.
    fn hear(&mut self) -> Result<Option<PeerGreeting>, TcpFault> {
        loop {
            if let Some(body) = self.stream.take()? {
                const WRONG: TcpFault = TcpFault::Protocol("its greeting is of another version");
                return parse_greeting(body).map(Some).ok_or(WRONG);
            }
            match rustix::net::recv(&self.socket, self.stream.room(), RecvFlags::DONTWAIT) {
                Ok((0, _)) => return Err(TcpFault::PeerGone("it turned this side away")),
                Ok((count, _)) => self.stream.came(count),
                Err(Errno::AGAIN) => return Ok(None),
                Err(Errno::INTR) => {}
                Err(_) => return Err(TcpFault::PeerGone("the connection was reset")),
            }
        }
    }

    /// Makes the endpoint, once both sides have greeted.
    fn endpoint(
        mut self,
        sealing: TcpSealing,
        exposure: &Exposure,
        peer: PeerGreeting,
    ) -> Result<TcpEndpoint, Error> {
        if peer.sealing != sealing {
            let what = "one side seals what the other one sends in the clear";
            return Err(Error::Protocol(Provider::Tcp, what.to_owned()));
        }
        if sealing == TcpSealing::Plain {
            self.stream.stop_sealing();
        }
        tune(&self.socket).map_err(refused("setsockopt"))?;
        let arena = arena(exposure)?;
        let description = describe(&self.socket, sealing);
        let state = TcpState::new(self.stream, TcpTarget::new(arena.clone(), exposure));
        let served = TcpAgent::serve(TcpConnection::new(self.socket, state)?)?;
        Ok(TcpEndpoint { served, arena, peer: peer.exposure, borrowed: RegionTable::default(), description })
    }
}

fn parse_greeting(body: &[u8]) -> Option<PeerGreeting> {
    let mut reader = ByteReader::new(body);
    if reader.take()? != MAGIC {
        return None;
    }
    let sealing = sealing_of(reader.u8()?)?;
    let (arena_bytes, start, end) = (reader.u64()?, reader.u64()?, reader.u64()?);
    let (peer_reads, peer_swaps) = (reader.u8()? == 1, reader.u8()? == 1);
    let possible = start <= end && end <= arena_bytes && arena_bytes <= REGION_BYTES_MAX;
    let exposure = Exposure { arena_bytes, exposed: start..end, peer_reads, peer_swaps };
    (possible && reader.is_empty()).then_some(PeerGreeting { sealing, exposure })
}

fn arena(exposure: &Exposure) -> Result<SharedSlice, Error> {
    let bytes = exposure.arena_bytes;
    if bytes % 8 != 0 || !(8..=REGION_BYTES_MAX).contains(&bytes) || exposure.exposed.end > bytes {
        return Err(Error::ArenaBytes { bytes, maximum: REGION_BYTES_MAX });
    }
    let segment = Arc::new(Segment::create("caravan-tcp", bytes, Pages::Small)?);
    segment.grow(bytes)?;
    Ok(segment.slice(0, bytes)?)
}

/// Sends small records at once, and notices a peer whose host is gone. A caller may bring a UNIX socket, which
/// needs neither.
fn tune(socket: &OwnedFd) -> rustix::io::Result<()> {
    if sockopt::socket_domain(socket)? == rustix::net::AddressFamily::UNIX {
        return Ok(());
    }
    sockopt::set_tcp_nodelay(socket, true)?;
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, IDLE_MAX)?;
    sockopt::set_tcp_keepintvl(socket, PROBE_EVERY)?;
    sockopt::set_tcp_keepcnt(socket, PROBES_MAX)?;
    sockopt::set_tcp_user_timeout(socket, SILENCE_MAX.as_millis() as u32)
}

fn describe(socket: &OwnedFd, sealing: TcpSealing) -> String {
    let address = |found: rustix::io::Result<rustix::net::SocketAddrAny>| {
        let address = found.ok().and_then(|address| SocketAddr::try_from(address).ok());
        address.map_or("?".to_owned(), |address| {
            SocketAddr::new(address.ip().to_canonical(), address.port()).to_string()
        })
    };
    let theirs = rustix::net::getpeername(socket).and_then(|found| found.ok_or(Errno::NOTCONN));
    let sealed = if sealing == TcpSealing::Sealed { ", encrypted" } else { "" };
    format!("{} -> {}{sealed}", address(rustix::net::getsockname(socket)), address(theirs))
}

/// Waits until one of the descriptors is readable, until `until` at most.
fn wait(first: BorrowedFd<'_>, others: &[BorrowedFd<'_>], until: Instant) -> Result<(), Error> {
    let all = std::iter::once(&first).chain(others);
    let mut set: Vec<_> = all.map(|descriptor| PollFd::new(descriptor, PollFlags::IN)).collect();
    let left = until.saturating_duration_since(Instant::now());
    let limit = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
    match rustix::event::poll(&mut set, Some(&limit)) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(source) => Err(refused("poll")(source)),
    }
}

fn random(bytes: &mut [u8]) -> Result<(), Error> {
    match rustix::rand::getrandom(&mut *bytes, rustix::rand::GetRandomFlags::empty()) {
        Ok(count) if count == bytes.len() => Ok(()),
        Ok(_) => Err(system("getrandom")(io::ErrorKind::UnexpectedEof.into())),
        Err(source) => Err(refused("getrandom")(source)),
    }
}

fn system(call: &'static str) -> impl Fn(io::Error) -> Error {
    move |source| Error::System { call, source }
}

fn refused(call: &'static str) -> impl Fn(Errno) -> Error {
    move |source| Error::System { call, source: source.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_listens_on_one_address_is_found_there_and_nowhere_else() {
        let here = IpAddr::from(Ipv4Addr::LOCALHOST);
        let (listening, descriptor) = TcpListening::listen_on(here, TcpSealing::Sealed).unwrap();
        let address = listening.socket.local_addr().unwrap();
        assert_eq!(address.ip(), here);
        let elsewhere = TcpStream::connect((Ipv4Addr::new(127, 0, 0, 2), address.port()));
        assert_eq!(elsewhere.unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
        let limit = Duration::from_secs(60);
        std::thread::scope(|scope| {
            let far = scope.spawn(|| listening.accept(&Exposure::all(4096), limit).map(drop));
            connect(&descriptor, &Exposure::all(4096), limit).map(drop).unwrap();
            far.join().unwrap().unwrap();
        });
    }
}
