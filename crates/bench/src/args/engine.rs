//! The arguments of `caravan bench engine` and of `caravan bench compare`.

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::RangedU64ValueParser;

use super::{Placement, file};

/// Where results are collected, unless another file is named.
pub const HISTORY: &str = "results/engine-history.jsonl";

/// The packet engine: named benchmarks of links, tunnels, many processes, and recovery
///
/// Runs named benchmarks of the packet engine: for each sample a fresh engine, a warm-up, and a count
/// of packets between two instants. Samples of all benchmarks take turns. How far apart the two cores
/// lie is measured before and after each sample, as a virtual machine's cores move: near and far
/// samples are reported apart, and a sample in which that changed is taken again.
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
    /// Benchmarks, separated by commas: a name as --list has it, or one followed by /SIZE, or by
    /// /SIZE/VARIANT as the table has it
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub only: Vec<String>,
    /// Bytes in a packet, separated by commas
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "60,120,1500", value_parser = RangedU64ValueParser::<usize>::new().range(60..=1500))]
    pub sizes: Vec<usize>,
    /// Samples of each benchmark that are to be had of one placement, near or far; where cores move, it
    /// takes more to get them
    #[arg(long, value_name = "N", default_value_t = 9, value_parser = RangedU64ValueParser::<usize>::new().range(1..=10_000))]
    pub samples: usize,
    /// Seconds in which the packets of a sample are counted
    #[arg(long, value_name = "S", default_value = "0.15", value_parser = seconds)]
    pub seconds: Duration,
    /// Which two cores, where there are more: those nearest to each other or those farthest
    #[arg(long, value_name = "WHICH", default_value = "near")]
    pub placement: Placement,
    /// The C compiler for the bare loop
    #[arg(long, value_name = "PROGRAM", default_value = "cc")]
    pub cc: PathBuf,
    /// The file to which the results are added, one line for each benchmark; '' for none
    #[arg(long, value_name = "FILE", default_value = HISTORY, value_parser = file())]
    pub history: PathBuf,
    /// Results as JSON; '-' for standard output (the table then goes to standard error), '' for none
    #[arg(long, value_name = "FILE", default_value = "results/engine.json", value_parser = file())]
    pub json: PathBuf,
    /// Chart as SVG, '' for none
    #[arg(long, value_name = "FILE", default_value = "results/engine.svg", value_parser = file())]
    pub svg: PathBuf,
}

/// The process that runs the engine of one sample.
#[derive(Debug, clap::Args)]
pub struct EnginePeer {
    /// What to measure, as JSON
    #[arg(long)]
    pub task: String,
}

/// How the packet engine's benchmarks have changed between two runs
///
/// Shows how each benchmark of the packet engine has changed between two runs, and whether that can
/// be chance: the Mann-Whitney U test of their samples, two-sided, with Holm's correction for
/// looking at many benchmarks at once. A run is named by its number in the history (1 is the
/// first, -1 the last), by the start of its commit, or by the start of its date.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  caravan bench compare                       the last run, and the one before it on the same machine
  caravan bench compare -3                    the last run, and the one two runs earlier
  caravan bench compare v0.1.0 4f2a91c        two commits
  caravan bench compare --fail-on-regression  exit status 1 if anything has become worse")]
pub struct Compare {
    /// The run to compare with; without it the one before B that is on the same machine
    #[arg(value_name = "A", allow_negative_numbers = true)]
    pub a: Option<String>,
    /// The run that is compared; without it the last one
    #[arg(value_name = "B", allow_negative_numbers = true)]
    pub b: Option<String>,
    /// The file with the results
    #[arg(long, value_name = "FILE", default_value = HISTORY)]
    pub history: PathBuf,
    /// Changes of the median below this many percent are no changes
    #[arg(long, value_name = "PERCENT", default_value = "3", value_parser = percent)]
    pub threshold: f64,
    /// How probable chance may be at most for a change to be called one
    #[arg(long, value_name = "P", default_value = "0.01", value_parser = probability)]
    pub alpha: f64,
    /// End with exit status 1 if a benchmark has become worse
    #[arg(long)]
    pub fail_on_regression: bool,
    /// The comparison as JSON, instead of the table
    #[arg(long)]
    pub json: bool,
}

fn seconds(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.01..=60.0).contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err("it takes seconds from 0.01 to 60, such as 0.15".into()),
    }
}

fn percent(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(percent) if (0.0..=1000.0).contains(&percent) => Ok(percent),
        _ => Err("it takes percent from 0 to 1000, such as 3".into()),
    }
}

fn probability(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(p) if p > 0.0 && p < 1.0 => Ok(p),
        _ => Err("it takes a probability between 0 and 1, such as 0.01".into()),
    }
}
