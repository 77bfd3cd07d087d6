//! What is read, and with `--write` written: an existing file or device, only for reading, or a scratch file without a name.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{OFlags, SeekFrom, fstatvfs, seek};
use rustix::io::Errno;

use super::super::raw::Area;
use crate::error::Error;
use crate::number::binary;
use crate::scratch::random_word;

/// A smaller file says more of caches than of a disk.
const FILE_BYTES_MIN: u64 = 1 << 20;
/// A scratch file is no smaller, and takes no more than this part of the free space.
const SCRATCH_BYTES_MIN: u64 = 16 << 20;
const SCRATCH_PART: u64 = 4;
/// The sectors that a disk may have.
const SECTORS: [u64; 4] = [512, 1024, 2048, 4096];

/// An open file, and how it may be read.
#[derive(Debug)]
pub struct DiskTarget {
    pub name: String,
    pub file: File,
    pub bytes: u64,
    /// The smallest request, and what all offsets are multiples of.
    pub sector: u64,
    pub is_scratch: bool,
    /// The device that the file is on.
    pub device: u64,
    pub notes: Vec<String>,
}

impl DiskTarget {
    /// Opens a file or a device for reading, or makes a scratch file in a directory if it may be written.
    pub fn open(path: &Path, may_write: bool, scratch_bytes: u64) -> Result<Self, Error> {
        let shown = path.display();
        let facts = fs::metadata(path).map_err(|why| match why.kind() {
            io::ErrorKind::NotFound => sentence(format!(
                "{shown}: there is no such file. This command takes files and devices to read, and with --write directories; the way to a host is measured by `caravan selftest HOST`"
            )),
            _ => sentence(format!("cannot look at {shown}: {why}")),
        })?;
        let kind = facts.file_type();
        match (kind.is_dir(), may_write) {
            (true, true) => return Self::scratch(path, scratch_bytes),
            (true, false) => {
                return Err(sentence(format!(
                    "{shown} is a directory: name a file in it, or the device below it, to be read; or add --write, and a scratch file in it is written, read and removed"
                )));
            }
            (false, true) => {
                return Err(sentence(format!(
                    "{shown} is no directory: --write never writes to what exists. Name a directory for the scratch file, or leave out --write"
                )));
            }
            (false, false) => {}
        }
        if !kind.is_file() && !kind.is_block_device() {
            return Err(sentence(format!("{shown} is neither a file nor a disk: name one of these")));
        }
        let open = |flags: OFlags| OpenOptions::new().read(true).custom_flags(flags.bits() as i32).open(path);
        let refused = |why: io::Error| match why.kind() {
            io::ErrorKind::PermissionDenied => sentence(format!(
                "cannot read {shown}: {why}. Run this as a user who may read it; disks are read by root and by the group disk"
            )),
            _ => sentence(format!("cannot open {shown}: {why}")),
        };
        let (file, is_direct) = match open(OFlags::DIRECT) {
            Ok(file) => (file, true),
            Err(why) if Errno::from_io_error(&why) == Some(Errno::INVAL) => {
                (open(OFlags::empty()).map_err(refused)?, false)
            }
            Err(why) => return Err(refused(why)),
        };
        let bytes = seek(&file, SeekFrom::End(0))
            .map_err(|why| sentence(format!("cannot measure {shown}: {why}")))?;
        if bytes < FILE_BYTES_MIN {
            return Err(sentence(format!(
                "{shown} has {}, which is too little to measure: name one of at least {}, or a directory with --write",
                binary(bytes),
                binary(FILE_BYTES_MIN)
            )));
        }
        let device = if kind.is_block_device() { facts.rdev() } else { facts.dev() };
        let mut target = Self::of(shown.to_string(), file, bytes, is_direct, device);
        if kind.is_file() && facts.blocks() * 512 < bytes / 10 * 9 {
            let stored = binary(facts.blocks() * 512);
            target.notes.push(format!(
                "{shown}: only {stored} of its {} are stored, because it has holes or is compressed; the rest costs no disk a read.",
                binary(bytes)
            ));
        }
        Ok(target)
    }

    /// Makes a file that has no name, so that it is gone when this process ends, however it ends.
    fn scratch(folder: &Path, wanted: u64) -> Result<Self, Error> {
        let shown = folder.display();
        let (file, is_direct) = nameless(folder).map_err(|why| {
            sentence(format!(
                "cannot make a scratch file in {shown}: {why}. Name a directory that you may write to"
            ))
        })?;
        let space = fstatvfs(&file)
            .map_err(|why| sentence(format!("cannot ask for the free space of {shown}: {why}")))?;
        let free = space.f_bavail.saturating_mul(space.f_frsize);
        let bytes = wanted.min(free / SCRATCH_PART) / SCRATCH_BYTES_MIN * SCRATCH_BYTES_MIN;
        if bytes == 0 {
            return Err(sentence(format!(
                "{shown} has {} free: the scratch file takes a quarter of that at most, and at least {}. Free some space, or name another directory",
                binary(free),
                binary(SCRATCH_BYTES_MIN)
            )));
        }
        let device = file.metadata().map(|facts| facts.dev()).map_err(Error::file("look at", folder))?;
        let mut target = Self::of(shown.to_string(), file, bytes, is_direct, device);
        target.is_scratch = true;
        Ok(target)
    }

