//! The workloads: names, figures, contenders and goals.

use crate::chart::{CARAVAN, PEER, VARIANT};
use crate::choice::Named;
use crate::report::{BenchCase, Bound, Contender, Figure, Goal, Shown};
use crate::workloads::servers::{Layout, WorkloadProgram};
use crate::workloads::ycsb::YcsbKind;

/// Threads of the client where several requests are to be under way.
const THREADS: usize = 8;

/// What a workload does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkloadTask {
    /// A read, modify and write of one small value.
    Update,
    /// A write of one small value.
    Set,
    Ycsb(YcsbKind),
    Tatp,
    SmallBank,
}

/// What stores are filled with before a workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkloadData {
    Pairs,
    Records,
    Subscribers,
    Accounts,
}

/// A workload, as `--list` shows it.
#[derive(Clone, Copy, Debug)]
pub struct Workload {
    pub name: &'static str,
    pub what: &'static str,
    pub task: WorkloadTask,
    /// Threads of the client, each with one operation under way.
    pub threads: usize,
}

const fn workload(name: &'static str, task: WorkloadTask, threads: usize, what: &'static str) -> Workload {
    Workload { name, what, task, threads }
}

const fn ycsb(name: &'static str, kind: YcsbKind, what: &'static str) -> Workload {
    workload(name, WorkloadTask::Ycsb(kind), THREADS, what)
}

/// All workloads, in the order in which they run; those with the same data are neighbours.
pub const WORKLOADS: [Workload; 11] = [
    workload(
        "copies-update",
        WorkloadTask::Update,
        1,
        "read, modify and write of one small value, with a copy on a second server",
    ),
    workload("copies-set", WorkloadTask::Set, 1, "write of one small value, with a copy on a second server"),
    ycsb("ycsb-a", YcsbKind::A, "half reads, half updates of 1 kB; one server, 8 threads of the client"),
    ycsb("ycsb-b", YcsbKind::B, "95 % reads, 5 % updates"),
    ycsb("ycsb-c", YcsbKind::C, "reads"),
    ycsb("ycsb-d", YcsbKind::D, "95 % reads of what was inserted lately, 5 % inserts"),
    ycsb("ycsb-f", YcsbKind::F, "half reads, half transactions that read and modify"),
    workload(
        "tatp",
        WorkloadTask::Tatp,
        1,
        "the standard mix of TATP, one transaction at a time; three servers, two copies",
    ),
    workload("tatp-8", WorkloadTask::Tatp, THREADS, "the same with 8 threads of the client"),
    workload(
        "smallbank",
        WorkloadTask::SmallBank,
        1,
        "the standard mix of SmallBank, of which 40 % are about two customers; three servers, two copies",
    ),
    workload("smallbank-8", WorkloadTask::SmallBank, THREADS, "the same with 8 threads of the client"),
];

impl Named for Workload {
    fn row(&self) -> (&'static str, &'static str) {
        (self.name, self.what)
    }
}

/// What takes turns in a workload: a program, and how clients speak to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkloadRun {
    pub program: WorkloadProgram,
    /// By the Rust API, and not by the Redis protocol.
    pub is_link: bool,
}

impl WorkloadRun {
    const fn of(program: WorkloadProgram, is_link: bool) -> Self {
        Self { program, is_link }
    }

    /// All of them. Ratios are to Redis, which comes first.
    pub const ALL: [Self; 4] = [
        Self::of(WorkloadProgram::Redis, false),
        Self::of(WorkloadProgram::Valkey, false),
        Self::of(WorkloadProgram::Caravan, false),
        Self::of(WorkloadProgram::Caravan, true),
    ];

    fn contender(self, layout: Layout) -> Contender {
        let has_copies = layout != Layout::Alone;
        let (key, title, colour) = match (self.program.program(), self.is_link, has_copies) {
            (Some(name), _, false) => (self.program.key(), name.to_owned(), PEER),
            (Some(name), _, true) => (self.program.key(), format!("{name}, replica, WAIT 1"), PEER),
            (None, false, false) => ("caravan-resp", "caravan store serve".to_owned(), VARIANT),
            (None, false, true) => ("caravan-resp", "caravan store serve --cluster".to_owned(), VARIANT),
            (None, true, false) => ("caravan", "caravan, mapped".to_owned(), CARAVAN),
            (None, true, true) => ("caravan", "caravan, link".to_owned(), CARAVAN),
        };
        Contender::new(key, title, colour)
    }
}

