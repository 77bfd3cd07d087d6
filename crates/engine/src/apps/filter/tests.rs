//! Frames, and the expressions that match them. `docs/engine-apps.md` lists the differences from libpcap.

use etherparse::{
    ArpHardwareId, ArpOperation, ArpPacket, EtherType, IpFragOffset, IpHeaders, IpNumber, Ipv4Header,
    PacketBuilder, VlanId,
};
use proptest::prelude::*;

use super::*;
use crate::testing::AppBench;

const A: [u8; 6] = [2, 0, 0, 0, 0, 0xa];
const B: [u8; 6] = [2, 0, 0, 0, 0, 0xb];
const A4: [u8; 4] = [192, 0, 2, 1];
const B4: [u8; 4] = [198, 51, 100, 2];
const A6: [u8; 16] = [0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
const B6: [u8; 16] = [0x20, 1, 0xd, 0xb8, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2];

fn written(write: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut frame = Vec::new();
    write(&mut frame);
    frame
}

/// Makes a later fragment, whose bytes look like ports but are none.
fn fragment() -> Vec<u8> {
    let mut header = Ipv4Header::new(4, 64, IpNumber::TCP, A4, B4).expect("a header");
    header.fragment_offset = IpFragOffset::try_new(100).expect("an offset");
    let builder = PacketBuilder::ethernet2(A, B).ip(IpHeaders::Ipv4(header.clone(), Default::default()));
    let builder = builder.udp(22, 80);
    let mut frame = written(|frame| builder.write(frame, &[0; 20]).expect("a frame"));
    frame[23] = IpNumber::TCP.0;
    frame
}

/// Returns frames by name.
fn frames() -> Vec<(&'static str, Vec<u8>)> {
    let ethernet = || PacketBuilder::ethernet2(A, B);
    let arp = ArpPacket::new(
        ArpHardwareId::ETHERNET,
        EtherType::IPV4,
        ArpOperation::REQUEST,
        &A,
        &A4,
        &[0; 6],
        &B4,
    );
    let arp = arp.expect("an ARP packet");
    let tag = |number| VlanId::try_new(number).expect("a VLAN");
    vec![
        (
            "tcp4",
            written(|f| ethernet().ipv4(A4, B4, 64).tcp(1024, 80, 0, 0).write(f, &[]).expect("a frame")),
        ),
        (
            "tcp6",
            written(|f| ethernet().ipv6(A6, B6, 64).tcp(443, 1024, 0, 0).write(f, &[]).expect("a frame")),
        ),
        ("udp4", written(|f| ethernet().ipv4(B4, A4, 64).udp(53, 53).write(f, &[0; 100]).expect("a frame"))),
        (
            "icmp",
            written(|f| ethernet().ipv4(A4, B4, 64).icmpv4_echo_request(1, 1).write(f, &[]).expect("one")),
        ),
        (
            "icmp6",
            written(|f| ethernet().ipv6(A6, B6, 64).icmpv6_echo_request(1, 1).write(f, &[]).expect("one")),
        ),
        ("arp", written(|f| ethernet().arp(arp).write(f).expect("a frame"))),
        (
            "vlan7",
            written(|f| {
                ethernet().single_vlan(tag(7)).ipv4(A4, B4, 64).udp(1, 9).write(f, &[]).expect("a frame");
            }),
        ),
        (
            "vlan8+9",
            written(|f| {
                ethernet()
                    .double_vlan(tag(8), tag(9))
                    .ipv6(B6, A6, 64)
                    .udp(9, 2)
                    .write(f, &[])
                    .expect("a frame");
            }),
        ),
        ("fragment", fragment()),
        ("short", vec![0; 13]),
        ("empty", Vec::new()),
    ]
}

fn matching(expression: &str) -> Vec<&'static str> {
    let program = grammar::parse(expression).unwrap_or_else(|reason| panic!("{expression}: {reason}"));
    frames().into_iter().filter(|(_, frame)| program.matches(frame)).map(|(name, _)| name).collect()
}

