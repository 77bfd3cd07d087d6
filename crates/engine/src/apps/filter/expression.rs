//! The tests of an expression, and the headers that they read, which etherparse finds.

use etherparse::{
    ArpHardwareId, EtherType, IpNumber, Ipv6ExtensionSlice, LaxLinkExtSlice, LaxNetSlice, LaxSlicedPacket,
    LinkSlice,
};

/// A test of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Test {
    /// At most so many bytes.
    LengthMost(u32),
    /// At least so many bytes.
    LengthLeast(u32),
    /// The EtherType behind all tags.
    EtherType(u16),
    /// An Ethernet address.
    Mac(EndSide, [u8; 6]),
    /// A tag, of this VLAN if one is named.
    Vlan(Option<u16>),
    /// An IPv4 address, in IPv4 packets, ARP packets or both.
    Ipv4 { side: EndSide, ip: bool, arp: bool, address: u32, mask: u32 },
    /// An IPv6 address.
    Ipv6 { side: EndSide, address: u128, mask: u128 },
    /// The protocol behind the IP header, in IPv4, in IPv6 or in both.
    Protocol { four: bool, six: bool, number: u8 },
    /// Ports, of one protocol or of any that has ports.
    Ports { side: EndSide, protocol: Option<u8>, first: u16, last: u16 },
}

/// The end of a packet, sender or receiver, whose address or port is tested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndSide {
    /// The sender's.
    Source,
    /// The receiver's.
    Destination,
    /// One of them.
    Either,
    /// Both of them.
    Both,
}

impl EndSide {
    #[inline]
    fn holds<T: Copy>(self, ends: PacketEnds<T>, test: impl Fn(T) -> bool) -> bool {
        match self {
            Self::Source => test(ends.source),
            Self::Destination => test(ends.destination),
            Self::Either => test(ends.source) || test(ends.destination),
            Self::Both => test(ends.source) && test(ends.destination),
        }
    }
}

/// The packets that a filter passes: tests, and how they are combined.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expression {
    /// A test.
    Test(Test),
    /// The packets that do not match the expression.
    Not(Box<Expression>),
    /// The packets that match all of them.
    All(Vec<Expression>),
    /// The packets that match at least one of them.
    Any(Vec<Expression>),
}

impl Expression {
    /// True if a packet, an Ethernet frame, matches.
    #[inline]
    pub fn matches(&self, frame: &[u8]) -> bool {
        self.holds(&FrameHeaders::of(frame))
    }

    /// Tests only until the result is known. A test costs no call.
    #[inline]
    fn holds(&self, headers: &FrameHeaders) -> bool {
        match self {
            Self::Test(test) => test.holds(headers),
            combined => combined.combination_holds(headers),
        }
    }

    /// The recursion is as deep as the grammar allows.
    fn combination_holds(&self, headers: &FrameHeaders) -> bool {
        match self {
            Self::Test(test) => test.holds(headers),
            Self::Not(inner) => !inner.holds(headers),
            Self::All(terms) => terms.iter().all(|term| term.holds(headers)),
            Self::Any(terms) => terms.iter().any(|term| term.holds(headers)),
        }
    }
}

impl Test {
    #[inline]
    fn holds(&self, headers: &FrameHeaders) -> bool {
        match *self {
            Self::LengthMost(bytes) => headers.length <= bytes as usize,
            Self::LengthLeast(bytes) => headers.length >= bytes as usize,
            Self::EtherType(number) => headers.ether_type == Some(number),
            Self::Mac(side, mac) => headers.macs.is_some_and(|macs| side.holds(macs, |of| of == mac)),
            Self::Vlan(None) => !headers.vlans().is_empty(),
            Self::Vlan(Some(number)) => headers.vlans().contains(&number),
            Self::Ipv4 { side, ip, arp, address, mask } => match headers.network {
                NetworkAddresses::Ipv4(ends) if ip => side.holds(ends, |of| of & mask == address),
                NetworkAddresses::Arp(ends) if arp => side.holds(ends, |of| of & mask == address),
                _ => false,
            },
            Self::Ipv6 { side, address, mask } => match headers.network {
                NetworkAddresses::Ipv6(ends) => side.holds(ends, |of| of & mask == address),
                _ => false,
            },
            Self::Protocol { four, six, number } => {
                let version = match headers.network {
                    NetworkAddresses::Ipv4(..) => four,
                    NetworkAddresses::Ipv6(..) => six,
                    _ => false,
                };
                version && headers.protocol == Some(number)
            }
            Self::Ports { side, protocol, first, last } => {
                (protocol.is_none() || protocol == headers.protocol)
                    && headers.ports.is_some_and(|ports| side.holds(ports, |of| (first..=last).contains(&of)))
            }
        }
    }
}

/// The number of tags that are read.
const VLANS_MAX: usize = LaxSlicedPacket::LINK_EXTS_CAP;

/// An address or a port for each of a packet's ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketEnds<T> {
    source: T,
    destination: T,
}

