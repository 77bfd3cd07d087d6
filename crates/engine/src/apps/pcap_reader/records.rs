//! A capture file, one record after the other.
//!
//! `from <= to <= RECORD_BYTES_MAX`: `buffer[from..to]` holds the file's bytes from `offset` on.

use std::fs::File;
use std::io::ErrorKind;
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use byteorder_slice::{BigEndian, ByteOrder, LittleEndian};
use pcap_file::pcap::{PcapHeader, RawPcapPacket};
use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketBlock;
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};
use pcap_file::pcapng::blocks::packet::PacketBlock;
use pcap_file::pcapng::blocks::section_header::SectionHeaderBlock;
use pcap_file::pcapng::blocks::simple_packet::SimplePacketBlock;
use pcap_file::pcapng::blocks::{
    ENHANCED_PACKET_BLOCK, INTERFACE_DESCRIPTION_BLOCK, PACKET_BLOCK, SECTION_HEADER_BLOCK,
    SIMPLE_PACKET_BLOCK,
};
use pcap_file::pcapng::{PcapNgBlock, RawBlock};
use pcap_file::{Endianness, PcapError, TsResolution};
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use crate::layout::DropReason;

/// Bytes of a record or block at most: four times the longest that tcpdump writes.
pub const RECORD_BYTES_MAX: usize = 1 << 20;
/// Bytes that are read at once.
const READ_BYTES: usize = 256 << 10;
/// Blocks without a packet that are skipped at once, so that a file full of them does not hold the worker up.
const SKIPS_MAX: usize = 1024;

/// A file, and a position in it.
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
    /// The current packet.
    current: Option<Current>,
}

#[derive(Debug)]
struct Current {
    bytes: usize,
    /// The range within `bytes`.
    data: Range<usize>,
    timestamp_ns: u64,
}

/// The next item of a file.
#[derive(Debug, PartialEq, Eq)]
pub enum Look {
    /// A packet.
    Record { timestamp_ns: u64 },
    /// Unknown yet: the caller must ask again.
    Later,
    /// The end of the file.
    End,
    /// Data that cannot be read, and the reason under which it counts.
    Damaged(DropReason),
}

/// A position in a file, to be kept.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Position {
    /// The inode of its file.
    pub inode: u64,
    offset: u64,
    /// The section, in a pcapng file.
    section: Option<Section>,
}

impl Records {
    /// Opens a file at its start, or at a position of this very file. The error says why
    /// that cannot be done.
    pub fn open(path: &Path, position: Option<&Position>) -> Result<Self, String> {
        let unreadable = |error: std::io::Error| format!("it cannot be read: {error}");
        let metadata = path.metadata().map_err(unreadable)?;
        // Opening anything else could wait for ever.
        if !metadata.is_file() {
            return Err("it is not a regular file".to_owned());
        }
        let file = File::open(path).map_err(unreadable)?;
        // The lock makes a `pcap_writer` of any engine refuse the file. A file that is being written can be read.
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

    /// Returns the inode, which identifies the file.
    pub fn inode(&self) -> u64 {
        self.inode
    }

    /// Returns the position of the current packet, or of the next.
    pub fn position(&self) -> Position {
        let section = match &self.format {
            Format::Pcap(_) => None,
            Format::PcapNg(section) => Some(section.clone()),
        };
        Position { inode: self.inode, offset: self.offset, section }
    }

    /// Goes back to the start.
    pub fn rewind(&mut self) {
        (self.format, self.offset) = self.start.clone();
        (self.from, self.to, self.current) = (0, 0, None);
    }

    /// Looks at the next packet without going past it.
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
                    // The file ends in the middle of a record, or the record is too long.
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

    /// Returns the data of the current packet, or nothing if there is none.
    pub fn data(&self) -> &[u8] {
        let record = &self.buffer[self.from..self.to];
        self.current.as_ref().and_then(|current| record.get(current.data.clone())).unwrap_or_default()
    }

    /// Goes past the current packet.
    pub fn advance(&mut self) {
        if let Some(current) = self.current.take() {
            self.skip(current.bytes);
        }
    }

    fn skip(&mut self, bytes: usize) {
        self.from += bytes.min(self.to - self.from);
        self.offset += bytes as u64;
    }

    /// Reads more of the file. Returns the number of bytes read.
    fn fill(&mut self) -> std::io::Result<usize> {
        self.buffer.copy_within(self.from..self.to, 0);
        (self.from, self.to) = (0, self.to - self.from);
        let end = (self.to + READ_BYTES).min(self.buffer.len());
        // Files end before that, even if a position says otherwise.
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

/// Interfaces of one section of a pcapng file at most.
pub const INTERFACES_MAX: usize = 1024;

const NS_PER_SECOND: u64 = 1_000_000_000;
const PCAP_HEADER_BYTES: usize = 24;
const PCAP_RECORD_HEADER_BYTES: usize = 16;
/// In front of a block's body: its type and length.
const BLOCK_HEADER_BYTES: usize = 8;

/// A file's format, and the part of its beginning that is needed to read the rest.
#[derive(Clone, Debug)]
pub enum Format {
    /// pcap.
    Pcap(PcapHeader),
    /// pcapng.
    PcapNg(Section),
}

/// The section of a pcapng file that is being read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Section {
    big_endian: bool,
    interfaces: Vec<Interface>,
}

/// The meaning of times from an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Interface {
    /// `if_tsresol`: a negative power of 10, or of 2 if the highest bit is set.
    resolution: u8,
    /// `if_tsoffset`: seconds.
    offset: i64,
}

/// Microseconds, if the file does not say.
const RESOLUTION_DEFAULT: u8 = 6;

/// The next item in a file's bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FormatItem {
    /// A number of bytes without a packet.
    Skip(usize),
    /// A packet, and the number of bytes that it takes.
    Packet { bytes: usize, data: Range<usize>, timestamp_ns: u64 },
}

