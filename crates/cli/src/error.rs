//! What can go wrong, in sentences for the person at the terminal.

use std::io;
use std::path::PathBuf;

use crate::args::Transport;

/// Every failure of the command.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(
        "the Erlang modules are not in {searched}. Run `make build` in the checkout, or set \
         CARAVAN_ERLANG_DIR to the folder that holds erlang/ebin and bench/erlang/ebin"
    )]
    ModulesMissing { searched: String },
    #[error("`--transports` names {0} twice: each transport is measured once in every round")]
    TransportTwice(Transport),
    #[error(
        "cannot start `{program}`: {source}. Install Erlang/OTP 25 or later (on Debian: apt \
         install erlang-base), or name the program with --erl"
    )]
    ErlMissing { program: String, source: io::Error },
    #[error("node {node} ended unasked{when}. Its last words:\n{log}")]
    NodeEnded { node: String, when: String, log: String },
    #[error(
        "node {node} did not answer `{command}` within {seconds} s: it hangs, or the machine is \
         overloaded. Its last words:\n{log}"
    )]
    NodeSilent { node: String, command: String, seconds: u64, log: String },
    #[error("node {node} failed at `{command}`: {reason}")]
    NodeFailed { node: String, command: String, reason: String },
    #[error(
        "node {node} answered `{command}` without a usable `{key}`: {answer}. Rebuild: the modules and this program are of different versions"
    )]
    NodeUnclear { node: String, command: String, key: String, answer: String },
    #[error(
        "the {asked} round was not carried by what was asked: {what}. No figure of this run \
         can be trusted, so none is written"
    )]
    NotCarried { asked: Transport, what: String },
    #[error("cannot {what} {path}: {source}", path = path.display())]
    File { what: &'static str, path: PathBuf, source: io::Error },
    #[error("cannot write the chart {path}: {source}", path = path.display())]
    Chart { path: PathBuf, source: png::EncodingError },
    #[error("cannot write the output: {0}")]
    Output(io::Error),
    #[error("cannot watch for Ctrl-C: {0}")]
    Signals(io::Error),
    #[error("the system gives no random bytes: {0}")]
    Random(rustix::io::Errno),
    #[error("cannot keep process {pid} on cores {cores:?}: {source}")]
    Pin { pid: i32, cores: Vec<usize>, source: rustix::io::Errno },
    #[error(
        "this measurement needs 2 cores, and this process may use {0}: widen its CPU affinity (taskset, cpuset) or use a larger machine"
    )]
    CoresShort(usize),
    #[error(
        "cannot compile the bare loop in C with `{program}`: {reason}. Install a C compiler (on Debian: apt install gcc libc6-dev), or name one with --cc"
    )]
    Compiler { program: String, reason: String },
    #[error("the {process} of the benchmark failed: {reason}")]
    BenchProcess { process: &'static str, reason: String },
    #[error(
        "a sample did not end within {0} s: other work takes the cores, and two processes that wait for each other cannot be measured beside it. Try again when the machine is idle"
    )]
    BenchSlow(u64),
    #[error("no benchmark is called {name}: there are {names}")]
    NoBenchmark { name: String, names: String },
    #[error(
        "between cores {0} and {1} the distance changed within every sample, {2} times in a row: the machine moves its cores about. Try again when it is less busy"
    )]
    Unsteady(usize, usize, usize),
    #[error("{path}, line {line}: {reason}. Remove that line, or name another file with --history", path = path.display())]
    History { path: PathBuf, line: usize, reason: String },
    #[error("{0}")]
    Sentence(String),
    #[error("{0} of the benchmarks have become worse; the table names them")]
    Regressions(usize),
    #[error("{0}")]
    Engine(#[from] caravan_engine::Error),
    #[error(
        "a trace is no text: send it to a file or a program, as in `caravan engine trace LINK > trace.pcap`"
    )]
    Terminal,
    #[error("{0}")]
    Mistakes(String),
    #[error("the output says what is wrong")]
    Said,
    #[error(
        "process {0} takes no orders: it is no engine that `caravan engine run` started, or is just ending. Send SIGHUP to the one that is meant, or start it with that command"
    )]
    NoOrders(i32),
    #[error(
        "the engine of process {0} runs in another network namespace, which cannot be entered from here: run this as root, or use `kill -HUP {0}`, and the engine's own output says what came of it"
    )]
    OtherNetwork(i32),
    #[error(
        "{}: --until-end: no app has an end, so nothing would ever end: that takes a pcap_reader, or a source with a count",
        .0.display()
    )]
    NoEnd(std::path::PathBuf),
    #[error("the engine of process {0} did not answer: it has ended, or hangs. Its own output may say why")]
    NoAnswer(i32),
    #[error("{call}: {source}")]
    Control { call: &'static str, source: rustix::io::Errno },
    #[error("the RDMA benchmark failed: {0}")]
    Rdma(String),
    #[error("{0}")]
    Fabric(#[from] caravan_fabric::Error),
    #[error("the ring is broken: {0}")]
    Ring(#[from] caravan_ring::Corrupt),
    #[error("{0}")]
    Segment(#[from] caravan_segment::Error),
    #[error("cannot find the host {host}: {source}. Give its address, or see whether its name is right")]
    Resolve { host: String, source: io::Error },
    #[error("towards {host} there is only TCP; the lines above say why")]
    OnlyTcp { host: String },
    #[error(
        "cannot start `{program}`: {source}. Install it (on Debian: apt install openssh-client), or name the program with --ssh"
    )]
    SshMissing { program: String, source: io::Error },
    #[error("{host}: {what}")]
    SelfTestHost { host: String, what: String },
    #[error("the self-test found failures; the report names them")]
    SelfTestFailed,
    #[error("{0}")]
    Pipe(#[from] caravan_pipe::Error),
    #[error("interrupted")]
    Interrupted,
}

impl Error {
    /// As what prevented a pipe between hosts, for the exit status.
    pub fn before_a_pipe(self) -> Self {
        Self::Pipe(caravan_pipe::Error::Usage(self.to_string()))
    }

    /// 130 after Ctrl-C, as shells expect; 255 where a pipe between hosts could not be set up, as ssh has it,
    /// because 1 may be a stage's; 1 otherwise.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Interrupted | Self::Pipe(caravan_pipe::Error::Cancelled) => 130,
            Self::Pipe(_) => 255,
            _ => 1,
        }
    }
}
