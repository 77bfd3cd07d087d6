//! Mapped memory between two processes of one host, network namespace and user.
//!
//! One sealed memfd holds both arenas. Each side has an eventfd for its bell, and one end of a
//! socket pair, the tether, which hangs up when the other side ends. The accepting side
//! [listens](Listener::listen); its descriptor goes over the face's control channel; the other
//! side [connects](connect), which makes the memory and hands it over; the accepting side then
//! [accepts](Listener::accept). No call blocks.
//!
//! Layout of the memfd: two sides, the connecting one's first. A side: a slot ring of immediates
//! that the peer has sent (`IMMEDIATES_BYTES`); a bit for each region that the peer has revoked
//! (`REVOKED_BYTES`); its arena.
//!
//! A lent region is a memfd of its own, of which a descriptor goes through the tether: one that cannot
//! write, if the region is lent for reading. The owner sets the region's bit to revoke it; what
//! the peer has mapped remains mapped until its endpoint ends, or notices.
//!
//! One-sided operations are loads and stores of the calling thread: they are done when `post`
//! returns, whatever the target's threads do.

mod handover;
mod lending;

use std::collections::VecDeque;
use std::io::IoSliceMut;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use caravan_ring::{HEADER_BYTES, MappedCursors, MappedSlots, SlotConsumer, SlotProducer, Wake};
use caravan_segment::barrier::Fences;
use caravan_segment::{Segment, SegmentView, SharedSlice};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::{Errno, ReadWriteFlags};

use crate::contract::{
    Armed, Capabilities, Completion, Endpoint, Error, Event, Local, Operation, OperationBounds, Provider,
};
use crate::region::{self, LOANS_MAX, Region, RegionAccess, RegionNumber, RegionToken};
use lending::ShmLending;

pub use handover::{Listener, connect, offered_arena_bytes, pair};

/// The largest number of immediates and completions under way.
pub const QUEUE_DEPTH: usize = 1024;
/// The number of bytes of the ring of immediates, header included.
const IMMEDIATES_BYTES: u64 = HEADER_BYTES as u64 + QUEUE_DEPTH as u64 * 4;
/// The number of bytes of the bits for revoked regions, in whole words.
const REVOKED_BYTES: u64 = (LOANS_MAX as u64).div_ceil(64) * 8;
/// The number of bytes of a side before its arena.
const SIDE_HEAD_BYTES: u64 = IMMEDIATES_BYTES + REVOKED_BYTES;
/// The number of bytes of the largest arena.
pub const ARENA_BYTES_MAX: u64 = 1 << 40;
/// Where the two sides lie in the memfd, and the fences that they use.
#[derive(Clone, Copy, Debug)]
struct ShmLayout {
    bytes: u64,
    ours_at: u64,
    theirs_at: u64,
    fences: Fences,
}

/// One side of a connection through mapped memory.
#[derive(Debug)]
pub struct ShmEndpoint {
    arena: SharedSlice,
    peer_arena: SharedSlice,
    received: SlotConsumer<MappedCursors, MappedSlots>,
    sent: SlotProducer<MappedCursors, MappedSlots>,
    /// The ring of the peer's immediates had no room: the peer has not taken them.
    full: bool,
    fences: Fences,
    done: VecDeque<Completion>,
    our_bell: OwnedFd,
    their_bell: OwnedFd,
    /// Nothing but descriptors of lent regions goes through the tether.
    tether: OwnedFd,
    lending: ShmLending,
}

