//! A learning bridge (IEEE 802.1D, without spanning trees: links must not make a circle).
//!
//! A port is an input and an output of the same name; either may be missing. A frame for a station whose port
//! is known goes there, any other to all ports but the one it came from.

mod ports;
mod state;
mod table;
#[cfg(test)]
mod tests;

use serde::Deserialize;

pub use state::ENTRIES_MAX;

use crate::app::{App, AppError, Named};
use crate::io::Io;
use crate::layout::DropReason;
use crate::packet::Packet;
use ports::BridgePorts;
use table::{PortNumber, StationAddress, StationTable, TableBounds};

/// Seconds for which a station that says nothing is known, at most: 802.1D's own bound.
pub const AGE_SECONDS_MAX: u64 = 1_000_000;

/// A learning bridge.
#[derive(Debug)]
pub struct Bridge {
    config: BridgeConfig,
    ports: BridgePorts,
    table: StationTable,
    flooded: u64,
}

/// What a bridge is configured with.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct BridgeConfig {
    /// Stations that are known at a time, at most.
    pub entries: usize,
    /// Of these, how many at one port; half of `entries`, unless said.
    pub entries_per_port: Option<usize>,
    /// Seconds after which a station that says nothing is unknown again.
    pub age_seconds: u64,
    /// Whether the same address in two VLANs is two stations. Frames keep their tags either way.
    pub vlans: bool,
    /// Groups of ports that do not reach each other (split horizon).
    pub split_horizon: Vec<Vec<String>>,
}

impl Default for BridgeConfig {
    fn default() -> Self {
        let (entries, age_seconds) = (4096, 300);
        Self { entries, entries_per_port: None, age_seconds, vlans: false, split_horizon: Vec::new() }
    }
}

impl BridgeConfig {
    fn of_one_port(&self) -> usize {
        self.entries_per_port.unwrap_or(self.entries.div_ceil(2))
    }

    fn bounds(&self) -> TableBounds {
        TableBounds {
            entries: self.entries,
            of_one_port: self.of_one_port(),
            age_ns: self.age_seconds.min(AGE_SECONDS_MAX) * 1_000_000_000,
        }
    }
}

impl App for Bridge {
    type Config = BridgeConfig;
    const INPUTS: Named = Named::Any;
    const OUTPUTS: Named = Named::Any;

    fn check(config: &BridgeConfig) -> Result<(), AppError> {
        let (entries, of_one_port, age) = (config.entries, config.of_one_port(), config.age_seconds);
        if !(1..=ENTRIES_MAX).contains(&entries) {
            return Err(AppError(format!("entries = {entries}: a bridge knows 1 to {ENTRIES_MAX} stations")));
        }
        if !(1..=entries).contains(&of_one_port) {
            let why = format!("entries_per_port = {of_one_port}: it is 1 to {entries}, which is `entries`");
            return Err(AppError(why));
        }
        if !(1..=AGE_SECONDS_MAX).contains(&age) {
            return Err(AppError(format!("age_seconds = {age}: it is 1 to {AGE_SECONDS_MAX}")));
        }
        let mut grouped: Vec<_> = config.split_horizon.iter().flatten().collect();
        grouped.sort_unstable();
        match grouped.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => Err(AppError(format!("split_horizon: {:?} is there twice; leave one", pair[0]))),
            None => Ok(()),
        }
    }

    fn start(config: BridgeConfig, state: Option<Vec<u8>>) -> Result<Self, AppError> {
        let mut table = StationTable::new(config.bounds());
        let mut ports = BridgePorts::default();
        if let Some((names, known)) = state.and_then(|state| state::read(config.vlans, &state)) {
            known.into_iter().for_each(|(address, place, seen_ns)| table.restore(address, place, seen_ns));
            ports = BridgePorts::unlinked(names);
        }
        Ok(Self { config, ports, table, flooded: 0 })
    }

    fn push(&mut self, io: &mut Io) {
        if !self.ports.are_linked(io) {
            self.relink(io);
        }
        self.table.set_now(io.now_ns());
        for input in 0..io.inputs() {
            let from = self.ports.of_input(input);
            // What comes back while this goes on, over a link from here to here, is for the next breath.
            for _ in 0..io.waiting(input) {
                let Some(packet) = io.receive(input) else { break };
                self.forward(io, from, packet);
            }
        }
    }

    fn stop(&mut self, io: &mut Io) -> Option<Vec<u8>> {
        Some(state::write(self.config.vlans, io.now_ns(), self.ports.names(), &self.table))
    }

    fn report(&self) -> Vec<(&'static str, u64)> {
        let table = &self.table;
        vec![
            ("stations", table.length() as u64),
            ("flooded", self.flooded),
            ("moved", table.moved),
            ("refused", table.refused),
        ]
    }
}

