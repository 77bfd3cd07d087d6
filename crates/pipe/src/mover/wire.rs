//! The wire of a hop: one trait for stream sockets and links. No call but [`HopWire::wait`] and
//! [`HopWire::hang_up`] blocks.
//!
//! A link of a fabric (mapped memory or RDMA) belongs to one thread. Its close tells the other side nothing, so the
//! end of a hop is always sent in a frame, and the link stays until that frame is on its way. Every
//! [`CHECK_INTERVAL`], the link checks whether the other process is still there.

use std::io::IoSlice;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use caravan_fabric::Link;
use caravan_fabric::contract::{Armed, Error as FabricError};
use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags, Shutdown};
use rustix::pipe::SpliceFlags;

use super::wait::{WaitSet, Watch, Woken, is_there};
use crate::Error;

/// What to wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Want {
    /// Something to read.
    Read,
    /// Room to write.
    Write,
}

/// Why a wire carries nothing any more, in words.
pub(super) type Cut = String;

/// One or more byte streams in each direction.
pub(super) trait HopWire: Send {
    /// Returns the number of streams.
    fn streams(&self) -> usize;
    /// Reads the bytes that have come: `None` if there are none, 0 bytes at the end.
    fn read(&mut self, stream: usize, to: &mut [u8]) -> Result<Option<usize>, Cut>;
    /// Sends the bytes that there is room for; `None` if there is no room.
    fn write(&mut self, stream: usize, parts: &[IoSlice]) -> Result<Option<usize>, Cut>;
    /// Like [`write`](Self::write), for bytes that are followed by more at once.
    fn write_ahead(&mut self, stream: usize, parts: &[IoSlice]) -> Result<Option<usize>, Cut> {
        self.write(stream, parts)
    }
    /// True if [`splice`](Self::splice) can be used.
    fn splices(&self) -> bool {
        false
    }
    /// Sends what there is room for of so many bytes in a pipe, without a copy; `None` if there is no room.
    fn splice(&mut self, _stream: usize, _pipe: &OwnedFd, _bytes: usize) -> Result<Option<usize>, Cut> {
        Err("it takes no pipes; please report it".into())
    }
    /// Waits until a read or a write may do something again.
    fn wait(
        &mut self,
        stream: usize,
        want: Want,
        other: Option<Watch>,
        waits: &WaitSet,
        until: Option<Instant>,
    ) -> Result<Woken, Error>;
    /// Announces that this side is about to wait for [`news`](Self::news) among other things. Returns false if
    /// there are news already.
    fn arm(&mut self) -> Result<bool, Cut>;
    /// Returns what to poll to learn that the other side has sent something.
    fn news(&self) -> Option<Watch<'_>>;
    /// Ends the wait that [`arm`](Self::arm) has announced.
    fn disarm(&mut self);
    /// Returns what to poll to learn that the other side is gone, whatever there is to read.
    fn hung_up(&self) -> Option<Watch<'_>>;
    /// Ends the writes: makes sure that the earlier ones are on their way.
    fn hang_up(&mut self, waits: &WaitSet, until: Instant);
    /// True if a read tells when the other side has closed.
    fn closes(&self) -> bool;
}

/// Stream sockets, which several threads may use.
#[derive(Clone, Debug)]
pub(super) struct Streams(Arc<Vec<OwnedFd>>);

impl Streams {
    /// Returns a wire of these streams; at least one is needed.
    pub fn new(streams: Vec<OwnedFd>) -> Result<Self, Error> {
        match streams.is_empty() {
            true => Err(Error::Protocol("has no streams; please report it".into())),
            false => Ok(Self(Arc::new(streams))),
        }
    }

    fn watch(&self, stream: usize, flags: PollFlags) -> Option<Watch<'_>> {
        self.0.get(stream).map(|fd| (fd.as_fd(), flags))
    }

    fn stream(&self, stream: usize) -> Result<&OwnedFd, Cut> {
        self.0.get(stream).ok_or_else(|| "there is no such stream".into())
    }

    fn send(&self, stream: usize, parts: &[IoSlice], extra: SendFlags) -> Result<Option<usize>, Cut> {
        let fd = self.stream(stream)?;
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL | extra;
        loop {
            return match rustix::net::sendmsg(fd, parts, &mut SendAncillaryBuffer::default(), flags) {
                Ok(bytes) => Ok(Some(bytes)),
                Err(Errno::AGAIN) => Ok(None),
                Err(Errno::INTR) => continue,
                Err(error) => Err(why(error)),
            };
        }
    }
}

