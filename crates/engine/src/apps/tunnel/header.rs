//! The headers that a tunnel puts in front of a frame, and the checks of those that it receives.
//!
//! ```text
//!  0  Ethernet    destination 6, source 6, type 0x86dd
//! 14  IPv6        version 6, payload length at 18, next header 115 at 20, hop limit at 21,
//!                 source at 22, destination at 38
//! 54  L2TPv3      session 4, cookie 8
//! 66  the frame
//! ```
//!
//! Ethernet: IEEE 802.3; IPv6: RFC 8200; L2TPv3 over IP: RFC 3931, section 4.1.1; all of it: RFC 8159, once
//! draft-mkonstan-keyed-ipv6-tunnel.

use super::TunnelConfig;
use crate::layout::DropReason;
use crate::packet::Packet;

/// Bytes of an Ethernet header.
pub const ETHERNET_BYTES: usize = 14;
/// Bytes in front of a frame.
pub const HEADER_BYTES: usize = 66;

const TYPE_AT: usize = 12;
const VERSION_AT: usize = 14;
const LENGTH_AT: usize = 18;
const NEXT_HEADER_AT: usize = 20;
const HOP_LIMIT_AT: usize = 21;
const SOURCE_AT: usize = 22;
const DESTINATION_AT: usize = 38;
/// The offset of the IPv6 packet's payload, from which its length counts.
const SESSION_AT: usize = 54;
const COOKIE_AT: usize = 58;

const TYPE_IPV6: [u8; 2] = [0x86, 0xdd];
const VERSION: u8 = 0x60;
/// L2TP version 3.
const NEXT_HEADER: u8 = 115;
/// Bytes of L2TPv3's header.
const L2TP_BYTES: usize = HEADER_BYTES - SESSION_AT;

type TunnelHeader = [u8; HEADER_BYTES];

/// Puts headers in front of frames.
#[derive(Debug)]
pub struct Encapsulation {
    /// The headers without the length.
    header: Box<TunnelHeader>,
    frame_bytes_max: usize,
}

impl Encapsulation {
    pub fn new(config: &TunnelConfig) -> Self {
        let mut header = Box::new([0; HEADER_BYTES]);
        header[..6].copy_from_slice(&config.remote_mac.0);
        header[6..TYPE_AT].copy_from_slice(&config.local_mac.0);
        header[TYPE_AT..VERSION_AT].copy_from_slice(&TYPE_IPV6);
        header[VERSION_AT] = VERSION;
        header[NEXT_HEADER_AT] = NEXT_HEADER;
        header[HOP_LIMIT_AT] = config.hop_limit;
        header[SOURCE_AT..DESTINATION_AT].copy_from_slice(&config.local_address.octets());
        header[DESTINATION_AT..SESSION_AT].copy_from_slice(&config.remote_address.octets());
        header[SESSION_AT..COOKIE_AT].copy_from_slice(&config.remote_session.to_be_bytes());
        header[COOKIE_AT..].copy_from_slice(&config.remote_cookie.0);
        Self { header, frame_bytes_max: config.frame_bytes_max() }
    }

    /// Makes an IPv6 packet of a frame. After an error the frame is unchanged.
    #[inline]
    pub fn put(&self, packet: &mut Packet) -> Result<(), DropReason> {
        let frame_bytes = packet.length();
        if frame_bytes > self.frame_bytes_max {
            return Err(DropReason::Oversize);
        }
        if frame_bytes < ETHERNET_BYTES {
            return Err(DropReason::Malformed);
        }
        let header = packet.prepend(HEADER_BYTES).and_then(<[u8]>::first_chunk_mut::<HEADER_BYTES>);
        let Some(header) = header else { return Err(DropReason::Oversize) };
        *header = *self.header;
        let length = ((frame_bytes + L2TP_BYTES) as u16).to_be_bytes();
        [header[LENGTH_AT], header[LENGTH_AT + 1]] = length;
        Ok(())
    }
}

/// The reason why a packet is no frame of a tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TunnelRefusal {
    /// The packet violates its protocol.
    Malformed,
    /// The packet belongs to another protocol or another host.
    Foreign,
    /// The packet is for this tunnel, but its session or its cookie is wrong.
    Key,
}

impl From<TunnelRefusal> for DropReason {
    fn from(refusal: TunnelRefusal) -> Self {
        match refusal {
            TunnelRefusal::Malformed => Self::Malformed,
            TunnelRefusal::Foreign | TunnelRefusal::Key => Self::Filtered,
        }
    }
}

/// Removes headers from packets.
#[derive(Debug)]
pub struct Decapsulation {
    /// The expected header; neither the length nor Ethernet addresses are compared.
    expected: Box<TunnelHeader>,
    /// The accepted cookies; if there is only one, it is here twice.
    cookies: [u64; 2],
}

