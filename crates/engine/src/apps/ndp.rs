//! Answers for IPv6 addresses, and finds the next hop's Ethernet address (Neighbor Discovery, RFC 4861).
//!
//! The app is between the network, `south`, and the hosts behind it, `north`;
//! [`passage`](super::neighbour::passage) says which packets pass. Solicitations of other addresses, and all
//! messages of routers, pass, too; frames with VLAN tags pass unread. The app does not check whether another host
//! has its addresses (RFC 4862, section 5.4), and does not report its multicast groups.

#[cfg(test)]
mod tests;

use std::net::Ipv6Addr;

use etherparse::icmpv6::{
    NdpOptionSlice, NeighborAdvertisementHeader, NeighborSolicitationPayloadSlice,
    TYPE_NEIGHBOR_ADVERTISEMENT, TYPE_NEIGHBOR_SOLICITATION,
};
use etherparse::{
    EtherType, Ethernet2Header, Ethernet2Slice, Icmpv6Slice, Icmpv6Type, IpNumber, Ipv6FlowLabel, Ipv6Header,
};

use super::Mac;
use super::neighbour::AnswerConfig;
use super::neighbour::{Neighbour, Query};
use super::neighbour::{Protocol, Reception};
use super::neighbour::{Responder, Speaker};

/// Answers for IPv6 addresses.
pub type Ndp = Responder<Ipv6Addr>;

/// The addresses that the app answers for, and the next hop that it asks for.
pub type NdpConfig = AnswerConfig<Ipv6Addr>;

impl Protocol for Speaker<Ipv6Addr> {
    const CARRIED: [u8; 2] = EtherType::IPV6.0.to_be_bytes();

    fn mac(&self) -> Mac {
        self.config.mac
    }

    fn hear(&mut self, frame: &[u8], next_hop: Option<&mut Neighbour>, now_ns: u64) -> Reception {
        let next_hop = self.config.next_hop.zip(next_hop);
        match read(frame) {
            Read::Other => Reception::Pass,
            Read::Malformed => Reception::Malformed,
            Read::NdpMessage(message) if message.ethernet_source == self.config.mac => Reception::Done,
            Read::NdpMessage(message) => match message.said {
                Said::Solicitation(said) => self.solicited(&message, said, next_hop, now_ns),
                Said::Advertisement(said) => self.advertised(&message, said, next_hop, now_ns),
            },
        }
    }

    fn question(&self, ask: Query) -> Vec<u8> {
        let target = self.config.next_hop.unwrap_or(Ipv6Addr::UNSPECIFIED);
        let source = self.config.addresses.first().copied().unwrap_or(Ipv6Addr::UNSPECIFIED);
        solicitation(self.config.mac, source, target, ask)
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
            // Another host is about to take this address, and has none yet.
            return Reception::Answer(advertisement(own, said.target, None));
        }
        let to = said.source_mac.unwrap_or(message.ethernet_source);
        Reception::Answer(advertisement(own, said.target, Some(Station { mac: to, address: message.source })))
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
        // Without an address in the message, the next hop is where it was.
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

/// The hop limit of a packet from the same link; a packet from farther away has less.
const HOP_LIMIT: u8 = 255;
/// All hosts of a link.
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
const OPTION_SOURCE: u8 = 1;
const OPTION_TARGET: u8 = 2;
/// Bytes of an option with an Ethernet address, in units of eight.
const OPTION_UNITS: u8 = 1;

/// A frame after parsing.
#[derive(Debug, PartialEq, Eq)]
enum Read {
    /// A frame that is no message of this protocol.
    Other,
    /// A message that violates the protocol.
    Malformed,
    /// A valid message.
    NdpMessage(NdpMessage),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct NdpMessage {
    ethernet_source: Mac,
    source: Ipv6Addr,
    destination: Ipv6Addr,
    said: Said,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Said {
    Solicitation(Solicitation),
    Advertisement(Advertisement),
}

/// A question for the holder of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Solicitation {
    target: Ipv6Addr,
    source_mac: Option<Mac>,
}

/// An announcement that an address is here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Advertisement {
    target: Ipv6Addr,
    target_mac: Option<Mac>,
    is_solicited: bool,
    overrides: bool,
}

/// Parses a frame.
fn read(frame: &[u8]) -> Read {
    let Ok(ethernet) = Ethernet2Slice::from_slice_without_fcs(frame) else { return Read::Malformed };
    if ethernet.ether_type() != EtherType::IPV6 {
        return Read::Other;
    }
    let Ok((ip, rest)) = Ipv6Header::from_slice(ethernet.payload_slice()) else { return Read::Malformed };
    // A message behind other headers is ignored (RFC 6980 forbids fragments; nobody sends others).
    if ip.next_header != IpNumber::IPV6_ICMP {
        return Read::Other;
    }
    let icmp = rest.get(..usize::from(ip.payload_length)).and_then(|icmp| Icmpv6Slice::from_slice(icmp).ok());
    let Some(icmp) = icmp else { return Read::Malformed };
    if !matches!(icmp.type_u8(), TYPE_NEIGHBOR_SOLICITATION | TYPE_NEIGHBOR_ADVERTISEMENT) {
        return Read::Other;
    }
    let ethernet_source = Mac(ethernet.source());
    let sound = ip.hop_limit == HOP_LIMIT
        && icmp.is_checksum_valid(ip.source, ip.destination)
        && ethernet_source.is_station()
        && !ip.source_addr().is_multicast();
    let (source, destination) = (ip.source_addr(), ip.destination_addr());
    match said(&icmp, source, destination).filter(|_| sound) {
        Some(said) => Read::NdpMessage(NdpMessage { ethernet_source, source, destination, said }),
        None => Read::Malformed,
    }
}

/// Returns the message, or `None` if it must be ignored.
fn said(icmp: &Icmpv6Slice, source: Ipv6Addr, destination: Ipv6Addr) -> Option<Said> {
    // Both messages have the same shape: a target, and options.
    let payload = NeighborSolicitationPayloadSlice::from_slice(icmp.payload()).ok()?;
    let target = payload.target_address();
    if target.is_multicast() {
        return None;
    }
    let (mut source_mac, mut target_mac) = (None, None);
    for option in payload.options_iterator() {
        match option.ok()? {
            NdpOptionSlice::SourceLinkLayerAddress(option) => {
                source_mac = Some(station(option.link_layer_address())?)
            }
            NdpOptionSlice::TargetLinkLayerAddress(option) => {
                target_mac = Some(station(option.link_layer_address())?)
            }
            _ => {}
        }
    }
    match icmp.icmp_type() {
        Icmpv6Type::NeighborSolicitation => {
            let from_nobody = source.is_unspecified();
            let refused = from_nobody && (source_mac.is_some() || destination != solicited_node(target));
            (!refused).then_some(Said::Solicitation(Solicitation { target, source_mac }))
        }
        Icmpv6Type::NeighborAdvertisement(flags) => {
            let said = Advertisement {
                target,
                target_mac,
                is_solicited: flags.solicited,
                overrides: flags.r#override,
            };
            let refused = destination.is_multicast() && flags.solicited;
            (!refused).then_some(Said::Advertisement(said))
        }
        // The code is not 0.
        _ => None,
    }
}

fn station(bytes: &[u8]) -> Option<Mac> {
    bytes.try_into().ok().map(Mac).filter(|mac| mac.is_station())
}

/// Returns the group to which the holder of an address listens (RFC 4291, section 2.7.1).
fn solicited_node(address: Ipv6Addr) -> Ipv6Addr {
    let [.., high, low] = address.segments();
    Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00 | high & 0xff, low)
}

