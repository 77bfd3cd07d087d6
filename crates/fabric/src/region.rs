//! Memory that is made once and lent to any number of peers.
//!
//! An endpoint's operations name **places** in the peer's memory: 64 bits, of which bits 40 to 55 are a region's
//! number, and the lower 40 an offset in that region. Number 0 is the peer's arena, so a place in the arena
//! is just an offset. The other bits are 0.
//!
//! | who | change | why |
//! |---|---|---|
//! | owner | [`lend`](crate::Endpoint::lend): the number is lent | the peer may reach the region from now on; the token says under which number |
//! | peer | [`borrow`](crate::Endpoint::borrow): its places are named by the number | it got the token, over any channel that has authenticated the owner |
//! | owner | [`revoke`](crate::Endpoint::revoke): the number is lent no more | for ever: an endpoint uses no number twice, so an old place never names other memory |

use std::sync::{Arc, Weak};

use caravan_segment::{Pages, Segment, SharedSlice};

use crate::byte_reader::ByteReader;
use crate::contract::{Error, Local, Operation, Provider};

/// The number of bits of an offset in a place.
const OFFSET_BITS: u32 = 40;
/// The number of bytes of the largest region.
pub const REGION_BYTES_MAX: u64 = 1 << OFFSET_BITS;
/// The number of times that one endpoint lends, in all its life: each takes a number that is not used again.
pub const LOANS_MAX: u16 = 4096;

/// Memory that this process lends to its peers. Clones stand for the same memory.
///
/// ```
/// use caravan_fabric::contract::{Endpoint, Local, Operation};
/// use caravan_fabric::{Region, RegionAccess, shm};
///
/// let region = Region::create("example", 4096)?;
/// region.memory().copy_in(128, b"hello");
///
/// // One region serves any number of peers.
/// let (mut owner, mut peer) = shm::pair(4096)?;
/// let token = owner.lend(&region, RegionAccess::Read)?;
/// // The token travels to the peer, in any message.
/// let number = peer.borrow(&token)?;
/// let into = Local { offset: 0, bytes: 5 };
/// peer.post(Operation::Read { from: number.place(128), into, context: 0 })?;
/// peer.doorbell()?;
/// # let mut events = Vec::new();
/// while peer.poll(&mut events, 16)? == 0 {}
/// let mut bytes = [0; 5];
/// peer.arena().copy_out(0, &mut bytes);
/// assert_eq!(&bytes, b"hello");
/// # Ok::<(), caravan_fabric::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Region {
    memory: SharedSlice,
    /// Shared by all clones.
    identity: Arc<()>,
}

impl Region {
    /// Makes a region of `bytes` bytes, all zero, with all of its memory. `name` appears in `/proc/PID/fd`.
    pub fn create(name: &str, bytes: u64) -> Result<Self, Error> {
        if bytes % 8 != 0 || !(8..=REGION_BYTES_MAX).contains(&bytes) {
            return Err(Error::ArenaBytes { bytes, maximum: REGION_BYTES_MAX });
        }
        let segment = Arc::new(Segment::create(name, bytes, Pages::Small)?);
        segment.grow(bytes)?;
        Self::of_segment(&segment)
    }

    /// Makes a region of a segment that has all of its memory.
    pub fn of_segment(segment: &Arc<Segment>) -> Result<Self, Error> {
        let bytes = segment.maximum_bytes();
        if bytes % 8 != 0 || bytes > REGION_BYTES_MAX {
            return Err(Error::ArenaBytes { bytes, maximum: REGION_BYTES_MAX });
        }
        Ok(Self::of_memory(segment.slice(0, bytes)?))
    }

    /// Makes a region of a part of a segment, for a segment that grows. Only over mapped memory, where a
    /// descriptor is of a whole segment, must the part be all of it.
    pub fn of_memory(memory: SharedSlice) -> Self {
        Self { memory, identity: Arc::new(()) }
    }

    /// Returns the memory.
    pub fn memory(&self) -> &SharedSlice {
        &self.memory
    }

    /// Returns the number of bytes.
    pub fn bytes(&self) -> u64 {
        self.memory.bytes()
    }

    /// Returns what tells this region from every other one, and whether it still exists.
    pub(crate) fn downgrade(&self) -> Weak<()> {
        Arc::downgrade(&self.identity)
    }

    /// True if `other` was made from this region or from a clone of it.
    pub(crate) fn is(&self, other: &Weak<()>) -> bool {
        std::ptr::eq(Arc::as_ptr(&self.identity), other.as_ptr())
    }
}

/// What a peer may do with a region that it is lent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RegionAccess {
    /// It may read.
    Read,
    /// It may read, write, and compare and swap.
    Write,
}

/// The name of a region between two endpoints: 1 to [`LOANS_MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RegionNumber(u16);

