//! The attributes of a file that a copy keeps: permissions, time of modification, owner.

use std::os::fd::AsFd;

use rustix::fs::{
    AtFlags, FileType, Gid, Mode, OFlags, Stat, Timespec, Timestamps, UTIME_OMIT, Uid, chmodat, chownat,
    readlinkat, utimensat,
};
use rustix::io::Errno;

/// The permission bits, with setuid, setgid and sticky.
const MODE_BITS: u32 = 0o7777;
/// Setuid and setgid, which mean something else with another owner.
const IDENTITY_BITS: u32 = 0o6000;

/// The attributes of one file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// The permissions.
    pub mode: u32,
    /// The number of the owner.
    pub owner: u32,
    /// The number of the group.
    pub group: u32,
    /// The time of modification: seconds since 1970.
    pub seconds: i64,
    /// The nanoseconds of that time.
    pub nanoseconds: u32,
}

impl Attributes {
    /// Returns the attributes that the system reports.
    pub fn of(stat: &Stat) -> Self {
        let (seconds, nanoseconds) = modified(stat);
        Self { mode: stat.st_mode & MODE_BITS, owner: stat.st_uid, group: stat.st_gid, seconds, nanoseconds }
    }

    /// True if a peer can have read these attributes from a file.
    pub fn is_possible(&self) -> bool {
        self.mode & !MODE_BITS == 0 && self.nanoseconds < 1_000_000_000
    }

    fn times(&self) -> Timestamps {
        Timestamps {
            last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
            last_modification: Timespec { tv_sec: self.seconds, tv_nsec: self.nanoseconds.into() },
        }
    }
}

/// Returns the time of modification.
pub fn modified(stat: &Stat) -> (i64, u32) {
    // The field is wider on some architectures, and never more than a billion.
    (stat.st_mtime, u32::try_from(stat.st_mtime_nsec).unwrap_or(0))
}

/// Gives attributes to files, with the rights of this process.
#[derive(Clone, Copy, Debug)]
pub struct AttributeSetter {
    /// The user of this process. Only the superuser gives files away.
    user: u32,
    group: u32,
    /// The permissions that the system removes from a new file.
    mask: u32,
}

impl AttributeSetter {
    /// Returns the setter of this process.
    pub fn here() -> Self {
        let (user, group) = (rustix::process::geteuid(), rustix::process::getegid());
        Self { user: user.as_raw(), group: group.as_raw(), mask: mask().unwrap_or(MODE_BITS) }
    }

    /// Returns the permissions to make a file with, which are never more than its final ones.
    pub fn initial_mode(&self, attributes: &Attributes) -> Mode {
        if self.gives_away(attributes) { Mode::RUSR | Mode::WUSR } else { permissions(attributes.mode) }
    }

    /// Gives all attributes to a file that was made with [`Self::initial_mode`].
    pub fn finish(&self, file: impl AsFd, attributes: &Attributes) -> Result<(), Errno> {
        let away = self.gives_away(attributes);
        if away {
            rustix::fs::fchown(&file, owner(attributes), group(attributes))?;
        }
        let mode = self.final_mode(attributes);
        if away || mode & (self.mask | IDENTITY_BITS | 0o1000) != 0 {
            rustix::fs::fchmod(&file, Mode::from_raw_mode(mode))?;
        }
        rustix::fs::futimens(&file, &attributes.times())
    }

    /// Gives all attributes to a file or directory with any permissions.
    pub fn give(&self, file: impl AsFd, attributes: &Attributes) -> Result<(), Errno> {
        if self.gives_away(attributes) {
            rustix::fs::fchown(&file, owner(attributes), group(attributes))?;
        }
        rustix::fs::fchmod(&file, Mode::from_raw_mode(self.final_mode(attributes)))?;
        rustix::fs::futimens(&file, &attributes.times())
    }

