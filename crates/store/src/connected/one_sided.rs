//! One-sided reads over a link: the extents of the store that the server lends, and room in this side's arena.

use caravan_fabric::byte_reader::ByteReader;
use caravan_fabric::contract::{Local, Operation, Provider};
use caravan_fabric::{Error as FabricError, Link, RegionNumber, RegionToken};

use super::lookup::PlannedRead;
use super::places::KnownPlaces;
use crate::copies::lease::now_ns;
use crate::error::StoreError;
use crate::faults::{PlantedFault, is_planted};
use crate::layout::StoreLayout;
use crate::limits::{self, ONE_SIDED_BYTES_MAX, ONE_SIDED_READS_MAX};

/// The bytes of the arena for one read: the word that is read after it, and the bytes.
const ROOM_BYTES: u64 = 8 + ONE_SIDED_BYTES_MAX as u64;
/// The bytes of the arena for all reads.
pub(crate) const ARENA_BYTES: u64 = ROOM_BYTES * ONE_SIDED_READS_MAX as u64;

/// An extent of the store that the server lends.
#[derive(Clone, Copy, Debug)]
struct LentExtent {
    place: u64,
    bytes: u64,
    number: RegionNumber,
}

/// The one-sided reads of a link.
#[derive(Debug)]
pub(crate) struct OneSidedReads {
    pub(crate) places: KnownPlaces,
    /// In the order of their places, without gaps.
    extents: Vec<LentExtent>,
    arena_at: u64,
    free: Vec<u16>,
    /// No device does the reads, but a thread of the server's process.
    is_by_agent: bool,
    /// Until when what is read counts, on the clock of leases: the owner's lease, counted from before it was asked about. All ones: there is
    /// no lease.
    believed_until_ns: u64,
    /// The number of reads that were started; for figures.
    pub(crate) started: u64,
}

/// A read under way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RunningRead {
    room: u16,
    bytes: usize,
    /// A read of this word has still to be started, once the bytes are there.
    then: Option<u64>,
    /// Operations that have not completed.
    awaited: u8,
}

impl OneSidedReads {
    pub(crate) fn new(link: &Link, layout: StoreLayout) -> Result<Self, FabricError> {
        Ok(Self {
            places: KnownPlaces::new(layout),
            extents: Vec::new(),
            arena_at: Link::arena_bytes(link.ring_bytes())?,
            free: (0..ONE_SIDED_READS_MAX as u16).rev().collect(),
            is_by_agent: link.provider() == Provider::Tcp,
            believed_until_ns: 0,
            started: 0,
        })
    }

    /// Tells whether a lookup is better done by one-sided reads than by a call. If a thread of the server's process
    /// does the reads, they are sooner, and take more of the processors: they are for a caller that waits.
    pub(crate) fn is_worth_it(&self, is_waited_for: bool) -> bool {
        !self.is_by_agent || is_waited_for
    }

    /// Tells whether what was read before this call was the store then. The server answers no reads once its process has ended or its link
    /// is closed, which is before others may know of it; that it is stopped or cut off, only the clock tells.
    pub(crate) fn may_be_believed(&self) -> bool {
        self.believed_for_ns() > 0 || is_planted(PlantedFault::UnseenLease)
    }

    /// Tells whether the owner should be asked about its lease again.
    pub(crate) fn needs_lease(&self) -> bool {
        self.believed_for_ns() < limits::READ_LEASE_LEAST.as_nanos() as u64
    }

    fn believed_for_ns(&self) -> u64 {
        match self.believed_until_ns {
            u64::MAX => u64::MAX,
            until => until.saturating_sub(now_ns()),
        }
    }

    /// Returns the number of extents that the server has lent.
    pub(crate) fn known(&self) -> u32 {
        self.extents.len() as u32
    }

