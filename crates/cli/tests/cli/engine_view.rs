//! Tests of `caravan engine top` and `trace` on a real engine, as a user runs them.

use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Command, Output, Stdio};

use crate::common::{Folder, caravan, run, signal, text, wait_for};
use crate::engine;
use serde_json::Value;

const LINK: &str = "source.output -> sink.input";
const SIZES: [usize; 3] = [60, 120, 1500];

/// A running engine.
struct Running {
    engine: engine::Running,
    _folder: Folder,
}

impl Running {
    /// Starts an engine that sends packets of three sizes, in turn, from one process to another.
    fn start() -> Self {
        let folder = Folder::new();
        let sizes = "kind = \"source\"\nsizes = [60, 120, 1500]\nhex = \"00010203040506070809\"";
        let path = engine::written(&folder, &engine::TWO.replace("kind = \"source\"", sizes));
        let running = Self { engine: engine::Running::start(&path), _folder: folder };
        wait_for("packets to flow", || running.taken() > Some(1000));
        running
    }

    fn pid(&self) -> String {
        self.engine.pid().to_string()
    }

    fn top(&self, words: &[&str]) -> Output {
        run(&[&["engine", "top", &self.pid()], words].concat())
    }

    /// Returns one JSON view of `top`.
    fn view(&self) -> Option<Value> {
        let output = self.top(&["--once", "--json", "--interval", "0.1"]);
        output.status.success().then(|| serde_json::from_slice(&output.stdout).expect("JSON"))
    }

    /// Returns the number of packets that have left the link.
    fn taken(&self) -> Option<u64> {
        self.view()?["links"][0]["taken"].as_u64()
    }

    fn trace(&self, words: &[&str]) -> Command {
        let mut command = caravan();
        command.args(["engine", "trace", "--pid", &self.pid(), LINK]).args(words);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }
}

fn sum(counts: &Value) -> u64 {
    match counts {
        Value::Object(counts) => counts.values().map(sum).sum(),
        count => count.as_u64().expect("a number"),
    }
}

fn number(bytes: &[u8], at: usize) -> usize {
    u32::from_ne_bytes(bytes[at..at + 4].try_into().expect("four bytes")) as usize
}

/// Returns the seconds, the nanoseconds, the length and the bytes of each packet of a pcap file. The parser uses
/// nothing but the format's description (draft-ietf-opsawg-pcap).
fn packets(file: &[u8]) -> Vec<(usize, usize, usize, &[u8])> {
    assert_eq!((number(file, 0), number(file, 20)), (0xa1b2_3c4d, 1), "nanoseconds, Ethernet");
    let (mut at, mut packets) = (24, Vec::new());
    while at < file.len() {
        let kept = number(file, at + 8);
        packets.push((
            number(file, at),
            number(file, at + 4),
            number(file, at + 12),
            &file[at + 16..][..kept],
        ));
        at += 16 + kept;
    }
    packets
}

#[test]
fn figures_add_up() {
    let running = Running::start();
    let view = running.view().expect("an engine");
    assert_eq!(view["pid"].as_u64(), Some(running.engine.child.id().into()));
    assert_eq!(sum(&view["owners"]), view["packets"].as_u64().expect("a number"), "{}", view["owners"]);
    assert_eq!((sum(&view["owners"]["lost"]), sum(&view["owners"]["impossible"])), (0, 0));
    let workers = view["workers"].as_array().expect("workers");
    let names: Vec<_> = workers.iter().map(|worker| worker["name"].as_str().expect("a name")).collect();
    assert_eq!(names, ["left", "right"]);
    for worker in workers {
        assert_eq!((&worker["state"], &worker["restarts"]), (&Value::from("running"), &Value::from(0)));
        let breath = |figure: &str| worker["breath"][figure].as_u64().expect("a number");
        assert!(breath("p50_ns") <= breath("p99_ns") && breath("p99_ns") <= breath("max_ns"), "{worker}");
        assert!(std::path::Path::new(&format!("/proc/{}", worker["pid"])).exists(), "{worker}");
    }
    let link = &view["links"][0];
    assert_eq!((link["name"].as_str(), link["mode"].as_str()), (Some(LINK), Some("swap")));
    assert_eq!((link["from_worker"].as_str(), link["to_worker"].as_str()), (Some("left"), Some("right")));
    let figure = |name: &str| link[name].as_u64().expect("a number");
    assert!(figure("full") <= 1024 && figure("empty") <= 1024, "{link}");
    assert!(figure("bytes") > 60 * figure("packets") && figure("bytes") < 1500 * figure("packets"), "{link}");

    let table = running.top(&["--count", "2", "--interval", "0.1"]);
    let said = text(&table.stdout);
    assert_eq!(said.matches(LINK).count(), 2, "{said}");
    assert!(said.contains("left > right") && !said.contains("LOST"), "{said}");
}

