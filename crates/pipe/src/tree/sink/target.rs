//! Where a copy goes, and how no path leads out of there.

use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use super::super::attributes::permissions;
use super::super::complaints::shown_in;
use super::super::format::nonsense;
use super::super::hello::Hello;
use super::super::options::SinkOptions;
use super::super::records::Spot;
use super::destination::{cannot, into, new, special, trim, usage};
use crate::Error;

/// How directories are opened.
pub(super) const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// What one source becomes.
#[derive(Debug)]
pub struct Target {
    pub(super) parent: Arc<OwnedFd>,
    /// In `parent`; empty if the source's content goes right into that.
    pub(super) name: Vec<u8>,
    /// What a directory is called until it is complete. Only one that gets the name which the user has
    /// written: as long as that is not there, the same command means the same once more.
    pub(super) part: Option<Vec<u8>>,
    /// A device or a pipe that takes the content of one file.
    pub special: Option<Mutex<File>>,
    /// The directory that it has become.
    pub(super) top: OnceLock<Arc<OwnedFd>>,
    pub(super) shown: Vec<u8>,
}

/// What all sources become.
#[derive(Debug)]
pub struct Targets {
    all: Vec<Target>,
    is_recursive: bool,
    /// The kernel (before 5.6) or a sandbox has no openat2(2).
    is_stepwise: AtomicBool,
}

impl Targets {
    /// Looks at the destination as cp(1) does.
    pub fn new(options: &SinkOptions) -> Result<Self, Error> {
        let path = options.destination.0.as_slice();
        let path = if path.is_empty() { b"." } else { path };
        let all = match rustix::fs::statat(CWD, path, AtFlags::empty()) {
            Ok(stat) => match FileType::from_raw_mode(stat.st_mode) {
                FileType::Directory => into(options, path)?,
                _ if options.into_directory || options.names.len() != 1 => {
                    return Err(usage(path, "is no directory, and several files cannot become one"));
                }
                FileType::RegularFile => {
                    let path = Path::new(OsStr::from_bytes(path));
                    // What a link leads to is replaced, not the link.
                    let real = path.canonicalize().unwrap_or_else(|_| path.to_owned());
                    vec![new(real.as_os_str().as_bytes())?]
                }
                _ => vec![special(path)?],
            },
            Err(Errno::NOENT) if options.names.len() == 1 => {
                let trimmed = trim(path);
                if options.into_directory && !(options.recursive && trimmed.len() < path.len()) {
                    return Err(usage(path, "is not there, and was to be a directory"));
                }
                let mut target = new(trimmed)?;
                target.part = Some(super::super::part_name(&target.name));
                vec![target]
            }
            Err(Errno::NOENT) => return Err(usage(path, "is not there: several files take a directory")),
            Err(error) => return Err(cannot("look at", path, error)),
        };
        Ok(Self { all, is_recursive: options.recursive, is_stepwise: AtomicBool::new(false) })
    }

    /// What is there of them.
    pub fn hello(&self) -> Hello {
        let mut hello = Hello::new();
        for target in &self.all {
            let name = if target.name.is_empty() { b".".as_slice() } else { &target.name };
            if let Ok(stat) = rustix::fs::statat(&target.parent, name, AtFlags::SYMLINK_NOFOLLOW) {
                hello.add_target(&stat);
                continue;
            }
            if let Ok(stat) = rustix::fs::fstat(&target.parent) {
                hello.add_future(&stat, &target.name);
            }
            let part = super::super::part_name(&target.name);
            if let Ok(stat) = rustix::fs::statat(&target.parent, &part, AtFlags::SYMLINK_NOFOLLOW) {
                hello.add_target(&stat);
                let is_folder = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
                hello.is_resumed |= is_folder && target.part.is_some();
            } else if let (Ok(stat), Some(_)) = (rustix::fs::fstat(&target.parent), &target.part) {
                hello.add_future(&stat, &part);
            }
        }
        hello
    }

    /// The target of a source.
    pub fn target(&self, root: u32) -> Result<&Target, Error> {
        self.all.get(root as usize).ok_or_else(|| nonsense("source"))
    }

