//! `caravan bench ring`: sends 64-byte records between two processes, through a ring and through a bare flag-and-copy
//! loop in C, in turn on the same two cores.

mod lane;

use std::fmt::Write;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use caravan_segment::process::Process;
use serde::Serialize;

use crate::args::{Placement, RingArgs, RingPeer};
use crate::error::Error;
use crate::interrupt::Interrupt;
use crate::machine::Machine;
use crate::output::BenchProgress;
use crate::process::{CLoop, ChildProgram, failed};
use crate::ring::lane::{RECORD_BYTES, RingMemory};
use crate::stats::SampleSummary;
use crate::{output, placement};

/// The bare loop in C that the ring is measured beside.
const SOURCE: &str = include_str!("../../../bench/ring/flag_copy.c");

/// A round trip takes this many times as long as a record of a stream, so a sample has fewer.
const ROUND_TRIP_PART: u64 = 20;
/// Records that a batching producer publishes at once.
const BATCH: u64 = 32;

/// The limit of a sample: hundreds of times what it takes on idle cores.
const SAMPLE_LIMIT: Duration = Duration::from_secs(20);

/// A measurement of the ring, beside the bare loop's `echo` or its stream.
#[derive(Clone, Copy, Debug)]
struct RingMode {
    title: &'static str,
    key: &'static str,
    echo: bool,
    batch: u64,
}

const MODES: [RingMode; 3] = [
    RingMode { title: "stream, each record published", key: "stream", echo: false, batch: 1 },
    RingMode { title: "stream, published 32 at once", key: "stream_batched", echo: false, batch: BATCH },
    RingMode { title: "round trip", key: "round_trip", echo: true, batch: 1 },
];

/// Measures, prints the table, and writes the JSON if it is wanted.
pub fn run(args: &RingArgs) -> Result<(), Error> {
    let cores = placement::cores();
    let farthest = args.placement == Placement::Far;
    let (pair, line_ns) =
        placement::pair_by_distance(&cores, farthest).ok_or(Error::CoresShort(cores.len()))?;
    let interrupt = Interrupt::watch()?;
    let bare = CLoop::compile(&args.cc, SOURCE)?;
    let home = placement::Affinity::of_this_thread()?;
    let mut progress = BenchProgress::new(MODES.len() * args.samples);
    let mut measured = Vec::new();
    for mode in MODES {
        let records = if mode.echo { args.records / ROUND_TRIP_PART } else { args.records };
        let mut samples = (Vec::new(), Vec::new());
        progress.round(mode.title.to_owned());
        for number in 0..args.samples {
            progress.step(&format!("{} of {}", number + 1, args.samples));
            let kind = if mode.echo { "echo" } else { "stream" };
            let words = [kind.to_owned(), pair.0.to_string(), pair.1.to_string(), records.to_string()];
            let [took] = bare.run(&words, SAMPLE_LIMIT, &interrupt)?;
            samples.0.push(took / records as f64);
            samples.1.push(ring_sample(args, mode, pair, records, &interrupt)? / records as f64);
        }
        measured.extend(Measured::of(mode.key, mode.title, samples));
    }
    drop(progress);
    home.back()?;
    let results = RingResults::of(args, Machine::here(), pair, line_ns, measured);
    let json = args.json.clone().unwrap_or_default();
    output::table(&results.text(), &json)?;
    output::json(&results, &json)
}

/// Takes one sample: this process produces, a child consumes. Returns the nanoseconds of all records.
fn ring_sample(
    args: &RingArgs,
    mode: RingMode,
    pair: (usize, usize),
    records: u64,
    interrupt: &Interrupt,
) -> Result<f64, Error> {
    let memory = RingMemory::create(args.ring_bytes)?;
    let mut child = consumer(args, mode, &memory, pair.1, records)?;
    placement::pin_self(pair.0)?;
    let process = Process::open(child.pid() as i32)?;
    let deadline = Instant::now() + SAMPLE_LIMIT;
    let mut go_on = || {
        interrupt.check()?;
        match process.is_alive() {
            true if Instant::now() < deadline => Ok(()),
            true => Err(Error::BenchSlow(SAMPLE_LIMIT.as_secs())),
            false => Err(failed("consumer", &"it ended in the middle")),
        }
    };
    let (mut there, mut back) = (memory.sender(0)?, memory.receiver(1)?);
    let mut record = [0; RECORD_BYTES];
    // The first record that comes back shows that the consumer is ready.
    back.take(&mut record, &mut go_on)?;
    let start = Instant::now();
    for n in 0..records {
        record[..8].copy_from_slice(&n.to_le_bytes());
        there.append(&record, &mut go_on)?;
        if mode.batch == 1 || (n + 1) % mode.batch == 0 {
            there.publish();
        }
        if mode.echo {
            back.take(&mut record, &mut go_on)?;
            check(&record, n)?;
        }
    }
    there.publish();
    there.drained(&mut go_on)?;
    let took = start.elapsed().as_nanos() as f64;
    child.end(deadline, interrupt)?;
    Ok(took)
}

