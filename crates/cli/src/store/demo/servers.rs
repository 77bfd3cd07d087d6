//! The servers of the demonstration: `caravan store serve --cluster` in a folder of its own, as a user would start them.

use std::fs::File;
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use caravan_bench::interrupt::Interrupt;
use caravan_bench::{Error as Shared, scratch::Scratch};
use caravan_cluster::{Configuration, ConfigurationRegister, FileRegister, PartId};
use caravan_segment::process::descendants;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::StopKind;
use crate::error::Error;
use crate::store::sentence;

/// The store of the demonstration.
const STORE: &str = "demo";
/// The names of the servers.
const NAMES: [&str; 9] = ["node1", "node2", "node3", "node4", "node5", "node6", "node7", "node8", "node9"];
/// The most servers that there are names for.
pub const NODES_MAX: usize = NAMES.len();
/// How long a server may take until it is ready.
const START_MAX: Duration = Duration::from_secs(20);
/// How long the configuration may take to be read.
const READ_MAX: Duration = Duration::from_secs(2);
/// How long servers may take to end.
const END_MAX: Duration = Duration::from_secs(5);
/// The pause between two looks at what is waited for.
const LOOK_PAUSE: Duration = Duration::from_millis(5);
/// How many last lines of its messages are shown of a server that has failed.
const LAST_LINES: usize = 10;

/// All servers. Dropped, they are killed and their folder is removed.
pub struct DemoServers {
    servers: Vec<DemoServer>,
    register: FileRegister,
    parts: usize,
    /// The memory of each part.
    part_bytes: u64,
    folder: Scratch,
}

/// A server: a keeper, which is a child of this process, and the children of the keeper.
struct DemoServer {
    name: &'static str,
    keeper: Option<Child>,
    /// Its address from its first start on, so that it has the same one later.
    address: Option<SocketAddr>,
    starts: u32,
}

impl DemoServers {
    /// Starts the servers, and waits until each serves.
    pub fn start(nodes: usize, parts: usize, part_bytes: u64, interrupt: &Interrupt) -> Result<Self, Error> {
        let folder = Scratch::create()?;
        let register = FileRegister::new(place(folder.path())).map_err(sentence)?;
        let server = |name| DemoServer { name, keeper: None, address: None, starts: 0 };
        let servers = NAMES.iter().take(nodes).copied().map(server).collect();
        let mut servers = Self { servers, register, parts, part_bytes, folder };
        // The first one makes the configuration; the others may come at the same time.
        servers.begin(0)?;
        servers.until_ready(0, interrupt)?;
        (1..nodes).try_for_each(|node| servers.begin(node))?;
        (1..nodes).try_for_each(|node| servers.until_ready(node, interrupt))?;
        Ok(servers)
    }

    pub fn count(&self) -> usize {
        self.servers.len()
    }

