//! Processor time of all processes that this one has started, and of the whole machine.
//!
//! Started processes stay below this one, because orphans come to it (`PR_SET_CHILD_SUBREAPER`, prctl(2)). A process's
//! time goes to its parent once that has waited for it, so the sum over all that live only grows, and a difference is
//! the time used meanwhile, at either end. Softirqs that the kernel runs between two processes' system calls are in
//! neither; they are in the machine's figure, with everything else that runs on it.

use std::collections::HashSet;
use std::fs;
use std::time::{Duration, Instant};

use caravan_segment::process::{ProcessStat, descendants};
use rustix::process::{Pid, Signal};

use crate::error::Error;

/// Seconds of a tick in /proc: USER_HZ is 100 on Linux.
const TICK_S: f64 = 0.01;
/// How long the processes of a tool may take to end after it.
const SETTLE_LIMIT: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_millis(2);
/// The number of rounds of kills, because each process may have started another meanwhile.
const KILLS_MAX: u32 = 100;

/// One reading, in seconds.
#[derive(Clone, Copy, Debug)]
pub struct CpuReading {
    pub processes: f64,
    pub machine: f64,
}

/// Makes this process the parent of orphans below it.
pub fn adopt() -> Result<(), Error> {
    let own = rustix::process::getpid();
    rustix::process::set_child_subreaper(Some(own))
        .map_err(|source| Error::System { call: "prctl(PR_SET_CHILD_SUBREAPER)", source: source.into() })
}

/// Returns the time used so far.
fn read() -> CpuReading {
    let own = std::process::id() as i32;
    let ticks = |stat: &ProcessStat| stat.user_ticks + stat.system_ticks + stat.waited_for_ticks;
    let waited_for = ProcessStat::of(own).map_or(0, |stat| stat.waited_for_ticks);
    let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
    CpuReading {
        processes: (descendants(own).values().map(ticks).sum::<u64>() + waited_for) as f64 * TICK_S,
        machine: machine_ticks(&stat).unwrap_or(0) as f64 * TICK_S,
    }
}

/// Returns the pids of the processes below this one that have not ended.
fn living() -> HashSet<i32> {
    let below = descendants(std::process::id() as i32).into_iter();
    below.filter(|(_, stat)| !stat.has_ended()).map(|(pid, _)| pid).collect()
}

/// A span in which processes are started and end.
pub struct CpuSpan {
    living: HashSet<i32>,
    begin: CpuReading,
}

impl CpuSpan {
    pub fn begin() -> Self {
        Self { living: living(), begin: read() }
    }

    /// Waits until no processes live but those of the beginning. Returns the time that was used meanwhile.
    pub fn end(self) -> CpuReading {
        let deadline = Instant::now() + SETTLE_LIMIT;
        while living().difference(&self.living).next().is_some() && Instant::now() < deadline {
            std::thread::sleep(LOOK);
        }
        let end = read();
        CpuReading {
            processes: end.processes - self.begin.processes,
            machine: end.machine - self.begin.machine,
        }
    }
}

/// Kills all processes below this one.
pub fn kill_all() {
    for _ in 0..KILLS_MAX {
        let living = living();
        if living.is_empty() {
            return;
        }
        for pid in living.into_iter().filter_map(Pid::from_raw) {
            // The process may have ended meanwhile.
            let _ = rustix::process::kill_process(pid, Signal::KILL);
        }
        std::thread::sleep(LOOK);
    }
}

/// Parses the first line of /proc/stat: user, nice, system, idle, iowait, irq, softirq (proc(5)). Returns all but idle
/// and iowait.
fn machine_ticks(stat: &str) -> Option<u64> {
    let fields: Vec<u64> =
        stat.lines().next()?.split_whitespace().skip(1).filter_map(|word| word.parse().ok()).collect();
    match fields[..] {
        [user, nice, system, _, _, irq, softirq, ..] => Some(user + nice + system + irq + softirq),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_the_kernel_writes_them() {
        assert_eq!(machine_ticks("cpu  10 1 20 1000 50 3 4 99 0 0\ncpu0 1"), Some(38));
    }

    #[test]
    fn what_a_child_has_used_is_counted_after_its_end() {
        let before = read();
        let script = "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done";
        let status = std::process::Command::new("sh").args(["-c", script]).status().expect("ran");
        assert!(status.success());
        let after = read();
        assert!(after.processes - before.processes >= TICK_S, "{before:?} {after:?}");
        assert!(after.machine > before.machine, "{before:?} {after:?}");
    }
}
