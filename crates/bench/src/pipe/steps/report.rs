//! The steps' results, as text, as JSON and as a picture.

use std::fmt::Write;

use serde::Serialize;

use super::ends::Carrier;
use super::plan::{Program, Step};
use crate::chart::{Bar, BarChart, BarGroup};
use crate::machine::Machine;
use crate::number::{binary, number};
use crate::stats::Summary;

/// Changes when a reader of the file would have to.
const SCHEMA: &str = "caravan-bench-pipe-steps/1";

/// One sample of a step.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    pub gb_per_s: f64,
    pub cpu_s_per_gb: f64,
}

#[derive(Clone, Debug, Serialize)]
pub struct Results {
    pub schema: &'static str,
    pub caravan: &'static str,
    pub machine: Machine,
    pub transport: Carrier,
    /// Device, port and addresses, or what there is instead.
    pub link: String,
    /// Bytes of a sample; the first steps' are of a part of it.
    pub bytes: u64,
    pub steps: Vec<Row>,
}

#[derive(Clone, Debug, Serialize)]
pub struct Row {
    pub key: &'static str,
    pub title: String,
    pub program: Program,
    pub gb_per_s: Summary,
    /// To the step before, in the same round.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gain: Option<Summary>,
    /// Seconds of both processes on a processor.
    pub cpu_s_per_gb: Summary,
    /// Of the post.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub post_gb_per_s: Option<f64>,
}

impl Results {
    pub fn of(steps: &[Step], samples: &[Vec<Sample>], carrier: Carrier, link: String, bytes: u64) -> Self {
        let mut rows: Vec<Row> = Vec::new();
        for (step, samples) in steps.iter().zip(samples) {
            let summary = |of: fn(&Sample) -> f64| Summary::of(samples.iter().map(of).collect());
            let Some(gb_per_s) = summary(|sample| sample.gb_per_s) else { continue };
            let Some(cpu_s_per_gb) = summary(|sample| sample.cpu_s_per_gb) else { continue };
            let title = match (step.program, carrier) {
                (Program::Messages(_), _) => step.title,
                (Program::Stream, Carrier::Tcp) => "no messages: TCP as a stream",
                (Program::Stream, _) => "no messages: Caravan's ring",
            };
            rows.push(Row {
                key: step.key,
                title: title.to_owned(),
                program: step.program,
                gain: rows.last().and_then(|last| gb_per_s.ratio(&last.gb_per_s)),
                gb_per_s,
                cpu_s_per_gb,
                post_gb_per_s: step.post_mb_per_s.map(|mb| f64::from(mb) / 1e3),
            });
        }
        Self {
            schema: SCHEMA,
            caravan: env!("CARGO_PKG_VERSION"),
            machine: Machine::here(),
            transport: carrier,
            link,
            bytes,
            steps: rows,
        }
    }

    pub fn text(&self) -> String {
        let rounds = self.steps.first().map_or(0, |row| row.gb_per_s.samples.len());
        let mut text = format!(
            "A pipe between two processes, step by step, over {}\n{}\n\
             Medians of {rounds} rounds of {} (least..most), all steps in turn; the gain is over the line above, in the \
             same round.\nEvery step's bytes were compared before. The post: RDMA cat, 2018, InfiniBand between two \
             hosts.\n\n",
            self.link,
            self.machine.sentence(),
            binary(self.bytes),
        );
        // Writing into a String cannot fail.
        let _ = writeln!(text, "{:<46}{:>24}{:>8}{:>12}{:>12}", "", "GB/s", "gain", "CPU s/GB", "post GB/s");
        for row in &self.steps {
            let spread = row.gb_per_s.spread();
            let gain = row.gain.as_ref().map_or_else(String::new, |gain| format!("x{}", number(gain.median)));
            let post = row.post_gb_per_s.map_or_else(String::new, number);
            let cpu = number(row.cpu_s_per_gb.median);
            let _ = writeln!(
                text,
                "{}",
                format!("{:<46}{spread:>24}{gain:>8}{cpu:>12}{post:>12}", row.title).trim_end()
            );
        }
        text
    }

    /// A bar for each step.
    pub fn chart(&self) -> BarChart {
        let bar = |row: &Row| Bar {
            name: row.title.clone(),
            value: row.gb_per_s.clone(),
            colour: 0,
            note: String::new(),
        };
        BarChart {
            title: "A pipe over a fabric, step by step: GB/s".to_owned(),
            subtitle: format!("{}; medians, lines from least to most", self.link),
            groups: vec![BarGroup { name: String::new(), bars: self.steps.iter().map(bar).collect() }],
            footer: self.machine.sentence(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::plan::steps;
    use super::*;

    fn example() -> Results {
        let sample = |gb_per_s: f64| Sample { gb_per_s, cpu_s_per_gb: 2.0 / gb_per_s };
        let steps = steps();
        let samples: Vec<_> =
            (0..steps.len()).map(|n| [1.0, 2.0, 4.0].map(|x| sample(x * (n + 1) as f64)).to_vec()).collect();
        Results::of(&steps, &samples, Carrier::Shm, "shared memory".to_owned(), 256 << 20)
    }

    #[test]
    fn each_line_has_its_gain_over_the_one_above_and_the_posts_figure() {
        let text = example().text();
        let line = |start: &str| {
            let line = text.lines().find(|line| line.starts_with(start)).unwrap_or_else(|| panic!("{text}"));
            line[46..].split_whitespace().map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(line("4 KiB messages"), ["2.00", "(1.00..4.00)", "1.00", "0.10"]);
        assert_eq!(line("one-byte"), ["4.00", "(2.00..8.00)", "x2.00", "0.50"]);
        assert_eq!(line("one for 16"), ["6.00", "(3.00..12.0)", "x1.50", "0.33", "0.14"]);
        assert!(text.contains("no messages: Caravan's ring"), "{text}");
    }

    #[test]
    fn the_json_has_the_shape_that_readers_rely_on() {
        let json = serde_json::to_value(example()).expect("JSON");
        assert_eq!(json["schema"], "caravan-bench-pipe-steps/1");
        assert_eq!(json["transport"], "shm");
        assert_eq!(json["steps"][0]["program"]["messages"]["message_bytes"], 4096);
        assert_eq!(json["steps"][1]["gain"]["median"], 2.0);
        assert_eq!(json["steps"][10]["program"], "stream");
        assert!(json["steps"][0].get("gain").is_none());
    }
}
