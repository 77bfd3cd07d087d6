//! Tests of `caravan fabric` and `caravan selftest` as users run them, on a machine that may have no RDMA device. The
//! other side is this machine, reached through an sshd of the test.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::common::{Folder, caravan, json, printed, run, signal, text, wait_for};
use crate::sshd::{Hosts, Setup};
use rustix::process::Signal;
use serde_json::Value;

#[test]
fn fabric_prints_what_there_is() {
    let said = printed(&run(&["fabric", "localhost"]));
    for expected in ["locked memory: ", "firewall: ", "towards localhost (", "): shared memory\n"] {
        assert!(said.contains(expected), "{expected}: {said}");
    }
}

#[test]
fn fabric_as_json_is_one_object() {
    let json = json(&run(&["fabric", "--json"]));
    assert!(
        json["devices"].is_array() && json["obstacles"].is_array() && json["towards"].is_null(),
        "{json}"
    );
    assert!(json["locked_memory"]["bytes_per_link"].as_u64() > Some(2 * 512 << 10), "{json}");
}

/// Checks that a way was left out only for lack of a device, and that everything else passed.
fn check_report(json: &Value) {
    assert_eq!(json["failures"], Value::Array(Vec::new()), "{json}");
    let paths = json["paths"].as_array().expect("a list");
    assert_eq!(paths[0]["name"], "shared memory");
    for path in paths {
        assert_eq!(path["failure"], Value::Null, "{path}");
        let checks = path["checks"].as_array().expect("a list");
        assert_eq!(checks.len(), 6, "{path}");
        assert!(checks.iter().all(|check| check["outcome"].get("failed").is_none()), "{path}");
        let rows = |name: &str| path[name].as_array().expect("a list").clone();
        assert_eq!((rows("round_trips").len(), rows("throughput").len()), (10, 8), "{path}");
        assert!(rows("round_trips").iter().all(|row| row["median_us"].as_f64() > Some(0.0)), "{path}");
        assert!(rows("throughput").iter().all(|row| row["back"].as_f64() > Some(0.0)), "{path}");
    }
    assert!(
        json["verdict"].as_str().is_some_and(|verdict| verdict.contains("TCP is what is left")),
        "{json}"
    );
}

/// Returns a host without this program.
fn bare() -> Hosts {
    Hosts::with(&["there"], &Setup::bare())
}

/// Returns `caravan selftest` towards the host, to which more options may be added.
fn selftest(hosts: &Hosts) -> Command {
    let at = hosts.folder();
    std::fs::write(at.join("empty"), "").expect("written");
    let mut command = caravan();
    let port = hosts.port("there").to_string();
    command.args(["selftest", hosts.address("there"), "-p", &port, "-i"]).arg(at.join("key"));
    command.arg("-F").arg(at.join("empty"));
    let known = format!("UserKnownHostsFile={}", at.join("known_hosts").display());
    command.args(["-o", &known, "-o", "GlobalKnownHostsFile=/dev/null"]);
    command.args(["-o", "IdentitiesOnly=yes", "-o", "StrictHostKeyChecking=yes", "-o", "BatchMode=yes"]);
    command
}

/// True if no process and no file of the copied program is left.
fn is_clean(hosts: &Hosts) -> bool {
    let tmp = hosts.folder().join("there/tmp");
    let processes = std::fs::read_dir("/proc").expect("/proc").flatten();
    let mut programs = processes.filter_map(|entry| std::fs::read_link(entry.path().join("exe")).ok());
    is_empty(&tmp) && is_empty(&hosts.cache("there")) && !programs.any(|program| program.starts_with(&tmp))
}

#[test]
fn over_ssh_everything_is_tested_and_nothing_is_left() {
    let hosts = bare();
    let file = hosts.folder().join("report.json");
    let mut command = selftest(&hosts);
    let output =
        command.args(["--seconds", "0.1", "--json", "--output"]).arg(&file).output().expect("it starts");
    assert!(printed(&output).starts_with("Passed, in "), "{output:?}");
    check_report(&serde_json::from_slice(&std::fs::read(&file).expect("written")).expect("JSON"));
    wait_for("the other side to leave nothing", || is_clean(&hosts));
}

