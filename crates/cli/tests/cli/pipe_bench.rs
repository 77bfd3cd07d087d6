//! Tests of `caravan bench pipe` as a user runs it. The figures of such small runs mean nothing; the tests check that
//! there are some.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Output, Stdio};

use crate::common::{Folder, caravan, json, signal, text, wait_for};
use rustix::process::Signal;
use serde_json::Value;

/// Runs `caravan bench pipe` with its temporary files in `folder`. Returns the output and the pid.
fn bench(folder: &Folder, words: &str) -> (Output, u32) {
    let mut command = caravan();
    command.args(["bench", "pipe"]).args(words.split(' ')).args(["--json", "-"]);
    command.args(["--svg", svg(folder).to_str().expect("UTF-8")]).env("TMPDIR", folder.path());
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the command starts");
    let pid = child.id();
    (child.wait_with_output().expect("ended"), pid)
}

fn svg(folder: &Folder) -> std::path::PathBuf {
    folder.path().join("chart.svg")
}

fn keys(rows: &Value) -> Vec<&str> {
    rows.as_array().expect("a list").iter().filter_map(|row| row["key"].as_str()).collect()
}

/// True if a benchmark's folder contains only the chart, no process knows the folder, and no namespace has the pid in
/// its name.
fn is_clean(folder: &Folder, pid: u32) -> bool {
    let mut files = fs::read_dir(folder.path()).expect("a folder").flatten();
    let marker = folder.path().to_str().expect("UTF-8");
    let processes = fs::read_dir("/proc").expect("/proc").flatten();
    let mut lines = processes.filter_map(|entry| fs::read(entry.path().join("cmdline")).ok());
    !files.any(|file| file.path() != svg(folder))
        && !lines.any(|line| String::from_utf8_lossy(&line).contains(marker))
        && !namespaces().iter().any(|name| name.starts_with(&format!("caravan-bench-{pid}-")))
}

