//! Walks trees and cuts the files into batches, in the order in which they are to be sent.
//!
//! The walk itself opens and lists directories; it does not look at the files in them. The readers of the batches
//! do that, several at a time.

use std::ffi::{CStr, CString};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::SyncSender;

use caravan_segment::printable;
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, RawDir, Stat};
use rustix::io::Errno;

use super::attributes::Attributes;
use super::options::{SourceOptions, TreeHello};
use super::records::PATH_BYTES_MAX;
use super::{FileComplaints, shown_in};

/// The most files of a batch: enough that a frame of files of 1 KB is worth a system call, and few enough that
/// small trees occupy all readers.
const ITEMS_MAX: usize = 256;
/// The most directories whose files are in one batch: each holds a descriptor until the batch was read.
const FOLDERS_MAX: usize = 16;
/// The most bytes of the directory paths at the beginning of a batch, so that they leave room in its first frame.
const PATHS_BYTES_MAX: usize = 32 << 10;
/// The deepest nesting of directories: each level holds a descriptor. No longer path can be used in one call
/// anyway.
const DEPTH_MAX: usize = PATH_BYTES_MAX / 2;
/// The most bytes of names of directories still to be walked: some four million in one directory.
const PENDING_BYTES_MAX: usize = 256 << 20;
/// The bytes of names that one call of the kernel may return.
const LISTING_BYTES: usize = 64 << 10;

/// Nobody takes batches any more.
#[derive(Debug)]
pub struct Unwanted;

/// Walks all sources of a copy.
#[derive(Debug)]
pub struct Walk<'a> {
    options: &'a SourceOptions,
    hello: &'a TreeHello,
    complaints: &'a FileComplaints,
    to: SyncSender<Batch>,
    batch: Batch,
    pending_bytes: usize,
}

/// A directory that is being walked.
struct Level {
    folder: Arc<SourceFolder>,
    attributes: Attributes,
    /// The directories in it that are still to be walked.
    rest: Vec<CString>,
}

impl<'a> Walk<'a> {
    /// Returns a walk that hands its batches to `to`.
    pub fn new(
        options: &'a SourceOptions,
        hello: &'a TreeHello,
        complaints: &'a FileComplaints,
        to: SyncSender<Batch>,
    ) -> Self {
        Self { options, hello, complaints, to, batch: Batch::default(), pending_bytes: 0 }
    }

    /// Walks all sources. Returns the number of batches.
    pub fn run(mut self) -> Result<u64, Unwanted> {
        for (root, path) in self.options.paths.iter().enumerate() {
            self.source(root as u32, &path.0)?;
        }
        self.cut()?;
        Ok(self.batch.number)
    }

    fn source(&mut self, root: u32, path: &[u8]) -> Result<(), Unwanted> {
        match self.look_at(path) {
            Ok((c_path, true)) => self.tree(root, path, &c_path),
            Ok((path, false)) => {
                self.batch.items.push(WalkItem::Root { root, path, is_followed: !self.options.recursive });
                self.cut_if_full()
            }
            Err(why) => {
                self.complaints.fail(&why);
                Ok(())
            }
        }
    }

    /// Returns the path of a source, and whether it is a directory; otherwise, why it is not copied.
    fn look_at(&self, path: &[u8]) -> Result<(CString, bool), String> {
        let shown = printable(path);
        let path = CString::new(path).map_err(|_| format!("{shown}: no path has a zero byte in it"))?;
        let flags = if self.options.recursive { AtFlags::SYMLINK_NOFOLLOW } else { AtFlags::empty() };
        let stat =
            rustix::fs::statat(CWD, &path, flags).map_err(|error| format!("cannot read {shown}: {error}"))?;
        let is_folder = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
        if self.hello.is_target(&stat) {
            return Err(format!("{shown} is what it would be copied to"));
        }
        if is_folder && !self.options.recursive {
            return Err(format!("{shown} is a directory: give -r to copy all that is in it"));
        }
        if is_folder && self.is_above(&path) {
            return Err(format!("{shown} is not copied into itself: name another destination"));
        }
        Ok((path, is_folder))
    }

