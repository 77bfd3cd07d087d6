//! A pcap file that grows by whole packets, or a pipe that carries one.

use std::borrow::Cow;
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use byteorder_slice::{BigEndian, LittleEndian};
use pcap_file::pcap::{PcapHeader, RawPcapPacket};
use pcap_file::{DataLink, Endianness, TsResolution};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::fs::{Access, FlockOperation, Mode, OFlags, access, flock, open};
use rustix::io::{Errno, write};
use rustix::process::{Resource, getrlimit};

/// Bytes in memory that are written at once.
const BUFFER_BYTES: usize = 256 << 10;
const HEADER_BYTES: u64 = 24;
/// How long the reader of a pipe may take for what is left at the end.
const LAST_MAX: Duration = Duration::from_secs(1);

/// An output with its buffer, which holds the header, unless that has been written, and whole packets. For a pipe
/// that is full, the buffer starts with the rest of a write that has begun.
#[derive(Debug)]
pub struct PcapOutput {
    target: PcapTarget,
    header: PcapHeader,
    buffer: Vec<u8>,
    /// The number of packets in the buffer.
    packets: u64,
}

#[derive(Debug)]
enum PcapTarget {
    /// The file holds `written` bytes, all of them header and whole packets.
    File {
        file: File,
        is_regular: bool,
        written: u64,
    },
    PcapPipe(PcapPipe),
}

/// Packets that could not be written.
#[derive(Debug)]
pub struct LostPackets {
    pub packets: u64,
    pub error: io::Error,
}

impl PcapOutput {
    /// Checks whether a file could be opened, without touching it.
    pub fn check(path: &Path, append: bool) -> Result<(), String> {
        match path.metadata() {
            Ok(metadata) => {
                let kind = metadata.file_type();
                if !kind.is_file() && !kind.is_char_device() && !kind.is_fifo() {
                    return Err("it is neither a regular file nor a pipe".to_owned());
                }
                access(path, Access::WRITE_OK).map_err(|error| unwritable(error.into()))?;
                if kind.is_fifo() {
                    return match append {
                        true => {
                            Err("it is a pipe, which holds nothing to go on behind: leave out append".into())
                        }
                        false => Ok(()),
                    };
                }
                match append && metadata.len() > 0 {
                    true => header(&File::open(path).map_err(unwritable)?).map(drop),
                    false => Ok(()),
                }
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
                let folder = folder.unwrap_or(Path::new("."));
                access(folder, Access::WRITE_OK | Access::EXEC_OK).map_err(|error| {
                    format!("it cannot be made in {}: {}", folder.display(), io::Error::from(error))
                })
            }
            Err(error) => Err(unwritable(error)),
        }
    }

    /// Opens a file, makes it if it does not exist, and empties it unless `append` is set. Refuses a file that
    /// an app of this or another engine reads or writes, without changing it.
    pub fn open(path: &Path, append: bool, snaplen: u32) -> Result<Self, String> {
        // A successor starts a pipe anew, too.
        let is_pipe = path.metadata().is_ok_and(|metadata| metadata.file_type().is_fifo());
        Self::check(path, append && !is_pipe)?;
        let new_header = PcapHeader {
            snaplen,
            datalink: DataLink::ETHERNET,
            ts_resolution: TsResolution::NanoSecond,
            endianness: Endianness::native(),
            ..PcapHeader::default()
        };
        if is_pipe {
            return Ok(Self::new(PcapTarget::PcapPipe(PcapPipe::new(path)), new_header));
        }
        let mut options = OpenOptions::new();
        let file =
            options.read(true).write(true).create(true).truncate(false).open(path).map_err(unwritable)?;
        let is_regular = file.metadata().map_err(unwritable)?.is_file();
        if is_regular {
            own(&file)?;
            if !append {
                file.set_len(0).map_err(unwritable)?;
            }
        }
        let written = file.metadata().map_err(unwritable)?.len();
        let header = if written == 0 { new_header } else { header(&file)? };
        Ok(Self::new(PcapTarget::File { file, is_regular, written }, header))
    }

    fn new(target: PcapTarget, header: PcapHeader) -> Self {
        let mut output = Self { target, header, buffer: Vec::new(), packets: 0 };
        output.clear();
        output
    }

    /// Returns the bytes of a packet at most, by the file's header.
    pub fn snaplen(&self) -> u32 {
        if self.header.snaplen == 0 { u32::MAX } else { self.header.snaplen }
    }

    /// True if the buffer must be written. If it stays full after that, there is no room for more packets.
    pub fn is_full(&self) -> bool {
        self.buffer.len() >= BUFFER_BYTES
    }

    /// Adds a packet, of which at most `snaplen` bytes are kept.
    pub fn add(&mut self, time: Duration, data: &[u8], snaplen: u32) {
        let kept = &data[..data.len().min(snaplen as usize)];
        let packet = RawPcapPacket {
            // The format's seconds end in 2106.
            ts_sec: u32::try_from(time.as_secs()).unwrap_or(u32::MAX),
            ts_frac: match self.header.ts_resolution {
                TsResolution::MicroSecond => time.subsec_micros(),
                TsResolution::NanoSecond => time.subsec_nanos(),
            },
            incl_len: kept.len() as u32,
            orig_len: data.len() as u32,
            data: Cow::Borrowed(kept),
        };
        // Writing to memory cannot fail.
        let _ = match self.header.endianness {
            Endianness::Big => packet.write_to::<_, BigEndian>(&mut self.buffer),
            Endianness::Little => packet.write_to::<_, LittleEndian>(&mut self.buffer),
        };
        self.packets += 1;
    }

