//! A packet: data in shared memory that exactly one owner can reach.
//!
//! All `unsafe` code on the bytes of packets is here. A [`Packet`] cannot be cloned, so within a process it is
//! in one place. Between processes, the packet header ([`crate::owner`]) names the packet's owner,
//! and only the owner's process makes a `Packet` of it.

use std::cell::RefCell;
use std::mem;
use std::ptr::NonNull;
use std::slice;
use std::sync::atomic::{AtomicU64, Ordering};

use caravan_segment::{SharedSlice, expect_write};

use crate::handover::PacketHeaders;
use crate::layout::PACKETS_AT;
use crate::limits::{PACKET_BYTES_MAX, PACKET_HEADER_BYTES, PACKET_STRIDE};
use crate::owner::PacketHeader;

/// Where the packets of an engine lie in this process.
#[derive(Clone, Debug)]
pub struct PacketMemory {
    base: NonNull<u8>,
    packets_max: u32,
    /// Keeps the memory mapped.
    _memory: SharedSlice,
}

impl PacketMemory {
    /// Returns the packets that follow `memory`, the start of a segment.
    ///
    /// Panics if the segment's mapping has no room for `packets_max` packets: the caller knows the size of the
    /// memory.
    pub fn new(memory: &SharedSlice, packets_max: u32) -> Self {
        assert!(memory.bytes() == PACKETS_AT as u64);
        assert!(memory.segment().maximum_bytes() >= crate::layout::bytes(packets_max));
        let start = memory.address(0, PACKETS_AT);
        let base = NonNull::new(start.wrapping_add(PACKETS_AT)).unwrap_or(NonNull::dangling());
        Self { base, packets_max, _memory: memory.clone() }
    }

    #[inline]
    fn slot(&self, index: u32) -> NonNull<u8> {
        assert!(index < self.packets_max, "there is no packet {index} among {}", self.packets_max);
        // SAFETY: `index` is below `packets_max`, and the mapping has room for all of these packets.
        unsafe { self.base.add(index as usize * PACKET_STRIDE) }
    }

    /// Returns the packet header as an atomic word.
    #[inline]
    pub fn word(&self, index: u32) -> &AtomicU64 {
        // SAFETY: the word is in the mapping, which `self` keeps; it is aligned, as the stride and the base are
        // multiples of 64; atomics may be shared with other processes.
        unsafe { AtomicU64::from_ptr(self.slot(index).as_ptr().cast()) }
    }

    /// Makes a [`Packet`] of the packet `index`.
    ///
    /// # Safety
    /// The packet header names this process (or no other process runs), and this process has no other
    /// `Packet` of it.
    #[inline]
    pub unsafe fn adopt(&self, index: u32, offset: u16, length: u16) -> Packet {
        Packet { slot: self.slot(index), place: place(index, offset, length) }
    }
}

impl PacketHeaders for PacketMemory {
    #[inline]
    fn load(&self, index: u32) -> PacketHeader {
        // The ring that the index came through orders this load.
        PacketHeader(self.word(index).load(Ordering::Relaxed))
    }

    #[inline]
    fn store(&self, index: u32, header: PacketHeader) {
        // The ring that the index goes through orders this store.
        self.word(index).store(header.0, Ordering::Relaxed);
    }

    #[inline]
    fn expect_write(&self, index: u32) {
        expect_write(self.base.as_ptr().wrapping_add(index as usize * PACKET_STRIDE));
    }
}

/// A packet of this process: up to [`PACKET_BYTES_MAX`](crate::limits::PACKET_BYTES_MAX) bytes,
/// with some room in front of the data for headers that are put there later.
///
/// A packet that is dropped goes back to the worker's free packets; [`Io::free`](crate::Io::free) is
/// faster.
#[derive(Debug)]
pub struct Packet {
    slot: NonNull<u8>,
    /// The packet's number in bits 0..32, the data's offset in 32..48, its length in 48..64. The packet header
    /// has the last two in the same bits, and a packet travels in two registers.
    /// `PACKET_HEADER_BYTES <= offset`, `offset + length <= PACKET_STRIDE`.
    place: u64,
}

const OFFSET_SHIFT: u32 = 32;
const LENGTH_SHIFT: u32 = 48;

#[inline]
fn place(index: u32, offset: u16, length: u16) -> u64 {
    u64::from(index) | u64::from(offset) << OFFSET_SHIFT | u64::from(length) << LENGTH_SHIFT
}

thread_local! {
    /// The packets that went out of scope, at most all packets of the engine.
    static DROPPED: RefCell<Vec<u32>> = const { RefCell::new(Vec::new()) };
}

/// Moves the packets that went out of scope since the last call to `into`.
pub(crate) fn take_dropped(into: &mut Vec<u32>) {
    DROPPED.with_borrow_mut(|dropped| into.append(dropped));
}

