//! Erlang nodes that are started together and connected with each other.

use std::collections::VecDeque;
use std::fmt::Display;
use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::str::FromStr;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};
use std::{env, thread};

use crate::args::ErlangTransport;
use crate::error::Error;
use crate::interrupt::{GLANCE, Interrupt};
use crate::scratch::{Scratch, random_word};
use crate::usage::{Cores, Usage};

/// How long a node may take beyond the time that its command measures.
const PATIENCE: Duration = Duration::from_secs(120);

/// One command to one node.
#[derive(Clone, Debug)]
pub struct NodeCommand {
    pub node: usize,
    pub line: String,
    /// The nodes whose use of the processors counts for this command.
    pub watch: Vec<usize>,
}

/// The answer of a node.
#[derive(Clone, Debug)]
pub struct NodeReply {
    pub node: String,
    pub command: String,
    pub answer: NodeAnswer,
    /// The processors that the watched nodes used between the first mark and the last.
    pub cores: Cores,
}

impl NodeReply {
    /// Returns a number of the answer.
    pub fn number(&self, key: &str) -> Result<f64, Error> {
        self.answer.read(key).ok_or_else(|| self.unclear(key))
    }

    /// Returns the error for an answer without what this version of the program expects.
    pub fn unclear(&self, key: &str) -> Error {
        let Self { node, command, answer, .. } = self;
        Error::Sentence(format!(
            "node {node} answered `{command}` without a usable `{key}`: {answer}. Rebuild: the modules and this \
             program are of different versions"
        ))
    }
}

/// Connected nodes. Dropping the value ends them all.
#[derive(Debug)]
pub struct Cluster {
    nodes: Vec<ErlangNode>,
    events: Receiver<NodeEvent>,
    interrupt: Interrupt,
    /// The Erlang/OTP version that the nodes run.
    pub otp: String,
}

impl Cluster {
    /// Starts the nodes and connects each with every other.
    pub fn start(recipe: &Recipe, count: usize, interrupt: &Interrupt) -> Result<Self, Error> {
        let home = node_home()?;
        let word = random_word()?;
        let (sender, events) = channel();
        let mut nodes = Vec::with_capacity(count);
        for index in 0..count {
            let name = format!("bench{}_{}@127.0.0.1", index + 1, &word[..12]);
            nodes.push(ErlangNode::start(recipe, name, home.path(), index, &sender)?);
        }
        let mut cluster = Self { nodes, events, interrupt: interrupt.clone(), otp: String::new() };
        let each =
            |line: &dyn Fn(usize) -> String| -> Vec<_> { (0..count).map(|n| plain(n, line(n))).collect() };
        // This command is not sent: every node answers it when it is up.
        let hello = cluster.collect(&each(&|_| "start".to_owned()), PATIENCE)?;
        cluster.otp = hello[0].answer.read("otp").ok_or_else(|| hello[0].unclear("otp"))?;
        let mut peers = String::from("peers");
        for reply in &hello {
            let port: u16 = reply.answer.read("port").ok_or_else(|| reply.unclear("port"))?;
            peers.push_str(&format!(" {}={port}", reply.node));
        }
        cluster.ask(&each(&|_| peers.clone()), PATIENCE)?;
        let connects = each(&|node| format!("connect {}", cluster.others(node, count)));
        cluster.ask(&connects, PATIENCE)?;
        Ok(cluster)
    }

    pub fn pid(&self, node: usize) -> i32 {
        self.nodes[node].pid()
    }

    pub fn name(&self, node: usize) -> &str {
        &self.nodes[node].name
    }

    /// Returns the names of the first `count` nodes except this one.
    pub fn others(&self, node: usize, count: usize) -> String {
        let others = (0..count).filter(|&other| other != node);
        others.map(|other| self.name(other)).collect::<Vec<_>>().join(" ")
    }

