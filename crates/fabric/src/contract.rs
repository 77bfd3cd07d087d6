//! The transport contract: all that the author of a new backend has to read.
//!
//! Two processes hold an [`Endpoint`] each, connected to one another. Each exposes one *arena*,
//! memory registered once, that the peer can reach with one-sided operations; operations name
//! places in arenas by offset. An endpoint can also [lend](Endpoint::lend) the peer [regions](Region), memory
//! that is made once for any number of peers; a place in a region has the region's number in it. Posted
//! operations start at the next [`Endpoint::doorbell`] and finish as [`Completion`]s. An endpoint is used by one
//! thread at a time.
//!
//! What a backend promises beyond that is in its [`Capabilities`], filled from what the device
//! reports. In particular, no user of an endpoint may assume
//! - order between two writes, or between the bytes of one: wait for a completion or an immediate;
//! - that a completed write is visible to the target's processor: only an immediate says so;
//! - that a NIC's compare-and-swap is atomic against the target's processor.

use std::ops::Range;
use std::os::fd::BorrowedFd;

use caravan_segment::{SegmentView, SharedSlice};

use crate::region::{self, BorrowedBounds, Region, RegionAccess, RegionNumber, RegionToken};

/// The backend that carries an endpoint's traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Provider {
    /// Mapped memory of one host.
    Shm,
    /// The simulator.
    Sim,
    /// An RDMA device.
    Rdma,
    /// A TCP connection.
    Tcp,
}

impl Provider {
    /// Returns the name that users see and choose by.
    pub fn name(self) -> &'static str {
        match self {
            Self::Shm => "shm",
            Self::Sim => "sim",
            Self::Rdma => "rdma",
            Self::Tcp => "tcp",
        }
    }
}

/// What a connected endpoint promises; everything is `false` until the device says otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// The peer's arena can be reached with loads and stores: [`Endpoint::peer_arena`].
    pub mapped: bool,
    /// Both processes take part in a common [barrier](caravan_segment::barrier): cursors in mapped
    /// memory may leave the fences to the side that goes to sleep.
    pub asymmetric_fences: bool,
    /// Immediates arrive in the order in which their writes were posted, and after the bytes of
    /// all writes posted before. (Without this promise, an immediate still arrives after the bytes of its own write,
    /// and after every earlier write, and that write's immediate, whose completion was polled before its own was
    /// posted.)
    pub immediates_ordered: bool,
    /// The endpoint has compare-and-swap.
    pub compare_and_swap: bool,
    /// Compare-and-swap is atomic against the target's own processor. (Without this promise, a word has one owner:
    /// either the target's processor changes it or operations do, never both.)
    pub atomic_with_processor: bool,
    /// Operations complete without any action of the target's threads.
    pub target_progress: bool,
    /// A memory window, bound to this connection, limits the peer to what was exposed.
    pub memory_windows: bool,
    /// A read copies each whole word of 8 bytes all at once, even while the owner's processor stores to it, if its
    /// place and its destination are multiples of 8. (Without this promise, a reader needs a checksum to tell torn
    /// bytes, or asks the owner.)
    pub reads_words_atomically: bool,
    /// From [`Endpoint::revoke`] on, nothing that the peer's process does reaches the region. (Without this promise,
    /// as where memory is mapped, a peer that keeps to the contract stops, and another one does not.)
    pub revokes_for_certain: bool,
    /// An operation may complete before it has arrived: bytes that were sent may still be lost if the
    /// connection breaks.
    pub completes_early: bool,
    /// The number of bytes of the longest operation.
    pub operation_bytes_max: u32,
}

/// The size of a side's arena, and the part of it that the peer may reach.
///
/// The peer may always write to the exposed part. Where memory is mapped, all of it is exposed:
/// no hardware checks accesses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exposure {
    /// The number of bytes of the arena.
    pub arena_bytes: u64,
    /// The part that the peer's operations may name; its bounds are multiples of 8.
    pub exposed: Range<u64>,
    /// The peer may also read it.
    pub peer_reads: bool,
    /// The peer may also compare and swap in it.
    pub peer_swaps: bool,
}

impl Exposure {
    /// Returns an exposure of the whole arena, for all operations.
    pub fn all(arena_bytes: u64) -> Self {
        Self { arena_bytes, exposed: 0..arena_bytes, peer_reads: true, peer_swaps: true }
    }
}

/// A run of bytes in this side's arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Local {
    /// The offset of the first byte.
    pub offset: u64,
    /// The number of bytes.
    pub bytes: u32,
}

