use etherparse::PacketBuilder;
use proptest::prelude::*;

use super::*;
use crate::app::App;
use crate::apps::neighbour::trial::{PACKETS, arrivals, push, try_all};
use crate::apps::neighbour::{ASK_NS_MIN, KNOWN_NS};
use crate::layout::DropReason;
use crate::testing::AppBench;

const OURS: Mac = Mac([2, 0, 0, 0, 0, 1]);
const ROUTER: Mac = Mac([2, 0, 0, 0, 0, 0xfe]);
const ALL: [u8; 6] = [0xff; 6];

fn config(next_hop: bool) -> ArpConfig {
    let next_hop = if next_hop { r#", "next_hop": "192.0.2.254""# } else { "" };
    let text = format!(r#"{{"mac": "{OURS}", "addresses": ["192.0.2.1", "192.0.2.2"]{next_hop}}}"#);
    serde_json::from_str(&text).unwrap()
}

fn bench(next_hop: bool) -> AppBench<Arp> {
    let ports = ["north", "south"];
    AppBench::new(config(next_hop), &ports, &ports, PACKETS).unwrap()
}

/// An ARP packet; written by hand, byte for byte as in RFC 826.
fn arp(to: [u8; 6], operation: u8, sender: (Mac, [u8; 4]), target: (Mac, [u8; 4])) -> Vec<u8> {
    let mut frame = [&to[..], &sender.0.0, &[0x08, 0x06, 0, 1, 0x08, 0x00, 6, 4, 0, operation]].concat();
    frame.extend([&sender.0.0[..], &sender.1, &target.0.0, &target.1].concat());
    frame
}

fn request(target: [u8; 4]) -> Vec<u8> {
    arp(ALL, 1, (ROUTER, [192, 0, 2, 254]), (Mac::default(), target))
}

fn reply() -> Vec<u8> {
    arp(OURS.0, 2, (ROUTER, [192, 0, 2, 254]), (OURS, [192, 0, 2, 1]))
}

/// Makes an IPv4 packet without Ethernet addresses, as the north sends it.
fn packet(number: u8) -> Vec<u8> {
    let mut frame = Vec::new();
    let builder =
        PacketBuilder::ethernet2([0; 6], [0; 6]).ipv4([192, 0, 2, 1], [198, 51, 100, 1], 64).udp(1, 2);
    builder.write(&mut frame, &[number; 4]).unwrap();
    frame
}

fn addressed(frame: &[u8]) -> Vec<u8> {
    [&ROUTER.0[..], &OURS.0, &frame[12..]].concat()
}

#[test]
fn requests_for_our_addresses_are_answered() {
    let mut bench = bench(false);
    for last in [1, 2] {
        // The request is padded, as on the wire.
        let padded = [request([192, 0, 2, last]), vec![0; 18]].concat();
        let (north, south) = push(&mut bench, "south", &padded);
        let expected = arp(ROUTER.0, 2, (OURS, [192, 0, 2, last]), (ROUTER, [192, 0, 2, 254]));
        assert_eq!((north, south), (vec![], vec![expected]));
    }
    // A host that checks whether the address is free has none yet (RFC 5227).
    let probe = arp(ALL, 1, (ROUTER, [0; 4]), (Mac::default(), [192, 0, 2, 1]));
    let (_, south) = push(&mut bench, "south", &probe);
    assert_eq!(south, [arp(ROUTER.0, 2, (OURS, [192, 0, 2, 1]), (ROUTER, [0; 4]))]);
    assert_eq!(bench.app.report()[0], ("answers", 3));
    assert_eq!(bench.free(), PACKETS as usize);
}

#[test]
fn all_else_passes() {
    let vlan = [&ALL[..], &ROUTER.0, &[0x81, 0, 0, 7], &request([192, 0, 2, 1])[12..]].concat();
    let mut other_hardware = request([192, 0, 2, 1]);
    other_hardware[15] = 6;
    let other_operation = arp(ALL, 3, (ROUTER, [192, 0, 2, 254]), (OURS, [192, 0, 2, 1]));
    let to_another = arp([2; 6], 2, (ROUTER, [192, 0, 2, 254]), (Mac([2; 6]), [192, 0, 2, 9]));
    for next_hop in [false, true] {
        let mut bench = bench(next_hop);
        bench.push();
        assert_eq!(bench.sent("south").len(), usize::from(next_hop), "the question");
        for frame in
            [&vlan, &other_hardware, &other_operation, &to_another, &request([192, 0, 2, 9]), &packet(0)]
        {
            assert_eq!(push(&mut bench, "south", frame), (vec![frame.clone()], vec![]));
        }
        // A frame that is not IPv4, or for a group, is not for the next hop.
        for frame in [&request([192, 0, 2, 9]), &vlan, &[&ALL[..], &packet(0)[6..]].concat()] {
            assert_eq!(push(&mut bench, "north", frame), (vec![], vec![frame.clone()]));
        }
    }
    assert_eq!(push(&mut bench(false), "north", &packet(0)), (vec![], vec![packet(0)]));
}

#[test]
fn what_arp_does_not_allow_is_dropped() {
    let mut bench = bench(true);
    let sound = request([192, 0, 2, 1]);
    let with = |place: usize, bytes: &[u8]| {
        let mut frame = sound.clone();
        frame[place..place + bytes.len()].copy_from_slice(bytes);
        frame
    };
    let mut wrong = vec![
        with(18, &[5]), // Bytes of an Ethernet address.
        with(18, &[255]),
        with(19, &[3]),            // Bytes of an IPv4 address.
        with(22, &ALL),            // A sender that is many.
        with(22, &[0; 6]),         // A sender that is nobody.
        with(28, &[224, 0, 0, 1]), // A sender's group.
        with(28, &[255; 4]),
    ];
    wrong.extend((0..sound.len()).map(|bytes| sound[..bytes].to_vec()));
    bench.push();
    bench.sent("south");
    for (count, frame) in wrong.iter().enumerate() {
        assert_eq!(push(&mut bench, "south", frame), (vec![], vec![]), "{frame:02x?}");
        assert_eq!(bench.drops(DropReason::Malformed), count as u64 + 1);
    }
    assert_eq!(bench.app.report()[2], ("resolved", 0));
    assert_eq!(bench.free(), PACKETS as usize);
}

#[test]
fn the_last_packet_waits_for_the_next_hop() {
    let mut bench = bench(true);
    assert_eq!(bench.app.wake_ns(), Some(0));
    bench.put("north", &packet(1));
    bench.put("north", &packet(2));
    bench.push();
    let question = arp(ALL, 1, (OURS, [192, 0, 2, 1]), (Mac::default(), [192, 0, 2, 254]));
    assert_eq!(bench.sent("south"), std::slice::from_ref(&question));
    assert_eq!(bench.drops(DropReason::Unlinked), 1, "the older one");
    assert_eq!(bench.app.wake_ns(), Some(bench.now_ns + ASK_NS_MIN));

    bench.now_ns += ASK_NS_MIN;
    bench.push();
    assert_eq!(bench.sent("south"), [question]);

    assert_eq!(push(&mut bench, "south", &reply()), (vec![], vec![addressed(&packet(2))]));
    assert_eq!(push(&mut bench, "north", &packet(3)), (vec![], vec![addressed(&packet(3))]));

    // Later it alone is asked; packets go on meanwhile.
    bench.now_ns += KNOWN_NS;
    let (_, south) = push(&mut bench, "north", &packet(4));
    let probe = arp(ROUTER.0, 1, (OURS, [192, 0, 2, 1]), (ROUTER, [192, 0, 2, 254]));
    assert_eq!(south, [addressed(&packet(4)), probe]);
    assert_eq!(bench.free(), PACKETS as usize);
}

#[test]
fn a_next_hop_that_is_replaced_is_followed() {
    let spare = Mac([2, 0, 0, 0, 0, 0xfd]);
    let mut bench = bench(true);
    bench.push();
    bench.sent("south");
    // An announcement does not make an unknown address known (RFC 826: only existing entries are updated).
    let announcement = arp(ALL, 1, (spare, [192, 0, 2, 254]), (Mac::default(), [192, 0, 2, 254]));
    assert_eq!(push(&mut bench, "south", &announcement).0, std::slice::from_ref(&announcement));
    assert_eq!(bench.app.report()[2], ("resolved", 0));
    // A request of the next hop also tells its address.
    push(&mut bench, "south", &request([192, 0, 2, 2]));
    assert_eq!(push(&mut bench, "north", &packet(1)).1, [addressed(&packet(1))]);
    push(&mut bench, "south", &reply());
    let (north, south) = push(&mut bench, "south", &announcement);
    assert_eq!(north, [announcement], "others want to hear it, too");
    assert_eq!(south, [arp(spare.0, 1, (OURS, [192, 0, 2, 1]), (spare, [192, 0, 2, 254]))]);
}

#[test]
fn another_with_our_address_is_counted_and_not_argued_with() {
    let mut bench = bench(false);
    let other = Mac([2, 0, 0, 0, 0, 9]);
    let announcement = arp(ALL, 1, (other, [192, 0, 2, 1]), (Mac::default(), [192, 0, 2, 1]));
    assert_eq!(push(&mut bench, "south", &announcement), (vec![announcement], vec![]));
    let own = arp(ALL, 1, (OURS, [192, 0, 2, 1]), (Mac::default(), [192, 0, 2, 2]));
    assert_eq!(push(&mut bench, "south", &own), (vec![], vec![]), "our own, that came back");
    assert_eq!(bench.app.report()[4], ("conflicts", 1));
}

#[test]
fn the_next_hop_is_known_after_a_move() {
    let mut bench = bench(true);
    push(&mut bench, "south", &reply());
    bench.put("north", &packet(1));
    let state = bench.stop();
    let mut next = self::bench(true);
    next.app = Arp::start(config(true), state.clone()).unwrap();
    let (_, south) = push(&mut next, "north", &packet(1));
    assert_eq!(south[0], addressed(&packet(1)));

    let mut waits = self::bench(true);
    push(&mut waits, "north", &packet(1));
    assert_eq!((waits.stop(), waits.drops(DropReason::Unlinked)), (None, 1));
    assert_eq!(waits.free(), PACKETS as usize);

    let state = state.unwrap();
    for wrong in [
        &state[..9],
        &[&state[..], &[0]].concat(),
        &[&[9; 4], &state[4..]].concat(),
        &[],
        &[&state[..4], &ALL].concat(),
    ] {
        let app = Arp::start(config(true), Some(wrong.to_vec())).unwrap();
        assert_eq!(app.report()[2], ("resolved", 0), "{wrong:?}");
    }
}

#[test]
fn configurations_that_cannot_work_are_refused() {
    let text = |mac: &str, addresses: &str, next_hop: &str| {
        format!(r#"{{"mac": "{mac}", "addresses": [{addresses}], "next_hop": "{next_hop}"}}"#)
    };
    let (mac, many) = ("02:00:00:00:00:01", ["\"192.0.2.1\""; 65].join(","));
    for wrong in [
        text("ff:ff:ff:ff:ff:ff", "\"192.0.2.1\"", "192.0.2.2"),
        text("00:00:00:00:00:00", "\"192.0.2.1\"", "192.0.2.2"),
        text(mac, "", "192.0.2.2"),
        text(mac, &many, "192.0.2.2"),
        text(mac, "\"224.0.0.1\"", "192.0.2.2"),
        text(mac, "\"192.0.2.1\"", "0.0.0.0"),
        text(mac, "\"192.0.2.1\"", "192.0.2.1"),
    ] {
        assert!(Arp::check(&serde_json::from_str(&wrong).unwrap()).is_err(), "{wrong}");
    }
    assert!(Arp::check(&config(true)).is_ok() && Arp::check(&config(false)).is_ok());
}

proptest! {
    #[test]
    fn whatever_comes_passes_is_answered_waits_or_is_dropped(arrivals in arrivals(42, 80)) {
        let kinds = [request([192, 0, 2, 1]), request([192, 0, 2, 9]), reply(), packet(0)];
        try_all(bench(true), kinds, 42, arrivals)?;
    }
}
