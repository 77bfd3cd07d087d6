//! Messages between supervisor and worker over a socket pair. They are rare, and packets never go
//! this way.
//!
//! A message is its length, 32 bits, and JSON: a number and the order or the answer. Each order to a
//! process has the next number, and the answers repeat it. What a process says unasked, once it has
//! started, has the number 0. Each side trusts the other, as one forked the other. If a worker crashes
//! in the middle of a message, the supervisor ignores that part.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::error::{Error, system};
use crate::limits::{MESSAGE_BYTES_MAX, WORKERS_MAX};
use crate::owner::WorkerId;
use crate::plan::WorkerPlan;

/// An order to a worker.
#[derive(Debug, Serialize, Deserialize)]
pub enum WorkerOrder {
    /// Let go of what the plan does not have, then wait for [`WorkerOrder::Apply`].
    Prepare(WorkerPlan),
    /// Take the state that an app left in another worker. It comes between the two others, and has no answer.
    Inherit { app: String, state: Vec<u8> },
    /// Do what the plan says.
    Apply(WorkerPlan),
    /// Report the apps' figures.
    Report,
    /// Stop all apps and end.
    End,
}

/// The figures that apps report, by the apps' names.
pub type Reports = BTreeMap<String, BTreeMap<String, u64>>;

/// An answer of a worker.
#[derive(Debug, Serialize, Deserialize)]
pub enum WorkerAnswer {
    /// To [`WorkerOrder::Prepare`], once for each app that leaves a state, before [`WorkerAnswer::Prepared`]:
    /// the states of all apps together can be longer than a message.
    Left { app: String, state: Vec<u8> },
    /// To [`WorkerOrder::Prepare`].
    Prepared,
    /// To [`WorkerOrder::Apply`], and without an order once a new worker runs.
    Applied,
    /// Instead of [`WorkerAnswer::Applied`]: an app did not start.
    Failed { app: String, reason: String },
    /// To [`WorkerOrder::Report`].
    Report(Reports),
    /// To [`WorkerOrder::End`], as the last answer: the figures of the apps once they have stopped.
    Ended(Reports),
}

/// The reason why no message came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Silence {
    /// No message came within the time.
    Late,
    /// The other side has closed its socket.
    Gone,
}

/// One side of the socket pair.
#[derive(Debug)]
pub struct WorkerChannel {
    socket: UnixStream,
    partial: Vec<u8>,
}

impl WorkerChannel {
    /// Makes both sides.
    pub fn pair() -> std::io::Result<(Self, Self)> {
        let (a, b) = UnixStream::pair()?;
        let side = |socket: UnixStream| {
            socket.set_nonblocking(true)?;
            Ok::<_, std::io::Error>(Self { socket, partial: Vec::new() })
        };
        Ok((side(a)?, side(b)?))
    }

