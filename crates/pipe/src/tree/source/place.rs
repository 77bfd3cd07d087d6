//! A file that is to be sent: where it is, and what the sink knows it by.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use rustix::fs::{AtFlags, CWD, Stat};
use rustix::io::Errno;

use super::super::batch::SourceFolder;
use super::super::complaints::shown;
use super::super::records::TreePath;

/// A file that is to be sent.
#[derive(Clone, Copy, Debug)]
pub struct SourceFile<'a> {
    pub(super) folder: Option<&'a Arc<SourceFolder>>,
    pub(super) root: u32,
    /// Its name in the folder, or its whole path.
    pub(super) name: &'a CStr,
    pub(super) is_followed: bool,
}

impl<'a> SourceFile<'a> {
    /// The directory.
    pub(super) fn fd(&self) -> BorrowedFd<'a> {
        self.folder.map_or(CWD, |folder| folder.fd.as_fd())
    }

    pub(super) fn spot(&self) -> TreePath<'a> {
        TreePath { root: self.root, path: self.folder.map_or(b"", |folder| &folder.path) }
    }

    /// As the sink has to know it: nothing for a source itself, which it has a name for.
    pub(super) fn sent_name(&self) -> &'a [u8] {
        if self.folder.is_some() { self.name.to_bytes() } else { b"" }
    }

    pub(super) fn shown(&self) -> String {
        self.folder.map_or_else(|| shown(self.name.to_bytes()), |folder| folder.shown(self.name.to_bytes()))
    }

    pub(super) fn stat(&self) -> Result<Stat, Errno> {
        let flags = if self.is_followed { AtFlags::empty() } else { AtFlags::SYMLINK_NOFOLLOW };
        rustix::fs::statat(self.fd(), self.name, flags)
    }

    pub(super) fn path(&self) -> Vec<u8> {
        match self.folder {
            None => Vec::new(),
            Some(folder) if folder.path.is_empty() => self.name.to_bytes().to_vec(),
            Some(folder) => [&folder.path, &b"/"[..], self.name.to_bytes()].concat(),
        }
    }
}

/// The name under which the sink keeps what is not complete, as far as that can be in a tree, too.
pub(super) fn part_name(name: &CStr) -> Option<CString> {
    CString::new(super::super::part_name(name.to_bytes())).ok()
}
