//! A server alone, its clients, and the hand that stops and kills them.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use caravan_store::faults::PlantedFault;
use caravan_store::{Store, StoreOptions};
use caravan_store_server::{ServerOptions, StoreServer};
use rustix::process::Signal;
use serde::{Deserialize, Serialize};

use super::children::{self, Order, Role, Running};
use super::clients::{ClientFault, ClientOrder, Workload};
use super::herd::ClientHerd;
use super::history::{ClientAct, Random};

const MEMORY_BYTES: u64 = 64 << 20;
const CLIENTS: usize = 4;
/// What clients have at least written down for each kill, in lines: else a history says little.
const LINES_OF_A_KILL: u64 = 20;

/// The byte by which a server says that it serves. What the test harness says has none of it.
pub const READY: u8 = b'!';

/// What a server process is told when it starts.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ServerOrder {
    socket: PathBuf,
}

/// Serves the store in the memory that is its standard input until its standard output is closed by the other side. Then it
/// checks that all memory in use can be reached and is as it was written.
pub fn serve(memory: OwnedFd, order: &ServerOrder) -> Result<(), String> {
    let failed = |error: &dyn std::fmt::Display| error.to_string();
    let store = Store::open(memory, StoreOptions::new(MEMORY_BYTES)).map_err(|error| failed(&error))?;
    let store = Arc::new(store);
    let mut options = ServerOptions::new("judged", &order.socket);
    options.workers = Some(3);
    options.spreads = true;
    let server = StoreServer::start(Arc::clone(&store), options, |_| {}).map_err(|error| failed(&error))?;
    let leash = std::io::stdout().as_fd().try_clone_to_owned().map_err(|error| failed(&error))?;
    let mut leash = File::from(leash);
    leash.write_all(&[READY]).map_err(|error| failed(&error))?;
    let _ = leash.read(&mut [0]);
    server.end();
    store.audit().map_err(|error| failed(&error))?;
    let mut damaged = Vec::new();
    store.scrub(usize::MAX, |address| damaged.push(address)).map_err(|error| failed(&error))?;
    if damaged.is_empty() { Ok(()) } else { Err(format!("damaged objects: {damaged:?}")) }
}

/// What happens in one history.
#[derive(Clone, Copy, Debug)]
pub struct Storm {
    pub workload: Workload,
    pub kills: usize,
    /// The longest pause between two kills or stops, in tenths of a millisecond.
    pub pause: usize,
    pub seed: u64,
    pub in_server: Option<PlantedFault>,
    pub in_clients: Option<PlantedFault>,
    pub between: Option<ClientFault>,
}

/// What came of it.
pub struct Aftermath {
    pub acts: Vec<ClientAct>,
    /// Whether the server's memory was whole in the end, and all of it could be reached.
    pub is_sound: bool,
    pub stops: usize,
}

/// Raises a storm, and returns what all clients have written down.
pub fn raise(storm: Storm) -> Aftermath {
    let mut rig = Rig::new(storm);
    for _ in 0..CLIENTS {
        rig.start_client();
    }
    let (mut kills, mut stops) = (0, 0);
    while kills < storm.kills {
        std::thread::sleep(Duration::from_micros(500 + 100 * rig.random.below(storm.pause) as u64));
        rig.herd.wait_for_lines(LINES_OF_A_KILL * kills as u64);
        match rig.random.below(6) {
            0 => stops += rig.stop_server(),
            1 => {
                let pause = short_stop(&mut rig.random);
                stops += rig.herd.stop_one(&mut rig.random, pause);
            }
            // A server with a fault needs its time to show it.
            2..=3 if storm.in_server.is_none() => {
                rig.kill_server();
                kills += 1;
            }
            _ => {
                rig.kill_client();
                kills += 1;
            }
        }
    }
    let (acts, is_sound) = rig.end();
    Aftermath { acts, is_sound, stops }
}

pub struct Rig {
    storm: Storm,
    random: Random,
    folder: PathBuf,
    /// The memory of the store, which outlives its servers.
    memory: OwnedFd,
    server: ServerProcess,
    herd: ClientHerd,
}

struct ServerProcess {
    process: Running,
    /// It ends when this is closed.
    leash: UnixStream,
}

impl ServerProcess {
    /// Starts a server, and waits until it serves.
    fn start(storm: &Storm, folder: &Path, memory: &OwnedFd) -> Self {
        let order = ServerOrder { socket: folder.join("socket") };
        let planted = storm.in_server.map(|fault| format!("{fault:?}"));
        let (theirs, mut leash) = UnixStream::pair().expect("a pair");
        let memory = memory.try_clone().expect("a descriptor");
        let order = Order { role: Role::Server(order), planted };
        let process = children::start(&order, memory, Stdio::from(OwnedFd::from(theirs)));
        wait_until_ready(&mut leash);
        Self { process, leash }
    }
}

/// Waits until a server serves, which says so here.
pub fn wait_until_ready(from: &mut UnixStream) {
    from.set_read_timeout(Some(children::LIMIT)).expect("set");
    let mut byte = [0];
    while byte != [READY] {
        from.read_exact(&mut byte).expect("the server does not start, for the reason above");
    }
}

/// Returns how long a server or a client is stopped.
fn short_stop(random: &mut Random) -> Duration {
    Duration::from_micros(100 * random.below(100) as u64)
}

impl Rig {
    /// Starts a server without clients.
    pub fn new(storm: Storm) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("caravan-judges-{}-{number}", std::process::id()));
        std::fs::create_dir(&folder).expect("made");
        let memory = Store::new_memory("judged").expect("memory");
        let server = ServerProcess::start(&storm, &folder, &memory);
        let random = Random::new(storm.seed);
        let Storm { seed, workload, between: fault, .. } = storm;
        let servers = vec![folder.join("socket")];
        let order = ClientOrder { client: 0, seed, servers, is_mapped: true, workload, fault, stops: false };
        let herd = ClientHerd::new(order, storm.in_clients);
        Self { storm, random, folder, memory, server, herd }
    }

    /// Kills the server, and starts another one over the same memory.
    fn kill_server(&mut self) {
        self.server.process.end();
        self.server = ServerProcess::start(&self.storm, &self.folder, &self.memory);
    }

    pub fn start_client(&mut self) {
        // The right to read, and no more.
        let memory = File::open(format!("/proc/self/fd/{}", self.memory.as_raw_fd())).expect("opened");
        self.herd.start(memory);
    }

    pub fn kill_client(&mut self) {
        self.herd.kill_one(&mut self.random);
        self.start_client();
    }

    /// Kills all clients, and returns what they have written down since the last time.
    pub fn kill_clients(&mut self) -> Vec<ClientAct> {
        self.herd.kill_all()
    }

    fn stop_server(&mut self) -> usize {
        self.server.process.signal(Signal::STOP);
        std::thread::sleep(short_stop(&mut self.random));
        self.server.process.signal(Signal::CONT);
        1
    }

    /// Returns the folder in `/proc` of the server, and its socket.
    pub fn server(&self) -> (PathBuf, PathBuf) {
        (PathBuf::from(format!("/proc/{}", self.server.process.id())), self.folder.join("socket"))
    }

    /// Ends everything, and returns the acts with whether the server was content.
    pub fn end(mut self) -> (Vec<ClientAct>, bool) {
        let acts = self.kill_clients();
        let ServerProcess { mut process, leash } = self.server;
        drop(leash);
        let is_sound = process.is_content();
        let _ = std::fs::remove_dir_all(&self.folder);
        (acts, is_sound)
    }
}
