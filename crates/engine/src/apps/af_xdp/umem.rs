//! The memory that frames pass through, in chunks: one half is received into, the other sent from.

use rustix::io::Errno;
use rustix::net::xdp::{XdpUmemReg, XdpUmemRegFlags};

use crate::device::mapping::Mapping;

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

    /// As the kernel is told of it.
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

    /// Addresses of all chunks to receive into.
    pub(super) fn receive_chunks() -> impl Iterator<Item = u64> {
        (0..u64::from(CHUNKS)).map(|chunk| chunk * CHUNK_BYTES as u64)
    }

    /// The chunk that holds an address, if it is one to receive into.
    pub(super) fn receive_chunk(address: u64) -> Option<u64> {
        let chunk = address / CHUNK_BYTES as u64;
        (chunk < u64::from(CHUNKS)).then_some(chunk * CHUNK_BYTES as u64)
    }

    /// Copies the frame at `address`. False if it is not within one chunk.
    pub(super) fn copy_out(&self, address: u64, to: &mut [u8]) -> bool {
        let within = (address % CHUNK_BYTES as u64) as usize;
        let Ok(at) = usize::try_from(address) else { return false };
        to.len() <= CHUNK_BYTES - within && self.memory.copy_out(at, to)
    }

    /// Copies a frame into a free chunk, and says where that is; `None` if all are in use.
    pub(super) fn copy_in(&mut self, frame: &[u8]) -> Option<u64> {
        let chunk = self.free.pop()?;
        let at = chunk as usize * CHUNK_BYTES;
        self.memory.copy_in(at, &frame[..frame.len().min(CHUNK_BYTES)]);
        Some(at as u64)
    }

    /// Takes back a chunk that was sent. One that cannot have been is ignored.
    pub(super) fn sent(&mut self, address: u64) {
        let chunk = u32::try_from(address / CHUNK_BYTES as u64).unwrap_or(u32::MAX);
        if (CHUNKS..2 * CHUNKS).contains(&chunk) && self.free.len() < CHUNKS as usize {
            self.free.push(chunk);
        }
    }

    /// Chunks that can be sent from.
    pub(super) fn free(&self) -> usize {
        self.free.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
