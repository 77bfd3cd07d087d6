//! The one shape of all benchmarks: cases, whose contenders take turns and yield samples of named figures; and the
//! table, the JSON and the chart that are drawn from them.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Serialize;
use serde_json::Value;

use crate::args::ResultFiles;
use crate::chart::{Bar, BarChart, BarGroup};
use crate::error::Error;
use crate::history::HistoryRun;
use crate::interrupt::Interrupt;
use crate::machine::Machine;
use crate::number::number;
use crate::output::{self, BenchProgress};
use crate::placement::{self, CorePair};
use crate::stats::{SampleSummary, p_value};

/// The version of the JSON, which changes when a reader of the file has to.
const SCHEMA: &str = "caravan-bench/1";
/// The number of times in a row that the cores may move during a round.
const MOVED_MAX: usize = 20;
/// A ratio is marked if chance alone is as probable as this.
const CHANCE: f64 = 0.01;

/// A figure that the contenders of a case yield.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Figure {
    pub key: &'static str,
    /// The heading of its column, which contains its unit.
    pub heading: &'static str,
    #[serde(skip)]
    pub shown: Shown,
}

/// How a figure is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shown {
    /// In the chart, and in the table as with `Spread`.
    Chart,
    /// In the table: the median, the least and the greatest, and the ratio.
    Spread,
    /// In the table: the median.
    Median,
}

impl Figure {
    pub const fn new(key: &'static str, heading: &'static str, shown: Shown) -> Self {
        Self { key, heading, shown }
    }
}

/// A value of a figure, from one run of a contender.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    pub figure: &'static str,
    pub value: f64,
}

impl Sample {
    pub fn new(figure: &'static str, value: f64) -> Self {
        Self { figure, value }
    }
}

/// What is measured in turn with others: Caravan in one way, or a peer.
#[derive(Clone, Debug, Serialize)]
pub struct Contender {
    pub key: String,
    pub title: String,
    /// The index of its colour in the chart: [`CARAVAN`](crate::chart::CARAVAN) and so on.
    #[serde(skip)]
    pub colour: usize,
}

impl Contender {
    pub fn new(key: impl Into<String>, title: impl Into<String>, colour: usize) -> Self {
        Self { key: key.into(), title: title.into(), colour }
    }
}

/// The contender to which the ratios of the others are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RatioTo {
    First,
    /// The one on the line above.
    Previous,
}

/// A figure that should be reached.
#[derive(Clone, Debug)]
pub struct Goal {
    pub text: String,
    pub contender: String,
    pub figure: &'static str,
    /// The contender to which the ratio counts, in the same round; `None` if the figure itself counts.
    pub ratio_to: Option<String>,
    pub bound: Bound,
    /// The only placement in which the goal applies, if it depends on it.
    pub placement: Option<&'static str>,
}

/// The median that a goal asks for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Bound {
    AtLeast(f64),
    Below(f64),
}

/// One thing to measure, and its rounds so far.
#[derive(Clone, Debug)]
pub struct BenchCase {
    pub key: String,
    /// The heading of its table. Neighbours of the same title share a table.
    pub title: String,
    pub figures: &'static [Figure],
    pub contenders: Vec<Contender>,
    pub ratio_to: RatioTo,
    pub goals: Vec<Goal>,
    /// The cores of its two processes, if its figures depend on their distance.
    pub pair: Option<CorePair>,
    pub rounds: Vec<CaseRound>,
    /// The number of rounds that were repeated because the cores moved.
    pub moved: usize,
}

/// One round: the samples of each contender, all taken in one placement.
#[derive(Clone, Debug)]
pub struct CaseRound {
    placement: Option<&'static str>,
    line_ns: Option<f64>,
    samples: Vec<Vec<Sample>>,
}

/// A run of a contender, by its place in the list of cases and in its case.
#[derive(Clone, Copy, Debug)]
pub struct CaseTurn {
    pub case: usize,
    pub contender: usize,
}

/// Returns the places of `count` contenders in the order of a round: each comes first as often as last, so a machine
/// that grows slower favours none.
pub fn order(count: usize, round: usize) -> impl Iterator<Item = usize> {
    (0..count).map(move |place| if round % 2 == 0 { place } else { count - 1 - place })
}

