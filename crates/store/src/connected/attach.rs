//! How a connection to a server's socket, on which both speak the Redis protocol, becomes a link.
//!
//! | sender | bytes |
//! |---|---|
//! | client | AUTH and the password, if it has one; then `CARAVAN.ATTACH 1`, and more words as below |
//! | server | its greeting as a bulk string; before that, over a UNIX socket, a descriptor of its memory to the doorway |
//! | both | `Link::connect` and `Link::accept` |
//!
//! | client of | over a UNIX socket | over TCP |
//! |---|---|---|
//! | a store of one part | the address of a doorway, for the descriptor | no more words |
//! | a part of a store of several servers | the same, `PART` and its number; a second descriptor follows, of its server's lease | `PART` and its number |
//!
//! From then on nothing goes over the connection, which tells each side of the other one's end. Everything here
//! blocks, for the time that the options allow.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use caravan_fabric::Link;
use caravan_fabric::contract::Provider;
use caravan_segment::passing::Doorway;

use super::address::{ConnectOptions, StoreAddress};
use super::dial::{ConnectLimit, ServerSocket};
use super::mapped::MappedMemory;
use crate::error::StoreError;
use crate::layout::{self, StoreLayout, word};
use crate::limits;
use crate::view::StoreView;

/// The version of calls and of the memory, for `CARAVAN.ATTACH`.
pub const ATTACH_VERSION: &str = "1";

/// What a server says of its store before anything of it is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StoreGreeting {
    magic: u64,
    /// Random for each store, so it tells one store from another.
    pub(crate) hash_seed: u64,
    memory_bytes: u64,
}

impl StoreGreeting {
    pub(crate) fn of(view: &StoreView) -> Self {
        let load = |place| view.load(place);
        Self {
            magic: load(word::MAGIC),
            hash_seed: load(word::HASH_SEED),
            memory_bytes: load(word::REGION_BYTES),
        }
    }

    /// In the order of the machine's bytes: a machine of the other order refuses the magic number.
    pub(crate) fn to_bytes(self) -> Vec<u8> {
        [self.magic, self.hash_seed, self.memory_bytes].iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let mut words =
            bytes.chunks_exact(8).map(|word| u64::from_ne_bytes(word.try_into().unwrap_or_default()));
        let greeting = Self { magic: words.next()?, hash_seed: words.next()?, memory_bytes: words.next()? };
        (bytes.len() == 24 && greeting.magic == layout::MAGIC).then_some(greeting)
    }

    pub(crate) fn layout(&self) -> StoreLayout {
        StoreLayout::of(self.memory_bytes)
    }
}

/// A connection that has become a link.
pub(crate) struct AttachedLink {
    pub(crate) link: Link,
    /// Readable once the server is gone.
    pub(crate) channel: OwnedFd,
    pub(crate) greeting: StoreGreeting,
    /// The memory, if the server handed it over.
    pub(crate) memory: Option<MappedMemory>,
}

/// Connects to the server at `address`, or where that one says that the part of the store is, within the time that the options
/// allow. A server that does not answer for `answer_wait` is not waited for any longer. Returns the address of the server, too.
pub(crate) fn attach(
    options: &ConnectOptions,
    address: &str,
    answer_wait: Duration,
) -> Result<(AttachedLink, String), StoreError> {
    let limit = ConnectLimit::of(options);
    let mut addresses = vec![address.to_owned()];
    loop {
        match attach_at(options, &addresses, limit, answer_wait) {
            (address, Err(StoreError::Refused(text))) if limit.left().is_ok() => {
                match moved_to(&text, options.part, &address) {
                    Some(moved) => addresses = moved,
                    None => return Err(StoreError::Refused(text)),
                }
            }
            (address, attached) => return attached.map(|attached| (attached, address)),
        }
        // While a part moves, two servers may each believe that the other one has it.
        std::thread::sleep(limits::MOVED_PAUSE);
    }
}

/// Connects to a server at the first of its addresses at which it is reached, and returns that, too. A socket of this host may be in
/// files that this process does not see.
fn attach_at(
    options: &ConnectOptions,
    addresses: &[String],
    limit: ConnectLimit,
    answer_wait: Duration,
) -> (String, Result<AttachedLink, StoreError>) {
    let at = |address: &String| {
        let options = ConnectOptions { address: address.clone(), ..options.clone() };
        let attached = attach_once(&options, limit, answer_wait);
        (address.clone(), attached)
    };
    let (last, others) = addresses.split_last().expect("an address");
    let reached =
        others.iter().map(at).find(|(_, attached)| !matches!(attached, Err(StoreError::Unreachable { .. })));
    reached.unwrap_or_else(|| at(last))
}

