//! What the network knows about one end of a connection.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use caravan_segment::{Pages, Segment, SharedSlice};

use super::flight::Flight;
use crate::contract::{Error, Event, Operation};
use crate::region::{self, Region, RegionAccess, RegionNumber, RegionTable};

/// What the network knows about one end.
#[derive(Debug)]
pub(super) struct SimParty {
    pub(super) arena: SharedSlice,
    pub(super) bell: OwnedFd,
    pub(super) armed: bool,
    /// The events that the side can poll; a completion with the id of its flight.
    pub(super) events: VecDeque<(Event, Option<u64>)>,
    /// Completions of writes that are gathered, to be reported all at once.
    pub(super) gathered: VecDeque<(Event, Option<u64>)>,
    /// Operations posted before this are not gathered.
    pub(super) flushed_at: u64,
    /// Operations before their doorbell.
    pub(super) posted: Vec<(Operation, u64)>,
    /// Operations after their doorbell.
    pub(super) flights: Vec<Flight>,
    /// The number of operations posted whose completion the side has not polled.
    pub(super) under_way: usize,
    /// The number of rings of the side's bell that are under way.
    pub(super) wakes: u64,
    pub(super) ended: bool,
    /// The number of steps until the side learns that its peer has ended, and then 0.
    pub(super) notice: Option<u64>,
    /// The regions that the side lends.
    pub(super) lent: RegionTable<(Region, RegionAccess)>,
    /// The side asked for what its peer does not lend: nothing of it is carried any more.
    pub(super) refused: Option<RegionNumber>,
}

impl SimParty {
    pub(super) fn new(arena_bytes: u64) -> Result<Self, Error> {
        let segment = Arc::new(Segment::create("caravan-sim", arena_bytes, Pages::Small)?);
        segment.grow(arena_bytes)?;
        let flags = rustix::event::EventfdFlags::CLOEXEC | rustix::event::EventfdFlags::NONBLOCK;
        let bell = rustix::event::eventfd(0, flags)
            .map_err(|source| Error::System { call: "eventfd", source: source.into() })?;
        Ok(Self {
            arena: segment.slice(0, arena_bytes)?,
            bell,
            armed: false,
            events: VecDeque::new(),
            gathered: VecDeque::new(),
            flushed_at: 0,
            posted: Vec::new(),
            flights: Vec::new(),
            under_way: 0,
            wakes: 0,
            ended: false,
            notice: None,
            lent: RegionTable::default(),
            refused: None,
        })
    }

    /// Ends what the side has under way: it asked for memory at `place` that its peer does not lend.
    pub(super) fn refuse(&mut self, place: u64) {
        self.refused = region::split(place).map(|(number, _)| number);
        self.posted.clear();
        self.flights.clear();
    }

    /// Returns the memory at a place, and the offset there, for an operation of the peer on `bytes` bytes. `None` if the
    /// peer may not reach all of them so.
    pub(super) fn reach(
        &self,
        place: u64,
        bytes: u64,
        access: RegionAccess,
    ) -> Option<(&SharedSlice, usize)> {
        let (memory, offset) = match region::is_far(place) {
            false => (&self.arena, place),
            true => {
                let (number, offset) = region::split(place)?;
                let (region, lent) = self.lent.row(number)?;
                if access == RegionAccess::Write && *lent == RegionAccess::Read {
                    return None;
                }
                (region.memory(), offset)
            }
        };
        (offset.checked_add(bytes)? <= memory.bytes()).then_some((memory, offset as usize))
    }
}
