//! The targets of a copy: what the destination is, what each source becomes there, and how no path leads out of it.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use caravan_segment::printable;
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;

use super::held::{HeldFolder, HeldFolders, Standing, WantedFolder, admit, open_old, split};
use super::temporary;
use crate::Error;
use crate::tree::format::nonsense;
use crate::tree::options::{Name, SinkOptions, TreeHello};
use crate::tree::records::{TreePath, is_plain_name};
use crate::tree::trust::DIRECTORY;
use crate::tree::{shown_in, trust};

/// The target of one source.
#[derive(Debug)]
pub struct CopyTarget {
    pub(super) parent: Arc<OwnedFd>,
    /// The name in `parent`; empty if the source's content goes right into `parent`.
    pub(super) name: Vec<u8>,
    /// The part of a directory until it is complete. Only a target that gets the name which the user has written
    /// has one: while that name does not exist, the same command means the same once more.
    pub(super) part: Option<TargetPart>,
    /// A device or a pipe that takes the content of one file.
    pub special: Option<Mutex<File>>,
    /// The directories of the target, as far as they have to be held.
    pub(super) held: HeldFolders,
    pub(super) shown: Vec<u8>,
}

/// The part of a directory that is not complete.
#[derive(Debug)]
pub(super) struct TargetPart {
    name: Vec<u8>,
    /// The directory, if an earlier copy has begun it.
    resumed: Option<Arc<OwnedFd>>,
    /// Whether the next copy may resume it, because nobody else can put another directory in its place.
    is_for_next: bool,
}

/// The targets of all sources.
#[derive(Debug)]
pub struct CopyTargets {
    all: Vec<CopyTarget>,
    is_recursive: bool,
    /// A name for a moment that nobody can guess.
    temporary: Vec<u8>,
    /// Whether the kernel (before 5.6) or a sandbox has no openat2(2).
    is_stepwise: AtomicBool,
}

impl CopyTargets {
    /// Examines the destination as cp(1) does. Nobody may be able to guess `nonce`.
    pub fn new(options: &SinkOptions, nonce: u64) -> Result<Self, Error> {
        let path = options.destination.0.as_slice();
        let path = if path.is_empty() { b"." } else { path };
        let shown = Path::new(OsStr::from_bytes(trim(path)));
        let is_link = trust::is_link(shown).map_err(|source| cannot("write to", path, source))?;
        let follow = if is_link { AtFlags::empty() } else { AtFlags::SYMLINK_NOFOLLOW };
        let all = match rustix::fs::statat(CWD, trim(path), follow) {
            Ok(stat) => match FileType::from_raw_mode(stat.st_mode) {
                FileType::Directory => targets_in(options, path, is_link)?,
                _ if options.into_directory || options.names.len() != 1 => {
                    return Err(usage(path, "is no directory, and several files cannot become one"));
                }
                // The file that the link leads to is replaced, not the link.
                FileType::RegularFile if is_link => {
                    let real = shown.canonicalize().unwrap_or_else(|_| shown.to_owned());
                    vec![exact_target(real.as_os_str().as_bytes())?]
                }
                FileType::RegularFile => vec![exact_target(trim(path))?],
                _ => vec![special_target(path, &stat)?],
            },
            Err(Errno::NOENT) if options.names.len() == 1 => {
                let trimmed = trim(path);
                if options.into_directory && !(options.recursive && trimmed.len() < path.len()) {
                    return Err(usage(path, "is not there, and was to be a directory"));
                }
                let mut target = exact_target(trimmed)?;
                target.part = Some(TargetPart::of(&target.parent, &target.name, temporary(nonce, "top")));
                vec![target]
            }
            Err(Errno::NOENT) => return Err(usage(path, "is not there: several files take a directory")),
            Err(error) => return Err(cannot("look at", path, error.into())),
        };
        let temporary = temporary(nonce, "folder");
        Ok(Self { all, is_recursive: options.recursive, temporary, is_stepwise: AtomicBool::new(false) })
    }

