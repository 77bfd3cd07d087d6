//! What the walk hands to those who read.

use std::ffi::CString;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::fs::FileType;

use super::attributes::Attributes;
use super::complaints::shown_in;

/// A directory of a source.
#[derive(Debug)]
pub struct SourceFolder {
    /// Open for reading.
    pub fd: OwnedFd,
    /// Below which source.
    pub root: u32,
    /// The path from there.
    pub path: Vec<u8>,
    /// The source, as the user wrote it.
    pub base: Arc<[u8]>,
}

impl SourceFolder {
    /// A file in it, for people.
    pub fn shown(&self, name: &[u8]) -> String {
        shown_in(&below(&self.base, &self.path), name)
    }
}

/// Something to send.
#[derive(Debug)]
pub enum WalkItem {
    /// Anything but a directory.
    Entry {
        /// The directory that it is in.
        folder: Arc<SourceFolder>,
        /// Its name there.
        name: CString,
        /// What the directory says that it is.
        kind: FileType,
    },
    /// A source that is no directory.
    Root {
        /// Which source.
        root: u32,
        /// Its path.
        path: CString,
        /// Whether a symbolic link stands for what it leads to.
        is_followed: bool,
    },
    /// All of a directory was sent.
    Leave {
        /// Below which source.
        root: u32,
        /// The path from there.
        path: Vec<u8>,
        /// What it is like.
        attributes: Attributes,
    },
}

/// A directory to make.
#[derive(Debug)]
pub struct MadeFolder {
    /// Below which source.
    pub root: u32,
    /// The path from there.
    pub path: Vec<u8>,
    /// Its permissions.
    pub mode: u32,
    /// Its owner.
    pub owner: u32,
}

/// What one reader takes.
#[derive(Debug, Default)]
pub struct Batch {
    /// From 0; frames are sent in this order.
    pub number: u64,
    /// Directories to make first.
    pub made: Vec<MadeFolder>,
    /// What to send then.
    pub items: Vec<WalkItem>,
    /// Directories whose files are in it.
    pub folders: usize,
    /// Bytes of the paths of `made`.
    pub paths_bytes: usize,
}

/// A path and one more name behind it.
pub fn below(path: &[u8], name: &[u8]) -> Vec<u8> {
    let slash: &[u8] = if path.is_empty() || path.ends_with(b"/") || name.is_empty() { b"" } else { b"/" };
    [path, slash, name].concat()
}