impl ShmEndpoint {
    fn new(
        segment: Arc<Segment>,
        sides: ShmLayout,
        [our_bell, their_bell]: [OwnedFd; 2],
        tether: OwnedFd,
    ) -> Result<Self, Error> {
        let ours = segment.slice(sides.ours_at, sides.bytes)?;
        let theirs = segment.slice(sides.theirs_at, sides.bytes)?;
        let arena_bytes = sides.bytes - SIDE_HEAD_BYTES;
        let revoked = |side: &SharedSlice| side.part(IMMEDIATES_BYTES, REVOKED_BYTES);
        let slots = |side: &SharedSlice| -> Result<_, Error> {
            let slots = side.part(HEADER_BYTES as u64, IMMEDIATES_BYTES - HEADER_BYTES as u64)?;
            Ok((MappedCursors::new(side, sides.fences)?, MappedSlots::new(slots)?))
        };
        let (in_cursors, in_slots) = slots(&ours)?;
        let (out_cursors, out_slots) = slots(&theirs)?;
        Ok(Self {
            arena: ours.part(SIDE_HEAD_BYTES, arena_bytes)?,
            peer_arena: theirs.part(SIDE_HEAD_BYTES, arena_bytes)?,
            received: SlotConsumer::new(in_cursors, in_slots),
            sent: SlotProducer::new(out_cursors, out_slots),
            full: false,
            fences: sides.fences,
            done: VecDeque::new(),
            our_bell,
            their_bell,
            tether,
            lending: ShmLending::new(revoked(&ours)?, revoked(&theirs)?),
        })
    }

    fn bounds(&self) -> OperationBounds {
        OperationBounds {
            provider: Provider::Shm,
            arena_bytes: self.arena.bytes(),
            peer_exposed: 0..self.peer_arena.bytes(),
            compare_and_swap: true,
            operation_bytes_max: u32::MAX,
        }
    }

    fn write(&mut self, from: Local, to: u64, immediate: Option<u32>) -> Result<(), Error> {
        self.claim(immediate)?;
        if from.bytes > 0 {
            self.arena.copy_to(from.offset as usize, from.bytes as usize, &self.peer_arena, to as usize);
        }
        self.tell(immediate)
    }

    /// Makes sure that there is room for an immediate.
    #[inline(always)]
    fn claim(&mut self, immediate: Option<u32>) -> Result<(), Error> {
        self.full = immediate.is_some() && self.sent.cursor().claim(1)?.is_empty();
        if self.full { Err(Error::Full(Provider::Shm)) } else { Ok(()) }
    }

    #[inline(always)]
    fn tell(&mut self, immediate: Option<u32>) -> Result<(), Error> {
        if let Some(immediate) = immediate {
            self.sent.push(immediate)?;
            if self.sent.publish() == Wake::Bell {
                self.wake_peer()?;
            }
        }
        Ok(())
    }
}

