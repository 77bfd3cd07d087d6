//! The arguments of `caravan bench`, and parsers of values that other commands take, too.

use std::num::NonZeroUsize;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use caravan_frames::{Picture, PixelFormat, Rate};
use clap::builder::{OsStringValueParser, RangedU64ValueParser, TypedValueParser};
use clap::{Subcommand, ValueEnum};

use crate::limits::LimitsBench;
use crate::process::PeerTask;
use serde::{Deserialize, Serialize};

/// The benchmarks. The help of each is at the type of its arguments, from which clap takes both parts.
#[derive(Debug, Subcommand)]
#[allow(missing_docs)]
pub enum BenchCommand {
    Erlang(Erlang),
    Ring(RingArgs),
    Rdma(Rdma),
    Tcp(Tcp),
    Pipe(PipeBench),
    Engine(EngineBench),
    Store(StoreBench),
    Workloads(WorkloadsBench),
    #[command(hide = true)]
    Frames(FramesBench),
    Limits(LimitsBench),
    Compare(Compare),
    /// The other process of a benchmark
    #[command(hide = true)]
    Peer {
        /// What it does, as JSON
        #[arg(value_parser = |text: &str| serde_json::from_str::<PeerTask>(text))]
        task: PeerTask,
    },
}

/// Measure Erlang nodes that call each other, over TCP and over Caravan
///
/// Starts fresh Erlang nodes for each round and each transport, connects them all, and measures
/// RPCs (processes that call a gen_server behind another gen_server in a tight loop), single
/// round trips, streams of binaries, and round trips behind a stream. The nodes have random hidden
/// names, listen on 127.0.0.1 only, need no epmd, and end when this command ends.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  caravan bench erlang
  caravan bench erlang --nodes 2 --processes 1000 --seconds 5 --rounds 15
  caravan bench erlang --transports tcp --rounds 3 --json - --svg ''

CARAVAN_ERLANG_DIR names the folder that holds erlang/ebin and bench/erlang/ebin where they are
not found beside this program.")]
pub struct Erlang {
    /// Number of nodes, all connected with each other; with more than 2, two of them are also measured alone
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = RangedU64ValueParser::<usize>::new().range(2..=64))]
    pub nodes: usize,
    /// Calling processes for each ordered pair of nodes
    #[arg(long, value_name = "P", default_value_t = 100, value_parser = RangedU64ValueParser::<usize>::new().range(1..=100_000))]
    pub processes: usize,
    /// Seconds in which RPCs are counted; each of the other figures takes a part of that time
    #[arg(long, value_name = "S", default_value = "1", value_parser = seconds)]
    pub seconds: Duration,
    /// Number of rounds; each round measures every transport once
    #[arg(long, value_name = "R", default_value_t = 9, value_parser = RangedU64ValueParser::<usize>::new().range(1..=10_000))]
    pub rounds: usize,
    /// Transports, separated by commas; ratios are to the first
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "tcp,caravan")]
    pub transports: Vec<ErlangTransport>,
    /// Scheduler threads of each node (erl +S)
    #[arg(long, value_name = "N", default_value = "1", value_parser = schedulers)]
    pub schedulers: NonZeroUsize,
    /// Cores of the nodes while RPCs are counted: the kernel's choice, or node n on core n
    #[arg(long, value_name = "HOW", default_value = "none")]
    pub pin: Pin,
    /// The program that starts a node
    #[arg(long, value_name = "PROGRAM", default_value = "erl")]
    pub erl: PathBuf,
    /// More arguments for every node, as one text
    #[arg(long, value_name = "TEXT", default_value = "", allow_hyphen_values = true)]
    pub erl_flags: String,
    #[command(flatten)]
    pub files: ResultFiles,
}

/// The files that a benchmark writes.
#[derive(Clone, Debug, clap::Args)]
pub struct ResultFiles {
    /// Write results as JSON; '-' for standard output (the table then goes to standard error), '' for none; by
    /// default results/erlang.json, engine.json, store.json, workloads.json, pipe.json or pipe-steps.json, and none of ring,
    /// rdma, tcp and frames
    #[arg(long, value_name = "FILE", value_parser = file())]
    json: Option<PathBuf>,
    /// Write a chart as SVG; '' for none; by default it is beside the JSON's default
    #[arg(long, value_name = "FILE", value_parser = file())]
    svg: Option<PathBuf>,
}

