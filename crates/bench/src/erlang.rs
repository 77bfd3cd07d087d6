//! `caravan bench erlang`: measures Erlang nodes that call each other, over TCP and over Caravan.

mod carried;
mod cluster;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::args::{Erlang, ErlangTransport, Pin};
use crate::chart::{CARAVAN, PEER, VARIANT};
use crate::erlang::carried::{Carried, ErlangLinkTotals, SentWork, carrier};
use crate::erlang::cluster::{Cluster, ErlangModules, NodeCommand, Recipe, plain};
use crate::error::Error;
use crate::interrupt::Interrupt;
use crate::output::BenchProgress;
use crate::placement;
use crate::report::{self, BenchCase, BenchReport, Contender, Figure, Sample, Shown};

const RPC: [Figure; 4] = [
    Figure::new("per_s", "RPCs/s", Shown::Chart),
    Figure::new("cpu_us", "CPU us per RPC", Shown::Chart),
    Figure::new("user_us", "user", Shown::Median),
    Figure::new("system_us", "system", Shown::Median),
];
const PING: [Figure; 3] = [P50, P99, Figure::new("cores", "cores busy", Shown::Median)];
const STREAM: [Figure; 1] = [Figure::new("gb_per_s", "GB/s", Shown::Chart)];
const BEHIND: [Figure; 2] = [P50, P99];
const P50: Figure = Figure::new("p50_us", "p50 us", Shown::Chart);
const P99: Figure = Figure::new("p99_us", "p99 us", Shown::Spread);

/// Measures all rounds, and reports.
pub fn run(args: &Erlang) -> Result<(), Error> {
    for (i, transport) in args.transports.iter().enumerate() {
        if args.transports[..i].contains(transport) {
            return Err(Error::Sentence(format!(
                "`--transports` names {transport} twice: each transport is measured once in every round"
            )));
        }
    }
    let modules = ErlangModules::find(args.transports.iter().any(|&one| one != ErlangTransport::Tcp))?;
    let interrupt = Interrupt::watch()?;
    let title = format!(
        "Erlang distribution: {} nodes, {} processes for each ordered pair, +S {}",
        args.nodes, args.processes, args.schedulers
    );
    let mut report = BenchReport::begin("erlang", args.rounds, title, Value::Null);
    let begin = Instant::now();
    let steps = steps(args);
    let mut cases = cases(args, &steps);
    let measured = measure_all(args, &steps, &modules, &interrupt, &mut cases)?;
    report.add(&cases);
    report.title.push_str(&format!(", OTP {}", measured.otp));
    report.facts = json!({
        "otp": measured.otp, "nodes": args.nodes, "processes_per_ordered_pair": args.processes,
        "seconds": args.seconds.as_secs_f64(), "schedulers": args.schedulers,
        "pin": format!("{:?}", args.pin).to_lowercase(), "erl_flags": args.erl_flags,
        "took_seconds": begin.elapsed().as_secs_f64(), "carried": measured.carried,
    });
    let carried = "Carried, by the links' own counters (all rounds, both directions):";
    report.notes.push(carried.to_owned());
    report
        .notes
        .extend(measured.carried.iter().map(|(name, carried)| format!("  {name}: {}", carried.text())));
    report.notes.push(format!("Took {:.0} s.", begin.elapsed().as_secs_f64()));
    report.write(&args.files, Path::new(""))
}

/// What all rounds together have found beside their figures.
#[derive(Default)]
struct AllRounds {
    otp: String,
    /// The traffic by transport.
    carried: BTreeMap<&'static str, Carried>,
}

