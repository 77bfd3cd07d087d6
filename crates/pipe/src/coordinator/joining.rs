//! How a hop comes to what carries it: the ways in their order, each tried until both ends have it.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use super::{HopTransport, PipelineOptions};
use crate::PipeKey;
use crate::control::{AgentOrder, AgentReport, Hello};
use crate::plan::{HERE, Hop};

/// Addresses of a host that are tried.
const ADDRESSES_MAX: usize = 16;

/// One way for the data of a hop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HopMethod {
    /// A pipe, handed from one agent to the other.
    Pipe,
    /// RDMA devices.
    Fabric,
    /// The receiver listens.
    Tcp,
    /// The sender listens.
    TcpReversed,
    /// Through the coordinator.
    Relay,
}

/// A hop that is being joined.
pub struct Joining {
    hop: Hop,
    key: PipeKey,
    ways: VecDeque<HopMethod>,
    tried: Vec<String>,
    /// Which try the way at hand is: what agents say about an earlier one comes too late.
    attempt: u32,
    connected: [Option<String>; 2],
    is_done: bool,
}

/// What it is joined by.
pub struct Joined {
    pub way: HopMethod,
    pub description: String,
    /// The ways that did not work, and why.
    pub tried: Vec<String>,
}

/// What a report has led to.
pub enum JoiningStep {
    /// Orders, each for an agent.
    Orders(Vec<(usize, AgentOrder)>),
    /// It is joined.
    Joined(Joined),
    /// No way is left; the sentences.
    Failed(Vec<String>),
}

/// The two agents of a hop.
pub struct HopEnds<'a> {
    pub from: &'a Hello,
    pub to: &'a Hello,
    /// The hosts as the user has named them; `None` for this one.
    pub names: [Option<&'a str>; 2],
    pub options: &'a PipelineOptions,
}

impl Joining {
    pub fn new(hop: Hop, ends: &HopEnds<'_>) -> Result<Self, crate::Error> {
        let mut ways: VecDeque<HopMethod> = ways(hop, ends).into();
        let mut tried = Vec::new();
        if ways.contains(&HopMethod::Fabric) {
            for (hello, name) in [(ends.from, ends.names[0]), (ends.to, ends.names[1])] {
                let why = hello.offer.as_ref().err();
                tried.extend(why.map(|why| format!("RDMA: {}: {why}", name.unwrap_or(HERE))));
            }
        }
        if !tried.is_empty() {
            ways.retain(|way| *way != HopMethod::Fabric);
        }
        // Where nobody has a device there is nothing to tell, unless one was demanded.
        if tried.len() == 2 && !ways.is_empty() {
            tried.clear();
        }
        let (key, connected) = (PipeKey::random()?, [None, None]);
        Ok(Self { hop, key, ways, tried, attempt: 0, connected, is_done: false })
    }

    /// Begins with the first way.
    pub fn begin(&mut self, ends: &HopEnds<'_>) -> JoiningStep {
        self.connected = [None, None];
        self.attempt += 1;
        let attempt = self.attempt;
        let Hop { number: hop, from, to, .. } = self.hop;
        let (key, streams) = (self.key.clone(), ends.options.streams);
        let ports = ends.options.ports;
        let orders = match self.ways.front() {
            Some(HopMethod::Pipe) => vec![(to, AgentOrder::Open { hop, attempt })],
            Some(HopMethod::Fabric) => {
                let offer = ends.to.offer.clone().unwrap_or_default();
                vec![(from, AgentOrder::Initiate { hop, attempt, offer })]
            }
            Some(HopMethod::Tcp) => {
                vec![(to, AgentOrder::Listen { hop, attempt, key, ports, streams })]
            }
            Some(HopMethod::TcpReversed) => {
                vec![(from, AgentOrder::Listen { hop, attempt, key, ports, streams })]
            }
            Some(HopMethod::Relay) => {
                vec![(from, AgentOrder::Relay { hop, attempt }), (to, AgentOrder::Relay { hop, attempt })]
            }
            None => return JoiningStep::Failed(std::mem::take(&mut self.tried)),
        };
        JoiningStep::Orders(orders)
    }