/// The data violate the format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

impl Format {
    /// Returns the format of a file by its start, and the number of bytes used up. Returns `None` if the format
    /// is neither of the two.
    pub fn of(start: &[u8]) -> Option<(Self, usize)> {
        if start.starts_with(&SECTION_HEADER_BLOCK.to_be_bytes()) {
            return Some((Self::PcapNg(Section::default()), 0));
        }
        let (_, header) = PcapHeader::from_slice(start).ok()?;
        Some((Self::Pcap(header), PCAP_HEADER_BYTES))
    }

    /// Returns the first item of `bytes`, or `None` if more bytes are needed.
    pub fn next(&mut self, bytes: &[u8]) -> Result<Option<FormatItem>, Malformed> {
        let next = match self {
            Self::Pcap(header) => match header.endianness {
                Endianness::Big => pcap_record::<BigEndian>(header, bytes),
                Endianness::Little => pcap_record::<LittleEndian>(header, bytes),
            },
            Self::PcapNg(section) if section.big_endian => section.block::<BigEndian>(bytes),
            Self::PcapNg(section) => section.block::<LittleEndian>(bytes),
        };
        match next {
            Ok(next) => Ok(Some(next)),
            Err(PcapError::IncompleteBuffer) => Ok(None),
            Err(_) => Err(Malformed),
        }
    }
}

fn pcap_record<B: ByteOrder>(header: &PcapHeader, bytes: &[u8]) -> Result<FormatItem, PcapError> {
    let (rest, record) = RawPcapPacket::from_slice::<B>(bytes)?;
    let nanoseconds = match header.ts_resolution {
        TsResolution::MicroSecond => u64::from(record.ts_frac) * 1_000,
        TsResolution::NanoSecond => u64::from(record.ts_frac),
    };
    let data = PCAP_RECORD_HEADER_BYTES..PCAP_RECORD_HEADER_BYTES + record.data.len();
    let timestamp_ns = u64::from(record.ts_sec) * NS_PER_SECOND + nanoseconds;
    Ok(FormatItem::Packet { bytes: bytes.len() - rest.len(), data, timestamp_ns })
}

impl Section {
    fn block<B: ByteOrder>(&mut self, bytes: &[u8]) -> Result<FormatItem, PcapError> {
        let (rest, block) = RawBlock::from_slice::<B>(bytes)?;
        let bytes = bytes.len() - rest.len();
        // The whole block is here, so more bytes do not help.
        self.body::<B>(bytes, block.type_, &block.body).map_err(|error| match error {
            PcapError::IncompleteBuffer => PcapError::InvalidField("a field reaches beyond its block"),
            error => error,
        })
    }

