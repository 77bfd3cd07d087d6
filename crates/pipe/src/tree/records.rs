//! What is in frames: records of directories, files and links. Whatever a peer can write is checked here, once.

use super::attributes::Attributes;
use super::format::nonsense;
use crate::Error;

/// The longest path below a root, as the system has it for any path.
pub const PATH_BYTES_MAX: usize = 4096;
/// The longest name in a directory (`NAME_MAX`).
pub const NAME_BYTES_MAX: usize = 255;
/// Bytes that the record of a file takes beside its name and content.
pub const FILE_RECORD_BYTES: usize = 1 + 1 + ATTRIBUTES_BYTES + 4;
const ATTRIBUTES_BYTES: usize = 24;

/// A place in the tree: below which of the sources, and the path from there, with a slash between names.
/// No path stands for the source itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TreePath<'a> {
    /// Which source.
    pub root: u32,
    /// The path.
    pub path: &'a [u8],
}

/// A record of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TreeRecord<'a> {
    /// The names that follow are in this directory.
    Folder(TreePath<'a>),
    /// The next name is empty, and stands for the source itself.
    Root(u32),
    /// A whole file.
    File {
        /// Its name.
        name: &'a [u8],
        /// What it is like.
        attributes: Attributes,
        /// What is in it.
        content: &'a [u8],
    },
    /// A symbolic link.
    Symlink {
        /// Its name.
        name: &'a [u8],
        /// What it is like.
        attributes: Attributes,
        /// Where it leads.
        target: &'a [u8],
    },
    /// A FIFO.
    Fifo {
        /// Its name.
        name: &'a [u8],
        /// What it is like.
        attributes: Attributes,
    },
    /// One more name of a file that was sent before.
    Link {
        /// The name.
        name: &'a [u8],
        /// The file.
        target: TreePath<'a>,
    },
    /// All of this directory was sent.
    Leave {
        /// Which.
        spot: TreePath<'a>,
        /// What it is like.
        attributes: Attributes,
    },
}

/// The beginning of a large file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LargeBegin<'a> {
    /// The directory that it is in, or the file itself where it is a source and has no name.
    pub folder: TreePath<'a>,
    /// Its name.
    pub name: &'a [u8],
    /// What it is like.
    pub attributes: Attributes,
    /// Its size; [`SIZE_UNKNOWN`] where it is read until its end.
    pub size: u64,
    /// The first so many bytes are kept from what is there.
    pub kept: u64,
    /// Another file of the tree has the name that a half-written file would get.
    pub is_apart: bool,
}

/// Of a pipe or a device.
pub const SIZE_UNKNOWN: u64 = u64::MAX;

/// A file that the sink may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OfferedFile<'a> {
    /// The directory that it is in.
    pub folder: TreePath<'a>,
    /// Its name.
    pub name: &'a [u8],
    /// Its size.
    pub size: u64,
    /// Its time of modification.
    pub modified: (i64, u32),
}

/// What the sink has of an offered file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SinkHas {
    /// Nothing of use.
    Nothing,
    /// A file of that size and time.
    Same,
    /// The beginning of a file that was cut off.
    Part {
        /// How much.
        bytes: u64,
        /// Its XXH3-128.
        digest: u128,
    },
}

/// Appends a place.
pub fn put_spot(to: &mut Vec<u8>, spot: TreePath<'_>) {
    to.extend_from_slice(&spot.root.to_le_bytes());
    put_long(to, spot.path);
}

fn put_name(to: &mut Vec<u8>, name: &[u8]) {
    to.push(name.len() as u8);
    to.extend_from_slice(name);
}

fn put_long(to: &mut Vec<u8>, bytes: &[u8]) {
    to.extend_from_slice(&(bytes.len() as u16).to_le_bytes());
    to.extend_from_slice(bytes);
}

fn put_attributes(to: &mut Vec<u8>, attributes: &Attributes) {
    for field in [attributes.mode, attributes.owner, attributes.group, attributes.nanoseconds] {
        to.extend_from_slice(&field.to_le_bytes());
    }
    to.extend_from_slice(&attributes.seconds.to_le_bytes());
}

