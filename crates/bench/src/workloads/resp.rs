//! A client of servers that speak the Redis protocol.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use caravan_cluster::slot_of;

use crate::error::Error;
use crate::process::failed;
use crate::workloads::client::{PlannedTransaction, WorkloadClient};

/// How long a reply may take.
const REPLY_LIMIT: Duration = Duration::from_secs(30);
/// How many keys are set together while a store is filled.
const FILL_BATCH: usize = 64;

/// Where the servers of a store are.
#[derive(Clone, Debug)]
pub struct RespServers {
    pub sockets: Vec<PathBuf>,
    /// The place in `sockets` of the server that has each hash slot; empty if there is one server.
    pub server_of_slot: Arc<[u8]>,
    /// The number of replicas for which a write waits (WAIT).
    pub replicas: u8,
}

/// A reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RespReply {
    Null,
    Text(Vec<u8>),
    Number(i64),
    Array(Vec<RespReply>),
    Refusal(String),
}

/// A client with a connection to each server.
#[derive(Debug)]
pub struct RespClient {
    servers: RespServers,
    streams: Vec<UnixStream>,
    output: Vec<u8>,
    input: Vec<u8>,
    awaited: usize,
}

fn io_failed(why: std::io::Error) -> Error {
    failed("server", &why)
}

impl RespClient {
    pub fn connect(servers: RespServers) -> Result<Self, Error> {
        let connect = |socket: &PathBuf| {
            let stream = UnixStream::connect(socket)?;
            stream.set_read_timeout(Some(REPLY_LIMIT))?;
            Ok(stream)
        };
        let streams: std::io::Result<Vec<_>> = servers.sockets.iter().map(connect).collect();
        let streams = streams.map_err(io_failed)?;
        Ok(Self { servers, streams, output: Vec::new(), input: Vec::new(), awaited: 0 })
    }

    fn server_of(&self, key: &[u8]) -> usize {
        let slots = &self.servers.server_of_slot;
        if slots.is_empty() { 0 } else { slots[usize::from(slot_of(key))].into() }
    }

    /// Adds a command to what [`exchange`](Self::exchange) sends.
    fn add<'w>(&mut self, words: impl ExactSizeIterator<Item = &'w [u8]>) {
        // Writing into a Vec cannot fail.
        let _ = write!(self.output, "*{}\r\n", words.len());
        for word in words {
            let _ = write!(self.output, "${}\r\n", word.len());
            self.output.extend_from_slice(word);
            self.output.extend_from_slice(b"\r\n");
        }
        self.awaited += 1;
    }

    fn add_words(&mut self, words: &[&[u8]]) {
        self.add(words.iter().copied());
    }

    fn add_keys(&mut self, command: &[u8], keys: &[Vec<u8>]) {
        let words: Vec<&[u8]> = std::iter::once(command).chain(keys.iter().map(Vec::as_slice)).collect();
        self.add_words(&words);
    }

    fn add_wait(&mut self) {
        if self.servers.replicas > 0 {
            self.add_words(&[b"WAIT", self.servers.replicas.to_string().as_bytes(), b"0"]);
        }
    }

    /// Sends the commands to a server, and returns their replies. A refusal is an error.
    fn exchange(&mut self, server: usize) -> Result<Vec<RespReply>, Error> {
        let stream = &mut self.streams[server];
        stream.write_all(&self.output).map_err(io_failed)?;
        self.output.clear();
        self.input.clear();
        let (mut replies, mut at) = (Vec::new(), 0);
        while replies.len() < self.awaited {
            let mut next = at;
            match parse(&self.input, &mut next) {
                Some(RespReply::Refusal(text)) => {
                    return Err(failed("server", &format!("it refused: {text}")));
                }
                Some(reply) => {
                    replies.push(reply);
                    at = next;
                }
                None => {
                    let mut bytes = [0; 16 << 10];
                    match stream.read(&mut bytes).map_err(io_failed)? {
                        0 => return Err(failed("server", &"it closed the connection")),
                        count => self.input.extend_from_slice(&bytes[..count]),
                    }
                }
            }
        }
        self.awaited = 0;
        Ok(replies)
    }

    /// Checks that enough replicas have what was written.
    fn check_wait(&self, reply: Option<&RespReply>) -> Result<(), Error> {
        match reply {
            Some(RespReply::Number(count)) if *count >= self.servers.replicas.into() => Ok(()),
            _ if self.servers.replicas == 0 => Ok(()),
            reply => Err(failed("server", &format!("a write is not at its replica: {reply:?}"))),
        }
    }

    /// Returns a number that each server tells in its INFO, all together.
    pub fn sum_of_info(&mut self, name: &str) -> Result<u64, Error> {
        let mut sum = 0;
        for server in 0..self.streams.len() {
            self.add_words(&[b"INFO"]);
            let replies = self.exchange(server)?;
            let [RespReply::Text(text)] = &replies[..] else { continue };
            let text = String::from_utf8_lossy(text);
            let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            let value = value.and_then(|value| value.trim().parse::<u64>().ok());
            sum += value.ok_or_else(|| failed("server", &format!("its INFO has no {name}")))?;
        }
        Ok(sum)
    }

    /// Runs a transaction once, and returns the number of its writes; `None` if another client interfered.
    fn attempt(&mut self, transaction: &dyn PlannedTransaction) -> Result<Option<usize>, Error> {
        let reads = transaction.reads();
        let server = reads.first().map_or(0, |key| self.server_of(key));
        if !transaction.is_read_only() {
            self.add_keys(b"WATCH", reads);
        }
        self.add_keys(b"MGET", reads);
        let Some(RespReply::Array(values)) = self.exchange(server)?.pop() else {
            return Err(failed("server", &"it answers MGET without values"));
        };
        let value = |reply| if let RespReply::Text(text) = reply { Some(text) } else { None };
        let values: Vec<Option<Vec<u8>>> = values.into_iter().map(value).collect();
        let writes = transaction.decide(&values)?;
        if transaction.is_read_only() {
            return Ok(Some(0));
        }
        if writes.is_empty() {
            self.add_words(&[b"UNWATCH"]);
            self.exchange(server)?;
            return Ok(Some(0));
        }
        self.add_words(&[b"MULTI"]);
        for (key, value) in &writes {
            match value {
                Some(value) => self.add_words(&[b"SET", key, value]),
                None => self.add_words(&[b"DEL", key]),
            }
        }
        self.add_words(&[b"EXEC"]);
        self.add_wait();
        let replies = self.exchange(server)?;
        if replies.get(writes.len() + 1) == Some(&RespReply::Null) {
            return Ok(None);
        }
        self.check_wait(replies.last())?;
        Ok(Some(writes.len()))
    }
}

