//! What a round measures, for how long, and what the figures are called.

use std::time::Duration;

use serde::Serialize;

use crate::args::{Erlang, Pin, Transport};
use crate::placement;

/// Before RPCs are counted: connections, heaps and the processors' clocks get going.
const WARM_UP: f64 = 0.3;
/// Parts of `--seconds` that the other steps take. RPCs need the longest: their CPU time is read
/// in ticks of 10 ms.
const PING_PART: f64 = 0.3;
const STREAM_1MB_PART: f64 = 0.4;
const STREAM_64MB_PART: f64 = 0.6;
const BEHIND_PART: f64 = 0.6;

/// What to measure.
#[derive(Clone, Debug)]
pub struct Plan {
    pub nodes: usize,
    pub processes: usize,
    pub rounds: usize,
    pub transports: Vec<Transport>,
    pub seconds: Duration,
    pub warm_up: Duration,
    /// Sizes of the cluster in which RPCs are counted, the largest first.
    pub sizes: Vec<usize>,
    pub cores: Vec<usize>,
    /// A core for each side of a pair, if there are two.
    pub apart: Option<(usize, usize)>,
    pub pin: Pin,
    pub streams: Vec<Stream>,
    pub behind: Stream,
}

/// Binaries sent one way.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Stream {
    pub binary_bytes: u64,
    /// Binaries that may be unacknowledged.
    pub in_flight: u32,
    #[serde(skip)]
    part: f64,
}

/// Which way a figure is good.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Better {
    Higher,
    Lower,
}

/// A row of the table.
#[derive(Clone, Debug, Serialize)]
pub struct Figure {
    #[serde(skip)]
    pub key: String,
    pub title: String,
    pub unit: &'static str,
    pub better: Better,
}

impl Plan {
    pub fn of(args: &Erlang) -> Self {
        let cores = placement::cores();
        let stream = |binary_bytes, in_flight, part| Stream { binary_bytes, in_flight, part };
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

    /// How long a step takes that has this part of `--seconds`.
    pub fn ping_time(&self) -> Duration {
        self.seconds.mul_f64(PING_PART)
    }

    pub fn stream_time(&self, stream: &Stream) -> Duration {
        self.seconds.mul_f64(stream.part)
    }

    /// Steps of one transport in one round, for the progress bar: the start is one as well.
    pub fn step_count(&self) -> usize {
        1 + self.sizes.len() + usize::from(self.apart.is_some()) + 1 + self.streams.len() + 1
    }

    /// The transports in the order of this round: each comes first as often as last, so that a
    /// machine that grows slower favours none.
    pub fn order(&self, round: usize) -> Vec<Transport> {
        let mut order = self.transports.clone();
        if round % 2 == 1 {
            order.reverse();
        }
        order
    }

    /// The rows of the table.
    pub fn figures(&self) -> Vec<Figure> {
        use Better::{Higher, Lower};
        let mut rows = Vec::new();
        let mut row = |key: String, title: String, unit, better| {
            rows.push(Figure { key, title, unit, better });
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

    /// Lone round trips: key and title of each kind.
    pub fn pings(&self) -> Vec<(&'static str, &'static str)> {
        let apart = self.apart.map(|_| ("rtt_apart", "RTT, a core each,"));
        apart.into_iter().chain([("rtt_shared", "RTT, sharing a core,")]).collect()
    }
}

impl Stream {
    pub fn key(&self) -> String {
        format!("stream_{}mb_gb_per_s", self.binary_bytes / 1_000_000)
    }

    pub fn size(&self) -> String {
        format!("{} MB", self.binary_bytes / 1_000_000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Bench;
    use crate::args::tests::parse;

    fn plan(line: &str) -> Plan {
        let Bench::Erlang(args) = parse(&format!("erlang {line}")) else { panic!("not erlang") };
        Plan::of(&args)
    }

    #[test]
    fn two_nodes_are_measured_beside_more() {
        assert_eq!(plan("").sizes, [4, 2]);
        assert_eq!(plan("--nodes 2").sizes, [2]);
    }

    #[test]
    fn transports_take_turns_at_being_first() {
        let plan = plan("--transports tcp,caravan");
        assert_eq!(plan.order(0), [Transport::Tcp, Transport::Caravan]);
        assert_eq!(plan.order(1), [Transport::Caravan, Transport::Tcp]);
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
        // What is not measured, generously: nodes start and end, streams warm up, cores are
        // taken by others.
        let round = rpcs + pings + streams + behind + Duration::from_millis(1500);
        let whole = round * (plan.rounds * plan.transports.len()) as u32;
        assert!(plan.rounds >= 9 && whole < Duration::from_secs(150), "{whole:?}");
    }
}
