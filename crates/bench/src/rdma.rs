//! `caravan bench rdma`: a link over an RDMA device, and perftest's programs on the same device, in turn.

mod ends;
mod plan;
mod report;
mod tool;

use std::net::IpAddr;
use std::time::Instant;

use caravan_fabric::verbs::Port;
use caravan_fabric::verbs::device::Fabric;
use serde::{Deserialize, Serialize};

use self::ends::{Counts, End, Task};
use self::plan::{Doing, Plan, plans};
use self::report::{Contender, PerMessage, Results, Row};
use self::tool::Run;
use crate::args::Rdma;
use crate::control::Control;
use crate::error::Error;
use crate::interrupt::Interrupt;
use crate::output;
use crate::progress::Progress;
use crate::stats::Summary;

const MIB: f64 = 1048576.0;

/// What the measuring side asks of the other.
#[derive(Debug, Serialize, Deserialize)]
enum Ask {
    Link {
        ring_bytes: u64,
    },
    Do(Task),
    Serve(Run),
    /// The client's side of it has ended.
    Served,
}

/// One contender's samples.
#[derive(Default)]
struct Samples {
    values: Vec<f64>,
    p99: Vec<f64>,
    counts: [Counts; 2],
    messages: u64,
}

/// Measures, prints the table, and writes the JSON if it is wanted; or is the other side.
pub fn run(args: &Rdma) -> Result<(), Error> {
    let interrupt = Interrupt::watch()?;
    if let Some(port) = args.serve {
        eprintln!("caravan: waiting on port {port} for one `caravan bench rdma --to THIS_HOST:{port}`");
        return serve(Control::serve(port, &interrupt)?, &interrupt);
    }
    // Without a device, the reason is told before anything else happens.
    caravan_fabric::verbs::offer()?;
    let mut control = match &args.to {
        Some(address) => Control::to(address, &interrupt)?,
        None => Control::start("rdma-peer")?,
    };
    control.say(&Ask::Link { ring_bytes: args.ring_bytes })?;
    let mut end = End::connect(&mut control, args.ring_bytes)?;
    let their: (IpAddr, u64) = control.answer()?;
    let port = end.port()?;
    let host = if port.fabric == Fabric::Iwarp { their.0 } else { control.host };
    let registered = end.link.endpoint_counts().registered_bytes;
    let mut results = Results::new(end.link.description(), (args.ring_bytes, registered), args.sleep);
    let plans = plans(args, port.fabric, &mut results.missing);
    let mut progress =
        Progress::new(plans.iter().map(|plan| plan.contenders.len()).sum::<usize>() * args.rounds);
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
                        let (_, tcp_port): ((), u16) = ask(&mut control, &Ask::Serve(*run))?;
                        let printed = run.call(&port, (host, tcp_port), &interrupt)?;
                        ask::<()>(&mut control, &Ask::Served)?;
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

/// The other process on this machine.
pub fn peer() -> Result<(), Error> {
    let interrupt = Interrupt::watch()?;
    serve(Control::inherited()?, &interrupt)
}

fn ask<T: serde::de::DeserializeOwned>(control: &mut Control, what: &Ask) -> Result<T, Error> {
    control.say(what)?;
    control.answer()
}

/// One sample of a link.
fn sample(
    control: &mut Control,
    end: &mut End,
    task: &Task,
    clock_ns: f64,
    samples: &mut Samples,
) -> Result<(), Error> {
    control.say(&Ask::Do(*task))?;
    control.answer::<()>()?;
    let before = end.counts();
    let mut took = end.measure(task)?;
    samples.counts[0].add(before, end.counts());
    let there: Counts = control.answer()?;
    samples.counts[1].add(Counts::default(), there);
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

/// What a look at the clock takes, which is a system call on some virtual machines: the least of several
/// tries, as other work only adds to it.
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

fn row(plan: Plan, samples: Vec<Samples>) -> Option<Row> {
    let base = Summary::of(samples.first()?.values.clone())?;
    let contender = |(&(name, _), samples): (&(&'static str, Doing), Samples)| {
        let value = Summary::of(samples.values)?;
        let per_message = samples.counts.map(|counts| counts.per(samples.messages));
        Some(Contender {
            name,
            ratio: value.ratio(&base)?,
            value,
            p99: Summary::of(samples.p99),
            per_message: (samples.messages > 0).then_some(per_message),
        })
    };
    let contenders = plan.contenders.iter().zip(samples).filter_map(contender).collect();
    Some(Row { key: plan.key, title: plan.title, unit: plan.unit, bytes: plan.bytes, contenders })
}

impl Counts {
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

/// Does what the measuring side asks, until it ends.
fn serve(mut control: Control, interrupt: &Interrupt) -> Result<(), Error> {
    let mut end: Option<End> = None;
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
    control: &mut Control,
    (end, running): (&mut Option<End>, &mut Option<tool::Running>),
    asked: &Ask,
    interrupt: &Interrupt,
) -> Result<(), Error> {
    let linked = |end: &Option<End>| match end {
        Some(end) => end.port(),
        None => Err(failed(&"it has asked for no link yet")),
    };
    match asked {
        Ask::Link { ring_bytes } => {
            let made = End::accept(control, *ring_bytes)?;
            let (port, counts): (Port, _) = (made.port()?, made.link.endpoint_counts());
            *end = Some(made);
            control.say(&Ok::<_, String>((port.ip(), counts.registered_bytes)))
        }
        Ask::Do(task) => {
            let end = end.as_mut().ok_or_else(|| failed(&"it has asked for no link yet"))?;
            control.say(&Ok::<_, String>(()))?;
            let (before, mut counts) = (end.counts(), Counts::default());
            end.answer(task)?;
            counts.add(before, end.counts());
            control.say(&Ok::<_, String>(counts))
        }
        Ask::Serve(run) => {
            let (started, tcp_port) = run.serve(&linked(end)?)?;
            *running = Some(started);
            control.say(&Ok::<_, String>(((), tcp_port)))
        }
        Ask::Served => {
            if let Some(mut running) = running.take() {
                running.end(interrupt)?;
            }
            control.say(&Ok::<_, String>(()))
        }
    }
}

fn failed(why: &dyn std::fmt::Display) -> Error {
    Error::Rdma(why.to_string())
}