    /// Sends each command and waits for each answer, in the order of the commands. `measured` is how long they take
    /// without trouble.
    pub fn ask(&mut self, commands: &[NodeCommand], measured: Duration) -> Result<Vec<NodeReply>, Error> {
        for command in commands {
            self.nodes[command.node].send(&command.line);
        }
        self.collect(commands, measured + PATIENCE)
    }

    fn collect(&mut self, commands: &[NodeCommand], limit: Duration) -> Result<Vec<NodeReply>, Error> {
        let deadline = Instant::now() + limit;
        let mut marks: Vec<Vec<Vec<Usage>>> = vec![Vec::new(); commands.len()];
        let mut replies: Vec<Option<NodeReply>> = vec![None; commands.len()];
        while let Some(waiting) = replies.iter().position(Option::is_none) {
            let Some((index, event)) = self.next(deadline)? else {
                return Err(self.silent(&commands[waiting], limit));
            };
            let place = commands.iter().position(|command| command.node == index);
            match (event, place) {
                (Some(NodeLine::Mark), Some(place)) => {
                    marks[place].push(self.usage(&commands[place].watch));
                }
                (Some(NodeLine::Answer(answer)), Some(place)) => {
                    replies[place] = Some(NodeReply {
                        node: self.name(index).to_owned(),
                        command: commands[place].line.clone(),
                        answer,
                        cores: used(&marks[place]),
                    });
                }
                (Some(NodeLine::Failed(reason)), place) => {
                    let command = place.map_or("", |place| &commands[place].line);
                    let node = self.name(index);
                    return Err(Error::Sentence(format!("node {node} failed at `{command}`: {reason}")));
                }
                (Some(NodeLine::Log(line)), _) => self.nodes[index].note(line),
                (Some(NodeLine::Mark | NodeLine::Answer(_)), None) => {}
                (None, _) => return Err(self.ended(index)),
            }
        }
        Ok(replies.into_iter().flatten().collect())
    }

    /// Waits for the next event; `None` after the deadline.
    fn next(&self, deadline: Instant) -> Result<Option<NodeEvent>, Error> {
        loop {
            self.interrupt.check()?;
            match self.events.recv_timeout(GLANCE) {
                Ok(event) => return Ok(Some(event)),
                Err(RecvTimeoutError::Timeout) if Instant::now() < deadline => {}
                // All threads that read nodes have ended; each reported that before.
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return Ok(None),
            }
        }
    }

    /// Reads the use of the watched nodes. A node that is gone is left out: its end is an event.
    fn usage(&self, watch: &[usize]) -> Vec<Usage> {
        watch.iter().filter_map(|&node| Usage::of(self.pid(node)).ok()).collect()
    }

    fn silent(&self, command: &NodeCommand, limit: Duration) -> Error {
        let node = &self.nodes[command.node];
        Error::Sentence(format!(
            "node {} did not answer `{}` within {} s: it hangs, or the machine is overloaded. Its last words:\n{}",
            node.name,
            command.line,
            limit.as_secs(),
            node.last_words()
        ))
    }

    fn ended(&mut self, index: usize) -> Error {
        // The standard error of the node may still be on its way from the other thread.
        while let Ok((index, Some(NodeLine::Log(line)))) = self.events.recv_timeout(GLANCE) {
            self.nodes[index].note(line);
        }
        let node = &mut self.nodes[index];
        let how = node.child.wait().map_or_else(|_| String::new(), |status| format!(" ({status})"));
        let words = node.last_words();
        Error::Sentence(format!("node {} ended unasked{how}. Its last words:\n{words}", node.name))
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // A node ends by itself when its input does; this does not wait, so that all of them end at the same time.
        self.nodes.iter_mut().for_each(|node| node.input = None);
    }
}

/// Returns a command during which no processor use is read.
pub fn plain(node: usize, line: String) -> NodeCommand {
    NodeCommand { node, line, watch: Vec::new() }
}

fn used(marks: &[Vec<Usage>]) -> Cores {
    let mut sum = Cores { user: 0.0, system: 0.0 };
    if let (Some(first), Some(last)) = (marks.first(), marks.last()) {
        for (first, last) in first.iter().zip(last) {
            let cores = last.since(first);
            sum.user += cores.user;
            sum.system += cores.system;
        }
    }
    sum
}

