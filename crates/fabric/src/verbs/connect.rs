//! How two sides make a connection: by three messages over the control channel, and then a greeting over
//! the connection itself, which proves that packets get through.
//!
//! | accepting side | | initiating side |
//! |---|---|---|
//! | its ports | -> | chooses a pair; makes its half |
//! | makes its half, connects it | <- | the choice, its half |
//! | its half | -> | connects its half; greets |
//! | greets | | |
//!
//! On iWARP the connection manager makes the connection in place of "connects": the accepting side
//! listens on an ephemeral port for a peer that knows a nonce, and the side that asked must be the first to
//! send (RFC 5044, 7.1).
//!
//! [`PendingEndpoint::advance`] never waits longer than its caller allows, so that one thread can make many
//! connections, and two sides need not wait for each other at the same time. It goes through these phases:
//!
//! | phase | side | ends when |
//! |---|---|---|
//! | requested | initiating | it has the answer: connects and greets, or makes the manager look for the peer |
//! | resolving | initiating, iWARP | the manager has found the address, and then the route: asks it to connect |
//! | asking | initiating, iWARP | the manager reports the connection: greets |
//! | listening | accepting, iWARP | a peer that knows the nonce has asked: accepts it |
//! | accepted | accepting, iWARP | the manager reports the connection |
//! | connected | accepting | the peer has greeted: greets |
//! | greeted | both | the peer has greeted, and this side's greeting has arrived |

use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use caravan_segment::{Pages, Segment};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;

use super::choose::choose;
use super::cm::{CmEvent, Id};
use super::device::{Fabric, ReadDepths};
use super::domain::Domain;
use super::endpoint::{ExposedPeer, VerbsEndpoint};
use super::limits::*;
use super::message::{self, ConnectAnswer, ConnectRequest, Nonce, Port, QueuePairHalf};
use super::obstacle::Obstacle;
use super::ports::{self, Usable};
use super::quirks::Quirk;
use super::resources::{ConnectionMemory, Depths, QueuePairPath, Resources, own_bytes};
use crate::contract::{Armed, Capabilities, Endpoint, Error, Exposure, Provider};

/// When the initiating side greets again, in milliseconds after its first greeting, on devices that may
/// miss the first. Each greeting takes one of the spare receives.
const GREET_AGAIN_MS: [u64; 2] = [100, 500];

/// Half of a connection. Dropping it gives all its resources back.
#[derive(Debug)]
pub struct PendingEndpoint {
    phase: Box<ConnectPhase>,
}

/// The result of [`PendingEndpoint::advance`].
#[derive(Debug)]
pub enum ConnectProgress {
    /// The connection works.
    Connected(Box<dyn Endpoint>),
    /// The peer's device has not answered yet.
    Waiting(PendingEndpoint),
}

/// Returns the accepting side's usable ports, as bytes for the peer, over a channel that has authenticated it.
pub fn offer() -> Result<Vec<u8>, Error> {
    Ok(message::offer(&usable()?))
}

/// On the initiating side: chooses a pair of ports, and makes this side's half of the connection. The
/// returned bytes are for the peer's [`accept`].
pub fn connect(offer: &[u8], exposure: &Exposure) -> Result<(PendingEndpoint, Vec<u8>), Error> {
    connect_in(&Domain::new(), offer, exposure)
}

/// Does what [`connect`] does, in a domain.
pub(super) fn connect_in(
    domain: &Domain,
    offer: &[u8],
    exposure: &Exposure,
) -> Result<(PendingEndpoint, Vec<u8>), Error> {
    connect_by(domain, &usable()?, offer, exposure)
}

/// Does what [`connect`] does, from one of the ports `ours` of this machine.
pub fn connect_from(
    ours: &[Port],
    offer: &[u8],
    exposure: &Exposure,
) -> Result<(PendingEndpoint, Vec<u8>), Error> {
    connect_by(&Domain::new(), ours, offer, exposure)
}