impl ResultFiles {
    /// Returns the file for the JSON of a benchmark, `-`, or an empty path.
    pub fn json(&self, benchmark: &str) -> PathBuf {
        Self::or_default(&self.json, benchmark, "json")
    }

    /// Returns the file for the chart of a benchmark, or an empty path.
    pub fn svg(&self, benchmark: &str) -> PathBuf {
        Self::or_default(&self.svg, benchmark, "svg")
    }

    fn or_default(wanted: &Option<PathBuf>, benchmark: &str, ending: &str) -> PathBuf {
        match (wanted, benchmark) {
            (Some(path), _) => path.clone(),
            (None, "ring" | "rdma" | "tcp" | "frames" | "limits") => PathBuf::new(),
            (None, _) => format!("results/{benchmark}.{ending}").into(),
        }
    }
}

/// What carries the messages of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ErlangTransport {
    /// OTP's own inet_tcp
    Tcp,
    /// Caravan over shared memory
    Caravan,
    /// Caravan that stays on TCP (-caravan transport tcp)
    CaravanTcp,
}

impl ErlangTransport {
    /// As it is written on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Caravan => "caravan",
            Self::CaravanTcp => "caravan-tcp",
        }
    }
}

impl std::fmt::Display for ErlangTransport {
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

/// Measure a ring between two processes, beside a bare loop in C
///
/// Sends 64-byte records from one process to another through a ring in shared memory and, on the
/// same cores, through a bare loop in C (a flag and a copy for each record).
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  caravan bench ring
  caravan bench ring --samples 101 --json results/ring.json")]
pub struct RingArgs {
    /// Number of samples of each of the two, which take turns
    #[arg(long, value_name = "N", default_value_t = 51, value_parser = RangedU64ValueParser::<usize>::new().range(1..=10_000))]
    pub samples: usize,
    /// Records in a sample, few enough that the sample ends before the kernel takes a core away; a sample
    /// of round trips has a twentieth of that
    #[arg(long, value_name = "N", default_value_t = 50_000, value_parser = RangedU64ValueParser::<u64>::new().range(1_000..=10_000_000_000))]
    pub records: u64,
    /// The two cores to use if there are more: the nearest or the farthest
    #[arg(long, value_name = "WHICH", default_value = "near")]
    pub placement: Placement,
    /// Bytes of the ring: a power of two
    #[arg(long, value_name = "BYTES", default_value_t = 65_536, value_parser = ring_bytes)]
    pub ring_bytes: u64,
    /// The C compiler for the bare loop
    #[arg(long, value_name = "PROGRAM", default_value = "cc")]
    pub cc: PathBuf,
    #[command(flatten)]
    pub files: ResultFiles,
}

/// A choice among pairs of cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Placement {
    /// The pair with the fastest way for a cache line
    Near,
    /// The pair with the slowest way
    Far,
}

/// Seconds, perhaps with a fraction.
pub fn seconds(text: &str) -> Result<Duration, String> {
    within(text, 0.1..=3600.0, "seconds", "2 or 0.5").map(Duration::from_secs_f64)
}

/// Parses a number of a range.
fn within(text: &str, range: RangeInclusive<f64>, unit: &str, example: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number| range.contains(number));
    number.ok_or_else(|| {
        format!("it takes {unit} from {} to {}, such as {example}", range.start(), range.end())
    })
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

/// The bytes of a ring.
pub fn ring_bytes(text: &str) -> Result<u64, String> {
    match text.parse::<u64>() {
        Ok(bytes) if bytes.is_power_of_two() && (4096..=1 << 30).contains(&bytes) => Ok(bytes),
        _ => Err("it takes a power of two from 4096 to 1073741824".into()),
    }
}

/// Nobody has more: what is larger is a mistyped unit.
const SIZE_MAX: u64 = 1 << 40;

/// Bytes of memory or of a file: `100M`, `1.5G` (powers of 1,000), `64Ki` (of 1,024); also `1.5GB`, `64KiB`.
pub fn size(text: &str) -> Result<u64, String> {
    match quantity(text) {
        Some(bytes) if bytes <= SIZE_MAX => Ok(bytes),
        _ => Err("it takes bytes up to 1Ti, such as 64k, 100M, 1.5G or 64Mi".into()),
    }
}