    /// Takes what an agent says about this hop.
    pub fn take(&mut self, agent: usize, report: AgentReport, ends: &HopEnds<'_>) -> JoiningStep {
        let nothing = JoiningStep::Orders(Vec::new());
        let Some(way) = self.ways.front().copied().filter(|_| !self.is_done) else { return nothing };
        if attempt_of(&report) != Some(self.attempt) {
            return nothing;
        }
        let attempt = self.attempt;
        let Hop { number: hop, from, to, .. } = self.hop;
        let key = self.key.clone();
        match (way, report) {
            (_, AgentReport::Unreachable { why, .. }) => {
                let who = if agent == from { ends.names[0] } else { ends.names[1] };
                self.tried.push(format!("{}: {}: {why}", way.name(), who.unwrap_or(HERE)));
                self.ways.pop_front();
                self.begin(ends)
            }
            (_, AgentReport::Connected { description, .. }) => self.connect(agent, way, description, ends),
            (HopMethod::Pipe, AgentReport::Doorway { bytes, .. }) if agent == to => {
                JoiningStep::Orders(vec![(from, AgentOrder::Hand { hop, attempt, doorway: bytes })])
            }
            (HopMethod::Fabric, AgentReport::Half { bytes, .. }) if agent == from => {
                JoiningStep::Orders(vec![(to, AgentOrder::Accept { hop, attempt, request: bytes })])
            }
            (HopMethod::Fabric, AgentReport::Half { bytes, .. }) => {
                let ours = AgentOrder::Finish { hop, attempt, key: key.clone(), answer: bytes };
                let theirs = AgentOrder::Finish { hop, attempt, key, answer: Vec::new() };
                JoiningStep::Orders(vec![(from, ours), (to, theirs)])
            }
            (HopMethod::Tcp | HopMethod::TcpReversed, AgentReport::Listening { port, .. }) => {
                let is_reversed = way == HopMethod::TcpReversed;
                let (listener, name) = match is_reversed {
                    false => (ends.to, ends.names[1]),
                    true => (ends.from, ends.names[0]),
                };
                let connecting = if is_reversed { to } else { from };
                if agent == connecting {
                    return nothing;
                }
                let connector = if is_reversed { ends.to } else { ends.from };
                let addresses = addresses(listener, connector, name.is_none());
                let addresses = addresses.into_iter().map(|address| SocketAddr::new(address, port)).collect();
                let known = name.or(ends.options.here.as_deref());
                let names = known.map(|name| (host_part(name).to_owned(), port)).into_iter().collect();
                let streams = ends.options.streams;
                JoiningStep::Orders(vec![(
                    connecting,
                    AgentOrder::Connect { hop, attempt, key, addresses, names, streams },
                )])
            }
            _ => nothing,
        }
    }

    fn connect(
        &mut self,
        agent: usize,
        way: HopMethod,
        description: String,
        ends: &HopEnds<'_>,
    ) -> JoiningStep {
        let attempt = self.attempt;
        let Hop { number: hop, from, to, .. } = self.hop;
        let place = usize::from(agent != from);
        if let Some(end) = self.connected.get_mut(place) {
            *end = Some(description);
        }
        // The reading end of a pipe is on its way once its writing end is there.
        if way == HopMethod::Pipe && agent == from && self.connected[1].is_none() {
            return JoiningStep::Orders(vec![(to, AgentOrder::Take { hop, attempt })]);
        }
        let [Some(sender), Some(receiver)] = &self.connected else { return JoiningStep::Orders(Vec::new()) };
        self.is_done = true;
        // The side that connected knows the address that led to the other.
        let description = if way == HopMethod::TcpReversed { receiver } else { sender }.clone();
        let description = match way {
            HopMethod::TcpReversed => {
                format!("{description} (connected by {})", ends.names[1].unwrap_or(HERE))
            }
            _ => description,
        };
        JoiningStep::Joined(Joined { way, description, tried: std::mem::take(&mut self.tried) })
    }
}

