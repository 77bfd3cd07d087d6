//! The transport of messages and acknowledgements: buffers at both sides, and the way between them.

use std::fs::File;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use caravan_fabric::contract::{Armed, Event, Local, Operation};
use caravan_fabric::{Endpoint, Error as FabricError, Exposure};

use crate::control;
use crate::error::Error;
use crate::steps::{ACK_BYTES_MAX, BUFFERS_MAX, MESSAGE_BYTES_MAX};

/// The limit of a sample: many times what it takes.
const SAMPLE_LIMIT: Duration = Duration::from_secs(100);

/// One side of the wire. Each side has as many buffers as there are messages under way; message n goes from buffer n
/// to buffer n of the other side, modulo their number.
pub trait StepWire {
    /// Reads bytes of the file into a buffer for sending, once the previous message has left it.
    fn fill(&mut self, buffer: Buffer, file: &File, at: u64) -> Result<(), Error>;
    /// Sends a buffer.
    fn send(&mut self, buffer: Buffer) -> Result<(), Error>;
    /// Waits until the message has arrived in the buffer.
    fn receive(&mut self, buffer: Buffer) -> Result<(), Error>;
    /// Copies a message out of the buffer.
    fn copy_out(&self, buffer: Buffer, to: &mut [u8]);
    /// Sends an acknowledgement of `bytes` bytes.
    fn acknowledge(&mut self, bytes: usize) -> Result<(), Error>;
    /// Waits for an acknowledgement of `bytes` bytes.
    fn await_acknowledgement(&mut self, bytes: usize) -> Result<(), Error>;
}

/// A buffer for a message.
#[derive(Clone, Copy, Debug)]
pub struct Buffer {
    pub number: usize,
    pub bytes: usize,
}

impl Buffer {
    /// Returns the offset of the buffer: the buffers of a step lie one behind the other.
    pub fn offset(self) -> usize {
        self.number * self.bytes
    }
}

/// The limit of a wait.
#[derive(Debug)]
pub struct SampleDeadline(Instant);

impl SampleDeadline {
    pub fn new() -> Self {
        Self(Instant::now() + SAMPLE_LIMIT)
    }

    pub fn check(&self) -> Result<(), Error> {
        match Instant::now() < self.0 {
            true => Ok(()),
            false => Err(Error::BenchSlow(SAMPLE_LIMIT.as_secs())),
        }
    }
}

/// Returns a failure of the wire itself.
pub fn failed(why: &dyn std::fmt::Display) -> Error {
    Error::BenchProcess { process: "pipe", reason: why.to_string() }
}

/// One side over TCP. It sends or receives, and needs one set of buffers.
#[derive(Debug)]
pub struct TcpWire {
    stream: TcpStream,
    buffers: Vec<u8>,
    ack: Vec<u8>,
}

impl TcpWire {
    pub fn new(stream: TcpStream) -> Result<Self, Error> {
        stream.set_nodelay(true).map_err(|why| failed(&why))?;
        // Over a short distance bbr, the default of some systems, has half of the rate; if cubic is not permitted, the
        // default stays.
        let _ = rustix::net::sockopt::set_tcp_congestion(&stream, "cubic");
        let buffers = vec![0x5a; BUFFERS_MAX * MESSAGE_BYTES_MAX];
        Ok(Self { stream, buffers, ack: vec![0; ACK_BYTES_MAX] })
    }

    /// Returns the socket, for a stream without messages.
    pub fn stream(&mut self) -> &mut TcpStream {
        &mut self.stream
    }

    fn buffer(&mut self, buffer: Buffer) -> (&mut TcpStream, &mut [u8]) {
        (&mut self.stream, &mut self.buffers[buffer.offset()..][..buffer.bytes])
    }
}

impl StepWire for TcpWire {
    fn fill(&mut self, buffer: Buffer, file: &File, at: u64) -> Result<(), Error> {
        let (_, bytes) = self.buffer(buffer);
        file.read_exact_at(bytes, at).map_err(|why| failed(&why))
    }

    fn send(&mut self, buffer: Buffer) -> Result<(), Error> {
        let (stream, bytes) = self.buffer(buffer);
        stream.write_all(bytes).map_err(|why| failed(&why))
    }

    fn receive(&mut self, buffer: Buffer) -> Result<(), Error> {
        let (stream, bytes) = self.buffer(buffer);
        stream.read_exact(bytes).map_err(|why| failed(&why))
    }

    fn copy_out(&self, buffer: Buffer, to: &mut [u8]) {
        to.copy_from_slice(&self.buffers[buffer.offset()..][..to.len()]);
    }