/// Runs the consuming process, which is this program again.
pub fn peer(args: &RingPeer) -> Result<(), Error> {
    placement::pin_self(args.core)?;
    let parent = rustix::process::getppid();
    let mut go_on = || match rustix::process::getppid() == parent {
        true => Ok(()),
        false => Err(failed("consumer", &"its parent ended in the middle")),
    };
    let memory = RingMemory::open(&args.memory, args.ring_bytes)?;
    let (mut there, mut back) = (memory.receiver(0)?, memory.sender(1)?);
    let mut record = [0; RECORD_BYTES];
    back.append(&record, &mut go_on)?;
    back.publish();
    for n in 0..args.records {
        there.take(&mut record, &mut go_on)?;
        check(&record, n)?;
        if args.echo {
            back.append(&record, &mut go_on)?;
            back.publish();
        }
    }
    Ok(())
}

fn check(record: &[u8; RECORD_BYTES], n: u64) -> Result<(), Error> {
    if record[..8] == n.to_le_bytes() {
        return Ok(());
    }
    Err(failed("ring", &format!("record {n} came with another number")))
}

/// Starts the consumer: this program again. Its path may meanwhile lead to another build.
fn consumer(
    args: &RingArgs,
    mode: RingMode,
    memory: &RingMemory,
    core: usize,
    records: u64,
) -> Result<ChildProgram, Error> {
    let mut command = Command::new("/proc/self/exe");
    command.args(["bench", "ring-peer", "--memory"]).arg(memory.path());
    command.args(["--ring-bytes", &args.ring_bytes.to_string(), "--core", &core.to_string()]);
    command.args(["--records", &records.to_string()]).stdin(Stdio::null());
    if mode.echo {
        command.arg("--echo");
    }
    ChildProgram::start("consumer", command)
}

/// The version of the format, which changes when a reader of the file has to.
const SCHEMA: &str = "caravan-bench-ring/1";

#[derive(Clone, Debug, Serialize)]
pub struct RingResults {
    pub schema: &'static str,
    pub caravan: &'static str,
    pub machine: Machine,
    /// The producer's core and the consumer's.
    pub cores: (usize, usize),
    pub line_ns: f64,
    pub placement: &'static str,
    pub record_bytes: usize,
    pub ring_bytes: u64,
    pub records: u64,
    pub measured: Vec<Measured>,
}

/// One figure, in nanoseconds per record.
#[derive(Clone, Debug, Serialize)]
pub struct Measured {
    pub key: &'static str,
    pub title: &'static str,
    pub flag_copy_ns: SampleSummary,
    pub ring_ns: SampleSummary,
    /// The ratio of the ring to the bare loop, for each pair of samples.
    pub ratio: SampleSummary,
}

impl Measured {
    /// Summarizes the samples of the bare loop and of the ring; `None` if there are none.
    pub fn of(key: &'static str, title: &'static str, samples: (Vec<f64>, Vec<f64>)) -> Option<Self> {
        let (flag_copy_ns, ring_ns) = (SampleSummary::of(samples.0)?, SampleSummary::of(samples.1)?);
        let ratio = ring_ns.ratio(&flag_copy_ns)?;
        Some(Self { key, title, flag_copy_ns, ring_ns, ratio })
    }
}

impl RingResults {
    pub fn of(
        args: &RingArgs,
        machine: Machine,
        cores: (usize, usize),
        line_ns: f64,
        measured: Vec<Measured>,
    ) -> Self {
        Self {
            schema: SCHEMA,
            caravan: env!("CARGO_PKG_VERSION"),
            machine,
            cores,
            line_ns,
            placement: placement::word(line_ns),
            record_bytes: RECORD_BYTES,
            ring_bytes: args.ring_bytes,
            records: args.records,
            measured,
        }
    }

    pub fn text(&self) -> String {
        let mut text = format!(
            "{} B records between two processes on cores {} and {}, {} ({:.0} ns a cache line one way)\n{}\n\
             Nanoseconds a record; medians of {} samples (least..most), in turn.\n\n",
            self.record_bytes,
            self.cores.0,
            self.cores.1,
            self.placement,
            self.line_ns,
            self.machine.without_distance(),
            self.measured.first().map_or(0, |measured| measured.ratio.samples.len()),
        );
        // Writing into a String cannot fail.
        let _ = writeln!(text, "{:<32}{:>26}{:>26}{:>24}", "", "bare loop in C", "ring", "ring/loop");
        for Measured { title, flag_copy_ns, ring_ns, ratio, .. } in &self.measured {
            let (bare, ring, ratio) = (flag_copy_ns.spread(), ring_ns.spread(), ratio.spread());
            let _ = writeln!(text, "{title:<32}{bare:>26}{ring:>26}{ratio:>24}");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ratio_is_of_each_pair_and_is_printed() {
        let samples = (vec![4.0, 10.0, 8.0], vec![6.0, 10.0, 4.0]);
        let measured = Measured::of("stream", "stream, each record published", samples);
        let crate::args::BenchCommand::Ring(args) = crate::args::tests::parse("ring") else {
            panic!("not ring")
        };
        let results = RingResults::of(&args, Machine::here(), (0, 1), 60.0, measured.into_iter().collect());
        let text = results.text();
        let row = text.lines().find(|line| line.starts_with("stream")).expect("the row");
        let cells: Vec<_> = row.split_whitespace().skip(4).collect();
        assert_eq!(cells, ["8.00", "(4.00..10.0)", "6.00", "(4.00..10.0)", "1.00", "(0.50..1.50)"]);
        assert!(text.contains("cores 0 and 1, near (60 ns"), "{text}");
        let json = serde_json::to_value(&results).expect("JSON");
        assert_eq!(json["schema"], "caravan-bench-ring/1");
        assert_eq!(json["measured"][0]["ratio"]["median"], 1.0);
    }
}