    fn body<B: ByteOrder>(&mut self, bytes: usize, kind: u32, body: &[u8]) -> Result<FormatItem, PcapError> {
        // In the first kinds of blocks the packet's data start behind five fields, in the last behind one.
        let (fields, length, interface, ticks) = match kind {
            SECTION_HEADER_BLOCK => {
                let (_, header) = SectionHeaderBlock::from_slice::<B>(body)?;
                *self = Self { big_endian: header.endianness == Endianness::Big, interfaces: Vec::new() };
                return Ok(FormatItem::Skip(bytes));
            }
            INTERFACE_DESCRIPTION_BLOCK => {
                let (_, description) = InterfaceDescriptionBlock::from_slice::<B>(body)?;
                self.add(&description)?;
                return Ok(FormatItem::Skip(bytes));
            }
            ENHANCED_PACKET_BLOCK => {
                let (_, packet) = EnhancedPacketBlock::from_slice::<B>(body)?;
                // The crate reads ticks as nanoseconds.
                (20, packet.data.len(), packet.interface_id, packet.timestamp.as_nanos())
            }
            PACKET_BLOCK => {
                let (_, packet) = PacketBlock::from_slice::<B>(body)?;
                (20, packet.data.len(), u32::from(packet.interface_id), u128::from(packet.timestamp))
            }
            SIMPLE_PACKET_BLOCK => {
                let (_, packet) = SimplePacketBlock::from_slice::<B>(body)?;
                (4, packet.data.len().min(packet.original_len as usize), 0, 0)
            }
            _ => return Ok(FormatItem::Skip(bytes)),
        };
        let interface = self.interfaces.get(interface as usize);
        let interface =
            interface.ok_or(PcapError::InvalidField("a packet of an interface that is not described"))?;
        let from = BLOCK_HEADER_BYTES + fields;
        Ok(FormatItem::Packet {
            bytes,
            data: from..from + length,
            timestamp_ns: interface.timestamp_ns(ticks),
        })
    }

    fn add(&mut self, description: &InterfaceDescriptionBlock) -> Result<(), PcapError> {
        if self.interfaces.len() == INTERFACES_MAX {
            return Err(PcapError::InvalidField("too many interfaces"));
        }
        let mut interface = Interface { resolution: RESOLUTION_DEFAULT, offset: 0 };
        for option in &description.options {
            match option {
                InterfaceDescriptionOption::IfTsResol(resolution) => interface.resolution = *resolution,
                InterfaceDescriptionOption::IfTsOffset(offset) => interface.offset = *offset as i64,
                _ => {}
            }
        }
        self.interfaces.push(interface);
        Ok(())
    }
}

impl Interface {
    /// Returns 0 for a time that no clock shows.
    fn timestamp_ns(self, ticks: u128) -> u64 {
        let exponent = u32::from(self.resolution & 0x7f);
        let per_second = match self.resolution & 0x80 {
            0 => 10_u128.checked_pow(exponent),
            _ => 1_u128.checked_shl(exponent),
        };
        let since = |per_second| ticks.checked_mul(u128::from(NS_PER_SECOND)).map(|ticks| ticks / per_second);
        let nanoseconds = per_second.and_then(since).and_then(|since| i128::try_from(since).ok());
        let offset = i128::from(self.offset) * i128::from(NS_PER_SECOND);
        nanoseconds.and_then(|since| u64::try_from(since.saturating_add(offset)).ok()).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_count_in_the_units_that_the_file_names() {
        let at = |resolution, offset, ticks| Interface { resolution, offset }.timestamp_ns(ticks);
        assert_eq!(at(6, 0, 1_500_000), 1_500_000_000);
        assert_eq!(at(9, 2, 7), 2_000_000_007);
        assert_eq!(at(0x80 | 10, 0, 1_536), 1_500_000_000);
        assert_eq!(at(0, -1, 3), 2_000_000_000);
        // No value of a byte is too much.
        for resolution in 0..=u8::MAX {
            for (offset, ticks) in [(i64::MIN, 0), (i64::MAX, u64::MAX), (0, u64::MAX)] {
                at(resolution, offset, u128::from(ticks));
            }
        }
        assert_eq!(at(6, i64::MAX, 1), 0);
    }
}
