//! Tests of `caravan bench store` and `caravan bench workloads` as a user runs them. The figures of such small runs mean nothing; the tests check that
//! there are some.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::process::{Output, Stdio};

use crate::common::{Folder, caravan, json, signal, text, wait_for};
use rustix::process::Signal;
use serde_json::Value;

/// True if a process runs whose command line or working folder contains the marker.
fn knows(marker: &str) -> bool {
    let processes = fs::read_dir("/proc").expect("/proc").flatten();
    let mut lines = processes.filter_map(|entry| fs::read(entry.path().join("cmdline")).ok());
    lines.any(|line| String::from_utf8_lossy(&line).contains(marker))
}

/// True if the folder for temporary files has none, and no process of the benchmark is left.
fn is_clean(folder: &Folder) -> bool {
    let mut files = fs::read_dir(folder.path()).expect("a folder");
    files.next().is_none() && !knows(folder.path().to_str().expect("UTF-8"))
}

fn keys(rows: &Value) -> Vec<&str> {
    rows.as_array().expect("a list").iter().filter_map(|row| row["key"].as_str()).collect()
}

#[test]
fn every_benchmark_measures_the_store_beside_the_peers_that_are_there() {
    let folder = Folder::new();
    let mut command = caravan();
    let words = "bench store --keys 3000 --rounds 2 --seconds 0.02 --json - --svg=";
    let output =
        command.args(words.split(' ')).env("TMPDIR", folder.path()).output().expect("the command starts");
    let table = text(&output.stderr);
    let json = json(&output);
    assert_eq!((&json["schema"], &json["benchmark"]), (&"caravan-bench/1".into(), &"store".into()));
    assert_eq!(json["facts"]["keys"], 3000);
    let cases = json["cases"].as_array().expect("a list");
    let names = "get get-many put link-set call call-64 socket-get socket-set socket-get-64 socket-set-64 tcp-get \
                 fixed-reads memory restart";
    assert_eq!(keys(&json["cases"]).join(" "), names);
    let notes = json["notes"].to_string();
    for case in cases {
        let contenders = keys(&case["contenders"]);
        assert_eq!(contenders.last(), Some(&"caravan"), "{case}");
        let key = case["key"].as_str().expect("a key");
        for peer in ["redis", "memcached", "valkey", "lmdb", "tcp", "tcp-batched"] {
            let is_missing = notes.contains(&format!("Not installed: {peer} (apt install "));
            let is_expected = match peer {
                "lmdb" => matches!(key, "get-many" | "put" | "memory"),
                "tcp" => matches!(key, "call" | "call-64"),
                "tcp-batched" => key == "call-64",
                "memcached" if key == "tcp-get" => false,
                _ => !matches!(key, "put" | "call" | "call-64" | "fixed-reads" | "restart"),
            };
            assert_eq!(contenders.contains(&peer), is_expected && !is_missing, "{peer} {case}");
        }
        for one in case["contenders"].as_array().expect("a list") {
            let figures = one["figures"].as_object().expect("figures");
            let median = |name: &str| figures[name]["median"].as_f64().expect(name);
            // A tiny server's memory may not grow by a page, and its processor time be below a tick.
            let is_coarse = |name: &str| {
                matches!(name, "resident_bytes" | "server_cpu_us" | "failed_reads" | "lost_writes")
            };
            let is_positive = |name: &String| median(name) > 0.0 || is_coarse(name) && median(name) == 0.0;
            assert!(!figures.is_empty() && figures.keys().all(is_positive), "{one}");
            let rounds = if case["key"] == "memory" { 1 } else { 2 };
            let are_whole = |figure: &Value| figure["samples"].as_array().map(Vec::len) == Some(rounds);
            assert!(figures.values().all(are_whole), "{one}");
        }
    }
    let get = &cases[0]["contenders"].as_array().expect("a list").last().expect("one")["figures"];
    assert!(get["p50_us"]["median"].as_f64() <= get["p99_us"]["median"].as_f64(), "{get}");
    assert!(cases[0]["goals"][0]["is_reached"].is_boolean(), "{}", cases[0]);
    let goals = |key: &str| {
        let case = cases.iter().find(|case| case["key"] == key).expect(key);
        case["goals"].as_array().expect("a list").clone()
    };
    // Reads are counted, so even a small run tells.
    assert!(goals("fixed-reads").iter().all(|goal| goal["is_reached"] == true), "{json}");
    assert_eq!((goals("link-set").len(), goals("call-64").len()), (1, 4));
    let all = table.split("\nGoals ").nth(1).expect("all goals in one table");
    assert!(all.contains("  link-set: p50") && all.contains("  restart: no read fails"), "{table}");
    assert!(notes.contains("M random keys a second"), "{notes}");
    assert!(table.contains("CPU us of the server") && table.contains("round 2 of 2"), "{table}");
    assert!(is_clean(&folder));
}

