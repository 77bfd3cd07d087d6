use proptest::prelude::*;

use super::*;
use crate::testing::AppBench;

const PACKETS: u32 = 64;
const SECOND_NS: u64 = 1_000_000_000;
const PORTS: [&str; 4] = ["a", "b", "c", "d"];
const EVERYBODY: u8 = 0xff;

/// Makes a frame between two stations; `EVERYBODY` stands for all stations.
fn frame(to: u8, from: u8) -> Vec<u8> {
    let to = if to == EVERYBODY { [0xff; 6] } else { [2, 0, 0, 0, 0, to] };
    [&to[..], &[2, 0, 0, 0, 0, from], &[0x08, 0x00], &[from; 46]].concat()
}

fn tagged(vlan: u16, frame: &[u8]) -> Vec<u8> {
    [&frame[..12], &[0x81, 0x00], &(vlan | 0xe000).to_be_bytes(), &frame[12..]].concat()
}

fn bridge(config: BridgeConfig, ports: &[&str]) -> AppBench<Bridge> {
    AppBench::new(config, ports, ports, PACKETS).unwrap()
}

/// Returns the ports at which a frame that came in at one port leaves.
fn through(bench: &mut AppBench<Bridge>, port: &str, frame: &[u8]) -> Vec<&'static str> {
    bench.put(port, frame);
    bench.push();
    let mut left = Vec::new();
    for to in PORTS {
        if bench.app.ports.number(to).is_some() {
            let sent = bench.sent(to);
            assert!(sent.iter().all(|sent| sent == frame));
            left.extend(std::iter::repeat_n(to, sent.len()));
        }
    }
    assert_eq!(bench.free(), PACKETS as usize);
    left
}

#[test]
fn a_frame_goes_where_its_station_was_heard() {
    let mut bench = bridge(BridgeConfig::default(), &PORTS);
    // (comes in at, to, from, leaves at)
    let table: [(&str, u8, u8, &[&str]); 8] = [
        ("a", 2, 1, &["b", "c", "d"]), // No frame has come from 2.
        ("b", 1, 2, &["a"]),
        ("a", 2, 1, &["b"]),
        ("a", EVERYBODY, 1, &["b", "c", "d"]),
        ("a", 1, 3, &[]),    // Both are there, and have heard each other.
        ("c", 2, 1, &["b"]), // 1 has moved.
        ("b", 1, 2, &["c"]),
        ("a", 3, 4, &[]),
    ];
    for (port, to, from, leaves) in table {
        assert_eq!(through(&mut bench, port, &frame(to, from)), leaves, "{from} at {port} to {to}");
    }
    assert_eq!(bench.drops(DropReason::Filtered), 2);
    assert_eq!(bench.app.report(), [("stations", 4), ("flooded", 2), ("moved", 1), ("refused", 0)]);
}

#[test]
fn a_station_that_says_nothing_is_forgotten() {
    let config = BridgeConfig { age_seconds: 30, ..BridgeConfig::default() };
    let mut bench = bridge(config, &PORTS[..3]);
    through(&mut bench, "a", &frame(2, 1));
    let heard_ns = bench.now_ns;
    for (after_ns, leaves) in [(30 * SECOND_NS - 1, &["a"][..]), (30 * SECOND_NS, &["a", "c"])] {
        bench.now_ns = heard_ns + after_ns;
        assert_eq!(through(&mut bench, "b", &frame(1, 2)), leaves);
    }
}

#[test]
fn groups_do_not_reach_each_other() {
    let groups = vec![vec!["a".to_owned(), "b".to_owned()], vec!["c".to_owned()]];
    let mut bench = bridge(BridgeConfig { split_horizon: groups, ..BridgeConfig::default() }, &PORTS);
    let table: [(&str, u8, u8, &[&str]); 6] = [
        ("a", EVERYBODY, 1, &["c", "d"]),
        ("b", 1, 2, &[]),
        ("b", EVERYBODY, 2, &["c", "d"]),
        ("c", EVERYBODY, 3, &["a", "b", "d"]),
        ("d", 1, 4, &["a"]),
        ("c", 2, 3, &["b"]),
    ];
    for (port, to, from, leaves) in table {
        assert_eq!(through(&mut bench, port, &frame(to, from)), leaves, "{from} at {port} to {to}");
    }
}