    /// True if the destination is in this directory. `link/` means the directory that the link leads to.
    fn is_above(&self, path: &CStr) -> bool {
        rustix::fs::statat(CWD, path, AtFlags::empty()).is_ok_and(|stat| self.hello.is_above(&stat))
    }

    fn tree(&mut self, root: u32, base: &[u8], c_path: &CStr) -> Result<(), Unwanted> {
        let base: Arc<[u8]> = base.into();
        let mut stack = Vec::new();
        if let Some(level) = self.enter(CWD, c_path, (root, Vec::new(), &base))? {
            stack.push(level);
        }
        while let Some(level) = stack.last_mut() {
            let Some(name) = level.rest.pop() else {
                let Some(level) = stack.pop() else { break };
                let (path, attributes) = (level.folder.path.clone(), level.attributes);
                self.batch.items.push(WalkItem::Leave { root, path, attributes });
                self.cut_if_full()?;
                continue;
            };
            self.pending_bytes = self.pending_bytes.saturating_sub(name.as_bytes().len());
            let folder = Arc::clone(&level.folder);
            let path = below(&folder.path, name.as_bytes());
            if path.len() >= PATH_BYTES_MAX || stack.len() >= DEPTH_MAX {
                let shown = folder.shown(name.as_bytes());
                self.complaints.fail(&format!("{shown} is too deep: its path has more than 4096 bytes"));
                continue;
            }
            if let Some(level) = self.enter(folder.fd.as_fd(), &name, (root, path, &base))? {
                stack.push(level);
            }
        }
        Ok(())
    }

    /// Opens a directory and lists it.
    fn enter(
        &mut self,
        parent: BorrowedFd<'_>,
        name: &CStr,
        (root, path, base): (u32, Vec<u8>, &Arc<[u8]>),
    ) -> Result<Option<Level>, Unwanted> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        // The source itself was checked before: `link/` leads somewhere.
        let flags = if path.is_empty() { flags - OFlags::NOFOLLOW } else { flags };
        let opened = rustix::fs::openat(parent, name, flags, Mode::empty())
            .and_then(|fd| rustix::fs::fstat(&fd).map(|stat| (fd, stat)));
        let (fd, stat) = match opened {
            Ok(opened) => opened,
            Err(error) => {
                let shown = printable(below(base, &path));
                self.complaints.fail(&format!("cannot read the directory {shown}: {error}"));
                return Ok(None);
            }
        };
        if !path.is_empty() && self.hello.is_target(&stat) {
            let shown = printable(below(base, &path));
            self.complaints.fail(&format!("{shown} is not copied into itself"));
            return Ok(None);
        }
        self.batch.paths_bytes += path.len();
        self.batch.made.push(MadeFolder { root, path: path.clone(), mode: stat.st_mode, owner: stat.st_uid });
        let folder = Arc::new(SourceFolder { fd, root, path, base: Arc::clone(base) });
        let rest = self.list(&folder, &stat)?;
        // A directory without files must not make a batch too large.
        self.cut_if_full()?;
        Ok(Some(Level { folder, attributes: Attributes::of(&stat), rest }))
    }

    /// Adds the files of a directory to batches. Returns the directories in it.
    fn list(&mut self, folder: &Arc<SourceFolder>, stat: &Stat) -> Result<Vec<CString>, Unwanted> {
        let mut space = vec![MaybeUninit::uninit(); LISTING_BYTES];
        let mut names = RawDir::new(&folder.fd, &mut space);
        let mut folders = Vec::new();
        let future = self.hello.future_in(stat);
        let mut is_counted = false;
        while let Some(entry) = names.next() {
            let entry = match entry {
                Ok(entry) => entry,
                Err(error) => {
                    let shown = folder.shown(b"");
                    self.complaints.fail(&format!("cannot read all of the directory {shown}: {error}"));
                    break;
                }
            };
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            if future.contains(&name.to_bytes()) {
                let shown = folder.shown(name.to_bytes());
                self.complaints.fail(&format!("{shown} is not copied into itself"));
                continue;
            }
            let Some(kind) = self.kind(folder, name, entry.file_type()) else { continue };
            if kind != FileType::Directory {
                self.batch.folders += usize::from(!is_counted);
                is_counted = true;
                let folder = Arc::clone(folder);
                self.batch.items.push(WalkItem::Entry { folder, name: name.to_owned(), kind });
                is_counted &= !self.cut_if_full_says()?;
            } else if self.pending_bytes >= PENDING_BYTES_MAX {
                let shown = folder.shown(name.to_bytes());
                self.complaints.fail(&format!("{shown} is left out: there are too many directories"));
            } else {
                self.pending_bytes += name.to_bytes().len();
                folders.push(name.to_owned());
            }
        }
        Ok(folders)
    }

    /// Returns what an entry is: some file systems do not report it in the listing.
    fn kind(&self, folder: &SourceFolder, name: &CStr, kind: FileType) -> Option<FileType> {
        if kind != FileType::Unknown {
            return Some(kind);
        }
        match rustix::fs::statat(&folder.fd, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Some(FileType::from_raw_mode(stat.st_mode)),
            Err(Errno::NOENT) => None,
            Err(error) => {
                self.complaints.fail(&format!("cannot read {}: {error}", folder.shown(name.to_bytes())));
                None
            }
        }
    }

    fn cut_if_full(&mut self) -> Result<(), Unwanted> {
        self.cut_if_full_says().map(|_| ())
    }

    fn cut_if_full_says(&mut self) -> Result<bool, Unwanted> {
        let batch = &self.batch;
        let is_full = batch.items.len() + batch.made.len() >= ITEMS_MAX
            || batch.folders >= FOLDERS_MAX
            || batch.paths_bytes >= PATHS_BYTES_MAX;
        if is_full {
            self.cut()?;
        }
        Ok(is_full)
    }

    fn cut(&mut self) -> Result<(), Unwanted> {
        if self.batch.items.is_empty() && self.batch.made.is_empty() {
            return Ok(());
        }
        let next = Batch { number: self.batch.number + 1, ..Batch::default() };
        self.to.send(std::mem::replace(&mut self.batch, next)).map_err(|_| Unwanted)
    }
}

