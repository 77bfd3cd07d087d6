//! Answers for IPv6 addresses, and finds the next hop's Ethernet address (Neighbor Discovery, RFC 4861).
//!
//! It lies between the network, `south`, and what is behind it, `north`: [`passage`](super::neighbour::passage) says
//! what passes. Solicitations of other addresses, and all that routers say, pass, too; frames with VLAN tags do
//! so unread. It does not look whether somebody else has its addresses (RFC 4862, section 5.4), nor does it report
//! its multicast groups.

mod message;
#[cfg(test)]
mod tests;

use std::net::Ipv6Addr;

use super::Mac;
use super::neighbour::config::AnswerConfig;
use super::neighbour::passage::{Frame, Protocol, Reception};
use super::neighbour::responder::{Responder, Speaker};
use super::neighbour::{Neighbour, Query};
use etherparse::EtherType;
use message::{Advertisement, NdpMessage, Read, Solicitation};

/// Answers for IPv6 addresses.
pub type Ndp = Responder<Ipv6Addr>;

/// What it answers, and what it asks.
pub type NdpConfig = AnswerConfig<Ipv6Addr>;

impl Protocol for Speaker<Ipv6Addr> {
    const CARRIED: [u8; 2] = EtherType::IPV6.0.to_be_bytes();

    fn mac(&self) -> Mac {
        self.config.mac
    }

    fn hear(&mut self, frame: &[u8], next_hop: Option<&mut Neighbour>, now_ns: u64) -> Reception {
        let next_hop = self.config.next_hop.zip(next_hop);
        match message::read(frame) {
            Read::Other => Reception::Pass,
            Read::Malformed => Reception::Malformed,
            Read::NdpMessage(message) if message.ethernet_source == self.config.mac => Reception::Done,
            Read::NdpMessage(message) => match message.said {
                message::Said::Solicitation(said) => self.solicited(&message, said, next_hop, now_ns),
                message::Said::Advertisement(said) => self.advertised(&message, said, next_hop, now_ns),
            },
        }
    }

    fn question(&self, ask: Query) -> Frame {
        let target = self.config.next_hop.unwrap_or(Ipv6Addr::UNSPECIFIED);
        let source = self.config.addresses.first().copied().unwrap_or(Ipv6Addr::UNSPECIFIED);
        message::solicitation(self.config.mac, source, target, ask)
    }
}

impl Speaker<Ipv6Addr> {
    /// RFC 4861, sections 7.2.3 and 7.2.4.
    fn solicited(
        &mut self,
        message: &NdpMessage,
        said: Solicitation,
        next_hop: Option<(Ipv6Addr, &mut Neighbour)>,
        now_ns: u64,
    ) -> Reception {
        if !self.config.addresses.contains(&said.target) {
            return Reception::Pass;
        }
        if self.config.addresses.contains(&message.source) {
            self.conflicts += 1;
            return Reception::Done;
        }
        if let (Some((address, next_hop)), Some(mac)) = (next_hop, said.source_mac) {
            if address == message.source {
                next_hop.hinted(mac, now_ns);
            }
        }
        let own = self.config.mac;
        if message.source.is_unspecified() {
            // Somebody is about to take this address, and has none yet.
            return Reception::Answer(message::advertisement(own, said.target, None));
        }
        let to = said.source_mac.unwrap_or(message.ethernet_source);
        Reception::Answer(message::advertisement(own, said.target, Some((to, message.source))))
    }

    /// RFC 4861, section 7.2.5.
    fn advertised(
        &mut self,
        message: &NdpMessage,
        said: Advertisement,
        next_hop: Option<(Ipv6Addr, &mut Neighbour)>,
        now_ns: u64,
    ) -> Reception {
        let is_for_us = self.config.addresses.contains(&message.destination);
        let end = if is_for_us { Reception::Done } else { Reception::Pass };
        if self.config.addresses.contains(&said.target) {
            self.conflicts += 1;
            return end;
        }
        let Some((_, next_hop)) = next_hop.filter(|&(address, _)| address == said.target) else {
            return Reception::Pass;
        };
        // Without an address, it is where it was.
        let Some(mac) = said.target_mac.or(next_hop.mac()) else { return end };
        let is_elsewhere = next_hop.mac().is_some_and(|known| known != mac);
        if is_elsewhere && !said.overrides {
            return end;
        }
        if said.is_solicited && is_for_us {
            next_hop.answered(mac, now_ns);
        } else {
            next_hop.hinted(mac, now_ns);
        }
        end
    }
}
