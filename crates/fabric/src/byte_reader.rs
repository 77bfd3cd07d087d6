//! Reads a peer's messages without trusting any length in them.

/// Takes numbers and bytes from the front of a message. Integers are big-endian. Each call returns `None`,
/// and takes nothing, if the message is too short.
///
/// ```
/// use caravan_fabric::byte_reader::ByteReader;
///
/// let mut reader = ByteReader::new(b"\x00\x05helloX");
/// let length = reader.u16().unwrap();
/// assert_eq!(reader.bytes(length.into()), Some(&b"hello"[..]));
/// assert_eq!((reader.u32(), reader.rest()), (None, &b"X"[..]));
/// ```
#[derive(Clone, Copy, Debug)]
pub struct ByteReader<'a> {
    rest: &'a [u8],
}

impl<'a> ByteReader<'a> {
    /// Returns a reader at the beginning of `message`.
    pub fn new(message: &'a [u8]) -> Self {
        Self { rest: message }
    }

    /// Takes the next `N` bytes.
    pub fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.rest.split_first_chunk()?;
        self.rest = rest;
        Some(*taken)
    }

    /// Takes the next `length` bytes.
    pub fn bytes(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(length)?;
        self.rest = rest;
        Some(taken)
    }

    /// Takes the next byte.
    pub fn u8(&mut self) -> Option<u8> {
        self.take().map(u8::from_be_bytes)
    }

    /// Takes the next two bytes.
    pub fn u16(&mut self) -> Option<u16> {
        self.take().map(u16::from_be_bytes)
    }

    /// Takes the next four bytes.
    pub fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_be_bytes)
    }

    /// Takes the next eight bytes.
    pub fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_be_bytes)
    }

    /// Takes all bytes that are left.
    pub fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.rest)
    }

    /// Returns the number of bytes that are left.
    pub fn remaining(&self) -> usize {
        self.rest.len()
    }

    /// True if no bytes are left.
    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }
}
