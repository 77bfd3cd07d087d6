//! What an RDMA peer cannot do, whatever it posts; and which resources are left after connections have ended.
//!
//! The hostile side changes what the honest side said about its memory, so that its own endpoint lets it post
//! anything.
#![forbid(unsafe_code)]

mod common;

use std::time::{Duration, Instant};

use caravan_fabric::contract::{Endpoint, Event, Local, Operation};
use caravan_fabric::verbs::{self, Obstacle};
use caravan_fabric::{Error, Exposure, Link, RING_BYTES_MIN};
use common::PATIENCE;
use common::forge::{Exposed, change_answer};
use common::process::possessions;

const ARENA_BYTES: u64 = 64 << 10;
/// The first byte that the victim exposes, on a page boundary.
const START: u64 = 16 << 10;
const BYTES: u64 = 16 << 10;
/// The time after which a siw connection whose peer has ignored the window makes no more progress.
const SIW_STUCK: Duration = Duration::from_secs(3);

fn is_siw() -> bool {
    std::env::var("VERBS_KIND").as_deref() == Ok("siw")
}

fn narrow() -> Exposure {
    Exposure { arena_bytes: ARENA_BYTES, exposed: START..START + BYTES, peer_reads: false, peer_swaps: false }
}

/// Makes a victim that exposes only `narrow`, and a peer for which `change` alters what the victim said.
fn victim_and_attacker(change: impl FnOnce(&mut Exposed)) -> [Box<dyn Endpoint>; 2] {
    let (attacking, request) = verbs::connect(&verbs::offer().unwrap(), &narrow()).unwrap();
    let (accepting, mut answer) = verbs::accept(&request, &narrow()).unwrap();
    change_answer(&mut answer, change);
    std::thread::scope(|scope| {
        let victim = scope.spawn(|| accepting.finish(&[], PATIENCE).unwrap());
        let attacker = attacking.finish(&answer, PATIENCE).unwrap();
        [victim.join().unwrap(), attacker]
    })
}

/// Lets the attacker believe that all of the victim's arena is exposed.
fn everything(exposed: &mut Exposed) {
    (exposed.start, exposed.bytes) = (0, ARENA_BYTES);
}

/// Polls until the endpoint ends.
fn end(endpoint: &mut dyn Endpoint) -> Error {
    let (begun, mut events) = (Instant::now(), Vec::new());
    loop {
        if let Err(error) = endpoint.poll(&mut events, 16).and_then(|_| endpoint.check_peer()) {
            return error;
        }
        assert!(begun.elapsed() < PATIENCE, "it goes on after {events:?}");
        events.clear();
    }
}

fn attack(name: &str, change: impl FnOnce(&mut Exposed), operation: Operation) {
    let [mut victim, mut attacker] = victim_and_attacker(change);
    let before = vec![0x11; ARENA_BYTES as usize];
    victim.arena().copy_in(0, &before);
    attacker.arena().copy_in(0, &vec![0xEE; ARENA_BYTES as usize]);
    attacker.post(operation).unwrap();
    attacker.doorbell().unwrap();
    attacker.flush().unwrap();
    let (ended, theirs) = (end(&mut *victim), end(&mut *attacker));
    println!("{name}: {ended} / {theirs}");
    // siw ends the connection, and reports the cause later or, for a key that does not exist, to the peer alone
    // (`siw_proc_write`, Linux 6.1).
    let untold = is_siw() && matches!(ended, Error::PeerGone(..));
    assert!(matches!(ended, Error::Protocol(..)) || untold, "{name}: {ended:?}");
    let mut after = vec![0; ARENA_BYTES as usize];
    victim.arena().copy_out(0, &mut after);
    assert!(after == before, "{name}: the victim's memory has changed");
    attacker.arena().copy_out(0, &mut after);
    assert!(!after.contains(&0x11), "{name}: the victim's memory was read");
}

fn write(to: u64, bytes: u32) -> Operation {
    Operation::Write { from: Local { offset: 0, bytes }, to, immediate: None, context: 0 }
}

#[test]
fn what_is_not_exposed_is_out_of_reach() {
    let read = |from| Operation::Read { from, into: Local { offset: 0, bytes: 64 }, context: 0 };
    attack("a write before", everything, write(START - 8, 8));
    attack("a write behind", everything, write(START + BYTES, 1));
    attack("a write across the end", everything, write(START + BYTES - 4096, 4104));
    attack("a read before", everything, read(START - 64));
    // siw lets a peer read where it may write (`siw_qp_sq_proc_tx` asks for no permission, Linux 6.1): on
    // a link, it reads back its own bytes.
    if !is_siw() {
        attack("a read", everything, read(START));
    }
    let elsewhere = |exposed: &mut Exposed| exposed.address += 1 << 30;
    attack("a write to anywhere", elsewhere, write(START, 8));
    attack("a guessed key", |exposed| exposed.key = exposed.key.wrapping_add(0x100), write(START, 8));
}

