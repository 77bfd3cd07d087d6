//! `caravan bench ring`: sends 64-byte records between two processes, through a ring and through a bare flag-and-copy
//! loop in C, in turn on the same two cores.

mod lane;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use caravan_segment::process::Process;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::args::RingArgs;
use crate::chart::{CARAVAN, PEER};
use crate::error::Error;
use crate::interrupt::Interrupt;
use crate::placement;
use crate::process::{CLoop, ChildProgram, PeerTask, failed};
use crate::report::{self, BenchCase, BenchReport, Contender, Figure, Sample, Shown};
use crate::ring::lane::{RECORD_BYTES, RingMemory};

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

const FIGURES: [Figure; 1] = [Figure::new("ns", "ns a record", Shown::Chart)];

/// Measures and reports.
pub fn run(args: &RingArgs) -> Result<(), Error> {
    let pair = placement::pair_by_distance(&placement::cores(), args.placement)?;
    let interrupt = Interrupt::watch()?;
    let bare = CLoop::compile(&args.cc, SOURCE, &[])?;
    let contenders =
        || vec![Contender::new("flag-copy", "bare loop in C", PEER), Contender::new("ring", "ring", CARAVAN)];
    let case = |mode: &RingMode| BenchCase {
        pair: Some(pair),
        ..BenchCase::new(mode.key, mode.title, &FIGURES, contenders())
    };
    let mut cases = MODES.each_ref().map(case);
    let title = format!("{RECORD_BYTES} B records between two processes on cores {pair}");
    let facts = json!({
        "cores": pair, "record_bytes": RECORD_BYTES, "ring_bytes": args.ring_bytes, "records": args.records,
    });
    let mut report = BenchReport::begin("ring", args.samples, title, facts);
    report::measure(&mut cases, args.samples, &interrupt, |turn| {
        let mode = MODES[turn.case];
        let records = if mode.echo { args.records / ROUND_TRIP_PART } else { args.records };
        let took = if turn.contender == 0 {
            let kind = if mode.echo { "echo" } else { "stream" };
            let [first, second] = [pair.first, pair.second].map(|core| core.to_string());
            let [took] =
                bare.run(&[kind.into(), first, second, records.to_string()], SAMPLE_LIMIT, &interrupt)?;
            took
        } else {
            let produced = || ring_sample(args.ring_bytes, mode, pair.second, records, &interrupt);
            placement::on_core(pair.first, produced)?
        };
        Ok(vec![Sample::new("ns", took / records as f64)])
    })?;
    report.add(&cases);
    report.write(&args.files, Path::new(""))
}

/// Takes one sample: this thread produces, a child on the other core consumes. Returns the nanoseconds of all records.
fn ring_sample(
    ring_bytes: u64,
    mode: RingMode,
    core: usize,
    records: u64,
    interrupt: &Interrupt,
) -> Result<f64, Error> {
    let memory = RingMemory::create(ring_bytes)?;
    let task = RingTask { memory: memory.path(), ring_bytes, core, records, echo: mode.echo };
    let mut child = ChildProgram::start("consumer", PeerTask::Ring(task).command()?)?;
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

/// The task of the consuming process, which finds the memory through its parent.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RingTask {
    memory: PathBuf,
    ring_bytes: u64,
    core: usize,
    records: u64,
    echo: bool,
}

/// Runs the consuming process.
pub fn peer(task: &RingTask) -> Result<(), Error> {
    placement::pin_self(task.core)?;
    let parent = rustix::process::getppid();
    let mut go_on = || match rustix::process::getppid() == parent {
        true => Ok(()),
        false => Err(failed("consumer", &"its parent ended in the middle")),
    };
    let memory = RingMemory::open(&task.memory, task.ring_bytes)?;
    let (mut there, mut back) = (memory.receiver(0)?, memory.sender(1)?);
    let mut record = [0; RECORD_BYTES];
    back.append(&record, &mut go_on)?;
    back.publish();
    for n in 0..task.records {
        there.take(&mut record, &mut go_on)?;
        check(&record, n)?;
        if task.echo {
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