fn connect_by(
    domain: &Domain,
    ours: &[Port],
    offer: &[u8],
    exposure: &Exposure,
) -> Result<(PendingEndpoint, Vec<u8>), Error> {
    let theirs = message::parse_offer(offer)?;
    let (our, their) = choose(ours, &theirs, ports::route, ports::is_near)?;
    let (resources, own) = make_half(domain, our, exposure)?;
    let request = ConnectRequest { chosen: their.clone(), half: own.clone() }.to_bytes();
    Ok((ConnectPhase::Requested { resources, own }.pending(), request))
}

/// On the accepting side: makes the other half, for the bytes that the peer's [`connect`] returned. The returned
/// bytes are for the peer's [`PendingEndpoint::finish`].
pub fn accept(request: &[u8], exposure: &Exposure) -> Result<(PendingEndpoint, Vec<u8>), Error> {
    accept_in(&Domain::new(), request, exposure)
}

/// Does what [`accept`] does, in a domain.
pub(super) fn accept_in(
    domain: &Domain,
    request: &[u8],
    exposure: &Exposure,
) -> Result<(PendingEndpoint, Vec<u8>), Error> {
    let ConnectRequest { chosen, half: peer } = ConnectRequest::parse(request)?;
    let ours = usable()?;
    let is_chosen =
        |port: &&Port| (&port.device, port.number, port.gid) == (&chosen.device, chosen.number, chosen.gid);
    let our = ours.iter().find(is_chosen).ok_or_else(|| protocol("it chose a port that was not offered"))?;
    if peer.port.fabric != our.fabric {
        return Err(protocol("it chose a port of another kind than its own"));
    }
    let (mut resources, own) = make_half(domain, our, exposure)?;
    let mut answer = ConnectAnswer { half: own.clone(), listener: 0, nonce: Nonce::default() };
    if our.fabric == Fabric::Iwarp {
        random(&mut answer.nonce)?;
        answer.listener = resources.managed().map_or(Ok(0), Id::listen)?;
        let halves = Halves { resources, own, peer };
        let phase = ConnectPhase::Listening { halves, nonce: answer.nonce, refused: 0 };
        return Ok((phase.pending(), answer.to_bytes()));
    }
    resources.connect(&path(&own, &peer))?;
    let mut endpoint = Halves { resources, own, peer }.endpoint()?;
    bind(&mut endpoint)?;
    Ok((ConnectPhase::Connected(endpoint).pending(), answer.to_bytes()))
}

impl PendingEndpoint {
    /// Blocks until the peer's device has answered, for `limit` at most. The initiating side passes the
    /// bytes of the peer's [`accept`], the accepting side nothing.
    pub fn finish(self, answer: &[u8], limit: Duration) -> Result<Box<dyn Endpoint>, Error> {
        match self.advance(answer, limit, Instant::now() + limit)? {
            ConnectProgress::Connected(endpoint) => Ok(endpoint),
            ConnectProgress::Waiting(pending) => Err(pending.unanswered(limit)),
        }
    }

    /// Does what [`finish`](Self::finish) does, but blocks until `pause` at most, and may be called again.
    /// The caller gives up after `limit`, which only errors name.
    pub fn advance(self, answer: &[u8], limit: Duration, pause: Instant) -> Result<ConnectProgress, Error> {
        let mut phase = *self.phase;
        loop {
            let port = phase.port().clone();
            phase = match phase.step(answer, limit, pause).map_err(|error| unreached(error, &port, limit))? {
                ConnectStep::To(next) => next,
                ConnectStep::Wait(phase) => return Ok(ConnectProgress::Waiting(phase.pending())),
                ConnectStep::Over(endpoint) => return Ok(ConnectProgress::Connected(Box::new(endpoint))),
            };
        }
    }

    /// Returns the error that says that the peer has not answered for as long as `limit`.
    pub fn unanswered(&self, limit: Duration) -> Error {
        no_answer(self.phase.port(), limit)
    }
}

/// Returns this machine's usable ports, or the first obstacle if there are none.
fn usable() -> Result<Vec<Port>, Error> {
    let Usable { ports, mut obstacles } = ports::usable();
    match ports.is_empty() {
        false => Ok(ports),
        true if obstacles.is_empty() => Err(Obstacle::NoDevice.into()),
        true => Err(obstacles.swap_remove(0).into()),
    }
}