/// A directory of a source.
#[derive(Debug)]
pub struct SourceFolder {
    /// The descriptor, open for reading.
    pub fd: OwnedFd,
    /// The index of the source.
    pub root: u32,
    /// The path from the source.
    pub path: Vec<u8>,
    /// The source, as the user wrote it.
    pub base: Arc<[u8]>,
}

impl SourceFolder {
    /// Returns the path of a file in the directory, for messages.
    pub fn shown(&self, name: &[u8]) -> String {
        shown_in(&below(&self.base, &self.path), name)
    }
}

/// Something to send.
#[derive(Debug)]
pub enum WalkItem {
    /// Anything but a directory.
    Entry {
        /// The directory of the entry.
        folder: Arc<SourceFolder>,
        /// The name in the directory.
        name: CString,
        /// The type that the listing reports.
        kind: FileType,
    },
    /// A source that is not a directory.
    Root {
        /// The index of the source.
        root: u32,
        /// The path of the source.
        path: CString,
        /// Whether to send what a symbolic link leads to instead of the link.
        is_followed: bool,
    },
    /// The end of a directory.
    Leave {
        /// The index of the source.
        root: u32,
        /// The path from the source.
        path: Vec<u8>,
        /// The attributes of the directory.
        attributes: Attributes,
    },
}

/// A directory to make.
#[derive(Debug)]
pub struct MadeFolder {
    /// The index of the source.
    pub root: u32,
    /// The path from the source.
    pub path: Vec<u8>,
    /// The permissions of the directory.
    pub mode: u32,
    /// The owner of the directory.
    pub owner: u32,
}

/// The work of one reader at a time.
#[derive(Debug, Default)]
pub struct Batch {
    /// The number of the batch, from 0; frames are sent in this order.
    pub number: u64,
    /// The directories to make first.
    pub made: Vec<MadeFolder>,
    /// The items to send then.
    pub items: Vec<WalkItem>,
    /// The number of directories whose files are in the batch.
    pub folders: usize,
    /// Bytes of the paths of `made`.
    pub paths_bytes: usize,
}

/// Returns a path with one more name behind it.
pub fn below(path: &[u8], name: &[u8]) -> Vec<u8> {
    let slash: &[u8] = if path.is_empty() || path.ends_with(b"/") || name.is_empty() { b"" } else { b"/" };
    [path, slash, name].concat()
}
