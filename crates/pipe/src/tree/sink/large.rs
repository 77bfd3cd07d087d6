//! Writes large files, one after the other, each from its beginning to its end: a file that is cut off is a prefix,
//! which the next copy resumes.

use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;

use super::SinkShared;
use crate::tree::attributes::Attributes;
use crate::tree::format::{TreeFrameKind, TreeHeader, nonsense};
use crate::tree::records::{LargeBegin, RecordParser, SIZE_UNKNOWN, TreePath};
use crate::tree::trust::is_own_part;
use crate::{Error, lock};

/// Zeros for devices and pipes, which cannot have holes.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// The thread that writes large files.
#[derive(Debug)]
pub struct Large<'a> {
    shared: &'a SinkShared<'a>,
    file: Option<LargeFile<'a>>,
}

/// A file that is being received.
#[derive(Debug)]
struct LargeFile<'a> {
    root: u32,
    path: Vec<u8>,
    sent_name: Vec<u8>,
    /// `None` if the file cannot be written, which was reported.
    output: Option<LargeOutput<'a>>,
    size: u64,
    position: u64,
    kept: u64,
    attributes: Attributes,
}

#[derive(Debug)]
enum LargeOutput<'a> {
    Special(&'a Mutex<File>),
    Part { file: File, folder: Arc<OwnedFd>, name: Vec<u8>, part: Vec<u8>, is_apart: bool },
}

impl<'a> Large<'a> {
    /// Returns a thread's state without a file.
    pub fn new(shared: &'a SinkShared<'a>) -> Self {
        Self { shared, file: None }
    }

    /// Takes the next frame of a large file. Returns true if a file has ended.
    pub fn take(&mut self, header: &TreeHeader, payload: &[u8]) -> Result<bool, Error> {
        header.check(payload)?;
        match (header.kind, &mut self.file) {
            (TreeFrameKind::Begin, None) => {
                let mut parser = RecordParser(payload);
                let begin = parser.begin()?;
                self.file = Some(self.begin(&begin)?);
                Ok(false)
            }
            (TreeFrameKind::Data, Some(file)) => {
                let mut parser = RecordParser(payload);
                let offset = parser.u64()?;
                file.data(self.shared, offset, parser.0)?;
                Ok(false)
            }
            (TreeFrameKind::End, Some(file)) => {
                let mut parser = RecordParser(payload);
                let (is_whole, size) = (parser.byte()? == 1, parser.u64()?);
                file.end(self.shared, is_whole, size)?;
                self.file = None;
                Ok(true)
            }
            _ => Err(nonsense("piece of a file")),
        }
    }

    fn begin(&self, begin: &LargeBegin<'_>) -> Result<LargeFile<'a>, Error> {
        let TreePath { root, path } = begin.folder;
        let target = self.shared.targets.target(root)?;
        let opened = if !begin.name.is_empty() {
            let folder = self.shared.targets.folder(begin.folder);
            folder.and_then(|folder| self.open(folder, begin.name.to_vec(), begin))
        } else if !path.is_empty() {
            return Err(nonsense("name"));
        } else if let Some(special) = &target.special {
            Ok(LargeOutput::Special(special))
        } else {
            let own = target.file().map(|(folder, name)| (Arc::clone(folder), name.to_vec()));
            own.and_then(|(folder, name)| self.open(folder, name, begin))
        };
        let mut file = LargeFile {
            root,
            path: path.to_vec(),
            sent_name: begin.name.to_vec(),
            output: None,
            size: begin.size,
            position: begin.kept,
            kept: begin.kept,
            attributes: begin.attributes,
        };
        match opened {
            Ok(output) => file.output = Some(output),
            Err(error) => file.failed(self.shared, error.into()),
        }
        Ok(file)
    }

    /// Opens the output of a file.
    fn open(
        &self,
        folder: Arc<OwnedFd>,
        name: Vec<u8>,
        begin: &LargeBegin<'_>,
    ) -> Result<LargeOutput<'a>, Errno> {
        let (file, part, is_apart) = self.part(&folder, &name, begin)?;
        Ok(LargeOutput::Part { file, folder, name, part, is_apart })
    }