/// Lets all contenders of all cases take turns, until each case has `rounds` rounds in one placement. `once` runs a
/// contender once.
pub fn measure(
    cases: &mut [BenchCase],
    rounds: usize,
    interrupt: &Interrupt,
    mut once: impl FnMut(CaseTurn) -> Result<Vec<Sample>, Error>,
) -> Result<(), Error> {
    let contenders = cases.iter().map(|case| case.contenders.len()).sum::<usize>();
    let mut progress = BenchProgress::new(contenders * rounds);
    let name = if let [case] = cases { format!("{}: ", case.key) } else { String::new() };
    for number in 0.. {
        let unfinished = cases.iter_mut().enumerate().filter(|(_, case)| case.most_rounds() < rounds);
        let mut unfinished = unfinished.peekable();
        if unfinished.peek().is_none() {
            break;
        }
        progress.round(format!("{name}round {} of {rounds}", number + 1));
        for (case, measured) in unfinished {
            let titles: Vec<_> = measured.contenders.iter().map(|one| one.title.clone()).collect();
            measured.round(number, |contender| {
                progress.step(&titles[contender]);
                interrupt.check()?;
                once(CaseTurn { case, contender })
            })?;
        }
    }
    Ok(())
}

impl BenchCase {
    pub fn new(
        key: impl Into<String>,
        title: impl Into<String>,
        figures: &'static [Figure],
        contenders: Vec<Contender>,
    ) -> Self {
        Self {
            key: key.into(),
            title: title.into(),
            figures,
            contenders,
            ratio_to: RatioTo::First,
            goals: Vec::new(),
            pair: None,
            rounds: Vec::new(),
            moved: 0,
        }
    }

    /// Adds a round in which the placement of cores does not matter: the samples of each contender.
    pub fn add(&mut self, samples: Vec<Vec<Sample>>) {
        self.rounds.push(CaseRound { placement: None, line_ns: None, samples });
    }

    /// Measures one round, and repeats it while the cores move from near to far or back.
    fn round(
        &mut self,
        number: usize,
        mut once: impl FnMut(usize) -> Result<Vec<Sample>, Error>,
    ) -> Result<(), Error> {
        let Some(pair) = self.pair else {
            self.add(self.samples(number, once)?);
            return Ok(());
        };
        for _ in 0..MOVED_MAX {
            let before = placement::line_ns(pair)?;
            let samples = self.samples(number, &mut once)?;
            let after = placement::line_ns(pair)?;
            let placement = placement::word(before);
            if placement == placement::word(after) {
                let line_ns = Some(before.min(after));
                self.rounds.push(CaseRound { placement: Some(placement), line_ns, samples });
                return Ok(());
            }
            self.moved += 1;
        }
        Err(Error::Unsteady(pair, MOVED_MAX))
    }

    fn samples(
        &self,
        round: usize,
        mut once: impl FnMut(usize) -> Result<Vec<Sample>, Error>,
    ) -> Result<Vec<Vec<Sample>>, Error> {
        let mut samples = vec![Vec::new(); self.contenders.len()];
        for place in order(samples.len(), round) {
            samples[place] = once(place)?;
        }
        Ok(samples)
    }

    fn rounds_in(&self, placement: Option<&'static str>) -> impl Iterator<Item = &CaseRound> {
        self.rounds.iter().filter(move |round| round.placement == placement)
    }

    /// Returns the number of rounds in the placement that has most.
    fn most_rounds(&self) -> usize {
        placement::ALL.map(|placement| self.rounds_in(placement).count()).into_iter().max().unwrap_or(0)
    }

    /// Summarizes the rounds, apart for each placement.
    fn results(&self) -> impl Iterator<Item = CaseResult> {
        let with_rounds = |placement: &Option<&'static str>| self.rounds_in(*placement).next().is_some();
        placement::ALL.into_iter().filter(with_rounds).map(|placement| self.result(placement))
    }