/// The number of lines kept to be shown when the node fails.
const LOG_LINES: usize = 20;
/// How long a node may take to end once its input has ended.
const END_TIME: Duration = Duration::from_secs(2);
/// Variables that are removed: flags in the user's environment would join those given here, and two `-proto_dist` make
/// a node fall back to inet_tcp in silence.
const FOREIGN_FLAGS: [&str; 4] = ["ERL_AFLAGS", "ERL_FLAGS", "ERL_ZFLAGS", "ERL_LIBS"];

/// How nodes are started.
#[derive(Clone, Debug)]
pub struct Recipe {
    pub erl: PathBuf,
    pub modules: ErlangModules,
    pub transport: ErlangTransport,
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
            ErlangTransport::Tcp => None,
            ErlangTransport::Caravan => Some("shm"),
            ErlangTransport::CaravanTcp => Some("tcp"),
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

/// The number of a node, and a line of it or its end.
pub type NodeEvent = (usize, Option<NodeLine>);

/// A running node. Dropping it ends the process.
#[derive(Debug)]
pub struct ErlangNode {
    pub name: String,
    child: Child,
    input: Option<ChildStdin>,
    log: VecDeque<String>,
}

impl ErlangNode {
    /// Starts the process; its lines go to `events` with the number `index`.
    pub fn start(
        recipe: &Recipe,
        name: String,
        home: &Path,
        index: usize,
        events: &Sender<NodeEvent>,
    ) -> Result<Self, Error> {
        let mut command = Command::new(&recipe.erl);
        command.args(recipe.arguments(&name)).env("HOME", home).env("ERL_CRASH_DUMP_SECONDS", "0");
        for variable in FOREIGN_FLAGS {
            command.env_remove(variable);
        }
        // A group of its own: Ctrl-C reaches only the command, which then ends the nodes in order.
        command.process_group(0);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command
            .spawn()
            .map_err(|source| Error::ErlMissing { program: recipe.erl.display().to_string(), source })?;
        if let Some(output) = child.stdout.take() {
            let events = events.clone();
            thread::spawn(move || {
                read_lines(output, |line| events.send((index, Some(NodeLine::parse(line)))).is_ok());
                // The cluster may be gone already.
                let _ = events.send((index, None));
            });
        }
        if let Some(errors) = child.stderr.take() {
            let events = events.clone();
            thread::spawn(move || {
                let log = |line: &str| events.send((index, Some(NodeLine::Log(line.to_owned())))).is_ok();
                read_lines(errors, log);
            });
        }
        let input = child.stdin.take();
        Ok(Self { name, child, input, log: VecDeque::new() })
    }

    /// Returns the pid of the node: `erl` replaces itself by the emulator.
    pub fn pid(&self) -> i32 {
        // Linux's pids end at 2^22.
        self.child.id() as i32
    }

    /// Sends a command. If the node is gone, waiting for its answer fails.
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

    /// Returns the last lines of the log, indented.
    pub fn last_words(&self) -> String {
        if self.log.is_empty() {
            return "  (none)".into();
        }
        let lines: Vec<_> = self.log.iter().map(|line| format!("  {line}")).collect();
        lines.join("\n")
    }
}

impl Drop for ErlangNode {
    fn drop(&mut self) {
        self.input = None;
        let deadline = Instant::now() + END_TIME;
        // std has no wait with a limit; this one usually ends after a few milliseconds.
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

/// Calls `each` with every line until it returns false or the input ends.
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

const MARK: &str = "@caravan mark";
const OK: &str = "@caravan ok";
const FAILED: &str = "@caravan error ";

/// A line of a node's standard output or error.
#[derive(Clone, Debug, PartialEq)]
pub enum NodeLine {
    /// A measured span begins or ends.
    Mark,
    /// A command is done.
    Answer(NodeAnswer),
    /// A command failed, and why.
    Failed(String),
    /// Another line, which belongs to the node's log.
    Log(String),
}

/// The words of an answer, in order; a key may occur more than once.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeAnswer(Vec<(String, String)>);

impl NodeLine {
    pub fn parse(line: &str) -> Self {
        if line == MARK {
            return Self::Mark;
        }
        if let Some(reason) = line.strip_prefix(FAILED) {
            return Self::Failed(reason.to_owned());
        }
        match line.strip_prefix(OK) {
            Some(words) => Self::Answer(NodeAnswer(words.split_whitespace().map(pair).collect())),
            None => Self::Log(line.to_owned()),
        }
    }
}

impl NodeAnswer {
    /// Returns all values of a key.
    pub fn all<'a>(&'a self, key: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |(name, _)| name == key).map(|(_, value)| value.as_str())
    }

