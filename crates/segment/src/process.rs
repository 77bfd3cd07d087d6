//! Tells whether another process still lives, and what `/proc` reports about it.

mod heir;
mod life;

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::{fs, io};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags, Resource, Rlimit};

use crate::error::{Error, system};

pub use heir::start_heir;
pub use life::{LifeWord, lives};

/// Raises this process's limit of descriptors to `wanted`, as far as the system permits. It never lowers the limit.
pub fn allow_descriptors(wanted: u64) {
    let limit = rustix::process::getrlimit(Resource::Nofile);
    let allowed = limit.maximum.map_or(wanted, |maximum| maximum.min(wanted));
    if limit.current.is_some_and(|current| current < allowed) {
        let wider = Rlimit { current: Some(allowed), maximum: limit.maximum };
        // The process goes on with its old limit; a descriptor that cannot be had is an error where it is wanted.
        let _ = rustix::process::setrlimit(Resource::Nofile, wider);
    }
}

/// Another process of this host, held by a pidfd: no later process can take its number.
///
/// ```
/// use caravan_segment::process::Process;
///
/// let mut child = std::process::Command::new("sleep").arg("60").spawn()?;
/// let process = Process::open(child.id() as i32)?;
/// assert!(process.is_alive());
/// child.kill()?;
/// child.wait()?;
/// assert!(!process.is_alive());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Process {
    pidfd: OwnedFd,
}

impl Process {
    /// Opens the process `pid`, as `SO_PEERCRED` names it.
    pub fn open(pid: i32) -> Result<Self, Error> {
        let pid = Pid::from_raw(pid).ok_or(Error::Malformed("no process has that number"))?;
        let pidfd = rustix::process::pidfd_open(pid, PidfdFlags::empty()).map_err(system("pidfd_open"))?;
        Ok(Self { pidfd })
    }

    /// False once the process has ended, reaped or not. Never blocks.
    pub fn is_alive(&self) -> bool {
        let mut set = [PollFd::new(&self.pidfd, PollFlags::IN)];
        !matches!(rustix::event::poll(&mut set, Some(&Timespec::default())), Ok(1..))
    }
}

impl AsFd for Process {
    /// Returns a descriptor that becomes readable once the process has ended; it can be in any poll set.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }
}

/// What `/proc/PID/stat` reports about a process (proc_pid_stat(5)). A tick is a hundredth of a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessStat {
    /// `R`, `S`, `D`, `Z`, ...: the third field.
    pub state: char,
    /// The parent's process number: the fourth field.
    pub parent: i32,
    /// The ticks on a processor, in user space: the 14th field.
    pub user_ticks: u64,
    /// The ticks on a processor, in the kernel: the 15th field.
    pub system_ticks: u64,
    /// The ticks of children that the process has waited for: the 16th and 17th fields.
    pub waited_for_ticks: u64,
    /// The start time, in ticks after the boot: the 22nd field. With the process number it names a process for ever.
    pub started_ticks: u64,
}

impl ProcessStat {
    /// Reads the fields; fails if there is no such process, or no `/proc`.
    pub fn of(pid: i32) -> io::Result<Self> {
        let line = fs::read_to_string(format!("/proc/{pid}/stat"))?;
        Self::parse(&line).ok_or_else(|| io::Error::other(format!("/proc/{pid}/stat has too few fields")))
    }

    /// True once the process has ended, reaped or not.
    pub fn has_ended(&self) -> bool {
        matches!(self.state, 'Z' | 'X')
    }

    fn parse(line: &str) -> Option<Self> {
        // The second field, the command's name, may hold anything, but ends at the last parenthesis.
        let fields: Vec<_> = line.rsplit_once(')')?.1.split_ascii_whitespace().collect();
        let field = |number: usize| fields.get(number - 3).copied();
        let ticks = |number: usize| field(number)?.parse::<u64>().ok();
        Some(Self {
            state: field(3)?.chars().next()?,
            parent: field(4)?.parse().ok()?,
            user_ticks: ticks(14)?,
            system_ticks: ticks(15)?,
            waited_for_ticks: ticks(16)? + ticks(17)?,
            started_ticks: ticks(22)?,
        })
    }
}

/// Returns the children of `root`, their children, and so on, in no order; some may have ended.
pub fn descendants(root: i32) -> HashMap<i32, ProcessStat> {
    let mut children: HashMap<i32, Vec<(i32, ProcessStat)>> = HashMap::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let pid = entry.file_name().to_str().and_then(|name| name.parse().ok());
        if let Some((pid, stat)) = pid.and_then(|pid| Some((pid, ProcessStat::of(pid).ok()?))) {
            children.entry(stat.parent).or_default().push((pid, stat));
        }
    }
    let mut found = HashMap::new();
    let mut open = vec![root];
    while let Some(pid) = open.pop() {
        // Each process is taken out once, so one that moved meanwhile makes no loop.
        for (child, stat) in children.remove(&pid).unwrap_or_default() {
            open.push(child);
            found.insert(child, stat);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_behind_any_name() {
        let line = "7 (a ) b) S 42 7 7 0 -1 4194560 1 2 3 4 150 50 30 20 20 0 1 0 99 0";
        let stat = ProcessStat::parse(line).unwrap();
        let ticks = (stat.user_ticks, stat.system_ticks, stat.waited_for_ticks, stat.started_ticks);
        assert_eq!((stat.state, stat.parent, ticks), ('S', 42, (150, 50, 50, 99)));
        assert_eq!(ProcessStat::parse("7 (short) S 1"), None);
    }

    #[test]
    fn a_child_and_its_child_are_descendants() {
        let mut child = std::process::Command::new("sh")
            .args(["-c", "sleep 1000 & echo $!; wait"])
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        io::BufRead::read_line(&mut io::BufReader::new(child.stdout.take().unwrap()), &mut line).unwrap();
        let grandchild: i32 = line.trim().parse().unwrap();
        let found = descendants(std::process::id() as i32);
        assert_eq!(found[&grandchild].parent, child.id() as i32);
        assert!(found.contains_key(&(child.id() as i32)) && !found[&grandchild].has_ended());
        rustix::process::kill_process(Pid::from_raw(grandchild).unwrap(), rustix::process::Signal::KILL)
            .unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn a_killed_child_is_dead_before_it_is_reaped() {
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let process = Process::open(child.id() as i32).unwrap();
        assert!(process.is_alive());
        child.kill().unwrap();
        rustix::event::poll(&mut [PollFd::new(&process, PollFlags::IN)], None).unwrap();
        assert!(!process.is_alive());
        assert!(ProcessStat::of(child.id() as i32).unwrap().has_ended());
        child.wait().unwrap();
        assert!(!process.is_alive());
    }
}