impl Packet {
    /// Returns the packet's number in the engine.
    #[inline]
    pub fn index(&self) -> u32 {
        self.place as u32
    }

    /// Returns the number of bytes of data.
    #[inline]
    pub fn length(&self) -> usize {
        (self.place >> LENGTH_SHIFT) as usize
    }

    /// True if the packet has no data.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.length() == 0
    }

    /// Returns the number of bytes that fit in front of the data.
    #[inline]
    pub fn headroom(&self) -> usize {
        usize::from(self.offset()) - PACKET_HEADER_BYTES
    }

    /// Returns the number of bytes that fit behind the data.
    #[inline]
    pub fn tailroom(&self) -> usize {
        PACKET_STRIDE - usize::from(self.offset()) - self.length()
    }

    #[inline]
    pub(crate) fn offset(&self) -> u16 {
        (self.place >> OFFSET_SHIFT) as u16
    }

    /// Returns the packet header whose lower half is `owner_bits`.
    #[inline]
    pub(crate) fn header(&self, owner_bits: u32) -> PacketHeader {
        PacketHeader(self.place & !0xffff_ffff | u64::from(owner_bits))
    }

    #[inline]
    fn set(&mut self, offset: usize, length: usize) {
        debug_assert!(offset >= PACKET_HEADER_BYTES && offset + length <= PACKET_STRIDE);
        self.place = place(self.index(), offset as u16, length as u16);
    }

    /// Returns the data.
    #[inline]
    pub fn data(&self) -> &[u8] {
        // SAFETY: the range is within the packet by the invariant of `offset` and `length`; no one else writes
        // there, as this process owns the packet and `self` is its only `Packet`.
        unsafe { slice::from_raw_parts(self.slot.as_ptr().add(usize::from(self.offset())), self.length()) }
    }

    /// Returns the data, to be changed in place.
    #[inline]
    pub fn data_mut(&mut self) -> &mut [u8] {
        let start = self.slot.as_ptr().wrapping_add(usize::from(self.offset()));
        // SAFETY: as in `data`; `self` is borrowed exclusively.
        unsafe { slice::from_raw_parts_mut(start, self.length()) }
    }

    /// Makes the data `length` bytes long and returns them. The caller must write them all: they hold what
    /// earlier packets left. Returns `None` if there is not enough room behind the data.
    #[inline]
    pub fn resize(&mut self, length: usize) -> Option<&mut [u8]> {
        let offset = usize::from(self.offset());
        if length > PACKET_STRIDE - offset {
            return None;
        }
        self.set(offset, length);
        Some(self.data_mut())
    }

    /// Puts `bytes` behind the data. Returns false, and does nothing, if there is no room.
    #[inline]
    pub fn append(&mut self, bytes: &[u8]) -> bool {
        let length = self.length();
        let Some(data) = self.resize(length + bytes.len()) else { return false };
        data[length..].copy_from_slice(bytes);
        true
    }

    /// Fills an empty packet with `bytes`. Moves its start if they would not fit behind it. Returns false,
    /// and does nothing, if they are longer than any packet.
    #[inline]
    pub fn fill(&mut self, bytes: &[u8]) -> bool {
        if bytes.len() > PACKET_BYTES_MAX {
            return false;
        }
        let missing = bytes.len().saturating_sub(self.tailroom() + self.length());
        self.set(usize::from(self.offset()) - missing, 0);
        self.append(bytes)
    }

    /// Puts `count` bytes in front of the data, and returns all of the data. Returns `None`, and does nothing,
    /// if there is no room. No byte of the data moves.
    #[inline]
    pub fn prepend(&mut self, count: usize) -> Option<&mut [u8]> {
        if count > self.headroom() {
            return None;
        }
        self.set(usize::from(self.offset()) - count, self.length() + count);
        Some(self.data_mut())
    }

    /// Removes `count` bytes from the front. Returns false, and does nothing, if there are fewer.
    #[inline]
    pub fn strip(&mut self, count: usize) -> bool {
        if count > self.length() {
            return false;
        }
        self.set(usize::from(self.offset()) + count, self.length() - count);
        true
    }

    /// Cuts the data to `length` bytes if it is longer.
    #[inline]
    pub fn truncate(&mut self, length: usize) {
        self.set(usize::from(self.offset()), self.length().min(length));
    }

    /// Gives up the packet without freeing it. From here on, its packet header decides who owns it.
    #[inline]
    pub(crate) fn into_index(self) -> u32 {
        let index = self.index();
        mem::forget(self);
        index
    }
}

impl Drop for Packet {
    fn drop(&mut self) {
        DROPPED.with_borrow_mut(|dropped| dropped.push(self.index()));
    }
}
