//! Reads the files of a batch into frames; a file with several names is sent once.

use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};

use caravan_segment::printable;
use rustix::buffer::spare_capacity;
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, SeekFrom, Stat};
use rustix::io::Errno;

use super::SourceShared;
use super::outbox::Closed;
use crate::lock;
use crate::tree::attributes::Attributes;
use crate::tree::format::{FRAME_BYTES_MAX, HEADER_BYTES, PIECE_BYTES, TreeFrameKind};
use crate::tree::options::FileId;
use crate::tree::records::{FILE_RECORD_BYTES, SinkHas, TreePath, TreeRecord};
use crate::tree::walk::{Batch, SourceFolder, WalkItem};
use crate::tree::{format, records};

/// The bytes of a directory's record beside its path.
const FOLDER_RECORD_BYTES: usize = 1 + 4 + 2;
/// The bytes of a block in the system's count of what a file occupies.
const STAT_BLOCK_BYTES: i64 = 512;

/// A thread that reads batches.
#[derive(Debug)]
pub struct BatchReader<'a> {
    pub(super) shared: &'a SourceShared<'a>,
    pub(super) batch: u64,
    /// The frame that is being filled.
    frame: Vec<u8>,
    /// The position where the frame's records begin.
    records: usize,
    /// The directory of the record written last.
    folder: Option<Arc<SourceFolder>>,
}

impl<'a> BatchReader<'a> {
    /// Returns a reader with this shared state.
    pub fn new(shared: &'a SourceShared<'a>) -> Self {
        Self { shared, batch: 0, frame: shared.buffers.take(), records: 0, folder: None }
    }

    /// Reads all of a batch.
    pub fn read(&mut self, batch: Batch) -> Result<(), Closed> {
        self.batch = batch.number;
        self.shared.outbox.begin(self.batch)?;
        self.begin_frame(|frame| {
            for made in &batch.made {
                records::put_spot(frame, TreePath { root: made.root, path: &made.path });
                frame.extend_from_slice(&made.mode.to_le_bytes());
                frame.extend_from_slice(&made.owner.to_le_bytes());
            }
        });
        let hello = self.shared.hello;
        let had = if (self.shared.options.update || hello.is_resumed) && !hello.is_fresh {
            self.offer(&batch.items)?
        } else {
            Vec::new()
        };
        for (index, item) in batch.items.iter().enumerate() {
            let had = had.get(index).copied();
            match item {
                WalkItem::Entry { folder, name, kind } => {
                    let (folder, root) = (Some(folder), folder.root);
                    self.entry(&SourceFile { folder, root, name, is_followed: false }, *kind, had)?;
                }
                WalkItem::Root { root, path, is_followed } => {
                    self.root(
                        &SourceFile { folder: None, root: *root, name: path, is_followed: *is_followed },
                        had,
                    )?;
                }
                WalkItem::Leave { root, path, attributes } => {
                    self.ensure(path.len() + FOLDER_RECORD_BYTES + FILE_RECORD_BYTES)?;
                    let spot = TreePath { root: *root, path };
                    records::put(&mut self.frame, &TreeRecord::Leave { spot, attributes: *attributes });
                }
            }
        }
        self.flush()?;
        self.shared.outbox.finish(self.batch);
        Ok(())
    }

    fn root(&mut self, place: &SourceFile<'_>, had: Option<SinkHas>) -> Result<(), Closed> {
        match place.stat() {
            Ok(stat) => {
                let kind = FileType::from_raw_mode(stat.st_mode);
                if place.is_followed && !matches!(kind, FileType::RegularFile | FileType::Socket) {
                    return self.endless(place, &stat);
                }
                self.entry(place, kind, had)
            }
            Err(error) => self.failed(place, error),
        }
    }

