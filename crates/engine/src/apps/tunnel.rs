//! The keyed IPv6 tunnel: Ethernet frames in IPv6 packets, with a session and a cookie that only the two ends
//! know (RFC 8159, once draft-mkonstan-keyed-ipv6-tunnel).
//!
//! The cookie keeps out senders that reach this host but cannot see the tunnel's packets. It neither hides nor
//! seals anything. There is no fragmentation: a frame that does not fit the MTU is dropped.

mod header;
#[cfg(test)]
mod tests;

use std::net::Ipv6Addr;

use header::{Decapsulation, ETHERNET_BYTES, Encapsulation, TunnelRefusal};
use serde::Deserialize;

use crate::app::{App, AppError, Named};
use crate::apps::Mac;
use crate::io::Io;
use crate::layout::DropReason;
use crate::limits::PACKET_BYTES_MAX;
use crate::packet::Packet;

pub use header::HEADER_BYTES;

const PORTS: Named = Named::Only(&["decapsulated", "encapsulated"]);

/// Both directions: frames at `decapsulated` leave in packets at `encapsulated`, and vice versa.
#[derive(Debug)]
pub struct Tunnel {
    inward: Decapsulate,
    outward: Encapsulate,
}

/// Puts frames into packets: half a tunnel.
#[derive(Debug)]
pub struct Encapsulate {
    header: Encapsulation,
    packets: u64,
}

/// Takes frames out of packets: the other half.
#[derive(Debug)]
pub struct Decapsulate {
    header: Decapsulation,
    packets: u64,
    wrong_key: u64,
}

impl App for Tunnel {
    type Config = TunnelConfig;
    const INPUTS: Named = PORTS;
    const OUTPUTS: Named = PORTS;

    fn check(config: &TunnelConfig) -> Result<(), AppError> {
        config.check()
    }

    fn start(config: TunnelConfig, _: Option<Vec<u8>>) -> Result<Self, AppError> {
        Ok(Self {
            inward: Decapsulate::start(config.clone(), None)?,
            outward: Encapsulate::start(config, None)?,
        })
    }

    fn push(&mut self, io: &mut Io) {
        self.outward.pass(io, "decapsulated", "encapsulated");
        self.inward.pass(io, "encapsulated", "decapsulated");
    }

    fn report(&self) -> Vec<(&'static str, u64)> {
        [self.outward.report(), self.inward.report()].concat()
    }
}

impl App for Encapsulate {
    type Config = TunnelConfig;

    fn check(config: &TunnelConfig) -> Result<(), AppError> {
        config.check()
    }

    fn start(config: TunnelConfig, _: Option<Vec<u8>>) -> Result<Self, AppError> {
        Ok(Self { header: Encapsulation::new(&config), packets: 0 })
    }

    fn push(&mut self, io: &mut Io) {
        self.pass(io, "input", "output");
    }

    fn report(&self) -> Vec<(&'static str, u64)> {
        vec![("encapsulated", self.packets)]
    }
}

impl Encapsulate {
    #[inline]
    fn pass(&mut self, io: &mut Io, from: &str, to: &str) {
        let header = &self.header;
        self.packets += pass(io, from, to, |packet| header.put(packet));
    }
}

impl App for Decapsulate {
    type Config = TunnelConfig;

    fn check(config: &TunnelConfig) -> Result<(), AppError> {
        config.check()
    }

    fn start(config: TunnelConfig, _: Option<Vec<u8>>) -> Result<Self, AppError> {
        Ok(Self { header: Decapsulation::new(&config), packets: 0, wrong_key: 0 })
    }

    fn push(&mut self, io: &mut Io) {
        self.pass(io, "input", "output");
    }

    fn report(&self) -> Vec<(&'static str, u64)> {
        vec![("decapsulated", self.packets), ("wrong_key", self.wrong_key)]
    }
}

impl Decapsulate {
    #[inline]
    fn pass(&mut self, io: &mut Io, from: &str, to: &str) {
        let (header, wrong_key) = (&self.header, &mut self.wrong_key);
        self.packets += pass(io, from, to, |packet| {
            header.take(packet).map_err(|refusal| {
                *wrong_key += u64::from(refusal == TunnelRefusal::Key);
                refusal.into()
            })
        });
    }
}

