//! How two sides make a link over a control channel of bytes, by a backend that both of them have.
//!
//! | sender | message |
//! |---|---|
//! | accepting side | `<<RingBytes:64, ShmLen:16, Shm, RdmaLen:16, Rdma, TcpLen:16, Tcp>>`: descriptors; parts may be empty |
//! | connecting side | `<<Provider:8, Request>>`, or `<<0, Reason>>` |
//! | accepting side | `<<1, Answer>>`, or `<<0, Reason>>` |
//!
//! Each message has its length in front, in 32 bits. Integers are big-endian.

use std::io::{Read, Write};
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use caravan_segment::barrier::Fences;
use caravan_segment::printable;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::Link;
use crate::byte_reader::ByteReader;
use crate::contract::{Endpoint, Error, Exposure, Provider};
use crate::tcp::{self, TcpListening, TcpSealing};
use crate::verbs::ConnectProgress;
use crate::{shm, verbs};

/// How long the devices of both sides may take to connect.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);
/// The longest time between two looks whether the peer has closed the control channel.
const CHANNEL_GLANCE: Duration = Duration::from_millis(100);
/// The longest message.
const MESSAGE_BYTES_MAX: u32 = 64 << 10;

impl Link {
    /// Makes the two ends of a link in this process, through mapped memory: for first steps and for tests.
    ///
    /// ```
    /// use caravan_fabric::Link;
    ///
    /// let (mut near, mut far) = Link::pair(64 << 10)?;
    /// near.append(b"hello")?;
    /// near.publish()?;
    /// assert_eq!(far.refresh()?, 5);
    /// let mut bytes = [0; 5];
    /// far.read(&mut bytes);
    /// far.release()?;
    /// assert_eq!(&bytes, b"hello");
    /// # Ok::<(), caravan_fabric::Error>(())
    /// ```
    pub fn pair(ring_bytes: u64) -> Result<(Self, Self), Error> {
        let (near, far) = shm::pair(Self::mapped_arena_bytes(ring_bytes)?)?;
        Ok((Self::new(Box::new(near), ring_bytes)?, Self::new(Box::new(far), ring_bytes)?))
    }

