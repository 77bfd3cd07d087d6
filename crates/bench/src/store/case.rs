//! The benchmarks of the store: names, figures, contenders and goals.

use crate::chart::{CARAVAN, PEER};
use crate::choice::Named;
use crate::report::{BenchCase, Bound, Contender, Figure, Goal, Shown};
use crate::store::pairs::PairOperation;
use crate::store::server::{CONNECTIONS, PairServer};
use crate::store::socket::RequestsUnderWay;

/// Requests under way on a connection with a pipeline.
pub const PIPELINE: usize = 64;

/// Connections over TCP, which have as many requests under way together as a client on a link.
const TCP_CONNECTIONS: usize = 4;

/// What a benchmark measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreCase {
    Get,
    GetMany,
    Put,
    /// A write by a client on a link.
    LinkSet,
    /// Calls through a link, so many at a time.
    Call {
        under_way: usize,
    },
    Socket {
        operation: PairOperation,
        pipeline: usize,
    },
    /// Lookups over TCP, many at a time.
    TcpGet,
    /// Lookups in tables of fixed sizes, over TCP.
    FixedReads,
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
pub const BENCHMARKS: [StoreBenchmark; 14] = [
    benchmark(
        "get",
        StoreCase::Get,
        "one lookup at a time: mapped memory that another process writes; round trips",
    ),
    benchmark("get-many", StoreCase::GetMany, "64 lookups at a time: mapped memory, LMDB, pipelines of 64"),
    benchmark("put", StoreCase::Put, "overwriting in the own process, one transaction each; LMDB"),
    benchmark("link-set", StoreCase::LinkSet, "SET by a client of this host on a link; round trips"),
    benchmark(
        "call",
        StoreCase::Call { under_way: 1 },
        "calls of 32 B through a link, and over a TCP socket",
    ),
    benchmark("call-64", StoreCase::Call { under_way: PIPELINE }, "the same with 64 calls under way"),
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
    benchmark(
        "tcp-get",
        StoreCase::TcpGet,
        "GET over TCP, 256 under way: a client on a link, pipelines of 64",
    ),
    benchmark(
        "fixed-reads",
        StoreCase::FixedReads,
        "one-sided reads for each lookup in a table that is 90 % full",
    ),
    benchmark("memory", StoreCase::Memory, "memory for each pair, everything included"),
    benchmark(
        "restart",
        StoreCase::Restart,
        "time without writes when the server is killed, and upgraded; mapped reads meanwhile",
    ),
];

impl Named for StoreBenchmark {
    fn row(&self) -> (&'static str, &'static str) {
        (self.name, self.what)
    }
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

const CALL: [Figure; 4] = [
    Figure::new("mops_both", "M calls per CPU second of both sides", Shown::Chart),
    Figure::new("mops_client", "of the client", Shown::Median),
    Figure::new("mops_server", "of the server", Shown::Median),
    Figure::new("mops", "M/s", Shown::Spread),
];
const FIXED_READS: [Figure; 2] = [
    Figure::new("reads", "reads for a key that exists", Shown::Chart),
    Figure::new("reads_absent", "for another key", Shown::Spread),
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
    /// A process that returns what it reads from a TCP socket: each message by itself, or all together.
    Echo {
        are_together: bool,
    },
    /// Caravan's store in mapped memory, or in the own process.
    Caravan,
    /// A store of this process, served over TCP.
    Fixed,
}

impl StoreRun {
    fn contender(self, case: StoreCase) -> Contender {
        match (self, case) {
            (
                Self::Server(PairServer::Caravan),
                StoreCase::LinkSet | StoreCase::Call { .. } | StoreCase::TcpGet,
            ) => Contender::new("caravan", "caravan, link", CARAVAN),
            (Self::Server(server), _) => server.contender(),
            (Self::Echo { are_together: false }, _) => {
                Contender::new("tcp", "TCP socket, each message by itself", PEER)
            }
            (Self::Echo { are_together: true }, _) => {
                Contender::new("tcp-batched", "TCP socket, 64 in one write", PEER)
            }
            (Self::Fixed, _) => Contender::new("caravan", "caravan, fixed table", CARAVAN),
            (Self::Lmdb, _) => Contender::new("lmdb", "LMDB", PEER),
            (Self::Caravan, StoreCase::Put) => Contender::new("caravan", "caravan, embedded", CARAVAN),
            (Self::Caravan, _) => Contender::new("caravan", "caravan, mapped", CARAVAN),
        }
    }