    /// Returns the hello: what exists of the targets.
    pub fn hello(&self) -> TreeHello {
        let mut hello = TreeHello::here();
        for target in &self.all {
            hello.add_above(&target.parent);
            let name = if target.name.is_empty() { b".".as_slice() } else { &target.name };
            if let Ok(stat) = rustix::fs::statat(&target.parent, name, AtFlags::SYMLINK_NOFOLLOW) {
                hello.add_target(&stat);
                continue;
            }
            if let Ok(stat) = rustix::fs::fstat(&target.parent) {
                hello.add_future(&stat, &target.name);
            }
            let name = crate::tree::part_name(&target.name);
            if let Ok(stat) = rustix::fs::statat(&target.parent, &name, AtFlags::SYMLINK_NOFOLLOW) {
                hello.add_target(&stat);
            }
            if let (Ok(stat), Some(part)) = (rustix::fs::fstat(&target.parent), &target.part) {
                hello.is_resumed |= part.resumed.is_some();
                hello.add_future(&stat, &part.name);
            }
        }
        hello
    }

    /// Returns the target of a source.
    pub fn target(&self, root: u32) -> Result<&CopyTarget, Error> {
        self.all.get(root as usize).ok_or_else(|| nonsense("source"))
    }

    /// Makes a directory, whose parent must exist.
    pub fn make(&self, spot: TreePath<'_>, wanted: WantedFolder) -> Result<io::Result<()>, Error> {
        let target = self.target(spot.root)?;
        if !self.is_recursive {
            return Err(Error::Protocol("sends a directory, which nobody asked for".to_owned()));
        }
        if target.special.is_some() {
            return Ok(Err(Errno::NOTDIR.into()));
        }
        Ok(if spot.path.is_empty() {
            self.make_top(target, wanted)
        } else {
            self.make_below(target, spot, wanted)
        })
    }

    fn make_top(&self, target: &CopyTarget, wanted: WantedFolder) -> io::Result<()> {
        let resumed = target.part.as_ref().and_then(|part| part.resumed.as_ref());
        let held = if target.name.is_empty() {
            Ok(HeldFolder { fd: Arc::clone(&target.parent), standing: Standing::Old })
        } else if let Some(fd) = resumed {
            Ok(HeldFolder { fd: Arc::clone(fd), standing: Standing::New })
        } else {
            self.make_held(&target.parent, target.folder_name(), wanted)
        };
        target.held.hold(b"", held)
    }

    fn make_below(&self, target: &CopyTarget, spot: TreePath<'_>, wanted: WantedFolder) -> io::Result<()> {
        let (above, name) = split(spot.path);
        let (held, rest) = target.held.nearest(above).ok_or(Errno::NOENT)?;
        let parent = self.below(&held.fd, rest)?;
        if held.standing == Standing::New || trust::is_private(&rustix::fs::fstat(&parent)?) {
            return match rustix::fs::mkdirat(&parent, name, Mode::RWXU) {
                Err(Errno::EXIST) => open_old(&parent, name).map(|_| ()),
                made => made.map_err(Into::into),
            };
        }
        target.held.hold(spot.path, self.make_held(&parent, name, wanted))
    }

