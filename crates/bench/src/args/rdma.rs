//! The arguments of `caravan bench rdma`.

use std::path::PathBuf;

use clap::builder::RangedU64ValueParser;

use super::ring_bytes;

/// A link over an RDMA device, beside perftest's programs on the same device
///
/// Measures a link over an RDMA device between two processes of this machine, or towards another where
/// the same command serves, and beside it ib_write_lat, ib_send_lat, ib_write_bw (package perftest) and
/// ibv_rc_pingpong (ibverbs-utils) on the same device, in turn. A link also copies each message into its
/// ring and out of it, which those programs do not; "filled in place" is a link without these copies.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  caravan bench rdma
  caravan bench rdma --serve 7500               on one machine, and on the other:
  caravan bench rdma --to 192.0.2.1:7500 --json results/rdma.json

Who serves takes the first who calls at that port, once, and asks for no password: for a network that
you trust.")]
pub struct Rdma {
    /// Be the other side for one who calls at this TCP port
    #[arg(long, value_name = "PORT", conflicts_with = "to")]
    pub serve: Option<u16>,
    /// Measure towards the machine that serves there
    #[arg(long, value_name = "HOST:PORT")]
    pub to: Option<String>,
    /// Rounds; each measures everyone once
    #[arg(long, value_name = "R", default_value_t = 9, value_parser = RangedU64ValueParser::<usize>::new().range(1..=10_000))]
    pub rounds: usize,
    /// Round trips in a sample
    #[arg(long, value_name = "N", default_value_t = 2_000, value_parser = RangedU64ValueParser::<u64>::new().range(10..=100_000_000))]
    pub round_trips: u64,
    /// Bytes of the messages whose latency is measured, separated by commas
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "8,64", value_parser = RangedU64ValueParser::<usize>::new().range(2..=1 << 20))]
    pub latency_bytes: Vec<usize>,
    /// Bytes of the messages of streams, separated by commas
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "65536,1048576", value_parser = RangedU64ValueParser::<usize>::new().range(2..=1 << 30))]
    pub sizes: Vec<usize>,
    /// Bytes in a sample of a stream
    #[arg(long, value_name = "BYTES", default_value_t = 64 << 20, value_parser = RangedU64ValueParser::<u64>::new().range(1 << 16..=1 << 40))]
    pub stream_bytes: u64,
    /// Bytes of each ring: a power of two
    #[arg(long, value_name = "BYTES", default_value_t = 524_288, value_parser = ring_bytes)]
    pub ring_bytes: u64,
    /// Who waits sleeps, instead of looking again and again; the programs beside us go on looking
    #[arg(long)]
    pub sleep: bool,
    /// Only the link, and nothing beside it
    #[arg(long)]
    pub alone: bool,
    /// Results as JSON as well; '-' for standard output (the table then goes to standard error)
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}
