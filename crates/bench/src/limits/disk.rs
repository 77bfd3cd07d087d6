//! Files, disks and file systems: reads at random and in order by block and depth, and with `--write` writes and fsync.

pub mod requests;
mod surroundings;
pub mod target;

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Instant;

use self::requests::{Pattern, Requests, Until, Way};
use self::surroundings::SetRate;
use self::target::DiskTarget;
use super::Pace;
use super::cap::{CapKind, NamedCap};
use super::model::{self, LimitCell, RequestLatency, RequestModel};
use super::report::{Digits, Findings, LimitRow};
use crate::error::Error;
use crate::number::binary;

/// The most bytes under way at a time.
const UNDER_WAY_MAX: u64 = 64 << 20;
/// A file has at least so many blocks of those that are read of it.
const BLOCKS_MIN: u64 = 4;
/// What is written between two calls of fsync.
const SYNC_BYTES: usize = 4096;
/// A measured rate is at one that is set if it is this near.
const NEAR: std::ops::RangeInclusive<f64> = 0.85..=1.15;
/// So much of a processor is all of it.
const BUSY: f64 = 0.85;
/// Larger requests spend their time on their bytes, and not on being system calls.
const SMALL_BYTES: u64 = 16 << 10;

/// Measures what a path names.
pub fn measure(path: &Path, may_write: bool, scratch_bytes: u64, pace: &Pace) -> Result<Findings, Error> {
    let mut target = DiskTarget::open(path, may_write, scratch_bytes)?;
    target.find_sector_after_fill(pace)?;
    let (way, note) = requests::way(&target);
    let mut found = Findings { rows: Vec::new(), notes: target.notes.clone() };
    found.notes.extend(note);
    let patterns = [(Pattern::Random, "random"), (Pattern::InOrder, "in order")];
    for is_write in [false, true].into_iter().take(1 + usize::from(target.is_scratch)) {
        for (pattern, name) in patterns {
            let what = format!("{}, {} {name}", target.name, if is_write { "writes" } else { "reads" });
            pace.step(&what)?;
            found.rows.extend(row(&target, what, pattern, is_write, way, pace)?);
        }
    }
    if target.is_scratch {
        pace.step(&format!("{}, fsync", target.name))?;
        found.rows.push(fsync(&target, pace)?);
        found.notes.push(format!(
            "{}: a scratch file of {}, which had no name and is gone.",
            target.name,
            binary(target.bytes)
        ));
    }
    Ok(found)
}

/// Returns the number of steps of which the progress is told.
pub fn steps(may_write: bool) -> usize {
    if may_write { 6 } else { 2 }
}

impl DiskTarget {
    /// Writes all of a scratch file, so that reads find something, and finds the smallest request.
    pub fn find_sector_after_fill(&mut self, pace: &Pace) -> Result<(), Error> {
        if self.is_scratch {
            pace.step(&format!("{}, writing the scratch file", self.name))?;
            let fill =
                Requests { block_bytes: 1 << 20, parallel: 8, pattern: Pattern::InOrder, is_write: true };
            requests::run(self, &fill, requests::way(self).0, Until::End, &pace.interrupt)?;
            self.file.sync_all().map_err(|source| Error::System { call: "fsync", source })?;
        }
        self.find_sector()
    }
}

/// Measures all blocks and depths of one pattern.
fn row(
    target: &DiskTarget,
    what: String,
    pattern: Pattern,
    is_write: bool,
    way: Way,
    pace: &Pace,
) -> Result<Option<LimitRow>, Error> {
    let mut cells = Vec::new();
    for block_bytes in pace.disk_blocks(target.sector) {
        for &parallel in pace.depths() {
            let is_first = parallel == 1;
            let fits = block_bytes * u64::from(parallel) <= UNDER_WAY_MAX || is_first;
            if !fits || block_bytes * BLOCKS_MIN > target.bytes {
                continue;
            }
            let asked = Requests { block_bytes, parallel, pattern, is_write };
            cells.push(requests::run(target, &asked, way, Until::After(pace.disk_cell), &pace.interrupt)?);
        }
    }
    let Some(model) = fit(&cells) else { return Ok(None) };
    let set = surroundings::bus(target.device);
    let groups = surroundings::control_groups(target.device, is_write);
    let cap = model::knee(&cells).map(|knee| cap(knee, &groups, set.as_ref(), way));
    Ok(LimitRow::measured(what, model, cells, cap))
}

/// Fits the arithmetic to the smallest and the largest request alone, and the highest rates.
fn fit(cells: &[LimitCell]) -> Option<RequestModel> {
    let alone = || cells.iter().filter(|cell| cell.parallel == 1);
    let time = |cell: &LimitCell| (cell.block_bytes, cell.block_bytes as f64 / cell.bytes_per_s);
    let small = alone().min_by_key(|cell| cell.block_bytes)?;
    let large = alone().max_by_key(|cell| cell.block_bytes)?;
    let requests = cells.iter().map(|cell| cell.bytes_per_s / cell.block_bytes as f64).fold(0.0, f64::max);
    Some(RequestModel::fitted(time(small), time(large), requests, model::peak(cells)?.bytes_per_s))
}

