//! RDMA devices of two hosts: streams, and every way in which a link ends.
//!
//! Both hosts run this program: the second one runs the test `agent`, the first one all others.
#![forbid(unsafe_code)]

mod common;

use std::net::TcpStream;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use caravan_fabric::sim::Random;
use caravan_fabric::verbs::Obstacle;
use caravan_fabric::{Error, RING_BYTES_MIN};
use common::hosts::{Meeting, Remote, agent as serve, hear, here, role, say, there};
use common::party::{Party, Turn};
use common::{PATIENCE, readable, readable_any};
use std::os::fd::AsFd;

/// How long a survivor that checks now and then may take to learn of its peer's silent end.
const NOTICE: Duration = Duration::from_secs(90);
/// The time between two checks.
const ASK_EVERY: Duration = Duration::from_millis(200);
/// The length of a stream that never ends.
const ENDLESS: u64 = u64::MAX / 4;
/// Held by each test while it runs: there is only one cable to pull.
static ALONE: Mutex<()> = Mutex::new(());

fn is_siw() -> bool {
    std::env::var("VERBS_KIND").as_deref() == Ok("siw")
}

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The parameters of a test, which both hosts know.
#[derive(Clone, Copy, Debug)]
struct Plan {
    seed: u64,
    ring_bytes: u64,
    totals: [u64; 2],
}

impl Plan {
    fn finite(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let ring_bytes = RING_BYTES_MIN << random.below(6);
        let totals = [0, 1].map(|_| random.below(20 * ring_bytes));
        Self { seed, ring_bytes, totals }
    }

    fn endless(seed: u64) -> Self {
        Self { totals: [ENDLESS; 2], ..Self::finite(seed) }
    }

    fn meeting(&self, number: usize) -> Meeting {
        let initiates = (self.seed % 2 == 0) == (number == 0);
        Meeting { ring_bytes: self.ring_bytes, initiates, v6: self.seed % 4 > 1, limit: PATIENCE }
    }

    fn party(&self, number: usize, control: &mut TcpStream) -> Party {
        let link = self.meeting(number).link(control).unwrap();
        let mut party =
            Party::new(link, self.seed, number as u64, self.totals[number], self.totals[1 - number]);
        party.never_sleeps = self.seed % 3 == number as u64;
        party
    }

    /// Sleeps for a moment if this is the slow side.
    fn pause(&self, number: usize) {
        if self.seed % 5 == number as u64 {
            std::thread::sleep(Duration::from_micros(500));
        }
    }

    fn role(&self, name: &str) -> String {
        format!("{name} {}", self.seed)
    }
}

#[test]
#[ignore = "the second host's part"]
fn agent() {
    serve();
}

/// A process on the second host. It does nothing when it runs as a test of its own.
#[test]
#[ignore = "the second process of the other tests"]
fn child() {
    let Some((role, mut control)) = role() else { return };
    let (name, seed) = role.split_once(' ').unwrap();
    let seed = seed.parse().unwrap();
    match name {
        "finite" => {
            let plan = Plan::finite(seed);
            let mut party = plan.party(1, &mut control);
            while !party.finished {
                step(&mut party, &plan, 1).unwrap();
            }
            // The peer's device has everything, so this side may end at once.
            drop(party);
            say(&mut control, b"done").unwrap();
        }
        "endless" => {
            let plan = Plan::endless(seed);
            let mut party = plan.party(1, &mut control);
            while step(&mut party, &plan, 1).is_ok() {}
        }
        "silent" => {
            let _link = Plan::finite(seed).meeting(1).link(&mut control).unwrap();
            let _ = hear(&mut control);
        }
        "unreachable" => {
            let meeting = Meeting { limit: Duration::from_secs(seed), ..Plan::finite(seed).meeting(1) };
            let error = meeting.link(&mut control).expect_err("it was reached");
            say(&mut control, error.to_string().as_bytes()).unwrap();
        }
        _ => panic!("there is no role {name}"),
    }
}