impl HopMethod {
    fn name(self) -> &'static str {
        match self {
            Self::Pipe => "a pipe between both",
            Self::Fabric => "RDMA",
            Self::Tcp => "TCP",
            Self::TcpReversed => "TCP the other way round",
            Self::Relay => "ssh",
        }
    }
}

fn attempt_of(report: &AgentReport) -> Option<u32> {
    match report {
        AgentReport::Listening { attempt, .. }
        | AgentReport::Half { attempt, .. }
        | AgentReport::Doorway { attempt, .. }
        | AgentReport::Connected { attempt, .. }
        | AgentReport::Unreachable { attempt, .. } => Some(*attempt),
        _ => None,
    }
}

fn ways(hop: Hop, ends: &HopEnds<'_>) -> Vec<HopMethod> {
    let is_one_host = ends.from.place.is_same_host(&ends.to.place);
    let can_share = is_one_host && ends.from.place.apart(&ends.to.place).is_none();
    match ends.options.transport {
        Some(HopTransport::Rdma) => vec![HopMethod::Fabric],
        Some(HopTransport::Tcp) => vec![HopMethod::Tcp, HopMethod::TcpReversed],
        Some(HopTransport::Ssh) => vec![HopMethod::Relay],
        None => {
            // Handing a pipe over proves that both are on one host. Where it fails, they only look alike.
            let pipe = (can_share && hop.can_be_pipe).then_some(HopMethod::Pipe);
            pipe.into_iter()
                .chain([HopMethod::Fabric, HopMethod::Tcp, HopMethod::TcpReversed, HopMethod::Relay])
                .collect()
        }
    }
}

/// Where a listener may be reached, the likeliest first.
fn addresses(listener: &Hello, connector: &Hello, is_here: bool) -> Vec<IpAddr> {
    let mut all = Vec::new();
    if listener.place.is_same_network(&connector.place) {
        all.push(IpAddr::V4(Ipv4Addr::LOCALHOST));
    }
    // This host's address is the one that ssh came from.
    all.extend(if is_here { connector.ssh_client } else { listener.ssh_address });
    all.extend(&listener.addresses);
    let mut once = Vec::new();
    for address in all {
        if !once.contains(&address) && !address.is_unspecified() {
            once.push(address);
        }
    }
    once.truncate(ADDRESSES_MAX);
    once
}

/// `user@host` without the user.
fn host_part(name: &str) -> &str {
    name.rsplit_once('@').map_or(name, |(_, host)| host)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::place::Place;
    use crate::plan::tests::request;

    fn hello() -> Hello {
        Hello {
            identity: String::new(),
            place: Place::here(),
            addresses: Vec::new(),
            ssh_address: None,
            ssh_client: None,
            offer: Ok(vec![1]),
        }
    }

    /// Two machines restored from one snapshot: a pipe is tried, and its failure leads to what others would have.
    #[test]
    fn hosts_that_only_look_alike_get_what_other_hosts_have() {
        let (from, to, options) = (hello(), hello(), request(&["a:x", "b:y"]).options);
        let ends = HopEnds { from: &from, to: &to, names: [Some("a"), Some("b")], options: &options };
        let hop = Hop { number: 1, from: 0, to: 1, can_be_pipe: true };
        let mut joining = Joining::new(hop, &ends).expect("random");
        let JoiningStep::Orders(orders) = joining.begin(&ends) else { panic!("no orders") };
        assert!(matches!(orders[..], [(1, AgentOrder::Open { hop: 1, attempt: 1 })]), "{orders:?}");
        let why = "nobody is there".to_owned();
        let step = joining.take(0, AgentReport::Unreachable { hop: 1, why, attempt: 1 }, &ends);
        let JoiningStep::Orders(orders) = step else { panic!("no orders") };
        assert!(matches!(orders[..], [(0, AgentOrder::Initiate { hop: 1, attempt: 2, .. })]), "{orders:?}");
    }
}
