//! What carries a hop's bytes: one shape for streams and links. No call but [`Wire::wait`] blocks.

use std::io::IoSlice;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags, Shutdown};

use super::wait::{Waits, Watch, Woken};
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
pub(super) trait Wire: Send {
    /// How many streams.
    fn streams(&self) -> usize;
    /// Takes what has come: `None` if nothing has, 0 bytes at the end.
    fn read(&mut self, stream: usize, to: &mut [u8]) -> Result<Option<usize>, Cut>;
    /// Sends what there is room for: `None` if there is none.
    fn write(&mut self, stream: usize, parts: &[IoSlice]) -> Result<Option<usize>, Cut>;
    /// Waits until a read or a write may do something again.
    fn wait(
        &mut self,
        stream: usize,
        want: Want,
        other: Option<Watch>,
        waits: &Waits,
        until: Option<Instant>,
    ) -> Result<Woken, Error>;
    /// There will be no more writes.
    fn shut(&mut self);
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

    /// One of them, to be waited for.
    pub fn watch(&self, stream: usize, flags: PollFlags) -> Option<Watch<'_>> {
        self.0.get(stream).map(|fd| (fd.as_fd(), flags))
    }

    fn stream(&self, stream: usize) -> Result<&OwnedFd, Cut> {
        self.0.get(stream).ok_or_else(|| "there is no such stream".into())
    }
}

impl Wire for Streams {
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
        let fd = self.stream(stream)?;
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        loop {
            return match rustix::net::sendmsg(fd, parts, &mut SendAncillaryBuffer::default(), flags) {
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
        waits: &Waits,
        until: Option<Instant>,
    ) -> Result<Woken, Error> {
        let flags = if want == Want::Read { PollFlags::IN } else { PollFlags::OUT };
        waits.wait(self.watch(stream, flags), other, until)
    }

    fn shut(&mut self) {
        for fd in self.0.iter() {
            // One that is closed already needs no more.
            let _ = rustix::net::shutdown(fd, Shutdown::Write);
        }
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
