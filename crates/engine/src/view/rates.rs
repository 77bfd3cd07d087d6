//! What two snapshots of an engine tell.

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;

use super::breaths::Breaths;
use super::owners::Owners;
use super::snapshot::{Link, Snapshot, Worker, by_cause};
use crate::layout::{DROPS, Mode, Stage, State};

/// An engine over an interval; as JSON it is one object of `caravan engine top --json`.
#[derive(Clone, Debug, Serialize)]
pub struct View {
    /// When the later snapshot was taken, in seconds since 1970.
    pub unix_time: f64,
    /// What rates are over.
    pub interval_seconds: f64,
    /// The supervisor.
    pub pid: i32,
    /// Seconds since the engine started.
    pub uptime_seconds: f64,
    /// Configurations that have been carried out.
    pub configured: u64,
    /// Whether packets are on huge pages.
    pub huge_pages: bool,
    /// Packets that have memory.
    pub packets: u32,
    /// Packets that may have it.
    pub packets_max: u64,
    /// Whose they are.
    pub owners: Owners,
    /// In the order of their names.
    pub workers: Vec<WorkerView>,
    /// In the order of their names.
    pub links: Vec<LinkView>,
}

/// A worker over an interval. Rates are `None` where there is nothing to compare with.
#[derive(Clone, Debug, Serialize)]
pub struct WorkerView {
    /// Its name.
    pub name: String,
    /// Its process.
    pub pid: i32,
    /// Whether it runs.
    pub state: Option<State>,
    /// What it did when it was looked at.
    pub stage: Option<Stage>,
    /// The core it is kept on.
    pub core: Option<u64>,
    /// Times it was started again after a crash.
    pub restarts: u64,
    /// Breaths that moved packets, so far.
    pub breaths: u64,
    /// The same per second.
    pub breaths_per_s: Option<f64>,
    /// Breaths that moved none, per second.
    pub idle_breaths_per_s: Option<f64>,
    /// Times it went to sleep, per second.
    pub sleeps_per_s: Option<f64>,
    /// Part of the time in breaths that moved packets.
    pub busy_part: Option<f64>,
    /// Durations of the breaths of this interval; of all so far, where there is nothing to compare with.
    pub breath: Breaths,
    /// Packets it has for what comes.
    pub free_packets: u64,
    /// Packets it waits for.
    pub wanted_packets: u64,
    /// Numbers in rings whose packets were not the link's: a crash of the other side left them.
    pub skipped: u64,
    /// Packets dropped so far, by cause.
    pub drops: BTreeMap<&'static str, u64>,
    /// The same per second.
    pub drops_per_s: BTreeMap<&'static str, f64>,
}

/// A link over an interval.
#[derive(Clone, Debug, Serialize)]
pub struct LinkView {
    /// `app.port -> app.port`.
    pub name: String,
    /// The worker that sends.
    pub from_worker: Option<String>,
    /// The worker that receives; the same, if the link is within one process.
    pub to_worker: Option<String>,
    /// How packets are handed over, where it is between two processes.
    pub mode: Option<Mode>,
    /// Packets sent so far.
    pub packets: u64,
    /// Bytes in them.
    pub bytes: u64,
    /// Packets for which there was no room.
    pub drops: u64,
    /// Packets that the receiving app has taken.
    pub taken: u64,
    /// Packets sent per second.
    pub packets_per_s: Option<f64>,
    /// Bits in them per second, headers included.
    pub bits_per_s: Option<f64>,
    /// Packets per second for which there was no room.
    pub drops_per_s: Option<f64>,
    /// Packets that wait at the end that sends.
    pub queued: u64,
    /// Packets on their way to the other process.
    pub full: u64,
    /// Packets that wait at the end that receives.
    pub waiting: u64,
    /// Empty packets on their way back.
    pub empty: u64,
    /// Packets that wait for an end that moves.
    pub parked: u64,
    /// The process that traces it.
    pub tracer: Option<u64>,
}

