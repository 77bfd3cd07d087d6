//! `caravan bench rdma`: measures a link over an RDMA device and perftest's programs on the same device, in turn.

mod ends;
mod tool;

use std::fmt::Write;
use std::net::IpAddr;
use std::time::Instant;

use caravan_fabric::verbs::Port;
use caravan_fabric::verbs::device::Fabric;
use serde::{Deserialize, Serialize};

use crate::args::Rdma;
use crate::control::BenchChannel;
use crate::error::Error;
use crate::interrupt::Interrupt;
use crate::machine::Machine;
use crate::number::number;
use crate::output;
use crate::output::BenchProgress;
use crate::process::ChildProgram;
use crate::rdma::ends::{EndCounts, LinkTask, RdmaEnd};
use crate::rdma::tool::{PerftestTool, SAMPLE_LIMIT, ToolRun};
use crate::stats::SampleSummary;

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

/// The samples of one contender.
#[derive(Default)]
struct Samples {
    values: Vec<f64>,
    p99: Vec<f64>,
    counts: [EndCounts; 2],
    messages: u64,
}

/// Measures, prints the table, and writes the JSON if it is wanted; or serves as the other side.
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
        None => BenchChannel::start("rdma-peer")?,
    };
    control.say(&RdmaAsk::Link { ring_bytes: args.ring_bytes })?;
    let mut end = RdmaEnd::connect(&mut control, args.ring_bytes)?;
    let their: (IpAddr, u64) = control.answer()?;
    let port = end.port()?;
    let host = if port.fabric == Fabric::Iwarp { their.0 } else { control.host };
    let registered = end.link.endpoint_counts().registered_bytes;
    let mut results = RdmaResults::new(end.link.description(), (args.ring_bytes, registered), args.sleep);
    let plans = plans(args, port.fabric, &mut results.missing);
    let mut progress =
        BenchProgress::new(plans.iter().map(|plan| plan.contenders.len()).sum::<usize>() * args.rounds);
    let clock_ns = clock_ns();
    for plan in plans {
        progress.round(plan.title.clone());
        let mut samples: Vec<Samples> = plan.contenders.iter().map(|_| Samples::default()).collect();
        for _ in 0..args.rounds {
            for ((name, doing), samples) in plan.contenders.iter().zip(&mut samples) {
                progress.step(name);
                interrupt.check()?;
                match doing {
                    Doing::Link(task) => sample(&mut control, &mut end, task, clock_ns, samples)?,
                    Doing::Tool(run) => {
                        let (_, tcp_port): ((), u16) = ask(&mut control, &RdmaAsk::Serve(*run))?;
                        let printed = run.call(&port, host, tcp_port, &interrupt)?;
                        ask::<()>(&mut control, &RdmaAsk::Served)?;
                        samples.values.push(printed.value);
                        samples.p99.extend(printed.p99);
                    }
                }
            }
        }
        results.measured.extend(row(plan, samples));
    }
    drop(progress);
    let json = args.json.clone().unwrap_or_default();
    output::table(&results.text(), &json)?;
    output::json(&results, &json)
}

/// Runs the other process on this machine.
pub fn peer() -> Result<(), Error> {
    let interrupt = Interrupt::watch()?;
    serve(BenchChannel::inherited()?, &interrupt)
}

fn ask<T: serde::de::DeserializeOwned>(control: &mut BenchChannel, what: &RdmaAsk) -> Result<T, Error> {
    control.say(what)?;
    control.answer()
}

