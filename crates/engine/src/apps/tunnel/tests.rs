use etherparse::{Ethernet2Header, Ipv6Header, SlicedPacket};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::limits::HEADROOM_BYTES;
use crate::testing::AppBench;

fn here() -> Value {
    json!({
        "local_address": "2001:db8::1", "remote_address": "2001:db8:0:1::2",
        "local_cookie": "0123456789abcdef", "remote_cookie": "fedcba9876543210",
        "local_session": 0x1001, "remote_session": 0x2002,
        "local_mac": "02:00:00:00:00:01", "remote_mac": "02:00:00:00:00:02",
    })
}

/// Returns the configuration of the other end of the tunnel.
fn there() -> Value {
    let here = here();
    let mut there = here.clone();
    for kind in ["address", "cookie", "session", "mac"] {
        there[format!("local_{kind}")] = here[format!("remote_{kind}")].clone();
        there[format!("remote_{kind}")] = here[format!("local_{kind}")].clone();
    }
    there
}

fn with(mut config: Value, key: &str, value: impl Into<Value>) -> Value {
    config[key] = value.into();
    config
}

fn half<A: App<Config = TunnelConfig>>(config: &Value) -> AppBench<A> {
    let config = serde_json::from_value(config.clone()).unwrap();
    AppBench::new(config, &["input"], &["output"], PACKETS).unwrap()
}

const PACKETS: u32 = 8;

fn frame(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|place| place as u8 ^ 0x5a).collect()
}

/// A tunnel's direction from `there` to `here`.
struct TunnelWay {
    sender: AppBench<Encapsulate>,
    receiver: AppBench<Decapsulate>,
}

impl TunnelWay {
    fn new() -> Self {
        Self { sender: half(&there()), receiver: half(&here()) }
    }

    /// Returns the packet that carries a frame.
    fn packet_of(&mut self, frame: &[u8]) -> Vec<u8> {
        self.sender.put("input", frame);
        self.sender.push();
        let mut sent = self.sender.sent("output");
        assert_eq!((sent.len(), self.sender.free()), (1, PACKETS as usize));
        sent.remove(0)
    }

    /// Returns the frame that comes out of a packet, or why none does.
    fn frame_of(&mut self, packet: &[u8]) -> Result<Vec<u8>, DropReason> {
        let drops =
            |bench: &AppBench<_>| [DropReason::Malformed, DropReason::Filtered].map(|why| bench.drops(why));
        let before = drops(&self.receiver);
        self.receiver.put("input", packet);
        self.receiver.push();
        let sent = self.receiver.sent("output").pop();
        assert_eq!(self.receiver.free(), PACKETS as usize);
        let after = drops(&self.receiver);
        match (sent, [after[0] - before[0], after[1] - before[1]]) {
            (Some(frame), [0, 0]) => Ok(frame),
            (None, [1, 0]) => Err(DropReason::Malformed),
            (None, [0, 1]) => Err(DropReason::Filtered),
            outcome => panic!("one packet went in, and {outcome:?} came out"),
        }
    }
}

#[test]
fn headers_are_what_their_rfcs_say() {
    let mut way = TunnelWay::new();
    for bytes in [14, 60, 120, 1500, HEADER_BYTES + MTU_MIN] {
        let frame = frame(bytes);
        let packet = way.packet_of(&frame);
        assert_eq!(packet.len(), HEADER_BYTES + bytes);
        let (ethernet, rest) = Ethernet2Header::from_slice(&packet).unwrap();
        assert_eq!((ethernet.source, ethernet.destination), ([2, 0, 0, 0, 0, 2], [2, 0, 0, 0, 0, 1]));
        assert_eq!(ethernet.ether_type, etherparse::EtherType::IPV6);
        let (ip, rest) = Ipv6Header::from_slice(rest).unwrap();
        assert_eq!(ip.source_addr().to_string(), "2001:db8:0:1::2");
        assert_eq!(ip.destination_addr().to_string(), "2001:db8::1");
        assert_eq!(ip.next_header, etherparse::ip_number::LAYER2_TUNNELING_PROTOCOL);
        assert_eq!((ip.hop_limit, ip.traffic_class, ip.flow_label.value()), (64, 0, 0));
        assert_eq!(usize::from(ip.payload_length), rest.len());
        assert_eq!(rest[..12], [0, 0, 0x10, 0x01, 0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef]);
        assert_eq!(rest[12..], frame);
        assert!(SlicedPacket::from_ethernet(&packet).is_ok());
    }
}