/// A number, maybe with a fraction, and a unit.
pub fn quantity(text: &str) -> Option<u64> {
    let split = text.find(|letter: char| !letter.is_ascii_digit() && letter != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at_checked(split)?;
    let unit = unit.strip_suffix(['B', 'b']).unwrap_or(unit);
    let (letter, base) = match unit.strip_suffix('i') {
        // "i" alone is no unit.
        Some("") => return None,
        Some(letter) => (letter, 1024_u64),
        None => (unit, 1000),
    };
    let power = match letter {
        "" => 0,
        "k" | "K" => 1,
        "m" | "M" => 2,
        "g" | "G" => 3,
        "t" | "T" => 4,
        _ => return None,
    };
    let unit = base.pow(power);
    if let Ok(whole) = number.parse::<u64>() {
        return whole.checked_mul(unit);
    }
    let bytes = number.parse::<f64>().ok()? * unit as f64;
    // What does not fit has no business here: 2^63 is far beyond every limit above.
    (bytes < 9.2e18).then_some(bytes.round() as u64)
}

/// Where results are collected, unless another file is named.
pub const HISTORY: &str = "results/engine-history.jsonl";

/// Measure the packet engine: links, tunnels, many processes, and recovery
///
/// Runs named benchmarks of the packet engine. Each sample starts a fresh engine, warms up, and counts packets
/// between two instants. Samples of all benchmarks take turns. Since the cores of a virtual machine move, the
/// distance of the two cores is measured before and after each sample: near and far samples are reported separately,
/// and a sample during which the distance changed is repeated.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  caravan bench engine                                  all of them, in some minutes
  caravan bench engine --list                           their names, and what each measures
  caravan bench engine --only swap                      beside the bare loop in C
  caravan bench engine --only interlink,tunnel2 --sizes 60 --samples 31
  caravan bench engine --only interlink/1500/copy --json - --history ''
  caravan bench compare                                 what has changed since the last run")]
pub struct EngineBench {
    /// Print the names of all benchmarks and what they measure, and end
    #[arg(long)]
    pub list: bool,
    /// Benchmarks, separated by commas: a name from --list, alone or followed by /SIZE or /SIZE/VARIANT as in the
    /// table
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub only: Vec<String>,
    /// Bytes in a packet, separated by commas
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "60,120,1500", value_parser = RangedU64ValueParser::<usize>::new().range(60..=1500))]
    pub sizes: Vec<usize>,
    /// Samples of each benchmark in one placement, near or far; more are taken where cores move
    #[arg(long, value_name = "N", default_value_t = 9, value_parser = RangedU64ValueParser::<usize>::new().range(1..=10_000))]
    pub samples: usize,
    /// Seconds in which the packets of a sample are counted
    #[arg(long, value_name = "S", default_value = "0.15", value_parser = sample_seconds)]
    pub seconds: Duration,
    /// The two cores to use if there are more: the nearest or the farthest
    #[arg(long, value_name = "WHICH", default_value = "near")]
    pub placement: Placement,
    /// The C compiler for the bare loop
    #[arg(long, value_name = "PROGRAM", default_value = "cc")]
    pub cc: PathBuf,
    /// Append the results to this file, one line per benchmark; '' for none
    #[arg(long, value_name = "FILE", default_value = HISTORY, value_parser = file())]
    pub history: PathBuf,
    #[command(flatten)]
    pub files: ResultFiles,
}

/// Compare two runs of the packet engine's benchmarks
///
/// Shows how each benchmark of the packet engine has changed between two runs, and whether the change
/// can be chance: the Mann-Whitney U test of their samples, two-sided, with Holm's correction for
/// comparing many benchmarks at once. A run is named by its number in the history (1 is the
/// first, -1 the last), by the start of its commit, or by the start of its date.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  caravan bench compare                       the last run, and the one before it on the same machine
  caravan bench compare -3                    the last run, and the one two runs earlier
  caravan bench compare v0.1.0 4f2a91c        two commits
  caravan bench compare --fail-on-regression  exit status 1 if anything has become worse")]
