//! The two ends of a link over an RDMA device, and their tasks.

use std::time::{Duration, Instant};

use caravan_fabric::contract::Armed;
use caravan_fabric::verbs::{self, Port};
use caravan_fabric::{Endpoint, Link};
use serde::{Deserialize, Serialize};

use crate::control;
use crate::error::Error;
use crate::rdma::failed;

/// The limit of a sample: many times what it takes.
const SAMPLE_LIMIT: Duration = Duration::from_secs(100);
/// Polls that find nothing between two readings of the clock.
const SPINS: u32 = 1 << 12;

/// The task of both ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkTask {
    /// True if each message is answered by one of the same size; otherwise one stream is answered by one byte at its
    /// end.
    pub echo: bool,
    /// Bytes of a message.
    pub bytes: usize,
    /// The number of messages.
    pub messages: u64,
    /// Messages published at once.
    pub batch: u64,
    /// True if neither side copies: the ring's bytes are claimed and skipped as they are.
    pub in_place: bool,
    /// True if a waiting side sleeps instead of polling.
    pub sleeps: bool,
}

/// The counts of one end, for a task or so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EndCounts {
    pub doorbells: u64,
    pub completions: u64,
    /// The number of times that it slept and was woken.
    pub wakeups: u64,
}

impl EndCounts {
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            doorbells: self.doorbells - earlier.doorbells,
            completions: self.completions - earlier.completions,
            wakeups: self.wakeups - earlier.wakeups,
        }
    }
}

/// One end of the link.
#[derive(Debug)]
pub struct RdmaEnd {
    pub link: Link,
    buffer: Vec<u8>,
}

impl RdmaEnd {
    pub fn over(endpoint: Box<dyn Endpoint>, ring_bytes: u64) -> Result<Self, Error> {
        Ok(Self { link: Link::new(endpoint, ring_bytes)?, buffer: Vec::new() })
    }

    /// Returns the port of this machine that the link uses.
    pub fn port(&self) -> Result<Port, Error> {
        let description = self.link.description();
        let mut ports = verbs::usable().ports.into_iter();
        let uses =
            |port: &Port| description.starts_with(&format!("{}, {} -> ", port.describe(), port.address()));
        ports.find(uses).ok_or_else(|| failed(&format!("its port is gone: {description}")))
    }

    pub fn counts(&self) -> EndCounts {
        let endpoint = self.link.endpoint_counts();
        let wakeups = self.link.counts().wakeups_received;
        EndCounts { doorbells: endpoint.doorbells, completions: endpoint.completions, wakeups }
    }

    /// Runs a task on the side that measures. Returns the nanoseconds of each round trip, or of the whole stream.
    pub fn measure(&mut self, task: &LinkTask) -> Result<Vec<f64>, Error> {
        self.buffer.resize(task.bytes, 0x5a);
        let mut took = Vec::with_capacity(if task.echo { task.messages as usize } else { 1 });
        let mut before = Instant::now();
        for number in 1..=task.messages {
            self.send(task, number % task.batch == 0 || number == task.messages)?;
            if task.echo {
                self.receive(task, task.bytes)?;
                let now = Instant::now();
                took.push((now - before).as_nanos() as f64);
                before = now;
            }
        }
        if !task.echo {
            self.receive(task, 1)?;
            took.push(before.elapsed().as_nanos() as f64);
        }
        self.settle(task)?;
        Ok(took)
    }

    /// Runs the other side of [`measure`](Self::measure).
    pub fn answer(&mut self, task: &LinkTask) -> Result<(), Error> {
        self.buffer.resize(task.bytes, 0xa5);
        for _ in 0..task.messages {
            self.receive(task, task.bytes)?;
            if task.echo {
                self.send(task, true)?;
            }
        }
        if !task.echo {
            self.send(&LinkTask { bytes: 1, ..*task }, true)?;
        }
        self.settle(task)
    }

    /// Puts one message into the ring; a longer one goes in parts, as there is room.
    fn send(&mut self, task: &LinkTask, publishes: bool) -> Result<(), Error> {
        let mut sent = 0;
        let mut waiting = Waiting::default();
        loop {
            if task.in_place {
                let claimed = self.link.claim(task.bytes - sent)?.length();
                self.link.commit(claimed);
                sent += claimed;
            } else {
                sent += self.link.append(&self.buffer[sent..task.bytes])?;
            }
            if sent == task.bytes {
                break;
            }
            self.link.publish()?;
            if self.link.room()? == 0 {
                waiting.wait(&mut self.link, 1, task.sleeps)?;
            }
        }
        if publishes { Ok(self.link.publish()?) } else { Ok(()) }
    }

    fn receive(&mut self, task: &LinkTask, bytes: usize) -> Result<(), Error> {
        let mut received = 0;
        let mut waiting = Waiting::default();
        while received < bytes {
            if self.link.unread() == 0 && self.link.refresh()? == 0 {
                waiting.wait(&mut self.link, 0, task.sleeps)?;
                continue;
            }
            if task.in_place {
                let count = self.link.poll(bytes - received)?.length().min(bytes - received);
                self.link.skip(count);
                received += count;
            } else {
                received += self.link.read(&mut self.buffer[received..bytes]);
            }
            self.link.release()?;
        }
        Ok(())
    }

    /// Waits until everything has arrived and each side knows it, so that the next task starts clean.
    fn settle(&mut self, task: &LinkTask) -> Result<(), Error> {
        let mut waiting = Waiting::default();
        while !(self.link.is_settled()? && self.link.outbound_used_bytes() == 0) {
            if self.link.refresh()? > 0 {
                return Err(failed(&"more came than was sent"));
            }
            waiting.wait(&mut self.link, 0, task.sleeps)?;
        }
        Ok(())
    }
}

/// A wait for the link, with a limit.
#[derive(Debug, Default)]
struct Waiting {
    spins: u32,
    since: Option<Instant>,
}

impl Waiting {
    fn wait(&mut self, link: &mut Link, room: usize, sleeps: bool) -> Result<(), Error> {
        self.spins = self.spins.wrapping_add(1);
        if sleeps || self.spins % SPINS == 0 {
            let since = *self.since.get_or_insert_with(Instant::now);
            if since.elapsed() > SAMPLE_LIMIT {
                return Err(stuck(link));
            }
        }
        if sleeps && link.arm(room)? == Armed::Wait {
            if control::sleep(link.wait_fd())? {
                link.acknowledge()?;
            }
            link.awake();
        }
        Ok(())
    }
}

/// Returns the error for a link on which nothing happens any more, with all that is known of it.
fn stuck(link: &mut Link) -> Error {
    let (sent, received) = (link.outbound_used_bytes(), link.inbound_used_bytes());
    let (counts, endpoint) = (link.counts(), link.endpoint_counts());
    let peer = link.check_peer();
    failed(&format!(
        "nothing came for {} s; {sent} bytes are not released there, {received} not here; {counts:?}; {endpoint:?}; {peer:?}",
        SAMPLE_LIMIT.as_secs(),
    ))
}