/// Measures every transport in every round, and adds the samples to the cases. The cases of a transport are measured
/// together, because each needs the same nodes.
fn measure_all(
    args: &Erlang,
    steps: &[ErlangStep],
    modules: &ErlangModules,
    interrupt: &Interrupt,
    cases: &mut [BenchCase],
) -> Result<AllRounds, Error> {
    let count = args.transports.len();
    let mut progress = BenchProgress::new(args.rounds * count * (cases.len() + 1));
    let mut all = AllRounds::default();
    for number in 0..args.rounds {
        let mut samples = vec![BTreeMap::new(); count];
        for place in report::order(count, number) {
            let transport = args.transports[place];
            progress.round(format!("round {} of {}, {}", number + 1, args.rounds, transport.name()));
            let recipe = Recipe {
                erl: args.erl.clone(),
                modules: modules.clone(),
                transport,
                schedulers: args.schedulers.get(),
                flags: args.erl_flags.clone(),
            };
            let round = measure(args, steps, &recipe, interrupt, &progress)?;
            samples[place] = round.samples;
            all.otp = round.otp;
            all.carried.entry(transport.name()).or_default().add(&round.carried);
        }
        for case in &mut *cases {
            case.add(samples.iter_mut().map(|own| own.remove(&case.key).unwrap_or_default()).collect());
        }
    }
    Ok(all)
}

/// Seconds before RPCs are counted, so that connections, heaps and the processors' clocks settle.
const WARM_UP: f64 = 0.3;
/// The fractions of `--seconds` that the other steps take. RPCs need the longest: their CPU time is read in ticks of
/// 10 ms.
const PING_PART: f64 = 0.3;
const STREAM_1MB_PART: f64 = 0.4;
const STREAM_64MB_PART: f64 = 0.6;
const BEHIND_PART: f64 = 0.6;

/// A case, as the nodes carry it out.
#[derive(Debug)]
struct ErlangStep {
    key: String,
    title: String,
    figures: &'static [Figure],
    work: NodeWork,
    time: Duration,
    /// The cores of the nodes, in turn; the kernel's choice if there are none.
    cores: Vec<usize>,
}

/// What the nodes do.
#[derive(Clone, Copy, Debug)]
enum NodeWork {
    /// Each of so many nodes calls every other one of them.
    Rpcs { nodes: usize },
    /// A lone ping-pong between the first two nodes.
    Pings,
    /// Binaries from the first node to the second.
    Stream(BinaryStream),
    /// A ping-pong beside them.
    PingsBehind(BinaryStream),
}

/// A stream of binaries in one direction.
#[derive(Clone, Copy, Debug)]
struct BinaryStream {
    megabytes: u64,
    /// The number of binaries that may be unacknowledged.
    in_flight: u32,
}

/// Returns all steps in their order.
fn steps(args: &Erlang) -> Vec<ErlangStep> {
    let all = placement::cores();
    let shared = vec![all[0]; 2];
    let pair = placement::pair(&all).map(|pair| vec![pair.first, pair.second]);
    let each = pair.clone().unwrap_or_else(|| shared.clone());
    let step = |key: String, title: String, figures, work, part, cores: &[usize]| {
        let (time, cores) = (args.seconds.mul_f64(part), cores.to_vec());
        ErlangStep { key, title, figures, work, time, cores }
    };
    let mut steps = Vec::new();
    let spread = if args.pin == Pin::Spread { &all[..] } else { &[] };
    for nodes in [args.nodes, 2].into_iter().take(if args.nodes > 2 { 2 } else { 1 }) {
        let title = format!("RPCs, {nodes} nodes");
        steps.push(step(format!("rpc{nodes}"), title, &RPC[..], NodeWork::Rpcs { nodes }, 1.0, spread));
    }
    if let Some(pair) = &pair {
        let title = "RTT, a core each".to_owned();
        steps.push(step("rtt_apart".to_owned(), title, &PING[..], NodeWork::Pings, PING_PART, pair));
    }
    let title = "RTT, sharing a core".to_owned();
    steps.push(step("rtt_shared".to_owned(), title, &PING[..], NodeWork::Pings, PING_PART, &shared));
    for (megabytes, in_flight, part) in [(1, 8, STREAM_1MB_PART), (64, 2, STREAM_64MB_PART)] {
        let work = NodeWork::Stream(BinaryStream { megabytes, in_flight });
        let (key, title) = (format!("stream_{megabytes}mb"), format!("{megabytes} MB binaries"));
        steps.push(step(key, title, &STREAM[..], work, part, &each));
    }
    let work = NodeWork::PingsBehind(BinaryStream { megabytes: 16, in_flight: 2 });
    let title = "RTT behind 16 MB stream".to_owned();
    steps.push(step("behind".to_owned(), title, &BEHIND[..], work, BEHIND_PART, &each));
    steps
}

