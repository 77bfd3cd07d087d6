//! Checks who can change the names in a directory, and which of its files a copy may resume.
//!
//! Another user may own the destination directory, or share it, and can then rename what is in it at any moment. So
//! files are created under names that nobody can guess, and are changed through their descriptors; an existing file
//! is resumed only if it must be this user's own.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

/// The flags to open a directory.
pub const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

const GROUP_WRITES: u32 = 0o020;
const OTHERS_WRITE: u32 = 0o002;
const STICKY: u32 = 0o1000;
/// All permissions of anybody but the owner.
const NOT_OWNER: u32 = 0o077;

/// True if nobody but this user and the superuser can change the names in a directory.
pub fn is_private(folder: &Stat) -> bool {
    // By convention, a group with the number of its user has no other member.
    let is_own_group = folder.st_gid == folder.st_uid;
    let shared = if is_own_group { OTHERS_WRITE } else { GROUP_WRITES | OTHERS_WRITE };
    is_trusted(folder) && folder.st_mode & shared == 0
}

/// True if only this user can have put the entry into the directory.
pub fn keeps(folder: &Stat, entry: &Stat) -> bool {
    is_private(folder) || keeps_own(folder) && is_own(entry)
}

/// True if entries that this user puts into the directory stay there.
pub fn keeps_own(folder: &Stat) -> bool {
    is_private(folder) || is_trusted(folder) && folder.st_mode & STICKY != 0
}

/// True if the file belongs to this user.
pub fn is_own(stat: &Stat) -> bool {
    stat.st_uid == rustix::process::geteuid().as_raw()
}

/// True if the file belongs to this user or to the superuser.
pub fn is_trusted(stat: &Stat) -> bool {
    is_own(stat) || stat.st_uid == 0
}

/// True if the file is a part of an earlier copy: only this user can open it, and it has no other name.
pub fn is_own_part(stat: &Stat) -> bool {
    let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    is_file && is_own(stat) && stat.st_nlink == 1 && stat.st_mode & NOT_OWNER == 0
}

/// True if the directory is a part of an earlier copy.
pub fn is_own_folder(stat: &Stat) -> bool {
    let is_folder = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
    is_folder && is_own(stat) && stat.st_mode & NOT_OWNER == 0
}

/// True if a path is a symbolic link that may be followed. Fails if another user can change the link, because it
/// may then lead anywhere at any moment.
pub fn is_link(path: &Path) -> io::Result<bool> {
    let Ok(entry) = rustix::fs::lstat(path) else { return Ok(false) };
    if FileType::from_raw_mode(entry.st_mode) != FileType::Symlink {
        return Ok(false);
    }
    let above = path.parent().filter(|above| *above != Path::new("")).unwrap_or(Path::new("."));
    if is_trusted(&entry) && keeps_own(&rustix::fs::stat(above)?) {
        return Ok(true);
    }
    Err(io::Error::other(
        "it is a symbolic link that another user can change, and is not followed: name what it leads to",
    ))
}

/// Makes a directory that nobody else can look into, for files that have no descriptor of their own before they are
/// complete. Another user may put another directory in its place: that is then an empty one of this user, which is
/// as good.
pub fn make_own(parent: impl AsFd, name: &[u8]) -> Result<OwnedFd, Errno> {
    rustix::fs::mkdirat(&parent, name, Mode::RWXU)?;
    let fd = rustix::fs::openat(parent, name, DIRECTORY, Mode::empty())?;
    let is_empty = Dir::read_from(&fd)?
        .all(|entry| entry.is_ok_and(|entry| matches!(entry.file_name().to_bytes(), b"." | b"..")));
    if is_empty && is_own_folder(&rustix::fs::fstat(&fd)?) { Ok(fd) } else { Err(Errno::STALE) }
}

/// Makes a directory where another user can change names, and opens that directory and no other. It is made inside
/// a directory of this process, which is called `temporary` meanwhile.
pub fn make_new(parent: impl AsFd, name: &[u8], temporary: &[u8]) -> Result<OwnedFd, Errno> {
    const NEW: &str = "new";
    let own = make_own(&parent, temporary)?;
    let made = rustix::fs::mkdirat(&own, NEW, Mode::RWXU)
        .and_then(|()| rustix::fs::openat(&own, NEW, DIRECTORY, Mode::empty()))
        .and_then(|fd| rustix::fs::renameat(&own, NEW, &parent, name).map(|()| fd));
    if made.is_err() {
        // The error to report is the earlier one.
        let _ = rustix::fs::unlinkat(&own, NEW, AtFlags::REMOVEDIR);
    }
    let _ = rustix::fs::unlinkat(&parent, temporary, AtFlags::REMOVEDIR);
    made
}
