//! A server that runs for long, under clients that come and are killed: its memory and its descriptors stay as many.

use std::path::Path;
use std::time::{Duration, Instant};

use caravan_store_server::{StoreAnswer, StoreClient};

use super::children::LIMIT;
use super::cycles::judge;
use super::rig::Rig;
use super::storms::{calm, environment};

const SECONDS: u64 = 600;
/// After each round everything is deleted, judged and counted.
const ROUND: Duration = Duration::from_secs(10);
/// How much more memory the server may take at the end than after its first quarter, which fills its buffers.
const MORE_KIB: u64 = 2048;

/// What a server takes while it serves nobody and holds no keys.
#[derive(Clone, Copy, Debug)]
struct Footprint {
    private_kib: u64,
    descriptors: usize,
    threads: u64,
    store: StoreFootprint,
}

/// What its store takes.
///
/// A size class keeps its first block once there was a value of that size, and some lists become so long only rarely. So
/// the number of classes with a block may grow, and nothing else may: all that four clients write fits in one block of
/// each class, and a second one means that places are lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct StoreFootprint {
    used_places: u64,
    /// The most blocks of one class.
    class_blocks: u64,
    table_bytes: u64,
}

impl StoreFootprint {
    fn of(info: &str) -> Self {
        let classes: Vec<_> = info.lines().filter(|line| line.starts_with("memory_class_")).collect();
        let part = |line: &str, name: &str| {
            let parts = line.split([':', ',']);
            number(parts.into_iter().find_map(|part| part.strip_prefix(name)))
        };
        Self {
            used_places: classes.iter().map(|line| part(line, "used=")).sum(),
            class_blocks: classes.iter().map(|line| part(line, "blocks=")).max().unwrap_or(0),
            table_bytes: number(info.lines().find_map(|line| line.strip_prefix("memory_table_bytes:"))),
        }
    }
}

fn number(text: Option<&str>) -> u64 {
    text.expect("a field").trim().parse().expect("a number")
}

fn footprint(process: &Path, client: &mut StoreClient) -> Footprint {
    let status = std::fs::read_to_string(process.join("status")).expect("the server's status");
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        number(line.and_then(|line| line.split_whitespace().next()))
    };
    let descriptors = std::fs::read_dir(process.join("fd")).expect("descriptors").count();
    let Ok(StoreAnswer::Bulk(info)) = client.call(&[b"INFO"]) else { panic!("INFO has no answer") };
    let store = StoreFootprint::of(&String::from_utf8(info).expect("text"));
    Footprint { private_kib: field("RssAnon:"), descriptors, threads: field("Threads:"), store }
}

/// Waits until the server has seen the ends of all other connections, whose requests it still serves until then.
fn wait_until_alone(client: &mut StoreClient) {
    let begin = Instant::now();
    loop {
        assert!(begin.elapsed() < LIMIT, "the server keeps connections that have ended");
        match client.call(&[b"CLIENT", b"LIST"]) {
            Ok(StoreAnswer::Bulk(list)) if list.iter().filter(|byte| **byte == b'\n').count() <= 1 => return,
            Ok(StoreAnswer::Bulk(_)) => std::thread::sleep(Duration::from_millis(1)),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
#[ignore = "ten minutes: run by make test-long"]
fn nothing_grows_in_a_server_that_runs_for_long() {
    let seconds = environment("CARAVAN_SOAK_SECONDS").unwrap_or(SECONDS);
    let mut rig = Rig::new(calm());
    let (process, socket) = rig.server();
    let mut client = StoreClient::connect(&socket).expect("connected");
    let (begin, mut transactions, mut kills) = (Instant::now(), 0, 0);
    let mut footprints = Vec::new();
    while begin.elapsed() < Duration::from_secs(seconds) {
        (0..4).for_each(|_| rig.start_client());
        let round = Instant::now();
        while round.elapsed() < ROUND.min(Duration::from_secs(seconds / 8)) {
            std::thread::sleep(Duration::from_millis(100));
            rig.kill_client();
            kills += 1;
        }
        let acts = rig.kill_clients();
        wait_until_alone(&mut client);
        if let Err(violation) = judge(&acts) {
            panic!("{:?}: {}", violation.rule, violation.text);
        }
        transactions += acts.len();
        assert_eq!(client.call(&[b"FLUSHALL"]).expect("an answer"), StoreAnswer::Simple(b"OK".to_vec()));
        let footprint = footprint(&process, &mut client);
        assert_eq!(footprint.store.used_places, 0, "places are in use and there is no key: {footprint:?}");
        footprints.push(footprint);
    }
    let (early, last) = (footprints[footprints.len() / 4], footprints[footprints.len() - 1]);
    let minutes = begin.elapsed().as_secs_f64() / 60.0;
    println!(
        "{transactions} transactions and {kills} kills in {minutes:.1} minutes: {early:?}, then {last:?}"
    );
    assert!(last.private_kib <= early.private_kib + MORE_KIB, "the server's memory grows: {footprints:?}");
    assert_eq!(last.store, early.store, "the store's memory grows: {footprints:?}");
    assert_eq!((last.descriptors, last.threads), (early.descriptors, early.threads), "{footprints:?}");
    drop(client);
    assert!(rig.end().1, "the server's memory is damaged, as it says above");
}
