//! The arguments of `caravan bench`, and parsers of values that other commands take, too.

mod engine;
mod pipe;
mod rdma;

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{OsStringValueParser, RangedU64ValueParser, TypedValueParser};
use clap::{Subcommand, ValueEnum};

pub use engine::{Compare, EngineBench, EnginePeer};
pub use pipe::{PipeBench, PipeNetwork, StepsTransport};
pub use rdma::Rdma;

/// The benchmarks. What each is for is said at the type of its arguments, where clap takes both parts of its help from.
#[derive(Debug, Subcommand)]
#[allow(missing_docs)]
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
    PipePeer,
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
  caravan bench erlang --transports tcp --rounds 3 --json - --svg ''

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

const SECONDS_MIN: f64 = 0.1;
const SECONDS_MAX: f64 = 3600.0;

/// Seconds, perhaps with a fraction.
pub fn seconds(text: &str) -> Result<Duration, String> {
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

#[cfg(test)]
pub mod tests {
    use super::*;

    #[derive(Debug, clap::Parser)]
    struct Line {
        #[command(subcommand)]
        bench: Bench,
    }

    /// The arguments of a line such as `ring --samples 3`.
    pub fn parse(line: &str) -> Bench {
        let words = ["bench"].into_iter().chain(line.split_whitespace());
        <Line as clap::Parser>::try_parse_from(words).expect("a valid line").bench
    }

    #[test]
    fn transports_are_a_list() {
        let Bench::Erlang(erlang) = parse("erlang --transports caravan,tcp") else { panic!("not erlang") };
        assert_eq!(erlang.transports, [Transport::Caravan, Transport::Tcp]);
    }

    #[test]
    fn files_may_be_declined() {
        let Bench::Erlang(erlang) = parse("erlang --json - --svg=") else { panic!("not erlang") };
        let files = [erlang.json, erlang.svg];
        assert_eq!(files, [PathBuf::from("-"), PathBuf::new()]);
    }
}