    fn acknowledge(&mut self, bytes: usize) -> Result<(), Error> {
        self.stream.write_all(&self.ack[..bytes]).map_err(|why| failed(&why))
    }

    fn await_acknowledgement(&mut self, bytes: usize) -> Result<(), Error> {
        self.stream.read_exact(&mut self.ack[..bytes]).map_err(|why| failed(&why))
    }
}

const BUFFERS_BYTES: usize = BUFFERS_MAX * MESSAGE_BYTES_MAX;
const RECEIVE_AT: usize = BUFFERS_BYTES;
const ACK_SENT_AT: usize = 2 * BUFFERS_BYTES;
const ACK_RECEIVED_AT: usize = ACK_SENT_AT + ACK_BYTES_MAX;
/// The bytes of an arena.
pub const ARENA_BYTES: u64 = (ACK_RECEIVED_AT + ACK_BYTES_MAX) as u64;

/// Marks the immediate of an acknowledgement; the other bits are its bytes, as in that of a message's part.
const ACK: u32 = 1 << 31;
/// The number of events taken at once.
const EVENTS_MAX: usize = 64;
/// The context of an acknowledgement's completion; that of a message's is the number of its buffer.
const ACK_CONTEXT: u64 = u64::MAX;

/// Returns what the other side may write to: everything but the buffers for sending.
pub fn exposure() -> Exposure {
    Exposure {
        arena_bytes: ARENA_BYTES,
        exposed: RECEIVE_AT as u64..ARENA_BYTES,
        peer_reads: false,
        peer_swaps: false,
    }
}

/// One side over a fabric.
#[derive(Debug)]
pub struct FabricWire {
    endpoint: Box<dyn Endpoint>,
    /// The bytes of messages, and of acknowledgements, that have arrived and were not waited for yet.
    received: usize,
    acknowledged: usize,
    /// The writes under way: of messages, by buffer, and of acknowledgements.
    sending: Vec<u32>,
    acknowledging: u32,
    events: Vec<Event>,
}

impl FabricWire {
    pub fn new(endpoint: Box<dyn Endpoint>) -> Self {
        Self {
            endpoint,
            received: 0,
            acknowledged: 0,
            sending: Vec::new(),
            acknowledging: 0,
            events: Vec::with_capacity(EVENTS_MAX),
        }
    }

