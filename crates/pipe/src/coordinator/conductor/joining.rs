//! Joins a hop: tries the methods in order, until both ends are connected.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use super::endings::PipelineTrouble;
use super::{Conductor, KnownAgent, Notice};
use crate::control::{AgentOrder, Hello, HopOrder, HopReport};
use crate::coordinator::agents::{AgentChannel, both_ways};
use crate::coordinator::{Encryption, HopTransport, PipelineOptions};
use crate::limits::ADDRESSES_MAX;
use crate::plan::{HERE, Hop, HopCarrier, PipelinePlan};
use crate::{PipeKey, lock, plan};

/// A method to connect a hop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HopMethod {
    /// A pipe, which one agent hands to the other.
    Pipe,
    /// RDMA.
    Fabric,
    /// TCP; the receiver listens.
    Tcp,
    /// TCP; the sender listens.
    TcpReversed,
    /// The data go through the coordinator.
    Relay,
}

/// The state of a hop that is being joined.
pub struct Joining {
    hop: Hop,
    key: PipeKey,
    methods: VecDeque<HopMethod>,
    tried: Vec<String>,
    /// The number of the current attempt: reports about an earlier one are dropped.
    attempt: u32,
    connected: [Option<String>; 2],
    is_done: bool,
}

/// How a hop was joined.
pub struct Joined {
    pub method: HopMethod,
    pub description: String,
    /// The methods that failed, and why.
    pub tried: Vec<String>,
}

/// What follows from a report.
pub enum JoiningStep {
    /// Orders, each for an agent.
    Orders(Vec<(usize, HopOrder)>),
    /// The hop is joined.
    Joined(Joined),
    /// No method is left; the reasons, in sentences.
    Failed(Vec<String>),
}

/// The two agents of a hop.
pub struct HopEnds<'a> {
    pub from: &'a Hello,
    pub to: &'a Hello,
    /// The hosts as the user named them; `None` for this one.
    pub names: [Option<&'a str>; 2],
    pub options: &'a PipelineOptions,
}

impl Joining {
    pub fn new(hop: Hop, ends: &HopEnds<'_>) -> Result<Self, crate::Error> {
        let mut methods: VecDeque<HopMethod> = methods(hop, ends).into();
        let mut tried = Vec::new();
        if methods.contains(&HopMethod::Fabric) {
            for (hello, name) in [(ends.from, ends.names[0]), (ends.to, ends.names[1])] {
                let why = hello.offer.as_ref().err();
                tried.extend(why.map(|why| format!("RDMA: {}: {why}", name.unwrap_or(HERE))));
            }
        }
        if !tried.is_empty() {
            methods.retain(|method| *method != HopMethod::Fabric);
        }
        // If neither host has an RDMA device, there is nothing to report, unless RDMA was demanded.
        if tried.len() == 2 && !methods.is_empty() {
            tried.clear();
        }
        let (key, connected) = (PipeKey::random()?, [None, None]);
        Ok(Self { hop, key, methods, tried, attempt: 0, connected, is_done: false })
    }

    /// Starts the first method.
    pub fn begin(&mut self, ends: &HopEnds<'_>) -> JoiningStep {
        self.connected = [None, None];
        self.attempt += 1;
        let Hop { from, to, .. } = self.hop;
        let (key, streams) = (self.key.clone(), ends.options.streams);
        let ports = ends.options.ports;
        let orders = match self.methods.front() {
            Some(HopMethod::Pipe) => vec![(to, HopOrder::Open)],
            Some(HopMethod::Fabric) => {
                let offer = ends.to.offer.clone().unwrap_or_default();
                vec![(from, HopOrder::Initiate(offer))]
            }
            Some(HopMethod::Tcp) => vec![(to, HopOrder::Listen { key, ports, streams })],
            Some(HopMethod::TcpReversed) => vec![(from, HopOrder::Listen { key, ports, streams })],
            Some(HopMethod::Relay) => vec![(from, HopOrder::Relay), (to, HopOrder::Relay)],
            None => return JoiningStep::Failed(std::mem::take(&mut self.tried)),
        };
        JoiningStep::Orders(orders)
    }

