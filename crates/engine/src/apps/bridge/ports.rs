//! The ports of a bridge: an input and an output of the same name.

use super::table::PortNumber;
use crate::io::Io;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BridgePort {
    pub name: String,
    /// The number of its input, where that is linked.
    pub input: Option<usize>,
    /// The number of its output, where that is linked.
    pub output: Option<usize>,
    /// The group of ports that do not reach each other; 0: none.
    group: usize,
}

#[derive(Debug, Default)]
pub struct BridgePorts {
    ports: Vec<BridgePort>,
    /// The place of each input's port.
    places: Vec<PortNumber>,
}

impl BridgePorts {
    /// BridgePorts that are not linked yet: those of a state.
    pub fn unlinked(names: Vec<String>) -> Self {
        let ports = names.into_iter().map(|name| BridgePort { name, input: None, output: None, group: 0 });
        Self { ports: ports.collect(), places: Vec::new() }
    }

    /// Those that are linked now.
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
        // The inputs came first.
        let places = (0..io.inputs() as PortNumber).collect();
        Self { ports, places }
    }

    /// Whether these are those that are linked now.
    pub fn are_linked(&self, io: &Io) -> bool {
        let outputs = self.ports.iter().filter(|port| port.output.is_some()).count();
        let is_linked = |port: &BridgePort| {
            (port.input.is_some() || port.output.is_some())
                && port.input.is_none_or(|input| io.input_name(input) == port.name)
                && port.output.is_none_or(|output| io.output_name(output) == port.name)
        };
        self.places.len() == io.inputs() && outputs == io.outputs() && self.ports.iter().all(is_linked)
    }

    /// Their names, by place.
    pub fn names(&self) -> impl ExactSizeIterator<Item = &str> {
        self.ports.iter().map(|port| port.name.as_str())
    }

    /// The place of the port of a name, if something can be sent there.
    pub fn place(&self, name: &str) -> Option<PortNumber> {
        let is_it = |port: &BridgePort| port.name == name && port.output.is_some();
        self.ports.iter().position(is_it).map(|place| place as PortNumber)
    }

    /// The place of an input's port.
    #[inline]
    pub fn of_input(&self, input: usize) -> PortNumber {
        self.places.get(input).copied().unwrap_or(PortNumber::MAX)
    }

    /// The output that leads from one port to another; `None` if they are the same, or are not to reach each other.
    #[inline]
    pub fn output(&self, from: PortNumber, to: PortNumber) -> Option<usize> {
        let (from_port, to_port) = (self.ports.get(usize::from(from))?, self.ports.get(usize::from(to))?);
        let apart = from == to || from_port.group != 0 && from_port.group == to_port.group;
        if apart { None } else { to_port.output }
    }

    /// All outputs that can be reached from a port.
    #[inline]
    pub fn outputs(&self, from: PortNumber) -> impl Iterator<Item = usize> + '_ {
        (0..self.ports.len()).filter_map(move |to| self.output(from, to as PortNumber))
    }

    /// Whether anything can be sent back to a port.
    #[inline]
    pub fn can_learn(&self, place: PortNumber) -> bool {
        self.ports.get(usize::from(place)).is_some_and(|port| port.output.is_some())
    }
}