/// Takes one turn, and sleeps after it if there is nothing to do.
fn step(party: &mut Party, plan: &Plan, number: usize) -> Result<(), Error> {
    plan.pause(number);
    if party.turn()? == Turn::Asleep && !party.finished {
        let _ = readable(party.link.wait_fd().unwrap(), ASK_EVERY);
        // A later turn reports the error, once everything that the peer sent has been taken.
        let _ = party.link.check_peer();
    }
    Ok(())
}

#[test]
fn streams_between_hosts() {
    let _alone = alone();
    for seed in 0..12 {
        println!("stream {seed}");
        let plan = Plan::finite(seed);
        let mut other = Remote::start(&plan.role("finite"));
        let mut party = plan.party(0, &mut other.control);
        let begun = Instant::now();
        while !party.finished {
            match step(&mut party, &plan, 0) {
                Err(Error::PeerGone(..)) if party.has_all() => break,
                result => result.unwrap_or_else(|error| panic!("seed {seed}: {error}; {party:?}")),
            }
            assert!(begun.elapsed() < 3 * PATIENCE, "seed {seed}: no end is in sight: {party:?}");
        }
        assert!(party.has_all());
        other.succeeded();
    }
}

/// Both sides sleep on their descriptors for most of the time, in a poll set with the control channel.
#[test]
fn a_sleeper_is_woken() {
    let _alone = alone();
    let plan = Plan::finite(4);
    let mut other = Remote::start(&plan.role("finite"));
    let mut party = plan.party(0, &mut other.control);
    while !party.finished {
        match party.turn() {
            Ok(Turn::Asleep) => {
                let bell = party.link.wait_fd().unwrap();
                assert!(readable_any([bell, other.control.as_fd()], PATIENCE), "no wake-up came: {party:?}");
            }
            Ok(Turn::Active) => {}
            Err(Error::PeerGone(..)) if party.has_all() => break,
            Err(error) => panic!("{error}"),
        }
    }
    assert!(party.has_all());
    other.succeeded();
}

/// Takes turns, and checks the peer now and then, until the error comes.
fn survive(party: &mut Party, limit: Duration) -> Option<(Error, Duration)> {
    let (begun, mut asked) = (Instant::now(), Instant::now());
    while begun.elapsed() < limit {
        let turn = party.turn().and_then(|turn| {
            if asked.elapsed() >= ASK_EVERY {
                asked = Instant::now();
                party.link.check_peer()?;
            }
            Ok(turn)
        });
        match turn {
            Ok(Turn::Asleep) => drop(readable(party.link.wait_fd().unwrap(), ASK_EVERY)),
            Ok(Turn::Active) => {}
            Err(error) => return Some((error, begun.elapsed())),
        }
    }
    None
}

/// Starts an endless stream, or an idle link.
fn under_way(seed: u64, idle: bool) -> (Remote, Party) {
    let plan = if idle { Plan { totals: [0; 2], ..Plan::finite(seed) } } else { Plan::endless(seed) };
    let mut other = Remote::start(&plan.role(if idle { "silent" } else { "endless" }));
    let mut party = plan.party(0, &mut other.control);
    while !idle && party.received < 4 * plan.ring_bytes {
        step(&mut party, &plan, 0).unwrap();
    }
    (other, party)
}

fn ends(what: &str, idle: bool, party: &mut Party) {
    let survived = survive(party, NOTICE);
    let (error, after) = survived.unwrap_or_else(|| panic!("{what}, idle {idle}: nothing tells of it"));
    println!("{what}, idle {idle}: after {after:.1?}: {error}");
    assert!(matches!(error, Error::PeerGone(..) | Error::Device { .. }), "{what}: {error:?}");
    assert!(party.link.check_peer().is_err());
}

#[test]
fn a_killed_peer_is_noticed() {
    let _alone = alone();
    for idle in [false, true] {
        let (other, mut party) = under_way(6, idle);
        other.signal("KILL");
        ends("killed", idle, &mut party);
        // A new process at the same address is another peer.
        let (_again, mut anew) = under_way(7, false);
        let before = anew.received;
        let plan = Plan::endless(7);
        while anew.received < before + 2 * plan.ring_bytes {
            step(&mut anew, &plan, 0).unwrap();
        }
        assert!(party.link.check_peer().is_err());
    }
}

