//! A ring in each direction between two processes, with waiting and waking.
//!
//! Each side's arena holds the ring that it reads. Where the peer's arena is mapped, the producer
//! works on the consumer's memory itself, and publishing is a store. Elsewhere it works on a copy
//! of the same shape in its own arena, which `link_staged` copies across, with one doorbell
//! for each publish. Both sides run the same cursor code in both cases.
//!
//! Layout of an arena: the inbound ring (header, bytes); then, unless mapped, the outbound copy.
//!
//! A link is used by one thread at a time.

mod connect;
mod shared;
mod waiting;

use caravan_ring::{ByteConsumer, ByteProducer, HEADER_BYTES, MappedBytes, MappedCursors, Spans, Wake};
use caravan_segment::SharedSlice;
use caravan_segment::barrier::Fences;

use crate::contract::{Endpoint, EndpointCounts, Error, Exposure, Provider};
use crate::link_staged::StagedRings;
pub use shared::USER_OPERATIONS_MAX;
pub(crate) use shared::{LINK_CONTEXT, UserOperations};

/// The smallest ring.
pub const RING_BYTES_MIN: u64 = 4 << 10;
/// The largest ring: a number of its bytes must fit the 31 bits of an immediate.
pub const RING_BYTES_MAX: u64 = 1 << 30;

pub(crate) type LinkProducer = ByteProducer<MappedCursors, MappedBytes>;
pub(crate) type LinkConsumer = ByteConsumer<MappedCursors, MappedBytes>;

/// What a link has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkCounts {
    /// The number of bytes published.
    pub sent_bytes: u64,
    /// The number of bytes released.
    pub received_bytes: u64,
    /// The number of times that this side rang the peer's bell.
    pub wakeups_sent: u64,
    /// The number of times that this side found its bell rung.
    pub wakeups_received: u64,
}

/// A byte stream in each direction.
#[derive(Debug)]
pub struct Link {
    endpoint: Box<dyn Endpoint>,
    outbound: LinkProducer,
    inbound: LinkConsumer,
    staged: Option<StagedRings>,
    counts: LinkCounts,
    user: UserOperations,
}

impl Link {
    /// Returns the number of bytes of arena that each side of a link with rings of `ring_bytes` needs, on any backend.
    pub fn arena_bytes(ring_bytes: u64) -> Result<u64, Error> {
        if !ring_bytes.is_power_of_two() || !(RING_BYTES_MIN..=RING_BYTES_MAX).contains(&ring_bytes) {
            return Err(Error::RingBytes {
                bytes: ring_bytes,
                minimum: RING_BYTES_MIN,
                maximum: RING_BYTES_MAX,
            });
        }
        Ok(2 * (HEADER_BYTES as u64 + ring_bytes))
    }

    /// Returns the number of bytes of arena that each side needs if the peer's arena is mapped.
    pub fn mapped_arena_bytes(ring_bytes: u64) -> Result<u64, Error> {
        Ok(Self::arena_bytes(ring_bytes)? / 2)
    }

    /// Returns the exposure of an arena that the peer does not map: the peer may write the bytes of the ring that
    /// it fills, and nothing else.
    pub fn exposure(ring_bytes: u64) -> Result<Exposure, Error> {
        let ring_at = HEADER_BYTES as u64;
        Ok(Exposure {
            arena_bytes: Self::arena_bytes(ring_bytes)?,
            exposed: ring_at..ring_at + ring_bytes,
            peer_reads: false,
            peer_swaps: false,
        })
    }

    /// Makes a link over a new endpoint, whose arenas are all zero. Both sides pass the same
    /// `ring_bytes`.
    pub fn new(endpoint: Box<dyn Endpoint>, ring_bytes: u64) -> Result<Self, Error> {
        Self::arena_bytes(ring_bytes)?;
        let ring_total = HEADER_BYTES as u64 + ring_bytes;
        let fences = match endpoint.capabilities().asymmetric_fences {
            true => Fences::Asymmetric,
            false => Fences::Symmetric,
        };
        let (cursors, bytes) = ring_at(endpoint.arena(), 0, ring_bytes, fences)?;
        let inbound = ByteConsumer::new(cursors, bytes);
        let (outbound, staged) = match endpoint.peer_arena() {
            Some(theirs) => {
                let (cursors, bytes) = ring_at(theirs, 0, ring_bytes, fences)?;
                (ByteProducer::new(cursors, bytes), None)
            }
            None => {
                let (cursors, bytes) = ring_at(endpoint.arena(), ring_total, ring_bytes, fences)?;
                let staged = StagedRings::new(ring_bytes, ring_total, endpoint.capabilities());
                (ByteProducer::new(cursors, bytes), Some(staged))
            }
        };
        let (counts, user) = (LinkCounts::default(), UserOperations::default());
        Ok(Self { endpoint, outbound, inbound, staged, counts, user })
    }

    /// Returns the name of the backend that carries the link.
    pub fn provider(&self) -> Provider {
        self.endpoint.provider()
    }

    /// Returns the device, port and addresses that carry the link, as users see them.
    pub fn description(&self) -> String {
        self.endpoint.description()
    }

    /// What the link has counted.
    pub fn counts(&self) -> LinkCounts {
        self.counts
    }

    /// What the endpoint below has counted.
    pub fn endpoint_counts(&self) -> EndpointCounts {
        self.endpoint.counts()
    }

    /// Bytes of one ring.
    pub fn ring_bytes(&self) -> u64 {
        self.outbound.position().capacity()
    }