#[test]
fn a_tunnel_passes_frames_both_ways() {
    let names = ["decapsulated", "encapsulated"];
    let tunnel = |config: Value| {
        let config = serde_json::from_value(config).unwrap();
        AppBench::<Tunnel>::new(config, &names, &names, PACKETS).unwrap()
    };
    let (mut left, mut right) = (tunnel(here()), tunnel(there()));
    for (from, to) in [(0, 1), (1, 0)] {
        let ends = [&mut left, &mut right];
        ends[from].put("decapsulated", &frame(64));
        ends[from].push();
        let packets = ends[from].sent("encapsulated");
        assert_eq!(packets.len(), 1);
        ends[to].put("encapsulated", &packets[0]);
        ends[to].push();
        assert_eq!(ends[to].sent("decapsulated"), [frame(64)]);
    }
    assert_eq!(left.app.report(), [("encapsulated", 1), ("decapsulated", 1), ("wrong_key", 0)]);
    assert_eq!((left.free(), right.free()), (PACKETS as usize, PACKETS as usize));
}

#[test]
fn what_is_wrong_is_dropped_for_what_is_wrong_with_it() {
    let mut way = TunnelWay::new();
    let whole = way.packet_of(&frame(60));
    // Bits at which a single change makes another's packet of it, or none at all. All that is not here may be
    // anything: Ethernet addresses, traffic class, flow label, hop limit, and the frame.
    let causes = [
        (12..14, 0xff, DropReason::Filtered),
        (14..15, 0xf0, DropReason::Malformed),
        (20..21, 0xff, DropReason::Filtered),
        (22..54, 0xff, DropReason::Filtered),
        (54..66, 0xff, DropReason::Filtered),
    ];
    for place in (0..18).chain(20..whole.len()) {
        for bit in 0..8 {
            let mut packet = whole.clone();
            packet[place] ^= 1 << bit;
            let cause =
                causes.iter().find(|(places, bits, _)| places.contains(&place) && bits & 1 << bit != 0);
            let expected = cause.map_or_else(|| Ok(packet[HEADER_BYTES..].to_vec()), |&(.., why)| Err(why));
            assert_eq!(way.frame_of(&packet), expected, "bit {bit} of byte {place}");
        }
    }
    for bytes in 0..whole.len() {
        assert_eq!(way.frame_of(&whole[..bytes]), Err(DropReason::Malformed), "cut to {bytes} bytes");
    }
}

#[test]
fn a_length_is_believed_only_within_the_packet() {
    let mut way = TunnelWay::new();
    let whole = way.packet_of(&frame(60));
    for length in 0..=u16::MAX {
        let mut packet = whole.clone();
        packet[18..20].copy_from_slice(&length.to_be_bytes());
        // 12 bytes of L2TPv3, then a frame of at least an Ethernet header.
        let expected = match usize::from(length) {
            length @ 26..=72 => Ok(frame(60)[..length - 12].to_vec()),
            _ => Err(DropReason::Malformed),
        };
        if length < 200 || length % 97 == 0 {
            assert_eq!(way.frame_of(&packet), expected, "length {length}");
        }
    }
    let padded = [&whole[..], &[0; 6]].concat();
    assert_eq!(way.frame_of(&padded), Ok(frame(60)), "padding is taken off");
}

#[test]
fn a_wrong_cookie_is_counted_and_an_old_one_taken() {
    let packet = TunnelWay::new().packet_of(&frame(60));
    let rolled = with(here(), "local_cookie", "aaaaaaaaaaaaaaaa");
    for (config, taken) in [(with(rolled.clone(), "old_local_cookie", "0123456789abcdef"), 1), (rolled, 0)] {
        let mut bench = half::<Decapsulate>(&config);
        bench.put("input", &packet);
        bench.push();
        assert_eq!(bench.sent("output").len() as u64, taken);
        assert_eq!(bench.app.report(), [("decapsulated", taken), ("wrong_key", 1 - taken)]);
    }
}

