//! The ends of a link, as a worker has them.
//!
//! Between two processes packets pass by [`crate::handover`]. The producer's end has a queue that
//! its app fills, and gives the packets in it to the ring. The consumer's end takes packets from the ring into a
//! queue that its app empties, and gives an empty packet back for each. It gives that packet back as soon as
//! the consumer has a free one, so that the number of packets of each worker stays as it is.

use caravan_ring::{Corrupt, MappedCursors, MappedSlots, SlotConsumer, SlotProducer, Wake};

use crate::error::corrupt;
use crate::handover::{MovedPackets, PacketHeaders, give, take};
use crate::layout::{DropReason, LinkMode, LinkRing, SharedWords};
use crate::limits::{BATCH_PACKETS, PACKET_HEADER_BYTES, PACKET_STRIDE};
use crate::owner::{LinkId, Owner, PacketHeader};
use crate::packet::Packet;
use crate::pool::Pool;
use crate::queue::PacketQueue;

type RingProducer = SlotProducer<MappedCursors, MappedSlots>;
type RingConsumer = SlotConsumer<MappedCursors, MappedSlots>;

impl MovedPackets {
    /// Adds a batch that was given to a ring.
    #[inline]
    fn add(&mut self, packets: usize, wake: Wake) {
        self.packets += packets;
        if wake == Wake::Bell {
            self.wake = wake;
        }
    }
}

/// Makes a packet of an index and a header from a ring. If the lengths are impossible, the packet is empty.
#[inline]
fn adopt(pool: &Pool, index: u32, header: PacketHeader) -> Packet {
    let (offset, length) = (usize::from(header.offset()), usize::from(header.length()));
    let whole = offset >= PACKET_HEADER_BYTES && offset + length <= PACKET_STRIDE;
    let (offset, length) =
        if whole { (header.offset(), header.length()) } else { (PACKET_HEADER_BYTES as u16, 0) };
    // SAFETY: `take` has just made the packet this process's, and hands each packet over once.
    unsafe { pool.memory().adopt(index, offset, length) }
}

/// The end that sends.
#[derive(Debug)]
pub struct ProducerEnd {
    link: LinkId,
    full: RingProducer,
    empty: RingConsumer,
}

impl ProducerEnd {
    /// Goes on where the last process that had this end left off. Takes the empty packets that have come back
    /// at once.
    pub fn resume(shared: &SharedWords, link: LinkId, pool: &mut Pool) -> Result<Self, crate::Error> {
        let corrupt = corrupt(link);
        let (cursors, slots) = shared.ring(link, LinkRing::Full)?;
        let mut full = RingProducer::resume(cursors, slots).map_err(corrupt)?;
        let (cursors, slots) = shared.ring(link, LinkRing::Empty)?;
        let mut empty = RingConsumer::resume(cursors, slots).map_err(corrupt)?;
        // The last process may have been killed while it slept.
        full.cursor().stop_waiting();
        empty.cursor().wake();
        let mut end = Self { link, full, empty };
        while end.collect(pool).map_err(corrupt)?.packets > 0 {}
        Ok(end)
    }

    /// Takes the empty packets that came back.
    #[inline]
    pub fn collect(&mut self, pool: &mut Pool) -> Result<MovedPackets, Corrupt> {
        let owners = (Owner::Empty(self.link), pool.owner());
        let (memory, free) = pool.parts();
        take(&mut self.empty, memory, owners, BATCH_PACKETS, |index, _| free.push(index))
    }

    /// Gives the packets that the app has queued to the ring, as far as there is room: a batch at a time, so that at
    /// most a batch is given and not published.
    #[inline]
    pub fn send(
        &mut self,
        queue: &mut PacketQueue,
        memory: &impl PacketHeaders,
    ) -> Result<MovedPackets, Corrupt> {
        let owner = PacketHeader::used(Owner::Full(self.link), 0, 0).owner_bits();
        let mut moved = MovedPackets::NOTHING;
        loop {
            let count = self.full.room(queue.length().min(BATCH_PACKETS))?;
            if count == 0 {
                return Ok(moved);
            }
            let packets = queue.drain(count).map(|packet| {
                let header = packet.header(owner);
                (packet.into_index(), header)
            });
            give(&mut self.full, memory, count, packets)?;
            moved.add(count, self.full.publish());
        }
    }

    /// Announces that this side is about to wait: for room, if packets are queued; for empty packets, if
    /// `starved`. Returns false if it need not wait.
    pub fn sleep(&mut self, queued: usize, starved: bool) -> Result<bool, Corrupt> {
        let wait = queued == 0 || self.full.cursor().wait_for_room(queued.min(BATCH_PACKETS) as u64)?;
        Ok(wait && (!starved || self.empty.cursor().sleep()?))
    }

    /// Announces that this side no longer waits.
    pub fn wake(&mut self) {
        self.full.cursor().stop_waiting();
        self.empty.cursor().wake();
    }
}

/// The end that receives.
#[derive(Debug)]
pub struct ConsumerEnd {
    link: LinkId,
    mode: LinkMode,
    full: RingConsumer,
    empty: RingProducer,
    /// Packets taken for which no empty packet has gone back yet.
    owed: u64,
}

impl ConsumerEnd {
    /// Goes on where the last process that had this end left off. The empty packets that the last process owed are
    /// not given back: the worker owns the packets that were taken instead.
    pub fn resume(shared: &SharedWords, link: LinkId, mode: LinkMode) -> Result<Self, crate::Error> {
        let corrupt = corrupt(link);
        let (cursors, slots) = shared.ring(link, LinkRing::Full)?;
        let mut full = RingConsumer::resume(cursors, slots).map_err(corrupt)?;
        let (cursors, slots) = shared.ring(link, LinkRing::Empty)?;
        let empty = RingProducer::resume(cursors, slots).map_err(corrupt)?;
        full.cursor().wake();
        Ok(Self { link, mode, full, empty, owed: 0 })
    }

