//! A connection's socket, which may speak TLS. No call waits.

use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use rustls::{ServerConfig, ServerConnection};

use crate::limits;

/// Sends a short answer, without waiting for a peer that does not read.
pub(crate) fn say(socket: &OwnedFd, text: &str) {
    let _ = send(socket, text.as_bytes(), SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
}

/// A socket of a client.
#[derive(Debug)]
pub(crate) enum StoreSocket {
    /// Bytes go as they are.
    Plain(OwnedFd),
    /// TLS.
    Sealed(OwnedFd, Box<ServerConnection>),
}

impl StoreSocket {
    /// Begins TLS on a socket whose client has just connected.
    pub(crate) fn sealed(socket: OwnedFd, config: Arc<ServerConfig>) -> Result<Self, rustls::Error> {
        let mut session = ServerConnection::new(config)?;
        session.set_buffer_limit(Some(limits::TLS_OUTPUT_BYTES));
        Ok(Self::Sealed(socket, Box::new(session)))
    }

    /// Appends what the client has sent to `into`: up to about `READ_BYTES`. Returns the number of bytes that the socket had,
    /// 0 at the end; under TLS, some of them may be no data. `EAGAIN` says that there is nothing to read.
    pub(crate) fn receive(&mut self, into: &mut Vec<u8>) -> Result<usize, Errno> {
        into.reserve(limits::READ_BYTES);
        match self {
            Self::Plain(socket) => {
                let room = rustix::buffer::spare_capacity(into);
                recv(&*socket, room, RecvFlags::DONTWAIT).map(|(bytes, _)| bytes)
            }
            Self::Sealed(socket, session) => {
                let mut wire = WireEnd { socket, error: None };
                let bytes = session.read_tls(&mut wire);
                let bytes = bytes.map_err(|_| wire.error.unwrap_or(Errno::CONNRESET))?;
                let outcome = session.process_new_packets();
                // Handshakes and the reason of a refusal are answered at once.
                let _ = session.write_tls(&mut wire);
                outcome.map_err(|_| Errno::PROTO)?;
                let before = into.len();
                match session.reader().read_to_end(into) {
                    Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(bytes),
                    // The client has said that it is done, maybe behind its last requests.
                    _ if into.len() > before => Ok(bytes),
                    _ => Ok(0),
                }
            }
        }
    }

    /// Takes bytes for the client, and returns how many. `EAGAIN` says that there is no room.
    pub(crate) fn send(&mut self, bytes: &[u8]) -> Result<usize, Errno> {
        match self {
            Self::Plain(socket) => send(&*socket, bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT),
            Self::Sealed(_, session) => {
                let taken = session.writer().write(bytes).map_err(|_| Errno::PROTO)?;
                match (taken, self.flush()?) {
                    (0, false) => Err(Errno::AGAIN),
                    // What was in the way is gone, and there is room now.
                    (0, true) => Err(Errno::INTR),
                    (taken, _) => Ok(taken),
                }
            }
        }
    }

    /// Sends what was taken and has not left yet. Returns whether all of it has left.
    pub(crate) fn flush(&mut self) -> Result<bool, Errno> {
        let Self::Sealed(socket, session) = self else { return Ok(true) };
        let mut wire = WireEnd { socket, error: None };
        while session.wants_write() {
            match session.write_tls(&mut wire) {
                Ok(_) => {}
                Err(_) if matches!(wire.error, Some(Errno::AGAIN)) => return Ok(false),
                Err(_) if matches!(wire.error, Some(Errno::INTR)) => {}
                Err(_) => return Err(wire.error.unwrap_or(Errno::CONNRESET)),
            }
        }
        Ok(true)
    }

    /// Tells the client that nothing follows, if there is room.
    pub(crate) fn finish(&mut self) {
        if let Self::Sealed(_, session) = self {
            session.send_close_notify();
            let _ = self.flush();
        }
    }

    /// Returns whether it speaks TLS.
    pub(crate) fn is_sealed(&self) -> bool {
        matches!(self, Self::Sealed(..))
    }

    /// Returns whether the client has not proved yet that it speaks TLS.
    pub(crate) fn is_handshaking(&self) -> bool {
        matches!(self, Self::Sealed(_, session) if session.is_handshaking())
    }

    /// Returns whether bytes wait for the client to take others.
    pub(crate) fn has_unsent(&self) -> bool {
        matches!(self, Self::Sealed(_, session) if session.wants_write())
    }
}

impl AsFd for StoreSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Plain(socket) | Self::Sealed(socket, _) => socket.as_fd(),
        }
    }
}

/// The socket as TLS reads and writes it, with the last error.
struct WireEnd<'a> {
    socket: &'a OwnedFd,
    error: Option<Errno>,
}

impl WireEnd<'_> {
    fn noted(&mut self, outcome: Result<usize, Errno>) -> io::Result<usize> {
        self.error = outcome.err();
        outcome.map_err(io::Error::from)
    }
}

impl Read for WireEnd<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let outcome = recv(self.socket, into, RecvFlags::DONTWAIT).map(|(bytes, _)| bytes);
        self.noted(outcome)
    }
}

impl Write for WireEnd<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let outcome = send(self.socket, bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
        self.noted(outcome)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