/// Appends a record. The content of a file may be left out, and be written behind it: [`patch_size`] says
/// then how much it was.
pub fn put(to: &mut Vec<u8>, record: &TreeRecord<'_>) {
    match record {
        TreeRecord::Folder(spot) => {
            to.push(b'D');
            put_spot(to, *spot);
        }
        TreeRecord::Root(root) => {
            to.push(b'R');
            to.extend_from_slice(&root.to_le_bytes());
        }
        TreeRecord::File { name, attributes, content } => {
            to.push(b'F');
            put_name(to, name);
            put_attributes(to, attributes);
            to.extend_from_slice(&(content.len() as u32).to_le_bytes());
            to.extend_from_slice(content);
        }
        TreeRecord::Symlink { name, attributes, target } => {
            to.push(b'S');
            put_name(to, name);
            put_attributes(to, attributes);
            put_long(to, target);
        }
        TreeRecord::Fifo { name, attributes } => {
            to.push(b'P');
            put_name(to, name);
            put_attributes(to, attributes);
        }
        TreeRecord::Link { name, target } => {
            to.push(b'H');
            put_name(to, name);
            put_spot(to, *target);
        }
        TreeRecord::Leave { spot, attributes } => {
            to.push(b'L');
            put_spot(to, *spot);
            put_attributes(to, attributes);
        }
    }
}

/// Sets the size of a file's record whose content begins at `content`.
pub fn patch_size(to: &mut [u8], content: usize) {
    let size = to.len().saturating_sub(content) as u32;
    if let Some(field) = content.checked_sub(4).and_then(|start| to.get_mut(start..content)) {
        field.copy_from_slice(&size.to_le_bytes());
    }
}

/// Appends the beginning of a large file.
pub fn put_begin(to: &mut Vec<u8>, begin: &LargeBegin<'_>) {
    put_spot(to, begin.folder);
    put_name(to, begin.name);
    put_attributes(to, &begin.attributes);
    to.extend_from_slice(&begin.size.to_le_bytes());
    to.extend_from_slice(&begin.kept.to_le_bytes());
    to.push(begin.is_apart.into());
}

/// Appends an offered file.
pub fn put_offered(to: &mut Vec<u8>, offered: &OfferedFile<'_>) {
    put_spot(to, offered.folder);
    put_name(to, offered.name);
    to.extend_from_slice(&offered.size.to_le_bytes());
    to.extend_from_slice(&offered.modified.0.to_le_bytes());
    to.extend_from_slice(&offered.modified.1.to_le_bytes());
}

/// Appends what the sink has of a file.
pub fn put_had(to: &mut Vec<u8>, had: SinkHas) {
    match had {
        SinkHas::Nothing => to.push(0),
        SinkHas::Same => to.push(1),
        SinkHas::Part { bytes, digest } => {
            to.push(2);
            to.extend_from_slice(&bytes.to_le_bytes());
            to.extend_from_slice(&digest.to_le_bytes());
        }
    }
}

/// Whether this is a name in a directory, and no way out of it.
pub fn is_plain_name(name: &[u8]) -> bool {
    !matches!(name, b"" | b"." | b"..")
        && name.len() <= NAME_BYTES_MAX
        && !name.iter().any(|byte| matches!(byte, b'/' | 0))
}

/// Takes values from the front of what a peer has sent.
#[derive(Clone, Copy, Debug)]
pub struct RecordParser<'a>(pub &'a [u8]);