#[test]
fn the_same_address_in_two_vlans_is_two_stations_if_so_configured() {
    for (vlans, leaves) in [(true, &["a"][..]), (false, &["b"])] {
        let mut bench = bridge(BridgeConfig { vlans, ..BridgeConfig::default() }, &PORTS[..3]);
        through(&mut bench, "a", &tagged(7, &frame(EVERYBODY, 1)));
        through(&mut bench, "b", &tagged(8, &frame(EVERYBODY, 1)));
        assert_eq!(through(&mut bench, "c", &tagged(7, &frame(1, 3))), leaves);
        assert_eq!(through(&mut bench, "c", &tagged(8, &frame(1, 3))), ["b"]);
        let cut = &tagged(7, &frame(1, 3))[..17];
        assert_eq!(through(&mut bench, "c", cut).is_empty(), vlans, "a tag that is not whole");
        assert_eq!(bench.drops(DropReason::Malformed), u64::from(vlans));
    }
}

#[test]
fn what_is_no_frame_to_be_forwarded_is_dropped() {
    let mut bench = bridge(BridgeConfig::default(), &PORTS);
    for last in 0..=0x10 {
        let reserved = [&[0x01, 0x80, 0xc2, 0, 0, last], &frame(2, 1)[6..]].concat();
        let leaves: &[&str] = if last > 0x0f { &["b", "c", "d"] } else { &[] };
        assert_eq!(through(&mut bench, "a", &reserved), leaves);
    }
    assert_eq!(bench.drops(DropReason::Filtered), 16);
    let from_many = [&frame(2, 1)[..6], &[0xff; 6], &frame(2, 1)[12..]].concat();
    assert!(through(&mut bench, "a", &from_many).is_empty());
    for bytes in 0..14 {
        assert!(through(&mut bench, "a", &frame(2, 1)[..bytes]).is_empty());
    }
    assert_eq!(bench.drops(DropReason::Malformed), 15);
    let from_nobody = [&frame(2, 1)[..6], &[0; 6], &frame(2, 1)[12..]].concat();
    assert_eq!(through(&mut bench, "a", &from_nobody), ["b", "c", "d"]);
    assert_eq!(bench.app.report()[0], ("stations", 1));
}

#[test]
fn one_port_cannot_fill_the_table() {
    let config = BridgeConfig { entries: 10, entries_per_port: Some(4), ..BridgeConfig::default() };
    let mut bench = bridge(config, &PORTS[..2]);
    for station in 1..=100 {
        through(&mut bench, "a", &frame(EVERYBODY, station));
    }
    for station in 101..=104 {
        through(&mut bench, "b", &frame(EVERYBODY, station));
        assert_eq!(through(&mut bench, "a", &frame(station, 1)), ["b"]);
    }
    assert_eq!(bench.app.report()[0], ("stations", 8));
    assert_eq!(bench.app.report()[3], ("refused", 96));
}

#[test]
fn flooding_takes_what_packets_there_are() {
    let mut bench =
        AppBench::<Bridge>::new(BridgeConfig::default(), &["a"], &["a", "b", "c", "d"], 2).unwrap();
    bench.put("a", &frame(EVERYBODY, 1));
    bench.push();
    let sent: Vec<_> = ["a", "b", "c", "d"].map(|port| bench.sent(port).len()).into();
    // One copy, no packet for another copy, and the packet itself.
    assert_eq!((sent, bench.drops(DropReason::NoPacket)), (vec![0, 1, 0, 1], 1));
    assert_eq!(bench.free(), 2);
}

#[test]
fn a_port_may_be_one_end_alone() {
    let mut bench =
        AppBench::<Bridge>::new(BridgeConfig::default(), &["a", "b"], &["b", "c"], PACKETS).unwrap();
    assert_eq!(through(&mut bench, "a", &frame(EVERYBODY, 1)), ["b", "c"]);
    // Nothing can be sent to the port of 1, so the frame is sent elsewhere.
    assert_eq!(through(&mut bench, "b", &frame(1, 2)), ["c"]);
    assert_eq!(through(&mut bench, "a", &frame(2, 1)), ["b"]);
}

#[test]
fn a_bridge_that_moves_keeps_its_table() {
    let config = BridgeConfig { age_seconds: 30, ..BridgeConfig::default() };
    let mut bench = bridge(config.clone(), &PORTS);
    through(&mut bench, "b", &frame(EVERYBODY, 1));
    bench.now_ns += 20 * SECOND_NS;
    through(&mut bench, "c", &frame(EVERYBODY, 2));
    through(&mut bench, "d", &frame(EVERYBODY, 3));
    let state = bench.stop();

    // Its successor has another port, and one less.
    let mut next = bridge(config.clone(), &["a", "b", "d"]);
    next.app = Bridge::start(config.clone(), state.clone()).unwrap();
    next.now_ns = bench.now_ns;
    assert_eq!(through(&mut next, "a", &frame(1, 9)), ["b"]);
    assert_eq!(through(&mut next, "a", &frame(3, 9)), ["d"]);
    assert_eq!(through(&mut next, "a", &frame(2, 9)), ["b", "d"], "its port is no more");
    next.now_ns += 10 * SECOND_NS;
    assert_eq!(through(&mut next, "a", &frame(1, 9)), ["b", "d"], "30 seconds are over");
    assert_eq!(through(&mut next, "a", &frame(3, 9)), ["d"]);

    let other = BridgeConfig { vlans: true, ..config };
    assert_eq!(Bridge::start(other, state).unwrap().table.length(), 0, "addresses mean something else");
}

