//! The configuration of one host: a file.
//!
//! It is replaced as a whole: written beside its place, synced, and renamed, so a reader sees one configuration or the
//! next, also after a power cut. Writers hold the lock of a second file, as the first one is replaced.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::{ConfigurationRegister, Revision, StoredConfiguration, SwapOutcome, envelope};
use crate::configuration::Configuration;
use crate::error::ClusterError;

/// How often a writer looks whether the lock is free. A lock is held for a few milliseconds.
const LOCK_PAUSE: Duration = Duration::from_millis(2);

/// How often a watch looks without a notice of the kernel, which some file systems do not give.
const WATCH_PAUSE: Duration = Duration::from_secs(1);

/// File systems that several hosts can mount, by the `f_type` of statfs(2). A lock of one host may mean nothing to others
/// there, and nobody is told when another host writes.
const SHARED_FILE_SYSTEMS: [(u64, &str); 11] = [
    (0x6969, "NFS"),
    (0x517b, "SMB"),
    (0xff53_4d42, "CIFS"),
    (0xfe53_4d42, "SMB"),
    (0x0102_1997, "9P"),
    (0x00c3_6400, "Ceph"),
    (0x0bd0_0bd0, "Lustre"),
    (0x0116_1970, "GFS2"),
    (0x7461_636f, "OCFS2"),
    (0x5346_414f, "AFS"),
    (0x4750_4653, "GPFS"),
];

/// A configuration in a file, for servers of one host.
#[derive(Debug)]
pub struct FileRegister {
    path: PathBuf,
    folder: PathBuf,
    name: std::ffi::OsString,
}

impl FileRegister {
    /// Names the file. Its folder exists; the file need not.
    pub fn new(path: impl Into<PathBuf>) -> Result<Self, ClusterError> {
        let path: PathBuf = path.into();
        let name = path.file_name().map(OsStr::to_owned);
        let name = name
            .ok_or_else(|| ClusterError::Options(format!("{}: this is no path of a file", path.display())))?;
        let folder = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let register = Self { folder: folder.to_owned(), path, name };
        let system =
            rustix::fs::statfs(&register.folder).map_err(|error| register.folder_error(error.into()))?;
        let kind = system.f_type as u64 & 0xffff_ffff;
        match SHARED_FILE_SYSTEMS.iter().find(|(number, _)| *number == kind) {
            Some((_, file_system)) => {
                Err(ClusterError::SharedFileSystem { path: register.path, file_system })
            }
            None => Ok(register),
        }
    }

    fn beside(&self, suffix: &str) -> PathBuf {
        let mut name = self.name.clone();
        name.push(suffix);
        self.folder.join(name)
    }

    /// Reads what is there now.
    fn load(&self) -> Result<Option<StoredConfiguration>, ClusterError> {
        let mut bytes = Vec::new();
        let file = match File::open(&self.path) {
            Ok(file) => file,
            // Without its folder it is not a file that nobody has made yet.
            Err(error) if error.kind() == io::ErrorKind::NotFound && self.folder.is_dir() => return Ok(None),
            Err(error) => return Err(self.error("open", error)),
        };
        let limit = envelope::BYTES_MAX as u64 + 1;
        file.take(limit).read_to_end(&mut bytes).map_err(|error| self.error("read", error))?;
        match envelope::read(&bytes) {
            Ok((revision, configuration)) => {
                Ok(Some(StoredConfiguration { revision: Revision(revision), configuration }))
            }
            Err(ClusterError::Damaged(reason)) => Err(ClusterError::File { path: self.path.clone(), reason }),
            Err(error) => Err(error),
        }
    }

