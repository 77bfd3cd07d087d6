//! How packets pass from one process to another: a ring of their numbers, and the packet header in
//! front of each.
//!
//! Giving: write the new owner into each packet header, put the packet's number into the ring, publish. Taking:
//! read the numbers, write the own code into each packet header, release. A process can be killed between any
//! two of these stores. Then
//!
//! - a packet that names the link but is not in the ring was not published: it goes to the giver's
//!   successor ([`crate::recovery`]);
//! - a packet that is in the ring but does not name the link was taken, and its slot not
//!   released: the supervisor releases it ([`skip_taken`]).
//!
//! Between the two steps of taking, no packet is given on. So no number is ever in a ring twice.
//!
//! Packet headers and rings are reached through traits, so that a model checker can provide its own.

use caravan_ring::{Corrupt, Cursors, SlotConsumer, SlotProducer, Slots, Wake};

use crate::limits::BATCH_PACKETS;
use crate::owner::{Owner, PacketHeader};

/// How many packets ahead headers are prefetched: as many cache lines as a core can have under way at once. The
/// headers of the next batch arrive while this batch is processed.
const AHEAD_PACKETS: usize = 16;

/// The packet headers of an engine.
pub trait PacketHeaders {
    /// Reads a header.
    fn load(&self, index: u32) -> PacketHeader;
    /// Writes the header of a packet that this process owns.
    fn store(&self, index: u32, header: PacketHeader);
    /// Hints that a header will be written soon.
    fn expect_write(&self, index: u32) {
        let _ = index;
    }
}

/// Gives `count` packets away: puts them into the ring without publishing them. The caller has checked that there
/// is [room](SlotProducer::room) for all of them.
#[inline]
pub fn give<C: Cursors, S: Slots>(
    ring: &mut SlotProducer<C, S>,
    headers: &impl PacketHeaders,
    count: usize,
    packets: impl Iterator<Item = (u32, PacketHeader)>,
) -> Result<(), Corrupt> {
    let packets = packets.map(|(index, header)| {
        headers.store(index, header);
        index
    });
    ring.extend(count, packets)
}

/// Packets that passed through a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MovedPackets {
    /// Packets handed over.
    pub packets: usize,
    /// Numbers whose packets were not the link's: a process that was killed had taken them already.
    pub skipped: usize,
    /// Whether the other side must be woken.
    pub wake: Wake,
}

impl MovedPackets {
    pub(crate) const NOTHING: Self = Self { packets: 0, skipped: 0, wake: Wake::Quiet };
}

/// Takes up to `limit` packets, [`BATCH_PACKETS`] at most, that name `from`: makes `to` their owner, passes
/// them to `each`, oldest first, with their old headers, and releases their slots. `each` must keep them:
/// a packet that it gave on could come back here before its slot is free.
#[inline]
pub fn take<C: Cursors, S: Slots>(
    ring: &mut SlotConsumer<C, S>,
    headers: &impl PacketHeaders,
    (from, to): (Owner, Owner),
    limit: usize,
    mut each: impl FnMut(u32, PacketHeader),
) -> Result<MovedPackets, Corrupt> {
    let limit = limit.min(BATCH_PACKETS);
    let expected = ring.poll(limit + AHEAD_PACKETS)?.length();
    let count = expected.min(limit);
    if count == 0 {
        return Ok(MovedPackets::NOTHING);
    }
    let (from, to) = (from.code(), to.code());
    (0..expected.min(AHEAD_PACKETS)).for_each(|place| headers.expect_write(ring.peek(place)));
    let mut packets = 0;
    for place in 0..count {
        if place + AHEAD_PACKETS < expected {
            headers.expect_write(ring.peek(place + AHEAD_PACKETS));
        }
        let index = ring.peek(place);
        let header = headers.load(index);
        if header.owner_code() == from {
            headers.store(index, header.given_to(to));
            each(index, header);
            packets += 1;
        }
    }
    let wake = ring.release(count);
    Ok(MovedPackets { packets, skipped: count - packets, wake })
}

/// Skips the numbers at the head whose packets do not name `from`: a process that was killed took
/// them, and did not release the slots. The supervisor calls it before it gives those packets to
/// another owner. Returns the number of slots; the other side may be waiting for them.
pub fn skip_taken<C: Cursors, S: Slots>(
    ring: &mut SlotConsumer<C, S>,
    headers: &impl PacketHeaders,
    from: Owner,
) -> Result<usize, Corrupt> {
    let spans = ring.poll(BATCH_PACKETS)?;
    let from = from.code();
    let taken = |offset: &usize| headers.load(ring.item(*offset)).owner_code() != from;
    let count = spans.offsets().take_while(taken).count();
    if count > 0 {
        let _ = ring.release(count);
    }
    Ok(count)
}