impl WorkloadClient for RespClient {
    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool, Error> {
        self.add_words(&[b"GET", key]);
        let replies = self.exchange(self.server_of(key))?;
        let [RespReply::Text(text)] = &replies[..] else { return Ok(false) };
        value.extend_from_slice(text);
        Ok(true)
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        self.add_words(&[b"SET", key, value]);
        self.add_wait();
        let replies = self.exchange(self.server_of(key))?;
        self.check_wait(replies.last())
    }

    fn run(&mut self, transaction: &dyn PlannedTransaction) -> Result<usize, Error> {
        loop {
            if let Some(writes) = self.attempt(transaction)? {
                return Ok(writes);
            }
        }
    }

    fn fill(&mut self, pairs: &mut dyn Iterator<Item = (Vec<u8>, Vec<u8>)>) -> Result<(), Error> {
        loop {
            let batch: Vec<_> = pairs.take(FILL_BATCH).collect();
            if batch.is_empty() {
                return Ok(());
            }
            for server in 0..self.streams.len() {
                for (key, value) in &batch {
                    if self.server_of(key) == server {
                        self.add_words(&[b"SET", key, value]);
                    }
                }
                if self.awaited > 0 {
                    self.exchange(server)?;
                }
            }
        }
    }
}

/// Parses a reply at `at`, and moves `at` behind it; `None` if more bytes are needed.
fn parse(bytes: &[u8], at: &mut usize) -> Option<RespReply> {
    let rest = bytes.get(*at..)?;
    let end = rest.windows(2).position(|pair| pair == b"\r\n")?;
    let (kind, text) = rest[..end].split_first()?;
    *at += end + 2;
    let number = || std::str::from_utf8(text).ok()?.parse::<i64>().ok();
    match kind {
        b'+' => Some(RespReply::Text(text.to_vec())),
        b':' => number().map(RespReply::Number),
        b'$' => match usize::try_from(number()?) {
            Ok(count) => {
                let found = bytes.get(*at..*at + count + 2)?;
                *at += count + 2;
                Some(RespReply::Text(found[..count].to_vec()))
            }
            Err(_) => Some(RespReply::Null),
        },
        b'*' => match usize::try_from(number()?) {
            Ok(count) => (0..count).map(|_| parse(bytes, at)).collect::<Option<_>>().map(RespReply::Array),
            Err(_) => Some(RespReply::Null),
        },
        _ => Some(RespReply::Refusal(String::from_utf8_lossy(text).into_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_are_parsed_once_they_are_whole() {
        let bytes = b"*3\r\n$2\r\nab\r\n$-1\r\n:7\r\n+OK\r\n-ERR no\r\n";
        let mut at = 0;
        let text = |text: &str| RespReply::Text(text.as_bytes().to_vec());
        let array = RespReply::Array(vec![text("ab"), RespReply::Null, RespReply::Number(7)]);
        assert_eq!(parse(bytes, &mut at), Some(array));
        assert_eq!(parse(bytes, &mut at), Some(text("OK")));
        assert_eq!(parse(bytes, &mut at), Some(RespReply::Refusal("ERR no".to_owned())));
        assert_eq!(at, bytes.len());
        assert_eq!(parse(bytes, &mut at), None);
        for short in 1..21 {
            assert_eq!(parse(&bytes[..short], &mut 0), None, "{short}");
        }
    }
}