    /// Borrows what the server's reply says that it lends, and takes its lease, about which it was asked at `asked_ns`.
    pub(crate) fn borrow(&mut self, link: &mut Link, body: &[u8], asked_ns: u64) -> Result<(), StoreError> {
        let mut reader = ByteReader::new(body);
        let left_ns = reader.u64().ok_or(StoreError::Protocol("a lease is malformed"))?;
        self.believed_until_ns = match left_ns {
            u64::MAX => u64::MAX,
            // Clocks differ by less than a hundredth.
            left => asked_ns.saturating_add(left - left / 100),
        };
        while !reader.is_empty() {
            let place = reader.u64();
            let token = reader.bytes(RegionToken::BYTES).and_then(RegionToken::from_bytes);
            let (Some(place), Some(token)) = (place, token) else {
                return Err(StoreError::Protocol("a lent extent is malformed"));
            };
            if place != self.end() || place.checked_add(token.bytes()).is_none() {
                return Err(StoreError::Protocol("a lent extent is not the next one"));
            }
            let number = link.borrow(&token)?;
            self.extents.push(LentExtent { place, bytes: token.bytes(), number });
        }
        Ok(())
    }

    fn end(&self) -> u64 {
        self.extents.last().map_or(0, |extent| extent.place + extent.bytes)
    }

    /// Tells whether the extent with `place` is lent.
    pub(crate) fn reaches(&self, place: u64) -> bool {
        place < self.end()
    }

    /// Returns where bytes of the store are for the link.
    fn remote(&self, place: u64, bytes: usize) -> Option<u64> {
        let index = self.extents.partition_point(|extent| extent.place <= place).checked_sub(1)?;
        let extent = self.extents[index];
        let offset = place - extent.place;
        let end = offset.checked_add(bytes as u64)?;
        (end <= extent.bytes).then(|| extent.number.place(offset))
    }

    /// Starts a read in `room`, or where there is some, for the call with this number; `None` if it cannot be.
    pub(crate) fn begin(
        &mut self,
        link: &mut Link,
        call: u32,
        read: PlannedRead,
        room: Option<u16>,
    ) -> Option<RunningRead> {
        let room = room.or_else(|| self.free.pop())?;
        let mut running = RunningRead { room, bytes: read.bytes, then: read.then, awaited: 0 };
        if self.post(link, call, read.place, read.bytes, running.bytes_at(self)).is_none() {
            self.free.push(room);
            return None;
        }
        running.awaited = 1;
        Some(running)
    }

    /// Starts the read of the word after the bytes. If that cannot be, the word stays 0, which no class is.
    fn post_then(&mut self, link: &mut Link, call: u32, running: &mut RunningRead) {
        let at = running.word_at(self);
        link.arena().copy_in(at as usize, &[0; 8]);
        if let Some(place) = running.then.take() {
            if self.post(link, call, place, 8, at).is_some() {
                running.awaited += 1;
            }
        }
    }

    fn post(&mut self, link: &mut Link, call: u32, place: u64, bytes: usize, at: u64) -> Option<()> {
        let from = self.remote(place, bytes)?;
        let into = Local { offset: at, bytes: bytes as u32 };
        link.post(Operation::Read { from, into, context: call.into() }).ok()?;
        self.started += 1;
        Some(())
    }

    /// Takes a completion of a read. Returns `true` once all of it has arrived.
    pub(crate) fn completed(&mut self, link: &mut Link, call: u32, running: &mut RunningRead) -> bool {
        running.awaited = running.awaited.saturating_sub(1);
        if running.awaited == 0 && running.then.is_some() {
            self.post_then(link, call, running);
        }
        running.awaited == 0
    }

    /// Copies the bytes of a read that has arrived into `bytes`, and returns the word after them.
    pub(crate) fn take(&self, link: &Link, running: &RunningRead, bytes: &mut Vec<u8>) -> u64 {
        bytes.clear();
        bytes.resize(running.bytes, 0);
        link.arena().copy_out(running.bytes_at(self) as usize, bytes);
        let mut word = [0; 8];
        link.arena().copy_out(running.word_at(self) as usize, &mut word);
        u64::from_ne_bytes(word)
    }

    /// Frees the room of a read that has arrived.
    pub(crate) fn free(&mut self, running: &RunningRead) {
        self.free.push(running.room);
    }
}

impl RunningRead {
    pub(crate) fn room(&self) -> u16 {
        self.room
    }

    fn word_at(&self, reads: &OneSidedReads) -> u64 {
        reads.arena_at + u64::from(self.room) * ROOM_BYTES
    }

    fn bytes_at(&self, reads: &OneSidedReads) -> u64 {
        self.word_at(reads) + 8
    }
}
