//! A file of captured packets, one record after the other.
//!
//! `from <= to <= RECORD_BYTES_MAX`: `buffer[from..to]` is what the file holds from `offset` on.

use std::fs::File;
use std::io::ErrorKind;
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use super::format::{Format, FormatItem, Section};
use crate::layout::DropReason;

/// Bytes of a record or block at most: four times the longest that tcpdump writes.
pub const RECORD_BYTES_MAX: usize = 1 << 20;
/// Bytes that are read at once.
const READ_BYTES: usize = 256 << 10;
/// Blocks without a packet that are passed over in one go, so that a file full of them keeps nobody.
const SKIPS_MAX: usize = 1024;

/// A file, and the place in it.
#[derive(Debug)]
pub struct Records {
    file: File,
    inode: u64,
    format: Format,
    start: (Format, u64),
    buffer: Vec<u8>,
    from: usize,
    to: usize,
    offset: u64,
    /// The packet that is looked at.
    current: Option<Current>,
}

#[derive(Debug)]
struct Current {
    bytes: usize,
    /// Within `bytes`.
    data: Range<usize>,
    timestamp_ns: u64,
}

/// What comes next.
#[derive(Debug, PartialEq, Eq)]
pub enum Look {
    /// A packet.
    Record { timestamp_ns: u64 },
    /// Unknown yet: ask again.
    Later,
    /// Nothing.
    End,
    /// Nothing that can be read, and what that counts as.
    Damaged(DropReason),
}

/// A place in a file, to be kept.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Position {
    /// Which file it is of.
    pub inode: u64,
    offset: u64,
    /// Of a pcapng file.
    section: Option<Section>,
}

impl Records {
    /// Opens a file, at its start, or at a position that is of this very file. Says what is wrong if
    /// that cannot be done.
    pub fn open(path: &Path, position: Option<&Position>) -> Result<Self, String> {
        let unreadable = |error: std::io::Error| format!("it cannot be read: {error}");
        let metadata = path.metadata().map_err(unreadable)?;
        // Opening anything else could wait for ever.
        if !metadata.is_file() {
            return Err("it is not a regular file".to_owned());
        }
        let file = File::open(path).map_err(unreadable)?;
        // A `pcap_writer` of any engine then refuses to write it. One that is being written can be read.
        let _ = flock(&file, FlockOperation::NonBlockingLockShared);
        let mut start = [0; 64];
        let length = file.read_at(&mut start, 0).map_err(unreadable)?;
        let (format, offset) = Format::of(&start[..length])
            .ok_or_else(|| "it is neither a pcap nor a pcapng file: its first bytes are others".to_owned())?;
        let start = (format, offset as u64);
        let inode = metadata.ino();
        let (format, offset) = match position.filter(|position| position.inode == inode) {
            None => start.clone(),
            Some(position) => (position.format(&start.0), position.offset),
        };
        let buffer = vec![0; RECORD_BYTES_MAX];
        Ok(Self { file, inode, format, start, buffer, from: 0, to: 0, offset, current: None })
    }

    /// Tells files apart.
    pub fn inode(&self) -> u64 {
        self.inode
    }

    /// The place of the packet that is looked at, or will be.
    pub fn position(&self) -> Position {
        let section = match &self.format {
            Format::Pcap(_) => None,
            Format::PcapNg(section) => Some(section.clone()),
        };
        Position { inode: self.inode, offset: self.offset, section }
    }

    /// Back to the start.
    pub fn rewind(&mut self) {
        (self.format, self.offset) = self.start.clone();
        (self.from, self.to, self.current) = (0, 0, None);
    }

    /// Looks at the next packet, which stays.
    pub fn look(&mut self) -> Look {
        for _ in 0..SKIPS_MAX {
            if let Some(current) = &self.current {
                return Look::Record { timestamp_ns: current.timestamp_ns };
            }
            match self.format.next(&self.buffer[self.from..self.to]) {
                Ok(Some(FormatItem::Skip(bytes))) => self.skip(bytes),
                Ok(Some(FormatItem::Packet { bytes, data, timestamp_ns })) => {
                    self.current = Some(Current { bytes, data, timestamp_ns });
                }
                Ok(None) => match self.fill() {
                    Ok(0) if self.from == self.to => return Look::End,
                    // Cut off in the middle of a record, or one too long for anybody.
                    Ok(0) => return Look::Damaged(DropReason::Malformed),
                    Ok(_) => {}
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    Err(_) => return Look::Damaged(DropReason::Device),
                },
                Err(_) => return Look::Damaged(DropReason::Malformed),
            }
        }
        Look::Later
    }

    /// The packet that is looked at; nothing if none is.
    pub fn data(&self) -> &[u8] {
        let record = &self.buffer[self.from..self.to];
        self.current.as_ref().and_then(|current| record.get(current.data.clone())).unwrap_or_default()
    }

    /// Goes behind the packet that is looked at.
    pub fn advance(&mut self) {
        if let Some(current) = self.current.take() {
            self.skip(current.bytes);
        }
    }

    fn skip(&mut self, bytes: usize) {
        self.from += bytes.min(self.to - self.from);
        self.offset += bytes as u64;
    }

    /// Reads on. Returns how many bytes have come.
    fn fill(&mut self) -> std::io::Result<usize> {
        self.buffer.copy_within(self.from..self.to, 0);
        (self.from, self.to) = (0, self.to - self.from);
        let end = (self.to + READ_BYTES).min(self.buffer.len());
        // Files end before that, whatever a position says.
        let at = self.offset.saturating_add(self.to as u64).min(i64::MAX as u64);
        let count = self.file.read_at(&mut self.buffer[self.to..end], at)?;
        self.to += count;
        Ok(count)
    }
}

impl Position {
    fn format(&self, start: &Format) -> Format {
        match (&self.section, start) {
            (Some(section), Format::PcapNg(_)) => Format::PcapNg(section.clone()),
            _ => start.clone(),
        }
    }
}
