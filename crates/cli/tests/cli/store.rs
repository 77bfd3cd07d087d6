//! Tests of `caravan store` as a user runs it, and of Redis's own clients against it.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Output, Stdio};

use caravan_store::Store;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::common::{Folder, caravan, signal, text, wait_for};

/// A store that is served, with its runtime folder.
pub struct Served {
    pub folder: Folder,
    pub child: Child,
    pub ready: String,
}

impl Served {
    pub fn start(words: &[&str]) -> Self {
        Self::start_in(Folder::new(), words)
    }

    /// Starts a store whose runtime folder is this one.
    pub fn start_in(folder: Folder, words: &[&str]) -> Self {
        let mut command = caravan();
        command.env("XDG_RUNTIME_DIR", folder.path()).args(["store", "serve"]).args(words);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
        let mut ready = String::new();
        let mut lines = BufReader::new(child.stdout.take().expect("a pipe"));
        lines.read_line(&mut ready).expect("a line");
        assert!(
            !ready.is_empty(),
            "it did not get ready: {}",
            text(&child.wait_with_output().expect("ended").stderr)
        );
        Self { folder, child, ready }
    }

    pub fn socket(&self) -> String {
        self.folder.path().join("caravan/default.sock").display().to_string()
    }

    pub fn store(&self, words: &[&str]) -> Output {
        let mut command = caravan();
        command.env("XDG_RUNTIME_DIR", self.folder.path()).arg("store").args(words);
        command.output().expect("it starts")
    }

    /// Runs a command that succeeds, and returns its output.
    pub fn said(&self, words: &[&str]) -> String {
        let output = self.store(words);
        assert!(output.status.success(), "{words:?}: {}", text(&output.stderr));
        text(&output.stdout)
    }

