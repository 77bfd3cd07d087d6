//! The cores of this machine: their distances, and keeping a process on some of them.

use std::fmt::{self, Display, Formatter};
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::Instant;
use std::{fs, thread};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde::Serialize;

use crate::args::Placement;
use crate::error::Error;

/// The number of round trips in a mean. They are few, so that on a busy machine some means pass while both threads
/// run.
const ROUND_TRIPS: u64 = 200;
/// The number of means, of which the best is the distance.
const MEANS: u64 = 200;
/// The number of cores that are probed for the nearest and the farthest: a measurement takes some milliseconds.
const PROBED_MAX: usize = 256;
/// The longest time of a cache line that is called near: within one chip's shared cache it takes 30 to 100 ns, and 150
/// and more between two of them.
const NEAR_NS: f64 = 120.0;

/// Returns the cores that this process may use.
pub fn cores() -> Vec<usize> {
    match sched_getaffinity(None) {
        Ok(set) => (0..CpuSet::MAX_CPU).filter(|&core| set.is_set(core)).collect(),
        Err(_) => vec![0],
    }
}

/// Two cores for two processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct CorePair {
    pub first: usize,
    pub second: usize,
}

impl Display for CorePair {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{} and {}", self.first, self.second)
    }
}

/// Returns the pairs of the first core with each other one that is not a hardware thread of the same core.
fn pairs(cores: &[usize]) -> impl Iterator<Item = CorePair> {
    let first = cores.first().copied().unwrap_or_default();
    let siblings = siblings(first);
    let others = cores.iter().skip(1).filter(move |core| !siblings.contains(core));
    others.map(move |&second| CorePair { first, second })
}

/// Returns two cores that are not threads of one core, if there are such; `None` if there are no two.
pub fn pair(cores: &[usize]) -> Option<CorePair> {
    let threads = || Some(CorePair { first: *cores.first()?, second: *cores.get(1)? });
    pairs(cores).next().or_else(threads)
}

/// Returns the first core and the one that is nearest to it, or farthest, by measurement.
pub fn pair_by_distance(cores: &[usize], which: Placement) -> Result<CorePair, Error> {
    let measured = pairs(cores).take(PROBED_MAX).filter_map(|pair| Some((pair, line_ns(pair).ok()?)));
    let order = |a: &(_, f64), b: &(_, f64)| a.1.total_cmp(&b.1);
    let found = match which {
        Placement::Near => measured.min_by(order),
        Placement::Far => measured.max_by(order),
    };
    found.map(|(pair, _)| pair).ok_or(Error::CoresShort(cores.len()))
}

/// Returns the hardware threads that share a core with this one.
fn siblings(core: usize) -> Vec<usize> {
    let path = format!("/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list");
    fs::read_to_string(path).map_or_else(|_| vec![core], |text| list(text.trim()))
}

/// Parses `0,4-6` as 0, 4, 5, 6.
fn list(text: &str) -> Vec<usize> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse().ok()?..=last.parse().ok()?)
    };
    text.split(',').filter_map(range).flatten().collect()
}

/// Returns the nanoseconds of a cache line from one core to the other: half of a round trip.
pub fn line_ns(pair: CorePair) -> Result<f64, Error> {
    let ball = &AtomicU64::new(0);
    let (placed, is_placed) = mpsc::channel();
    on_core(pair.first, move || {
        thread::scope(|scope| {
            let echo = scope.spawn(move || {
                pin_self(pair.second)?;
                // The receiver waits below.
                let _ = placed.send(());
                (0..MEANS * ROUND_TRIPS).for_each(|turn| pass(ball, 2 * turn + 1));
                Ok::<_, Error>(())
            });
            let mean = |mean| {
                let start = Instant::now();
                (mean * ROUND_TRIPS..(mean + 1) * ROUND_TRIPS).for_each(|turn| pass(ball, 2 * turn));
                start.elapsed().as_nanos() as f64 / ROUND_TRIPS as f64
            };
            // A thread that cannot be placed sends nothing.
            let means = if is_placed.recv().is_ok() { 0..MEANS } else { 0..0 };
            let best = means.map(mean).fold(f64::INFINITY, f64::min);
            echo.join().unwrap_or_else(|panic| resume_unwind(panic))?;
            Ok(best / 2.0)
        })
    })
}

/// Waits for a value, and adds one.
fn pass(ball: &AtomicU64, value: u64) {
    // pairs with the Release below, in the other thread
    while ball.load(Ordering::Acquire) != value {
        std::hint::spin_loop();
    }
    ball.store(value + 1, Ordering::Release);
}

/// All placements; `None` is that of a figure that does not depend on it.
pub const ALL: [Option<&str>; 3] = [Some("near"), Some("far"), None];

/// Returns the name of a distance.
pub fn word(line_ns: f64) -> &'static str {
    if line_ns <= NEAR_NS { "near" } else { "far" }
}

/// Keeps every thread of a process, and those it starts later, on these cores.
pub fn pin(pid: i32, cores: &[usize]) -> Result<(), Error> {
    let failed = |source| Error::Pin { pid, cores: cores.to_vec(), source };
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).map_err(failed)?;
    for task in tasks.flatten() {
        let thread = task.file_name().to_str().and_then(|name| name.parse().ok());
        let Some(thread) = thread.and_then(rustix::thread::Pid::from_raw) else { continue };
        match sched_setaffinity(Some(thread), &set(cores)) {
            // The thread ended meanwhile.
            Ok(()) | Err(rustix::io::Errno::SRCH) => {}
            Err(source) => return Err(failed(source.into())),
        }
    }
    Ok(())
}

/// Keeps the calling thread on one core.
pub fn pin_self(core: usize) -> Result<(), Error> {
    let pid = std::process::id() as i32;
    sched_setaffinity(None, &set(&[core])).map_err(|source| Error::Pin {
        pid,
        cores: vec![core],
        source: source.into(),
    })
}

/// Runs `work` in a thread on one core; the calling thread stays where it is.
pub fn on_core<T: Send>(core: usize, work: impl FnOnce() -> Result<T, Error> + Send) -> Result<T, Error> {
    let placed = || pin_self(core).and_then(|()| work());
    thread::scope(|scope| scope.spawn(placed).join().unwrap_or_else(|panic| resume_unwind(panic)))
}

fn set(cores: &[usize]) -> CpuSet {
    let mut set = CpuSet::new();
    for &core in cores {
        set.set(core);
    }
    set
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cores_are_read_as_the_kernel_writes_them() {
        assert_eq!(list("0"), [0]);
        assert_eq!(list("0,4-6"), [0, 4, 5, 6]);
        assert_eq!(list(""), Vec::<usize>::new());
    }

    #[test]
    fn a_pair_is_two_different_cores() {
        assert_eq!(pair(&[3]), None);
        let all = cores();
        if let Some(CorePair { first, second }) = pair(&all) {
            assert!(first != second && all.contains(&first) && all.contains(&second));
        }
    }

    #[test]
    fn a_process_is_pinned_with_all_its_threads() {
        let sleeper = std::process::Command::new("sleep").arg("60").spawn();
        let mut sleeper = sleeper.expect("sleep starts");
        let pid = sleeper.id() as i32;
        let core = cores()[0];
        pin(pid, &[core]).expect("pinned");
        let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("status");
        sleeper.kill().and_then(|()| sleeper.wait()).expect("ended");
        let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
        assert_eq!(allowed.map(str::trim), Some(core.to_string().as_str()));
    }
}
