//! Processes of a test, this program again: a client that a fault is planted in, or that is killed; a server that is
//! killed.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use caravan_store::faults::{PlantedFault, plant};
use caravan_store::{Store, StoreError, StoreOptions, StoreTransport};
use caravan_store_server::{ServerOptions, StoreServer, local_address};

use super::hunter;
use super::repeats;
use super::rig::{Rig, far, transports};
use crate::cluster::mapped;

const ROLE: &str = "CARAVAN_CONNECTED_TEST_ROLE";
const ADDRESS: &str = "CARAVAN_CONNECTED_TEST_ADDRESS";
const FAULT: &str = "CARAVAN_CONNECTED_TEST_FAULT";
/// The status of a process whose checks found something wrong.
pub const CAUGHT: i32 = 42;

/// What a role does, with the address of the parent's store, and whether a fault is planted.
type Role = fn(&str, bool) -> Result<(), String>;

const ROLES: &[(&str, Role)] = &[
    ("hunter", hunter::read),
    ("writer", write),
    ("server", serve),
    ("successor", repeats::serve),
    ("mapped", mapped::run),
];

/// The faults that a process can be told to plant.
const FAULTS: &[PlantedFault] =
    &[PlantedFault::TornRead, PlantedFault::RepeatedRequest, PlantedFault::UnseenLease];

/// A started process, killed when it is dropped.
pub struct Running(pub Child);

