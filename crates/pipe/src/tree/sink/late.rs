//! What is done once all that was sent before it is written: further names of files, and the permissions
//! and times of directories.

use std::collections::BTreeMap;
use std::sync::Mutex;

use rustix::fs::AtFlags;
use rustix::io::Errno;

use super::super::attributes::Attributes;
use super::super::records::Spot;
use super::Shared;

/// Something that waits.
#[derive(Debug)]
pub enum Deed {
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
pub struct Late(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// All before this one are done, and their deeds.
    next: u64,
    done: BTreeMap<u64, Vec<Deed>>,
}

impl Late {
    /// Frame `number` is done. Does all deeds whose time has come.
    pub fn complete(&self, number: u64, deeds: Vec<Deed>, shared: &Shared<'_>) {
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

impl Deed {
    fn run(&self, shared: &Shared<'_>) {
        match self {
            Self::Leave { root, path, attributes } => {
                let spot = Spot { root: *root, path };
                let given =
                    shared.targets.folder(spot).and_then(|folder| shared.giver.give(&folder, attributes));
                if let Err(error) = given {
                    let shown = shared.targets.shown(spot, b"");
                    let sentence =
                        format!("cannot set permissions and times of the directory {shown}: {error}");
                    shared.complaints.fail(&sentence);
                }
            }
            Self::Link { root, folder, name, target_root, target } => {
                let target = Spot { root: *target_root, path: target };
                let spot = Spot { root: *root, path: folder.as_deref().unwrap_or(b"") };
                if let Err(error) = link(shared, spot, folder.is_some(), name, target) {
                    let (shown, target) =
                        (shared.targets.shown(spot, name), shared.targets.shown(target, b""));
                    shared.complaints.fail(&format!("cannot make {shown} a link to {target}: {error}"));
                }
            }
        }
    }
}

fn link(
    shared: &Shared<'_>,
    spot: Spot<'_>,
    is_in_folder: bool,
    name: &[u8],
    target: Spot<'_>,
) -> Result<(), Errno> {
    let (from, from_name) = shared.targets.file(target)?;
    let (folder, name) = match is_in_folder {
        true => (shared.targets.folder(spot)?, name.to_vec()),
        false => shared.targets.file(spot)?,
    };
    match rustix::fs::linkat(&from, &from_name, &folder, &name, AtFlags::empty()) {
        Err(Errno::EXIST) => {}
        linked => return linked,
    }
    let temporary = shared.temporary("link");
    rustix::fs::linkat(&from, &from_name, &folder, &temporary, AtFlags::empty())?;
    let renamed = rustix::fs::renameat(&folder, &temporary, &folder, &name);
    // It stays where both are the same file already.
    match rustix::fs::unlinkat(&folder, &temporary, AtFlags::empty()) {
        Err(Errno::NOENT) | Ok(()) => renamed,
        Err(error) => renamed.and(Err(error)),
    }
}