pub struct Compare {
    /// The run to compare with; by default the last run before B on the same machine
    #[arg(value_name = "A", allow_negative_numbers = true)]
    pub a: Option<String>,
    /// The run to compare; by default the last one
    #[arg(value_name = "B", allow_negative_numbers = true)]
    pub b: Option<String>,
    /// The file with the results
    #[arg(long, value_name = "FILE", default_value = HISTORY)]
    pub history: PathBuf,
    /// Ignore changes of the median below this percentage
    #[arg(long, value_name = "PERCENT", default_value = "3", value_parser = percent)]
    pub threshold: f64,
    /// The significance level: the largest p-value at which a change is reported
    #[arg(long, value_name = "P", default_value = "0.01", value_parser = probability)]
    pub alpha: f64,
    /// Exit with status 1 if a benchmark became worse
    #[arg(long)]
    pub fail_on_regression: bool,
    /// Print the comparison as JSON instead of the table
    #[arg(long)]
    pub json: bool,
}

fn sample_seconds(text: &str) -> Result<Duration, String> {
    within(text, 0.01..=60.0, "seconds", "0.15").map(Duration::from_secs_f64)
}

fn percent(text: &str) -> Result<f64, String> {
    within(text, 0.0..=1000.0, "percent", "3")
}

fn probability(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(p) if p > 0.0 && p < 1.0 => Ok(p),
        _ => Err("it takes a probability between 0 and 1, such as 0.01".into()),
    }
}

/// Measure pipes between hosts, beside nc, socat, mbuffer, ssh and iperf3
///
/// Moves a stream from one host to another with Caravan's pipe and, in turn, with nc, socat, mbuffer, ssh and iperf3,
/// and measures bytes per second and processor time of each. The hosts are two network namespaces of this machine,
/// joined by a veth pair, each with an sshd of its own; this needs root. Everything is removed when the command ends.
/// With --steps, it measures instead a pipe over a fabric (RDMA or shared memory) that is built step by step, and
/// shows what each step gains.
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
    /// Measure a pipe over a fabric, built step by step, instead of pipes between hosts
    #[arg(long)]
    pub steps: bool,
    /// The transport of the steps; by default an RDMA device if there is one, else shared memory
    #[arg(long, value_name = "WHAT", requires = "steps")]
    pub transport: Option<StepsTransport>,
    /// Benchmarks, separated by commas, as --list has them
    #[arg(long, value_name = "NAMES", value_delimiter = ',', conflicts_with = "steps")]
    pub only: Vec<String>,
    /// What joins the two hosts: network namespaces, or this host's own loopback interface
    #[arg(long, value_name = "WHAT", conflicts_with = "steps")]
    pub network: Option<PipeNetwork>,
    /// Number of rounds; each round measures every contender once
    #[arg(long, value_name = "R", default_value_t = 9, value_parser = RangedU64ValueParser::<usize>::new().range(1..=10_000))]
    pub rounds: usize,
    /// Bytes of a stream, such as 64M or 4Gi; by default 2Gi, or 256Mi with --steps. The stream is held in memory
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub bytes: Option<u64>,
    #[command(flatten)]
    pub files: ResultFiles,
}

/// What carries the steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
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

/// Measure the store, beside Redis, Valkey, memcached and LMDB
///
/// Fills Caravan's store and each peer that is installed with the same keys (16 B) and values (32 B), and measures
/// lookups and writes in turn: reads of mapped memory by another process while its owner writes, writes and calls
/// through a link, and GET and SET over UNIX sockets and TCP without and with a pipeline; with the processor time of both
/// sides, and the memory for each pair. Says which goals are reached. Everything that it starts ends with it.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  caravan bench store                                  all of it, in some minutes
  caravan bench store --list                           the benchmarks, and what each measures
  caravan bench store --only get,get-many --keys 10000000
  caravan bench store --only socket-set --rounds 31 --json -

