//! Writes that are under way when their server is killed: each happens once, and nobody but the server notices.

use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use caravan_store::faults::{FaultMoment, PlantedFault, kill_at};
use caravan_store::{
    ConnectOptions, ConnectedStore, Store, StoreError, StoreOptions, StoreTransport, limits,
};
use caravan_store_server::{ServerOptions, StoreServer, local_address};
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, kill_process, set_parent_process_death_signal, waitid,
};

use super::children::{Running, start_with};
use super::rig::{Rig, transports};

const MEMORY_BYTES: u64 = 32 << 20;
/// The keys that each client puts and deletes at the same time.
const BATCH: u32 = 30;

/// Serves the store in the memory that is its standard input, at a socket in a folder and a port, until it is killed: by
/// itself if it is told with which of its replies.
pub fn serve(order: &str, _: bool) -> Result<(), String> {
    set_parent_process_death_signal(Some(Signal::KILL)).map_err(|error| error.to_string())?;
    let [port, replies, folder] = order.rsplitn(3, ':').collect::<Vec<_>>()[..] else {
        return Err("an order is FOLDER:REPLIES:PORT".to_owned());
    };
    if let Ok(replies) = replies.parse() {
        kill_at(FaultMoment::Reply, replies);
    }
    let memory = std::io::stdin().as_fd().try_clone_to_owned().map_err(|error| error.to_string())?;
    let store = Store::open(memory, StoreOptions::new(MEMORY_BYTES)).map_err(|error| error.to_string())?;
    let mut options = ServerOptions::new("test", Path::new(folder).join("socket"));
    options.address = Some(local_address(port.parse().map_err(|_| "a port is a number")?));
    options.workers = Some(2);
    let server = StoreServer::start(Arc::new(store), options, |_| ()).map_err(|error| error.to_string())?;
    println!("{}", server.address().ok_or("it listens on TCP")?);
    std::io::stdout().flush().map_err(|error| error.to_string())?;
    loop {
        std::thread::park();
    }
}

/// A server over a memory that outlives it.
pub struct Mortal {
    memory: OwnedFd,
    folder: PathBuf,
    fault: Option<PlantedFault>,
    port: u16,
    server: Option<Running>,
}

impl Mortal {
    pub fn new(fault: Option<PlantedFault>) -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("caravan-mortal-{}-{number}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        let memory = Store::new_memory("mortal").unwrap();
        let mut mortal = Self { memory, folder, fault, port: 0, server: None };
        mortal.serve(None);
        mortal
    }

    /// Starts a server, and waits until it serves. If there are `replies`, it is killed when it has committed the last
    /// of them, and before it sends that.
    pub fn serve(&mut self, replies: Option<u64>) {
        let replies = replies.map_or_else(String::new, |replies| replies.to_string());
        let order = format!("{}:{replies}:{}", self.folder.display(), self.port);
        let memory = Stdio::from(self.memory.try_clone().unwrap());
        let mut server = start_with("successor", &order, self.fault, memory);
        let mut lines = BufReader::new(server.0.stdout.take().unwrap()).lines().map(Result::unwrap);
        // The test harness of the child says something, too.
        let line = lines.find(|line| line.contains("127.0.0.1:")).unwrap();
        let port = &line[line.find("127.0.0.1:").unwrap() + "127.0.0.1:".len()..];
        self.port = port.trim().parse().unwrap();
        self.server = Some(server);
    }

    pub fn kill(&mut self) {
        self.server = None;
    }

    /// Tells whether the server still runs.
    fn runs(&mut self) -> bool {
        self.server.as_mut().is_some_and(|server| server.0.try_wait().unwrap().is_none())
    }

    /// Returns the options of a client.
    pub fn options(&self, transport: StoreTransport) -> ConnectOptions {
        ConnectOptions::new(match transport {
            StoreTransport::Mapped => format!("unix:{}/socket", self.folder.display()),
            _ => format!("127.0.0.1:{}", self.port),
        })
    }

    pub fn memory(&self) -> BorrowedFd<'_> {
        self.memory.as_fd()
    }

    /// Has the next server serve other memory.
    pub fn replace_memory(&mut self, memory: OwnedFd) {
        self.memory = memory;
    }

    fn connect(&self, transport: StoreTransport) -> ConnectedStore {
        Store::connect(self.options(transport)).unwrap()
    }

    /// Stops the server, and waits until all of its threads have stopped.
    pub fn stop(&self) {
        let pid = self.pid();
        kill_process(pid, Signal::STOP).unwrap();
        waitid(WaitId::Pid(pid), WaitIdOptions::STOPPED).unwrap();
    }

    pub fn go_on(&self) {
        kill_process(self.pid(), Signal::CONT).unwrap();
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.server.as_ref().expect("a server runs").0)
    }
}

