//! The last step: a stream that has no messages and no acknowledgements. Over a fabric it is Caravan's ring,
//! into which the file is read and from which the bytes are copied; over TCP it is TCP.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::net::TcpStream;
use std::time::Instant;

use caravan_fabric::contract::Armed;
use caravan_fabric::{Link, SpinMode, SpinPolicy, Turn};
use rustix::event::{PollFd, PollFlags, Timespec};

use super::program::{Output, Task};
use super::wire::{Deadline, failed};
use crate::error::Error;
use crate::pipe::input::Input;

/// Bytes of the ring: larger ones leave the processor's second cache.
pub const RING_BYTES: u64 = 1 << 20;
/// Bytes that are read, published and copied at once: so many that both sides have something to do.
pub const CHUNK_BYTES: usize = 128 << 10;
/// How long a sleeper sleeps before it looks for the other side's end.
const NAP: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// A link, and who waits for it.
pub struct Ring {
    link: Link,
    policy: SpinPolicy,
    start: Instant,
}

impl Ring {
    pub fn new(link: Link) -> Self {
        Self { link, policy: SpinPolicy::new(SpinMode::Auto), start: Instant::now() }
    }

    fn now_ns(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    /// The sending side: nanoseconds until the other one has said that it has all.
    pub fn send(&mut self, task: &Task, input: &Input) -> Result<f64, Error> {
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

    /// The receiving side.
    pub fn receive(&mut self, task: &Task, output: &mut Output) -> Result<(), Error> {
        let mut received = 0;
        while received < task.bytes {
            // It gives all there is, which may be more.
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

    /// Until all that this side has said is at the other.
    fn settle(&mut self) -> Result<(), Error> {
        self.wait(0, |link| Ok(link.is_settled()? && link.outbound_used_bytes() == 0))
    }

    /// Spins or sleeps, as has lately paid off, until it is so.
    fn wait(&mut self, room: usize, is_so: impl Fn(&mut Link) -> Result<bool, Error>) -> Result<(), Error> {
        let deadline = Deadline::new();
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

/// The sending side over TCP.
pub fn send(stream: &mut TcpStream, task: &Task, input: &Input) -> Result<f64, Error> {
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

/// The receiving side over TCP.
pub fn receive(stream: &mut TcpStream, task: &Task, output: &mut Output) -> Result<(), Error> {
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