    /// Connects to the side that calls [`accept`](Self::accept) at the other end of `channel`. Tries
    /// those of `providers` that the other side allows too, in order of preference. Blocks.
    ///
    /// `channel` must have authenticated the peer, and must carry nothing else meanwhile.
    ///
    /// ```
    /// use std::os::unix::net::UnixStream;
    ///
    /// use caravan_fabric::Link;
    /// use caravan_fabric::contract::Provider;
    ///
    /// let providers = [Provider::Shm, Provider::Rdma];
    /// let (mut here, mut there) = UnixStream::pair()?;
    /// let accepting = std::thread::spawn(move || Link::accept(&mut there, &providers, 64 << 10));
    /// let link = Link::connect(&mut here, &providers)?;
    /// accepting.join().unwrap()?;
    /// assert_eq!((link.provider(), link.ring_bytes()), (Provider::Shm, 64 << 10));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn connect(channel: &mut (impl Read + Write), providers: &[Provider]) -> Result<Self, Error> {
        Self::connect_sharing(channel, providers, 0)
    }

    /// Does what [`connect`](Self::connect) does, and keeps `user_bytes` bytes of this side's arena, a multiple of 8,
    /// for operations of the link's user. Over mapped memory there are none: the user has
    /// [windows](Self::window) there.
    pub fn connect_sharing(
        channel: &mut (impl Read + Write),
        providers: &[Provider],
        user_bytes: u64,
    ) -> Result<Self, Error> {
        let offer = hear(channel)?;
        let (ring_bytes, offers) = parse_offers(&offer).ok_or_else(malformed)?;
        let mut reasons = Vec::new();
        for &provider in providers {
            let begun = match provider {
                Provider::Shm if !offers.shm.is_empty() => connect_shm(offers.shm, ring_bytes),
                Provider::Rdma if !offers.rdma.is_empty() => {
                    connect_rdma(offers.rdma, ring_bytes, user_bytes)
                }
                Provider::Tcp if !offers.tcp.is_empty() => Ok(Begun::Tcp(offers.tcp.to_vec())),
                _ => Err(Error::NotConnected("the peer does not offer it".to_owned())),
            };
            match begun {
                Ok(begun) => return begun.finish(channel, provider, ring_bytes, user_bytes),
                Err(error) => reasons.push(format!("{}: {error}", provider.name())),
            }
        }
        let reason = reasons.join("; ");
        say(channel, &[&[0], reason.as_bytes()].concat())?;
        Err(Error::NotConnected(reason))
    }

    /// Accepts the connection of the side that calls [`connect`](Self::connect) at the other end of
    /// `channel`, by one of `providers`. This side chooses the size of the rings. Blocks.
    ///
    /// `channel` must have authenticated the peer, and must carry nothing else meanwhile.
    pub fn accept(
        channel: &mut (impl Read + Write + AsFd),
        providers: &[Provider],
        ring_bytes: u64,
    ) -> Result<Self, Error> {
        Self::accept_on(channel, providers, ring_bytes, None, Fences::Asymmetric)
    }

    /// Does the same; over TCP, the peer comes in by the address `at` of this host, if there is one, and by any address
    /// otherwise. Over mapped memory, both sides use these [fences](shm::Listener::listen_with).
    pub fn accept_on(
        channel: &mut (impl Read + Write + AsFd),
        providers: &[Provider],
        ring_bytes: u64,
        at: Option<IpAddr>,
        fences: Fences,
    ) -> Result<Self, Error> {
        let (mut listener, mut descriptor, mut ports) = (None, Vec::new(), Vec::new());
        let (mut listening, mut address) = (None, Vec::new());
        if providers.contains(&Provider::Shm) {
            let (opened, bytes) = shm::Listener::listen_with(Self::mapped_arena_bytes(ring_bytes)?, fences)?;
            (listener, descriptor) = (Some(opened), bytes);
        }
        if providers.contains(&Provider::Rdma) {
            // Without a device, this side offers no ports.
            ports = verbs::offer().unwrap_or_default();
        }
        if providers.contains(&Provider::Tcp) {
            // The channel has authenticated the peer; nothing is known of the way.
            let (opened, bytes) = match at {
                Some(address) => TcpListening::listen_on(address, TcpSealing::Sealed)?,
                None => TcpListening::listen(TcpSealing::Sealed)?,
            };
            (listening, address) = (Some(opened), bytes);
        }
        let mut offer = ring_bytes.to_be_bytes().to_vec();
        for bytes in [&descriptor, &ports, &address] {
            offer.extend((bytes.len() as u16).to_be_bytes());
            offer.extend(bytes);
        }
        say(channel, &offer)?;
        let request = hear(channel)?;
        let accepted = match (request.split_first(), listener, listening) {
            (Some((0, reason)), ..) => {
                return Err(Error::NotConnected(printable(reason)));
            }
            (Some((&SHM, [])), Some(listener), _) => {
                listener.accept().map(|endpoint| Accepted::Whole(Box::new(endpoint)))
            }
            (Some((&TCP, [])), _, Some(listening)) => {
                let accepted = listening.accept(&Self::exposure(ring_bytes)?, CONNECT_LIMIT);
                accepted.map(|endpoint| Accepted::Whole(Box::new(endpoint)))
            }
            (Some((&RDMA, request)), ..) if !ports.is_empty() => {
                let accepted = verbs::accept(request, &Self::exposure(ring_bytes)?);
                accepted.map(|(pending, answer)| Accepted::Half { pending, answer })
            }
            _ => Err(malformed()),
        };
        let endpoint = match accepted {
            Ok(Accepted::Whole(endpoint)) => {
                say(channel, &[1])?;
                endpoint
            }
            Ok(Accepted::Half { pending, answer }) => {
                say(channel, &[&[1], &answer[..]].concat())?;
                greeted(pending, channel)?
            }
            Err(error) => {
                say(channel, &[&[0], error.to_string().as_bytes()].concat())?;
                return Err(error);
            }
        };
        Self::new(endpoint, ring_bytes)
    }
}

/// Waits until the peer's device has greeted. A peer that has ended meanwhile is not waited for.
fn greeted(mut pending: verbs::PendingEndpoint, channel: &impl AsFd) -> Result<Box<dyn Endpoint>, Error> {
    let begin = Instant::now();
    loop {
        match pending.advance(&[], CONNECT_LIMIT, Instant::now() + CHANNEL_GLANCE)? {
            ConnectProgress::Connected(endpoint) => return Ok(endpoint),
            ConnectProgress::Waiting(_) if has_ended(channel) => {
                let reason = "it has closed the control channel while its device was waited for";
                return Err(Error::PeerGone(Provider::Rdma, reason));
            }
            ConnectProgress::Waiting(waiting) if begin.elapsed() >= CONNECT_LIMIT => {
                return Err(waiting.unanswered(CONNECT_LIMIT));
            }
            ConnectProgress::Waiting(waiting) => pending = waiting,
        }
    }
}

