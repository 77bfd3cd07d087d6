//! Processes and their descendants, through `/proc`, and the outer process of an agent.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use std::{fs, io};

use caravan_segment::process::{self, ProcessStat};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, WaitStatus, getpid, kill_process, pidfd_open, set_child_subreaper,
    setsid, wait,
};

use crate::limits::TERM_GRACE;
use crate::{Error, lock};

/// The interval between two looks whether the processes are gone.
const LOOK: Duration = Duration::from_millis(5);
/// How long to wait for a killed process that waits for a device.
const STUCK_LIMIT: Duration = Duration::from_millis(300);
/// The most characters of a process's command that are shown.
const SHOWN_MAX: usize = 100;
/// The arguments of a holder, by which [`descendants`] recognizes and spares it.
const HOLDER: [&str; 3] = ["caravan", "pipe-agent", "--hold"];
/// Held while processes are listed and signalled, and while a holder starts: a holder cannot be recognized before
/// it has its arguments.
static LISTING: Mutex<()> = Mutex::new(());

/// Returns the living descendants of `root`, without `root` and without holders, in no particular order.
pub fn descendants(root: Pid) -> Vec<Pid> {
    let found = process::descendants(root.as_raw_nonzero().get()).into_iter();
    let found = found.filter(|(pid, stat)| !stat.has_ended() && !is_holder(*pid));
    found.filter_map(|(pid, _)| Pid::from_raw(pid)).collect()
}

fn is_holder(pid: i32) -> bool {
    let arguments = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    arguments == (HOLDER.join("\0") + "\0").as_bytes()
}

/// Starts a holder: a process that keeps a pipe open as long as anybody reads it, because whoever reads it must not take the
/// death of this process for the end of its input. The holder outlives the agent.
pub fn hold(pipe: OwnedFd) -> io::Result<Child> {
    let _listing = lock(&LISTING);
    let [name, arguments @ ..] = HOLDER;
    let mut holder = Command::new("/proc/self/exe");
    holder.arg0(name).args(arguments).current_dir("/").process_group(0);
    holder.stdin(pipe).stdout(Stdio::null()).stderr(Stdio::null()).spawn()
}

/// A pipe with a holder. Dropped, the holder has ended.
pub struct HeldPipe(Child);

impl HeldPipe {
    /// Starts a holder of a pipe's writing end.
    pub fn new(pipe: impl AsFd) -> io::Result<Self> {
        hold(pipe.as_fd().try_clone_to_owned()?).map(Self)
    }
}