impl RegionNumber {
    /// Returns the place of the byte at `offset` in the region. An offset behind the largest region gives a place
    /// that no operation takes.
    pub fn place(self, offset: u64) -> u64 {
        if offset < REGION_BYTES_MAX { u64::from(self.0) << OFFSET_BITS | offset } else { u64::MAX }
    }

    /// Returns the number's index in a table of what an endpoint lends.
    pub(crate) fn index(self) -> usize {
        usize::from(self.0) - 1
    }

    pub(crate) fn new(number: u16) -> Option<Self> {
        (1..=LOANS_MAX).contains(&number).then_some(Self(number))
    }
}

impl std::fmt::Display for RegionNumber {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(formatter)
    }
}

/// True if a place is not in the arena.
#[inline]
pub(crate) fn is_far(place: u64) -> bool {
    place >> OFFSET_BITS != 0
}

/// Splits a place outside the arena. `None` if no region can have it.
pub(crate) fn split(place: u64) -> Option<(RegionNumber, u64)> {
    let number = u16::try_from(place >> OFFSET_BITS).ok().and_then(RegionNumber::new)?;
    Some((number, place & (REGION_BYTES_MAX - 1)))
}

/// What a peer needs to borrow a region. Whoever has it, on the other end of the same connection, may use the region
/// as it says; it opens nothing to anybody else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionToken {
    pub(crate) number: RegionNumber,
    pub(crate) access: RegionAccess,
    pub(crate) bytes: u64,
    /// The address and the key of the region at the owner's device, if it has one.
    pub(crate) address: u64,
    pub(crate) key: u32,
}

impl RegionToken {
    /// The number of bytes of a token in a message.
    pub const BYTES: usize = 2 + 1 + 8 + 8 + 4;

    /// Returns the bytes for a message to the peer: number, access, bytes, address, key; big-endian.
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..2].copy_from_slice(&self.number.0.to_be_bytes());
        bytes[2] = match self.access {
            RegionAccess::Read => 1,
            RegionAccess::Write => 2,
        };
        bytes[3..11].copy_from_slice(&self.bytes.to_be_bytes());
        bytes[11..19].copy_from_slice(&self.address.to_be_bytes());
        bytes[19..].copy_from_slice(&self.key.to_be_bytes());
        bytes
    }

    /// Parses the bytes of a peer's message. `None` if they are no token.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let mut reader = ByteReader::new(bytes);
        let number = RegionNumber::new(reader.u16()?)?;
        let access = match reader.u8()? {
            1 => RegionAccess::Read,
            2 => RegionAccess::Write,
            _ => return None,
        };
        let token = Self { number, access, bytes: reader.u64()?, address: reader.u64()?, key: reader.u32()? };
        (reader.is_empty() && (1..=REGION_BYTES_MAX).contains(&token.bytes)).then_some(token)
    }

    /// Returns the number under which the region is lent.
    pub fn number(&self) -> RegionNumber {
        self.number
    }

    /// Returns the number of bytes of the region.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// The regions that an endpoint lends, or has borrowed, by their numbers. Numbers only grow; a number whose region
/// is gone stays empty.
#[derive(Debug)]
pub(crate) struct RegionTable<T> {
    rows: Vec<Option<T>>,
}

impl<T> Default for RegionTable<T> {
    fn default() -> Self {
        Self { rows: Vec::new() }
    }
}

impl<T> RegionTable<T> {
    /// Returns the number that the next loan has.
    pub(crate) fn next(&self) -> Result<RegionNumber, Error> {
        let number = u16::try_from(self.rows.len() + 1).ok().and_then(RegionNumber::new);
        number.ok_or(Error::Loans { maximum: LOANS_MAX })
    }

    pub(crate) fn insert(&mut self, number: RegionNumber, row: T) {
        if self.rows.len() <= number.index() {
            self.rows.resize_with(number.index() + 1, || None);
        }
        self.rows[number.index()] = Some(row);
    }

    pub(crate) fn row(&self, number: RegionNumber) -> Option<&T> {
        self.rows.get(number.index())?.as_ref()
    }

    /// Takes a row out; its number is not used again.
    pub(crate) fn remove(&mut self, number: RegionNumber) -> Option<T> {
        self.rows.get_mut(number.index())?.take()
    }

    /// Takes a row out for [`Endpoint::revoke`](crate::Endpoint::revoke).
    pub(crate) fn revoke(&mut self, number: RegionNumber) -> Result<T, Error> {
        self.remove(number).ok_or(Error::NoRegion { what: "revoke", number, why: "is not lent" })
    }

    /// Takes the last row out.
    pub(crate) fn pop(&mut self) -> Option<T> {
        loop {
            if let Some(row) = self.rows.pop()? {
                return Some(row);
            }
        }
    }
}