    /// Makes a directory that is to be held, or finds one that may be used.
    fn make_held(&self, parent: &OwnedFd, name: &[u8], wanted: WantedFolder) -> io::Result<HeldFolder> {
        let around = rustix::fs::fstat(parent)?;
        let is_there = rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW).is_ok();
        if !is_there && !trust::is_private(&around) {
            let fd = trust::make_new(parent, name, &self.temporary)?;
            return Ok(HeldFolder::new(fd, Standing::New));
        }
        if !is_there {
            rustix::fs::mkdirat(parent, name, Mode::RWXU)?;
        }
        let (fd, stat) = open_old(parent, name)?;
        let standing = match (is_there, trust::keeps(&around, &stat)) {
            (false, _) => Standing::New,
            (true, true) => Standing::Old,
            (true, false) => admit(&around, &fd, &stat, wanted)?,
        };
        Ok(HeldFolder::new(fd, standing))
    }

    /// Opens a directory that was made.
    pub fn folder(&self, spot: TreePath<'_>) -> Result<Arc<OwnedFd>, Errno> {
        let target = self.target(spot.root).map_err(|_| Errno::NOENT)?;
        let (held, rest) = target.held.nearest(spot.path).ok_or(Errno::NOENT)?;
        self.below(&held.fd, rest)
    }

    /// Opens a complete directory. Returns it with its standing.
    pub fn leave(&self, spot: TreePath<'_>) -> Result<HeldFolder, Errno> {
        let target = self.target(spot.root).map_err(|_| Errno::NOENT)?;
        match target.held.leave(spot.path) {
            Some(held) => held.ok_or(Errno::NOENT),
            None => Ok(HeldFolder { fd: self.folder(spot)?, standing: Standing::Old }),
        }
    }

    /// True if nobody else can change the names in a directory that was made.
    pub fn is_private(&self, spot: TreePath<'_>) -> bool {
        let target = self.target(spot.root).ok();
        let held = target.and_then(|target| target.held.nearest(spot.path));
        held.is_some_and(|(held, rest)| {
            let stat = || self.below(&held.fd, rest).and_then(rustix::fs::fstat);
            held.standing == Standing::New || stat().is_ok_and(|stat| trust::is_private(&stat))
        })
    }

    /// Opens a directory that may have existed before anything was made.
    pub fn old_folder(&self, spot: TreePath<'_>) -> Result<Arc<OwnedFd>, Errno> {
        let target = self.target(spot.root).map_err(|_| Errno::NOENT)?;
        match target.held.nearest(spot.path) {
            Some((held, rest)) => self.below(&held.fd, rest),
            None => self.below(&target.open()?, spot.path),
        }
    }

    fn below(&self, top: &Arc<OwnedFd>, path: &[u8]) -> Result<Arc<OwnedFd>, Errno> {
        if path.is_empty() {
            return Ok(Arc::clone(top));
        }
        // Pairs with nothing: a thread that misses the store finds out by itself.
        if !self.is_stepwise.load(Ordering::Relaxed) {
            let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
            match rustix::fs::openat2(top, path, DIRECTORY, Mode::empty(), resolve) {
                // Some sandboxes forbid system calls that they do not know.
                Err(Errno::NOSYS | Errno::PERM) => self.is_stepwise.store(true, Ordering::Relaxed),
                opened => return opened.map(Arc::new),
            }
        }
        stepwise(top.as_fd(), path).map(Arc::new)
    }

    /// Returns the directory and the name of a file.
    pub fn file(&self, spot: TreePath<'_>) -> Result<(Arc<OwnedFd>, Vec<u8>), Errno> {
        if spot.path.is_empty() {
            let target = self.target(spot.root).map_err(|_| Errno::NOENT)?;
            return target.file().map(|(parent, name)| (Arc::clone(parent), name.to_vec()));
        }
        let (folder, name) = split(spot.path);
        Ok((self.folder(TreePath { root: spot.root, path: folder })?, name.to_vec()))
    }

    /// Gives complete directories their names, and syncs all names to the disk if that is wanted.
    pub fn finish(&self, is_synced: bool) -> impl Iterator<Item = (&[u8], Errno)> {
        self.all.iter().filter_map(move |target| {
            let part = target.part.as_ref().filter(|_| target.held.has_top());
            let renamed = part.map_or(Ok(()), |part| {
                rustix::fs::renameat(&target.parent, &part.name, &target.parent, &target.name)
            });
            let is_synced = is_synced && target.special.is_none();
            let synced = if is_synced { rustix::fs::fsync(&target.parent) } else { Ok(()) };
            renamed.and(synced).err().map(|error| (target.shown.as_slice(), error))
        })
    }

    /// Returns the number of targets.
    pub fn count(&self) -> usize {
        self.all.len()
    }

    /// Returns the paths of directories that are not complete, and whether the next copy resumes them.
    pub fn unfinished(&self) -> impl Iterator<Item = (Vec<u8>, bool)> {
        self.parts().map(|(target, part)| {
            let kept = target.shown.len().saturating_sub(target.name.len());
            let shown = [target.shown.get(..kept).unwrap_or_default(), &part.name].concat();
            (shown, part.is_for_next)
        })
    }

    fn parts(&self) -> impl Iterator<Item = (&CopyTarget, &TargetPart)> {
        let made = self.all.iter().filter(|target| target.held.has_top());
        made.filter_map(|target| Some((target, target.part.as_ref()?)))
    }

    /// Returns a path for messages.
    pub fn shown(&self, spot: TreePath<'_>, name: &[u8]) -> String {
        let base = self.target(spot.root).map_or(&b"?"[..], |target| &target.shown);
        match (spot.path, name) {
            (b"", name) => shown_in(base, name),
            (path, name) => shown_in(base, shown_in(path, name).as_bytes()),
        }
    }
}

