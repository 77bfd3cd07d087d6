//! A server that runs for long, under clients that come and are killed: its memory and its descriptors stay as many.

use std::path::Path;
use std::time::{Duration, Instant};

use caravan_store_server::{StoreAnswer, StoreClient};

use super::cycles::judge;
use super::rig::Rig;
use super::storms::{calm, environment};

const SECONDS: u64 = 600;
/// After each round everything is deleted, judged and counted.
const ROUND: Duration = Duration::from_secs(10);
/// How much more memory the server may take at the end than after its first quarter, which fills its buffers.
const MORE_KIB: u64 = 2048;
/// How much more memory the store may take: a size class gets its first block when the first value of that size comes,
/// and some lists become so long only rarely.
const MORE_BYTES: u64 = 4 << 20;

/// What a server takes while it serves nobody and holds no keys.
#[derive(Clone, Copy, Debug)]
struct Footprint {
    private_kib: u64,
    descriptors: usize,
    threads: u64,
    store_bytes: u64,
}

fn footprint(process: &Path, client: &mut StoreClient) -> Footprint {
    let status = std::fs::read_to_string(process.join("status")).expect("the server's status");
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("a field");
        line.split_whitespace().next().and_then(|word| word.parse().ok()).expect("a number")
    };
    let descriptors = std::fs::read_dir(process.join("fd")).expect("descriptors").count();
    let Ok(StoreAnswer::Bulk(info)) = client.call(&[b"INFO"]) else { panic!("INFO has no answer") };
    let info = String::from_utf8(info).expect("text");
    let used = info.lines().find_map(|line| line.strip_prefix("used_memory:")).expect("used_memory");
    let store_bytes = used.trim().parse().expect("a number");
    Footprint { private_kib: field("RssAnon:"), descriptors, threads: field("Threads:"), store_bytes }
}

/// Waits until the server has seen the ends of all other connections, whose requests it still serves until then.
fn wait_until_alone(client: &mut StoreClient) {
    loop {
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
        footprints.push(footprint(&process, &mut client));
    }
    let (early, last) = (footprints[footprints.len() / 4], footprints[footprints.len() - 1]);
    let minutes = begin.elapsed().as_secs_f64() / 60.0;
    println!(
        "{transactions} transactions and {kills} kills in {minutes:.1} minutes: {early:?}, then {last:?}"
    );
    assert!(last.private_kib <= early.private_kib + MORE_KIB, "the server's memory grows: {footprints:?}");
    assert!(last.store_bytes <= early.store_bytes + MORE_BYTES, "the store's memory grows: {footprints:?}");
    assert_eq!((last.descriptors, last.threads), (early.descriptors, early.threads), "{footprints:?}");
    drop(client);
    assert!(rig.end().1, "the server's memory is damaged, as it says above");
}
