//! A server, its clients, and the hand that stops and kills them.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use caravan_segment::passing::{self, Doorway, DoorwayAddress};
use caravan_store::faults::PlantedFault;
use caravan_store::{Store, StoreOptions};
use caravan_store_server::{ServerOptions, StoreServer};
use rustix::process::Signal;
use serde::{Deserialize, Serialize};

use crate::children::{self, Order, Role, Running};
use crate::clients::{ClientFault, ClientOrder, Workload};
use crate::history::{self, Random, Record};

/// How long a process may take to start, on a machine that is slow and busy.
const START_MAX: Duration = Duration::from_secs(60);
const CLIENTS: usize = 4;

/// What a server process is told when it starts.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ServerOrder {
    socket: PathBuf,
}

/// Serves until its input ends, and then checks that all memory in use can be reached and is as it was written.
pub fn serve(input: OwnedFd, order: &ServerOrder) -> Result<(), String> {
    let failed = |error: &dyn std::fmt::Display| error.to_string();
    let mut input = File::from(input);
    let mut bytes = [0; DoorwayAddress::BYTES];
    input.read_exact(&mut bytes).map_err(|error| failed(&error))?;
    let address = DoorwayAddress::from_bytes(&bytes).map_err(|error| failed(&error))?;
    let store = Arc::new(Store::embedded(StoreOptions::new(64 << 20)).map_err(|error| failed(&error))?);
    let mut options = ServerOptions::new("judged", &order.socket);
    options.workers = Some(3);
    let server = StoreServer::start(Arc::clone(&store), options, |_| {}).map_err(|error| failed(&error))?;
    let descriptor = store.reader_descriptor().map_err(|error| failed(&error))?;
    passing::send(&address, b"", &[descriptor.as_fd()]).map_err(|error| failed(&error))?;
    let _ = input.read(&mut [0]);
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
    pub seed: u64,
    pub in_server: Option<PlantedFault>,
    pub in_clients: Option<PlantedFault>,
    pub between: Option<ClientFault>,
}

/// What came of it.
pub struct Aftermath {
    pub records: Vec<Record>,
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
        std::thread::sleep(Duration::from_micros(500 + 100 * rig.random.below(150) as u64));
        match rig.random.below(4) {
            0 => stops += rig.stop_server(),
            1 => stops += rig.stop_client(),
            _ => {
                rig.kill_client();
                kills += 1;
            }
        }
    }
    let (records, is_sound) = rig.end();
    Aftermath { records, is_sound, stops }
}

struct ClientProcess {
    process: Running,
    said: JoinHandle<Vec<u8>>,
}

struct Rig {
    storm: Storm,
    random: Random,
    folder: PathBuf,
    server: Running,
    /// The server's standard input: it ends when this is closed.
    leash: File,
    descriptor: OwnedFd,
    clients: Vec<ClientProcess>,
    clients_started: u32,
    said: Vec<Vec<u8>>,
}

impl Rig {
    fn new(storm: Storm) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("caravan-judges-{}-{number}", std::process::id()));
        std::fs::create_dir(&folder).expect("made");
        let (doorway, address) = Doorway::listen().expect("a doorway");
        let (theirs, ours) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).expect("a pipe");
        let order = ServerOrder { socket: folder.join("socket") };
        let planted = storm.in_server.map(|fault| format!("{fault:?}"));
        let server = children::start(&Order { role: Role::Server(order), planted }, theirs);
        let mut leash = File::from(ours);
        leash.write_all(&address.to_bytes()).expect("written");
        let begin = Instant::now();
        let delivery = loop {
            match doorway.accept() {
                Ok(delivery) => break delivery,
                Err(_) if begin.elapsed() < START_MAX => std::thread::sleep(Duration::from_millis(1)),
                Err(error) => panic!("the server does not start: {error}"),
            }
        };
        let descriptor = delivery.descriptors.into_iter().next().expect("a descriptor");
        let random = Random::new(storm.seed);
        let (clients, said) = (Vec::new(), Vec::new());
        Self { storm, random, folder, server, leash, descriptor, clients, clients_started: 0, said }
    }

    fn start_client(&mut self) {
        let Storm { seed, workload, between: fault, .. } = self.storm;
        let (client, socket) = (self.clients_started, self.folder.join("socket"));
        self.clients_started += 1;
        let planted = self.storm.in_clients.map(|fault| format!("{fault:?}"));
        let role = Role::Client(ClientOrder { client, seed, socket, workload, fault });
        let descriptor = self.descriptor.try_clone().expect("a descriptor");
        let mut process = children::start(&Order { role, planted }, descriptor);
        let mut stdout = process.stdout();
        let said = std::thread::spawn(move || {
            let mut bytes = Vec::new();
            stdout.read_to_end(&mut bytes).expect("read");
            bytes
        });
        self.clients.push(ClientProcess { process, said });
    }

    fn kill_client(&mut self) {
        let at = self.random.below(self.clients.len());
        let client = self.clients.swap_remove(at);
        self.bury(client);
        self.start_client();
    }

    fn bury(&mut self, mut client: ClientProcess) {
        assert!(!client.process.has_ended(), "a client ended by itself, for the reason above");
        drop(client.process);
        self.said.push(client.said.join().expect("read"));
    }

    fn stop_client(&mut self) -> usize {
        let at = self.random.below(self.clients.len());
        self.clients[at].process.signal(Signal::STOP);
        self.pause();
        self.clients[at].process.signal(Signal::CONT);
        1
    }

    fn stop_server(&mut self) -> usize {
        self.server.signal(Signal::STOP);
        self.pause();
        self.server.signal(Signal::CONT);
        1
    }

    fn pause(&mut self) {
        std::thread::sleep(Duration::from_micros(100 * self.random.below(100) as u64));
    }

    fn end(mut self) -> (Vec<Record>, bool) {
        for client in std::mem::take(&mut self.clients) {
            self.bury(client);
        }
        drop(self.leash);
        let is_sound = self.server.is_content();
        let _ = std::fs::remove_dir_all(&self.folder);
        (self.said.iter().flat_map(|said| history::parse(said)).collect(), is_sound)
    }
}
