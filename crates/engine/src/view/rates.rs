//! The rates between two snapshots of an engine.

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;

use super::snapshot::{LinkSnapshot, Owners, Snapshot, WorkerSnapshot, by_cause};
use crate::layout::{DropReason, bucket_floor};

/// An engine over an interval. Its JSON form is one object of `caravan engine top --json`.
#[derive(Clone, Debug, Serialize)]
pub struct EngineView {
    /// The time of the later snapshot, in seconds since 1970.
    pub unix_time: f64,
    /// The length of the interval.
    pub interval_seconds: f64,
    /// The supervisor's process.
    pub pid: i32,
    /// Seconds since the engine started.
    pub uptime_seconds: f64,
    /// The number of configurations that have been carried out.
    pub configured: u64,
    /// True if packets are on huge pages.
    pub huge_pages: bool,
    /// Packets that are backed by memory.
    pub packets: u32,
    /// Packets that there may be.
    pub packets_max: u64,
    /// The packets of each owner.
    pub owners: Owners,
    /// The workers, in the order of their names.
    pub workers: Vec<WorkerView>,
    /// The links, in the order of their names.
    pub links: Vec<LinkView>,
}

/// A worker over an interval. Rates are `None` if there is no earlier snapshot of it to compare with.
#[derive(Clone, Debug, Serialize)]
pub struct WorkerView {
    /// The worker at the end of the interval.
    #[serde(flatten)]
    pub now: WorkerSnapshot,
    /// Breaths that moved packets, per second.
    pub breaths_per_s: Option<f64>,
    /// Breaths that moved none, per second.
    pub idle_breaths_per_s: Option<f64>,
    /// Times it went to sleep, per second.
    pub sleeps_per_s: Option<f64>,
    /// Part of the time in breaths that moved packets.
    pub busy_part: Option<f64>,
    /// Durations of the breaths of this interval, or of all so far if there is nothing to compare with.
    pub breath: Breaths,
    /// Packets dropped per second, by reason.
    pub drops_per_s: BTreeMap<&'static str, f64>,
}

/// A link over an interval.
#[derive(Clone, Debug, Serialize)]
pub struct LinkView {
    /// The link at the end of the interval.
    #[serde(flatten)]
    pub now: LinkSnapshot,
    /// The worker that sends.
    pub from_worker: Option<String>,
    /// The worker that receives: the same if the link is within one process.
    pub to_worker: Option<String>,
    /// Packets sent per second.
    pub packets_per_s: Option<f64>,
    /// Bits in them per second, headers included.
    pub bits_per_s: Option<f64>,
    /// Packets per second for which there was no room.
    pub drops_per_s: Option<f64>,
}

