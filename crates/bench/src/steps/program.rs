//! The program of the steps: the work of both sides, by the settings.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::Instant;

use caravan_fabric::contract::Armed;
use caravan_fabric::{Endpoint, Link, SpinMode, SpinPolicy, Turn};
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

/// The task of a sample.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct StepTask {
    pub program: StepProgram,
    pub bytes: u64,
    /// The bytes of the file, which is read again from its start after its end: a multiple of every message's.
    pub file_bytes: u64,
    /// True if the sample is not measured: the receiving side compares all bytes instead.
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
    expected: Vec<u8>,
    file_bytes: u64,
    is_check: bool,
}

impl CheckedOutput {
    pub fn of(task: &StepTask, bytes: usize) -> Self {
        let StepTask { file_bytes, is_check, .. } = *task;
        Self { buffer: vec![0; bytes], expected: Vec::new(), file_bytes, is_check }
    }

    /// Takes bytes of the stream from `position` on, and checks that they belong there: the first word, or all bytes
    /// if the sample is a check.
    pub fn take(
        &mut self,
        position: u64,
        bytes: usize,
        copy: impl FnOnce(&mut [u8]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let buffer = self.buffer.get_mut(..bytes).ok_or_else(|| failed(&"more came than fits"))?;
        copy(buffer)?;
        let checked = if self.is_check { &*buffer } else { buffer.get(..8).unwrap_or_default() };
        // The words that the bytes belong to; the first byte may be in the middle of one.
        self.expected.clear();
        for number in position / 8..=(position + checked.len() as u64) / 8 {
            self.expected.extend_from_slice(&word(number * 8 % self.file_bytes).to_le_bytes());
        }
        match self.expected[(position % 8) as usize..].starts_with(checked) {
            true => Ok(()),
            false => Err(failed(&format!("the bytes from {position} on are others than were sent"))),
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
    pub fn connect(control: &mut BenchChannel, carrier: StepsTransport) -> Result<(Self, String), Error> {
        let (wire, link) = match carrier {
            StepsTransport::Rdma => (
                control::connect_rdma(control, &exposure())?,
                control::connect_rdma(control, &Link::exposure(RING_BYTES)?)?,
            ),
            StepsTransport::Shm => (control::connect_shm(control)?, control::connect_shm(control)?),
            StepsTransport::Tcp => {
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
    pub fn accept(control: &mut BenchChannel, carrier: StepsTransport) -> Result<Self, Error> {
        let (wire, link) = match carrier {
            StepsTransport::Rdma => (
                control::accept_rdma(control, &exposure())?,
                control::accept_rdma(control, &Link::exposure(RING_BYTES)?)?,
            ),
            StepsTransport::Shm => (
                control::accept_shm(control, ARENA_BYTES)?,
                control::accept_shm(control, Link::mapped_arena_bytes(RING_BYTES)?)?,
            ),
            StepsTransport::Tcp => {
                let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(|why| failed(&why))?;
                let port = listener.local_addr().map_err(|why| failed(&why))?.port();
                control.reply(&port)?;
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

    /// Runs the receiving side of a sample.
    pub fn receive(&mut self, task: &StepTask) -> Result<(), Error> {
        let bytes = match task.program {
            StepProgram::Messages(messages) => messages.message_bytes,
            StepProgram::Stream => CHUNK_BYTES,
        };
        let mut output = CheckedOutput::of(task, bytes);
        match (task.program, self) {
            (StepProgram::Stream, Self::Fabric(_, ring)) => ring.receive(task, &mut output),
            (StepProgram::Stream, Self::Tcp(wire)) => receive_stream(wire.stream(), task, &mut output),
            (StepProgram::Messages(messages), end) => {
                receive_messages(end.wire(), task, &messages, &mut output)
            }
        }
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
            if control::sleep(self.link.wait_fd())? {
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
    fn a_check_compares_every_byte() {
        let take = |position, taken: Vec<u8>| {
            let mut output = CheckedOutput::of(&TASK, 2048);
            output.take(position, taken.len(), |to| {
                to.copy_from_slice(&taken);
                Ok(())
            })
        };
        // The file begins again, and a part may begin in the middle of a word.
        for position in [0, 2048, 4096] {
            take(position, bytes(position % 4096)).expect("the next part");
        }
        take(2051, bytes(2048)[3..2000].to_vec()).expect("a part of it");
        take(4088, [&bytes(2048)[2040..], &bytes(0)[..8]].concat()).expect("the end and the beginning");
        let mut flipped = bytes(2048);
        flipped[1000] ^= 1;
        assert!(take(2048, flipped.clone()).is_err());
        let mut output = CheckedOutput::of(&StepTask { is_check: false, ..TASK }, 2048);
        let copy = |from: Vec<u8>| {
            move |to: &mut [u8]| {
                to.copy_from_slice(&from);
                Ok(())
            }
        };
        output.take(2048, 2048, copy(flipped)).expect("only the first word counts");
        let error = output.take(2048, 2048, copy(bytes(0))).expect_err("the first part again");
        assert!(error.to_string().contains("the bytes from 2048 on are others"), "{error}");
    }
}