/// Makes everything of this side at `port`, and the half that the peer must know.
fn make_half(domain: &Domain, port: &Port, exposure: &Exposure) -> Result<(Resources, QueuePairHalf), Error> {
    let depths = Depths { send: SEND_DEPTH, receive: IMMEDIATE_CREDIT + RECEIVE_RESERVE };
    let domain = domain.at(port)?;
    let managed = match port.fabric {
        Fabric::Iwarp => Some(Id::bind(port.ip())?),
        Fabric::InfiniBand | Fabric::Roce => None,
    };
    let arena_bytes = exposure.arena_bytes.next_multiple_of(PAGE_BYTES);
    let own_bytes = own_bytes(depths).next_multiple_of(PAGE_BYTES);
    let segment = Arc::new(Segment::create("caravan-rdma", arena_bytes + own_bytes, Pages::Small)?);
    segment.grow(arena_bytes + own_bytes)?;
    let memory = ConnectionMemory {
        arena: segment.slice(0, exposure.arena_bytes)?,
        own: segment.slice(arena_bytes, own_bytes)?,
    };
    let by_manager = managed.is_some();
    let mut resources = Resources::new(domain, managed, memory, exposure, depths)?;
    if !by_manager {
        resources.make_queue_pair()?;
    }
    let mut sequence = [0; 4];
    random(&mut sequence)?;
    let facts = resources.context().facts();
    let half = QueuePairHalf {
        port: port.clone(),
        queue_pair: resources.queue_pair_number(),
        // A random first sequence number of 24 bits makes packets hard to forge.
        sequence: u32::from_ne_bytes(sequence) >> 8,
        reads: facts.reads_max.at_most(READS_MAX as u8),
        swaps: facts.swaps,
        immediate_credit: IMMEDIATE_CREDIT,
        memory: resources.remote_memory(),
        exposed: exposure.exposed.clone(),
    };
    Ok((resources, half))
}

/// This side's objects, and the halves of both sides.
#[derive(Debug)]
struct Halves {
    resources: Resources,
    own: QueuePairHalf,
    peer: QueuePairHalf,
}

/// Returns how many reads and swaps each side of this connection may have under way.
fn reads(own: &QueuePairHalf, peer: &QueuePairHalf) -> ReadDepths {
    ReadDepths {
        initiator: own.reads.initiator.min(peer.reads.responder),
        responder: own.reads.responder.min(peer.reads.initiator),
    }
}

fn path(own: &QueuePairHalf, peer: &QueuePairHalf) -> QueuePairPath {
    QueuePairPath {
        port: own.port.number,
        gid_index: own.port.gid_index,
        gid: peer.port.gid,
        lid: peer.port.lid,
        is_global: own.port.fabric == Fabric::Roce || peer.port.lid == 0,
        mtu: own.port.mtu.min(peer.port.mtu),
        queue_pair: peer.queue_pair,
        own_sequence: own.sequence,
        peer_sequence: peer.sequence,
        reads: reads(own, peer),
    }
}

impl Halves {
    /// Makes the endpoint of a queue pair that is connected.
    fn endpoint(self) -> Result<VerbsEndpoint, Error> {
        let Self { resources, own, peer } = self;
        let operation_bytes_max = resources.context().port(own.port.number)?.operation_bytes_max;
        let capabilities = Capabilities {
            // A receive completes after everything that was sent before it: IBA 1.4, 9.5 and 9.7.5;
            // RFC 5040, 5.3 and 5.5.
            immediates_ordered: true,
            compare_and_swap: own.swaps.exist && peer.swaps.exist,
            atomic_with_processor: own.swaps.atomic_with_processor && peer.swaps.atomic_with_processor,
            target_progress: true,
            memory_windows: resources.has_window(),
            revokes_for_certain: true,
            // On iWARP an operation completes once this side's TCP has it.
            completes_early: resources.managed().is_some(),
            operation_bytes_max: operation_bytes_max.min(OPERATION_BYTES_MAX),
            ..Capabilities::default()
        };
        let description =
            format!("{}, {} -> {}", own.port.describe(), own.port.address(), peer.port.address());
        let reads = u32::from(reads(&own, &peer).initiator);
        let peer = ExposedPeer {
            memory: peer.memory,
            exposed: peer.exposed,
            immediate_credit: peer.immediate_credit,
            reads,
        };
        Ok(VerbsEndpoint::new(resources, peer, capabilities, own.port, description))
    }

