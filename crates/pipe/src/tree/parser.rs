//! Reads records. Whatever a peer can write is checked here, once.

use super::attributes::Attributes;
use super::format::nonsense;
use super::records::{
    LargeBegin, OfferedFile, PATH_BYTES_MAX, SIZE_UNKNOWN, SinkHas, TreePath, TreeRecord, is_plain_name,
};
use crate::Error;

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
