//! Tests of `caravan limits` as a user runs it.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::Signal;
use serde_json::Value;

use crate::common::{Folder, caravan, json, printed, run, signal, text, wait_for};

/// Returns what a command that failed has said.
fn refused(words: &[&str]) -> String {
    let output = run(words);
    assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0), "{words:?}");
    text(&output.stderr)
}

fn row<'a>(report: &'a Value, what: &str) -> &'a Value {
    let rows = report["rows"].as_array().expect("rows");
    rows.iter().find(|row| row["what"].as_str().is_some_and(|name| name.contains(what))).expect(what)
}

#[test]
fn the_camels_are_a_table_with_their_arithmetic_and_well_formed_json() {
    let folder = Folder::new();
    let files = ["camels.json", "camels.svg"].map(|name| folder.path().join(name).display().to_string());
    let table =
        printed(&run(&["limits", "--camels", "--explain", "--json", &files[0], "--chart", &files[1]]));
    for expected in
        ["289 nIOPS", "74 GB/s", "1.5 TB/s", "2.3 uB/s", "1.28 GB/s", "12.8 GB/s", "320 MB/s", "102.4 GB/s"]
    {
        assert!(table.contains(expected), "{expected}: {table}");
    }
    assert!(
        table.contains("1 / 40 days = 289 nIOPS; x 256 PB = 74 GB/s; x 20 in parallel = 1.5 TB/s"),
        "{table}"
    );
    let output = run(&["limits", "--camels", "--json", "-"]);
    let report = json(&output);
    assert!(text(&output.stderr).contains("289 nIOPS"), "the table is on standard error");
    assert_eq!(
        (&report["schema"], report["rows"].as_array().map(Vec::len)),
        (&"caravan-limits/1".into(), Some(13))
    );
    assert!(fs::read_to_string(&files[1]).expect("a chart").contains("20 camels with cards (40 days)"));
    let compared = printed(&run(&["limits", "compare", &files[0], &files[0]]));
    let camel = compared.lines().find(|line| line.starts_with("20 camels with cards")).expect("a row");
    assert!(camel.ends_with("1.00") && !compared.contains("Only in"), "{compared}");
}

#[test]
fn a_file_is_only_read_and_its_points_are_all_there() {
    let folder = Folder::new();
    let path = folder.path().join("a file\nof data");
    let contents: Vec<u8> = (0..4_u32 << 20).map(|number| (number % 251) as u8).collect();
    fs::write(&path, &contents).expect("written");
    let name = path.to_str().expect("a name");
    let report = json(&run(&["limits", name, "--json", "-"]));
    for pattern in ["reads random", "reads in order"] {
        let row = row(&report, pattern);
        let cells = row["cells"].as_array().expect("cells");
        let has = |block: u64, depth: u64| {
            cells.iter().any(|cell| cell["block_bytes"] == block && cell["parallel"] == depth)
        };
        assert!(has(4096, 1) && has(4096, 256) && has(65536, 64), "{row}");
        // Four blocks of 8 MiB are not in it.
        assert!(!has(8 << 20, 1), "{row}");
        assert!(row["latency"]["p99_s"].as_f64() >= row["latency"]["p50_s"].as_f64(), "{row}");
        assert!(row["cap"]["kind"].is_string() && row["bytes_per_s"].as_f64() > Some(0.0), "{row}");
    }
    assert!(fs::read(&path).expect("read") == contents);
    assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 1);
}

#[test]
fn a_scratch_file_is_written_and_leaves_nothing() {
    let folder = Folder::new();
    fs::write(folder.path().join("mine"), "text").expect("written");
    let name = folder.path().to_str().expect("a name");
    let report = json(&run(&["limits", name, "--write", "--size", "16Mi", "--json", "-"]));
    for what in ["reads random", "writes random", "writes in order"] {
        assert!(row(&report, what)["bytes_per_s"].as_f64() > Some(0.0), "{report}");
    }
    assert!(row(&report, "write and fsync")["latency"]["p50_s"].as_f64() > Some(0.0), "{report}");
    assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 1);
    assert_eq!(fs::read_to_string(folder.path().join("mine")).expect("read"), "text");
}