/// Returns the cases of the steps, whose contenders are the transports.
fn cases(args: &Erlang, steps: &[ErlangStep]) -> Vec<BenchCase> {
    let contender = |(place, transport): (usize, &ErlangTransport)| {
        let (name, carrier) = (transport.name(), carrier(*transport));
        let title = if carrier == name { name.to_owned() } else { format!("{name} ({carrier})") };
        Contender::new(name, title, [PEER, CARAVAN, VARIANT][place % 3])
    };
    let contenders: Vec<_> = args.transports.iter().enumerate().map(contender).collect();
    let case = |step: &ErlangStep| BenchCase::new(&step.key, &step.title, step.figures, contenders.clone());
    steps.iter().map(case).collect()
}

/// The results of one transport in one round.
struct Round {
    /// The samples by their case.
    samples: BTreeMap<String, Vec<Sample>>,
    carried: Carried,
    otp: String,
}

/// Measures one transport once.
fn measure(
    args: &Erlang,
    steps: &[ErlangStep],
    recipe: &Recipe,
    interrupt: &Interrupt,
    progress: &BenchProgress,
) -> Result<Round, Error> {
    progress.step("nodes start");
    let cluster = Cluster::start(recipe, args.nodes, interrupt)?;
    let mut round = Measurement { args, cluster, work: SentWork::default() };
    let before = round.links()?;
    let mut samples = BTreeMap::new();
    for step in steps {
        progress.step(&step.title);
        round.place(&step.cores)?;
        let taken = match step.work {
            NodeWork::Rpcs { nodes } => round.rpc(nodes)?,
            work => round.lone(work, step.time)?,
        };
        samples.insert(step.key.clone(), taken);
    }
    let after = round.links()?;
    let carried = Carried::between(&before, &after, round.work, recipe.transport)?;
    Ok(Round { samples, carried, otp: round.cluster.otp.clone() })
}

struct Measurement<'a> {
    args: &'a Erlang,
    cluster: Cluster,
    work: SentWork,
}