impl Decapsulation {
    pub fn new(config: &TunnelConfig) -> Self {
        let mut expected = Box::new([0; HEADER_BYTES]);
        expected[TYPE_AT..VERSION_AT].copy_from_slice(&TYPE_IPV6);
        expected[VERSION_AT] = VERSION;
        expected[NEXT_HEADER_AT] = NEXT_HEADER;
        expected[SOURCE_AT..DESTINATION_AT].copy_from_slice(&config.remote_address.octets());
        expected[DESTINATION_AT..SESSION_AT].copy_from_slice(&config.local_address.octets());
        expected[SESSION_AT..COOKIE_AT].copy_from_slice(&config.local_session.to_be_bytes());
        let old = config.old_local_cookie.unwrap_or(config.local_cookie);
        Self { expected, cookies: [config.local_cookie, old].map(|cookie| u64::from_ne_bytes(cookie.0)) }
    }

    /// Makes the frame of an IPv6 packet. After an error the packet is unchanged.
    #[inline]
    pub fn take(&self, packet: &mut Packet) -> Result<(), TunnelRefusal> {
        let data = packet.data();
        let Some(header) = data.first_chunk::<HEADER_BYTES>() else { return Err(self.refusal(data)) };
        let payload_bytes = payload_bytes(header);
        // One branch for all of it, at the same cost whatever differs, so that the time does not reveal how much of a
        // cookie was right.
        let differs = self.differs(header) | self.key_differs(header);
        if differs != 0 || !fits(payload_bytes, data.len()) {
            return Err(self.refusal(data));
        }
        // The wire pads short frames: bytes behind the IPv6 packet do not count. No packet of ours is so short.
        if SESSION_AT + payload_bytes < data.len() {
            packet.truncate(SESSION_AT + payload_bytes);
        }
        packet.strip(HEADER_BYTES);
        Ok(())
    }

    /// Returns 0 if the packet is L2TPv3 from and to the right hosts.
    #[inline]
    fn differs(&self, header: &TunnelHeader) -> u64 {
        // Of these four bytes, traffic class and flow label may be anything.
        const MASK: u32 = u32::from_ne_bytes([0xff, 0xff, 0xf0, 0]);
        let expected = &*self.expected;
        let kind = (half::<TYPE_AT>(header) ^ half::<TYPE_AT>(expected)) & MASK;
        u64::from(kind)
            | u64::from(header[NEXT_HEADER_AT] ^ NEXT_HEADER)
            | word::<SOURCE_AT>(header) ^ word::<SOURCE_AT>(expected)
            | word::<{ SOURCE_AT + 8 }>(header) ^ word::<{ SOURCE_AT + 8 }>(expected)
            | word::<DESTINATION_AT>(header) ^ word::<DESTINATION_AT>(expected)
            | word::<{ DESTINATION_AT + 8 }>(header) ^ word::<{ DESTINATION_AT + 8 }>(expected)
    }

    /// Returns 0 if session and cookie are right.
    #[inline]
    fn key_differs(&self, header: &TunnelHeader) -> u64 {
        let cookie = word::<COOKIE_AT>(header);
        let wrong = (cookie != self.cookies[0]) & (cookie != self.cookies[1]);
        u64::from(half::<SESSION_AT>(header) ^ half::<SESSION_AT>(&self.expected)) | u64::from(wrong)
    }

    /// Returns which part of a wrong header is wrong.
    #[cold]
    fn refusal(&self, data: &[u8]) -> TunnelRefusal {
        let Some(kind) = data.get(TYPE_AT..VERSION_AT) else { return TunnelRefusal::Malformed };
        if kind != TYPE_IPV6 {
            return TunnelRefusal::Foreign;
        }
        if data.len() < SESSION_AT || data[VERSION_AT] & 0xf0 != VERSION {
            return TunnelRefusal::Malformed;
        }
        let ends = SOURCE_AT..SESSION_AT;
        if data[NEXT_HEADER_AT] != NEXT_HEADER || data[ends.clone()] != self.expected[ends] {
            return TunnelRefusal::Foreign;
        }
        match data.first_chunk::<HEADER_BYTES>() {
            Some(header) if fits(payload_bytes(header), data.len()) => TunnelRefusal::Key,
            _ => TunnelRefusal::Malformed,
        }
    }
}

#[inline]
fn payload_bytes(header: &TunnelHeader) -> usize {
    usize::from(u16::from_be_bytes([header[LENGTH_AT], header[LENGTH_AT + 1]]))
}

/// True if an IPv6 packet of that length lies within `bytes`, and a frame within it.
#[inline]
fn fits(payload_bytes: usize, bytes: usize) -> bool {
    payload_bytes >= L2TP_BYTES + ETHERNET_BYTES && SESSION_AT + payload_bytes <= bytes
}

/// Returns the eight bytes at `AT`, which must be within a header; the compiler knows it.
#[inline]
fn word<const AT: usize>(header: &TunnelHeader) -> u64 {
    u64::from_ne_bytes(std::array::from_fn(|byte| header[AT + byte]))
}

/// Returns the four bytes at `AT`.
#[inline]
fn half<const AT: usize>(header: &TunnelHeader) -> u32 {
    u32::from_ne_bytes(std::array::from_fn(|byte| header[AT + byte]))
}