/// The addresses of sender and receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NetworkAddresses {
    None,
    Ipv4(PacketEnds<u32>),
    Ipv6(PacketEnds<u128>),
    Arp(PacketEnds<u32>),
}

/// A frame's headers, as far as they exist.
#[derive(Clone, Copy, Debug)]
pub struct FrameHeaders {
    /// Bytes of the frame.
    pub length: usize,
    /// Ethernet addresses of sender and receiver.
    pub macs: Option<PacketEnds<[u8; 6]>>,
    /// The EtherType behind all tags.
    pub ether_type: Option<u16>,
    pub network: NetworkAddresses,
    /// The protocol behind the IP header and its extensions.
    pub protocol: Option<u8>,
    /// Ports of sender and receiver. Only the first of a packet's fragments has them.
    pub ports: Option<PacketEnds<u16>>,
    vlans: [u16; VLANS_MAX],
    vlans_length: usize,
}

impl FrameHeaders {
    pub fn of(frame: &[u8]) -> Self {
        let mut headers = Self {
            length: frame.len(),
            macs: None,
            ether_type: None,
            network: NetworkAddresses::None,
            protocol: None,
            ports: None,
            vlans: [0; VLANS_MAX],
            vlans_length: 0,
        };
        // The frame is too short for Ethernet: only its length can be tested.
        let Ok(packet) = LaxSlicedPacket::from_ethernet(frame) else { return headers };
        if let Some(LinkSlice::Ethernet2(ethernet)) = &packet.link {
            headers.macs =
                Some(PacketEnds { source: ethernet.source(), destination: ethernet.destination() });
            headers.ether_type = Some(ethernet.ether_type().0);
        }
        for extension in &packet.link_exts {
            headers.add_extension(extension);
        }
        // etherparse tells the versions of IP by the first byte, whatever the Ethernet header says.
        let ether_type = |network: &LaxNetSlice| match network {
            LaxNetSlice::Ipv4(_) => EtherType::IPV4,
            LaxNetSlice::Ipv6(_) => EtherType::IPV6,
            LaxNetSlice::Arp(_) => EtherType::ARP,
        };
        if let Some(network) = &packet.net {
            if headers.ether_type == Some(ether_type(network).0) {
                headers.add_network(network);
            }
        }
        headers
    }

    /// Returns the VLAN numbers, outermost first.
    pub fn vlans(&self) -> &[u16] {
        &self.vlans[..self.vlans_length]
    }

    fn add_extension(&mut self, extension: &LaxLinkExtSlice) {
        let LaxLinkExtSlice::Vlan(tag) = extension else {
            self.ether_type = extension.payload().map(|payload| payload.ether_type.0);
            return;
        };
        self.ether_type = Some(tag.ether_type().0);
        if let Some(place) = self.vlans.get_mut(self.vlans_length) {
            *place = tag.vlan_identifier().value();
            self.vlans_length += 1;
        }
    }

    fn add_network(&mut self, network: &LaxNetSlice) {
        let (ip, first) = match network {
            LaxNetSlice::Ipv4(ip) => {
                let header = ip.header();
                let (source, destination) = (header.source_addr().into(), header.destination_addr().into());
                self.network = NetworkAddresses::Ipv4(PacketEnds { source, destination });
                (ip.payload(), header.fragments_offset().value() == 0)
            }
            LaxNetSlice::Ipv6(ip) => {
                let header = ip.header();
                let (source, destination) = (header.source_addr().into(), header.destination_addr().into());
                self.network = NetworkAddresses::Ipv6(PacketEnds { source, destination });
                let later = |extension| match extension {
                    Ipv6ExtensionSlice::Fragment(fragment) => fragment.fragment_offset().value() != 0,
                    _ => false,
                };
                (
                    ip.payload(),
                    !(ip.is_payload_fragmented() && ip.extensions().clone().into_iter().any(later)),
                )
            }
            LaxNetSlice::Arp(arp) => {
                let address = |bytes: &[u8]| bytes.try_into().map(u32::from_be_bytes);
                let addresses = (address(arp.sender_protocol_addr()), address(arp.target_protocol_addr()));
                let ethernet = arp.hw_addr_type() == ArpHardwareId::ETHERNET;
                if let (true, EtherType::IPV4, (Ok(source), Ok(destination))) =
                    (ethernet, arp.proto_addr_type(), addresses)
                {
                    self.network = NetworkAddresses::Arp(PacketEnds { source, destination });
                }
                return;
            }
        };
        self.protocol = Some(ip.ip_number.0);
        let has_ports = matches!(ip.ip_number, IpNumber::TCP | IpNumber::UDP | IpNumber::SCTP);
        if let (true, true, [s0, s1, d0, d1, ..]) = (has_ports, first, ip.payload) {
            self.ports = Some(PacketEnds {
                source: u16::from_be_bytes([*s0, *s1]),
                destination: u16::from_be_bytes([*d0, *d1]),
            });
        }
    }
}