/// One connection's key gives no access through another connection, not even in the same process.
#[test]
fn a_key_is_of_one_connection() {
    let mut theirs = None;
    let _other = victim_and_attacker(|exposed| theirs = Some(*exposed));
    let other_target = |exposed: &mut Exposed| *exposed = theirs.unwrap();
    attack("the key of another connection", other_target, write(START, 8));
}

/// The attacker sends more immediates than it may: the device holds them back, and each arrives.
#[test]
fn a_window_that_is_ignored_is_survived() {
    const COUNT: u32 = 2000;
    let [mut victim, mut attacker] = {
        let (attacking, request) = verbs::connect(&verbs::offer().unwrap(), &narrow()).unwrap();
        let (accepting, mut answer) = verbs::accept(&request, &narrow()).unwrap();
        common::forge::change_window(&mut answer, u32::MAX);
        std::thread::scope(|scope| {
            let victim = scope.spawn(|| accepting.finish(&[], PATIENCE).unwrap());
            let attacker = attacking.finish(&answer, PATIENCE).unwrap();
            [victim.join().unwrap(), attacker]
        })
    };
    let (mut sent, mut events, mut came) = (0, Vec::new(), 0);
    let mut moved = Instant::now();
    let mut ended = None;
    while came < COUNT && ended.is_none() {
        // The victim takes none before the device's queue is full.
        while sent < COUNT {
            let nothing = Local { offset: 0, bytes: 0 };
            let tell = Operation::Write { from: nothing, to: START, immediate: Some(sent), context: 0 };
            match attacker.post(tell) {
                Ok(()) => sent += 1,
                Err(Error::Full(_)) => break,
                Err(error) => panic!("{error}"),
            }
        }
        // The victim may have ended the connection for it.
        let _ = attacker.doorbell();
        if let Err(error) = victim.poll(&mut events, 16) {
            ended = Some(error);
        }
        for event in events.drain(..) {
            assert_eq!(event, Event::Immediate(came));
            came += 1;
            moved = Instant::now();
        }
        let _ = attacker.poll(&mut Vec::new(), 64);
        // iWARP cannot wait: a message without a receive ends the connection, or stops siw from reading it.
        if is_siw() && moved.elapsed() > SIW_STUCK {
            break;
        }
        assert!(moved.elapsed() < PATIENCE, "{came} of {sent} came");
    }
    println!("{came} came, then {ended:?}");
    assert!(came == COUNT || is_siw(), "{ended:?}");
}

#[test]
fn a_key_ends_with_its_connection() {
    let [victim, mut attacker] = victim_and_attacker(|_| {});
    drop(victim);
    // Another connection may use the exposed memory by now.
    let [mut next, _friend] = victim_and_attacker(|_| {});
    if attacker.post(write(START, 64)).is_ok() && attacker.doorbell().is_ok() {
        let _ = attacker.flush();
    }
    let error = end(&mut *attacker);
    assert!(matches!(error, Error::PeerGone(..)), "{error:?}");
    let mut bytes = vec![0; ARENA_BYTES as usize];
    next.arena().copy_out(0, &mut bytes);
    assert!(bytes.iter().all(|&byte| byte == 0));
    assert!(next.poll(&mut Vec::new(), 1).is_ok());
}

/// Returns the objects that the devices hold for this machine, as `rdma resource` counts them, without those
/// of the kernel itself.
fn at_the_devices() -> String {
    let shown = std::process::Command::new("rdma").args(["resource", "show"]).output().unwrap();
    String::from_utf8(shown.stdout).unwrap()
}

fn resident_pages() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split_whitespace().nth(1).unwrap().parse().unwrap()
}

fn connected(exposure: &Exposure) -> [Box<dyn Endpoint>; 2] {
    common::pair::verbs_ends(exposure)
}

/// Connections are made and ended, and as many fail at each stage.
#[test]
fn connecting_and_failing_leaves_nothing() {
    let exposure = Link::exposure(RING_BYTES_MIN).unwrap();
    let rounds = |count: u32| {
        for round in 0..count {
            if round % 10 == 0 {
                println!("round {round} of {count}");
            }
            drop(connected(&exposure));
            let offer = verbs::offer().unwrap();
            // The peer disappears before its answer, or after it.
            drop(verbs::connect(&offer, &exposure).unwrap());
            let (asking, request) = verbs::connect(&offer, &exposure).unwrap();
            let (accepting, answer) = verbs::accept(&request, &exposure).unwrap();
            drop(asking);
            let error = accepting.finish(&[], Duration::from_millis(1)).unwrap_err();
            assert!(matches!(Obstacle::of(&error), Some(Obstacle::NoAnswer { .. })), "{error:?}");
            let (asking, request) = verbs::connect(&offer, &exposure).unwrap();
            drop(verbs::accept(&request, &exposure).unwrap());
            assert!(asking.finish(&answer, Duration::from_millis(1)).is_err());
        }
    };
    // The library keeps some objects of the first connections.
    rounds(10);
    let (before, pages) = ((possessions(), at_the_devices()), resident_pages());
    rounds(100);
    assert_eq!((possessions(), at_the_devices()), before, "descriptors, files; objects of the devices");
    let grown = resident_pages().saturating_sub(pages);
    assert!(grown < 256, "{grown} pages more than before");
}