    /// Sends a message under a number. Waits for room until the other side has taken nothing for `limit`, or without
    /// end if there is no limit. After a timeout part of the message may be sent, and no other message can follow.
    pub fn send(
        &mut self,
        number: u64,
        message: &impl Serialize,
        limit: Option<Duration>,
    ) -> Result<(), Silence> {
        let body = serde_json::to_vec(&(number, message)).map_err(|_| Silence::Gone)?;
        debug_assert!(body.len() <= MESSAGE_BYTES_MAX);
        let length = u32::try_from(body.len()).map_err(|_| Silence::Gone)?;
        let bytes = [&length.to_le_bytes(), &body[..]].concat();
        let mut end = limit.map(|limit| Instant::now() + limit);
        let mut sent = 0;
        while sent < bytes.len() {
            match self.socket.write(&bytes[sent..]) {
                Ok(count) => {
                    sent += count;
                    end = limit.map(|limit| Instant::now() + limit);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.wait(PollFlags::OUT, end)?,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return Err(Silence::Gone),
            }
        }
        Ok(())
    }

    /// Returns the next message and its number. Waits until nothing has come for `limit`.
    pub fn receive<M: DeserializeOwned>(&mut self, limit: Duration) -> Result<(u64, M), Silence> {
        let mut end = Instant::now() + limit;
        loop {
            if let Some(message) = self.whole()? {
                return Ok(message);
            }
            let mut bytes = [0; 16 << 10];
            match self.socket.read(&mut bytes) {
                Ok(0) => return Err(Silence::Gone),
                Ok(count) => {
                    self.partial.extend_from_slice(&bytes[..count]);
                    end = Instant::now() + limit;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.wait(PollFlags::IN, Some(end))?,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return Err(Silence::Gone),
            }
        }
    }

    fn whole<M: DeserializeOwned>(&mut self) -> Result<Option<(u64, M)>, Silence> {
        let Some((length, rest)) = self.partial.split_first_chunk::<4>() else { return Ok(None) };
        let length = u32::from_le_bytes(*length) as usize;
        if length > MESSAGE_BYTES_MAX {
            return Err(Silence::Gone);
        }
        let Some(body) = rest.get(..length) else { return Ok(None) };
        let message = serde_json::from_slice(body).map_err(|_| Silence::Gone)?;
        self.partial.drain(..4 + length);
        Ok(Some(message))
    }

    fn wait(&self, flags: PollFlags, end: Option<Instant>) -> Result<(), Silence> {
        let left = end.map(|end| end.saturating_duration_since(Instant::now()));
        if left.is_some_and(|left| left.is_zero()) {
            return Err(Silence::Late);
        }
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        // If the wait was interrupted, the caller tries again, and comes back here with less time left.
        let _ = rustix::event::poll(&mut [PollFd::new(&self.socket, flags)], left.as_ref());
        Ok(())
    }
}

impl AsFd for WorkerChannel {
    /// The descriptor is readable when there is a message to receive.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// One bell. However often it was rung, one [`hush`](WorkerBell::hush) makes it quiet.
#[derive(Debug)]
pub struct WorkerBell(OwnedFd);

impl WorkerBell {
    fn new() -> Result<Self, Error> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        rustix::event::eventfd(0, flags).map(Self).map_err(system("eventfd"))
    }

    /// Wakes a process that waits for the bell, or is about to.
    pub fn ring(&self) {
        // The write fails only if the counter is full; the bell is readable then, too.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    /// Makes the bell quiet.
    pub fn hush(&self) {
        // The read fails if the bell is quiet already.
        let _ = rustix::io::read(&self.0, &mut [0u8; 8]);
    }
}

impl AsFd for WorkerBell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// All bells of an engine.
#[derive(Clone, Debug)]
pub struct EngineBells(Rc<[WorkerBell]>);

impl EngineBells {
    /// Makes all bells.
    pub fn new() -> Result<Self, Error> {
        // The supervisor's is the last one.
        (0..=WORKERS_MAX).map(|_| WorkerBell::new()).collect::<Result<_, _>>().map(Self)
    }

    /// Returns the bell of a worker.
    pub fn worker(&self, worker: WorkerId) -> &WorkerBell {
        &self.0[worker.place()]
    }

    /// Returns the bell of the supervisor.
    pub fn supervisor(&self) -> &WorkerBell {
        &self.0[WORKERS_MAX]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_longer_than_the_socket_takes_arrives_whole() {
        let (mut a, mut b) = WorkerChannel::pair().unwrap();
        // Each byte takes three digits: the longest state there can be.
        let longest = vec![255; crate::limits::STATE_BYTES_MAX];
        let left = WorkerAnswer::Left { app: "app".to_owned(), state: longest.clone() };
        let sender = std::thread::spawn(move || {
            a.send(7, &left, None).unwrap();
            a.send(8, &WorkerAnswer::Ended(BTreeMap::new()), None).unwrap();
        });
        let first = b.receive(Duration::from_secs(60)).unwrap();
        assert!(matches!(first, (7, WorkerAnswer::Left { state, .. }) if state == longest));
        assert!(matches!(b.receive(Duration::from_secs(60)), Ok((8, WorkerAnswer::Ended(_)))));
        sender.join().unwrap();
        assert!(matches!(b.receive::<WorkerAnswer>(Duration::from_secs(60)), Err(Silence::Gone)));
    }

    #[test]
    fn half_a_message_is_none() {
        let (mut a, mut b) = WorkerChannel::pair().unwrap();
        a.socket.write_all(&[9, 0, 0, 0, b'"']).unwrap();
        assert!(matches!(b.receive::<WorkerOrder>(Duration::from_millis(1)), Err(Silence::Late)));
        drop(a);
        assert!(matches!(b.receive::<WorkerOrder>(Duration::from_secs(60)), Err(Silence::Gone)));
    }
}