impl Endpoint for ShmEndpoint {
    fn provider(&self) -> Provider {
        Provider::Shm
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            mapped: true,
            asymmetric_fences: self.fences == Fences::Asymmetric,
            immediates_ordered: true,
            compare_and_swap: true,
            atomic_with_processor: true,
            target_progress: true,
            reads_words_atomically: true,
            operation_bytes_max: u32::MAX,
            ..Capabilities::default()
        }
    }

    fn arena(&self) -> &SharedSlice {
        &self.arena
    }

    fn peer_arena_bytes(&self) -> u64 {
        self.peer_arena.bytes()
    }

    fn peer_arena(&self) -> Option<&SharedSlice> {
        Some(&self.peer_arena)
    }

    fn post(&mut self, operation: Operation) -> Result<(), Error> {
        if self.done.len() == QUEUE_DEPTH {
            return Err(Error::Full(Provider::Shm));
        }
        if let Err(error) = self.bounds().check(&operation) {
            // A place in a region is never one in the arena, so this costs operations on the arena nothing.
            if !region::is_far(region::target(&operation).0) {
                return Err(error);
            }
            let completion = self.post_far(operation)?;
            self.done.push_back(completion);
            return Ok(());
        }
        let completion = match operation {
            Operation::Write { from, to, immediate, context } => {
                self.write(from, to, immediate)?;
                Completion { context, found: None }
            }
            Operation::Read { from, into, context } => {
                if into.bytes > 0 {
                    let (from, to) = (from as usize, into.offset as usize);
                    self.peer_arena.copy_words_to(from, into.bytes as usize, &self.arena, to);
                }
                Completion { context, found: None }
            }
            Operation::CompareAndSwap { at, expected, desired, context } => {
                let word = self.peer_arena.word(at as usize);
                let found = word.compare_exchange(expected, desired, Ordering::AcqRel, Ordering::Acquire);
                Completion { context, found: Some(found.unwrap_or_else(|other| other)) }
            }
        };
        self.done.push_back(completion);
        Ok(())
    }

    fn doorbell(&mut self) -> Result<(), Error> {
        Ok(())
    }

    fn flush(&mut self) -> Result<(), Error> {
        Ok(())
    }

    fn poll(&mut self, events: &mut Vec<Event>, limit: usize) -> Result<usize, Error> {
        let own = self.done.len().min(limit);
        events.extend(self.done.drain(..own).map(Event::Done));
        let (received, wake) =
            self.received.drain(limit - own, |immediate| events.push(Event::Immediate(immediate)))?;
        if wake == Wake::Bell {
            self.wake_peer()?;
        }
        Ok(own + received)
    }

    fn arm(&mut self) -> Result<Armed, Error> {
        if !self.done.is_empty() || !self.received.cursor().sleep()? {
            return Ok(Armed::LookAgain);
        }
        if self.full && !self.sent.cursor().wait_for_room(1)? {
            self.full = false;
            return Ok(Armed::LookAgain);
        }
        Ok(Armed::Wait)
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.our_bell.as_fd())
    }

    fn acknowledge(&mut self) -> Result<(), Error> {
        take_rings(&self.our_bell).map(drop)
    }

    fn wake_peer(&mut self) -> Result<(), Error> {
        ring(&self.their_bell, 1)
    }

    fn check_peer(&mut self) -> Result<(), Error> {
        let mut set = [PollFd::new(&self.tether, PollFlags::empty())];
        match rustix::event::poll(&mut set, Some(&Timespec::default())) {
            Ok(1..) => Err(Error::PeerGone(Provider::Shm, "it has closed its end, or its process has ended")),
            _ => Ok(()),
        }
    }

    fn lend(&mut self, region: &Region, access: RegionAccess) -> Result<RegionToken, Error> {
        self.lending.lend(&self.tether, region, access)
    }

    fn borrow(&mut self, token: &RegionToken) -> Result<RegionNumber, Error> {
        self.lending.borrow(&self.tether, token)
    }

    fn revoke(&mut self, number: RegionNumber) -> Result<(), Error> {
        self.lending.revoke(number)
    }

    fn window(&self, number: RegionNumber) -> Option<&SegmentView> {
        self.lending.window(number)
    }
}

/// Adds `times` to the counter of a bell.
fn ring(bell: &OwnedFd, times: u64) -> Result<(), Error> {
    match rustix::io::write(bell, &times.to_ne_bytes()) {
        // AGAIN: the counter is full, so the descriptor is readable already.
        Ok(_) | Err(Errno::AGAIN) => Ok(()),
        Err(source) => Err(Error::System { call: "write(eventfd)", source: source.into() }),
    }
}

/// Returns the counter of a bell, and sets it to 0.
fn take_rings(bell: &OwnedFd) -> Result<u64, Error> {
    let mut count = [0; 8];
    let mut parts = [IoSliceMut::new(&mut count)];
    // NOWAIT, because a peer can clear O_NONBLOCK of the file that we share and drain it first.
    match rustix::io::preadv2(bell, &mut parts, u64::MAX, ReadWriteFlags::NOWAIT) {
        Ok(_) => Ok(u64::from_ne_bytes(count)),
        Err(Errno::AGAIN) => Ok(0),
        Err(source) => Err(Error::System { call: "preadv2(eventfd)", source: source.into() }),
    }
}
