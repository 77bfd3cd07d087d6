//! What was found, as one table, as sentences that show the arithmetic, and as JSON.

use std::fmt::Write;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use super::cap::NamedCap;
use super::model::{self, Bound, LimitCell, RequestLatency, RequestModel};
use super::unit::{block, rate, time};
use crate::output::aligned;

/// The version of the JSON, which changes when a reader of the file has to.
pub const SCHEMA: &str = "caravan-limits/1";
/// A prediction is called right if the measurement is no farther from it.
const RIGHT: f64 = 0.2;
const HEADINGS: [&str; 9] =
    ["", "latency p50", "p99", "IOPS", "block", "parallel", "bandwidth", "predicted", "cap"];

/// Everything that one run found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LimitsReport {
    pub schema: String,
    pub caravan: String,
    pub date: String,
    /// The machine in one line.
    pub machine: String,
    pub rows: Vec<LimitRow>,
    /// What a reader has to know beside the figures.
    pub notes: Vec<String>,
}

/// One thing that serves requests: a cache, a disk in one pattern of access, a camel.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LimitRow {
    pub what: String,
    /// Of the smallest request alone.
    pub latency: Option<RequestLatency>,
    pub model: RequestModel,
    /// The block and the parallelism at which the bandwidth is shown: the knee, where there is one.
    pub block_bytes: f64,
    pub parallel: f64,
    /// The measured bandwidth there; `None` in a row of mere arithmetic.
    pub bytes_per_s: Option<f64>,
    pub predicted_bytes_per_s: f64,
    pub cap: Option<NamedCap>,
    pub cells: Vec<LimitCell>,
    #[serde(skip)]
    pub digits: Digits,
}

/// The significant digits of a row's figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Digits {
    pub requests: usize,
    pub bandwidth: usize,
}

impl Digits {
    pub const fn all(digits: usize) -> Self {
        Self { requests: digits, bandwidth: digits }
    }
}

impl Default for Digits {
    fn default() -> Self {
        Self::all(3)
    }
}

impl LimitRow {
    /// A row of arithmetic alone.
    pub fn predicted(what: &str, model: RequestModel, block: f64, parallel: f64, digits: Digits) -> Self {
        Self {
            what: what.to_owned(),
            latency: None,
            model,
            block_bytes: block,
            parallel,
            bytes_per_s: None,
            predicted_bytes_per_s: model.predict(block, parallel).bytes_per_s,
            cap: None,
            cells: Vec::new(),
            digits,
        }
    }

    /// A row of measured cells, whose predictions this fills in. `None` if there are no cells.
    pub fn measured(
        what: String,
        model: RequestModel,
        mut cells: Vec<LimitCell>,
        cap: Option<NamedCap>,
    ) -> Option<Self> {
        for cell in &mut cells {
            cell.predicted_bytes_per_s =
                model.predict(cell.block_bytes as f64, cell.parallel as f64).bytes_per_s;
        }
        let first = cells.iter().min_by_key(|cell| (cell.parallel, cell.block_bytes))?;
        let knee = model::knee(&cells)?;
        Some(Self {
            what,
            latency: first.latency,
            model,
            block_bytes: knee.block_bytes as f64,
            parallel: knee.parallel as f64,
            bytes_per_s: Some(knee.bytes_per_s),
            predicted_bytes_per_s: knee.predicted_bytes_per_s,
            cap,
            digits: Digits::default(),
            cells,
        })
    }

    /// Returns the smallest block of the row.
    fn smallest(&self) -> f64 {
        let least = self.cells.iter().map(|cell| cell.block_bytes).min();
        least.map_or(self.block_bytes, |bytes| bytes as f64)
    }

    /// Returns the seconds of one small request alone.
    pub fn latency_s(&self) -> f64 {
        self.latency.map_or_else(|| self.model.latency_s(self.smallest()), |latency| latency.p50_s)
    }

    /// Returns the words of the row in the table.
    pub fn cells_of_table(&self) -> Vec<String> {
        let bandwidth = |value| rate(value, "B/s", self.digits.bandwidth);
        let dash = || "-".to_owned();
        vec![
            self.what.clone(),
            time(self.latency_s()),
            self.latency.map_or_else(dash, |latency| time(latency.p99_s)),
            rate(1.0 / self.latency_s(), "IOPS", self.digits.requests),
            block(self.block_bytes),
            self.parallel.to_string(),
            self.bytes_per_s.map_or_else(dash, bandwidth),
            bandwidth(self.predicted_bytes_per_s),
            self.cap.as_ref().map_or_else(dash, |cap| cap.kind.name().to_owned()),
        ]
    }