    /// Takes an agent's report about this hop.
    pub fn take(&mut self, agent: usize, attempt: u32, report: HopReport, ends: &HopEnds<'_>) -> JoiningStep {
        let nothing = JoiningStep::Orders(Vec::new());
        let Some(method) = self.methods.front().copied().filter(|_| !self.is_done) else { return nothing };
        if attempt != self.attempt {
            return nothing;
        }
        let Hop { from, to, .. } = self.hop;
        let key = self.key.clone();
        match (method, report) {
            (_, HopReport::Unreachable(why)) => {
                let who = if agent == from { ends.names[0] } else { ends.names[1] };
                self.tried.push(format!("{}: {}: {why}", method.name(), who.unwrap_or(HERE)));
                self.methods.pop_front();
                self.begin(ends)
            }
            (_, HopReport::Connected(description)) => self.connect(agent, method, description, ends),
            (HopMethod::Pipe, HopReport::Doorway(bytes)) if agent == to => {
                JoiningStep::Orders(vec![(from, HopOrder::Hand(bytes))])
            }
            (HopMethod::Fabric, HopReport::Half(bytes)) if agent == from => {
                JoiningStep::Orders(vec![(to, HopOrder::Accept(bytes))])
            }
            (HopMethod::Fabric, HopReport::Half(bytes)) => {
                let ours = HopOrder::Finish { key: key.clone(), answer: bytes };
                let theirs = HopOrder::Finish { key, answer: Vec::new() };
                JoiningStep::Orders(vec![(from, ours), (to, theirs)])
            }
            (HopMethod::Tcp | HopMethod::TcpReversed, HopReport::Listening(port)) => {
                let (listener, name, connector, connecting) = match method {
                    HopMethod::TcpReversed => (ends.from, ends.names[0], ends.to, to),
                    _ => (ends.to, ends.names[1], ends.from, from),
                };
                if agent == connecting {
                    return nothing;
                }
                let addresses = addresses(listener, connector, name.is_none());
                let addresses = addresses.into_iter().map(|address| SocketAddr::new(address, port)).collect();
                let known = name.or(ends.options.here.as_deref());
                let names = known.map(|name| (host_part(name).to_owned(), port)).into_iter().collect();
                let streams = ends.options.streams;
                JoiningStep::Orders(vec![(connecting, HopOrder::Connect { key, addresses, names, streams })])
            }
            _ => nothing,
        }
    }

