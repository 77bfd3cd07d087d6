//! The benchmarks of the store: names, figures, contenders and goals.

use crate::chart::{CARAVAN, PEER};
use crate::error::Error;
use crate::report::{BenchCase, Bound, Contender, Figure, Goal, Shown};
use crate::store::pairs::PairOperation;
use crate::store::server::{CONNECTIONS, PairServer};
use crate::store::socket::RequestsUnderWay;

/// Requests under way on a connection with a pipeline.
pub const PIPELINE: usize = 64;

/// What a benchmark measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreCase {
    Get,
    GetMany,
    Put,
    Socket { operation: PairOperation, pipeline: usize },
    Memory,
    Restart,
}

/// A benchmark, as `--list` shows it.
#[derive(Clone, Copy, Debug)]
pub struct StoreBenchmark {
    pub name: &'static str,
    pub what: &'static str,
    pub case: StoreCase,
}

const fn benchmark(name: &'static str, case: StoreCase, what: &'static str) -> StoreBenchmark {
    StoreBenchmark { name, what, case }
}

const fn socket(operation: PairOperation, pipeline: usize) -> StoreCase {
    StoreCase::Socket { operation, pipeline }
}

/// All benchmarks, in the order in which they run.
pub const BENCHMARKS: [StoreBenchmark; 9] = [
    benchmark(
        "get",
        StoreCase::Get,
        "one lookup at a time: mapped memory that another process writes; round trips",
    ),
    benchmark("get-many", StoreCase::GetMany, "64 lookups at a time: mapped memory, LMDB, pipelines of 64"),
    benchmark("put", StoreCase::Put, "overwriting in the own process, one transaction each; LMDB"),
    benchmark(
        "socket-get",
        socket(PairOperation::Get, 1),
        "GET on 20 connections, one request on each at a time",
    ),
    benchmark(
        "socket-set",
        socket(PairOperation::Set, 1),
        "SET on 20 connections, one request on each at a time",
    ),
    benchmark(
        "socket-get-64",
        socket(PairOperation::Get, PIPELINE),
        "GET on 20 connections, pipelines of 64",
    ),
    benchmark(
        "socket-set-64",
        socket(PairOperation::Set, PIPELINE),
        "SET on 20 connections, pipelines of 64",
    ),
    benchmark("memory", StoreCase::Memory, "memory for each pair, everything included"),
    benchmark(
        "restart",
        StoreCase::Restart,
        "time without writes when the server is killed, and upgraded; mapped reads meanwhile",
    ),
];

/// Returns the benchmarks that `--only` names, all of them for none.
pub fn chosen(only: &[String]) -> Result<Vec<StoreBenchmark>, Error> {
    let names = || BENCHMARKS.map(|one| one.name).join(", ");
    if let Some(name) = only.iter().find(|name| BENCHMARKS.iter().all(|one| one.name != **name)) {
        return Err(Error::NoBenchmark { name: name.clone(), names: names() });
    }
    let is_chosen = |one: &StoreBenchmark| only.is_empty() || only.iter().any(|name| name == one.name);
    Ok(BENCHMARKS.into_iter().filter(is_chosen).collect())
}

const GET: [Figure; 3] = [
    Figure::new("p50_us", "p50 us", Shown::Chart),
    Figure::new("p99_us", "p99 us", Shown::Median),
    Figure::new("cpu_us", "CPU us of both sides", Shown::Chart),
];
const GET_MANY: [Figure; 2] = [
    Figure::new("mops_per_core", "M lookups per CPU second of both sides", Shown::Chart),
    Figure::new("mops", "M/s", Shown::Median),
];
const PUT: [Figure; 2] =
    [Figure::new("ns", "ns", Shown::Chart), Figure::new("cpu_ns", "CPU ns", Shown::Spread)];
const SOCKET: [Figure; 3] = [
    Figure::new("kops", "k/s", Shown::Spread),
    Figure::new("server_cpu_us", "CPU us of the server", Shown::Chart),
    Figure::new("cpu_us", "of both sides", Shown::Median),
];
const MEMORY: [Figure; 2] = [
    Figure::new("resident_bytes", "resident bytes a pair", Shown::Chart),
    Figure::new("counted_bytes", "as it counts itself", Shown::Median),
];

const RESTART: [Figure; 5] = [
    Figure::new("kill_ms", "ms without a write after SIGKILL", Shown::Chart),
    Figure::new("upgrade_ms", "in an upgrade", Shown::Spread),
    Figure::new("failed_reads", "failed reads", Shown::Spread),
    Figure::new("lost_writes", "lost writes", Shown::Spread),
    Figure::new("reads_mops", "M reads/s", Shown::Median),
];

/// What takes turns in a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreRun {
    Server(PairServer),
    Lmdb,
    /// Caravan's store in mapped memory, or in the own process.
    Caravan,
}