    /// Waits for the lock of writers, which ends with its descriptor.
    fn lock(&self, deadline: Instant) -> Result<OwnedFd, ClusterError> {
        let path = self.beside(".lock");
        let file = fs::OpenOptions::new().create(true).append(true).mode(0o600).open(&path);
        let file = file.map_err(|error| self.error("open the lock of", error))?;
        loop {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(file.into()),
                Err(Errno::WOULDBLOCK | Errno::INTR) if Instant::now() < deadline => {
                    std::thread::sleep(LOCK_PAUSE)
                }
                Err(Errno::WOULDBLOCK | Errno::INTR) => return Err(ClusterError::Locked(self.path.clone())),
                Err(error) => return Err(ClusterError::system(format!("lock {}", path.display()))(error)),
            }
        }
    }

    /// Puts the text in the place of the file. The caller holds the lock.
    fn replace(&self, text: &str) -> Result<(), ClusterError> {
        let new = self.beside(".new");
        let write = || {
            let mut options = fs::OpenOptions::new();
            let mut file = options.create(true).write(true).truncate(true).mode(0o600).open(&new)?;
            file.write_all(text.as_bytes())?;
            file.sync_all()
        };
        let written = write().and_then(|()| fs::rename(&new, &self.path));
        if let Err(error) = written {
            let _ = fs::remove_file(&new);
            return Err(self.error("write", error));
        }
        File::open(&self.folder)
            .and_then(|folder| folder.sync_all())
            .map_err(|error| self.error("sync the folder of", error))
    }

    fn error(&self, what: &str, error: io::Error) -> ClusterError {
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => {
                ClusterError::DiskFull(self.path.clone())
            }
            io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                self.folder_error(error)
            }
            _ => ClusterError::system(format!("{what} {}", self.path.display()))(error),
        }
    }

    fn folder_error(&self, reason: io::Error) -> ClusterError {
        ClusterError::Folder { folder: self.folder.clone(), reason }
    }
}

impl ConfigurationRegister for FileRegister {
    fn read(&self, _deadline: Instant) -> Result<Option<StoredConfiguration>, ClusterError> {
        self.load()
    }

    fn compare_and_swap(
        &self,
        expected: Revision,
        next: &Configuration,
        deadline: Instant,
    ) -> Result<SwapOutcome, ClusterError> {
        let _lock = self.lock(deadline)?;
        let before = self.load()?;
        super::refuse_another_store(expected, before.as_ref(), next, || self.place())?;
        if before.as_ref().map_or(Revision::NONE, |before| before.revision) != expected {
            return Ok(SwapOutcome::Changed(before));
        }
        let revision = Revision(expected.0 + 1);
        self.replace(&envelope::write(revision.0, next)?)?;
        Ok(SwapOutcome::Swapped(revision))
    }

    fn watch(&self, since: Revision, deadline: Instant) -> Result<Option<StoredConfiguration>, ClusterError> {
        let notices = FolderNotices::of(&self.folder);
        loop {
            let stored = self.load()?;
            if stored.as_ref().is_some_and(|stored| stored.revision != since) {
                return Ok(stored);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            notices.wait(&self.name, left.min(WATCH_PAUSE));
        }
    }

    fn place(&self) -> String {
        self.path.display().to_string()
    }
}

/// Notices of the kernel about the files of a folder; none where it gives none (too many are in use, for example).
struct FolderNotices(Option<OwnedFd>);

impl FolderNotices {
    fn of(folder: &Path) -> Self {
        let descriptor = inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK).ok();
        let kinds =
            inotify::WatchFlags::MOVED_TO | inotify::WatchFlags::CLOSE_WRITE | inotify::WatchFlags::ONLYDIR;
        Self(descriptor.filter(|it| inotify::add_watch(it, folder, kinds).is_ok()))
    }

    /// Waits until the file of this name may have changed, or for this time.
    fn wait(&self, name: &OsStr, most: Duration) {
        let Some(descriptor) = &self.0 else {
            return std::thread::sleep(most);
        };
        let end = Instant::now() + most;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let limit = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
            let is_readable =
                poll(&mut [PollFd::new(descriptor, PollFlags::IN)], Some(&limit)).unwrap_or(0) > 0;
            if left.is_zero() || (is_readable && Self::names(descriptor, name)) {
                return;
            }
        }
    }

    /// Takes the notices that are there, and says whether one is about this name.
    fn names(descriptor: &OwnedFd, name: &OsStr) -> bool {
        let mut room = [std::mem::MaybeUninit::uninit(); 4096];
        let mut notices = inotify::Reader::new(descriptor, &mut room);
        let mut is_named = false;
        while let Ok(notice) = notices.next() {
            // When there were too many notices, nobody knows what they were about.
            let is_lost = notice.events().contains(inotify::ReadFlags::QUEUE_OVERFLOW);
            is_named |= is_lost || notice.file_name().is_some_and(|it| it.to_bytes() == name.as_bytes());
        }
        is_named
    }
}
