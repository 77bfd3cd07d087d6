//! The results of a self-test, as text and as JSON.

use std::fmt::Write;

use caravan_bench::number::{binary, bytes as decimal, number};
use serde::Serialize;

use crate::fabric;
use crate::fabric::survey::Survey;

/// All results of a self-test.
#[derive(Debug, Serialize)]
pub struct SelftestReport {
    pub caravan: String,
    /// The host as the user named it.
    pub target: String,
    pub is_same_host: bool,
    pub ours: Survey,
    pub theirs: Survey,
    pub paths: Vec<TestedPath>,
    /// What could not be tested, and why; a sentence each.
    pub notes: Vec<String>,
    /// One sentence per failure; empty if everything passed.
    pub failures: Vec<String>,
    /// What a node would use between the hosts, or what to do.
    pub verdict: String,
}

/// The results of one way.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TestedPath {
    pub name: String,
    pub connected_ms: f64,
    pub capabilities: Vec<String>,
    pub checks: Vec<PathCheck>,
    pub round_trips: Vec<RoundTrip>,
    pub throughput: Vec<Throughput>,
    pub failure: Option<String>,
}

/// A promise that was tried.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PathCheck {
    pub name: String,
    pub outcome: CheckOutcome,
}

/// The result of a check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CheckOutcome {
    Passed,
    /// The check does not apply to this way; the reason.
    Not(String),
    Failed(String),
}

/// Round trips of messages of one size.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RoundTrip {
    pub bytes: usize,
    pub waiting: &'static str,
    pub count: usize,
    pub median_us: f64,
    /// The 99th percentile.
    pub most_us: f64,
}

/// A stream of messages of one size, in bytes per second.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Throughput {
    pub bytes: usize,
    pub waiting: &'static str,
    pub there: f64,
    pub back: f64,
}

impl TestedPath {
    pub fn new(name: String) -> Self {
        Self {
            name,
            connected_ms: 0.0,
            capabilities: Vec::new(),
            checks: Vec::new(),
            round_trips: Vec::new(),
            throughput: Vec::new(),
            failure: None,
        }
    }
}

impl RoundTrip {
    /// Computes the figures from times in nanoseconds; there must be at least one.
    pub fn of(bytes: usize, waiting: &'static str, mut took: Vec<u64>) -> Self {
        took.sort_unstable();
        let at = |part: usize| took.get(took.len() * part / 100).map_or(0.0, |ns| *ns as f64 / 1e3);
        Self { bytes, waiting, count: took.len(), median_us: at(50), most_us: at(99) }
    }
}

impl Throughput {
    pub fn of(bytes: usize, waiting: &'static str, there: f64, back: f64) -> Self {
        Self { bytes, waiting, there, back }
    }
}

impl SelftestReport {
    /// Returns the report for people; its last line is the verdict.
    pub fn text(&self) -> String {
        let mut text = format!("caravan selftest {}, version {}\n\n", self.target, self.caravan);
        text.push_str(&fabric::survey(&self.ours));
        text.push('\n');
        text.push_str(&fabric::survey(&self.theirs));
        for path in &self.paths {
            text.push('\n');
            path.write(&mut text);
        }
        // Writing into a String cannot fail.
        for note in &self.notes {
            let _ = write!(text, "\nnot tested: {note}");
        }
        if !self.notes.is_empty() {
            text.push('\n');
        }
        for failure in &self.failures {
            let _ = write!(text, "\nFAILED: {failure}");
        }
        let _ = writeln!(text, "{}\n{}", if self.failures.is_empty() { "" } else { "\n" }, self.verdict);
        text
    }
}

impl TestedPath {
    /// Returns why there was no connection, if there was none.
    pub fn unconnected(&self) -> Option<&str> {
        self.failure.as_deref().filter(|_| self.connected_ms == 0.0)
    }

    fn write(&self, text: &mut String) {
        let _ = match self.unconnected() {
            Some(why) => writeln!(text, "{}: NOT CONNECTED, {why}", self.name),
            None => writeln!(text, "{}: connected in {} ms", self.name, number(self.connected_ms)),
        };
        if !self.capabilities.is_empty() {
            let _ = writeln!(text, "  promises: {}", self.capabilities.join(", "));
        }
        for PathCheck { name, outcome } in &self.checks {
            let outcome = match outcome {
                CheckOutcome::Passed => "yes".to_owned(),
                CheckOutcome::Not(why) => format!("not here, {why}"),
                CheckOutcome::Failed(why) => format!("NO, {why}"),
            };
            let _ = writeln!(text, "  {name}: {outcome}");
        }
        if !self.round_trips.is_empty() {
            let _ = writeln!(text, "  round trips (us)   median, 99 %: spinning   sleeping");
        }
        self.write_sizes(text, self.round_trips.iter().map(|row| row.bytes), |bytes| {
            let rows = self.round_trips.iter().filter(|row| row.bytes == bytes);
            rows.map(|row| format!("{} {}", number(row.median_us), number(row.most_us))).collect()
        });
        if !self.throughput.is_empty() {
            let _ = writeln!(text, "  streams (bytes/s)  there, back:  spinning   sleeping");
        }
        self.write_sizes(text, self.throughput.iter().map(|row| row.bytes), |bytes| {
            let rows = self.throughput.iter().filter(|row| row.bytes == bytes);
            rows.map(|row| format!("{} {}", decimal(row.there), decimal(row.back))).collect()
        });
    }

    /// Writes a line for each size, with a column for each way of waiting.
    fn write_sizes(
        &self,
        text: &mut String,
        sizes: impl Iterator<Item = usize>,
        columns: impl Fn(usize) -> Vec<String>,
    ) {
        let mut seen = Vec::new();
        for bytes in sizes {
            if seen.contains(&bytes) {
                continue;
            }
            seen.push(bytes);
            let columns: String = columns(bytes).iter().map(|column| format!("{column:>21}")).collect();
            let _ = writeln!(text, "  {:>12}{columns}", binary(bytes as u64));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::selftest::message::Wait;

    #[test]
    fn a_way_that_leads_nowhere_says_why() {
        let path = TestedPath { failure: Some("no answer".to_owned()), ..TestedPath::new("RDMA".to_owned()) };
        let mut text = String::new();
        path.write(&mut text);
        assert_eq!(text, "RDMA: NOT CONNECTED, no answer\n");
        assert_eq!(TestedPath { connected_ms: 1.0, ..path }.unconnected(), None);
    }

    #[test]
    fn a_way_is_a_table() {
        let mut path = TestedPath::new("shared memory".to_owned());
        path.checks = vec![
            PathCheck { name: "content".to_owned(), outcome: CheckOutcome::Passed },
            PathCheck { name: "swap".to_owned(), outcome: CheckOutcome::Failed("it found 1".to_owned()) },
        ];
        for wait in Wait::ALL {
            for bytes in [8, 4096] {
                let took = (1..=100).map(|us| us * 1000).collect();
                path.round_trips.push(RoundTrip::of(bytes, wait.name(), took));
                path.throughput.push(Throughput::of(bytes, wait.name(), 2e9, 1.5e9));
            }
        }
        let mut text = String::new();
        path.write(&mut text);
        assert!(text.contains("  content: yes\n  swap: NO, it found 1\n"), "{text}");
        let row = |size: &str| text.lines().filter(|line| line.trim_start().starts_with(size)).count();
        assert_eq!((row("8 B"), row("4 KiB")), (2, 2), "{text}");
        assert!(text.contains("51.0 100") && text.contains("2.00G 1.50G"), "{text}");
    }
}
