//! `caravan bench compare`: shows how the engine's benchmarks have changed between two runs.

use std::fmt::Write;
use std::path::Path;

use serde::Serialize;

use crate::args::Compare;
use crate::error::Error;
use crate::history::{HistoryHost, HistoryLine};
use crate::number::number;
use crate::stats::{SampleSummary, holm, least_p, p_value};
use crate::{history, output};

/// Compares two runs of the history and prints the table, or the JSON.
pub fn run(args: &Compare) -> Result<(), Error> {
    let lines = history::read(&args.history)?;
    let (a, b) =
        RunHistory::of(&lines).pair(args.a.as_deref(), args.b.as_deref()).map_err(Error::Sentence)?;
    let comparison = Comparison::of(&a, &b, args.threshold / 100.0, args.alpha);
    if args.json {
        output::json(&comparison, Path::new("-"))?;
    } else {
        output::table(&comparison.text(), Path::new(""))?;
    }
    match comparison.regressions() {
        0 => Ok(()),
        count if args.fail_on_regression => Err(Error::Regressions(count)),
        _ => Ok(()),
    }
}

/// One run of the history.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ComparedRun {
    /// The run's number in the history, from 1.
    pub run: usize,
    pub date: String,
    pub commit: String,
    pub machine: HistoryHost,
    #[serde(skip)]
    pub lines: Vec<HistoryLine>,
}

impl ComparedRun {
    /// True if both have samples of the same benchmark in the same placement.
    fn shares(&self, other: &Self) -> bool {
        self.lines.iter().any(|line| other.lines.iter().any(|theirs| key(line) == key(theirs)))
    }
}

/// Returns what two lines must share to be compared.
pub fn key(line: &HistoryLine) -> (&str, &str) {
    (&line.benchmark, &line.placement)
}

/// All runs of a history, in the order in which they were written.
#[derive(Clone, Debug, Default)]
pub struct RunHistory(Vec<ComparedRun>);

impl RunHistory {
    pub fn of(lines: &[HistoryLine]) -> Self {
        let mut runs: Vec<ComparedRun> = Vec::new();
        for line in lines {
            match runs.iter_mut().find(|run| run.lines[0].run == line.run) {
                Some(run) => run.lines.push(line.clone()),
                None => runs.push(ComparedRun {
                    run: runs.len() + 1,
                    date: line.date.clone(),
                    commit: line.commit.clone().unwrap_or_else(|| "unknown commit".into()),
                    machine: line.machine.clone(),
                    lines: vec![line.clone()],
                }),
            }
        }
        Self(runs)
    }

    /// Returns the runs called `a` and `b`. Without `b`, takes the last run; without `a`, the last one before `b` on
    /// the same machine that shares a benchmark with it. The error is a sentence.
    pub fn pair(&self, a: Option<&str>, b: Option<&str>) -> Result<(ComparedRun, ComparedRun), String> {
        let b = match (b, self.0.last()) {
            (Some(name), _) => self.find(name)?,
            (None, Some(last)) => last,
            (None, None) => return Err("the history has no run: `caravan bench engine` adds one".into()),
        };
        let a = match a {
            Some(name) => self.find(name)?,
            None => {
                let earlier = self.0[..b.run - 1].iter().rev();
                let mut alike = earlier.filter(|run| run.machine.same(&b.machine) && run.shares(b));
                alike.next().ok_or_else(|| {
                    format!(
                        "before run {} there is none on the same machine with a benchmark in the same \
                         placement: run `caravan bench engine` again, or name two runs",
                        b.run
                    )
                })?
            }
        };
        match () {
            () if a.run == b.run => Err(format!("run {} would be compared with itself", a.run)),
            () if !a.shares(b) => {
                Err(format!("runs {} and {} have no benchmark in the same placement in common", a.run, b.run))
            }
            () => Ok((a.clone(), b.clone())),
        }
    }

    /// Finds a run by its number from the first (1) or from the last (-1), or by the start of its commit or date; the
    /// last run that fits.
    fn find(&self, name: &str) -> Result<&ComparedRun, String> {
        let starts = |run: &&ComparedRun| run.commit.starts_with(name) || run.date.starts_with(name);
        if let Some(run) = self.0.iter().rev().find(starts).filter(|_| !is_small(name)) {
            return Ok(run);
        }
        let place = name.parse::<i64>().ok().and_then(|number| match number {
            0 => None,
            1.. => usize::try_from(number - 1).ok(),
            _ => self.0.len().checked_sub(usize::try_from(number.unsigned_abs()).ok()?),
        });
        place.and_then(|place| self.0.get(place)).ok_or_else(|| {
            format!(
                "no run of {} in the history is called {name}: give its number (1 is the first, -1 the \
                 last), or the start of its commit or date",
                self.0.len()
            )
        })
    }
}

/// True if a number is too short for a commit: then it counts runs.
fn is_small(name: &str) -> bool {
    name.len() < 4 && name.parse::<i64>().is_ok()
}

/// The version of the format, which changes when a reader of the JSON has to.
const SCHEMA: &str = "caravan-bench-compare/1";

/// The result for a benchmark. Less is better in every unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    Regression,
    Improvement,
    Same,
    /// There are too few samples to tell, whatever their values.
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
pub struct ComparedRow {
    pub benchmark: String,
    pub placement: String,
    pub unit: String,
    pub a: SampleSummary,
    pub b: SampleSummary,
    /// The relative change of the median: 0.1 means that `b` is 10 % greater.
    pub change: f64,
    /// The probability that chance separates the samples so far, for this benchmark alone.
    pub p: f64,
    /// The same probability, corrected for the number of benchmarks.
    pub p_corrected: f64,
    pub verdict: Verdict,
}

