//! A ring between this process and the kernel: one writes, the other reads, and each owns one of
//! two positions that only grow, modulo 2^32 (`linux/if_xdp.h`).
//!
//! `consumer <= producer <= consumer + entries`. The kernel's position is input: one that breaks
//! this counts as a ring with nothing to do.

use std::sync::atomic::Ordering;

use rustix::io::Errno;
use rustix::net::xdp::{XdpRingOffset, XdpUmemReg, XdpUmemRegFlags};

use crate::device::sys::Mapping;

/// The kernel needs a system call before it goes on.
const NEED_WAKEUP: u32 = 1;

/// The parts that both directions share.
#[derive(Debug)]
struct XdpRing {
    memory: Mapping,
    producer_at: usize,
    consumer_at: usize,
    flags_at: Option<usize>,
    entries_at: usize,
    /// A power of two.
    entries: u32,
    /// Our position: the ring's word has it once it is published.
    position: u32,
}

impl XdpRing {
    fn new(memory: Mapping, offsets: &XdpRingOffset, entries: u32) -> Self {
        Self {
            memory,
            producer_at: offsets.producer as usize,
            consumer_at: offsets.consumer as usize,
            flags_at: offsets.flags.map(|at| at as usize),
            entries_at: offsets.desc as usize,
            entries,
            position: 0,
        }
    }

    fn load(&self, at: usize) -> u32 {
        // Pairs with the kernel's release of its position.
        self.memory.word(at).map_or(0, |word| word.load(Ordering::Acquire))
    }

    fn store(&self, at: usize) {
        if let Some(word) = self.memory.word(at) {
            // Pairs with the kernel's acquire of our position.
            word.store(self.position, Ordering::Release);
        }
    }

    fn slot<const N: usize>(&self) -> usize {
        self.entries_at + (self.position & (self.entries - 1)) as usize * N
    }
}

/// A ring that the app writes, with entries of `N` bytes: frames for the kernel to fill or to send.
#[derive(Debug)]
pub(super) struct XdpProducer<const N: usize>(XdpRing);

impl<const N: usize> XdpProducer<N> {
    pub(super) fn new(memory: Mapping, offsets: &XdpRingOffset, entries: u32) -> Self {
        Self(XdpRing::new(memory, offsets, entries))
    }

    /// Returns the number of entries that can be put.
    pub(super) fn room(&self) -> u32 {
        self.0.entries.saturating_sub(self.unread())
    }

    /// Returns the number of entries that the kernel has not taken.
    pub(super) fn unread(&self) -> u32 {
        self.0.position.wrapping_sub(self.0.load(self.0.consumer_at))
    }

    /// Puts an entry, which takes room; the kernel sees it after [`publish`](Self::publish).
    pub(super) fn put(&mut self, entry: [u8; N]) {
        self.0.memory.copy_in(self.0.slot::<N>(), &entry);
        self.0.position = self.0.position.wrapping_add(1);
    }

    /// Shows the kernel all entries that were put.
    pub(super) fn publish(&self) {
        self.0.store(self.0.producer_at);
    }

    /// True if the kernel must be called to go on.
    pub(super) fn wants_wakeup(&self) -> bool {
        // A kernel without this word always wants it.
        self.0.flags_at.is_none_or(|at| self.0.load(at) & NEED_WAKEUP != 0)
    }
}

/// A ring that the app reads, with entries of `N` bytes: frames that were filled or sent.
#[derive(Debug)]
pub(super) struct XdpConsumer<const N: usize>(XdpRing);

impl<const N: usize> XdpConsumer<N> {
    pub(super) fn new(memory: Mapping, offsets: &XdpRingOffset, entries: u32) -> Self {
        Self(XdpRing::new(memory, offsets, entries))
    }

    /// Returns the number of entries that can be taken.
    pub(super) fn waiting(&self) -> u32 {
        let waiting = self.0.load(self.0.producer_at).wrapping_sub(self.0.position);
        if waiting > self.0.entries { 0 } else { waiting }
    }

