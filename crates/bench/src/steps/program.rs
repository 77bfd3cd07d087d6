//! The program of the steps: the work of both sides, by the settings.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::fs::FileExt;
use std::time::Instant;

use caravan_fabric::contract::Armed;
use caravan_fabric::{Endpoint, Link, SpinMode, SpinPolicy, Turn};
use rustix::event::{PollFd, PollFlags, Timespec};
use serde::{Deserialize, Serialize};

use crate::args::StepsTransport;
use crate::control;
use crate::control::BenchChannel;
use crate::error::Error;
use crate::pipe::{PipeInput, word};
use crate::steps::wire::{
    ARENA_BYTES, Buffer, FabricWire, SampleDeadline, StepWire, TcpWire, exposure, failed,
};
use crate::steps::{Messages, StepProgram, StepSink, StepSource};

/// The number of bytes of the file that are read at once for its digest.
const DIGEST_CHUNK_BYTES: usize = 1 << 20;

/// The task of a sample.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct StepTask {
    pub program: StepProgram,
    pub bytes: u64,
    /// The bytes of the file, which is read again from its start after its end: a multiple of every message's.
    pub file_bytes: u64,
    /// True if the sample is not measured: the receiving side takes the digest of all bytes instead.
    pub is_check: bool,
}

/// Runs the sending side. Returns the nanoseconds until the last acknowledgement.
pub fn send_messages(
    wire: &mut dyn StepWire,
    task: &StepTask,
    messages: &Messages,
    input: &PipeInput,
) -> Result<f64, Error> {
    let Messages { message_bytes: bytes, ack_bytes, ack_every, buffers, source, .. } = *messages;
    // One buffer is read into while the other is under way.
    let own = if source == StepSource::FileAhead { buffers.max(2) } else { buffers };
    let buffer = |n: u64| Buffer { number: (n % own as u64) as usize, bytes };
    let fill = |wire: &mut dyn StepWire, n: u64| {
        wire.fill(buffer(n), input.file(), n * bytes as u64 % task.file_bytes)
    };
    if source == StepSource::Buffer {
        for n in 0..own {
            wire.fill(Buffer { number: n, bytes }, input.file(), 0)?;
        }
    }
    let start = Instant::now();
    if source == StepSource::FileAhead {
        fill(wire, 0)?;
    }
    let count = messages.count(task.bytes);
    let mut acknowledged = 0;
    for n in 0..count {
        while n - acknowledged >= buffers as u64 {
            wire.await_acknowledgement(ack_bytes)?;
            acknowledged += ack_every as u64;
        }
        if source == StepSource::File {
            fill(wire, n)?;
        }
        wire.send(buffer(n))?;
        if source == StepSource::FileAhead && n + 1 < count {
            fill(wire, n + 1)?;
        }
    }
    while acknowledged < count {
        wire.await_acknowledgement(ack_bytes)?;
        acknowledged += ack_every as u64;
    }
    Ok(start.elapsed().as_nanos() as f64)
}

/// Runs the receiving side.
pub fn receive_messages(
    wire: &mut dyn StepWire,
    task: &StepTask,
    messages: &Messages,
    output: &mut CheckedOutput,
) -> Result<(), Error> {
    let Messages { message_bytes: bytes, ack_bytes, ack_every, buffers, sink, source } = *messages;
    for n in 0..messages.count(task.bytes) {
        let buffer = Buffer { number: (n % buffers as u64) as usize, bytes };
        wire.receive(buffer)?;
        if sink == StepSink::Copy || task.is_check {
            let position = if source == StepSource::Buffer { 0 } else { n * bytes as u64 };
            output.take(position, bytes, |to| {
                wire.copy_out(buffer, to);
                Ok(())
            })?;
        }
        if (n + 1) % ack_every as u64 == 0 {
            wire.acknowledge(ack_bytes)?;
        }
    }
    Ok(())
}

/// The buffer that the receiving side copies into, as a program does that reads a pipe.
pub struct CheckedOutput {
    buffer: Vec<u8>,
    file_bytes: u64,
    digest: Option<digest::digest::Context>,
}

impl CheckedOutput {
    pub fn of(task: &StepTask, bytes: usize) -> Self {
        let digest = task.is_check.then(|| digest::digest::Context::new(&digest::digest::SHA256));
        Self { buffer: vec![0; bytes], file_bytes: task.file_bytes, digest }
    }

