//! Messages as others send them, put together by hand.

use std::net::Ipv6Addr;

use super::{OURS, ROUTER, ip, our, router};
use crate::apps::Mac;

/// An ICMPv6 message in all its parts, so that each can be made wrong.
#[derive(Clone)]
pub struct Parts {
    pub to: Mac,
    pub from: Mac,
    pub source: Ipv6Addr,
    pub destination: Ipv6Addr,
    pub hop_limit: u8,
    pub kind: [u8; 8],
    pub body: Vec<u8>,
}

impl Parts {
    pub fn option(mut self, kind: u8, bytes: &[u8]) -> Self {
        self.body.push(kind);
        self.body.push(((bytes.len() + 2) / 8) as u8);
        self.body.extend(bytes);
        self
    }

    /// The frame, its checksum summed up by hand (RFC 4443, section 2.3).
    pub fn frame(&self) -> Vec<u8> {
        let mut icmp = [&self.kind[..], &self.body].concat();
        let length = icmp.len() as u16;
        let ends = [self.source.octets(), self.destination.octets()].concat();
        let summed = [&ends[..], &[0, 0], &length.to_be_bytes(), &[0, 0, 0, 58], &icmp].concat();
        let words =
            summed.chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(*word.get(1).unwrap_or(&0)));
        let sum: u32 = words.sum();
        let folded = (sum & 0xffff) + (sum >> 16);
        let checksum = !((folded & 0xffff) + (folded >> 16)) as u16;
        icmp[2..4].copy_from_slice(&checksum.to_be_bytes());
        let header = [0x60, 0, 0, 0, (length >> 8) as u8, length as u8, 58, self.hop_limit];
        [&self.to.0[..], &self.from.0, &[0x86, 0xdd], &header, &ends, &icmp].concat()
    }
}

/// A solicitation as a router sends it.
pub fn solicitation(target: Ipv6Addr) -> Parts {
    let [.., a, b, c] = target.octets();
    let destination = ip(&format!("ff02::1:ff{a:02x}:{b:02x}{c:02x}"));
    Parts {
        to: Mac([0x33, 0x33, 0xff, a, b, c]),
        from: ROUTER,
        source: router(),
        destination,
        hop_limit: 255,
        kind: [135, 0, 0, 0, 0, 0, 0, 0],
        body: target.octets().to_vec(),
    }
    .option(1, &ROUTER.0)
}

pub const SOLICITED: u8 = 0x40;
pub const OVERRIDE: u8 = 0x20;

/// The router's advertisement to us, without an option.
pub fn advertisement(flags: u8) -> Parts {
    Parts {
        to: OURS,
        from: ROUTER,
        source: router(),
        destination: our(),
        hop_limit: 255,
        kind: [136, 0, 0, 0, flags, 0, 0, 0],
        body: router().octets().to_vec(),
    }
}