#[test]
fn a_stopped_peer_is_not_dead() {
    let _alone = alone();
    let plan = Plan::endless(8);
    let (other, mut party) = under_way(8, false);
    other.signal("STOP");
    let survived = survive(&mut party, Duration::from_secs(8));
    assert!(survived.is_none(), "{survived:?}");
    let before = party.received;
    other.signal("CONT");
    while party.received < before + 4 * plan.ring_bytes {
        step(&mut party, &plan, 0).unwrap();
    }
}

/// The other host disappears, as after a power cut: no packet comes from it or reaches it.
#[test]
fn silence_is_noticed() {
    let _alone = alone();
    let [go, back] = ["go", "back"].map(|name| format!("{}/{name}", std::env::var("VERBS_SHARED").unwrap()));
    for idle in [false, true] {
        let (_other, mut party) = under_way(9, idle);
        let chains = ["input", "output"]
            .map(|hook| format!("chain {hook} {{ type filter hook {hook} priority 0; drop; }};"));
        let cut = format!("nft 'table inet cut {{ {} }}'", chains.concat());
        let until = format!("until [ -e {back} ]; do sleep 0.1; done; rm {back}; nft delete table inet cut");
        // The agent's answer gets through before that.
        assert!(there(&format!(
            "(until [ -e {go} ]; do sleep 0.1; done; rm {go}; {cut}; {until}) >/dev/null 2>&1 </dev/null &"
        )));
        std::fs::write(&go, "").unwrap();
        if is_siw() {
            // Only TCP notices, after a quarter of an hour.
            let survived = survive(&mut party, Duration::from_secs(3));
            assert!(survived.is_none(), "{survived:?}");
        } else {
            ends("silence", idle, &mut party);
        }
        std::fs::write(&back, "").unwrap();
    }
}

/// The wire's virtual ends cannot be plugged in again, so this is the last test on these hosts.
#[test]
#[ignore = "there is no way back from it: alone, and last"]
fn its_own_pulled_cable_is_noticed() {
    let mut cases = [false, true].map(|idle| (idle, under_way(9, idle)));
    assert!(here("ip link set vec0 down"));
    for (idle, (_, party)) in &mut cases {
        ends("its own cable", *idle, party);
    }
    // No command can reach the other host to end these processes.
    std::mem::forget(cases);
}

/// No packet of the connection itself gets through: both sides report that in time, with a hint about the cause.
#[test]
fn a_firewall_is_named() {
    let _alone = alone();
    const SECONDS: u64 = 5;
    // siw waits within rdma_connect(3) until TCP gives up (`siw_connect`, Linux 6.1): two minutes, if it may.
    let once = "echo 1 >/proc/sys/net/ipv4/tcp_syn_retries";
    assert!(here(once) && there(once));
    let mut other = Remote::start(&format!("unreachable {SECONDS}"));
    // The packet filter drops everything but the control channel, or only RoCE's packets.
    let (wall, hint) = match is_siw() {
        true => ("tcp sport 7471 accept; tcp dport 7471 accept; meta l4proto tcp drop", "TCP connections"),
        false => ("udp dport 4791 drop", "UDP port 4791"),
    };
    let build =
        format!("nft 'table inet wall {{ chain in {{ type filter hook input priority 0; {wall}; }}; }}'");
    assert!(here(&build));
    let meeting = Meeting { limit: Duration::from_secs(SECONDS), ..Plan::finite(SECONDS).meeting(0) };
    let begun = Instant::now();
    let error = meeting.link(&mut other.control).expect_err("the firewall lets it through");
    let took = begun.elapsed();
    let theirs = String::from_utf8(hear(&mut other.control).unwrap()).unwrap();
    assert!(here("nft delete table inet wall"));
    println!("{error} / {theirs}; after {took:?}");
    assert!(matches!(Obstacle::of(&error), Some(Obstacle::NoAnswer { .. })), "{error:?}");
    assert!([error.to_string(), theirs].iter().all(|said| said.contains(hint)));
    assert!(took < Duration::from_secs(4 * SECONDS), "{took:?}");
}
