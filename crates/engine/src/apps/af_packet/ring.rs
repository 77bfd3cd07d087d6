//! The receive ring, TPACKET_V3: Documentation/networking/packet_mmap.rst and
//! `linux/if_packet.h`.
//!
//! The ring consists of blocks of frames. The kernel fills a block, and hands it over by its status word.
//! The app takes its frames, and hands it back by the same word. Everything else in a block is read once
//! and checked: a frame must be inside its block, or the rest of the block is given up.

use std::sync::atomic::Ordering;

use etherparse::checksum::Sum16BitWords;

use crate::device::sys::Mapping;
use crate::layout::DropReason;
use crate::packet::Packet;

/// Bytes of a block: a frame of 64 KiB would fit without its header.
pub(super) const BLOCK_BYTES: usize = 64 << 10;
/// Blocks in the ring: 4 MiB, some 2,500 full frames or 40,000 short ones.
pub(super) const BLOCKS: usize = 64;

// `struct tpacket_block_desc`.
const BLOCK_STATUS_AT: usize = 8;
const BLOCK_FRAMES_AT: usize = 12;
const BLOCK_FIRST_AT: usize = 16;
const BLOCK_HEADER_BYTES: usize = 48;
/// The block belongs to the kernel.
const STATUS_KERNEL: u32 = 0;
/// The block, or the frame, belongs to the app.
const STATUS_USER: u32 = 1;

/// Bytes of `struct tpacket3_hdr`, in front of each frame.
const FRAME_HEADER_BYTES: usize = 48;
const STATUS_CHECKSUM_UNFINISHED: u32 = 1 << 3;
const STATUS_VLAN: u32 = 1 << 4;
const STATUS_VLAN_TYPE: u32 = 1 << 6;

/// Bytes of `struct virtio_net_hdr`, directly in front of the frame's first byte.
const OFFLOADS_BYTES: usize = 10;

/// The offset of a VLAN tag, behind the two addresses.
const TAG_AT: usize = 12;
const TAG_BYTES: usize = 4;
/// EtherType of a VLAN tag (IEEE 802.1Q), if the kernel names none.
const TAG_TYPE: u16 = 0x8100;

/// A frame in the ring.
#[derive(Debug)]
pub(super) struct RingFrame {
    /// Its offset in the mapping.
    at: usize,
    /// The number of its bytes in the ring.
    length: usize,
    /// The number of bytes that it had.
    whole: usize,
    /// The distance from its header to the next one's, unless it is the last.
    next: usize,
    status: u32,
    vlan: u16,
    vlan_type: u16,
}

/// The frames of a block that have not been taken yet.
#[derive(Clone, Copy, Debug)]
struct OpenBlock {
    frames: u32,
    /// The offset of the first frame's header.
    at: usize,
}

/// The receive ring.
#[derive(Debug)]
pub(super) struct PacketRing {
    memory: Mapping,
    /// The offset of the block that belongs to the app now or next.
    block: usize,
    /// `None` while the block belongs to the kernel.
    open: Option<OpenBlock>,
    /// Frames given up because the kernel's words were invalid.
    broken: u64,
}

impl PacketRing {
    /// Makes a ring of whole blocks.
    pub(super) fn new(memory: Mapping) -> Self {
        Self { memory, block: 0, open: None, broken: 0 }
    }

    /// Returns the number of frames given up since the last call.
    pub(super) fn take_broken(&mut self) -> u64 {
        std::mem::take(&mut self.broken)
    }

    /// Returns the oldest frame, to be [taken](Self::take). If there is none, the kernel has the whole ring, and
    /// the socket is readable once a frame is there.
    pub(super) fn peek(&mut self) -> Option<RingFrame> {
        loop {
            let open = match self.open {
                Some(open) => open,
                None => self.open_block()?,
            };
            match self.frame(open) {
                Some(frame) => {
                    self.open = Some(open);
                    return Some(frame);
                }
                None => {
                    self.broken += u64::from(open.frames);
                    self.close_block();
                }
            }
        }
    }

    /// Moves the frame that [`peek`](Self::peek) returned into an empty packet. An error is the
    /// reason under which the frame is counted. The ring moves on in either case.
    pub(super) fn take(&mut self, frame: &RingFrame, packet: &mut Packet) -> Result<(), DropReason> {
        let taken = self.copy(frame, packet);
        match self.open {
            Some(OpenBlock { frames, at }) if frames > 1 => {
                self.open = Some(OpenBlock { frames: frames - 1, at: at + frame.next });
            }
            Some(_) => self.close_block(),
            None => {}
        }
        taken
    }