impl Measurement<'_> {
    /// Puts node n on the n-th of these cores, in turn, if there are any.
    fn place(&self, cores: &[usize]) -> Result<(), Error> {
        let nodes = (0..self.args.nodes).zip(cores.iter().cycle());
        nodes.into_iter().try_for_each(|(node, &core)| placement::pin(self.cluster.pid(node), &[core]))
    }

    /// Has each of the first `size` nodes call every other one of them.
    fn rpc(&mut self, size: usize) -> Result<Vec<Sample>, Error> {
        let (warm_up, window) = (self.args.seconds.mul_f64(WARM_UP), self.args.seconds);
        let command = |node: usize| {
            let (processes, others) = (self.args.processes, self.cluster.others(node, size));
            let line = format!("rpc {processes} {} {} {others}", warm_up.as_millis(), window.as_millis());
            NodeCommand { node, line, watch: vec![node] }
        };
        let commands: Vec<_> = (0..size).map(command).collect();
        let replies = self.cluster.ask(&commands, warm_up + window)?;
        let (mut per_s, mut user, mut system) = (0.0, 0.0, 0.0);
        for reply in &replies {
            per_s += reply.number("rpcs")? / reply.number("wall_ns")? * 1e9;
            user += reply.cores.user;
            system += reply.cores.system;
            self.work.rpcs += reply.number("rpcs_total")? as u64;
        }
        Ok(vec![
            Sample::new("per_s", per_s),
            Sample::new("cpu_us", (user + system) / per_s * 1e6),
            Sample::new("user_us", user / per_s * 1e6),
            Sample::new("system_us", system / per_s * 1e6),
        ])
    }

    /// Has the first two nodes work alone.
    fn lone(&mut self, work: NodeWork, time: Duration) -> Result<Vec<Sample>, Error> {
        let peer = self.cluster.name(1);
        let (command, stream) = match work {
            NodeWork::Stream(stream) => ("stream", Some(stream)),
            NodeWork::PingsBehind(stream) => ("ping_behind", Some(stream)),
            NodeWork::Pings | NodeWork::Rpcs { .. } => ("ping", None),
        };
        let binaries = stream.map_or_else(String::new, |BinaryStream { megabytes, in_flight }| {
            format!(" {} {in_flight}", megabytes * 1_000_000)
        });
        let line = format!("{command} {peer}{binaries} {}", time.as_millis());
        let reply = self.cluster.ask(&[NodeCommand { node: 0, line, watch: vec![0, 1] }], time)?.remove(0);
        if stream.is_some() {
            self.work.streamed_bytes += reply.number("bytes_total")? as u64;
        }
        if let NodeWork::Stream(_) = work {
            return Ok(vec![Sample::new("gb_per_s", reply.number("bytes")? / reply.number("wall_ns")?)]);
        }
        self.work.pings += reply.number("pings")? as u64;
        Ok(vec![
            Sample::new("p50_us", reply.number("p50_ns")? / 1e3),
            Sample::new("p99_us", reply.number("p99_ns")? / 1e3),
            Sample::new("cores", reply.cores.user + reply.cores.system),
        ])
    }

    /// Reads the counters of all links, from each of their ends.
    fn links(&mut self) -> Result<ErlangLinkTotals, Error> {
        let count = self.args.nodes;
        let line = |node| plain(node, format!("links {}", self.cluster.others(node, count)));
        let commands: Vec<_> = (0..count).map(line).collect();
        let replies = self.cluster.ask(&commands, Duration::ZERO)?;
        let links: Result<Vec<_>, Error> = replies
            .iter()
            .map(|reply| ErlangLinkTotals::parse(&reply.answer).ok_or_else(|| reply.unclear("link")))
            .collect();
        Ok(links?.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::BenchCommand;
    use crate::args::tests::parse;

    fn args(line: &str) -> Erlang {
        let BenchCommand::Erlang(args) = parse(&format!("erlang {line}")) else { panic!("not erlang") };
        args
    }

    #[test]
    fn two_nodes_are_measured_beside_more_and_keys_are_unique() {
        let args = args("");
        let cases = cases(&args, &steps(&args));
        let keys: std::collections::BTreeSet<_> = cases.iter().map(|case| case.key.as_str()).collect();
        assert_eq!((keys.len(), cases[0].contenders[1].title.as_str()), (cases.len(), "caravan (shm)"));
        assert!(keys.contains("rpc4") && keys.contains("rpc2"), "{keys:?}");
        let two = steps(&self::args("--nodes 2"));
        assert_eq!(two.iter().filter(|step| step.key.starts_with("rpc")).count(), 1);
    }

    #[test]
    fn the_demo_fits_into_three_minutes() {
        let args = args("");
        let steps = steps(&args);
        let rpcs = steps.iter().filter(|step| matches!(step.work, NodeWork::Rpcs { .. })).count();
        let measured: Duration = steps.iter().map(|step| step.time).sum();
        // A generous allowance for the rest: nodes start and end, streams warm up, other work takes cores.
        let round = measured + args.seconds.mul_f64(WARM_UP * rpcs as f64) + Duration::from_millis(1500);
        let whole = round * (args.rounds * args.transports.len()) as u32;
        assert!(args.rounds >= 9 && whole < Duration::from_secs(150), "{whole:?}");
    }
}
