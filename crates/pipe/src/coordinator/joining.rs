//! How a hop comes to what carries it: the ways in their order, each tried until both ends have it.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use super::{Options, Transport};
use crate::Key;
use crate::control::{Hello, Order, Report};
use crate::plan::{HERE, Hop};

/// Addresses of a host that are tried.
const ADDRESSES_MAX: usize = 16;

/// One way for the data of a hop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
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
    key: Key,
    ways: VecDeque<Way>,
    tried: Vec<String>,
    /// Which try the way at hand is: what agents say about an earlier one comes too late.
    attempt: u32,
    connected: [Option<String>; 2],
    is_done: bool,
}

/// What it is joined by.
pub struct Joined {
    pub way: Way,
    pub description: String,
    /// The ways that did not work, and why.
    pub tried: Vec<String>,
}

/// What a report has led to.
pub enum Step {
    /// Orders, each for an agent.
    Orders(Vec<(usize, Order)>),
    /// It is joined.
    Joined(Joined),
    /// No way is left; the sentences.
    Failed(Vec<String>),
}

/// The two agents of a hop.
pub struct Ends<'a> {
    pub from: &'a Hello,
    pub to: &'a Hello,
    /// The hosts as the user has named them; `None` for this one.
    pub names: [Option<&'a str>; 2],
    pub options: &'a Options,
}

impl Joining {
    pub fn new(hop: Hop, ends: &Ends<'_>) -> Result<Self, crate::Error> {
        let mut ways: VecDeque<Way> = ways(hop, ends).into();
        let mut tried = Vec::new();
        if ways.contains(&Way::Fabric) {
            for (hello, name) in [(ends.from, ends.names[0]), (ends.to, ends.names[1])] {
                let why = hello.offer.as_ref().err();
                tried.extend(why.map(|why| format!("RDMA: {}: {why}", name.unwrap_or(HERE))));
            }
        }
        if !tried.is_empty() {
            ways.retain(|way| *way != Way::Fabric);
        }
        // Where nobody has a device there is nothing to tell, unless one was demanded.
        if tried.len() == 2 && !ways.is_empty() {
            tried.clear();
        }
        let (key, connected) = (Key::random()?, [None, None]);
        Ok(Self { hop, key, ways, tried, attempt: 0, connected, is_done: false })
    }

    /// Begins with the first way.
    pub fn begin(&mut self, ends: &Ends<'_>) -> Step {
        self.connected = [None, None];
        self.attempt += 1;
        let attempt = self.attempt;
        let Hop { number: hop, from, to, .. } = self.hop;
        let (key, streams) = (self.key.clone(), ends.options.streams);
        let ports = ends.options.ports;
        let orders = match self.ways.front() {
            Some(Way::Pipe) => vec![(to, Order::Open { hop, attempt })],
            Some(Way::Fabric) => {
                let offer = ends.to.offer.clone().unwrap_or_default();
                vec![(from, Order::Initiate { hop, attempt, offer })]
            }
            Some(Way::Tcp) => {
                vec![(to, Order::Listen { hop, attempt, key, ports, streams })]
            }
            Some(Way::TcpReversed) => {
                vec![(from, Order::Listen { hop, attempt, key, ports, streams })]
            }
            Some(Way::Relay) => {
                vec![(from, Order::Relay { hop, attempt }), (to, Order::Relay { hop, attempt })]
            }
            None => return Step::Failed(std::mem::take(&mut self.tried)),
        };
        Step::Orders(orders)
    }

