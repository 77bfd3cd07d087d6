//! Directories that are held open while they are written, because their names may change.
//!
//! Only this user can look into a new directory until it is complete, so no other user can change a name below it,
//! and a path from there is as good as a descriptor. Where others can change names, each directory is held open
//! from when it was made or found until it is left.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard};

use rustix::fs::{Mode, Stat};

use crate::lock;
use crate::tree::attributes::permissions;
use crate::tree::trust;
use crate::tree::trust::DIRECTORY;

/// The permissions of everybody for a directory that is no secret.
const EVERYBODY_READS: u32 = 0o005;
const OTHERS_WRITE: u32 = 0o022;

/// How a directory came to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Made by this copy, or by the one that it resumes: nobody else can look into it yet.
    New,
    /// Found.
    Old,
    /// Found where another user may have put it: it keeps its owner, and gets no further permissions.
    Kept,
}

/// A directory that is open.
#[derive(Clone, Debug)]
pub struct HeldFolder {
    /// Its descriptor.
    pub fd: Arc<OwnedFd>,
    /// How it came to be.
    pub standing: Standing,
}

impl HeldFolder {
    /// Returns a held directory.
    pub fn new(fd: OwnedFd, standing: Standing) -> Self {
        Self { fd: Arc::new(fd), standing }
    }
}

/// The held directories of one source, by path. `None` marks a directory that cannot be used, whatever has its
/// name.
#[derive(Debug, Default)]
pub struct HeldFolders(Mutex<HashMap<Vec<u8>, Option<HeldFolder>>>);

impl HeldFolders {
    /// Holds a directory, if it could be opened.
    pub fn hold(&self, path: &[u8], held: io::Result<HeldFolder>) -> io::Result<()> {
        let (held, result) = match held {
            Ok(held) => (Some(held), Ok(())),
            Err(error) => (None, Err(error)),
        };
        self.lock().insert(path.to_vec(), held);
        result
    }

    /// True if the source itself has become a directory.
    pub fn has_top(&self) -> bool {
        self.lock().get(&b""[..]).is_some_and(Option::is_some)
    }

    /// Returns the held directory nearest to `path` on the way to it, and the rest of the way.
    pub fn nearest<'p>(&self, path: &'p [u8]) -> Option<(HeldFolder, &'p [u8])> {
        let folders = self.lock();
        let mut above = path;
        loop {
            if let Some(held) = folders.get(above) {
                let rest = &path[above.len()..];
                return Some((held.clone()?, rest.strip_prefix(b"/").unwrap_or(rest)));
            }
            if above.is_empty() {
                return None;
            }
            above = split(above).0;
        }
    }

    /// Lets go of a complete directory, which others may now look into. The source itself stays open, for hard
    /// links to files in it.
    pub fn leave(&self, path: &[u8]) -> Option<Option<HeldFolder>> {
        let mut folders = self.lock();
        if !path.is_empty() {
            return folders.remove(path);
        }
        let top = folders.get_mut(path)?;
        let held = top.clone();
        if let Some(top) = top {
            top.standing = Standing::Old;
        }
        Some(held)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Vec<u8>, Option<HeldFolder>>> {
        lock(&self.0)
    }
}

/// The attributes that a directory gets at first.
#[derive(Clone, Copy, Debug)]
pub struct WantedFolder {
    /// The permissions of the directory.
    pub mode: u32,
    /// The owner of the directory, if the superuser writes.
    pub owner: u32,
}

/// Opens an existing directory.
pub fn open_old(parent: impl AsFd, name: &[u8]) -> io::Result<(OwnedFd, Stat)> {
    let fd = rustix::fs::openat(parent, name, DIRECTORY, Mode::empty())?;
    let stat = rustix::fs::fstat(&fd)?;
    let mode = permissions(stat.st_mode);
    if !mode.contains(Mode::RWXU) && trust::is_own(&stat) {
        rustix::fs::fchmod(&fd, mode | Mode::RWXU)?;
    }
    Ok((fd, stat))
}

/// Checks whether a directory may be used that another user may have put in the place of the intended one.
pub fn admit(around: &Stat, fd: &OwnedFd, stat: &Stat, wanted: WantedFolder) -> io::Result<Standing> {
    let user = rustix::process::geteuid();
    let owner = if user.is_root() { wanted.owner } else { user.as_raw() };
    if stat.st_uid != owner && !trust::is_own(stat) && wanted.mode & EVERYBODY_READS != EVERYBODY_READS {
        return Err(io::Error::other(
            "it is there and belongs to another user, who would see what is not for everybody. Remove it first, \
             or copy to another place",
        ));
    }
    if trust::is_own(stat) {
        // The old permissions may admit more users than the copy should.
        rustix::fs::fchmod(fd, permissions(stat.st_mode & wanted.mode) | Mode::RWXU)?;
        return Ok(Standing::Kept);
    }
    // The only user who can have put it there could change it anyway.
    let is_owners = stat.st_uid == around.st_uid && around.st_mode & OTHERS_WRITE == 0;
    Ok(if is_owners { Standing::Old } else { Standing::Kept })
}

/// Splits a path into directory and name.
pub fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|byte| *byte == b'/') {
        Some(slash) => (&path[..slash], &path[slash + 1..]),
        None => (b"", path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_fall_into_directory_and_name() {
        assert_eq!(split(b"a/b/c"), (&b"a/b"[..], &b"c"[..]));
        assert_eq!(split(b"c"), (&b""[..], &b"c"[..]));
    }

    #[test]
    fn the_nearest_directory_is_found_on_whole_names() {
        let folders = HeldFolders::default();
        let open = || rustix::fs::openat(rustix::fs::CWD, "/", DIRECTORY, Mode::empty()).expect("opened");
        assert!(folders.nearest(b"a").is_none());
        folders.hold(b"", Ok(HeldFolder::new(open(), Standing::New))).expect("held");
        folders.hold(b"a/b", Ok(HeldFolder::new(open(), Standing::Kept))).expect("held");
        folders.hold(b"lost", Err(io::ErrorKind::Other.into())).expect_err("nothing to hold");
        assert!(folders.nearest(b"lost/x").is_none());
        for (path, standing, rest) in [
            (&b""[..], Standing::New, &b""[..]),
            (b"a", Standing::New, b"a"),
            (b"a/bc", Standing::New, b"a/bc"),
            (b"a/b", Standing::Kept, b""),
            (b"a/b/c/d", Standing::Kept, b"c/d"),
        ] {
            let (held, left) = folders.nearest(path).expect("the source itself");
            assert_eq!((held.standing, left), (standing, rest), "{path:?}");
        }
        assert_eq!(folders.leave(b"a/b").flatten().map(|held| held.standing), Some(Standing::Kept));
        assert_eq!(folders.leave(b"").flatten().map(|held| held.standing), Some(Standing::New));
        assert_eq!(folders.nearest(b"a/b").map(|(held, _)| held.standing), Some(Standing::Old));
    }
}
