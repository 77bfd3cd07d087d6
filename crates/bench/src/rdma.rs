//! `caravan bench rdma`: measures a link over an RDMA device and perftest's programs on the same device, in turn.

mod ends;
mod tool;

use std::net::IpAddr;
use std::path::Path;
use std::time::Instant;

use caravan_fabric::Link;
use caravan_fabric::verbs::device::Fabric;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::args::Rdma;
use crate::chart::{CARAVAN, PEER};
use crate::control::{self, BenchChannel};
use crate::error::Error;
use crate::interrupt::Interrupt;
use crate::process::{ChildProgram, PeerTask};
use crate::rdma::ends::{EndCounts, LinkTask, RdmaEnd};
use crate::rdma::tool::{PerftestTool, SAMPLE_LIMIT, ToolRun};
use crate::report::{self, BenchCase, BenchReport, Contender, Figure, Sample, Shown};

const MIB: f64 = 1048576.0;

/// A request of the measuring side to the other.
#[derive(Debug, Serialize, Deserialize)]
enum RdmaAsk {
    Link {
        ring_bytes: u64,
    },
    Do(LinkTask),
    Serve(ToolRun),
    /// The client's side of the tool has ended.
    Served,
}

/// Counts of both ends, divided by the messages that the measuring side sent.
const COUNTS: [Figure; 6] = [
    Figure::new("doorbells", "doorbells", Shown::Median),
    Figure::new("doorbells_there", "there", Shown::Median),
    Figure::new("completions", "completions", Shown::Median),
    Figure::new("completions_there", "there", Shown::Median),
    Figure::new("wakeups", "wake-ups", Shown::Median),
    Figure::new("wakeups_there", "there", Shown::Median),
];

const fn with_counts(key: &'static str, unit: &'static str) -> [Figure; 8] {
    let [a, b, c, d, e, f] = COUNTS;
    [Figure::new(key, unit, Shown::Chart), Figure::new("p99_us", "99 %", Shown::Median), a, b, c, d, e, f]
}
const LATENCY: [Figure; 8] = with_counts("us", "us");
const BANDWIDTH: [Figure; 8] = with_counts("mib_per_s", "MiB/s");

/// Measures and reports, or serves as the other side.
pub fn run(args: &Rdma) -> Result<(), Error> {
    let interrupt = Interrupt::watch()?;
    if let Some(port) = args.serve {
        eprintln!("caravan: waiting on port {port} for one `caravan bench rdma --to THIS_HOST:{port}`");
        return serve(BenchChannel::serve(port, &interrupt)?, &interrupt);
    }
    // Without a device, the reason is reported before anything else happens.
    caravan_fabric::verbs::offer()?;
    let mut control = match &args.to {
        Some(address) => BenchChannel::to(address, &interrupt)?,
        None => BenchChannel::start(&PeerTask::Rdma)?,
    };
    control.say(&RdmaAsk::Link { ring_bytes: args.ring_bytes })?;
    let endpoint = control::connect_rdma(&mut control, &Link::exposure(args.ring_bytes)?)?;
    let mut end = RdmaEnd::over(endpoint, args.ring_bytes)?;
    let their_ip: IpAddr = control.answer()?;
    let port = end.port()?;
    let host = if port.fabric == Fabric::Iwarp { their_ip } else { control.host };
    let tools = tools(args, port.fabric);
    let plans = plans(args, &tools);
    let mut report = report(args, &end, &tools);
    let mut cases: Vec<_> = plans.iter().map(RdmaPlan::case).collect();
    let clock_ns = clock_ns();
    report::measure(&mut cases, args.rounds, &interrupt, |turn| {
        let plan = &plans[turn.case];
        match plan.contenders[turn.contender].1 {
            Doing::Link(task) => sample(&mut control, &mut end, &task, clock_ns),
            Doing::Tool(run) => {
                let tcp_port: u16 = control.ask(&RdmaAsk::Serve(run))?;
                let printed = run.call(&port, host, tcp_port, &interrupt)?;
                control.ask::<()>(&RdmaAsk::Served)?;
                let value = Sample::new(plan.figures[0].key, printed.value);
                Ok([value].into_iter().chain(printed.p99.map(|p99| Sample::new("p99_us", p99))).collect())
            }
        }
    })?;
    report.add(&cases);
    report.write(&args.files, Path::new(""))
}