    /// Takes what an agent says about this hop.
    pub fn take(&mut self, agent: usize, report: Report, ends: &Ends<'_>) -> Step {
        let nothing = Step::Orders(Vec::new());
        let Some(way) = self.ways.front().copied().filter(|_| !self.is_done) else { return nothing };
        if attempt_of(&report) != Some(self.attempt) {
            return nothing;
        }
        let attempt = self.attempt;
        let Hop { number: hop, from, to, .. } = self.hop;
        let key = self.key.clone();
        match (way, report) {
            (_, Report::Unreachable { why, .. }) => {
                let who = if agent == from { ends.names[0] } else { ends.names[1] };
                self.tried.push(format!("{}: {}: {why}", way.name(), who.unwrap_or(HERE)));
                self.ways.pop_front();
                self.begin(ends)
            }
            (_, Report::Connected { description, .. }) => self.connect(agent, way, description, ends),
            (Way::Pipe, Report::Doorway { bytes, .. }) if agent == to => {
                Step::Orders(vec![(from, Order::Hand { hop, attempt, doorway: bytes })])
            }
            (Way::Fabric, Report::Half { bytes, .. }) if agent == from => {
                Step::Orders(vec![(to, Order::Accept { hop, attempt, request: bytes })])
            }
            (Way::Fabric, Report::Half { bytes, .. }) => {
                let ours = Order::Finish { hop, attempt, key: key.clone(), answer: bytes };
                let theirs = Order::Finish { hop, attempt, key, answer: Vec::new() };
                Step::Orders(vec![(from, ours), (to, theirs)])
            }
            (Way::Tcp | Way::TcpReversed, Report::Listening { port, .. }) => {
                let is_reversed = way == Way::TcpReversed;
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
                Step::Orders(vec![(
                    connecting,
                    Order::Connect { hop, attempt, key, addresses, names, streams },
                )])
            }
            _ => nothing,
        }
    }

    fn connect(&mut self, agent: usize, way: Way, description: String, ends: &Ends<'_>) -> Step {
        let attempt = self.attempt;
        let Hop { number: hop, from, to, .. } = self.hop;
        let place = usize::from(agent != from);
        if let Some(end) = self.connected.get_mut(place) {
            *end = Some(description);
        }
        // The reading end of a pipe is on its way once its writing end is there.
        if way == Way::Pipe && agent == from && self.connected[1].is_none() {
            return Step::Orders(vec![(to, Order::Take { hop, attempt })]);
        }
        let [Some(sender), Some(receiver)] = &self.connected else { return Step::Orders(Vec::new()) };
        self.is_done = true;
        // The side that connected knows the address that led to the other.
        let description = if way == Way::TcpReversed { receiver } else { sender }.clone();
        let description = match way {
            Way::TcpReversed => format!("{description} (connected by {})", ends.names[1].unwrap_or(HERE)),
            _ => description,
        };
        Step::Joined(Joined { way, description, tried: std::mem::take(&mut self.tried) })
    }
}

impl Way {
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

fn attempt_of(report: &Report) -> Option<u32> {
    match report {
        Report::Listening { attempt, .. }
        | Report::Half { attempt, .. }
        | Report::Doorway { attempt, .. }
        | Report::Connected { attempt, .. }
        | Report::Unreachable { attempt, .. } => Some(*attempt),
        _ => None,
    }
}

fn ways(hop: Hop, ends: &Ends<'_>) -> Vec<Way> {
    let is_one_host = ends.from.place.is_same_host(&ends.to.place);
    let can_share = is_one_host && ends.from.place.apart(&ends.to.place).is_none();
    match ends.options.transport {
        Some(Transport::Rdma) => vec![Way::Fabric],
        Some(Transport::Tcp) => vec![Way::Tcp, Way::TcpReversed],
        Some(Transport::Ssh) => vec![Way::Relay],
        None => {
            // Handing a pipe over proves that both are on one host. Where it fails, they only look alike.
            let pipe = (can_share && hop.can_be_pipe).then_some(Way::Pipe);
            pipe.into_iter().chain([Way::Fabric, Way::Tcp, Way::TcpReversed, Way::Relay]).collect()
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
        let ends = Ends { from: &from, to: &to, names: [Some("a"), Some("b")], options: &options };
        let hop = Hop { number: 1, from: 0, to: 1, can_be_pipe: true };
        let mut joining = Joining::new(hop, &ends).expect("random");
        let Step::Orders(orders) = joining.begin(&ends) else { panic!("no orders") };
        assert!(matches!(orders[..], [(1, Order::Open { hop: 1, attempt: 1 })]), "{orders:?}");
        let why = "nobody is there".to_owned();
        let step = joining.take(0, Report::Unreachable { hop: 1, why, attempt: 1 }, &ends);
        let Step::Orders(orders) = step else { panic!("no orders") };
        assert!(matches!(orders[..], [(0, Order::Initiate { hop: 1, attempt: 2, .. })]), "{orders:?}");
    }
}
