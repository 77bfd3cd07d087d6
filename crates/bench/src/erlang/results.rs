//! The results, as the JSON file contains them; the table and the chart are drawn from them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::Serialize;

use crate::args::{Erlang, ErlangTransport};
use crate::chart::{Bar, BarChart, BarGroup};
use crate::erlang::cluster::NodeAnswer;
use crate::erlang::{Better, BinaryStream, ErlangFigure, ErlangPlan, Round};
use crate::error::Error;
use crate::machine::Machine;
use crate::number::number;
use crate::stats::SampleSummary;

/// The version of the format, which changes when a reader of the file has to.
const SCHEMA: &str = "caravan-bench-erlang/1";

#[derive(Clone, Debug, Serialize)]
pub struct ErlangResults {
    pub schema: &'static str,
    pub caravan: &'static str,
    pub unix_time: u64,
    pub took_seconds: f64,
    pub machine: Machine,
    /// The Erlang/OTP version of the nodes.
    pub otp: String,
    pub settings: ErlangSettings,
    /// The transports in the order of `--transports`; ratios are to the first.
    pub transports: Vec<&'static str>,
    pub figures: Vec<FigureResult>,
    /// The traffic by transport, over all its rounds.
    pub carried: BTreeMap<&'static str, Carried>,
}

#[derive(Clone, Debug, Serialize)]
pub struct ErlangSettings {
    pub nodes: usize,
    pub processes_per_ordered_pair: usize,
    pub seconds: f64,
    pub rounds: usize,
    pub schedulers: usize,
    pub pin: String,
    pub erl_flags: String,
    pub streams: Vec<BinaryStream>,
    pub behind: BinaryStream,
    pub sizes: Vec<usize>,
}

#[derive(Clone, Debug, Serialize)]
pub struct FigureResult {
    pub key: String,
    #[serde(flatten)]
    pub figure: ErlangFigure,
    /// Summaries by transport.
    pub measured: BTreeMap<&'static str, SampleSummary>,
    /// The ratio of every other transport to the first, for each round's pair.
    pub ratios: BTreeMap<&'static str, SampleSummary>,
}