impl Drop for Mortal {
    fn drop(&mut self) {
        self.kill();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Adds 1 to the counter, and returns whether that is said to be done. It also gives objects to and fro.
fn increment(client: &ConnectedStore) -> Result<bool, StoreError> {
    let run = client.transaction(|tx| {
        let count = tx.get(b"count")?.map_or(0, |count| u64::from_ne_bytes(count.try_into().unwrap()));
        if count % 4 == 0 {
            tx.alloc(&count.to_ne_bytes(), None)?;
        }
        tx.put(b"count", &(count + 1).to_ne_bytes())
    });
    match run {
        Ok(()) => Ok(true),
        // The other clients were always faster.
        Err(StoreError::Conflict) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Increments, puts and deletes until `is_over`. Returns the first thing that is wrong.
fn write(
    client: &ConnectedStore,
    own: u32,
    acknowledged: &AtomicU64,
    is_over: impl Fn() -> bool,
) -> Result<(), String> {
    let keys: Vec<Vec<u8>> = (0..BATCH).map(|number| format!("{own} {number}").into_bytes()).collect();
    while !is_over() {
        let done = increment(client).map_err(|error| format!("an increment: {error}"))?;
        acknowledged.fetch_add(u64::from(done), Ordering::Relaxed);
        let puts: Vec<_> = keys.iter().map(|key| client.start_put(key, b"v", None)).collect();
        for put in puts {
            put.wait().map_err(|error| format!("a write: {error}"))?;
        }
        let deletes: Vec<_> = keys.iter().map(|key| client.start_delete(key)).collect();
        for delete in deletes {
            match delete.wait() {
                Ok(true) => {}
                Ok(false) => return Err("a deletion was done twice".to_owned()),
                Err(error) => return Err(format!("a deletion: {error}")),
            }
        }
    }
    Ok(())
}

/// Kills the server again and again while clients write, until one of them finds something wrong. Returns that.
fn storm(kills: u64, fault: Option<PlantedFault>) -> Result<(), String> {
    let mut mortal = Mortal::new(fault);
    let (acknowledged, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
    let clients: Vec<_> = (0..4).map(|own| (own, mortal.connect(transports()[own as usize % 2]))).collect();
    std::thread::scope(|scope| {
        let writers: Vec<_> = clients
            .iter()
            .map(|(own, client)| {
                let (acknowledged, is_over) = (&acknowledged, &is_over);
                scope.spawn(move || {
                    let result = write(client, *own, acknowledged, || is_over.load(Ordering::Relaxed));
                    // One that is wrong is enough.
                    is_over.fetch_or(result.is_err(), Ordering::Relaxed);
                    result
                })
            })
            .collect();
        for round in 0..kills {
            // Between a commit and its reply, and at any moment.
            let is_exact = round % 2 == 0;
            if is_exact {
                mortal.kill();
                mortal.serve(Some(1 + round * 37 % 101));
            }
            let before = acknowledged.load(Ordering::Relaxed);
            let begin = Instant::now();
            while !is_over.load(Ordering::Relaxed)
                && if is_exact {
                    mortal.runs()
                } else {
                    acknowledged.load(Ordering::Relaxed) < before + 2 + round % 7
                }
            {
                if begin.elapsed() > Duration::from_secs(120) {
                    is_over.store(true, Ordering::Relaxed);
                    return Err("nothing is written any more".to_owned());
                }
                std::thread::yield_now();
            }
            mortal.kill();
            mortal.serve(None);
        }
        is_over.store(true, Ordering::Relaxed);
        writers.into_iter().try_for_each(|writer| writer.join().unwrap())
    })?;
    let sum = clients[0].1.get(b"count").unwrap().unwrap();
    let (sum, acknowledged) = (u64::from_ne_bytes(sum.try_into().unwrap()), acknowledged.into_inner());
    if sum != acknowledged {
        return Err(format!("{acknowledged} increments were acknowledged, and {sum} were done"));
    }
    mortal.kill();
    let store = Store::open(mortal.memory.try_clone().unwrap(), StoreOptions::new(MEMORY_BYTES)).unwrap();
    assert_eq!(store.sessions().unwrap().len(), clients.len());
    store.audit().map_err(|error| error.to_string())
}

#[test]
fn a_request_that_is_repeated_twice_is_noticed() {
    assert!(storm(60, Some(PlantedFault::RepeatedRequest)).is_err(), "nothing was done twice");
}

#[test]
fn each_write_happens_once_however_often_the_server_is_killed() {
    assert_eq!(storm(40, None), Ok(()));
}

#[test]
fn a_session_ends_with_its_client_and_goes_on_with_its_successor() {
    for transport in transports() {
        let mut rig = Rig::new();
        let client = rig.connect(transport);
        client.get(b"k").unwrap();
        assert_eq!(rig.store.sessions().unwrap().len(), 0, "who only reads has none");
        client.put(b"k", b"v").unwrap();
        let sessions = rig.store.sessions().unwrap();
        assert_eq!(sessions.len(), 1);
        let address = rig.server().address();
        rig.server = None;
        rig.serve(|mut options| {
            options.address = address;
            options
        });
        client.put(b"k", b"w").unwrap();
        assert_eq!(rig.store.sessions().unwrap(), sessions);
        // It was closed while the client was away: a new write gets another one.
        rig.server = None;
        rig.store.close_session(sessions[0]).unwrap();
        rig.serve(|mut options| {
            options.address = address;
            options
        });
        // An idle client looks at the connection first, so that what it starts is not lost with it.
        std::thread::sleep(limits::GLANCE);
        client.put(b"k", b"x").unwrap();
        assert!(client.delete(b"k").unwrap());
        drop(client);
        let begin = Instant::now();
        while !rig.store.sessions().unwrap().is_empty() {
            assert!(begin.elapsed() < Duration::from_secs(60), "the session stays");
            std::thread::yield_now();
        }
        rig.store.audit().unwrap();
    }
}
