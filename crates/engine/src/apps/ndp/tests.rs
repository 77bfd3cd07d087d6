use std::net::Ipv6Addr;

use etherparse::icmpv6::NeighborAdvertisementHeader;
use etherparse::{Icmpv6Type, Ipv6Header, PacketBuilder, SlicedPacket, TransportSlice};
use proptest::prelude::*;

use super::*;
use crate::app::App;
use crate::apps::Mac;
use crate::apps::neighbour::trial::{PACKETS, arrivals, push, try_all};
use crate::apps::neighbour::{ASK_NS_MIN, KNOWN_NS};
use crate::layout::DropReason;
use crate::testing::AppBench;

const OURS: Mac = Mac([2, 0, 0, 0, 0, 1]);
const ROUTER: Mac = Mac([2, 0, 0, 0, 0, 0xfe]);

fn ip(text: &str) -> Ipv6Addr {
    text.parse().unwrap()
}

fn our() -> Ipv6Addr {
    ip("2001:db8::1:2:3")
}

fn router() -> Ipv6Addr {
    ip("fe80::fe")
}

fn config(next_hop: bool) -> NdpConfig {
    let next_hop = next_hop.then(router);
    NdpConfig { mac: OURS, addresses: vec![our(), ip("fe80::1")], next_hop }
}

fn bench(next_hop: bool) -> AppBench<Ndp> {
    let ports = ["north", "south"];
    AppBench::new(config(next_hop), &ports, &ports, PACKETS).unwrap()
}

fn packet(number: u8) -> Vec<u8> {
    let mut frame = Vec::new();
    let builder = PacketBuilder::ethernet2([0; 6], [0; 6]).ipv6(our().octets(), [0x20; 16], 64).udp(1, 2);
    builder.write(&mut frame, &[number; 4]).unwrap();
    frame
}

fn addressed(to: Mac, frame: &[u8]) -> Vec<u8> {
    [&to.0[..], &OURS.0, &frame[12..]].concat()
}

/// Parses a frame of ours by another parser: addresses, and the message behind its checksum.
fn parsed(frame: &[u8]) -> (Mac, Ipv6Header, Icmpv6Type, Vec<u8>) {
    let sliced = SlicedPacket::from_ethernet(frame).unwrap();
    let Some(TransportSlice::Icmpv6(icmp)) = sliced.transport else { panic!("no ICMPv6 in {frame:02x?}") };
    let (ip, rest) = Ipv6Header::from_slice(&frame[14..]).unwrap();
    assert_eq!((usize::from(ip.payload_length), ip.hop_limit), (rest.len(), 255));
    assert!(icmp.is_checksum_valid(ip.source, ip.destination));
    assert_eq!(frame[6..12], OURS.0);
    (Mac(frame[..6].try_into().unwrap()), ip, icmp.icmp_type(), icmp.payload().to_vec())
}

