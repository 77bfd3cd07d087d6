//! The free packets of a worker.

use crate::handover::PacketHeaders;
use crate::layout::DropReason;
use crate::limits::PACKET_HEADER_BYTES;
use crate::owner::{Owner, PacketHeader};
use crate::packet::{Packet, PacketMemory, take_dropped};

/// The packets that a worker owns and that hold nothing. The pool is private memory: it ends with the process,
/// and the next process of the worker makes a new pool from the packet headers.
#[derive(Debug)]
pub struct Pool {
    memory: PacketMemory,
    owner: Owner,
    /// Each packet is in `free` at most once, which makes [`PacketMemory::adopt`] sound.
    free: Vec<u32>,
    /// The lower half of the packet headers of free packets, and of packets in use.
    unused: PacketHeader,
    used: PacketHeader,
    offset: u16,
    drops: [u64; crate::layout::DropReason::COUNT],
    /// True if an app wanted a packet and there was none.
    starved: bool,
}

impl Pool {
    /// Makes a pool without packets, for the owner that packet headers name `owner`.
    pub fn new(memory: PacketMemory, owner: Owner, headroom: usize) -> Self {
        let offset = (PACKET_HEADER_BYTES + headroom) as u16;
        let (unused, used) = (PacketHeader::unused(owner), PacketHeader::used(owner, offset, 0));
        Self {
            memory,
            owner,
            unused,
            used,
            free: Vec::new(),
            offset,
            drops: Default::default(),
            starved: false,
        }
    }

    /// Returns the packet headers.
    pub fn memory(&self) -> &PacketMemory {
        &self.memory
    }

    /// Returns the owner of these packets.
    pub fn owner(&self) -> Owner {
        self.owner
    }

    /// Returns the number of free packets.
    #[inline]
    pub fn length(&self) -> usize {
        self.free.len()
    }

    /// Returns the number of drops by reason, since the pool was made.
    pub fn drops(&self) -> &[u64] {
        &self.drops
    }

    /// Notes that a packet was wanted and none was left.
    pub(crate) fn set_starved(&mut self) {
        self.starved = true;
    }

    /// True if a packet was wanted and none was left since the last call.
    pub fn take_starved(&mut self) -> bool {
        std::mem::take(&mut self.starved)
    }

    /// Returns an empty packet, or `None` if none is left.
    #[inline]
    pub fn allocate(&mut self) -> Option<Packet> {
        let Some(index) = self.free.pop() else {
            self.starved = true;
            return None;
        };
        self.memory.store(index, self.used);
        // SAFETY: the index was in `free`: the packet header names this process, and the packet is nowhere else.
        Some(unsafe { self.memory.adopt(index, self.offset, 0) })
    }

    /// Returns up to `count` empty packets. Those that are not taken from the iterator are dropped with it.
    #[inline]
    pub fn allocate_all(&mut self, count: usize) -> impl Iterator<Item = Packet> + '_ {
        if self.free.len() < count {
            self.starved = true;
        }
        let (memory, used, offset) = (&self.memory, self.used, self.offset);
        let left = self.free.len().saturating_sub(count);
        self.free.drain(left..).rev().map(move |index| {
            memory.store(index, used);
            // SAFETY: as in `allocate`.
            unsafe { memory.adopt(index, offset, 0) }
        })
    }

    /// Takes packets back. Returns the number of them.
    #[inline]
    pub fn free_all(&mut self, packets: impl Iterator<Item = Packet>) -> usize {
        let before = self.free.len();
        let (memory, unused) = (&self.memory, self.unused);
        self.free.extend(packets.map(|packet| {
            let index = packet.into_index();
            memory.store(index, unused);
            index
        }));
        self.free.len() - before
    }

    /// Takes a packet back.
    #[inline]
    pub fn free(&mut self, packet: Packet) {
        self.add(packet.into_index());
    }

    /// Takes a packet back, and counts the drop reason.
    #[inline]
    pub fn discard(&mut self, packet: Packet, why: DropReason) {
        self.drops[why as usize] += 1;
        self.free(packet);
    }

    /// Counts packets that were dropped elsewhere.
    pub fn count_drops(&mut self, why: DropReason, count: u64) {
        self.drops[why as usize] += count;
    }

    /// Adds a packet of this process that is in no other place.
    #[inline]
    pub(crate) fn add(&mut self, index: u32) {
        self.memory.store(index, self.unused);
        self.free.push(index);
    }

    /// Returns the packet headers, and the list to which to add packets of this process that are in no other place
    /// and whose headers say already that they hold nothing.
    #[inline]
    pub(crate) fn parts(&mut self) -> (&PacketMemory, &mut Vec<u32>) {
        (&self.memory, &mut self.free)
    }

    /// Takes over the packets in `range` whose header names this worker and which are new to this process: before any
    /// [`Packet`] exists, all that its last process left when it was killed; later, those that are granted.
    pub(crate) fn adopt(&mut self, range: std::ops::Range<u32>, is_new: fn(PacketHeader) -> bool) {
        for index in range {
            let header = self.memory.load(index);
            if header.owner_code() == self.owner.code() && is_new(header) {
                self.add(index);
            }
        }
    }

    /// Gives free packets back to the pool of the engine.
    pub(crate) fn give_back(&mut self, count: usize) {
        for _ in 0..count {
            let Some(index) = self.free.pop() else { return };
            self.memory.store(index, PacketHeader::unused(Owner::Pool));
        }
    }

    /// Frees the packets that apps let go out of scope. Returns how many.
    pub(crate) fn collect_dropped(&mut self) -> usize {
        let from = self.free.len();
        take_dropped(&mut self.free);
        for &index in &self.free[from..] {
            self.memory.store(index, self.unused);
        }
        self.free.len() - from
    }
}
