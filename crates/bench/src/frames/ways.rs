//! The ways of `caravan frames bench`: how a frame is sent, and how it is taken and checked.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use caravan_frames::clock::monotonic_ns;
use caravan_frames::{
    FrameChoice, FrameReceiver, FrameSender, Overwritten, Picture, Received, StreamOptions,
};
use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};

use crate::error::Error;
use crate::frames::{ConsumerOutcome, ConsumerTask, FrameWay, is_whole, stamp, word_of};
use crate::process::failed;

/// The most that a pipe of an ordinary user holds.
const PIPE_BYTES: usize = 1 << 20;
/// In front of each frame of a stream of bytes: its number, and when it was captured.
const HEAD_BYTES: usize = 16;
/// How long a side may take for anything.
const LIMIT: Duration = Duration::from_secs(60);

/// A producer of frames.
pub enum Producer {
    Bytes { frame: Vec<u8>, output: BytesOutput },
    Caravan(Box<FrameSender>),
    Copy { frame: Vec<u8>, copy: Vec<u8>, outcome: ConsumerOutcome },
}

/// Where a stream of bytes goes.
pub enum BytesOutput {
    /// The end that the consumer opens is kept until it has.
    Pipe {
        input: File,
        _kept: Option<OwnedFd>,
    },
    Listening(TcpListener),
    Tcp(TcpStream),
}

fn wrong(why: &dyn std::fmt::Display) -> Error {
    failed("producer", why)
}

impl Producer {
    /// Makes a producer; returns where the consumer finds it.
    pub fn new(way: FrameWay, picture: Picture) -> Result<(Self, String), Error> {
        // Not zeros: the kernel would map one page of them everywhere.
        let frame = || vec![1; picture.frame_bytes() as usize];
        Ok(match way {
            FrameWay::Pipe => {
                let (output, input) = pipe_with(PipeFlags::CLOEXEC).map_err(|why| wrong(&why))?;
                fcntl_setpipe_size(&input, PIPE_BYTES).map_err(|why| wrong(&why))?;
                let place = format!("/proc/{}/fd/{}", std::process::id(), output.as_raw_fd());
                let output = BytesOutput::Pipe { input: input.into(), _kept: Some(output) };
                (Self::Bytes { frame: frame(), output }, place)
            }
            FrameWay::Tcp => {
                let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(|why| wrong(&why))?;
                let place = listener.local_addr().map_err(|why| wrong(&why))?.to_string();
                (Self::Bytes { frame: frame(), output: BytesOutput::Listening(listener) }, place)
            }
            FrameWay::Caravan => {
                let name = format!("bench-{}", std::process::id());
                let sender =
                    FrameSender::create(&name, &StreamOptions::new(picture)).map_err(|why| wrong(&why))?;
                (Self::Caravan(Box::new(sender)), name)
            }
            FrameWay::Copy => {
                let producer =
                    Self::Copy { frame: frame(), copy: frame(), outcome: ConsumerOutcome::default() };
                (producer, String::new())
            }
        })
    }

    /// Goes on once the consumer has said that it is there.
    pub fn connected(&mut self) -> Result<(), Error> {
        match self {
            Self::Bytes { output, .. } => match output {
                BytesOutput::Pipe { _kept, .. } => *_kept = None,
                BytesOutput::Listening(listener) => {
                    let (stream, _) = listener.accept().map_err(|why| wrong(&why))?;
                    stream.set_nodelay(true).map_err(|why| wrong(&why))?;
                    *output = BytesOutput::Tcp(stream);
                }
                BytesOutput::Tcp(_) => {}
            },
            Self::Caravan(sender) => {
                if !sender.wait_for_consumers(1, LIMIT) {
                    return Err(wrong(&"the consumer does not come"));
                }
            }
            Self::Copy { .. } => {}
        }
        Ok(())
    }

