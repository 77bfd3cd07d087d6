//! The keyed IPv6 tunnel: Ethernet frames in IPv6 packets, with a session and a cookie that only the two ends
//! know (RFC 8159, once draft-mkonstan-keyed-ipv6-tunnel).
//!
//! The cookie keeps out who can send to this host but not see the tunnel's packets; it neither hides nor
//! seals anything. There is no fragmentation: a frame that does not fit the MTU is dropped.

pub mod config;
mod header;
#[cfg(test)]
mod tests;

pub use config::{TunnelConfig, TunnelCookie};
pub use header::HEADER_BYTES;

use crate::app::{App, AppError, Named};
use crate::io::Io;
use crate::layout::DropReason;
use crate::packet::Packet;
#[cfg(test)]
use header::ETHERNET_BYTES;
use header::{Decapsulation, Encapsulation, TunnelRefusal};

const PORTS: Named = Named::Only(&["decapsulated", "encapsulated"]);

/// Both directions: frames at `decapsulated` leave in packets at `encapsulated`, and the other way round.
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

/// Passes what waits at one port on to another, changed; says how many.
#[inline]
fn pass(io: &mut Io, from: &str, to: &str, change: impl FnMut(&mut Packet) -> Result<(), DropReason>) -> u64 {
    let Some(from) = io.input(from) else { return 0 };
    // There is no such output where there is no link: what is sent there is dropped, and counted.
    let to = io.output(to).unwrap_or(usize::MAX);
    io.pass(from, to, change) as u64
}