impl Bridge {
    #[inline]
    fn forward(&mut self, io: &mut Io, from: PortNumber, packet: Packet) {
        let Some(frame) = BridgeFrame::of(packet.data(), self.config.vlans) else {
            return io.discard(packet, DropReason::Malformed);
        };
        if self.ports.can_learn(from) && frame.has_source() {
            self.table.learn(frame.source, from);
        }
        if frame.is_reserved() {
            return io.discard(packet, DropReason::Filtered);
        }
        let known = if frame.is_for_many() { None } else { self.table.find(frame.destination) };
        match known.map(|to| self.ports.output(from, to)) {
            Some(Some(output)) => io.transmit(output, packet),
            // At the port it came from, or at one that it may not go to.
            Some(None) => io.discard(packet, DropReason::Filtered),
            None => self.flood(io, from, packet),
        }
    }

    fn flood(&mut self, io: &mut Io, from: PortNumber, packet: Packet) {
        self.flooded += 1;
        let mut outputs = self.ports.outputs(from);
        let Some(mut last) = outputs.next() else { return io.discard(packet, DropReason::Filtered) };
        for output in outputs {
            match io.copy(&packet) {
                Some(copy) => io.transmit(last, copy),
                None => io.count_drops(DropReason::NoPacket, 1),
            }
            last = output;
        }
        io.transmit(last, packet);
    }

    /// The links are others than before: what is at ports that are still there stays known.
    #[cold]
    fn relink(&mut self, io: &Io) {
        let ports = BridgePorts::linked(io, &self.config.split_horizon);
        let places: Vec<_> = self.ports.names().map(|name| ports.place(name)).collect();
        self.table.renumber(|place| places.get(usize::from(place)).copied().flatten());
        self.ports = ports;
    }
}

/// What a bridge looks at.
struct BridgeFrame {
    destination: StationAddress,
    source: StationAddress,
}

const MAC_BITS: u32 = 48;
/// The bit of an address of many stations: the lowest of its first byte.
const GROUP: StationAddress = 1 << 40;
/// 01:80:c2:00:00:00 to 0f: for the neighbour alone, never forwarded (IEEE 802.1D, table 7-10).
const RESERVED: StationAddress = 0x0180_c200_0000;
const TAGS: [[u8; 2]; 2] = [[0x81, 0x00], [0x88, 0xa8]];

impl BridgeFrame {
    /// `None` if it is too short for its headers, or comes from many stations at once.
    #[inline]
    fn of(data: &[u8], vlans: bool) -> Option<Self> {
        let &[d0, d1, d2, d3, d4, d5, s0, s1, s2, s3, s4, s5, t0, t1] = data.first_chunk::<14>()?;
        let vlan = if vlans && TAGS.contains(&[t0, t1]) {
            // 12 bits of identifier; 0: no VLAN, but a priority.
            let &[.., high, low] = data.first_chunk::<16>()?;
            data.first_chunk::<18>()?;
            StationAddress::from(u16::from_be_bytes([high & 0x0f, low])) << MAC_BITS
        } else {
            0
        };
        let address = |mac: [u8; 6]| {
            let [a, b, c, d, e, f] = mac;
            StationAddress::from_be_bytes([0, 0, a, b, c, d, e, f]) | vlan
        };
        let frame = Self {
            destination: address([d0, d1, d2, d3, d4, d5]),
            source: address([s0, s1, s2, s3, s4, s5]),
        };
        (frame.source & GROUP == 0).then_some(frame)
    }

    /// Whether it says where it comes from: all zeros is no station.
    #[inline]
    fn has_source(&self) -> bool {
        self.source << (StationAddress::BITS - MAC_BITS) != 0
    }

    #[inline]
    fn is_for_many(&self) -> bool {
        self.destination & GROUP != 0
    }

    #[inline]
    fn is_reserved(&self) -> bool {
        self.destination << (StationAddress::BITS - MAC_BITS) >> (StationAddress::BITS - MAC_BITS + 4)
            == RESERVED >> 4
    }
}