    /// Returns the frames of the next block, if that belongs to the app.
    fn open_block(&mut self) -> Option<OpenBlock> {
        loop {
            // Pairs with the kernel's write barrier before it hands the block over.
            let status = self.memory.word(self.block + BLOCK_STATUS_AT)?.load(Ordering::Acquire);
            if status & STATUS_USER == 0 {
                return None;
            }
            let number = |at| Some(u32::from_ne_bytes(self.memory.array(self.block + at)?));
            let (frames, first) = (number(BLOCK_FRAMES_AT)?, number(BLOCK_FIRST_AT)?);
            if frames > 0 {
                return Some(OpenBlock { frames, at: self.block.saturating_add(first as usize) });
            }
            self.close_block();
        }
    }

    /// Hands the block back.
    fn close_block(&mut self) {
        self.open = None;
        if let Some(status) = self.memory.word(self.block + BLOCK_STATUS_AT) {
            // Pairs with the kernel's look at it before it fills the block again: our reads are done.
            status.store(STATUS_KERNEL, Ordering::Release);
        }
        self.block += BLOCK_BYTES;
        if self.block + BLOCK_BYTES > self.memory.bytes() {
            self.block = 0;
        }
    }

    /// Returns the first frame of `open`, or `None` if its header or the frame is not within the block.
    fn frame(&self, OpenBlock { frames, at }: OpenBlock) -> Option<RingFrame> {
        let end = self.block + BLOCK_BYTES;
        if at < self.block + BLOCK_HEADER_BYTES || at > end - FRAME_HEADER_BYTES {
            return None;
        }
        let header: [u8; FRAME_HEADER_BYTES] = self.memory.array(at)?;
        let word =
            |at: usize| u32::from_ne_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        let half = |at: usize| u16::from_ne_bytes([header[at], header[at + 1]]);
        let (next, length, start) = (word(0) as usize, word(12) as usize, usize::from(half(24)));
        let follows = frames == 1 || next >= FRAME_HEADER_BYTES;
        let inside =
            start >= FRAME_HEADER_BYTES + OFFLOADS_BYTES && length <= end - at && start <= end - at - length;
        (follows && inside).then_some(RingFrame {
            at: at + start,
            length,
            whole: word(16) as usize,
            next,
            status: word(20),
            vlan: word(32) as u16,
            vlan_type: half(36),
        })
    }

    fn copy(&self, frame: &RingFrame, packet: &mut Packet) -> Result<(), DropReason> {
        let offloads: [u8; OFFLOADS_BYTES] =
            self.memory.array(frame.at - OFFLOADS_BYTES).ok_or(DropReason::Device)?;
        let half = |at: usize| usize::from(u16::from_ne_bytes([offloads[at], offloads[at + 1]]));
        // The kernel has put several frames together: no link could carry the result.
        if offloads[1] != 0 || frame.length < frame.whole {
            return Err(DropReason::Oversize);
        }
        let data = packet.resize(frame.length).ok_or(DropReason::Oversize)?;
        if !self.memory.copy_out(frame.at, data) {
            return Err(DropReason::Device);
        }
        if frame.status & STATUS_CHECKSUM_UNFINISHED != 0 {
            // A sender on this host left the checksum to a device that does not exist.
            complete_checksum(data, half(6), half(8));
        }
        if frame.status & STATUS_VLAN != 0 {
            let kind = if frame.status & STATUS_VLAN_TYPE != 0 { frame.vlan_type } else { TAG_TYPE };
            return insert_tag(packet, kind, frame.vlan);
        }
        Ok(())
    }
}

/// Puts a VLAN tag back where the kernel removed it.
fn insert_tag(packet: &mut Packet, kind: u16, tag: u16) -> Result<(), DropReason> {
    if packet.length() < TAG_AT {
        return Err(DropReason::Malformed);
    }
    let data = packet.prepend(TAG_BYTES).ok_or(DropReason::Oversize)?;
    data.copy_within(TAG_BYTES..TAG_BYTES + TAG_AT, 0);
    data[TAG_AT..TAG_AT + 2].copy_from_slice(&kind.to_be_bytes());
    data[TAG_AT + 2..TAG_AT + TAG_BYTES].copy_from_slice(&tag.to_be_bytes());
    Ok(())
}

/// Completes a checksum that the kernel left to the device: writes the Internet checksum (RFC 1071) of `frame`
/// from `start` on to `start + field`, which holds the sum over the pseudo header. Returns false, and does nothing,
/// if that is not inside.
fn complete_checksum(frame: &mut [u8], start: usize, field: usize) -> bool {
    let Some(covered) = frame.get_mut(start..) else { return false };
    if covered.len() < field + 2 {
        return false;
    }
    // In UDP, a checksum of 0 means that there is no checksum. The sum is in the order of the words in memory.
    let checksum = Sum16BitWords::new().add_slice(covered).to_ones_complement_with_no_zero();
    covered[field..field + 2].copy_from_slice(&checksum.to_ne_bytes());
    true
}

#[cfg(test)]
mod tests;