    fn connect(
        &mut self,
        agent: usize,
        method: HopMethod,
        description: String,
        ends: &HopEnds<'_>,
    ) -> JoiningStep {
        let Hop { from, to, .. } = self.hop;
        let place = usize::from(agent != from);
        if let Some(end) = self.connected.get_mut(place) {
            *end = Some(description);
        }
        // Once the pipe's writing end is there, its reading end is on its way.
        if method == HopMethod::Pipe && agent == from && self.connected[1].is_none() {
            return JoiningStep::Orders(vec![(to, HopOrder::Take)]);
        }
        let [Some(sender), Some(receiver)] = &self.connected else { return JoiningStep::Orders(Vec::new()) };
        self.is_done = true;
        // The side that connected knows the address of the other.
        let description = if method == HopMethod::TcpReversed { receiver } else { sender }.clone();
        let description = match method {
            HopMethod::TcpReversed => {
                format!("{description} (connected by {})", ends.names[1].unwrap_or(HERE))
            }
            _ => description,
        };
        JoiningStep::Joined(Joined { method, description, tried: std::mem::take(&mut self.tried) })
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

fn methods(hop: Hop, ends: &HopEnds<'_>) -> Vec<HopMethod> {
    let is_one_host = ends.from.place.is_same_host(&ends.to.place);
    let can_share = is_one_host && ends.from.place.apart(&ends.to.place).is_none();
    match ends.options.transport {
        Some(HopTransport::Rdma) => vec![HopMethod::Fabric],
        Some(HopTransport::Tcp) => vec![HopMethod::Tcp, HopMethod::TcpReversed],
        Some(HopTransport::Ssh) => vec![HopMethod::Relay],
        None => {
            // Handing a pipe over proves that both agents are on one host. If it fails, the hosts only look alike.
            let pipe = (can_share && hop.can_be_pipe).then_some(HopMethod::Pipe);
            pipe.into_iter()
                .chain([HopMethod::Fabric, HopMethod::Tcp, HopMethod::TcpReversed, HopMethod::Relay])
                .collect()
        }
    }
}

/// Returns the addresses at which a listener may be reached, the likeliest first.
fn addresses(listener: &Hello, connector: &Hello, is_here: bool) -> Vec<IpAddr> {
    let mut all = Vec::new();
    if listener.place.is_same_network(&connector.place) {
        all.push(IpAddr::V4(Ipv4Addr::LOCALHOST));
    }
    // The address of this host is the one from which ssh came.
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

/// Returns the host in `user@host`.
fn host_part(name: &str) -> &str {
    name.rsplit_once('@').map_or(name, |(_, host)| host)
}

impl<'a> HopEnds<'a> {
    fn of(
        hop: Hop,
        plan: &'a PipelinePlan,
        agents: &'a [KnownAgent],
        options: &'a PipelineOptions,
    ) -> Option<Self> {
        let (from, to) = (agents[hop.from].hello.as_ref()?, agents[hop.to].hello.as_ref()?);
        let names = [plan.agents[hop.from].as_deref(), plan.agents[hop.to].as_deref()];
        Some(Self { from, to, names, options })
    }
}

impl Conductor<'_> {
    /// Orders the agents to open their files, and begins to join all hops.
    pub(super) fn join(&mut self) {
        for (number, agent) in self.agents.iter_mut().enumerate() {
            let jobs = self.plan.jobs.iter().zip(0_u32..).filter(|(job, _)| job.agent == number);
            let files: Vec<_> =
                jobs.filter_map(|(job, id)| job.file.clone().map(|(path, mode)| (id, path, mode))).collect();
            match files.is_empty() {
                true => agent.is_prepared = true,
                false => agent.order(AgentOrder::Prepare { files }),
            }
        }
        for hop in self.plan.hops.clone() {
            let ends = HopEnds::of(hop, &self.plan, &self.agents, &self.request.options);
            match ends.map(|ends| Joining::new(hop, &ends)) {
                Some(Ok(joining)) => {
                    self.joinings.insert(hop.number, joining);
                    self.step(hop.number, Joining::begin);
                }
                Some(Err(error)) => self.fail(PipelineTrouble::SetUp(error.to_string()), true),
                None => {}
            }
        }
    }

    pub(super) fn step(&mut self, number: u32, step: impl FnOnce(&mut Joining, &HopEnds<'_>) -> JoiningStep) {
        let Some(joining) = self.joinings.get_mut(&number) else { return };
        let hop = joining.hop;
        let ends = HopEnds::of(hop, &self.plan, &self.agents, &self.request.options);
        let step = ends.map(|ends| step(joining, &ends));
        let attempt = joining.attempt;
        match step {
            Some(JoiningStep::Orders(orders)) => {
                for (agent, order) in orders {
                    if matches!(order, HopOrder::Relay) {
                        self.route(hop);
                    }
                    self.agents[agent].order(AgentOrder::Hop { hop: number, attempt, order });
                }
            }
            Some(JoiningStep::Joined(joined)) => self.join_hop(hop, joined),
            Some(JoiningStep::Failed(tried)) => {
                let (from, to) = (self.plan.name(hop.from), self.plan.name(hop.to));
                let text = format!("no data can go from {from} to {to}. {}", tried.join(". "));
                self.fail(PipelineTrouble::SetUp(text), true);
            }
            None => {}
        }
    }

    /// Adds the routes of a relayed hop.
    fn route(&self, hop: Hop) {
        let sender = |agent: usize| self.agents[agent].channel.as_ref().map(AgentChannel::sender);
        let (Some(from), Some(to)) = (sender(hop.from), sender(hop.to)) else { return };
        let [to_from, to_to] = both_ways(from, to);
        let mut routes = lock(&self.routes);
        // This is called once for each end; the first call adds both directions.
        routes.entry((hop.from, hop.number)).or_insert(to_to);
        routes.entry((hop.to, hop.number)).or_insert(to_from);
    }

    fn join_hop(&mut self, hop: Hop, joined: Joined) {
        let options = &self.request.options;
        let is_sealed = is_sealed(joined.method, options.sealing);
        let (from, to) = (self.plan.name(hop.from), self.plan.name(hop.to));
        for why in &joined.tried {
            let _ = self.notices.send(Notice::Note(format!("{from} -> {to}: not by {why}")));
        }
        let carrier = match joined.method {
            HopMethod::Pipe => HopCarrier::Pipe,
            // The data go through this process, which Ctrl-Z may stop for any time. Silence is noticed on the
            // control channels.
            HopMethod::Relay => HopCarrier::Connection(plan::hop_options(options, is_sealed, None)),
            _ => HopCarrier::Connection(plan::hop_options(options, is_sealed, Some(options.silence))),
        };
        let secrecy = match (joined.method, is_sealed) {
            (HopMethod::Pipe, _) => "",
            (HopMethod::Relay, _) => ", encrypted by ssh",
            (_, true) => ", encrypted",
            (_, false) => ", not encrypted",
        };
        let text = format!("{}{secrecy}", joined.description);
        let _ = self.notices.send(Notice::Note(format!("{from} -> {to}: {text}")));
        if let Some(warning) = warning(joined.method, options.sealing) {
            let _ = self.notices.send(Notice::Warn(format!("{from} -> {to}: {warning}")));
        }
        self.joined.insert(hop.number, (carrier, text));
    }
}

/// True if Caravan itself encrypts the data of a method. It also encrypts between two ends that seem to be on one
/// host: only a pipe proves that they are, because machines that were restored from one snapshot cannot be told
/// apart by their reports.
fn is_sealed(method: HopMethod, sealing: Encryption) -> bool {
    match (method, sealing) {
        // A pipe does not leave the host, and ssh encrypts.
        (HopMethod::Pipe | HopMethod::Relay, _)
        | (_, Encryption::Never)
        | (HopMethod::Fabric, Encryption::Default) => false,
        (_, Encryption::Always) | (HopMethod::Tcp | HopMethod::TcpReversed, Encryption::Default) => true,
    }
}

/// Returns what all users must know about a method on which others can listen.
fn warning(method: HopMethod, sealing: Encryption) -> Option<String> {
    if is_sealed(method, sealing) {
        return None;
    }
    let carrier = match method {
        HopMethod::Pipe | HopMethod::Relay => return None,
        HopMethod::Fabric => "RDMA",
        HopMethod::Tcp | HopMethod::TcpReversed => "TCP",
    };
    let why = if sealing == Encryption::Never { "as --insecure says" } else { "as --encrypt is not given" };
    Some(format!("over {carrier} in the clear, {why}: whoever is on the way can read and change the data"))
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

    /// Two machines restored from one snapshot: the pipe fails, and the hop gets the methods of different hosts.
    #[test]
    fn hosts_that_only_look_alike_get_what_other_hosts_have() {
        let (from, to, options) = (hello(), hello(), request(&["a:x", "b:y"]).options);
        let ends = HopEnds { from: &from, to: &to, names: [Some("a"), Some("b")], options: &options };
        let hop = Hop { number: 1, from: 0, to: 1, can_be_pipe: true };
        let mut joining = Joining::new(hop, &ends).expect("random");
        let JoiningStep::Orders(orders) = joining.begin(&ends) else { panic!("no orders") };
        assert!(matches!(orders[..], [(1, HopOrder::Open)]) && joining.attempt == 1, "{orders:?}");
        let why = "nobody is there".to_owned();
        let step = joining.take(0, 1, HopReport::Unreachable(why), &ends);
        let JoiningStep::Orders(orders) = step else { panic!("no orders") };
        assert!(matches!(orders[..], [(0, HopOrder::Initiate(_))]) && joining.attempt == 2, "{orders:?}");
    }

    #[test]
    fn what_leaves_a_process_in_the_clear_is_told_in_the_same_words() {
        let clear = |carrier: &str, why: &str| {
            Some(format!(
                "over {carrier} in the clear, {why}: whoever is on the way can read and change the data"
            ))
        };
        for (method, sealing, sealed, expected) in [
            (HopMethod::Tcp, Encryption::Default, true, None),
            (HopMethod::TcpReversed, Encryption::Always, true, None),
            (HopMethod::Tcp, Encryption::Never, false, clear("TCP", "as --insecure says")),
            (HopMethod::TcpReversed, Encryption::Never, false, clear("TCP", "as --insecure says")),
            (HopMethod::Fabric, Encryption::Default, false, clear("RDMA", "as --encrypt is not given")),
            (HopMethod::Fabric, Encryption::Never, false, clear("RDMA", "as --insecure says")),
            (HopMethod::Fabric, Encryption::Always, true, None),
            (HopMethod::Relay, Encryption::Always, false, None),
            (HopMethod::Pipe, Encryption::Never, false, None),
        ] {
            assert_eq!(is_sealed(method, sealing), sealed, "{method:?} {sealing:?}");
            assert_eq!(warning(method, sealing), expected, "{method:?} {sealing:?}");
        }
    }
}