const ONE_OBJECT: [Figure; 4] = [
    Figure::new("p50_us", "p50 us", Shown::Chart),
    Figure::new("p99_us", "p99 us", Shown::Median),
    Figure::new("server_cpu_us", "CPU us of all servers", Shown::Chart),
    Figure::new("cpu_us", "of both sides", Shown::Median),
];
const YCSB: [Figure; 5] = [
    Figure::new("kops_per_core", "k operations per CPU second of both sides", Shown::Chart),
    Figure::new("server_cpu_us", "CPU us of the server", Shown::Spread),
    Figure::new("kops", "k/s", Shown::Median),
    Figure::new("p50_us", "p50 us", Shown::Median),
    Figure::new("p99_us", "p99 us", Shown::Median),
];
const TATP: [Figure; 7] = [
    Figure::new("kops_per_core", "k transactions per CPU second of both sides", Shown::Chart),
    Figure::new("server_cpu_us", "CPU us of all servers", Shown::Spread),
    Figure::new("kops", "k/s", Shown::Median),
    Figure::new("p50_us", "p50 us", Shown::Median),
    Figure::new("p99_us", "p99 us", Shown::Median),
    Figure::new("messages", "messages", Shown::Median),
    Figure::new("one_sided", "one-sided writes", Shown::Median),
];

impl WorkloadTask {
    pub fn data(self) -> WorkloadData {
        match self {
            Self::Update | Self::Set => WorkloadData::Pairs,
            Self::Ycsb(_) => WorkloadData::Records,
            Self::Tatp => WorkloadData::Subscribers,
            Self::SmallBank => WorkloadData::Accounts,
        }
    }

    /// Returns whether messages and one-sided writes are counted.
    pub fn is_counted(self) -> bool {
        matches!(self, Self::Tatp | Self::SmallBank)
    }

    fn figures(self) -> &'static [Figure] {
        match self {
            Self::Update | Self::Set => &ONE_OBJECT,
            Self::Ycsb(_) => &YCSB,
            Self::Tatp | Self::SmallBank => &TATP,
        }
    }

    fn goals(self) -> Vec<Goal> {
        if !matches!(self, Self::Update | Self::Set) {
            return Vec::new();
        }
        let goal = |contender: &str, text: &str, figure, ratio_to: Option<&str>, limit| Goal {
            text: text.to_owned(),
            contender: contender.to_owned(),
            figure,
            ratio_to: ratio_to.map(str::to_owned),
            bound: Bound::Below(limit),
            placement: None,
        };
        let cpu = "of a link, at most a fifth of the servers' processor time of redis";
        let resp = "of the Redis protocol, at most a fifth of the servers' processor time of redis";
        let p50 = goal("caravan", "p50 of a link at most 5 us", "p50_us", None, 5.0);
        let cpu = goal("caravan", cpu, "server_cpu_us", Some("redis"), 0.2);
        let resp = goal("caravan-resp", resp, "server_cpu_us", Some("redis"), 0.2);
        if self == Self::Set { vec![p50, cpu, resp] } else { vec![p50, cpu] }
    }
}

impl WorkloadData {
    pub fn layout(self) -> Layout {
        match self {
            Self::Pairs => Layout::Copies { servers: 2, parts: 1 },
            Self::Records => Layout::Alone,
            Self::Subscribers | Self::Accounts => Layout::Copies { servers: 3, parts: 6 },
        }
    }
}

impl Workload {
    /// Returns the case in which these take turns.
    pub fn bench_case(&self, runs: &[WorkloadRun]) -> BenchCase {
        let layout = self.task.data().layout();
        let contenders = runs.iter().map(|run| run.contender(layout)).collect();
        let goals = self.task.goals();
        BenchCase { goals, ..BenchCase::new(self.name, self.name, self.task.figures(), contenders) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_goal_is_of_a_figure_and_a_contender_of_its_case() {
        for one in WORKLOADS {
            let case = one.bench_case(&WorkloadRun::ALL);
            for goal in &case.goals {
                assert!(case.figures.iter().any(|figure| figure.key == goal.figure), "{}", goal.text);
                assert!(case.contenders.iter().any(|other| other.key == goal.contender), "{}", goal.text);
            }
        }
    }

    #[test]
    fn workloads_with_the_same_data_are_neighbours() {
        let mut data: Vec<_> = WORKLOADS.iter().map(|one| format!("{:?}", one.task.data())).collect();
        data.dedup();
        let count = data.len();
        data.sort_unstable();
        data.dedup();
        assert_eq!(data.len(), count);
    }
}