    fn result(&self, placement: Option<&'static str>) -> CaseResult {
        let mut contenders: Vec<ContenderResult> = Vec::new();
        for (place, contender) in self.contenders.iter().enumerate() {
            let base = match self.ratio_to {
                RatioTo::First => contenders.first(),
                RatioTo::Previous => contenders.last(),
            };
            let mut figures = BTreeMap::new();
            for &Figure { key, .. } in self.figures {
                let samples = self.rounds_in(placement).flat_map(|round| &round.samples[place]);
                let samples = samples.filter(|sample| sample.figure == key).map(|sample| sample.value);
                let Some(value) = SampleSummary::of(samples.collect()) else { continue };
                let base = base.and_then(|base| base.figures.get(key));
                let ratio = base.and_then(|base| RatioResult::of(&value, &base.value));
                figures.insert(key, FigureResult { value, ratio });
            }
            contenders.push(ContenderResult { contender: contender.clone(), figures });
        }
        let goals =
            self.goals.iter().filter(|goal| goal.placement.is_none_or(|only| Some(only) == placement));
        CaseResult {
            key: self.key.clone(),
            title: self.title.clone(),
            placement,
            line_ns: SampleSummary::of(self.rounds_in(placement).filter_map(|round| round.line_ns).collect()),
            figures: self.figures,
            goals: goals.filter_map(|goal| goal.result(&contenders)).collect(),
            contenders,
            ratio_to: self.ratio_to,
        }
    }
}

impl Goal {
    fn result(&self, contenders: &[ContenderResult]) -> Option<GoalResult> {
        let summary = |key: &str| {
            let one = contenders.iter().find(|one| one.contender.key == key)?;
            one.figures.get(self.figure).map(|figure| &figure.value)
        };
        let own = summary(&self.contender)?;
        let value = match &self.ratio_to {
            Some(other) => own.ratio(summary(other)?)?.median,
            None => own.median,
        };
        let is_reached = match self.bound {
            Bound::AtLeast(least) => value >= least,
            Bound::Below(limit) => value < limit,
        };
        Some(GoalResult { text: self.text.clone(), value, is_reached })
    }
}

/// A case in one placement, as the JSON contains it.
#[derive(Clone, Debug, Serialize)]
pub struct CaseResult {
    pub key: String,
    pub title: String,
    /// `near` or `far`, if the figures depend on the distance of two cores.
    pub placement: Option<&'static str>,
    /// The nanoseconds of a cache line one way between the two cores.
    pub line_ns: Option<SampleSummary>,
    pub figures: &'static [Figure],
    pub contenders: Vec<ContenderResult>,
    pub goals: Vec<GoalResult>,
    #[serde(skip)]
    ratio_to: RatioTo,
}

#[derive(Clone, Debug, Serialize)]
pub struct ContenderResult {
    #[serde(flatten)]
    pub contender: Contender,
    /// By the figures' keys.
    pub figures: BTreeMap<&'static str, FigureResult>,
}

#[derive(Clone, Debug, Serialize)]
pub struct FigureResult {
    #[serde(flatten)]
    pub value: SampleSummary,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ratio: Option<RatioResult>,
}

/// The ratio to another contender, in the same round.
#[derive(Clone, Debug, Serialize)]
pub struct RatioResult {
    #[serde(flatten)]
    pub value: SampleSummary,
    /// The probability that chance alone separates both contenders (Mann-Whitney U, two-sided).
    pub p: f64,
}

impl RatioResult {
    fn of(own: &SampleSummary, base: &SampleSummary) -> Option<Self> {
        Some(Self { value: own.ratio(base)?, p: p_value(&own.samples, &base.samples) })
    }

    fn text(&self) -> String {
        format!("{}{}", self.value.spread(), if self.p < CHANCE { "" } else { " ?" })
    }
}

#[derive(Clone, Debug, Serialize)]
pub struct GoalResult {
    pub text: String,
    pub value: f64,
    pub is_reached: bool,
}

impl CaseResult {
    /// Returns the title of a row or a bar.
    fn label(&self, one: &ContenderResult) -> String {
        format!("{} {}", one.contender.title, self.placement.unwrap_or_default()).trim_end().to_owned()
    }

    /// True if both belong into one table.
    fn is_alike(&self, other: &Self) -> bool {
        self.title == other.title && self.figures == other.figures
    }

    fn head(&self, has_ratios: bool) -> Vec<String> {
        let ratio = match self.ratio_to {
            RatioTo::First => "ratio",
            RatioTo::Previous => "gain",
        };
        let mut cells = vec![self.title.clone()];
        for figure in self.figures {
            cells.push(figure.heading.to_owned());
            cells.extend((has_ratios && figure.shown != Shown::Median).then(|| ratio.to_owned()));
        }
        cells
    }

