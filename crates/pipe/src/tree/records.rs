//! The records in frames: directories, files and links. Everything that a peer can write is checked here, once.

use super::attributes::Attributes;
use super::format::nonsense;
use crate::Error;

/// The longest path below a root, which is the system's limit for any path.
pub const PATH_BYTES_MAX: usize = 4096;
/// The longest name in a directory (`NAME_MAX`).
pub const NAME_BYTES_MAX: usize = 255;
/// The bytes of a file's record beside its name and content.
pub const FILE_RECORD_BYTES: usize = 1 + 1 + ATTRIBUTES_BYTES + 4;
const ATTRIBUTES_BYTES: usize = 24;

/// A place in the tree: the index of a source, and the path from there, with a slash between names. The empty path
/// is the source itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TreePath<'a> {
    /// The index of the source.
    pub root: u32,
    /// The path.
    pub path: &'a [u8],
}

/// A record of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TreeRecord<'a> {
    /// The directory of the names that follow.
    Folder(TreePath<'a>),
    /// The next name is empty and means the source itself, which is no directory.
    Root(u32),
    /// A whole file.
    File {
        /// The name of the file.
        name: &'a [u8],
        /// The attributes of the file.
        attributes: Attributes,
        /// The content of the file.
        content: &'a [u8],
    },
    /// A symbolic link.
    Symlink {
        /// The name of the link.
        name: &'a [u8],
        /// The attributes of the link.
        attributes: Attributes,
        /// The target of the link.
        target: &'a [u8],
    },
    /// A FIFO.
    Fifo {
        /// The name of the FIFO.
        name: &'a [u8],
        /// The attributes of the FIFO.
        attributes: Attributes,
    },
    /// One more name of a file that was sent before (a hard link).
    Link {
        /// The name.
        name: &'a [u8],
        /// The file.
        target: TreePath<'a>,
    },
    /// The end of a directory.
    Leave {
        /// The directory.
        spot: TreePath<'a>,
        /// The attributes of the directory.
        attributes: Attributes,
    },
}

/// The beginning of a large file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LargeBegin<'a> {
    /// The directory of the file, or the file itself if it is a source, which has no name.
    pub folder: TreePath<'a>,
    /// The name of the file.
    pub name: &'a [u8],
    /// The attributes of the file.
    pub attributes: Attributes,
    /// The size; [`SIZE_UNKNOWN`] if the file is read until its end.
    pub size: u64,
    /// The number of bytes that the sink keeps of what it has.
    pub kept: u64,
    /// Whether another file of the tree has the name that the part of this file would get.
    pub is_apart: bool,
}

/// The size of a pipe or a device.
pub const SIZE_UNKNOWN: u64 = u64::MAX;

/// A file that the sink may already have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OfferedFile<'a> {
    /// The directory of the file.
    pub folder: TreePath<'a>,
    /// The name of the file.
    pub name: &'a [u8],
    /// The size of the file.
    pub size: u64,
    /// The time of modification of the file.
    pub modified: (i64, u32),
}

/// What the sink has of an offered file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SinkHas {
    /// Nothing of use.
    Nothing,
    /// A file of the same size and time.
    Same,
    /// The beginning of a file that was cut off.
    Part {
        /// The bytes of the beginning.
        bytes: u64,
        /// The XXH3-128 of the beginning.
        digest: u128,
    },
}

/// Appends a tree path.
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

/// Appends a record. The content of a file may be left out and written behind the record: then [`patch_size`] sets
/// its size.
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

/// Sets the size in a file's record, whose content begins at `content`.
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

/// True if this is a name in a directory that leads nowhere else.
pub fn is_plain_name(name: &[u8]) -> bool {
    !matches!(name, b"" | b"." | b"..")
        && name.len() <= NAME_BYTES_MAX
        && !name.iter().any(|byte| matches!(byte, b'/' | 0))
}

/// Parses values from the front of a peer's bytes.
#[derive(Clone, Copy, Debug)]
pub struct RecordParser<'a>(pub &'a [u8]);

impl<'a> RecordParser<'a> {
    /// True if nothing is left.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Takes `count` bytes.
    pub fn take(&mut self, count: usize) -> Result<&'a [u8], Error> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or_else(|| nonsense("record"))?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Error> {
        self.take(N)?.try_into().map_err(|_| nonsense("record"))
    }

    /// Takes a byte.
    pub fn byte(&mut self) -> Result<u8, Error> {
        self.array().map(|[byte]| byte)
    }

    /// Takes four bytes.
    pub fn u32(&mut self) -> Result<u32, Error> {
        self.array().map(u32::from_le_bytes)
    }

    /// Takes eight bytes.
    pub fn u64(&mut self) -> Result<u64, Error> {
        self.array().map(u64::from_le_bytes)
    }

    /// Takes sixteen bytes.
    pub fn u128(&mut self) -> Result<u128, Error> {
        self.array().map(u128::from_le_bytes)
    }

    fn long(&mut self) -> Result<&'a [u8], Error> {
        let length = self.array().map(u16::from_le_bytes)?;
        self.take(length.into())
    }

    /// Takes a tree path, which leads only down.
    pub fn spot(&mut self) -> Result<TreePath<'a>, Error> {
        let (root, path) = (self.u32()?, self.long()?);
        let is_good = path.is_empty()
            || path.len() <= PATH_BYTES_MAX && path.split(|byte| *byte == b'/').all(is_plain_name);
        if is_good { Ok(TreePath { root, path }) } else { Err(nonsense("path")) }
    }

    /// Takes a name: an empty one, or one step down.
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

    /// Takes the next record of a batch.
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

    /// Takes the beginning of a large file.
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

    /// Takes an offered file.
    pub fn offered(&mut self) -> Result<OfferedFile<'a>, Error> {
        let (folder, name, size) = (self.spot()?, self.name()?, self.u64()?);
        let seconds = self.array().map(i64::from_le_bytes)?;
        Ok(OfferedFile { folder, name, size, modified: (seconds, self.u32()?) })
    }

    /// Takes what the sink has of a file.
    pub fn had(&mut self) -> Result<SinkHas, Error> {
        Ok(match self.byte()? {
            0 => SinkHas::Nothing,
            1 => SinkHas::Same,
            2 => SinkHas::Part { bytes: self.u64()?, digest: self.u128()? },
            _ => return Err(nonsense("answer")),
        })
    }
}