impl HopWire for Streams {
    fn streams(&self) -> usize {
        self.0.len()
    }

    fn read(&mut self, stream: usize, to: &mut [u8]) -> Result<Option<usize>, Cut> {
        let fd = self.stream(stream)?;
        loop {
            return match rustix::net::recv(fd, &mut *to, RecvFlags::DONTWAIT) {
                Ok((bytes, _)) => Ok(Some(bytes)),
                Err(Errno::AGAIN) => Ok(None),
                Err(Errno::INTR) => continue,
                Err(error) => Err(why(error)),
            };
        }
    }

    fn write(&mut self, stream: usize, parts: &[IoSlice]) -> Result<Option<usize>, Cut> {
        self.send(stream, parts, SendFlags::empty())
    }

    /// Without this, each frame's header would be a packet of its own, and wake the receiver.
    fn write_ahead(&mut self, stream: usize, parts: &[IoSlice]) -> Result<Option<usize>, Cut> {
        self.send(stream, parts, SendFlags::MORE)
    }

    /// splice(2) to a blocking socket blocks, whatever its flags say.
    fn splices(&self) -> bool {
        self.0.iter().all(|fd| rustix::io::ioctl_fionbio(fd, true).is_ok())
    }

    fn splice(&mut self, stream: usize, pipe: &OwnedFd, bytes: usize) -> Result<Option<usize>, Cut> {
        let fd = self.stream(stream)?;
        loop {
            return match rustix::pipe::splice(pipe, None, fd, None, bytes, SpliceFlags::NONBLOCK) {
                Ok(0) => Err("the pipe holds less than was put there; please report it".into()),
                Ok(bytes) => Ok(Some(bytes)),
                Err(Errno::AGAIN) => Ok(None),
                Err(Errno::INTR) => continue,
                Err(error) => Err(why(error)),
            };
        }
    }

    fn wait(
        &mut self,
        stream: usize,
        want: Want,
        other: Option<Watch>,
        waits: &WaitSet,
        until: Option<Instant>,
    ) -> Result<Woken, Error> {
        let flags = if want == Want::Read { PollFlags::IN } else { PollFlags::OUT };
        waits.wait(self.watch(stream, flags), other, until)
    }

    fn arm(&mut self) -> Result<bool, Cut> {
        Ok(true)
    }

    fn news(&self) -> Option<Watch<'_>> {
        self.watch(0, PollFlags::IN)
    }

    fn disarm(&mut self) {}

    fn hung_up(&self) -> Option<Watch<'_>> {
        self.watch(0, PollFlags::RDHUP)
    }

    fn hang_up(&mut self, _waits: &WaitSet, _until: Instant) {
        for fd in self.0.iter() {
            // A stream that is already closed needs no more.
            let _ = rustix::net::shutdown(fd, Shutdown::Write);
        }
    }

    fn closes(&self) -> bool {
        true
    }
}

fn why(error: Errno) -> Cut {
    match error {
        Errno::PIPE => CLOSED.into(),
        Errno::CONNRESET => "the connection was reset: the process at its other end is gone".into(),
        Errno::TIMEDOUT | Errno::HOSTUNREACH | Errno::NETUNREACH => {
            format!("the other host no longer answers ({error})")
        }
        error => error.to_string(),
    }
}

/// The reason when the other end has closed.
pub(super) const CLOSED: &str = "the other end closed the connection before the end";

/// How often a side that waits checks whether the other side is still there.
const CHECK_INTERVAL: Duration = Duration::from_millis(250);
/// The bytes that are published at once, so that the other side can read while this side goes on.
const PUBLISH_BYTES: usize = 64 << 10;
/// The interval between two looks at what is still under way.
const SETTLE_INTERVAL: Duration = Duration::from_millis(1);

/// A link as a wire of one stream.
pub(super) struct LinkWire {
    link: Link,
    /// Why the peer is gone.
    gone: Option<Cut>,
}

impl LinkWire {
    /// Returns a wire over a link that has carried nothing.
    pub fn new(link: Link) -> Self {
        Self { link, gone: None }
    }