impl Running {
    pub fn status(&mut self) -> i32 {
        self.0.wait().unwrap().code().expect("the process was killed")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub fn start(role: &str, address: &str, fault: Option<PlantedFault>) -> Running {
    start_with(role, address, fault, Stdio::piped())
}

/// Starts a process with this standard input.
pub fn start_with(role: &str, address: &str, fault: Option<PlantedFault>, input: Stdio) -> Running {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--ignored", "--exact", "connected::children::child", "--quiet", "--nocapture"])
        .env(ROLE, role)
        .env(ADDRESS, address)
        .stdin(input)
        .stdout(Stdio::piped());
    if let Some(fault) = fault {
        command.env(FAULT, format!("{fault:?}"));
    }
    Running(command.spawn().unwrap())
}

#[test]
#[ignore = "is run by other tests, as a process of its own"]
fn child() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let address = std::env::var(ADDRESS).unwrap();
    let fault = std::env::var(FAULT).ok();
    let has_fault = fault.is_some();
    if let Some(name) = fault {
        plant(*FAULTS.iter().find(|known| format!("{known:?}") == name).unwrap());
    }
    let (_, run) = ROLES.iter().find(|(name, _)| *name == role).unwrap();
    if let Err(text) = run(&address, has_fault) {
        eprintln!("{role}: {text}");
        std::process::exit(CAUGHT);
    }
}

/// Writes pairs, deletes and allocates, until it is killed.
fn write(address: &str, _: bool) -> Result<(), String> {
    let client = Store::connect(address).map_err(|error| error.to_string())?;
    let mut objects = Vec::new();
    for number in 0_u64.. {
        let run = client.transaction(|tx| {
            tx.put(b"debit", &number.to_ne_bytes())?;
            tx.put(b"credit", &number.to_ne_bytes())?;
            tx.put(&(number % 500).to_ne_bytes(), &vec![1; (number % 3000) as usize])?;
            if number % 3 == 0 {
                tx.delete(&(number / 2 % 500).to_ne_bytes())?;
            }
            tx.alloc(&[7; 100], None)
        });
        objects.push(run.map_err(|error: StoreError| error.to_string())?);
        if objects.len() > 20 {
            let address = objects.remove(0);
            client.transaction(|tx| tx.free(address)).map_err(|error: StoreError| error.to_string())?;
        }
    }
    Ok(())
}

#[test]
fn clients_that_are_killed_anywhere_leave_nothing_behind() {
    let rig = Rig::new();
    for round in 0..12 {
        // In a guest for RDMA all of them: clients that map the memory are killed elsewhere.
        let transport = if far() == StoreTransport::Rdma { far() } else { transports()[round % 2] };
        let before = rig.store.counts().commits;
        let writer = start("writer", &rig.address(transport), None);
        // It is in the middle of something from here on.
        let begin = Instant::now();
        while rig.store.counts().commits < before + 20 + round as u64 {
            assert!(begin.elapsed() < Duration::from_secs(60), "the writer does not write");
            std::thread::yield_now();
        }
        drop(writer);
        // The server notices, and gives back what the client had allocated and not committed.
        let client = rig.connect(StoreTransport::Mapped);
        let begin = Instant::now();
        while let Err(error) = rig.store.audit() {
            assert!(begin.elapsed() < Duration::from_secs(60), "{error}");
            std::thread::yield_now();
        }
        // No lock is left: each key can be written at once.
        let pair =
            client.transaction(|tx| Ok::<_, StoreError>([tx.get(b"debit")?, tx.get(b"credit")?])).unwrap();
        assert!(pair[0].is_some() && pair[0] == pair[1]);
        for key in 0..500_u64 {
            client.delete(&key.to_ne_bytes()).unwrap();
        }
    }
}

/// Serves at a UNIX socket in the folder that is the address, until it is killed or its parent ends.
fn serve(folder: &str, _: bool) -> Result<(), String> {
    let store = Store::embedded(StoreOptions::new(16 << 20)).map_err(|error| error.to_string())?;
    let mut options = ServerOptions::new("test", std::path::Path::new(folder).join("socket"));
    options.address = Some(local_address(0));
    let server = StoreServer::start(Arc::new(store), options, |text| eprintln!("{text}"));
    let server = server.map_err(|error| error.to_string())?;
    println!("{}", server.address().ok_or("it does not listen on TCP")?);
    std::io::stdin().read_to_end(&mut Vec::new()).map_err(|error| error.to_string())?;
    Ok(())
}

#[test]
fn a_server_that_is_killed_leaves_its_clients_an_error_in_time() {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    for transport in transports() {
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("caravan-killed-{}-{number}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        let begin = || {
            let mut server = start("server", folder.to_str().unwrap(), None);
            let mut lines = BufReader::new(server.0.stdout.take().unwrap()).lines().map(Result::unwrap);
            // The test harness of the child says something, too.
            let tcp = lines.find(|line| line.contains("127.0.0.1:")).unwrap();
            let tcp = tcp[tcp.find("127.0.0.1:").unwrap()..].to_owned();
            (server, tcp)
        };
        let (server, tcp) = begin();
        let address = match transport {
            StoreTransport::Mapped => format!("unix:{}/socket", folder.display()),
            _ => tcp,
        };
        let client = Store::connect(&*address).unwrap();
        client.put(b"k", b"v").unwrap();
        let started: Vec<_> = (0..50_u32).map(|n| client.start_put(&n.to_ne_bytes(), b"v", None)).collect();
        client.flush();
        drop(server);
        // What was under way has an outcome, one way or the other.
        for put in started {
            let result = put.wait();
            assert!(matches!(result, Ok(()) | Err(StoreError::Disconnected)), "{result:?}");
        }
        // A mapped reader goes on; the others learn that nobody is there.
        match transport {
            StoreTransport::Mapped => assert_eq!(client.get(b"k").unwrap().as_deref(), Some(&b"v"[..])),
            _ => assert!(client.get(b"k").is_err()),
        }
        assert!(matches!(
            client.put(b"k", b"w"),
            Err(StoreError::Unreachable { .. } | StoreError::Disconnected)
        ));
        // Another store at the same address is not taken for the first one.
        if transport == StoreTransport::Mapped {
            let (_server, _) = begin();
            let result = client.put(b"k", b"w");
            assert!(matches!(result, Err(StoreError::Replaced)), "{result:?}");
        }
        std::fs::remove_dir_all(&folder).unwrap();
    }
}

#[test]
fn a_client_connects_again_to_the_same_store() {
    for transport in transports() {
        let mut rig = Rig::new();
        let client = rig.connect(transport);
        client.put(b"k", b"v").unwrap();
        let address = rig.server().address().unwrap();
        rig.server = None;
        rig.serve(|mut options| {
            options.address = Some(address);
            options
        });
        assert_eq!(client.get(b"k").unwrap().as_deref(), Some(&b"v"[..]), "{transport:?}");
        client.put(b"k", b"w").unwrap();
        assert_eq!(client.get(b"k").unwrap().as_deref(), Some(&b"w"[..]));
    }
}
