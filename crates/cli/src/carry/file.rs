//! Where `caravan recv` puts what comes: standard output, or a file that is whole or not there.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, stdout};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use caravan_pipe::Error;
use rustix::fs::{FlockOperation, flock};

/// It is removed again unless it is [complete](Self::complete).
#[derive(Debug)]
pub enum Output {
    /// Standard output, or something that cannot be renamed: a device, a pipe.
    Direct(OwnedFd),
    /// A file that is to be.
    Part(Part),
}

/// FILE.part, until it is renamed.
#[derive(Debug)]
pub struct Part {
    file: File,
    path: PathBuf,
    to: PathBuf,
    is_complete: bool,
}

impl Output {
    /// Standard output without a path.
    pub fn open(path: Option<&Path>) -> Result<Self, Error> {
        let Some(path) = path else {
            let output = stdout().as_fd().try_clone_to_owned();
            return Ok(Self::Direct(
                output.map_err(|source| Error::System { call: "fcntl(F_DUPFD)", source })?,
            ));
        };
        // The file that a symbolic link names is what is replaced, and not the link.
        let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let failed = |source| Error::File { what: "write", path: path.clone(), source };
        match fs::metadata(&path) {
            Ok(facts) if facts.is_dir() => Err(failed(io::ErrorKind::IsADirectory.into())),
            Ok(facts) if facts.is_file() => Ok(Self::Part(Part::open(path, Some(facts.permissions()))?)),
            Ok(_) => Ok(Self::Direct(OpenOptions::new().write(true).open(&path).map_err(failed)?.into())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Self::Part(Part::open(path, None)?)),
            Err(error) => Err(failed(error)),
        }
    }

    /// For the mover.
    pub fn descriptor(&self) -> Result<OwnedFd, Error> {
        let fd = match self {
            Self::Direct(fd) => fd.as_fd(),
            Self::Part(part) => part.file.as_fd(),
        };
        fd.try_clone_to_owned().map_err(|source| Error::System { call: "fcntl(F_DUPFD)", source })
    }

    /// All of it has come.
    pub fn complete(self) -> Result<(), Error> {
        match self {
            Self::Direct(_) => Ok(()),
            Self::Part(mut part) => {
                let failed = |source| Error::File { what: "write", path: part.to.clone(), source };
                fs::rename(&part.path, &part.to).map_err(failed)?;
                part.is_complete = true;
                Ok(())
            }
        }
    }
}

impl Part {
    fn open(to: PathBuf, permissions: Option<fs::Permissions>) -> Result<Self, Error> {
        let mut name = OsString::from(&to);
        name.push(".part");
        let path = PathBuf::from(name);
        let failed = |source| Error::File { what: "write", path: path.clone(), source };
        let file = OpenOptions::new().write(true).create(true).truncate(false).open(&path).map_err(failed)?;
        // Nobody else's that is still under way is overwritten.
        flock(&file, FlockOperation::NonBlockingLockExclusive).map_err(|errno| {
            failed(match errno {
                rustix::io::Errno::WOULDBLOCK => io::Error::other("another process is receiving it"),
                other => other.into(),
            })
        })?;
        file.set_len(0).map_err(failed)?;
        if let Some(permissions) = permissions {
            file.set_permissions(permissions).map_err(failed)?;
        }
        Ok(Self { file, path, to, is_complete: false })
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        if !self.is_complete {
            let _ = fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;
    use crate::scratch::Scratch;

    fn write(output: &Output, bytes: &[u8]) {
        File::from(output.descriptor().expect("a descriptor")).write_all(bytes).expect("written");
    }

    #[test]
    fn a_file_is_whole_or_not_there() {
        let scratch = Scratch::create().expect("a folder");
        let (path, part) = (scratch.path().join("f"), scratch.path().join("f.part"));
        let output = Output::open(Some(&path)).expect("opened");
        write(&output, b"half");
        assert!(part.exists() && !path.exists());
        drop(output);
        assert!(!part.exists() && !path.exists());

        let output = Output::open(Some(&path)).expect("opened");
        write(&output, b"all of it");
        output.complete().expect("renamed");
        assert_eq!(fs::read(&path).expect("there"), b"all of it");
        assert!(!part.exists());
    }

    #[test]
    fn what_was_there_stays_until_the_new_one_is_whole_and_keeps_its_mode() {
        use std::os::unix::fs::{PermissionsExt, symlink};
        let scratch = Scratch::create().expect("a folder");
        let (path, link) = (scratch.path().join("f"), scratch.path().join("l"));
        fs::write(&path, b"old").expect("written");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).expect("set");
        symlink(&path, &link).expect("linked");
        let output = Output::open(Some(&link)).expect("opened");
        write(&output, b"new");
        assert_eq!(fs::read(&path).expect("there"), b"old");
        output.complete().expect("renamed");
        assert_eq!(fs::read(&path).expect("there"), b"new");
        assert_eq!(fs::metadata(&path).expect("there").permissions().mode() & 0o777, 0o640);
        assert!(fs::symlink_metadata(&link).expect("there").is_symlink());
    }

    #[test]
    fn two_do_not_receive_one_file() {
        let scratch = Scratch::create().expect("a folder");
        let path = scratch.path().join("f");
        let first = Output::open(Some(&path)).expect("opened");
        write(&first, b"first");
        let refusal = Output::open(Some(&path)).expect_err("locked").to_string();
        assert!(refusal.contains("another process is receiving it"), "{refusal}");
        first.complete().expect("renamed");
        assert_eq!(fs::read(&path).expect("there"), b"first");
    }

    #[test]
    fn devices_are_written_and_folders_refused() {
        let device = Output::open(Some(Path::new("/dev/null"))).expect("opened");
        assert!(matches!(device, Output::Direct(_)));
        device.complete().expect("nothing to rename");
        let scratch = Scratch::create().expect("a folder");
        assert!(Output::open(Some(scratch.path())).is_err());
        assert!(Output::open(Some(&scratch.path().join("none/f"))).is_err());
    }
}
