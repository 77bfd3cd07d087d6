//! A learning bridge (IEEE 802.1D, without spanning trees: links must not form a cycle).
//!
//! A port is an input and an output of the same name; either may be missing. A frame for a station whose port
//! is known goes there, any other to all ports but the one it came from.

mod state;
mod table;
#[cfg(test)]
mod tests;

use serde::Deserialize;
use table::{PortNumber, StationAddress, StationTable, TableBounds};

use crate::app::{App, AppError, Named};
use crate::io::Io;
use crate::layout::DropReason;
use crate::packet::Packet;

pub use state::ENTRIES_MAX;

/// The longest time for which a silent station stays known: the bound of 802.1D.
pub const AGE_SECONDS_MAX: u64 = 1_000_000;

/// A learning bridge.
#[derive(Debug)]
pub struct Bridge {
    config: BridgeConfig,
    ports: BridgePorts,
    table: StationTable,
    flooded: u64,
}

/// The configuration of a bridge.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct BridgeConfig {
    /// The number of stations that are known at a time, at most.
    pub entries: usize,
    /// The number of stations at one port, at most; half of `entries` by default.
    pub entries_per_port: Option<usize>,
    /// The number of seconds after which a silent station is forgotten.
    pub age_seconds: u64,
    /// True if the same address in two VLANs is two stations. Frames keep their tags either way.
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
        if let Some(state) = state.and_then(|state| state::read(config.vlans, &state)) {
            state.stations.into_iter().for_each(|known| table.restore(known));
            ports = BridgePorts::unlinked(state.ports);
        }
        Ok(Self { config, ports, table, flooded: 0 })
    }

    fn push(&mut self, io: &mut Io) {
        if !self.ports.are_linked(io) {
            self.relink(io);
        }
        self.table.set_now(io.now_ns());
        for input in 0..io.inputs() {
            let from = input as PortNumber;
            // Frames that come back meanwhile, over a link from this bridge to itself, wait for the next breath.
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
            // The station is at the port that the frame came from, or at one that it may not go to.
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

    /// Adapts to changed links: stations at ports that still exist stay known.
    #[cold]
    fn relink(&mut self, io: &Io) {
        let ports = BridgePorts::linked(io, &self.config.split_horizon);
        let numbers: Vec<_> = self.ports.names().map(|name| ports.number(name)).collect();
        self.table.renumber(|port| numbers.get(usize::from(port)).copied().flatten());
        self.ports = ports;
    }
}

/// The fields of a frame that a bridge reads.
struct BridgeFrame {
    destination: StationAddress,
    source: StationAddress,
}

const MAC_BITS: u32 = 48;
/// The bit of a group address: the lowest of the first byte.
const GROUP: StationAddress = 1 << 40;
/// 01:80:c2:00:00:00 to 0f: only for the neighbour, never forwarded (IEEE 802.1D, table 7-10).
const RESERVED: StationAddress = 0x0180_c200_0000;
const TAGS: [[u8; 2]; 2] = [[0x81, 0x00], [0x88, 0xa8]];

impl BridgeFrame {
    /// Returns `None` if the frame is too short for its headers, or its source is a group.
    #[inline]
    fn of(data: &[u8], vlans: bool) -> Option<Self> {
        let &[d0, d1, d2, d3, d4, d5, s0, s1, s2, s3, s4, s5, t0, t1] = data.first_chunk::<14>()?;
        let vlan = if vlans && TAGS.contains(&[t0, t1]) {
            // 12 bits of identifier; 0 means no VLAN, only a priority.
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

    /// True if the frame names its source: an address of zeros is no station.
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

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BridgePort {
    pub name: String,
    /// The number of its input, if that is linked.
    pub input: Option<usize>,
    /// The number of its output, if that is linked.
    pub output: Option<usize>,
    /// The group of ports that do not reach each other; 0 for none.
    group: usize,
}

/// A bridge's ports by number. Those with an input come first, by its number.
#[derive(Debug, Default)]
pub struct BridgePorts(Vec<BridgePort>);

impl BridgePorts {
    /// Makes the ports of a state, which are not linked yet.
    pub fn unlinked(names: Vec<String>) -> Self {
        let ports = names.into_iter().map(|name| BridgePort { name, input: None, output: None, group: 0 });
        Self(ports.collect())
    }

    /// Makes the ports that are linked now.
    pub fn linked(io: &Io, groups: &[Vec<String>]) -> Self {
        let group = |name: &str| groups.iter().position(|group| group.iter().any(|port| port == name));
        let port = |name: &str| BridgePort {
            name: name.to_owned(),
            input: io.input(name),
            output: io.output(name),
            group: group(name).map_or(0, |place| place + 1),
        };
        let inputs = (0..io.inputs()).map(|input| port(io.input_name(input)));
        let outputs = (0..io.outputs()).map(|output| port(io.output_name(output)));
        let mut ports: Vec<_> = inputs.collect();
        ports.extend(outputs.filter(|port| port.input.is_none()));
        Self(ports)
    }

    /// True if these are the ports that are linked now.
    pub fn are_linked(&self, io: &Io) -> bool {
        let count = |is_linked: fn(&BridgePort) -> bool| self.0.iter().filter(|port| is_linked(port)).count();
        let is_linked = |port: &BridgePort| {
            (port.input.is_some() || port.output.is_some())
                && port.input.is_none_or(|input| io.input_name(input) == port.name)
                && port.output.is_none_or(|output| io.output_name(output) == port.name)
        };
        count(|port| port.input.is_some()) == io.inputs()
            && count(|port| port.output.is_some()) == io.outputs()
            && self.0.iter().all(is_linked)
    }

    /// Returns the ports' names, by number.
    pub fn names(&self) -> impl ExactSizeIterator<Item = &str> {
        self.0.iter().map(|port| port.name.as_str())
    }

    /// Returns the number of the port of a name, if its output is linked.
    pub fn number(&self, name: &str) -> Option<PortNumber> {
        let is_it = |port: &BridgePort| port.name == name && port.output.is_some();
        self.0.iter().position(is_it).map(|number| number as PortNumber)
    }

    /// Returns the output from one port to another, or `None` if they are the same or must not reach each other.
    #[inline]
    pub fn output(&self, from: PortNumber, to: PortNumber) -> Option<usize> {
        let (from_port, to_port) = (self.0.get(usize::from(from))?, self.0.get(usize::from(to))?);
        let apart = from == to || from_port.group != 0 && from_port.group == to_port.group;
        if apart { None } else { to_port.output }
    }

    /// Returns all outputs that can be reached from a port.
    #[inline]
    pub fn outputs(&self, from: PortNumber) -> impl Iterator<Item = usize> + '_ {
        (0..self.0.len()).filter_map(move |to| self.output(from, to as PortNumber))
    }

    /// True if a port has an output.
    #[inline]
    pub fn can_learn(&self, port: PortNumber) -> bool {
        self.0.get(usize::from(port)).is_some_and(|port| port.output.is_some())
    }
}
