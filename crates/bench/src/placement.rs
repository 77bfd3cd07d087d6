//! The cores of this machine: their distances, and keeping a process on some of them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Instant;
use std::{fs, thread};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

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

/// Returns two cores that are not threads of one core, if there are such; `None` if there are no two.
pub fn pair(cores: &[usize]) -> Option<(usize, usize)> {
    let &first = cores.first()?;
    let siblings = siblings(first);
    let other = cores[1..].iter().find(|core| !siblings.contains(core));
    other.or(cores.get(1)).map(|&other| (first, other))
}

/// Returns the first core and the one that is nearest to it, or farthest, by measurement; with the nanoseconds of a
/// cache line one way. Hardware threads of one core are not a pair.
pub fn pair_by_distance(cores: &[usize], farthest: bool) -> Option<((usize, usize), f64)> {
    let &first = cores.first()?;
    let siblings = siblings(first);
    let others = cores[1..].iter().filter(|core| !siblings.contains(core)).take(PROBED_MAX);
    let measured = others.filter_map(|&other| Some(((first, other), line_ns(first, other)?)));
    let order = |a: &(_, f64), b: &(_, f64)| a.1.total_cmp(&b.1);
    if farthest { measured.max_by(order) } else { measured.min_by(order) }
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

/// Returns the nanoseconds of a cache line from one core to the other: half of a round trip. `None` if the threads
/// cannot be placed.
pub fn line_ns(a: usize, b: usize) -> Option<f64> {
    let home = sched_getaffinity(None).ok()?;
    let round_trip = round_trip_ns(a, b);
    sched_setaffinity(None, &home).ok()?;
    Some(round_trip? / 2.0)
}

fn round_trip_ns(a: usize, b: usize) -> Option<f64> {
    sched_setaffinity(None, &set(&[a])).ok()?;
    let ball = Arc::new(AtomicU64::new(0));
    let echo = Arc::clone(&ball);
    let (placed, is_placed) = mpsc::channel();
    let other = thread::spawn(move || {
        let here = sched_setaffinity(None, &set(&[b])).is_ok();
        if placed.send(here).is_err() || !here {
            return;
        }
        for turn in 0..MEANS * ROUND_TRIPS {
            // pairs with the Release of the serve below
            while echo.load(Ordering::Acquire) != 2 * turn + 1 {
                std::hint::spin_loop();
            }
            echo.store(2 * turn + 2, Ordering::Release);
        }
    });
    if !is_placed.recv().ok()? {
        return None;
    }
    let mut best = f64::INFINITY;
    for mean in 0..MEANS {
        let start = Instant::now();
        for turn in mean * ROUND_TRIPS..(mean + 1) * ROUND_TRIPS {
            ball.store(2 * turn + 1, Ordering::Release);
            // pairs with the Release of the return above
            while ball.load(Ordering::Acquire) != 2 * turn + 2 {
                std::hint::spin_loop();
            }
        }
        best = best.min(start.elapsed().as_nanos() as f64 / ROUND_TRIPS as f64);
    }
    other.join().ok()?;
    Some(best)
}

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

/// The cores that a thread may use, to be restored later.
pub struct Affinity(CpuSet);

impl Affinity {
    pub fn of_this_thread() -> Result<Self, Error> {
        sched_getaffinity(None).map(Self).map_err(|source| own(Vec::new(), source))
    }

    pub fn back(&self) -> Result<(), Error> {
        sched_setaffinity(None, &self.0).map_err(|source| own(Vec::new(), source))
    }
}

fn own(cores: Vec<usize>, source: rustix::io::Errno) -> Error {
    Error::Pin { pid: std::process::id() as i32, cores, source: source.into() }
}

/// Keeps the calling thread on one core.
pub fn pin_self(core: usize) -> Result<(), Error> {
    sched_setaffinity(None, &set(&[core])).map_err(|source| own(vec![core], source))
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
        if let Some((a, b)) = pair(&all) {
            assert!(a != b && all.contains(&a) && all.contains(&b));
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