#[test]
fn a_trace_is_the_packets_that_were_sent() {
    let running = Running::start();
    let output = running.trace(&["--count", "50", "--snaplen", "100"]).output().expect("the command starts");
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains(": 50 packets, "), "{}", text(&output.stderr));
    let packets = packets(&output.stdout);
    assert_eq!(packets.len(), 50);
    let first = SIZES.iter().position(|size| *size == packets[0].2).expect("one of the sizes");
    let mut before = 0;
    for (place, (seconds, nanoseconds, length, data)) in packets.into_iter().enumerate() {
        assert_eq!(length, SIZES[(first + place) % SIZES.len()], "packet {place}");
        let sent: Vec<u8> = (0..length.min(100)).map(|at| (at % 10) as u8).collect();
        assert_eq!(data, sent, "packet {place}");
        let at = seconds as u64 * 1_000_000_000 + nanoseconds as u64;
        assert!(nanoseconds < 1_000_000_000 && at >= before, "packet {place}");
        before = at;
    }
    let now =
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("a date").as_nanos() as u64;
    assert!(now.abs_diff(before) < 3_600_000_000_000, "sent within this hour");
}

#[test]
fn a_tracer_may_be_killed_or_its_reader_go_and_packets_flow() {
    let running = Running::start();
    let tracer = |running: &Running| running.view().expect("an engine")["links"][0]["tracer"].clone();
    let mut killed = running.trace(&[]).spawn().expect("the command starts");
    // The trace is under way, and then nobody reads it: the engine's ring is full when the tracer is killed.
    killed.stdout.as_mut().expect("a pipe").read_exact(&mut [0; 1000]).expect("a trace");
    assert_eq!(tracer(&running), Value::from(killed.id()));
    let refused = running.trace(&[]).output().expect("the command starts");
    let said = text(&refused.stderr);
    assert!(said.contains(&format!("is traced already, by process {}", killed.id())), "{said}");
    killed.kill().expect("killed");
    killed.wait().expect("ended");
    let taken = running.taken();
    wait_for("packets to flow", || running.taken() > taken);
    wait_for("the engine to forget the trace", || tracer(&running).is_null());

    let mut unread = running.trace(&[]).spawn().expect("the command starts");
    let mut pipe = unread.stdout.take().expect("a pipe");
    pipe.read_exact(&mut [0; 1000]).expect("a trace");
    drop(pipe);
    assert!(unread.wait().expect("ended").success(), "to stop reading is no failure");
    assert_eq!(tracer(&running), Value::Null);
}

#[test]
fn a_trace_ends_with_its_engine_and_on_ctrl_c() {
    let mut running = Running::start();
    let mut stopped =
        running.trace(&[]).stdout(Stdio::null()).process_group(0).spawn().expect("the command starts");
    wait_for("the trace", || running.view().is_some_and(|view| view["links"][0]["tracer"] == stopped.id()));
    signal(&stopped, rustix::process::Signal::INT);
    assert!(stopped.wait().expect("ended").success());
    let mut said = String::new();
    stopped.stderr.take().expect("a pipe").read_to_string(&mut said).expect("text");
    assert!(said.starts_with(&format!("{LINK}: ")) && said.ends_with(" left out\n"), "{said}");

    let ended = running.trace(&[]).stdout(Stdio::null()).spawn().expect("the command starts");
    wait_for("the trace", || running.view().is_some_and(|view| view["links"][0]["tracer"] == ended.id()));
    running.engine.child.kill().expect("killed");
    running.engine.child.wait().expect("ended");
    let output = ended.wait_with_output().expect("ended");
    assert!(output.status.success());
    assert!(text(&output.stderr).starts_with("the engine has ended\n"), "{}", text(&output.stderr));
}

#[test]
fn what_is_not_there_is_said() {
    let running = Running::start();
    let refused = run(&["engine", "trace", "--pid", &running.pid(), "a.b -> c.d"]);
    let said = text(&refused.stderr);
    assert!(!refused.status.success() && said.contains(&format!("\n  '{LINK}'")), "{said}");
    assert!(refused.stdout.is_empty());
}