    /// Takes the oldest entry, one of those [waiting](Self::waiting). The kernel may use its place
    /// after [`release`](Self::release).
    pub(super) fn take(&mut self) -> [u8; N] {
        let entry = self.0.memory.array(self.0.slot::<N>()).unwrap_or([0; N]);
        self.0.position = self.0.position.wrapping_add(1);
        entry
    }

    /// Gives the kernel the places of all entries that were taken.
    pub(super) fn release(&self) {
        self.0.store(self.0.consumer_at);
    }
}

/// Bytes of a chunk: no page is smaller, and no chunk may be larger than a page.
pub(super) const CHUNK_BYTES: usize = 4096;
/// Chunks to receive into, and as many to send from: what the rings hold. A power of two.
pub(super) const CHUNKS: u32 = 2048;

#[derive(Debug)]
pub(super) struct Umem {
    memory: Mapping,
    /// Chunks to send from that hold nothing.
    free: Vec<u32>,
}

impl Umem {
    pub(super) fn new() -> Result<Self, Errno> {
        let memory = Mapping::anonymous(2 * CHUNKS as usize * CHUNK_BYTES)?;
        Ok(Self { memory, free: (CHUNKS..2 * CHUNKS).collect() })
    }

    /// Returns the memory as the kernel registers it.
    pub(super) fn registration(&self) -> XdpUmemReg {
        XdpUmemReg {
            addr: self.memory.address(),
            len: self.memory.bytes() as u64,
            chunk_size: CHUNK_BYTES as u32,
            headroom: 0,
            flags: XdpUmemRegFlags::empty(),
            tx_metadata_len: 0,
        }
    }

    /// Returns the addresses of all chunks to receive into.
    pub(super) fn receive_chunks() -> impl Iterator<Item = u64> {
        (0..u64::from(CHUNKS)).map(|chunk| chunk * CHUNK_BYTES as u64)
    }

    /// Returns the chunk that holds an address, if it is one to receive into.
    pub(super) fn receive_chunk(address: u64) -> Option<u64> {
        let chunk = address / CHUNK_BYTES as u64;
        (chunk < u64::from(CHUNKS)).then_some(chunk * CHUNK_BYTES as u64)
    }

    /// Copies the frame at `address`. Returns false if it is not within one chunk.
    pub(super) fn copy_out(&self, address: u64, to: &mut [u8]) -> bool {
        let within = (address % CHUNK_BYTES as u64) as usize;
        let Ok(at) = usize::try_from(address) else { return false };
        to.len() <= CHUNK_BYTES - within && self.memory.copy_out(at, to)
    }

    /// Copies a frame into a free chunk. Returns its address, or `None` if all chunks are in use.
    pub(super) fn copy_in(&mut self, frame: &[u8]) -> Option<u64> {
        let chunk = self.free.pop()?;
        let at = chunk as usize * CHUNK_BYTES;
        self.memory.copy_in(at, &frame[..frame.len().min(CHUNK_BYTES)]);
        Some(at as u64)
    }

    /// Takes back a chunk that was sent. An impossible address is ignored.
    pub(super) fn sent(&mut self, address: u64) {
        let chunk = u32::try_from(address / CHUNK_BYTES as u64).unwrap_or(u32::MAX);
        if (CHUNKS..2 * CHUNKS).contains(&chunk) && self.free.len() < CHUNKS as usize {
            self.free.push(chunk);
        }
    }

