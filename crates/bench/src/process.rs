//! Processes of a benchmark, which end with it: other programs, this program again, and bare loops in C.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open};
use serde::{Deserialize, Serialize};

use crate::engine::EngineTask;
use crate::error::Error;
use crate::interrupt::{GLANCE, Interrupt};
use crate::ring::RingTask;
use crate::scratch::Scratch;
use crate::store::MappedTask;

/// The pause between two checks whether a program listens.
const LISTEN_CHECK: Duration = Duration::from_millis(2);
/// How long a program may take until it listens.
const LISTEN_LIMIT: Duration = Duration::from_secs(10);
/// The number of last lines of a program that an error shows.
const LAST_WORDS: usize = 10;

/// What the other process of a benchmark does; the process is this program again.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PeerTask {
    Ring(RingTask),
    Engine(EngineTask),
    Rdma,
    Tcp,
    Steps,
    Store(MappedTask),
    StoreEcho,
    Frames,
}

impl PeerTask {
    /// Returns the command that runs the task. This program's own path may meanwhile lead to another build.
    pub fn command(&self) -> Result<Command, Error> {
        let text = serde_json::to_string(self).map_err(|error| Error::Output(error.into()))?;
        let mut command = Command::new("/proc/self/exe");
        command.args(["bench", "peer", &text]).stdin(Stdio::null());
        Ok(command)
    }
}

/// A running program, killed when this value is dropped.
#[derive(Debug)]
pub struct ChildProgram {
    name: &'static str,
    child: Child,
    log: Option<PathBuf>,
}

impl ChildProgram {
    /// Starts a program. `name` is what error messages call it.
    pub fn start(name: &'static str, mut command: Command) -> Result<Self, Error> {
        let child = command.spawn().map_err(|why| failed(name, &why))?;
        Ok(Self { name, child, log: None })
    }

