//! `caravan bench ring`: 64-byte records between two processes, through a ring and through a bare
//! flag-and-copy loop in C, in turn on the same two cores.

mod flag_copy;
mod lane;
mod report;

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use caravan_segment::process::Process;

use self::flag_copy::FlagCopy;
use self::lane::{Memory, RECORD_BYTES};
use self::report::{Measured, Results};
use crate::args::{Placement, Ring, RingPeer};
use crate::error::Error;
use crate::interrupt::Interrupt;
use crate::machine::Machine;
use crate::output;
use crate::placement;
use crate::progress::Progress;

/// A round trip takes so many times as long as a record of a stream that a sample has fewer.
const ROUND_TRIP_PART: u64 = 20;
/// Records that a batching producer publishes at once.
const BATCH: u64 = 32;

/// Hundreds of times what a sample takes on idle cores.
const SAMPLE_LIMIT: Duration = Duration::from_secs(20);

/// What is measured of the ring, beside the bare loop's `echo` or its stream.
#[derive(Clone, Copy, Debug)]
struct Mode {
    title: &'static str,
    key: &'static str,
    echo: bool,
    batch: u64,
}

const MODES: [Mode; 3] = [
    Mode { title: "stream, each record published", key: "stream", echo: false, batch: 1 },
    Mode { title: "stream, published 32 at once", key: "stream_batched", echo: false, batch: BATCH },
    Mode { title: "round trip", key: "round_trip", echo: true, batch: 1 },
];

/// Measures, prints the table, and writes the JSON if it is wanted.
pub fn run(args: &Ring) -> Result<(), Error> {
    let cores = placement::cores();
    let farthest = args.placement == Placement::Far;
    let (pair, line_ns) =
        placement::pair_by_distance(&cores, farthest).ok_or(Error::CoresShort(cores.len()))?;
    let interrupt = Interrupt::watch()?;
    let bare = FlagCopy::compile(&args.cc)?;
    let home = placement::Home::of_this_thread()?;
    let mut progress = Progress::new(MODES.len() * args.samples);
    let mut measured = Vec::new();
    for mode in MODES {
        let records = if mode.echo { args.records / ROUND_TRIP_PART } else { args.records };
        let mut samples = (Vec::new(), Vec::new());
        progress.round(mode.title.to_owned());
        for number in 0..args.samples {
            progress.step(&format!("{} of {}", number + 1, args.samples));
            let took = bare.sample(mode.echo, pair, records, &interrupt)?;
            samples.0.push(took / records as f64);
            samples.1.push(ring_sample(args, mode, pair, records, &interrupt)? / records as f64);
        }
        measured.extend(Measured::of(mode.key, mode.title, samples));
    }
    drop(progress);
    home.back()?;
    let results = Results::of(args, Machine::here(), pair, line_ns, measured);
    let json = args.json.clone().unwrap_or_default();
    output::table(&results.text(), &json)?;
    output::json(&results, &json)
}

/// One sample: this process produces, a child consumes. Nanoseconds for all records.
fn ring_sample(
    args: &Ring,
    mode: Mode,
    pair: (usize, usize),
    records: u64,
    interrupt: &Interrupt,
) -> Result<f64, Error> {
    let memory = Memory::create(args.ring_bytes)?;
    let mut consumer = Consumer::start(args, mode, &memory, pair.1, records)?;
    placement::pin_self(pair.0)?;
    let process = Process::open(consumer.0.id() as i32)?;
    let deadline = Instant::now() + SAMPLE_LIMIT;
    let mut go_on = || {
        interrupt.check()?;
        match process.is_alive() {
            true if Instant::now() < deadline => Ok(()),
            true => Err(slow()),
            false => Err(failed(&"it ended in the middle")),
        }
    };
    let (mut there, mut back) = (memory.sender(0)?, memory.receiver(1)?);
    let mut record = [0; RECORD_BYTES];
    // The first record that comes back says that the consumer is ready.
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
    consumer.end()?;
    Ok(took)
}

/// The consuming process: this program again.
pub fn peer(args: &RingPeer) -> Result<(), Error> {
    placement::pin_self(args.core)?;
    let parent = rustix::process::getppid();
    let mut go_on = || match rustix::process::getppid() == parent {
        true => Ok(()),
        false => Err(failed(&"its parent ended in the middle")),
    };
    let memory = Memory::open(&args.memory, args.ring_bytes)?;
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

fn slow() -> Error {
    Error::BenchSlow(SAMPLE_LIMIT.as_secs())
}

fn check(record: &[u8; RECORD_BYTES], n: u64) -> Result<(), Error> {
    if record[..8] == n.to_le_bytes() {
        return Ok(());
    }
    let reason = format!("record {n} came with another number");
    Err(Error::BenchProcess { process: "ring", reason })
}

/// The child; killed if the sample fails.
struct Consumer(Child);

impl Consumer {
    fn start(args: &Ring, mode: Mode, memory: &Memory, core: usize, records: u64) -> Result<Self, Error> {
        // Not by its path: that may meanwhile be another build's.
        let mut command = Command::new("/proc/self/exe");
        command.args(["bench", "ring-peer", "--memory"]).arg(memory.path());
        command.args(["--ring-bytes", &args.ring_bytes.to_string(), "--core", &core.to_string()]);
        command.args(["--records", &records.to_string()]);
        if mode.echo {
            command.arg("--echo");
        }
        let child = command.stdin(Stdio::null()).spawn().map_err(|error| failed(&error))?;
        Ok(Self(child))
    }

    fn end(&mut self) -> Result<(), Error> {
        let status = self.0.wait().map_err(|error| failed(&error))?;
        if status.success() { Ok(()) } else { Err(failed(&status)) }
    }
}

fn failed(reason: &dyn std::fmt::Display) -> Error {
    Error::BenchProcess { process: "consumer", reason: reason.to_string() }
}

impl Drop for Consumer {
    fn drop(&mut self) {
        // Both do nothing to a process that has been waited for.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