    fn manager(&self) -> Result<&Id, Error> {
        let missing = || self.resources.device_error("it has no connection manager".to_owned());
        self.resources.managed().ok_or_else(missing)
    }

    /// Returns the connection manager's next event, unless none comes until `pause`. An end is an error.
    fn event(&self, pause: Instant) -> Result<Option<CmEvent>, Error> {
        let id = self.manager()?;
        loop {
            match id.poll()? {
                Some(CmEvent::Ended(why)) => return Err(Error::PeerGone(Provider::Rdma, why)),
                Some(event) => return Ok(Some(event)),
                None if Instant::now() >= pause => return Ok(None),
                None => wait_readable(&[id.descriptor()], pause)?,
            };
        }
    }

    fn unexpected(&self, event: &CmEvent) -> Error {
        self.resources.device_error(format!("the connection manager reported {event:?} out of turn"))
    }

    /// On the initiating side, once the manager has found the route to the peer: asks the peer to connect.
    fn ask(mut self, nonce: &Nonce) -> Result<ConnectStep, Error> {
        self.resources.make_queue_pair()?;
        self.resources.post_receives(IMMEDIATE_CREDIT + RECEIVE_RESERVE)?;
        self.manager()?.connect(nonce, reads(&self.own, &self.peer))?;
        Ok(ConnectStep::To(ConnectPhase::Asking(self)))
    }

    /// On the accepting side: accepts `caller`, which has asked and knows the nonce.
    fn serve(mut self, caller: Id) -> Result<ConnectStep, Error> {
        // All memory is registered with the device of the listener.
        if caller.context()?.name() != self.resources.context().name() {
            return Err(protocol("it connected to another device than it chose"));
        }
        let _listener = self.resources.set_managed(caller);
        self.resources.make_queue_pair()?;
        self.resources.post_receives(IMMEDIATE_CREDIT + RECEIVE_RESERVE)?;
        self.manager()?.accept(reads(&self.own, &self.peer))?;
        Ok(ConnectStep::To(ConnectPhase::Accepted(self)))
    }
}

/// See the table at the top of the file.
#[derive(Debug)]
enum ConnectPhase {
    Requested {
        resources: Resources,
        own: QueuePairHalf,
    },
    Resolving {
        halves: Halves,
        /// The peer's listener accepts a caller that knows the nonce.
        nonce: Nonce,
        has_address: bool,
    },
    Asking(Halves),
    Listening {
        halves: Halves,
        /// The peer must know the nonce.
        nonce: Nonce,
        /// The number of strangers that did not know the nonce.
        refused: u32,
    },
    Accepted(Halves),
    Connected(VerbsEndpoint),
    Greeted {
        endpoint: VerbsEndpoint,
        /// When to greet again.
        again: Vec<Instant>,
    },
}

/// What follows a step of a phase.
enum ConnectStep {
    To(ConnectPhase),
    /// The phase goes on: its event has not come.
    Wait(ConnectPhase),
    Over(VerbsEndpoint),
}

impl ConnectPhase {
    fn pending(self) -> PendingEndpoint {
        PendingEndpoint { phase: Box::new(self) }
    }

    fn port(&self) -> &Port {
        match self {
            Self::Requested { own, .. } => &own.port,
            Self::Resolving { halves, .. }
            | Self::Asking(halves)
            | Self::Listening { halves, .. }
            | Self::Accepted(halves) => &halves.own.port,
            Self::Connected(endpoint) | Self::Greeted { endpoint, .. } => endpoint.port(),
        }
    }

