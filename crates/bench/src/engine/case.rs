//! The benchmarks: their names, what each measures, and its goal.

use caravan_engine::layout::LinkMode;
use serde::{Deserialize, Serialize};

use crate::args::EngineBench;
use crate::choice::{Named, names};
use crate::engine::apps::TouchWork;
use crate::error::Error;
use crate::report::{Bound, Goal};

/// Bytes that a benchmark of headers touches: an Ethernet and an IPv6 header, in whole words.
pub const HEADER_BYTES: usize = 56;
/// The bytes that the swap stamps: with the owner's word they fill a cache line.
pub const SWAP_BYTES: usize = 56;
/// The number of packets held by the worker that is killed.
pub const HELD_PACKETS: usize = 4096;

/// The apps and links that a sample runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum BenchGraph {
    Basic1,
    SourceSink,
    Interlink(TouchWork),
    Swap,
    Tunnel,
    Tunnel2,
    Scale { processes: usize },
    Recovery,
}

impl BenchGraph {
    /// True if the figure depends on the distance of two cores.
    pub fn is_of_two(self) -> bool {
        matches!(self, Self::Interlink(_) | Self::Swap | Self::Tunnel2)
    }
}

/// A benchmark, as `--list` shows it.
#[derive(Clone, Copy, Debug)]
pub struct Benchmark {
    pub name: &'static str,
    pub what: &'static str,
    graph: BenchGraph,
}

const fn benchmark(name: &'static str, graph: BenchGraph, what: &'static str) -> Benchmark {
    Benchmark { name, what, graph }
}

impl Named for Benchmark {
    fn row(&self) -> (&'static str, &'static str) {
        (self.name, self.what)
    }
}

/// All benchmarks, in the order in which they run. The processes of `scale` are those of its first case.
pub const BENCHMARKS: [Benchmark; 11] = {
    use BenchGraph::{Basic1, Interlink, Recovery, Scale, SourceSink, Swap, Tunnel, Tunnel2};
    use TouchWork::{Header, None, Read, Touch};
    [
        benchmark("basic1", Basic1, "source -> tee -> two sinks in one process (packets of the source)"),
        benchmark("source-sink", SourceSink, "source -> sink in one process"),
        benchmark("interlink", Interlink(None), "source in one process, sink in another; no byte is touched"),
        benchmark(
            "interlink-header",
            Interlink(Header),
            "the same; one writes the first 56 bytes, the other reads them",
        ),
        benchmark("interlink-read", Interlink(Read), "the same; both read all bytes"),
        benchmark(
            "interlink-touch",
            Interlink(Touch),
            "the same; one writes all bytes, the other reads them",
        ),
        benchmark("swap", Swap, "56 bytes stamped and read between two processes, beside a bare loop in C"),
        benchmark("tunnel", Tunnel, "source -> encapsulate -> decapsulate -> sink in one process"),
        benchmark("tunnel2", Tunnel2, "source -> encapsulate in one process, decapsulate -> sink in another"),
        benchmark(
            "scale",
            Scale { processes: 1 },
            "the tunnel in each of N processes, 1 to twice the cores: all together",
        ),
        benchmark(
            "recovery",
            Recovery,
            "a worker with 4,096 packets is killed: until its successor runs; the largest gap in the traffic of another",
        ),
    ]
};

/// One benchmark with one size and variant, of which samples are taken.
#[derive(Clone, Debug, PartialEq)]
pub struct EngineCase {
    pub benchmark: &'static str,
    pub graph: BenchGraph,
    /// Bytes in a packet.
    pub size: usize,
    pub mode: LinkMode,
    /// The key, such as `interlink/60/swap`.
    pub key: String,
}

