//! The processor time of a process, from /proc.

use std::time::Instant;
use std::{fs, io};

use caravan_segment::process::ProcessStat;

/// Nanoseconds of a tick in /proc/PID/stat: USER_HZ is 100 on Linux.
const TICK_NS: u64 = 10_000_000;

/// One reading.
#[derive(Clone, Copy, Debug)]
pub struct Usage {
    at: Instant,
    /// Processor time of all threads: exact to the scheduler's own accounts if the kernel shows them, otherwise to the
    /// tick.
    cpu_ns: u64,
    user_ticks: u64,
    system_ticks: u64,
}

/// The number of processors in use between two readings: 1.5 is one and a half.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cores {
    pub user: f64,
    pub system: f64,
}

impl Usage {
    pub fn of(pid: i32) -> io::Result<Self> {
        let ProcessStat { user_ticks, system_ticks, .. } = ProcessStat::of(pid)?;
        let cpu_ns = scheduled_ns(pid).unwrap_or((user_ticks + system_ticks) * TICK_NS);
        Ok(Self { at: Instant::now(), cpu_ns, user_ticks, system_ticks })
    }

    /// Returns the seconds on a processor from `earlier` to this reading.
    pub fn spent_s(&self, earlier: &Self) -> f64 {
        self.cpu_ns.saturating_sub(earlier.cpu_ns) as f64 / 1e9
    }

    /// Returns the processors in use from `earlier` to this reading. `cpu_ns` gives the sum; the coarse ticks only
    /// split it.
    pub fn since(&self, earlier: &Self) -> Cores {
        let wall_ns = (self.at - earlier.at).as_nanos().max(1) as f64;
        let total = self.cpu_ns.saturating_sub(earlier.cpu_ns) as f64 / wall_ns;
        let user = self.user_ticks.saturating_sub(earlier.user_ticks);
        let system = self.system_ticks.saturating_sub(earlier.system_ticks);
        let part = if user + system == 0 { 1.0 } else { user as f64 / (user + system) as f64 };
        Cores { user: total * part, system: total * (1.0 - part) }
    }
}

/// Returns the sum of the first fields of all threads' schedstat; `None` if the kernel keeps none.
fn scheduled_ns(pid: i32) -> Option<u64> {
    let mut sum = 0;
    for thread in fs::read_dir(format!("/proc/{pid}/task")).ok()? {
        // A thread may end between the listing and the reading; its time is lost then, but a node's threads do not end
        // while it is measured.
        let Ok(line) = fs::read_to_string(thread.ok()?.path().join("schedstat")) else { continue };
        sum += line.split_whitespace().next()?.parse::<u64>().ok()?;
    }
    (sum > 0).then_some(sum)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;
    use std::time::Duration;

    #[test]
    fn ticks_split_the_exact_sum() {
        let at = Instant::now();
        let before = Usage { at, cpu_ns: 1_000, user_ticks: 10, system_ticks: 10 };
        let after =
            Usage { at: at + Duration::from_secs(1), cpu_ns: 800_001_000, user_ticks: 40, system_ticks: 20 };
        let cores = after.since(&before);
        assert!((after.spent_s(&before) - 0.8).abs() < 1e-9);
        assert!((cores.user - 0.6).abs() < 1e-9 && (cores.system - 0.2).abs() < 1e-9, "{cores:?}");
    }

    /// The test watches another process, because threads of this one's other tests end between two readings.
    #[test]
    fn a_busy_process_is_seen_to_be_busy() {
        let mut busy = Command::new("sh").args(["-c", "while :; do :; done"]).spawn().expect("sh");
        let pid = busy.id() as i32;
        let before = Usage::of(pid).expect("the process's usage");
        let until = Instant::now() + Duration::from_secs(30);
        let mut after = before;
        // This ends even if a busy machine gives the process little time.
        while after.spent_s(&before) < 0.05 && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(10));
            after = Usage::of(pid).expect("the process's usage");
        }
        busy.kill().and_then(|()| busy.wait()).expect("killed");
        let cores = after.since(&before);
        assert!(after.spent_s(&before) >= 0.05, "{cores:?}");
        assert!(cores.user + cores.system > 0.0 && cores.user + cores.system <= 1.1, "{cores:?}");
    }
}
