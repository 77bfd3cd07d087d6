//! The command line.

mod carry;
mod copy;
mod engine;
mod engine_bench;
mod hosts;
mod moving;
mod names;
mod pipe;
mod pipe_bench;
mod rdma;
mod reach;

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{OsStringValueParser, RangedU64ValueParser, TypedValueParser};
use clap::{Parser, Subcommand, ValueEnum};

use crate::remote::PipeAgent;

pub use carry::{Recv, Send};
pub use copy::{Copy, CopySink, CopySource};
pub use engine::{
    Check as EngineCheck, Engine, Graph as EngineGraph, Reload as EngineReload, Run as EngineRun,
    Top as EngineTop, Trace as EngineTrace,
};
pub use engine_bench::{Compare, EngineBench, EnginePeer};
pub use hosts::{Fabric, SelfTest, SelfTestPeer, Ssh};
pub use moving::Moving;
pub use pipe::{Pipe, Telling};
pub use pipe_bench::{PipeBench, PipeNetwork, PipePeer, StepsTransport};
pub use rdma::Rdma;
pub use reach::Reach;

/// Move data between processes and hosts as fast as they can: pipes, packet networks, benchmarks, a live view.
#[derive(Debug, Parser)]
#[command(
    name = "caravan",
    version,
    arg_required_else_help = true,
    after_help = "\
Examples:
  caravan bench erlang                Erlang distribution over TCP and over Caravan, in 2 minutes
  caravan bench ring                  the ring between two processes, beside a bare loop in C
  caravan bench engine                the packet engine: links, tunnels, many processes, recovery
  caravan bench rdma                  a link over an RDMA device, beside perftest's programs
  caravan bench pipe                  a pipe between hosts, beside nc, socat, mbuffer, ssh and iperf3
  caravan engine run FILE             packet networks in worker processes
  caravan pipe a:'CMD' b:'CMD'        commands on several hosts, joined by pipes
  caravan top                         every Caravan link of this host, refreshed each second
  caravan fabric db2.example.org      what RDMA this host has, and what is in its way
  caravan selftest db2.example.org    whether it works between both, over ssh"
)]
pub struct Args {
    #[command(subcommand)]
    pub command: Command,
}

// The help of a command is at its type, in two parts: the line of the list, and the rest. A line at the variant
// would hide the second.

#[derive(Debug, Subcommand)]
pub enum Command {
    Pipe(Box<Pipe>),
    Send(Box<Send>),
    Recv(Box<Recv>),
    Cp(Box<Copy>),
    /// The half of `caravan cp` that sends
    #[command(hide = true)]
    CopySource(CopySource),
    /// The half of `caravan cp` that receives
    #[command(hide = true)]
    CopySink(CopySink),
    /// The other side of pipes
    #[command(hide = true)]
    PipeAgent(PipeAgent),
    /// Measure Caravan beside a peer, in alternating rounds
    #[command(subcommand, arg_required_else_help = true)]
    Bench(Bench),
    /// Run packet networks in worker processes; check, draw and change them
    #[command(subcommand, arg_required_else_help = true)]
    Engine(Engine),
    Top(Top),
    Fabric(Fabric),
    Selftest(SelfTest),
    /// The other side of `caravan selftest`
    #[command(hide = true)]
    SelftestPeer(SelfTestPeer),
}

#[derive(Debug, Subcommand)]
pub enum Bench {
    Erlang(Erlang),
    Ring(Ring),
    /// The other process of `caravan bench ring`
    #[command(hide = true)]
    RingPeer(RingPeer),
    Rdma(Rdma),
    /// The other process of `caravan bench rdma`
    #[command(hide = true)]
    RdmaPeer,
    Pipe(PipeBench),
    /// The other process of `caravan bench pipe --steps`
    #[command(hide = true)]
    PipePeer(PipePeer),
    Engine(EngineBench),
    /// The process of `caravan bench engine` that runs an engine
    #[command(hide = true)]
    EnginePeer(EnginePeer),
    Compare(Compare),
}

/// Erlang nodes calling each other, over TCP and over Caravan
///
/// Starts fresh Erlang nodes for each round and each transport, connects them all, and measures
/// RPCs (processes in a tight loop of calls to a gen_server in front of a gen_server), lone
/// round trips, streams of binaries, and round trips behind a stream. Nodes get random hidden
/// names, listen on 127.0.0.1 only, need no epmd and end with this command, however it ends.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  caravan bench erlang
  caravan bench erlang --nodes 2 --processes 1000 --seconds 5 --rounds 15
  caravan bench erlang --transports tcp --rounds 3 --json - --svg '' --png ''