    fn row(&self, one: &ContenderResult, has_ratios: bool) -> Vec<String> {
        let mut cells = vec![format!("  {}", self.label(one))];
        for Figure { key, shown, .. } in self.figures {
            let figure = one.figures.get(key);
            let value = figure.map(|figure| match shown {
                Shown::Median => number(figure.value.median),
                Shown::Chart | Shown::Spread => figure.value.spread(),
            });
            cells.push(value.unwrap_or_default());
            if has_ratios && *shown != Shown::Median {
                let ratio = figure.and_then(|figure| figure.ratio.as_ref());
                cells.push(ratio.map_or_else(String::new, RatioResult::text));
            }
        }
        cells
    }

    fn goal_rows(&self) -> impl Iterator<Item = Vec<String>> {
        let case = format!("{} {}", self.key, self.placement.unwrap_or_default());
        self.goals.iter().map(move |GoalResult { text, value, is_reached }| {
            let reached = if *is_reached { "reached" } else { "NOT REACHED" };
            vec![format!("  {}: {text}", case.trim_end()), number(*value), reached.to_owned()]
        })
    }

    fn bar(&self, one: &ContenderResult, figure: &Figure) -> Option<Bar> {
        let FigureResult { value, ratio } = one.figures.get(figure.key)?.clone();
        Some(Bar {
            name: self.label(one),
            value,
            colour: one.contender.colour,
            note: ratio.map_or_else(String::new, |ratio| format!("(x{})", number(ratio.value.median))),
        })
    }
}

/// The results of a benchmark.
#[derive(Clone, Debug, Serialize)]
pub struct BenchReport {
    schema: &'static str,
    pub benchmark: &'static str,
    #[serde(flatten)]
    pub run: HistoryRun,
    pub machine: Machine,
    pub rounds: usize,
    /// What is measured, in one line.
    pub title: String,
    /// The settings of this benchmark, and what it found beside its figures.
    pub facts: Value,
    /// More lines for people, such as what could not be measured.
    pub notes: Vec<String>,
    pub cases: Vec<CaseResult>,
}

impl BenchReport {
    /// Begins the report of a run that begins now. `benchmark` is also the default name of its files.
    pub fn begin(benchmark: &'static str, rounds: usize, title: String, facts: Value) -> Self {
        let machine = Machine::here();
        Self {
            schema: SCHEMA,
            benchmark,
            run: HistoryRun::begin(&machine),
            machine,
            rounds,
            title,
            facts,
            notes: Vec::new(),
            cases: Vec::new(),
        }
    }

    /// Adds cases that have been measured.
    pub fn add(&mut self, cases: &[BenchCase]) {
        self.cases.extend(cases.iter().flat_map(BenchCase::results));
        let moved: usize = cases.iter().map(|case| case.moved).sum();
        if moved > 0 {
            self.notes.push(format!("{moved} rounds were repeated because the cores moved meanwhile."));
        }
    }

    /// Prints the table, writes the JSON and the chart where they are wanted, and names the files. `history` is a file
    /// that the caller writes, or an empty name.
    pub fn write(&self, files: &ResultFiles, history: &Path) -> Result<(), Error> {
        let (json, svg) = (files.json(self.benchmark), files.svg(self.benchmark));
        output::table(&self.text(), &json)?;
        output::json(self, &json)?;
        if !output::is_none(&svg) {
            output::file(&svg, self.chart().svg().as_bytes())?;
        }
        let written = [json.as_path(), &svg, history].into_iter();
        let written = written.filter(|path| !output::is_none(path) && !output::is_standard_output(path));
        let written: Vec<_> = written.map(|path| path.display().to_string()).collect();
        match written.is_empty() {
            true => Ok(()),
            false => output::table(&format!("\nWritten: {}\n", written.join(", ")), &json),
        }
    }

    pub fn text(&self) -> String {
        let HistoryRun { caravan, commit, date, .. } = &self.run;
        let commit = commit.as_deref().unwrap_or("unknown commit");
        let mut text = format!(
            "{}\n{}\nCaravan {caravan}, {commit}, {date}\n\
             Medians (least..most) of {} rounds, all in turn; ratios are of the same round, and ? marks one that may be \
             chance.\n",
            self.title,
            self.machine.sentence(),
            self.rounds
        );
        self.notes.iter().for_each(|note| text += &format!("{note}\n"));
        for cases in self.cases.chunk_by(CaseResult::is_alike) {
            let rows = || cases.iter().flat_map(|case| case.contenders.iter().map(move |one| (case, one)));
            let mut figures = rows().flat_map(|(_, one)| one.figures.values());
            let has_ratios = figures.any(|figure| figure.ratio.is_some());
            let head = cases.first().map(|case| case.head(has_ratios));
            let rows = rows().map(|(case, one)| case.row(one, has_ratios));
            text += &format!("\n{}", output::aligned(&head.into_iter().chain(rows).collect::<Vec<_>>()));
        }
        let goals: Vec<_> = self.cases.iter().flat_map(CaseResult::goal_rows).collect();
        if !goals.is_empty() {
            let head = ["Goals", "found", ""].map(str::to_owned).into();
            text += &format!("\n{}", output::aligned(&[vec![head], goals].concat()));
        }
        text
    }

