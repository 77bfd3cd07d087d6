//! What all tests of pipes stand on: hosts with an sshd each, the command with its input and output, a
//! census around all of it, and bytes that can be told apart.

use std::io::{self, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::census::{Census, MARK, Process};
use crate::common::{text, wait_for};
use crate::sshd::Hosts;

/// Longer than any pipeline of these tests takes on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// The name of a host at whose port nobody listens.
const REFUSED: &str = "refused";
/// The bytes of a block between hosts.
pub const BLOCK_BYTES: usize = 256 << 10;

/// The hosts of a test.
pub struct Rig {
    pub hosts: Hosts,
    pub census: Census,
}

impl Rig {
    /// A host named `refused` lets nobody in.
    pub fn new(names: &[&str]) -> Self {
        let mut hosts = Hosts::start(names);
        let daemons = names.iter().map(|name| hosts.daemon(name)).collect();
        if names.contains(&REFUSED) {
            hosts.stop(REFUSED);
        }
        std::fs::create_dir(hosts.folder().join("files")).expect("made");
        let census = Census::take(hosts.folder(), daemons);
        Self { hosts, census }
    }

    /// A file that is none of the command's own.
    pub fn file(&self, name: &str) -> PathBuf {
        self.hosts.folder().join("files").join(name)
    }

    pub fn read(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.file(name)).unwrap_or_default()
    }

    pub fn length(&self, name: &str) -> u64 {
        std::fs::metadata(self.file(name)).map_or(0, |file| file.len())
    }

    pub fn write(&self, name: &str, bytes: &[u8]) -> PathBuf {
        std::fs::write(self.file(name), bytes).expect("written");
        self.file(name)
    }

    /// `caravan pipe` with ssh's configuration, but for its words. `@/` in words of tests is the folder of
    /// files.
    pub fn command(&self, words: &[&str]) -> Command {
        let mut command = self.hosts.pipe();
        let files = format!("{}/", self.hosts.folder().join("files").display());
        command.args(words.iter().map(|word| word.replace("@/", &files)));
        command.env(MARK, self.hosts.folder());
        command
    }

    /// The same under another name of the program.
    pub fn command_as(&self, program: &Path, words: &[&str]) -> Command {
        let given = self.command(words);
        let mut command = Command::new(program);
        // Without `pipe`, which the name says.
        command.args(given.get_args().skip(1));
        command.env(MARK, self.hosts.folder());
        command
    }

    pub fn start(&self, words: &[&str]) -> Live {
        Live::start(self.command(words))
    }

    /// Runs it to its end with this to read.
    pub fn run(&self, words: &[&str], input: &[u8]) -> Done {
        let mut live = self.start(words);
        live.feed(input.to_vec());
        live.finish()
    }

    /// The same, and nothing may be left.
    pub fn run_clean(&self, words: &[&str], input: &[u8]) -> Done {
        let done = self.run(words, input);
        self.census.check(&format!("{words:?}"));
        done
    }

    /// It succeeds, says nothing, leaves nothing, and puts that out.
    pub fn yields(&self, words: &[&str], input: &[u8], expected: &[u8]) {
        let done = self.run_clean(words, input);
        assert_eq!((done.status, done.errors.as_str()), (Some(0), ""), "{words:?}");
        assert!(done.output == expected, "{words:?}: {}", difference(&done.output, expected));
    }

    /// The processes of a host that are agents: this program, below its sshd.
    pub fn agents(&self, host: &str) -> Vec<Process> {
        self.census.processes().into_iter().filter(|p| is_program(p) && self.is_at(p, host)).collect()
    }

    /// The local processes of ssh.
    pub fn ssh(&self) -> Vec<Process> {
        let is_ssh = |process: &Process| process.program().is_some_and(|program| program.ends_with("ssh"));
        self.census.processes().into_iter().filter(is_ssh).collect()
    }

    /// Commands whose arguments contain this, and that are neither shells that start them nor ours.
    pub fn commands(&self, part: &str) -> Vec<Process> {
        let runs = |process: &Process| {
            let shell = ["bash", "sh", "dash"].iter().any(|name| {
                process.program().is_some_and(|program| program.file_name().is_some_and(|at| at == *name))
            });
            process.command.contains(part) && !shell && !is_program(process) && !is_of_ssh(process)
        };
        self.census.processes().into_iter().filter(runs).collect()
    }

    /// All processes of a host but its sshd.
    pub fn below(&self, host: &str) -> Vec<Process> {
        let all = self.census.processes();
        let mut pids = vec![self.hosts.daemon(host)];
        loop {
            let more = all.iter().filter(|p| pids.contains(&p.parent) && !pids.contains(&p.pid));
            let more: Vec<i32> = more.map(|process| process.pid).collect();
            if more.is_empty() {
                break;
            }
            pids.extend(more);
        }
        let is_below = |p: &Process| (pids[1..].contains(&p.pid) || self.is_at(p, host)) && pids[0] != p.pid;
        all.into_iter().filter(is_below).collect()
    }

    fn is_at(&self, process: &Process, host: &str) -> bool {
        let mark = self.hosts.home(host);
        let mark = mark.to_str().expect("UTF-8").as_bytes();
        process.environment.windows(mark.len()).any(|part| part == mark)
    }

    /// Waits until there is one.
    pub fn await_command(&self, part: &str) -> Process {
        let mut found = Vec::new();
        wait_for(&format!("a command {part}"), || {
            found = self.commands(part);
            !found.is_empty()
        });
        found.swap_remove(0)
    }
}