    /// Parses the first value of a key.
    pub fn read<T: FromStr>(&self, key: &str) -> Option<T> {
        self.all(key).next()?.parse().ok()
    }
}

impl Display for NodeAnswer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let words: Vec<_> = self.0.iter().map(|(key, value)| format!("{key}={value}")).collect();
        f.write_str(&words.join(" "))
    }
}

fn pair(word: &str) -> (String, String) {
    let (key, value) = word.split_once('=').unwrap_or((word, ""));
    (key.to_owned(), value.to_owned())
}

/// A home folder for the nodes of a cluster, which keeps the user's own `~/.erlang.cookie` and `~/.erlang` out of the
/// measurement. The cookie is random and in a file that only the user can read: every user of the host could read it
/// on the command line, and a cookie lets its holder run code.
fn node_home() -> Result<Scratch, Error> {
    let scratch = Scratch::create()?;
    let path = scratch.path().join(".erlang.cookie");
    let file = OpenOptions::new().write(true).create_new(true).mode(0o400).open(&path);
    let cookie = random_word()?;
    file.and_then(|mut file| file.write_all(cookie.as_bytes())).map_err(Error::file("write", &path))?;
    Ok(scratch)
}

/// The variable that names the folder of the modules, if they are not beside the program.
const VARIABLE: &str = "CARAVAN_ERLANG_DIR";

/// The two folders for `erl -pa`.
#[derive(Clone, Debug, PartialEq)]
pub struct ErlangModules {
    pub carrier: PathBuf,
    pub bench: PathBuf,
}

impl ErlangModules {
    /// Looks only in [`VARIABLE`] if it is set; otherwise beside the program, in a checkout (`target/release/caravan`)
    /// or under an installed prefix (`bin/caravan`). Plain TCP is measured without the carrier.
    pub fn find(needs_carrier: bool) -> Result<Self, Error> {
        let roots = match env::var_os(VARIABLE) {
            Some(root) => vec![PathBuf::from(root)],
            None => env::current_exe().map_or_else(|_| Vec::new(), |program| beside(&program)),
        };
        Self::in_one_of(&roots, needs_carrier)
    }

    fn in_one_of(roots: &[PathBuf], needs_carrier: bool) -> Result<Self, Error> {
        let found = roots.iter().map(|root| Self::under(root)).find(|modules| {
            (!needs_carrier || modules.carrier.join("caravan_dist.beam").is_file())
                && modules.bench.join("caravan_bench.beam").is_file()
        });
        found.ok_or_else(|| {
            let searched: Vec<_> = roots.iter().map(|root| root.display().to_string()).collect();
            Error::ModulesMissing { searched: searched.join(" or ") }
        })
    }

    fn under(root: &Path) -> Self {
        Self { carrier: root.join("erlang/ebin"), bench: root.join("bench/erlang/ebin") }
    }
}