impl Drop for HeldPipe {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs the holder: waits until nobody reads the pipe that is its standard input any more.
pub fn keep_held() {
    // If the process already leads a session, there is nothing to do.
    let _ = setsid();
    while poll(&mut [PollFd::new(&io::stdin(), PollFlags::empty())], None) == Err(Errno::INTR) {}
}

/// True while the process waits in the kernel for a device, which no signal ends.
fn is_stuck(process: Pid) -> bool {
    ProcessStat::of(process.as_raw_nonzero().get()).is_ok_and(|stat| stat.state == 'D')
}

/// Returns a description of a process that could not be ended, for users.
pub fn describe(process: Pid) -> String {
    let pid = process.as_raw_nonzero().get();
    let arguments = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let words = String::from_utf8_lossy(&arguments).replace('\0', " ");
    let command: String = words.trim_end().chars().take(SHOWN_MAX).collect();
    let user = fs::metadata(format!("/proc/{pid}")).map(|process| process.uid());
    let why = match (is_stuck(process), user) {
        (true, _) => "waits for a device: it ends once that answers".to_owned(),
        (_, Ok(0)) => "runs as root: end it there".to_owned(),
        (_, Ok(user)) => format!("runs as user {user}: end it there"),
        (_, Err(_)) => "is another user's: end it there".to_owned(),
    };
    format!("process {pid} ({command}), which {why}")
}

/// Sends a signal to each process; processes that are gone do not matter.
pub fn signal(processes: &[Pid], signal: Signal) {
    for process in processes {
        let _ = kill_process(*process, signal);
    }
}

/// Asks the processes in `list` to end, and kills the rest after `grace`. Returns once none is left, except for
/// processes that cannot be ended: another user's, and those that wait for a device and do not answer. Calls
/// `spare` before anything ends, if there are such processes.
///
/// Stops all processes first, until no new one is found, and signals them while they are stopped: a shell that saw
/// its child die before itself would go on with its next command.
pub fn end(list: impl Fn() -> Vec<Pid>, grace: Duration, spare: impl Fn()) -> Vec<Pid> {
    let deadline = Instant::now() + grace;
    let (mut stopped, mut spared) = (Vec::new(), Vec::new());
    loop {
        let (new, foreign) = stop_new(&list, &stopped, &spared);
        if !foreign.is_empty() {
            spared.extend(foreign);
            spare();
        }
        if new.is_empty() || Instant::now() >= deadline {
            break;
        }
        stopped.extend(new);
    }
    signal(&stopped, Signal::TERM);
    signal(&stopped, Signal::CONT);
    loop {
        let listing = lock(&LISTING);
        let mut left = list();
        left.retain(|process| !spared.contains(process));
        let now = Instant::now();
        if now >= deadline {
            left.retain(|process| match kill_process(*process, Signal::KILL) {
                Err(Errno::PERM) => {
                    spared.push(*process);
                    false
                }
                _ => true,
            });
        }
        drop(listing);
        if left.is_empty() || (now >= deadline + STUCK_LIMIT && left.iter().copied().all(is_stuck)) {
            spared.extend(left);
            return spared;
        }
        std::thread::sleep(LOOK);
    }
}

/// Stops newly found processes. Returns the stopped ones, and those that this user may not stop.
fn stop_new(list: impl Fn() -> Vec<Pid>, stopped: &[Pid], spared: &[Pid]) -> (Vec<Pid>, Vec<Pid>) {
    let _listing = lock(&LISTING);
    let is_new = |process: &Pid| !stopped.contains(process) && !spared.contains(process);
    let new = list().into_iter().filter(is_new);
    new.partition(|process| kill_process(*process, Signal::STOP) != Err(Errno::PERM))
}

/// The interval between two looks at the flag.
const SIGNAL_LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// Runs the inner process of an agent, and kills all its descendants unless it exits with 0. A caller sets
/// `terminated` to end the agent. Returns true if the inner process exited with 0.
pub fn supervise(mut command: Command, terminated: &AtomicBool) -> Result<bool, Error> {
    let adopt = set_child_subreaper(Some(getpid()));
    adopt.map_err(Error::system("prctl(PR_SET_CHILD_SUBREAPER)"))?;
    let child = command.spawn().map_err(Error::system("spawn"))?;
    let inner = Pid::from_child(&child);
    let ended = pidfd_open(inner, PidfdFlags::empty()).map_err(Error::system("pidfd_open"))?;
    let mut was_told = false;
    let status = loop {
        if let Some(status) = reap(inner).map_err(Error::system("wait"))? {
            break status;
        }
        // A signal ends the wait early, which does no harm.
        let _ = poll(&mut [PollFd::new(&ended, PollFlags::IN)], Some(&SIGNAL_LOOK));
        // A signal handler sets the flag; it guards no other memory.
        if terminated.load(Ordering::Relaxed) && !was_told {
            was_told = true;
            signal(&[inner], Signal::TERM);
        }
    };
    let went_well = status.exit_status() == Some(0);
    if !went_well {
        // The inner process has reported what cannot be ended, and started holders for its input.
        end(|| descendants(getpid()), TERM_GRACE, || ());
    }
    Ok(went_well)
}

/// Reaps all children that have ended, adopted ones too. Returns how the inner process has ended.
fn reap(inner: Pid) -> Result<Option<WaitStatus>, Errno> {
    loop {
        match wait(WaitOptions::NOHANG) {
            Ok(Some((process, status))) if process == inner => return Ok(Some(status)),
            Ok(Some(_)) | Err(Errno::INTR) => {}
            Ok(None) => return Ok(None),
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn children_of_children_are_found_and_ended() {
        let mut shell = Command::new("sh");
        shell.args(["-c", "trap '' TERM; (trap '' TERM; sleep 600; true) & echo here; wait"]);
        let mut shell = shell.stdout(Stdio::piped()).spawn().expect("sh starts");
        let root = Pid::from_child(&shell);
        let mut line = String::new();
        let mut out = std::io::BufReader::new(shell.stdout.take().expect("a pipe"));
        std::io::BufRead::read_line(&mut out, &mut line).expect("read");
        // The descendants are the shell in the background, and soon its sleep.
        assert!(!descendants(root).is_empty());
        let spared = end(|| descendants(root), Duration::from_millis(20), || panic!("none is another's"));
        assert!(descendants(root).is_empty() && spared.is_empty());
        let _ = shell.kill();
        let _ = shell.wait();
    }
}
