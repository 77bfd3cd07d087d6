//! How a connection to a server's socket, on which both speak the Redis protocol, becomes a link.
//!
//! | sender | bytes |
//! |---|---|
//! | client | AUTH and the password, if it has one; then `CARAVAN.ATTACH 1`, over a UNIX socket with the address of a doorway, too |
//! | server | its greeting as a bulk string; before that, over a UNIX socket, a descriptor of its memory to the doorway |
//! | both | `Link::connect` and `Link::accept` |
//!
//! From then on nothing goes over the connection, which tells each side of the other one's end. Everything here
//! blocks, for a limited time.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;

use caravan_fabric::Link;
use caravan_fabric::contract::Provider;
use caravan_segment::passing::Doorway;

use super::address::{ConnectOptions, StoreAddress};
use crate::error::StoreError;
use crate::layout::{self, StoreLayout, word};
use crate::limits;
use crate::view::StoreView;

/// The version of calls and of the memory, for `CARAVAN.ATTACH`.
pub const ATTACH_VERSION: &str = "1";
/// The longest line of an answer.
const LINE_BYTES_MAX: usize = 1024;

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
    pub(crate) memory: Option<OwnedFd>,
}

/// Connects.
pub(crate) fn attach(options: &ConnectOptions) -> Result<AttachedLink, StoreError> {
    let address = StoreAddress::parse(&options.address)?;
    let unreachable = |source| StoreError::Unreachable { address: address.to_string(), source };
    let limit = Some(limits::CONNECT_STEP);
    match &address {
        StoreAddress::Socket(path) => {
            let stream = UnixStream::connect(path).map_err(unreachable)?;
            let limited = stream.set_read_timeout(limit).and_then(|()| stream.set_write_timeout(limit));
            limited.map_err(unreachable)?;
            let (doorway, door) = Doorway::listen()?;
            attach_over(stream, options, Some((doorway, &door.to_bytes())), &[Provider::Shm])
        }
        StoreAddress::Host(host) => {
            let stream = connect_tcp(host).map_err(unreachable)?;
            let limited = stream.set_read_timeout(limit).and_then(|()| stream.set_write_timeout(limit));
            limited.map_err(unreachable)?;
            attach_over(stream, options, None, &[Provider::Rdma, Provider::Tcp])
        }
    }
}

fn connect_tcp(host: &str) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in host.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, limits::CONNECT_STEP) {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                return Ok(stream);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn attach_over<C: Read + Write + AsFd>(
    mut channel: C,
    options: &ConnectOptions,
    door: Option<(Doorway, &[u8])>,
    providers: &[Provider],
) -> Result<AttachedLink, StoreError> {
    let failed = |source: io::Error| match source.kind() {
        io::ErrorKind::WouldBlock => StoreError::NoAnswer { wait: limits::CONNECT_STEP, is_started: false },
        _ => StoreError::Unreachable { address: options.address.clone(), source },
    };
    if let Some(password) = &options.password {
        ask(&mut channel, &[b"AUTH", password]).map_err(failed)?;
        answer(&mut channel).map_err(failed)??;
    }
    let mut words: Vec<&[u8]> = vec![b"CARAVAN.ATTACH", ATTACH_VERSION.as_bytes()];
    words.extend(door.iter().map(|(_, address)| *address));
    ask(&mut channel, &words).map_err(failed)?;
    let answer = answer(&mut channel).map_err(failed)??;
    let greeting = StoreGreeting::from_bytes(&answer).ok_or(StoreError::Protocol(
        "its memory is of another version, or its machine orders bytes otherwise",
    ))?;
    let memory = match door {
        Some((doorway, _)) => doorway.accept()?.descriptors.into_iter().next(),
        None => None,
    };
    let user_bytes = if memory.is_some() { 0 } else { super::one_sided::ARENA_BYTES };
    let link = Link::connect_sharing(&mut channel, providers, user_bytes)?;
    let channel =
        channel.as_fd().try_clone_to_owned().map_err(|source| StoreError::System { call: "dup", source })?;
    Ok(AttachedLink { link, channel, greeting, memory })
}

/// Sends a command.
fn ask(channel: &mut impl Write, words: &[&[u8]]) -> io::Result<()> {
    let mut request = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        request.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        request.extend_from_slice(word);
        request.extend_from_slice(b"\r\n");
    }
    channel.write_all(&request)
}

/// Reads an answer: a string, or the server's refusal. Reads no byte after it, which would be the link's.
fn answer(channel: &mut impl Read) -> io::Result<Result<Vec<u8>, StoreError>> {
    let mut line = Vec::new();
    while !line.ends_with(b"\r\n") {
        let mut byte = [0];
        channel.read_exact(&mut byte)?;
        line.push(byte[0]);
        if line.len() > LINE_BYTES_MAX {
            return Ok(Err(StoreError::Protocol("a line is too long")));
        }
    }
    line.truncate(line.len() - 2);
    let Some((kind, text)) = line.split_first() else {
        return Ok(Err(StoreError::Protocol("a line is empty")));
    };
    Ok(match kind {
        b'+' => Ok(text.to_vec()),
        b'-' => Err(StoreError::Refused(caravan_segment::printable(text))),
        b'$' => {
            let length = std::str::from_utf8(text).ok().and_then(|text| text.parse::<usize>().ok());
            match length.filter(|length| *length <= LINE_BYTES_MAX) {
                Some(length) => {
                    let mut bytes = vec![0; length + 2];
                    channel.read_exact(&mut bytes)?;
                    bytes.truncate(length);
                    Ok(bytes)
                }
                None => Err(StoreError::Protocol("a length is malformed")),
            }
        }
        _ => Err(StoreError::Protocol("an answer is of another kind than expected")),
    })
}
