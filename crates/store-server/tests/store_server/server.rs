//! The server on real sockets.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use caravan_store::{Store, StoreOptions};
use caravan_store_server::{
    ServeError, ServerOptions, StoreAnswer, StoreClient, StoreServer, limits, local_address,
};

/// A server in a folder of its own.
struct Rig {
    server: Option<StoreServer>,
    folder: PathBuf,
}

impl Rig {
    fn new() -> Self {
        Self::with(|options| options)
    }

    fn with(change: impl FnOnce(ServerOptions) -> ServerOptions) -> Self {
        Self::of(store(), change)
    }

    fn of(store: Arc<Store>, change: impl FnOnce(ServerOptions) -> ServerOptions) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("caravan-server-{}-{number}", std::process::id()));
        std::fs::create_dir(&folder).expect("made");
        let mut options = ServerOptions::new("test", folder.join("socket"));
        options.address = Some(local_address(0));
        let server = StoreServer::start(store, change(options), |_| {}).expect("a server");
        Self { server: Some(server), folder }
    }

    fn server(&self) -> &StoreServer {
        self.server.as_ref().expect("it runs")
    }

    fn client(&self) -> StoreClient {
        StoreClient::connect(self.server().socket()).expect("connected")
    }

    fn tcp(&self) -> TcpStream {
        TcpStream::connect(self.server().address().expect("an address")).expect("connected")
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        drop(self.server.take());
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn store() -> Arc<Store> {
    Arc::new(Store::embedded(StoreOptions::new(64 << 20)).expect("a store"))
}

fn ok() -> StoreAnswer {
    StoreAnswer::Simple(b"OK".to_vec())
}

#[test]
fn both_sockets_serve_the_same_store() {
    let rig = Rig::new();
    assert_eq!(rig.client().call(&[b"SET", b"a", b"1"]).expect("an answer"), ok());
    let mut tcp = rig.tcp();
    tcp.write_all(b"GET a\r\nPING\r\n").expect("sent");
    let mut answer = [0; 14];
    tcp.read_exact(&mut answer).expect("an answer");
    assert_eq!(&answer, b"$1\r\n1\r\n+PONG\r\n");
    let mode = std::fs::metadata(rig.server().socket()).expect("a socket").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn a_second_server_is_told_who_is_first_and_the_end_removes_the_socket() {
    let mut rig = Rig::new();
    let socket = rig.server().socket().to_owned();
    let second = StoreServer::start(store(), ServerOptions::new("test", &socket), |_| {});
    match second {
        Err(ServeError::Taken { pid, .. }) => assert_eq!(pid, Some(std::process::id() as i32)),
        other => panic!("{other:?}"),
    }
    drop(rig.server.take());
    assert!(!socket.exists());
    // A socket that a killed server left behind is in nobody's way.
    drop(std::os::unix::net::UnixListener::bind(&socket).expect("bound"));
    let third = StoreServer::start(store(), ServerOptions::new("test", &socket), |_| {});
    drop(third.expect("a server"));
    std::fs::write(&socket, "a file").expect("written");
    let fourth = StoreServer::start(store(), ServerOptions::new("test", &socket), |_| {});
    assert!(matches!(fourth, Err(ServeError::NoSocket(_))));
    assert!(socket.exists());
}

#[test]
fn an_address_that_others_reach_takes_a_password() {
    let mut options = ServerOptions::new("test", std::env::temp_dir().join("caravan-never-made"));
    options.address = Some("0.0.0.0:0".parse().expect("an address"));
    assert!(matches!(StoreServer::start(store(), options, |_| {}), Err(ServeError::Exposed(_))));
    let rig = Rig::with(|mut options| {
        options.address = Some("0.0.0.0:0".parse().expect("an address"));
        options.password = Some(b"secret".to_vec());
        options
    });
    let mut client = rig.client();
    let answer = client.call(&[b"GET", b"a"]).expect("an answer");
    assert_eq!(answer, StoreAnswer::Error(b"NOAUTH Authentication required.".to_vec()));
    assert_eq!(client.call(&[b"AUTH", b"secret"]).expect("an answer"), ok());
    let answer = client.call(&[b"CONFIG", b"SET", b"requirepass", b""]).expect("an answer");
    assert!(matches!(answer, StoreAnswer::Error(_)), "{answer:?}");
}

#[test]
fn a_client_that_reads_nothing_is_not_served_further_and_hinders_nobody() {
    let rig = Rig::with(|mut options| {
        options.workers = Some(1);
        options
    });
    let value = vec![b'x'; 100_000];
    assert_eq!(rig.client().call(&[b"SET", b"k", &value]).expect("an answer"), ok());
    let mut silent = rig.tcp();
    silent.set_nonblocking(true).expect("set");
    // Sends until the server reads no more, which shows that its buffers are bounded.
    let mut bytes = 0;
    let mut pauses = 0;
    while pauses < 50 {
        match silent.write(&b"GET k\r\n".repeat(1000)) {
            Ok(sent) => {
                (bytes, pauses) = (bytes + sent, 0);
                assert!(bytes < 64 << 20, "the server goes on reading");
            }
            Err(_) => {
                pauses += 1;
                std::thread::sleep(std::time::Duration::from_millis(10));
            }
        }
    }
    let answer = rig.client().call(&[b"PING"]).expect("an answer");
    assert_eq!(answer, StoreAnswer::Simple(b"PONG".to_vec()));
    // Once it reads, it gets every reply to what the server has read.
    silent.set_nonblocking(false).expect("set");
    let mut replies = vec![0; 300 * 100_011];
    silent.read_exact(&mut replies).expect("replies");
    assert!(replies.chunks(100_011).all(|reply| reply.starts_with(b"$100000\r\nx")));
}

#[test]
fn a_sleeping_client_hinders_nobody_and_its_replies_come_in_order() {
    let rig = Rig::with(|mut options| {
        options.workers = Some(1);
        options
    });
    let mut sleeper = UnixStream::connect(rig.server().socket()).expect("connected");
    sleeper.write_all(b"PING\r\nDEBUG SLEEP 0.2\r\nPING a\r\n").expect("sent");
    let before = std::time::Instant::now();
    assert_eq!(rig.client().call(&[b"SET", b"a", b"1"]).expect("an answer"), ok());
    let mut replies = [0; 7 + 5 + 7];
    sleeper.read_exact(&mut replies).expect("replies");
    assert_eq!(&replies, b"+PONG\r\n+OK\r\n$1\r\na\r\n");
    assert!(before.elapsed().as_millis() >= 150);
}

#[test]
fn more_clients_than_allowed_are_told_so() {
    let rig = Rig::new();
    let mut first = rig.client();
    assert_eq!(first.call(&[b"CONFIG", b"SET", b"maxclients", b"1"]).expect("an answer"), ok());
    let mut text = String::new();
    rig.tcp().read_to_string(&mut text).expect("read");
    assert_eq!(text, "-ERR max number of clients reached\r\n");
    drop(first);
    // The place is free once the worker has seen the end of the first one.
    let mut answer = None;
    while !matches!(answer, Some(StoreAnswer::Simple(_))) {
        answer = rig.client().call(&[b"PING"]).ok();
    }
}

#[test]
fn transactions_of_many_clients_lose_no_update() {
    let rig = Rig::new();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut client = rig.client();
                for _ in 0..100 {
                    client.call(&[b"INCR", b"n"]).expect("an answer");
                    client.call(&[b"MULTI"]).expect("an answer");
                    for words in [&[&b"INCR"[..], b"n"][..], &[b"DBSIZE"], &[b"INCR", b"m"]] {
                        client.call(words).expect("an answer");
                    }
                    let answer = client.call(&[b"EXEC"]).expect("an answer");
                    assert!(matches!(&answer, StoreAnswer::Array(all) if all.len() == 3), "{answer:?}");
                }
            });
        }
    });
    let answer = rig.client().call(&[b"MGET", b"n", b"m"]).expect("an answer");
    let numbers = [b"800", b"400"].map(|number| StoreAnswer::Bulk(number.to_vec()));
    assert_eq!(answer, StoreAnswer::Array(numbers.to_vec()));
}

