//! The process that kills. It is a separate process, so that kills come at any instant of the supervisor, too.
//! It runs this program again; each line that it reads is a kill.

use std::io::{BufRead, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// The argument that starts the killer.
pub const ARGUMENT: &str = "killer";

const AGAIN: Timespec = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };

/// The killer, which reads a pipe from this process and ends when this process does.
pub struct Killer {
    child: Child,
    orders: Option<ChildStdin>,
}

impl Killer {
    /// Starts the killer. Descriptors of an engine are close-on-exec, so it has none of them.
    pub fn start() -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        let mut child = command.arg(ARGUMENT).stdin(Stdio::piped()).spawn().unwrap();
        let orders = child.stdin.take();
        Self { child, orders }
    }

    /// Has a process killed by a signal after a while. The process is a child that is not reaped yet, so its number
    /// stays valid.
    pub fn kill(&mut self, pid: i32, signal: Signal, after: Duration) {
        let line = format!("{pid} {} {}\n", signal.as_raw(), after.as_nanos());
        self.orders.as_mut().unwrap().write_all(line.as_bytes()).unwrap();
    }
}

impl Drop for Killer {
    fn drop(&mut self) {
        self.orders = None;
        let _ = self.child.wait();
    }
}

/// Runs the killer.
pub fn run() {
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        let mut words = line.split(' ').map(|word| word.parse::<u64>().unwrap());
        let mut word = || words.next().unwrap();
        let (pid, signal, after) = (word() as i32, word() as i32, Duration::from_nanos(word()));
        let start = Instant::now();
        // A process that has ended already was killed by an earlier line.
        let Ok(process) = pidfd_open(Pid::from_raw(pid).unwrap(), PidfdFlags::empty()) else { continue };
        // The delay can be shorter than any sleep, so that any instant can be hit.
        while start.elapsed() < after {
            std::hint::spin_loop();
        }
        let signal = Signal::from_named_raw(signal).unwrap();
        // The signal is sent again, as the standard library's handler of SIGSEGV checks for a full stack, and
        // otherwise leaves it to the instruction to fault again. Here no instruction faults.
        let mut ended = [PollFd::new(&process, PollFlags::IN)];
        while pidfd_send_signal(&process, signal).is_ok()
            && rustix::event::poll(&mut ended, Some(&AGAIN)).is_ok_and(|ready| ready == 0)
        {}
    }
}