#[test]
fn expressions_match_what_they_name() {
    let table: &[(&str, &[&str])] = &[
        ("ip", &["tcp4", "udp4", "icmp", "vlan7", "fragment"]),
        ("ip6", &["tcp6", "icmp6", "vlan8+9"]),
        ("arp", &["arp"]),
        ("tcp", &["tcp4", "tcp6", "fragment"]),
        ("udp", &["udp4", "vlan7", "vlan8+9"]),
        ("icmp", &["icmp"]),
        ("icmp6", &["icmp6"]),
        ("vlan", &["vlan7", "vlan8+9"]),
        ("vlan 7", &["vlan7"]),
        ("vlan 9", &["vlan8+9"]),
        ("ip proto 1 or ip6 proto 58", &["icmp", "icmp6"]),
        ("ether proto 0x0806", &["arp"]),
        ("ether host 02:00:00:00:00:0b and arp", &["arp"]),
        ("ether src 2:0:0:0:0:b", &[]),
        ("host 192.0.2.1", &["tcp4", "udp4", "icmp", "arp", "vlan7", "fragment"]),
        ("ip host 192.0.2.1 and not tcp and not vlan", &["udp4", "icmp"]),
        ("arp src host 192.0.2.1", &["arp"]),
        ("arp src 198.51.100.2", &[]),
        ("src 198.51.100.2", &["udp4"]),
        ("dst host 2001:db8::1", &["vlan8+9"]),
        ("src and dst net 2001:db8::/32", &["tcp6", "icmp6", "vlan8+9"]),
        ("src or dst net 2001:db8:1::/48 and tcp", &["tcp6"]),
        ("net 0.0.0.0/0", &["tcp4", "udp4", "icmp", "arp", "vlan7", "fragment"]),
        ("ip6 net ::/0", &["tcp6", "icmp6", "vlan8+9"]),
        ("ip net 192.0.2.0/30 and greater 100", &["udp4"]),
        ("src 192.0.2.0/24 && icmp", &["icmp"]),
        ("port 80", &["tcp4"]),
        ("tcp port 80 or 443", &["tcp4", "tcp6"]),
        ("src port 80", &[]),
        ("src and dst port 53", &["udp4"]),
        ("udp dst portrange 2-9", &["vlan7", "vlan8+9"]),
        ("tcp portrange 0-65535", &["tcp4", "tcp6"]),
        ("less 13", &["short", "empty"]),
        ("less 12", &["empty"]),
        ("greater 13 and less 13", &["short"]),
        ("not (tcp or udp or icmp or icmp6)", &["arp", "short", "empty"]),
        // `and` and `or` bind alike, from left to right: (arp or udp) and ip6.
        ("arp or udp and ip6", &["vlan8+9"]),
        ("arp or (udp and ip6)", &["arp", "vlan8+9"]),
        ("!tcp && !udp && ip", &["icmp"]),
        ("not not icmp||arp", &["icmp", "arp"]),
        // As in the manual: `not host vs and ace` is `not host vs and host ace`.
        ("not host 198.51.100.2 and 2001:db8::1", &["tcp6", "icmp6", "vlan8+9"]),
    ];
    for (expression, expected) in table {
        assert_eq!(matching(expression), *expected, "{expression}");
    }
}

#[test]
fn what_is_no_ip_by_its_ether_type_is_none_by_its_first_byte() {
    for (version, other) in [(6, [8, 0]), (6, [0x88, 0xb5]), (4, [0x86, 0xdd])] {
        let mut frame = vec![0; 60];
        frame[12..14].copy_from_slice(&other);
        frame[14] = version << 4 | 5;
        for expression in ["ip proto 0 or ip6 proto 0", "net 0.0.0.0/0", "ip6 net ::/0"] {
            let program = grammar::parse(expression).expect("an expression");
            assert!(!program.matches(&frame), "{expression}: version {version} in {other:x?}");
        }
    }
}