    /// Runs a command that fails with status 1, and returns its message.
    pub fn refused(&self, words: &[&str]) -> String {
        let output = self.store(words);
        assert_eq!(output.status.code(), Some(1), "{words:?}: {}", text(&output.stdout));
        text(&output.stderr)
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn the_commands_speak_to_the_store() {
    let served = Served::start(&[]);
    assert!(served.ready.contains(&format!("is served at {}", served.socket())), "{}", served.ready);
    assert_eq!(served.said(&["set", "greeting", "hello"]), "");
    assert_eq!(served.said(&["get", "greeting"]), "hello");
    assert_eq!(served.said(&["get", "greeting", "--json"]), "{\"key\":\"greeting\",\"value\":\"hello\"}\n");
    assert_eq!(served.said(&["set", "a\nb", "x", "--expire", "100", "--json"]), "{\"set\":true}\n");
    let mut keys: Vec<_> = served.said(&["scan"]).lines().map(str::to_owned).collect();
    keys.sort();
    assert_eq!(keys, ["a\\nb", "greeting"]);
    assert_eq!(served.said(&["scan", "g*", "--json"]), "{\"key\":\"greeting\"}\n");
    let stat: Value = serde_json::from_str(&served.said(&["stat", "--json"])).expect("JSON");
    assert_eq!((&stat["maxmemory"], &stat["db0"]["keys"]), (&Value::from(256 << 20), &Value::from(2)));
    assert_eq!(stat["cmdstat_set"]["calls"], 2);
    assert!(served.said(&["stat"]).contains("keyspace_hits"));
    assert_eq!(served.said(&["del", "greeting", "none"]), "1\n");
    assert!(served.refused(&["get", "greeting"]).contains("the store default has no key greeting"));
    assert!(served.refused(&["get", "x", "--name", "other"]).contains("the store other is not served"));
}

#[test]
fn top_shows_the_commands_of_the_last_interval() {
    let served = Served::start(&[]);
    assert_eq!(served.said(&["set", "before", "x"]), "");
    let mut command = caravan();
    command.env("XDG_RUNTIME_DIR", served.folder.path()).args([
        "store",
        "top",
        "--json",
        "--interval",
        "0.2",
    ]);
    let mut child = command.stdout(Stdio::piped()).spawn().expect("it starts");
    let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    // It has read the counters for the first time before its first line, and commands come until it shows them.
    let view = loop {
        let line = lines.next().expect("a line").expect("text");
        let view: Value = serde_json::from_str(&line).expect("JSON");
        let commands = view["commands"].as_array().expect("rows").clone();
        assert!(commands.iter().all(|row| row["command"] != "set"), "{line}");
        if let Some(row) = commands.into_iter().find(|row| row["command"] == "get") {
            assert!(row["per_s"].as_f64() > Some(0.0) && row["p99_us"].as_f64() > Some(0.0), "{line}");
            break view;
        }
        assert_eq!(served.said(&["get", "before"]), "x");
    };
    signal(&child, Signal::INT);
    assert_eq!(child.wait().expect("ended").code(), Some(0));
    assert_eq!((&view["store"], &view["keys"]), (&Value::from("default"), &Value::from(1.0)));
    assert!(view["classes"][0]["used_places"].as_f64() >= Some(1.0), "{view}");
    let text = served.said(&["top", "--once", "--interval", "0.1"]);
    assert!(text.starts_with("store default, up ") && text.contains("\nOBJECT BYTES  "), "{text}");
}

/// Runs a command that prints a JSON object until `wanted` returns something for it.
fn seen<T>(words: &[&str], served: &Served, wanted: impl Fn(&Value) -> Option<T>) -> T {
    let mut found = None;
    wait_for("what a view shows", || {
        let mut command = caravan();
        let output = command.env("XDG_RUNTIME_DIR", served.folder.path()).args(words).output();
        let view = serde_json::from_slice(&output.expect("it starts").stdout).expect("JSON");
        found = wanted(&view);
        found.is_some()
    });
    found.expect("waited for")
}

#[test]
fn top_shows_each_store_with_its_readers() {
    let served = Served::start(&["--memory", "16M"]);
    served.said(&["set", "a", "1"]);
    let views: [&[&str]; 2] = [
        &["top", "--once", "--json", "--interval", "0.2"],
        &["store", "top", "--once", "--json", "--interval", "0.1"],
    ];
    // Stores of other tests may be there.
    let row_of = |view: &Value| {
        let mut rows = view["stores"].as_array().expect("rows").iter();
        rows.find(|row| row["socket"] == served.socket()).cloned()
    };
    let is_seen = |readers: u64| {
        let has = |row: &Value| row["readers"].as_f64() == Some(readers as f64);
        let row = seen(views[0], &served, |view| row_of(view).filter(has));
        seen(views[1], &served, |view| has(view).then_some(()));
        row
    };
    let row = is_seen(0);
    let expected = json!({"store": "default", "clients": 0, "keys": 1, "memory_limit_bytes": 16 << 20});
    expected.as_object().expect("an object").iter().for_each(|(name, value)| assert_eq!(&row[name], value));
    assert!(row["used_memory_bytes"].as_u64() > Some(0) && row["counters"]["operations"] == 1, "{row}");
    let reader = Store::connect(format!("unix:{}", served.socket())).expect("connected");
    assert_eq!(reader.get(b"a").expect("read").as_deref(), Some(&b"1"[..]));
    let row = is_seen(1);
    assert_eq!((&row["clients"], &row["links"]), (&json!(1), &json!(1)));
    // Its writes are operations; its reads are not noticed.
    seen(views[0], &served, |view| {
        reader.put(b"b", b"2").expect("written");
        row_of(view).filter(|row| row["operations_per_s"].as_f64() > Some(0.0))
    });
    let stat: Value = serde_json::from_str(&served.said(&["stat", "--json"])).expect("JSON");
    assert!(stat["cmdstat_call|put"]["calls"].as_u64() > Some(0), "{stat}");
    drop(reader);
    is_seen(0);
}

#[test]
fn the_counters_are_given_to_prometheus_where_asked() {
    let served = Served::start(&["--metrics", "0", "--json"]);
    let ready: Value = serde_json::from_str(&served.ready).expect("JSON");
    let url = ready["metrics"].as_str().expect("an address");
    let address =
        url.strip_prefix("http://").and_then(|rest| rest.strip_suffix("/metrics")).expect("an address");
    assert!(address.starts_with("127.0.0.1:"), "{url}");
    let mut stream = std::net::TcpStream::connect(address).expect("connected");
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: test\r\n\r\n").expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    assert!(
        answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.contains("\ncaravan_store_keys 0\n"),
        "{answer}"
    );
}

#[test]
fn standard_input_is_a_value_byte_for_byte() {
    let served = Served::start(&["--memory", "16M"]);
    let set = |value: &[u8]| {
        let mut command = caravan();
        command.env("XDG_RUNTIME_DIR", served.folder.path()).args(["store", "set", "k"]);
        let mut child = command.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
        // Of a value that is too long, the command does not read the end.
        let _ = child.stdin.take().expect("a pipe").write_all(value);
        child.wait_with_output().expect("ended")
    };
    assert!(set(b"\xff\0\r\n").status.success());
    assert_eq!(served.store(&["get", "k"]).stdout, b"\xff\0\r\n");
    assert!(served.said(&["get", "k", "--json"]).contains("\"value_hex\":\"ff000d0a\""));
    assert!(set(&vec![b'x'; 2 << 20]).status.success());
    assert_eq!(served.store(&["get", "k"]).stdout, vec![b'x'; 2 << 20]);
    let output = set(&vec![b'x'; 20 << 20]);
    assert!(text(&output.stderr).contains("OOM"), "{}", text(&output.stderr));
}

#[test]
fn a_second_one_of_the_name_says_so_and_sigterm_ends_the_first() {
    let mut served = Served::start(&["--json"]);
    let ready: Value = serde_json::from_str(&served.ready).expect("JSON");
    assert_eq!((&ready["event"], &ready["pid"]), (&Value::from("ready"), &Value::from(served.child.id())));
    let message = served.refused(&["serve"]);
    assert!(
        message.contains(&format!("already served at {} by process {}", served.socket(), served.child.id())),
        "{message}"
    );
    signal(&served.child, Signal::TERM);
    wait_for("the end of the store", || served.child.try_wait().expect("a child").is_some());
    assert_eq!(served.child.wait().expect("ended").code(), Some(0));
    assert!(!std::path::Path::new(&served.socket()).exists());
    assert!(served.refused(&["get", "a"]).contains("Start it with `caravan store serve`"));
}

#[test]
fn the_place_of_a_killed_store_is_free() {
    let mut served = Served::start(&[]);
    signal(&served.child, Signal::KILL);
    served.child.wait().expect("ended");
    assert!(std::path::Path::new(&served.socket()).exists());
    // The server ends by itself, and has the name until then.
    let mut line = String::new();
    wait_for("the place", || {
        let mut command = caravan();
        command.env("XDG_RUNTIME_DIR", served.folder.path()).args(["store", "serve"]);
        served.child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("it starts");
        BufReader::new(served.child.stdout.take().expect("a pipe")).read_line(&mut line).expect("a line") > 0
    });
    assert_eq!(served.said(&["set", "a", "1"]), "", "{line}");
}

#[test]
fn options_that_do_not_fit_are_refused_with_a_reason() {
    let served = Served::start(&[]);
    let path = served.folder.path().join("file");
    std::fs::write(&path, "text").expect("written");
    let file = path.to_str().expect("text");
    for (words, expected) in [
        (&["serve", "other", "--port", "0", "--bind", "0.0.0.0"][..], "without a password"),
        (
            &["serve", "other", "--socket", "/nowhere/at/all"],
            "cannot make the socket /nowhere/at/all and its lock beside it: No such file",
        ),
        (
            &["get", "a", "--socket", &"x".repeat(200)],
            "this is no path for a socket, which has at most 100 bytes",
        ),
        (&["serve", "--socket", file], "this is a file, not the socket of a store"),
        (&["upgrade", "--program", file], "is not upgraded to "),
        (&["serve", "other", "--password-file", "/dev/null"], "the first line is to be a password"),
    ] {
        let message = served.refused(words);
        assert!(message.contains(expected), "{words:?}: {message}");
    }
    assert!(!path.with_extension("lock").exists(), "nothing is made beside a file of somebody else's");
    assert!(text(&served.store(&["serve", "a/b"]).stderr).contains("it takes 1 to 40 letters"));
    let message = text(&served.store(&["serve", "other", "--memory", "1"]).stderr);
    assert!(message.contains("'1' for '--memory <SIZE>': a store takes 8M to 128G of memory"), "{message}");
}

#[test]
fn redis_cli_and_redis_benchmark_work_unchanged() {
    let served = Served::start(&["--port", "0"]);
    let port =
        served.ready.split("127.0.0.1:").nth(1).and_then(|rest| rest.split(' ').next()).expect("a port");
    let cli = |words: &[&str]| {
        let output = Command::new("redis-cli").args(["-p", port]).args(words).output();
        text(
            &output.expect("redis-cli starts: `make test` installs it (Debian's package redis-tools)").stdout,
        )
    };
    assert_eq!(cli(&["set", "a", "1"]), "OK\n");
    assert_eq!(cli(&["-3", "mget", "a", "b"]), "1\n\n");
    assert_eq!(cli(&["--scan"]), "a\n");
    assert!(cli(&["command", "docs", "get"]).contains("Returns a value"));
    assert!(cli(&["info"]).contains("redis_version:7"));
    let output = Command::new("redis-benchmark")
        .args(["-p", port, "-q", "-n", "1000", "-P", "16", "-t", "ping,set,get,incr,mset"])
        .output()
        .expect("redis-benchmark starts");
    let said = text(&output.stdout);
    assert!(output.status.success() && said.contains("MSET (10 keys)") && !said.contains("rror"), "{said}");
    assert_eq!(text(&output.stderr), "");
}

/// Makes a certificate for 127.0.0.1 and its key in a folder.
fn certificate(folder: &std::path::Path) -> (String, String) {
    let path = |name: &str| folder.join(name).display().to_string();
    let (certificate, key) = (path("server.crt"), path("server.key"));
    let output = Command::new("openssl")
        .args([
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
            "-nodes",
            "-days",
            "1",
        ])
        .args(["-subj", "/CN=caravan", "-addext", "subjectAltName=IP:127.0.0.1"])
        .args(["-keyout", &key, "-out", &certificate])
        .output()
        .expect("openssl starts: `make test` installs it (Debian's package openssl)");
    assert!(output.status.success(), "{}", text(&output.stderr));
    (certificate, key)
}

#[test]
fn clients_speak_tls_where_there_is_a_certificate() {
    let folder = Folder::new();
    let (certificate, key) = certificate(folder.path());
    let served = Served::start(&[
        "--tls-cert",
        &certificate,
        "--tls-key",
        &key,
        "--tls-port",
        "0",
        "--port",
        "0",
        "--json",
    ]);
    let ready: Value = serde_json::from_str(&served.ready).expect("JSON");
    let port = |name: &str| {
        ready[name].as_str().and_then(|address| address.rsplit(':').next()).expect("a port").to_owned()
    };
    let (plain, sealed) = (port("address"), port("tls_address"));
    let cli = |words: &[&str]| {
        let output = Command::new("redis-cli").args(words).output();
        let output =
            output.expect("redis-cli starts: `make test` installs it (Debian's package redis-tools)");
        text(&output.stdout) + &text(&output.stderr)
    };
    let tls = ["--tls", "--cacert", &certificate, "-p", &sealed];
    // It takes many records.
    assert_eq!(served.said(&["set", "long", &"x".repeat(100_000)]), "");
    assert_eq!(cli(&[&tls[..], &["append", "long", "y"]].concat()), "100001\n");
    assert_eq!(cli(&[&tls[..], &["get", "long"]].concat()).len(), 100_002);
    assert_eq!(cli(&["-p", &plain, "set", "a", "1"]), "OK\n");
    assert_eq!(cli(&[&tls[..], &["get", "a"]].concat()), "1\n");
    // Who does not know the certificate refuses, and who speaks no TLS is refused.
    assert!(cli(&["--tls", "-p", &sealed, "ping"]).contains("certificate verify failed"));
    assert!(cli(&["-p", &sealed, "ping"]).contains("Error"));
    let output = Command::new("redis-benchmark")
        .args([
            "--tls",
            "--cacert",
            &certificate,
            "-p",
            &sealed,
            "-q",
            "-n",
            "2000",
            "-P",
            "64",
            "-d",
            "10000",
            "-t",
            "set,get",
        ])
        .output()
        .expect("redis-benchmark starts");
    let said = text(&output.stdout);
    assert!(output.status.success() && said.contains("GET") && !said.contains("rror"), "{said}");
    // With one port, that port speaks TLS. A key that is none is told.
    let other = Served::start(&["--tls-cert", &certificate, "--tls-key", &key, "--port", "0"]);
    assert!(other.ready.contains(" and, with TLS, 127.0.0.1:"), "{}", other.ready);
    let message =
        served.refused(&["serve", "x", "--tls-cert", &certificate, "--tls-key", &certificate, "--port", "0"]);
    assert!(message.contains("server.crt: cannot use this for TLS"), "{message}");
    let message = served.refused(&[
        "serve",
        "x",
        "--tls-cert",
        &certificate,
        "--tls-key",
        &key,
        "--tls-port",
        "0",
        "--bind",
        "0.0.0.0",
    ]);
    assert!(message.contains("without a password"), "{message}");
}

/// redis-py, as Debian has it.
const REDIS_PY: &str = r#"
import sys, redis
r = redis.Redis(unix_socket_path=sys.argv[1], client_name="py")
assert r.ping() and r.set("a", 1, ex=100) and r.get("a") == b"1" and 0 < r.ttl("a") <= 100
assert r.incrbyfloat("f", 1.5) == 1.5 and r.mget("a", "none") == [b"1", None]
assert r.mset({"b": 2, "c": 3}) and sorted(r.scan_iter(count=1)) == [b"a", b"b", b"c", b"f"]
def move(pipe):
    value = int(pipe.get("a"))
    pipe.multi()
    pipe.set("a", value + 1).get("a").delete("b")
assert r.transaction(move, "a") == [True, b"2", 1]
with r.pipeline() as pipe:
    pipe.watch("a"); r.set("a", 9); pipe.multi(); pipe.set("a", 0)
    try:
        pipe.execute(); sys.exit("the change was not noticed")
    except redis.WatchError:
        pass
with r.pipeline(transaction=False) as pipe:
    assert pipe.incr("n").incr("n").execute() == [1, 2]
assert r.client_list()[0]["name"] == "py" and r.info()["maxmemory"] > 0
assert r.client_info()["name"] == "py" and r.info()["db0"]["keys"] == r.dbsize() == 4
assert r.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
assert "get" in r.command() and r.flushall() and r.dbsize() == 0
try:
    r.lpush("l", 1); sys.exit("there are no lists")
except redis.ResponseError as error:
    assert "unknown command" in str(error)
print("done")
"#;

#[test]
fn redis_py_works_unchanged() {
    let served = Served::start(&[]);
    let output = Command::new("/usr/bin/python3").args(["-c", REDIS_PY, &served.socket()]).output();
    let output = output.expect("python3 starts: `make test` installs it (Debian's package python3-redis)");
    assert_eq!(text(&output.stdout), "done\n", "{}", text(&output.stderr));
}
