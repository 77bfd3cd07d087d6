//! Arbitrary frames of any length, at every port of the apps that read them: no packet is lost,
//! and one end of a tunnel takes out what the other puts in.
//!
//! An input is a sequence of steps: 8 bytes ([`Step`]), and the bytes of a frame.
#![no_main]

use std::cell::RefCell;

use caravan_engine::App;
use caravan_engine::apps::{Arp, Bridge, Ndp, Tunnel};
use caravan_engine::limits::PACKET_BYTES_MAX;
use caravan_engine::testing::AppBench;
use etherparse::{Icmpv6Type, Ipv6Header};
use serde_json::{Value, json};

const PACKETS: u32 = 32;
/// The number of steps of an input. The packets that wait at ports and in apps at a time, copies included, stay below
/// `PACKETS`.
const STEPS_MAX: usize = 64;
const STEP_BYTES: usize = 8;
/// The number of steps until an app is called, unless a step calls it before.
const WAITING_MAX: usize = 4;
const ETHERNET_BYTES: usize = 14;
const IPV6_BYTES: usize = 40;
const ICMPV6: u8 = 58;

/// One frame, and its handling.
struct Step {
    /// The port where it arrives, modulo the app's number of ports.
    port: usize,
    frame: Vec<u8>,
    /// True if the app is called after it.
    push: bool,
    /// True if the app moves to another worker after it.
    moves: bool,
    later_ns: u64,
}

impl Step {
    /// Takes a step off the front of the input.
    fn of(input: &mut &[u8]) -> Option<Self> {
        let (&[port, flags, start, kept, length_low, length_high, bytes, later], rest) =
            input.split_first_chunk::<STEP_BYTES>()?;
        let (bytes, rest) = rest.split_at(rest.len().min(usize::from(bytes)));
        *input = rest;
        // The frame: the start of a valid frame, if any, as much of it as is kept; the bytes; zeros up to the length.
        let starts = STARTS.with(Clone::clone);
        let start = starts.get(usize::from(start) % (2 * starts.len())).map_or(&[][..], Vec::as_slice);
        let mut frame = [&start[..start.len().min(usize::from(kept))], bytes].concat();
        let length = usize::from(u16::from_le_bytes([length_low, length_high]));
        // Most frames end with their bytes.
        frame.resize(if flags & 4 != 0 { length % (PACKET_BYTES_MAX + 1) } else { frame.len() }, 0);
        if flags & 8 != 0 {
            checksum(&mut frame);
        }
        let later_ns = 1_u64.checked_shl(later.into()).unwrap_or(0);
        Some(Self { port: port.into(), frame, push: flags & 1 != 0, moves: flags & 2 != 0, later_ns })
    }
}

/// Writes an ICMPv6 message's checksum, which a fuzzer would not find.
fn checksum(frame: &mut [u8]) {
    let Some((_, packet)) = frame.split_at_mut_checked(ETHERNET_BYTES) else { return };
    let Ok((ip, _)) = Ipv6Header::from_slice(packet) else { return };
    let end = packet.len().min(IPV6_BYTES + usize::from(ip.payload_length));
    let message = &mut packet[IPV6_BYTES..end];
    if ip.next_header.0 != ICMPV6 || message.len() < 8 {
        return;
    }
    let (&first, &rest) = (message.first_chunk::<4>().unwrap(), message[4..].first_chunk::<4>().unwrap());
    let kind = Icmpv6Type::Unknown { type_u8: first[0], code_u8: first[1], bytes5to8: rest };
    if let Ok(sum) = kind.calc_checksum(ip.source, ip.destination, &message[8..]) {
        message[2..4].copy_from_slice(&sum.to_be_bytes());
    }
}

/// An app at whose ports frames arrive, and leave again.
struct Tried<A: App> {
    config: A::Config,
    ports: &'static [&'static str],
    bench: AppBench<A>,
}

impl<A: App<Config: Clone>> Tried<A> {
    fn new(config: Value, ports: &'static [&'static str]) -> Self {
        let config: A::Config = serde_json::from_value(config).expect("a configuration");
        let bench = AppBench::new(config.clone(), ports, ports, PACKETS).expect("an app");
        Self { config, ports, bench }
    }

    fn restart(&mut self, state: Option<Vec<u8>>) {
        self.bench.app = A::start(self.config.clone(), state).expect("whatever an earlier one left");
    }

    fn push(&mut self) -> Vec<(&'static str, Vec<u8>)> {
        self.bench.push();
        let ports = self.ports.iter();
        ports.flat_map(|port| self.bench.sent(port).into_iter().map(move |frame| (*port, frame))).collect()
    }

    fn stop(&mut self) -> Option<Vec<u8>> {
        let state = self.bench.stop();
        self.ports.iter().for_each(|port| drop(self.bench.sent(port)));
        assert_eq!(self.bench.free(), PACKETS as usize);
        state
    }

    /// Runs one app from its start to its end, with a `state` of an earlier one if there is one.
    fn run(&mut self, state: Option<&[u8]>, steps: &[Step]) {
        self.restart(state.map(<[u8]>::to_vec));
        let mut waiting = 0;
        for step in steps {
            self.bench.now_ns = self.bench.now_ns.saturating_add(step.later_ns).min(u64::MAX >> 1);
            self.bench.put(self.ports[step.port % self.ports.len()], &step.frame);
            waiting += 1;
            if step.push || step.moves || waiting == WAITING_MAX {
                waiting = 0;
                self.push();
            }
            if step.moves {
                let state = self.stop();
                self.restart(state);
            }
        }
        self.push();
        self.stop();
        self.bench.now_ns = 1;
    }
}

