//! Tests of a store of several servers as a user runs it: the demonstration, the status, and what is refused.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use caravan_cluster::{Configuration, slot_of};
use caravan_store::{ConnectOptions, Store};
use rustix::process::Signal;
use serde_json::Value;

use crate::common::{Folder, caravan, signal, text, wait_for};

/// A lease that no busy machine lets end: for what is not about servers that fall silent.
const LEASE: &str = "5s";

/// Returns the names in a folder.
fn names(folder: &Path) -> Vec<PathBuf> {
    std::fs::read_dir(folder).expect("read").flatten().map(|entry| entry.path()).collect()
}

/// Returns the command lines of all processes that have this path in theirs.
fn processes(path: &Path) -> Vec<String> {
    let path = path.display().to_string();
    let line = |pid: PathBuf| std::fs::read(pid.join("cmdline")).ok();
    let lines = names(Path::new("/proc")).into_iter().filter_map(line);
    lines.map(|line| text(&line)).filter(|line| line.contains(&path)).collect()
}

fn demo(folder: &Folder, words: &[&str]) -> Command {
    let mut command = caravan();
    command.env("TMPDIR", folder.path()).args(["store", "demo", "--clients", "1", "--json"]).args(words);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn assert_nothing_is_left(folder: &Folder) {
    assert_eq!(names(folder.path()), Vec::<PathBuf>::new());
    wait_for("the end of the servers", || processes(folder.path()).is_empty());
}

#[test]
fn the_demonstration_loses_nothing_while_servers_are_killed() {
    let folder = Folder::new();
    let words = ["--kill", "--seconds", "12", "--rate", "300"];
    let output = demo(&folder, &words).output().expect("it starts");
    let (said, errors) = (text(&output.stdout), text(&output.stderr));
    let last = said.lines().last().unwrap_or_else(|| panic!("it has said nothing: {errors}"));
    let verdict: Value = serde_json::from_str(last).expect("JSON");
    assert_eq!((&verdict["event"], &verdict["is_good"]), (&"verdict".into(), &true.into()), "{said}{errors}");
    assert_eq!(output.status.code(), Some(0), "{said}{errors}");
    let number = |name: &str| verdict[name].as_u64().expect("a number");
    assert!(number("kills") > 0 && number("commits") > 0 && number("refused") > 0, "{verdict}");
    let pauses = &verdict["pauses"]["server"];
    assert!(number("readings") > 0 && pauses["p50_ms"].as_f64() > Some(0.0), "{verdict}");
    assert!(pauses["p50_ms"].as_f64() <= pauses["max_ms"].as_f64(), "{verdict}");
    assert_eq!(verdict["lost_parts"].as_array().map(Vec::len), Some(0), "{verdict}");
    assert_nothing_is_left(&folder);
}

#[test]
fn a_demonstration_that_is_interrupted_leaves_nothing_behind() {
    let folder = Folder::new();
    let mut child = demo(&folder, &["--nodes", "2", "--seconds", "600"]).spawn().expect("it starts");
    let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    let begin = lines.next().expect("a line").expect("text");
    assert!(begin.contains("\"begin\""), "{begin}");
    assert!(!processes(folder.path()).is_empty(), "the servers are in the folder");
    signal(&child, Signal::INT);
    assert_eq!(child.wait().expect("ended").code(), Some(130));
    assert_nothing_is_left(&folder);
}

/// Servers of one store, whose sockets and configuration are in a folder.
pub struct Cluster {
    folder: Folder,
    servers: Vec<Child>,
}

impl Cluster {
    pub fn new() -> Self {
        Self { folder: Folder::new(), servers: Vec::new() }
    }

    fn place(&self) -> String {
        self.folder.path().join("market.json").display().to_string()
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = caravan();
        command.env("XDG_RUNTIME_DIR", self.folder.path()).arg("store").args(words);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn serve(&self, member: &str, words: &[&str]) -> Command {
        self.serve_by("--cluster", &self.place(), member, words)
    }

    fn serve_by(&self, option: &str, place: &str, member: &str, words: &[&str]) -> Command {
        let mut command = self.command(&["serve", "market", option, place, "--json"]);
        command.args(["--member", member, "--memory", "16M"]).args(words);
        command
    }

    /// Starts a server, and returns its port on TCP.
    pub fn start(&mut self, member: &str, words: &[&str]) -> u16 {
        let command = self.serve(member, words);
        self.run(member, command)
    }

    /// Starts a server that asks another one where the configuration is.
    fn join(&mut self, member: &str, address: &str) -> u16 {
        let command = self.serve_by("--join", address, member, &[]);
        self.run(member, command)
    }

    fn run(&mut self, member: &str, mut command: Command) -> u16 {
        let log = self.folder.path().join(format!("{member}.log"));
        command.args(["--port", "0"]).stderr(File::create(&log).expect("made"));
        let mut child = command.spawn().expect("it starts");
        let mut ready = String::new();
        BufReader::new(child.stdout.take().expect("a pipe")).read_line(&mut ready).expect("a line");
        self.servers.push(child);
        let ready: Value = serde_json::from_str(&ready).unwrap_or_else(|_| {
            let ended = self.servers.pop().expect("a server").wait().expect("ended");
            panic!(
                "{member} is not ready: {ready:?}, {ended}, {}",
                std::fs::read_to_string(&log).expect("read")
            )
        });
        let address = ready["address"].as_str().expect("an address");
        address.rsplit(':').next().and_then(|port| port.parse().ok()).expect("a port")
    }

    pub fn said(&self, words: &[&str]) -> String {
        let output = self.command(words).output().expect("it starts");
        assert!(output.status.success(), "{words:?}: {}", text(&output.stderr));
        text(&output.stdout)
    }

    fn refused(command: &mut Command) -> String {
        let output = command.output().expect("it starts");
        assert_eq!(output.status.code(), Some(1), "{}", text(&output.stdout));
        text(&output.stderr)
    }

    /// Waits until these servers are all there are, each has parts, and all copies are complete.
    fn wait_until_whole(&self, members: &[&str]) {
        wait_for(&format!("{members:?} with all copies"), || {
            let configuration = self.configuration();
            let has_part = |name: &&str| {
                let member = configuration.member_by_name(name).map(|member| member.id);
                member.is_some() && configuration.parts.iter().any(|part| part.primary == member)
            };
            let copies = usize::from(configuration.copies);
            configuration.members.len() == members.len()
                && members.iter().all(has_part)
                && configuration
                    .parts
                    .iter()
                    .all(|part| part.complete().count() == copies && part.filling.is_empty())
        });
    }

    fn configuration(&self) -> Configuration {
        let place = caravan_cluster::FileRegister::new(self.place()).expect("a file");
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
        use caravan_cluster::ConfigurationRegister;
        place.read(deadline).expect("read").expect("made").configuration
    }

    pub fn status(&self) -> Value {
        serde_json::from_str(&self.said(&["status", "--name", "market", "--json"])).expect("JSON")
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.servers.iter().for_each(|server| signal(server, Signal::TERM));
        self.servers.iter_mut().for_each(|server| _ = server.wait());
    }
}

#[test]
fn the_status_shows_servers_and_copies() {
    let mut cluster = Cluster::new();
    cluster.start("m1", &["--parts", "2", "--lease", LEASE]);
    let port = cluster.start("m2", &[]);
    let mut status = Value::Null;
    wait_for("two servers with a copy of each part", || {
        status = cluster.status();
        let parts = status["parts"].as_array().expect("parts");
        parts.iter().all(|part| {
            let copy = &part["copies"][0];
            copy["is_complete"] == true && copy["carrier"] == "shm" && copy["behind_bytes"] == 0
        })
    });
    assert_eq!((&status["store"], status["parts"].as_array().map(Vec::len)), (&"market".into(), Some(2)));
    let servers: Vec<_> = status["servers"]
        .as_array()
        .expect("servers")
        .iter()
        .map(|row| (&row["name"], &row["state"]))
        .collect();
    assert_eq!(servers, [(&"m1".into(), &"alive".into()), (&"m2".into(), &"alive".into())]);
    let shown = cluster.said(&["status", "--name", "market"]);
    assert!(shown.starts_with("store market, epoch "), "{shown}");
    assert!(shown.contains(&format!("m2      127.0.0.1:{port}")), "{shown}");
    assert_eq!(shown.matches("(shm, complete)").count(), 2, "{shown}");
    // The configuration alone says nothing of connections.
    let shown = cluster.said(&["status", "--cluster", &cluster.place()]);
    assert_eq!((shown.matches(" (complete)").count(), shown.matches("not asked").count()), (2, 2), "{shown}");
}

#[test]
fn the_first_server_serves_before_another_one_joins() {
    let mut cluster = Cluster::new();
    cluster.start("m1", &["--parts", "2"]);
    // A server that had no processor time for a lease closes its connections.
    let does = |words: &[&str]| cluster.command(words).output().is_ok_and(|said| said.status.success());
    wait_for("the first write", || does(&["set", "key", "value", "--name", "market.m1"]));
    wait_for("the write to be there", || does(&["get", "key", "--name", "market.m1"]));
}

#[test]
fn a_server_that_forwards_answers_for_keys_of_others() {
    let mut cluster = Cluster::new();
    cluster.start("m1", &["--parts", "4", "--forward", "--lease", LEASE]);
    cluster.start("m2", &[]);
    wait_for("parts at both servers", || {
        // A server that had no processor time for a lease closes its connections.
        let said = cluster.command(&["status", "--name", "market", "--json"]).output().expect("it starts");
        let status: Value = serde_json::from_slice(&said.stdout).unwrap_or_default();
        let parts = status["parts"].as_array().into_iter().flatten();
        let primaries: BTreeSet<String> = parts.map(|part| part["primary"].to_string()).collect();
        primaries.len() == 2 && !primaries.contains("null")
    });
    let ask = |member: &str, words: &[&str]| {
        let name = format!("market.{member}");
        cluster.command(&[words, &["--name", &name]].concat()).output().expect("it starts")
    };
    let keys: Vec<String> = (0..16).map(|key| format!("key:{key}")).collect();
    for key in &keys {
        wait_for("the server of the key", || ask("m1", &["set", key, "1"]).status.success());
        wait_for("the server of the key", || text(&ask("m1", &["get", key]).stdout) == "1");
    }
    let sent_on = |key: &String| text(&ask("m2", &["get", key]).stderr).contains("MOVED");
    wait_for("the name of the server that has a key", || keys.iter().any(sent_on));
}

#[test]
fn what_servers_of_one_store_cannot_have_is_refused_with_a_sentence() {
    let mut cluster = Cluster::new();
    let refused = Cluster::refused(&mut cluster.command(&["status", "--cluster", &cluster.place()]));
    assert!(refused.contains("market.json: there is no such file"), "{refused}");
    let port = cluster.start("m1", &["--parts", "1"]).to_string();
    let refused = Cluster::refused(&mut cluster.serve("m2", &["--port", &port]));
    assert!(
        refused.contains(&format!("cannot listen on 127.0.0.1:{port}: Address already in use")),
        "{refused}"
    );
    let other = cluster.folder.path().join("other.sock").display().to_string();
    let refused = Cluster::refused(&mut cluster.serve("m1", &["--port", "0", "--socket", &other]));
    assert!(
        refused.contains(&format!("has another server with the name m1, at 127.0.0.1:{port}")),
        "{refused}"
    );
    let refused = Cluster::refused(&mut cluster.command(&[
        "serve",
        "rest",
        "--cluster",
        &cluster.place(),
        "--port",
        "0",
    ]));
    assert!(refused.contains("is the configuration of the store market, not of rest"), "{refused}");
    let join = |name: &str, address: &str| {
        let mut command =
            cluster.command(&["serve", name, "--join", address, "--port", "0", "--member", "m2"]);
        Cluster::refused(&mut command)
    };
    let refused = join("rest", &format!("127.0.0.1:{port}"));
    assert!(refused.contains("cannot join the store rest at"), "{refused}");
    assert!(refused.contains("that server is of the store market"), "{refused}");
    // What the store was made with stays.
    for (option, value, found) in [("--parts", "5", "1"), ("--copies", "3", "2"), ("--lease", "1s", "250ms")]
    {
        let refused = Cluster::refused(&mut cluster.serve("m2", &["--port", "0", option, value]));
        assert!(
            refused.contains(&format!("the store market was made with {option} {found}, not ")),
            "{refused}"
        );
        assert!(refused.contains(&format!("leave {option} out")), "{refused}");
    }
    let refused = Cluster::refused(&mut cluster.command(&["leave", &cluster.place(), "--member", "m7"]));
    assert!(refused.contains("has no server with the name m7: it has m1"), "{refused}");
    let refused = Cluster::refused(&mut cluster.command(&["leave", &cluster.place(), "--member", "m1"]));
    assert!(refused.contains("m1 is the only server that is to stay"), "{refused}");
}

/// Clients that write and read keys of all parts, one for each, until they are asked how it was.
struct Load {
    is_over: Arc<AtomicBool>,
    clients: Vec<JoinHandle<Result<u64, String>>>,
}

impl Load {
    fn start(configuration: &Configuration) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let addresses: Vec<String> =
            configuration.members.iter().map(|member| member.client_address.clone()).collect();
        let slots = configuration.slot_map();
        let client = |part: caravan_cluster::PartId| {
            let is_of_part = |key: &String| slots.part(slot_of(key.as_bytes())) == part;
            let key = (0..).map(|number| format!("key{number}")).find(is_of_part).expect("a key");
            let options = ConnectOptions::new(&addresses[0]).others(addresses[1..].to_vec()).part(part.0);
            let is_over = Arc::clone(&is_over);
            std::thread::spawn(move || {
                write_and_read(options, &key, &is_over).map_err(|error| format!("{key}: {error}"))
            })
        };
        let clients = configuration.parts.iter().map(|part| client(part.id)).collect();
        Self { is_over, clients }
    }

    /// Ends the clients; fails if one request did.
    fn end(self) {
        self.is_over.store(true, Ordering::Relaxed);
        for client in self.clients {
            let written =
                client.join().expect("no panic").unwrap_or_else(|error| panic!("a request failed: {error}"));
            assert!(written > 0);
        }
    }
}

/// Returns how often it has written, and found what it had written.
fn write_and_read(
    options: ConnectOptions,
    key: &str,
    is_over: &AtomicBool,
) -> Result<u64, Box<dyn std::error::Error + Send + Sync>> {
    let store = Store::connect(options)?;
    let mut written = 0_u64;
    while !is_over.load(Ordering::Relaxed) {
        written += 1;
        store.put(key.as_bytes(), &written.to_le_bytes())?;
        let found = store.get(key.as_bytes())?;
        if found.as_deref() != Some(&written.to_le_bytes()[..]) {
            return Err(format!("{found:?} instead of {written}").into());
        }
        // The servers need the processor, too.
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    Ok(written)
}

#[test]
fn no_request_fails_while_servers_join_and_leave() {
    let mut cluster = Cluster::new();
    cluster.start("m1", &["--parts", "4", "--lease", LEASE]);
    cluster.start("m2", &[]);
    cluster.wait_until_whole(&["m1", "m2"]);
    let load = Load::start(&cluster.configuration());
    cluster.join("m3", &cluster.configuration().members[1].client_address);
    cluster.wait_until_whole(&["m1", "m2", "m3"]);
    // The manager and a primary.
    let said = cluster.said(&["leave", &cluster.place(), "--member", "m1", "--json"]);
    let last: Value = serde_json::from_str(said.lines().last().expect("a line")).expect("JSON");
    assert_eq!((&last["event"], &last["member"]), (&"left".into(), &"m1".into()), "{said}");
    assert!(said.contains("\"leaving\""), "{said}");
    let ended: ExitStatus = cluster.servers.remove(0).wait().expect("ended");
    assert!(ended.success(), "{ended}");
    cluster.wait_until_whole(&["m2", "m3"]);
    load.end();
}

/// Watches the configuration while `body` runs: a part that has had two complete copies keeps two.
fn assert_no_copy_goes(cluster: &Cluster, body: impl FnOnce()) {
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            let mut whole = BTreeSet::new();
            while !is_over.load(Ordering::Relaxed) {
                let configuration = cluster.configuration();
                for part in &configuration.parts {
                    if part.complete().count() == 2 {
                        whole.insert(part.id);
                    } else if whole.contains(&part.id) {
                        return Err(format!("epoch {}: {part:?}", configuration.epoch));
                    }
                }
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
            Ok(whole.len())
        });
        body();
        is_over.store(true, Ordering::Relaxed);
        assert_eq!(watcher.join().expect("no panic"), Ok(cluster.configuration().parts.len()));
    });
}