fn beside(program: &Path) -> Vec<PathBuf> {
    let program = program.canonicalize().unwrap_or_else(|_| program.to_owned());
    let above = |levels| program.ancestors().nth(levels).map(Path::to_owned);
    let installed = above(2).map(|prefix| prefix.join("lib/caravan"));
    above(3).into_iter().chain(installed).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    fn recipe(transport: ErlangTransport) -> Recipe {
        let modules = ErlangModules { carrier: "/c".into(), bench: "/b".into() };
        let flags = "+sbwt none  +zdbbl 4096".into();
        Recipe { erl: "erl".into(), modules, transport, schedulers: 2, flags }
    }

    #[test]
    fn the_carrier_is_named_once_and_only_where_it_is_asked_for() {
        let line = |transport| recipe(transport).arguments("n@127.0.0.1").join(" ");
        assert!(!line(ErlangTransport::Tcp).contains("proto_dist"));
        let caravan = line(ErlangTransport::Caravan);
        assert_eq!(caravan.matches("-proto_dist caravan").count(), 1);
        assert!(caravan.contains("-pa /c -caravan transport shm"), "{caravan}");
        assert!(line(ErlangTransport::CaravanTcp).contains("-caravan transport tcp"));
        assert!(caravan.contains("+S 2:2") && caravan.ends_with("+sbwt none +zdbbl 4096"));
    }

    #[test]
    fn a_program_that_is_not_there_is_named() {
        let (events, _) = std::sync::mpsc::channel();
        let missing = Recipe { erl: "/none/erl".into(), ..recipe(ErlangTransport::Tcp) };
        let home = Path::new("/tmp");
        let error = ErlangNode::start(&missing, "n@127.0.0.1".into(), home, 0, &events);
        let text = error.expect_err("refused").to_string();
        assert!(text.contains("/none/erl") && text.contains("--erl"), "{text}");
    }

    #[test]
    fn lines_are_told_apart() {
        assert_eq!(NodeLine::parse("@caravan mark"), NodeLine::Mark);
        assert_eq!(NodeLine::parse("@caravan ok"), NodeLine::Answer(NodeAnswer::default()));
        let reason = "{error,{cannot_connect_to,'b@127.0.0.1'}}";
        assert_eq!(NodeLine::parse(&format!("@caravan error {reason}")), NodeLine::Failed(reason.into()));
        let log = "=ERROR REPORT==== caravan ok";
        assert_eq!(NodeLine::parse(log), NodeLine::Log(log.into()));
    }

    #[test]
    fn values_are_found_by_their_key() {
        let NodeLine::Answer(answer) = NodeLine::parse("@caravan ok rpcs=12 link=a,shm link=b,tcp name=x")
        else {
            panic!("an answer")
        };
        assert_eq!(answer.read::<u64>("rpcs"), Some(12));
        assert_eq!(answer.read::<u64>("name"), None);
        assert_eq!(answer.read::<u64>("absent"), None);
        assert_eq!(answer.all("link").collect::<Vec<_>>(), ["a,shm", "b,tcp"]);
    }

    #[test]
    fn the_cookie_is_private() {
        let home = node_home().expect("a folder");
        let cookie = home.path().join(".erlang.cookie");
        assert_eq!(fs::metadata(&cookie).expect("there").permissions().mode() & 0o777, 0o400);
        assert_eq!(fs::read_to_string(&cookie).expect("a cookie").len(), 32);
    }

    #[test]
    fn a_checkout_and_a_prefix_are_searched() {
        let roots = beside(Path::new("/none/target/release/caravan"));
        assert_eq!(roots, [Path::new("/none"), Path::new("/none/target/lib/caravan")]);
        let roots = beside(Path::new("/none/prefix/bin/caravan"));
        assert_eq!(roots[1], Path::new("/none/prefix/lib/caravan"));
    }

    #[test]
    fn missing_modules_say_where_they_were_sought_and_what_to_do() {
        let error = ErlangModules::in_one_of(&["/none/a".into(), "/none/b".into()], false).expect_err("none");
        let text = error.to_string();
        assert!(text.contains("not in /none/a or /none/b"), "{text}");
        assert!(text.contains("make build") && text.contains(VARIABLE), "{text}");
    }
}
