//! `caravan bench erlang`: measures Erlang nodes that call each other, over TCP and over Caravan.

mod cluster;
mod results;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::args::{Erlang, ErlangTransport, Pin};
use crate::erlang::cluster::{Cluster, ErlangModules, NodeCommand, NodeReply, Recipe, plain};
use crate::erlang::results::{Carried, ErlangLinkTotals, ErlangResults, SentWork};
use crate::error::Error;
use crate::interrupt::Interrupt;
use crate::machine::Machine;
use crate::output::BenchProgress;
use crate::{output, placement};

/// Measures all rounds, then prints the table and writes the files.
pub fn run(args: &Erlang) -> Result<(), Error> {
    let plan = ErlangPlan::of(args);
    for (i, &transport) in plan.transports.iter().enumerate() {
        if plan.transports[..i].contains(&transport) {
            return Err(Error::TransportTwice(transport));
        }
    }
    let modules =
        ErlangModules::find(plan.transports.iter().any(|&transport| transport != ErlangTransport::Tcp))?;
    let interrupt = Interrupt::watch()?;
    let machine = Machine::here();
    let begin = Instant::now();
    let rounds = measure_all(args, &plan, &modules, &interrupt)?;
    let results = ErlangResults::of(args, &plan, machine, &rounds, begin.elapsed());
    let chart = results.chart();
    output::all(&results.text(), &results, &chart, &args.json, &args.svg, Path::new(""))
}

fn measure_all(
    args: &Erlang,
    plan: &ErlangPlan,
    modules: &ErlangModules,
    interrupt: &Interrupt,
) -> Result<Vec<(ErlangTransport, Round)>, Error> {
    let turns = plan.rounds * plan.transports.len();
    let mut progress = BenchProgress::new(turns * plan.step_count());
    let mut rounds = Vec::with_capacity(turns);
    for number in 0..plan.rounds {
        for transport in plan.order(number) {
            progress.round(format!("round {} of {}, {}", number + 1, plan.rounds, transport.name()));
            let recipe = Recipe {
                erl: args.erl.clone(),
                modules: modules.clone(),
                transport,
                schedulers: args.schedulers.get(),
                flags: args.erl_flags.clone(),
            };
            rounds.push((transport, measure(plan, &recipe, interrupt, &progress)?));
        }
    }
    Ok(rounds)
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
    pub rounds: usize,
    pub transports: Vec<ErlangTransport>,
    pub seconds: Duration,
    pub warm_up: Duration,
    /// The sizes of the cluster in which RPCs are counted, the largest first.
    pub sizes: Vec<usize>,
    pub cores: Vec<usize>,
    /// A core for each side of a pair, if there are two.
    pub apart: Option<(usize, usize)>,
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

/// The direction in which a figure gets better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Better {
    Higher,
    Lower,
}

/// A row of the table.
#[derive(Clone, Debug, Serialize)]
pub struct ErlangFigure {
    #[serde(skip)]
    pub key: String,
    pub title: String,
    pub unit: &'static str,
    pub better: Better,
}