fn report(args: &Rdma, end: &RdmaEnd, tools: &[PerftestTool]) -> BenchReport {
    let (link, registered_bytes) = (end.link.description(), end.link.endpoint_counts().registered_bytes);
    let missing = PerftestTool::ALL.into_iter().filter(|tool| !args.alone && !tools.contains(tool));
    let missing: Vec<_> = missing.map(PerftestTool::program).collect();
    let title = format!("A link over {link}");
    let facts = json!({
        "link": link, "ring_bytes": args.ring_bytes, "registered_bytes": registered_bytes, "sleeps": args.sleep,
        "missing": missing,
    });
    let mut report = BenchReport::begin("rdma", args.rounds, title, facts);
    let waits = if args.sleep { "who waits sleeps" } else { "who waits spins" };
    report.notes.push(format!(
        "Rings of {} bytes, {registered_bytes} bytes registered at each side; {waits}.\nDoorbells, completions and \
         wake-ups are those of a message, here and there.",
        args.ring_bytes
    ));
    if !missing.is_empty() {
        let missing = missing.join(", ");
        report
            .notes
            .push(format!("Not here, or not for this port (packages perftest, ibverbs-utils): {missing}."));
    }
    report
}

/// Runs the other process on this machine.
pub fn peer() -> Result<(), Error> {
    let interrupt = Interrupt::watch()?;
    serve(BenchChannel::inherited()?, &interrupt)
}

/// Takes one sample of a link.
fn sample(
    control: &mut BenchChannel,
    end: &mut RdmaEnd,
    task: &LinkTask,
    clock_ns: f64,
) -> Result<Vec<Sample>, Error> {
    control.ask::<()>(&RdmaAsk::Do(*task))?;
    let before = end.counts();
    let mut took = end.measure(task)?;
    let here = end.counts().since(&before);
    let there: EndCounts = control.answer()?;
    let mut samples = Vec::new();
    if task.echo {
        took.sort_by(f64::total_cmp);
        let at = |part: f64| took.get((took.len() as f64 * part) as usize).copied().unwrap_or(f64::NAN);
        let one_way_us = |round_trip_ns: f64| (round_trip_ns - clock_ns) / 2.0 / 1000.0;
        samples.push(Sample::new("us", one_way_us(at(0.5))));
        samples.push(Sample::new("p99_us", one_way_us(at(0.99))));
    } else {
        let bytes = task.bytes as f64 * task.messages as f64;
        samples.extend(took.iter().map(|ns| Sample::new("mib_per_s", bytes / MIB / (ns / 1e9))));
    }
    let wakeups = [here.wakeups, there.wakeups];
    let counts = [here.doorbells, there.doorbells, here.completions, there.completions].into_iter();
    let counts = COUNTS.iter().zip(counts.chain(wakeups));
    samples
        .extend(counts.map(|(figure, count)| Sample::new(figure.key, count as f64 / task.messages as f64)));
    Ok(samples)
}

/// Returns the nanoseconds of reading the clock, which is a system call on some virtual machines: the least of several
/// tries, because other work only adds to it.
fn clock_ns() -> f64 {
    const TRIES: u32 = 50;
    const LOOKS: u32 = 20;
    let one = |_| {
        let start = Instant::now();
        for _ in 0..LOOKS {
            std::hint::black_box(Instant::now());
        }
        start.elapsed().as_nanos() as f64 / f64::from(LOOKS)
    };
    (0..TRIES).map(one).fold(f64::INFINITY, f64::min)
}

/// Serves the requests of the measuring side, until it ends.
fn serve(mut control: BenchChannel, interrupt: &Interrupt) -> Result<(), Error> {
    let mut end: Option<RdmaEnd> = None;
    let mut running: Option<ChildProgram> = None;
    let unlinked = || failed(&"it has asked for no link yet");
    control.answer_all(interrupt, |control, asked| match asked {
        RdmaAsk::Link { ring_bytes } => {
            let endpoint = control::accept_rdma(control, &Link::exposure(ring_bytes)?)?;
            let made = end.insert(RdmaEnd::over(endpoint, ring_bytes)?);
            control.reply(&made.port()?.ip())
        }
        RdmaAsk::Do(task) => {
            let end = end.as_mut().ok_or_else(unlinked)?;
            control.reply(&())?;
            let before = end.counts();
            end.answer(&task)?;
            control.reply(&end.counts().since(&before))
        }
        RdmaAsk::Serve(run) => {
            let port = end.as_ref().ok_or_else(unlinked)?.port()?;
            let (started, tcp_port) = run.serve(&port, interrupt)?;
            running = Some(started);
            control.reply(&tcp_port)
        }
        RdmaAsk::Served => {
            if let Some(mut running) = running.take() {
                running.end(Instant::now() + SAMPLE_LIMIT, interrupt)?;
            }
            control.reply(&())
        }
    })
}

