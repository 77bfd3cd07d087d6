//! How packets pass from one process to another: a ring of their numbers, and the owner's word in
//! front of each.
//!
//! Giving: write the new owner into each packet, put its number into the ring, publish. Taking:
//! read the numbers, write oneself into each packet, release. A process can be killed between any
//! two of these stores. Then
//!
//! - a packet that names the link but is not in the ring was not published: it is the giver's
//!   successor's ([`crate::recovery`]);
//! - a packet that is in the ring but does not name the link was taken, and its slot not
//!   released: [`take`] skips it.
//!
//! Taking releases before it hands anything on. So a number is in a ring twice only after all the
//! rest has gone wrong.
//!
//! Words and rings are reached through traits, so that a model checker can put its own there.

use caravan_ring::{Corrupt, Cursors, SlotConsumer, SlotProducer, Slots, Wake};

use crate::limits::BATCH_PACKETS;
use crate::owner::{Header, Owner};

/// The words in front of packets.
pub trait Headers {
    /// Reads one.
    fn load(&self, index: u32) -> Header;
    /// Writes one; its packet is this process's.
    fn store(&self, index: u32, header: Header);
    /// A hint that one will be written soon.
    fn expect_write(&self, index: u32) {
        let _ = index;
    }
}

/// Gives one packet away: it is in the ring, and not published. False, and nothing done, if the
/// ring is full.
#[inline]
pub fn give<C: Cursors, S: Slots>(
    ring: &mut SlotProducer<C, S>,
    headers: &impl Headers,
    index: u32,
    header: Header,
) -> Result<bool, Corrupt> {
    if ring.room(1)? == 0 {
        return Ok(false);
    }
    headers.store(index, header);
    ring.push(index)
}

/// What [`take`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    /// Packets handed over.
    pub packets: usize,
    /// Numbers whose packet was not the link's: a process that was killed had taken them already.
    pub skipped: usize,
    /// Whether the producer must be woken.
    pub wake: Wake,
}

/// Takes up to `limit` packets, [`BATCH_PACKETS`] at most, that name `from`: makes them `to`'s, gives
/// their slots back, and hands them to `each`, oldest first, with the word they had.
#[inline]
pub fn take<C: Cursors, S: Slots>(
    ring: &mut SlotConsumer<C, S>,
    headers: &impl Headers,
    (from, to): (Owner, Owner),
    limit: usize,
    mut each: impl FnMut(u32, Header),
) -> Result<Taken, Corrupt> {
    let spans = ring.poll(limit.min(BATCH_PACKETS))?;
    let count = spans.length();
    if count == 0 {
        return Ok(Taken { packets: 0, skipped: 0, wake: Wake::Quiet });
    }
    let (from, to) = (from.code(), to.code());
    // All lines are asked for before the first is needed: their ways overlap.
    spans.offsets().for_each(|offset| headers.expect_write(ring.item(offset)));
    let mut batch = [(0, Header(0)); BATCH_PACKETS];
    let mut packets = 0;
    spans.offsets().for_each(|offset| {
        let index = ring.item(offset);
        let header = headers.load(index);
        if header.owner_code() == from {
            headers.store(index, header.given_to(to));
            batch[packets] = (index, header);
            packets += 1;
        }
    });
    let wake = ring.release(count);
    batch[..packets].iter().for_each(|&(index, header)| each(index, header));
    Ok(Taken { packets, skipped: count - packets, wake })
}

/// Skips the numbers at the head whose packets do not name `from`: a process that was killed took
/// them, and did not give the slots back. For its successor, before anything else. Returns how
/// many there were; the other side may be waiting for their slots.
pub fn skip_taken<C: Cursors, S: Slots>(
    ring: &mut SlotConsumer<C, S>,
    headers: &impl Headers,
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
