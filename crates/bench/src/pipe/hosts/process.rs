//! Processes of the benchmark, which end with it.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::error::Error;
use crate::interrupt::{GLANCE, Interrupt};

/// Between two looks whether a port is listened at.
const LOOK: Duration = Duration::from_millis(2);
/// How long a program may take until it listens.
const LISTEN_LIMIT: Duration = Duration::from_secs(10);
/// Lines of a program's last words.
const LAST_WORDS: usize = 10;

/// A program that runs; killed when this is dropped.
#[derive(Debug)]
pub struct Running {
    name: &'static str,
    child: Child,
    log: PathBuf,
}

impl Running {
    /// Starts it; what it says on standard error goes to `log`.
    pub fn start(name: &'static str, mut command: Command, log: &Path) -> Result<Self, Error> {
        let file =
            File::create(log).map_err(|source| Error::File { what: "make", path: log.to_owned(), source })?;
        command.stderr(Stdio::from(file));
        let child = command.spawn().map_err(|why| failed(name, &why))?;
        Ok(Self { name, child, log: log.to_owned() })
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What it has said on standard error.
    pub fn said(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Waits until something listens at that TCP port where it is.
    pub fn until_listening(&mut self, port: u16, interrupt: &Interrupt) -> Result<(), Error> {
        let deadline = Instant::now() + LISTEN_LIMIT;
        while !is_listening(self.pid(), port) {
            interrupt.check()?;
            let has_ended = self.child.try_wait().map_err(|why| self.failed(&why))?.is_some();
            if has_ended || Instant::now() > deadline {
                return Err(self.failed(&self.last_words("it does not listen")));
            }
            std::thread::sleep(LOOK);
        }
        Ok(())
    }

    /// Waits for its end, which must be a good one.
    pub fn end(&mut self, deadline: Instant, interrupt: &Interrupt) -> Result<(), Error> {
        let status = match self.wait(deadline, interrupt)? {
            status if status.success() => return Ok(()),
            status => status,
        };
        Err(self.failed(&self.last_words(&status.to_string())))
    }

    fn wait(&mut self, deadline: Instant, interrupt: &Interrupt) -> Result<std::process::ExitStatus, Error> {
        let pid = Pid::from_raw(self.pid() as i32).ok_or_else(|| self.failed(&"it has no number"))?;
        // It is not waited for before this, so its number is its own.
        let handle = pidfd_open(pid, PidfdFlags::empty()).map_err(|why| self.failed(&why))?;
        let glance = Timespec { tv_sec: 0, tv_nsec: GLANCE.subsec_nanos().into() };
        loop {
            let mut set = [PollFd::from_borrowed_fd(handle.as_fd(), PollFlags::IN)];
            match rustix::event::poll(&mut set, Some(&glance)) {
                Ok(0) | Err(rustix::io::Errno::INTR) => {}
                Ok(_) => return self.child.wait().map_err(|why| self.failed(&why)),
                Err(why) => return Err(self.failed(&why)),
            }
            interrupt.check()?;
            if Instant::now() > deadline {
                return Err(self.failed(&self.last_words("it does not end")));
            }
        }
    }

    fn last_words(&self, why: &str) -> String {
        let said = self.said();
        let lines: Vec<_> = said.lines().collect();
        let last = lines.get(lines.len().saturating_sub(LAST_WORDS)..).unwrap_or_default().join("\n");
        if last.is_empty() { why.to_owned() } else { format!("{why}. Its last words:\n{last}") }
    }

    fn failed(&self, why: &dyn std::fmt::Display) -> Error {
        failed(self.name, why)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Both do nothing to a process that has been waited for.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs a command to its end, which must be a good one, and soon.
pub fn run(name: &'static str, mut command: Command) -> Result<(), Error> {
    let done = command.stdin(Stdio::null()).output().map_err(|why| failed(name, &why))?;
    match done.status.success() {
        true => Ok(()),
        false => Err(failed(name, &String::from_utf8_lossy(&done.stderr).trim())),
    }
}

pub fn failed(process: &'static str, why: &dyn std::fmt::Display) -> Error {
    Error::BenchProcess { process, reason: why.to_string() }
}

/// Whether a program is there to be started.
pub fn is_installed(program: &str) -> bool {
    let folders = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&folders).any(|folder| folder.join(program).is_file())
}

/// In the network namespace of that process.
fn is_listening(pid: u32, port: u16) -> bool {
    let in_table = |table: &str| {
        let text = std::fs::read_to_string(format!("/proc/{pid}/net/{table}"))?;
        io::Result::Ok(text.lines().any(|line| listens_at(line, port)))
    };
    ["tcp", "tcp6"].iter().any(|table| in_table(table).unwrap_or(false))
}

/// A line of /proc/net/tcp: number, local address:port, remote one, state (0A: listening), all hexadecimal.
fn listens_at(line: &str, port: u16) -> bool {
    let mut words = line.split_whitespace().skip(1);
    let local = words.next().and_then(|address| address.rsplit_once(':'));
    let is_port = local.is_some_and(|(_, local)| u16::from_str_radix(local, 16) == Ok(port));
    is_port && words.nth(1) == Some("0A")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;

    fn shell(script: &str, log: &Path) -> Running {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        Running::start("shell", command, log).expect("started")
    }

    #[test]
    fn a_port_is_seen_to_be_listened_at() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
        let port = listener.local_addr().expect("an address").port();
        assert!(is_listening(std::process::id(), port));
        drop(listener);
        assert!(!is_listening(std::process::id(), port));
    }

    #[test]
    fn an_end_is_waited_for_and_a_bad_one_told_with_its_last_words() {
        let scratch = crate::scratch::Scratch::create().expect("a folder");
        let log = scratch.path().join("log");
        let quiet = Interrupt::by(Arc::new(AtomicBool::new(false)));
        let later = || Instant::now() + Duration::from_secs(60);
        shell("exit 0", &log).end(later(), &quiet).expect("a good end");
        let error = shell("echo no room >&2; exit 3", &log).end(later(), &quiet).expect_err("a bad end");
        assert!(
            error.to_string().contains("exit status: 3") && error.to_string().contains("no room"),
            "{error}"
        );
        let error = shell("exec sleep 600", &log).end(Instant::now(), &quiet).expect_err("late");
        assert!(error.to_string().contains("does not end"), "{error}");
        let interrupted = Interrupt::by(Arc::new(AtomicBool::new(true)));
        let error = shell("exec sleep 600", &log).end(later(), &interrupted).expect_err("interrupted");
        assert!(matches!(error, Error::Interrupted), "{error}");
    }

    #[test]
    fn programs_are_looked_for_on_the_path() {
        assert!(is_installed("sh") && !is_installed("no-such-program-here"));
    }
}
