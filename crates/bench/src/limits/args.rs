//! The arguments of `caravan limits`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Subcommand;
use clap::builder::{RangedU64ValueParser, TypedValueParser};

use crate::args::{ResultFiles, seconds, size};

/// Show what memory, cores and disks can do: latency, IOPS, bandwidth, and what caps them
///
/// Measures the latency of one request, and the bandwidth by the bytes of a request and by the number of requests in
/// parallel. 1 / latency gives IOPS; times the block, times the parallelism gives the predicted bandwidth, until a cap
/// is met. The table shows the prediction beside the measurement at the knee, from where more requests only wait, and
/// names the cap.
#[derive(Debug, clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "\
Examples:
  caravan limits                           this machine's memory and cores, in 20 seconds
  caravan limits --full --json all.json    more points, longer, in some minutes
  caravan limits /var/lib/db/data.bin      a file, read with O_DIRECT; nothing is written
  sudo caravan limits /dev/nvme0n1         a disk, read in the same way
  caravan limits /srv --write              a file system, with a scratch file that leaves nothing behind
  caravan limits --chart limits.svg        also a chart with logarithmic axes
  caravan limits compare a.json b.json     two runs, or two machines
  caravan limits --camels --explain        the post \"IO limits\" as a table"
)]
pub struct LimitsArgs {
    /// Another command than measuring
    #[command(subcommand)]
    pub command: Option<LimitsCommand>,
    /// Files and devices to read, or directories with --write; without any, memory and cores are measured
    #[arg(value_name = "PATH")]
    pub paths: Vec<PathBuf>,
    /// Write to a scratch file in each PATH, a directory, and read it; it has no name, so it is gone at the end of any kind
    #[arg(long, requires = "paths")]
    pub write: bool,
    /// The size of the scratch file, which also takes at most a quarter of the free space
    #[arg(long, value_name = "SIZE", default_value = "512Mi", value_parser = size)]
    pub size: u64,
    /// Show the numbers of the post \"IO limits\" instead of measuring
    #[arg(long)]
    pub camels: bool,
    /// Measure more points, and each for longer: some minutes instead of 20 seconds
    #[arg(long)]
    pub full: bool,
    /// Show the arithmetic of each row below the table
    #[arg(long)]
    pub explain: bool,
    /// Write the results as JSON; '-' for standard output (the table then goes to standard error)
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write a chart to this file, as SVG or PNG by its ending; may be given twice
    #[arg(long, value_name = "FILE", value_parser = chart_file())]
    pub chart: Vec<PathBuf>,
}

/// What else can be done with limits.
#[derive(Debug, Subcommand)]
#[allow(missing_docs)]
pub enum LimitsCommand {
    Compare(LimitsCompare),
}

/// Compare two results of `caravan limits --json`, row by row
///
/// Shows the latency and the bandwidth of each row in both files, and how many times those of A the ones of B are. Rows
/// that only one of them has are named.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  caravan limits compare before.json after.json
  caravan limits compare host1.json host2.json")]
pub struct LimitsCompare {
    /// The results to compare with
    #[arg(value_name = "A.json")]
    pub a: PathBuf,
    /// The results to compare
    #[arg(value_name = "B.json")]
    pub b: PathBuf,
}

/// Measure what `caravan limits` does, beside a loop in C (memory) and fio (disks)
///
/// Measures the latency and the bandwidth of memory beside a bare loop in C, or reads of PATH, at several
/// blocks and depths, beside fio with the same settings. Both take turns. Nothing is written to PATH.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  caravan bench limits                     memory, beside a loop in C
  caravan bench limits /srv/data.bin       reads of a file, beside fio (package fio)
  caravan bench limits --rounds 15 --json results/limits.json")]
pub struct LimitsBench {
    /// A file or a device to read; without it, memory is measured
    #[arg(value_name = "PATH")]
    pub path: Option<PathBuf>,
    /// Number of rounds; each round measures every contender once
    #[arg(long, value_name = "R", default_value_t = 9, value_parser = RangedU64ValueParser::<usize>::new().range(1..=10_000))]
    pub rounds: usize,
    /// Seconds of a sample
    #[arg(long, value_name = "S", default_value = "0.5", value_parser = seconds)]
    pub seconds: Duration,
    /// The C compiler for the bare loop
    #[arg(long, value_name = "PROGRAM", default_value = "cc")]
    pub cc: PathBuf,
    /// The files to write
    #[command(flatten)]
    pub files: ResultFiles,
}

/// A file whose ending says what it is.
fn chart_file() -> impl TypedValueParser<Value = PathBuf> {
    clap::builder::PathBufValueParser::new().try_map(|path| match is_svg(&path) || is_png(&path) {
        true => Ok(path),
        false => Err("it takes a name that ends with .svg or .png"),
    })
}

pub(super) fn is_svg(path: &Path) -> bool {
    path.extension().is_some_and(|ending| ending == "svg")
}

pub(super) fn is_png(path: &Path) -> bool {
    path.extension().is_some_and(|ending| ending == "png")
}