Peers that are missing are named with the package to install, and the rest runs.")]
pub struct StoreBench {
    /// Print the names of all benchmarks and what they measure, and end
    #[arg(long)]
    pub list: bool,
    /// Benchmarks, separated by commas, as --list has them
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub only: Vec<String>,
    /// Number of keys; each contender takes some 100 bytes of memory for each
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = RangedU64ValueParser::<u64>::new().range(1_000..=100_000_000))]
    pub keys: u64,
    /// Number of rounds; each round measures every contender once
    #[arg(long, value_name = "R", default_value_t = 9, value_parser = RangedU64ValueParser::<usize>::new().range(1..=10_000))]
    pub rounds: usize,
    /// Seconds in which the operations of a sample are counted
    #[arg(long, value_name = "S", default_value = "0.3", value_parser = sample_seconds)]
    pub seconds: Duration,
    /// The C compiler for the loop around LMDB
    #[arg(long, value_name = "PROGRAM", default_value = "cc")]
    pub cc: PathBuf,
    #[command(flatten)]
    pub files: ResultFiles,
}

/// Measure one-object transactions, YCSB, TATP and SmallBank beside Redis and Valkey
///
/// Fills Caravan's store and each peer that is installed with the same data, and runs the same transactions on them in turn: updates of
/// one small value that also reach a copy on a second server, the workloads A to D and F of YCSB on one server, and TATP and SmallBank on
/// three servers with two copies of each row. Everything that it starts ends with it.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  caravan bench workloads                              all of it, in four minutes
  caravan bench workloads --list                       the workloads, and what each does
  caravan bench workloads --only copies-set,copies-update --rounds 31
  caravan bench workloads --only tatp --records 1000000 --json -

Peers that are missing are named with the package to install, and the rest runs.")]
pub struct WorkloadsBench {
    /// Print the names of all workloads and what they do, and end
    #[arg(long)]
    pub list: bool,
    /// Workloads, separated by commas, as --list has them
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub only: Vec<String>,
    /// Number of keys, and of YCSB's records; there are a fifth as many subscribers, with 10.75 rows each
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = RangedU64ValueParser::<u64>::new().range(1_000..=10_000_000))]
    pub records: u64,
    /// Number of rounds; each round measures every contender once
    #[arg(long, value_name = "R", default_value_t = 9, value_parser = RangedU64ValueParser::<usize>::new().range(1..=10_000))]
    pub rounds: usize,
    /// Seconds in which the operations of a sample are counted
    #[arg(long, value_name = "S", default_value = "0.3", value_parser = sample_seconds)]
    pub seconds: Duration,
    #[command(flatten)]
    pub files: ResultFiles,
}

/// Measure a link over an RDMA device, beside perftest's programs
///
/// Measures a link over an RDMA device between two processes of this machine, or towards another machine
/// that runs the same command with --serve. In turn with it, measures ib_write_lat, ib_send_lat,
/// ib_write_bw (package perftest) and ibv_rc_pingpong (ibverbs-utils) on the same device. A link also copies each message into its
/// ring and out of it, which those programs do not; "filled in place" is a link without these copies.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  caravan bench rdma
  caravan bench rdma --serve 7500               on one machine, and on the other:
  caravan bench rdma --to 192.0.2.1:7500 --json results/rdma.json

The serving side accepts the first caller at that port, once, without a password: use it only on a network
that you trust.")]
pub struct Rdma {
    /// Serve as the other side for one caller at this TCP port
    #[arg(long, value_name = "PORT", conflicts_with = "to")]
    pub serve: Option<u16>,
    /// Measure towards the machine that serves at this address
    #[arg(long, value_name = "HOST:PORT")]
    pub to: Option<String>,
    /// Number of rounds; each round measures every contender once
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
    /// Sleep while waiting, instead of polling; the other programs still poll
    #[arg(long)]
    pub sleep: bool,
    /// Measure only the link, without the other programs
    #[arg(long)]
    pub alone: bool,
    #[command(flatten)]
    pub files: ResultFiles,
}

/// Measure one-sided reads over TCP, beside a redis-server's GETs
///
/// Measures reads of 64 bytes of another process's memory over TCP within this machine, with 1, 16 and 256
/// under way, sealed and in the clear. In turn with them, measures GETs of 64 bytes with redis-benchmark, with as many
/// under way in pipelines of up to 64. Both sides' processor time is counted.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  caravan bench tcp
  caravan bench tcp --rounds 3 --reads 200000 --json results/tcp.json