impl ErlangPlan {
    pub fn of(args: &Erlang) -> Self {
        let cores = placement::cores();
        let stream = |binary_bytes, in_flight, part| BinaryStream { binary_bytes, in_flight, part };
        Self {
            nodes: args.nodes,
            processes: args.processes,
            rounds: args.rounds,
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

    /// Returns the number of steps of one transport in one round, for the progress bar; the start is one.
    pub fn step_count(&self) -> usize {
        1 + self.sizes.len() + usize::from(self.apart.is_some()) + 1 + self.streams.len() + 1
    }

    /// Returns the transports in the order of this round: each comes first as often as last, so a machine that grows
    /// slower favours none.
    pub fn order(&self, round: usize) -> Vec<ErlangTransport> {
        let mut order = self.transports.clone();
        if round % 2 == 1 {
            order.reverse();
        }
        order
    }

    /// Returns the rows of the table.
    pub fn figures(&self) -> Vec<ErlangFigure> {
        use Better::{Higher, Lower};
        let mut rows = Vec::new();
        let mut row = |key: String, title: String, unit, better| {
            rows.push(ErlangFigure { key, title, unit, better });
        };
        for size in &self.sizes {
            row(format!("rpc{size}_per_s"), format!("RPCs, {size} nodes"), "1/s", Higher);
            row(format!("rpc{size}_cpu_us"), format!("CPU per RPC, {size} nodes"), "us", Lower);
            row(format!("rpc{size}_user_us"), "  of it user".into(), "us", Lower);
            row(format!("rpc{size}_system_us"), "  of it system".into(), "us", Lower);
        }
        for (key, title) in self.pings() {
            row(format!("{key}_p50_us"), format!("{title} p50"), "us", Lower);
            row(format!("{key}_p99_us"), "  p99".into(), "us", Lower);
            row(format!("{key}_cores"), "  cores busy".into(), "", Lower);
        }
        for stream in &self.streams {
            let title = format!("{} binaries", stream.size());
            row(stream.key(), title, "GB/s", Higher);
        }
        let title = format!("RTT behind {} stream p50", self.behind.size());
        row("behind_p50_us".into(), title, "us", Lower);
        row("behind_p99_us".into(), "  p99".into(), "us", Lower);
        rows
    }

    /// Returns key and title of each kind of lone round trip.
    pub fn pings(&self) -> Vec<(&'static str, &'static str)> {
        let apart = self.apart.map(|_| ("rtt_apart", "RTT, a core each,"));
        apart.into_iter().chain([("rtt_shared", "RTT, sharing a core,")]).collect()
    }
}

impl BinaryStream {
    pub fn key(&self) -> String {
        format!("stream_{}mb_gb_per_s", self.binary_bytes / 1_000_000)
    }

    pub fn size(&self) -> String {
        format!("{} MB", self.binary_bytes / 1_000_000)
    }
}

/// The results of one round.
#[derive(Clone, Debug)]
pub struct Round {
    /// Figures by their key.
    pub figures: BTreeMap<String, f64>,
    pub carried: Carried,
    pub otp: String,
}

/// Measures one transport once.
pub fn measure(
    plan: &ErlangPlan,
    recipe: &Recipe,
    interrupt: &Interrupt,
    progress: &BenchProgress,
) -> Result<Round, Error> {
    progress.step("nodes start");
    let cluster = Cluster::start(recipe, plan.nodes, interrupt)?;
    let mut round =
        Measurement { plan, progress, cluster, figures: BTreeMap::new(), work: SentWork::default() };
    let before = round.links()?;
    for &size in &plan.sizes {
        round.rpc(size)?;
    }
    if let Some((a, b)) = plan.apart {
        round.place(&[a, b])?;
        round.ping("rtt_apart", "round trips, a core each")?;
    }
    round.place(&[plan.cores[0], plan.cores[0]])?;
    round.ping("rtt_shared", "round trips, sharing a core")?;
    let (a, b) = plan.apart.unwrap_or((plan.cores[0], plan.cores[0]));
    round.place(&[a, b])?;
    for stream in &plan.streams {
        round.stream(stream)?;
    }
    round.behind(&plan.behind)?;
    let after = round.links()?;
    let carried = Carried::between(&before, &after, round.work, recipe.transport)?;
    Ok(Round { figures: round.figures, carried, otp: round.cluster.otp.clone() })
}

struct Measurement<'a> {
    plan: &'a ErlangPlan,
    progress: &'a BenchProgress,
    cluster: Cluster,
    figures: BTreeMap<String, f64>,
    work: SentWork,
}

impl Measurement<'_> {
    fn figure(&mut self, key: String, value: f64) {
        self.figures.insert(key, value);
    }

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
        self.figure(format!("rpc{size}_per_s"), per_s);
        self.figure(format!("rpc{size}_cpu_us"), (user + system) / per_s * 1e6);
        self.figure(format!("rpc{size}_user_us"), user / per_s * 1e6);
        self.figure(format!("rpc{size}_system_us"), system / per_s * 1e6);
        Ok(())
    }

    /// Runs a lone ping-pong between the first two nodes, which the caller has placed.
    fn ping(&mut self, key: &str, title: &str) -> Result<(), Error> {
        self.progress.step(title);
        let time = self.plan.ping_time();
        let line = format!("ping {} {}", self.cluster.name(1), time.as_millis());
        let reply = self.ask_first(line, time)?;
        self.figure(format!("{key}_p50_us"), reply.number("p50_ns")? / 1e3);
        self.figure(format!("{key}_p99_us"), reply.number("p99_ns")? / 1e3);
        self.figure(format!("{key}_cores"), reply.cores.user + reply.cores.system);
        self.work.pings += reply.number("pings")? as u64;
        Ok(())
    }

    fn stream(&mut self, stream: &BinaryStream) -> Result<(), Error> {
        self.progress.step(&format!("{} binaries", stream.size()));
        let time = self.plan.stream_time(stream);
        let reply = self.ask_first(self.stream_line("stream", stream, time), time)?;
        self.figure(stream.key(), reply.number("bytes")? / reply.number("wall_ns")?);
        self.work.streamed_bytes += reply.number("bytes_total")? as u64;
        Ok(())
    }

    fn behind(&mut self, stream: &BinaryStream) -> Result<(), Error> {
        self.progress.step(&format!("round trips behind a {} stream", stream.size()));
        let time = self.plan.stream_time(stream);
        let reply = self.ask_first(self.stream_line("ping_behind", stream, time), time)?;
        self.figure("behind_p50_us".into(), reply.number("p50_ns")? / 1e3);
        self.figure("behind_p99_us".into(), reply.number("p99_ns")? / 1e3);
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
    fn transports_take_turns_at_being_first() {
        let plan = plan("--transports tcp,caravan");
        assert_eq!(plan.order(0), [ErlangTransport::Tcp, ErlangTransport::Caravan]);
        assert_eq!(plan.order(1), [ErlangTransport::Caravan, ErlangTransport::Tcp]);
    }

    #[test]
    fn keys_of_figures_are_unique() {
        let mut keys: Vec<_> = plan("").figures().into_iter().map(|row| row.key).collect();
        let count = keys.len();
        keys.sort();
        keys.dedup();
        assert_eq!(keys.len(), count);
    }

    #[test]
    fn the_demo_fits_into_three_minutes() {
        let plan = plan("");
        let rpcs = (plan.warm_up + plan.seconds).mul_f64(plan.sizes.len() as f64);
        let pings = plan.ping_time() * 2;
        let streams: Duration = plan.streams.iter().map(|stream| plan.stream_time(stream)).sum();
        let behind = plan.stream_time(&plan.behind);
        // A generous allowance for the rest: nodes start and end, streams warm up, other work takes cores.
        let round = rpcs + pings + streams + behind + Duration::from_millis(1500);
        let whole = round * (plan.rounds * plan.transports.len()) as u32;
        assert!(plan.rounds >= 9 && whole < Duration::from_secs(150), "{whole:?}");
    }
}