    /// Returns the chart: a group of bars for each charted figure of each table.
    pub fn chart(&self) -> BarChart {
        let mut groups = Vec::new();
        for cases in self.cases.chunk_by(CaseResult::is_alike) {
            let figures = cases.first().map_or(&[][..], |case| case.figures);
            for figure in figures.iter().filter(|figure| figure.shown == Shown::Chart) {
                let bars = cases
                    .iter()
                    .flat_map(|case| case.contenders.iter().filter_map(|one| case.bar(one, figure)));
                let name = format!("{}, {}", cases[0].title, figure.heading);
                groups.push(BarGroup { name, bars: bars.collect() });
            }
        }
        BarChart {
            title: self.title.clone(),
            subtitle: format!("medians of {} rounds, lines from least to most", self.rounds),
            groups,
            footer: self.machine.sentence(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;

    const FIGURES: [Figure; 2] =
        [Figure::new("rate", "GB/s", Shown::Chart), Figure::new("cpu", "CPU s", Shown::Median)];

    /// Returns a case with rates of the peer of 10, 20, 30 and so on, and those of Caravan `faster` times as high.
    fn case(key: &str, rounds: usize, faster: f64) -> BenchCase {
        let contenders = vec![Contender::new("nc", "nc", 2), Contender::new("ours", "caravan", 0)];
        let goal = |contender: &str, ratio_to: Option<&str>, bound| Goal {
            text: format!("{bound:?}"),
            contender: contender.to_owned(),
            figure: "rate",
            ratio_to: ratio_to.map(str::to_owned),
            bound,
            placement: None,
        };
        let goals = vec![
            goal("ours", Some("nc"), Bound::AtLeast(2.0)),
            goal("nc", None, Bound::Below(5.0)),
            goal("socat", None, Bound::AtLeast(1.0)),
            Goal { placement: Some("far"), ..goal("nc", None, Bound::AtLeast(1.0)) },
        ];
        let mut case = BenchCase { goals, ..BenchCase::new(key, "veth", &FIGURES, contenders) };
        for number in 1..=rounds {
            let rate = 10.0 * number as f64;
            let samples = |rate: f64| vec![Sample::new("rate", rate), Sample::new("cpu", 1.0 / rate)];
            case.add(vec![samples(rate), samples(rate * faster)]);
        }
        case
    }

    fn report(cases: &[BenchCase]) -> BenchReport {
        let mut report =
            BenchReport::begin("pipe", 3, "Pipes".to_owned(), serde_json::json!({ "bytes": 64 }));
        report.add(cases);
        report
    }

    #[test]
    fn all_contenders_take_turns_and_each_comes_first_as_often_as_last() {
        let mut cases = [case("one", 0, 1.0), case("two", 1, 1.0)];
        let mut turns = Vec::new();
        let interrupt = Interrupt::by(Arc::new(AtomicBool::new(false)));
        measure(&mut cases, 2, &interrupt, |turn| {
            turns.push([turn.case, turn.contender]);
            Ok(vec![Sample::new("rate", 1.0)])
        })
        .expect("measured");
        // The second case has a round already.
        assert_eq!(turns, [[0, 0], [0, 1], [1, 0], [1, 1], [0, 1], [0, 0]]);
        assert!(cases.iter().all(|case| case.most_rounds() == 2));
    }

    #[test]
    fn an_interrupt_ends_the_rounds() {
        let interrupt = Interrupt::by(Arc::new(AtomicBool::new(true)));
        let ended = measure(&mut [case("one", 0, 1.0)], 1, &interrupt, |_| panic!("nothing runs"));
        assert!(matches!(ended, Err(Error::Interrupted)));
    }

    #[test]
    fn near_and_far_are_reported_apart() {
        let mut case = case("one", 0, 1.0);
        for (placement, rate) in [("near", 1.0), ("far", 9.0), ("near", 3.0)] {
            let samples = vec![vec![Sample::new("rate", rate)]; 2];
            case.rounds.push(CaseRound { placement: Some(placement), line_ns: Some(60.0), samples });
        }
        assert_eq!(case.most_rounds(), 2);
        let results: Vec<_> = case.results().collect();
        let medians: Vec<_> =
            results.iter().map(|result| result.contenders[0].figures["rate"].value.median).collect();
        assert_eq!(medians, [2.0, 9.0]);
        assert_eq!(results.iter().map(|result| result.goals.len()).collect::<Vec<_>>(), [2, 3]);
        let text = report(&[case]).text();
        assert!(text.contains("\n  nc near ") && text.contains("\n  caravan far "), "{text}");
    }

    #[test]
    fn a_row_has_its_figures_and_the_ratio_of_each_pair() {
        let text = report(&[case("one", 3, 2.0), case("other", 9, 8.0)]).text();
        let rows: Vec<_> = text.lines().skip_while(|line| !line.starts_with("veth")).collect();
        let cells = |row: usize| rows[row].split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(cells(0), "veth GB/s ratio CPU s", "{text}");
        assert_eq!(cells(1), "nc 20.0 (10.0..30.0) 0.050");
        // Three samples are too few to tell.
        assert_eq!(cells(2), "caravan 40.0 (20.0..60.0) 2.00 (2.00..2.00) ? 0.025");
        assert_eq!(cells(4), "caravan 400 (80.0..720) 8.00 (8.00..8.00) 0.003");
        let width = rows[0].find("CPU s").expect("a column") + 5;
        assert!(rows[1..5].iter().all(|row| row.len() == width), "{text}");
        let goals: Vec<_> = text.lines().skip_while(|line| !line.starts_with("Goals")).skip(1).collect();
        let words = |row: usize| goals[row].split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(words(0), "one: AtLeast(2.0) 2.00 reached", "{text}");
        assert_eq!(words(1), "one: Below(5.0) 20.0 NOT REACHED", "{text}");
        assert_eq!(goals.len(), 4, "{text}");
    }

    #[test]
    fn a_gain_is_over_the_line_above() {
        let mut steps = case("steps", 0, 1.0);
        steps.ratio_to = RatioTo::Previous;
        steps.contenders.push(Contender::new("last", "last", 0));
        steps.add([1.0, 4.0, 6.0].map(|rate| vec![Sample::new("rate", rate)]).into());
        let text = report(&[steps]).text();
        assert!(text.contains("gain") && text.contains("6.00 (6.00..6.00)  1.50 (1.50..1.50) ?"), "{text}");
    }

    #[test]
    fn the_json_has_the_shape_that_readers_rely_on() {
        let json = serde_json::to_value(report(&[case("one", 3, 2.0)])).expect("JSON");
        assert_eq!((json["schema"].as_str(), json["benchmark"].as_str()), (Some(SCHEMA), Some("pipe")));
        assert!(
            json["machine"]["kernel"].is_string() && json["date"].is_string() && json["facts"]["bytes"] == 64
        );
        let case = &json["cases"][0];
        assert_eq!(
            (case["key"].as_str(), case["figures"][0]["heading"].as_str()),
            (Some("one"), Some("GB/s"))
        );
        let ours = &case["contenders"][1];
        assert_eq!((ours["key"].as_str(), &ours["title"]), (Some("ours"), &"caravan".into()));
        assert_eq!(ours["figures"]["rate"]["samples"], serde_json::json!([20.0, 40.0, 60.0]));
        assert_eq!(ours["figures"]["rate"]["ratio"]["median"], 2.0);
        assert!(case["contenders"][0]["figures"]["rate"].get("ratio").is_none());
        assert_eq!(case["goals"][0]["is_reached"], true);
    }

    #[test]
    fn every_charted_figure_of_a_table_is_a_group_of_bars() {
        let chart = report(&[case("one", 3, 2.0), case("other", 3, 4.0)]).chart();
        assert_eq!(chart.groups.len(), 1);
        let notes: Vec<_> = chart.groups[0].bars.iter().map(|bar| bar.note.as_str()).collect();
        assert_eq!(
            (chart.groups[0].name.as_str(), &notes[..]),
            ("veth, GB/s", &["", "(x2.00)", "", "(x4.00)"][..])
        );
    }
}