/// Passes the packets that wait at one port on to another, after a change. Returns their number.
#[inline]
fn pass(io: &mut Io, from: &str, to: &str, change: impl FnMut(&mut Packet) -> Result<(), DropReason>) -> u64 {
    let Some(from) = io.input(from) else { return 0 };
    // Without a link there is no such output: packets sent there are dropped and counted.
    let to = io.output(to).unwrap_or(usize::MAX);
    io.pass(from, to, change) as u64
}

/// The smallest MTU that IPv6 allows (RFC 8200, section 5).
pub const MTU_MIN: usize = 1280;
/// The largest IPv6 packet that a packet of the engine holds, behind an Ethernet header.
pub const MTU_MAX: usize = PACKET_BYTES_MAX - ETHERNET_BYTES;

/// The key of one direction: 64 bits that the sender must know.
#[derive(Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct TunnelCookie(pub [u8; 8]);

impl TryFrom<String> for TunnelCookie {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let digits = text.len() == 16 && text.bytes().all(|c| c.is_ascii_hexdigit());
        let value = if digits { u64::from_str_radix(&text, 16).ok() } else { None };
        // The error does not repeat the text: even a misspelled cookie is a secret.
        value.map(|value| Self(value.to_be_bytes())).ok_or("a cookie has 16 hexadecimal digits".to_owned())
    }
}

impl std::fmt::Debug for TunnelCookie {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TunnelCookie(..)")
    }
}

/// Both directions of a tunnel. Its halves take the same keys, so that a tunnel can be split in two without
/// changing them.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TunnelConfig {
    /// The source of packets sent, and the destination of packets received.
    pub local_address: Ipv6Addr,
    /// The destination of packets sent, and the source of packets received.
    pub remote_address: Ipv6Addr,
    /// The cookie that packets received must have.
    pub local_cookie: TunnelCookie,
    /// A second cookie that is accepted: the previous one, while cookies are changed.
    #[serde(default)]
    pub old_local_cookie: Option<TunnelCookie>,
    /// The cookie of packets sent.
    pub remote_cookie: TunnelCookie,
    /// The session that packets received must have.
    #[serde(default = "session_default")]
    pub local_session: u32,
    /// The session of packets sent.
    #[serde(default = "session_default")]
    pub remote_session: u32,
    /// The Ethernet source address of packets sent. Left out if an `ndp` app writes it.
    #[serde(default)]
    pub local_mac: Mac,
    /// The Ethernet address of the next hop. Left out if an `ndp` app finds it.
    #[serde(default)]
    pub remote_mac: Mac,
    /// The hop limit of packets sent.
    #[serde(default = "hop_limit_default")]
    pub hop_limit: u8,
    /// Bytes of the longest IPv6 packet that is sent.
    #[serde(default = "mtu_default")]
    pub mtu: usize,
}

/// Returns all ones, which RFC 8159 asks for where sessions are told apart by addresses.
fn session_default() -> u32 {
    u32::MAX
}

fn hop_limit_default() -> u8 {
    64
}

fn mtu_default() -> usize {
    MTU_MAX
}

impl TunnelConfig {
    /// Returns the length of the longest frame that fits.
    pub(super) fn frame_bytes_max(&self) -> usize {
        self.mtu + ETHERNET_BYTES - HEADER_BYTES
    }

    pub(super) fn check(&self) -> Result<(), AppError> {
        for (key, address) in [("local_address", self.local_address), ("remote_address", self.remote_address)]
        {
            if address.is_multicast() || address.is_unspecified() {
                return Err(AppError(format!("{key} = {address}: a tunnel needs the address of one host")));
            }
        }
        for (key, session) in [("local_session", self.local_session), ("remote_session", self.remote_session)]
        {
            if session == 0 {
                return Err(AppError(format!(
                    "{key} = 0: session 0 is that of control messages; use another"
                )));
            }
        }
        for (key, mac) in [("local_mac", self.local_mac), ("remote_mac", self.remote_mac)] {
            if mac.is_group() {
                return Err(AppError(format!("{key} = {mac}: a tunnel needs the address of one station")));
            }
        }
        if self.hop_limit == 0 {
            return Err(AppError("hop_limit = 0: nothing would arrive; it is 1 to 255".to_owned()));
        }
        if !(MTU_MIN..=MTU_MAX).contains(&self.mtu) {
            return Err(AppError(format!("mtu = {}: a tunnel takes {MTU_MIN} to {MTU_MAX}", self.mtu)));
        }
        Ok(())
    }
}