fn namespaces() -> Vec<String> {
    let entries = fs::read_dir("/run/netns").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

#[test]
fn every_step_is_measured_in_order_over_shared_memory_and_tcp() {
    for (transport, last) in [("shm", "Caravan's ring"), ("tcp", "TCP as a stream")] {
        let folder = Folder::new();
        let (output, _) = bench(&folder, &format!("--steps --transport {transport} --rounds 2 --bytes 40Mi"));
        let json = json(&output);
        assert_eq!(json["benchmark"], "pipe-steps");
        assert_eq!(json["facts"]["transport"], transport);
        let steps = "4k 1-byte-acks batched-acks 64k 1m 8m untouched copy two-buffers read-ahead stream";
        let contenders = &json["cases"][0]["contenders"];
        assert_eq!(keys(contenders).join(" "), steps);
        for step in contenders.as_array().expect("a list") {
            let rate = &step["figures"]["gb_per_s"];
            assert_eq!(rate["samples"].as_array().map(Vec::len), Some(2), "{step}");
            assert!(rate["min"].as_f64() > Some(0.0), "{step}");
            assert_eq!(rate["ratio"].is_object(), step["key"] != "4k", "{step}");
        }
        let table = text(&output.stderr);
        assert!(table.contains(last) && table.contains("post GB/s") && table.contains("gain"), "{table}");
        assert!(fs::read_to_string(svg(&folder)).expect("a chart").contains("two buffers"));
    }
}

#[test]
fn caravan_and_the_tools_that_are_there_are_measured_beside_each_other() {
    let folder = Folder::new();
    let (output, pid) =
        bench(&folder, "--only same-host,veth,veth-10g,start --network loopback --rounds 1 --bytes 16Mi");
    let table = text(&output.stderr);
    let json = json(&output);
    assert_eq!(json["benchmark"], "pipe");
    assert_eq!(keys(&json["cases"]), ["same-host", "veth", "start"]);
    assert_eq!(keys(&json["cases"][0]["contenders"]), ["caravan", "shell"]);
    assert_eq!(keys(&json["cases"][2]["contenders"]), ["caravan", "ssh"]);
    let tools = keys(&json["cases"][1]["contenders"]);
    assert_eq!(tools[..2], ["caravan-insecure", "caravan"]);
    assert!(tools.contains(&"ssh"), "{tools:?}");
    for tool in ["nc", "socat", "mbuffer", "iperf3"] {
        let is_told = table.lines().any(|line| line.starts_with("Not installed") && line.contains(tool));
        assert!(tools.contains(&tool) != is_told, "{tool}: {table}");
    }
    for case in json["cases"].as_array().expect("a list") {
        assert!(!case["goals"].as_array().expect("goals").is_empty(), "{case}");
        for row in case["contenders"].as_array().expect("a list") {
            let figures = row["figures"].as_object().expect("figures");
            assert!(figures.contains_key("wall_s") && figures.len() >= 3, "{row}");
            for figure in ["gb_per_s", "wall_s"].into_iter().filter_map(|key| figures.get(key)) {
                assert!(figure["median"].as_f64() > Some(0.0), "{row}");
            }
            let first = figures.get("gb_per_s").unwrap_or(&figures["wall_s"]);
            assert_eq!(first["ratio"].is_object(), row != &case["contenders"][0], "{row}");
        }
    }
    assert!(table.contains("two addresses of loopback: no namespaces"), "{table}");
    assert!(table.contains("No veth-10g: it takes network namespaces"), "{table}");
    assert!(table.contains("  start: under 0.5 s "), "{table}");
    assert!(is_clean(&folder, pid));
}

#[test]
fn namespaces_are_joined_and_go_and_so_do_those_of_a_dead_benchmark() {
    let folder = Folder::new();
    if !rustix::process::geteuid().is_root() {
        let (output, _) = bench(&folder, "--only veth --network veth --rounds 1 --bytes 1Mi");
        assert_eq!(output.status.code(), Some(1));
        assert!(text(&output.stderr).contains("take root: run it with sudo"), "{}", text(&output.stderr));
        return;
    }
    // No process has a pid as large as this one.
    let abandoned = "caravan-bench-4294967295-dead-a";
    let made = std::process::Command::new("ip").args(["netns", "add", abandoned]).status();
    assert!(made.expect("ip (package iproute2)").success());
    let (output, pid) = bench(&folder, "--only veth,veth-10g --rounds 1 --bytes 16Mi");
    let json = json(&output);
    assert_eq!(keys(&json["cases"]), ["veth", "veth-10g"], "{}", text(&output.stderr));
    for row in json["cases"][1]["contenders"].as_array().expect("a list") {
        assert!(row["figures"]["percent_of_line"]["median"].as_f64() > Some(0.0), "{row}");
    }
    assert!(!namespaces().iter().any(|name| name == abandoned));
    assert!(is_clean(&folder, pid));
}

#[test]
fn ctrl_c_leaves_nothing_behind() {
    let folder = Folder::new();
    let mut command = caravan();
    command.args(["bench", "pipe", "--only", "veth", "--rounds", "1000", "--bytes", "256Mi"]);
    command.args(["--json", "", "--svg", ""]).env("TMPDIR", folder.path());
    let mut child = command.stderr(Stdio::piped()).spawn().expect("the command starts");
    let complaints = BufReader::new(child.stderr.take().expect("a pipe"));
    let mut lines = complaints.lines().map_while(Result::ok);
    assert!(lines.any(|line| line.contains("veth: round 1 of 1000")), "it measures");
    wait_for("something to be left behind", || !is_clean(&folder, child.id()));
    signal(&child, Signal::INT);
    lines.for_each(drop);
    assert_eq!(child.wait().expect("ended").code(), Some(130));
    // This check comes at once: another benchmark would remove what this one has left.
    assert!(is_clean(&folder, child.id()));
}

#[test]
fn benchmarks_are_listed_and_what_cannot_be_is_refused() {
    let folder = Folder::new();
    let words = |words: &str| {
        let mut command = caravan();
        command.args(["bench", "pipe"]).args(words.split(' ')).env("TMPDIR", folder.path());
        command.output().expect("the command starts")
    };
    let listed = text(&words("--list").stdout);
    for name in ["same-host", "veth", "veth-10g", "start"] {
        assert!(listed.lines().any(|line| line.split(' ').next() == Some(name)), "{name}: {listed}");
    }
    if !Path::new("/sys/class/infiniband").exists() {
        let refused = words("--steps --transport rdma");
        assert!(text(&refused.stderr).contains("no RDMA device"), "{}", text(&refused.stderr));
    }
    assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 0);
}