struct World {
    bridge: Tried<Bridge>,
    vlans: Tried<Bridge>,
    here: Tried<Tunnel>,
    there: Tried<Tunnel>,
    arp: Tried<Arp>,
    ndp: Tried<Ndp>,
}

fn tunnel(local: &str, remote: &str) -> Value {
    json!({
        "local_address": format!("2001:db8::{local}"), "remote_address": format!("2001:db8::{remote}"),
        "local_cookie": format!("{local:0>16}"), "remote_cookie": format!("{remote:0>16}"),
    })
}

const ENDS: &[&str] = &["decapsulated", "encapsulated"];
const SIDES: &[&str] = &["north", "south"];
const PORTS: &[&str] = &["a", "b", "c"];
const MAC: &str = "02:00:00:00:00:01";

impl World {
    fn new() -> Self {
        let few = json!({ "entries": 6, "split_horizon": [["b", "c"]] });
        let vlans = json!({ "entries": 6, "vlans": true, "age_seconds": 1 });
        let arp = json!({ "mac": MAC, "addresses": ["192.0.2.1"], "next_hop": "192.0.2.2" });
        let ndp = json!({ "mac": MAC, "addresses": ["2001:db8::1"], "next_hop": "2001:db8::2" });
        Self {
            bridge: Tried::new(few, PORTS),
            vlans: Tried::new(vlans, PORTS),
            here: Tried::new(tunnel("1", "2"), ENDS),
            there: Tried::new(tunnel("2", "1"), ENDS),
            arp: Tried::new(arp, SIDES),
            ndp: Tried::new(ndp, SIDES),
        }
    }

    /// Checks that a frame that goes into one end of the tunnel comes out at the other.
    fn pass(&mut self, frame: &[u8]) {
        self.here.bench.put("decapsulated", frame);
        for (port, packet) in self.here.push() {
            assert_eq!(port, "encapsulated");
            self.there.bench.put(port, &packet);
            assert_eq!(self.there.push(), [("decapsulated", frame.to_vec())]);
        }
    }
}

/// Returns the starts of valid frames, up to their most important fields.
fn starts() -> Vec<Vec<u8>> {
    let ethernet = |to: [u8; 6], from: u8, kind: [u8; 2]| [&to[..], &[2, 0, 0, 0, 0, from], &kind].concat();
    let (own, all, group) = ([2, 0, 0, 0, 0, 1], [0xff; 6], [0x33, 0x33, 0xff, 0, 0, 1]);
    let address = |host: u8| [&[0x20, 0x01, 0x0d, 0xb8][..], &[0; 11], &[host]].concat();
    let multicast = [&[0xff, 2][..], &[0; 9], &[1, 0xff, 0, 0, 1]].concat();
    let ip = |length: u8, next: u8, hops: u8, from: &[u8], to: &[u8]| {
        [&[0x60, 0, 0, 0, 0, length, next, hops][..], from, to].concat()
    };
    let arp = |operation: u8, from: u8| {
        let head = [0, 1, 8, 0, 6, 4, 0, operation, 2, 0, 0, 0, 0, from, 192, 0, 2, from];
        [&head[..], &[2, 0, 0, 0, 0, 1, 192, 0, 2, 1]].concat()
    };
    let ndp = |kind: u8, target: u8, option: u8| {
        let head = [kind, 0, 0, 0, if kind == 136 { 0x60 } else { 0 }, 0, 0, 0];
        [&head[..], &address(target), &[option, 1, 2, 0, 0, 0, 0, 2]].concat()
    };
    let (ipv6, l2tp) = ([0x86, 0xdd], [&[0xff; 4][..], &[0; 7], &[1]].concat());
    vec![
        ethernet(own, 2, [8, 0]),
        ethernet([2, 0, 0, 0, 0, 2], 1, [8, 0]),
        [ethernet(all, 2, [0x81, 0]), vec![0, 5, 8, 0]].concat(),
        [ethernet(all, 2, [8, 6]), arp(1, 2)].concat(),
        [ethernet(own, 2, [8, 6]), arp(2, 2)].concat(),
        [ethernet(own, 2, ipv6), ip(26, 115, 64, &address(2), &address(1)), l2tp, ethernet(own, 3, [8, 0])]
            .concat(),
        [ethernet(group, 2, ipv6), ip(32, ICMPV6, 255, &address(2), &multicast), ndp(135, 1, 1)].concat(),
        [ethernet(own, 2, ipv6), ip(32, ICMPV6, 255, &address(2), &address(1)), ndp(136, 2, 2)].concat(),
    ]
}

thread_local! {
    static STARTS: std::rc::Rc<Vec<Vec<u8>>> = std::rc::Rc::new(starts());
    static WORLD: RefCell<World> = RefCell::new(World::new());
}

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let mut rest = input;
    let steps: Vec<_> = std::iter::from_fn(|| Step::of(&mut rest)).take(STEPS_MAX).collect();
    WORLD.with_borrow_mut(|world| {
        // The state of an earlier worker, which may be arbitrary, too.
        let state = (!rest.is_empty()).then_some(rest);
        world.bridge.run(state, &steps);
        world.vlans.run(state, &steps);
        world.arp.run(state, &steps);
        world.ndp.run(state, &steps);
        world.here.run(state, &steps);
        world.there.run(None, &[]);
        steps.iter().for_each(|step| world.pass(&step.frame));
        world.here.stop();
        world.there.stop();
    });
});