    /// Makes a directory, whose parent must be there.
    pub fn make(&self, spot: Spot<'_>, mode: u32) -> Result<Result<(), Errno>, Error> {
        let target = self.target(spot.root)?;
        if !self.is_recursive {
            return Err(Error::Protocol("sends a directory, which nobody asked for".to_owned()));
        }
        if target.special.is_some() {
            return Ok(Err(Errno::NOTDIR));
        }
        if !spot.path.is_empty() {
            let (folder, name) = split(spot.path);
            let folder = Spot { root: spot.root, path: folder };
            return Ok(self.folder(folder).and_then(|folder| make(folder.as_fd(), name, mode)));
        }
        if !target.name.is_empty() {
            if let Err(error) = make(target.parent.as_fd(), target.folder_name(), mode) {
                return Ok(Err(error));
            }
        }
        let top = target.open();
        Ok(top.map(|top| {
            target.top.get_or_init(|| top);
        }))
    }

    /// Opens a directory that was made.
    pub fn folder(&self, spot: Spot<'_>) -> Result<Arc<OwnedFd>, Errno> {
        let top = self.target(spot.root).ok().and_then(|target| target.top.get()).ok_or(Errno::NOENT)?;
        self.below(top, spot.path)
    }

    /// Opens a directory that may have been there before anything was made.
    pub fn old_folder(&self, spot: Spot<'_>) -> Result<Arc<OwnedFd>, Errno> {
        let target = self.target(spot.root).map_err(|_| Errno::NOENT)?;
        match target.top.get() {
            Some(top) => self.below(top, spot.path),
            None => self.below(&target.open()?, spot.path),
        }
    }

    fn below(&self, top: &Arc<OwnedFd>, path: &[u8]) -> Result<Arc<OwnedFd>, Errno> {
        if path.is_empty() {
            return Ok(Arc::clone(top));
        }
        // Pairs with nothing: whoever misses it finds out by itself.
        if !self.is_stepwise.load(Ordering::Relaxed) {
            let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
            match rustix::fs::openat2(top, path, DIRECTORY, Mode::empty(), resolve) {
                // Some sandboxes forbid what they do not know.
                Err(Errno::NOSYS | Errno::PERM) => self.is_stepwise.store(true, Ordering::Relaxed),
                opened => return opened.map(Arc::new),
            }
        }
        stepwise(top.as_fd(), path).map(Arc::new)
    }

    /// Where a file itself is: its directory, and its name there.
    pub fn file(&self, spot: Spot<'_>) -> Result<(Arc<OwnedFd>, Vec<u8>), Errno> {
        if spot.path.is_empty() {
            let target = self.target(spot.root).map_err(|_| Errno::NOENT)?;
            return target.file().map(|(parent, name)| (Arc::clone(parent), name.to_vec()));
        }
        let (folder, name) = split(spot.path);
        Ok((self.folder(Spot { root: spot.root, path: folder })?, name.to_vec()))
    }

    /// Gives directories that are complete their names.
    pub fn finish(&self) -> impl Iterator<Item = (&[u8], Errno)> {
        self.parts().filter_map(|(target, part)| {
            let renamed = rustix::fs::renameat(&target.parent, part, &target.parent, &target.name);
            renamed.err().map(|error| (target.shown.as_slice(), error))
        })
    }

    /// Where directories are that are not complete.
    pub fn unfinished(&self) -> impl Iterator<Item = Vec<u8>> {
        self.parts().map(|(target, part)| {
            let kept = target.shown.len().saturating_sub(target.name.len());
            [target.shown.get(..kept).unwrap_or_default(), part].concat()
        })
    }

    fn parts(&self) -> impl Iterator<Item = (&Target, &[u8])> {
        let made = self.all.iter().filter(|target| target.top.get().is_some());
        made.filter_map(|target| Some((target, target.part.as_deref()?)))
    }

