//! The base of all tests of pipes: hosts with an sshd each, the command with its input and output, and a census around
//! all of it.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::census::{Census, MARK, Process};
use crate::common::wait_for;
use crate::pipe::bytes::difference;
use crate::pipe::live::{Done, Live};
use crate::sshd::Hosts;

/// The name of a host at whose port nothing listens.
const REFUSED: &str = "refused";

/// The hosts of a test.
pub struct Rig {
    pub hosts: Hosts,
    pub census: Census,
}

impl Rig {
    /// Starts the hosts; one named `refused` accepts no session.
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

    /// Returns the path of a file that only the test uses.
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

    /// Returns `caravan pipe` with ssh's configuration and these words. `@/` in words of tests is the folder of files.
    pub fn command(&self, words: &[&str]) -> Command {
        let mut command = self.hosts.pipe();
        let files = format!("{}/", self.hosts.folder().join("files").display());
        command.args(words.iter().map(|word| word.replace("@/", &files)));
        command.env(MARK, self.hosts.folder());
        command
    }

    /// Returns the same command under another name of the program.
    pub fn command_as(&self, program: &Path, words: &[&str]) -> Command {
        let given = self.command(words);
        let mut command = Command::new(program);
        // The word `pipe` is left out, because the name implies it.
        command.args(given.get_args().skip(1));
        command.env(MARK, self.hosts.folder());
        command
    }

    pub fn start(&self, words: &[&str]) -> Live {
        Live::start(self.command(words))
    }

    /// Runs the command to its end with `input`.
    pub fn run(&self, words: &[&str], input: &[u8]) -> Done {
        let mut live = self.start(words);
        live.feed(input.to_vec());
        live.finish()
    }

    /// Runs the command, and checks that nothing is left.
    pub fn run_clean(&self, words: &[&str], input: &[u8]) -> Done {
        let done = self.run(words, input);
        self.census.check(&format!("{words:?}"));
        done
    }

    /// Checks that the command succeeds without complaints, leaves nothing, and prints `expected`.
    pub fn yields(&self, words: &[&str], input: &[u8], expected: &[u8]) {
        let done = self.run_clean(words, input);
        assert_eq!((done.status, done.complaints().as_str()), (Some(0), ""), "{words:?}");
        assert!(done.output == expected, "{words:?}: {}", difference(&done.output, expected));
    }

    /// Returns the agents of a host: processes of this program below its sshd, without the holders.
    pub fn agents(&self, host: &str) -> Vec<Process> {
        self.programs(host).into_iter().filter(|process| !is_holder(process)).collect()
    }

    /// Returns all processes of this program below a host's sshd.
    pub fn programs(&self, host: &str) -> Vec<Process> {
        self.census.processes().into_iter().filter(|p| is_program(p) && self.is_at(p, host)).collect()
    }

    /// Returns the local processes of ssh.
    pub fn ssh(&self) -> Vec<Process> {
        let is_ssh = |process: &Process| process.program().is_some_and(|program| program.ends_with("ssh"));
        self.census.processes().into_iter().filter(is_ssh).collect()
    }

    /// Returns the commands whose arguments contain `part`, without the shells that start them and our own processes.
    pub fn commands(&self, part: &str) -> Vec<Process> {
        let runs = |process: &Process| {
            let shell = ["bash", "sh", "dash"].iter().any(|name| {
                process.program().is_some_and(|program| program.file_name().is_some_and(|at| at == *name))
            });
            process.command.contains(part) && !shell && !is_program(process) && !is_of_ssh(process)
        };
        self.census.processes().into_iter().filter(runs).collect()
    }

    /// Returns all processes of a host except its sshd.
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

    /// Waits until there is such a command, and returns it.
    pub fn await_command(&self, part: &str) -> Process {
        let mut found = Vec::new();
        wait_for(&format!("a command {part}"), || {
            found = self.commands(part);
            !found.is_empty()
        });
        found.swap_remove(0)
    }
}

/// True if a process runs the program under test.
pub fn is_program(process: &Process) -> bool {
    process.program().is_some_and(|program| {
        program.file_name().is_some_and(|name| name.to_string_lossy().contains("caravan"))
            || program == Path::new(env!("CARGO_BIN_EXE_caravan"))
    }) || process.command.contains("pipe-agent")
}

/// True for a process that keeps a command's input open when its agent is killed.
pub fn is_holder(process: &Process) -> bool {
    process.command.ends_with("pipe-agent --hold")
}

fn is_of_ssh(process: &Process) -> bool {
    process.program().is_some_and(|program| program.to_string_lossy().contains("ssh"))
        || process.command.starts_with("sshd")
}