Without redis-server and redis-benchmark (packages redis-server, redis-tools) only the reads are measured.")]
pub struct Tcp {
    /// Number of rounds; each round measures every contender once
    #[arg(long, value_name = "R", default_value_t = 9, value_parser = RangedU64ValueParser::<usize>::new().range(1..=10_000))]
    pub rounds: usize,
    /// Reads in a sample with 256 under way; samples with fewer under way have fewer
    #[arg(long, value_name = "N", default_value_t = 2_000_000, value_parser = RangedU64ValueParser::<u64>::new().range(256..=1_000_000_000))]
    pub reads: u64,
    #[command(flatten)]
    pub files: ResultFiles,
}

/// Measure frames from one process to another, beside a pipe, TCP and a copy
///
/// Sends frames at their rate from this process to another one: through frame slots in shared memory, a pipe, TCP over
/// loopback, and as a copy within one process, which is the least that any copy takes. Prints the rate that was
/// held, how old a frame is when the consumer can read all of it, and the processor time of both processes. Exit
/// status: 1 if a frame was torn.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
Examples:
  caravan frames bench
  caravan frames bench --cases 4k60-rgba --seconds 10 --rounds 5
  caravan frames bench --cases 8k30-rgba --json results/frames.json

8k30-rgba takes 1.1 GB of memory.")]
pub struct FramesBench {
    /// What to measure, separated by commas
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "4k60-rgba,4k60-yuv420p,8k30-rgba"
    )]
    pub cases: Vec<FramesCase>,
    /// Number of rounds; each round measures every contender once
    #[arg(long, value_name = "R", default_value_t = 5, value_parser = RangedU64ValueParser::<usize>::new().range(1..=10_000))]
    pub rounds: usize,
    /// Seconds of a sample
    #[arg(long, value_name = "S", default_value = "2", value_parser = seconds)]
    pub seconds: Duration,
    /// Where results go
    #[command(flatten)]
    pub files: ResultFiles,
}

/// What frames look like in a case of the benchmark of frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum FramesCase {
    #[value(name = "4k60-rgba")]
    Rgba4k60,
    #[value(name = "4k60-yuv420p")]
    Yuv4k60,
    #[value(name = "8k30-rgba")]
    Rgba8k30,
    /// 640x360 rgba at 60 a second, to try the benchmark
    #[value(name = "360p60-rgba")]
    Rgba360p60,
}

impl FramesCase {
    /// Returns its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Rgba4k60 => "4k60-rgba",
            Self::Yuv4k60 => "4k60-yuv420p",
            Self::Rgba8k30 => "8k30-rgba",
            Self::Rgba360p60 => "360p60-rgba",
        }
    }

    /// Returns the form of its frames.
    pub fn picture(self) -> Picture {
        let (width, height, format, frames) = match self {
            Self::Rgba4k60 => (3840, 2160, PixelFormat::Rgba, 60),
            Self::Yuv4k60 => (3840, 2160, PixelFormat::Yuv420p, 60),
            Self::Rgba8k30 => (7680, 4320, PixelFormat::Rgba, 30),
            Self::Rgba360p60 => (640, 360, PixelFormat::Rgba, 60),
        };
        Picture { width, height, format, rate: Rate { frames, seconds: 1 } }
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    #[derive(Debug, clap::Parser)]
    struct Line {
        #[command(subcommand)]
        bench: BenchCommand,
    }

    /// The arguments of a line such as `ring --samples 3`.
    pub fn parse(line: &str) -> BenchCommand {
        let words = ["bench"].into_iter().chain(line.split_whitespace());
        <Line as clap::Parser>::try_parse_from(words).expect("a valid line").bench
    }

    #[test]
    fn transports_are_a_list() {
        let BenchCommand::Erlang(erlang) = parse("erlang --transports caravan,tcp") else {
            panic!("not erlang")
        };
        assert_eq!(erlang.transports, [ErlangTransport::Caravan, ErlangTransport::Tcp]);
    }

    #[test]
    fn files_may_be_declined() {
        let BenchCommand::Erlang(erlang) = parse("erlang --json - --svg=") else { panic!("not erlang") };
        let files = [erlang.files.json("erlang"), erlang.files.svg("erlang")];
        assert_eq!(files, [PathBuf::from("-"), PathBuf::new()]);
    }
}