    /// Takes bytes of the stream from `position` on, and checks that their first word belongs there.
    pub fn take(
        &mut self,
        position: u64,
        bytes: usize,
        copy: impl FnOnce(&mut [u8]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let buffer = self.buffer.get_mut(..bytes).ok_or_else(|| failed(&"more came than fits"))?;
        copy(buffer)?;
        let place = position % self.file_bytes;
        match buffer.first_chunk() {
            Some(first) if place % 8 == 0 && u64::from_le_bytes(*first) != word(place) => {
                return Err(failed(&format!("the bytes from {position} on are others than were sent")));
            }
            _ => {}
        }
        if let Some(digest) = &mut self.digest {
            digest.update(buffer);
        }
        Ok(())
    }

    /// Returns the digest of all received bytes, if it was taken.
    pub fn digest(self) -> Option<Vec<u8>> {
        self.digest.map(|digest| digest.finish().as_ref().to_vec())
    }
}

/// Returns the digest of all bytes that must arrive.
pub fn expected_digest(task: &StepTask, bytes: u64, input: &PipeInput) -> Result<Vec<u8>, Error> {
    let repeated = match task.program {
        StepProgram::Messages(Messages { source: StepSource::Buffer, message_bytes, .. }) => {
            message_bytes as u64
        }
        _ => task.file_bytes,
    };
    let mut digest = digest::digest::Context::new(&digest::digest::SHA256);
    let mut chunk = vec![0; DIGEST_CHUNK_BYTES];
    let mut position = 0;
    while position < bytes {
        let place = position % repeated;
        let length = (bytes - position).min(repeated - place).min(DIGEST_CHUNK_BYTES as u64) as usize;
        let part = chunk.get_mut(..length).unwrap_or_default();
        input.file().read_exact_at(part, place).map_err(|why| failed(&why))?;
        digest.update(part);
        position += length as u64;
    }
    Ok(digest.finish().as_ref().to_vec())
}

/// The transport of the steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StepsCarrier {
    Rdma,
    Shm,
    Tcp,
}

impl From<StepsTransport> for StepsCarrier {
    fn from(transport: StepsTransport) -> Self {
        match transport {
            StepsTransport::Rdma => Self::Rdma,
            StepsTransport::Shm => Self::Shm,
            StepsTransport::Tcp => Self::Tcp,
        }
    }
}

/// The end of one process.
pub enum StepsEnd {
    Fabric(FabricWire, Box<StepLink>),
    Tcp(TcpWire),
}

impl StepsEnd {
    /// Connects the sending side. The other side knows the carrier already. Also returns the description for users.
    pub fn connect(control: &mut BenchChannel, carrier: StepsCarrier) -> Result<(Self, String), Error> {
        let (wire, link) = match carrier {
            StepsCarrier::Rdma => (
                control::connect_rdma(control, &exposure())?,
                control::connect_rdma(control, &Link::exposure(RING_BYTES)?)?,
            ),
            StepsCarrier::Shm => (control::connect_shm(control)?, control::connect_shm(control)?),
            StepsCarrier::Tcp => {
                let port: u16 = control.answer()?;
                let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).map_err(|why| failed(&why))?;
                return Ok((Self::Tcp(TcpWire::new(stream)?), "TCP over loopback".to_owned()));
            }
        };
        let what = match link.description() {
            nothing if nothing.is_empty() => "shared memory".to_owned(),
            description => description,
        };
        Ok((Self::fabric(wire, link)?, what))
    }

    /// Connects the other side.
    pub fn accept(control: &mut BenchChannel, carrier: StepsCarrier) -> Result<Self, Error> {
        let (wire, link) = match carrier {
            StepsCarrier::Rdma => (
                control::accept_rdma(control, &exposure())?,
                control::accept_rdma(control, &Link::exposure(RING_BYTES)?)?,
            ),
            StepsCarrier::Shm => (
                control::accept_shm(control, ARENA_BYTES)?,
                control::accept_shm(control, Link::mapped_arena_bytes(RING_BYTES)?)?,
            ),
            StepsCarrier::Tcp => {
                let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(|why| failed(&why))?;
                let port = listener.local_addr().map_err(|why| failed(&why))?.port();
                control.say(&Ok::<_, String>(port))?;
                let (stream, _) = listener.accept().map_err(|why| failed(&why))?;
                return Ok(Self::Tcp(TcpWire::new(stream)?));
            }
        };
        Self::fabric(wire, link)
    }

    /// Runs the sending side of a sample. Returns its nanoseconds.
    pub fn send(&mut self, task: &StepTask, input: &PipeInput) -> Result<f64, Error> {
        match (task.program, self) {
            (StepProgram::Stream, Self::Fabric(_, ring)) => ring.send(task, input),
            (StepProgram::Stream, Self::Tcp(wire)) => send_stream(wire.stream(), task, input),
            (StepProgram::Messages(messages), end) => send_messages(end.wire(), task, &messages, input),
        }
    }

    /// Runs the receiving side of a sample. Returns the digest, if the sample is a check.
    pub fn receive(&mut self, task: &StepTask) -> Result<Option<Vec<u8>>, Error> {
        let bytes = match task.program {
            StepProgram::Messages(messages) => messages.message_bytes,
            StepProgram::Stream => CHUNK_BYTES,
        };
        let mut output = CheckedOutput::of(task, bytes);
        match (task.program, self) {
            (StepProgram::Stream, Self::Fabric(_, ring)) => ring.receive(task, &mut output)?,
            (StepProgram::Stream, Self::Tcp(wire)) => receive_stream(wire.stream(), task, &mut output)?,
            (StepProgram::Messages(messages), end) => {
                receive_messages(end.wire(), task, &messages, &mut output)?;
            }
        }
        Ok(output.digest())
    }

    fn fabric(wire: Box<dyn Endpoint>, link: Box<dyn Endpoint>) -> Result<Self, Error> {
        let ring = StepLink::new(Link::new(link, RING_BYTES)?);
        Ok(Self::Fabric(FabricWire::new(wire), Box::new(ring)))
    }

    fn wire(&mut self) -> &mut dyn StepWire {
        match self {
            Self::Fabric(wire, _) => wire,
            Self::Tcp(wire) => wire,
        }
    }
}

