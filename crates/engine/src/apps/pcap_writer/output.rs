//! A pcap file that grows by whole packets.

use std::borrow::Cow;
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::Path;
use std::time::Duration;

use byteorder_slice::{BigEndian, LittleEndian};
use pcap_file::pcap::{PcapHeader, RawPcapPacket};
use pcap_file::{DataLink, Endianness, TsResolution};
use rustix::fs::{Access, FlockOperation, access, flock};
use rustix::io::Errno;

/// Bytes in memory that are written at once.
const BUFFER_BYTES: usize = 256 << 10;
const HEADER_BYTES: u64 = 24;

/// The file holds `written` bytes, all of them header and whole packets; `buffer` comes behind.
#[derive(Debug)]
pub struct Output {
    file: File,
    header: PcapHeader,
    written: u64,
    buffer: Vec<u8>,
    /// Packets in the buffer.
    packets: u64,
}

impl Output {
    /// Whether a file could be opened, without touching it.
    pub fn check(path: &Path, append: bool) -> Result<(), String> {
        match path.metadata() {
            Ok(metadata) => {
                // Opening a pipe could wait for ever.
                let kind = metadata.file_type();
                if !kind.is_file() && !kind.is_char_device() {
                    return Err("it is not a regular file".to_owned());
                }
                access(path, Access::WRITE_OK).map_err(|error| unwritable(error.into()))?;
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

    /// Opens a file, makes it if there is none, and empties it unless it is to be appended to. Refuses one that
    /// an app of this or another engine reads or writes: nothing is lost then.
    pub fn open(path: &Path, append: bool, snaplen: u32) -> Result<Self, String> {
        Self::check(path, append)?;
        let mut options = OpenOptions::new();
        let file =
            options.read(true).write(true).create(true).truncate(false).open(path).map_err(unwritable)?;
        if file.metadata().map_err(unwritable)?.is_file() {
            own(&file)?;
            if !append {
                file.set_len(0).map_err(unwritable)?;
            }
        }
        let written = file.metadata().map_err(unwritable)?.len();
        let header = match written {
            0 => PcapHeader {
                snaplen,
                datalink: DataLink::ETHERNET,
                ts_resolution: TsResolution::NanoSecond,
                endianness: Endianness::native(),
                ..PcapHeader::default()
            },
            _ => header(&file)?,
        };
        let mut output = Self { file, header, written, buffer: Vec::new(), packets: 0 };
        output.clear();
        Ok(output)
    }

    /// Bytes of a packet at most, as its header says.
    pub fn snaplen(&self) -> u32 {
        if self.header.snaplen == 0 { u32::MAX } else { self.header.snaplen }
    }

    /// Whether it is time to write.
    pub fn is_full(&self) -> bool {
        self.buffer.len() >= BUFFER_BYTES
    }

    /// Adds a packet of which `snaplen` bytes are kept at most.
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
        // Memory takes everything.
        let _ = match self.header.endianness {
            Endianness::Big => packet.write_to::<_, BigEndian>(&mut self.buffer),
            Endianness::Little => packet.write_to::<_, LittleEndian>(&mut self.buffer),
        };
        self.packets += 1;
    }

    /// Writes the buffer. Returns how many packets that were, or how many are lost and why; the file
    /// is as it was then.
    pub fn flush(&mut self) -> Result<u64, (u64, io::Error)> {
        let packets = self.packets;
        let result = self.file.write_all_at(&self.buffer, self.written);
        match result {
            Ok(()) => self.written += self.buffer.len() as u64,
            // Half a packet would hide all that come behind it. If this fails too, they still come in
            // its place.
            Err(_) => drop(self.file.set_len(self.written)),
        }
        self.clear();
        result.map(|()| packets).map_err(|error| (packets, error))
    }

    /// Empties the buffer but for the header, if the file has none yet.
    fn clear(&mut self) {
        self.buffer.clear();
        self.packets = 0;
        if self.written == 0 {
            // As above.
            let _ = self.header.write_to(&mut self.buffer);
        }
    }
}

fn unwritable(error: io::Error) -> String {
    format!("it cannot be written: {error}")
}

/// Keeps other writers away for as long as the file is open, and readers from before. The lock of a process
/// ends with it.
fn own(file: &File) -> Result<(), String> {
    match flock(file, FlockOperation::NonBlockingLockExclusive) {
        Err(Errno::WOULDBLOCK) => {
            Err("another app, of this or another engine, reads or writes it: write to another file".to_owned())
        }
        // A file system without locks has nobody who could hold one.
        _ => Ok(()),
    }
}

/// The header of a file that is to be appended to.
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
