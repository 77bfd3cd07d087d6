//! The results, as they go into the JSON file; the table and the chart are drawn from them.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::Serialize;

use super::carried::Carried;
use super::plan::{Better, Figure, Plan, Stream};
use super::round::Round;
use crate::args::{Erlang, Transport};
use crate::chart::{Bar, BarChart, BarGroup};
use crate::machine::Machine;
use crate::number::number;
use crate::stats::Summary;

/// Changes when a reader of the file would have to.
const SCHEMA: &str = "caravan-bench-erlang/1";

#[derive(Clone, Debug, Serialize)]
pub struct Results {
    pub schema: &'static str,
    pub caravan: &'static str,
    pub unix_time: u64,
    pub took_seconds: f64,
    pub machine: Machine,
    /// The Erlang/OTP version of the nodes.
    pub otp: String,
    pub settings: Settings,
    /// In the order of `--transports`; ratios are to the first.
    pub transports: Vec<&'static str>,
    pub figures: Vec<FigureResult>,
    /// By transport, over all its rounds.
    pub carried: BTreeMap<&'static str, Carried>,
}

#[derive(Clone, Debug, Serialize)]
pub struct Settings {
    pub nodes: usize,
    pub processes_per_ordered_pair: usize,
    pub seconds: f64,
    pub rounds: usize,
    pub schedulers: usize,
    pub pin: String,
    pub erl_flags: String,
    pub streams: Vec<Stream>,
    pub behind: Stream,
    pub sizes: Vec<usize>,
}

#[derive(Clone, Debug, Serialize)]
pub struct FigureResult {
    pub key: String,
    #[serde(flatten)]
    pub figure: Figure,
    /// By transport.
    pub measured: BTreeMap<&'static str, Summary>,
    /// To the first transport, of each round's pair: by every other transport.
    pub ratios: BTreeMap<&'static str, Summary>,
}

impl Results {
    pub fn of(
        args: &Erlang,
        plan: &Plan,
        machine: Machine,
        rounds: &[(Transport, Round)],
        took: Duration,
    ) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let figures = plan.figures().into_iter();
        Self {
            schema: SCHEMA,
            caravan: env!("CARGO_PKG_VERSION"),
            unix_time: now.as_secs(),
            took_seconds: took.as_secs_f64(),
            machine,
            otp: rounds.first().map_or_else(String::new, |(_, round)| round.otp.clone()),
            settings: Settings {
                nodes: plan.nodes,
                processes_per_ordered_pair: plan.processes,
                seconds: plan.seconds.as_secs_f64(),
                rounds: plan.rounds,
                schedulers: args.schedulers.get(),
                pin: format!("{:?}", plan.pin).to_lowercase(),
                erl_flags: args.erl_flags.clone(),
                streams: plan.streams.clone(),
                behind: plan.behind,
                sizes: plan.sizes.clone(),
            },
            transports: plan.transports.iter().map(|transport| transport.name()).collect(),
            figures: figures.map(|figure| FigureResult::of(figure, plan, rounds)).collect(),
            carried: carried(rounds),
        }
    }

    /// A group of bars for each figure, all transports in it. Parts of another figure and tails of few samples are in
    /// the table alone.
    pub fn chart(&self) -> BarChart {
        let Settings { processes_per_ordered_pair, schedulers, rounds, .. } = &self.settings;
        let is_shown =
            |key: &str| !["_user_us", "_system_us", "_p99_us", "_cores"].iter().any(|end| key.ends_with(end));
        let shown = self.figures.iter().filter(|figure| is_shown(&figure.key));
        BarChart {
            title: "Erlang distribution".to_owned(),
            subtitle: format!(
                "{processes_per_ordered_pair} processes for each ordered pair of nodes, +S {schedulers}, OTP {}; \
                 medians of {rounds} rounds, lines from least to most",
                self.otp
            ),
            groups: shown.map(|figure| self.chart_group(figure)).collect(),
            footer: self.machine.sentence(),
        }
    }

    fn chart_group(&self, figure: &FigureResult) -> BarGroup {
        let bar = |(place, &name): (usize, &&'static str)| {
            let carrier = self.carried.get(name).map_or("", |carried| &carried.transport);
            let better = figure.ratios.get(name).map(|ratio| match figure.figure.better {
                Better::Higher => ratio.median,
                Better::Lower => 1.0 / ratio.median,
            });
            Some(Bar {
                name: if carrier == name { name.to_owned() } else { format!("{name} ({carrier})") },
                value: figure.measured.get(name)?.clone(),
                colour: [2, 0, 1][place % 3],
                note: better.map_or_else(String::new, |better| format!("({}x better)", number(better))),
            })
        };
        BarGroup {
            name: format!("{}, {}", figure.figure.title.replace(", p50", " p50"), figure.figure.unit),
            bars: self.transports.iter().enumerate().filter_map(bar).collect(),
        }
    }

    #[cfg(test)]
    pub fn figure(&self, key: &str) -> Option<&FigureResult> {
        self.figures.iter().find(|figure| figure.key == key)
    }
}