#[test]
fn solicitations_for_our_addresses_are_answered() {
    let own = [&our().octets()[..], &[2, 1], &OURS.0].concat();
    let without_option = Parts { body: our().octets().to_vec(), ..solicitation(our()) };
    let from_nobody = Parts { source: ip("::"), ..without_option.clone() };
    let elsewhere = Mac([2, 0, 0, 0, 0, 7]);
    let with_another = without_option.clone().option(1, &elsewhere.0);
    let all_nodes = (Mac([0x33, 0x33, 0, 0, 0, 1]), ip("ff02::1"), false);
    let table = [
        (solicitation(our()), (ROUTER, router(), true)),
        (without_option.clone(), (ROUTER, router(), true)),
        (with_another, (elsewhere, router(), true)),
        (without_option.option(200, &[0; 14]), (ROUTER, router(), true)),
        (from_nobody, all_nodes),
        (Parts { to: OURS, destination: our(), ..solicitation(our()) }, (ROUTER, router(), true)),
    ];
    let mut bench = bench(false);
    for (asked, (to, destination, solicited)) in table {
        let (north, south) = push(&mut bench, "south", &asked.frame());
        assert_eq!((north.len(), south.len()), (0, 1));
        let (mac, ip, kind, body) = parsed(&south[0]);
        assert_eq!((mac, ip.source_addr(), ip.destination_addr()), (to, our(), destination));
        let flags = NeighborAdvertisementHeader { router: false, solicited, r#override: true };
        assert_eq!((kind, &body), (Icmpv6Type::NeighborAdvertisement(flags), &own));
    }
    assert_eq!(bench.app.report()[0], ("answers", 6));
    assert_eq!(bench.free(), PACKETS as usize);
}

#[test]
fn what_section_7_1_does_not_allow_is_dropped() {
    let asked = solicitation(our());
    let told = advertisement(SOLICITED);
    let edit = |parts: &Parts, change: &dyn Fn(&mut Parts)| {
        let mut parts = parts.clone();
        change(&mut parts);
        parts.frame()
    };
    let mut wrong = Vec::new();
    for parts in [&asked, &told] {
        let frame = parts.frame();
        wrong.push(edit(parts, &|parts| parts.hop_limit = 254));
        wrong.push(edit(parts, &|parts| parts.kind[1] = 1));
        wrong.push(edit(parts, &|parts| parts.body[0] = 0xff)); // A target that is a group.
        wrong.push(edit(parts, &|parts| parts.body.truncate(15))); // Less than 24 bytes.
        wrong.push(edit(parts, &|parts| parts.body.extend([200, 0, 0, 0, 0, 0, 0, 0]))); // An option of no length.
        wrong.push(edit(parts, &|parts| parts.body.extend([200, 2, 0, 0, 0, 0, 0, 0]))); // One that is not whole.
        wrong.push(edit(parts, &|parts| parts.body.push(200)));
        wrong.push(edit(parts, &|parts| parts.from = Mac([0xff; 6])));
        wrong.push(edit(parts, &|parts| parts.source = ip("ff02::1")));
        // Change any bit that the checksum covers, except in the type, which makes another message of it.
        for place in (22..frame.len()).filter(|&place| place != 54) {
            for bit in 0..8 {
                let mut frame = frame.clone();
                frame[place] ^= 1 << bit;
                wrong.push(frame);
            }
        }
        // A frame that ends too early.
        wrong.extend((0..frame.len()).map(|bytes| frame[..bytes].to_vec()));
    }
    // The source is unspecified, but the destination is no solicited-node group, or there is an address.
    wrong.push(edit(&asked, &|parts| (parts.source, parts.destination) = (ip("::"), ip("ff02::1"))));
    wrong.push(edit(&asked, &|parts| parts.source = ip("::")));
    wrong.push(Parts { body: our().octets().to_vec(), ..asked.clone() }.option(1, &[0xff; 6]).frame());
    // A solicited answer that goes to all hosts.
    wrong.push(edit(&told, &|parts| parts.destination = ip("ff02::1")));

    let mut bench = bench(false);
    for (count, frame) in wrong.iter().enumerate() {
        let outcome = push(&mut bench, "south", frame);
        assert_eq!(outcome, (vec![], vec![]), "{frame:02x?}");
        assert_eq!(bench.drops(DropReason::Malformed), count as u64 + 1, "{frame:02x?}");
    }
    assert_eq!(bench.free(), PACKETS as usize);
}

#[test]
fn all_else_passes() {
    let other = ip("2001:db8::9");
    let router_says = Parts { kind: [134, 0, 0, 0, 64, 0, 0, 0], body: vec![0; 8], ..advertisement(0) };
    let echo = Parts { kind: [128, 0, 0, 0, 0, 1, 0, 1], hop_limit: 9, ..advertisement(0) };
    let of_another = Parts { body: other.octets().to_vec(), ..advertisement(SOLICITED) };
    let mut behind_options = solicitation(our()).frame();
    behind_options[20] = 0;
    let vlan = [&OURS.0[..], &ROUTER.0, &[0x81, 0, 0, 7], &solicitation(our()).frame()[12..]].concat();
    let others = [solicitation(other), router_says, echo, of_another].map(|parts| parts.frame());
    let mut bench = bench(true);
    bench.push();
    bench.sent("south");
    for frame in others.iter().chain([&behind_options, &vlan, &packet(0)]) {
        assert_eq!(push(&mut bench, "south", frame), (vec![frame.clone()], vec![]), "{frame:02x?}");
    }
    let multicast = [&[0x33, 0x33, 0, 0, 0, 1], &packet(0)[6..]].concat();
    for frame in [&multicast, &vlan] {
        assert_eq!(push(&mut bench, "north", frame), (vec![], vec![frame.clone()]));
    }
    assert_eq!(push(&mut self::bench(false), "north", &packet(0)), (vec![], vec![packet(0)]));
}

#[test]
fn the_next_hop_is_asked_for_and_found() {
    let mut bench = bench(true);
    let (_, south) = push(&mut bench, "north", &packet(1));
    let (mac, ip, kind, body) = parsed(&south[0]);
    assert_eq!(south.len(), 1);
    assert_eq!(
        (mac, ip.destination_addr()),
        (Mac([0x33, 0x33, 0xff, 0, 0, 0xfe]), self::ip("ff02::1:ff00:fe"))
    );
    assert_eq!((ip.source_addr(), kind), (our(), Icmpv6Type::NeighborSolicitation));
    assert_eq!(body, [&router().octets()[..], &[1, 1], &OURS.0].concat());
    assert_eq!(bench.app.wake_ns(), Some(bench.now_ns + ASK_NS_MIN));

    let answer = advertisement(SOLICITED).option(2, &ROUTER.0).frame();
    assert_eq!(push(&mut bench, "south", &answer), (vec![], vec![addressed(ROUTER, &packet(1))]));
    bench.now_ns += KNOWN_NS;
    let (_, south) = push(&mut bench, "north", &packet(2));
    assert_eq!(south[0], addressed(ROUTER, &packet(2)));
    let (mac, ip, ..) = parsed(&south[1]);
    assert_eq!((mac, ip.destination_addr()), (ROUTER, router()), "it alone is asked");
    // The answer to that needs no address in it.
    push(&mut bench, "south", &advertisement(SOLICITED).frame());
    assert_eq!(bench.app.wake_ns(), Some(bench.now_ns + KNOWN_NS));
    assert_eq!(bench.free(), PACKETS as usize);
}

/// RFC 4861, section 7.2.5, and appendix C.
#[test]
fn advertisements_change_what_is_known_as_their_flags_say() {
    let spare = Mac([2, 0, 0, 0, 0, 0xfd]);
    let told = |flags: u8, mac: Option<Mac>, all: bool| {
        let parts = mac.iter().fold(advertisement(flags), |parts, mac| parts.option(2, &mac.0));
        if all {
            Parts { to: Mac([0x33, 0x33, 0, 0, 0, 1]), destination: ip("ff02::1"), ..parts }
        } else {
            parts
        }
    };
    // (flags, address, to all; what is then known, from unknown and from known; whether the north hears it)
    let table = [
        (told(SOLICITED, None, false), None, Some(ROUTER), false),
        (told(SOLICITED, Some(ROUTER), false), Some(ROUTER), Some(ROUTER), false),
        (told(SOLICITED, Some(spare), false), Some(spare), Some(ROUTER), false),
        (told(SOLICITED | OVERRIDE, Some(spare), false), Some(spare), Some(spare), false),
        (told(0, Some(spare), true), Some(spare), Some(ROUTER), true),
        (told(OVERRIDE, Some(spare), true), Some(spare), Some(spare), true),
        (told(OVERRIDE, None, true), None, Some(ROUTER), true),
    ];
    for (place, (parts, from_unknown, from_known, passes)) in table.into_iter().enumerate() {
        for (known, expected) in [(false, from_unknown), (true, from_known)] {
            let mut bench = bench(true);
            bench.push();
            if known {
                push(&mut bench, "south", &advertisement(SOLICITED).option(2, &ROUTER.0).frame());
            }
            let (north, _) = push(&mut bench, "south", &parts.frame());
            assert_eq!(north.len(), usize::from(passes), "row {place}");
            let (_, south) = push(&mut bench, "north", &packet(1));
            let sent = expected.map(|mac| addressed(mac, &packet(1)));
            assert_eq!(south.first(), sent.as_ref(), "row {place}, known: {known}");
        }
    }
    // A question of the router also tells its address.
    let mut bench = bench(true);
    push(&mut bench, "south", &solicitation(our()).frame());
    assert_eq!(push(&mut bench, "north", &packet(1)).1, [addressed(ROUTER, &packet(1))]);
}

#[test]
fn another_with_our_address_is_counted_and_not_argued_with() {
    let mut bench = bench(false);
    let other = Mac([2, 0, 0, 0, 0, 9]);
    let told = Parts { source: our(), from: other, body: our().octets().to_vec(), ..advertisement(OVERRIDE) };
    let told = Parts { to: Mac([0x33, 0x33, 0, 0, 0, 1]), destination: ip("ff02::1"), ..told };
    assert_eq!(push(&mut bench, "south", &told.frame()), (vec![told.frame()], vec![]));
    let asked = Parts { source: our(), from: other, ..solicitation(our()) };
    assert_eq!(push(&mut bench, "south", &asked.frame()), (vec![], vec![]));
    assert_eq!(bench.app.report()[4], ("conflicts", 2));
    let own = Parts { from: OURS, ..solicitation(our()) };
    assert_eq!(push(&mut bench, "south", &own.frame()), (vec![], vec![]), "our own, that came back");
    assert_eq!(bench.app.report()[4], ("conflicts", 2));
}

/// The other rules, and the state that moves, are the same for both protocols: the tests of `arp` have them.
#[test]
fn addresses_of_no_host_are_refused() {
    for wrong in ["ff02::1", "::", "::1"] {
        assert!(Ndp::check(&NdpConfig { next_hop: Some(ip(wrong)), ..config(true) }).is_err(), "{wrong}");
    }
    assert!(Ndp::check(&config(true)).is_ok());
}

proptest! {
    #[test]
    fn whatever_comes_passes_is_answered_waits_or_is_dropped(arrivals in arrivals(70, 120)) {
        let answer = advertisement(SOLICITED).option(2, &ROUTER.0).frame();
        let kinds = [solicitation(our()).frame(), solicitation(ip("2001:db8::9")).frame(), answer, packet(0)];
        try_all(bench(true), kinds, 70, arrivals)?;
    }
}

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

    /// Returns the frame. The checksum is summed up by hand (RFC 4443, section 2.3).
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

/// Makes a solicitation as a router sends it.
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

/// Makes the router's advertisement to us, without an option.
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
