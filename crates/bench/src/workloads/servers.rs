//! The servers of a workload: one, or as many as it takes for copies.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use caravan_cluster::{Configuration, ConfigurationRegister, FileRegister, PartId};
use caravan_segment::process::descendants;
use caravan_store::{ClusterStore, ConnectOptions, Store};

use crate::error::Error;
use crate::interrupt::Interrupt;
use crate::process::{ChildProgram, failed, free_port, redis_command};
use crate::scratch::Scratch;
use crate::workloads::link::ConnectedParts;
use crate::workloads::resp::{RespClient, RespServers};

/// How long servers may take until they serve, and have their copies.
const START_LIMIT: Duration = Duration::from_secs(30);
/// How long a server may take for its end.
const END_LIMIT: Duration = Duration::from_secs(10);
/// Copies of each key, where there are copies.
const COPIES: u16 = 2;
/// The number of hash slots.
const SLOTS: u16 = 16_384;

/// How many servers there are, and what they have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// One server.
    Alone,
    /// So many of Caravan's, with so many parts and two copies of each; of another program, a server and its replica.
    Copies { servers: usize, parts: u16 },
}

/// A program that serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkloadProgram {
    Redis,
    Valkey,
    Caravan,
}

impl WorkloadProgram {
    pub fn key(self) -> &'static str {
        match self {
            Self::Redis => "redis",
            Self::Valkey => "valkey",
            Self::Caravan => "caravan",
        }
    }

    /// Returns the program's name, which is that of its package, too; `None` for Caravan itself.
    pub fn program(self) -> Option<&'static str> {
        match self {
            Self::Redis => Some("redis-server"),
            Self::Valkey => Some("valkey-server"),
            Self::Caravan => None,
        }
    }
}

/// Servers that run until this value is dropped.
#[derive(Debug)]
pub struct WorkloadServers {
    pub resp: RespServers,
    /// Of Caravan with copies.
    configuration: Option<Configuration>,
    processes: Vec<ChildProgram>,
    /// Removed last.
    folder: Scratch,
}

impl WorkloadServers {
    pub fn start(
        program: WorkloadProgram,
        layout: Layout,
        memory_bytes: u64,
        interrupt: &Interrupt,
    ) -> Result<Self, Error> {
        let resp = RespServers { sockets: Vec::new(), server_of_slot: Arc::new([]), replicas: 0 };
        let folder = Scratch::create()?;
        let mut servers = Self { resp, configuration: None, processes: Vec::new(), folder };
        match (program.program(), layout) {
            (Some(name), _) => servers.start_redis(program, name, layout, interrupt)?,
            (None, Layout::Alone) => {
                let (socket, memory) = (servers.socket(0), memory_bytes.to_string());
                let mut command = caravan(&["store", "serve", &store_name(), "--memory", &memory]);
                command.arg("--socket").arg(&socket).stdout(Stdio::null());
                servers.start_one(program, command, socket, interrupt)?;
            }
            (None, Layout::Copies { servers: count, parts }) => {
                servers.start_members(count, parts, memory_bytes, interrupt)?;
            }
        }
        Ok(servers)
    }

    fn socket(&self, number: usize) -> PathBuf {
        self.folder.path().join(format!("{number}.sock"))
    }

    /// Starts a server, and waits until it answers at `socket`.
    fn start_one(
        &mut self,
        program: WorkloadProgram,
        command: Command,
        socket: PathBuf,
        interrupt: &Interrupt,
    ) -> Result<(), Error> {
        let log = self.folder.path().join(format!("{}.log", self.processes.len()));
        let mut process = ChildProgram::logged(program.key(), command, &log)?;
        let only = RespServers { sockets: vec![socket], server_of_slot: Arc::new([]), replicas: 0 };
        let answers = || RespClient::connect(only.clone()).ok()?.sum_of_info("process_id").ok();
        process.until(Instant::now() + START_LIMIT, interrupt, answers)?;
        self.processes.push(process);
        self.resp.sockets.extend(only.sockets);
        Ok(())
    }

    /// Starts a server of the Redis kind, and its replica.
    fn start_redis(
        &mut self,
        program: WorkloadProgram,
        name: &str,
        layout: Layout,
        interrupt: &Interrupt,
    ) -> Result<(), Error> {
        let command = |port: u16, socket: &Path| {
            let mut command = redis_command(name, port);
            command.arg("--dir").arg(self.folder.path()).arg("--unixsocket").arg(socket);
            command.args(["--repl-diskless-sync-delay", "0"]).stdin(Stdio::null()).stdout(Stdio::null());
            command
        };
        let (port, sockets) = (free_port()?, [self.socket(0), self.socket(1)]);
        let primary = command(port, &sockets[0]);
        let mut replica = command(free_port()?, &sockets[1]);
        replica.args(["--replicaof", "127.0.0.1", &port.to_string()]);
        let [first, second] = sockets;
        self.start_one(program, primary, first, interrupt)?;
        if layout == Layout::Alone {
            return Ok(());
        }
        self.start_one(program, replica, second, interrupt)?;
        // Clients ask the primary alone.
        self.resp.sockets.truncate(1);
        self.resp.replicas = 1;
        let mut client = RespClient::connect(self.resp.clone())?;
        let limit = Instant::now() + START_LIMIT;
        let process = self.processes.first_mut().ok_or_else(|| failed("server", &"it has ended"))?;
        // Once a write waits for the replica, it has all that was there before.
        process.until(limit, interrupt, || {
            crate::workloads::client::WorkloadClient::put(&mut client, b"start", b"1").ok()
        })
    }

