//! One Erlang node as a child process, driven by lines on its standard input.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::Sender;
use std::thread;
use std::time::{Duration, Instant};

use super::answer::Line;
use super::modules::Modules;
use crate::args::Transport;
use crate::error::Error;

/// Lines kept to be shown when the node fails.
const LOG_LINES: usize = 20;
/// How long a node may take to end once its input has.
const END_TIME: Duration = Duration::from_secs(2);
/// Flags that users put into their environment would join those given here; two `-proto_dist`
/// make a node fall back to inet_tcp in silence.
const FOREIGN_FLAGS: [&str; 4] = ["ERL_AFLAGS", "ERL_FLAGS", "ERL_ZFLAGS", "ERL_LIBS"];

/// How nodes are started.
#[derive(Clone, Debug)]
pub struct Recipe {
    pub erl: PathBuf,
    pub modules: Modules,
    pub transport: Transport,
    pub schedulers: usize,
    pub flags: String,
}

impl Recipe {
    fn arguments(&self, name: &str) -> Vec<String> {
        let bench = self.modules.bench.display().to_string();
        let schedulers = format!("{0}:{0}", self.schedulers);
        let mut arguments: Vec<String> = [
            "-noinput",
            "+S",
            &schedulers,
            "-hidden",
            "-name",
            name,
            "-start_epmd",
            "false",
            "-epmd_module",
            "caravan_bench_epmd",
            "-kernel",
            "inet_dist_use_interface",
            "{127,0,0,1}",
            "-pa",
            &bench,
            "-s",
            "caravan_bench",
        ]
        .map(str::to_owned)
        .to_vec();
        let option = match self.transport {
            Transport::Tcp => None,
            Transport::Caravan => Some("shm"),
            Transport::CaravanTcp => Some("tcp"),
        };
        if let Some(option) = option {
            let carrier = self.modules.carrier.display().to_string();
            let flags = ["-proto_dist", "caravan", "-pa", &carrier, "-caravan", "transport", option];
            arguments.extend(flags.map(str::to_owned));
        }
        arguments.extend(self.flags.split_whitespace().map(str::to_owned));
        arguments
    }
}

/// What a node's threads tell: which node, and a line of it or its end.
pub type Event = (usize, Option<Line>);

/// A running node. Dropping it ends the process.
#[derive(Debug)]
pub struct Node {
    pub name: String,
    child: Child,
    input: Option<ChildStdin>,
    log: VecDeque<String>,
}

impl Node {
    /// Starts the process; its lines go to `events` under the number `index`.
    pub fn start(
        recipe: &Recipe,
        name: String,
        home: &Path,
        index: usize,
        events: &Sender<Event>,
    ) -> Result<Self, Error> {
        let mut command = Command::new(&recipe.erl);
        command.args(recipe.arguments(&name)).env("HOME", home).env("ERL_CRASH_DUMP_SECONDS", "0");
        for variable in FOREIGN_FLAGS {
            command.env_remove(variable);
        }
        // A group of its own: Ctrl-C is for the command, which then ends the nodes in order.
        command.process_group(0);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command
            .spawn()
            .map_err(|source| Error::ErlMissing { program: recipe.erl.display().to_string(), source })?;
        if let Some(output) = child.stdout.take() {
            let events = events.clone();
            thread::spawn(move || {
                read_lines(output, |line| events.send((index, Some(Line::parse(line)))).is_ok());
                // Nobody listens any more when the cluster has been given up.
                let _ = events.send((index, None));
            });
        }
        if let Some(errors) = child.stderr.take() {
            let events = events.clone();
            thread::spawn(move || {
                let log = |line: &str| events.send((index, Some(Line::Log(line.to_owned())))).is_ok();
                read_lines(errors, log);
            });
        }
        let input = child.stdin.take();
        Ok(Self { name, child, input, log: VecDeque::new() })
    }

    /// The operating system's number of the process: `erl` replaces itself by the emulator.
    pub fn pid(&self) -> i32 {
        // Linux's pids end at 2^22.
        self.child.id() as i32
    }

    /// Sends a command. That the node has gone shows when its answer is waited for.
    pub fn send(&mut self, command: &str) {
        if let Some(input) = &mut self.input {
            let _ = input.write_all(format!("{command}\n").as_bytes());
        }
    }

    /// Keeps a line of the node's log.
    pub fn note(&mut self, line: String) {
        if self.log.len() == LOG_LINES {
            self.log.pop_front();
        }
        self.log.push_back(line);
    }

    /// The last lines of the log, indented.
    pub fn last_words(&self) -> String {
        if self.log.is_empty() {
            return "  (none)".into();
        }
        let lines: Vec<_> = self.log.iter().map(|line| format!("  {line}")).collect();
        lines.join("\n")
    }

    /// How the process ended, once it has.
    pub fn ended(&mut self) -> String {
        match self.child.wait() {
            Ok(status) => format!(" ({status})"),
            Err(_) => String::new(),
        }
    }

    /// Closes the input, at which the node ends by itself. Not waiting here lets all nodes of a
    /// cluster end at the same time.
    pub fn dismiss(&mut self) {
        self.input = None;
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.dismiss();
        let deadline = Instant::now() + END_TIME;
        // std has no wait with a limit; this one ends after a few milliseconds as a rule.
        while Instant::now() < deadline {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            thread::sleep(Duration::from_millis(2));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Calls `each` with every line until it says no or the input ends.
fn read_lines(input: impl Read, each: impl Fn(&str) -> bool) {
    let mut input = BufReader::new(input);
    let mut line = Vec::new();
    while matches!(input.read_until(b'\n', &mut line), Ok(1..)) {
        if !each(String::from_utf8_lossy(&line).trim_end()) {
            return;
        }
        line.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recipe(transport: Transport) -> Recipe {
        let modules = Modules { carrier: "/c".into(), bench: "/b".into() };
        let flags = "+sbwt none  +zdbbl 4096".into();
        Recipe { erl: "erl".into(), modules, transport, schedulers: 2, flags }
    }

    #[test]
    fn the_carrier_is_named_once_and_only_where_it_is_asked_for() {
        let line = |transport| recipe(transport).arguments("n@127.0.0.1").join(" ");
        assert!(!line(Transport::Tcp).contains("proto_dist"));
        let caravan = line(Transport::Caravan);
        assert_eq!(caravan.matches("-proto_dist caravan").count(), 1);
        assert!(caravan.contains("-pa /c -caravan transport shm"), "{caravan}");
        assert!(line(Transport::CaravanTcp).contains("-caravan transport tcp"));
        assert!(caravan.contains("+S 2:2") && caravan.ends_with("+sbwt none +zdbbl 4096"));
    }

    #[test]
    fn a_program_that_is_not_there_is_named() {
        let (events, _) = std::sync::mpsc::channel();
        let missing = Recipe { erl: "/none/erl".into(), ..recipe(Transport::Tcp) };
        let home = Path::new("/tmp");
        let error = Node::start(&missing, "n@127.0.0.1".into(), home, 0, &events);
        let text = error.expect_err("refused").to_string();
        assert!(text.contains("/none/erl") && text.contains("--erl"), "{text}");
    }
}