/// Whether it runs the program under test.
pub fn is_program(process: &Process) -> bool {
    process.program().is_some_and(|program| {
        program.file_name().is_some_and(|name| name.to_string_lossy().contains("caravan"))
            || program == Path::new(env!("CARGO_BIN_EXE_caravan"))
    }) || process.command.contains("pipe-agent")
}

fn is_of_ssh(process: &Process) -> bool {
    process.program().is_some_and(|program| program.to_string_lossy().contains("ssh"))
        || process.command.starts_with("sshd")
}

/// A command that runs.
pub struct Live {
    child: Child,
    output: Option<JoinHandle<Vec<u8>>>,
    errors: Option<JoinHandle<Vec<u8>>>,
    words: String,
    begin: Instant,
}

/// One that has ended.
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
    /// With pipes at its three ends.
    pub fn start(mut command: Command) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.spawn().expect("the command starts");
        Self::of(child, &command)
    }

    /// One that was started otherwise. What it still has of pipes is read.
    pub fn of(mut child: Child, command: &Command) -> Self {
        let output = child.stdout.take().map(|from| std::thread::spawn(|| drain(from)));
        let errors = child.stderr.take().map(|from| std::thread::spawn(|| drain(from)));
        Self { child, output, errors, words: format!("{command:?}"), begin: Instant::now() }
    }

    pub fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    /// Gives it all of this to read, and then the end.
    pub fn feed(&mut self, bytes: Vec<u8>) {
        if let Some(mut to) = self.child.stdin.take() {
            // It may stop reading before the end.
            std::thread::spawn(move || to.write_all(&bytes));
        }
    }

    /// Gives it something to read for ever.
    pub fn feed_for_ever(&mut self) {
        if let Some(mut to) = self.child.stdin.take() {
            let block = pattern(0, 64 << 10);
            std::thread::spawn(move || while to.write_all(&block).is_ok() {});
        }
    }

    pub fn kill(&self, signal: Signal) {
        // It may have ended, and is not waited for yet.
        let _ = kill_process(Pid::from_child(&self.child), signal);
    }

    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().expect("it can be waited for").is_some()
    }

    pub fn finish(self) -> Done {
        self.finish_within(PATIENCE)
    }

    /// Fails if it takes longer.
    pub fn finish_within(self, limit: Duration) -> Done {
        self.finish_after("", limit)
    }

    /// The same, and says what had happened.
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

/// What came, whatever comes then.
fn drain(mut from: impl Read) -> Vec<u8> {
    let mut bytes = Vec::new();
    let result: io::Result<usize> = from.read_to_end(&mut bytes);
    result.expect("it can be read");
    bytes
}

impl Done {
    pub fn text(&self) -> String {
        text(&self.output)
    }
}

/// Bytes that differ everywhere, so that no two blocks can be taken for each other: a generator's (xorshift64*).
pub fn pattern(seed: u64, length: usize) -> Vec<u8> {
    let mut random = Random::new(seed);
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        bytes.extend_from_slice(&random.next().to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

/// Where two streams part.
pub fn difference(came: &[u8], expected: &[u8]) -> String {
    let at = came.iter().zip(expected).take_while(|(a, b)| a == b).count();
    format!("{} bytes came, {} were expected; they differ from {at} on", came.len(), expected.len())
}

/// xorshift64*, seeded.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        // 0 is the one state that it never leaves; neighbours are to differ.
        Self(seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        // The upper bits are the better ones.
        (self.next() >> 16) % end
    }

    pub fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize].clone()
    }
}
