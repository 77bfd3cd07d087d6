//! The transport contract: all that a new backend has to read.
//!
//! Two processes hold an [`Endpoint`] each, connected to one another. Each exposes one *arena*,
//! memory registered once, that the other can reach with one-sided operations; operations name
//! places in arenas by offset. Posted operations start at the next [`Endpoint::doorbell`] and
//! finish as [`Completion`]s. An endpoint is used by one thread at a time, and has no thread of
//! its own.
//!
//! What a backend promises beyond that is in its [`Capabilities`], filled from what the device
//! reports. In particular nobody may assume
//! - order between two writes, or between the bytes of one: wait for a completion or an immediate;
//! - that a completed write is visible to the target's processor: only an immediate says so;
//! - that a NIC's compare-and-swap is atomic against the target's processor.

use std::ops::Range;
use std::os::fd::BorrowedFd;

use caravan_segment::SharedSlice;

/// What carries an endpoint's traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Provider {
    /// Mapped memory of one host.
    Shm,
    /// The simulator.
    Sim,
    /// An RDMA device.
    Rdma,
}

impl Provider {
    /// The name that users see and choose by.
    pub fn name(self) -> &'static str {
        match self {
            Self::Shm => "shm",
            Self::Sim => "sim",
            Self::Rdma => "rdma",
        }
    }
}

/// What a connected endpoint promises; everything is `false` until the device says otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capabilities {
    /// The peer's arena can be reached with loads and stores: [`Endpoint::peer_arena`].
    pub mapped: bool,
    /// Both processes take part in a common [barrier](caravan_segment::barrier): cursors in mapped
    /// memory may be fenced by the side that sleeps alone.
    pub asymmetric_fences: bool,
    /// Immediates arrive in the order in which their writes were posted, and after the bytes of
    /// all writes posted before. (Each arrives in any case after the bytes of its own write, and
    /// after every write, with its immediate, whose completion had been polled before its own was
    /// posted.)
    pub immediates_ordered: bool,
    /// The endpoint has compare-and-swap.
    pub compare_and_swap: bool,
    /// Compare-and-swap is atomic against the target's own processor.
    pub atomic_with_processor: bool,
    /// Operations complete while the target's threads do something else.
    pub target_progress: bool,
    /// A memory window, bound to this connection, limits the peer to what was exposed.
    pub memory_windows: bool,
    /// An operation may complete before it has arrived: what its side has sent may yet be lost with the
    /// connection.
    pub completes_early: bool,
    /// The longest operation, in bytes.
    pub operation_bytes_max: u32,
}

/// How much memory a side has, and which part of it the peer may reach.
///
/// The peer may write to the exposed part in any case. Where memory is mapped all of it is exposed:
/// there is no hardware in between that could tell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exposure {
    /// Bytes of the arena.
    pub arena_bytes: u64,
    /// The part that the peer's operations may name; its bounds are multiples of 8.
    pub exposed: Range<u64>,
    /// The peer may also read it.
    pub peer_reads: bool,
    /// The peer may also compare and swap in it.
    pub peer_swaps: bool,
}

impl Exposure {
    /// An arena that the peer may do anything in.
    pub fn all(arena_bytes: u64) -> Self {
        Self { arena_bytes, exposed: 0..arena_bytes, peer_reads: true, peer_swaps: true }
    }
}

/// A run of bytes in this side's arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Local {
    /// First byte.
    pub offset: u64,
    /// How many.
    pub bytes: u32,
}

/// One operation. Its completion has the same `context`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Copies `from` to offset `to` of the peer's arena. `from` must not change until completion,
    /// or until the peer has answered to the immediate. With an `immediate`, the peer polls an
    /// [`Event::Immediate`] once the bytes are visible to its processor; `from` may then be empty. If
    /// the device has no immediates, the backend sends a message behind the write.
    Write {
        /// Where the bytes are.
        from: Local,
        /// Where they go.
        to: u64,
        /// What the peer polls, if anything.
        immediate: Option<u32>,
        /// Returned in the completion.
        context: u64,
    },
    /// Copies bytes at offset `from` of the peer's arena to `into`.
    Read {
        /// Where the bytes are.
        from: u64,
        /// Where they go.
        into: Local,
        /// Returned in the completion.
        context: u64,
    },
    /// If the 64-bit word at offset `at` (a multiple of 8) of the peer's arena is `expected`,
    /// makes it `desired`; its completion has what was found.
    CompareAndSwap {
        /// Where the word is.
        at: u64,
        /// The value that the word must have.
        expected: u64,
        /// The value that the word gets.
        desired: u64,
        /// Returned in the completion.
        context: u64,
    },
}

/// What a backend checks an [`Operation`] against before it starts it.
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
    /// Refuses an operation that is a programming error of this side.
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
        // An operation of no bytes, such as an immediate alone, names no place of the peer's.
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
    /// As posted.
    pub context: u64,
    /// For compare-and-swap, the word that was found.
    pub found: Option<u64>,
}

