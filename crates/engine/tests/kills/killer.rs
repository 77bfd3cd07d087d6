//! The process that kills: another one, so that kills come at any instant of the supervisor, too.
//! It is this program again; each line that it reads is a kill.

use std::io::{BufRead, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// What the killer is started with.
pub const ARGUMENT: &str = "killer";

const AGAIN: Timespec = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };

/// The killer, told through a pipe. It ends when this does.
pub struct Killer {
    child: Child,
    orders: Option<ChildStdin>,
}

impl Killer {
    /// Starts it. Descriptors of an engine are close-on-exec: it has none of them.
    pub fn start() -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        let mut child = command.arg(ARGUMENT).stdin(Stdio::piped()).spawn().unwrap();
        let orders = child.stdin.take();
        Self { child, orders }
    }

    /// Has a process killed by a signal after a while. The process is held on to from here on: it is
    /// our child, not reaped yet.
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

/// What the killer does.
pub fn run() {
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        let mut words = line.split(' ').map(|word| word.parse::<u64>().unwrap());
        let mut word = || words.next().unwrap();
        let (pid, signal, after) = (word() as i32, word() as i32, Duration::from_nanos(word()));
        let start = Instant::now();
        // One that has ended already was killed by an earlier line.
        let Ok(process) = pidfd_open(Pid::from_raw(pid).unwrap(), PidfdFlags::empty()) else { continue };
        // Shorter than any sleep: the instant shall be any.
        while start.elapsed() < after {
            std::hint::spin_loop();
        }
        let signal = Signal::from_named_raw(signal).unwrap();
        // More than once: the standard library's handler of SIGSEGV looks whether a stack has ended, and
        // leaves everything else to the instruction to fault again. Here there is none.
        let mut ended = [PollFd::new(&process, PollFlags::IN)];
        while pidfd_send_signal(&process, signal).is_ok()
            && rustix::event::poll(&mut ended, Some(&AGAIN)).is_ok_and(|ready| ready == 0)
        {}
    }
}
