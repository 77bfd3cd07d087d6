//! Writes the small files, links and FIFOs of a batch, and runs late steps.
//!
//! A file is written under a name of its worker's own, and renamed: a reader sees all of it or nothing. That is
//! five system calls a file. Hard links, and the permissions and times of directories, wait until all earlier
//! frames are written.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::io::Write;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use rustix::io::Errno;

use super::SinkShared;
use super::held::{Standing, split};
use super::target::CopyTarget;
use crate::tree::attributes::Attributes;
use crate::tree::format::nonsense;
use crate::tree::records::{RecordParser, TreePath, TreeRecord};
use crate::tree::trust::{is_own, make_own};
use crate::{Error, lock};

/// The name of a FIFO before it gets its own.
const FIFO: &str = "fifo";

/// A thread that writes small files.
#[derive(Debug)]
pub struct SmallFileWorker<'a> {
    shared: &'a SinkShared<'a>,
    /// The name of files that are not complete.
    temporary: Vec<u8>,
    /// The directory used last.
    folder: Option<(u32, Vec<u8>, Arc<OwnedFd>)>,
}

/// The place of the next records.
enum RecordLocation<'a> {
    Nowhere,
    /// An open directory.
    Folder(TreePath<'a>, Arc<OwnedFd>),
    /// A directory that cannot be opened, which was reported.
    Lost,
    /// A source itself.
    Root(u32, &'a CopyTarget),
}

impl<'a> SmallFileWorker<'a> {
    /// Returns the worker of that number.
    pub fn new(shared: &'a SinkShared<'a>, number: usize) -> Self {
        Self { shared, temporary: shared.temporary(&number.to_string()), folder: None }
    }

    /// Writes the records. Returns the late steps.
    pub fn write(&mut self, records: &[u8]) -> Result<Vec<LateStep>, Error> {
        let mut parser = RecordParser(records);
        let mut location = RecordLocation::Nowhere;
        let mut deeds = Vec::new();
        while !parser.is_empty() {
            match parser.record()? {
                TreeRecord::Folder(spot) => location = self.open(spot),
                TreeRecord::Root(root) => {
                    location = RecordLocation::Root(root, self.shared.targets.target(root)?)
                }
                TreeRecord::Leave { spot, attributes } => {
                    deeds.push(LateStep::Leave { root: spot.root, path: spot.path.to_vec(), attributes });
                }
                TreeRecord::Link { name, target } => {
                    let (root, folder) = match &location {
                        RecordLocation::Folder(spot, _) => (spot.root, Some(spot.path.to_vec())),
                        RecordLocation::Root(root, _) => (*root, None),
                        RecordLocation::Lost => {
                            self.shared.complaints.fail_silently();
                            continue;
                        }
                        RecordLocation::Nowhere => return Err(nonsense("link")),
                    };
                    if folder.is_some() == name.is_empty() {
                        return Err(nonsense("name"));
                    }
                    let (name, target_root) = (name.to_vec(), target.root);
                    let target = target.path.to_vec();
                    deeds.push(LateStep::Link { root, folder, name, target_root, target });
                }
                TreeRecord::File { name, .. }
                | TreeRecord::Symlink { name, .. }
                | TreeRecord::Fifo { name, .. }
                    if name.is_empty() != matches!(location, RecordLocation::Root(..)) =>
                {
                    return Err(nonsense("name"));
                }
                record => self.one(&location, &record)?,
            }
        }
        Ok(deeds)
    }

    fn open<'s>(&mut self, spot: TreePath<'s>) -> RecordLocation<'s> {
        if let Some((root, path, folder)) = &self.folder {
            if *root == spot.root && path == spot.path {
                return RecordLocation::Folder(spot, Arc::clone(folder));
            }
        }
        match self.shared.targets.folder(spot) {
            Ok(folder) => {
                self.folder = Some((spot.root, spot.path.to_vec(), Arc::clone(&folder)));
                RecordLocation::Folder(spot, folder)
            }
            Err(error) => {
                let shown = self.shared.targets.shown(spot, b"");
                self.shared.complaints.warn(&format!("cannot write into the directory {shown}: {error}"));
                RecordLocation::Lost
            }
        }
    }

    /// Writes a file, a link or a FIFO.
    fn one(&self, location: &RecordLocation<'_>, record: &TreeRecord<'_>) -> Result<(), Error> {
        let (TreeRecord::File { name, .. }
        | TreeRecord::Symlink { name, .. }
        | TreeRecord::Fifo { name, .. }) = record
        else {
            return Err(nonsense("record"));
        };
        let (folder, own_name, spot) = match location {
            RecordLocation::Folder(spot, folder) => (folder, *name, *spot),
            RecordLocation::Root(root, target) => {
                let spot = TreePath { root: *root, path: b"" };
                if let (Some(special), TreeRecord::File { content, .. }) = (&target.special, record) {
                    let mut special = lock(special);
                    let written = special.write_all(content);
                    self.counted(spot, name, content.len(), written.map(|()| true));
                    return Ok(());
                }
                match target.file() {
                    Ok((folder, name)) => (folder, name, spot),
                    Err(error) => {
                        self.counted(spot, name, 0, Err(error.into()));
                        return Ok(());
                    }
                }
            }
            RecordLocation::Lost => {
                self.shared.complaints.fail_silently();
                return Ok(());
            }
            RecordLocation::Nowhere => return Err(nonsense("file")),
        };
        let (bytes, written) = match record {
            TreeRecord::File { attributes, content, .. } => {
                (content.len(), self.file(folder, own_name, attributes, content).map(|()| true))
            }
            TreeRecord::Symlink { attributes, target, .. } => {
                (0, self.symlink(folder, own_name, attributes, target).map_err(Into::into))
            }
            TreeRecord::Fifo { attributes, .. } => {
                (0, self.fifo(folder, own_name, attributes).map(|()| true).map_err(Into::into))
            }
            _ => (0, Ok(true)),
        };
        self.counted(spot, name, bytes, written);
        Ok(())
    }

    fn file(&self, folder: &OwnedFd, name: &[u8], attributes: &Attributes, content: &[u8]) -> io::Result<()> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = self.shared.giver.initial_mode(attributes);
        let temporary = self.temporary.as_slice();
        let mut file = File::from(rustix::fs::openat(folder, temporary, flags, mode)?);
        let written = file
            .write_all(content)
            .and_then(|()| Ok(self.shared.giver.finish(&file, attributes)?))
            .and_then(|()| self.shared.closed(file.into()))
            .and_then(|()| Ok(rustix::fs::renameat(folder, temporary, folder, name)?));
        self.removed_if_failed(folder, written)
    }

    /// Makes a symbolic link. Returns false if the same link was there already.
    fn symlink(
        &self,
        folder: &OwnedFd,
        name: &[u8],
        attributes: &Attributes,
        target: &[u8],
    ) -> Result<bool, Errno> {
        match rustix::fs::symlinkat(target, folder, name) {
            Err(Errno::EXIST) if self.shared.giver.is_link_given(folder, name, target, attributes) => {
                return Ok(false);
            }
            Err(Errno::EXIST) => {}
            made => {
                return made
                    .and_then(|()| self.shared.giver.give_link(folder, name, target, attributes))
                    .map(|()| true);
            }
        }
        let temporary = self.temporary.as_slice();
        rustix::fs::symlinkat(target, folder, temporary)?;
        let given = self.shared.giver.give_link(folder, temporary, target, attributes);
        let made = given.and_then(|()| rustix::fs::renameat(folder, temporary, folder, name));
        self.removed_if_failed(folder, made).map(|()| true)
    }

    fn fifo(&self, folder: &OwnedFd, name: &[u8], attributes: &Attributes) -> Result<(), Errno> {
        // Only a name leads to a FIFO, so it is in a directory of this worker until it is complete.
        let temporary = self.temporary.as_slice();
        let own = make_own(folder, temporary)?;
        let made = rustix::fs::mkfifoat(&own, FIFO, Mode::RUSR | Mode::WUSR)
            .and_then(|()| self.shared.giver.give_fifo(&own, FIFO, attributes))
            .and_then(|()| rustix::fs::renameat(&own, FIFO, folder, name));
        if made.is_err() {
            // The error to report is the earlier one.
            let _ = rustix::fs::unlinkat(&own, FIFO, AtFlags::empty());
        }
        let _ = rustix::fs::unlinkat(folder, temporary, AtFlags::REMOVEDIR);
        made
    }

    fn removed_if_failed<E>(&self, folder: &OwnedFd, made: Result<(), E>) -> Result<(), E> {
        if made.is_err() {
            // The error to report is the earlier one.
            let _ = rustix::fs::unlinkat(folder, self.temporary.as_slice(), AtFlags::empty());
        }
        made
    }

    /// Counts a written file; a file that was there already does not count.
    fn counted(&self, spot: TreePath<'_>, name: &[u8], bytes: usize, written: Result<bool, std::io::Error>) {
        match written {
            Ok(false) => {}
            Ok(true) => {
                // The figures are for people: they need no order.
                self.shared.files.fetch_add(1, Ordering::Relaxed);
                self.shared.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
            }
            Err(error) => {
                let shown = self.shared.targets.shown(spot, name);
                self.shared.fail(spot, name, &error, &format!("cannot write {shown}: {error}"));
            }
        }
    }
}

