//! The packet header: one word in front of each packet that names its owner.
//!
//! | bits | hold |
//! |---|---|
//! | 0..16 | the owner |
//! | 16..32 | what the owner uses it for |
//! | 32..48 | where the data starts, in bytes from the packet's start |
//! | 48..64 | bytes of data |
//!
//! Only the owner writes the word: giving a packet away is the owner's last store to it.
//!
//! | who | change | why |
//! |---|---|---|
//! | supervisor | pool to worker | the worker asked for packets, or starts |
//! | worker | worker to link, full | it sends the packet to another process |
//! | worker | link, full, to worker | it received the packet |
//! | worker | worker to link, empty | it gives an empty packet back for one received |
//! | worker | link, empty, to worker | it took the empty packet |
//! | worker | worker to link, parked | the packet waits at an end of the link that moves away |
//! | worker | link, parked, to worker | that end has come here |
//! | worker | worker to pool | it has far more than it needs |
//! | supervisor | dead worker to pool, or kept for its successor | it reaped the process |
//! | supervisor | link to pool, or to the successor of a dead worker | the dead process had written the word, but not published the packet; or the link is gone |
//!
//! Nothing else may happen. A link between two apps of one process never appears here: its
//! packets belong to the worker.

use crate::limits::{LINKS_MAX, WORKERS_MAX};

/// A worker's number: its place in the table of workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WorkerId(u16);

/// A link's number: its place in the table of links.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
pub struct LinkId(u16);

impl WorkerId {
    /// Returns `None` if there is no such place.
    pub fn new(place: usize) -> Option<Self> {
        (place < WORKERS_MAX).then_some(Self(place as u16))
    }

    /// Returns the worker's place in the table.
    #[inline]
    pub fn place(self) -> usize {
        usize::from(self.0)
    }
}

impl LinkId {
    /// Returns `None` if there is no such place.
    pub fn new(place: usize) -> Option<Self> {
        (place < LINKS_MAX).then_some(Self(place as u16))
    }

    /// Returns the link's place in the table.
    #[inline]
    pub fn place(self) -> usize {
        usize::from(self.0)
    }
}

/// The owner of a packet: exactly one of these, at any instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Owner {
    /// The pool: the supervisor gives the packet to a worker that asks.
    Pool,
    /// A worker's process, or a dead process of the worker until it is cleaned up.
    Worker(WorkerId),
    /// A link between two processes; the packet is on its way to the consumer.
    Full(LinkId),
    /// A link between two processes; the empty packet is on its way back to the producer.
    Empty(LinkId),
    /// A link one of whose ends moves to another process; the packet waited there.
    Parked(LinkId),
}

const FULL: u16 = 0x4000;
const EMPTY: u16 = 0x8000;
const PARKED: u16 = FULL | EMPTY;

impl Owner {
    /// Returns the owner's code in a packet header.
    #[inline]
    pub fn code(self) -> u16 {
        match self {
            Self::Pool => 0,
            Self::Worker(worker) => 1 + worker.0,
            Self::Full(link) => FULL | link.0,
            Self::Empty(link) => EMPTY | link.0,
            Self::Parked(link) => PARKED | link.0,
        }
    }

    /// Returns the owner of a code, or `None` if no owner has this code.
    pub fn of_code(code: u16) -> Option<Self> {
        let place = usize::from(code & !PARKED);
        match code & PARKED {
            0 if code == 0 => Some(Self::Pool),
            0 => WorkerId::new(place - 1).map(Self::Worker),
            FULL => LinkId::new(place).map(Self::Full),
            EMPTY => LinkId::new(place).map(Self::Empty),
            _ => LinkId::new(place).map(Self::Parked),
        }
    }
}

/// A packet header, decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketHeader(pub u64);

/// The packet holds data.
const USED: u64 = 1 << 16;
/// The packet is part of a grant that its owner has not taken over yet.
const GRANTED: u64 = 2 << 16;

impl PacketHeader {
    /// Makes the header of an empty packet.
    #[inline]
    pub fn unused(owner: Owner) -> Self {
        Self(u64::from(owner.code()))
    }

    /// Makes the header of a packet with `length` bytes of data at `offset`.
    #[inline]
    pub fn used(owner: Owner, offset: u16, length: u16) -> Self {
        Self(u64::from(owner.code()) | USED | u64::from(offset) << 32 | u64::from(length) << 48)
    }

    /// Makes the header of an empty packet that is granted to its owner.
    #[inline]
    pub fn granted(owner: Owner) -> Self {
        Self(u64::from(owner.code()) | GRANTED)
    }

    /// Returns the owner's code.
    #[inline]
    pub fn owner_code(self) -> u16 {
        self.0 as u16
    }

    /// Returns the owner, or `None` if no owner has this code.
    pub fn owner(self) -> Option<Owner> {
        Owner::of_code(self.owner_code())
    }

    /// True if the packet holds data.
    #[inline]
    pub fn is_used(self) -> bool {
        self.0 & USED != 0
    }

    /// True if the owner has not taken the packet over yet.
    #[inline]
    pub fn is_granted(self) -> bool {
        self.0 & GRANTED != 0
    }

    /// Returns the data's offset in the packet.
    #[inline]
    pub fn offset(self) -> u16 {
        (self.0 >> 32) as u16
    }

    /// Returns the number of bytes of data.
    #[inline]
    pub fn length(self) -> u16 {
        (self.0 >> 48) as u16
    }

    /// Returns the header of this packet with another owner, given by its code.
    #[inline]
    pub fn given_to(self, owner: u16) -> Self {
        Self(self.0 & !0xffff | u64::from(owner))
    }

    /// Returns the lower half of the word: the owner and the use, without the data's place.
    #[inline]
    pub fn owner_bits(self) -> u32 {
        self.0 as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_owner_is_written_in_its_own_way() {
        let workers = (0..WORKERS_MAX).filter_map(WorkerId::new).map(Owner::Worker);
        let links = (0..LINKS_MAX).filter_map(LinkId::new);
        let all: Vec<_> = [Owner::Pool]
            .into_iter()
            .chain(workers)
            .chain(links.flat_map(|link| [Owner::Full(link), Owner::Empty(link), Owner::Parked(link)]))
            .collect();
        let mut codes: Vec<_> = all.iter().map(|owner| owner.code()).collect();
        for owner in &all {
            assert_eq!(Owner::of_code(owner.code()), Some(*owner));
        }
        codes.sort_unstable();
        codes.dedup();
        assert_eq!(codes.len(), all.len());
        assert_eq!(Owner::of_code(PARKED | LINKS_MAX as u16), None);
        assert_eq!(Owner::of_code(1 + WORKERS_MAX as u16), None);
        assert_eq!(Owner::of_code(FULL | LINKS_MAX as u16), None);
    }

    #[test]
    fn a_header_keeps_its_parts_apart() {
        let owner = Owner::Full(LinkId(LINKS_MAX as u16 - 1));
        let header = PacketHeader::used(owner, 0xffff, 0xfffe);
        assert_eq!((header.owner(), header.offset(), header.length()), (Some(owner), 0xffff, 0xfffe));
        assert!(header.is_used() && !PacketHeader::unused(owner).is_used());
        let given = header.given_to(Owner::Pool.code());
        assert_eq!((given.owner(), given.offset(), given.length()), (Some(Owner::Pool), 0xffff, 0xfffe));
        assert!(given.is_used());
    }
}
