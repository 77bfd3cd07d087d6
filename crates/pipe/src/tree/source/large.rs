//! Sends a file in pieces: large files, files with holes, and files without a size. Asks the sink first what it
//! has.

use std::os::fd::OwnedFd;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, SeekFrom, Stat};
use rustix::io::Errno;
use twox_hash::XxHash3_128;

use super::outbox::Closed;
use super::reader::{BatchReader, SourceFile, part_name_of};
use crate::tree::attributes::{Attributes, modified};
use crate::tree::format::{FRAME_BYTES_MAX, HEADER_BYTES, PIECE_BYTES, TreeFrameKind};
use crate::tree::records::{FILE_RECORD_BYTES, LargeBegin, OfferedFile, SIZE_UNKNOWN, SinkHas};
use crate::tree::walk::WalkItem;
use crate::tree::{format, records};

/// The bytes in front of a piece's content: the offset in the file.
const OFFSET_BYTES: usize = 8;

/// How a file ended.
enum FileSent {
    /// The whole file was sent, of so many bytes.
    Whole(u64),
    /// The file cannot be sent, which was reported.
    Dropped,
}

impl BatchReader<'_> {
    /// Sends a file of known size.
    pub(super) fn large(
        &mut self,
        place: &SourceFile<'_>,
        fd: &OwnedFd,
        stat: &Stat,
        had: Option<SinkHas>,
    ) -> Result<(), Closed> {
        let size = u64::try_from(stat.st_size).unwrap_or(0);
        let is_apart = part_name_of(place.name).is_some_and(|name| {
            place.folder.is_some_and(|folder| {
                rustix::fs::statat(&folder.fd, &name, AtFlags::SYMLINK_NOFOLLOW).is_ok()
            })
        });
        let had = match had {
            Some(had) => had,
            None if is_apart || self.shared.hello.is_fresh => SinkHas::Nothing,
            None => self.offer_one(place, stat)?,
        };
        let (had_bytes, digest) = match had {
            SinkHas::Part { bytes, digest } if bytes <= size && !is_apart => (bytes, digest),
            _ => (0, 0),
        };
        let kept = if had_bytes > 0 && self.is_prefix(fd, had_bytes, digest)? { had_bytes } else { 0 };
        self.begin_file(place, stat, size, kept, is_apart)?;
        let ended = self.extents(place, fd, (kept, size))?;
        if let (FileSent::Whole(_), Ok(now)) = (&ended, rustix::fs::fstat(fd)) {
            if now.st_size != stat.st_size || Attributes::of(&now) != Attributes::of(stat) {
                self.changed(place);
            }
        }
        if matches!(ended, FileSent::Dropped) {
            self.withdraw(stat);
        }
        self.end_file(&ended)
    }

    /// Sends the bytes of a pipe or device until it ends.
    pub(super) fn endless(&mut self, place: &SourceFile<'_>, stat: &Stat) -> Result<(), Closed> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOCTTY;
        let fd = match rustix::fs::openat(place.fd(), place.name, flags, Mode::empty()) {
            Ok(fd) => fd,
            Err(error) => return self.failed(place, error),
        };
        if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
            return self.failed(place, Errno::ISDIR);
        }
        self.until_its_end(place, &fd, stat)
    }

    /// Sends the bytes from the descriptor's position to the end, whatever size the file is said to have.
    pub(super) fn until_its_end(
        &mut self,
        place: &SourceFile<'_>,
        fd: &OwnedFd,
        stat: &Stat,
    ) -> Result<(), Closed> {
        self.begin_file(place, stat, SIZE_UNKNOWN, 0, false)?;
        let mut position = 0;
        let ended = loop {
            let read = self.piece(position, PIECE_BYTES, |space, _| rustix::io::read(fd, space))?;
            match read {
                Ok(0) => break FileSent::Whole(position),
                Ok(count) => position += count as u64,
                Err(error) => {
                    self.failed(place, error)?;
                    break FileSent::Dropped;
                }
            }
        };
        self.end_file(&ended)
    }

    /// True if the file begins with the bytes that the sink has.
    fn is_prefix(&self, fd: &OwnedFd, bytes: u64, digest: u128) -> Result<bool, Closed> {
        let mut hash = XxHash3_128::new();
        let mut space = self.shared.buffers.take();
        space.resize(PIECE_BYTES, 0);
        let mut position = 0;
        while position < bytes {
            let wanted = (bytes - position).min(PIECE_BYTES as u64) as usize;
            match rustix::io::pread(fd, &mut space[..wanted], position) {
                Ok(0) => return Ok(false),
                Ok(count) => {
                    hash.write(&space[..count]);
                    position += count as u64;
                }
                Err(Errno::INTR) => {}
                // An error is reported when the file is read to be sent.
                Err(_) => return Ok(false),
            }
            if self.shared.outbox.is_closed() {
                return Err(Closed);
            }
        }
        self.shared.buffers.give_back(space);
        Ok(hash.finish_128() == digest)
    }

    /// Sends all data between holes.
    fn extents(
        &mut self,
        place: &SourceFile<'_>,
        fd: &OwnedFd,
        range: (u64, u64),
    ) -> Result<FileSent, Closed> {
        let (mut position, size) = range;
        let mut end = position;
        while position < size {
            if position == end {
                (position, end) = extent(fd, position, size);
                continue;
            }
            let wanted = (end - position).min(PIECE_BYTES as u64) as usize;
            let read = self.piece(position, wanted, |space, at| rustix::io::pread(fd, space, at))?;
            match read {
                Ok(0) => {
                    let shown = place.shown();
                    self.shared.complaints.fail(&format!("{shown} was cut short while it was read"));
                    return Ok(FileSent::Dropped);
                }
                Ok(count) => position += count as u64,
                Err(error) => {
                    self.failed(place, error)?;
                    return Ok(FileSent::Dropped);
                }
            }
        }
        Ok(FileSent::Whole(size))
    }

    /// Reads and sends a piece.
    fn piece(
        &mut self,
        position: u64,
        wanted: usize,
        read: impl Fn(&mut [u8], u64) -> Result<usize, Errno>,
    ) -> Result<Result<usize, Errno>, Closed> {
        let mut frame = self.shared.buffers.take();
        let start = HEADER_BYTES + OFFSET_BYTES;
        frame.resize(start + wanted, 0);
        frame[HEADER_BYTES..start].copy_from_slice(&position.to_le_bytes());
        let mut count = 0;
        while count < wanted {
            match read(&mut frame[start + count..], position + count as u64) {
                Ok(0) => break,
                Ok(more) => count += more,
                Err(Errno::INTR) => {}
                // The bytes before the error are useless.
                Err(error) => return Ok(Err(error)),
            }
        }
        frame.truncate(start + count);
        if count > 0 {
            format::seal(&mut frame, TreeFrameKind::Data);
            self.shared.outbox.push(self.batch, frame)?;
        }
        Ok(Ok(count))
    }

    fn begin_file(
        &mut self,
        place: &SourceFile<'_>,
        stat: &Stat,
        size: u64,
        kept: u64,
        is_apart: bool,
    ) -> Result<(), Closed> {
        self.flush()?;
        let mut frame = Vec::new();
        format::begin(&mut frame);
        let (folder, name, attributes) = (place.spot(), place.sent_name(), Attributes::of(stat));
        records::put_begin(&mut frame, &LargeBegin { folder, name, attributes, size, kept, is_apart });
        format::seal(&mut frame, TreeFrameKind::Begin);
        self.shared.outbox.push(self.batch, frame)
    }

    fn end_file(&mut self, ended: &FileSent) -> Result<(), Closed> {
        let (is_whole, size) = match ended {
            FileSent::Whole(size) => (1, *size),
            FileSent::Dropped => (0, 0),
        };
        let mut payload = vec![is_whole];
        payload.extend_from_slice(&size.to_le_bytes());
        self.shared.outbox.push(self.batch, format::frame(TreeFrameKind::End, &payload))
    }
}

