//! Tests of the `caravan` command as a user runs it.

use std::os::unix::fs::symlink;
use std::process::Command;

use crate::common::{Folder, caravan, json, printed, run, text};

#[test]
fn help_shows_options_and_examples() {
    for (words, expected) in [
        (&["--help"][..], "caravan bench erlang"),
        (&["bench", "--help"], "a bare loop in C"),
        (&["bench", "engine", "--help"], "caravan bench engine --only interlink,tunnel2"),
        (&["bench", "tcp", "--help"], "caravan bench tcp --rounds 3"),
        (&["bench", "store", "--help"], "caravan bench store --only get,get-many --keys 10000000"),
        (&["bench", "workloads", "--help"], "caravan bench workloads --only copies-set,copies-update"),
        (&["limits", "--help"], "caravan limits compare a.json b.json"),
        (&["bench", "limits", "--help"], "caravan bench limits /srv/data.bin"),
        (&["engine", "run", "--help"], "caravan engine run bridge.toml --duration 10"),
        (&["store", "top", "--help"], "caravan store top --once"),
        (&["store", "serve", "--help"], "--metrics <[ADDRESS:]PORT>"),
        (&["store", "serve", "--help"], "--cluster <PLACE>"),
        (&["store", "serve", "--help"], "--member <NAME>"),
        (&["store", "serve", "--help"], "--copies <N>"),
        (&["store", "serve", "--help"], "--parts <N>"),
        (&["store", "serve", "--help"], "--recovery-rate <SIZE>"),
        (&["store", "serve", "--help"], "--forward"),
        (
            &["store", "serve", "--help"],
            "caravan store serve shop --cluster shop.json --port 7001 --member one",
        ),
        (&["store", "status", "--help"], "caravan store status --cluster shop.json"),
        (&["store", "serve", "--help"], "--lease <TIME>"),
        (&["store", "serve", "--help"], "--join <ADDRESS>"),
        (&["store", "leave", "--help"], "caravan store leave shop.json --member two"),
        (&["store", "demo", "--help"], "caravan store demo --kill --seconds 60"),
        (&["frames", "send", "--help"], "caravan frames send cam --size 3840x2160"),
        (&["frames", "recv", "--help"], "caravan frames recv cam --check --seconds 10 --json"),
        (&["frames", "bench", "--help"], "caravan frames bench --cases 4k60-rgba --seconds 10 --rounds 5"),
        (&["pipe", "--help"], "echo hello | caravan pipe host1:'tr [:lower:] [:upper:]' host2:'rev'"),
        (&["pipe", "--help"], "  255    the pipeline was not set up, or a host or a connection was lost"),
        (&["pipe", "--help"], "The data takes another path"),
    ] {
        let help = printed(&run(words));
        assert!(help.contains(expected), "{words:?}: {help}");
    }
}

/// Each refusal is a sentence, and its exit status tells mistakes on the command line (2), failures (1) and pipes that
/// were not set up (255) apart.
#[test]
fn what_cannot_be_is_refused_with_a_sentence() {
    for (words, status, expected) in [
        (&["bench", "elang"][..], 2, "similar subcommands exist: 'engine', 'erlang'"),
        (&["bench", "erlang", "--transports", "tcp,tcp"], 1, "names tcp twice"),
        (&["bench", "erlang"], 1, "caravan: the Erlang modules are not in /none. Run `make build`"),
        (&["bench", "engine", "--only", "tunel"], 1, "no benchmark is called tunel"),
        (&["bench", "pipe", "--only", "veht"], 1, "no benchmark is called veht: there are same-host, veth"),
        (&["bench", "store", "--only", "gte"], 1, "no benchmark is called gte: there are get, get-many, put"),
        (
            &["bench", "workloads", "--only", "tapt"],
            1,
            "no benchmark is called tapt: there are copies-update",
        ),
        (&["bench", "compare", "--history", "/none/h"], 1, "cannot read /none/h"),
        (&["store", "serve", "--member", "one"], 2, "--cluster <PLACE>"),
        (&["store", "serve", "--cluster", "x.json"], 2, "--port <N>"),
        (
            &["store", "serve", "shop", "--join", "unix:/none/a.sock", "--port", "0"],
            1,
            "cannot join the store shop at unix:/none/a.sock: No such file",
        ),
        (
            &["store", "leave", "/none/shop.json", "--member", "a"],
            1,
            "/none/shop.json: there is no such file",
        ),
        (
            &["store", "serve", "--cluster", "x.json", "--port", "0", "--lease", "49ms"],
            2,
            "it takes a time between 50ms and 10s, such as 250ms or 2s",
        ),
        (&["store", "demo", "--nodes", "10"], 2, "it takes 1 to 9 servers"),
        (&["engine", "reload", "1"], 1, "caravan: process 1 is no engine"),
        (&["engine", "top", "1", "--once"], 1, "process 1 is no engine"),
        (&["fabric", "no-such-host.invalid"], 1, "cannot find the host no-such-host.invalid"),
        (&["selftest", "--ssh", "/none/ssh", "x"], 1, "cannot start `/none/ssh`: No such file"),
        (&["selftest", "--ssh", "/none/ssh", "x"], 1, "openssh-client"),
        (&["selftest", "--", "-oProxyCommand=x"], 2, "it takes what ssh takes"),
        (&["pipe"], 2, "<STAGE>..."),
        (&["pipe", "tr a-z A-Z"], 2, "`tr a-z A-Z` has no host and no colon: a stage is HOST:'CMD'"),
        (
            &["pipe", "--json=/nowhere/figures", ":touch /nowhere"],
            255,
            "cannot write /nowhere/figures: No such",
        ),
        (&["pipe", "-n", "a,b:cat", ":cat"], 255, "only the last one can have several"),
        (&["cp", "a:x", "b:y", "d"], 2, "are on different hosts"),
        (&["send", "b", "9", "00112233445566778899aabbccddeeff"], 2, "can see arguments (ps)"),
        (&["recv", "/none/target"], 1, "cannot write"),
    ] {
        let output = caravan().args(words).env("CARAVAN_ERLANG_DIR", "/none").output().expect("it starts");
        let said = text(&output.stderr);
        assert_eq!((output.status.code(), output.stdout.len()), (Some(status), 0), "{words:?}: {said}");
        assert!(said.contains(expected), "{words:?}: {said}");
    }
}

