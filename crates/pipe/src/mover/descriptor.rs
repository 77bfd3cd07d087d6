//! Pipes, files, sockets and terminals as ends of a mover.
//!
//! A descriptor may be shared with other programs, so its flags stay as they are: `O_NONBLOCK` would apply to the
//! other programs, too. A pipe or terminal is opened again for this process alone; a socket gets a flag in each
//! call. A pipe that cannot be opened again (because it is another user's) gets no more bytes in one write than
//! poll(2) promises room for.

use std::fs::File;
use std::io::IsTerminal;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use rustix::event::PollFlags;
use rustix::fs::{Advice, FileType, Mode, OFlags};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{RecvFlags, SendFlags};
use rustix::pipe::{SpliceFlags, splice};

use super::ends::Halt;
use super::wait::{WaitSet, Watch, Woken};
use crate::limits::{LINE_BYTES_MAX, PIPE_BYTES};
use crate::{Error, lock};

/// The bytes for which a pipe has room once poll(2) reports room (`PIPE_BUF`), and about those of a terminal.
const SMALL_BYTES: [usize; 2] = [4096, 256];

/// How to keep a call from blocking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum IoMode {
    /// For files and devices: a call does not block for long, or cannot be kept from it.
    Direct,
    /// For sockets: `MSG_DONTWAIT`.
    Socket,
    /// For a descriptor of this process's own, which does not block.
    Own,
    /// For a descriptor that may block: call only after poll(2), and for at most so many bytes.
    Small(usize),
}

/// A descriptor that is read or written.
#[derive(Debug)]
pub(super) struct DescriptorIo {
    fd: OwnedFd,
    way: IoMode,
    /// Whether the other end can close.
    has_reader: bool,
    /// Whether the next read will not block.
    is_ready: bool,
    /// Whether splice(2) can be used: a file, or a pipe of this process's own.
    splices: bool,
}

/// The result of a read or write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IoOutcome {
    /// The number of bytes that were moved.
    Bytes(usize),
    /// There is nothing to do now.
    Nothing,
    /// The reader has closed.
    Closed,
}

impl DescriptorIo {
    /// Returns a descriptor to read from.
    pub fn to_read(fd: OwnedFd) -> Self {
        let descriptor = Self::new(fd, OFlags::RDONLY);
        if descriptor.way == IoMode::Direct {
            // This is advice: without it, reading is only slower.
            let _ = rustix::fs::fadvise(&descriptor.fd, 0, None, Advice::Sequential);
        }
        descriptor
    }

    /// Returns a descriptor to write to.
    pub fn to_write(fd: OwnedFd) -> Self {
        Self::new(fd, OFlags::WRONLY)
    }

    fn new(fd: OwnedFd, flags: OFlags) -> Self {
        let kind = rustix::fs::fstat(&fd).map(|stat| FileType::from_raw_mode(stat.st_mode));
        let (way, has_reader) = match kind {
            Ok(FileType::Socket) => (IoMode::Socket, true),
            Ok(FileType::Fifo) => (IoMode::Small(SMALL_BYTES[0]), true),
            Ok(FileType::CharacterDevice) if fd.is_terminal() => (IoMode::Small(SMALL_BYTES[1]), false),
            // A read from a character device may block for any time.
            Ok(FileType::CharacterDevice) if flags == OFlags::RDONLY => (IoMode::Small(usize::MAX), false),
            _ => (IoMode::Direct, false),
        };
        if kind == Ok(FileType::Fifo)
            && rustix::pipe::fcntl_getpipe_size(&fd).is_ok_and(|now| now < PIPE_BYTES)
        {
            // A larger pipe is faster. If the user's pipes already have all the memory that they may have, it stays
            // small.
            let _ = rustix::pipe::fcntl_setpipe_size(&fd, PIPE_BYTES);
        }
        if !matches!(way, IoMode::Small(bytes) if bytes != usize::MAX) {
            let splices = kind == Ok(FileType::RegularFile);
            return Self { fd, way, has_reader, is_ready: false, splices };
        }
        let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
        let flags = flags | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
        match rustix::fs::open(path, flags, Mode::empty()) {
            Ok(own) => {
                let splices = kind == Ok(FileType::Fifo);
                Self { fd: own, way: IoMode::Own, has_reader, is_ready: false, splices }
            }
            Err(_) => Self { fd, way, has_reader, is_ready: false, splices: false },
        }
    }

    /// Returns the descriptor, for the caller to close.
    pub fn into_fd(self) -> OwnedFd {
        self.fd
    }