    fn append(&mut self, bytes: &[u8]) -> Result<usize, FabricError> {
        let mut appended = 0;
        let most = PUBLISH_BYTES.min(self.link.ring_bytes() as usize / 4);
        for piece in bytes.chunks(most.max(1)) {
            let taken = self.link.append(piece)?;
            self.link.publish()?;
            appended += taken;
            if taken < piece.len() {
                break;
            }
        }
        Ok(appended)
    }

    fn check(&mut self) {
        if let Err(error) = self.link.check_peer() {
            self.gone = Some(error.to_string());
        }
    }

    fn try_wait(
        &mut self,
        room: usize,
        other: Option<Watch>,
        waits: &WaitSet,
        until: Option<Instant>,
    ) -> Result<Woken, Error> {
        waits.check()?;
        if self.link.arm(room)? == Armed::LookAgain {
            return Ok(Woken::Ready);
        }
        let tick = Instant::now() + CHECK_INTERVAL;
        let next = until.map_or(tick, |until| until.min(tick));
        let woken = match self.link.wait_fd() {
            Some(bell) => waits.wait(Some((bell, PollFlags::IN)), other, Some(next)),
            None => Ok(Woken::Ready),
        };
        self.disarm();
        match woken? {
            Woken::Late if until.is_some_and(|until| until <= Instant::now()) => Ok(Woken::Late),
            Woken::Late => {
                self.check();
                Ok(Woken::Ready)
            }
            woken => Ok(woken),
        }
    }
}

impl HopWire for LinkWire {
    fn streams(&self) -> usize {
        1
    }

    fn read(&mut self, _stream: usize, to: &mut [u8]) -> Result<Option<usize>, Cut> {
        let unread = match self.link.unread() {
            0 => self.link.refresh().map_err(|error| error.to_string())?,
            unread => unread,
        };
        if unread == 0 {
            return self.gone.clone().map_or(Ok(None), Err);
        }
        let bytes = self.link.read(to);
        self.link.release().map_err(|error| error.to_string())?;
        Ok(Some(bytes))
    }

    fn write(&mut self, _stream: usize, parts: &[IoSlice]) -> Result<Option<usize>, Cut> {
        if let Some(why) = &self.gone {
            return Err(why.clone());
        }
        let mut sent = 0;
        let mut looked = false;
        for part in parts {
            let mut left = &part[..];
            while !left.is_empty() {
                let bytes = self.append(left).map_err(|error| error.to_string())?;
                (sent, left) = (sent + bytes, left.get(bytes..).unwrap_or_default());
                if left.is_empty() {
                    break;
                }
                if looked {
                    return Ok((sent > 0).then_some(sent));
                }
                // The peer's messages make room.
                self.link.refresh().map_err(|error| error.to_string())?;
                looked = true;
            }
        }
        Ok((sent > 0).then_some(sent))
    }

    fn wait(
        &mut self,
        _stream: usize,
        want: Want,
        other: Option<Watch>,
        waits: &WaitSet,
        until: Option<Instant>,
    ) -> Result<Woken, Error> {
        // The wait is for a quarter of the ring: a wake-up for each few bytes would cost more than they do.
        let room = if want == Want::Write { self.link.ring_bytes() as usize / 4 } else { 0 };
        match self.try_wait(room, other, waits, until) {
            Err(Error::Fabric(error)) => {
                self.gone = Some(error.to_string());
                Ok(Woken::Ready)
            }
            woken => woken,
        }
    }

    fn arm(&mut self) -> Result<bool, Cut> {
        let armed = self.link.arm(0).map_err(|error| error.to_string())?;
        Ok(armed == Armed::Wait)
    }

    fn news(&self) -> Option<Watch<'_>> {
        self.link.wait_fd().map(|bell| (bell, PollFlags::IN))
    }

    fn disarm(&mut self) {
        if self.news().is_some_and(is_there) {
            if let Err(error) = self.link.acknowledge() {
                self.gone = Some(error.to_string());
            }
        }
        self.link.awake();
        self.check();
    }

    fn hung_up(&self) -> Option<Watch<'_>> {
        None
    }

    fn hang_up(&mut self, waits: &WaitSet, until: Instant) {
        while let Ok(false) = self.link.is_delivered() {
            let next = Instant::now() + SETTLE_INTERVAL;
            if next > until || waits.wait(None, None, Some(next)).is_err() {
                break;
            }
        }
    }

    fn closes(&self) -> bool {
        false
    }
}