/// Links of other tests may be there; the shape is the same without any.
#[test]
fn top_once_as_json_is_one_object() {
    let output = run(&["top", "--once", "--json", "--interval", "0.1"]);
    let view = json(&output);
    assert_eq!(printed(&output).lines().count(), 1, "{view}");
    assert!(view["links"].is_array() && view["unix_time"].is_f64(), "{view}");
}

#[test]
fn a_ring_between_two_processes_is_measured_beside_the_loop_in_c() {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let output = run(&["bench", "ring", "--samples", "2", "--records", "2000", "--json", "-"]);
    if cores < 2 {
        assert!(text(&output.stderr).contains("needs 2 cores"), "{}", text(&output.stderr));
        return;
    }
    let json = json(&output);
    assert_eq!((&json["schema"], &json["benchmark"]), (&"caravan-bench/1".into(), &"ring".into()));
    let cases = json["cases"].as_array().expect("a list");
    for key in ["stream", "stream_batched", "round_trip"] {
        assert!(cases.iter().any(|case| case["key"] == key), "{key}");
    }
    // Where the cores move, a case has samples near and far.
    for case in cases {
        let ring = &case["contenders"][1]["figures"]["ns"];
        assert!(ring["median"].as_f64() > Some(0.0), "{case}");
        let samples = ring["ratio"]["samples"].as_array().map(Vec::len);
        assert!(samples >= Some(1) && samples <= Some(2), "{case}");
    }
    let table = text(&output.stderr);
    assert!(table.contains("bare loop in C") && table.contains("ratio"), "{table}");
}

#[test]
fn under_the_names_of_pipes_it_is_these_commands() {
    let folder = Folder::new();
    for (name, command, expected) in [
        ("rdpipe", "pipe", "  rdpipe -v host1:'</scratch/zeroes' host2:'>/dev/null'"),
        ("rdsend", "send", "  tar c photos | rdsend backup.example.org"),
        ("rdrecv", "recv", "  rdrecv -v 40000 | tar x"),
        ("rdcp", "cp", "  rdcp -r fs1:/home/ann/photos fs2:/backup/ann"),
    ] {
        let program = folder.path().join(name);
        symlink(env!("CARGO_BIN_EXE_caravan"), &program).expect("a link");
        let help = printed(&Command::new(&program).arg("--help").output().expect("it starts"));
        assert!(help.contains(&format!("\nUsage: {name} [OPTIONS]")), "{help}");
        assert!(help.contains(expected) && !help.contains(&format!("  caravan {command}")), "{help}");
        let output = Command::new(&program).args(["--unknown"]).output().expect("it starts");
        assert_eq!(output.status.code(), Some(2));
        assert!(text(&output.stderr).contains(&format!("Usage: {name} ")), "{}", text(&output.stderr));
    }
}

#[test]
fn a_dry_run_names_hosts_commands_and_hops_and_does_nothing() {
    let output = run(&["pipe", "-n", "host1:</a", "host2,host3:gzip", "--ssh", "/bin/false"]);
    let text = printed(&output);
    assert!(output.stderr.is_empty(), "{output:?}");
    for expected in
        ["on host1: file '</a'", "on host2: command 'gzip'", "host1 -> host2: ", "host2 -> host3: "]
    {
        assert!(text.contains(expected), "{expected}: {text}");
    }
}

#[test]
fn a_dry_run_of_a_copy_names_what_goes_where() {
    let text = printed(&run(&["cp", "-n", "-r", "host1:x", "host1:y", "host2:z", "--ssh", "/bin/false"]));
    assert!(text.starts_with("host1:x -> host2:z\nhost1:y -> host2:z\nhost1 -> host2: "), "{text}");
    assert!(!text.contains("stage") && text.lines().count() == 3, "{text}");
}

#[test]
fn an_update_of_what_has_not_changed_writes_no_file() {
    let folder = Folder::new();
    let from = folder.path().join("from");
    std::fs::create_dir(&from).expect("a folder");
    std::fs::write(from.join("file"), "content").expect("a file");
    symlink("file", from.join("link")).expect("a link");
    for expected in ["2 files,", "0 files,"] {
        let mut copy = caravan();
        copy.args(["cp", "-v", "-a", "-u"]).arg(from.join(".")).arg(folder.path().join("to"));
        let output = copy.output().expect("it starts");
        let said = text(&output.stderr);
        assert!(output.status.success() && said.contains(expected), "{said}");
    }
}
