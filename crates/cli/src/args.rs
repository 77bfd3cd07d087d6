//! The command line.

mod engine;
mod frames;
mod pipe;
mod store;

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::time::Duration;

use caravan_bench::limits::LimitsArgs;
use caravan_bench::{BenchCommand, ring_bytes, seconds};
use clap::{CommandFactory, Parser, Subcommand};

use crate::remote::PipeAgent;

pub use crate::args::engine::{
    EngineCheck, EngineCommand, EngineGraph, EngineReload, EngineRun, EngineTop, EngineTrace,
};
pub use crate::args::frames::{FramesCommand, FramesEnd, FramesRecv, FramesSend};
pub use crate::args::pipe::{Copy, CopyHalf, PipeArgs, Reach, Recv, Send, Telling};
pub use crate::args::store::{
    StoreChoice, StoreCommand, StoreDel, StoreDemo, StoreEviction, StoreGet, StoreLeave, StoreSave,
    StoreScan, StoreServe, StoreServerProcess, StoreSet, StoreStat, StoreStatus, StoreTop, StoreUpgrade,
};

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
  caravan bench store                 the store, beside Redis, Valkey, memcached and LMDB
  caravan bench rdma                  a link over an RDMA device, beside perftest's programs
  caravan bench pipe                  a pipe between hosts, beside nc, socat, mbuffer, ssh and iperf3
  caravan engine run FILE             packet networks in worker processes
  caravan store serve                 a key-value store that speaks the Redis protocol
  caravan frames send cam             uncompressed video in shared memory, for any number of processes
  caravan pipe a:'CMD' b:'CMD'        commands on several hosts, joined by pipes
  caravan limits                      what memory, cores and disks can do, and what caps them
  caravan top                         every Caravan link, store and stream of frames of this host
  caravan fabric db2.example.org      what this host has for RDMA, and each obstacle
  caravan selftest db2.example.org    test RDMA between this host and another, over ssh"
)]
pub struct Args {
    #[command(subcommand)]
    pub command: Command,
}

// The help of a command is at its type, in two parts: the line of the list, and the rest. A line at the variant
// would hide the second.

#[derive(Debug, Subcommand)]
pub enum Command {
    Pipe(Box<PipeArgs>),
    Send(Box<Send>),
    Recv(Box<Recv>),
    Cp(Box<Copy>),
    /// The half of `caravan cp` that sends
    #[command(hide = true)]
    CopySource(CopyHalf),
    /// The half of `caravan cp` that receives
    #[command(hide = true)]
    CopySink(CopyHalf),
    /// A server that `caravan store serve` has started
    #[command(hide = true)]
    StoreServer(StoreServerProcess),
    /// The other side of pipes
    #[command(hide = true)]
    PipeAgent(PipeAgent),
    /// Measure Caravan beside a peer, in alternating rounds
    #[command(subcommand, arg_required_else_help = true)]
    Bench(BenchCommand),
    /// Run packet networks in worker processes; check, draw and change them
    #[command(subcommand, arg_required_else_help = true)]
    Engine(EngineCommand),
    /// Serve a key-value store with the Redis protocol; read and change it
    #[command(subcommand, arg_required_else_help = true)]
    Store(StoreCommand),
    /// Send uncompressed video between processes of this host, and take it
    #[command(subcommand, arg_required_else_help = true)]
    Frames(FramesCommand),
    Limits(LimitsArgs),
    Top(TopArgs),
    Fabric(FabricArgs),
    Selftest(SelfTest),
    /// The other side of `caravan selftest`
    #[command(hide = true)]
    SelftestPeer(SelfTestPeer),
}

/// Show every Caravan link, store and stream of frames of your user on this host
///
/// Reads the counters that every process with Caravan links, every server of a store, and every side of a stream of frames
/// keeps in shared memory. Rates are
/// over the last interval. READERS are clients of a store that have mapped its memory; what they read is not counted.
/// What other users run is not shown.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  caravan top
  caravan top --once
  caravan top --json | jq '.links[] | {peer, transport, messages_sent_per_s}'
  caravan top --json | jq '.stores[] | {store, operations_per_s, keys}'")]
pub struct TopArgs {
    /// Print one table and end
    #[arg(long)]
    pub once: bool,
    /// Print one JSON object per refresh, each on a line
    #[arg(long)]
    pub json: bool,
    /// Seconds between refreshes
    #[arg(long, value_name = "S", default_value = "1", value_parser = seconds)]
    pub interval: Duration,
}

/// Show what this host has for RDMA, its obstacles, and the transport that would lead to HOST
///
/// Prints what this host has for RDMA (rdma-core, devices, ports, addresses, limits), each obstacle and how to remove
/// it, and which transport would carry a link to HOST. Sends nothing. Exit status: 1 if HOST is given and neither
/// shared memory nor RDMA leads to it, otherwise 0.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  caravan fabric
  caravan fabric db2.example.org
  caravan fabric --json 192.0.2.7 | jq .towards.transport
  sudo caravan fabric                 sees the firewall's rules, too

