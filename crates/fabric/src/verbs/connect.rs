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

use std::sync::Arc;

use caravan_segment::{Pages, Segment};

use super::choose::choose;
use super::cm::Id;
use super::device::{self, Fabric};
use super::endpoint::{Peer, VerbsEndpoint};
use super::finish::{Stage, bind};
use super::limits::*;
use super::message::{self, Half, Port};
use super::obstacle::Obstacle;
use super::ports::{self, Usable};
use super::resources::{Depths, Path, Resources, own_bytes};
use crate::contract::{Capabilities, Error, Exposure, Provider};

/// Half of a connection. Dropping it gives everything back.
#[derive(Debug)]
pub struct Pending {
    pub(super) stage: Box<Stage>,
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
        return Ok((
            Pending { stage: Box::new(Stage::Listening(resources, half, peer, (nonce, 0))) },
            answer,
        ));
    }
    resources.connect(&path(&half, &peer))?;
    let mut endpoint = endpoint(resources, &half, &peer)?;
    bind(&mut endpoint)?;
    let answer = message::answer(&half, 0, [0; 16]);
    Ok((Pending { stage: Box::new(Stage::Connected(endpoint)) }, answer))
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
    let memory = (segment.slice(0, exposure.arena_bytes)?, segment.slice(arena_bytes, own_bytes)?);
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
pub(super) fn reads(half: &Half, peer: &Half) -> (u8, u8) {
    (half.reads.1.min(peer.reads.0), half.reads.0.min(peer.reads.1))
}

pub(super) fn path(half: &Half, peer: &Half) -> Path {
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
pub(super) fn endpoint(resources: Resources, half: &Half, peer: &Half) -> Result<VerbsEndpoint, Error> {
    let operation_bytes_max = resources.context().port(half.port.number)?.operation_bytes_max;
    let capabilities = Capabilities {
        // A receive completes after everything that was sent before it: IBA 1.4, 9.5 and 9.7.5;
        // RFC 5040, 5.3 and 5.5.
        immediates_ordered: true,
        compare_and_swap: half.swaps.0 && peer.swaps.0,
        atomic_with_processor: half.swaps.1 && peer.swaps.1,
        target_progress: true,
        memory_windows: resources.has_window(),
        // On iWARP it completes once it is with this side's TCP.
        completes_early: resources.managed().is_some(),
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

fn random(bytes: &mut [u8]) -> Result<(), Error> {
    match rustix::rand::getrandom(&mut *bytes, rustix::rand::GetRandomFlags::empty()) {
        Ok(count) if count == bytes.len() => Ok(()),
        Ok(_) => Err(Error::System { call: "getrandom", source: std::io::ErrorKind::UnexpectedEof.into() }),
        Err(source) => Err(Error::System { call: "getrandom", source: source.into() }),
    }
}

pub(super) fn protocol(what: &str) -> Error {
    Error::Protocol(Provider::Rdma, what.to_owned())
}