    /// Opens the part of a file. Returns its name, and whether that is one of this copy's own.
    fn part(
        &self,
        folder: &OwnedFd,
        name: &[u8],
        begin: &LargeBegin<'_>,
    ) -> Result<(File, Vec<u8>, bool), Errno> {
        let part = crate::tree::part_name(name);
        let begun = self.shared.take_part(begin.folder, begin.name);
        if begin.kept > 0 {
            let fd = begun.ok_or(Errno::STALE)?;
            if u64::try_from(rustix::fs::fstat(&fd)?.st_size).unwrap_or(0) < begin.kept {
                return Err(Errno::STALE);
            }
            rustix::fs::ftruncate(&fd, begin.kept)?;
            return Ok((fd.into(), part, false));
        }
        if !begin.is_apart {
            match create(folder, &part) {
                Err(Errno::EXIST) => {}
                created => return Ok((created?, part, false)),
            }
            // The existing file is not a beginning of this file, and nothing is written into it; another user's
            // file stays where it is.
            if is_own_part(&rustix::fs::statat(folder, part.as_slice(), AtFlags::SYMLINK_NOFOLLOW)?) {
                rustix::fs::unlinkat(folder, part.as_slice(), AtFlags::empty())?;
                match create(folder, &part) {
                    Err(Errno::EXIST) => {}
                    created => return Ok((created?, part, false)),
                }
            }
        }
        let part = self.shared.temporary("large");
        Ok((create(folder, &part)?, part, true))
    }
}

/// Creates a file that nobody else can read until it is complete.
fn create(folder: &OwnedFd, name: &[u8]) -> Result<File, Errno> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(folder, name, flags, Mode::RUSR | Mode::WUSR).map(File::from)
}

impl LargeFile<'_> {
    fn data(&mut self, shared: &SinkShared<'_>, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        let end = offset.checked_add(bytes.len() as u64);
        let Some(end) = end.filter(|end| offset >= self.position && *end <= self.size) else {
            return Err(nonsense("piece of a file"));
        };
        let written = match &mut self.output {
            None => Ok(()),
            Some(LargeOutput::Special(file)) => {
                let mut file = lock(file);
                fill(&mut file, offset - self.position).and_then(|()| file.write_all(bytes))
            }
            Some(LargeOutput::Part { file, .. }) => file.write_all_at(bytes, offset),
        };
        self.position = end;
        if let Err(error) = written {
            self.failed(shared, error);
        }
        Ok(())
    }

    fn end(&mut self, shared: &SinkShared<'_>, is_whole: bool, size: u64) -> Result<(), Error> {
        if !is_whole {
            self.remove();
            return Ok(());
        }
        if size < self.position || self.size != SIZE_UNKNOWN && size != self.size {
            return Err(nonsense("end of a file"));
        }
        let ended = match &mut self.output {
            None => return Ok(()),
            Some(LargeOutput::Special(file)) => {
                let mut file = lock(file);
                fill(&mut file, size - self.position)
            }
            Some(LargeOutput::Part { file, folder, name, part, .. }) => {
                // There is nothing to write behind a hole at the end.
                let grown = if size > self.position { file.set_len(size) } else { Ok(()) };
                grown
                    .and_then(|()| Ok(shared.giver.give(&*file, &self.attributes)?))
                    .and_then(|()| shared.closed(file.try_clone()?.into()))
                    .and_then(|()| Ok(rustix::fs::renameat(&*folder, &part[..], &*folder, &name[..])?))
            }
        };
        match ended {
            Ok(()) => {
                self.output = None;
                // The figures are for people: they need no order.
                shared.files.fetch_add(1, Ordering::Relaxed);
                shared.bytes.fetch_add(size - self.kept, Ordering::Relaxed);
            }
            Err(error) => self.failed(shared, error),
        }
        Ok(())
    }

    /// Reports why this file will be missing. Removes what was written of it, which makes room for others.
    fn failed(&mut self, shared: &SinkShared<'_>, error: std::io::Error) {
        let spot = TreePath { root: self.root, path: &self.path };
        let shown = shared.targets.shown(spot, &self.sent_name);
        shared.fail(spot, &self.sent_name, &error, &format!("cannot write {shown}: {error}"));
        self.remove();
    }

    fn remove(&mut self) {
        if let Some(LargeOutput::Part { folder, part, .. }) = self.output.take() {
            // The file has failed already, and that was reported.
            let _ = rustix::fs::unlinkat(&folder, part.as_slice(), AtFlags::empty());
        }
    }
}

impl Drop for LargeFile<'_> {
    fn drop(&mut self) {
        // A part under its usual name is for the next copy, which would not find one under another name.
        if matches!(self.output, Some(LargeOutput::Part { is_apart: true, .. })) {
            self.remove();
        }
    }
}

fn fill(file: &mut File, mut zeros: u64) -> Result<(), std::io::Error> {
    while zeros > 0 {
        let count = zeros.min(ZEROS.len() as u64);
        file.write_all(ZEROS.get(..count as usize).unwrap_or(&ZEROS))?;
        zeros -= count;
    }
    Ok(())
}