/// The bounds of a borrowed region, against which a backend checks an operation before it starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BorrowedBounds {
    pub(crate) bytes: u64,
    pub(crate) access: RegionAccess,
}

impl BorrowedBounds {
    pub(crate) fn of(token: &RegionToken) -> Self {
        Self { bytes: token.bytes, access: token.access }
    }
}

/// The place in the peer's memory that an operation names, and its number of bytes.
pub(crate) fn target(operation: &Operation) -> (u64, u64) {
    match *operation {
        Operation::Write { from: Local { bytes, .. }, to, .. } => (to, bytes.into()),
        Operation::Read { from, into: Local { bytes, .. }, .. } => (from, bytes.into()),
        Operation::CompareAndSwap { at, .. } => (at, 8),
    }
}

/// Returns an operation like `operation` at another place.
pub(crate) fn moved(operation: Operation, place: u64) -> Operation {
    match operation {
        Operation::Write { from, immediate, context, .. } => {
            Operation::Write { from, to: place, immediate, context }
        }
        Operation::Read { into, context, .. } => Operation::Read { from: place, into, context },
        Operation::CompareAndSwap { expected, desired, context, .. } => {
            Operation::CompareAndSwap { at: place, expected, desired, context }
        }
    }
}

/// Refuses an operation that the access of a loan does not allow: a programming error of this side.
pub(crate) fn check_access(
    number: RegionNumber,
    access: RegionAccess,
    operation: &Operation,
) -> Result<(), Error> {
    let what = match operation {
        Operation::Read { .. } => return Ok(()),
        Operation::Write { .. } => "write",
        Operation::CompareAndSwap { .. } => "compare-and-swap",
    };
    match access {
        RegionAccess::Write => Ok(()),
        RegionAccess::Read => Err(Error::NoRegion { what, number, why: "was lent for reading only" }),
    }
}

/// Returns the error for a place of a region that is not borrowed.
pub(crate) fn not_borrowed(number: RegionNumber) -> Error {
    Error::NoRegion { what: "an operation", number, why: "is not borrowed" }
}

/// Returns the error for a place that no region can have.
pub(crate) fn no_place(place: u64) -> Error {
    Error::OutOfArena { what: "an operation", offset: place, bytes: 0, arena_bytes: REGION_BYTES_MAX }
}

/// Returns the error for a token that its peer cannot have made.
pub(crate) fn wrong_token(provider: Provider) -> Error {
    Error::Protocol(provider, "its token does not fit what it has lent".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_have_a_number_and_an_offset() {
        let number = RegionNumber::new(7).unwrap();
        assert_eq!(split(number.place(0x12_3456_7890)), Some((number, 0x12_3456_7890)));
        assert!(is_far(number.place(0)) && !is_far(REGION_BYTES_MAX - 1));
        let beyond = [number.place(REGION_BYTES_MAX), u64::MAX, 1 << 56, (u64::from(LOANS_MAX) + 1) << 40];
        assert_eq!(beyond.map(split), [None; 4]);
    }

    #[test]
    fn tokens_survive_the_wire_and_nothing_else_is_one() {
        let number = RegionNumber::new(LOANS_MAX).unwrap();
        let token = RegionToken { number, access: RegionAccess::Write, bytes: 1 << 40, address: 77, key: 9 };
        let bytes = token.to_bytes();
        assert_eq!(RegionToken::from_bytes(&bytes), Some(token));
        for length in 0..bytes.len() {
            assert_eq!(RegionToken::from_bytes(&bytes[..length]), None);
        }
        assert_eq!(RegionToken::from_bytes(&[&bytes[..], b"x"].concat()), None);
        for (at, value) in [(0, 0xff), (2, 0), (2, 3), (3, 0xff)] {
            let mut wrong = bytes;
            wrong[at] = value;
            assert_eq!(RegionToken::from_bytes(&wrong), None, "byte {at}");
        }
    }

    #[test]
    fn numbers_are_not_used_twice() {
        let mut table = RegionTable::default();
        for number in 1..=LOANS_MAX {
            let next = table.next().unwrap();
            assert_eq!(next.0, number);
            table.insert(next, ());
            table.revoke(next).unwrap();
            assert!(table.revoke(next).is_err());
        }
        assert!(matches!(table.next(), Err(Error::Loans { .. })));
    }

    #[test]
    fn regions_have_sizes_that_fit() {
        for bytes in [0, 7, 4097, REGION_BYTES_MAX + 8] {
            assert!(matches!(Region::create("caravan-test", bytes), Err(Error::ArenaBytes { .. })));
        }
        let sparse = Arc::new(Segment::create("caravan-test", 4096, Pages::Small).unwrap());
        assert!(Region::of_segment(&sparse).is_err());
    }
}
