//! One transport in one round: fresh nodes, every figure, and the proof of what carried it.

use std::collections::BTreeMap;
use std::time::Duration;

use super::carried::{Carried, Links, Work};
use super::cluster::{Cluster, Command, Reply, plain};
use super::node::Recipe;
use super::plan::{Plan, Stream};
use crate::args::Pin;
use crate::error::Error;
use crate::interrupt::Interrupt;
use crate::placement;
use crate::progress::Progress;

/// What a round came to.
#[derive(Clone, Debug)]
pub struct Round {
    /// By the figure's key.
    pub figures: BTreeMap<String, f64>,
    pub carried: Carried,
    pub otp: String,
}

/// Measures one transport once.
pub fn measure(
    plan: &Plan,
    recipe: &Recipe,
    interrupt: &Interrupt,
    progress: &Progress,
) -> Result<Round, Error> {
    progress.step("nodes start");
    let cluster = Cluster::start(recipe, plan.nodes, interrupt)?;
    let mut round = Measurement { plan, progress, cluster, figures: BTreeMap::new(), work: Work::default() };
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
    plan: &'a Plan,
    progress: &'a Progress,
    cluster: Cluster,
    figures: BTreeMap<String, f64>,
    work: Work,
}

impl Measurement<'_> {
    fn figure(&mut self, key: String, value: f64) {
        self.figures.insert(key, value);
    }

    /// Node n runs on the n-th of these cores, in turn.
    fn place(&self, cores: &[usize]) -> Result<(), Error> {
        (0..self.plan.nodes)
            .try_for_each(|node| placement::pin(self.cluster.pid(node), &[cores[node % cores.len()]]))
    }

    /// Each of the first `size` nodes calls each other one of them.
    fn rpc(&mut self, size: usize) -> Result<(), Error> {
        self.progress.step(&format!("RPCs, {size} nodes"));
        if self.plan.pin == Pin::Spread {
            self.place(&self.plan.cores)?;
        }
        let (warm_up, window) = (self.plan.warm_up, self.plan.seconds);
        let command = |node: usize| Command {
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

    /// A lone ping-pong between the first two nodes, placed by the caller.
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

    fn stream(&mut self, stream: &Stream) -> Result<(), Error> {
        self.progress.step(&format!("{} binaries", stream.size()));
        let time = self.plan.stream_time(stream);
        let reply = self.ask_first(self.stream_line("stream", stream, time), time)?;
        self.figure(stream.key(), reply.number("bytes")? / reply.number("wall_ns")?);
        self.work.streamed_bytes += reply.number("bytes_total")? as u64;
        Ok(())
    }

    fn behind(&mut self, stream: &Stream) -> Result<(), Error> {
        self.progress.step(&format!("round trips behind a {} stream", stream.size()));
        let time = self.plan.stream_time(stream);
        let reply = self.ask_first(self.stream_line("ping_behind", stream, time), time)?;
        self.figure("behind_p50_us".into(), reply.number("p50_ns")? / 1e3);
        self.figure("behind_p99_us".into(), reply.number("p99_ns")? / 1e3);
        self.work.pings += reply.number("pings")? as u64;
        self.work.streamed_bytes += reply.number("bytes_total")? as u64;
        Ok(())
    }

    fn stream_line(&self, command: &str, stream: &Stream, time: Duration) -> String {
        let Stream { binary_bytes, in_flight, .. } = stream;
        let peer = self.cluster.name(1);
        format!("{command} {peer} {binary_bytes} {in_flight} {}", time.as_millis())
    }

    /// The first node does it, with the second as its peer.
    fn ask_first(&mut self, line: String, time: Duration) -> Result<Reply, Error> {
        let command = Command { node: 0, line, watch: vec![0, 1] };
        Ok(self.cluster.ask(&[command], time)?.remove(0))
    }

    /// The counters of all links, as each of their ends has them.
    fn links(&mut self) -> Result<Links, Error> {
        let count = self.plan.nodes;
        let line = |node| plain(node, format!("links {}", self.cluster.others(node, count)));
        let commands: Vec<_> = (0..count).map(line).collect();
        let replies = self.cluster.ask(&commands, Duration::ZERO)?;
        let links: Result<Vec<_>, Error> = replies
            .iter()
            .map(|reply| Links::parse(&reply.answer).ok_or_else(|| reply.unclear("link")))
            .collect();
        Ok(links?.into_iter().collect())
    }
}