#[test]
fn a_full_table_fits_into_a_state() {
    let config = BridgeConfig { entries: ENTRIES_MAX, ..BridgeConfig::default() };
    let mut table = StationTable::new(config.bounds());
    for address in 0..2 * ENTRIES_MAX as u64 {
        table.learn(address, (address % 5) as PortNumber);
    }
    assert_eq!(table.length(), ENTRIES_MAX);
    let names = ["a"; 5].into_iter();
    let state = state::write(false, 0, names, &table);
    assert!(state.len() <= crate::limits::STATE_BYTES_MAX);
    assert_eq!(state::read(false, &state).map(|state| state.stations.len()), Some(ENTRIES_MAX));
    for bytes in [0, 1, 2, 11, 12, state.len() - 1] {
        assert_eq!(state::read(false, &state[..bytes]), None, "{bytes} bytes of it");
    }
    assert_eq!(state::read(false, &[&state[..], &[0]].concat()), None);
}

#[test]
fn configurations_that_cannot_work_are_refused() {
    for (config, key) in [
        (r#"{"entries": 0}"#, "entries"),
        (r#"{"entries": 16385}"#, "entries"),
        (r#"{"entries": 5, "entries_per_port": 6}"#, "entries_per_port"),
        (r#"{"entries_per_port": 0}"#, "entries_per_port"),
        (r#"{"age_seconds": 0}"#, "age_seconds"),
        (r#"{"split_horizon": [["a", "b"], ["b"]]}"#, "split_horizon"),
    ] {
        let config: BridgeConfig = serde_json::from_str(config).unwrap();
        let why = Bridge::check(&config).unwrap_err().to_string();
        assert!(why.starts_with(key), "{why}");
    }
    assert!(serde_json::from_str::<BridgeConfig>(r#"{"entry": 1}"#).is_err());
    assert!(Bridge::check(&BridgeConfig::default()).is_ok());
    assert!(Bridge::check(&BridgeConfig { entries: 1, ..BridgeConfig::default() }).is_ok());
}

proptest! {
    #[test]
    fn whatever_comes_is_forwarded_or_dropped_but_never_sent_back(
        frames in prop::collection::vec(
            (0..PORTS.len(), 0..6_u8, 0..6_u8, prop::collection::vec((0..18_usize, any::<u8>()), 0..2), 0..80_usize),
            1..100,
        ),
        vlans in any::<bool>(),
    ) {
        let bounds = BridgeConfig { entries: 6, entries_per_port: Some(3), vlans, ..BridgeConfig::default() };
        let mut bench = bridge(bounds, &PORTS);
        for (port, to, from, mutations, cut) in frames {
            let mut frame = tagged(1, &frame(to, from));
            for (place, value) in mutations {
                frame[place] = value;
            }
            frame.truncate(cut);
            let dropped = |bench: &AppBench<Bridge>| bench.drops(DropReason::Malformed) + bench.drops(DropReason::Filtered);
            let before = dropped(&bench);
            let left = through(&mut bench, PORTS[port], &frame);
            prop_assert!(!left.contains(&PORTS[port]));
            prop_assert_eq!(dropped(&bench) - before, u64::from(left.is_empty()));
            prop_assert!(left.len() <= 1 || left.len() == 3, "to one or to all: {:?}", left);
            prop_assert!(bench.app.report()[0].1 <= 6);
        }
    }

    #[test]
    fn any_state_at_all_is_taken_or_ignored(
        noise in prop::collection::vec(any::<u8>(), 0..200),
        mutations in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        real in any::<bool>(),
    ) {
        let config = BridgeConfig { entries: 4, ..BridgeConfig::default() };
        let mut bench = bridge(config.clone(), &PORTS);
        let mut state = noise;
        if real {
            (1..=3).for_each(|station| drop(through(&mut bench, "b", &frame(EVERYBODY, station))));
            state = bench.stop().unwrap_or_default();
        }
        for (place, value) in mutations {
            if !state.is_empty() {
                let place = place.index(state.len());
                state[place] = value;
            }
        }
        bench.app = Bridge::start(config, Some(state)).unwrap();
        bench.now_ns += SECOND_NS;
        prop_assert!(!through(&mut bench, "a", &frame(1, 9)).contains(&"a"));
        prop_assert!(bench.app.report()[0].1 <= 4);
    }
}