CARAVAN_ERLANG_DIR names the folder that holds erlang/ebin and bench/erlang/ebin where they are
not found beside this program.")]
pub struct Erlang {
    /// Nodes, all connected with each other; with more than 2, two of them are measured as well
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = RangedU64ValueParser::<usize>::new().range(2..=64))]
    pub nodes: usize,
    /// Calling processes for each ordered pair of nodes
    #[arg(long, value_name = "P", default_value_t = 100, value_parser = RangedU64ValueParser::<usize>::new().range(1..=100_000))]
    pub processes: usize,
    /// Seconds in which RPCs are counted; the other figures take a part of it each
    #[arg(long, value_name = "S", default_value = "1", value_parser = seconds)]
    pub seconds: Duration,
    /// Rounds; each measures every transport once
    #[arg(long, value_name = "R", default_value_t = 9, value_parser = RangedU64ValueParser::<usize>::new().range(1..=10_000))]
    pub rounds: usize,
    /// Transports, separated by commas; ratios are to the first
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "tcp,caravan")]
    pub transports: Vec<Transport>,
    /// Scheduler threads of each node (erl +S)
    #[arg(long, value_name = "N", default_value = "1", value_parser = schedulers)]
    pub schedulers: NonZeroUsize,
    /// Where nodes run while RPCs are counted: wherever the kernel puts them, or node n on core n
    #[arg(long, value_name = "HOW", default_value = "none")]
    pub pin: Pin,
    /// The program that starts a node
    #[arg(long, value_name = "PROGRAM", default_value = "erl")]
    pub erl: PathBuf,
    /// More arguments for every node, as one text
    #[arg(long, value_name = "TEXT", default_value = "", allow_hyphen_values = true)]
    pub erl_flags: String,
    /// Results as JSON; '-' for standard output (the table then goes to standard error), '' for none
    #[arg(long, value_name = "FILE", default_value = "results/erlang.json", value_parser = file())]
    pub json: PathBuf,
    /// Chart as SVG, '' for none
    #[arg(long, value_name = "FILE", default_value = "results/erlang.svg", value_parser = file())]
    pub svg: PathBuf,
    /// Chart as PNG, '' for none
    #[arg(long, value_name = "FILE", default_value = "results/erlang.png", value_parser = file())]
    pub png: PathBuf,
}

/// What carries the messages of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Transport {
    /// OTP's own inet_tcp
    Tcp,
    /// Caravan over shared memory
    Caravan,
    /// Caravan that stays on TCP (-caravan transport tcp)
    CaravanTcp,
}

impl Transport {
    /// As it is written on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Caravan => "caravan",
            Self::CaravanTcp => "caravan-tcp",
        }
    }
}

impl std::fmt::Display for Transport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// Placement of nodes while RPCs are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Pin {
    /// The kernel's choice
    None,
    /// Node n on core n modulo the cores
    Spread,
}

/// A ring between two processes, beside a bare flag-and-copy loop in C
///
/// Sends 64-byte records through a ring in shared memory from one process to another, and the
/// same through a bare loop in C (a flag and a copy for each record), on the same cores.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  caravan bench ring
  caravan bench ring --samples 101 --json results/ring.json")]
pub struct Ring {
    /// Samples of each of the two, in turn
    #[arg(long, value_name = "N", default_value_t = 51, value_parser = RangedU64ValueParser::<usize>::new().range(1..=10_000))]
    pub samples: usize,
    /// Records in a sample, few enough that it ends before the kernel takes a core away; round
    /// trips are a twentieth of it
    #[arg(long, value_name = "N", default_value_t = 50_000, value_parser = RangedU64ValueParser::<u64>::new().range(1_000..=10_000_000_000))]
    pub records: u64,
    /// Which two cores, where there are more: those nearest to each other or those farthest
    #[arg(long, value_name = "WHICH", default_value = "near")]
    pub placement: Placement,
    /// Bytes of the ring: a power of two
    #[arg(long, value_name = "BYTES", default_value_t = 65_536, value_parser = ring_bytes)]
    pub ring_bytes: u64,
    /// The C compiler for the bare loop
    #[arg(long, value_name = "PROGRAM", default_value = "cc")]
    pub cc: PathBuf,
    /// Results as JSON as well; '-' for standard output (the table then goes to standard error)
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// A choice among pairs of cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Placement {
    /// The pair between which a cache line goes fastest
    Near,
    /// The pair between which it goes slowest
    Far,
}

/// The consuming process, which finds the memory through its parent.
#[derive(Debug, clap::Args)]
pub struct RingPeer {
    #[arg(long)]
    pub memory: PathBuf,
    #[arg(long)]
    pub ring_bytes: u64,
    #[arg(long)]
    pub core: usize,
    #[arg(long)]
    pub records: u64,
    #[arg(long)]
    pub echo: bool,
}

