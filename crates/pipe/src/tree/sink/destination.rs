//! The destination as the user wrote it: what it is, and what each source becomes there.

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock};

use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;

use super::super::complaints::shown;
use super::super::options::{Name, SinkOptions};
use super::super::records::is_plain_name;
use super::target::{DIRECTORY, Target};
use crate::Error;

/// Each source gets a name in a directory.
pub fn into(options: &SinkOptions, path: &[u8]) -> Result<Vec<Target>, Error> {
    let flags = DIRECTORY - OFlags::NOFOLLOW;
    let parent = rustix::fs::openat(CWD, path, flags, Mode::empty());
    let parent = Arc::new(parent.map_err(|error| cannot("open", path, error))?);
    let target = |name: &Option<Name>| {
        let name = name.as_ref().map_or(&b""[..], |name| &name.0);
        if !name.is_empty() && !is_plain_name(name) {
            return Err(usage(name, "is no name for a file"));
        }
        let slash: &[u8] = if name.is_empty() || path.ends_with(b"/") { b"" } else { b"/" };
        Ok(Target {
            parent: Arc::clone(&parent),
            name: name.to_vec(),
            part: None,
            special: None,
            top: OnceLock::new(),
            shown: [path, slash, name].concat(),
        })
    };
    options.names.iter().map(target).collect()
}

/// A source becomes exactly that.
pub fn new(path: &[u8]) -> Result<Target, Error> {
    let (folder, name) = match path.iter().rposition(|byte| *byte == b'/') {
        Some(0) => (&b"/"[..], &path[1..]),
        Some(slash) => (&path[..slash], &path[slash + 1..]),
        None => (&b"."[..], path),
    };
    let flags = DIRECTORY - OFlags::NOFOLLOW;
    let parent = rustix::fs::openat(CWD, folder, flags, Mode::empty());
    let parent = Arc::new(parent.map_err(|error| cannot("open the directory", folder, error))?);
    let (name, shown) = (name.to_vec(), path.to_vec());
    Ok(Target { parent, name, part: None, special: None, top: OnceLock::new(), shown })
}

/// A device or a pipe takes the content.
pub fn special(path: &[u8]) -> Result<Target, Error> {
    let flags = OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOCTTY;
    let file = rustix::fs::openat(CWD, path, flags, Mode::empty());
    let file = file.map_err(|error| cannot("write to", path, error))?;
    let parent = rustix::fs::openat(CWD, "/", DIRECTORY, Mode::empty());
    let parent = Arc::new(parent.map_err(|error| cannot("open", b"/", error))?);
    let special = Some(Mutex::new(File::from(file)));
    Ok(Target { parent, name: Vec::new(), part: None, special, top: OnceLock::new(), shown: path.to_vec() })
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
pub fn cannot(what: &'static str, path: &[u8], error: Errno) -> Error {
    Error::File { what, path: Path::new(OsStr::from_bytes(path)).to_owned(), source: error.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slashes_at_the_end_mean_the_same_file() {
        assert_eq!((trim(b"new//"), trim(b"/"), trim(b"new")), (&b"new"[..], &b"/"[..], &b"new"[..]));
    }
}