#[test]
fn bytes_that_are_no_protocol_close_the_connection_with_a_reason() {
    let rig = Rig::new();
    let mut tcp = rig.tcp();
    tcp.write_all(b"*1\r\n!\r\n").expect("sent");
    let mut text = String::new();
    tcp.read_to_string(&mut text).expect("read");
    assert_eq!(text, "-ERR Protocol error: expected '$', got '!'\r\n");
}

/// The user `nobody`.
const NOBODY: u32 = 65_534;

#[test]
fn another_user_reaches_neither_the_socket_nor_the_memory() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: only root can be another user");
        return;
    }
    let rig = Rig::new();
    assert_eq!(rig.client().call(&[b"SET", b"secret", b"1"]).expect("an answer"), ok());
    // Everybody may pass through the folder, so that the socket's own mode decides.
    std::fs::set_permissions(&rig.folder, PermissionsExt::from_mode(0o755)).expect("set");
    let as_nobody = |program: &str, args: &[&str]| {
        let mut command = std::process::Command::new(program);
        let output = command.args(args).uid(NOBODY).gid(NOBODY).output().expect("it runs");
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
    };
    let socket = rig.server().socket().display().to_string();
    let said = as_nobody("redis-cli", &["-s", &socket, "GET", "secret"]);
    assert!(said.contains("Permission denied"), "{said}");
    let said = as_nobody("ls", &[&format!("/proc/{}/map_files", std::process::id())]);
    assert!(said.contains("Permission denied"), "{said}");
    let said = as_nobody("ls", &[&format!("/proc/{}/fd", std::process::id())]);
    assert!(said.contains("Permission denied"), "{said}");
}