    fn entry(&mut self, place: &SourceFile<'_>, kind: FileType, had: Option<SinkHas>) -> Result<(), Closed> {
        match kind {
            FileType::RegularFile => self.regular(place, had),
            FileType::Symlink => self.symlink(place),
            FileType::Fifo => match place.stat() {
                Ok(stat) => {
                    self.locate(place, FILE_RECORD_BYTES)?;
                    let (name, attributes) = (place.sent_name(), Attributes::of(&stat));
                    records::put(&mut self.frame, &TreeRecord::Fifo { name, attributes });
                    Ok(())
                }
                Err(error) => self.failed(place, error),
            },
            _ => {
                let what = if kind == FileType::Socket { "a socket" } else { "a device" };
                self.shared.complaints.warn(&format!("{} is {what}, and left out", place.shown()));
                Ok(())
            }
        }
    }

    fn symlink(&mut self, place: &SourceFile<'_>) -> Result<(), Closed> {
        let read = place.stat().and_then(|stat| {
            let target = rustix::fs::readlinkat(place.fd(), place.name, Vec::new())?;
            Ok((stat, target))
        });
        let (stat, target) = match read {
            Ok(read) => read,
            Err(error) => return self.failed(place, error),
        };
        if stat.st_nlink > 1 && self.is_again(place, &stat)? {
            return Ok(());
        }
        self.locate(place, FILE_RECORD_BYTES + target.as_bytes().len())?;
        let (name, attributes) = (place.sent_name(), Attributes::of(&stat));
        records::put(&mut self.frame, &TreeRecord::Symlink { name, attributes, target: target.as_bytes() });
        Ok(())
    }