impl EngineView {
    /// Returns the rates from one snapshot to a later one of the same engine.
    pub fn between(before: &Snapshot, now: &Snapshot) -> Self {
        let seconds = now.at_ns.saturating_sub(before.at_ns) as f64 / 1e9;
        let same =
            |one: &WorkerSnapshot, other: &WorkerSnapshot| one.id == other.id && one.name == other.name;
        let workers = now.workers.iter().map(|worker| {
            let earlier = before.workers.iter().find(|earlier| same(earlier, worker));
            worker_view(worker, earlier, seconds)
        });
        let mut workers: Vec<_> = workers.collect();
        workers.sort_by(|a, b| a.now.name.cmp(&b.now.name));
        let links = now.links.iter().map(|link| {
            // A link that was moved is the same link, wherever it is now.
            let earlier = before.links.iter().find(|earlier| earlier.name == link.name);
            link_view(now, link, earlier, seconds)
        });
        let mut links: Vec<_> = links.collect();
        links.sort_by(|a, b| a.now.name.cmp(&b.now.name));
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

/// Returns the growth per second, or `None` if a count went back, as it may after a restart of its process.
fn rate(before: Option<u64>, now: u64, seconds: f64) -> Option<f64> {
    let grown = now.checked_sub(before?)?;
    (seconds > 0.0).then(|| grown as f64 / seconds)
}

fn worker_view(now: &WorkerSnapshot, before: Option<&WorkerSnapshot>, seconds: f64) -> WorkerView {
    let rate = |count: fn(&WorkerSnapshot) -> u64| rate(before.map(count), count(now), seconds);
    let buckets: Option<Vec<u64>> = before.and_then(|before| {
        let grown = |(now, before): (&u64, &u64)| now.checked_sub(*before);
        now.breath_buckets.iter().zip(&before.breath_buckets).map(grown).collect()
    });
    let drops_per_s: [f64; DropReason::COUNT] = std::array::from_fn(|cause| {
        self::rate(before.map(|before| before.drops[cause]), now.drops[cause], seconds).unwrap_or(0.0)
    });
    WorkerView {
        now: now.clone(),
        breaths_per_s: rate(|worker| worker.breaths),
        idle_breaths_per_s: rate(|worker| worker.idle_breaths),
        sleeps_per_s: rate(|worker| worker.sleeps),
        busy_part: rate(|worker| worker.busy_ns).map(|ns| (ns / 1e9).min(1.0)),
        breath: Breaths::of(buckets.as_ref().unwrap_or(&now.breath_buckets)),
        drops_per_s: by_cause(&drops_per_s),
    }
}

fn link_view(
    snapshot: &Snapshot,
    now: &LinkSnapshot,
    before: Option<&LinkSnapshot>,
    seconds: f64,
) -> LinkView {
    let rate = |count: fn(&LinkSnapshot) -> u64| rate(before.map(count), count(now), seconds);
    let worker = |id: Option<_>| Some(snapshot.worker_name(id?)?.to_owned());
    LinkView {
        now: now.clone(),
        from_worker: worker(now.from),
        to_worker: worker(now.to),
        packets_per_s: rate(|link| link.packets),
        bits_per_s: rate(|link| link.bytes).map(|bytes| 8.0 * bytes),
        drops_per_s: rate(|link| link.drops),
    }
}

/// Durations of breaths that moved packets, in nanoseconds. Workers count them in buckets, each an
/// eighth of a power of two wide, so each figure is the upper end of its bucket.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Breaths {
    /// The number of breaths.
    pub count: u64,
    /// The median.
    pub p50_ns: u64,
    /// The 99th percentile.
    pub p99_ns: u64,
    /// The 99.9th percentile.
    pub p999_ns: u64,
    /// The longest duration.
    pub max_ns: u64,
}

impl Breaths {
    /// Returns the figures of the durations counted in `buckets`.
    pub fn of(buckets: &[u64]) -> Self {
        let count = buckets.iter().fold(0, |sum: u64, count| sum.saturating_add(*count));
        // Returns the end of the bucket up to which that part of the breaths are counted.
        let at = |part: f64| {
            let wanted = (part * count as f64).ceil() as u64;
            let mut so_far = 0_u64;
            let reaches = |count: &u64| {
                so_far = so_far.saturating_add(*count);
                *count > 0 && so_far >= wanted
            };
            buckets.iter().position(reaches).map_or(0, upper)
        };
        let max_ns = buckets.iter().rposition(|count| *count > 0).map_or(0, upper);
        Self { count, p50_ns: at(0.5), p99_ns: at(0.99), p999_ns: at(0.999), max_ns }
    }
}

/// Returns the longest duration in a bucket.
fn upper(bucket: usize) -> u64 {
    bucket_floor(bucket + 1) - 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::{HISTOGRAM_BUCKETS, bucket};

    #[test]
    fn percentiles_are_upper_ends_of_the_right_buckets() {
        let mut buckets = vec![0; HISTOGRAM_BUCKETS];
        for (ns, count) in [(100, 9000), (1000, 985), (70_000, 14), (3_000_000, 1)] {
            buckets[bucket(ns)] += count;
        }
        let breaths = Breaths::of(&buckets);
        assert_eq!(breaths.count, 10_000);
        let figures = [breaths.p50_ns, breaths.p99_ns, breaths.p999_ns, breaths.max_ns];
        for (figure, ns) in figures.into_iter().zip([100, 1000, 70_000, 3_000_000]) {
            assert!(
                figure >= ns && figure < ns + ns / 7 && bucket(figure) == bucket(ns),
                "{figure} for {ns}"
            );
        }
    }

    #[test]
    fn no_counts_and_the_highest_have_figures() {
        assert_eq!(Breaths::of(&[]), Breaths::default());
        assert_eq!(Breaths::of(&[0; HISTOGRAM_BUCKETS]), Breaths::default());
        let full = Breaths::of(&[u64::MAX; HISTOGRAM_BUCKETS]);
        assert_eq!((full.count, full.max_ns), (u64::MAX, upper(HISTOGRAM_BUCKETS - 1)));
    }
}
