//! The command line.

mod carry;
mod copy;
mod engine;
mod hosts;
mod moving;
mod names;
mod pipe;
mod reach;

use std::time::Duration;

use caravan_bench::{Bench, seconds};
use clap::{Parser, Subcommand};

use crate::remote::PipeAgent;

pub use carry::{Recv, Send};
pub use copy::{Copy, CopySink, CopySource};
pub use engine::{
    Check as EngineCheck, Engine, Graph as EngineGraph, Reload as EngineReload, Run as EngineRun,
    Top as EngineTop, Trace as EngineTrace,
};
pub use hosts::{Fabric, SelfTest, SelfTestPeer, Ssh};
pub use moving::Moving;
pub use pipe::{Pipe, Telling};
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