#[test]
fn a_frame_that_does_not_fit_is_dropped() {
    let mut bench = half::<Encapsulate>(&with(here(), "mtu", MTU_MIN));
    // IPv6's header and L2TPv3's count to the MTU, Ethernet's does not.
    let longest = MTU_MIN - 52;
    for (bytes, sent, drops) in [(longest, 1, 0), (longest + 1, 0, 1), (longest, 1, 1)] {
        bench.put("input", &frame(bytes));
        bench.push();
        assert_eq!((bench.sent("output").len(), bench.drops(DropReason::Oversize)), (sent, drops));
    }
    bench.put("input", &frame(ETHERNET_BYTES - 1));
    bench.push();
    assert_eq!(bench.drops(DropReason::Malformed), 1);
    assert_eq!(bench.free(), PACKETS as usize);
}

/// Puts headers in front of headers, until there is no room.
struct Nested {
    header: Encapsulation,
    headers: usize,
}

impl App for Nested {
    type Config = TunnelConfig;

    fn start(config: TunnelConfig, _: Option<Vec<u8>>) -> Result<Self, AppError> {
        Ok(Self { header: Encapsulation::new(&config), headers: 0 })
    }

    fn push(&mut self, io: &mut Io) {
        let Some(mut packet) = io.receive(0) else { return };
        let why = loop {
            match self.header.put(&mut packet) {
                Ok(()) => self.headers += 1,
                Err(why) => break why,
            }
        };
        io.discard(packet, why);
    }
}

#[test]
fn headers_are_put_in_front_while_there_is_room() {
    let mut bench = half::<Nested>(&here());
    bench.put("input", &frame(60));
    bench.push();
    assert_eq!((bench.app.headers, bench.drops(DropReason::Oversize)), (HEADROOM_BYTES / HEADER_BYTES, 1));
    assert_eq!(bench.free(), PACKETS as usize);
}

#[test]
fn configurations_that_cannot_work_are_refused() {
    for (key, value) in [
        ("local_address", json!("::")),
        ("remote_address", json!("ff02::1")),
        ("remote_address", json!("192.0.2.1")),
        ("local_cookie", json!("123")),
        ("local_cookie", json!("0x23456789abcdef")),
        ("remote_session", json!(0)),
        ("local_session", json!(1_u64 << 32)),
        ("remote_mac", json!("ff:ff:ff:ff:ff:ff")),
        ("hop_limit", json!(0)),
        ("mtu", json!(MTU_MIN - 1)),
        ("mtu", json!(MTU_MAX + 1)),
        ("mtus", json!(1500)),
    ] {
        let config = with(here(), key, value);
        let refused = match serde_json::from_value::<TunnelConfig>(config) {
            Ok(config) => Tunnel::check(&config).map_err(|trouble| trouble.to_string()),
            Err(error) => Err(error.to_string()),
        };
        let why = refused.expect_err(key);
        assert!(!why.contains("23456789abcdef"), "no cookie in a message: {why}");
    }
    let config: TunnelConfig = serde_json::from_value(here()).unwrap();
    assert!(Tunnel::check(&config).is_ok());
    assert!(!format!("{config:?}").contains("TunnelCookie(["), "no cookie in a log");
}

proptest! {
    #[test]
    fn every_frame_comes_out_as_it_went_in(frame in prop::collection::vec(any::<u8>(), 14..1700)) {
        let mut way = TunnelWay::new();
        let packet = way.packet_of(&frame);
        prop_assert_eq!(way.frame_of(&packet), Ok(frame));
    }

    #[test]
    fn anything_at_all_is_taken_or_dropped(
        bytes in prop::collection::vec(any::<u8>(), 0..200),
        mutations in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        real in any::<bool>(),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut way = TunnelWay::new();
        let mut packet = if real { way.packet_of(&[frame(14), bytes].concat()) } else { bytes };
        for (place, value) in mutations {
            if !packet.is_empty() {
                let place = place.index(packet.len());
                packet[place] = value;
            }
        }
        packet.truncate(cut.index(2 * packet.len() + 1));
        // `frame_of` counts: one packet goes in, and comes out, or is dropped for one cause.
        if let Ok(frame) = way.frame_of(&packet) {
            prop_assert_eq!(&packet[HEADER_BYTES..][..frame.len()], &frame[..]);
        }
    }
}
