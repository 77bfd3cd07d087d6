//! How two sides come to a connection: three messages over the control channel, and then a first word
//! over the connection itself, which proves that packets get through.
//!
//! | accepting side | | initiating side |
//! |---|---|---|
//! | its ports | -> | chooses a pair; makes its half |
//! | makes its half, connects it | <- | the choice, its half |
//! | its half | -> | connects its half; first word |
//! | first word | | |
//!
//! On iWARP the connection manager makes the connection in the place of "connects": the accepting side
//! listens on an ephemeral port for one that knows a nonce, and the side that asked must be the first to
//! send (RFC 5044, 7.1).

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use caravan_segment::{Pages, Segment};

use super::choose::choose;
use super::cm::{Happened, Id};
use super::device::{self, Fabric};
use super::endpoint::{Peer, VerbsEndpoint};
use super::limits::*;
use super::message::{self, Half, Port};
use super::obstacle::Obstacle;
use super::ports::{self, Usable};
use super::resources::{Depths, Path, Resources, own_bytes};
use super::wait::readable;
use crate::contract::{Armed, Capabilities, Endpoint, Error, Exposure, Provider};

/// How long the binding of a memory window, which leaves no device, may take.
const BINDING_LIMIT: Duration = Duration::from_secs(1);

/// Half of a connection. Dropping it gives everything back.
#[derive(Debug)]
pub struct Pending {
    stage: Box<Stage>,
}

#[derive(Debug)]
enum Stage {
    /// The initiating side, before the answer.
    Requested(Resources, Half),
    /// The accepting side, before the first word.
    Connected(VerbsEndpoint),
    /// The accepting side, where the connection manager makes the connection: its half, the peer's,
    /// and what the peer must say.
    Listening(Resources, Half, Half, [u8; 16]),
}

/// The accepting side's usable ports, for the peer, over a channel that has authenticated it.
pub fn offer() -> Result<Vec<u8>, Error> {
    Ok(message::offer(&usable()?))
}

/// The initiating side: chooses a pair of ports, and makes its half. The bytes are for the peer.
pub fn connect(offer: &[u8], exposure: &Exposure) -> Result<(Pending, Vec<u8>), Error> {
    connect_from(&usable()?, offer, exposure)
}

/// The same from one of these ports of this machine.
pub fn connect_from(ours: &[Port], offer: &[u8], exposure: &Exposure) -> Result<(Pending, Vec<u8>), Error> {
    let theirs = message::parse_offer(offer)?;
    let (our, their) = choose(ours, &theirs, ports::route, ports::is_near)?;
    let (resources, half) = half(our, exposure)?;
    let request = message::request(their, &half);
    Ok((Pending { stage: Box::new(Stage::Requested(resources, half)) }, request))
}

/// The accepting side, with what the initiating side said. The bytes are for the peer.
pub fn accept(request: &[u8], exposure: &Exposure) -> Result<(Pending, Vec<u8>), Error> {
    let (chosen, peer) = message::parse_request(request)?;
    let ours = usable()?;
    let same =
        |port: &&Port| (&port.device, port.number, port.gid) == (&chosen.device, chosen.number, chosen.gid);
    let our = ours.iter().find(same).ok_or_else(|| protocol("it chose a port that was not offered"))?;
    if peer.port.fabric != our.fabric {
        return Err(protocol("it chose a port of another kind than its own"));
    }
    let (mut resources, half) = half(our, exposure)?;
    if our.fabric == Fabric::Iwarp {
        let mut nonce = [0; 16];
        random(&mut nonce)?;
        let listener = resources.managed().map_or(Ok(0), Id::listen)?;
        let answer = message::answer(&half, listener, nonce);
        return Ok((Pending { stage: Box::new(Stage::Listening(resources, half, peer, nonce)) }, answer));
    }
    resources.connect(&path(&half, &peer))?;
    let mut endpoint = endpoint(resources, &half, &peer)?;
    bind(&mut endpoint)?;
    let answer = message::answer(&half, 0, [0; 16]);
    Ok((Pending { stage: Box::new(Stage::Connected(endpoint)) }, answer))
}