    /// Starts a program whose standard error goes to the file `log`.
    pub fn logged(name: &'static str, mut command: Command, log: &Path) -> Result<Self, Error> {
        let file = File::create(log).map_err(Error::file("make", log))?;
        command.stderr(Stdio::from(file));
        let mut running = Self::start(name, command)?;
        running.log = Some(log.to_owned());
        Ok(running)
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns what the program has written to standard error, if that is logged.
    pub fn said(&self) -> String {
        self.log.as_ref().and_then(|log| std::fs::read_to_string(log).ok()).unwrap_or_default()
    }

    /// Waits until a socket listens at that TCP port in the program's network namespace.
    pub fn until_listening(&mut self, port: u16, interrupt: &Interrupt) -> Result<(), Error> {
        let (deadline, pid) = (Instant::now() + LISTEN_LIMIT, self.pid());
        self.until(deadline, interrupt, || is_listening(pid, port).then_some(()))
    }

    /// Waits until `ready` returns something, at most until the deadline.
    pub fn until<T>(
        &mut self,
        deadline: Instant,
        interrupt: &Interrupt,
        mut ready: impl FnMut() -> Option<T>,
    ) -> Result<T, Error> {
        loop {
            if let Some(found) = ready() {
                return Ok(found);
            }
            interrupt.check()?;
            let has_ended = self.child.try_wait().map_err(|why| failed(self.name, &why))?.is_some();
            if has_ended || Instant::now() > deadline {
                return Err(failed(self.name, &self.last_words("it does not listen")));
            }
            thread::sleep(LISTEN_CHECK);
        }
    }

    /// Asks the program to end (SIGTERM), and kills it if it takes longer than `limit`.
    pub fn terminate(&mut self, limit: Duration) {
        let deadline = Instant::now() + limit;
        if matches!(self.child.try_wait(), Ok(None)) {
            // Nobody has waited for the process yet, so the pid is still its own. If this fails, it is killed.
            let pid = Pid::from_child(&self.child);
            let _ = rustix::process::kill_process(pid, Signal::TERM);
        }
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < deadline {
            thread::sleep(LISTEN_CHECK);
        }
    }

    /// Waits until the program has ended with success, at most until the deadline.
    pub fn end(&mut self, deadline: Instant, interrupt: &Interrupt) -> Result<(), Error> {
        let raised = |why: rustix::io::Errno| failed(self.name, &why);
        let pid = Pid::from_raw(self.pid() as i32).ok_or_else(|| failed(self.name, &"it has no number"))?;
        // Nobody has waited for the process yet, so the pid is still its own.
        let handle = pidfd_open(pid, PidfdFlags::empty()).map_err(raised)?;
        let glance = Timespec { tv_sec: 0, tv_nsec: GLANCE.subsec_nanos().into() };
        loop {
            let mut set = [PollFd::from_borrowed_fd(handle.as_fd(), PollFlags::IN)];
            match rustix::event::poll(&mut set, Some(&glance)) {
                Ok(0) | Err(rustix::io::Errno::INTR) => {}
                Ok(_) => break,
                Err(why) => return Err(raised(why)),
            }
            interrupt.check()?;
            if Instant::now() > deadline {
                return Err(failed(self.name, &self.last_words("it does not end")));
            }
        }
        let status = self.child.wait().map_err(|why| failed(self.name, &why))?;
        match status.success() {
            true => Ok(()),
            false => Err(failed(self.name, &self.last_words(&status.to_string()))),
        }
    }

    fn last_words(&self, why: &str) -> String {
        let said = self.said();
        let lines: Vec<_> = said.lines().collect();
        let last = lines.get(lines.len().saturating_sub(LAST_WORDS)..).unwrap_or_default().join("\n");
        if last.is_empty() { why.to_owned() } else { format!("{why}. Its last words:\n{last}") }
    }
}

impl Drop for ChildProgram {
    fn drop(&mut self) {
        // Both do nothing to a process that has been waited for.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs a program to its end. Returns its standard output, trimmed, or its standard error as the reason of a failure.
/// A program that takes longer than `limit` is killed. Either output must fit into a pipe.
pub fn output(
    name: &'static str,
    mut command: Command,
    limit: Duration,
    interrupt: &Interrupt,
) -> Result<String, Error> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut running = ChildProgram::start(name, command)?;
    let ended = running.end(Instant::now() + limit, interrupt);
    let is_running = running.child.try_wait().is_ok_and(|status| status.is_none());
    match ended {
        Err(Error::Interrupted) => return Err(Error::Interrupted),
        Err(_) if is_running => return Err(Error::BenchSlow(limit.as_secs())),
        _ => {}
    }
    let (mut said, mut complaint) = (String::new(), String::new());
    if let (Some(mut out), Some(mut err)) = (running.child.stdout.take(), running.child.stderr.take()) {
        let read = out.read_to_string(&mut said).and_then(|_| err.read_to_string(&mut complaint));
        read.map_err(|error| failed(name, &error))?;
    }
    match ended {
        Ok(()) => Ok(said.trim().to_owned()),
        Err(error) if complaint.trim().is_empty() => Err(error),
        Err(_) => Err(failed(name, &complaint.trim().trim_start_matches("caravan: "))),
    }
}

/// Runs a short command to its end, which must succeed.
pub fn run(name: &'static str, mut command: Command) -> Result<(), Error> {
    let done = command.stdin(Stdio::null()).output().map_err(|why| failed(name, &why))?;
    match done.status.success() {
        true => Ok(()),
        false => Err(failed(name, &String::from_utf8_lossy(&done.stderr).trim())),
    }
}

/// Returns the failure of a process of a benchmark.
pub fn failed(process: &'static str, why: &dyn std::fmt::Display) -> Error {
    Error::BenchProcess { process, reason: why.to_string() }
}

/// Returns the command of a Redis server, or one that takes its options, on a port of this host, which keeps nothing on disk.
pub fn redis_command(program: &str, port: u16) -> Command {
    let mut command = Command::new(program);
    command.args(["--bind", "127.0.0.1", "--port", &port.to_string(), "--save", "", "--appendonly", "no"]);
    command
}

/// Returns a port of 127.0.0.1 at which nobody listens.
pub fn free_port() -> Result<u16, Error> {
    let address = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|listener| listener.local_addr());
    Ok(address.map_err(|why| failed("server", &why))?.port())
}

/// True if a program is on the PATH.
pub fn is_installed(program: &str) -> bool {
    let folders = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&folders).any(|folder| folder.join(program).is_file())
}

/// True if a process listens at the port, in the network namespace of the process `pid`.
fn is_listening(pid: u32, port: u16) -> bool {
    let tables = ["tcp", "tcp6"].map(|table| std::fs::read_to_string(format!("/proc/{pid}/net/{table}")));
    tables.into_iter().flatten().any(|table| table.lines().any(|line| listens_at(line, port)))
}