    /// Returns the arithmetic in sentences.
    pub fn explanation(&self) -> String {
        let (model, digits) = (&self.model, self.digits);
        let bandwidth = |value| rate(value, "B/s", digits.bandwidth);
        let latency_s = model.latency_s(self.block_bytes);
        let requests = 1.0 / latency_s;
        let mut text = format!("{}\n", self.what);
        let mut line = |words: String| {
            // Writing into a String cannot fail.
            let _ = writeln!(text, "  {words}");
        };
        if model.byte_s > 0.0 {
            line(format!(
                "{} of access + {} at {} = {} a request",
                time(model.access_s),
                block(self.block_bytes),
                rate(1.0 / model.byte_s, "B/s", 3),
                time(latency_s)
            ));
        }
        line(format!(
            "1 / {} = {}; x {} = {}; x {} in parallel = {}",
            time(latency_s),
            rate(requests, "IOPS", digits.requests),
            block(self.block_bytes),
            bandwidth(requests * self.block_bytes),
            self.parallel,
            bandwidth(requests * self.block_bytes * self.parallel)
        ));
        let prediction = model.predict(self.block_bytes, self.parallel);
        match (prediction.bound, model.requests_cap, model.bytes_cap) {
            (Bound::Requests, Some(cap), _) => line(format!(
                "the most requests are {}, and so the most bytes of this block {}",
                rate(cap, "IOPS", 3),
                bandwidth(prediction.bytes_per_s)
            )),
            (Bound::Bytes, _, Some(cap)) => line(format!("the most bytes are {}", bandwidth(cap))),
            _ => {}
        }
        if let Some(measured) = self.bytes_per_s {
            let deviation = measured / self.predicted_bytes_per_s - 1.0;
            line(format!("measured: {} ({:+.0} %)", bandwidth(measured), deviation * 100.0));
        }
        let (right, all) = self.right();
        if all > 0 {
            line(format!("below the knee, {right} of {all} predictions are within 20 % of the measurement"));
        }
        if let Some(cap) = &self.cap {
            line(format!("cap: {}: {}", cap.kind.name(), cap.why));
        }
        text
    }

    /// Returns how many predictions below the knee are right, and how many there are.
    pub fn right(&self) -> (usize, usize) {
        let below: Vec<_> = model::below_knee(&self.cells).collect();
        (below.iter().filter(|cell| cell.deviation().abs() <= RIGHT).count(), below.len())
    }
}

/// What was found of one kind of thing, and what has to be said beside it.
#[derive(Debug, Default)]
pub struct Findings {
    pub rows: Vec<LimitRow>,
    pub notes: Vec<String>,
}

impl LimitsReport {
    /// Begins a report of now.
    pub fn begin(rows: Vec<LimitRow>) -> Self {
        Self {
            schema: SCHEMA.to_owned(),
            caravan: env!("CARGO_PKG_VERSION").to_owned(),
            date: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
            machine: String::new(),
            rows,
            notes: Vec::new(),
        }
    }

    pub fn add(&mut self, found: Findings) {
        self.rows.extend(found.rows);
        self.notes.extend(found.notes);
    }

    /// Returns the table, with the arithmetic below it if that is wanted.
    pub fn text(&self, explain: bool) -> String {
        let headings = HEADINGS.map(str::to_owned).to_vec();
        let rows: Vec<_> =
            [headings].into_iter().chain(self.rows.iter().map(LimitRow::cells_of_table)).collect();
        let mut text = aligned(&rows);
        if explain {
            let all: Vec<_> = self.rows.iter().map(LimitRow::explanation).collect();
            text += &format!("\n{}", all.join("\n"));
        }
        let counts = self.rows.iter().map(LimitRow::right);
        let (right, all) = counts.fold((0, 0), |sum, row| (sum.0 + row.0, sum.1 + row.1));
        if all > 0 {
            text += &format!(
                "\nBelow the knees, {right} of {all} predictions are within 20 % of the measurement.\n"
            );
        }
        for note in &self.notes {
            text += &format!("{note}\n");
        }
        if !self.machine.is_empty() {
            text += &format!("{}\n", self.machine);
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::super::model::tests::grid;
    use super::*;

    fn row() -> LimitRow {
        let model = RequestModel::fitted((512, 1e-4), (8 << 20, 9e-3), 1e5, 1.5e9);
        let cells = grid(&model, 15, 9);
        LimitRow::measured("a disk".into(), model, cells, None).expect("cells")
    }

    #[test]
    fn a_row_shows_its_knee_and_counts_its_predictions() {
        let mut row = row();
        let (right, all) = row.right();
        assert!(right == all && all > 0);
        row.cells[0].bytes_per_s *= 1.5;
        assert_eq!(row.right(), (right - 1, all));
        let text = row.explanation();
        assert!(text.contains("the most bytes are 1.5 GB/s") && text.contains("measured: "), "{text}");
    }

    #[test]
    fn a_report_is_read_as_it_was_written() {
        let report = LimitsReport {
            schema: SCHEMA.into(),
            caravan: "0".into(),
            date: "now".into(),
            machine: "here".into(),
            rows: vec![row()],
            notes: vec!["a note".into()],
        };
        let json = serde_json::to_string(&report).expect("JSON");
        let read: LimitsReport = serde_json::from_str(&json).expect("read");
        let lengths = |report: &LimitsReport| (report.rows[0].cells.len(), report.text(true));
        assert_eq!(lengths(&read), lengths(&report));
    }
}
