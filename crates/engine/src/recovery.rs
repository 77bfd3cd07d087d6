//! What the supervisor does with the packets of a process that was killed; the code uses words and rings alone.
//!
//! The other processes go on meanwhile. These decisions hold all the same:
//!
//! - Packets that name the dead worker: no other process writes their headers.
//! - Packets that name a link that only the dead worker gave to, [full](Owner::Full) where it was
//!   the producer and [empty](Owner::Empty) where it was the consumer: no more of them will come,
//!   and those that were published lie between head and tail. The live side moves the head on,
//!   so the head is read first. A packet that is taken meanwhile is found among the published, or its
//!   header names its taker by then.
//! - [Parked](Owner::Parked) packets: the supervisor looks at them only while no worker parks packets.

use std::sync::atomic::Ordering;

use caravan_ring::{Cursors, SlotConsumer, Slots};

use crate::handover::{PacketHeaders, skip_taken};
use crate::layout::{LinkRing, SharedWords};
use crate::owner::{LinkId, Owner, PacketHeader, WorkerId};

/// Returns the numbers in a ring: between its head, which is read first, and its tail. Returns none if these
/// two are impossible.
pub fn published(shared: &SharedWords, link: LinkId, ring: LinkRing) -> Vec<u32> {
    let Ok((cursors, slots)) = shared.ring(link, ring) else { return Vec::new() };
    // pairs with the Release in ConsumerCursor::release and in ProducerCursor::publish
    let head = cursors.head_position().load(Ordering::Acquire);
    let tail = cursors.tail_position().load(Ordering::Acquire);
    let capacity = slots.capacity();
    if tail.checked_sub(head).is_none_or(|length| length > capacity) {
        return Vec::new();
    }
    (head..tail).map(|position| slots.take((position & (capacity - 1)) as usize)).collect()
}

/// Releases the slots of packets that a dead process had taken out of a ring, but not
/// released: the process that has this end next must not find their numbers there. No process has
/// the end now. Returns the number of slots; the other side may wait for them.
pub fn release_taken(
    shared: &SharedWords,
    headers: &impl PacketHeaders,
    link: LinkId,
    ring: LinkRing,
) -> u64 {
    let owner = match ring {
        LinkRing::Full => Owner::Full(link),
        LinkRing::Empty => Owner::Empty(link),
        LinkRing::Head | LinkRing::Tail => Owner::Parked(link),
    };
    let Ok((cursors, slots)) = shared.ring(link, ring) else { return 0 };
    let consumer = SlotConsumer::resume(cursors, slots);
    consumer.and_then(|mut ring| skip_taken(&mut ring, headers, owner)).map_or(0, |count| count as u64)
}

/// Empties a ring of which no process has an end.
pub fn empty(shared: &SharedWords, link: LinkId, ring: LinkRing) {
    let Ok((cursors, _)) = shared.ring(link, ring) else { return };
    let tail = cursors.tail_position().load(Ordering::Acquire);
    // pairs with the Acquire of a process that resumes the ring
    cursors.head_position().store(tail, Ordering::Release);
    cursors.consumer_asleep().store(0, Ordering::Release);
    cursors.producer_wants().store(0, Ordering::Release);
}

/// A ring that the dead process gave packets to, as it was when it was read.
#[derive(Clone, Debug)]
pub struct Given {
    /// The owner that packets in the ring name.
    pub owner: Owner,
    /// The numbers between head and tail, the head having been read first.
    pub published: Vec<u32>,
}

/// The result of a recovery.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Recovered {
    /// Packets that the dead worker owned, and that its successor owns now.
    pub reclaimed: u64,
    /// Of the reclaimed packets, those that were given to a link and not published.
    pub unpublished: u64,
    /// Of the reclaimed packets, those that held data, which is lost.
    pub lost: u64,
}

/// Gives every packet of the dead worker, now free, to its successor. `packets` is the number of all packets.
pub fn reclaim(headers: &impl PacketHeaders, packets: u32, dead: WorkerId, given: &[Given]) -> Recovered {
    let mut published = vec![false; packets as usize];
    for ring in given {
        for &index in &ring.published {
            if let Some(place) = published.get_mut(index as usize) {
                *place = true;
            }
        }
    }
    let ours = Owner::Worker(dead);
    let gave = codes(given.iter().map(|ring| ring.owner));
    let mut found = Recovered::default();
    for index in 0..packets {
        let header = headers.load(index);
        let code = header.owner_code();
        let unpublished = gave[usize::from(code)] && !published[index as usize];
        if code == ours.code() || unpublished {
            found.reclaimed += 1;
            found.unpublished += u64::from(unpublished);
            found.lost += u64::from(header.is_used());
            headers.store(index, PacketHeader::unused(ours));
        }
    }
    found
}

/// Returns, for each owner code, whether the owner is one of these: the lookup takes as long with 256
/// links as with one.
fn codes(owners: impl Iterator<Item = Owner>) -> Vec<bool> {
    let mut is_one = vec![false; 1 << u16::BITS];
    owners.for_each(|owner| is_one[usize::from(owner.code())] = true);
    is_one
}

/// Gives every packet that names one of these owners to the pool. The worker or the link has been
/// removed, and no process has an end of it. Returns the packets, and the number of those that held data.
pub fn return_to_pool(headers: &impl PacketHeaders, packets: u32, owners: &[Owner]) -> (Vec<u32>, u64) {
    let gone = codes(owners.iter().copied());
    let mut returned = Vec::new();
    let mut lost = 0;
    for index in 0..packets {
        let header = headers.load(index);
        if gone[usize::from(header.owner_code())] {
            lost += u64::from(header.is_used());
            headers.store(index, PacketHeader::unused(Owner::Pool));
            returned.push(index);
        }
    }
    (returned, lost)
}
