//! The memory of this machine: each cache and the memory behind them, at random and in order, by block, by the number
//! of loads in parallel, and by cores.

mod walk;

use std::fs;
use std::time::Duration;

use caravan_segment::HostMemory;

use self::walk::{LINE_BYTES, Walk, WorkingSet, walk};
use super::Pace;
use super::cap::{CapKind, NamedCap};
use super::model::{LimitCell, RequestLatency, RequestModel};
use super::report::{Findings, LimitRow};
use crate::error::Error;
use crate::number::binary;

/// Loads in parallel in one core.
const CHAINS: [usize; 5] = [1, 2, 4, 8, 16];
/// The least working set that is called memory.
const DRAM_BYTES_MIN: u64 = 256 << 20;
/// The part of the free memory that is taken at most.
const FREE_PART: u64 = 4;
/// The first level of cache that cores share, as a rule.
const SHARED_LEVEL: u32 = 3;
/// So many cores do less than this share of as many times what one does if they share a cap.
const SCALES: f64 = 0.75;
/// The bytes of a word, which is what a pointer has.
const WORD_BYTES: u64 = 8;

/// A cache, or the memory behind all of them.
#[derive(Clone, Debug, PartialEq, Eq)]
struct MemoryLevel {
    name: String,
    bytes: u64,
    is_shared: bool,
}

/// Returns the number of steps of which the progress is told.
pub fn steps() -> usize {
    levels(&caches(), HostMemory::read()).0.len()
}

/// Measures every level.
pub fn measure(cores: &[usize], pace: &Pace) -> Result<Findings, Error> {
    let (levels, notes) = levels(&caches(), HostMemory::read());
    let largest = levels.iter().map(|level| level.bytes).max().unwrap_or(DRAM_BYTES_MIN);
    let mut found = Findings { rows: Vec::new(), notes };
    let mut set = WorkingSet::new(largest as usize)?;
    for level in &levels {
        pace.step(&level.name)?;
        found.rows.extend(of_level(&mut set, level, cores, pace)?);
    }
    found.notes.push(match set.huge_bytes() {
        0 => "Memory: small pages of the kernel's choice, so a random load may also wait for its page's entry; huge pages are allowed by: echo madvise > /sys/kernel/mm/transparent_hugepage/enabled".into(),
        huge => format!("Memory: {} of {} on huge pages.", binary(huge.min(largest)), binary(largest)),
    });
    Ok(found)
}

/// The working set of DRAM alone, for the benchmark beside a loop in C.
#[derive(Debug)]
pub struct WholeMemory(WorkingSet, u64);

impl WholeMemory {
    /// Takes the memory and lays a ring through it.
    pub fn take() -> Result<Self, Error> {
        let (levels, _) = levels(&caches(), HostMemory::read());
        let bytes = levels.last().map_or(DRAM_BYTES_MIN, |level| level.bytes);
        let mut set = WorkingSet::new(bytes as usize)?;
        set.lay(bytes as usize, WORD_BYTES as usize);
        Ok(Self(set, bytes))
    }

    pub fn bytes(&self) -> u64 {
        self.1
    }

    /// Returns the seconds of a load, by the median batch.
    pub fn latency_s(&self, core: usize, run: Duration) -> Result<f64, Error> {
        crate::placement::on_core(core, || Ok(RequestLatency::of(self.0.latencies(run)).p50_s))
    }

    /// Returns the bytes a second of these cores.
    pub fn bandwidth(&self, cores: &[usize], run: Duration) -> Result<f64, Error> {
        walk(&self.0, Walk::Stream, cores, run)
    }
}