#[test]
fn what_is_wrong_is_named_with_its_place() {
    let table = [
        (
            "",
            "it ends at character 1, expected `host`, `net`, `port`, `portrange`, a protocol, `vlan`, `less` or `greater`",
        ),
        (
            "tpc port 80",
            "`tpc` at character 1: expected `host`, `net`, `port`, `portrange`, a protocol, `vlan`, `less` or `greater`",
        ),
        (
            "80",
            "`80` at character 1: expected `host`, `net`, `port`, `portrange`, a protocol, `vlan`, `less` or `greater`",
        ),
        ("tcp prot 80", "`prot` at character 5: expected `and`, `or` or the end"),
        ("tcp port http", "`http` at character 10: expected a port, 0 to 65535"),
        ("port 65536", "`65536` at character 6: expected a port, 0 to 65535"),
        ("port", "it ends at character 5, expected a port, 0 to 65535"),
        ("portrange 9-1", "`9-1` at character 11: the first port is above the last"),
        ("portrange 9", "`9` at character 11: expected two ports, as 80-90"),
        ("(tcp or udp", "it ends at character 12, expected `)` for the `(` at character 1"),
        ("tcp)", "`)` at character 4: there is no `(` for it"),
        ("src or tcp", "`tcp` at character 8: expected `dst`"),
        (
            "host 1.2.3",
            "`1.2.3` at character 6: expected an IP address, as 192.0.2.1 or 2001:db8::1: names are not looked up",
        ),
        (
            "net 10",
            "`10` at character 5: expected a network and the length of its prefix, as 192.0.2.0/24 or 2001:db8::/32",
        ),
        ("net 10.0.0.1/8", "`10.0.0.1/8` at character 5: there are bits set behind the first 8"),
        ("net 10.0.0.0/33", "`10.0.0.0/33` at character 5: the prefix of such an address has 0 to 32 bits"),
        ("ip host ::1", "`::1` at character 9: ip has no such address"),
        ("ip6 net 10.0.0.0/8", "`10.0.0.0/8` at character 9: ip6 has no such address"),
        (
            "ether host 10.0.0.1",
            "`10.0.0.1` at character 12: expected an Ethernet address, as 02:00:00:00:00:01",
        ),
        ("ether", "`ether` at character 1: expected `src`, `dst`, `host` or `proto` behind it"),
        ("ip port 80", "`ip` at character 1: ip has no `port`"),
        ("proto 6", "`proto` at character 1: say of what: `ether proto`, `ip proto` or `ip6 proto`"),
        ("vlan 4096", "`4096` at character 6: expected a VLAN, 0 to 4095"),
        ("less -1", "`-1` at character 6: expected a number of bytes, 0 to 4294967295"),
        ("tcp & udp", "`&` at character 5: expected `and`, `or` or the end"),
    ];
    for (expression, expected) in table {
        assert_eq!(grammar::parse(expression), Err(expected.to_owned()), "{expression}");
    }
    let nested = "(".repeat(grammar::NESTING_MAX + 1) + "tcp";
    assert_eq!(
        grammar::parse(&nested),
        Err("`tcp` at character 66: more than 64 within each other".to_owned())
    );
    let long = vec!["tcp"; grammar::TESTS_MAX + 1].join(" or ");
    assert_eq!(
        grammar::parse(&long),
        Err(format!("`tcp` at character {}: more than 512 tests", 512 * 7 + 1))
    );
    assert!(grammar::parse(&vec!["tcp"; grammar::TESTS_MAX].join(" or ")).is_ok());
}

fn config(expression: &str) -> FilterConfig {
    FilterConfig { expression: expression.to_owned() }
}

#[test]
fn what_matches_goes_one_way_and_the_rest_the_other() {
    let mut bench =
        AppBench::<Filter>::new(config("udp"), &["input"], &["output", "rejected"], 20).expect("a filter");
    let frames = frames();
    frames.iter().for_each(|(_, frame)| bench.put("input", frame));
    bench.push();
    assert_eq!((bench.sent("output").len(), bench.sent("rejected").len()), (3, frames.len() - 3));
    assert_eq!(bench.app.report(), [("matched", 3), ("rejected", frames.len() as u64 - 3)]);
    assert!(bench.app.reconfigure(&config("arp")));
    assert!(!bench.app.reconfigure(&config("and")));
    frames.iter().for_each(|(_, frame)| bench.put("input", frame));
    bench.push();
    assert_eq!(bench.sent("output").len(), 1);
    bench.sent("rejected");
    assert_eq!(bench.free(), 20);
}

#[test]
fn what_goes_nowhere_is_counted() {
    let mut bench = AppBench::<Filter>::new(config("udp"), &["input"], &[], 20).expect("a filter");
    let frames = frames();
    frames.iter().for_each(|(_, frame)| bench.put("input", frame));
    bench.push();
    assert_eq!(
        (bench.drops(DropReason::Unlinked), bench.drops(DropReason::Filtered)),
        (3, frames.len() as u64 - 3)
    );
    assert_eq!(bench.free(), 20);
    let trouble = Filter::check(&config("udp port")).expect_err("trouble").0;
    assert_eq!(trouble, "expression = \"udp port\": it ends at character 9, expected a port, 0 to 65535");
}

/// Returns any word of the grammar, or a value.
fn word() -> impl Strategy<Value = &'static str> {
    const WORDS: &str = "ether ip ip6 arp tcp udp icmp icmp6 src dst host net port \
        portrange proto vlan less greater and or not ( ) && || ! \
        80 1-2 192.0.2.1 192.0.2.0/24 ::1 ::/0 2:0:0:0:0:a 0x800 name é";
    prop::sample::select(WORDS.split(' ').collect::<Vec<_>>())
}

proptest! {
    #[test]
    fn any_words_and_any_bytes_do_no_harm(
        words in prop::collection::vec(word(), 0..20),
        place in 0_usize..11,
        changes in prop::collection::vec((any::<u16>(), any::<u8>()), 0..8),
        length in 0_usize..200,
    ) {
        let mut frame = frames().swap_remove(place).1;
        for (at, byte) in changes {
            let end = frame.len().max(1);
            if let Some(place) = frame.get_mut(usize::from(at) % end) { *place = byte }
        }
        frame.truncate(length);
        if let Ok(expression) = grammar::parse(&words.join(" ")) {
            expression.matches(&frame);
        }
    }

    #[test]
    fn any_text_is_taken_or_refused(text in ".{0,40}") {
        let _ = grammar::parse(&text);
    }
}
