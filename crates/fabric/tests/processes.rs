//! Links between two processes, and the resources that are left when one of them is killed.
#![forbid(unsafe_code)]

mod common;

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use caravan_fabric::contract::{Endpoint, Local, Operation};
use caravan_fabric::shm::{self, Listener, ShmEndpoint};
use caravan_fabric::sim::{Faults, Faulty, Random};
use caravan_fabric::tcp::{self, TcpListening, TcpSealing};
use caravan_fabric::{Error, Exposure, Link, RING_BYTES_MIN, Region, RegionAccess, RegionToken};
use common::party::{Party, Turn};
use common::pattern::Pattern;
use common::process::{Other, accept_over, connect_over, control, hear, possessions, role, say};
use rustix::event::{PollFd, PollFlags, Timespec};

/// How long a survivor may take to learn that its peer was killed.
const NOTICE: Duration = Duration::from_secs(30);
/// Held by each test while it runs: the tests count this process's descriptors.
static ALONE: Mutex<()> = Mutex::new(());
/// The length of a stream that never ends.
const ENDLESS: u64 = u64::MAX / 4;

/// The parameters of a test, which both processes know.
#[derive(Clone, Copy, Debug)]
struct Plan {
    seed: u64,
    /// The second process listens; otherwise the first does.
    other_listens: bool,
    /// The link may not load from or store to the peer's memory.
    unmapped: bool,
    ring_bytes: u64,
    /// The number of bytes from the first process to the second, and back.
    totals: [u64; 2],
}

impl Plan {
    fn finite(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let ring_bytes = RING_BYTES_MIN << random.below(4);
        let totals = [0, 1].map(|_| random.below(40 * ring_bytes));
        Self { seed, other_listens: seed % 2 == 1, unmapped: seed % 4 > 1, ring_bytes, totals }
    }

    fn endless(seed: u64) -> Self {
        Self { totals: [ENDLESS; 2], ..Self::finite(seed) }
    }

    fn role(&self, name: &str) -> String {
        format!("{name} {}", self.seed)
    }

    /// Makes this process's end, over the control channel.
    fn party(&self, number: usize, control: &mut UnixStream) -> Party {
        let arena_bytes = Link::arena_bytes(self.ring_bytes).unwrap();
        let listens = (number == 1) == self.other_listens;
        let endpoint: ShmEndpoint =
            if listens { accept_over(control, arena_bytes) } else { connect_over(control) };
        let faults = Faults { unmapped: self.unmapped, ..Faults::default() };
        let link = Link::new(Box::new(Faulty::new(endpoint, faults, self.seed)), self.ring_bytes).unwrap();
        Party::new(link, self.seed, number as u64, self.totals[number], self.totals[1 - number])
    }
}

/// The second process. It does nothing when it runs as a test of its own.
#[test]
#[ignore = "the second process of the other tests"]
fn child() {
    let Some(role) = role() else { return };
    let (name, seed) = role.split_once(' ').unwrap();
    let seed = seed.parse().unwrap();
    let mut control = control();
    match name {
        "finite" => Plan::finite(seed).party(1, &mut control).run().unwrap(),
        "borrower" => borrower(Box::new(accept_over(&mut control, REGION_BYTES)), seed, &mut control),
        "tcp_borrower" => borrower(connect_tcp(&mut control), seed, &mut control),
        "endless" => {
            let mut party = Plan::endless(seed).party(1, &mut control);
            while until_told(&mut party, &control).is_ok() {}
        }
        _ => panic!("there is no role {name}"),
    }
}

/// Takes turns, and sleeps on the descriptor and the control channel together, as a face does. Returns an
/// error once the peer has ended.
fn until_told(party: &mut Party, control: &UnixStream) -> Result<(), Error> {
    if party.turn()? == Turn::Active {
        return Ok(());
    }
    let bell = party.link.wait_fd().unwrap();
    let control = control.as_fd();
    let mut set = [PollFd::new(&bell, PollFlags::IN), PollFd::new(&control, PollFlags::IN)];
    let limit = Timespec { tv_sec: common::PATIENCE.as_secs() as i64, tv_nsec: 0 };
    assert!(rustix::event::poll(&mut set, Some(&limit)).unwrap() > 0, "no wake-up came");
    if set[1].revents().is_empty() { Ok(()) } else { party.link.check_peer() }
}

/// The second process ends as soon as its part is settled; the first still gets everything.
#[test]
fn streams_between_processes() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    for seed in 0..16 {
        let plan = Plan::finite(seed);
        let mut other = Other::start(&plan.role("finite"));
        let mut party = plan.party(0, &mut other.control);
        party.run().unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        assert!(party.has_all());
        // This side need not act for the other's last credits and completions: mapped memory has no progress.
        assert!(other.succeeded(), "seed {seed}: the other process failed");
    }
}