impl ErlangResults {
    pub fn of(
        args: &Erlang,
        plan: &ErlangPlan,
        machine: Machine,
        rounds: &[(ErlangTransport, Round)],
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
            settings: ErlangSettings {
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

    /// Returns the chart: a group of bars for each figure, with all transports. Figures that are part of another one,
    /// and tails of few samples, are only in the table.
    pub fn chart(&self) -> BarChart {
        let ErlangSettings { processes_per_ordered_pair, schedulers, rounds, .. } = &self.settings;
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
    fn of(figure: ErlangFigure, plan: &ErlangPlan, rounds: &[(ErlangTransport, Round)]) -> Self {
        let mut measured = BTreeMap::new();
        for &transport in &plan.transports {
            let own = rounds.iter().filter(|(other, _)| *other == transport);
            let samples = own.filter_map(|(_, round)| round.figures.get(&figure.key).copied());
            if let Some(summary) = SampleSummary::of(samples.collect()) {
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

fn carried(rounds: &[(ErlangTransport, Round)]) -> BTreeMap<&'static str, Carried> {
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

/// The counters of links, as `caravan_bench_links:counts/1` writes them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ErlangLinkTotals {
    transports: BTreeSet<String>,
    count: usize,
    sent_messages: u64,
    received_messages: u64,
    sent_bytes: u64,
    received_bytes: u64,
}

/// The work that the benchmark sent: each RPC and each ping is two messages at least.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct SentWork {
    pub rpcs: u64,
    pub pings: u64,
    pub streamed_bytes: u64,
}

/// The traffic of a round's links.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Carried {
    /// The transport that every link reported: `inet_tcp`, `shm`, or `tcp` under Caravan.
    pub transport: String,
    pub links: usize,
    pub sent_messages: u64,
    pub received_messages: u64,
    pub sent_bytes: u64,
    pub received_bytes: u64,
    #[serde(flatten)]
    pub work: SentWork,
}

impl ErlangLinkTotals {
    /// Parses the links of one node; `None` if a word is malformed.
    pub fn parse(answer: &NodeAnswer) -> Option<Self> {
        let mut links = Self::default();
        for word in answer.all("link") {
            let fields: Vec<_> = word.split(',').collect();
            let &[_peer, transport, sent, received, sent_bytes, received_bytes] = &fields[..] else {
                return None;
            };
            links.transports.insert(transport.to_owned());
            links.count += 1;
            links.sent_messages += sent.parse::<u64>().ok()?;
            links.received_messages += received.parse::<u64>().ok()?;
            links.sent_bytes += sent_bytes.parse::<u64>().ok()?;
            links.received_bytes += received_bytes.parse::<u64>().ok()?;
        }
        Some(links)
    }
}

impl FromIterator<ErlangLinkTotals> for ErlangLinkTotals {
    fn from_iter<I: IntoIterator<Item = ErlangLinkTotals>>(all: I) -> Self {
        let mut sum = Self::default();
        for links in all {
            sum.transports.extend(links.transports);
            sum.count += links.count;
            sum.sent_messages += links.sent_messages;
            sum.received_messages += links.received_messages;
            sum.sent_bytes += links.sent_bytes;
            sum.received_bytes += links.received_bytes;
        }
        sum
    }
}

impl Carried {
    /// Checks the counters' growth against the transport that was asked for and the work that was sent.
    pub fn between(
        before: &ErlangLinkTotals,
        after: &ErlangLinkTotals,
        work: SentWork,
        asked: ErlangTransport,
    ) -> Result<Self, Error> {
        let wrong = |what| Err(Error::NotCarried { asked, what });
        let expected = carrier(asked);
        let transports: BTreeSet<_> = before.transports.union(&after.transports).collect();
        if transports.iter().any(|&transport| transport != expected) || transports.is_empty() {
            return wrong(format!("links should be {expected}, and are {transports:?}"));
        }
        if before.count != after.count {
            return wrong(format!("there were {} links, then {}", before.count, after.count));
        }
        let carried = Self {
            transport: expected.to_owned(),
            links: after.count,
            sent_messages: after.sent_messages.saturating_sub(before.sent_messages),
            received_messages: after.received_messages.saturating_sub(before.received_messages),
            sent_bytes: after.sent_bytes.saturating_sub(before.sent_bytes),
            received_bytes: after.received_bytes.saturating_sub(before.received_bytes),
            work,
        };
        let messages = 2 * (work.rpcs + work.pings);
        for (counter, value, least) in [
            ("sent_messages", carried.sent_messages, messages),
            ("received_messages", carried.received_messages, messages),
            ("sent_bytes", carried.sent_bytes, work.streamed_bytes),
            ("received_bytes", carried.received_bytes, work.streamed_bytes),
        ] {
            if value < least {
                return wrong(format!("the {expected} links count {value} {counter}, but {least} were sent"));
            }
        }
        Ok(carried)
    }

    /// Returns the sum of two rounds.
    pub fn and(mut self, other: &Self) -> Self {
        self.sent_messages += other.sent_messages;
        self.received_messages += other.received_messages;
        self.sent_bytes += other.sent_bytes;
        self.received_bytes += other.received_bytes;
        self.work.rpcs += other.work.rpcs;
        self.work.pings += other.work.pings;
        self.work.streamed_bytes += other.work.streamed_bytes;
        self
    }
}

/// Returns the name that the links of a transport must report.
fn carrier(asked: ErlangTransport) -> &'static str {
    match asked {
        ErlangTransport::Tcp => "inet_tcp",
        ErlangTransport::Caravan => "shm",
        ErlangTransport::CaravanTcp => "tcp",
    }
}

impl ErlangResults {
    /// Returns all text: the machine, the table, and what carried the traffic.
    pub fn text(&self) -> String {
        let (results, settings) = (self, &self.settings);
        let mut text = format!(
            "Erlang distribution: {} nodes, {} processes for each ordered pair, +S {}, OTP {}\n\
         {}\n\
         Medians of {} rounds (least..most), transports in turn; ratios are of each round's pair.\n\n",
            settings.nodes,
            settings.processes_per_ordered_pair,
            settings.schedulers,
            results.otp,
            results.machine.sentence(),
            settings.rounds,
        );
        text.push_str(&aligned(&rows(results)));
        text.push('\n');
        text.push_str(&carried_text(results));
        let _ = writeln!(text, "Took {:.0} s.", results.took_seconds);
        text
    }
}

fn rows(results: &ErlangResults) -> Vec<Vec<String>> {
    let (base, others) = results.transports.split_first().unwrap_or((&"", &[]));
    let mut head = vec![String::new(), String::new()];
    head.extend(results.transports.iter().map(|name| (*name).to_owned()));
    head.extend(others.iter().map(|name| format!("{name}/{base}")));
    let mut rows = vec![head];
    rows.extend(results.figures.iter().map(|figure| row(results, figure)));
    rows
}

fn row(results: &ErlangResults, figure: &FigureResult) -> Vec<String> {
    let mut cells = vec![figure.figure.title.clone(), figure.figure.unit.to_owned()];
    let measured = results.transports.iter().map(|name| figure.measured.get(name));
    cells.extend(measured.map(|summary| summary.map_or_else(String::new, SampleSummary::spread)));
    let ratios = results.transports.iter().skip(1).map(|name| figure.ratios.get(name));
    cells.extend(ratios.map(|summary| summary.map_or_else(String::new, SampleSummary::spread)));
    cells
}

/// Describes how much each transport carried, by the links' counters.
fn carried_text(results: &ErlangResults) -> String {
    let mut text = String::from("Carried, by the links' own counters (all rounds, both directions):\n");
    for name in &results.transports {
        let Some(carried) = results.carried.get(name) else { continue };
        let _ = writeln!(
            text,
            "  {name}: {} on all {} link ends; {} messages and {:.1} GB for {} RPCs, {} round trips and {:.1} GB streamed",
            carried.transport,
            carried.links,
            number(carried.sent_messages as f64),
            carried.sent_bytes as f64 / 1e9,
            number(carried.work.rpcs as f64),
            number(carried.work.pings as f64),
            carried.work.streamed_bytes as f64 / 1e9,
        );
    }
    text
}

/// Aligns the first two columns to the left, the others to the right.
fn aligned(rows: &[Vec<String>]) -> String {
    let columns = rows.first().map_or(0, Vec::len);
    let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or(0);
    let widths: Vec<_> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in rows {
        for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
            let _ = match column {
                0 => write!(text, "{cell:<width$}"),
                1 => write!(text, " {cell:<width$}"),
                _ => write!(text, "  {cell:>width$}"),
            };
        }
        text.truncate(text.trim_end().len());
        text.push('\n');
    }
    text
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::args::BenchCommand;
    use crate::args::tests::parse;
    use crate::erlang::cluster::NodeLine;

    /// Returns results of two rounds in which Caravan is `faster` times as good at everything.
    pub fn example(line: &str, faster: f64) -> ErlangResults {
        let line = format!("erlang --rounds 2 {line}");
        let BenchCommand::Erlang(args) = parse(&line) else { panic!("not erlang") };
        let plan = ErlangPlan::of(&args);
        let mut rounds = Vec::new();
        for number in 0..plan.rounds {
            for transport in plan.order(number) {
                rounds.push((transport, round(&plan, transport, number, faster)));
            }
        }
        ErlangResults::of(&args, &plan, Machine::here(), &rounds, Duration::from_secs(1))
    }

    fn round(plan: &ErlangPlan, transport: ErlangTransport, number: usize, faster: f64) -> Round {
        let value = |figure: &ErlangFigure| {
            let base = 1000.0 * (number + 1) as f64;
            match (transport, figure.better) {
                (ErlangTransport::Tcp, _) => base,
                (_, Better::Higher) => base * faster,
                (_, Better::Lower) => base / faster,
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
                work: SentWork { rpcs: 900_000, pings: 3, streamed_bytes: 6_000_000_000 },
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

    fn links(words: &str) -> ErlangLinkTotals {
        let NodeLine::Answer(answer) = NodeLine::parse(&format!("@caravan ok {words}")) else {
            panic!("an answer")
        };
        ErlangLinkTotals::parse(&answer).expect("links")
    }

    const WORK: SentWork = SentWork { rpcs: 10, pings: 5, streamed_bytes: 1000 };

    #[test]
    fn growth_that_covers_the_work_is_proof() {
        let before = links("link=b,shm,7,7,100,100");
        let after = links("link=b,shm,37,40,1100,1200");
        let carried = Carried::between(&before, &after, WORK, ErlangTransport::Caravan).expect("proof");
        assert_eq!((carried.sent_messages, carried.received_messages), (30, 33));
        assert_eq!((carried.sent_bytes, carried.received_bytes), (1000, 1100));
    }

    #[test]
    fn another_transport_is_refused_by_name() {
        let before = links("link=b,shm,0,0,0,0 link=c,tcp,0,0,0,0");
        let after = links("link=b,shm,99,99,9999,9999 link=c,tcp,99,99,9999,9999");
        let error = Carried::between(&before, &after, WORK, ErlangTransport::Caravan);
        let text = error.expect_err("refused").to_string();
        assert!(text.contains("should be shm") && text.contains("tcp"), "{text}");
        let plain = links("link=b,inet_tcp,0,0,0,0");
        assert!(Carried::between(&plain, &plain, SentWork::default(), ErlangTransport::Caravan).is_err());
        assert!(Carried::between(&plain, &plain, SentWork::default(), ErlangTransport::Tcp).is_ok());
    }

    #[test]
    fn counters_that_stand_still_are_refused() {
        let before = links("link=b,shm,7,7,100,100");
        let after = links("link=b,shm,36,40,1100,1200");
        let error = Carried::between(&before, &after, WORK, ErlangTransport::Caravan);
        let text = error.expect_err("refused").to_string();
        assert!(text.contains("count 29 sent_messages, but 30 were sent"), "{text}");
    }

    #[test]
    fn a_word_of_another_shape_is_not_taken_for_a_link() {
        let NodeLine::Answer(answer) = NodeLine::parse("@caravan ok link=b,shm,1,2") else {
            panic!("an answer")
        };
        assert_eq!(ErlangLinkTotals::parse(&answer), None);
    }

    #[test]
    fn a_row_has_both_transports_and_their_ratio() {
        let text = example("", 4.0).text();
        let row = text.lines().find(|line| line.starts_with("RPCs, 4 nodes")).expect("the row");
        let cells: Vec<_> = row.split_whitespace().collect();
        assert_eq!(
            cells[3..],
            ["1/s", "1,500", "(1,000..2,000)", "6,000", "(4,000..8,000)", "4.00", "(4.00..4.00)"]
        );
        assert!(text.contains("caravan/tcp"), "{text}");
        assert!(text.contains("caravan: shm on all 12 link ends; 4,000,000 messages"), "{text}");
        assert!(text.contains("for 1,800,000 RPCs"), "{text}");
    }
}
