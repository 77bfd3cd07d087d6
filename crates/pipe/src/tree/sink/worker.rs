//! Writes the small files, links and FIFOs of a batch.
//!
//! A file is written under a name of its worker's own, and renamed: whoever looks sees all of it or
//! nothing. That is five system calls a file.

use std::io::Write;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;

use super::super::attributes::Attributes;
use super::super::format::nonsense;
use super::super::parser::RecordParser;
use super::super::records::{TreePath, TreeRecord};
use super::super::trust::make_own;
use super::late::LateStep;
use super::{SinkShared, target::CopyTarget};
use crate::Error;

/// What a FIFO is called before it has its name.
const FIFO: &str = "fifo";

/// A thread that writes small files.
#[derive(Debug)]
pub struct SmallFileWorker<'a> {
    shared: &'a SinkShared<'a>,
    /// The name of what is not complete.
    temporary: Vec<u8>,
    /// The directory used last.
    folder: Option<(u32, Vec<u8>, Arc<OwnedFd>)>,
}

/// Where the next records belong.
enum RecordLocation<'a> {
    Nowhere,
    /// In a directory that is open.
    Folder(TreePath<'a>, Arc<OwnedFd>),
    /// In one that cannot be, which was said.
    Lost,
    /// It is a source itself.
    Root(u32, &'a CopyTarget),
}

impl<'a> SmallFileWorker<'a> {
    /// The one of that number.
    pub fn new(shared: &'a SinkShared<'a>, number: usize) -> Self {
        Self { shared, temporary: shared.temporary(&number.to_string()), folder: None }
    }

    /// Writes what the records say; returns what has to wait.
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
                    let mut special = special.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
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
                (0, self.symlink(folder, own_name, attributes, target))
            }
            TreeRecord::Fifo { attributes, .. } => {
                (0, self.fifo(folder, own_name, attributes).map(|()| true))
            }
            _ => (0, Ok(true)),
        };
        self.counted(spot, name, bytes, written.map_err(Into::into));
        Ok(())
    }

    fn file(
        &self,
        folder: &OwnedFd,
        name: &[u8],
        attributes: &Attributes,
        content: &[u8],
    ) -> Result<(), Errno> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = self.shared.giver.initial_mode(attributes);
        let fd = rustix::fs::openat(folder, self.temporary.as_slice(), flags, mode)?;
        let written = write_all(&fd, content)
            .and_then(|()| self.shared.giver.finish(&fd, attributes))
            .and_then(|()| self.shared.closed(fd))
            .and_then(|()| rustix::fs::renameat(folder, self.temporary.as_slice(), folder, name));
        self.removed_if_failed(folder, written)
    }

    /// Whether it was not there already.
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
        // Nothing holds a FIFO but its name, so that is in a directory of our own until the FIFO is complete.
        let temporary = self.temporary.as_slice();
        let own = make_own(folder, temporary)?;
        let made = rustix::fs::mkfifoat(&own, FIFO, Mode::RUSR | Mode::WUSR)
            .and_then(|()| self.shared.giver.give_fifo(&own, FIFO, attributes))
            .and_then(|()| rustix::fs::renameat(&own, FIFO, folder, name));
        if made.is_err() {
            // What matters is why it failed.
            let _ = rustix::fs::unlinkat(&own, FIFO, AtFlags::empty());
        }
        let _ = rustix::fs::unlinkat(folder, temporary, AtFlags::REMOVEDIR);
        made
    }

    fn removed_if_failed(&self, folder: &OwnedFd, made: Result<(), Errno>) -> Result<(), Errno> {
        if made.is_err() {
            // What matters is why it failed.
            let _ = rustix::fs::unlinkat(folder, self.temporary.as_slice(), AtFlags::empty());
        }
        made
    }

    /// Counts what was written; what was there already is not.
    fn counted(&self, spot: TreePath<'_>, name: &[u8], bytes: usize, written: Result<bool, std::io::Error>) {
        match written {
            Ok(false) => {}
            Ok(true) => {
                // Figures for people: nothing hangs on their order.
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

/// Writes all of it.
pub fn write_all(fd: &OwnedFd, mut bytes: &[u8]) -> Result<(), Errno> {
    while !bytes.is_empty() {
        match rustix::io::write(fd, bytes) {
            Ok(0) => return Err(Errno::IO),
            Ok(count) => bytes = bytes.get(count..).unwrap_or_default(),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