impl<'a> RecordParser<'a> {
    /// Whether nothing is left.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// So many bytes.
    pub fn take(&mut self, count: usize) -> Result<&'a [u8], Error> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or_else(|| nonsense("record"))?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Error> {
        self.take(N)?.try_into().map_err(|_| nonsense("record"))
    }

    /// A byte.
    pub fn byte(&mut self) -> Result<u8, Error> {
        self.array().map(|[byte]| byte)
    }

    /// Four bytes.
    pub fn u32(&mut self) -> Result<u32, Error> {
        self.array().map(u32::from_le_bytes)
    }

    /// Eight bytes.
    pub fn u64(&mut self) -> Result<u64, Error> {
        self.array().map(u64::from_le_bytes)
    }

    /// Sixteen bytes.
    pub fn u128(&mut self) -> Result<u128, Error> {
        self.array().map(u128::from_le_bytes)
    }

    fn long(&mut self) -> Result<&'a [u8], Error> {
        let length = self.array().map(u16::from_le_bytes)?;
        self.take(length.into())
    }

    /// A place: no part of its path leads up, or anywhere but down.
    pub fn spot(&mut self) -> Result<TreePath<'a>, Error> {
        let (root, path) = (self.u32()?, self.long()?);
        let is_good = path.is_empty()
            || path.len() <= PATH_BYTES_MAX && path.split(|byte| *byte == b'/').all(is_plain_name);
        if is_good { Ok(TreePath { root, path }) } else { Err(nonsense("path")) }
    }

    /// A name: nothing at all, or one step down.
    fn name(&mut self) -> Result<&'a [u8], Error> {
        let length = self.byte()?;
        let name = self.take(length.into())?;
        if name.is_empty() || is_plain_name(name) { Ok(name) } else { Err(nonsense("name")) }
    }

    fn attributes(&mut self) -> Result<Attributes, Error> {
        let (mode, owner, group, nanoseconds) = (self.u32()?, self.u32()?, self.u32()?, self.u32()?);
        let seconds = self.array().map(i64::from_le_bytes)?;
        let attributes = Attributes { mode, owner, group, seconds, nanoseconds };
        if attributes.is_possible() { Ok(attributes) } else { Err(nonsense("mode or time")) }
    }

    /// The next record of a batch.
    pub fn record(&mut self) -> Result<TreeRecord<'a>, Error> {
        Ok(match self.byte()? {
            b'D' => TreeRecord::Folder(self.spot()?),
            b'R' => TreeRecord::Root(self.u32()?),
            b'F' => {
                let (name, attributes, length) = (self.name()?, self.attributes()?, self.u32()?);
                TreeRecord::File { name, attributes, content: self.take(length as usize)? }
            }
            b'S' => {
                let (name, attributes, target) = (self.name()?, self.attributes()?, self.long()?);
                if target.is_empty() || target.len() > PATH_BYTES_MAX || target.contains(&0) {
                    return Err(nonsense("symbolic link"));
                }
                TreeRecord::Symlink { name, attributes, target }
            }
            b'P' => TreeRecord::Fifo { name: self.name()?, attributes: self.attributes()? },
            b'H' => TreeRecord::Link { name: self.name()?, target: self.spot()? },
            b'L' => TreeRecord::Leave { spot: self.spot()?, attributes: self.attributes()? },
            _ => return Err(nonsense("record")),
        })
    }

    /// The beginning of a large file.
    pub fn begin(&mut self) -> Result<LargeBegin<'a>, Error> {
        let begin = LargeBegin {
            folder: self.spot()?,
            name: self.name()?,
            attributes: self.attributes()?,
            size: self.u64()?,
            kept: self.u64()?,
            is_apart: self.byte()? != 0,
        };
        let is_good = begin.size == SIZE_UNKNOWN || begin.size <= i64::MAX as u64;
        if is_good && begin.kept <= begin.size { Ok(begin) } else { Err(nonsense("size of a file")) }
    }

    /// A file on offer.
    pub fn offered(&mut self) -> Result<OfferedFile<'a>, Error> {
        let (folder, name, size) = (self.spot()?, self.name()?, self.u64()?);
        let seconds = self.array().map(i64::from_le_bytes)?;
        Ok(OfferedFile { folder, name, size, modified: (seconds, self.u32()?) })
    }

    /// What the sink has of a file.
    pub fn had(&mut self) -> Result<SinkHas, Error> {
        Ok(match self.byte()? {
            0 => SinkHas::Nothing,
            1 => SinkHas::Same,
            2 => SinkHas::Part { bytes: self.u64()?, digest: self.u128()? },
            _ => return Err(nonsense("answer")),
        })
    }
}