/// A host, or a group of hosts, on the link.
#[derive(Clone, Copy, Debug)]
struct Station {
    mac: Mac,
    address: Ipv6Addr,
}

impl Station {
    /// Returns a group, with its Ethernet address (RFC 2464, section 7).
    fn group(address: Ipv6Addr) -> Self {
        let [.., a, b, c, d] = address.octets();
        Self { mac: Mac([0x33, 0x33, a, b, c, d]), address }
    }
}

/// Makes a question for the Ethernet address of `target`.
fn solicitation(own: Mac, source: Ipv6Addr, target: Ipv6Addr, ask: Query) -> Vec<u8> {
    let to = match ask {
        Query::Everybody => Station::group(solicited_node(target)),
        Query::Only(mac) => Station { mac, address: target },
    };
    frame(Station { mac: own, address: source }, to, Icmpv6Type::NeighborSolicitation, target, OPTION_SOURCE)
}

/// Makes the answer that `target` is at `own`, to the station that asked, or to all hosts if that has no address.
fn advertisement(own: Mac, target: Ipv6Addr, to: Option<Station>) -> Vec<u8> {
    let flags = NeighborAdvertisementHeader { router: false, solicited: to.is_some(), r#override: true };
    let to = to.unwrap_or(Station::group(ALL_NODES));
    frame(
        Station { mac: own, address: target },
        to,
        Icmpv6Type::NeighborAdvertisement(flags),
        target,
        OPTION_TARGET,
    )
}

fn frame(from: Station, to: Station, kind: Icmpv6Type, target: Ipv6Addr, option: u8) -> Vec<u8> {
    let ethernet = Ethernet2Header { destination: to.mac.0, source: from.mac.0, ether_type: EtherType::IPV6 };
    let mut payload = [0; 24];
    payload[..16].copy_from_slice(&target.octets());
    payload[16..18].copy_from_slice(&[option, OPTION_UNITS]);
    payload[18..].copy_from_slice(&from.mac.0);
    let ip = Ipv6Header {
        traffic_class: 0,
        flow_label: Ipv6FlowLabel::ZERO,
        payload_length: (kind.header_len() + payload.len()) as u16,
        next_header: IpNumber::IPV6_ICMP,
        hop_limit: HOP_LIMIT,
        source: from.address.octets(),
        destination: to.address.octets(),
    };
    // This fails only for a payload longer than 4 GiB.
    let checksum = kind.calc_checksum(ip.source, ip.destination, &payload).unwrap_or(0);
    let icmp = etherparse::Icmpv6Header { icmp_type: kind, checksum };
    [&ethernet.to_bytes()[..], &ip.to_bytes(), &icmp.to_bytes(), &payload].concat()
}