#[test]
fn a_primary_that_moves_leaves_a_complete_copy() {
    let mut cluster = Cluster::new();
    cluster.start("m1", &["--parts", "4", "--lease", LEASE]);
    let load = Load::start(&cluster.configuration());
    // All primaries are at m1; half of them move once m2 has copies.
    cluster.start("m2", &[]);
    assert_no_copy_goes(&cluster, || {
        wait_for("two primaries at each server", || {
            let configuration = cluster.configuration();
            let primaries = |member: &caravan_cluster::Member| {
                configuration.parts.iter().filter(|part| part.primary == Some(member.id)).count()
            };
            configuration.members.len() == 2
                && configuration.members.iter().all(|member| primaries(member) == 2)
        });
        // A new primary says which copies it cannot go on with before its first commit.
        for part in cluster.configuration().parts {
            let address = &cluster.configuration().members[0].client_address;
            let store = Store::connect(ConnectOptions::new(address).part(part.id.0)).expect("connected");
            store.put(b"any key", b"1").expect("written");
        }
    });
    load.end();
}

#[test]
fn no_request_fails_while_all_servers_are_upgraded() {
    let mut cluster = Cluster::new();
    let members = ["m1", "m2", "m3"];
    cluster.start("m1", &["--parts", "4", "--lease", LEASE]);
    cluster.start("m2", &[]);
    cluster.start("m3", &[]);
    cluster.wait_until_whole(&members);
    let load = Load::start(&cluster.configuration());
    let before = cluster.configuration().members;
    for member in members {
        cluster.said(&["upgrade", &format!("market.{member}"), "--json"]);
        cluster.wait_until_whole(&members);
    }
    load.end();
    // Each went on with the memory that its keeper holds: none has become another member.
    assert_eq!(cluster.configuration().members, before);
}
