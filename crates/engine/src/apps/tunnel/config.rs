//! What a tunnel is configured with.

use std::net::Ipv6Addr;

use serde::Deserialize;

use super::header::{ETHERNET_BYTES, HEADER_BYTES};
use crate::app::AppError;
use crate::apps::Mac;
use crate::limits::PACKET_BYTES_MAX;

/// The smallest MTU that IPv6 allows (RFC 8200, section 5).
pub const MTU_MIN: usize = 1280;
/// The largest IPv6 packet that a packet of the engine holds, behind an Ethernet header.
pub const MTU_MAX: usize = PACKET_BYTES_MAX - ETHERNET_BYTES;

/// The key of one direction: 64 bits that who sends must know.
#[derive(Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct TunnelCookie(pub [u8; 8]);

impl TryFrom<String> for TunnelCookie {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let digits = text.len() == 16 && text.bytes().all(|c| c.is_ascii_hexdigit());
        let value = if digits { u64::from_str_radix(&text, 16).ok() } else { None };
        // What was written is not repeated: it is a secret, if a misspelled one.
        value.map(|value| Self(value.to_be_bytes())).ok_or("a cookie has 16 hexadecimal digits".to_owned())
    }
}

impl std::fmt::Debug for TunnelCookie {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TunnelCookie(..)")
    }
}

/// Both directions of a tunnel. Its halves take all of it, too, so that a tunnel can be split in two without
/// being written anew.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TunnelConfig {
    /// Where what is sent comes from, and what is received goes to.
    pub local_address: Ipv6Addr,
    /// Where what is sent goes to, and what is received comes from.
    pub remote_address: Ipv6Addr,
    /// The cookie that must be in what is received.
    pub local_cookie: TunnelCookie,
    /// Another one that is taken as well: while cookies are changed, the one before.
    #[serde(default)]
    pub old_local_cookie: Option<TunnelCookie>,
    /// The cookie in what is sent.
    pub remote_cookie: TunnelCookie,
    /// The session that must be in what is received.
    #[serde(default = "session_default")]
    pub local_session: u32,
    /// The session in what is sent.
    #[serde(default = "session_default")]
    pub remote_session: u32,
    /// The Ethernet address that is sent from. Left out where an `ndp` app writes it.
    #[serde(default)]
    pub local_mac: Mac,
    /// The Ethernet address of the next hop. Left out where an `ndp` app finds it.
    #[serde(default)]
    pub remote_mac: Mac,
    /// Hops that what is sent may take.
    #[serde(default = "hop_limit_default")]
    pub hop_limit: u8,
    /// Bytes of the longest IPv6 packet that is sent.
    #[serde(default = "mtu_default")]
    pub mtu: usize,
}

/// All ones: what RFC 8159 asks for where sessions are told apart by addresses.
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
    /// Bytes of the longest frame that goes in.
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