    /// True if Caravan is measured, and no peer.
    pub fn is_own(self) -> bool {
        matches!(self, Self::Caravan | Self::Fixed | Self::Server(PairServer::Caravan))
    }
}

impl StoreCase {
    pub fn uses(self, run: StoreRun) -> bool {
        let is_served = run == StoreRun::Server(PairServer::Caravan);
        match self {
            Self::Get => matches!(run, StoreRun::Server(_) | StoreRun::Caravan) && !is_served,
            Self::GetMany => {
                matches!(run, StoreRun::Server(_) | StoreRun::Lmdb | StoreRun::Caravan) && !is_served
            }
            Self::Put => matches!(run, StoreRun::Lmdb | StoreRun::Caravan),
            Self::LinkSet | Self::Socket { .. } => matches!(run, StoreRun::Server(_)),
            Self::Call { under_way } => match run {
                // One message is not a batch.
                StoreRun::Echo { are_together } => !are_together || under_way > 1,
                _ => is_served,
            },
            Self::TcpGet => {
                matches!(run, StoreRun::Server(PairServer::Redis | PairServer::Valkey | PairServer::Caravan))
            }
            Self::FixedReads => run == StoreRun::Fixed,
            Self::Memory => matches!(run, StoreRun::Server(_) | StoreRun::Lmdb),
            Self::Restart => is_served,
        }
    }

    /// Returns what clients of servers do.
    pub fn operation(self) -> PairOperation {
        match self {
            Self::Socket { operation, .. } => operation,
            Self::LinkSet => PairOperation::Set,
            _ => PairOperation::Get,
        }
    }

    pub fn requests(self) -> RequestsUnderWay {
        match self {
            Self::Socket { pipeline, .. } => RequestsUnderWay { connections: CONNECTIONS, pipeline },
            Self::GetMany => RequestsUnderWay { connections: 1, pipeline: PIPELINE },
            Self::TcpGet => RequestsUnderWay { connections: TCP_CONNECTIONS, pipeline: PIPELINE },
            _ => RequestsUnderWay { connections: 1, pipeline: 1 },
        }
    }

    fn figures(self) -> &'static [Figure] {
        match self {
            Self::Get => &GET,
            Self::GetMany => &GET_MANY,
            Self::Put => &PUT,
            Self::LinkSet => &GET,
            Self::Call { .. } => &CALL,
            Self::Socket { .. } | Self::TcpGet => &SOCKET,
            Self::FixedReads => &FIXED_READS,
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
            Self::Put | Self::Call { under_way: 1 } => Vec::new(),
            Self::LinkSet => {
                vec![goal("p50 of a SET through a link below 3 us", "p50_us", None, Bound::Below(3.0))]
            }
            Self::Call { .. } => {
                let least = |side: &str, figure| {
                    let text = format!("at least 3 M calls for each CPU second of the {side}");
                    goal(&text, figure, None, Bound::AtLeast(3.0))
                };
                let times = |what: &str, figure| {
                    let text = format!("at least 9 times a TCP socket, each message by itself, {what}");
                    goal(&text, figure, Some("tcp"), Bound::AtLeast(9.0))
                };
                vec![
                    least("client", "mops_client"),
                    least("server", "mops_server"),
                    times("per CPU second of both sides", "mops_both"),
                    times("per second", "mops"),
                ]
            }
            Self::TcpGet => {
                let as_many = |peer: &str| {
                    let text = format!("at least as many GETs a second as {peer} over TCP");
                    goal(&text, "kops", Some(peer), Bound::AtLeast(1.0))
                };
                vec![as_many("redis"), as_many("valkey")]
            }
            Self::FixedReads => {
                let few = |what: &str, figure| {
                    goal(&format!("below 1.05 one-sided reads for {what}"), figure, None, Bound::Below(1.05))
                };
                vec![few("a key that exists", "reads"), few("another key", "reads_absent")]
            }
            Self::Restart => vec![
                goal("a write within 50 ms after SIGKILL", "kill_ms", None, Bound::Below(50.0)),
                goal("a write within 50 ms in an upgrade", "upgrade_ms", None, Bound::Below(50.0)),
                goal("no read fails", "failed_reads", None, Bound::Below(1.0)),
                goal("no acknowledged write is lost", "lost_writes", None, Bound::Below(1.0)),
            ],
            Self::Socket { pipeline, .. } => {
                let less = |peer: &str| {
                    let text = format!("less processor time than {peer}");
                    goal(&text, "server_cpu_us", Some(peer), Bound::Below(1.0))
                };
                // Beside Valkey, the goal is the one with pipelines.
                let peers = if pipeline > 1 { &["redis", "valkey"][..] } else { &["redis"] };
                peers.iter().map(|peer| less(peer)).collect()
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
            crate::choice::chosen(&BENCHMARKS, &only)
                .map(|chosen| chosen.iter().map(|one| one.name).collect::<Vec<_>>())
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
