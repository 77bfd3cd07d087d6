//! All words of an engine at a moment.

use std::collections::BTreeMap;

use serde::{Serialize, Serializer};

use super::find::{EngineMemory, FoundEngine, MemoryPart, text};
use crate::error::Error;
use crate::layout::{
    self, DropReason, HISTOGRAM_BUCKETS, LinkMode, LinkRing, TAIL_AND_HEAD, WorkerStage, WorkerState, engine,
    link, link_at, packet_at, trace, worker, worker_at,
};
use crate::limits::{LINKS_MAX, NAME_BYTES_MAX, PACKETS_MAX, TRACES_MAX, WORKERS_MAX};
use crate::owner::{LinkId, Owner, PacketHeader, WorkerId};

/// The words of an engine's memory at a moment. The engine's processes go on meanwhile: each word is as it was when
/// it was read, and two words may not match each other.
///
/// ```no_run
/// use caravan_engine::view::{Snapshot, find};
///
/// let snapshot = Snapshot::read(&find(None)?)?;
/// snapshot.links.iter().for_each(|link| println!("{}: {} packets", link.name, link.packets));
/// # Ok::<(), caravan_engine::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Snapshot {
    /// The supervisor's process.
    pub pid: i32,
    /// The time of the snapshot, in nanoseconds of the monotonic clock.
    pub at_ns: u64,
    /// When the engine started, on the same clock.
    pub started_ns: u64,
    /// The number of configurations that have been carried out.
    pub configured: u64,
    /// True if packets are on huge pages.
    pub huge_pages: bool,
    /// Packets that are backed by memory.
    pub packets: u32,
    /// Packets that there may be.
    pub packets_max: u64,
    /// The packets of each owner; empty before [`count_owners`](Self::count_owners).
    pub owners: Owners,
    /// The workers, in the order of their places.
    pub workers: Vec<WorkerSnapshot>,
    /// The links, in the order of their places.
    pub links: Vec<LinkSnapshot>,
}

/// A worker. Its JSON form leaves out the fields that are useful only as rates.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WorkerSnapshot {
    /// Its place.
    #[serde(skip)]
    pub id: WorkerId,
    /// Its name.
    pub name: String,
    /// Its process.
    pub pid: i32,
    /// Its state, or `None` if this version does not know the code, as for the stage.
    pub state: Option<WorkerState>,
    /// Its stage.
    pub stage: Option<WorkerStage>,
    /// The core that it runs on.
    pub core: Option<u64>,
    /// Times it was started again after a crash.
    pub restarts: u64,
    /// Breaths that moved packets, so far.
    pub breaths: u64,
    /// Breaths that moved no packets, so far.
    #[serde(skip)]
    pub idle_breaths: u64,
    /// Times it went to sleep.
    #[serde(skip)]
    pub sleeps: u64,
    /// Nanoseconds in breaths that moved packets.
    #[serde(skip)]
    pub busy_ns: u64,
    /// Its free packets.
    #[serde(rename = "free_packets")]
    pub free: u64,
    /// Packets that it waits for.
    #[serde(rename = "wanted_packets")]
    pub wanted: u64,
    /// Numbers in rings whose packets were not the link's: a crash of the other side left them.
    pub skipped: u64,
    /// Packets dropped so far, in the order of [`DropReason::ALL`].
    #[serde(serialize_with = "named")]
    pub drops: [u64; DropReason::COUNT],
    /// Breaths by their duration: [`layout::bucket_floor`].
    #[serde(skip)]
    pub breath_buckets: Vec<u64>,
}

/// A link. Its JSON form leaves out places.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LinkSnapshot {
    /// Its place.
    #[serde(skip)]
    pub id: LinkId,
    /// Its name, `app.port -> app.port`.
    pub name: String,
    /// The place of the worker that sends.
    #[serde(skip)]
    pub from: Option<WorkerId>,
    /// The place of the worker that receives: the same if the link is within one process.
    #[serde(skip)]
    pub to: Option<WorkerId>,
    /// Its mode, if it is between two processes.
    pub mode: Option<LinkMode>,
    /// Packets sent so far.
    pub packets: u64,
    /// Bytes in them.
    pub bytes: u64,
    /// Packets for which there was no room.
    pub drops: u64,
    /// Packets that the receiving app has taken.
    pub taken: u64,
    /// Packets that wait at the sending end.
    pub queued: u64,
    /// Packets that wait at the receiving end.
    pub waiting: u64,
    /// Packets in the ring towards the receiver.
    pub full: u64,
    /// Empty packets on their way back.
    pub empty: u64,
    /// Packets that are parked for an end that moves.
    pub parked: u64,
    /// The process that traces it.
    pub tracer: Option<u64>,
}