    pub fn name(&self, node: usize) -> &'static str {
        self.servers[node].name
    }

    fn file(&self, node: usize, what: &str) -> PathBuf {
        let DemoServer { name, starts, .. } = &self.servers[node];
        self.folder.path().join(format!("{name}.{starts}.{what}"))
    }

    /// Starts a server, without waiting for it.
    pub fn begin(&mut self, node: usize) -> Result<(), Error> {
        self.servers[node].starts += 1;
        let made =
            |path: PathBuf| File::create(&path).map_err(|source| Shared::File { what: "make", path, source });
        let (ready, log) = (made(self.file(node, "ready"))?, made(self.file(node, "log"))?);
        let mut command = Command::new("/proc/self/exe");
        command.arg0("caravan").args(["store", "serve", STORE, "--json"]);
        command.args(["--memory", &self.part_bytes.to_string()]);
        command.arg("--cluster").arg(place(self.folder.path()));
        let server = &mut self.servers[node];
        command.args(["--member", server.name, "--parts", &self.parts.to_string()]);
        command.args(["--port", &server.address.map_or(0, |address| address.port()).to_string()]);
        command.arg("--socket").arg(self.folder.path().join(format!("{}.sock", server.name)));
        command.stdin(Stdio::null()).stdout(ready).stderr(log);
        let child =
            command.spawn().map_err(|source| Error::Sentence(format!("cannot start a server: {source}")))?;
        server.keeper = Some(child);
        Ok(())
    }

    fn until_ready(&mut self, node: usize, interrupt: &Interrupt) -> Result<(), Error> {
        let (path, deadline) = (self.file(node, "ready"), Instant::now() + START_MAX);
        loop {
            let text = std::fs::read_to_string(&path).unwrap_or_default();
            if let Some(ready) = text.lines().next().filter(|_| text.ends_with('\n')) {
                let ready: Value = serde_json::from_str(ready).map_err(sentence)?;
                self.servers[node].address =
                    ready["address"].as_str().and_then(|address| address.parse().ok());
                return Ok(());
            }
            interrupt.check()?;
            let keeper = self.servers[node].keeper.as_mut();
            let has_ended = keeper.is_none_or(|keeper| !matches!(keeper.try_wait(), Ok(None)));
            if has_ended || Instant::now() > deadline {
                let (name, said) = (self.name(node), self.last_words(node));
                return Err(Error::Sentence(format!("the server {name} does not get ready: {said}")));
            }
            std::thread::sleep(LOOK_PAUSE);
        }
    }

    /// Returns the end of a server's messages.
    pub fn last_words(&self, node: usize) -> String {
        let said = std::fs::read_to_string(self.file(node, "log")).unwrap_or_default();
        let lines: Vec<&str> = said.lines().collect();
        let last = &lines[lines.len().saturating_sub(LAST_LINES)..];
        if last.is_empty() { "it has said nothing".to_owned() } else { last.join("\n") }
    }

    /// Returns the configuration as it is now.
    pub fn configuration(&self) -> Result<Configuration, Error> {
        let stored = self.register.read(Instant::now() + READ_MAX).map_err(sentence)?;
        let stored = stored.ok_or_else(|| Error::Sentence("the configuration is gone".to_owned()))?;
        Ok(stored.configuration)
    }

    /// Returns whether all servers run and are members, each has parts, and each part has all of its copies.
    pub fn is_whole(&self) -> Result<bool, Error> {
        let configuration = self.configuration()?;
        let copies = usize::from(configuration.copies).min(self.count());
        let mut parts = configuration.parts.iter();
        let has_parts = |node: usize| {
            let member = configuration.member_by_name(self.name(node));
            member
                .is_some_and(|member| configuration.parts.iter().any(|part| part.primary == Some(member.id)))
        };
        Ok(parts.all(|part| part.complete().count() == copies && part.filling.is_empty() && part.made)
            && (0..self.count()).all(|node| has_parts(node) && self.server_process(node).is_some()))
    }

    /// Returns the parts of which no server has a complete copy any more.
    pub fn lost(&self) -> Result<Vec<PartId>, Error> {
        let configuration = self.configuration()?;
        Ok(configuration.parts.iter().filter(|part| part.lost.is_some()).map(|part| part.id).collect())
    }

    /// Returns the process that serves, a child of the keeper.
    fn server_process(&self, node: usize) -> Option<Pid> {
        let keeper = self.servers[node].keeper.as_ref()?.id() as i32;
        let is_server = |pid: &i32| {
            let name = std::fs::read_to_string(format!("/proc/{pid}/comm"));
            name.is_ok_and(|name| name.trim_end() == "caravan-store")
        };
        let processes = descendants(keeper).into_iter().filter(|(_, stat)| !stat.has_ended());
        processes.map(|(pid, _)| pid).find(is_server).and_then(Pid::from_raw)
    }

    /// Kills a server with SIGKILL.
    pub fn kill(&mut self, node: usize, kind: StopKind) {
        if kind == StopKind::Server {
            // If it has just died by itself, its keeper knows.
            let _ = self.server_process(node).map(|pid| kill_process(pid, Signal::KILL));
            return;
        }
        let Some(mut keeper) = self.servers[node].keeper.take() else { return };
        let below = descendants(keeper.id() as i32);
        let _ = keeper.kill();
        for pid in below.into_keys().filter_map(Pid::from_raw) {
            let _ = kill_process(pid, Signal::KILL);
        }
        let _ = keeper.wait();
    }

    /// Starts again what was killed together with its keeper.
    pub fn start_missing(&mut self) -> Result<(), Error> {
        let missing = |node: &usize| self.servers[*node].keeper.is_none();
        let missing: Vec<usize> = (0..self.count()).filter(missing).collect();
        missing.into_iter().try_for_each(|node| self.begin(node))
    }

    /// Returns what became of a keeper that has ended by itself.
    pub fn failure(&mut self) -> Option<String> {
        for node in 0..self.count() {
            let Some(keeper) = &mut self.servers[node].keeper else { continue };
            if let Ok(Some(status)) = keeper.try_wait() {
                let (name, said) = (self.name(node), self.last_words(node));
                return Some(format!("the server {name} has ended ({status}): {said}"));
            }
        }
        None
    }
}

impl Drop for DemoServers {
    fn drop(&mut self) {
        let mut keepers: Vec<Child> =
            self.servers.iter_mut().filter_map(|server| server.keeper.take()).collect();
        for keeper in &mut keepers {
            // Nobody has waited for it yet, so the number is its own.
            if matches!(keeper.try_wait(), Ok(None)) {
                let _ = kill_process(Pid::from_child(keeper), Signal::TERM);
            }
        }
        let deadline = Instant::now() + END_MAX;
        for keeper in &mut keepers {
            while matches!(keeper.try_wait(), Ok(None)) && Instant::now() < deadline {
                std::thread::sleep(LOOK_PAUSE);
            }
            let below = descendants(keeper.id() as i32);
            if matches!(keeper.try_wait(), Ok(None)) {
                let _ = keeper.kill();
                below
                    .into_keys()
                    .filter_map(Pid::from_raw)
                    .for_each(|pid| _ = kill_process(pid, Signal::KILL));
                let _ = keeper.wait();
            }
        }
    }
}

fn place(folder: &Path) -> PathBuf {
    folder.join("demo.json")
}
