//! Tests of `caravan bench engine` and `caravan bench compare` as a user runs them.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use crate::common::{Folder, caravan, json, printed, run, signal, text, wait_for};
use rustix::process::Signal;
use serde_json::Value;

/// Returns the path of a new file below cargo's folder for test files.
fn file(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-{name}", std::process::id()));
    let _ = fs::remove_file(&path);
    path
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Runs every benchmark once, tiny. The figures mean nothing; the test checks that there are some.
#[test]
fn every_benchmark_moves_packets_and_is_written_down() {
    let (history, svg) = (file("history.jsonl"), file("chart.svg"));
    let words: Vec<_> = "bench engine --sizes 60 --samples 1 --seconds 0.02 --json -".split(' ').collect();
    let files = ["--svg", svg.to_str().expect("UTF-8"), "--history", history.to_str().expect("UTF-8")];
    let output = run(&[&words[..], &files].concat());
    let table = text(&output.stderr);
    if cores() < 2 {
        assert!(table.contains("needs 2 cores"), "{table}");
        return;
    }
    let json = json(&output);
    assert_eq!((&json["schema"], &json["benchmark"]), (&"caravan-bench/1".into(), &"engine".into()));
    assert!(json["machine"]["kernel"].is_string() && json["facts"]["cores"]["first"].is_u64(), "{json}");
    let cases = json["cases"].as_array().expect("a list");
    let contenders = |case: &Value| case["contenders"].as_array().expect("a list").clone();
    let all: Vec<_> = cases.iter().flat_map(contenders).collect();
    let keys: Vec<_> = all.iter().filter_map(|one| one["key"].as_str()).collect();
    for expected in [
        "basic1/60",
        "source-sink/60",
        "interlink/60/swap",
        "interlink/60/copy",
        "interlink-header/60/swap",
        "interlink-read/60/copy",
        "interlink-touch/60/copy",
        "swap",
        "swap/c-loop",
        "tunnel/60",
        "tunnel2/60/swap",
        "scale/60/1",
        "recovery",
    ] {
        assert!(keys.contains(&expected), "{expected} in {keys:?}");
    }
    for one in &all {
        let figures = one["figures"].as_object().expect("figures");
        assert!(figures.values().all(|figure| figure["median"].as_f64() > Some(0.0)), "{one}");
        if one["key"] != "recovery" {
            let median = |figure: &str| figures[figure]["median"].as_f64().expect("a figure");
            assert!((median("ns") * median("mpps") - 1e3).abs() < 1.0, "{one}");
            assert!(median("cpu_ns") > 0.0 && median("gbit_per_s") > 0.0, "{one}");
        }
    }
    for case in cases.iter().filter(|case| case["key"] == "interlink/60") {
        assert!(case["placement"] == "near" || case["placement"] == "far", "{case}");
        assert!(case["line_ns"]["median"].as_f64() > Some(1.0), "{case}");
        assert!(case["goals"][0]["value"].is_f64() && case["goals"][0]["is_reached"].is_boolean(), "{case}");
        assert!(case["contenders"][1]["figures"]["cpu_ns"]["ratio"]["p"].is_f64(), "{case}");
    }
    let recovery = all.iter().find(|one| one["key"] == "recovery").expect("a figure");
    for figure in ["ms", "gap_ms", "quiet_gap_ms"] {
        assert!(recovery["figures"][figure]["samples"].as_array().map(Vec::len) >= Some(5), "{recovery}");
    }

    let lines = fs::read_to_string(&history).expect("a history");
    let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let swaps = all.iter().filter(|one| one["key"] == "swap").count();
    // A line for each contender, two more for the recovery, and one for each ratio to the bare loop.
    assert_eq!(lines.len(), all.len() + 2 + swaps);
    for (key, unit) in [("swap/ratio", "ratio"), ("recovery/gap", "ns"), ("swap/c-loop", "ns")] {
        let line = lines.iter().find(|line| line["benchmark"] == key).expect("a line");
        assert_eq!(line["unit"], unit, "{line}");
    }
    let first = &lines[0];
    assert!(first["date"].as_str().is_some_and(|date| date.ends_with('Z')), "{first}");
    assert!(first["machine"]["processor"].is_string() && first["samples"].is_array(), "{first}");
    assert!(fs::read_to_string(&svg).expect("a chart").contains("source-sink"));
    assert!(table.contains("CPU ns") && table.contains("times the time of the bare loop in C "), "{table}");
}

/// True if a process runs whose command line contains the marker: a sample, or a worker forked from it.
fn runs(marker: &str) -> bool {
    let entries = fs::read_dir("/proc").expect("/proc").flatten();
    let mut lines = entries.filter_map(|entry| fs::read(entry.path().join("cmdline")).ok());
    lines.any(|line| String::from_utf8_lossy(&line).contains(marker))
}

#[test]
fn ctrl_c_ends_everything_and_leaves_no_line_in_the_history() {
    let history = file("interrupted.jsonl");
    let mut command = caravan();
    command.args(["bench", "engine", "--only", "scale/60/2", "--seconds", "47.654321"]);
    command.args(["--json", "", "--svg", "", "--history"]).arg(&history);
    let mut child = command.stderr(Stdio::piped()).spawn().expect("the command starts");
    let mut said = String::new();
    let mut complaints = BufReader::new(child.stderr.take().expect("a pipe"));
    complaints.read_line(&mut said).expect("a line");
    assert!(said.contains("round 1"), "{said}");
    wait_for("a sample to run", || runs("\"run_ns\":47654321000"));
    signal(&child, Signal::INT);
    assert_eq!(child.wait().expect("ended").code(), Some(130));
    wait_for("all of it to end", || !runs("\"run_ns\":47654321000"));
    assert!(!history.exists());
}

#[test]
fn nothing_is_written_where_nothing_is_wanted() {
    let folder = Folder::new();
    let mut command = caravan();
    command.args(["bench", "engine", "--only", "source-sink/60", "--samples", "2", "--seconds", "0.01"]);
    command.args(["--json", "", "--svg", "", "--history", ""]).current_dir(folder.path());
    let table = printed(&command.output().expect("the command starts"));
    assert!(table.contains("at least 150 Mpps "), "{table}");
    assert_eq!(fs::read_dir(folder.path()).expect("the folder").count(), 0);
}

#[test]
fn benchmarks_are_listed() {
    let listed = printed(&run(&["bench", "engine", "--list"]));
    for name in ["basic1", "interlink-touch", "tunnel2", "scale", "recovery"] {
        assert!(listed.lines().any(|line| line.starts_with(name)), "{name}: {listed}");
    }
}

/// Returns a line of a made-up history: nine samples near `median`.
fn line(run: u32, cores: u32, benchmark: &str, placement: &str, median: f64) -> String {
    let samples: Vec<_> = (0..9).map(|n| median * (1.0 + f64::from(n - 4) * 0.001)).collect();
    serde_json::json!({
        "schema": "caravan-engine-history/1",
        "run": run.to_string(),
        "date": format!("2026-01-0{run}T00:00:00Z"),
        "commit": format!("c0ffee{run}"),
        "caravan": "0.1.0",
        "machine": {"processor": "P", "cores": cores, "kernel": "6.1", "system": "Linux"},
        "benchmark": benchmark,
        "placement": placement,
        "unit": "ns",
        "samples": samples,
    })
    .to_string()
}

#[test]
fn a_comparison_says_what_has_changed_and_ends_as_it_is_told() {
    let history = file("compared.jsonl");
    let lines = [
        line(1, 2, "tunnel/60", "none", 10.0),
        line(1, 2, "interlink/60/swap", "near", 5.0),
        line(1, 2, "interlink/60/swap", "far", 20.0),
        line(2, 2, "tunnel/60", "none", 10.0),
        line(2, 2, "interlink/60/swap", "near", 4.0),
        line(3, 16, "tunnel/60", "none", 1.0),
        line(4, 2, "tunnel/60", "none", 12.0),
        line(4, 2, "interlink/60/swap", "near", 4.0),
    ];
    fs::write(&history, lines.join("\n")).expect("written");
    let path = history.to_str().expect("UTF-8");
    for (words, status, expected) in [
        // The last run is compared with the one before it on the same machine: 4 with 2.
        (&[][..], 0, &["A: run 2", "B: run 4", "+20.0%", "REGRESSION", "1 worse, 0 better, 1 the same"][..]),
        (&["--fail-on-regression"], 1, &["REGRESSION"]),
        (&["1", "2", "--fail-on-regression"], 0, &["-20.0%", "improvement", "0 worse, 1 better, 1 the same"]),
        (
            &["c0ffee2", "2026-01-04"],
            0,
            &["A: run 2, 2026-01-02T00:00:00Z, c0ffee2", "B: run 4", "10.0 (9)", "12.0 (9)", "1.0000  "],
        ),
        (&["--threshold", "25", "--fail-on-regression"], 0, &["0 worse, 0 better, 2 the same"]),
        (&["1", "2"], 0, &["1 in one of the runs alone"]),
        (&["3", "4"], 0, &["ANOTHER MACHINE, 16 x P"]),
        (&["--", "-3", "-1"], 0, &["A: run 2", "B: run 4"]),
    ] {
        let output = run(&[&["bench", "compare", "--history", path], words].concat());
        let said = text(&output.stdout);
        assert_eq!(output.status.code(), Some(status), "{words:?}: {said} {}", text(&output.stderr));
        for expected in expected {
            assert!(said.contains(expected), "{words:?}: {expected}: {said}");
        }
    }
    let json = json(&run(&["bench", "compare", "--history", path, "--json", "-3"]));
    let regression =
        json["rows"].as_array().and_then(|rows| rows.iter().find(|row| row["verdict"] == "regression"));
    let regression = regression.expect("a regression");
    assert!(regression["benchmark"] == "tunnel/60" && json["b"]["commit"] == "c0ffee4", "{json}");
    // Of 48,620 orders of nine and nine samples, two separate them as far; two benchmarks are compared.
    assert!((regression["p_corrected"].as_f64().expect("p") - 4.0 / 48_620.0).abs() < 1e-12, "{regression}");
}

#[test]
fn a_comparison_that_cannot_be_is_refused_with_a_sentence() {
    let history = file("short.jsonl");
    fs::write(&history, line(1, 2, "tunnel/60", "none", 10.0)).expect("written");
    let path = history.to_str().expect("UTF-8");
    for (words, expected) in [
        (&["--history", path][..], "before run 1 there is none on the same machine"),
        (&["--history", path, "7"], "no run of 1 in the history is called 7"),
    ] {
        let output = run(&[&["bench", "compare"], words].concat());
        assert_eq!(output.status.code(), Some(1), "{words:?}");
        assert!(text(&output.stderr).contains(expected), "{words:?}: {}", text(&output.stderr));
    }
}