/// One operation. Its completion has the same `context`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Copies `from` to the place `to` in the peer's memory. `from` must not change until completion,
    /// or until the peer has answered to the immediate. With an `immediate`, the peer polls an
    /// [`Event::Immediate`] once the bytes are visible to its processor; `from` may then be empty. If
    /// the device has no immediates, the backend sends a message after the write.
    Write {
        /// The source, in this side's arena.
        from: Local,
        /// The place in the peer's memory: an offset in its arena, or a [region's place](RegionNumber::place).
        to: u64,
        /// The immediate that the peer polls, if any.
        immediate: Option<u32>,
        /// Returned in the completion.
        context: u64,
    },
    /// Copies bytes at the place `from` in the peer's memory to `into`.
    Read {
        /// The place in the peer's memory.
        from: u64,
        /// The destination, in this side's arena.
        into: Local,
        /// Returned in the completion.
        context: u64,
    },
    /// If the 64-bit word at the place `at` (a multiple of 8) in the peer's memory is `expected`,
    /// sets it to `desired`; the completion has the word that was found.
    CompareAndSwap {
        /// The place of the word.
        at: u64,
        /// The value that the word must have.
        expected: u64,
        /// The value that the word gets.
        desired: u64,
        /// Returned in the completion.
        context: u64,
    },
}

/// The limits that a backend checks an [`Operation`] against before it starts it.
#[derive(Clone, Debug)]
pub(crate) struct OperationBounds {
    pub(crate) provider: Provider,
    pub(crate) arena_bytes: u64,
    /// The part of the peer's arena that operations may name.
    pub(crate) peer_exposed: Range<u64>,
    pub(crate) compare_and_swap: bool,
    pub(crate) operation_bytes_max: u32,
}

impl OperationBounds {
    /// Refuses an operation on a borrowed region that is a programming error of this side; `bounds` returns the bounds of
    /// the region of that number. Returns the number and the offset in the region.
    pub(crate) fn check_far(
        &self,
        operation: &Operation,
        bounds: impl FnOnce(RegionNumber) -> Result<BorrowedBounds, Error>,
    ) -> Result<(RegionNumber, u64), Error> {
        let (place, _) = region::target(operation);
        let (number, offset) = region::split(place).ok_or_else(|| region::no_place(place))?;
        let bounds = bounds(number)?;
        region::check_access(number, bounds.access, operation)?;
        let within = Self { peer_exposed: 0..bounds.bytes, ..self.clone() };
        within.check(&region::moved(*operation, offset))?;
        Ok((number, offset))
    }

    /// Refuses an operation on the arena that is a programming error of this side.
    #[inline]
    pub(crate) fn check(&self, operation: &Operation) -> Result<(), Error> {
        match *operation {
            Operation::Write { from, to, .. } => {
                self.check_copy(["write: source", "write: target"], from, to)
            }
            Operation::Read { from, into, .. } => {
                self.check_copy(["read: target", "read: source"], into, from)
            }
            Operation::CompareAndSwap { .. } if !self.compare_and_swap => {
                Err(Error::Unsupported(self.provider, "compare-and-swap"))
            }
            Operation::CompareAndSwap { at, .. } if at % 8 != 0 => {
                Err(Error::Misaligned { what: "compare-and-swap", offset: at })
            }
            Operation::CompareAndSwap { at, .. } => {
                inside("compare-and-swap", at, 8, self.peer_exposed.clone())
            }
        }
    }

    fn check_copy(&self, [here, there]: [&'static str; 2], local: Local, peer_at: u64) -> Result<(), Error> {
        inside(here, local.offset, local.bytes.into(), 0..self.arena_bytes)?;
        // An operation of no bytes, such as an immediate alone, names no place in the peer's arena.
        if local.bytes > 0 {
            inside(there, peer_at, local.bytes.into(), self.peer_exposed.clone())?;
        }
        match local.bytes <= self.operation_bytes_max {
            true => Ok(()),
            false => Err(Error::OperationBytes {
                provider: self.provider,
                bytes: local.bytes,
                maximum: self.operation_bytes_max,
            }),
        }
    }
}

fn inside(what: &'static str, offset: u64, bytes: u64, arena: Range<u64>) -> Result<(), Error> {
    match offset.checked_add(bytes) {
        Some(end) if offset >= arena.start && end <= arena.end => Ok(()),
        _ => Err(Error::OutOfArena { what, offset, bytes, arena_bytes: arena.end }),
    }
}

/// Something that [`Endpoint::poll`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// An operation of this side finished: its source may be reused, a read's bytes are there, and
    /// a write's will be there even if this side ends now.
    Done(Completion),
    /// The peer's write that carried this immediate is visible.
    Immediate(u32),
}

/// The end of one operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The context of the operation, as posted.
    pub context: u64,
    /// For compare-and-swap, the word that was found.
    pub found: Option<u64>,
}