    /// Takes the events that have happened.
    fn gather(&mut self) -> Result<(), Error> {
        self.endpoint.poll(&mut self.events, EVENTS_MAX)?;
        for event in self.events.drain(..) {
            match event {
                Event::Immediate(told) if told & ACK != 0 => self.acknowledged += (told & !ACK) as usize,
                Event::Immediate(told) => self.received += told as usize,
                Event::Done(done) if done.context == ACK_CONTEXT => self.acknowledging -= 1,
                Event::Done(done) => {
                    if let Some(under_way) = self.sending.get_mut(done.context as usize) {
                        *under_way -= 1;
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Sleeps until `is_so`.
    fn until(&mut self, is_so: impl Fn(&Self) -> bool) -> Result<(), Error> {
        let deadline = SampleDeadline::new();
        loop {
            self.gather()?;
            if is_so(self) {
                return Ok(());
            }
            self.endpoint.flush()?;
            if self.endpoint.arm()? == Armed::LookAgain {
                continue;
            }
            if control::sleep(self.endpoint.wait_fd())? {
                self.endpoint.acknowledge()?;
            } else {
                self.endpoint.check_peer()?;
                deadline.check()?;
            }
        }
    }

    /// Writes a run of bytes in as many operations as necessary.
    fn write(&mut self, from: usize, to: usize, bytes: usize, mark: u32, context: u64) -> Result<(), Error> {
        let capabilities = self.endpoint.capabilities();
        let longest = capabilities.operation_bytes_max as usize;
        let mut done = 0;
        while done < bytes {
            let part = (bytes - done).min(longest);
            let operation = Operation::Write {
                from: Local { offset: (from + done) as u64, bytes: part as u32 },
                to: (to + done) as u64,
                immediate: Some(mark | part as u32),
                context,
            };
            if !capabilities.immediates_ordered {
                // If immediates may overtake one another, only one is under way at a time.
                self.until(|wire| wire.acknowledging == 0 && wire.sending.iter().all(|&count| count == 0))?;
            }
            match self.endpoint.post(operation) {
                Ok(()) => {
                    match self.sending.get_mut(context as usize) {
                        Some(under_way) => *under_way += 1,
                        None => self.acknowledging += 1,
                    }
                    done += part;
                    // The doorbell rings for each part: the next one may have to wait for it.
                    self.endpoint.doorbell()?;
                }
                Err(FabricError::Full(_)) => {
                    self.endpoint.flush()?;
                    self.gather()?;
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

impl StepWire for FabricWire {
    fn fill(&mut self, buffer: Buffer, file: &File, at: u64) -> Result<(), Error> {
        let under_way = |wire: &Self| wire.sending.get(buffer.number).copied().unwrap_or(0);
        self.until(|wire| under_way(wire) == 0)?;
        let mut file = file;
        std::io::Seek::seek(&mut file, std::io::SeekFrom::Start(at)).map_err(|why| failed(&why))?;
        let mut done = 0;
        while done < buffer.bytes {
            let slice = self.endpoint.arena();
            match slice.read_from(file, buffer.offset() + done, buffer.bytes - done) {
                Ok(0) => return Err(failed(&"the file is too short")),
                Ok(count) => done += count,
                Err(why) => return Err(failed(&why)),
            }
        }
        Ok(())
    }

    fn send(&mut self, buffer: Buffer) -> Result<(), Error> {
        if self.sending.len() <= buffer.number {
            self.sending.resize(buffer.number + 1, 0);
        }
        let at = buffer.offset();
        self.write(at, RECEIVE_AT + at, buffer.bytes, 0, buffer.number as u64)
    }

    fn receive(&mut self, buffer: Buffer) -> Result<(), Error> {
        self.until(|wire| wire.received >= buffer.bytes)?;
        self.received -= buffer.bytes;
        Ok(())
    }

    fn copy_out(&self, buffer: Buffer, to: &mut [u8]) {
        self.endpoint.arena().copy_out(RECEIVE_AT + buffer.offset(), to);
    }

    fn acknowledge(&mut self, bytes: usize) -> Result<(), Error> {
        self.write(ACK_SENT_AT, ACK_RECEIVED_AT, bytes, ACK, ACK_CONTEXT)
    }

    fn await_acknowledgement(&mut self, bytes: usize) -> Result<(), Error> {
        self.until(|wire| wire.acknowledged >= bytes)?;
        self.acknowledged -= bytes;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pipe::PipeInput;
    use crate::steps::program::{CheckedOutput, StepTask, receive_messages, send_messages};
    use crate::steps::{Messages, StepProgram, StepSink, StepSource, steps};
    use caravan_fabric::sim::World;
    use std::thread;

    /// Returns the messages of the steps, small enough for a simulated network.
    fn programs() -> impl Iterator<Item = Messages> {
        steps().into_iter().filter_map(|step| match step.program {
            StepProgram::Messages(messages) => Some(Messages {
                message_bytes: messages.message_bytes.min(16 << 10),
                ack_bytes: messages.ack_bytes.min(64),
                ..messages
            }),
            StepProgram::Stream => None,
        })
    }

    /// The networks promise less than shared memory does: the order of what arrives, the length of an operation.
    #[test]
    fn all_bytes_come_over_networks_that_promise_little() {
        let input = PipeInput::create(64 << 10).expect("made");
        for (seed, messages) in (0..).zip(programs()).chain((100..).zip(programs())) {
            // A sleeping side makes no progress, but devices make their own.
            let mut capabilities = World::capabilities(seed);
            capabilities.target_progress = true;
            let (network, left, right) = World::pair(seed, ARENA_BYTES, capabilities).expect("a network");
            let program = StepProgram::Messages(messages);
            let task = StepTask { program, bytes: 96 << 10, file_bytes: input.bytes, is_check: true };
            thread::scope(|scope| {
                scope.spawn(|| network.carry());
                let receiver = scope.spawn(move || {
                    let mut output = CheckedOutput::of(&task, messages.message_bytes);
                    let mut wire = FabricWire::new(Box::new(right));
                    receive_messages(&mut wire, &task, &messages, &mut output)
                        .unwrap_or_else(|why| panic!("seed {seed}: {messages:?}: {why}"));
                    // If the wire were dropped here, the other side's would end too.
                    wire
                });
                let mut wire = FabricWire::new(Box::new(left));
                send_messages(&mut wire, &task, &messages, &input)
                    .unwrap_or_else(|why| panic!("seed {seed}: {messages:?}: {why}"));
                receiver.join().expect("no panic");
            });
        }
    }

    #[test]
    fn the_last_step_copies_what_it_reads_ahead() {
        let last = programs().last().expect("a step");
        assert_eq!((last.source, last.sink, last.buffers), (StepSource::FileAhead, StepSink::Copy, 2));
    }
}
