//! Answers for IPv4 addresses, and finds the next hop's Ethernet address (ARP, RFC 826).
//!
//! The app is between the network, `south`, and the hosts behind it, `north`. ARP of other addresses and other networks
//! passes; frames with VLAN tags pass unread.

#[cfg(test)]
mod tests;

use std::net::Ipv4Addr;

use super::Mac;
use super::neighbour::{AnswerConfig, NeighbourAddress, Query, Reception, Responder};
use etherparse::{
    ArpEthIpv4Packet, ArpHardwareId, ArpOperation, ArpPacketSlice, EtherType, Ethernet2Header, Ethernet2Slice,
};

/// Answers for IPv4 addresses.
pub type Arp = Responder<Ipv4Addr>;

/// The addresses that the app answers for, and the next hop that it asks for.
pub type ArpConfig = AnswerConfig<Ipv4Addr>;

impl NeighbourAddress for Ipv4Addr {
    const CARRIED: [u8; 2] = EtherType::IPV4.0.to_be_bytes();

    fn is_host(self) -> bool {
        !(self.is_unspecified() || self.is_multicast() || self.is_broadcast() || self.is_loopback())
    }

    fn hear(app: &mut Arp, frame: &[u8], now_ns: u64) -> Reception {
        let Ok(ethernet) = Ethernet2Slice::from_slice_without_fcs(frame) else { return Reception::Malformed };
        if ethernet.ether_type() != EtherType::ARP {
            return Reception::Pass;
        }
        let Ok(arp) = ArpPacketSlice::from_slice(ethernet.payload_slice()) else {
            return Reception::Malformed;
        };
        if arp.hw_addr_type() != ArpHardwareId::ETHERNET || arp.proto_addr_type() != EtherType::IPV4 {
            return Reception::Pass;
        }
        if !matches!(arp.operation(), ArpOperation::REQUEST | ArpOperation::REPLY) {
            return Reception::Pass;
        }
        let Some(arp) = read(&arp) else { return Reception::Malformed };
        app.answer(&arp, Mac(ethernet.destination()).is_group(), now_ns)
    }

    fn question(config: &ArpConfig, ask: Query) -> Vec<u8> {
        let (to, target_mac) = match ask {
            Query::Everybody => (Mac([0xff; 6]), Mac::default()),
            Query::Only(mac) => (mac, mac),
        };
        let target = config.next_hop.unwrap_or(Ipv4Addr::UNSPECIFIED);
        let own = config.addresses.first().copied().unwrap_or(Ipv4Addr::UNSPECIFIED);
        let arp = ArpEthIpv4Packet {
            operation: ArpOperation::REQUEST,
            sender_mac: config.mac.0,
            sender_ipv4: own.octets(),
            target_mac: target_mac.0,
            target_ipv4: target.octets(),
        };
        frame(to, &arp)
    }
}

impl Arp {
    /// RFC 826, "Packet Reception".
    fn answer(&mut self, arp: &ArpEthIpv4Packet, is_for_all: bool, now_ns: u64) -> Reception {
        let (sender, target) = (arp.sender_ipv4_addr(), arp.target_ipv4_addr());
        let sender_mac = Mac(arp.sender_mac);
        let is_ours = self.config.addresses.contains(&target);
        let is_answer = arp.operation == ArpOperation::REPLY && is_ours && !is_for_all;
        if sender_mac == self.config.mac {
            // A packet of our own that came back.
            return Reception::Done;
        }
        if self.config.addresses.contains(&sender) {
            // An exchange of answers could go on without end, and would not help.
            self.conflicts += 1;
            return if is_for_all { Reception::Pass } else { Reception::Done };
        }
        if let Some(next_hop) = self.next_hop_at(sender) {
            if is_answer {
                next_hop.answered(sender_mac, now_ns);
            } else if is_ours || next_hop.mac().is_some() {
                next_hop.hinted(sender_mac, now_ns);
            }
        }
        match arp.operation {
            ArpOperation::REQUEST if is_ours => Reception::Answer(frame(
                sender_mac,
                &ArpEthIpv4Packet {
                    operation: ArpOperation::REPLY,
                    sender_mac: self.config.mac.0,
                    sender_ipv4: arp.target_ipv4,
                    target_mac: arp.sender_mac,
                    target_ipv4: arp.sender_ipv4,
                },
            )),
            _ if is_answer => Reception::Done,
            _ => Reception::Pass,
        }
    }
}

fn frame(to: Mac, arp: &ArpEthIpv4Packet) -> Vec<u8> {
    let ethernet = Ethernet2Header { destination: to.0, source: arp.sender_mac, ether_type: EtherType::ARP };
    [&ethernet.to_bytes()[..], &arp.to_bytes()].concat()
}

/// Returns an ARP packet of IPv4 over Ethernet, or `None` if the lengths of its addresses are wrong or its sender is no
/// station. The sender may have no IPv4 address yet (RFC 5227, section 2.1.1).
fn read(arp: &ArpPacketSlice) -> Option<ArpEthIpv4Packet> {
    let packet = ArpEthIpv4Packet {
        operation: arp.operation(),
        sender_mac: arp.sender_hw_addr().try_into().ok()?,
        sender_ipv4: arp.sender_protocol_addr().try_into().ok()?,
        target_mac: arp.target_hw_addr().try_into().ok()?,
        target_ipv4: arp.target_protocol_addr().try_into().ok()?,
    };
    let sender = packet.sender_ipv4_addr();
    let sound = Mac(packet.sender_mac).is_station() && (sender.is_host() || sender.is_unspecified());
    sound.then_some(packet)
}
