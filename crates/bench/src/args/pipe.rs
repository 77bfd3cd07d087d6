//! The arguments of `caravan bench pipe`.

use std::path::PathBuf;

use clap::ValueEnum;
use clap::builder::RangedU64ValueParser;

use super::{file, size};

/// Pipes between hosts, beside nc, socat, mbuffer, ssh and iperf3; and one built step by step
///
/// Moves a stream from one host to another with Caravan's pipe and beside it with nc, socat, mbuffer, ssh and
/// iperf3, in turn: bytes a second, and seconds of processor time for each. The hosts are two network
/// namespaces of this machine, joined by a veth pair, with an sshd of the benchmark's own in each; that takes
/// root. All of it goes when the command ends. With --steps, another program: a pipe over a fabric (RDMA or
/// shared memory), built step by step, and what each step brings.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  caravan bench pipe                               all of it, in some minutes
  caravan bench pipe --list                        the benchmarks, and what each measures
  caravan bench pipe --only veth --bytes 4Gi
  caravan bench pipe --only same-host,start --network loopback
  caravan bench pipe --steps                       from 4 KiB messages to Caravan's ring
  caravan bench pipe --steps --transport tcp")]
pub struct PipeBench {
    /// Print the names of all benchmarks and what they measure, and end
    #[arg(long, conflicts_with = "steps")]
    pub list: bool,
    /// A pipe over a fabric, step by step, instead of pipes between hosts
    #[arg(long)]
    pub steps: bool,
    /// What carries the steps: without it an RDMA device if there is one, else shared memory
    #[arg(long, value_name = "WHAT", requires = "steps")]
    pub transport: Option<StepsTransport>,
    /// Benchmarks, separated by commas, as --list has them
    #[arg(long, value_name = "NAMES", value_delimiter = ',', conflicts_with = "steps")]
    pub only: Vec<String>,
    /// What joins the two hosts: network namespaces, or this host's own loopback interface
    #[arg(long, value_name = "WHAT", conflicts_with = "steps")]
    pub network: Option<PipeNetwork>,
    /// Rounds; each measures everyone once
    #[arg(long, value_name = "R", default_value_t = 9, value_parser = RangedU64ValueParser::<usize>::new().range(1..=10_000))]
    pub rounds: usize,
    /// Bytes of a stream: 64M, 4Gi; without it 2Gi, or 256Mi for --steps. They are held in memory
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub bytes: Option<u64>,
    /// Results as JSON; '-' for standard output (the table then goes to standard error), '' for none; without
    /// it results/pipe.json or results/pipe-steps.json
    #[arg(long, value_name = "FILE", value_parser = file())]
    pub json: Option<PathBuf>,
    /// Chart as SVG, '' for none; without it results/pipe.svg or results/pipe-steps.svg
    #[arg(long, value_name = "FILE", value_parser = file())]
    pub svg: Option<PathBuf>,
}

/// What carries the steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum StepsTransport {
    /// An RDMA device
    Rdma,
    /// Shared memory
    Shm,
    /// TCP over loopback
    Tcp,
}

/// What joins the two hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PipeNetwork {
    /// Two network namespaces with a veth pair between them; takes root
    Veth,
    /// 127.0.0.2 and 127.0.0.3 of this host
    Loopback,
}