impl StoreRun {
    fn contender(self, case: StoreCase) -> Contender {
        match (self, case) {
            (Self::Server(server), _) => server.contender(),
            (Self::Lmdb, _) => Contender::new("lmdb", "LMDB", PEER),
            (Self::Caravan, StoreCase::Put) => Contender::new("caravan", "caravan, embedded", CARAVAN),
            (Self::Caravan, _) => Contender::new("caravan", "caravan, mapped", CARAVAN),
        }
    }
}

impl StoreCase {
    pub fn uses(self, run: StoreRun) -> bool {
        match (self, run) {
            (Self::Get | Self::GetMany, StoreRun::Server(PairServer::Caravan)) => false,
            (Self::Get, StoreRun::Lmdb) | (Self::Put, StoreRun::Server(_)) => false,
            (Self::Socket { .. }, run) => matches!(run, StoreRun::Server(_)),
            (Self::Restart, run) => run == StoreRun::Server(PairServer::Caravan),
            (Self::Memory, run) => matches!(run, StoreRun::Server(_) | StoreRun::Lmdb),
            _ => true,
        }
    }

    pub fn requests(self) -> RequestsUnderWay {
        match self {
            Self::Socket { pipeline, .. } => RequestsUnderWay { connections: CONNECTIONS, pipeline },
            Self::GetMany => RequestsUnderWay { connections: 1, pipeline: PIPELINE },
            _ => RequestsUnderWay { connections: 1, pipeline: 1 },
        }
    }

    fn figures(self) -> &'static [Figure] {
        match self {
            Self::Get => &GET,
            Self::GetMany => &GET_MANY,
            Self::Put => &PUT,
            Self::Socket { .. } => &SOCKET,
            Self::Memory => &MEMORY,
            Self::Restart => &RESTART,
        }
    }

    fn goals(self) -> Vec<Goal> {
        let goal = |text: &str, figure, ratio_to: Option<&str>, bound| Goal {
            text: text.to_owned(),
            contender: "caravan".to_owned(),
            figure,
            ratio_to: ratio_to.map(str::to_owned),
            bound,
            placement: None,
        };
        match self {
            Self::Get => {
                let cpu = |peer: &str| {
                    let text = format!("at most a 20th of the processor time of {peer}, both sides counted");
                    goal(&text, "cpu_us", Some(peer), Bound::Below(0.05))
                };
                let p50 = goal("p50 of a mapped get below 1 us", "p50_us", None, Bound::Below(1.0));
                vec![p50, cpu("redis"), cpu("memcached")]
            }
            Self::GetMany => {
                let times = |peer: &str, times| {
                    let text = format!("at least {times} times {peer}");
                    goal(&text, "mops_per_core", Some(peer), Bound::AtLeast(times))
                };
                let least = goal("at least 10 M/s per core", "mops_per_core", None, Bound::AtLeast(10.0));
                vec![least, times("redis", 10.0), times("valkey", 10.0), times("lmdb", 2.0)]
            }
            Self::Put => Vec::new(),
            Self::Restart => vec![
                goal("a write within 50 ms after SIGKILL", "kill_ms", None, Bound::Below(50.0)),
                goal("a write within 50 ms in an upgrade", "upgrade_ms", None, Bound::Below(50.0)),
                goal("no read fails", "failed_reads", None, Bound::Below(1.0)),
                goal("no acknowledged write is lost", "lost_writes", None, Bound::Below(1.0)),
            ],
            Self::Socket { .. } => {
                let less = |peer: &str| {
                    let text = format!("less processor time than {peer}");
                    goal(&text, "server_cpu_us", Some(peer), Bound::Below(1.0))
                };
                vec![less("redis"), less("valkey")]
            }
            Self::Memory => {
                vec![goal("at most 0.9 of redis", "resident_bytes", Some("redis"), Bound::Below(0.9))]
            }
        }
    }
}

impl StoreBenchmark {
    /// Returns the case in which these take turns.
    pub fn bench_case(&self, runs: &[StoreRun]) -> BenchCase {
        let contenders = runs.iter().map(|run| run.contender(self.case)).collect();
        let goals = self.case.goals();
        BenchCase { goals, ..BenchCase::new(self.name, self.name, self.case.figures(), contenders) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_choose_and_unknown_ones_are_named() {
        let names = |only: &[&str]| {
            let only: Vec<_> = only.iter().map(|name| (*name).to_owned()).collect();
            chosen(&only).map(|chosen| chosen.iter().map(|one| one.name).collect::<Vec<_>>())
        };
        assert_eq!(names(&[]).expect("all").len(), BENCHMARKS.len());
        assert_eq!(names(&["memory", "get"]).expect("two"), ["get", "memory"]);
        let error = names(&["gte"]).expect_err("refused").to_string();
        assert!(error.contains("gte") && error.contains("get-many"), "{error}");
    }

    #[test]
    fn every_goal_is_of_a_figure_of_its_case() {
        for one in BENCHMARKS {
            for goal in one.case.goals() {
                assert!(one.case.figures().iter().any(|figure| figure.key == goal.figure), "{}", goal.text);
            }
        }
    }
}