impl View {
    /// What happened from one snapshot to a later one of the same engine.
    pub fn between(before: &Snapshot, now: &Snapshot) -> Self {
        let seconds = now.at_ns.saturating_sub(before.at_ns) as f64 / 1e9;
        let same = |one: &Worker, other: &Worker| one.id == other.id && one.name == other.name;
        let workers = now.workers.iter().map(|worker| {
            let earlier = before.workers.iter().find(|earlier| same(earlier, worker));
            worker_view(worker, earlier, seconds)
        });
        let mut workers: Vec<_> = workers.collect();
        workers.sort_by(|a, b| a.name.cmp(&b.name));
        let links = now.links.iter().map(|link| {
            // A link that was moved is the same, wherever it is now.
            let earlier = before.links.iter().find(|earlier| earlier.name == link.name);
            link_view(now, link, earlier, seconds)
        });
        let mut links: Vec<_> = links.collect();
        links.sort_by(|a, b| a.name.cmp(&b.name));
        Self {
            unix_time: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64(),
            interval_seconds: seconds,
            pid: now.pid,
            uptime_seconds: now.at_ns.saturating_sub(now.started_ns) as f64 / 1e9,
            configured: now.configured,
            huge_pages: now.huge_pages,
            packets: now.packets,
            packets_max: now.packets_max,
            owners: now.owners.clone(),
            workers,
            links,
        }
    }
}

/// Growth per second; `None` where a count went back, as that of a process that was started again may.
fn rate(before: Option<u64>, now: u64, seconds: f64) -> Option<f64> {
    let grown = now.checked_sub(before?)?;
    (seconds > 0.0).then(|| grown as f64 / seconds)
}

fn worker_view(now: &Worker, before: Option<&Worker>, seconds: f64) -> WorkerView {
    let rate = |count: fn(&Worker) -> u64| rate(before.map(count), count(now), seconds);
    let buckets: Option<Vec<u64>> = before.and_then(|before| {
        let grown = |(now, before): (&u64, &u64)| now.checked_sub(*before);
        now.breath_buckets.iter().zip(&before.breath_buckets).map(grown).collect()
    });
    let drops_per_s: [f64; DROPS.len()] = std::array::from_fn(|cause| {
        self::rate(before.map(|before| before.drops[cause]), now.drops[cause], seconds).unwrap_or(0.0)
    });
    WorkerView {
        name: now.name.clone(),
        pid: now.pid,
        state: now.state,
        stage: now.stage,
        core: now.core,
        restarts: now.restarts,
        breaths: now.breaths,
        breaths_per_s: rate(|worker| worker.breaths),
        idle_breaths_per_s: rate(|worker| worker.idle_breaths),
        sleeps_per_s: rate(|worker| worker.sleeps),
        busy_part: rate(|worker| worker.busy_ns).map(|ns| (ns / 1e9).min(1.0)),
        breath: Breaths::of(buckets.as_ref().unwrap_or(&now.breath_buckets)),
        free_packets: now.free,
        wanted_packets: now.wanted,
        skipped: now.skipped,
        drops: by_cause(&now.drops),
        drops_per_s: by_cause(&drops_per_s),
    }
}

fn link_view(snapshot: &Snapshot, now: &Link, before: Option<&Link>, seconds: f64) -> LinkView {
    let rate = |count: fn(&Link) -> u64| rate(before.map(count), count(now), seconds);
    let worker = |id: Option<_>| Some(snapshot.worker_name(id?)?.to_owned());
    LinkView {
        name: now.name.clone(),
        from_worker: worker(now.from),
        to_worker: worker(now.to),
        mode: now.between_processes.then_some(now.mode),
        packets: now.packets,
        bytes: now.bytes,
        drops: now.drops,
        taken: now.taken,
        packets_per_s: rate(|link| link.packets),
        bits_per_s: rate(|link| link.bytes).map(|bytes| 8.0 * bytes),
        drops_per_s: rate(|link| link.drops),
        queued: now.queued,
        full: now.full,
        waiting: now.waiting,
        empty: now.empty,
        parked: now.parked,
        tracer: now.tracer,
    }
}
