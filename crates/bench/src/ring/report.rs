//! The ring benchmark's results, as text and as JSON.

use std::fmt::Write;

use serde::Serialize;

use super::lane::RECORD_BYTES;
use crate::args::Ring;
use crate::machine::Machine;
use crate::placement;
use crate::stats::Summary;

/// Changes when a reader of the file would have to.
const SCHEMA: &str = "caravan-bench-ring/1";

#[derive(Clone, Debug, Serialize)]
pub struct Results {
    pub schema: &'static str,
    pub caravan: &'static str,
    pub machine: Machine,
    /// Producer and consumer.
    pub cores: (usize, usize),
    pub line_ns: f64,
    pub placement: &'static str,
    pub record_bytes: usize,
    pub ring_bytes: u64,
    pub records: u64,
    pub measured: Vec<Measured>,
}

/// Nanoseconds a record.
#[derive(Clone, Debug, Serialize)]
pub struct Measured {
    pub key: &'static str,
    pub title: &'static str,
    pub flag_copy_ns: Summary,
    pub ring_ns: Summary,
    /// The ring to the bare loop, of each pair of samples.
    pub ratio: Summary,
}

impl Measured {
    /// `None` of no samples. `samples`: the bare loop's, the ring's.
    pub fn of(key: &'static str, title: &'static str, samples: (Vec<f64>, Vec<f64>)) -> Option<Self> {
        let (flag_copy_ns, ring_ns) = (Summary::of(samples.0)?, Summary::of(samples.1)?);
        let ratio = ring_ns.ratio(&flag_copy_ns)?;
        Some(Self { key, title, flag_copy_ns, ring_ns, ratio })
    }
}

impl Results {
    pub fn of(
        args: &Ring,
        machine: Machine,
        cores: (usize, usize),
        line_ns: f64,
        measured: Vec<Measured>,
    ) -> Self {
        Self {
            schema: SCHEMA,
            caravan: env!("CARGO_PKG_VERSION"),
            machine,
            cores,
            line_ns,
            placement: placement::word(line_ns),
            record_bytes: RECORD_BYTES,
            ring_bytes: args.ring_bytes,
            records: args.records,
            measured,
        }
    }

    pub fn text(&self) -> String {
        let mut text = format!(
            "{} B records between two processes on cores {} and {}, {} ({:.0} ns a cache line one way)\n{}\n\
             Nanoseconds a record; medians of {} samples (least..most), in turn.\n\n",
            self.record_bytes,
            self.cores.0,
            self.cores.1,
            self.placement,
            self.line_ns,
            self.machine.without_distance(),
            self.measured.first().map_or(0, |measured| measured.ratio.samples.len()),
        );
        // Writing into a String cannot fail.
        let _ = writeln!(text, "{:<32}{:>26}{:>26}{:>24}", "", "bare loop in C", "ring", "ring/loop");
        for Measured { title, flag_copy_ns, ring_ns, ratio, .. } in &self.measured {
            let (bare, ring, ratio) = (flag_copy_ns.spread(), ring_ns.spread(), ratio.spread());
            let _ = writeln!(text, "{title:<32}{bare:>26}{ring:>26}{ratio:>24}");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ratio_is_of_each_pair_and_is_printed() {
        let samples = (vec![4.0, 10.0, 8.0], vec![6.0, 10.0, 4.0]);
        let measured = Measured::of("stream", "stream, each record published", samples);
        let crate::args::Bench::Ring(args) = crate::args::tests::parse("ring") else { panic!("not ring") };
        let results = Results::of(&args, Machine::here(), (0, 1), 60.0, measured.into_iter().collect());
        let text = results.text();
        let row = text.lines().find(|line| line.starts_with("stream")).expect("the row");
        let cells: Vec<_> = row.split_whitespace().skip(4).collect();
        assert_eq!(cells, ["8.00", "(4.00..10.0)", "6.00", "(4.00..10.0)", "1.00", "(0.50..1.50)"]);
        assert!(text.contains("cores 0 and 1, near (60 ns"), "{text}");
        let json = serde_json::to_value(&results).expect("JSON");
        assert_eq!(json["schema"], "caravan-bench-ring/1");
        assert_eq!(json["measured"][0]["ratio"]["median"], 1.0);
    }
}