#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    pub schema: &'static str,
    pub a: ComparedRun,
    pub b: ComparedRun,
    pub same_machine: bool,
    pub threshold: f64,
    pub alpha: f64,
    pub rows: Vec<ComparedRow>,
    /// The number of lines that only one of the runs has.
    pub unmatched: usize,
}

impl Comparison {
    /// Compares two runs; `threshold` is a fraction, 0.03 for 3 %.
    pub fn of(a: &ComparedRun, b: &ComparedRun, threshold: f64, alpha: f64) -> Self {
        let mut rows: Vec<ComparedRow> = Vec::new();
        for line in &b.lines {
            let earlier = a.lines.iter().find(|other| key(other) == key(line));
            let samples = earlier.and_then(|earlier| {
                Some((SampleSummary::of(earlier.samples.clone())?, SampleSummary::of(line.samples.clone())?))
            });
            let Some((before, after)) = samples else { continue };
            let p = p_value(&before.samples, &after.samples);
            rows.push(ComparedRow {
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
            // The probability that the most different samples would have, corrected like this one.
            let least = least_p(row.a.samples.len(), row.b.samples.len()) * count;
            row.verdict = verdict(row.change, corrected, least, threshold, alpha);
        }
        let unmatched = a.lines.len() + b.lines.len() - 2 * rows.len();
        let same_machine = a.machine.same(&b.machine);
        let (a, b) = (a.clone(), b.clone());
        Self { schema: SCHEMA, a, b, same_machine, threshold, alpha, rows, unmatched }
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
        let head = ["", "", "", "A", "B", "B to A", "p", "verdict"].map(str::to_owned).to_vec();
        let cell =
            |summary: &SampleSummary| format!("{} ({})", number(summary.median), summary.samples.len());
        let row = |row: &ComparedRow| {
            vec![
                row.benchmark.clone(),
                row.placement.clone(),
                row.unit.clone(),
                cell(&row.a),
                cell(&row.b),
                format!("{:+.1}%", row.change * 100.0),
                probability(row.p_corrected),
                row.verdict.word().to_owned(),
            ]
        };
        let rows: Vec<_> = [head].into_iter().chain(self.rows.iter().map(row)).collect();
        text += &output::aligned(&rows);
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

fn verdict(change: f64, p: f64, least: f64, threshold: f64, alpha: f64) -> Verdict {
    match () {
        () if least > alpha => Verdict::TooFew,
        () if p > alpha || change.abs() < threshold => Verdict::Same,
        () if change > 0.0 => Verdict::Regression,
        () => Verdict::Improvement,
    }
}

/// Formats a probability, never as 0.
fn probability(p: f64) -> String {
    if p < 0.0001 { "<0.0001".into() } else { format!("{p:.4}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::tests::line;

    /// Returns runs 1 to 5; the third is on another machine, the fourth is of another benchmark.
    fn runs() -> RunHistory {
        RunHistory::of(&[
            line("2026-01-01", "aaaa1", 2, "swap", &[1.0]),
            line("2026-01-02", "bbbb2", 2, "swap", &[2.0]),
            line("2026-01-02", "bbbb2", 2, "basic1/60", &[2.0]),
            line("2026-01-03", "1234567", 4, "swap", &[3.0]),
            line("2026-01-04", "dddd4", 2, "recovery", &[4.0]),
            line("2026-01-05", "aaaa1-dirty", 2, "swap", &[5.0]),
        ])
    }

    #[test]
    fn runs_are_chosen_as_they_are_called() {
        for (a, b, expected) in [
            (None, None, Ok((2, 5))),
            (Some("-4"), None, Ok((2, 5))),
            (Some("1"), None, Ok((1, 5))),
            (Some("1"), Some("2"), Ok((1, 2))),
            (Some("bbbb"), Some("aaaa1"), Ok((2, 5))),
            (Some("2026-01-01"), Some("2026-01-02"), Ok((1, 2))),
            (Some("1234567"), Some("5"), Ok((3, 5))),
            (None, Some("2"), Ok((1, 2))),
            (None, Some("1"), Err("before run 1 there is none")),
            (None, Some("4"), Err("before run 4 there is none")),
            (Some("1"), Some("4"), Err("no benchmark in the same placement")),
            (Some("5"), Some("-1"), Err("compared with itself")),
            (Some("0"), None, Err("is called 0")),
            (Some("9"), None, Err("no run of 5 in the history is called 9")),
            (Some("cccc"), None, Err("is called cccc")),
        ] {
            let found = runs().pair(a, b).map(|(a, b)| (a.run, b.run));
            match (found, expected) {
                (Ok(found), Ok(expected)) => assert_eq!(found, expected, "{a:?} {b:?}"),
                (Err(text), Err(expected)) => assert!(text.contains(expected), "{a:?} {b:?}: {text}"),
                (found, _) => panic!("{a:?} {b:?}: {found:?}"),
            }
        }
        let none = RunHistory::of(&[]).pair(None, None).expect_err("nothing");
        assert!(none.contains("caravan bench engine"), "{none}");
    }

    /// Returns nine samples near `median`.
    fn about(median: f64) -> Vec<f64> {
        (0..9).map(|n| median * (1.0 + f64::from(n - 4) * 0.002)).collect()
    }

    fn compare(rows: &[(&str, Vec<f64>, Vec<f64>)]) -> Comparison {
        let before = rows.iter().map(|(name, a, _)| line("2026-01-01", "aaaa", 2, name, a));
        let after = rows.iter().map(|(name, _, b)| line("2026-01-02", "bbbb", 2, name, b));
        let runs = RunHistory::of(&before.chain(after).collect::<Vec<_>>());
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
        // Alone, p is 0.0078: nine samples, of which a few overlap.
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
}