/// Parses a line of /proc/net/tcp: number, local address:port, remote one, state (0A: listening), all hexadecimal.
fn listens_at(line: &str, port: u16) -> bool {
    let mut words = line.split_whitespace().skip(1);
    let local = words.next().and_then(|address| address.rsplit_once(':'));
    let is_port = local.is_some_and(|(_, local)| u16::from_str_radix(local, 16) == Ok(port));
    is_port && words.nth(1) == Some("0A")
}

/// A bare loop in C, the peer of a benchmark, compiled from a source inside this program. It is an open file without a
/// name, so it leaves nothing behind however this process ends.
#[derive(Debug)]
pub struct CLoop(File);

impl CLoop {
    const NAME: &str = "bare loop in C";

    /// Compiles a source, with linker options such as `-lm` after it.
    pub fn compile(compiler: &Path, source: &str, libraries: &[&str]) -> Result<Self, Error> {
        let failed = |reason: String| Error::Compiler { program: compiler.display().to_string(), reason };
        let scratch = Scratch::create()?;
        let output = scratch.path().join("bare");
        let mut child = Command::new(compiler)
            .args(["-O2", "-std=gnu11", "-x", "c", "-", "-o"])
            .arg(&output)
            .args(libraries)
            .stdin(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| failed(error.to_string()))?;
        if let Some(mut input) = child.stdin.take() {
            // A compiler that does not read to the end reports the reason itself.
            let _ = input.write_all(source.as_bytes());
        }
        let done = child.wait_with_output().map_err(|error| failed(error.to_string()))?;
        if done.status.success() {
            File::open(output).map(Self).map_err(|error| failed(error.to_string()))
        } else {
            Err(failed(String::from_utf8_lossy(&done.stderr).trim().to_owned()))
        }
    }

    /// Runs the loop and returns the `N` numbers that it prints. A loop that takes longer than `limit` is killed.
    pub fn run<const N: usize>(
        &self,
        words: &[String],
        limit: Duration,
        interrupt: &Interrupt,
    ) -> Result<[f64; N], Error> {
        let mut command = Command::new(format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd()));
        command.args(words);
        let text = output(Self::NAME, command, limit, interrupt)?;
        let numbers: Vec<f64> = text.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        numbers.try_into().map_err(|_| failed(Self::NAME, &format!("it said {text}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    fn interrupt(is_set: bool) -> Interrupt {
        Interrupt::by(Arc::new(AtomicBool::new(is_set)))
    }

    #[test]
    fn what_it_says_is_returned_and_what_it_complains_of_is_the_error() {
        let said = |script| output("shell", shell(script), Duration::from_secs(60), &interrupt(false));
        assert_eq!(said("echo 12 34; echo no >&2").expect("said"), "12 34");
        let error = said("echo caravan: no memory >&2; exit 1").expect_err("failed");
        assert_eq!(error.to_string(), "the shell of the benchmark failed: no memory");
        let error = said("exit 3").expect_err("failed");
        assert!(error.to_string().contains("exit status: 3"), "{error}");
    }

    #[test]
    fn one_that_does_not_end_is_killed() {
        let sleep = |limit, is_set| output("shell", shell("exec sleep 600"), limit, &interrupt(is_set));
        let error = sleep(Duration::ZERO, false).expect_err("slow");
        assert!(matches!(error, Error::BenchSlow(0)), "{error}");
        let error = sleep(Duration::from_secs(600), true).expect_err("interrupted");
        assert!(matches!(error, Error::Interrupted), "{error}");
    }

    #[test]
    fn a_bad_end_is_told_with_its_last_words() {
        let scratch = Scratch::create().expect("a folder");
        let log = scratch.path().join("log");
        let end = |script| {
            let mut running = ChildProgram::logged("shell", shell(script), &log).expect("started");
            running.end(Instant::now() + Duration::from_secs(60), &interrupt(false))
        };
        end("exit 0").expect("a good end");
        let error = end("echo no room >&2; exit 3").expect_err("a bad end").to_string();
        assert!(error.contains("exit status: 3") && error.contains("no room"), "{error}");
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
    fn programs_are_looked_for_on_the_path() {
        assert!(is_installed("sh") && !is_installed("no-such-program-here"));
    }

    #[test]
    fn a_missing_compiler_is_named_with_the_remedy() {
        let error = CLoop::compile(Path::new("/none/cc"), "", &[]).expect_err("refused");
        let text = error.to_string();
        assert!(text.contains("/none/cc") && text.contains("--cc"), "{text}");
    }
}