/// The files that a process has open, as the kernel shows them: those without a name are "(deleted)".
fn has_scratch_file(pid: u32, folder: &Path) -> bool {
    let Ok(files) = fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
    let targets = files.flatten().filter_map(|file| fs::read_link(file.path()).ok());
    targets.into_iter().any(|target| target.starts_with(folder) && target != folder)
}

#[test]
fn neither_ctrl_c_nor_a_kill_leaves_a_file() {
    for (how, status) in [(Signal::INT, Some(130)), (Signal::KILL, None)] {
        let folder = Folder::new();
        let mut command = caravan();
        command.args(["limits", "--full", "--write", "--size", "32Mi"]).arg(folder.path());
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts");
        wait_for("the scratch file", || has_scratch_file(child.id(), folder.path()));
        signal(&child, how);
        assert_eq!(child.wait().expect("ended").code(), status);
        assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 0);
    }
}

#[test]
fn what_cannot_be_measured_is_refused_with_a_remedy() {
    let folder = Folder::new();
    let name = folder.path().to_str().expect("a name");
    let file = folder.path().join("small");
    fs::write(&file, "text").expect("written");
    let file = file.to_str().expect("a name");
    for (words, expected) in [
        (vec!["limits", "/none/data"], "/none/data: there is no such file"),
        (vec!["limits", "db2.example.org"], "caravan selftest HOST"),
        (vec!["limits", name], "is a directory: name a file in it"),
        (vec!["limits", file, "--write"], "--write never writes to what exists"),
        (vec!["limits", file], "has 4 B, which is too little"),
        (vec!["limits", "/dev/zero"], "neither a file nor a disk"),
        (vec!["limits", "/proc", "--write"], "cannot make a scratch file in /proc"),
        (vec!["limits", "compare", file, "/none/b.json"], "`caravan limits --json FILE`"),
        (vec!["limits", "compare", "/none/a.json", file], "cannot read /none/a.json"),
        (vec!["bench", "limits", "/none/data"], "/none/data: there is no such file"),
    ] {
        let mut words = words;
        let is_fio = words[0] == "bench";
        let said = if is_fio {
            // Where fio is missing, that is said first.
            let output = caravan().args(words.split_off(0)).output().expect("it starts");
            text(&output.stderr)
        } else {
            refused(&words)
        };
        assert!(said.contains(expected) || is_fio && said.contains("install the package fio"), "{said}");
    }
    for (words, expected) in [
        (["limits", "--write"].as_slice(), "<PATH>"),
        (&["limits", "--chart", "x.gif"], "it takes a name that ends with .svg or .png"),
    ] {
        let output = run(words);
        assert_eq!(output.status.code(), Some(2));
        assert!(text(&output.stderr).contains(expected), "{}", text(&output.stderr));
    }
    let output = caravan().args(["limits", "--camels", "--chart", "x.png"]).env("PATH", "/none").output();
    let said = text(&output.expect("it starts").stderr);
    assert!(said.contains("x.png: rsvg-convert") && said.contains("librsvg2-bin"), "{said}");
}

/// A full disk of its own, for root: a tmpfs in a mount namespace that ends with the test.
#[test]
fn a_disk_without_space_is_not_filled() {
    let folder = Folder::new();
    let script = r#"mount -t tmpfs -o size=20m none "$1" 2>/dev/null || exit 77
        "$0" limits "$1" --write --json - ; echo "status $?" >&2; df --output=used "$1" | tail -1 >&2"#;
    let output = Command::new("unshare")
        .args(["-m", "sh", "-c", script, env!("CARGO_BIN_EXE_caravan")])
        .arg(folder.path())
        .output();
    let Ok(output) = output else { return };
    let said = text(&output.stderr);
    if !said.contains("status") {
        eprintln!("not tested: this needs root, unshare and mount");
        return;
    }
    assert!(said.contains("20 MiB free: the scratch file takes a quarter of that at most"), "{said}");
    assert!(said.contains("status 1\n") && said.trim_end().ends_with('0'), "{said}");
}
