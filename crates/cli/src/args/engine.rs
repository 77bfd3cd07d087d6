//! The arguments of `caravan engine`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Subcommand;

/// Packet networks in worker processes.
#[derive(Debug, Subcommand)]
pub enum EngineCommand {
    Run(EngineRun),
    Check(EngineCheck),
    Graph(EngineGraph),
    Reload(EngineReload),
    Top(EngineTop),
    Trace(EngineTrace),
}

/// Run the apps and links of a file until stopped
///
/// Runs the apps of FILE in worker processes, and reports crashes, restarts and losses on standard error. After FILE
/// has changed, SIGHUP or `caravan engine reload` applies the difference, while everything else keeps running; if the
/// new FILE has mistakes, nothing changes. Ctrl-C or SIGTERM stops the apps in order. Exit status: 0 at the end of
/// --duration or --until-end or on SIGTERM, 130 on Ctrl-C, 1 if something failed.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  caravan engine run bridge.toml
  caravan engine run bridge.toml --duration 10
  caravan engine run copy.toml --until-end
  caravan engine run bridge.toml --hugepages
  caravan engine run bridge.toml --json | jq -c 'select(.event == \"crashed\")'

FILE, in short:
  links = [\"source.output -> sink.input\"]   # above all tables
  [app.source]
  kind = \"source\"
  worker = \"left\"                           # \"main\" if left out
  size = 60                                 # all other keys are the kind's own
  [app.sink]
  kind = \"sink\"
  [worker.left]                             # may be left out
  core = 0

Needs no privileges, except for what apps do (packet sockets, devices).")]
pub struct EngineRun {
    /// A configuration (TOML)
    pub file: PathBuf,
    /// Stop after so many seconds
    #[arg(long, value_name = "S", value_parser = run_seconds)]
    pub duration: Option<Duration>,
    /// Stop once every pcap_reader and every source with a count has sent its last packet, and no packet is on its
    /// way
    #[arg(long)]
    pub until_end: bool,
    /// Print events and the final figures as JSON on standard output, one object per line
    #[arg(long)]
    pub json: bool,
    /// Keep packets on huge pages, if the system has enough; the first line says whether it had
    #[arg(long)]
    pub hugepages: bool,
}

/// Check whether a file can be run, without running it
///
/// Prints one line if FILE can be run. Otherwise prints every mistake with its line and column on standard error, and
/// ends with exit status 1. Starts nothing and touches no device.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  caravan engine check bridge.toml
  caravan engine check bridge.toml --json | jq -r '.mistakes[] | \"\\(.line) \\(.text)\"'")]
pub struct EngineCheck {
    /// A configuration (TOML)
    pub file: PathBuf,
    /// Print one JSON object on standard output, with the mistakes
    #[arg(long)]
    pub json: bool,
}

/// Draw the apps and links of a file, as SVG
///
/// Draws the apps of FILE in the colours of their workers, and the links between them, as SVG that follows the light
/// or dark theme of its viewer. Apps of kinds that this program does not know are drawn, too. Graphviz (the program
/// `dot`) must be installed; --dot works without it.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  caravan engine graph bridge.toml > bridge.svg
  caravan engine graph bridge.toml -o bridge.svg
  caravan engine graph bridge.toml --dot > bridge.dot")]
pub struct EngineGraph {
    /// A configuration (TOML)
    pub file: PathBuf,
    /// Write the picture to this file instead of standard output
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Write the graph in the DOT language of Graphviz instead of drawing it
    #[arg(long)]
    pub dot: bool,
}

/// Tell a running engine to read its file again
///
/// Tells a running engine to read its file again and to apply the difference, as SIGHUP does, and prints what
/// changed. If the file has mistakes, prints them and ends with exit status 1; the engine then keeps running
/// unchanged.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  caravan engine reload               the only engine of your user
  caravan engine reload 4711
  caravan engine reload --json | jq .changes.moved")]
pub struct EngineReload {
    /// The process of the engine or of one of its workers; needed only if several engines run
    #[arg(value_name = "PID", value_parser = clap::value_parser!(i32).range(1..))]
    pub pid: Option<i32>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// Show the workers and links of a running engine
///
/// Reads the counters that a running engine keeps in shared memory, and does not disturb it. Rates are over the last
/// interval. WAITS counts the packets of a link at its sending end, on their way, and at its receiving end. OWNS is
/// the number of packets that a worker or link holds. The first line shows how many packets there are in all: an
/// owner whose number keeps growing leaks.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  caravan engine top                  the only engine of your user
  caravan engine top 4711 --once
  caravan engine top --json | jq -c '.links[] | {name, packets_per_s, bits_per_s}'
  caravan engine top --json --once | jq .owners

Packets are counted by owner at each refresh; less often where there are so many that it would take more
than a tenth of the time.")]
pub struct EngineTop {
    /// The process of the engine or of one of its workers; needed only if several engines run
    #[arg(value_name = "PID", value_parser = clap::value_parser!(i32).range(1..))]
    pub pid: Option<i32>,
    /// Print one table and end
    #[arg(long, conflicts_with = "count")]
    pub once: bool,
    /// End after so many refreshes
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,
    /// Print one JSON object per refresh, each on a line
    #[arg(long)]
    pub json: bool,
    /// Seconds between refreshes
    #[arg(long, value_name = "S", default_value = "1", value_parser = caravan_bench::seconds)]
    pub interval: Duration,
}

/// Write the packets of a link to standard output, as a pcap file
///
/// Copies the packets that are sent on LINK from now on to a pcap file, with the time of the breath in which they
/// were sent, in nanoseconds. Ends on Ctrl-C, or when its reader, the link or the engine is gone. The engine never
/// waits: packets that come faster than they are written are left out, and their number is printed at the end.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  caravan engine trace 'tunnel.output -> nic.input' > tunnel.pcap
  caravan engine trace tunnel.output --count 100 > first.pcap
  caravan engine trace tunnel.output --snaplen 96 | tcpdump -nr -")]
pub struct EngineTrace {
    /// `app.output -> app.input`, or one of the two if it names only one link
    #[arg(value_name = "LINK")]
    pub link: String,
    /// The process of the engine or of one of its workers; needed only if several engines run
    #[arg(long, value_name = "PID", value_parser = clap::value_parser!(i32).range(1..))]
    pub pid: Option<i32>,
    /// End after so many packets
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,
    /// Keep at most so many bytes of each packet
    #[arg(long, value_name = "BYTES", default_value_t = 65_535, value_parser = clap::value_parser!(u32).range(1..=65_535))]
    pub snaplen: u32,
}

const SECONDS_MIN: f64 = 0.1;
/// A year: longer is no duration, but for ever.
const SECONDS_MAX: f64 = 365.0 * 86_400.0;

fn run_seconds(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (SECONDS_MIN..=SECONDS_MAX).contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err(format!("it takes seconds from {SECONDS_MIN} to {SECONDS_MAX}, such as 10 or 0.5")),
    }
}
