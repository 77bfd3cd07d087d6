//! What is done once all that was sent before it is written: further names of files, and the permissions
//! and times of directories.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Mutex;

use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use rustix::io::Errno;

use super::super::attributes::Attributes;
use super::super::records::TreePath;
use super::super::trust::is_own;
use super::SinkShared;
use super::held::{Standing, split};

/// Something that waits.
#[derive(Debug)]
pub enum LateStep {
    /// One more name.
    Link {
        /// Below which source.
        root: u32,
        /// The directory; nothing for a source itself.
        folder: Option<Vec<u8>>,
        /// The name in it.
        name: Vec<u8>,
        /// Below which source the file is.
        target_root: u32,
        /// The file.
        target: Vec<u8>,
    },
    /// All of a directory was sent.
    Leave {
        /// Below which source.
        root: u32,
        /// Which.
        path: Vec<u8>,
        /// What it is to be like.
        attributes: Attributes,
    },
}

/// Counts frames that are done. There are never more in it than frames under way.
#[derive(Debug, Default)]
pub struct Late(Mutex<LateState>);

#[derive(Debug, Default)]
struct LateState {
    /// All before this one are done, and their deeds.
    next: u64,
    done: BTreeMap<u64, Vec<LateStep>>,
}

impl Late {
    /// Frame `number` is done. Does all deeds whose time has come.
    pub fn complete(&self, number: u64, deeds: Vec<LateStep>, shared: &SinkShared<'_>) {
        let mut state = self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        state.done.insert(number, deeds);
        loop {
            let next = state.next;
            let Some(deeds) = state.done.remove(&next) else { return };
            // Under the lock: they have an order among themselves.
            deeds.iter().for_each(|deed| deed.run(shared));
            state.next += 1;
        }
    }
}

impl LateStep {
    fn run(&self, shared: &SinkShared<'_>) {
        match self {
            Self::Leave { root, path, attributes } => {
                let spot = TreePath { root: *root, path };
                if let Err(error) = leave(shared, spot, attributes) {
                    let shown = shared.targets.shown(spot, b"");
                    let sentence =
                        format!("cannot set permissions and times of the directory {shown}: {error}");
                    shared.complaints.fail(&sentence);
                }
            }
            Self::Link { root, folder, name, target_root, target } => {
                let target = TreePath { root: *target_root, path: target };
                let spot = TreePath { root: *root, path: folder.as_deref().unwrap_or(b"") };
                if let Err(error) = link(shared, spot, folder.is_some(), name, target) {
                    let (shown, target) =
                        (shared.targets.shown(spot, name), shared.targets.shown(target, b""));
                    shared.complaints.fail(&format!("cannot make {shown} a link to {target}: {error}"));
                }
            }
        }
    }
}

/// Gives a directory its attributes. One that another user may have put there gets neither an owner nor
/// permissions that it does not have.
fn leave(shared: &SinkShared<'_>, spot: TreePath<'_>, attributes: &Attributes) -> io::Result<()> {
    let held = shared.targets.leave(spot)?;
    if held.standing != Standing::Kept {
        shared.giver.give(&held.fd, attributes)?;
        if shared.is_synced {
            rustix::fs::fsync(&held.fd)?;
        }
        return Ok(());
    }
    if shared.giver.is_given(&rustix::fs::fstat(&held.fd)?, attributes) {
        return Ok(shared.giver.give_times(&held.fd, attributes)?);
    }
    Err(io::Error::other(
        "it was there already, where another user can change names, and keeps its own. Set them with chown and \
         chmod, or remove it before the copy",
    ))
}

fn link(
    shared: &SinkShared<'_>,
    spot: TreePath<'_>,
    is_in_folder: bool,
    name: &[u8],
    target: TreePath<'_>,
) -> Result<(), Errno> {
    let (from, from_name) = shared.targets.file(target)?;
    let (folder, name) = match is_in_folder {
        true => (shared.targets.folder(spot)?, name.to_vec()),
        false => shared.targets.file(spot)?,
    };
    // Where another user can change names, what has the name now is held while it is looked at.
    let held =
        if shared.targets.is_private(above(target)) { None } else { Some(hold(&from, &from_name, &folder)?) };
    let add = |name: &[u8]| match &held {
        None => rustix::fs::linkat(&from, &from_name, &folder, name, AtFlags::empty()),
        Some(fd) => {
            let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
            rustix::fs::linkat(CWD, path, &folder, name, AtFlags::SYMLINK_FOLLOW)
        }
    };
    match add(&name) {
        Err(Errno::EXIST) => {}
        linked => return linked,
    }
    let temporary = shared.temporary("link");
    add(&temporary)?;
    let renamed = rustix::fs::renameat(&folder, &temporary, &folder, &name);
    // It stays where both are the same file already.
    match rustix::fs::unlinkat(&folder, &temporary, AtFlags::empty()) {
        Err(Errno::NOENT) | Ok(()) => renamed,
        Err(error) => renamed.and(Err(error)),
    }
}

/// The directory that a file is in.
fn above(file: TreePath<'_>) -> TreePath<'_> {
    TreePath { root: file.root, path: split(file.path).0 }
}

/// Opens a file without reading it. It has to be this user's, or of whom the directory is that gets one more
/// name for it: no other user's file gets there.
fn hold(from: &OwnedFd, name: &[u8], to: &OwnedFd) -> Result<OwnedFd, Errno> {
    let fd =
        rustix::fs::openat(from, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    let stat = rustix::fs::fstat(&fd)?;
    if is_own(&stat) || stat.st_uid == rustix::fs::fstat(to)?.st_uid { Ok(fd) } else { Err(Errno::STALE) }
}