/// Show every Caravan link on this host of your user
///
/// Reads the counters that every process with Caravan links keeps in shared memory. Rates are
/// those of the last second. Links of other users are not shown.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  caravan top
  caravan top --once
  caravan top --json | jq '.links[] | {peer, transport, messages_sent_per_s}'")]
pub struct Top {
    /// Print one table and end
    #[arg(long)]
    pub once: bool,
    /// One JSON object for each refresh, one a line
    #[arg(long)]
    pub json: bool,
    /// Seconds between refreshes
    #[arg(long, value_name = "S", default_value = "1", value_parser = seconds)]
    pub interval: Duration,
}

const SECONDS_MIN: f64 = 0.1;
const SECONDS_MAX: f64 = 3600.0;

fn seconds(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (SECONDS_MIN..=SECONDS_MAX).contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err(format!("it takes seconds from {SECONDS_MIN} to {SECONDS_MAX}, such as 2 or 0.5")),
    }
}

/// A path that may be empty, which clap's own parser of paths refuses.
fn file() -> impl TypedValueParser<Value = PathBuf> {
    OsStringValueParser::new().map(PathBuf::from)
}

fn schedulers(text: &str) -> Result<NonZeroUsize, String> {
    match text.parse::<NonZeroUsize>() {
        Ok(count) if count.get() <= 1024 => Ok(count),
        _ => Err("it takes a number of threads from 1 to 1024".into()),
    }
}

fn ring_bytes(text: &str) -> Result<u64, String> {
    match text.parse::<u64>() {
        Ok(bytes) if bytes.is_power_of_two() && (4096..=1 << 30).contains(&bytes) => Ok(bytes),
        _ => Err("it takes a power of two from 4096 to 1073741824".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(line: &str) -> String {
        let words = line.split(' ');
        Args::try_parse_from(words).expect_err("refused").to_string()
    }

    #[test]
    fn a_bad_value_names_the_option_and_what_it_takes() {
        for (line, expected) in [
            ("caravan bench erlang --nodes 1", "'1' for '--nodes <N>': 1 is not in 2..=64"),
            ("caravan bench erlang --seconds 0", "--seconds <S>': it takes seconds from 0.1"),
            ("caravan bench erlang --seconds soon", "--seconds <S>': it takes seconds from 0.1"),
            ("caravan bench erlang --transports udp", "[possible values: tcp, caravan, caravan-tcp]"),
            ("caravan bench erlang --schedulers 0", "it takes a number of threads from 1"),
            ("caravan bench ring --ring-bytes 5000", "it takes a power of two from 4096"),
            ("caravan top --interval=-1", "it takes seconds from 0.1"),
        ] {
            let text = refusal(line);
            assert!(text.contains(expected), "{line}: {text}");
        }
    }

    #[test]
    fn transports_are_a_list() {
        let args = Args::parse_from(["caravan", "bench", "erlang", "--transports", "caravan,tcp"]);
        let Command::Bench(Bench::Erlang(erlang)) = args.command else { panic!("{args:?}") };
        assert_eq!(erlang.transports, [Transport::Caravan, Transport::Tcp]);
    }

    #[test]
    fn files_may_be_declined() {
        let args = Args::parse_from(["caravan", "bench", "erlang", "--json", "-", "--svg", "", "--png="]);
        let Command::Bench(Bench::Erlang(erlang)) = args.command else { panic!("{args:?}") };
        let files = [erlang.json, erlang.svg, erlang.png];
        assert_eq!(files, [PathBuf::from("-"), PathBuf::new(), PathBuf::new()]);
    }

    fn leaves(command: &clap::Command) -> Vec<&clap::Command> {
        let below: Vec<_> =
            command.get_subcommands().filter(|command| !command.is_hide_set()).flat_map(leaves).collect();
        if below.is_empty() { vec![command] } else { below }
    }

    #[test]
    fn every_command_has_a_line_and_more_with_examples() {
        for command in leaves(&<Args as clap::CommandFactory>::command()) {
            let name = command.get_name();
            let line = command.get_about().map(ToString::to_string).expect(name);
            let more = command.get_long_about().map(ToString::to_string).expect(name);
            assert!(more.len() > line.len() + 80 && line.len() <= 90, "{name}: {more}");
            let examples = command.get_after_help().map(ToString::to_string).expect(name);
            assert!(examples.starts_with("Examples:\n  "), "{name}: {examples}");
        }
    }

    #[test]
    fn the_definition_is_consistent() {
        <Args as clap::CommandFactory>::command().debug_assert();
    }
}
