//! A socket that says some bytes and hears some, and never blocks nor takes one byte more.

use std::io;
use std::os::fd::OwnedFd;

use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};

/// Both directions of a handshake.
#[derive(Debug)]
pub struct Exchange {
    socket: OwnedFd,
    out: Vec<u8>,
    said: usize,
    heard: Vec<u8>,
    wanted: usize,
}

impl Exchange {
    /// Over a socket that does not block.
    pub fn new(socket: OwnedFd) -> Self {
        Self { socket, out: Vec::new(), said: 0, heard: Vec::new(), wanted: 0 }
    }

    /// Has this said next.
    pub fn say(&mut self, bytes: &[u8]) {
        self.out.extend_from_slice(bytes);
    }

    /// Wants so many bytes, behind those it had wanted before.
    pub fn hear(&mut self, count: usize) {
        self.heard.clear();
        self.wanted = count;
    }

    /// What came of them so far.
    pub fn heard(&self) -> &[u8] {
        &self.heard
    }

    /// All is said, and all wanted has come.
    pub fn is_over(&self) -> bool {
        self.is_said() && self.heard.len() == self.wanted
    }

    /// The socket.
    pub fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    /// What to wait for.
    pub fn events(&self) -> PollFlags {
        let mut events = PollFlags::empty();
        events.set(PollFlags::OUT, !self.is_said());
        events.set(PollFlags::IN, self.heard.len() < self.wanted);
        events
    }

    /// Says and hears what it can without waiting. An error ends it; `UnexpectedEof` where the other side
    /// has closed.
    pub fn advance(&mut self) -> io::Result<()> {
        while !self.is_said() {
            match send(&self.socket, &self.out[self.said..], SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
                Ok(count) => self.said += count,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(error) => return Err(error.into()),
            }
        }
        while self.heard.len() < self.wanted {
            let mut room = [0; 256];
            let count = (self.wanted - self.heard.len()).min(room.len());
            match recv(&self.socket, &mut room[..count], RecvFlags::DONTWAIT) {
                Ok((0, _)) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok((count, _)) => self.heard.extend_from_slice(&room[..count]),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// The socket, for data: it blocks from now on.
    pub fn into_blocking(self) -> io::Result<OwnedFd> {
        rustix::io::ioctl_fionbio(&self.socket, false)?;
        Ok(self.socket)
    }

    fn is_said(&self) -> bool {
        self.said == self.out.len()
    }
}