impl CopyTarget {
    /// Returns the target of that name in a directory.
    fn new(parent: Arc<OwnedFd>, name: &[u8], shown: Vec<u8>) -> Self {
        Self { parent, name: name.to_vec(), part: None, special: None, held: HeldFolders::default(), shown }
    }

    /// Returns the directory and the name of a source that is a file.
    pub fn file(&self) -> Result<(&Arc<OwnedFd>, &[u8]), Errno> {
        if self.name.is_empty() { Err(Errno::ISDIR) } else { Ok((&self.parent, &self.name)) }
    }

    fn folder_name(&self) -> &[u8] {
        self.part.as_ref().map_or(&self.name, |part| &part.name)
    }

    fn open(&self) -> Result<Arc<OwnedFd>, Errno> {
        match self.folder_name() {
            b"" => Ok(Arc::clone(&self.parent)),
            name => rustix::fs::openat(&self.parent, name, DIRECTORY, Mode::empty()).map(Arc::new),
        }
    }
}

impl TargetPart {
    /// Returns the part of the directory `name`. Where another user can change names, nothing is resumed.
    fn of(parent: &OwnedFd, name: &[u8], temporary: Vec<u8>) -> Self {
        let name = crate::tree::part_name(name);
        let apart = Self { name: temporary, resumed: None, is_for_next: false };
        let Ok(around) = rustix::fs::fstat(parent) else { return apart };
        let open = rustix::fs::openat(parent, name.as_slice(), DIRECTORY, Mode::empty());
        match open.and_then(|fd| rustix::fs::fstat(&fd).map(|stat| (fd, stat))) {
            Ok((fd, stat)) if trust::is_own_folder(&stat) && trust::keeps(&around, &stat) => {
                Self { name, resumed: Some(Arc::new(fd)), is_for_next: true }
            }
            Err(Errno::NOENT) if trust::keeps_own(&around) => Self { name, resumed: None, is_for_next: true },
            _ => apart,
        }
    }
}

/// Opens one name after the other, none of them a link.
fn stepwise(top: BorrowedFd<'_>, path: &[u8]) -> Result<OwnedFd, Errno> {
    let mut names = path.split(|byte| *byte == b'/');
    let first = names.next().unwrap_or(b".");
    let mut folder = rustix::fs::openat(top, first, DIRECTORY, Mode::empty())?;
    for name in names {
        folder = rustix::fs::openat(&folder, name, DIRECTORY, Mode::empty())?;
    }
    Ok(folder)
}

