//! The destination as the user wrote it: what it is, and what each source becomes there.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Arc, Mutex};

use rustix::fs::{CWD, FileType, Mode, OFlags, Stat};

use super::super::complaints::shown;
use super::super::options::{Name, SinkOptions};
use super::super::records::is_plain_name;
use super::super::trust::DIRECTORY;
use super::held::HeldFolders;
use super::target::CopyTarget;
use crate::Error;

/// Each source gets a name in a directory.
pub fn into(options: &SinkOptions, path: &[u8], is_link: bool) -> Result<Vec<CopyTarget>, Error> {
    let flags = if is_link { DIRECTORY - OFlags::NOFOLLOW } else { DIRECTORY };
    let parent = rustix::fs::openat(CWD, trim(path), flags, Mode::empty());
    let parent = Arc::new(parent.map_err(|error| cannot("open", path, error.into()))?);
    let target = |name: &Option<Name>| {
        let name = name.as_ref().map_or(&b""[..], |name| &name.0);
        if !name.is_empty() && !is_plain_name(name) {
            return Err(usage(name, "is no name for a file"));
        }
        let slash: &[u8] = if name.is_empty() || path.ends_with(b"/") { b"" } else { b"/" };
        Ok(CopyTarget {
            parent: Arc::clone(&parent),
            name: name.to_vec(),
            part: None,
            special: None,
            held: HeldFolders::default(),
            shown: [path, slash, name].concat(),
        })
    };
    options.names.iter().map(target).collect()
}

/// A source becomes exactly that.
pub fn new(path: &[u8]) -> Result<CopyTarget, Error> {
    let (folder, name) = match path.iter().rposition(|byte| *byte == b'/') {
        Some(0) => (&b"/"[..], &path[1..]),
        Some(slash) => (&path[..slash], &path[slash + 1..]),
        None => (&b"."[..], path),
    };
    let flags = DIRECTORY - OFlags::NOFOLLOW;
    let parent = rustix::fs::openat(CWD, folder, flags, Mode::empty());
    let parent = Arc::new(parent.map_err(|error| cannot("open the directory", folder, error.into()))?);
    let (name, shown) = (name.to_vec(), path.to_vec());
    Ok(CopyTarget { parent, name, part: None, special: None, held: HeldFolders::default(), shown })
}

/// A device or a pipe takes the content.
pub fn special(path: &[u8], looked_at: &Stat) -> Result<CopyTarget, Error> {
    let flags = OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOCTTY;
    let file = rustix::fs::openat(CWD, path, flags, Mode::empty());
    let file = file.map_err(|error| cannot("write to", path, error.into()))?;
    let opened = rustix::fs::fstat(&file).map_err(|error| cannot("look at", path, error.into()))?;
    let is_same = (opened.st_dev, opened.st_ino) == (looked_at.st_dev, looked_at.st_ino);
    if !is_same || FileType::from_raw_mode(opened.st_mode) == FileType::RegularFile {
        return Err(usage(path, "has become something else meanwhile"));
    }
    let parent = rustix::fs::openat(CWD, "/", DIRECTORY, Mode::empty());
    let parent = Arc::new(parent.map_err(|error| cannot("open", b"/", error.into()))?);
    let special = Some(Mutex::new(File::from(file)));
    Ok(CopyTarget {
        parent,
        name: Vec::new(),
        part: None,
        special,
        held: HeldFolders::default(),
        shown: path.to_vec(),
    })
}

/// Without slashes at its end.
pub fn trim(path: &[u8]) -> &[u8] {
    let end = path.iter().rposition(|byte| *byte != b'/').map_or(1, |last| last + 1);
    path.get(..end).unwrap_or(path)
}

/// It cannot be what the user wants.
pub fn usage(path: &[u8], what: &str) -> Error {
    Error::Usage(format!("{} {what}", shown(path)))
}

/// The system does not do it.
pub fn cannot(what: &'static str, path: &[u8], source: io::Error) -> Error {
    Error::File { what, path: Path::new(OsStr::from_bytes(path)).to_owned(), source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slashes_at_the_end_mean_the_same_file() {
        assert_eq!((trim(b"new//"), trim(b"/"), trim(b"new")), (&b"new"[..], &b"/"[..], &b"new"[..]));
    }
}