Only HOST knows whether it has a device as well: `caravan selftest HOST` tests that.")]
pub struct FabricArgs {
    /// A name or an address
    pub host: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// Test shared memory and RDMA between this host and HOST, over ssh
///
/// Tests RDMA, and shared memory if HOST is this host: starts itself on HOST over ssh, connects every pair of ports
/// that can reach each other, checks the contents and what the transport promises, and measures round trips and
/// throughput. Prints a report that can be attached to an issue. If HOST's PATH has no caravan of this version, this
/// program is copied to a temporary file there, which is removed as soon as it runs. Exit status: 0 if everything
/// passed, otherwise 1.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  caravan selftest db2.example.org
  caravan selftest -p 2222 -i ~/.ssh/lab admin@192.0.2.7
  caravan selftest db2 --output report.txt
  caravan selftest db2 --json | jq '.failures'

HOST is a destination as ssh takes it, with your ~/.ssh/config. To avoid typing a password, use keys or an agent.")]
pub struct SelfTest {
    /// As for ssh: host, user@host, or a name in ~/.ssh/config
    #[arg(value_parser = ssh_host)]
    pub host: String,
    /// ssh's options
    #[command(flatten)]
    pub ssh: SshArgs,
    /// The port of sshd on HOST
    #[arg(short = 'p', value_name = "PORT")]
    pub port: Option<u16>,
    /// Measure each figure for so many seconds
    #[arg(long, value_name = "S", default_value = "0.2", value_parser = seconds)]
    pub seconds: Duration,
    /// Bytes of each ring: a power of two
    #[arg(long, value_name = "BYTES", default_value_t = crate::fabric::survey::RING_BYTES, value_parser = ring_bytes)]
    pub ring_bytes: u64,
    /// Print the report as one JSON object
    #[arg(long)]
    pub json: bool,
    /// Write the report to this file, and only its last line to the terminal
    #[arg(long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

/// Passed on to ssh.
#[derive(Clone, Debug, clap::Args)]
pub struct SshArgs {
    /// An option of ssh_config(5), such as ConnectTimeout=5 or Port=2222; may be given several times
    #[arg(short = 'o', value_name = "OPTION")]
    pub options: Vec<String>,
    /// A private key file
    #[arg(short = 'i', value_name = "FILE")]
    pub identity: Option<PathBuf>,
    /// A configuration file to use instead of ~/.ssh/config
    #[arg(short = 'F', value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Hosts to jump over
    #[arg(short = 'J', value_name = "HOSTS")]
    pub jump: Option<String>,
    /// The program to run as ssh
    #[arg(long = "ssh", value_name = "PROGRAM", default_value = "ssh")]
    pub program: PathBuf,
}

/// The other side of `caravan selftest`, on the standard input and output.
#[derive(Debug, clap::Args)]
pub struct SelfTestPeer {
    /// Only say what this program is
    #[arg(long)]
    pub probe: bool,
    /// A folder to remove first: this program was copied to it
    #[arg(long)]
    pub remove: Option<PathBuf>,
}

/// Anything but an option of ssh.
fn ssh_host(text: &str) -> Result<String, String> {
    match text.is_empty() || text.starts_with('-') || text.contains(char::is_whitespace) {
        true => Err("it takes what ssh takes, such as db2.example.org or admin@192.0.2.7".into()),
        false => Ok(text.to_owned()),
    }
}

/// The name of the program's file, and the command that it is.
const NAMES: [(&str, &str); 4] = [("rdpipe", "pipe"), ("rdsend", "send"), ("rdrecv", "recv"), ("rdcp", "cp")];

impl Args {
    /// Parses the arguments of the process, and ends it with a message if they are wrong.
    pub fn of_process(words: impl Iterator<Item = OsString>) -> Self {
        let words: Vec<OsString> = words.collect();
        let Some((name, command)) = words.first().and_then(|word| alias(word)) else {
            return Self::parse_from(words);
        };
        let rest = words.get(1..).unwrap_or_default();
        if let Some(command) = renamed(name, command) {
            // For its help and its refusals, which show the name; what it accepts, the line below accepts.
            command.get_matches_from([&[OsString::from(name)], rest].concat());
        }
        Self::parse_from([&["caravan".into(), command.into()], rest].concat())
    }
}

fn alias(word: &OsStr) -> Option<(&'static str, &'static str)> {
    let file = Path::new(word).file_name()?;
    NAMES.into_iter().find(|(name, _)| file == *name)
}

/// The command as one of its own, with its name in the examples, too.
fn renamed(name: &'static str, command: &str) -> Option<clap::Command> {
    let command = Args::command().find_subcommand(command)?.clone();
    let [long, short] = [format!("caravan {}", command.get_name()), name.to_owned()];
    let help = command.get_after_help().map(|help| help.to_string().replace(&long, &short));
    let command = command.name(name).bin_name(name).display_name(name).version(env!("CARGO_PKG_VERSION"));
    Some(match help {
        Some(help) => command.after_help(help),
        None => command,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[test]
    fn a_bad_value_names_the_option_and_what_it_takes() {
        for (line, expected) in [
            ("bench erlang --nodes 1", "'1' for '--nodes <N>': 1 is not in 2..=64"),
            ("bench erlang --nodez 3", "a similar argument exists: '--nodes'"),
            ("bench erlang --seconds 0", "--seconds <S>': it takes seconds from 0.1"),
            ("bench erlang --transports udp", "[possible values: tcp, caravan, caravan-tcp]"),
            ("bench erlang --schedulers 0", "it takes a number of threads from 1"),
            ("bench rdma --serve 7500 --to b:7500", "'--serve <PORT>' cannot be used with '--to"),
            ("bench ring --ring-bytes 5000", "it takes a power of two from 4096"),
            ("top --interval=-1", "it takes seconds from 0.1"),
            ("engine run", "<FILE>"),
            ("engine run f --duration 0", "it takes seconds from 0.1 to 31536000"),
            ("engine run f --duration NaN", "it takes seconds from 0.1"),
            ("engine reload self", "invalid value 'self' for '[PID]'"),
            ("engine reload 0", "0 is not in 1.."),
            ("engine top --once --count 2", "cannot be used with"),
            ("engine top --interval 0", "it takes seconds from 0.1 to 3600"),
            ("engine trace", "<LINK>"),
            ("engine trace l --snaplen 65536", "65536 is not in 1..=65535"),
            ("engine chek f", "a similar subcommand exists: 'check'"),
            ("pipe -t udp :true", "[possible values: rdma, tcp, ssh]"),
            ("pipe --silence 1 :true", "'--silence <SECONDS>': it takes seconds from 2"),
            ("pipe -H  :true", "'--here <NAME>': it takes a name or an address"),
            ("pipe --chain --star :true", "'--chain' cannot be used with '--star'"),
            ("pipe --encrypt --insecure :true", "'--encrypt' cannot be used with '--insecure'"),
            ("pipe --on-slow skip :true", "[possible values: wait, drop]"),
            ("pipe --on-dead skip :true", "[possible values: fail, continue]"),
            ("pipe -L fast :true", "'--rate <RATE>': it takes bytes a second, such as 500k"),
            ("pipe -p 9:7 :true", "'--ports <LO:HI>': it takes two ports, the lower one first"),
            ("pipe a:", "stage `a:`: it has no command; give one behind the colon, such as db2:'gzip -d'"),
            ("pipe a,b,a:cat", "stage `a,b,a:cat`: it names a twice"),
            ("pipe -- -oProxyCommand=x:cat", "begins with a dash, which ssh would take for an option"),
            ("cp -p x d", "keeps times and permissions without -p"),
        ] {
            let words = ["caravan"].into_iter().chain(line.split(' '));
            let refused = Args::try_parse_from(words).expect_err(line).to_string();
            assert!(refused.contains(expected), "{line}: {refused}");
        }
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

    #[test]
    fn options_of_ssh_are_taken_and_hosts_that_are_options_are_not() {
        let line = "caravan selftest -o A=b -o C=d -p 22 -i k -F f -J j root@db2";
        let args = Args::parse_from(line.split(' '));
        let Command::Selftest(test) = args.command else { panic!("{args:?}") };
        assert_eq!((test.host.as_str(), test.ssh.options.len(), test.port), ("root@db2", 2, Some(22)));
        for host in ["--", "-oProxyCommand=x", "a b", ""] {
            let refused = Args::try_parse_from(["caravan", "selftest", "--", host]).expect_err(host);
            assert!(refused.to_string().contains("it takes what ssh takes"), "{refused}");
        }
    }

    #[test]
    fn a_name_is_a_command() {
        let words = ["/usr/local/bin/rdpipe", "-v", "a:cat", ":rev"].map(OsString::from);
        let Command::Pipe(pipe) = Args::of_process(words.into_iter()).command else { panic!("no pipe") };
        assert_eq!((pipe.stages.len(), pipe.telling.verbose), (2, 1));
        assert_eq!(alias(OsStr::new("caravan")), None);
    }

    #[test]
    fn usage_and_examples_show_the_name() {
        let mut command = renamed("rdpipe", "pipe").expect("a command");
        let help = command.render_long_help().to_string();
        assert!(
            help.contains("Usage: rdpipe [OPTIONS] <STAGE>...") && help.contains("\n  rdpipe -v host1"),
            "{help}"
        );
        assert!(!help.contains("caravan pipe"), "{help}");
    }
}
