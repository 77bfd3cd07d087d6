//! A connection to a server's socket, on which both speak the Redis protocol until it becomes something else.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

use super::address::{ConnectOptions, StoreAddress};
use crate::error::StoreError;

/// The longest line of an answer.
const LINE_BYTES_MAX: usize = 1024;

/// Until when a connection must have become a link.
#[derive(Clone, Copy, Debug)]
pub struct ConnectLimit {
    begin: Instant,
    wait: Duration,
}

impl ConnectLimit {
    /// Returns the limit that the options set, from now on.
    pub fn of(options: &ConnectOptions) -> Self {
        Self { begin: Instant::now(), wait: options.connect_wait }
    }

    /// Returns a limit that ends in `wait` from now, or earlier with this one.
    pub(crate) fn within(self, wait: Duration) -> Self {
        let left = self.wait.saturating_sub(self.begin.elapsed());
        if wait < left { Self { begin: Instant::now(), wait } } else { self }
    }

    /// Returns the time that is left.
    pub(crate) fn left(self) -> io::Result<Duration> {
        let left = self.wait.saturating_sub(self.begin.elapsed());
        if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
    }

    /// Returns the error of a step that failed.
    pub(crate) fn error(self, options: &ConnectOptions, source: io::Error) -> StoreError {
        if self.left().is_err() {
            return StoreError::NoAnswer { wait: self.wait, is_started: false };
        }
        StoreError::Unreachable { address: options.address.clone(), source }
    }
}

/// A connection on which no step waits longer than the limit allows.
#[derive(Debug)]
pub struct ServerSocket {
    stream: ServerStream,
    limit: ConnectLimit,
}

#[derive(Debug)]
enum ServerStream {
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl ServerSocket {
    /// Connects to a server, and gives the password if there is one.
    pub fn connect(options: &ConnectOptions, limit: ConnectLimit) -> Result<Self, StoreError> {
        let stream = match StoreAddress::parse(&options.address)? {
            StoreAddress::Socket(path) => connect_unix(&path, limit).map(ServerStream::Unix),
            StoreAddress::Host(host) => connect_tcp(&host, limit).map(ServerStream::Tcp),
        };
        let mut socket = Self { stream: stream.map_err(|source| limit.error(options, source))?, limit };
        if let Some(password) = &options.password {
            socket.command(options, &[b"AUTH", password])?;
        }
        Ok(socket)
    }

    /// Sets another limit for the steps that follow.
    pub(crate) fn allow(&mut self, limit: ConnectLimit) {
        self.limit = limit;
    }

    /// Returns whether the server is on this host.
    pub fn is_local(&self) -> bool {
        matches!(self.stream, ServerStream::Unix(_))
    }

    /// Sends a command, and returns the server's answer: a string, or its refusal. Reads no byte after it, which is that of
    /// what the connection becomes.
    pub fn command(&mut self, options: &ConnectOptions, words: &[&[u8]]) -> Result<Vec<u8>, StoreError> {
        self.command_for(options, words, LINE_BYTES_MAX)
    }

    /// The same for an answer of at most so many bytes.
    pub(crate) fn command_for(
        &mut self,
        options: &ConnectOptions,
        words: &[&[u8]],
        bytes_max: usize,
    ) -> Result<Vec<u8>, StoreError> {
        let answered = self.ask(words, bytes_max);
        answered.map_err(|source| self.limit.error(options, source))?
    }

    fn ask(&mut self, words: &[&[u8]], bytes_max: usize) -> io::Result<Result<Vec<u8>, StoreError>> {
        let mut request = format!("*{}\r\n", words.len()).into_bytes();
        for word in words {
            request.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
            request.extend_from_slice(word);
            request.extend_from_slice(b"\r\n");
        }
        self.write_all(&request)?;
        answer(self, bytes_max)
    }
}

impl Read for ServerSocket {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        set_socket_timeout(&*self, Timeout::Recv, Some(self.limit.left()?))?;
        match &mut self.stream {
            ServerStream::Unix(stream) => stream.read(to),
            ServerStream::Tcp(stream) => stream.read(to),
        }
    }
}

impl Write for ServerSocket {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        set_socket_timeout(&*self, Timeout::Send, Some(self.limit.left()?))?;
        match &mut self.stream {
            ServerStream::Unix(stream) => stream.write(from),
            ServerStream::Tcp(stream) => stream.write(from),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl AsFd for ServerSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.stream {
            ServerStream::Unix(stream) => stream.as_fd(),
            ServerStream::Tcp(stream) => stream.as_fd(),
        }
    }
}

impl From<ServerSocket> for OwnedFd {
    fn from(socket: ServerSocket) -> Self {
        match socket.stream {
            ServerStream::Unix(stream) => stream.into(),
            ServerStream::Tcp(stream) => stream.into(),
        }
    }
}

/// Connects to a UNIX socket. A server that is stopped accepts no connections, so this may wait for room among those
/// that wait already.
fn connect_unix(path: &Path, limit: ConnectLimit) -> io::Result<UnixStream> {
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    set_socket_timeout(&socket, Timeout::Send, Some(limit.left()?))?;
    connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket.into())
}

fn connect_tcp(host: &str, limit: ConnectLimit) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in host.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, limit.left()?) {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                return Ok(stream);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Reads an answer: a string, or the server's refusal. Reads no byte after it, which would be the link's.
fn answer(channel: &mut impl Read, bytes_max: usize) -> io::Result<Result<Vec<u8>, StoreError>> {
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
            match length.filter(|length| *length <= bytes_max) {
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