    /// Gives only the time of modification.
    pub fn give_times(&self, file: impl AsFd, attributes: &Attributes) -> Result<(), Errno> {
        rustix::fs::futimens(&file, &attributes.times())
    }

    /// True if the file already has the owner and the permissions.
    pub fn is_given(&self, stat: &Stat, attributes: &Attributes) -> bool {
        let is_owned = self.user != 0 || (stat.st_uid, stat.st_gid) == (attributes.owner, attributes.group);
        is_owned && stat.st_mode & MODE_BITS == self.final_mode(attributes)
    }

    /// Gives a new symbolic link its owner and time, unless another link has taken its place.
    pub fn give_link(
        &self,
        folder: impl AsFd,
        name: &[u8],
        target: &[u8],
        attributes: &Attributes,
    ) -> Result<(), Errno> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let link = rustix::fs::openat(&folder, name, flags, Mode::empty())?;
        let stat = rustix::fs::fstat(&link)?;
        let is_link = FileType::from_raw_mode(stat.st_mode) == FileType::Symlink;
        if !is_link || stat.st_uid != self.user || readlinkat(&link, "", Vec::new())?.as_bytes() != target {
            return Err(Errno::STALE);
        }
        if self.gives_away(attributes) {
            chownat(&link, "", owner(attributes), group(attributes), AtFlags::EMPTY_PATH)?;
        }
        utimensat(&link, "", &attributes.times(), AtFlags::EMPTY_PATH)
    }

    /// True if the symbolic link is already there as wanted.
    pub fn is_link_given(
        &self,
        folder: impl AsFd,
        name: &[u8],
        target: &[u8],
        attributes: &Attributes,
    ) -> bool {
        let Ok(stat) = rustix::fs::statat(&folder, name, AtFlags::SYMLINK_NOFOLLOW) else { return false };
        let owner = if self.user == 0 { attributes.owner } else { self.user };
        FileType::from_raw_mode(stat.st_mode) == FileType::Symlink
            && stat.st_uid == owner
            && modified(&stat) == (attributes.seconds, attributes.nanoseconds)
            && readlinkat(&folder, name, Vec::new()).is_ok_and(|there| there.as_bytes() == target)
    }

    /// Gives all attributes to a FIFO, in a directory where nobody else can change its name.
    pub fn give_fifo(&self, folder: impl AsFd, name: &str, attributes: &Attributes) -> Result<(), Errno> {
        if self.gives_away(attributes) {
            chownat(&folder, name, owner(attributes), group(attributes), AtFlags::SYMLINK_NOFOLLOW)?;
        }
        let mode = Mode::from_raw_mode(self.final_mode(attributes));
        chmodat(&folder, name, mode, AtFlags::empty())?;
        utimensat(&folder, name, &attributes.times(), AtFlags::SYMLINK_NOFOLLOW)
    }

    fn gives_away(&self, attributes: &Attributes) -> bool {
        self.user == 0 && (attributes.owner != self.user || attributes.group != self.group)
    }

    /// Returns the permissions, without setuid and setgid if the copy has another owner.
    fn final_mode(&self, attributes: &Attributes) -> u32 {
        let is_kept = self.user == 0 || attributes.owner == self.user && attributes.group == self.group;
        if is_kept { attributes.mode } else { attributes.mode & !IDENTITY_BITS }
    }
}

/// Returns the permission bits of a mode.
pub fn permissions(mode: u32) -> Mode {
    Mode::from_raw_mode(mode & 0o777)
}

fn owner(attributes: &Attributes) -> Option<Uid> {
    Some(Uid::from_raw(attributes.owner))
}

fn group(attributes: &Attributes) -> Option<Gid> {
    Some(Gid::from_raw(attributes.group))
}

/// Returns the umask. umask(2) cannot report it without changing it for all threads.
fn mask() -> Option<u32> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("Umask:"))?;
    u32::from_str_radix(line.trim(), 8).ok()
}
