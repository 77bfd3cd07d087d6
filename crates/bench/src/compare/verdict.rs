//! What two runs' samples say: better, worse, or the same.

use std::fmt::Write;

use serde::Serialize;

use super::mann_whitney::{holm, least_p, p_value};
use super::runs::{Run, key};
use crate::number::number;
use crate::stats::Summary;

/// Changes when a reader of the JSON would have to.
const SCHEMA: &str = "caravan-bench-compare/1";

/// What became of a benchmark. Less is better in every unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    Regression,
    Improvement,
    Same,
    /// So few samples cannot tell, whatever they are.
    TooFew,
}

impl Verdict {
    fn word(self) -> &'static str {
        match self {
            Self::Regression => "REGRESSION",
            Self::Improvement => "improvement",
            Self::Same => "same",
            Self::TooFew => "too few samples",
        }
    }
}

/// One benchmark in one placement.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    pub benchmark: String,
    pub placement: String,
    pub unit: String,
    pub a: Summary,
    pub b: Summary,
    /// How much more the second's median is: 0.1 is 10 % more.
    pub change: f64,
    /// The probability that chance parts the samples so, looked at alone.
    pub p: f64,
    /// The same for one benchmark among all of these.
    pub p_corrected: f64,
    pub verdict: Verdict,
}

#[derive(Clone, Debug, Serialize)]
pub struct Side {
    pub run: usize,
    pub date: String,
    pub commit: String,
    pub machine: String,
}

#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    pub schema: &'static str,
    pub a: Side,
    pub b: Side,
    pub same_machine: bool,
    pub threshold: f64,
    pub alpha: f64,
    pub rows: Vec<Row>,
    /// What only one of them has.
    pub unmatched: usize,
}

impl Comparison {
    /// `threshold` as a part, 0.03 for 3 %.
    pub fn of(a: &Run, b: &Run, threshold: f64, alpha: f64) -> Self {
        let mut rows: Vec<Row> = Vec::new();
        for line in &b.lines {
            let earlier = a.lines.iter().find(|other| key(other) == key(line));
            let samples = earlier.and_then(|earlier| {
                Some((Summary::of(earlier.samples.clone())?, Summary::of(line.samples.clone())?))
            });
            let Some((before, after)) = samples else { continue };
            let p = p_value(&before.samples, &after.samples);
            rows.push(Row {
                benchmark: line.benchmark.clone(),
                placement: line.placement.clone(),
                unit: line.unit.clone(),
                change: after.median / before.median - 1.0,
                a: before,
                b: after,
                p,
                p_corrected: p,
                verdict: Verdict::Same,
            });
        }
        let corrected = holm(&rows.iter().map(|row| row.p).collect::<Vec<_>>());
        let count = rows.len() as f64;
        for (row, corrected) in rows.iter_mut().zip(corrected) {
            row.p_corrected = corrected;
            // What the most different samples could show, were it the only difference.
            let least = least_p(row.a.samples.len(), row.b.samples.len()) * count;
            row.verdict = verdict(row.change, corrected, least, threshold, alpha);
        }
        let unmatched = a.lines.len() + b.lines.len() - 2 * rows.len();
        let same_machine = a.same_machine(b);
        Self { schema: SCHEMA, a: side(a), b: side(b), same_machine, threshold, alpha, rows, unmatched }
    }

    pub fn regressions(&self) -> usize {
        self.rows.iter().filter(|row| row.verdict == Verdict::Regression).count()
    }

    pub fn text(&self) -> String {
        let mut text = String::new();
        // Writing into a String cannot fail.
        for (letter, side) in [('A', &self.a), ('B', &self.b)] {
            let _ = writeln!(text, "{letter}: run {}, {}, {}", side.run, side.date, side.commit);
        }
        let _ = writeln!(text, "{}", self.b.machine);
        if !self.same_machine {
            let _ =
                writeln!(text, "A is of ANOTHER MACHINE, {}: only ratios mean something.", self.a.machine);
        }
        let _ = writeln!(
            text,
            "Medians (samples); less is better. p: Mann-Whitney U, two-sided, corrected for {} benchmarks (Holm); a \
             change has p below {} and is {} % or more.\n",
            self.rows.len(),
            self.alpha,
            number(self.threshold * 100.0)
        );
        let _ = writeln!(
            text,
            "{:<28}{:<6}{:<6}{:>16}{:>16}{:>9}{:>9}  verdict",
            "", "", "", "A", "B", "B to A", "p"
        );
        for row in &self.rows {
            let cell = |summary: &Summary| format!("{} ({})", number(summary.median), summary.samples.len());
            let _ = writeln!(
                text,
                "{:<28}{:<6}{:<6}{:>16}{:>16}{:>+8.1}%{:>9}  {}",
                row.benchmark,
                row.placement,
                row.unit,
                cell(&row.a),
                cell(&row.b),
                row.change * 100.0,
                probability(row.p_corrected),
                row.verdict.word()
            );
        }
        let count = |verdict| self.rows.iter().filter(|row| row.verdict == verdict).count();
        let _ = writeln!(
            text,
            "\n{} worse, {} better, {} the same, {} with too few samples; {} in one of the runs alone",
            self.regressions(),
            count(Verdict::Improvement),
            count(Verdict::Same),
            count(Verdict::TooFew),
            self.unmatched
        );
        text
    }
}

