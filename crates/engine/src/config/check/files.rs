//! Files that several apps use.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use super::{ConfigCheck, ConfigPart, shown, visible};
use crate::app::FileUse;

/// What tells one file from all others, whatever paths lead to it.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Identity {
    /// Its device and inode.
    There(u64, u64),
    /// Those of the folder that it is not in yet, and its name there.
    Missing(u64, u64, OsString),
}

impl ConfigCheck<'_> {
    /// Finds apps that write a file which another app uses.
    pub(super) fn files(&mut self) {
        let mut users: BTreeMap<Identity, Vec<(&str, FileUse)>> = BTreeMap::new();
        let config = self.config;
        for (name, app) in &config.apps {
            let kind = self.registry.kind(&app.kind);
            for file in kind.map(|kind| (kind.files)(&app.config)).unwrap_or_default() {
                if let Some(identity) = identity(&file.path) {
                    users.entry(identity).or_default().push((name, file));
                }
            }
        }
        for users in users.values() {
            let Some((writer, file)) = users.iter().find(|(_, file)| file.is_written) else { continue };
            for (other, theirs) in users.iter().filter(|(other, _)| other != writer) {
                let does = if theirs.is_written { "writes" } else { "reads" };
                let text = format!(
                    "app `{}`: file = \"{}\": app `{}` {does} the same file: write to another one",
                    shown(writer),
                    visible(&file.path.display().to_string()),
                    shown(other)
                );
                self.find(ConfigPart::App((*writer).to_owned()), text);
            }
        }
    }
}

/// `None` for what is no file of its own, such as `/dev/null`, and for what cannot be looked at.
fn identity(path: &Path) -> Option<Identity> {
    if let Ok(file) = path.metadata() {
        let is_device = file.file_type().is_char_device();
        return (!is_device).then(|| Identity::There(file.dev(), file.ino()));
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let folder = folder.metadata().ok()?;
    Some(Identity::Missing(folder.dev(), folder.ino(), path.file_name()?.to_owned()))
}