/// Takes one sample of a link.
fn sample(
    control: &mut BenchChannel,
    end: &mut RdmaEnd,
    task: &LinkTask,
    clock_ns: f64,
    samples: &mut Samples,
) -> Result<(), Error> {
    control.say(&RdmaAsk::Do(*task))?;
    control.answer::<()>()?;
    let before = end.counts();
    let mut took = end.measure(task)?;
    samples.counts[0].add(before, end.counts());
    let there: EndCounts = control.answer()?;
    samples.counts[1].add(EndCounts::default(), there);
    samples.messages += task.messages;
    if task.echo {
        took.sort_by(f64::total_cmp);
        let at = |part: f64| took.get((took.len() as f64 * part) as usize).copied().unwrap_or(f64::NAN);
        let one_way_us = |round_trip_ns: f64| (round_trip_ns - clock_ns) / 2.0 / 1000.0;
        samples.values.push(one_way_us(at(0.5)));
        samples.p99.push(one_way_us(at(0.99)));
    } else {
        let bytes = task.bytes as f64 * task.messages as f64;
        samples.values.extend(took.iter().map(|ns| bytes / MIB / (ns / 1e9)));
    }
    Ok(())
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

fn row(plan: RdmaPlan, samples: Vec<Samples>) -> Option<RdmaRow> {
    let base = SampleSummary::of(samples.first()?.values.clone())?;
    let contender = |(&(name, _), samples): (&(&'static str, Doing), Samples)| {
        let value = SampleSummary::of(samples.values)?;
        let per_message = samples.counts.map(|counts| counts.per(samples.messages));
        Some(Contender {
            name,
            ratio: value.ratio(&base)?,
            value,
            p99: SampleSummary::of(samples.p99),
            per_message: (samples.messages > 0).then_some(per_message),
        })
    };
    let contenders = plan.contenders.iter().zip(samples).filter_map(contender).collect();
    Some(RdmaRow { key: plan.key, title: plan.title, unit: plan.unit, bytes: plan.bytes, contenders })
}

impl EndCounts {
    fn add(&mut self, before: Self, after: Self) {
        self.doorbells += after.doorbells - before.doorbells;
        self.completions += after.completions - before.completions;
        self.wakeups += after.wakeups - before.wakeups;
    }

    fn per(&self, messages: u64) -> PerMessage {
        let part = |count: u64| count as f64 / messages.max(1) as f64;
        PerMessage {
            doorbells: part(self.doorbells),
            completions: part(self.completions),
            wakeups: part(self.wakeups),
        }
    }
}

/// Serves the requests of the measuring side, until it ends.
fn serve(mut control: BenchChannel, interrupt: &Interrupt) -> Result<(), Error> {
    let mut end: Option<RdmaEnd> = None;
    let mut running = None;
    while let Some(asked) = control.hear()? {
        interrupt.check()?;
        let done = answer(&mut control, (&mut end, &mut running), &asked, interrupt);
        if let Err(error) = done {
            control.say(&Err::<(), _>(error.to_string()))?;
            return Err(error);
        }
    }
    Ok(())
}

fn answer(
    control: &mut BenchChannel,
    (end, running): (&mut Option<RdmaEnd>, &mut Option<ChildProgram>),
    asked: &RdmaAsk,
    interrupt: &Interrupt,
) -> Result<(), Error> {
    let linked = |end: &Option<RdmaEnd>| match end {
        Some(end) => end.port(),
        None => Err(failed(&"it has asked for no link yet")),
    };
    match asked {
        RdmaAsk::Link { ring_bytes } => {
            let made = RdmaEnd::accept(control, *ring_bytes)?;
            let (port, counts): (Port, _) = (made.port()?, made.link.endpoint_counts());
            *end = Some(made);
            control.say(&Ok::<_, String>((port.ip(), counts.registered_bytes)))
        }
        RdmaAsk::Do(task) => {
            let end = end.as_mut().ok_or_else(|| failed(&"it has asked for no link yet"))?;
            control.say(&Ok::<_, String>(()))?;
            let (before, mut counts) = (end.counts(), EndCounts::default());
            end.answer(task)?;
            counts.add(before, end.counts());
            control.say(&Ok::<_, String>(counts))
        }
        RdmaAsk::Serve(run) => {
            let (started, tcp_port) = run.serve(&linked(end)?, interrupt)?;
            *running = Some(started);
            control.say(&Ok::<_, String>(((), tcp_port)))
        }
        RdmaAsk::Served => {
            if let Some(mut running) = running.take() {
                running.end(Instant::now() + SAMPLE_LIMIT, interrupt)?;
            }
            control.say(&Ok::<_, String>(()))
        }
    }
}

fn failed(why: &dyn std::fmt::Display) -> Error {
    Error::Rdma(why.to_string())
}

/// The fewest messages of a stream: the programs for bandwidth need a few under way.
const STREAM_MESSAGES_MIN: u64 = 16;
/// Messages that a batching sender publishes at once.
const BATCH: u64 = 32;

/// A figure to measure, with its contenders in turn.
pub struct RdmaPlan {
    pub key: &'static str,
    pub title: String,
    pub unit: &'static str,
    pub bytes: usize,
    pub contenders: Vec<(&'static str, Doing)>,
}

#[derive(Clone, Copy)]
pub enum Doing {
    Link(LinkTask),
    Tool(ToolRun),
}

/// Returns the plans: latencies beside three programs, streams beside one, and small messages beside none.
pub fn plans(args: &Rdma, fabric: Fabric, missing: &mut Vec<&'static str>) -> Vec<RdmaPlan> {
    let mut tools = [
        PerftestTool::WriteLatency,
        PerftestTool::SendLatency,
        PerftestTool::PingPong,
        PerftestTool::WriteBandwidth,
    ]
    .to_vec();
    tools.retain(|tool| {
        let usable = !args.alone && tool.is_installed() && tool.fits(fabric);
        if !usable && !args.alone {
            missing.push(tool.program());
        }
        usable
    });
    let task = |echo, bytes, messages| LinkTask {
        echo,
        bytes,
        messages,
        batch: 1,
        in_place: false,
        sleeps: args.sleep,
    };
    let with = |list: &[PerftestTool], bytes: usize, messages: u64, links: Vec<(&'static str, Doing)>| {
        let run = |&tool: &PerftestTool| (tool.program(), Doing::Tool(ToolRun { tool, bytes, messages }));
        let usable = list.iter().filter(|tool| tools.contains(tool));
        // The reference comes first: ratios are to it.
        usable.map(run).chain(links).collect::<Vec<_>>()
    };
    let latency = |&bytes: &usize| {
        let link = vec![("link", Doing::Link(task(true, bytes, args.round_trips)))];
        let list = [PerftestTool::WriteLatency, PerftestTool::SendLatency, PerftestTool::PingPong];
        let contenders = with(&list, bytes, args.round_trips, link);
        RdmaPlan { key: "latency", title: format!("{bytes} B one way"), unit: "us", bytes, contenders }
    };
    let stream = |&bytes: &usize| {
        let messages = (args.stream_bytes / bytes as u64).max(STREAM_MESSAGES_MIN);
        let copied = task(false, bytes, messages);
        let links = vec![
            ("link", Doing::Link(copied)),
            ("link, filled in place", Doing::Link(LinkTask { in_place: true, ..copied })),
        ];
        let contenders = with(&[PerftestTool::WriteBandwidth], bytes, messages, links);
        RdmaPlan { key: "bandwidth", title: format!("{bytes} B at once"), unit: "MiB/s", bytes, contenders }
    };
    let small = || {
        let copied = task(false, 64, args.round_trips * 4);
        let contenders = vec![
            ("each published", Doing::Link(copied)),
            ("32 published at once", Doing::Link(LinkTask { batch: BATCH, ..copied })),
        ];
        RdmaPlan { key: "small", title: "stream of 64 B".into(), unit: "MiB/s", bytes: 64, contenders }
    };
    let latencies = args.latency_bytes.iter().map(latency);
    latencies.chain(args.sizes.iter().map(stream)).chain([small()]).collect()
}

/// The version of the format, which changes when a reader of the file has to.
const SCHEMA: &str = "caravan-bench-rdma/1";

#[derive(Clone, Debug, Serialize)]
pub struct RdmaResults {
    pub schema: &'static str,
    pub caravan: &'static str,
    pub machine: Machine,
    /// The device, port and addresses.
    pub link: String,
    /// The bytes registered at each side.
    pub registered_bytes: u64,
    pub ring_bytes: u64,
    /// True if a waiting side sleeps.
    pub sleeps: bool,
    /// The programs that are not installed, or that cannot use this port.
    pub missing: Vec<&'static str>,
    pub measured: Vec<RdmaRow>,
}

/// One figure of several contenders, in turn.
#[derive(Clone, Debug, Serialize)]
pub struct RdmaRow {
    pub key: &'static str,
    pub title: String,
    pub unit: &'static str,
    pub bytes: usize,
    pub contenders: Vec<Contender>,
}

#[derive(Clone, Debug, Serialize)]
pub struct Contender {
    pub name: &'static str,
    pub value: SampleSummary,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p99: Option<SampleSummary>,
    /// The ratio to the first contender, for each pair of samples.
    pub ratio: SampleSummary,
    /// For links alone: the counts of this side, and of the other.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub per_message: Option<[PerMessage; 2]>,
}

/// Counts of one end, divided by the number of messages that the measuring side sent.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct PerMessage {
    pub doorbells: f64,
    pub completions: f64,
    pub wakeups: f64,
}

impl RdmaResults {
    pub fn new(link: String, (ring_bytes, registered_bytes): (u64, u64), sleeps: bool) -> Self {
        Self {
            schema: SCHEMA,
            caravan: env!("CARGO_PKG_VERSION"),
            machine: Machine::here(),
            link,
            registered_bytes,
            ring_bytes,
            sleeps,
            missing: Vec::new(),
            measured: Vec::new(),
        }
    }

    pub fn text(&self) -> String {
        let rounds = self.measured.first().and_then(|row| row.contenders.first());
        let rounds = rounds.map_or(0, |contender| contender.value.samples.len());
        let waits = if self.sleeps { "who waits sleeps" } else { "who waits spins" };
        let mut text = format!(
            "A link over {}\n{}\nRings of {} bytes, {} bytes registered at each side; {waits}.\n\
             Medians of {rounds} rounds (least..most), in turn; ratios are of pairs, to the line above them that has none.\n",
            self.link,
            self.machine.without_distance(),
            self.ring_bytes,
            self.registered_bytes,
        );
        if !self.missing.is_empty() {
            let missing = self.missing.join(", ");
            // Writing into a String cannot fail.
            let _ = writeln!(
                text,
                "Not here, or not for this port (packages perftest, ibverbs-utils): {missing}."
            );
        }
        for row in &self.measured {
            let RdmaRow { title, unit, contenders, .. } = row;
            let _ = writeln!(
                text,
                "\n{:<26}{:>30}{:>9}{:>22}   doorbells, completions, wake-ups a message (here + there)",
                format!("{title}, {unit}"),
                "",
                if contenders.iter().any(|contender| contender.p99.is_some()) { "99 %" } else { "" },
                "ratio",
            );
            contenders.iter().for_each(|contender| text.push_str(&contender.line()));
        }
        text
    }
}

impl Contender {
    fn line(&self) -> String {
        let p99 = self.p99.as_ref().map_or_else(String::new, |p99| number(p99.median));
        let is_base = self.ratio.min == 1.0 && self.ratio.max == 1.0;
        let ratio = if is_base { String::new() } else { self.ratio.spread() };
        let counts = self.per_message.map_or_else(String::new, |[here, there]| {
            let both = |one: f64, other: f64| format!("{one:.3} + {other:.3}");
            format!(
                "   {}, {}, {}",
                both(here.doorbells, there.doorbells),
                both(here.completions, there.completions),
                both(here.wakeups, there.wakeups)
            )
        });
        let line = format!("  {:<24}{:>30}{p99:>9}{ratio:>22}{counts}", self.name, self.value.spread());
        format!("{}\n", line.trim_end())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_and_counts_are_printed() {
        let summary = |samples: &[f64]| SampleSummary::of(samples.to_vec()).expect("samples");
        let base = summary(&[10.0, 20.0, 40.0]);
        let ours = summary(&[12.0, 22.0, 40.0]);
        let here = PerMessage { doorbells: 1.0, completions: 0.25, wakeups: 0.0 };
        let there = PerMessage { doorbells: 0.03125, completions: 1.0, wakeups: 0.5 };
        let contenders = vec![
            Contender {
                name: "ib_write_lat",
                ratio: base.ratio(&base).expect("pairs"),
                value: base.clone(),
                p99: None,
                per_message: None,
            },
            Contender {
                name: "link",
                ratio: ours.ratio(&base).expect("pairs"),
                value: ours,
                p99: Some(summary(&[70.0])),
                per_message: Some([here, there]),
            },
        ];
        let mut results = RdmaResults::new("rxe0 port 1".into(), (4096, 8192), false);
        results.measured.push(RdmaRow {
            key: "latency",
            title: "8 B one way".into(),
            unit: "us",
            bytes: 8,
            contenders,
        });
        results.missing.push("ib_send_lat");
        let text = results.text();
        let line =
            |name: &str| text.lines().find(|line| line.trim_start().starts_with(name)).expect("the line");
        assert_eq!(
            line("ib_write_lat").split_whitespace().collect::<Vec<_>>(),
            ["ib_write_lat", "20.0", "(10.0..40.0)"]
        );
        let ours =
            "link 22.0 (12.0..40.0) 70.0 1.10 (1.00..1.20) 1.000 + 0.031, 0.250 + 1.000, 0.000 + 0.500";
        assert_eq!(line("link").split_whitespace().collect::<Vec<_>>().join(" "), ours);
        assert!(text.contains("ibverbs-utils): ib_send_lat."), "{text}");
        let json = serde_json::to_value(&results).expect("JSON");
        assert_eq!(json["measured"][0]["contenders"][1]["per_message"][1]["wakeups"], 0.5);
    }
}