    /// True if a pipe has not taken all bytes that were written to it.
    pub fn is_held_up(&self) -> bool {
        matches!(&self.target, PcapTarget::PcapPipe(pipe) if pipe.is_open()) && !self.buffer.is_empty()
    }

    /// Writes the buffer. Returns the number of packets written, or the number of packets lost and why; after an error
    /// the file is unchanged. Packets that a full pipe has not taken yet count as neither.
    pub fn flush(&mut self) -> Result<u64, LostPackets> {
        let packets = self.packets;
        let result = match &mut self.target {
            PcapTarget::File { file, is_regular, written } => {
                let end = *written + self.buffer.len() as u64;
                let allowed = if *is_regular { within_limit(end) } else { Ok(()) };
                let result = allowed.and_then(|()| file.write_all_at(&self.buffer, *written));
                match result {
                    Ok(()) => *written = end,
                    // Half a packet would hide all packets behind it. If the truncation fails too, they still come in
                    // its place.
                    Err(_) => drop(file.set_len(*written)),
                }
                result
            }
            PcapTarget::PcapPipe(pipe) => pipe.write(&mut self.buffer),
        };
        if self.is_held_up() {
            return Ok(0);
        }
        self.clear();
        result.map(|()| packets).map_err(|error| LostPackets { packets, error })
    }

    /// Writes the buffer for the last time. Waits for a pipe, but not for long.
    pub fn finish(&mut self) -> Result<u64, LostPackets> {
        let until = Instant::now() + LAST_MAX;
        loop {
            let flushed = self.flush();
            let left = until.saturating_duration_since(Instant::now());
            match &self.target {
                PcapTarget::PcapPipe(_) if self.is_held_up() && left.is_zero() => {
                    let packets = std::mem::take(&mut self.packets);
                    return Err(LostPackets { packets, error: ErrorKind::TimedOut.into() });
                }
                PcapTarget::PcapPipe(pipe) if self.is_held_up() => pipe.wait(left),
                _ => return flushed,
            }
        }
    }

    /// Empties the buffer except for the header, if the file has none yet, or the pipe's next reader needs one.
    fn clear(&mut self) {
        self.buffer.clear();
        self.packets = 0;
        let starts = match &self.target {
            PcapTarget::File { written, .. } => *written == 0,
            PcapTarget::PcapPipe(pipe) => !pipe.is_open(),
        };
        if starts {
            // Writing to memory cannot fail.
            let _ = self.header.write_to(&mut self.buffer);
        }
    }
}

/// Refuses to write past RLIMIT_FSIZE: the kernel would not only refuse it, but kill the process (SIGXFSZ).
fn within_limit(end: u64) -> io::Result<()> {
    match getrlimit(Resource::Fsize).current {
        Some(most) if end > most => Err(Errno::FBIG.into()),
        _ => Ok(()),
    }
}

fn unwritable(error: io::Error) -> String {
    format!("it cannot be written: {error}")
}

/// Refuses a file that another app reads or writes, and keeps other writers away while the file is open. The lock
/// of a process ends with it.
fn own(file: &File) -> Result<(), String> {
    match flock(file, FlockOperation::NonBlockingLockExclusive) {
        Err(Errno::WOULDBLOCK) => {
            Err("another app, of this or another engine, reads or writes it: write to another file"
                .to_owned())
        }
        // On a file system without locks, no process can hold one.
        _ => Ok(()),
    }
}

/// Reads the header of a file to append to.
fn header(file: &File) -> Result<PcapHeader, String> {
    let mut bytes = [0; HEADER_BYTES as usize];
    let read = file.read_exact_at(&mut bytes, 0);
    match read.ok().and_then(|()| PcapHeader::from_slice(&bytes).ok()) {
        Some((_, header)) if header.datalink == DataLink::ETHERNET => Ok(header),
        Some((_, header)) => Err(format!(
            "its packets are not Ethernet frames but of link type {}, so none can be appended",
            u32::from(header.datalink)
        )),
        None => Err("it is not a pcap file, so nothing can be appended to it".to_owned()),
    }
}

#[derive(Debug)]
pub struct PcapPipe {
    path: PathBuf,
    end: Option<OwnedFd>,
}

impl PcapPipe {
    pub fn new(path: &Path) -> Self {
        Self { path: path.to_owned(), end: None }
    }

    /// True if a process reads the pipe, as far as is known.
    pub fn is_open(&self) -> bool {
        self.end.is_some()
    }

    /// Writes as much of `bytes` as the pipe takes now, and removes it. If no process reads the pipe (any
    /// more), the error is ENXIO or EPIPE.
    pub fn write(&mut self, bytes: &mut Vec<u8>) -> io::Result<()> {
        let end = match self.end.take() {
            Some(end) => end,
            None => open(&self.path, OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty())?,
        };
        let mut written = 0;
        while written < bytes.len() {
            match write(&end, &bytes[written..]) {
                Ok(count) => written += count,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(error) => return Err(error.into()),
            }
        }
        bytes.drain(..written);
        self.end = Some(end);
        Ok(())
    }

    /// Waits until the pipe takes more, or its reader has gone, or `limit` has passed.
    pub fn wait(&self, limit: Duration) {
        let Some(end) = &self.end else { return };
        let until = Instant::now() + limit;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let left = Timespec::try_from(left).unwrap_or_default();
            if poll(&mut [PollFd::new(end, PollFlags::OUT)], Some(&left)) != Err(Errno::INTR) {
                return;
            }
        }
    }
}