/// A step that waits for all earlier frames.
#[derive(Debug)]
pub enum LateStep {
    /// A hard link.
    Link {
        /// The index of the source.
        root: u32,
        /// The directory; `None` for a source itself.
        folder: Option<Vec<u8>>,
        /// The name in the directory.
        name: Vec<u8>,
        /// The index of the source that has the file.
        target_root: u32,
        /// The path of the file.
        target: Vec<u8>,
    },
    /// The end of a directory.
    Leave {
        /// The index of the source.
        root: u32,
        /// The path of the directory.
        path: Vec<u8>,
        /// The attributes of the directory.
        attributes: Attributes,
    },
}

/// Counts complete frames and keeps their late steps. It never holds more frames than are under way.
#[derive(Debug, Default)]
pub struct Late(Mutex<LateState>);

#[derive(Debug, Default)]
struct LateState {
    /// All frames before this one are complete, and their late steps done.
    next: u64,
    done: BTreeMap<u64, Vec<LateStep>>,
}

impl Late {
    /// Marks frame `number` as complete. Runs all late steps that are due.
    pub fn complete(&self, number: u64, deeds: Vec<LateStep>, shared: &SinkShared<'_>) {
        let mut state = lock(&self.0);
        state.done.insert(number, deeds);
        loop {
            let next = state.next;
            let Some(deeds) = state.done.remove(&next) else { return };
            // The steps run under the lock, because their order matters.
            deeds.iter().for_each(|deed| deed.run(shared));
            state.next += 1;
        }
    }
}

