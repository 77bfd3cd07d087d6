//! A client of servers on UNIX sockets and TCP: one thread with some connections.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use rustix::net::sockopt::{Timeout, set_socket_timeout};

use crate::error::Error;
use crate::interrupt::Interrupt;
use crate::process::failed;
use crate::store::pairs::{KEY_BYTES, PairOperation, PairProtocol, RandomKeys, key};
use crate::store::sampling::{ClientOutcome, ClientSampling};

/// How long a reply may take. A server that takes longer does not run.
const REPLY_LIMIT: Duration = Duration::from_secs(30);
/// The number of sets under way while a server is filled.
const FILL_BATCH: u64 = 64;
/// The operations between two checks for Ctrl-C while a server is filled.
const FILL_CHECK: u64 = 64 * 1024;

/// Where a server listens.
#[derive(Clone, Debug)]
pub enum PairAddress {
    Unix(PathBuf),
    /// A port of 127.0.0.1.
    Tcp(u16),
}

impl PairAddress {
    fn connect(&self) -> io::Result<File> {
        let socket: OwnedFd = match self {
            Self::Unix(path) => UnixStream::connect(path)?.into(),
            Self::Tcp(port) => {
                let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, *port))?;
                stream.set_nodelay(true)?;
                stream.into()
            }
        };
        for timeout in [Timeout::Recv, Timeout::Send] {
            set_socket_timeout(&socket, timeout, Some(REPLY_LIMIT))?;
        }
        Ok(socket.into())
    }
}

/// Requests that are under way at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestsUnderWay {
    pub connections: usize,
    /// On each connection.
    pub pipeline: usize,
}

/// A client.
#[derive(Debug)]
pub struct SocketClient {
    connections: Vec<File>,
    protocol: PairProtocol,
    output: Vec<u8>,
    input: Vec<u8>,
    /// The keys of the requests under way.
    keys: Vec<[u8; KEY_BYTES]>,
}

impl SocketClient {
    pub fn connect(address: &PairAddress, protocol: PairProtocol, connections: usize) -> Result<Self, Error> {
        let connections: io::Result<Vec<_>> = (0..connections).map(|_| address.connect()).collect();
        let connections = connections.map_err(|why| failed("server", &why))?;
        Ok(Self { connections, protocol, output: Vec::new(), input: Vec::new(), keys: Vec::new() })
    }

    /// Sets all keys.
    pub fn fill(&mut self, keys: u64, interrupt: &Interrupt) -> Result<(), Error> {
        for first in (0..keys).step_by(FILL_BATCH as usize) {
            if first % FILL_CHECK == 0 {
                interrupt.check()?;
            }
            self.keys = (first..keys.min(first + FILL_BATCH)).map(key).collect();
            self.send(0, PairOperation::Set)?;
            self.receive(0, PairOperation::Set)?;
        }
        Ok(())
    }

    /// Sends requests and waits for their replies, over and over.
    pub fn sample(
        &mut self,
        operation: PairOperation,
        under_way: RequestsUnderWay,
        random: &mut RandomKeys,
        sampling: ClientSampling,
    ) -> Result<ClientOutcome, Error> {
        let connections = under_way.connections.min(self.connections.len());
        let mut keys = vec![Vec::new(); connections];
        sampling.repeat(connections * under_way.pipeline, || {
            for (connection, keys) in keys.iter_mut().enumerate() {
                self.keys.clear();
                self.keys.extend((0..under_way.pipeline).map(|_| random.next()));
                self.send(connection, operation)?;
                std::mem::swap(keys, &mut self.keys);
            }
            for (connection, keys) in keys.iter_mut().enumerate() {
                std::mem::swap(keys, &mut self.keys);
                self.receive(connection, operation)?;
                std::mem::swap(keys, &mut self.keys);
            }
            Ok(())
        })
    }

    /// Sends a request for each of the keys.
    fn send(&mut self, connection: usize, operation: PairOperation) -> Result<(), Error> {
        self.output.clear();
        self.keys.iter().for_each(|key| self.protocol.request(operation, key, &mut self.output));
        self.connections[connection].write_all(&self.output).map_err(|why| failed("server", &why))
    }

    /// Reads the replies for all keys, and compares the first and the last one.
    fn receive(&mut self, connection: usize, operation: PairOperation) -> Result<(), Error> {
        let (Some(first), Some(last)) = (self.keys.first(), self.keys.last()) else { return Ok(()) };
        let [first, last] = [first, last].map(|key| self.protocol.reply(operation, key));
        self.input.resize(first.len() * self.keys.len(), 0);
        let read = self.connections[connection].read_exact(&mut self.input);
        read.map_err(|why| failed("server", &format!("it does not answer as expected: {why}")))?;
        match self.input.starts_with(&first) && self.input.ends_with(&last) {
            true => Ok(()),
            false => {
                let said = String::from_utf8_lossy(&self.input[..self.input.len().min(80)]).into_owned();
                Err(failed("server", &format!("it answered {said:?}")))
            }
        }
    }

    /// Returns a number that the server tells in its INFO.
    pub fn info(&mut self, name: &str) -> Result<u64, Error> {
        let unclear = |why: &dyn std::fmt::Display| failed("server", &format!("its INFO is unclear: {why}"));
        let stream = &mut self.connections[0];
        stream.write_all(b"*1\r\n$4\r\nINFO\r\n").map_err(|why| unclear(&why))?;
        let mut text = Vec::new();
        let mut byte = [0];
        while !text.ends_with(b"\r\n") {
            stream.read_exact(&mut byte).map_err(|why| unclear(&why))?;
            text.push(byte[0]);
        }
        let length =
            std::str::from_utf8(&text).ok().and_then(|head| head.trim().strip_prefix('$')?.parse().ok());
        let length: usize = length.ok_or_else(|| unclear(&"no length"))?;
        text.resize(length + 2, 0);
        stream.read_exact(&mut text).map_err(|why| unclear(&why))?;
        let text = String::from_utf8_lossy(&text).into_owned();
        let mut lines = text.lines().filter_map(|line| line.split_once(':'));
        let value = lines.find(|(key, _)| *key == name).and_then(|(_, value)| value.trim().parse().ok());
        value.ok_or_else(|| unclear(&format!("no {name}")))
    }
}