impl EngineCase {
    fn new(benchmark: &'static str, graph: BenchGraph, size: usize, mode: LinkMode) -> Self {
        let variant = match (graph, mode) {
            (BenchGraph::Swap | BenchGraph::Recovery, _) => String::new(),
            (BenchGraph::Interlink(_) | BenchGraph::Tunnel2, LinkMode::Swap) => format!("/{size}/swap"),
            (BenchGraph::Interlink(_) | BenchGraph::Tunnel2, LinkMode::Copy) => format!("/{size}/copy"),
            (BenchGraph::Scale { processes }, _) => format!("/{size}/{processes}"),
            _ => format!("/{size}"),
        };
        Self { benchmark, graph, size, mode, key: format!("{benchmark}{variant}") }
    }

    /// True if both differ only in how packets are passed on.
    pub fn is_variant_of(&self, other: &Self) -> bool {
        (self.benchmark, self.graph, self.size) == (other.benchmark, other.graph, other.size)
    }

    /// Returns the key that all variants share.
    pub fn without_mode(&self) -> &str {
        self.key.trim_end_matches("/swap").trim_end_matches("/copy")
    }

    fn is_called(&self, name: &str) -> bool {
        self.key.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }
}

/// Returns the cases to measure with these arguments, on so many cores.
pub fn chosen(args: &EngineBench, cores: usize) -> Result<Vec<EngineCase>, Error> {
    let all = all(&args.sizes, cores);
    if args.only.is_empty() {
        return Ok(all);
    }
    for name in &args.only {
        if !all.iter().any(|case| case.is_called(name)) {
            return Err(Error::NoBenchmark { name: name.clone(), names: names(&BENCHMARKS) });
        }
    }
    let is_chosen = |case: &EngineCase| args.only.iter().any(|name| case.is_called(name));
    Ok(all.into_iter().filter(is_chosen).collect())
}

fn all(sizes: &[usize], cores: usize) -> Vec<EngineCase> {
    let mut cases = Vec::new();
    for Benchmark { name, graph, .. } in BENCHMARKS {
        let sizes =
            if matches!(graph, BenchGraph::Swap | BenchGraph::Recovery) { &[SWAP_BYTES] } else { sizes };
        let graphs = match graph {
            BenchGraph::Scale { .. } => {
                processes(cores).into_iter().map(|processes| BenchGraph::Scale { processes }).collect()
            }
            graph => vec![graph],
        };
        for (&size, &graph) in sizes.iter().flat_map(|size| graphs.iter().map(move |graph| (size, graph))) {
            cases.push(EngineCase::new(name, graph, size, LinkMode::Swap));
            if graph.is_of_two() && graph != BenchGraph::Swap {
                cases.push(EngineCase::new(name, graph, size, LinkMode::Copy));
            }
        }
    }
    cases
}

/// Returns the numbers of processes for which the curve has points: 1, 2, 4, ... up to twice the cores, and the cores
/// themselves.
fn processes(cores: usize) -> Vec<usize> {
    let most = (2 * cores).min(caravan_engine::limits::WORKERS_MAX);
    let powers = (0..).map(|power| 1_usize << power).take_while(|&count| count < most);
    let mut counts: Vec<_> =
        powers.chain([1, cores.min(most), (3 * cores).div_ceil(2).min(most), most]).collect();
    counts.sort_unstable();
    counts.dedup();
    counts
}

/// A packet rate that a benchmark should reach, in Mpps.
struct RateGoal {
    key: &'static str,
    near: f64,
    far: f64,
}

const RATE_GOALS: [RateGoal; 6] = [
    RateGoal { key: "interlink/60/swap", near: 150.0, far: 50.0 },
    RateGoal { key: "interlink-read/1500/swap", near: 35.0, far: 13.0 },
    RateGoal { key: "tunnel/60", near: 80.0, far: 80.0 },
    RateGoal { key: "tunnel/1500", near: 30.0, far: 30.0 },
    RateGoal { key: "tunnel2/60/swap", near: 80.0, far: 25.0 },
    RateGoal { key: "source-sink/60", near: 150.0, far: 150.0 },
];

/// The key of the bare loop in C.
pub const C_LOOP: &str = "swap/c-loop";