    fn step(self, answer: &[u8], limit: Duration, pause: Instant) -> Result<ConnectStep, Error> {
        match self {
            Self::Requested { resources, own } => answered(resources, own, answer, limit),
            Self::Resolving { halves, nonce, has_address } => match halves.event(pause)? {
                None => Ok(ConnectStep::Wait(Self::Resolving { halves, nonce, has_address })),
                Some(CmEvent::Done) if has_address => halves.ask(&nonce),
                Some(CmEvent::Done) => {
                    halves.manager()?.resolve_route(limit)?;
                    Ok(ConnectStep::To(Self::Resolving { halves, nonce, has_address: true }))
                }
                Some(event) => Err(halves.unexpected(&event)),
            },
            Self::Asking(halves) => match halves.event(pause)? {
                None => Ok(ConnectStep::Wait(Self::Asking(halves))),
                Some(CmEvent::Established) => greet(halves.endpoint()?),
                Some(event) => Err(halves.unexpected(&event)),
            },
            Self::Listening { halves, nonce, refused } => match halves.event(pause)? {
                None => Ok(ConnectStep::Wait(Self::Listening { halves, nonce, refused })),
                Some(CmEvent::Request { id, hello }) if hello.starts_with(&nonce) => halves.serve(id),
                Some(CmEvent::Request { .. }) if refused + 1 == REFUSALS_MAX => {
                    let what = format!("{REFUSALS_MAX} strangers asked for a connection in the peer's place");
                    Err(halves.resources.device_error(what))
                }
                Some(event) => {
                    let refused = refused + u32::from(event.reject());
                    Ok(ConnectStep::To(Self::Listening { halves, nonce, refused }))
                }
            },
            Self::Accepted(halves) => match halves.event(pause)? {
                None => Ok(ConnectStep::Wait(Self::Accepted(halves))),
                Some(CmEvent::Established) => Ok(ConnectStep::To(Self::Connected(halves.endpoint()?))),
                Some(event) => {
                    event.reject();
                    Ok(ConnectStep::To(Self::Accepted(halves)))
                }
            },
            Self::Connected(mut endpoint) => {
                if !wait_until(&mut endpoint, pause, VerbsEndpoint::is_greeted)? {
                    return Ok(ConnectStep::Wait(Self::Connected(endpoint)));
                }
                endpoint.greet()?;
                Ok(ConnectStep::To(Self::Greeted { endpoint, again: Vec::new() }))
            }
            Self::Greeted { endpoint, again } => greeted(endpoint, again, pause),
        }
    }
}

/// Continues with the peer's answer: connects, or makes the manager look for the peer.
fn answered(
    mut resources: Resources,
    own: QueuePairHalf,
    answer: &[u8],
    limit: Duration,
) -> Result<ConnectStep, Error> {
    let ConnectAnswer { half: peer, listener, nonce } = ConnectAnswer::parse(answer)?;
    if peer.port.fabric != own.port.fabric {
        return Err(protocol("it answered with a port of another kind"));
    }
    if own.port.fabric == Fabric::Iwarp {
        let halves = Halves { resources, own, peer };
        halves.manager()?.resolve_address(SocketAddr::new(halves.peer.port.ip(), listener), limit)?;
        return Ok(ConnectStep::To(ConnectPhase::Resolving { halves, nonce, has_address: false }));
    }
    resources.connect(&path(&own, &peer))?;
    greet(Halves { resources, own, peer }.endpoint()?)
}

/// Sends the greeting of the initiating side, which is connected.
fn greet(mut endpoint: VerbsEndpoint) -> Result<ConnectStep, Error> {
    bind(&mut endpoint)?;
    endpoint.greet()?;
    let again = match endpoint.resources().context().has(Quirk::MissesFirstWord) {
        true => GREET_AGAIN_MS.map(|after| Instant::now() + Duration::from_millis(after)).to_vec(),
        false => Vec::new(),
    };
    Ok(ConnectStep::To(ConnectPhase::Greeted { endpoint, again }))
}