/// Asks the servers other than the one at `silent` where the part is, and connects to it if it is elsewhere by now.
pub(crate) fn attach_elsewhere(options: &ConnectOptions, silent: &str) -> Option<(AttachedLink, String)> {
    let at = |addresses: &[String]| {
        attach_at(options, addresses, ConnectLimit::of(options), limits::ELSEWHERE_WAIT)
    };
    options.candidates(silent).into_iter().skip(1).find_map(|address| match at(&[address]) {
        (address, Ok(attached)) => Some((attached, address)),
        (address, Err(StoreError::Refused(text))) => {
            let moved = moved_to(&text, options.part, &address);
            let (address, attached) =
                at(&moved.filter(|moved| !moved.iter().any(|address| address == silent))?);
            Some((attached.ok()?, address))
        }
        _ => None,
    })
}

/// Returns where a part is, at one address or more of one server, if the refusal of the server at `asked` says so. One of another host
/// does not say which file this process opens.
fn moved_to(refusal: &str, part: Option<u16>, asked: &str) -> Option<Vec<String>> {
    let (moved, addresses) = refusal.strip_prefix("MOVED PART ")?.split_once(' ')?;
    let is_asked = moved.parse().ok() == Some(part.unwrap_or(0));
    let is_here = |address: &str| !matches!(StoreAddress::parse(address), Ok(StoreAddress::Host(_)));
    let addresses: Vec<&str> = addresses.split(' ').collect();
    let are_sound = addresses.iter().all(|address| match StoreAddress::parse(address) {
        Ok(StoreAddress::Host(_)) => true,
        Ok(StoreAddress::Socket(_)) => is_here(asked) && address.starts_with("unix:"),
        Err(_) => false,
    });
    (is_asked && are_sound).then(|| addresses.into_iter().map(str::to_owned).collect())
}

fn attach_once(
    options: &ConnectOptions,
    limit: ConnectLimit,
    answer_wait: Duration,
) -> Result<AttachedLink, StoreError> {
    let mut socket = ServerSocket::connect(options, limit.within(answer_wait))?;
    let (doorway, door) = if socket.is_local() { Some(Doorway::listen()?) } else { None }.unzip();
    let door = door.map(|address| address.to_bytes());
    let mut words: Vec<&[u8]> = vec![b"CARAVAN.ATTACH", ATTACH_VERSION.as_bytes()];
    words.extend(door.iter().map(|address| &address[..]));
    let part = options.part.map(|part| part.to_string());
    words.extend(part.iter().flat_map(|part| [&b"PART"[..], part.as_bytes()]));
    let answer = socket.command(options, &words)?;
    let greeting = StoreGreeting::from_bytes(&answer).ok_or(StoreError::Protocol(
        "its memory is of another version, or its machine orders bytes otherwise",
    ))?;
    // Who answers has the part. The devices of both sides may need seconds for the rest, when many clients come at once.
    socket.allow(limit);
    let memory = match doorway {
        Some(doorway) => {
            let mut descriptors = doorway.accept()?.descriptors.into_iter();
            let (memory, lease) = (descriptors.next(), descriptors.next());
            if lease.is_some() != options.part.is_some() {
                return Err(StoreError::Protocol(
                    "memory is handed over without its lease, or a lease without need",
                ));
            }
            memory.map(|memory| MappedMemory::open(memory, lease)).transpose()?
        }
        None => None,
    };
    let (user_bytes, providers) = if socket.is_local() {
        (0, &[Provider::Shm][..])
    } else {
        (super::one_sided::ARENA_BYTES, &[Provider::Rdma, Provider::Tcp][..])
    };
    let link = Link::connect_sharing(&mut socket, providers, user_bytes).map_err(|error| match error {
        // The server has ended since it answered.
        caravan_fabric::Error::System { source, .. } if is_end(&source) => limit.error(options, source),
        error if limit.left().is_err() => limit.error(options, io::Error::other(error)),
        error => error.into(),
    })?;
    Ok(AttachedLink { link, channel: socket.into(), greeting, memory })
}

/// Tells whether an error says that the other side has closed the connection.
fn is_end(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), UnexpectedEof | BrokenPipe | ConnectionReset)
}