/// Why an endpoint cannot go on, or why an operation cannot start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
// A tag of its own in one byte: a tag within a payload took 5 more instructions in each operation of a link.
#[repr(u8)]
pub enum Error {
    /// Too many operations are under way. Nothing was started: poll, then post again.
    #[error("{provider}: the send queue is full; completions must be polled first", provider = .0.name())]
    Full(Provider),
    /// A place outside an arena: a programming error of this side.
    #[error("{what}: bytes {offset}..{offset}+{bytes} are outside an arena of {arena_bytes}")]
    OutOfArena {
        /// The operation, and which arena it misses.
        what: &'static str,
        /// The offset of the first byte.
        offset: u64,
        /// The number of bytes.
        bytes: u64,
        /// The number of bytes of the arena.
        arena_bytes: u64,
    },
    /// More bytes than one operation can have: a programming error of this side.
    #[error("{provider}: an operation of {bytes} bytes, where {maximum} is the most", provider = .provider.name())]
    OperationBytes {
        /// The backend.
        provider: Provider,
        /// The number of bytes of the operation.
        bytes: u32,
        /// [`Capabilities::operation_bytes_max`].
        maximum: u32,
    },
    /// The place of a region that this side may not use so: a programming error of this side.
    #[error("{what}: region {number} {why}")]
    NoRegion {
        /// The operation.
        what: &'static str,
        /// The number in the place.
        number: RegionNumber,
        /// Why it cannot be used.
        why: &'static str,
    },
    /// An operation named a region that its owner has revoked.
    #[error("{provider}: the peer has revoked region {1}", provider = .0.name())]
    Revoked(Provider, RegionNumber),
    /// This endpoint has lent as often as an endpoint can: connect anew.
    #[error("this connection has lent regions {maximum} times, and cannot lend more")]
    Loans {
        /// The largest number.
        maximum: u16,
    },
    /// A place that is not a multiple of 8 where it must be: a programming error of this side.
    #[error("{what}: offset {offset} is not a multiple of 8")]
    Misaligned {
        /// The operation.
        what: &'static str,
        /// The offset.
        offset: u64,
    },
    /// The backend cannot do this operation; its [`Capabilities`] say so.
    #[error("{provider} has no {1}", provider = .0.name())]
    Unsupported(Provider, &'static str),
    /// The peer has ended or its connection broke.
    #[error("{provider}: the peer is gone: {1}", provider = .0.name())]
    PeerGone(Provider, &'static str),
    /// The peer wrote something that it must not.
    #[error("{provider}: the peer broke the protocol: {1}", provider = .0.name())]
    Protocol(Provider, String),
    /// The two sides found no transport between them, or one of them has given up.
    #[error("the two sides are not connected: {0}")]
    NotConnected(String),
    /// The size of an arena is not allowed: a programming error of this side.
    #[error("arena_bytes is {bytes}: it takes a multiple of 8 from 8 to {maximum}")]
    ArenaBytes {
        /// The requested size.
        bytes: u64,
        /// The largest size.
        maximum: u64,
    },
    /// A position of a ring is impossible.
    #[error(transparent)]
    Corrupt(#[from] caravan_ring::Corrupt),
    /// Shared memory failed.
    #[error(transparent)]
    Segment(#[from] caravan_segment::Error),
    /// The size of a ring is not allowed.
    #[error("ring_bytes is {bytes}: it takes a power of two from {minimum} to {maximum}")]
    RingBytes {
        /// The requested size.
        bytes: u64,
        /// The smallest size.
        minimum: u64,
        /// The largest size.
        maximum: u64,
    },
    /// The backend cannot be used on this machine, or does not reach the peer.
    #[error("{why}")]
    Unavailable {
        /// The backend.
        provider: Provider,
        /// The reason, with the remedy.
        why: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A device refused something, or failed.
    #[error("{device}: {what}")]
    Device {
        /// The name of the device.
        device: String,
        /// What failed, and the remedy where it is known.
        what: String,
    },
    /// Any other failure of a system call.
    #[error("{call}: {source}")]
    System {
        /// The call that failed.
        call: &'static str,
        /// The error that the kernel returned.
        source: std::io::Error,
    },
}

/// Returned by [`Endpoint::arm`]: whether the caller may wait on the descriptor now.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Armed {
    /// There is nothing to poll: the descriptor becomes readable with the next event.
    Wait,
    /// An event came in between: poll again.
    LookAgain,
}

/// One side of a connection between two arenas.
pub trait Endpoint: Send + std::fmt::Debug {
    /// Returns the name of the backend that carries this endpoint.
    fn provider(&self) -> Provider;

    /// Returns what this endpoint promises beyond the contract.
    fn capabilities(&self) -> Capabilities;

    /// Returns this side's memory, which the peer can read and write. It is all zero at first.
    fn arena(&self) -> &SharedSlice;

    /// Returns the number of bytes of the peer's arena. Operations reach the part that the peer has
    /// [exposed](Exposure).
    fn peer_arena_bytes(&self) -> u64;

    /// Returns the peer's arena itself, if [`Capabilities::mapped`].
    fn peer_arena(&self) -> Option<&SharedSlice>;

    /// Queues an operation. Never blocks. Returns [`Error::Full`] if the queue is full; when it no longer
    /// is, there is an event to poll, or will be.
    fn post(&mut self, operation: Operation) -> Result<(), Error>;

    /// Starts all operations that were posted.
    fn doorbell(&mut self) -> Result<(), Error>;

    /// Makes every operation posted so far complete without waiting for more. A backend may gather the
    /// completions of writes, because each costs a device something, until there are enough of them or
    /// until this is called. A caller that has nothing more to post, and waits for operations under way,
    /// calls it.
    fn flush(&mut self) -> Result<(), Error>;

    /// Appends at most `limit` new events to `events`, and returns their number. Never
    /// blocks. An error ends the endpoint; [`Error::PeerGone`] comes only when everything that the peer
    /// did before has been polled.
    fn poll(&mut self, events: &mut Vec<Event>, limit: usize) -> Result<usize, Error>;

    /// Prepares a wait on [`wait_fd`](Self::wait_fd). Call it before each wait; only [`Armed::Wait`] allows the wait.
    fn arm(&mut self) -> Result<Armed, Error>;

    /// Returns a descriptor that becomes readable when the endpoint is armed and there is something to poll. It
    /// may become readable without a reason, too. It can be in any poll set. `None` only for a backend
    /// that never needs waiting.
    fn wait_fd(&self) -> Option<BorrowedFd<'_>>;

    /// Makes the descriptor unreadable again. Call it after the descriptor was readable.
    fn acknowledge(&mut self) -> Result<(), Error>;

    /// Makes the peer's descriptor readable if the peer is armed. Users of mapped memory, which changes
    /// without any event, call it; others send immediates.
    fn wake_peer(&mut self) -> Result<(), Error>;

    /// Returns an error if the peer is known to have ended. May ask the kernel or, without waiting for an
    /// answer, the peer's device: do not call it on hot paths.
    fn check_peer(&mut self) -> Result<(), Error>;

    /// Lets the peer reach a region from now on. The returned token is for the peer's [`borrow`](Self::borrow), over
    /// any channel that has authenticated this side; it may be lost, or come late. Returns [`Error::Full`] if the
    /// peer has not borrowed what it was lent before.
    fn lend(&mut self, _region: &Region, _access: RegionAccess) -> Result<RegionToken, Error> {
        Err(Error::Unsupported(self.provider(), "regions"))
    }

    /// Makes a region that the peer has lent usable, and returns its number, of which operations'
    /// [places](RegionNumber::place) consist. It remains usable until the owner revokes it, or until the end of either
    /// endpoint.
    fn borrow(&mut self, _token: &RegionToken) -> Result<RegionNumber, Error> {
        Err(Error::Unsupported(self.provider(), "regions"))
    }

    /// Takes back a region that this side has lent, for ever; see [`Capabilities::revokes_for_certain`]. Operations of
    /// the peer that are under way may still take effect before this returns. A later one fails at the peer with
    /// [`Error::Revoked`], or, where a device knows no cause, with [`Error::PeerGone`]; unless the error comes from `post`, it ends the
    /// peer's endpoint. A device that cannot take back a single region ends this endpoint instead, with all that
    /// it has lent.
    fn revoke(&mut self, _number: RegionNumber) -> Result<(), Error> {
        Err(Error::Unsupported(self.provider(), "regions"))
    }

    /// Returns the bytes of a borrowed region, if [`Capabilities::mapped`]: for plain loads, which no
    /// [`revoke`](Self::revoke) stops.
    fn window(&self, _number: RegionNumber) -> Option<&SegmentView> {
        None
    }

    /// Returns the device, port and addresses, as users see them. Empty if the backend has none.
    fn description(&self) -> String {
        String::new()
    }

    /// Returns what this endpoint has counted.
    fn counts(&self) -> EndpointCounts {
        EndpointCounts::default()
    }
}

/// What an endpoint has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct EndpointCounts {
    /// The number of times that work was handed to a device.
    pub doorbells: u64,
    /// The number of completions taken from a device.
    pub completions: u64,
    /// The number of bytes registered with a device.
    pub registered_bytes: u64,
}