impl Snapshot {
    /// Reads everything but the owners of packets, which take a word for each packet.
    pub fn read(found: &FoundEngine) -> Result<Self, Error> {
        let memory = open(found)?;
        let workers: Vec<_> =
            (0..WORKERS_MAX).filter_map(WorkerId::new).filter_map(|id| worker(&memory, id)).collect();
        let links: Vec<_> =
            (0..LINKS_MAX).filter_map(LinkId::new).filter_map(|id| link(&memory, id)).collect();
        let packets = memory.word(engine::PACKET_COUNT)?.min(u64::from(PACKETS_MAX));
        Ok(Self {
            pid: found.pid,
            at_ns: crate::io::now_ns(),
            started_ns: memory.word(engine::STARTED_NS)?,
            configured: memory.word(engine::CONFIGURED)?,
            huge_pages: memory.word(engine::HUGE)? != 0,
            packets: packets as u32,
            packets_max: memory.word(engine::PACKETS_MAX)?,
            owners: Owners::default(),
            workers,
            links,
        })
    }

    /// Counts the packets of each owner, which takes about 0.4 us per packet.
    pub fn count_owners(&mut self, found: &FoundEngine) -> Result<(), Error> {
        self.owners = Owners::read(&open(found)?, self)?;
        Ok(())
    }

    /// Returns the name of a worker.
    pub fn worker_name(&self, id: WorkerId) -> Option<&str> {
        self.workers.iter().find(|worker| worker.id == id).map(|worker| worker.name.as_str())
    }

    /// Returns the name of a link.
    pub fn link_name(&self, id: LinkId) -> Option<&str> {
        self.links.iter().find(|link| link.id == id).map(|link| link.name.as_str())
    }
}

fn open(found: &FoundEngine) -> Result<EngineMemory, Error> {
    EngineMemory::open(&found.memory)
        .ok_or_else(|| Error::NoEngine(format!("the engine of process {} has ended", found.pid)))
}

fn worker(memory: &EngineMemory, id: WorkerId) -> Option<WorkerSnapshot> {
    let place: MemoryPart<{ layout::WORKER_BYTES }> = memory.place(worker_at(id)).ok()?;
    let state = WorkerState::ALL.get(place.word(worker::STATE) as usize).copied();
    if state == Some(WorkerState::None) {
        return None;
    }
    Some(WorkerSnapshot {
        id,
        name: text(place.bytes(worker::NAME, NAME_BYTES_MAX)),
        pid: i32::try_from(place.word(worker::PID)).unwrap_or(0),
        state,
        stage: WorkerStage::ALL.get(place.word(worker::STAGE) as usize).copied(),
        core: place.word(worker::CORE).checked_sub(1),
        restarts: place.word(worker::RESTARTS),
        breaths: place.word(worker::BREATHS),
        idle_breaths: place.word(worker::IDLE_BREATHS),
        sleeps: place.word(worker::SLEEPS),
        busy_ns: place.word(worker::BUSY_NS),
        free: place.word(worker::FREE),
        wanted: place.word(worker::WANTED),
        skipped: place.word(worker::SKIPPED),
        drops: std::array::from_fn(|cause| place.word(worker::DROPS + 8 * cause)),
        breath_buckets: (0..HISTOGRAM_BUCKETS)
            .map(|bucket| place.word(worker::HISTOGRAM + 8 * bucket))
            .collect(),
    })
}

fn link(memory: &EngineMemory, id: LinkId) -> Option<LinkSnapshot> {
    let at = link_at(id);
    if memory.word(at + link::STATE).ok()? == 0 {
        return None;
    }
    let place: MemoryPart<{ link::FULL }> = memory.place(at).ok()?;
    let worker = |offset| (place.word(offset) as usize).checked_sub(1).and_then(WorkerId::new);
    let parked = used(memory, at, LinkRing::Head) + used(memory, at, LinkRing::Tail);
    let mode = if place.word(link::COPY) == 1 { LinkMode::Copy } else { LinkMode::Swap };
    Some(LinkSnapshot {
        id,
        name: text(place.bytes(link::NAME, link::NAME_BYTES)),
        from: worker(link::PRODUCER),
        to: worker(link::CONSUMER),
        mode: (place.word(link::STATE) == 2).then_some(mode),
        packets: place.word(link::PACKETS),
        bytes: place.word(link::BYTES),
        drops: place.word(link::DROPS),
        taken: place.word(link::TAKEN),
        queued: place.word(link::QUEUED),
        waiting: place.word(link::WAITING),
        full: used(memory, at, LinkRing::Full),
        empty: used(memory, at, LinkRing::Empty),
        parked,
        tracer: tracer(memory, place.word(link::TRACE)),
    })
}