/// Names the cap of the knee.
fn cap(knee: &LimitCell, groups: &[SetRate], bus: Option<&SetRate>, way: Way) -> NamedCap {
    let requests_per_s = knee.bytes_per_s / knee.block_bytes as f64;
    let is_at = |set: &&SetRate| {
        let near = |measured: f64, set: Option<f64>| set.is_some_and(|set| NEAR.contains(&(measured / set)));
        near(knee.bytes_per_s, set.bytes_per_s) || near(requests_per_s, set.requests_per_s)
    };
    if let Some(group) = groups.iter().find(is_at) {
        return NamedCap::new(CapKind::ControlGroup, format!("the rate is that of {}", group.what));
    }
    if let Some(bus) = bus.filter(is_at) {
        return NamedCap::new(CapKind::Bus, format!("the rate is that of {}", bus.what));
    }
    let [user, system] = knee.cores.unwrap_or_default();
    let all = user + system;
    let why =
        format!("{:.0} % of a core in programs and {:.0} % in the kernel", user * 100.0, system * 100.0);
    match () {
        () if all < BUSY => NamedCap::new(CapKind::Device, format!("only {why}, and no limit from outside")),
        () if system > user && knee.block_bytes <= SMALL_BYTES => NamedCap::new(CapKind::SystemCalls, why),
        () if way == Way::Uring => NamedCap::new(CapKind::OneCore, why),
        () => NamedCap::new(CapKind::SystemCalls, why),
    }
}

/// Measures how long it takes until a small write is on the disk.
fn fsync(target: &DiskTarget, pace: &Pace) -> Result<LimitRow, Error> {
    let failed = |source| Error::System { call: "fsync", source };
    let mut buffer = super::raw::Area::new(SYNC_BYTES).map_err(failed)?;
    let (begun, mut times, mut place) = (Instant::now(), Vec::new(), 0);
    while times.is_empty() || begun.elapsed() < pace.disk_cell * 2 {
        pace.interrupt.check()?;
        let before = Instant::now();
        target.file.write_all_at(buffer.bytes_mut(), place).map_err(failed)?;
        target.file.sync_all().map_err(failed)?;
        times.push(before.elapsed().as_secs_f64());
        place = (place + SYNC_BYTES as u64) % target.bytes;
    }
    let latency = RequestLatency::of(times);
    let model = RequestModel::of_latency(latency.p50_s);
    let what = format!("{}, write and fsync", target.name);
    let mut row = LimitRow::predicted(&what, model, SYNC_BYTES as f64, 1.0, Digits::default());
    row.latency = Some(latency);
    Ok(row)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(block_bytes: u64, parallel: u64, bytes_per_s: f64, cores: [f64; 2]) -> LimitCell {
        LimitCell {
            block_bytes,
            parallel,
            bytes_per_s,
            latency: None,
            predicted_bytes_per_s: 0.0,
            cores: Some(cores),
        }
    }

    #[test]
    fn the_cap_is_what_the_evidence_says() {
        let group = [SetRate { bytes_per_s: Some(5e7), requests_per_s: Some(1e3), what: "io.max".into() }];
        let bus = SetRate { bytes_per_s: Some(4e9), requests_per_s: None, what: "PCI".into() };
        for (block, rate, cores, expected) in [
            (1 << 20, 4.9e7, [0.0, 0.1], CapKind::ControlGroup),
            (4096, 4096.0 * 990.0, [0.0, 0.1], CapKind::ControlGroup),
            (1 << 20, 3.6e9, [0.1, 0.3], CapKind::Bus),
            (4096, 1e9, [0.3, 0.65], CapKind::SystemCalls),
            (1 << 20, 6e9, [0.1, 0.89], CapKind::OneCore),
            (1 << 20, 2e9, [0.1, 0.3], CapKind::Device),
        ] {
            let cap = cap(&cell(block, 8, rate, cores), &group, Some(&bus), Way::Uring);
            assert_eq!(cap.kind, expected, "{block} {rate}");
        }
    }

    #[test]
    fn the_fit_takes_requests_alone_and_the_highest_rates() {
        let cells = [
            cell(512, 1, 5.12e6, [0.0; 2]),
            cell(512, 64, 1.024e8, [0.0; 2]),
            cell(1 << 20, 1, 5e8, [0.0; 2]),
            cell(1 << 20, 8, 1e9, [0.0; 2]),
        ];
        let model = fit(&cells).expect("a fit");
        assert!((model.latency_s(512.0) - 1e-4).abs() < 1e-12);
        assert_eq!((model.requests_cap, model.bytes_cap), (Some(2e5), Some(1e9)));
        assert!(fit(&[]).is_none());
    }
}
