//! `caravan bench erlang`: measures Erlang nodes that call each other, over TCP and over Caravan.

mod carried;
mod cluster;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use serde::Serialize;
use serde_json::{Value, json};

use crate::args::{Erlang, ErlangTransport, Pin};
use crate::chart::{CARAVAN, PEER, VARIANT};
use crate::erlang::carried::{Carried, ErlangLinkTotals, SentWork, carrier};
use crate::erlang::cluster::{Cluster, ErlangModules, NodeCommand, NodeReply, Recipe, plain};
use crate::error::Error;
use crate::interrupt::Interrupt;
use crate::output::BenchProgress;
use crate::placement::{self, CorePair};
use crate::report::{self, Case, Contender, Figure, Report, Sample, Shown};

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
    let plan = ErlangPlan::of(args);
    for (i, &transport) in plan.transports.iter().enumerate() {
        if plan.transports[..i].contains(&transport) {
            return Err(Error::Sentence(format!(
                "`--transports` names {transport} twice: each transport is measured once in every round"
            )));
        }
    }
    let modules =
        ErlangModules::find(plan.transports.iter().any(|&transport| transport != ErlangTransport::Tcp))?;
    let interrupt = Interrupt::watch()?;
    let title = format!(
        "Erlang distribution: {} nodes, {} processes for each ordered pair, +S {}",
        args.nodes, args.processes, args.schedulers
    );
    let mut report = Report::begin("erlang", args.rounds, title, Value::Null);
    let begin = Instant::now();
    let mut cases = plan.cases();
    let measured = measure_all(args, &plan, &modules, &interrupt, &mut cases)?;
    report.add(&cases);
    report.title.push_str(&format!(", OTP {}", measured.otp));
    report.facts = json!({
        "otp": measured.otp, "nodes": args.nodes, "processes_per_ordered_pair": args.processes,
        "seconds": args.seconds.as_secs_f64(), "schedulers": args.schedulers,
        "pin": format!("{:?}", args.pin).to_lowercase(), "erl_flags": args.erl_flags,
        "streams": plan.streams, "behind": plan.behind, "took_seconds": begin.elapsed().as_secs_f64(),
        "carried": measured.carried,
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
    plan: &ErlangPlan,
    modules: &ErlangModules,
    interrupt: &Interrupt,
    cases: &mut [Case],
) -> Result<AllRounds, Error> {
    let count = plan.transports.len();
    let mut progress = BenchProgress::new(args.rounds * count * (cases.len() + 1));
    let mut all = AllRounds::default();
    for number in 0..args.rounds {
        let mut samples = vec![BTreeMap::new(); count];
        for place in report::order(count, number) {
            let transport = plan.transports[place];
            progress.round(format!("round {} of {}, {}", number + 1, args.rounds, transport.name()));
            let recipe = Recipe {
                erl: args.erl.clone(),
                modules: modules.clone(),
                transport,
                schedulers: args.schedulers.get(),
                flags: args.erl_flags.clone(),
            };
            let round = measure(plan, &recipe, interrupt, &progress)?;
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

/// The plan of a measurement.
#[derive(Clone, Debug)]
pub struct ErlangPlan {
    pub nodes: usize,
    pub processes: usize,
    pub transports: Vec<ErlangTransport>,
    pub seconds: Duration,
    pub warm_up: Duration,
    /// The sizes of the cluster in which RPCs are counted, the largest first.
    pub sizes: Vec<usize>,
    pub cores: Vec<usize>,
    /// A core for each side of a pair, if there are two.
    pub apart: Option<CorePair>,
    pub pin: Pin,
    pub streams: Vec<BinaryStream>,
    pub behind: BinaryStream,
}

/// A stream of binaries in one direction.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct BinaryStream {
    pub binary_bytes: u64,
    /// The number of binaries that may be unacknowledged.
    pub in_flight: u32,
    #[serde(skip)]
    part: f64,
}

impl ErlangPlan {
    pub fn of(args: &Erlang) -> Self {
        let cores = placement::cores();
        let stream = |binary_bytes, in_flight, part| BinaryStream { binary_bytes, in_flight, part };
        Self {
            nodes: args.nodes,
            processes: args.processes,
            transports: args.transports.clone(),
            seconds: args.seconds,
            warm_up: args.seconds.mul_f64(WARM_UP),
            sizes: if args.nodes > 2 { vec![args.nodes, 2] } else { vec![2] },
            apart: placement::pair(&cores),
            cores,
            pin: args.pin,
            streams: vec![stream(1_000_000, 8, STREAM_1MB_PART), stream(64_000_000, 2, STREAM_64MB_PART)],
            behind: stream(16_000_000, 2, BEHIND_PART),
        }
    }

    /// Returns the time of a ping step.
    pub fn ping_time(&self) -> Duration {
        self.seconds.mul_f64(PING_PART)
    }

    pub fn stream_time(&self, stream: &BinaryStream) -> Duration {
        self.seconds.mul_f64(stream.part)
    }

    /// Returns the cases, whose contenders are the transports.
    fn cases(&self) -> Vec<Case> {
        let contender = |(place, transport): (usize, &ErlangTransport)| {
            let (name, carrier) = (transport.name(), carrier(*transport));
            let title = if carrier == name { name.to_owned() } else { format!("{name} ({carrier})") };
            Contender::new(name, title, [PEER, CARAVAN, VARIANT][place % 3])
        };
        let contenders: Vec<_> = self.transports.iter().enumerate().map(contender).collect();
        let case = |key: String, title: String, figures| Case::new(key, title, figures, contenders.clone());
        let rpcs =
            self.sizes.iter().map(|size| case(format!("rpc{size}"), format!("RPCs, {size} nodes"), &RPC[..]));
        let pings = self.pings().map(|ping| case(ping.key.into(), ping.title.into(), &PING[..]));
        let streams = self.streams.iter();
        let streams =
            streams.map(|stream| case(stream.key(), format!("{} binaries", stream.size()), &STREAM[..]));
        let behind = case("behind".into(), format!("RTT behind {} stream", self.behind.size()), &BEHIND[..]);
        rpcs.chain(pings).chain(streams).chain([behind]).collect()
    }

    /// Returns the kinds of lone round trips, as far as there are cores for them.
    fn pings(&self) -> impl Iterator<Item = PingKind> {
        let apart = self.apart.map(|pair| PingKind {
            key: "rtt_apart",
            title: "RTT, a core each",
            cores: [pair.first, pair.second],
        });
        let shared = PingKind { key: "rtt_shared", title: "RTT, sharing a core", cores: [self.cores[0]; 2] };
        apart.into_iter().chain([shared])
    }
}

/// A lone round trip between two nodes on these cores.
struct PingKind {
    key: &'static str,
    title: &'static str,
    cores: [usize; 2],
}

impl BinaryStream {
    pub fn key(&self) -> String {
        format!("stream_{}mb", self.binary_bytes / 1_000_000)
    }

    pub fn size(&self) -> String {
        format!("{} MB", self.binary_bytes / 1_000_000)
    }
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
    plan: &ErlangPlan,
    recipe: &Recipe,
    interrupt: &Interrupt,
    progress: &BenchProgress,
) -> Result<Round, Error> {
    progress.step("nodes start");
    let cluster = Cluster::start(recipe, plan.nodes, interrupt)?;
    let mut round =
        Measurement { plan, progress, cluster, samples: BTreeMap::new(), work: SentWork::default() };
    let before = round.links()?;
    for &size in &plan.sizes {
        round.rpc(size)?;
    }
    for ping in plan.pings() {
        round.ping(&ping)?;
    }
    let cores = plan.apart.map_or([plan.cores[0]; 2], |pair| [pair.first, pair.second]);
    round.place(&cores)?;
    for stream in &plan.streams {
        round.stream(stream)?;
    }
    round.behind(&plan.behind)?;
    let after = round.links()?;
    let carried = Carried::between(&before, &after, round.work, recipe.transport)?;
    Ok(Round { samples: round.samples, carried, otp: round.cluster.otp.clone() })
}

struct Measurement<'a> {
    plan: &'a ErlangPlan,
    progress: &'a BenchProgress,
    cluster: Cluster,
    samples: BTreeMap<String, Vec<Sample>>,
    work: SentWork,
}

impl Measurement<'_> {
    /// Puts node n on the n-th of these cores, in turn.
    fn place(&self, cores: &[usize]) -> Result<(), Error> {
        (0..self.plan.nodes)
            .try_for_each(|node| placement::pin(self.cluster.pid(node), &[cores[node % cores.len()]]))
    }

    /// Has each of the first `size` nodes call every other one of them.
    fn rpc(&mut self, size: usize) -> Result<(), Error> {
        self.progress.step(&format!("RPCs, {size} nodes"));
        if self.plan.pin == Pin::Spread {
            self.place(&self.plan.cores)?;
        }
        let (warm_up, window) = (self.plan.warm_up, self.plan.seconds);
        let command = |node: usize| NodeCommand {
            node,
            line: format!(
                "rpc {} {} {} {}",
                self.plan.processes,
                warm_up.as_millis(),
                window.as_millis(),
                self.cluster.others(node, size)
            ),
            watch: vec![node],
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
        let samples = vec![
            Sample::new("per_s", per_s),
            Sample::new("cpu_us", (user + system) / per_s * 1e6),
            Sample::new("user_us", user / per_s * 1e6),
            Sample::new("system_us", system / per_s * 1e6),
        ];
        self.samples.insert(format!("rpc{size}"), samples);
        Ok(())
    }

    /// Runs a lone ping-pong between the first two nodes.
    fn ping(&mut self, ping: &PingKind) -> Result<(), Error> {
        self.progress.step(ping.title);
        self.place(&ping.cores)?;
        let time = self.plan.ping_time();
        let reply = self.ask_first(format!("ping {} {}", self.cluster.name(1), time.as_millis()), time)?;
        let mut samples = round_trips(&reply)?;
        samples.push(Sample::new("cores", reply.cores.user + reply.cores.system));
        self.samples.insert(ping.key.to_owned(), samples);
        self.work.pings += reply.number("pings")? as u64;
        Ok(())
    }

    fn stream(&mut self, stream: &BinaryStream) -> Result<(), Error> {
        self.progress.step(&format!("{} binaries", stream.size()));
        let time = self.plan.stream_time(stream);
        let reply = self.ask_first(self.stream_line("stream", stream, time), time)?;
        let rate = Sample::new("gb_per_s", reply.number("bytes")? / reply.number("wall_ns")?);
        self.samples.insert(stream.key(), vec![rate]);
        self.work.streamed_bytes += reply.number("bytes_total")? as u64;
        Ok(())
    }

    fn behind(&mut self, stream: &BinaryStream) -> Result<(), Error> {
        self.progress.step(&format!("round trips behind a {} stream", stream.size()));
        let time = self.plan.stream_time(stream);
        let reply = self.ask_first(self.stream_line("ping_behind", stream, time), time)?;
        self.samples.insert("behind".to_owned(), round_trips(&reply)?);
        self.work.pings += reply.number("pings")? as u64;
        self.work.streamed_bytes += reply.number("bytes_total")? as u64;
        Ok(())
    }

    fn stream_line(&self, command: &str, stream: &BinaryStream, time: Duration) -> String {
        let BinaryStream { binary_bytes, in_flight, .. } = stream;
        let peer = self.cluster.name(1);
        format!("{command} {peer} {binary_bytes} {in_flight} {}", time.as_millis())
    }

    /// Sends a command to the first node, whose peer is the second.
    fn ask_first(&mut self, line: String, time: Duration) -> Result<NodeReply, Error> {
        let command = NodeCommand { node: 0, line, watch: vec![0, 1] };
        Ok(self.cluster.ask(&[command], time)?.remove(0))
    }

    /// Reads the counters of all links, from each of their ends.
    fn links(&mut self) -> Result<ErlangLinkTotals, Error> {
        let count = self.plan.nodes;
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

fn round_trips(reply: &NodeReply) -> Result<Vec<Sample>, Error> {
    let us = |key| Ok::<_, Error>(reply.number(key)? / 1e3);
    Ok(vec![Sample::new("p50_us", us("p50_ns")?), Sample::new("p99_us", us("p99_ns")?)])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::BenchCommand;
    use crate::args::tests::parse;

    fn plan(line: &str) -> ErlangPlan {
        let BenchCommand::Erlang(args) = parse(&format!("erlang {line}")) else { panic!("not erlang") };
        ErlangPlan::of(&args)
    }

    #[test]
    fn two_nodes_are_measured_beside_more() {
        assert_eq!(plan("").sizes, [4, 2]);
        assert_eq!(plan("--nodes 2").sizes, [2]);
    }

    #[test]
    fn keys_of_cases_are_unique() {
        let cases = plan("").cases();
        let keys: std::collections::BTreeSet<_> = cases.iter().map(|case| &case.key).collect();
        assert_eq!((keys.len(), cases[0].contenders[1].title.as_str()), (cases.len(), "caravan (shm)"));
    }

    #[test]
    fn the_demo_fits_into_three_minutes() {
        let BenchCommand::Erlang(args) = parse("erlang") else { panic!("not erlang") };
        let plan = ErlangPlan::of(&args);
        let rpcs = (plan.warm_up + plan.seconds).mul_f64(plan.sizes.len() as f64);
        let pings = plan.ping_time() * 2;
        let streams: Duration = plan.streams.iter().map(|stream| plan.stream_time(stream)).sum();
        let behind = plan.stream_time(&plan.behind);
        // A generous allowance for the rest: nodes start and end, streams warm up, other work takes cores.
        let round = rpcs + pings + streams + behind + Duration::from_millis(1500);
        let whole = round * (args.rounds * plan.transports.len()) as u32;
        assert!(args.rounds >= 9 && whole < Duration::from_secs(150), "{whole:?}");
    }
}