#[test]
fn workloads_run_on_the_store_beside_the_peers_that_are_there() {
    let folder = Folder::new();
    let json = workloads_of(&folder, "--seconds 0.02");
    assert_eq!(
        keys(&json["cases"]).join(" "),
        "copies-update copies-set ycsb-a ycsb-b ycsb-c ycsb-d ycsb-f tatp tatp-8 smallbank smallbank-8"
    );
    let notes = json["notes"].to_string();
    for case in json["cases"].as_array().expect("a list") {
        let contenders = keys(&case["contenders"]);
        for peer in ["redis", "valkey"] {
            let is_missing = notes.contains(&format!("Not installed: {peer}-server (apt install "));
            assert_eq!(contenders.contains(&peer), !is_missing, "{case}");
        }
        assert!(contenders.ends_with(&["caravan-resp", "caravan"]), "{case}");
        for one in case["contenders"].as_array().expect("a list") {
            let p50 = one["figures"]["p50_us"]["median"].as_f64();
            assert!(p50 > Some(0.0) && p50 <= one["figures"]["p99_us"]["median"].as_f64(), "{one}");
        }
        let goals = match case["key"].as_str() {
            Some("copies-update") => 2,
            Some("copies-set") => 3,
            _ => 0,
        };
        assert_eq!(case["goals"].as_array().map(Vec::len), Some(goals), "{case}");
    }
    assert!(is_clean(&folder));
}

/// The figures of `caravan bench workloads` with `words`.
fn workloads_of(folder: &Folder, words: &str) -> Value {
    let words = format!("bench workloads --records 2000 --rounds 1 --json - --svg= {words}");
    let run = || {
        let mut command = caravan();
        command.args(words.split(' ')).env("TMPDIR", folder.path()).output().expect("the command starts")
    };
    // On a busy machine a server may get no processor for 100 ms, and be expelled; that is no failure of the benchmark.
    let is_sound = |output: &Output| !text(&output.stderr).contains("gives its parts up");
    json(&std::iter::repeat_with(run).take(10).find(is_sound).expect("a machine that is not always too busy"))
}

#[test]
fn messages_and_one_sided_operations_are_counted_for_each_transaction() {
    let folder = Folder::new();
    // Long enough for hundreds of transactions even on a busy machine, so that the shares below are those of the mix.
    let json = workloads_of(&folder, "--only tatp --seconds 0.5");
    let contenders = json["cases"][0]["contenders"].as_array();
    let link = contenders.and_then(|contenders| contenders.last()).expect("a contender");
    let counted = |figure: &str| link["figures"][figure]["median"].as_f64().expect("a number");
    // One transaction in six writes, by a call and its reply, and each write goes to one other copy; reads are of mapped memory.
    assert!((0.05..0.35).contains(&counted("one_sided")), "{link}");
    assert!((0.1..2.0).contains(&counted("messages")), "{link}");
    assert!(is_clean(&folder));
}

#[test]
fn ctrl_c_ends_the_servers_and_the_reader() {
    let folder = Folder::new();
    let mut command = caravan();
    command.args("bench store --keys 3000 --only get --seconds 30 --json= --svg=".split(' '));
    let mut child =
        command.env("TMPDIR", folder.path()).stderr(Stdio::piped()).spawn().expect("the command starts");
    let mut complaints = BufReader::new(child.stderr.take().expect("a pipe"));
    let mut said = String::new();
    while !said.contains("round 1") {
        assert!(complaints.read_line(&mut said).expect("a line") > 0, "{said}");
    }
    assert!(!is_clean(&folder), "{said}");
    signal(&child, Signal::INT);
    complaints.read_to_string(&mut said).expect("the rest");
    assert_eq!(child.wait().expect("ended").code(), Some(130), "{said}");
    wait_for("all of it to end", || is_clean(&folder));
}