/// Returns the next data at or behind a position, up to a hole; an empty range at the end of the file.
fn extent(fd: &OwnedFd, position: u64, size: u64) -> (u64, u64) {
    match rustix::fs::seek(fd, SeekFrom::Data(position)) {
        Ok(data) => {
            let hole = rustix::fs::seek(fd, SeekFrom::Hole(data)).unwrap_or(size);
            (data.min(size), hole.clamp(data, size.max(data)).min(size))
        }
        // Only a hole is left.
        Err(Errno::NXIO) => (size, size),
        // The file system does not support holes.
        Err(_) => (position, size),
    }
}

/// The bytes of an offered file beside its path.
const OFFERED_BYTES: usize = FILE_RECORD_BYTES + 256;

impl BatchReader<'_> {
    /// Asks the sink what it has of these files.
    pub(super) fn offer(&mut self, items: &[WalkItem]) -> Result<Vec<SinkHas>, Closed> {
        let mut all = vec![SinkHas::Nothing; items.len()];
        let offer = self.shared.next_offer();
        let mut frame = Vec::new();
        format::begin(&mut frame);
        frame.extend_from_slice(&offer.to_le_bytes());
        frame.push(1);
        let mut offered = Vec::new();
        for (index, item) in items.iter().enumerate() {
            let place = match item {
                WalkItem::Entry { folder, name, kind: FileType::RegularFile } => {
                    SourceFile { folder: Some(folder), root: folder.root, name, is_followed: false }
                }
                WalkItem::Root { root, path, is_followed } => {
                    SourceFile { folder: None, root: *root, name: path, is_followed: *is_followed }
                }
                _ => continue,
            };
            // A file whose attributes cannot be read fails later, when it is opened.
            let Ok(stat) = place.stat() else { continue };
            let bytes = OFFERED_BYTES + place.spot().path.len();
            if FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
                && frame.len() + bytes < FRAME_BYTES_MAX
            {
                put_offered(&mut frame, &place, &stat);
                offered.push(index);
            }
        }
        if offered.is_empty() {
            return Ok(all);
        }
        for (index, had) in offered.iter().zip(self.ask(offer, frame)?) {
            all[*index] = had;
        }
        Ok(all)
    }

    /// Asks the sink what it has of this file.
    pub(super) fn offer_one(&mut self, place: &SourceFile<'_>, stat: &Stat) -> Result<SinkHas, Closed> {
        let offer = self.shared.next_offer();
        let mut frame = Vec::new();
        format::begin(&mut frame);
        frame.extend_from_slice(&offer.to_le_bytes());
        frame.push(0);
        put_offered(&mut frame, place, stat);
        Ok(self.ask(offer, frame)?.first().copied().unwrap_or(SinkHas::Nothing))
    }

    fn ask(&self, offer: u64, mut frame: Vec<u8>) -> Result<Vec<SinkHas>, Closed> {
        format::seal(&mut frame, TreeFrameKind::Offer);
        self.shared.answers.expect(offer);
        self.shared.outbox.push_urgent(frame);
        self.shared.answers.wait(offer).ok_or(Closed)
    }
}

fn put_offered(frame: &mut Vec<u8>, place: &SourceFile<'_>, stat: &Stat) {
    let (folder, name) = (place.spot(), place.sent_name());
    let size = u64::try_from(stat.st_size).unwrap_or(0);
    records::put_offered(frame, &OfferedFile { folder, name, size, modified: modified(stat) });
}
