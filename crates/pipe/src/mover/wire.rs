//! What carries a hop's bytes: one shape for streams and links. No call but [`HopWire::wait`] blocks.

use std::io::IoSlice;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags, Shutdown};
use rustix::pipe::SpliceFlags;

use super::wait::{WaitSet, Watch, Woken};
use crate::Error;

/// What is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Want {
    /// Something to read.
    Read,
    /// Room to write.
    Write,
}

/// Why it carries nothing any more, in words.
pub(super) type Cut = String;

/// A byte stream each way, or several.
pub(super) trait HopWire: Send {
    /// How many streams.
    fn streams(&self) -> usize;
    /// Takes what has come: `None` if nothing has, 0 bytes at the end.
    fn read(&mut self, stream: usize, to: &mut [u8]) -> Result<Option<usize>, Cut>;
    /// Sends what there is room for: `None` if there is none.
    fn write(&mut self, stream: usize, parts: &[IoSlice]) -> Result<Option<usize>, Cut>;
    /// The same, of what is not to go alone: more follows at once.
    fn write_ahead(&mut self, stream: usize, parts: &[IoSlice]) -> Result<Option<usize>, Cut> {
        self.write(stream, parts)
    }
    /// Whether [`splice`](Self::splice) is there.
    fn splices(&self) -> bool {
        false
    }
    /// Sends what there is room for of so many bytes that are in a pipe, without a copy: `None` if there
    /// is no room.
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
    /// Says that this side is about to wait for [`news`](Self::news) among other things. False if there
    /// are some already.
    fn arm(&mut self) -> Result<bool, Cut>;
    /// What tells that the other side has said something.
    fn news(&self) -> Option<Watch<'_>>;
    /// The wait is over.
    fn disarm(&mut self);
    /// What tells that the other side is gone, whatever there is to read.
    fn hung_up(&self) -> Option<Watch<'_>>;
    /// There will be no more writes: sees to it that those before are on their way.
    fn hang_up(&mut self, waits: &WaitSet, until: Instant);
    /// Whether a read tells when the other side has closed.
    fn closes(&self) -> bool;
}

/// Stream sockets, which several threads may use.
#[derive(Clone, Debug)]
pub(super) struct Streams(Arc<Vec<OwnedFd>>);

impl Streams {
    /// At least one.
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

    /// Else each frame's head would be a packet of its own, and wake the receiver.
    fn write_ahead(&mut self, stream: usize, parts: &[IoSlice]) -> Result<Option<usize>, Cut> {
        self.send(stream, parts, SendFlags::MORE)
    }

    /// To a socket that blocks, splice(2) does so whatever its flags say.
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
            // One that is closed already needs no more.
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

/// Why, when the other end has closed.
pub(super) const CLOSED: &str = "the other end closed the connection before the end";