    /// Returns the number of bytes sent that the peer has not released, as far as this side knows.
    pub fn outbound_used_bytes(&self) -> u64 {
        self.outbound.position().used_now()
    }

    /// Returns the number of bytes received that this side has not released.
    pub fn inbound_used_bytes(&self) -> u64 {
        self.inbound.position().available()
    }

    // --- sending --------------------------------------------------------------------------

    /// Copies as many bytes of `from` as fit into the ring, and returns their number. The peer sees
    /// nothing before [`publish`](Self::publish).
    #[inline]
    pub fn append(&mut self, from: &[u8]) -> Result<usize, Error> {
        Ok(self.outbound.append(from)?)
    }

    /// Claims room for up to `length` bytes, to be filled in place and committed; the spans are offsets
    /// in [`outbound_slice`](Self::outbound_slice).
    pub fn claim(&mut self, length: usize) -> Result<Spans, Error> {
        Ok(self.outbound.claim(length)?)
    }

    /// Commits the first `length` bytes of the last claim, which the caller has filled.
    pub fn commit(&mut self, length: usize) {
        self.outbound.commit(length);
    }

    /// Returns the memory of the outbound ring, for system calls that read into a claim.
    pub fn outbound_slice(&self) -> &SharedSlice {
        self.outbound.bytes().slice()
    }

    /// Returns the number of bytes that can be claimed now.
    pub fn room(&mut self) -> Result<usize, Error> {
        self.progress()?;
        self.outbound.cursor().refresh()?;
        Ok((self.outbound.position().capacity() - self.outbound.position().used()) as usize)
    }

    /// Makes everything committed visible to the peer, and wakes it if it sleeps.
    #[inline]
    pub fn publish(&mut self) -> Result<(), Error> {
        let before = self.outbound.position().published_position();
        let wake = self.outbound.publish();
        self.counts.sent_bytes += self.outbound.position().published_position() - before;
        match &mut self.staged {
            None => self.deliver(wake),
            Some(staged) => staged.push(&mut *self.endpoint, &self.outbound),
        }
    }

    // --- receiving ------------------------------------------------------------------------

    /// Looks for news from the peer, and returns the number of bytes that can be read now.
    /// All bytes that a peer sent before its end can be read before the error that reports the end.
    #[inline]
    pub fn refresh(&mut self) -> Result<usize, Error> {
        let progress = self.progress();
        let unread = self.inbound.refresh()?;
        match progress {
            Err(Error::PeerGone(..)) if unread > 0 => Ok(unread),
            progress => progress.map(|()| unread),
        }
    }

    /// Returns the number of bytes that can be read without looking again.
    #[inline]
    pub fn unread(&self) -> usize {
        self.inbound.unread()
    }

    /// Copies unread bytes to `to`, and returns their number. Their room goes back to the peer with
    /// [`release`](Self::release).
    #[inline]
    pub fn read(&mut self, to: &mut [u8]) -> usize {
        self.inbound.read(to)
    }

    /// Returns the ring that this side reads, for a reader of records.
    #[inline]
    pub fn inbound(&mut self) -> &mut ByteConsumer<MappedCursors, MappedBytes> {
        &mut self.inbound
    }

    /// Returns the memory of the inbound ring, for system calls that write from a polled span.
    pub fn inbound_slice(&self) -> &SharedSlice {
        self.inbound.bytes().slice()
    }

    /// Returns the spans of up to `length` bytes that can be read in place; [`skip`](Self::skip) then counts them as
    /// read.
    pub fn poll(&mut self, length: usize) -> Result<Spans, Error> {
        if self.staged.is_some() {
            self.refresh()?;
        }
        Ok(self.inbound.poll(length)?)
    }

    /// Counts `length` bytes of the last poll as read.
    pub fn skip(&mut self, length: usize) {
        self.inbound.skip(length);
    }

    /// Returns the number of bytes read and not yet released.
    pub fn unreleased(&self) -> usize {
        self.inbound.unreleased()
    }

    /// Gives the room of all bytes read back to the peer, and wakes it if it waits for that room.
    #[inline]
    pub fn release(&mut self) -> Result<(), Error> {
        self.counts.received_bytes += self.inbound.unreleased() as u64;
        let wake = self.inbound.release();
        match &mut self.staged {
            None => self.deliver(wake),
            Some(staged) => match staged.credit(&mut *self.endpoint, &self.inbound, false) {
                // There may be more to read; after that, `refresh` reports the end.
                Err(Error::PeerGone(..)) => Ok(()),
                credited => credited,
            },
        }
    }

    #[inline]
    fn deliver(&mut self, wake: Wake) -> Result<(), Error> {
        if wake == Wake::Bell {
            self.counts.wakeups_sent += 1;
            self.endpoint.wake_peer()?;
        }
        Ok(())
    }

    #[inline]
    fn progress(&mut self) -> Result<(), Error> {
        match &mut self.staged {
            None => Ok(()),
            Some(staged) => {
                let Self { endpoint, outbound, inbound, user, .. } = self;
                staged.progress(&mut **endpoint, outbound, inbound, user).map(drop)
            }
        }
    }
}

fn ring_at(
    arena: &SharedSlice,
    offset: u64,
    ring_bytes: u64,
    fences: Fences,
) -> Result<(MappedCursors, MappedBytes), Error> {
    let cursors = MappedCursors::new(&arena.part(offset, HEADER_BYTES as u64)?, fences)?;
    let bytes = MappedBytes::new(arena.part(offset + HEADER_BYTES as u64, ring_bytes)?)?;
    Ok((cursors, bytes))
}