/// Measures one level: a row at random, and a row in order.
fn of_level(
    set: &mut WorkingSet,
    level: &MemoryLevel,
    cores: &[usize],
    pace: &Pace,
) -> Result<Vec<LimitRow>, Error> {
    let bytes = level.bytes as usize;
    let first = &cores[..1];
    set.lay(bytes, WORD_BYTES as usize);
    // The caches get what they can hold.
    walk(set, Walk::Stream, first, pace.cell)?;
    let latency = crate::placement::on_core(cores[0], || Ok(RequestLatency::of(set.latencies(pace.cell))))?;
    let mut random = Vec::new();
    for chains in CHAINS {
        let loads = walk(set, Walk::Words(chains), first, pace.cell)?;
        random.push(cell(WORD_BYTES, chains, loads * WORD_BYTES as f64));
    }
    for count in pace.core_counts(cores) {
        pace.interrupt.check()?;
        let loads = walk(set, Walk::Words(16), &cores[..count], pace.cell)?;
        random.push(cell(WORD_BYTES, 16 * count, loads * WORD_BYTES as f64));
    }
    if let Some(one) = random.first_mut() {
        one.latency = Some(latency);
    }
    let mut ordered = vec![cell(LINE_BYTES as u64, 1, walk(set, Walk::Stream, first, pace.cell)?)];
    for count in pace.core_counts(cores) {
        let rate = walk(set, Walk::Stream, &cores[..count], pace.cell)?;
        ordered.push(cell(LINE_BYTES as u64, count, rate));
    }
    let largest = if level.is_shared { blocks(set, bytes, cores, pace, &mut random)? } else { None };
    let small = (WORD_BYTES, WORD_BYTES as f64 / random[0].bytes_per_s);
    let words = |cell: &&LimitCell| cell.block_bytes == WORD_BYTES;
    let requests_cap = highest(random.iter().filter(words)) / WORD_BYTES as f64;
    let bytes_cap = highest(random.iter());
    let model = RequestModel::fitted(small, largest.unwrap_or(small), requests_cap, bytes_cap);
    let size = binary(level.bytes);
    let random_cap = cap(level, &random, cores.len());
    let rows = [LimitRow::measured(format!("{}, {size}, random", level.name), model, random, random_cap), {
        let line_s = LINE_BYTES as f64 / ordered[0].bytes_per_s;
        if let Some(one) = ordered.first_mut() {
            one.latency = Some(RequestLatency { p50_s: line_s, p99_s: line_s });
        }
        let bytes_cap = Some(highest(ordered.iter()));
        let model = RequestModel { bytes_cap, ..RequestModel::of_latency(line_s) };
        let ordered_cap = cap(level, &ordered, cores.len());
        LimitRow::measured(format!("{}, {size}, in order", level.name), model, ordered, ordered_cap)
    }];
    Ok(rows.into_iter().flatten().collect())
}

/// Measures blocks at random, on one core and on more. Returns the largest block, and its seconds on one core.
fn blocks(
    set: &mut WorkingSet,
    bytes: usize,
    cores: &[usize],
    pace: &Pace,
    cells: &mut Vec<LimitCell>,
) -> Result<Option<(u64, f64)>, Error> {
    let mut largest = None;
    for &block_bytes in pace.memory_blocks() {
        // A ring of a few blocks would be foreseen.
        if block_bytes as usize * 16 > bytes {
            break;
        }
        pace.interrupt.check()?;
        set.lay(bytes, block_bytes as usize);
        for count in [1].into_iter().chain(pace.core_counts(cores)) {
            let blocks = walk(set, Walk::Blocks, &cores[..count], pace.cell)?;
            cells.push(cell(block_bytes, count, blocks * block_bytes as f64));
            if count == 1 {
                largest = Some((block_bytes, 1.0 / blocks));
            }
        }
    }
    Ok(largest)
}

fn cell(block_bytes: u64, parallel: usize, bytes_per_s: f64) -> LimitCell {
    LimitCell {
        block_bytes,
        parallel: parallel as u64,
        bytes_per_s,
        latency: None,
        predicted_bytes_per_s: 0.0,
        cores: None,
    }
}

fn highest<'a>(cells: impl Iterator<Item = &'a LimitCell>) -> f64 {
    cells.map(|cell| cell.bytes_per_s).fold(0.0, f64::max)
}

/// Names the cap: the cores, as long as more of them do as many times more; otherwise what they share.
fn cap(level: &MemoryLevel, cells: &[LimitCell], cores: usize) -> Option<NamedCap> {
    let largest = cells.iter().map(|cell| cell.block_bytes).max()?;
    let of_largest = || cells.iter().filter(|cell| cell.block_bytes == largest);
    // All cells on one core, and those on all, of the block that moves most.
    let unit = if largest == WORD_BYTES { 16 } else { 1 };
    let one = highest(of_largest().filter(|cell| cell.parallel <= unit));
    let all = highest(of_largest().filter(|cell| cell.parallel == unit * cores as u64));
    let times = all / one;
    if cores == 1 {
        let why = "this process may use one core, which can have no more loads under way".into();
        return Some(NamedCap::new(CapKind::OneCore, why));
    }
    let why = format!("{cores} cores do {times:.2} times what one does");
    match level.is_shared && times < SCALES * cores as f64 {
        true => Some(NamedCap::new(CapKind::MemoryBandwidth, why)),
        false => Some(NamedCap::new(CapKind::OneCore, format!("{why}: each is at its own limit"))),
    }
}