/// A process is killed at any moment: the survivor learns of it soon, has a correct beginning of the stream,
/// and no resources are left.
#[test]
fn a_killed_process_leaves_nothing() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let before = possessions();
    for seed in 0..40 {
        let plan = Plan::endless(seed);
        let mut random = Random::new(!seed);
        let mut other = Other::start(&plan.role("endless"));
        let mut party = plan.party(0, &mut other.control);
        let enough = random.below(20 * plan.ring_bytes);
        while party.received < enough {
            until_told(&mut party, &other.control).unwrap();
        }
        other.process.kill().unwrap();
        let killed = Instant::now();
        let error = loop {
            match until_told(&mut party, &other.control) {
                Ok(()) => assert!(killed.elapsed() < NOTICE, "seed {seed}: nothing tells of its end"),
                Err(error) => break error,
            }
            if party.link.check_peer().is_err() && party.received > enough + 3 * plan.ring_bytes {
                panic!("seed {seed}: more came after the end than the ring holds");
            }
        };
        assert!(matches!(error, Error::PeerGone(..)), "seed {seed}: {error}");
    }
    nothing_has_grown(before);
}

/// Checks that no more resources are in use than `before`. Those of the previous test may have gone meanwhile.
fn nothing_has_grown(before: (usize, usize)) {
    let now = possessions();
    assert!(
        now.0 <= before.0 && now.1 <= before.1,
        "descriptors, and files in /dev/shm: {before:?}, {now:?}"
    );
}

/// The number of bytes of the region that processes borrow.
const REGION_BYTES: u64 = 64 << 10;

/// Borrows a region and reads it for ever; says so once for each message.
fn borrower(mut endpoint: Box<dyn Endpoint>, seed: u64, control: &mut UnixStream) {
    let number = endpoint.borrow(&RegionToken::from_bytes(&hear(control)).unwrap()).unwrap();
    let into = Local { offset: 0, bytes: REGION_BYTES as u32 };
    let mut bytes = vec![0; REGION_BYTES as usize];
    loop {
        endpoint.post(Operation::Read { from: number.place(0), into, context: 0 }).unwrap();
        endpoint.doorbell().unwrap();
        while endpoint.poll(&mut Vec::new(), 2).unwrap() == 0 {}
        endpoint.arena().copy_out(0, &mut bytes);
        Pattern::new(seed).check(0, &bytes);
        if let Some(window) = endpoint.window(number) {
            window.copy_out(0, &mut bytes);
            Pattern::new(seed).check(0, &bytes);
        }
        if common::readable(control.as_fd(), Duration::ZERO) {
            hear(control);
            say(control, b"read");
        }
    }
}

/// Processes that borrow a region are killed in the middle of reading: the others read on, and nothing is left of them.
#[test]
fn a_killed_borrower_disturbs_nobody() {
    killed_borrowers("borrower 5", |control| Box::new(connect_over(control)));
    killed_borrowers("tcp_borrower 5", |control| {
        let (listening, descriptor) = TcpListening::listen(TcpSealing::Sealed).unwrap();
        say(control, &descriptor);
        Box::new(listening.accept(&Exposure::all(REGION_BYTES), common::PATIENCE).unwrap())
    });
}

fn connect_tcp(control: &mut UnixStream) -> Box<dyn Endpoint> {
    let exposure = Exposure::all(REGION_BYTES);
    Box::new(tcp::connect(&hear(control), &exposure, common::PATIENCE).unwrap())
}

fn killed_borrowers(role: &str, connect: fn(&mut UnixStream) -> Box<dyn Endpoint>) {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let before = possessions();
    let region = Region::create("caravan-test", REGION_BYTES).unwrap();
    let mut bytes = vec![0; REGION_BYTES as usize];
    Pattern::new(5).fill(0, &mut bytes);
    region.memory().copy_in(0, &bytes);
    let mut borrowers: Vec<_> = (0..4)
        .map(|_| {
            let mut other = Other::start(role);
            let mut endpoint = connect(&mut other.control);
            let token = endpoint.lend(&region, RegionAccess::Read).unwrap();
            say(&mut other.control, &token.to_bytes());
            (other, endpoint)
        })
        .collect();
    while let Some((mut killed, mut owner)) = borrowers.pop() {
        for other in borrowers.iter_mut().map(|(other, _)| other).chain([&mut killed]) {
            say(&mut other.control, b"go on");
            assert_eq!(hear(&mut other.control), b"read");
        }
        killed.process.kill().unwrap();
        let begun = Instant::now();
        while owner.check_peer().is_ok() {
            assert!(begun.elapsed() < NOTICE, "nothing tells of its end");
        }
    }
    drop(region);
    nothing_has_grown(before);
}

/// A thousand connections are made and ended, and as many fail half-way.
#[test]
fn connecting_and_failing_leaves_nothing() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let before = possessions();
    for _ in 0..1000 {
        let (listener, descriptor) = Listener::listen(4096).unwrap();
        let ours = shm::connect(&descriptor).unwrap();
        drop((listener.accept().unwrap(), ours));
        let (listener, descriptor) = Listener::listen(4096).unwrap();
        let twice = [&descriptor[..9], &8192u64.to_le_bytes(), &descriptor[17..]].concat();
        let ours = shm::connect(&twice).unwrap();
        assert!(listener.accept().is_err(), "it sent memory of twice the size");
        assert!(shm::connect(&descriptor).is_err(), "the doorway is closed");
        drop(ours);
    }
    nothing_has_grown(before);
}
