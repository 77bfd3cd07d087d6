//! Tests of the `caravan` command as a user runs it.

use std::process::{Command, Output, Stdio};

fn caravan(words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_caravan"));
    command.args(words).env_remove("CARAVAN_ERLANG_DIR").stdin(Stdio::null());
    command.output().expect("the command starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("UTF-8")
}

#[test]
fn help_shows_options_and_examples() {
    for (words, expected) in [
        (&["--help"][..], "caravan bench erlang"),
        (&["bench", "--help"], "a bare loop in C"),
        (&["bench", "erlang", "--help"], "caravan bench erlang --nodes 2 --processes 1000"),
        (&["bench", "ring", "--help"], "caravan bench ring --samples 101"),
        (&["bench", "rdma", "--help"], "caravan bench rdma --serve 7500"),
        (&["top", "--help"], "caravan top --once"),
        (&["pipe", "--help"], "echo hello | caravan pipe host1:'tr [:lower:] [:upper:]' host2:'rev'"),
        (&["pipe", "--help"], "  caravan pipe -v host1:'</scratch/zeroes' host2:'>/dev/null'"),
        (&["pipe", "--help"], "  255    the pipeline was not set up, or a host or a connection was lost"),
        (&["pipe", "--help"], "--on-dead"),
        (&["pipe", "--help"], "--insecure"),
        (&["pipe", "--help"], "The data takes another path"),
    ] {
        let output = caravan(words);
        assert!(output.status.success(), "{words:?}");
        let text = text(&output.stdout);
        assert!(text.contains("Examples:") || words == ["bench", "--help"], "{text}");
        assert!(text.contains(expected), "{words:?}: {text}");
    }
}

#[test]
fn bad_values_fail_with_a_sentence() {
    for (words, expected) in [
        (&["bench", "erlang", "--nodes", "one"][..], "'one' for '--nodes <N>'"),
        (
            &["bench", "rdma", "--serve", "7500", "--to", "other:7500"],
            "'--serve <PORT>' cannot be used with '--to",
        ),
        (&["bench", "erlang", "--nodez", "3"], "a similar argument exists: '--nodes'"),
        (&["bench", "elang"], "similar subcommands exist: 'engine', 'erlang'"),
        (&["top", "--interval", "never"], "it takes seconds from 0.1 to 3600"),
        (&["pipe"], "<STAGE>..."),
        (&["pipe", "tr a-z A-Z"], "`tr a-z A-Z` has no host and no colon: a stage is HOST:'CMD', or :'CMD'"),
        (&["pipe", "a:"], "stage `a:`: it has no command; give one behind the colon, such as db2:'gzip -d'"),
        (&["pipe", "a,b,a:cat"], "stage `a,b,a:cat`: it names a twice"),
        (&["pipe", "--", "-oProxyCommand=x:cat"], "begins with a dash, which ssh would take for an option"),
        (&["pipe", "-t", "udp", ":cat"], "'--transport <WHAT>'"),
        (&["pipe", "-L", "fast", ":cat"], "'--rate <RATE>': it takes bytes a second, such as 500k"),
        (&["pipe", "-p", "9:7", ":cat"], "'--ports <LO:HI>': it takes two ports, the lower one first"),
        (&["pipe", "--encrypt", "--insecure", ":cat"], "'--encrypt' cannot be used with '--insecure'"),
    ] {
        let output = caravan(words);
        assert_eq!(output.status.code(), Some(2), "{words:?}");
        let text = text(&output.stderr);
        assert!(text.contains(expected), "{words:?}: {text}");
    }
}

#[test]
fn a_transport_named_twice_is_refused() {
    let output = caravan(&["bench", "erlang", "--transports", "tcp,tcp"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("names tcp twice"), "{}", text(&output.stderr));
}

#[test]
fn missing_modules_are_named_with_the_remedy() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_caravan"));
    command.args(["bench", "erlang"]).env("CARAVAN_ERLANG_DIR", "/none");
    let output = command.output().expect("the command starts");
    assert_eq!(output.status.code(), Some(1));
    let text = text(&output.stderr);
    assert!(text.contains("caravan: the Erlang modules are not in /none. Run `make build`"), "{text}");
}

/// Links of other tests may be there; the shape is the same without any.
#[test]
fn top_once_as_json_is_one_object() {
    let output = caravan(&["top", "--once", "--json", "--interval", "0.1"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let text = text(&output.stdout);
    assert_eq!(text.lines().count(), 1, "{text}");
    let json: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    assert!(json["links"].is_array() && json["unix_time"].is_f64(), "{text}");
}

#[test]
fn a_ring_between_two_processes_is_measured_beside_the_loop_in_c() {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let output = caravan(&["bench", "ring", "--samples", "2", "--records", "2000", "--json", "-"]);
    if cores < 2 {
        assert!(text(&output.stderr).contains("needs 2 cores"), "{}", text(&output.stderr));
        return;
    }
    assert!(output.status.success(), "{}", text(&output.stderr));
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
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
    let folder = std::env::temp_dir().join(format!("caravan-names-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    for (name, command, expected) in [
        ("rdpipe", "pipe", "  rdpipe -v host1:'</scratch/zeroes' host2:'>/dev/null'"),
        ("rdsend", "send", "  tar c photos | rdsend backup.example.org"),
        ("rdrecv", "recv", "  rdrecv -v 40000 | tar x"),
        ("rdcp", "cp", "  rdcp -r fs1:/home/ann/photos fs2:/backup/ann"),
    ] {
        let program = folder.join(name);
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_caravan"), &program).expect("a link");
        let output = Command::new(&program).arg("--help").output().expect("it starts");
        let help = text(&output.stdout);
        assert!(output.status.success() && help.contains(&format!("\nUsage: {name} [OPTIONS]")), "{help}");
        assert!(help.contains(expected) && !help.contains(&format!("  caravan {command}")), "{help}");
        let output = Command::new(&program).args(["--unknown"]).output().expect("it starts");
        assert_eq!(output.status.code(), Some(2));
        assert!(text(&output.stderr).contains(&format!("Usage: {name} ")), "{}", text(&output.stderr));
    }
    std::fs::remove_dir_all(&folder).expect("removed");
}

#[test]
fn a_pipe_that_cannot_put_its_figures_anywhere_does_not_start() {
    let output = caravan(&["pipe", "--json=/nowhere/figures", ":touch /nowhere"]);
    assert_eq!(output.status.code(), Some(255));
    let text = text(&output.stderr);
    assert!(text.starts_with("caravan: cannot write /nowhere/figures: No such file"), "{text}");
}

#[test]
fn a_dry_run_names_hosts_commands_and_hops_and_does_nothing() {
    let output = caravan(&["pipe", "-n", "host1:</a", "host2,host3:gzip", "--ssh", "/bin/false"]);
    assert!(output.status.success() && output.stderr.is_empty(), "{}", text(&output.stderr));
    let text = text(&output.stdout);
    for expected in
        ["on host1: file '</a'", "on host2: command 'gzip'", "host1 -> host2: ", "host2 -> host3: "]
    {
        assert!(text.contains(expected), "{expected}: {text}");
    }
    let output = caravan(&["pipe", "-n", "a,b:cat", ":cat"]);
    assert_eq!(output.status.code(), Some(255));
    assert!(self::text(&output.stderr).contains("only the last one can have several"));
}

#[test]
fn a_copy_that_cannot_be_is_a_mistake_on_the_command_line() {
    for (words, expected) in [
        (&["cp", "a:x", "b:y", "d"][..], "are on different hosts"),
        (&["cp", "a,b:x", "d"], "from one host to one host"),
        (&["cp", "-p", "x", "d"], "keeps times and permissions without -p"),
    ] {
        let output = caravan(words);
        assert_eq!(output.status.code(), Some(2), "{words:?}");
        assert!(text(&output.stderr).contains(expected), "{words:?}: {}", text(&output.stderr));
    }
}

#[test]
fn a_dry_run_of_a_copy_names_what_goes_where() {
    let output = caravan(&["cp", "-n", "-r", "host1:x", "host1:y", "host2:z", "--ssh", "/bin/false"]);
    let text = text(&output.stdout);
    assert!(output.status.success(), "{text}");
    assert!(text.starts_with("host1:x -> host2:z\nhost1:y -> host2:z\nhost1 -> host2: "), "{text}");
    assert!(!text.contains("stage") && text.lines().count() == 3, "{text}");
}

#[test]
fn an_update_of_what_has_not_changed_writes_no_file() {
    let folder = std::env::temp_dir().join(format!("caravan-update-{}", std::process::id()));
    std::fs::create_dir_all(folder.join("from")).expect("a folder");
    std::fs::write(folder.join("from/file"), "content").expect("a file");
    std::os::unix::fs::symlink("file", folder.join("from/link")).expect("a link");
    let (from, to) = (folder.join("from/."), folder.join("to"));
    for expected in ["2 files,", "0 files,"] {
        let output = caravan(&["cp", "-v", "-a", "-u", &from.to_string_lossy(), &to.to_string_lossy()]);
        assert!(
            output.status.success() && text(&output.stderr).contains(expected),
            "{}",
            text(&output.stderr)
        );
    }
    std::fs::remove_dir_all(&folder).expect("removed");
}

/// The output has the line that users of rdpipe know, and the figures beside it.
#[test]
fn the_figures_of_a_pipe_are_told_at_the_end() {
    let output = caravan(&["pipe", "-v", "--json", ":</etc/passwd", ":cat"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(output.stdout, std::fs::read("/etc/passwd").expect("read"));
    let text = text(&output.stderr);
    let figure = text.lines().find_map(|line| line.strip_prefix("Bandwidth ")?.strip_suffix(" GB/s"));
    let (whole, part) = figure.and_then(|figure| figure.split_once('.')).expect("a line of its own");
    assert!(whole.parse::<u32>().is_ok() && part.len() == 3, "{text}");
    let json = text.lines().find(|line| line.starts_with('{')).expect("an object");
    let json: serde_json::Value = serde_json::from_str(json).expect("JSON");
    assert_eq!(json["hops"][0]["bytes"].as_u64(), Some(output.stdout.len() as u64), "{json}");
    assert_eq!((&json["status"], &json["statuses"]), (&serde_json::json!(0), &serde_json::json!([[0], [0]])));
}
