//! Tells whether another process still lives.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags};

use crate::error::{Error, system};

/// Another process of this host, held by a pidfd: its number cannot be taken by a later one.
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

    /// False once it has ended, reaped or not. Never blocks.
    pub fn is_alive(&self) -> bool {
        let mut set = [PollFd::new(&self.pidfd, PollFlags::IN)];
        !matches!(rustix::event::poll(&mut set, Some(&Timespec::default())), Ok(1..))
    }
}

impl AsFd for Process {
    /// Readable once the process has ended: can sit in any poll set.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_killed_child_is_dead_before_it_is_reaped() {
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let process = Process::open(child.id() as i32).unwrap();
        assert!(process.is_alive());
        child.kill().unwrap();
        rustix::event::poll(&mut [PollFd::new(&process, PollFlags::IN)], None).unwrap();
        assert!(!process.is_alive());
        child.wait().unwrap();
        assert!(!process.is_alive());
    }
}