/// Returns the data caches of the first core as level and bytes, as the kernel knows them.
fn caches() -> Vec<(u32, u64)> {
    let read = |index: usize, name: &str| {
        let path = format!("/sys/devices/system/cpu/cpu0/cache/index{index}/{name}");
        fs::read_to_string(path).map(|text| text.trim().to_owned()).ok()
    };
    let cache = |index| {
        let is_data = read(index, "type")? != "Instruction";
        let level = read(index, "level")?.parse().ok()?;
        let size = read(index, "size")?;
        let kib: u64 = size.strip_suffix('K')?.parse().ok()?;
        is_data.then_some((level, kib << 10))
    };
    (0..8).filter_map(cache).collect()
}

/// Chooses a working set for each level: a power of two that fits into three quarters of the cache, and for the memory
/// one that is at least twice the last cache.
fn levels(caches: &[(u32, u64)], memory: Option<HostMemory>) -> (Vec<MemoryLevel>, Vec<String>) {
    let free = memory.map_or(u64::MAX, |memory| memory.available_bytes);
    let most = power_below((free / FREE_PART).max(1 << 20));
    let mut notes = Vec::new();
    let of_cache = |&(level, bytes): &(u32, u64)| MemoryLevel {
        name: format!("L{level}"),
        bytes: power_below(bytes / 4 * 3),
        is_shared: level >= SHARED_LEVEL,
    };
    let mut levels: Vec<_> = caches.iter().map(of_cache).filter(|level| level.bytes <= most).collect();
    let last = caches.iter().map(|(_, bytes)| *bytes).max().unwrap_or(0);
    let wanted = (2 * last).next_power_of_two().max(DRAM_BYTES_MIN);
    if wanted > most {
        notes.push(format!(
            "DRAM: measured within {}, a quarter of the free memory; {} would be twice the last cache, so a part of the loads comes from there.",
            binary(most),
            binary(wanted)
        ));
    }
    levels.push(MemoryLevel { name: "DRAM".into(), bytes: wanted.min(most), is_shared: true });
    (levels, notes)
}

fn power_below(bytes: u64) -> u64 {
    1 << bytes.max(1).ilog2()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes(caches: &[(u32, u64)], free_mib: u64) -> (Vec<u64>, usize) {
        let memory = HostMemory { total_bytes: free_mib << 20, available_bytes: free_mib << 20 };
        let (levels, notes) = levels(caches, Some(memory));
        (levels.iter().map(|level| level.bytes >> 10).collect(), notes.len())
    }

    #[test]
    fn working_sets_fit_into_caches_and_memory() {
        let caches = [(1, 48 << 10), (2, 2 << 20), (3, 32 << 20)];
        assert_eq!(sizes(&caches, 8 << 10), (vec![32, 1 << 10, 16 << 10, 256 << 10], 0));
        // With 64 MiB free, 16 MiB are taken, and the note says that this is not beyond the cache.
        assert_eq!(sizes(&caches, 64), (vec![32, 1 << 10, 16 << 10, 16 << 10], 1));
        assert_eq!(sizes(&[], 8 << 10), (vec![256 << 10], 0));
    }

    #[test]
    fn the_cap_is_shared_if_more_cores_do_not_do_more() {
        let level = |is_shared| MemoryLevel { name: "DRAM".into(), bytes: 1 << 30, is_shared };
        let cells = |times: f64| vec![cell(64, 1, 1e10), cell(64, 4, times * 1e10)];
        for (is_shared, cores, times, expected) in [
            (true, 4, 1.2, CapKind::MemoryBandwidth),
            (true, 4, 3.8, CapKind::OneCore),
            (false, 4, 1.2, CapKind::OneCore),
            (true, 1, 1.0, CapKind::OneCore),
        ] {
            let cap = cap(&level(is_shared), &cells(times), cores).expect("a cap");
            assert_eq!(cap.kind, expected, "{cores} {times}");
        }
        // Words: 16 chains on each core.
        let words = [cell(8, 1, 1e8), cell(8, 16, 1e9), cell(8, 64, 3.9e9)];
        assert_eq!(cap(&level(true), &words, 4).expect("a cap").kind, CapKind::OneCore);
    }
}