    /// Starts Caravan's servers of one store, and waits until each part has its copies.
    fn start_members(
        &mut self,
        count: usize,
        parts: u16,
        memory_bytes: u64,
        interrupt: &Interrupt,
    ) -> Result<(), Error> {
        let place = self.folder.path().join("store.json");
        for number in 0..count {
            let socket = self.socket(number);
            let (member, ready) =
                (format!("server{number}"), self.folder.path().join(format!("{number}.ready")));
            let mut command = caravan(&["store", "serve", &store_name(), "--member", &member, "--port", "0"]);
            command.args(["--parts", &parts.to_string(), "--copies", &COPIES.to_string()]);
            command.args(["--memory", &memory_bytes.to_string()]).arg("--cluster").arg(&place);
            let stdout = File::create(&ready).map_err(Error::file("make", &ready))?;
            command.arg("--socket").arg(&socket).stdout(stdout);
            self.start_one(WorkloadProgram::Caravan, command, socket, interrupt)?;
        }
        let register = FileRegister::new(&place).map_err(|why| failed("server", &why))?;
        let whole = || {
            let stored = register.read(Instant::now() + START_LIMIT).ok()??.configuration;
            is_whole(&stored, count).then_some(stored)
        };
        let first = self.processes.first_mut().ok_or_else(|| failed("server", &"there is none"))?;
        let configuration = first.until(Instant::now() + START_LIMIT, interrupt, whole)?;
        let slots = configuration.slot_map();
        let server_of = |part: PartId| primary(&configuration, part).unwrap_or_default() as u8;
        self.resp.server_of_slot = (0..SLOTS).map(|slot| server_of(slots.part(slot))).collect();
        self.configuration = Some(configuration);
        Ok(())
    }

    /// Returns all processes that serve, with those that start and watch them.
    pub fn pids(&self) -> Vec<i32> {
        let own = self.processes.iter().map(|process| process.pid() as i32);
        own.flat_map(|pid| std::iter::once(pid).chain(descendants(pid).into_keys())).collect()
    }

    /// Returns a client of the Rust API, by shared memory of this host.
    pub fn link(&self) -> Result<Arc<ConnectedParts>, Error> {
        let address = |server: usize| format!("unix:{}", self.resp.sockets[server].display());
        let link_failed = |why| failed("link", &why);
        let Some(configuration) = &self.configuration else {
            let store = Store::connect(ConnectOptions::new(address(0))).map_err(link_failed)?;
            return Ok(Arc::new(ConnectedParts::Alone(store)));
        };
        let store = ClusterStore::connect(ConnectOptions::new(address(0))).map_err(link_failed)?;
        for part in &configuration.parts {
            store.part(part.id.0).map_err(link_failed)?;
        }
        Ok(Arc::new(ConnectedParts::Cluster(store)))
    }

    /// Says what is behind the failure of a client, if it may be the machine.
    pub fn explained(&self, error: Error) -> Error {
        match error {
            Error::BenchProcess { .. } if self.configuration.is_some() => Error::Sentence(format!(
                "{error}. A server that gets no processor for 100 ms gives its parts up: if other work takes the cores, try again \
                 when the machine is idle"
            )),
            error => error,
        }
    }

    /// Returns the number of other copies of a part.
    pub fn backups(&self) -> f64 {
        if self.configuration.is_some() { f64::from(COPIES - 1) } else { 0.0 }
    }
}

impl Drop for WorkloadServers {
    fn drop(&mut self) {
        self.processes.iter_mut().rev().for_each(|process| process.terminate(END_LIMIT));
    }
}

/// Returns a name that no other store of this user has.
fn store_name() -> String {
    format!("bench-{}", std::process::id())
}

/// Returns a command of this program. Its own path may meanwhile lead to another build.
fn caravan(words: &[&str]) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.args(words).stdin(Stdio::null());
    command
}

/// Returns the number of the server that is the primary of a part.
fn primary(configuration: &Configuration, part: PartId) -> Option<usize> {
    let member = configuration.member(configuration.part(part)?.primary?)?;
    member.name.strip_prefix("server")?.parse().ok()
}

/// Returns whether all parts have their copies, and each server its share of primaries.
fn is_whole(configuration: &Configuration, servers: usize) -> bool {
    let has_copies = |part: &caravan_cluster::Part| {
        part.made && part.filling.is_empty() && part.complete().count() == usize::from(COPIES)
    };
    let primaries = |number: usize| {
        let is_at = |part: &&caravan_cluster::Part| primary(configuration, part.id) == Some(number);
        configuration.parts.iter().filter(is_at).count()
    };
    let least = configuration.parts.len() / servers;
    configuration.parts.iter().all(has_copies) && (0..servers).all(|number| primaries(number) >= least)
}