    fn of(name: String, file: File, bytes: u64, is_direct: bool, device: u64) -> Self {
        let mut notes = Vec::new();
        if !is_direct {
            notes.push(format!(
                "{name}: its file system refuses O_DIRECT, so it was accessed through the page cache: the figures are those of memory and of system calls."
            ));
        } else if file_system_is_memory(&file) {
            notes.push(format!(
                "{name}: its file system lives in memory: the figures are not those of a disk."
            ));
        }
        Self { name, file, bytes, sector: SECTORS[0], is_scratch: false, device, notes }
    }

    /// Finds the smallest request that the file takes.
    pub fn find_sector(&mut self) -> Result<(), Error> {
        let mut area = Area::new(8192).map_err(|source| Error::System { call: "mmap", source })?;
        for sector in SECTORS {
            let buffer = &mut area.bytes_mut()[..sector as usize];
            match rustix::io::pread(&self.file, buffer, sector) {
                Ok(_) => {
                    self.sector = sector;
                    return Ok(());
                }
                Err(Errno::INVAL) => {}
                Err(why) => return Err(sentence(format!("cannot read {}: {why}", self.name))),
            }
        }
        Err(sentence(format!("{} takes no reads of 512 to 4096 bytes with O_DIRECT", self.name)))
    }
}

fn sentence(text: String) -> Error {
    Error::Sentence(text)
}

/// Opens a new file that no directory has; the second value says whether with O_DIRECT.
fn nameless(folder: &Path) -> io::Result<(File, bool)> {
    let refuses = |why: &io::Error, errors: &[Errno]| {
        Errno::from_io_error(why).is_some_and(|why| errors.contains(&why))
    };
    let open = |direct: OFlags| {
        let options = |flags: OFlags| {
            let mut options = OpenOptions::new();
            options.read(true).write(true).mode(0o600).custom_flags(flags.bits() as i32);
            options
        };
        match options(OFlags::TMPFILE | direct).open(folder) {
            // A file system without such files: one that loses its name at once.
            Err(why) if refuses(&why, &[Errno::OPNOTSUPP, Errno::ISDIR]) => {
                let word = random_word().map_err(io::Error::other)?;
                let path: PathBuf = folder.join(format!(".caravan-limits-{word}"));
                let file = options(direct).create_new(true).open(&path);
                match file {
                    Ok(file) => fs::remove_file(&path).map(|()| file),
                    Err(why) => {
                        // O_DIRECT may be refused after the file was made.
                        let _ = fs::remove_file(&path);
                        Err(why)
                    }
                }
            }
            other => other,
        }
    };
    match open(OFlags::DIRECT) {
        Ok(file) => Ok((file, true)),
        Err(why) if refuses(&why, &[Errno::INVAL]) => Ok((open(OFlags::empty())?, false)),
        Err(why) => Err(why),
    }
}

/// True of tmpfs and ramfs (statfs(2)).
fn file_system_is_memory(file: &File) -> bool {
    rustix::fs::fstatfs(file).is_ok_and(|facts| matches!(facts.f_type as u64, 0x0102_1994 | 0x8584_58f6))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    fn refusal(path: &Path, may_write: bool) -> String {
        DiskTarget::open(path, may_write, 1 << 30).expect_err("refused").to_string()
    }

    #[test]
    fn what_cannot_be_measured_is_named_with_the_remedy() {
        let folder = Scratch::create().expect("a folder");
        let small = folder.path().join("small");
        fs::write(&small, "text").expect("written");
        assert!(refusal(folder.path(), false).contains("add --write"));
        assert!(refusal(&small, true).contains("--write never writes to what exists"));
        assert!(refusal(&small, false).contains("has 4 B"));
        assert!(refusal(Path::new("/dev/null"), false).contains("neither a file nor a disk"));
        assert!(refusal(Path::new("/none/db"), false).contains("caravan selftest HOST"));
        assert!(refusal(Path::new("/proc"), true).contains("cannot make a scratch file in /proc"));
        assert_eq!(fs::read_to_string(&small).expect("still there"), "text");
    }

    #[test]
    fn a_scratch_file_has_no_name_and_a_limit() {
        let folder = Scratch::create().expect("a folder");
        let target = DiskTarget::open(folder.path(), true, 40 << 20).expect("a scratch file");
        assert_eq!(target.bytes, 32 << 20);
        assert!(target.is_scratch && fs::read_dir(folder.path()).expect("a folder").next().is_none());
    }
}
