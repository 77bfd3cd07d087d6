//! A client of servers on UNIX sockets: one thread with some connections.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

use crate::error::Error;
use crate::interrupt::Interrupt;
use crate::process::failed;
use crate::store::pairs::{KEY_BYTES, PairOperation, PairProtocol, RandomKeys, key};

/// How long a reply may take. A server that takes longer does not run.
const REPLY_LIMIT: Duration = Duration::from_secs(30);
/// The number of sets under way while a server is filled.
const FILL_BATCH: u64 = 64;
/// The operations between two checks for Ctrl-C while a server is filled.
const FILL_CHECK: u64 = 64 * 1024;

/// What a client has done in a sample.
#[derive(Clone, Debug, Default)]
pub struct SocketOutcome {
    pub operations: u64,
    pub elapsed: Duration,
    /// The processor time of the client's thread.
    pub cpu: Duration,
    /// The nanoseconds of each round trip, if one request was under way at a time.
    pub round_trips_ns: Vec<u64>,
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
    connections: Vec<UnixStream>,
    protocol: PairProtocol,
    output: Vec<u8>,
    input: Vec<u8>,
    /// The keys of the requests under way.
    keys: Vec<[u8; KEY_BYTES]>,
}

impl SocketClient {
    pub fn connect(socket: &Path, protocol: PairProtocol, connections: usize) -> Result<Self, Error> {
        let connect = || {
            let stream = UnixStream::connect(socket)?;
            stream.set_read_timeout(Some(REPLY_LIMIT))?;
            stream.set_write_timeout(Some(REPLY_LIMIT))?;
            Ok(stream)
        };
        let connections: io::Result<Vec<_>> = (0..connections).map(|_| connect()).collect();
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

    /// Sends requests and waits for their replies, over and over for `run`.
    pub fn sample(
        &mut self,
        operation: PairOperation,
        under_way: RequestsUnderWay,
        random: &mut RandomKeys,
        run: Duration,
        interrupt: &Interrupt,
    ) -> Result<SocketOutcome, Error> {
        let mut outcome = SocketOutcome::default();
        let is_single = under_way == RequestsUnderWay { connections: 1, pipeline: 1 };
        let connections = under_way.connections.min(self.connections.len());
        let mut keys = vec![Vec::new(); connections];
        let (begin, cpu) = (Instant::now(), thread_time());
        let mut before = begin;
        while before - begin < run {
            interrupt.check()?;
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
            outcome.operations += (connections * under_way.pipeline) as u64;
            let now = Instant::now();
            if is_single {
                outcome.round_trips_ns.push((now - before).as_nanos() as u64);
            }
            before = now;
        }
        outcome.elapsed = before - begin;
        outcome.cpu = thread_time().saturating_sub(cpu);
        Ok(outcome)
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

/// Returns the time that the calling thread has had a core.
pub fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