/// Returns the number of packets in a ring. The two positions are not read at the same instant, so their
/// difference is limited to what is possible.
fn used(memory: &EngineMemory, link_at: usize, ring: LinkRing) -> u64 {
    let [tail, head] = TAIL_AND_HEAD.map(|word| memory.word(link_at + ring.offset() + word).unwrap_or(0));
    tail.saturating_sub(head).min(ring.packets() as u64)
}

fn tracer(memory: &EngineMemory, name: u64) -> Option<u64> {
    let place = (name as usize).checked_sub(1).filter(|place| *place < TRACES_MAX)?;
    let claim = memory.word(layout::trace_at(place) + trace::CLAIM).ok().filter(|claim| *claim != 0)?;
    Some(crate::trace::TraceClaim(claim).pid())
}

/// Returns the drops by the names of their reasons, without those that are 0.
pub(super) fn by_cause<T: PartialOrd + Default + Copy>(
    drops: &[T; DropReason::COUNT],
) -> BTreeMap<&'static str, T> {
    let named = DropReason::ALL.iter().zip(drops).map(|(cause, count)| (cause.name(), *count));
    named.filter(|(_, count)| *count > T::default()).collect()
}

fn named<S: Serializer>(drops: &[u64; DropReason::COUNT], serializer: S) -> Result<S::Ok, S::Error> {
    by_cause(drops).serialize(serializer)
}

/// The number of packets of each owner. Every packet is counted once, by its header when it was read.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Owners {
    /// Packets of the pool, which the supervisor gives to workers that ask.
    pub pool: u64,
    /// Packets of each worker, free and in use.
    pub workers: BTreeMap<String, u64>,
    /// Packets in each link, on the way to the receiver.
    pub full: BTreeMap<String, u64>,
    /// Empty packets in each link, on the way back.
    pub empty: BTreeMap<String, u64>,
    /// Parked packets in each link, waiting for an end that moves.
    pub parked: BTreeMap<String, u64>,
    /// Packets of workers or links that do not exist, by number: they are never freed.
    pub lost: BTreeMap<String, u64>,
    /// Packets whose owner's code is impossible.
    pub impossible: u64,
}

impl Owners {
    /// Returns the number of all packets.
    pub fn total(&self) -> u64 {
        let named = [&self.workers, &self.full, &self.empty, &self.parked, &self.lost];
        self.pool + self.impossible + named.into_iter().flat_map(BTreeMap::values).sum::<u64>()
    }

    pub(super) fn read(memory: &EngineMemory, snapshot: &Snapshot) -> Result<Self, Error> {
        let mut codes: BTreeMap<u16, u64> = BTreeMap::new();
        for index in 0..snapshot.packets {
            let header = PacketHeader(memory.word(packet_at(index))?);
            *codes.entry(header.owner_code()).or_default() += 1;
        }
        let mut owners = Self::default();
        for (code, count) in codes {
            owners.add(snapshot, code, count);
        }
        Ok(owners)
    }

    fn add(&mut self, snapshot: &Snapshot, code: u16, count: u64) {
        let (counts, name, number) = match Owner::of_code(code) {
            Some(Owner::Pool) => return self.pool += count,
            None => return self.impossible += count,
            Some(Owner::Worker(id)) => {
                (&mut self.workers, snapshot.worker_name(id), format!("worker {}", id.place()))
            }
            Some(Owner::Full(id)) => (&mut self.full, snapshot.link_name(id), format!("link {}", id.place())),
            Some(Owner::Empty(id)) => {
                (&mut self.empty, snapshot.link_name(id), format!("link {}", id.place()))
            }
            Some(Owner::Parked(id)) => {
                (&mut self.parked, snapshot.link_name(id), format!("link {}", id.place()))
            }
        };
        match name {
            Some(name) => *counts.entry(name.to_owned()).or_default() += count,
            None => *self.lost.entry(number).or_default() += count,
        }
    }
}