/// Why an endpoint cannot go on, or an operation not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Too many operations under way. Nothing was started: poll, then post again.
    #[error("{provider}: the send queue is full; completions must be polled first", provider = .0.name())]
    Full(Provider),
    /// A place outside an arena: a programming error of this side.
    #[error("{what}: bytes {offset}..{offset}+{bytes} are outside an arena of {arena_bytes}")]
    OutOfArena {
        /// Whose arena and which operation.
        what: &'static str,
        /// First byte.
        offset: u64,
        /// How many.
        bytes: u64,
        /// Bytes of the arena.
        arena_bytes: u64,
    },
    /// More bytes than one operation can have: a programming error of this side.
    #[error("{provider}: an operation of {bytes} bytes, where {maximum} is the most", provider = .provider.name())]
    OperationBytes {
        /// What carries it.
        provider: Provider,
        /// How many.
        bytes: u32,
        /// [`Capabilities::operation_bytes_max`].
        maximum: u32,
    },
    /// A place that is not a multiple of 8 where it must be: a programming error of this side.
    #[error("{what}: offset {offset} is not a multiple of 8")]
    Misaligned {
        /// Which operation.
        what: &'static str,
        /// Where.
        offset: u64,
    },
    /// The backend cannot do that operation; [`Capabilities`] said so.
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
    /// An arena's size that cannot be: a programming error of this side.
    #[error("arena_bytes is {bytes}: it takes a multiple of 8 from 8 to {maximum}")]
    ArenaBytes {
        /// What was asked for.
        bytes: u64,
        /// The most.
        maximum: u64,
    },
    /// A ring position that cannot be.
    #[error(transparent)]
    Corrupt(#[from] caravan_ring::Corrupt),
    /// Shared memory failed.
    #[error(transparent)]
    Segment(#[from] caravan_segment::Error),
    /// A size that cannot be.
    #[error("ring_bytes is {bytes}: it takes a power of two from {minimum} to {maximum}")]
    RingBytes {
        /// What was asked for.
        bytes: u64,
        /// The least.
        minimum: u64,
        /// The most.
        maximum: u64,
    },
    /// The backend cannot be used on this machine, or does not reach the peer.
    #[error("{why}")]
    Unavailable {
        /// Which backend.
        provider: Provider,
        /// The reason, with the remedy.
        why: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A device refused something, or failed.
    #[error("{device}: {what}")]
    Device {
        /// Its name.
        device: String,
        /// What, and what to do about it where that is known.
        what: String,
    },
    /// Any other failure of a system call.
    #[error("{call}: {source}")]
    System {
        /// The call that failed.
        call: &'static str,
        /// What the kernel said.
        source: std::io::Error,
    },
}

/// What [`Endpoint::arm`] says: whether its caller may wait on the descriptor now.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Armed {
    /// Nothing is there: the descriptor becomes readable with the next event.
    Wait,
    /// Something came in between: poll again.
    LookAgain,
}

/// One side of a connection between two arenas.
pub trait Endpoint: Send + std::fmt::Debug {
    /// What carries this endpoint.
    fn provider(&self) -> Provider;

    /// What this endpoint promises beyond the contract.
    fn capabilities(&self) -> Capabilities;

    /// This side's memory, which the peer can read and write. All zero at first.
    fn arena(&self) -> &SharedSlice;

    /// Bytes of the peer's arena. Of these, the operations reach what the peer has
    /// [exposed](Exposure).
    fn peer_arena_bytes(&self) -> u64;

    /// The peer's arena itself, where [`Capabilities::mapped`].
    fn peer_arena(&self) -> Option<&SharedSlice>;

    /// Queues an operation. Never blocks. Returns [`Error::Full`] if the queue is full; once it no longer
    /// is, there is something to poll, or will be.
    fn post(&mut self, operation: Operation) -> Result<(), Error>;

    /// Starts everything posted: one doorbell for all of it.
    fn doorbell(&mut self) -> Result<(), Error>;

    /// Has everything posted so far complete without waiting for more. A backend may gather the
    /// completions of writes, because each costs a device something, until there are enough of them or
    /// until this is called. A caller that has nothing more to post, and waits for what is under way,
    /// calls it.
    fn flush(&mut self) -> Result<(), Error>;

    /// Appends what has happened to `events`, at most `limit` of it, and returns how many. Never
    /// blocks. An error ends the endpoint; [`Error::PeerGone`] comes once everything that the peer
    /// did before has been polled.
    fn poll(&mut self, events: &mut Vec<Event>, limit: usize) -> Result<usize, Error>;

    /// To be called before each wait on [`wait_fd`](Self::wait_fd); only [`Armed::Wait`] allows the wait.
    fn arm(&mut self) -> Result<Armed, Error>;

    /// A descriptor that becomes readable when the endpoint is armed and there is something to poll. It
    /// may become readable without a reason, too. It can be in any poll set. `None` only for a backend
    /// that never needs waiting.
    fn wait_fd(&self) -> Option<BorrowedFd<'_>>;

    /// Makes the descriptor unreadable again; to be called when it was readable.
    fn acknowledge(&mut self) -> Result<(), Error>;

    /// Makes the descriptor of a peer that is armed readable. Users of mapped memory, which changes
    /// without any event, call it; others send immediates.
    fn wake_peer(&mut self) -> Result<(), Error>;

    /// An error if the peer is known to have ended. May ask the kernel or, without waiting for its
    /// answer, the peer's device: not for hot paths.
    fn check_peer(&mut self) -> Result<(), Error>;

    /// The device, port and addresses, as users see them. Empty where there is nothing to tell.
    fn description(&self) -> String {
        String::new()
    }

    /// What this endpoint has counted.
    fn counts(&self) -> EndpointCounts {
        EndpointCounts::default()
    }
}

/// What an endpoint has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EndpointCounts {
    /// Times that work was handed to a device.
    pub doorbells: u64,
    /// Completions taken from a device.
    pub completions: u64,
    /// Bytes registered with a device.
    pub registered_bytes: u64,
}