impl LateStep {
    fn run(&self, shared: &SinkShared<'_>) {
        match self {
            Self::Leave { root, path, attributes } => {
                let spot = TreePath { root: *root, path };
                if let Err(error) = leave(shared, spot, attributes) {
                    let shown = shared.targets.shown(spot, b"");
                    let sentence =
                        format!("cannot set permissions and times of the directory {shown}: {error}");
                    shared.complaints.fail(&sentence);
                }
            }
            Self::Link { root, folder, name, target_root, target } => {
                let target = TreePath { root: *target_root, path: target };
                let spot = TreePath { root: *root, path: folder.as_deref().unwrap_or(b"") };
                if let Err(error) = link(shared, spot, folder.is_some(), name, target) {
                    let (shown, target) =
                        (shared.targets.shown(spot, name), shared.targets.shown(target, b""));
                    shared.complaints.fail(&format!("cannot make {shown} a link to {target}: {error}"));
                }
            }
        }
    }
}

/// Gives a directory its attributes. A directory that another user may have put there gets neither an owner nor
/// further permissions.
fn leave(shared: &SinkShared<'_>, spot: TreePath<'_>, attributes: &Attributes) -> io::Result<()> {
    let held = shared.targets.leave(spot)?;
    if held.standing != Standing::Kept {
        shared.giver.give(&held.fd, attributes)?;
        if shared.is_synced {
            rustix::fs::fsync(&held.fd)?;
        }
        return Ok(());
    }
    if shared.giver.is_given(&rustix::fs::fstat(&held.fd)?, attributes) {
        return Ok(shared.giver.give_times(&held.fd, attributes)?);
    }
    Err(io::Error::other(
        "it was there already, where another user can change names, and keeps its own. Set them with chown and \
         chmod, or remove it before the copy",
    ))
}

fn link(
    shared: &SinkShared<'_>,
    spot: TreePath<'_>,
    is_in_folder: bool,
    name: &[u8],
    target: TreePath<'_>,
) -> Result<(), Errno> {
    let (from, from_name) = shared.targets.file(target)?;
    let (folder, name) = match is_in_folder {
        true => (shared.targets.folder(spot)?, name.to_vec()),
        false => shared.targets.file(spot)?,
    };
    // Where another user can change names, the file that has the name now is held open while it is checked.
    let held =
        if shared.targets.is_private(above(target)) { None } else { Some(hold(&from, &from_name, &folder)?) };
    let add = |name: &[u8]| match &held {
        None => rustix::fs::linkat(&from, &from_name, &folder, name, AtFlags::empty()),
        Some(fd) => {
            let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
            rustix::fs::linkat(CWD, path, &folder, name, AtFlags::SYMLINK_FOLLOW)
        }
    };
    match add(&name) {
        Err(Errno::EXIST) => {}
        linked => return linked,
    }
    let temporary = shared.temporary("link");
    add(&temporary)?;
    let renamed = rustix::fs::renameat(&folder, &temporary, &folder, &name);
    // rename(2) leaves the temporary name if both names are already the same file.
    match rustix::fs::unlinkat(&folder, &temporary, AtFlags::empty()) {
        Err(Errno::NOENT) | Ok(()) => renamed,
        Err(error) => renamed.and(Err(error)),
    }
}

/// Returns the directory of a file.
fn above(file: TreePath<'_>) -> TreePath<'_> {
    TreePath { root: file.root, path: split(file.path).0 }
}

/// Opens a file without reading it. It has to belong to this user, or to the owner of the directory that gets the
/// new link: no other user's file gets there.
fn hold(from: &OwnedFd, name: &[u8], to: &OwnedFd) -> Result<OwnedFd, Errno> {
    let fd =
        rustix::fs::openat(from, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    let stat = rustix::fs::fstat(&fd)?;
    if is_own(&stat) || stat.st_uid == rustix::fs::fstat(to)?.st_uid { Ok(fd) } else { Err(Errno::STALE) }
}