    fn regular(&mut self, place: &SourceFile<'_>, had: Option<SinkHas>) -> Result<(), Closed> {
        // The open waits only for the disk, even if a FIFO has taken the file's place.
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let flags = if place.is_followed { flags } else { flags | OFlags::NOFOLLOW };
        let opened = rustix::fs::openat(place.fd(), place.name, flags, Mode::empty())
            .and_then(|fd| rustix::fs::fstat(&fd).map(|stat| (fd, stat)));
        let (fd, stat) = match opened {
            Ok(opened) => opened,
            Err(error) => return self.failed(place, error),
        };
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            self.shared.complaints.fail(&format!("{} has become something else meanwhile", place.shown()));
            return Ok(());
        }
        if stat.st_nlink > 1 && self.is_again(place, &stat)? {
            return Ok(());
        }
        if had == Some(SinkHas::Same) {
            return Ok(());
        }
        if stat.st_size <= PIECE_BYTES as i64 && !is_sparse(&fd, &stat) {
            self.small(place, &fd, &stat)
        } else {
            self.large(place, &fd, &stat, had)
        }
    }

    /// Sends a hard link if the file was sent before. Returns true if it did.
    fn is_again(&mut self, place: &SourceFile<'_>, stat: &Stat) -> Result<bool, Closed> {
        // The order of the stream decides which name of a file is the first.
        self.shared.outbox.wait_turn(self.batch)?;
        match self.shared.links.claim(stat, place.root, || place.path()) {
            LinkClaim::First => Ok(false),
            LinkClaim::Unknown => {
                let shown = place.shown();
                self.shared
                    .complaints
                    .warn(&format!("{shown} becomes a file of its own: too many have links"));
                Ok(false)
            }
            LinkClaim::Again(root, path) => {
                self.locate(place, FILE_RECORD_BYTES + path.len())?;
                let target = TreePath { root, path: &path };
                records::put(&mut self.frame, &TreeRecord::Link { name: place.sent_name(), target });
                Ok(true)
            }
        }
    }

    fn small(&mut self, place: &SourceFile<'_>, fd: &OwnedFd, stat: &Stat) -> Result<(), Closed> {
        let size = stat.st_size as usize;
        self.locate(place, FILE_RECORD_BYTES + size + 1)?;
        let start = self.frame.len();
        let (name, attributes) = (place.sent_name(), Attributes::of(stat));
        records::put(&mut self.frame, &TreeRecord::File { name, attributes, content: b"" });
        let content = self.frame.len();
        // Each read asks for one byte more than the file should have: a shorter read has found the end.
        let result = loop {
            match rustix::io::read(fd, spare_capacity(&mut self.frame)) {
                Ok(0) => break Ok(()),
                Ok(_) if size > 0 && self.frame.len() - content == size => break Ok(()),
                Ok(_) if size > 0 && self.frame.len() - content > size => {
                    self.frame.truncate(content + size);
                    self.changed(place);
                    break Ok(());
                }
                // Files of /proc claim to be empty.
                Ok(_) if self.frame.len() - content > PIECE_BYTES => {
                    self.frame.truncate(start);
                    rustix::fs::seek(fd, SeekFrom::Start(0)).map_err(|_| Closed)?;
                    return self.until_its_end(place, fd, stat);
                }
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => break Err(error),
            }
        };
        if let Err(error) = result {
            self.frame.truncate(start);
            self.withdraw(stat);
            return self.failed(place, error);
        }
        // Files of /sys claim to have 4096 bytes, and have fewer.
        let is_same = || {
            rustix::fs::fstat(fd)
                .is_ok_and(|now| Attributes::of(&now) == Attributes::of(stat) && now.st_size == stat.st_size)
        };
        if self.frame.len() - content < size && !is_same() {
            self.changed(place);
        }
        records::patch_size(&mut self.frame, content);
        Ok(())
    }

    /// Adds the directory of the next name to the frame, once there is room for `bytes` behind it.
    fn locate(&mut self, place: &SourceFile<'_>, bytes: usize) -> Result<(), Closed> {
        let path = place.spot().path;
        self.ensure(FOLDER_RECORD_BYTES + path.len() + place.name.to_bytes().len() + bytes)?;
        match place.folder {
            Some(folder) if self.folder.as_ref().is_some_and(|last| Arc::ptr_eq(last, folder)) => {}
            Some(folder) => {
                self.folder = Some(Arc::clone(folder));
                records::put(&mut self.frame, &TreeRecord::Folder(place.spot()));
            }
            None => {
                self.folder = None;
                records::put(&mut self.frame, &TreeRecord::Root(place.root));
            }
        }
        Ok(())
    }

    fn ensure(&mut self, bytes: usize) -> Result<(), Closed> {
        if self.frame.len() + bytes > HEADER_BYTES + FRAME_BYTES_MAX {
            self.flush()?;
        }
        Ok(())
    }

    /// Hands over the frame, if it has any content, and begins another.
    pub(super) fn flush(&mut self) -> Result<(), Closed> {
        // An empty frame has the header and the length of the directories, which may be 0.
        if self.frame.len() > HEADER_BYTES + 4 {
            let mut frame = std::mem::replace(&mut self.frame, self.shared.buffers.take());
            format::seal(&mut frame, TreeFrameKind::Batch);
            self.shared.outbox.push(self.batch, frame)?;
        }
        self.begin_frame(|_| ());
        Ok(())
    }

    fn begin_frame(&mut self, put_folders: impl FnOnce(&mut Vec<u8>)) {
        format::begin(&mut self.frame);
        self.frame.extend_from_slice(&[0; 4]);
        self.records = self.frame.len();
        put_folders(&mut self.frame);
        let bytes = (self.frame.len() - self.records) as u32;
        self.frame[HEADER_BYTES..self.records].copy_from_slice(&bytes.to_le_bytes());
        self.folder = None;
    }

    pub(super) fn failed(&self, place: &SourceFile<'_>, error: Errno) -> Result<(), Closed> {
        self.shared.complaints.fail(&format!("cannot read {}: {error}", place.shown()));
        Ok(())
    }

    pub(super) fn changed(&self, place: &SourceFile<'_>) {
        self.shared.complaints.fail(&format!("{} has changed while it was read", place.shown()));
    }

    /// Withdraws the first name of a file, which could not be sent.
    pub(super) fn withdraw(&self, stat: &Stat) {
        if stat.st_nlink > 1 {
            self.shared.links.withdraw(stat);
        }
    }
}

/// True if a file has holes. Most files have none, which takes no system call to find out.
fn is_sparse(fd: &OwnedFd, stat: &Stat) -> bool {
    if stat.st_blocks.saturating_mul(STAT_BLOCK_BYTES) >= stat.st_size {
        return false;
    }
    let has_hole = rustix::fs::seek(fd, SeekFrom::Hole(0)).is_ok_and(|hole| hole < stat.st_size as u64);
    // In either case, the file is read from its beginning.
    rustix::fs::seek(fd, SeekFrom::Start(0)).is_ok() && has_hole
}

