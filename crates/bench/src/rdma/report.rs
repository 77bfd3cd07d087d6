//! The RDMA benchmark's results, as text and as JSON.

use std::fmt::Write;

use serde::Serialize;

use crate::machine::Machine;
use crate::number::number;
use crate::stats::Summary;

/// Changes when a reader of the file would have to.
const SCHEMA: &str = "caravan-bench-rdma/1";

#[derive(Clone, Debug, Serialize)]
pub struct Results {
    pub schema: &'static str,
    pub caravan: &'static str,
    pub machine: Machine,
    /// Device, port and addresses.
    pub link: String,
    /// Bytes registered at each side.
    pub registered_bytes: u64,
    pub ring_bytes: u64,
    /// Who waits sleeps.
    pub sleeps: bool,
    /// Programs that are not installed, or that cannot use this port.
    pub missing: Vec<&'static str>,
    pub measured: Vec<Row>,
}

/// One figure of several contenders, in turn.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    pub key: &'static str,
    pub title: String,
    pub unit: &'static str,
    pub bytes: usize,
    pub contenders: Vec<Contender>,
}

#[derive(Clone, Debug, Serialize)]
pub struct Contender {
    pub name: &'static str,
    pub value: Summary,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p99: Option<Summary>,
    /// To the first contender, of each pair of samples.
    pub ratio: Summary,
    /// Of a link: here, and at the other side.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub per_message: Option<[PerMessage; 2]>,
}

/// Each divided by the messages that the measuring side sent.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct PerMessage {
    pub doorbells: f64,
    pub completions: f64,
    pub wakeups: f64,
}

impl Results {
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
            let Row { title, unit, contenders, .. } = row;
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
        let summary = |samples: &[f64]| Summary::of(samples.to_vec()).expect("samples");
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
        let mut results = Results::new("rxe0 port 1".into(), (4096, 8192), false);
        results.measured.push(Row {
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