#[test]
fn a_full_store_refuses_writes_by_name_and_keeps_what_it_has_said_yes_to() {
    let store = Arc::new(Store::embedded(StoreOptions::new(8 << 20)).expect("a store"));
    let rig = Rig::of(Arc::clone(&store), |options| options);
    let mut client = rig.client();
    let mut stored: u32 = 0;
    loop {
        match client.call(&[b"SET", &stored.to_be_bytes(), &[7; 3000]]).expect("an answer") {
            answer if answer == ok() => stored += 1,
            StoreAnswer::Error(text) => {
                assert!(text.starts_with(b"OOM "), "{}", String::from_utf8_lossy(&text));
                break;
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(stored > 500, "only {stored} fitted");
    for key in 0..stored {
        let answer = client.call(&[b"GET", &key.to_be_bytes()]).expect("an answer");
        assert_eq!(answer, StoreAnswer::Bulk(vec![7; 3000]));
    }
    store.audit().expect("all memory in use is reached");
    assert_eq!(client.call(&[b"DEL", &0_u32.to_be_bytes()]).expect("an answer"), StoreAnswer::Integer(1));
    assert_eq!(client.call(&[b"SET", b"again", &[7; 3000]]).expect("an answer"), ok());
}

/// Sends a request over HTTP and returns the status and the body.
fn http(rig: &Rig, request: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(rig.server().metrics().expect("an address")).expect("connected");
    stream.write_all(request.as_bytes()).expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: ")).expect("a length");
    assert_eq!(length.parse(), Ok(body.len()));
    let status = head.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3)).expect("a status");
    (status.parse().expect("a number"), body.to_owned())
}

/// Reads Prometheus's text format strictly: each sample belongs to the metric whose HELP and TYPE come before it.
/// Returns the samples by name and labels.
fn samples(text: &str) -> BTreeMap<String, f64> {
    let mut samples = BTreeMap::new();
    let mut metric = ("", "");
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').expect("a help");
            assert!(!help.is_empty());
            metric = (name, "");
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').expect("a type");
            assert_eq!(name, metric.0, "{line}");
            assert!(["counter", "gauge", "histogram"].contains(&kind), "{line}");
            assert_eq!(name.ends_with("_total"), kind == "counter", "{line}");
            metric.1 = kind;
        } else {
            let (key, value) = line.rsplit_once(' ').expect("a value");
            let (name, labels) = key.split_once('{').unwrap_or((key, "}"));
            let end = name.strip_prefix(metric.0).expect("a sample of the metric above");
            let ends = if metric.1 == "histogram" { &["_bucket", "_sum", "_count"][..] } else { &[""] };
            assert!(ends.contains(&end), "{line}");
            // Without escaped backslashes and quotes, the remaining quotes are those around the values.
            let labels = labels.replace(r"\\", "").replace(r#"\""#, "");
            let labels = labels.strip_suffix('}').expect("an end of the labels");
            for label in labels.split("\",").filter(|label| !label.is_empty()) {
                let (name, value) = label.split_once("=\"").expect("a label");
                assert!(name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'), "{line}");
                assert!(!value.trim_end_matches('"').contains('"'), "{line}");
            }
            let before = samples.insert(key.to_owned(), value.parse::<f64>().expect("a number"));
            assert!(before.is_none(), "{key} comes twice");
        }
    }
    samples
}

#[test]
fn prometheus_gets_the_counters() {
    let rig = Rig::with(|mut options| {
        options.name = "a\"b\\".to_owned();
        options.metrics = Some(local_address(0));
        options
    });
    let mut client = rig.client();
    for _ in 0..20 {
        client.call(&[b"SET", b"a", b"1"]).expect("an answer");
    }
    client.call(&[b"GET", b"a"]).expect("an answer");
    client.call(&[b"INCR", b"no number", b"1"]).expect("an answer");
    let (status, text) = http(&rig, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
    assert_eq!(status, 200);
    let samples = samples(&text);
    let value = |name: &str| samples.get(&format!("caravan_store_{name}")).copied();
    assert_eq!(value("keys"), Some(1.0));
    assert_eq!(value("hits_total"), Some(1.0));
    assert_eq!(value("clients"), Some(1.0));
    assert_eq!(value("commands_total{command=\"set\"}"), Some(20.0));
    assert_eq!(value("commands_refused_total{command=\"incr\"}"), Some(1.0));
    assert_eq!(value("errors_total{code=\"ERR\"}"), Some(1.0));
    assert_eq!(value("command_seconds_count{command=\"set\"}"), Some(20.0));
    assert_eq!(value("command_seconds_bucket{command=\"set\",le=\"+Inf\"}"), Some(20.0));
    let bucket = |end: f64| value(&format!("command_seconds_bucket{{command=\"set\",le=\"{end}\"}}"));
    let buckets: Vec<_> = (0..12).filter_map(|step| bucket(250e-9 * f64::from(1 << (2 * step)))).collect();
    assert!(buckets.len() > 8 && buckets.is_sorted() && buckets.last() <= Some(&20.0), "{buckets:?}");
    assert!(text.contains(r#"caravan_store_info{store="a\"b\\","#), "{text}");
}

#[test]
fn other_requests_than_for_the_metrics_are_told_so_and_a_silent_one_ends() {
    let rig = Rig::with(|mut options| {
        options.metrics = Some(local_address(0));
        options
    });
    for (request, expected) in [
        ("GET / HTTP/1.1\r\n\r\n", 404),
        ("GET /metrics?a=b HTTP/1.0\r\n\r\n", 200),
        ("POST /metrics HTTP/1.1\r\n\r\n", 405),
        ("PING\r\n\r\n", 400),
    ] {
        assert_eq!(http(&rig, request).0, expected, "{request}");
    }
    assert_eq!(http(&rig, &"x".repeat(limits::METRICS_HEAD_BYTES_MAX)).0, 400);
    // Who says nothing gets no answer, and the next one does.
    let mut silent = TcpStream::connect(rig.server().metrics().expect("an address")).expect("connected");
    assert_eq!(http(&rig, "GET /metrics HTTP/1.1\r\n\r\n").0, 200);
    assert_eq!(silent.read(&mut [0; 1]).expect("the end"), 0);
}
