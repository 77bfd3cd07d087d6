//! What a copy keeps of a file beside its content: permissions, time of modification, owner.

use std::os::fd::AsFd;

use rustix::fs::{
    AtFlags, FileType, Gid, Mode, OFlags, Stat, Timespec, Timestamps, UTIME_OMIT, Uid, chmodat, chownat,
    readlinkat, utimensat,
};
use rustix::io::Errno;

/// Permissions, with setuid, setgid and sticky.
const MODE_BITS: u32 = 0o7777;
/// Setuid and setgid: they mean something else with another owner.
const IDENTITY_BITS: u32 = 0o6000;

/// The attributes of one file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// Permissions.
    pub mode: u32,
    /// The owner's number.
    pub owner: u32,
    /// The group's.
    pub group: u32,
    /// Time of modification: seconds since 1970.
    pub seconds: i64,
    /// And nanoseconds.
    pub nanoseconds: u32,
}

impl Attributes {
    /// As the system has them.
    pub fn of(stat: &Stat) -> Self {
        let (seconds, nanoseconds) = modified(stat);
        Self { mode: stat.st_mode & MODE_BITS, owner: stat.st_uid, group: stat.st_gid, seconds, nanoseconds }
    }

    /// Whether a peer can have read them from a file.
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

/// The time of modification.
pub fn modified(stat: &Stat) -> (i64, u32) {
    // A field that is wider on some architectures, and never more than a billion.
    (stat.st_mtime, u32::try_from(stat.st_mtime_nsec).unwrap_or(0))
}

/// How this process gives attributes to files.
#[derive(Clone, Copy, Debug)]
pub struct AttributeSetter {
    /// Who it is. The superuser alone gives files away.
    user: u32,
    group: u32,
    /// What the system takes away from the permissions of a new file.
    mask: u32,
}

impl AttributeSetter {
    /// Of this process.
    pub fn here() -> Self {
        let (user, group) = (rustix::process::geteuid(), rustix::process::getegid());
        Self { user: user.as_raw(), group: group.as_raw(), mask: mask().unwrap_or(MODE_BITS) }
    }

    /// The permissions to make a file with: never more than it is to have in the end.
    pub fn initial_mode(&self, attributes: &Attributes) -> Mode {
        if self.gives_away(attributes) { Mode::RUSR | Mode::WUSR } else { permissions(attributes.mode) }
    }

    /// Gives a file that was made with [`Self::initial_mode`] all of it.
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

    /// Gives a file or directory with any permissions all of it.
    pub fn give(&self, file: impl AsFd, attributes: &Attributes) -> Result<(), Errno> {
        if self.gives_away(attributes) {
            rustix::fs::fchown(&file, owner(attributes), group(attributes))?;
        }
        rustix::fs::fchmod(&file, Mode::from_raw_mode(self.final_mode(attributes)))?;
        rustix::fs::futimens(&file, &attributes.times())
    }

    /// Gives the time of modification alone.
    pub fn give_times(&self, file: impl AsFd, attributes: &Attributes) -> Result<(), Errno> {
        rustix::fs::futimens(&file, &attributes.times())
    }

    /// Whether it has the owner and the permissions already.
    pub fn is_given(&self, stat: &Stat, attributes: &Attributes) -> bool {
        let is_owned = self.user != 0 || (stat.st_uid, stat.st_gid) == (attributes.owner, attributes.group);
        is_owned && stat.st_mode & MODE_BITS == self.final_mode(attributes)
    }

    /// Gives a symbolic link that was made under this name all but permissions, unless another one has
    /// taken its place.
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

    /// Whether a symbolic link is there already as it is to be.
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

    /// Gives a FIFO all of it, in a directory where nobody else can change its name.
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

    /// Without the right to act as an owner that the copy does not have.
    fn final_mode(&self, attributes: &Attributes) -> u32 {
        let is_kept = self.user == 0 || attributes.owner == self.user && attributes.group == self.group;
        if is_kept { attributes.mode } else { attributes.mode & !IDENTITY_BITS }
    }
}

/// Permissions alone.
pub fn permissions(mode: u32) -> Mode {
    Mode::from_raw_mode(mode & 0o777)
}

fn owner(attributes: &Attributes) -> Option<Uid> {
    Some(Uid::from_raw(attributes.owner))
}

fn group(attributes: &Attributes) -> Option<Gid> {
    Some(Gid::from_raw(attributes.group))
}

/// What umask(2) would say, which cannot be asked without changing it for all threads.
fn mask() -> Option<u32> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("Umask:"))?;
    u32::from_str_radix(line.trim(), 8).ok()
}