impl FigureResult {
    fn of(figure: Figure, plan: &Plan, rounds: &[(Transport, Round)]) -> Self {
        let mut measured = BTreeMap::new();
        for &transport in &plan.transports {
            let own = rounds.iter().filter(|(other, _)| *other == transport);
            let samples = own.filter_map(|(_, round)| round.figures.get(&figure.key).copied());
            if let Some(summary) = Summary::of(samples.collect()) {
                measured.insert(transport.name(), summary);
            }
        }
        let mut ratios = BTreeMap::new();
        if let Some(base) = measured.get(plan.transports[0].name()) {
            for transport in &plan.transports[1..] {
                let ratio = measured.get(transport.name()).and_then(|own| own.ratio(base));
                ratios.extend(ratio.map(|ratio| (transport.name(), ratio)));
            }
        }
        Self { key: figure.key.clone(), figure, measured, ratios }
    }
}

fn carried(rounds: &[(Transport, Round)]) -> BTreeMap<&'static str, Carried> {
    let mut sums: BTreeMap<&'static str, Carried> = BTreeMap::new();
    for (transport, round) in rounds {
        let sum = match sums.remove(transport.name()) {
            Some(sum) => sum.and(&round.carried),
            None => round.carried.clone(),
        };
        sums.insert(transport.name(), sum);
    }
    sums
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::args::Bench;
    use crate::args::tests::parse;
    use crate::erlang::carried::Work;

    /// Results of two rounds in which Caravan is `faster` times as good at everything.
    pub fn example(line: &str, faster: f64) -> Results {
        let line = format!("erlang --rounds 2 {line}");
        let Bench::Erlang(args) = parse(&line) else { panic!("not erlang") };
        let plan = Plan::of(&args);
        let mut rounds = Vec::new();
        for number in 0..plan.rounds {
            for transport in plan.order(number) {
                rounds.push((transport, round(&plan, transport, number, faster)));
            }
        }
        Results::of(&args, &plan, Machine::here(), &rounds, Duration::from_secs(1))
    }

    fn round(plan: &Plan, transport: Transport, number: usize, faster: f64) -> Round {
        let value = |figure: &Figure| {
            let base = 1000.0 * (number + 1) as f64;
            match (transport, figure.better) {
                (Transport::Tcp, _) => base,
                (_, super::super::plan::Better::Higher) => base * faster,
                (_, super::super::plan::Better::Lower) => base / faster,
            }
        };
        Round {
            figures: plan.figures().iter().map(|row| (row.key.clone(), value(row))).collect(),
            carried: Carried {
                transport: "shm".into(),
                links: 12,
                sent_messages: 2_000_000,
                received_messages: 2_000_000,
                sent_bytes: 7_000_000_000,
                received_bytes: 7_000_000_000,
                work: Work { rpcs: 900_000, pings: 3, streamed_bytes: 6_000_000_000 },
            },
            otp: "25.2.3".into(),
        }
    }

    #[test]
    fn the_json_has_the_shape_that_readers_rely_on() {
        let json = serde_json::to_value(example("", 4.0)).expect("JSON");
        assert_eq!(json["schema"], "caravan-bench-erlang/1");
        assert_eq!(json["otp"], "25.2.3");
        assert_eq!(json["settings"]["processes_per_ordered_pair"], 100);
        assert!(json["machine"]["kernel"].is_string() && json["machine"]["cores"].is_u64());
        let figure = &json["figures"][0];
        assert_eq!(figure["key"], "rpc4_per_s");
        assert_eq!(figure["better"], "higher");
        assert_eq!(figure["measured"]["tcp"]["median"], 1500.0);
        assert_eq!(figure["measured"]["tcp"]["samples"], serde_json::json!([1000.0, 2000.0]));
        assert_eq!(figure["ratios"]["caravan"]["median"], 4.0);
        assert!(figure["ratios"].get("tcp").is_none());
        assert_eq!(json["carried"]["caravan"]["rpcs"], 1_800_000);
        assert_eq!(json["carried"]["caravan"]["transport"], "shm");
    }

    #[test]
    fn both_transports_and_the_ratios_are_drawn() {
        let svg = example("", 4.0).chart().svg();
        for expected in ["2 nodes", "4 nodes", "1,500", "6,000 (4.00x better)", "caravan (shm)"] {
            assert!(svg.contains(expected), "{expected}: {svg}");
        }
        assert!(!svg.contains("p99"), "{svg}");
        for (line, faster) in [("", 40.0), ("", 0.01), ("--transports tcp --nodes 2", 1.0)] {
            assert!(example(line, faster).chart().svg().len() > 1000);
        }
    }

    #[test]
    fn one_transport_has_no_ratio() {
        let results = example("--transports tcp", 1.0);
        let figure = results.figure("rpc2_cpu_us").expect("a figure");
        assert!(figure.ratios.is_empty() && figure.measured.len() == 1);
    }
}
