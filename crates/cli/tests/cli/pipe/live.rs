//! The command under test while it runs, with its input and output, and its result.

use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::common::text;
use crate::pipe::bytes::pattern;

/// Longer than any pipeline of these tests takes on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A command that runs.
pub struct Live {
    child: Child,
    output: Option<JoinHandle<Vec<u8>>>,
    errors: Option<JoinHandle<Vec<u8>>>,
    words: String,
    begin: Instant,
}

/// A command that has ended.
#[derive(Debug)]
pub struct Done {
    /// `None` if a signal ended it.
    pub status: Option<i32>,
    pub signal: Option<i32>,
    pub output: Vec<u8>,
    pub errors: String,
    pub took: Duration,
}

impl Live {
    /// Starts a command with pipes for all three standard streams.
    pub fn start(mut command: Command) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.spawn().expect("the command starts");
        Self::of(child, &command)
    }

    /// Wraps a command that was started otherwise, and reads the pipes that it still has.
    pub fn of(mut child: Child, command: &Command) -> Self {
        let output = child.stdout.take().map(|from| std::thread::spawn(|| drain(from)));
        let errors = child.stderr.take().map(|from| std::thread::spawn(|| drain(from)));
        Self { child, output, errors, words: format!("{command:?}"), begin: Instant::now() }
    }

    pub fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    /// Writes `bytes` to the command's input, then closes it.
    pub fn feed(&mut self, bytes: Vec<u8>) {
        if let Some(mut to) = self.child.stdin.take() {
            // The command may stop reading before the end.
            std::thread::spawn(move || to.write_all(&bytes));
        }
    }

    /// Writes to the command's input for ever.
    pub fn feed_for_ever(&mut self) {
        if let Some(mut to) = self.child.stdin.take() {
            let block = pattern(0, 64 << 10);
            std::thread::spawn(move || while to.write_all(&block).is_ok() {});
        }
    }

    pub fn kill(&self, signal: Signal) {
        // The command may have ended already, but its pid is still its own.
        let _ = kill_process(Pid::from_child(&self.child), signal);
    }

    /// True if the command has a handler for the signal.
    pub fn catches(&self, signal: Signal) -> bool {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap_or_default();
        let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap_or("0");
        let mask = u64::from_str_radix(mask.trim(), 16).expect("a mask in hexadecimal digits");
        mask >> (signal.as_raw() - 1) & 1 == 1
    }

    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().expect("it can be waited for").is_some()
    }

    pub fn finish(self) -> Done {
        self.finish_within(PATIENCE)
    }

    /// Waits for the end. Fails if that takes longer than `limit`.
    pub fn finish_within(self, limit: Duration) -> Done {
        self.finish_after("", limit)
    }

    /// Waits for the end like `finish_within`; the failure says what had happened.
    pub fn finish_after(mut self, what: &str, limit: Duration) -> Done {
        let deadline = Instant::now() + limit;
        while !self.has_ended() {
            if Instant::now() > deadline {
                self.kill(Signal::KILL);
                let _ = self.child.wait();
                let said = self.errors.take().map(|errors| errors.join().unwrap_or_default());
                let said = text(&said.unwrap_or_default());
                panic!("{what}: it has not ended within {limit:?}: {}\n{said}", self.words);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let took = self.begin.elapsed();
        let status = self.child.wait().expect("it has ended");
        let rest = |thread: Option<JoinHandle<Vec<u8>>>| {
            thread.map(|thread| thread.join().expect("it reads")).unwrap_or_default()
        };
        Done {
            status: status.code(),
            signal: status.signal(),
            output: rest(self.output),
            errors: text(&rest(self.errors)),
            took,
        }
    }
}

/// Reads all bytes to the end.
fn drain(mut from: impl Read) -> Vec<u8> {
    let mut bytes = Vec::new();
    let result: io::Result<usize> = from.read_to_end(&mut bytes);
    result.expect("it can be read");
    bytes
}

impl Done {
    /// Returns standard error without the warnings that `--insecure` asks for.
    pub fn complaints(&self) -> String {
        let is_warning = |line: &&str| line.contains(" in the clear, as --insecure says");
        self.errors.lines().filter(|line| !is_warning(line)).collect::<Vec<_>>().join("\n")
    }

    pub fn text(&self) -> String {
        text(&self.output)
    }
}