    /// A path, for people.
    pub fn shown(&self, spot: Spot<'_>, name: &[u8]) -> String {
        let base = self.target(spot.root).map_or(&b"?"[..], |target| &target.shown);
        match (spot.path, name) {
            (b"", name) => shown_in(base, name),
            (path, name) => shown_in(base, shown_in(path, name).as_bytes()),
        }
    }
}

impl Target {
    /// Where a source that is a file goes.
    pub fn file(&self) -> Result<(&Arc<OwnedFd>, &[u8]), Errno> {
        if self.name.is_empty() { Err(Errno::ISDIR) } else { Ok((&self.parent, &self.name)) }
    }

    fn folder_name(&self) -> &[u8] {
        self.part.as_ref().unwrap_or(&self.name)
    }

    fn open(&self) -> Result<Arc<OwnedFd>, Errno> {
        match self.folder_name() {
            b"" => Ok(Arc::clone(&self.parent)),
            name => rustix::fs::openat(&self.parent, name, DIRECTORY, Mode::empty()).map(Arc::new),
        }
    }
}

fn make(folder: BorrowedFd<'_>, name: &[u8], mode: u32) -> Result<(), Errno> {
    // What is in it must be written before it gets the permissions that it is to have.
    let accessible = permissions(mode) | Mode::RWXU;
    match rustix::fs::mkdirat(folder, name, accessible) {
        Err(Errno::EXIST) => {
            let fd = rustix::fs::openat(folder, name, DIRECTORY, Mode::empty())?;
            let stat = rustix::fs::fstat(&fd)?;
            let mode = permissions(stat.st_mode);
            if !mode.contains(Mode::RWXU) && stat.st_uid == rustix::process::geteuid().as_raw() {
                rustix::fs::fchmod(&fd, mode | Mode::RWXU)?;
            }
            Ok(())
        }
        made => made,
    }
}

/// One name after the other, none of them a link.
fn stepwise(top: BorrowedFd<'_>, path: &[u8]) -> Result<OwnedFd, Errno> {
    let mut names = path.split(|byte| *byte == b'/');
    let first = names.next().unwrap_or(b".");
    let mut folder = rustix::fs::openat(top, first, DIRECTORY, Mode::empty())?;
    for name in names {
        folder = rustix::fs::openat(&folder, name, DIRECTORY, Mode::empty())?;
    }
    Ok(folder)
}

/// The directory and the name of a path.
fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|byte| *byte == b'/') {
        Some(slash) => (&path[..slash], &path[slash + 1..]),
        None => (b"", path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways_of_opening_refuse_links() {
        let folder = std::env::temp_dir().join(format!("caravan-target-{}", std::process::id()));
        std::fs::create_dir_all(folder.join("a/b")).expect("made");
        std::os::unix::fs::symlink("a", folder.join("link")).expect("linked");
        let top = rustix::fs::openat(CWD, &folder, DIRECTORY, Mode::empty()).expect("opened");
        stepwise(top.as_fd(), b"a/b").expect("a directory");
        for path in [&b"link/b"[..], b"link"] {
            let error = stepwise(top.as_fd(), path).expect_err("refused");
            assert!(matches!(error, Errno::LOOP | Errno::NOTDIR), "{error}");
        }
        let targets = Targets {
            all: vec![new(folder.as_os_str().as_bytes()).expect("a target")],
            is_recursive: true,
            is_stepwise: AtomicBool::new(false),
        };
        targets.make(Spot { root: 0, path: b"" }, 0o755).expect("asked for").expect("made");
        targets.folder(Spot { root: 0, path: b"a/b" }).expect("a directory");
        for path in [&b"link/b"[..], b"link"] {
            let error = targets.folder(Spot { root: 0, path }).expect_err("refused");
            assert!(matches!(error, Errno::LOOP | Errno::NOTDIR), "{error}");
        }
        std::fs::remove_dir_all(&folder).expect("removed");
    }

    #[test]
    fn paths_fall_into_directory_and_name() {
        assert_eq!(split(b"a/b/c"), (&b"a/b"[..], &b"c"[..]));
        assert_eq!(split(b"c"), (&b""[..], &b"c"[..]));
    }
}