#[test]
fn interrupted_or_killed_nothing_is_left() {
    let hosts = bare();
    for (end, status) in [(Signal::INT, Some(130)), (Signal::TERM, Some(130)), (Signal::KILL, None)] {
        let mut command = selftest(&hosts);
        let mut child = command.args(["--seconds", "60"]).stderr(Stdio::piped()).spawn().expect("it starts");
        let mut errors = BufReader::new(child.stderr.take().expect("a pipe")).lines();
        let begun = errors.find(|line| line.as_ref().is_ok_and(|line| line == "caravan: shared memory"));
        assert!(begun.is_some(), "the test began");
        assert!(!is_clean(&hosts), "the other side runs");
        signal(&child, end);
        assert_eq!(child.wait().expect("it ends").code(), status, "{end:?}");
        wait_for("the other side to leave nothing", || is_clean(&hosts));
    }
}

/// A program that is called as ssh and runs the command here, with a folder of its own first on the PATH.
struct NoSsh(Folder);

impl NoSsh {
    fn new(programs: &[(&str, &str)]) -> Self {
        let folder = Folder::new();
        let bin = folder.path().join("bin");
        std::fs::create_dir(&bin).expect("made");
        for (name, script) in programs {
            crate::sshd::program(&bin.join(name), script);
        }
        let (bin, at) = (bin.display().to_string(), folder.path().display().to_string());
        let script = format!(
            "for last; do :; done; export PATH={bin}:$PATH TMPDIR={at}/tmp HOME={at}/tmp XDG_RUNTIME_DIR=; exec sh -c \"$last\""
        );
        std::fs::create_dir(folder.path().join("tmp")).expect("made");
        crate::sshd::program(&folder.path().join("ssh"), &script);
        Self(folder)
    }

    fn run(&self) -> Output {
        let ssh = self.0.path().join("ssh");
        let mut command = caravan();
        command.args(["selftest", "--seconds", "0.1", "--ssh"]).arg(ssh).arg("there");
        command.output().expect("it starts")
    }
}

fn is_empty(folder: &Path) -> bool {
    std::fs::read_dir(folder).expect("a folder").next().is_none()
}

/// The same program on the PATH is used, and another version is not.
#[test]
fn a_program_on_the_path_is_taken_if_it_is_the_same() {
    let same = format!("exec {} \"$@\"", env!("CARGO_BIN_EXE_caravan"));
    let no_copies = ("mktemp", "exit 1");
    let said = printed(&NoSsh::new(&[("caravan", &same), no_copies]).run());
    assert!(said.contains("a link carries 2 MiB each way unchanged, sleeping: yes"), "{said}");
    assert!(said.lines().last().is_some_and(|line| line.starts_with("Passed, in ")), "{said}");
    let output = NoSsh::new(&[("caravan", "echo caravan 9.9.9 selftest 9"), no_copies]).run();
    assert!(text(&output.stderr).contains("no folder there"), "{}", text(&output.stderr));
}

/// This side gives up an other side that says nothing more, and at once one that sends nonsense.
#[test]
fn a_broken_other_side_is_named() {
    let host = NoSsh::new(&[]);
    for (script, expected) in [
        ("echo caravan-selftest ready; exit 3", "ssh ended (exit status: 3)"),
        ("echo caravan-selftest ready; head -c 9000000 /dev/zero | tr '\\0' x", "a message is too long"),
        ("echo caravan-selftest dance; cat", "it says `dance `"),
        ("echo welcome; echo broken >&2; exit 127", "broken"),
    ] {
        crate::sshd::program(&host.0.path().join("ssh"), script);
        let begin = Instant::now();
        let output = host.run();
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains(expected), "{script}: {said}");
        assert!(begin.elapsed() < Duration::from_secs(60), "{script}");
    }
}