fn failed(why: &dyn std::fmt::Display) -> Error {
    crate::process::failed("RDMA link", why)
}

/// The fewest messages of a stream: the programs for bandwidth need a few under way.
const STREAM_MESSAGES_MIN: u64 = 16;
/// Messages that a batching sender publishes at once.
const BATCH: u64 = 32;

/// A case, and what each of its contenders does.
struct RdmaPlan {
    key: String,
    title: String,
    figures: &'static [Figure],
    contenders: Vec<(&'static str, Doing)>,
}

#[derive(Clone, Copy)]
enum Doing {
    Link(LinkTask),
    Tool(ToolRun),
}

impl RdmaPlan {
    fn case(&self) -> BenchCase {
        let contender = |&(name, doing): &(&'static str, Doing)| {
            Contender::new(name, name, if matches!(doing, Doing::Tool(_)) { PEER } else { CARAVAN })
        };
        let contenders = self.contenders.iter().map(contender).collect();
        BenchCase::new(&self.key, &self.title, self.figures, contenders)
    }
}

/// Returns the programs that are installed and can use the port, if they are wanted.
fn tools(args: &Rdma, fabric: Fabric) -> Vec<PerftestTool> {
    let usable = |tool: &PerftestTool| !args.alone && tool.is_installed() && tool.fits(fabric);
    PerftestTool::ALL.into_iter().filter(usable).collect()
}

/// Returns the plans: latencies beside three programs, streams beside one, and small messages beside none.
fn plans(args: &Rdma, tools: &[PerftestTool]) -> Vec<RdmaPlan> {
    let task = |echo, bytes, messages| LinkTask {
        echo,
        bytes,
        messages,
        batch: 1,
        in_place: false,
        sleeps: args.sleep,
    };
    let beside = |is_bandwidth, bytes: usize, messages: u64| {
        let run = |&tool: &PerftestTool| (tool.program(), Doing::Tool(ToolRun { tool, bytes, messages }));
        let fitting = move |tool: &&PerftestTool| (**tool == PerftestTool::WriteBandwidth) == is_bandwidth;
        // The reference comes first: ratios are to it.
        tools.iter().filter(fitting).map(run).collect::<Vec<_>>()
    };
    let latency = |&bytes: &usize| {
        let mut contenders = beside(false, bytes, args.round_trips);
        contenders.push(("link", Doing::Link(task(true, bytes, args.round_trips))));
        let (key, title) = (format!("latency/{bytes}"), format!("{bytes} B one way"));
        RdmaPlan { key, title, figures: &LATENCY, contenders }
    };
    let stream = |&bytes: &usize| {
        let messages = (args.stream_bytes / bytes as u64).max(STREAM_MESSAGES_MIN);
        let copied = task(false, bytes, messages);
        let mut contenders = beside(true, bytes, messages);
        contenders.push(("link", Doing::Link(copied)));
        contenders.push(("link, filled in place", Doing::Link(LinkTask { in_place: true, ..copied })));
        let (key, title) = (format!("bandwidth/{bytes}"), format!("{bytes} B at once"));
        RdmaPlan { key, title, figures: &BANDWIDTH, contenders }
    };
    let copied = task(false, 64, args.round_trips * 4);
    let small = RdmaPlan {
        key: "small".to_owned(),
        title: "stream of 64 B".to_owned(),
        figures: &BANDWIDTH,
        contenders: vec![
            ("each published", Doing::Link(copied)),
            ("32 published at once", Doing::Link(LinkTask { batch: BATCH, ..copied })),
        ],
    };
    args.latency_bytes.iter().map(latency).chain(args.sizes.iter().map(stream)).chain([small]).collect()
}