impl Pending {
    /// The initiating side passes what the accepting side said last, the accepting side nothing.
    /// Blocks until the peer's device has answered, for `limit` at most.
    pub fn finish(self, answer: &[u8], limit: Duration) -> Result<Box<dyn Endpoint>, Error> {
        let deadline = Instant::now() + limit;
        let endpoint = match *self.stage {
            Stage::Requested(mut resources, half) => {
                let (peer, listener, nonce) = message::parse_answer(answer)?;
                if peer.port.fabric != half.port.fabric {
                    return Err(protocol("it answered with a port of another kind"));
                }
                match half.port.fabric {
                    Fabric::Iwarp => {
                        let to = SocketAddr::new(peer.port.ip(), listener);
                        ask(&mut resources, (&half, &peer), to, &nonce, deadline)?;
                    }
                    _ => resources.connect(&path(&half, &peer))?,
                }
                let mut endpoint = endpoint(resources, &half, &peer)?;
                bind(&mut endpoint)?;
                endpoint.greet()?;
                settle(&mut endpoint, (true, true), (limit, deadline))?;
                endpoint
            }
            Stage::Connected(mut endpoint) => {
                answer_greeting(&mut endpoint, (limit, deadline))?;
                endpoint
            }
            Stage::Listening(mut resources, half, peer, nonce) => {
                serve(&mut resources, (&half, &peer), &nonce, deadline)
                    .map_err(|error| unanswered(error, &half.port, limit))?;
                let mut endpoint = endpoint(resources, &half, &peer)?;
                answer_greeting(&mut endpoint, (limit, deadline))?;
                endpoint
            }
        };
        Ok(Box::new(endpoint))
    }
}

/// This machine's usable ports; where there are none, the first reason.
fn usable() -> Result<Vec<Port>, Error> {
    let Usable { ports, mut obstacles } = ports::usable();
    match ports.is_empty() {
        false => Ok(ports),
        true if obstacles.is_empty() => Err(Obstacle::NoDevice.into()),
        true => Err(obstacles.swap_remove(0).into()),
    }
}

/// Everything of this side at `port`, and what the peer must know of it.
fn half(port: &Port, exposure: &Exposure) -> Result<(Resources, Half), Error> {
    let depths = Depths { send: SEND_DEPTH, receive: WINDOW + RECEIVE_RESERVE };
    let (context, managed) = match port.fabric {
        Fabric::Iwarp => {
            let id = Id::bind(port.ip())?;
            (Arc::new(id.context()?), Some(id))
        }
        Fabric::InfiniBand | Fabric::Roce => (device::open(&port.device)?, None),
    };
    let arena_bytes = exposure.arena_bytes.next_multiple_of(PAGE_BYTES);
    let own_bytes = own_bytes(depths).next_multiple_of(PAGE_BYTES);
    let segment = Arc::new(Segment::create("caravan-rdma", arena_bytes + own_bytes, Pages::Small)?);
    segment.grow(arena_bytes + own_bytes)?;
    let memory = (segment.window(0, exposure.arena_bytes)?, segment.window(arena_bytes, own_bytes)?);
    let by_manager = managed.is_some();
    let mut resources = Resources::new(context, managed, memory, exposure, depths)?;
    if !by_manager {
        resources.make_queue_pair()?;
    }
    let mut sequence = [0; 4];
    random(&mut sequence)?;
    let facts = resources.context().facts();
    let half = Half {
        port: port.clone(),
        queue_pair: resources.queue_pair_number(),
        // 24 bits: unknown to others, so that packets are hard to forge.
        sequence: u32::from_ne_bytes(sequence) >> 8,
        reads: (facts.reads_max.0.min(READS_MAX as u8), facts.reads_max.1.min(READS_MAX as u8)),
        swaps: facts.swaps,
        window: WINDOW,
        target: resources.target(),
        exposed: (exposure.exposed.start, exposure.exposed.end - exposure.exposed.start),
    };
    Ok((resources, half))
}

/// Reads and swaps under way: ours at the peer, and the peer's here.
fn reads(half: &Half, peer: &Half) -> (u8, u8) {
    (half.reads.1.min(peer.reads.0), half.reads.0.min(peer.reads.1))
}

fn path(half: &Half, peer: &Half) -> Path {
    Path {
        port: half.port.number,
        gid_index: half.port.gid_index,
        gid: peer.port.gid,
        lid: peer.port.lid,
        is_global: half.port.fabric == Fabric::Roce || peer.port.lid == 0,
        mtu: half.port.mtu.min(peer.port.mtu),
        queue_pair: peer.queue_pair,
        sequences: (half.sequence, peer.sequence),
        reads: reads(half, peer),
    }
}

/// The endpoint of a queue pair that is connected.
fn endpoint(resources: Resources, half: &Half, peer: &Half) -> Result<VerbsEndpoint, Error> {
    let operation_bytes_max = resources.context().port(half.port.number)?.operation_bytes_max;
    let capabilities = Capabilities {
        // A receive completes after everything that was sent before it: IBA 1.4, 9.5 and 9.7.5;
        // RFC 5040, 5.3 and 5.5.
        immediates_ordered: true,
        compare_and_swap: half.swaps.0 && peer.swaps.0,
        atomic_with_processor: half.swaps.1 && peer.swaps.1,
        target_progress: true,
        memory_windows: resources.has_window(),
        operation_bytes_max: operation_bytes_max.min(OPERATION_BYTES_MAX),
        ..Capabilities::default()
    };
    let (ours, theirs) = (&half.port, &peer.port);
    let description = format!("{}, {} -> {}", ours.describe(), ours.address(), theirs.address());
    let peer = Peer {
        target: peer.target,
        exposed: peer.exposed.0..peer.exposed.0 + peer.exposed.1,
        window: peer.window,
        reads: u32::from(reads(half, peer).0),
    };
    Ok(VerbsEndpoint::new(resources, peer, capabilities, (half.port.clone(), description)))
}

