//! A part whose copy is silent: its commits wait, and nobody else does.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use caravan_cluster::PartId;
use caravan_store::{ConnectOptions, ConnectedStore, CopyWriter, Store, StoreError};
use caravan_store_server::{StoreAnswer, StoreClient};

use super::rig::{ClusterRig, ask};

/// The part whose copy is silent, and one without a copy.
const SILENT: PartId = PartId(0);
const WELL: PartId = PartId(1);
/// How long the copy is silent at most: the lease of a store of real servers. A client of the other part that is held up waits so long.
const SILENCE: Duration = Duration::from_secs(30);
/// How long a client of the other part may wait for an answer.
const ANSWER_MAX: Duration = Duration::from_secs(5);
/// How long the clients whose commits wait are patient.
const PATIENCE: Duration = Duration::from_secs(60);
/// What each client of the other part asks.
const ROUNDS: usize = 100;
/// Clients of each kind whose commits wait: more than there are threads at first.
const WAITING: usize = 4;

/// What a copy does, as its owner sees it.
#[derive(Debug, Default)]
struct CopySilence {
    is_silent: AtomicBool,
    /// How often its owner has found it silent.
    found: AtomicU64,
}

/// Writes to a copy that may be silent. What is written goes nowhere.
#[derive(Debug)]
struct SilentWriter(Arc<CopySilence>);

impl CopyWriter for SilentWriter {
    fn ring_bytes(&self) -> u64 {
        1 << 20
    }

    fn write(&mut self, _place: u64, _bytes: &[u8]) -> Result<(), StoreError> {
        Ok(())
    }

    fn has_arrived(&mut self, limit: Duration) -> Result<bool, StoreError> {
        if !self.0.is_silent.load(Ordering::SeqCst) {
            return Ok(true);
        }
        self.0.found.fetch_add(1, Ordering::SeqCst);
        std::thread::sleep(limit);
        Ok(false)
    }

    fn read(&mut self, _place: u64, bytes: &mut [u8]) -> Result<(), StoreError> {
        bytes.fill(0);
        Ok(())
    }
}

/// One server with one thread of each kind and both parts.
fn rig() -> (ClusterRig, Arc<CopySilence>) {
    let rig = ClusterRig::with(1, 2, |options| options.workers = Some(1));
    let parts = &rig.servers[0].parts;
    let store = parts.remove(SILENT).expect("it was served");
    let silence = Arc::new(CopySilence::default());
    store.add_copy(Box::new(SilentWriter(Arc::clone(&silence)))).expect("a copy");
    parts.add(SILENT, store).expect("served again");
    (rig, silence)
}

fn connected(rig: &ClusterRig, part: PartId) -> ConnectedStore {
    Store::connect(ConnectOptions::new(rig.servers[0].address()).part(part.0).answer_wait(PATIENCE))
        .expect("connected")
}

fn set(client: &mut StoreClient, key: &str, value: &str) {
    assert_eq!(ask(client, &format!("SET {key} {value}")), "OK");
}

/// Returns the times of `ROUNDS` operations, sorted.
fn times(mut operation: impl FnMut(usize)) -> Vec<Duration> {
    let timed = |round| {
        let begin = Instant::now();
        operation(round);
        begin.elapsed()
    };
    let mut times: Vec<Duration> = (0..ROUNDS).map(timed).collect();
    times.sort();
    times
}

/// Runs `others` while commits of clients of both kinds wait for the silent copy, and checks that they happen afterwards.
fn while_commits_wait(others: impl FnOnce(&ClusterRig)) {
    let (rig, silence) = rig();
    let key = |client: usize| rig.key_of(SILENT, &format!("waiting{client}."));
    let links: Vec<_> = (0..WAITING).map(|_| connected(&rig, SILENT)).collect();
    let clients: Vec<_> = (0..WAITING).map(|_| rig.servers[0].client()).collect();
    std::thread::scope(|scope| {
        silence.is_silent.store(true, Ordering::SeqCst);
        let (silence, key) = (&silence, &key);
        // If others are held up, this is the end of it.
        let (over, is_over) = std::sync::mpsc::channel::<()>();
        scope.spawn(move || {
            let _ = is_over.recv_timeout(SILENCE);
            silence.is_silent.store(false, Ordering::SeqCst);
        });
        for (number, link) in links.iter().enumerate() {
            scope.spawn(move || link.put(key(number).as_bytes(), b"link").expect("it happens at last"));
        }
        for (number, mut client) in clients.into_iter().enumerate() {
            scope.spawn(move || set(&mut client, &key(WAITING + number), "resp"));
        }
        let deadline = Instant::now() + SILENCE;
        while silence.found.load(Ordering::SeqCst) == 0 {
            assert!(Instant::now() < deadline, "no commit waits");
            std::thread::sleep(Duration::from_millis(1));
        }
        others(&rig);
        drop(over);
    });
    let mut client = rig.servers[0].client();
    let values: Vec<_> =
        (0..2 * WAITING).map(|number| ask(&mut client, &format!("GET {}", key(number)))).collect();
    assert_eq!(values, [["link"; WAITING], ["resp"; WAITING]].concat());
}

fn check(what: &str, times: &[Duration]) {
    let at = |percent: usize| times[(times.len() * percent).div_ceil(100) - 1];
    println!("{what}: p50 {:?}, p99 {:?}, longest {:?}", at(50), at(99), at(100));
    assert!(at(100) < ANSWER_MAX, "{what} was held up: {:?}", at(100));
}

#[test]
fn a_link_to_another_part_is_served() {
    while_commits_wait(|rig| {
        let link = connected(rig, WELL);
        let key = rig.key_of(WELL, "well");
        check(
            "commits",
            &times(|round| link.put(key.as_bytes(), round.to_string().as_bytes()).expect("done")),
        );
        check("reads", &times(|_| assert!(link.get(key.as_bytes()).expect("done").is_some())));
    });
}

#[test]
fn a_client_of_the_redis_protocol_on_another_part_is_served() {
    while_commits_wait(|rig| {
        let mut client = rig.servers[0].client();
        let key = rig.key_of(WELL, "well");
        check("commits", &times(|round| set(&mut client, &key, &round.to_string())));
        check("reads", &times(|_| assert_ne!(ask(&mut client, &format!("GET {key}")), "null")));
        let all = |client: &mut StoreClient| {
            set(client, &key, "queued");
            assert_eq!(ask(client, "MULTI"), "OK");
            assert_eq!(ask(client, &format!("GET {key}")), "QUEUED");
            let answer = client.call(&[b"EXEC"]).expect("an answer");
            assert_eq!(answer, StoreAnswer::Array(vec![StoreAnswer::Bulk(b"queued".to_vec())]));
        };
        check("transactions", &times(|_| all(&mut client)));
    });
}

#[test]
fn what_no_commit_has_locked_is_read_in_the_silent_part_too() {
    while_commits_wait(|rig| {
        let key = rig.key_of(SILENT, "nobody");
        let mut client = rig.servers[0].client();
        check("reads", &times(|_| assert_eq!(ask(&mut client, &format!("GET {key}")), "null")));
        let link = connected(rig, SILENT);
        check("reads over a link", &times(|_| assert_eq!(link.get(key.as_bytes()).expect("done"), None)));
    });
}