/// Returns the goals of a benchmark.
pub fn goals(key: &str) -> Vec<Goal> {
    let goal = |text: String, figure, bound| Goal {
        // The report names the benchmark, of which one variant has the goal.
        text: if key.ends_with("/swap") { format!("{text}, swap") } else { text },
        contender: key.to_owned(),
        figure,
        ratio_to: None,
        bound,
        placement: None,
    };
    match key {
        "swap" => {
            let text = "at most 1.3 times the time of the bare loop in C".to_owned();
            vec![Goal { ratio_to: Some(C_LOOP.to_owned()), ..goal(text, "ns", Bound::Below(1.3)) }]
        }
        "recovery" => vec![goal("below 10 ms".to_owned(), "ms", Bound::Below(10.0))],
        _ => {
            let rate = |mpps| goal(format!("at least {mpps} Mpps"), "mpps", Bound::AtLeast(mpps));
            let Some(found) = RATE_GOALS.iter().find(|found| found.key == key) else { return Vec::new() };
            match found.near == found.far {
                true => vec![rate(found.near)],
                false => vec![
                    Goal { placement: Some("near"), ..rate(found.near) },
                    Goal { placement: Some("far"), ..rate(found.far) },
                ],
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::BenchCommand;
    use crate::args::tests::parse;

    fn keys(line: &str, cores: usize) -> Result<Vec<String>, Error> {
        let line = format!("engine {line}");
        let BenchCommand::Engine(args) = parse(&line) else { panic!("not engine") };
        Ok(chosen(&args, cores)?.into_iter().map(|case| case.key).collect())
    }

    #[test]
    fn names_sizes_and_variants_choose() {
        for (line, expected) in [
            ("--only swap", &["swap"][..]),
            ("--only recovery,swap", &["swap", "recovery"]),
            ("--only tunnel --sizes 60,1500", &["tunnel/60", "tunnel/1500"]),
            ("--only interlink/1500", &["interlink/1500/swap", "interlink/1500/copy"]),
            ("--only interlink-touch/60/copy", &["interlink-touch/60/copy"]),
            ("--only scale --sizes 60", &["scale/60/1", "scale/60/2", "scale/60/3", "scale/60/4"]),
        ] {
            assert_eq!(keys(line, 2).expect("chosen"), expected, "{line}");
        }
        let error = keys("--only interlnk", 2).expect_err("refused").to_string();
        assert!(error.contains("interlnk") && error.contains("source-sink, interlink,"), "{error}");
        assert!(keys("--only tunnel/61", 2).is_err());
    }

    #[test]
    fn every_benchmark_has_a_case_and_no_case_is_twice() {
        let mut keys = keys("", 2).expect("chosen");
        for Benchmark { name, .. } in BENCHMARKS {
            assert!(keys.iter().any(|key| key.split('/').next() == Some(name)), "{name}");
        }
        // 6 of one size each for three, 5 of two modes, 4 counts of processes, and two without a size.
        assert_eq!(keys.len(), 3 * 3 + 5 * 3 * 2 + 4 * 3 + 2);
        keys.sort();
        keys.dedup();
        assert_eq!(keys.len(), 3 * 3 + 5 * 3 * 2 + 4 * 3 + 2);
    }

    #[test]
    fn the_curve_ends_at_twice_the_cores() {
        for (cores, expected) in [
            (1, &[1, 2][..]),
            (2, &[1, 2, 3, 4]),
            (6, &[1, 2, 4, 6, 8, 9, 12]),
            (64, &[1, 2, 4, 8, 16, 32, 64]),
        ] {
            assert_eq!(processes(cores), expected, "{cores} cores");
        }
    }

    #[test]
    fn every_goal_is_of_a_case() {
        let keys = keys("", 2).expect("chosen");
        for key in RATE_GOALS.map(|goal| goal.key).into_iter().chain(["swap", "recovery"]) {
            assert!(keys.iter().any(|found| found == key) && !goals(key).is_empty(), "{key}");
        }
        let far = goals("interlink/60/swap").pop().expect("two");
        assert_eq!((far.placement, far.bound), (Some("far"), Bound::AtLeast(50.0)));
        assert!(goals("interlink/60/copy").is_empty());
    }
}