    /// Takes packets from the ring into the queue, as far as there is room.
    #[inline]
    pub fn receive(&mut self, queue: &mut PacketQueue, pool: &mut Pool) -> Result<MovedPackets, Corrupt> {
        match self.mode {
            LinkMode::Swap => self.receive_swapping(queue, pool),
            LinkMode::Copy => self.receive_copying(queue, pool),
        }
    }

    #[inline]
    fn receive_swapping(
        &mut self,
        queue: &mut PacketQueue,
        pool: &mut Pool,
    ) -> Result<MovedPackets, Corrupt> {
        let owners = (Owner::Full(self.link), pool.owner());
        let taken = take(&mut self.full, pool.memory(), owners, queue.room(), |index, header| {
            queue.put(adopt(pool, index, header));
        })?;
        self.owed += taken.packets as u64;
        Ok(taken)
    }

    /// Reads data that the producer could still write to once only, into a packet that the producer has never had.
    fn receive_copying(&mut self, queue: &mut PacketQueue, pool: &mut Pool) -> Result<MovedPackets, Corrupt> {
        let owners = (Owner::Full(self.link), pool.owner());
        let room = queue.room().min(pool.length());
        if room == 0 {
            if queue.room() > 0 && !self.full.poll(1)?.is_empty() {
                pool.set_starved();
            }
            return Ok(MovedPackets::NOTHING);
        }
        let mut batch = [(0, PacketHeader(0)); BATCH_PACKETS];
        let mut count = 0;
        let taken = take(&mut self.full, pool.memory(), owners, room, |index, header| {
            batch[count] = (index, header);
            count += 1;
        })?;
        for &(index, header) in &batch[..count] {
            let theirs = adopt(pool, index, header);
            // As many packets are free as were taken, and a free packet can hold the data of any other.
            if let Some(mut copy) = pool.allocate() {
                copy.fill(theirs.data());
                queue.put(copy);
            }
            pool.free(theirs);
        }
        self.owed += taken.packets as u64;
        Ok(taken)
    }

    /// Gives empty packets back, as far as the worker has free ones, a batch at a time.
    #[inline]
    pub fn repay(&mut self, pool: &mut Pool) -> Result<MovedPackets, Corrupt> {
        let header = PacketHeader::unused(Owner::Empty(self.link));
        let (memory, free) = pool.parts();
        let mut moved = MovedPackets::NOTHING;
        loop {
            let wanted = BATCH_PACKETS.min(free.len()).min(self.owed as usize);
            let count = if wanted == 0 { 0 } else { self.empty.room(wanted)? };
            if count == 0 {
                return Ok(moved);
            }
            let left = free.len() - count;
            give(&mut self.empty, memory, count, free.drain(left..).rev().map(|index| (index, header)))?;
            self.owed -= count as u64;
            moved.add(count, self.empty.publish());
        }
    }

    /// Announces that this side is about to wait for packets. Returns false if there are packets that it can
    /// take: in copy mode, it needs `free` packets for that.
    pub fn sleep(&mut self, free: usize) -> Result<bool, Corrupt> {
        if self.mode == LinkMode::Copy && free == 0 {
            return Ok(true);
        }
        self.full.cursor().sleep()
    }

    /// Announces that this side no longer waits.
    pub fn wake(&mut self) {
        self.full.cursor().wake();
    }
}

/// Puts the packets in a queue into one of a link's two rings for parked packets, oldest first, for the process
/// that has this end next. Packets that do not fit stay in the queue.
pub fn park(
    shared: &SharedWords,
    (link, ring): (LinkId, LinkRing),
    queue: &mut PacketQueue,
    pool: &Pool,
) -> Result<(), crate::Error> {
    let corrupt = corrupt(link);
    let (cursors, slots) = shared.ring(link, ring)?;
    let mut parked = RingProducer::resume(cursors, slots).map_err(corrupt)?;
    let owner = PacketHeader::used(Owner::Parked(link), 0, 0).owner_bits();
    while parked.room(1).map_err(corrupt)? > 0 {
        let Some(packet) = queue.take() else { break };
        let header = packet.header(owner);
        let packet = std::iter::once((packet.into_index(), header));
        give(&mut parked, pool.memory(), 1, packet).map_err(corrupt)?;
        // No process sleeps on these rings: the supervisor tells the next process to read them.
        let _ = parked.publish();
    }
    Ok(())
}

/// Takes the packets in a ring of a link into a queue: parked packets, or those that were on their way
/// when both ends came into this process.
pub fn unpark(
    shared: &SharedWords,
    (link, ring): (LinkId, LinkRing),
    queue: &mut PacketQueue,
    pool: &mut Pool,
) -> Result<usize, crate::Error> {
    let corrupt = corrupt(link);
    let (cursors, slots) = shared.ring(link, ring)?;
    let mut parked = RingConsumer::resume(cursors, slots).map_err(corrupt)?;
    let from = if ring == LinkRing::Full { Owner::Full(link) } else { Owner::Parked(link) };
    let owners = (from, pool.owner());
    let mut unparked = 0;
    loop {
        let mut lost = Vec::new();
        let taken = take(&mut parked, pool.memory(), owners, BATCH_PACKETS, |index, header| {
            lost.extend(queue.put(adopt(pool, index, header)));
        });
        let taken = taken.map_err(corrupt)?;
        lost.into_iter().for_each(|packet| pool.discard(packet, DropReason::Removed));
        unparked += taken.packets;
        if taken.packets + taken.skipped == 0 {
            return Ok(unparked);
        }
    }
}