/// Makes the peer's key valid, where it is a window's.
fn bind(endpoint: &mut VerbsEndpoint) -> Result<(), Error> {
    if endpoint.resources().has_window() {
        endpoint.bind()?;
        settle(endpoint, (false, true), (BINDING_LIMIT, Instant::now() + BINDING_LIMIT))?;
    }
    Ok(())
}

/// Waits for the initiating side's first word, and says ours.
fn answer_greeting(endpoint: &mut VerbsEndpoint, limits: (Duration, Instant)) -> Result<(), Error> {
    settle(endpoint, (true, false), limits)?;
    endpoint.greet()?;
    settle(endpoint, (true, true), limits)
}

/// Waits until the peer has greeted, and until all of this side's work has completed, as asked.
fn settle(
    endpoint: &mut VerbsEndpoint,
    (greeted, completed): (bool, bool),
    (limit, deadline): (Duration, Instant),
) -> Result<(), Error> {
    loop {
        // Armed before the look: what comes after it makes an event, and what came before is seen.
        let armed = endpoint.arm()?;
        let port = endpoint.port().clone();
        let state = endpoint.is_greeted().map_err(|error| unanswered(error, &port, limit))?;
        if (state.0 || !greeted) && (state.1 || !completed) {
            return Ok(());
        }
        if Instant::now() >= deadline {
            return Err(no_answer(&port, limit));
        }
        if armed == Armed::Wait {
            let waiting =
                [Some(endpoint.resources().wait_fd()), endpoint.resources().managed().map(Id::descriptor)];
            readable(&waiting.into_iter().flatten().collect::<Vec<_>>(), deadline)?;
            endpoint.acknowledge()?;
            endpoint.check_manager()?;
        }
    }
}

/// The initiating side of a connection that the manager makes.
fn ask(
    resources: &mut Resources,
    (half, peer): (&Half, &Half),
    to: SocketAddr,
    nonce: &[u8],
    deadline: Instant,
) -> Result<(), Error> {
    let asked = (|| {
        manager(resources)?.resolve(to, deadline)?;
        resources.make_queue_pair()?;
        resources.post_receives(WINDOW + RECEIVE_RESERVE)?;
        let (ours, theirs) = reads(half, peer);
        let id = manager(resources)?;
        id.connect(nonce, (theirs, ours))?;
        match id.wait(deadline)? {
            Happened::Established => Ok(()),
            Happened::Ended(why) => Err(Error::PeerGone(Provider::Verbs, why)),
            Happened::Done | Happened::Request(..) => Err(protocol("its connection manager is out of turn")),
        }
    })();
    asked.map_err(|error| unanswered(error, &half.port, deadline.saturating_duration_since(Instant::now())))
}

/// The accepting side of it: takes the one who knows the nonce.
fn serve(
    resources: &mut Resources,
    (half, peer): (&Half, &Half),
    nonce: &[u8],
    deadline: Instant,
) -> Result<(), Error> {
    let mut refused = 0;
    let caller = loop {
        match manager(resources)?.wait(deadline)? {
            Happened::Request(caller, said) if said.starts_with(nonce) => break caller,
            Happened::Request(stranger, _) => {
                stranger.reject();
                refused += 1;
                if refused == REFUSALS_MAX {
                    return Err(protocol("too many strangers asked for its connection"));
                }
            }
            Happened::Ended(why) => return Err(Error::PeerGone(Provider::Verbs, why)),
            Happened::Done | Happened::Established => {}
        }
    };
    // Everything has been registered with the device that the listener is at.
    if caller.context()?.name() != resources.context().name() {
        return Err(protocol("it connected to another device than it chose"));
    }
    let _listener = resources.set_managed(caller);
    resources.make_queue_pair()?;
    resources.post_receives(WINDOW + RECEIVE_RESERVE)?;
    let (ours, theirs) = reads(half, peer);
    let id = manager(resources)?;
    id.accept((theirs, ours))?;
    loop {
        match id.wait(deadline)? {
            Happened::Established => return Ok(()),
            Happened::Request(stranger, _) => stranger.reject(),
            Happened::Ended(why) => return Err(Error::PeerGone(Provider::Verbs, why)),
            Happened::Done => {}
        }
    }
}

fn manager(resources: &Resources) -> Result<&Id, Error> {
    resources.managed().ok_or_else(|| resources.device_error("it has no connection manager".to_owned()))
}

/// While a connection is being made, a peer that is gone is one that has not been reached.
fn unanswered(error: Error, port: &Port, limit: Duration) -> Error {
    match error {
        Error::PeerGone(..) => no_answer(port, limit),
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
    Error::Protocol(Provider::Verbs, what.to_owned())
}