/// Returns whether the peer has closed the channel.
fn has_ended(channel: &impl AsFd) -> bool {
    let mut ready = [PollFd::new(channel, PollFlags::RDHUP)];
    poll(&mut ready, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
}

/// Codes of the providers in the connecting side's message.
const SHM: u8 = 1;
const RDMA: u8 = 2;
const TCP: u8 = 3;

/// What the accepting side has made for a request.
enum Accepted {
    Whole(Box<dyn Endpoint>),
    Half { pending: verbs::PendingEndpoint, answer: Vec<u8> },
}

/// What the connecting side has begun to make.
enum Begun {
    Whole(Box<dyn Endpoint>),
    Half {
        pending: verbs::PendingEndpoint,
        request: Vec<u8>,
    },
    /// The accepting side's descriptor: it waits for a connection once it knows of the choice.
    Tcp(Vec<u8>),
}

impl Begun {
    fn finish(
        self,
        channel: &mut (impl Read + Write),
        provider: Provider,
        ring_bytes: u64,
        user_bytes: u64,
    ) -> Result<Link, Error> {
        let (code, request) = match &self {
            Self::Whole(_) => (SHM, &[][..]),
            Self::Half { request, .. } => (RDMA, &request[..]),
            Self::Tcp(_) => (TCP, &[][..]),
        };
        say(channel, &[&[code], request].concat())?;
        let connected = match &self {
            Self::Tcp(descriptor) => {
                Some(tcp::connect(descriptor, &exposure(ring_bytes, user_bytes)?, CONNECT_LIMIT))
            }
            _ => None,
        };
        let answer = hear(channel)?;
        let answer = match answer.split_first() {
            Some((1, answer)) => answer,
            Some((0, reason)) => {
                let reason = format!("{}: {}", provider.name(), printable(reason));
                return Err(Error::NotConnected(reason));
            }
            _ => return Err(malformed()),
        };
        let endpoint = match self {
            Self::Whole(endpoint) => endpoint,
            Self::Half { pending, .. } => pending.finish(answer, CONNECT_LIMIT)?,
            Self::Tcp(_) => Box::new(connected.ok_or_else(malformed)??),
        };
        Link::new(endpoint, ring_bytes)
    }
}

fn connect_shm(descriptor: &[u8], ring_bytes: u64) -> Result<Begun, Error> {
    if shm::offered_arena_bytes(descriptor)? != Link::mapped_arena_bytes(ring_bytes)? {
        return Err(malformed());
    }
    Ok(Begun::Whole(Box::new(shm::connect(descriptor)?)))
}

fn connect_rdma(ports: &[u8], ring_bytes: u64, user_bytes: u64) -> Result<Begun, Error> {
    let (pending, request) = verbs::connect(ports, &exposure(ring_bytes, user_bytes)?)?;
    Ok(Begun::Half { pending, request })
}

/// Returns the exposure of the connecting side's arena. Without a user that reads, nothing but the ring is reachable.
fn exposure(ring_bytes: u64, user_bytes: u64) -> Result<Exposure, Error> {
    if user_bytes == 0 { Link::exposure(ring_bytes) } else { Link::shared_exposure(ring_bytes, user_bytes) }
}

/// What the accepting side offers. A part that it does not offer is empty.
struct Offers<'a> {
    shm: &'a [u8],
    rdma: &'a [u8],
    tcp: &'a [u8],
}

/// Parses the first message into the size of the rings and the offers.
fn parse_offers(message: &[u8]) -> Option<(u64, Offers<'_>)> {
    let mut reader = ByteReader::new(message);
    let ring_bytes = reader.u64()?;
    let mut part = || reader.u16().and_then(|length| reader.bytes(length.into()));
    let offers = Offers { shm: part()?, rdma: part()?, tcp: part()? };
    reader.is_empty().then_some((ring_bytes, offers))
}

fn say(channel: &mut impl Write, message: &[u8]) -> Result<(), Error> {
    let framed = [&(message.len() as u32).to_be_bytes()[..], message].concat();
    channel.write_all(&framed).and_then(|()| channel.flush()).map_err(channel_failed)
}

fn hear(channel: &mut impl Read) -> Result<Vec<u8>, Error> {
    let mut length = [0; 4];
    channel.read_exact(&mut length).map_err(channel_failed)?;
    let length = u32::from_be_bytes(length);
    if length > MESSAGE_BYTES_MAX {
        return Err(malformed());
    }
    let mut message = vec![0; length as usize];
    channel.read_exact(&mut message).map_err(channel_failed)?;
    Ok(message)
}

fn channel_failed(source: std::io::Error) -> Error {
    Error::System { call: "the control channel", source }
}

fn malformed() -> Error {
    Error::NotConnected("the peer's message on the control channel is malformed".to_owned())
}
