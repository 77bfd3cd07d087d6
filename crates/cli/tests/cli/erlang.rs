//! Tests of `caravan bench erlang` with real nodes, over TCP. They need Erlang, as the whole repository does.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::common::{caravan, printed, text};

/// A folder with the benchmark's modules compiled as the command looks for them.
struct Modules(PathBuf);

impl Modules {
    fn compile(name: &str) -> Self {
        let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        let ebin = root.join("bench/erlang/ebin");
        fs::create_dir_all(&ebin).expect("a folder");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bench/erlang/src");
        let files = fs::read_dir(source).expect("the sources");
        let files = files.map(|file| file.expect("a file").path());
        let modules: Vec<_> = files.filter(|path| path.extension().is_some_and(|end| end == "erl")).collect();
        let status = Command::new("erlc").arg("-o").arg(&ebin).args(modules).status();
        assert!(status.expect("erlc, of Debian's erlang-base").success());
        Self(root)
    }

    fn bench(&self, words: &[&str]) -> Output {
        let mut command = caravan();
        command.args(["bench", "erlang", "--transports", "tcp", "--rounds", "1"]).args(words);
        command.env("CARAVAN_ERLANG_DIR", &self.0).current_dir(&self.0);
        // A variable that a user may have set must neither reach the nodes nor do harm.
        command.env("ERL_AFLAGS", "-proto_dist nonsense");
        command.output().expect("the command starts")
    }
}

#[test]
fn two_nodes_are_measured_and_the_files_are_written() {
    let modules = Modules::compile("measured");
    let output = modules.bench(&["--nodes", "2", "--processes", "3", "--seconds", "0.1"]);
    let table = printed(&output);
    assert!(table.contains("tcp: inet_tcp on all 2 link ends"), "{table}");
    assert!(table.contains("Written: results/erlang.json"), "{table}");

    let results = modules.0.join("results");
    let json = fs::read(results.join("erlang.json")).expect("the results");
    let json: serde_json::Value = serde_json::from_slice(&json).expect("JSON");
    assert_eq!(json["facts"]["carried"]["tcp"]["transport"], "inet_tcp");
    assert!(json["facts"]["carried"]["tcp"]["rpcs"].as_u64() > Some(0));
    for case in json["cases"].as_array().expect("cases") {
        assert_eq!(case["contenders"][0]["key"], "tcp");
        let figures = case["contenders"][0]["figures"].as_object().expect("figures");
        assert_eq!(figures.len(), case["figures"].as_array().map_or(0, Vec::len), "{case}");
        for (key, figure) in figures {
            let may_be_nothing = key == "user_us" || key == "system_us";
            assert!(figure["median"].as_f64() > Some(0.0) || may_be_nothing, "{case}");
        }
    }
    assert!(fs::read_to_string(results.join("erlang.svg")).expect("a chart").contains("2 nodes"));
}

#[test]
fn a_node_that_cannot_start_is_reported_with_its_own_words() {
    let modules = Modules::compile("refused");
    let output = modules.bench(&["--nodes", "2", "--erl-flags", "-proto_dist nonsense"]);
    assert_eq!(output.status.code(), Some(1));
    let errors = text(&output.stderr);
    assert!(errors.contains("ended unasked") && errors.contains("nonsense"), "{errors}");
    assert!(!modules.0.join("results").exists());
}
