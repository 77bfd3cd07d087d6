//! Who can change what the names in a directory mean, and what of it a copy may go on with.
//!
//! Another user may own the directory that is copied into, or share it, and give its names other meanings at
//! any moment. So files are created anew under names that nobody can guess, and are changed through their
//! descriptors; what lies there is only gone on with if it can be nobody else's.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

/// How directories are opened.
pub const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

const GROUP_WRITES: u32 = 0o020;
const OTHERS_WRITE: u32 = 0o002;
const STICKY: u32 = 0o1000;
/// All that anybody but the owner may do.
const NOT_OWNER: u32 = 0o077;

/// Whether nobody but this user and the superuser can change the names in a directory.
pub fn is_private(folder: &Stat) -> bool {
    // By convention a group with the number of its user has no other member.
    let is_own_group = folder.st_gid == folder.st_uid;
    let shared = if is_own_group { OTHERS_WRITE } else { GROUP_WRITES | OTHERS_WRITE };
    is_trusted(folder) && folder.st_mode & shared == 0
}

/// Whether what is in a directory under some name can only be what this user has put there.
pub fn keeps(folder: &Stat, entry: &Stat) -> bool {
    is_private(folder) || keeps_own(folder) && is_own(entry)
}

/// Whether what this user puts into a directory stays there.
pub fn keeps_own(folder: &Stat) -> bool {
    is_private(folder) || is_trusted(folder) && folder.st_mode & STICKY != 0
}

/// Whether it belongs to this user.
pub fn is_own(stat: &Stat) -> bool {
    stat.st_uid == rustix::process::geteuid().as_raw()
}

/// Whether it belongs to this user or to the superuser.
pub fn is_trusted(stat: &Stat) -> bool {
    is_own(stat) || stat.st_uid == 0
}

/// Whether it is a file that an earlier copy has begun: this user's alone, and under no other name.
pub fn is_own_part(stat: &Stat) -> bool {
    let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    is_file && is_own(stat) && stat.st_nlink == 1 && stat.st_mode & NOT_OWNER == 0
}

/// Whether it is a directory that an earlier copy has begun.
pub fn is_own_folder(stat: &Stat) -> bool {
    let is_folder = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
    is_folder && is_own(stat) && stat.st_mode & NOT_OWNER == 0
}

/// Whether a path is a symbolic link that may be followed. An error where it is one that another user can
/// change: that may lead anywhere, and somewhere else at any moment.
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

/// Makes a directory that nobody else can look into, for what has no descriptor of its own before it is
/// complete. Another user may put another one into its place: then it is an empty one of this user's, which is
/// as good.
pub fn make_own(parent: impl AsFd, name: &[u8]) -> Result<OwnedFd, Errno> {
    rustix::fs::mkdirat(&parent, name, Mode::RWXU)?;
    let fd = rustix::fs::openat(parent, name, DIRECTORY, Mode::empty())?;
    let is_empty = Dir::read_from(&fd)?
        .all(|entry| entry.is_ok_and(|entry| matches!(entry.file_name().to_bytes(), b"." | b"..")));
    if is_empty && is_own_folder(&rustix::fs::fstat(&fd)?) { Ok(fd) } else { Err(Errno::STALE) }
}

/// Makes a directory where another user can change names, and opens that and no other. It is made in one of
/// our own, which is called `temporary` meanwhile.
pub fn make_new(parent: impl AsFd, name: &[u8], temporary: &[u8]) -> Result<OwnedFd, Errno> {
    const NEW: &str = "new";
    let own = make_own(&parent, temporary)?;
    let made = rustix::fs::mkdirat(&own, NEW, Mode::RWXU)
        .and_then(|()| rustix::fs::openat(&own, NEW, DIRECTORY, Mode::empty()))
        .and_then(|fd| rustix::fs::renameat(&own, NEW, &parent, name).map(|()| fd));
    if made.is_err() {
        // What matters is why it failed.
        let _ = rustix::fs::unlinkat(&own, NEW, AtFlags::REMOVEDIR);
    }
    let _ = rustix::fs::unlinkat(&parent, temporary, AtFlags::REMOVEDIR);
    made
}
