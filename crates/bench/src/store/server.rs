//! The servers that are measured: Caravan's own, and its peers.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use caravan_store::ConnectedStore;

use crate::chart::{CARAVAN, PEER};
use crate::error::Error;
use crate::interrupt::Interrupt;
use crate::process::{ChildProgram, failed, free_port, is_installed, redis_command};
use crate::report::Contender;
use crate::scratch::Scratch;
use crate::store::link;
use crate::store::pairs::PairProtocol;
use crate::store::socket::{PairAddress, SocketClient};

/// The number of a client's connections to each server.
pub const CONNECTIONS: usize = 20;
/// How long a server may take until it listens.
const START_LIMIT: Duration = Duration::from_secs(20);
/// How long a server may take for its end.
const END_LIMIT: Duration = Duration::from_secs(10);
/// The memory that Caravan and memcached may use: some, and so many bytes for each pair.
const MEMORY_BYTES: (u64, u64) = (64 << 20, 256);

/// A server that can be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PairServer {
    Caravan,
    Redis,
    Valkey,
    Memcached,
}

impl PairServer {
    /// All servers. Ratios are to Redis, which comes first.
    pub const ALL: [Self; 4] = [Self::Redis, Self::Valkey, Self::Memcached, Self::Caravan];

    pub fn key(self) -> &'static str {
        match self {
            Self::Caravan => "caravan",
            Self::Redis => "redis",
            Self::Valkey => "valkey",
            Self::Memcached => "memcached",
        }
    }

    pub fn contender(self) -> Contender {
        let title = match self {
            Self::Caravan => "caravan store serve",
            Self::Redis => "redis-server",
            Self::Valkey => "valkey-server",
            Self::Memcached => "memcached",
        };
        Contender::new(self.key(), title, if self == Self::Caravan { CARAVAN } else { PEER })
    }

    /// Returns the package to install, if the server is missing.
    pub fn missing(self) -> Option<&'static str> {
        let (program, package) = match self {
            Self::Caravan => return None,
            Self::Redis => ("redis-server", "redis-server"),
            Self::Valkey => ("valkey-server", "valkey-server"),
            Self::Memcached => ("memcached", "memcached"),
        };
        (!is_installed(program)).then_some(package)
    }

    pub fn protocol(self) -> PairProtocol {
        if self == Self::Memcached { PairProtocol::Memcached } else { PairProtocol::Resp }
    }

    /// Returns the command that starts the server on a UNIX socket, and on a port of 127.0.0.1 where it serves both at
    /// a time.
    fn command(self, folder: &Scratch, socket: &Path, port: u16, keys: u64) -> Command {
        let memory_bytes = MEMORY_BYTES.0 + MEMORY_BYTES.1 * keys;
        let mut command;
        match self {
            Self::Caravan => {
                // This program's own path may meanwhile lead to another build.
                command = Command::new("/proc/self/exe");
                command.args(["store", "serve", &format!("bench-{}", std::process::id()), "--memory"]);
                command.arg(memory_bytes.to_string()).arg("--socket").arg(socket);
                command.args(["--port", &port.to_string()]);
            }
            Self::Redis | Self::Valkey => {
                let program = if self == Self::Redis { "redis-server" } else { "valkey-server" };
                command = redis_command(program, port);
                command.arg("--dir");
                command.arg(folder.path()).arg("--unixsocket").arg(socket);
            }
            Self::Memcached => {
                command = Command::new("memcached");
                // One thread takes the least processor time for each operation.
                command
                    .args(["-U", "0", "-t", "1", "-m", &(memory_bytes >> 20).to_string(), "-s"])
                    .arg(socket);
                if rustix::process::geteuid().is_root() {
                    command.args(["-u", "root"]);
                }
            }
        }
        command.stdin(Stdio::null()).stdout(Stdio::null());
        command
    }
}

/// A server that runs until this value is dropped, filled with all pairs, and a client of it.
#[derive(Debug)]
pub struct RunningServer {
    pub server: PairServer,
    pub client: SocketClient,
    /// The process that serves; it may be a child of the one that was started.
    pid: i32,
    /// The bytes that each pair takes: by the growth of the process's resident memory, and as the server counts them.
    pub resident_bytes: f64,
    pub counted_bytes: Option<f64>,
    port: u16,
    process: ChildProgram,
    /// It is removed after the process has ended.
    folder: Scratch,
}

impl RunningServer {
    pub fn start(server: PairServer, keys: u64, interrupt: &Interrupt) -> Result<Self, Error> {
        let folder = Scratch::create()?;
        let (socket, log) = (folder.path().join("socket"), folder.path().join("log"));
        let port = free_port()?;
        let command = server.command(&folder, &socket, port, keys);
        let mut process = ChildProgram::logged(server.key(), command, &log)?;
        let deadline = Instant::now() + START_LIMIT;
        let unix = PairAddress::Unix(socket);
        let connect = || SocketClient::connect(&unix, server.protocol(), CONNECTIONS).ok();
        let mut client = process.until(deadline, interrupt, connect)?;
        let is_resp = server.protocol() == PairProtocol::Resp;
        let pid = if is_resp { client.info("process_id")? as i32 } else { process.pid() as i32 };
        let bytes = |client: &mut SocketClient| {
            let counted = is_resp.then(|| client.info("used_memory")).transpose()?;
            Ok::<_, Error>((resident_bytes(pid)?, counted))
        };
        let before = bytes(&mut client)?;
        client.fill(keys, interrupt)?;
        let after = bytes(&mut client)?;
        let each = |before: u64, after: u64| after.saturating_sub(before) as f64 / keys as f64;
        let counted_bytes = before.1.zip(after.1).map(|(before, after)| each(before, after));
        let resident_bytes = each(before.0, after.0);
        Ok(Self { server, client, pid, resident_bytes, counted_bytes, port, process, folder })
    }

    /// Returns the process that serves.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Connects the client again, and finds out which process serves by now.
    pub fn reconnect(&mut self) -> Result<(), Error> {
        let address = PairAddress::Unix(self.socket());
        self.client = SocketClient::connect(&address, self.server.protocol(), CONNECTIONS)?;
        self.pid = self.client.info("process_id")? as i32;
        Ok(())
    }

    /// Returns the path of the server's socket.
    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("socket")
    }

    /// Returns another client, over TCP.
    pub fn tcp_client(&self, connections: usize) -> Result<SocketClient, Error> {
        SocketClient::connect(&PairAddress::Tcp(self.port), self.server.protocol(), connections)
    }

    /// Returns a client of Caravan's server, through a link in mapped memory.
    pub fn link(&self) -> Result<ConnectedStore, Error> {
        link::connect(format!("unix:{}", self.socket().display()))
    }

    /// Returns a client as on another host: over an RDMA device if this host has one, or else TCP.
    pub fn far_link(&self) -> Result<ConnectedStore, Error> {
        link::connect(format!("127.0.0.1:{}", self.port))
    }
}

impl Drop for RunningServer {
    fn drop(&mut self) {
        self.process.terminate(END_LIMIT);
    }
}

/// Returns the resident memory of a process.
fn resident_bytes(pid: i32) -> Result<u64, Error> {
    let path = format!("/proc/{pid}/status");
    let text = std::fs::read_to_string(&path).map_err(Error::file("read", path.as_ref()))?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    kib.map(|kib| kib << 10).ok_or_else(|| failed("server", &"its memory cannot be read"))
}
