//! Answers for IPv6 addresses, and finds the next hop's Ethernet address (Neighbor Discovery, RFC 4861).
//!
//! The app is between the network, `south`, and the hosts behind it, `north`. Solicitations of other addresses, and all
//! messages of routers, pass; frames with VLAN tags pass unread. The app does not check whether another host
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
use super::neighbour::{AnswerConfig, NeighbourAddress, Query, Reception, Responder};

/// Answers for IPv6 addresses.
pub type Ndp = Responder<Ipv6Addr>;

/// The addresses that the app answers for, and the next hop that it asks for.
pub type NdpConfig = AnswerConfig<Ipv6Addr>;

impl NeighbourAddress for Ipv6Addr {
    const CARRIED: [u8; 2] = EtherType::IPV6.0.to_be_bytes();

    fn is_host(self) -> bool {
        !(self.is_unspecified() || self.is_multicast() || self.is_loopback())
    }

    fn hear(app: &mut Ndp, frame: &[u8], now_ns: u64) -> Reception {
        let message = match read(frame) {
            Ok(message) if message.ethernet_source == app.config.mac => return Reception::Done,
            Ok(message) => message,
            Err(other) => return other,
        };
        match message.kind {
            MessageKind::Solicitation => app.solicited(&message, now_ns),
            MessageKind::Advertisement(flags) => app.advertised(&message, flags, now_ns),
        }
    }

    fn question(config: &NdpConfig, ask: Query) -> Vec<u8> {
        let target = config.next_hop.unwrap_or(Ipv6Addr::UNSPECIFIED);
        let address = config.addresses.first().copied().unwrap_or(Ipv6Addr::UNSPECIFIED);
        let to = match ask {
            Query::Everybody => Station::group(solicited_node(target)),
            Query::Only(mac) => Station { mac, address: target },
        };
        let from = Station { mac: config.mac, address };
        frame(from, to, Icmpv6Type::NeighborSolicitation, target, OPTION_SOURCE)
    }
}

impl Ndp {
    /// RFC 4861, sections 7.2.3 and 7.2.4.
    fn solicited(&mut self, message: &NdpMessage, now_ns: u64) -> Reception {
        if !self.config.addresses.contains(&message.target) {
            return Reception::Pass;
        }
        if self.config.addresses.contains(&message.source) {
            self.conflicts += 1;
            return Reception::Done;
        }
        if let (Some(mac), Some(next_hop)) = (message.source_mac, self.next_hop_at(message.source)) {
            next_hop.hinted(mac, now_ns);
        }
        // Without an address, another host is about to take this one.
        let has_address = !message.source.is_unspecified();
        let to = match has_address {
            true => {
                let mac = message.source_mac.unwrap_or(message.ethernet_source);
                Station { mac, address: message.source }
            }
            false => Station::group(ALL_NODES),
        };
        let flags = NeighborAdvertisementHeader { router: false, solicited: has_address, r#override: true };
        let own = Station { mac: self.config.mac, address: message.target };
        let kind = Icmpv6Type::NeighborAdvertisement(flags);
        Reception::Answer(frame(own, to, kind, message.target, OPTION_TARGET))
    }

    /// RFC 4861, section 7.2.5.
    fn advertised(
        &mut self,
        message: &NdpMessage,
        flags: NeighborAdvertisementHeader,
        now_ns: u64,
    ) -> Reception {
        let is_for_us = self.config.addresses.contains(&message.destination);
        let end = if is_for_us { Reception::Done } else { Reception::Pass };
        if self.config.addresses.contains(&message.target) {
            self.conflicts += 1;
            return end;
        }
        let Some(next_hop) = self.next_hop_at(message.target) else { return Reception::Pass };
        // Without an address in the message, the next hop is where it was.
        let Some(mac) = message.target_mac.or(next_hop.mac()) else { return end };
        let is_elsewhere = next_hop.mac().is_some_and(|known| known != mac);
        if is_elsewhere && !flags.r#override {
            return end;
        }
        if flags.solicited && is_for_us {
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

/// A valid message of the protocol.
#[derive(Clone, Copy, Debug)]
struct NdpMessage {
    ethernet_source: Mac,
    source: Ipv6Addr,
    destination: Ipv6Addr,
    kind: MessageKind,
    /// The address that is asked for, or announced.
    target: Ipv6Addr,
    source_mac: Option<Mac>,
    target_mac: Option<Mac>,
}

#[derive(Clone, Copy, Debug)]
enum MessageKind {
    /// A question for the holder of an address.
    Solicitation,
    /// An announcement that an address is here.
    Advertisement(NeighborAdvertisementHeader),
}

/// Parses a frame. An error is what becomes of a frame that is no message, or one that must be ignored.
fn read(frame: &[u8]) -> Result<NdpMessage, Reception> {
    let malformed = || Reception::Malformed;
    let ethernet = Ethernet2Slice::from_slice_without_fcs(frame).map_err(|_| malformed())?;
    if ethernet.ether_type() != EtherType::IPV6 {
        return Err(Reception::Pass);
    }
    let (ip, rest) = Ipv6Header::from_slice(ethernet.payload_slice()).map_err(|_| malformed())?;
    // A message behind other headers is ignored (RFC 6980 forbids fragments; nobody sends others).
    if ip.next_header != IpNumber::IPV6_ICMP {
        return Err(Reception::Pass);
    }
    let icmp = rest.get(..usize::from(ip.payload_length)).and_then(|icmp| Icmpv6Slice::from_slice(icmp).ok());
    let icmp = icmp.ok_or_else(malformed)?;
    if !matches!(icmp.type_u8(), TYPE_NEIGHBOR_SOLICITATION | TYPE_NEIGHBOR_ADVERTISEMENT) {
        return Err(Reception::Pass);
    }
    let sound = ip.hop_limit == HOP_LIMIT
        && icmp.is_checksum_valid(ip.source, ip.destination)
        && Mac(ethernet.source()).is_station()
        && !ip.source_addr().is_multicast();
    message(Mac(ethernet.source()), &ip, &icmp).filter(|_| sound).ok_or_else(malformed)
}

/// Returns the message, or `None` if it must be ignored.
fn message(ethernet_source: Mac, ip: &Ipv6Header, icmp: &Icmpv6Slice) -> Option<NdpMessage> {
    // Both messages have the same shape: a target, and options.
    let payload = NeighborSolicitationPayloadSlice::from_slice(icmp.payload()).ok()?;
    let (source, destination, target) = (ip.source_addr(), ip.destination_addr(), payload.target_address());
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
    let (kind, is_allowed) = match icmp.icmp_type() {
        Icmpv6Type::NeighborSolicitation => {
            let to_group = source_mac.is_none() && destination == solicited_node(target);
            (MessageKind::Solicitation, !source.is_unspecified() || to_group)
        }
        Icmpv6Type::NeighborAdvertisement(flags) => {
            (MessageKind::Advertisement(flags), !(destination.is_multicast() && flags.solicited))
        }
        // The code is not 0.
        _ => return None,
    };
    let message = NdpMessage { ethernet_source, source, destination, kind, target, source_mac, target_mac };
    (is_allowed && !target.is_multicast()).then_some(message)
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
