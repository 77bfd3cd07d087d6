//! Processor time: of all that this process has started, and of the whole machine.
//!
//! What has been started here stays below this process, as orphans come to it (`PR_SET_CHILD_SUBREAPER`,
//! prctl(2)). A process's time goes to its parent once that has waited for it, so the sum over all that live
//! only grows, and a difference is what was used meanwhile, at whichever end. Softirqs that the kernel runs
//! between two processes' system calls are in neither; they are in the machine's figure, with whatever else
//! runs on it.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};

use crate::error::Error;

/// Seconds of a tick in /proc: USER_HZ is 100 on Linux.
const TICK_S: f64 = 0.01;
/// How long what a tool has started may take to end after it.
const SETTLE_LIMIT: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_millis(2);
/// How often those are killed that live, as each may have started another meanwhile.
const KILLS_MAX: u32 = 100;

/// One reading, in seconds.
#[derive(Clone, Copy, Debug)]
pub struct CpuReading {
    pub processes: f64,
    pub machine: f64,
}

/// Makes orphans come to this process.
pub fn adopt() -> Result<(), Error> {
    let own = rustix::process::getpid();
    rustix::process::set_child_subreaper(Some(own))
        .map_err(|source| Error::System { call: "prctl(PR_SET_CHILD_SUBREAPER)", source: source.into() })
}

/// What has been used so far.
pub fn read() -> CpuReading {
    let own = std::process::id();
    let table = table();
    let below = below(&table, own);
    let times = below.iter().filter_map(|pid| table.get(pid)).map(|process| process.own + process.children);
    let waited_for = table.get(&own).map_or(0, |process| process.children);
    let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
    CpuReading {
        processes: (times.sum::<u64>() + waited_for) as f64 * TICK_S,
        machine: machine_ticks(&stat).unwrap_or(0) as f64 * TICK_S,
    }
}

/// Numbers of the processes below this one that have not ended.
pub fn living() -> HashSet<u32> {
    let table = table();
    let below = below(&table, std::process::id());
    below.into_iter().filter(|pid| table.get(pid).is_some_and(|process| !process.has_ended)).collect()
}

/// Waits until only those live that lived before.
pub fn settle(before: &HashSet<u32>) {
    let deadline = Instant::now() + SETTLE_LIMIT;
    while living().difference(before).next().is_some() && Instant::now() < deadline {
        std::thread::sleep(LOOK);
    }
}

/// Kills all that this process has started, and what they have.
pub fn kill_all() {
    for _ in 0..KILLS_MAX {
        let living = living();
        if living.is_empty() {
            return;
        }
        for pid in living.into_iter().filter_map(|pid| Pid::from_raw(pid as i32)) {
            // It may have ended meanwhile.
            let _ = rustix::process::kill_process(pid, Signal::KILL);
        }
        std::thread::sleep(LOOK);
    }
}

struct ProcessTimes {
    parent: u32,
    has_ended: bool,
    own: u64,
    children: u64,
}

/// All processes that can be seen.
fn table() -> HashMap<u32, ProcessTimes> {
    let Ok(entries) = fs::read_dir("/proc") else { return HashMap::new() };
    let numbers = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let process = |pid| Some((pid, parse(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)?));
    numbers.filter_map(process).collect()
}

/// Fields 3, 4 and 14 to 17 of /proc/PID/stat (proc(5)); the name in field 2 ends at the last `)`.
fn parse(stat: &str) -> Option<ProcessTimes> {
    let fields: Vec<_> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let number = |field: usize| fields.get(field - 3)?.parse::<u64>().ok();
    Some(ProcessTimes {
        parent: fields.get(1)?.parse().ok()?,
        has_ended: matches!(fields.first(), Some(&"Z" | &"X")),
        own: number(14)? + number(15)?,
        children: number(16)? + number(17)?,
    })
}

fn below(table: &HashMap<u32, ProcessTimes>, root: u32) -> HashSet<u32> {
    let mut found = HashSet::new();
    let mut last = HashSet::from([root]);
    while !last.is_empty() {
        let children = table.iter().filter(|(_, process)| last.contains(&process.parent));
        last = children.map(|(&pid, _)| pid).filter(|&pid| found.insert(pid)).collect();
    }
    found
}

/// The first line of /proc/stat: user, nice, system, idle, iowait, irq, softirq (proc(5)); all but the waiting.
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
        let process =
            parse("7 (a ) b) S 42 7 7 0 -1 4194560 1 2 3 4 150 50 30 20 20 0 1 0 99").expect("times");
        assert_eq!((process.parent, process.own, process.children, process.has_ended), (42, 200, 50, false));
        assert!(parse("7 (z) Z 1 7 7 0 -1 4 1 2 3 4 0 0 0 0 20").expect("times").has_ended);
        assert_eq!(machine_ticks("cpu  10 1 20 1000 50 3 4 99 0 0\ncpu0 1"), Some(38));
    }

    #[test]
    fn grandchildren_are_below_and_others_are_not() {
        let process = |parent| ProcessTimes { parent, has_ended: false, own: 1, children: 0 };
        let table = HashMap::from([(2, process(1)), (3, process(2)), (4, process(9)), (9, process(0))]);
        assert_eq!(below(&table, 1), HashSet::from([2, 3]));
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