    /// Returns what to poll to learn that the reader has closed; `None` if the descriptor has no reader.
    pub fn watch(&self) -> Option<Watch<'_>> {
        // ERR and HUP are always reported.
        self.has_reader.then(|| (self.fd.as_fd(), PollFlags::empty()))
    }

    /// Reads what is there; 0 bytes are the end.
    pub fn read(&mut self, to: &mut [u8]) -> Result<IoOutcome, Error> {
        if matches!(self.way, IoMode::Small(_)) && !std::mem::take(&mut self.is_ready) {
            return Ok(IoOutcome::Nothing);
        }
        let did = retry_on_intr(|| match self.way {
            IoMode::Socket => rustix::net::recv(&self.fd, &mut *to, RecvFlags::DONTWAIT).map(|(n, _)| n),
            _ => rustix::io::read(&self.fd, &mut *to),
        });
        match did {
            Ok(bytes) => Ok(IoOutcome::Bytes(bytes)),
            Err(Errno::AGAIN) => Ok(IoOutcome::Nothing),
            Err(error) => Err(self.error("read", error)),
        }
    }

    /// True if [`splice`](Self::splice) can be used.
    pub fn splices(&self) -> bool {
        self.splices
    }

    /// Moves what is there into a pipe, without a copy; 0 bytes are the end. Returns `None` if the system cannot.
    pub fn splice(&self, to: &OwnedFd, most: usize) -> Result<Option<IoOutcome>, Error> {
        match retry_on_intr(|| splice(&self.fd, None, to, None, most, SpliceFlags::NONBLOCK)) {
            Ok(bytes) => Ok(Some(IoOutcome::Bytes(bytes))),
            Err(Errno::AGAIN) => Ok(Some(IoOutcome::Nothing)),
            Err(Errno::INVAL) => Ok(None),
            Err(error) => Err(self.error("read", error)),
        }
    }

    /// Waits until a read may do something.
    pub fn wait(&mut self, other: Option<Watch>, waits: &WaitSet, until: Instant) -> Result<Woken, Error> {
        let woken = waits.wait(Some((self.fd.as_fd(), PollFlags::IN)), other, Some(until))?;
        self.is_ready = woken == Woken::Ready;
        Ok(woken)
    }

    /// Writes the bytes that there is room for, or waits for room.
    pub fn write(&self, from: &[u8], waits: &WaitSet) -> Result<IoOutcome, Error> {
        let (mut may_write, most) = match self.way {
            IoMode::Small(most) => (false, most),
            _ => (true, usize::MAX),
        };
        let from = &from[..from.len().min(most)];
        loop {
            if may_write {
                let did = match self.way {
                    IoMode::Socket => {
                        rustix::net::send(&self.fd, from, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)
                    }
                    _ => rustix::io::write(&self.fd, from),
                };
                match did {
                    Ok(bytes) => return Ok(IoOutcome::Bytes(bytes)),
                    Err(Errno::INTR) => continue,
                    Err(Errno::AGAIN) => {}
                    Err(Errno::PIPE) => return Ok(IoOutcome::Closed),
                    Err(Errno::CONNRESET) if self.way == IoMode::Socket => return Ok(IoOutcome::Closed),
                    Err(error) => return Err(self.error("write", error)),
                }
            }
            waits.wait(Some((self.fd.as_fd(), PollFlags::OUT)), None, None)?;
            may_write = true;
        }
    }

    /// Returns an error that names the descriptor.
    pub fn error(&self, what: &'static str, source: impl Into<std::io::Error>) -> Error {
        let source = source.into();
        let path = rustix::fs::readlink(format!("/proc/self/fd/{}", self.fd.as_raw_fd()), Vec::new());
        match path.map(|path| PathBuf::from(path.to_string_lossy().into_owned())) {
            // The paths of other descriptors look like `pipe:[4711]`.
            Ok(path) if path.is_absolute() => Error::File { what, path, source },
            _ => Error::System { call: what, source },
        }
    }
}

/// The most bytes of one write: a pipe for which poll(2) reports room takes them without a wait.
const WRITE_BYTES: usize = 4096;

/// An outlet that writes whole lines.
pub(super) struct LineOutlet {
    prefix: String,
    to: Arc<Mutex<File>>,
    /// The beginning of a line.
    line: Vec<u8>,
    /// Whole lines with their prefixes.
    whole: Vec<u8>,
}

impl LineOutlet {
    /// Returns an outlet that has written nothing.
    pub fn new(prefix: String, to: Arc<Mutex<File>>) -> Self {
        Self { prefix, to, line: Vec::new(), whole: Vec::new() }
    }

    /// Writes all lines that end in `bytes`.
    pub fn put(&mut self, bytes: &[u8], waits: &WaitSet) -> Result<(), Halt> {
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            let (mut text, ends) = match part.strip_suffix(b"\n") {
                Some(text) => (text, true),
                None => (part, false),
            };
            while self.line.len() + text.len() > LINE_BYTES_MAX {
                let (now, later) = text.split_at(LINE_BYTES_MAX - self.line.len());
                self.line.extend_from_slice(now);
                text = later;
                self.end_line();
            }
            self.line.extend_from_slice(text);
            if ends {
                self.end_line();
            }
        }
        self.write(waits)
    }

    /// Writes the rest as a line.
    pub fn finish(&mut self, waits: &WaitSet) -> Result<(), Halt> {
        if !self.line.is_empty() {
            self.end_line();
        }
        self.write(waits)
    }

    fn end_line(&mut self) {
        self.whole.extend_from_slice(self.prefix.as_bytes());
        self.whole.append(&mut self.line);
        self.whole.push(b'\n');
    }

    fn write(&mut self, waits: &WaitSet) -> Result<(), Halt> {
        if self.whole.is_empty() {
            return Ok(());
        }
        let to = lock(&self.to);
        let mut left = &self.whole[..];
        while !left.is_empty() {
            waits.wait(Some((to.as_fd(), PollFlags::OUT)), None, None)?;
            match rustix::io::write(&*to, &left[..left.len().min(WRITE_BYTES)]) {
                Ok(bytes) => left = left.get(bytes..).unwrap_or_default(),
                Err(Errno::INTR | Errno::AGAIN) => {}
                Err(Errno::PIPE) => return Err(Halt::Stopped),
                Err(error) => return Err(Error::system("write")(error).into()),
            }
        }
        self.whole.clear();
        Ok(())
    }
}
