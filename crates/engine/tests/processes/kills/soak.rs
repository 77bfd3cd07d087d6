//! A long run: memory, packets and descriptors must be as many at its end as after its start.

use std::time::{Duration, Instant};

use caravan_engine::limits::PACKETS_DEFAULT;

use super::network::{Shape, WORKERS};
use super::storm::Storm;

/// The first part of the time, one third, is not compared: until then workers ask for packets now and then.
const WARM_UP: u32 = 3;
/// Memory that comes and goes: stacks, and the allocator's pages.
const SLACK_KB: u64 = 1024;

#[derive(Clone, Copy, Debug, Default)]
struct Used {
    kb: u64,
    descriptors: u64,
    packets: u32,
}

/// Returns a process's private memory, without the shared packets, and its open descriptors.
fn of_process(pid: u32) -> (u64, u64) {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap_or("0 kB");
    let kb = line.trim().trim_end_matches(" kB").trim().parse().unwrap_or(0);
    let descriptors = std::fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count);
    (kb, descriptors as u64)
}

fn used(storm: &Storm) -> Used {
    let pids = WORKERS.into_iter().filter_map(|worker| storm.engine.pid_of(worker));
    let all = pids.map(|pid| pid as u32).chain([std::process::id()]).map(of_process);
    let (kb, descriptors) = all.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
    Used { kb, descriptors, packets: storm.engine.packets() }
}

/// Runs the network for a number of seconds.
pub fn run(seconds: u64) {
    let length = Duration::from_secs(seconds);
    let start = Instant::now();
    let mut storm = Storm::start(seconds, Shape::first().steady());
    let mut first = None;
    let mut next_print = Duration::ZERO;
    while start.elapsed() < length {
        storm.poll(Duration::from_millis(100), false);
        if start.elapsed() >= next_print {
            let now = used(&storm);
            println!("{:>5} s: {now:?}", start.elapsed().as_secs());
            next_print += length / 20;
            if start.elapsed() >= length / WARM_UP && first.is_none() {
                first = Some(now);
            }
        }
    }
    storm.audit();
    let (first, last) = (first.unwrap_or_default(), used(&storm));
    println!("after {seconds} s: {last:?}, after a third of it: {first:?}");
    assert!(last.kb <= first.kb + SLACK_KB, "memory grows");
    assert_eq!(last.descriptors, first.descriptors, "descriptors leak");
    assert_eq!(last.packets, first.packets, "packets leak");
    assert!(
        last.packets < PACKETS_DEFAULT,
        "there are as many packets as there may be: nothing is said by that"
    );
    storm.drain();
    storm.engine.stop().unwrap();
}