/// Waits, after this side's greeting, for the peer's greeting and for the arrival of its own.
fn greeted(
    mut endpoint: VerbsEndpoint,
    mut again: Vec<Instant>,
    pause: Instant,
) -> Result<ConnectStep, Error> {
    let due = again.first().copied();
    let is_done = |endpoint: &VerbsEndpoint| endpoint.is_greeted() && endpoint.is_flushed();
    if wait_until(&mut endpoint, due.map_or(pause, |due| due.min(pause)), is_done)? {
        return Ok(ConnectStep::Over(endpoint));
    }
    if due.is_some_and(|due| Instant::now() >= due) {
        again.remove(0);
        endpoint.greet()?;
        return Ok(ConnectStep::To(ConnectPhase::Greeted { endpoint, again }));
    }
    Ok(ConnectStep::Wait(ConnectPhase::Greeted { endpoint, again }))
}

/// Makes the peer's key valid, where the key is a memory window's.
fn bind(endpoint: &mut VerbsEndpoint) -> Result<(), Error> {
    if endpoint.resources().has_window() {
        endpoint.bind()?;
        if !wait_until(endpoint, Instant::now() + BINDING_LIMIT, VerbsEndpoint::is_flushed)? {
            let what = format!("it has not bound a memory window within {} s", BINDING_LIMIT.as_secs());
            return Err(endpoint.resources().device_error(what));
        }
    }
    Ok(())
}

/// Waits until `is_done`. False if `pause` comes first.
fn wait_until(
    endpoint: &mut VerbsEndpoint,
    pause: Instant,
    is_done: impl Fn(&VerbsEndpoint) -> bool,
) -> Result<bool, Error> {
    loop {
        // Armed before the check: a later message raises an event, and an earlier one is seen.
        let armed = endpoint.arm()?;
        endpoint.collect()?;
        if is_done(endpoint) {
            return Ok(true);
        }
        if Instant::now() >= pause {
            return Ok(false);
        }
        if armed == Armed::Wait {
            let waiting =
                [Some(endpoint.resources().wait_fd()), endpoint.resources().managed().map(Id::descriptor)];
            wait_readable(&waiting.into_iter().flatten().collect::<Vec<_>>(), pause)?;
            endpoint.acknowledge()?;
            endpoint.check_manager()?;
        }
    }
}

/// Waits until one of `descriptors` is readable, until `deadline` at most.
fn wait_readable(descriptors: &[BorrowedFd<'_>], deadline: Instant) -> Result<(), Error> {
    let mut set: Vec<_> = descriptors.iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
    let left = deadline.saturating_duration_since(Instant::now());
    let limit = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
    match rustix::event::poll(&mut set, Some(&limit)) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(source) => Err(Error::System { call: "poll", source: source.into() }),
    }
}

/// While a connection is being made, a peer that is gone is reported as one that was not reached.
fn unreached(error: Error, port: &Port, limit: Duration) -> Error {
    use std::io::ErrorKind::{ConnectionRefused, HostUnreachable, NetworkUnreachable, TimedOut};
    match error {
        Error::PeerGone(..) => no_answer(port, limit),
        // siw connects within the call itself, which takes as long as `net.ipv4.tcp_syn_retries` allows.
        Error::System { call: "rdma_connect", source }
            if matches!(
                source.kind(),
                ConnectionRefused | HostUnreachable | NetworkUnreachable | TimedOut
            ) =>
        {
            no_answer(port, limit)
        }
        other => other,
    }
}

fn no_answer(port: &Port, limit: Duration) -> Error {
    let hint = match port.fabric {
        Fabric::Roce => "a firewall that drops UDP port 4791 is the usual cause",
        Fabric::Iwarp => "a firewall that drops TCP connections to ephemeral ports is the usual cause",
        Fabric::InfiniBand => "see whether `ibping` gets through, and whether a subnet manager runs",
    };
    Obstacle::NoAnswer { device: port.device.clone(), seconds: limit.as_secs(), hint }.into()
}

fn random(bytes: &mut [u8]) -> Result<(), Error> {
    match rustix::rand::getrandom(&mut *bytes, rustix::rand::GetRandomFlags::empty()) {
        Ok(count) if count == bytes.len() => Ok(()),
        Ok(_) => Err(Error::System { call: "getrandom", source: std::io::ErrorKind::UnexpectedEof.into() }),
        Err(source) => Err(Error::System { call: "getrandom", source: source.into() }),
    }
}

fn protocol(what: &str) -> Error {
    Error::Protocol(Provider::Rdma, what.to_owned())
}