/// Gives each source a name in a directory.
pub fn targets_in(options: &SinkOptions, path: &[u8], is_link: bool) -> Result<Vec<CopyTarget>, Error> {
    let flags = if is_link { DIRECTORY - OFlags::NOFOLLOW } else { DIRECTORY };
    let parent = open(trim(path), flags, "open")?;
    let target = |name: &Option<Name>| {
        let name = name.as_ref().map_or(&b""[..], |name| &name.0);
        if !name.is_empty() && !is_plain_name(name) {
            return Err(usage(name, "is no name for a file"));
        }
        let slash: &[u8] = if name.is_empty() || path.ends_with(b"/") { b"" } else { b"/" };
        Ok(CopyTarget::new(Arc::clone(&parent), name, [path, slash, name].concat()))
    };
    options.names.iter().map(target).collect()
}

/// Makes a path the target of the only source.
pub fn exact_target(path: &[u8]) -> Result<CopyTarget, Error> {
    let (folder, name) = match split(path) {
        (b"", name) if path.starts_with(b"/") => (&b"/"[..], name),
        (b"", name) => (&b"."[..], name),
        both => both,
    };
    let parent = open(folder, DIRECTORY - OFlags::NOFOLLOW, "open the directory")?;
    Ok(CopyTarget::new(parent, name, path.to_vec()))
}

fn open(folder: &[u8], flags: OFlags, what: &'static str) -> Result<Arc<OwnedFd>, Error> {
    let opened = rustix::fs::openat(CWD, folder, flags, Mode::empty());
    opened.map(Arc::new).map_err(|error| cannot(what, folder, error.into()))
}

/// Makes a device or a pipe the target.
pub fn special_target(path: &[u8], looked_at: &Stat) -> Result<CopyTarget, Error> {
    let flags = OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOCTTY;
    let file = rustix::fs::openat(CWD, path, flags, Mode::empty());
    let file = file.map_err(|error| cannot("write to", path, error.into()))?;
    let opened = rustix::fs::fstat(&file).map_err(|error| cannot("look at", path, error.into()))?;
    let is_same = (opened.st_dev, opened.st_ino) == (looked_at.st_dev, looked_at.st_ino);
    if !is_same || FileType::from_raw_mode(opened.st_mode) == FileType::RegularFile {
        return Err(usage(path, "has become something else meanwhile"));
    }
    let special = Some(Mutex::new(File::from(file)));
    Ok(CopyTarget { special, ..CopyTarget::new(open(b"/", DIRECTORY, "open")?, b"", path.to_vec()) })
}

/// Removes the slashes at the end of a path.
pub fn trim(path: &[u8]) -> &[u8] {
    let end = path.iter().rposition(|byte| *byte != b'/').map_or(1, |last| last + 1);
    path.get(..end).unwrap_or(path)
}

/// Returns the error for a destination that cannot be what the user wants.
pub fn usage(path: &[u8], what: &str) -> Error {
    Error::Usage(format!("{} {what}", printable(path)))
}

/// Returns the error for a failed system call.
pub fn cannot(what: &'static str, path: &[u8], source: io::Error) -> Error {
    Error::File { what, path: Path::new(OsStr::from_bytes(path)).to_owned(), source }
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
        let targets = CopyTargets {
            all: vec![exact_target(folder.as_os_str().as_bytes()).expect("a target")],
            is_recursive: true,
            temporary: b"x".to_vec(),
            is_stepwise: AtomicBool::new(false),
        };
        targets
            .make(TreePath { root: 0, path: b"" }, WantedFolder { mode: 0o755, owner: 0 })
            .expect("asked for")
            .expect("made");
        targets.folder(TreePath { root: 0, path: b"a/b" }).expect("a directory");
        for path in [&b"link/b"[..], b"link"] {
            let error = targets.folder(TreePath { root: 0, path }).expect_err("refused");
            assert!(matches!(error, Errno::LOOP | Errno::NOTDIR), "{error}");
        }
        std::fs::remove_dir_all(&folder).expect("removed");
    }

    #[test]
    fn slashes_at_the_end_mean_the_same_file() {
        assert_eq!((trim(b"new//"), trim(b"/"), trim(b"new")), (&b"new"[..], &b"/"[..], &b"new"[..]));
    }
}