    /// Returns the number of chunks that can be sent from.
    pub(super) fn free(&self) -> usize {
        self.free.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OFFSETS: XdpRingOffset = XdpRingOffset { producer: 0, consumer: 64, flags: Some(128), desc: 192 };

    fn memory() -> Mapping {
        Mapping::anonymous(4096).expect("memory")
    }

    fn word(ring: &XdpRing, at: usize) -> u32 {
        ring.memory.word(at).expect("a word").load(Ordering::Relaxed)
    }

    fn set(ring: &XdpRing, at: usize, value: u32) {
        ring.memory.word(at).expect("a word").store(value, Ordering::Relaxed);
    }

    #[test]
    fn what_is_put_is_seen_once_published_and_goes_round() {
        let mut ring = XdpProducer::<8>::new(memory(), &OFFSETS, 4);
        for turn in 0..10_u32 {
            assert_eq!(ring.room(), 4);
            (0..4).for_each(|i| ring.put(u64::from(4 * turn + i).to_ne_bytes()));
            assert_eq!((ring.room(), ring.unread(), word(&ring.0, 0)), (0, 4, 4 * turn));
            ring.publish();
            assert_eq!(word(&ring.0, 0), 4 * turn + 4);
            assert_eq!(ring.0.memory.array(192 + 3 * 8), Some(u64::from(4 * turn + 3).to_ne_bytes()));
            set(&ring.0, 64, 4 * turn + 4);
        }
        assert!(!ring.wants_wakeup());
        set(&ring.0, 128, NEED_WAKEUP);
        assert!(ring.wants_wakeup());
    }

    #[test]
    fn what_the_kernel_put_is_taken_once() {
        let mut ring = XdpConsumer::<16>::new(memory(), &OFFSETS, 4);
        ring.0.position = u32::MAX - 1;
        set(&ring.0, 0, 1);
        assert_eq!(ring.waiting(), 3);
        ring.0.memory.copy_in(192 + 2 * 16, &[7; 16]);
        assert_eq!(ring.take(), [7; 16]);
        assert_eq!((ring.take(), ring.take(), ring.waiting()), ([0; 16], [0; 16], 0));
        ring.release();
        assert_eq!(word(&ring.0, 64), 1);
    }

    #[test]
    fn a_position_that_cannot_be_yields_nothing() {
        let ring = XdpConsumer::<8>::new(memory(), &OFFSETS, 4);
        set(&ring.0, 0, 5);
        assert_eq!(ring.waiting(), 0);
        set(&ring.0, 0, u32::MAX);
        assert_eq!(ring.waiting(), 0);
        let ring = XdpProducer::<8>::new(memory(), &OFFSETS, 4);
        set(&ring.0, 64, 1);
        assert_eq!(ring.room(), 0);
    }

    #[test]
    fn chunks_to_send_from_come_back() {
        let mut umem = Umem::new().unwrap();
        let addresses: Vec<_> = std::iter::from_fn(|| umem.copy_in(b"frame")).collect();
        assert_eq!((addresses.len(), umem.free()), (CHUNKS as usize, 0));
        let mut frame = [0; 5];
        assert!(umem.copy_out(addresses[7], &mut frame));
        assert_eq!(&frame, b"frame");
        umem.sent(0);
        umem.sent(u64::MAX);
        assert_eq!(umem.free(), 0, "no chunks to send from");
        addresses.iter().for_each(|address| umem.sent(*address));
        umem.sent(addresses[0]);
        assert_eq!(umem.free(), CHUNKS as usize);
    }

    #[test]
    fn addresses_outside_are_refused() {
        let umem = Umem::new().unwrap();
        assert!(umem.copy_out(256, &mut [0; CHUNK_BYTES - 256]));
        assert!(!umem.copy_out(257, &mut [0; CHUNK_BYTES - 256]), "into the next chunk");
        assert!(!umem.copy_out(2 * u64::from(CHUNKS) * CHUNK_BYTES as u64, &mut [0; 1]));
        assert!(!umem.copy_out(u64::MAX, &mut [0; 1]));
        assert_eq!(Umem::receive_chunk(4096 + 256), Some(4096));
        assert_eq!(Umem::receive_chunk(u64::from(CHUNKS) * CHUNK_BYTES as u64), None);
    }
}