fn side(run: &Run) -> Side {
    Side { run: run.number, date: run.date().into(), commit: run.commit().into(), machine: run.machine() }
}

fn verdict(change: f64, p: f64, least: f64, threshold: f64, alpha: f64) -> Verdict {
    match () {
        () if least > alpha => Verdict::TooFew,
        () if p > alpha || change.abs() < threshold => Verdict::Same,
        () if change > 0.0 => Verdict::Regression,
        () => Verdict::Improvement,
    }
}

/// Never as 0.
fn probability(p: f64) -> String {
    if p < 0.0001 { "<0.0001".into() } else { format!("{p:.4}") }
}

#[cfg(test)]
mod tests {
    use super::super::runs::Runs;
    use super::*;
    use crate::engine::history::tests::line;

    /// Nine samples about `median`, near each other.
    fn about(median: f64) -> Vec<f64> {
        (0..9).map(|n| median * (1.0 + f64::from(n - 4) * 0.002)).collect()
    }

    fn compare(rows: &[(&str, Vec<f64>, Vec<f64>)]) -> Comparison {
        let before = rows.iter().map(|(name, a, _)| line("2026-01-01", "aaaa", 2, name, a));
        let after = rows.iter().map(|(name, _, b)| line("2026-01-02", "bbbb", 2, name, b));
        let runs = Runs::of(&before.chain(after).collect::<Vec<_>>());
        let (a, b) = runs.pair(None, None).expect("two runs");
        Comparison::of(&a, &b, 0.03, 0.01)
    }

    #[test]
    fn a_verdict_needs_both_a_size_and_a_probability() {
        let wide = || vec![50.0, 150.0, 90.0, 80.0, 130.0, 100.0, 110.0, 70.0, 120.0];
        for (what, a, b, expected) in [
            ("10 % more, clearly", about(100.0), about(110.0), Verdict::Regression),
            ("10 % less, clearly", about(100.0), about(90.0), Verdict::Improvement),
            ("nothing", about(100.0), about(100.0), Verdict::Same),
            ("2 % more, clearly: too little to matter", about(100.0), about(102.0), Verdict::Same),
            ("10 % more, within the noise", wide(), wide().iter().map(|n| n * 1.1).collect(), Verdict::Same),
            ("twice, of three samples", vec![1.0, 1.1, 1.2], vec![2.0, 2.1, 2.2], Verdict::TooFew),
        ] {
            let comparison = compare(&[("swap", a, b)]);
            assert_eq!(comparison.rows[0].verdict, expected, "{what}: {:?}", comparison.rows[0]);
            assert_eq!(comparison.regressions(), usize::from(expected == Verdict::Regression));
        }
    }

    #[test]
    fn chance_is_corrected_for_the_number_of_benchmarks() {
        // Alone p is 0.0078: nine samples of which a few overlap.
        let a: Vec<f64> = (0..9).map(f64::from).map(|n| 100.0 + n).collect();
        let b: Vec<f64> = (0..9).map(f64::from).map(|n| 105.5 + n).collect();
        let alone = compare(&[("swap", a.clone(), b.clone())]);
        assert_eq!(alone.rows[0].verdict, Verdict::Regression, "{:?}", alone.rows[0]);
        let names: Vec<_> = (0..20).map(|n| format!("same/{n}")).collect();
        let rows = names.iter().map(|name| (name.as_str(), about(1.0), about(1.0)));
        let many: Vec<_> = rows.chain([("swap", a, b)]).collect();
        let many = compare(&many);
        let row = many.rows.last().expect("a row");
        assert_eq!((row.p, row.verdict), (alone.rows[0].p, Verdict::Same), "{row:?}");
    }

    #[test]
    fn the_table_names_runs_benchmarks_and_verdicts() {
        let comparison =
            compare(&[("swap", about(100.0), about(110.0)), ("tunnel/60", about(7.0), about(7.0))]);
        let text = comparison.text();
        for expected in [
            "A: run 1, 2026-01-01, aaaa",
            "B: run 2, 2026-01-02, bbbb",
            "100 (9)",
            "110 (9)",
            "+10.0%",
            "REGRESSION",
            "1 worse, 0 better, 1 the same, 0 with too few samples; 0 in one of the runs alone",
        ] {
            assert!(text.contains(expected), "{expected}: {text}");
        }
        let row = text.lines().find(|line| line.starts_with("tunnel/60")).expect("a row");
        assert!(row.ends_with("1.0000  same") && row.contains("+0.0%"), "{row}");
    }

    #[test]
    fn another_machine_is_said_to_be_one() {
        let lines = [line("1", "aaaa", 2, "swap", &about(1.0)), line("2", "bbbb", 4, "swap", &about(2.0))];
        let (a, b) = Runs::of(&lines).pair(Some("1"), Some("2")).expect("two runs");
        let text = Comparison::of(&a, &b, 0.03, 0.01).text();
        assert!(text.contains("ANOTHER MACHINE, 2 x P"), "{text}");
    }
}