/// A file to send.
#[derive(Clone, Copy, Debug)]
pub struct SourceFile<'a> {
    pub(super) folder: Option<&'a Arc<SourceFolder>>,
    pub(super) root: u32,
    /// The name in the folder, or the whole path.
    pub(super) name: &'a CStr,
    pub(super) is_followed: bool,
}

impl<'a> SourceFile<'a> {
    /// Returns the descriptor of the directory.
    pub(super) fn fd(&self) -> BorrowedFd<'a> {
        self.folder.map_or(CWD, |folder| folder.fd.as_fd())
    }

    pub(super) fn spot(&self) -> TreePath<'a> {
        TreePath { root: self.root, path: self.folder.map_or(b"", |folder| &folder.path) }
    }

    /// Returns the name for the sink: an empty one for a source itself, whose name the sink knows.
    pub(super) fn sent_name(&self) -> &'a [u8] {
        if self.folder.is_some() { self.name.to_bytes() } else { b"" }
    }

    pub(super) fn shown(&self) -> String {
        self.folder
            .map_or_else(|| printable(self.name.to_bytes()), |folder| folder.shown(self.name.to_bytes()))
    }

    pub(super) fn stat(&self) -> Result<Stat, Errno> {
        let flags = if self.is_followed { AtFlags::empty() } else { AtFlags::SYMLINK_NOFOLLOW };
        rustix::fs::statat(self.fd(), self.name, flags)
    }

    pub(super) fn path(&self) -> Vec<u8> {
        match self.folder {
            None => Vec::new(),
            Some(folder) if folder.path.is_empty() => self.name.to_bytes().to_vec(),
            Some(folder) => [&folder.path, &b"/"[..], self.name.to_bytes()].concat(),
        }
    }
}

/// Returns the name of the file's part at the sink, if a tree can have such a name, too.
pub(super) fn part_name_of(name: &CStr) -> Option<CString> {
    CString::new(crate::tree::part_name(name.to_bytes())).ok()
}

/// The most files whose other names are remembered.
const FILES_MAX: usize = 1 << 20;

/// Files that were sent and have more names.
#[derive(Debug, Default)]
pub struct LinkedFiles(Mutex<HashMap<FileId, FirstName>>);

#[derive(Debug)]
struct FirstName {
    root: u32,
    path: Vec<u8>,
    /// The number of names that were not found yet. They may be outside of the copied trees.
    rest: u64,
}

/// What to do with a file that has several names.
#[derive(Debug, PartialEq, Eq)]
pub enum LinkClaim {
    /// The file was not sent yet.
    First,
    /// The file was sent under this path, below that source.
    Again(u32, Vec<u8>),
    /// There are too many files to remember: this one is sent again, and becomes a separate file.
    Unknown,
}

impl LinkedFiles {
    /// Decides what to do with a file. Call this in the order in which files are sent.
    pub fn claim(&self, stat: &Stat, root: u32, path: impl FnOnce() -> Vec<u8>) -> LinkClaim {
        let mut files = lock(&self.0);
        let key = FileId::of(stat);
        if let Some(first) = files.get_mut(&key) {
            let (root, path) = (first.root, first.path.clone());
            first.rest = first.rest.saturating_sub(1);
            if first.rest == 0 {
                files.remove(&key);
            }
            return LinkClaim::Again(root, path);
        }
        if files.len() >= FILES_MAX {
            return LinkClaim::Unknown;
        }
        #[allow(clippy::useless_conversion, reason = "the field is narrower on some architectures")]
        let rest = u64::from(stat.st_nlink).saturating_sub(1);
        files.insert(key, FirstName { root, path: path(), rest });
        LinkClaim::First
    }

    /// Withdraws a file that could not be sent after all: its next name is the first.
    pub fn withdraw(&self, stat: &Stat) {
        let mut files = lock(&self.0);
        files.remove(&FileId::of(stat));
    }
}