/// The bytes of the ring: larger rings do not fit into the processor's second cache.
pub const RING_BYTES: u64 = 1 << 20;
/// The number of bytes that are read, published and copied at once: small enough that both sides have work.
pub const CHUNK_BYTES: usize = 128 << 10;
/// How long a sleeper sleeps before it checks for the other side's end.
const NAP: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// A link, and how this side waits for it.
pub struct StepLink {
    link: Link,
    policy: SpinPolicy,
    start: Instant,
}

impl StepLink {
    pub fn new(link: Link) -> Self {
        Self { link, policy: SpinPolicy::new(SpinMode::Auto), start: Instant::now() }
    }

    fn now_ns(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    /// Runs the sending side. Returns the nanoseconds until the other side has acknowledged everything.
    pub fn send(&mut self, task: &StepTask, input: &PipeInput) -> Result<f64, Error> {
        let start = Instant::now();
        let mut sent = 0;
        while sent < task.bytes {
            let place = sent % task.file_bytes;
            let wanted = (task.bytes - sent).min(task.file_bytes - place).min(CHUNK_BYTES as u64);
            let spans = self.link.claim(wanted as usize)?;
            if spans.is_empty() {
                self.wait(1, |link| Ok(link.room()? > 0))?;
                continue;
            }
            seek(input.file(), place)?;
            for span in [spans.first, spans.second] {
                let mut done = 0;
                while done < span.length {
                    let slice = self.link.outbound_slice();
                    let read = slice.read_from(input.file(), span.offset + done, span.length - done);
                    done += some(read)?;
                }
            }
            self.link.commit(spans.length());
            self.link.publish()?;
            sent += spans.length() as u64;
        }
        self.wait(0, |link| Ok(link.refresh()? > 0))?;
        let took = start.elapsed().as_nanos() as f64;
        self.link.read(&mut [0]);
        self.link.release()?;
        self.settle()?;
        Ok(took)
    }

    /// Runs the receiving side.
    pub fn receive(&mut self, task: &StepTask, output: &mut CheckedOutput) -> Result<(), Error> {
        let mut received = 0;
        while received < task.bytes {
            // `poll` returns all bytes that there are, which may be more.
            let spans = self.link.poll(CHUNK_BYTES)?.first(CHUNK_BYTES);
            if spans.is_empty() {
                self.wait(0, |link| Ok(link.refresh()? > 0))?;
                continue;
            }
            let slice = self.link.inbound_slice();
            output.take(received, spans.length(), |to| {
                let (first, second) = to.split_at_mut(spans.first.length);
                slice.copy_out(spans.first.offset, first);
                slice.copy_out(spans.second.offset, second);
                Ok(())
            })?;
            self.link.skip(spans.length());
            self.link.release()?;
            received += spans.length() as u64;
        }
        self.link.append(&[1])?;
        self.link.publish()?;
        self.settle()
    }

    /// Waits until everything that this side has sent is at the other.
    fn settle(&mut self) -> Result<(), Error> {
        self.wait(0, |link| Ok(link.is_settled()? && link.outbound_used_bytes() == 0))
    }

    /// Spins or sleeps, as has lately paid off, until `is_so`.
    fn wait(&mut self, room: usize, is_so: impl Fn(&mut Link) -> Result<bool, Error>) -> Result<(), Error> {
        let deadline = SampleDeadline::new();
        while !is_so(&mut self.link)? {
            if self.policy.nothing(self.now_ns()) == Turn::Spin {
                std::thread::yield_now();
                continue;
            }
            if self.link.arm(room)? == Armed::LookAgain {
                continue;
            }
            let is_woken = {
                let bell = self.link.wait_fd().ok_or_else(|| failed(&"nothing to wait for"))?;
                let mut set = [PollFd::new(&bell, PollFlags::IN)];
                rustix::event::poll(&mut set, Some(&NAP)).map_err(|why| failed(&why))? > 0
            };
            if is_woken {
                self.link.acknowledge()?;
                self.policy.woken(self.now_ns());
            } else {
                self.link.check_peer()?;
                deadline.check()?;
            }
            self.link.awake();
        }
        self.policy.found(self.now_ns());
        Ok(())
    }
}

/// Runs the sending side over TCP.
fn send_stream(stream: &mut TcpStream, task: &StepTask, input: &PipeInput) -> Result<f64, Error> {
    let mut buffer = vec![0; CHUNK_BYTES];
    let start = Instant::now();
    let mut sent = 0;
    while sent < task.bytes {
        let place = sent % task.file_bytes;
        let wanted = (task.bytes - sent).min(task.file_bytes - place).min(CHUNK_BYTES as u64);
        seek(input.file(), place)?;
        let read = some(input.file().read(&mut buffer[..wanted as usize]))?;
        stream.write_all(&buffer[..read]).map_err(|why| failed(&why))?;
        sent += read as u64;
    }
    stream.read_exact(&mut [0]).map_err(|why| failed(&why))?;
    Ok(start.elapsed().as_nanos() as f64)
}

/// Runs the receiving side over TCP.
fn receive_stream(stream: &mut TcpStream, task: &StepTask, output: &mut CheckedOutput) -> Result<(), Error> {
    let mut received = 0;
    while received < task.bytes {
        let wanted = (task.bytes - received).min(CHUNK_BYTES as u64) as usize;
        output.take(received, wanted, |to| stream.read_exact(to).map_err(|why| failed(&why)))?;
        received += wanted as u64;
    }
    stream.write_all(&[1]).map_err(|why| failed(&why))
}

fn seek(mut file: &File, place: u64) -> Result<(), Error> {
    file.seek(SeekFrom::Start(place)).map(drop).map_err(|why| failed(&why))
}

fn some(read: std::io::Result<usize>) -> Result<usize, Error> {
    match read {
        Ok(0) => Err(failed(&"the file is too short")),
        read => read.map_err(|why| failed(&why)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TASK: StepTask =
        StepTask { program: StepProgram::Stream, bytes: 4096, file_bytes: 4096, is_check: true };

    /// Returns bytes of the file from `position` on.
    fn bytes(position: u64) -> Vec<u8> {
        (position..position + 2048).step_by(8).flat_map(|place| word(place).to_le_bytes()).collect()
    }

    #[test]
    fn a_digest_is_of_all_that_came_and_of_nothing_else() {
        let input = PipeInput::create(4096).expect("made");
        let expected = expected_digest(&TASK, 4096, &input).expect("read");
        let came = |second: Vec<u8>| {
            let mut output = CheckedOutput::of(&TASK, 2048);
            for (position, bytes) in [(0, bytes(0)), (2048, second)] {
                let copy = |to: &mut [u8]| {
                    to.copy_from_slice(&bytes);
                    Ok(())
                };
                output.take(position, 2048, copy).expect("taken");
            }
            output.digest().expect("a digest")
        };
        assert_eq!(came(bytes(2048)), expected);
        let mut flipped = bytes(2048);
        flipped[1000] ^= 1;
        assert_ne!(came(flipped), expected);
    }

    #[test]
    fn a_message_that_is_not_the_next_one_is_seen_without_a_digest() {
        let mut output = CheckedOutput::of(&StepTask { is_check: false, ..TASK }, 2048);
        let stale = |to: &mut [u8]| {
            to.copy_from_slice(&bytes(0));
            Ok(())
        };
        output.take(0, 2048, stale).expect("the first");
        let error = output.take(2048, 2048, stale).expect_err("the first again");
        assert!(error.to_string().contains("the bytes from 2048 on are others"), "{error}");
        // The file begins again.
        output.take(4096, 2048, stale).expect("the first of the next turn");
    }
}