    /// Captures a frame, and sends it.
    pub fn frame(&mut self, number: u64) -> Result<(), Error> {
        match self {
            Self::Bytes { frame, output } => {
                stamp(frame, number);
                let head = [number.to_le_bytes(), monotonic_ns().to_le_bytes()].concat();
                let write =
                    |output: &mut dyn Write| output.write_all(&head).and_then(|()| output.write_all(frame));
                let written = match output {
                    BytesOutput::Pipe { input, .. } => write(input),
                    BytesOutput::Tcp(stream) => write(stream),
                    BytesOutput::Listening(_) => return Err(wrong(&"nobody is connected")),
                };
                written.map_err(|why| wrong(&why))
            }
            Self::Caravan(sender) => {
                let slot = sender.next(LIMIT).map_err(|why| wrong(&why))?;
                let mut slot = slot.ok_or_else(|| wrong(&"there is no room"))?;
                stamp(slot.bytes_mut(), number);
                slot.publish();
                Ok(())
            }
            Self::Copy { frame, copy, outcome } => {
                stamp(frame, number);
                let captured_ns = monotonic_ns();
                copy.copy_from_slice(frame);
                outcome.count(number, captured_ns, copy);
                Ok(())
            }
        }
    }

    /// Ends the stream. Returns what the consumer in this process has seen.
    pub fn end(self) -> ConsumerOutcome {
        match self {
            Self::Copy { outcome, .. } => outcome,
            Self::Bytes { .. } | Self::Caravan(_) => ConsumerOutcome::default(),
        }
    }
}

impl ConsumerOutcome {
    /// Counts a frame that was copied.
    fn count(&mut self, number: u64, captured_ns: u64, frame: &[u8]) {
        let took_ns = monotonic_ns().saturating_sub(captured_ns);
        match is_whole(number, frame.len(), |at| word_of(frame, at)) {
            true => self.took_ns.push(took_ns),
            false => self.torn += 1,
        }
    }
}

/// A consumer of frames.
pub enum Consumer {
    Bytes { input: Box<dyn Read>, frame: Vec<u8> },
    Caravan(Box<FrameReceiver>),
}

impl Consumer {
    pub fn new(task: &ConsumerTask) -> Result<Self, Error> {
        let gone = |why: &dyn std::fmt::Display| failed("consumer", why);
        let bytes = |input| Self::Bytes { input, frame: vec![1; task.frame_bytes] };
        Ok(match task.way {
            FrameWay::Pipe => bytes(Box::new(File::open(&task.place).map_err(|why| gone(&why))?)),
            FrameWay::Tcp => bytes(Box::new(TcpStream::connect(&task.place).map_err(|why| gone(&why))?)),
            FrameWay::Caravan => {
                let receiver =
                    FrameReceiver::attach(&task.place, FrameChoice::Newest).map_err(|why| gone(&why))?;
                Self::Caravan(Box::new(receiver))
            }
            FrameWay::Copy => return Err(gone(&"a copy has no consumer")),
        })
    }

    /// Takes frames until the end.
    pub fn run(&mut self) -> Result<ConsumerOutcome, Error> {
        let gone = |why: &dyn std::fmt::Display| failed("consumer", why);
        let mut outcome = ConsumerOutcome::default();
        match self {
            Self::Bytes { input, frame } => {
                let mut head = [0; HEAD_BYTES];
                while input.read_exact(&mut head).is_ok() {
                    input.read_exact(frame).map_err(|why| gone(&why))?;
                    outcome.count(word_of(&head, 0), word_of(&head, 8), frame);
                }
            }
            Self::Caravan(receiver) => loop {
                match receiver.receive(LIMIT).map_err(|why| gone(&why))? {
                    Received::Frame(view) => {
                        let took_ns = monotonic_ns().saturating_sub(view.captured_ns());
                        let checked = view.read(|pixels| {
                            let word_at = |at| {
                                let mut word = [0; 8];
                                pixels.copy_out(at, &mut word);
                                u64::from_le_bytes(word)
                            };
                            is_whole(word_at(0), pixels.bytes(), word_at)
                        });
                        match checked {
                            Ok(true) => outcome.took_ns.push(took_ns),
                            Ok(false) => outcome.torn += 1,
                            // It was not come to in time: dropped.
                            Err(Overwritten) => {}
                        }
                    }
                    Received::End => break,
                    Received::Nothing | Received::Gone => return Err(gone(&"the producer is gone")),
                }
            },
        }
        Ok(outcome)
    }
}
