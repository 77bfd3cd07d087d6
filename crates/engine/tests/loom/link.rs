//! A link between two processes: full packets go one way, and empty ones come back.
//! Either process is killed; its packets are reclaimed while the other goes on; its successor
//! takes over. In the end
//!
//! - every packet has one owner, who has it once;
//! - nothing was delivered twice, and everything as it was written: a read and a write of a
//!   packet's contents that nothing orders are a race, which loom reports;
//! - nothing that was published is lost except to a taker that was killed.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use caravan_engine::handover::{PacketHeaders, give, skip_taken, take};
use caravan_engine::owner::{LinkId, Owner, PacketHeader, WorkerId};
use caravan_engine::recovery::{self, Given};
use caravan_ring::{Cursors, SharedWord, SlotConsumer, SlotProducer, Slots};
use loom::thread;

use crate::mortal::{Killed, Life, MortalCursors, MortalHeaders, Ring};
use crate::world::{Fault, ModelSlots, explore};

type Producer = SlotProducer<MortalCursors, ModelSlots>;
type Consumer = SlotConsumer<MortalCursors, ModelSlots>;

/// The fault in the order of steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wrong {
    /// No fault.
    Nothing,
    /// Packets get their new owner once they are published.
    StampedAfterPublish,
    /// Slots are released before their packets get their new owner.
    ReleasedBeforeStamp,
    /// The taker does not check whether a packet in the ring belongs to the link.
    TakenUnseen,
    /// Packets that were not published are left as they are.
    NotReclaimed,
    /// The ring is read after the packet headers.
    RingLookedAtLast,
    /// The slots of packets that a dead process took stay in the ring, and its successor gives the packets away.
    NotSkipped,
}

/// One run: the number of stores that each process makes before it is killed; `None` for no kill.
#[derive(Clone, Copy, Debug)]
struct Run {
    fault: Fault,
    wrong: Wrong,
    giver_stores: Option<usize>,
    taker_stores: Option<usize>,
    preemptions: usize,
}

impl Run {
    fn right(giver_stores: Option<usize>, taker_stores: Option<usize>) -> Self {
        Self { fault: Fault::None, wrong: Wrong::Nothing, giver_stores, taker_stores, preemptions: 1 }
    }
}

const PACKETS: u32 = 3;
/// The capacity exceeds the number of packets, so slots that are not released do not hold the giver up.
const CAPACITY: usize = 4;
const STACK_WORDS: usize = 1 << 13;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Giver,
    Taker,
}

impl Role {
    fn id(self) -> WorkerId {
        WorkerId::new(self as usize).unwrap()
    }
    fn owner(self) -> Owner {
        Owner::Worker(self.id())
    }
}

fn link() -> LinkId {
    LinkId::new(0).unwrap()
}

/// Everything that is shared, and what the processes did with it.
#[derive(Clone, Debug)]
struct Shared {
    run: Run,
    full: Ring,
    empty: Ring,
    headers: MortalHeaders,
    contents: ModelSlots,
    written: Arc<AtomicU32>,
    delivered: Arc<Mutex<Vec<u32>>>,
}

impl Shared {
    fn new(run: Run) -> Self {
        Self {
            run,
            full: Ring::new(run.fault, CAPACITY),
            empty: Ring::new(run.fault, CAPACITY),
            headers: MortalHeaders::new((0..PACKETS).map(|_| PacketHeader::unused(Role::Giver.owner()))),
            contents: ModelSlots::new(PACKETS as usize),
            written: Arc::default(),
            delivered: Arc::default(),
        }
    }

    /// Returns the ring that a process gives to, and the owner that packets in it name.
    fn given(&self, role: Role) -> (&Ring, Owner) {
        match role {
            Role::Giver => (&self.full, Owner::Full(link())),
            Role::Taker => (&self.empty, Owner::Empty(link())),
        }
    }

    /// Returns the ring that a process takes from, and the owner that packets in it name.
    fn taken(&self, role: Role) -> (&Ring, Owner) {
        match role {
            Role::Giver => (&self.empty, Owner::Empty(link())),
            Role::Taker => (&self.full, Owner::Full(link())),
        }
    }
}

/// A process, with its private state.
struct Process {
    role: Role,
    shared: Shared,
    headers: MortalHeaders,
    contents: ModelSlots,
    out: Producer,
    into: Consumer,
    free: Vec<u32>,
    /// Packets that it takes in a turn.
    limit: usize,
}

impl Process {
    /// Makes the first process of a role, or a later one: it has the packets that name it.
    fn new(role: Role, shared: &Shared, life: &Life) -> Self {
        let (out, _) = shared.given(role);
        let (into, _) = shared.taken(role);
        let headers = shared.headers.seen_by(life);
        let out = Producer::resume(MortalCursors::new(&out.producer, life), out.slots.clone()).unwrap();
        let into = Consumer::resume(MortalCursors::new(&into.consumer, life), into.slots.clone()).unwrap();
        let free = (0..PACKETS).filter(|index| headers.load(*index).owner() == Some(role.owner())).collect();
        let contents = shared.contents.clone();
        Self { role, shared: shared.clone(), headers, contents, out, into, free, limit: PACKETS as usize }
    }

    /// Takes packets, fills or reads them, and gives them away.
    fn turn(&mut self) {
        if self.shared.run.wrong == Wrong::NotSkipped {
            self.give_all();
        }
        self.take_all();
        self.give_all();
    }

    fn take_all(&mut self) {
        let from = self.shared.taken(self.role).1;
        let owners = (from, self.role.owner());
        let wrong = self.shared.run.wrong;
        let Self { role, shared, contents, free, .. } = self;
        let each = |index: u32, _| {
            if *role == Role::Taker {
                let found = contents.take(index as usize);
                shared.delivered.lock().unwrap().push(found);
            }
            free.push(index);
        };
        match wrong {
            Wrong::ReleasedBeforeStamp => take_releasing_first(&mut self.into, &self.headers, owners, each),
            Wrong::TakenUnseen => take_unseen(&mut self.into, &self.headers, owners, each),
            _ => {
                take(&mut self.into, &self.headers, owners, self.limit, each).unwrap();
            }
        }
    }

    fn give_all(&mut self) {
        let to = self.shared.given(self.role).1;
        let late = self.shared.run.wrong == Wrong::StampedAfterPublish;
        // There is room for all of them: the call makes the cursor see what the other side has released.
        assert!(self.out.room(self.free.len()).unwrap() >= self.free.len(), "there is room for all");
        let count = self.free.len();
        let Self { role, shared, contents, headers, free, out, .. } = self;
        let mut packets: Vec<_> = Vec::new();
        let filled = free.drain(..).map(|index| match role {
            Role::Giver => {
                let number = shared.written.fetch_add(1, Ordering::Relaxed);
                contents.put(index as usize, number);
                (index, PacketHeader::used(to, 8, 4))
            }
            Role::Taker => (index, PacketHeader::unused(to)),
        });
        if late {
            packets.extend(filled);
            packets.iter().for_each(|&(index, _)| assert!(out.push(index).unwrap()));
        } else {
            give(out, headers, count, filled).unwrap();
        }
        let _ = out.publish();
        packets.into_iter().for_each(|(index, header)| headers.store(index, header));
    }
}

fn take_releasing_first(
    ring: &mut Consumer,
    headers: &MortalHeaders,
    (from, to): (Owner, Owner),
    mut each: impl FnMut(u32, PacketHeader),
) {
    let found = ring.poll(PACKETS as usize).unwrap();
    let items: Vec<_> = found.offsets().map(|at| ring.item(at)).collect();
    let _ = ring.release(items.len());
    for index in items {
        let header = headers.load(index);
        if header.owner() == Some(from) {
            headers.store(index, PacketHeader::unused(to));
            each(index, header);
        }
    }
}

fn take_unseen(
    ring: &mut Consumer,
    headers: &MortalHeaders,
    (_, to): (Owner, Owner),
    mut each: impl FnMut(u32, PacketHeader),
) {
    let found = ring.poll(PACKETS as usize).unwrap();
    let items: Vec<_> = found.offsets().map(|at| ring.item(at)).collect();
    items.iter().for_each(|&index| headers.store(index, PacketHeader::unused(to)));
    let _ = ring.release(items.len());
    items.into_iter().for_each(|index| each(index, headers.load(index)));
}

/// Runs a process until it is killed, or has made its turn. A process with a limited number of stores is dead after
/// that in any case.
fn live(role: Role, shared: &Shared, stores: Option<usize>) -> Option<Process> {
    let life = stores.map_or_else(Life::long, Life::of);
    let lived = catch_unwind(AssertUnwindSafe(|| {
        let mut process = Process::new(role, shared, &life);
        process.turn();
        process
    }));
    match lived {
        Ok(process) => stores.is_none().then_some(process),
        Err(why) if why.is::<Killed>() => None,
        Err(why) => resume_unwind(why),
    }
}

/// Reads the ring that the dead process gave to.
fn look(shared: &Shared, role: Role) -> Given {
    let (ring, owner) = shared.given(role);
    let cursors = &ring.producer;
    let head = cursors.head_position().load(Ordering::Acquire);
    let tail = cursors.tail_position().load(Ordering::Acquire);
    let published = (head..tail).map(|at| ring.slots.take(at as usize & (CAPACITY - 1))).collect();
    Given { owner, published }
}

/// Recovers from a dead process, as the supervisor does, while the other lives. Returns the successor.
fn succeed(shared: &Shared, role: Role) -> Process {
    let life = Life::long();
    let headers = shared.headers.seen_by(&life);
    if !matches!(shared.run.wrong, Wrong::NotSkipped | Wrong::TakenUnseen) {
        let (ring, from) = shared.taken(role);
        let cursors = MortalCursors::new(&ring.consumer, &life);
        let mut ring = Consumer::resume(cursors, ring.slots.clone()).unwrap();
        skip_taken(&mut ring, &headers, from).unwrap();
    }
    match shared.run.wrong {
        Wrong::NotReclaimed => {
            recovery::reclaim(&headers, PACKETS, role.id(), &[]);
        }
        Wrong::RingLookedAtLast => {
            let owner = shared.given(role).1;
            let named = (0..PACKETS).filter(|index| headers.load(*index).owner() == Some(owner));
            let named: Vec<_> = named.collect();
            let published = look(shared, role).published;
            for index in named.into_iter().filter(|index| !published.contains(index)) {
                headers.store(index, PacketHeader::unused(role.owner()));
            }
        }
        _ => {
            recovery::reclaim(&headers, PACKETS, role.id(), &[look(shared, role)]);
        }
    }
    Process::new(role, shared, &Life::long())
}

/// Checks the state in the end.
fn settle(shared: &Shared, mut giver: Process, mut taker: Process) {
    // The loop ends when both rings are empty, and makes nothing new: the giver only takes.
    for _ in 0..2 {
        taker.turn();
        giver.take_all();
    }
    let mut owners = BTreeSet::new();
    for process in [&giver, &taker] {
        for &index in &process.free {
            assert!(owners.insert(index), "packet {index} has two owners");
            let named = process.headers.load(index).owner();
            assert_eq!(named, Some(process.role.owner()), "whose packet {index} is");
        }
    }
    assert_eq!(owners.len(), PACKETS as usize, "packets that somebody has: {owners:?}");
    let delivered = shared.delivered.lock().unwrap();
    let once: BTreeSet<_> = delivered.iter().collect();
    assert_eq!(once.len(), delivered.len(), "what was delivered: {delivered:?}");
    if shared.run.giver_stores.is_none() && shared.run.taker_stores.is_none() {
        assert_eq!(delivered.len(), shared.written.load(Ordering::Relaxed) as usize, "nothing is lost");
    }
}

/// Explores one run. Returns the number of interleavings.
fn check(run: Run) -> usize {
    explore(Some(run.preemptions), move || {
        start(move || supervise(run)).join().unwrap();
    })
}

/// Starts a thread with enough stack for a failed assertion.
fn start<T: Send + 'static>(body: impl FnOnce() -> T + Send + 'static) -> thread::JoinHandle<T> {
    thread::Builder::new().stack_size(STACK_WORDS).spawn(body).unwrap()
}

fn supervise(run: Run) {
    let shared = Shared::new(run);
    // Both rings hold packets: two full ones, and an empty one.
    Process::new(Role::Giver, &shared, &Life::long()).give_all();
    let mut taker = Process::new(Role::Taker, &shared, &Life::long());
    taker.limit = 1;
    taker.turn();
    drop(taker);
    let spawn = |role, stores| {
        let shared = shared.clone();
        start(move || live(role, &shared, stores))
    };
    let giver = spawn(Role::Giver, run.giver_stores);
    let taker = spawn(Role::Taker, run.taker_stores);
    let successor = |role| {
        let mut process = succeed(&shared, role);
        process.turn();
        process
    };
    // The process that is killed first is recovered while the other lives, if it does.
    let (giver, taker) = if run.giver_stores.is_some() {
        let giver = giver.join().unwrap().unwrap_or_else(|| successor(Role::Giver));
        (giver, taker.join().unwrap().unwrap_or_else(|| successor(Role::Taker)))
    } else {
        let taker = taker.join().unwrap().unwrap_or_else(|| successor(Role::Taker));
        (giver.join().unwrap().unwrap_or_else(|| successor(Role::Giver)), taker)
    };
    settle(&shared, giver, taker);
}

/// The stores to words that each process makes with as many packets as it finds at its start: the giver takes an empty
/// packet and gives it, the taker takes two full ones and gives two. The last run of each kills it at its end.
///
/// These bounds leave out no kind of instant. Whoever finds more packets, as the other side has just given some, makes
/// more stores, but of the same kinds: the taker's two packets already have a packet of the same batch before them and
/// one behind them at each step.
const GIVER_STORES: usize = 4;
const TAKER_STORES: usize = 6;

#[test]
fn nothing_is_lost_while_both_live() {
    let interleavings = check(Run { preemptions: 3, ..Run::right(None, None) });
    assert!(interleavings > 1_000, "only {interleavings} interleavings");
}

#[test]
fn a_giver_killed_after_any_store() {
    let run = |stores| check(Run::right(Some(stores), None));
    let interleavings: usize = (0..=GIVER_STORES).map(run).sum();
    assert!(interleavings > 10_000, "only {interleavings} interleavings");
}

#[test]
fn a_taker_killed_after_any_store() {
    let run = |stores| check(Run::right(None, Some(stores)));
    let interleavings: usize = (0..=TAKER_STORES).map(run).sum();
    assert!(interleavings > 10_000, "only {interleavings} interleavings");
}

#[test]
fn both_killed_after_any_two_stores() {
    let pairs = (0..=GIVER_STORES).flat_map(|giver| (0..=TAKER_STORES).map(move |taker| (giver, taker)));
    let run = |(giver, taker)| check(Run::right(Some(giver), Some(taker)));
    let interleavings: usize = pairs.map(run).sum();
    assert!(interleavings > 10_000, "only {interleavings} interleavings");
}

/// What is wrong, and after how many stores the giver or the taker is killed to show it.
#[rustfmt::skip]
const CAUGHT: &[(Fault, Wrong, Option<usize>, Option<usize>)] = &[
    (Fault::NoRelease, Wrong::Nothing, None, None),
    (Fault::NoAcquire, Wrong::Nothing, None, None),
    (Fault::None, Wrong::StampedAfterPublish, None, None),
    (Fault::None, Wrong::ReleasedBeforeStamp, None, Some(0)),
    (Fault::None, Wrong::TakenUnseen, None, Some(1)),
    (Fault::None, Wrong::NotReclaimed, Some(3), None),
    (Fault::None, Wrong::NotReclaimed, None, Some(4)),
    (Fault::None, Wrong::RingLookedAtLast, Some(0), None),
    (Fault::None, Wrong::RingLookedAtLast, None, Some(6)),
    (Fault::None, Wrong::NotSkipped, None, Some(2)),
];

#[test]
fn the_model_fails_where_something_is_wrong() {
    for &(fault, wrong, giver, taker) in CAUGHT {
        let run = Run { fault, wrong, ..Run::right(giver, taker) };
        assert!(catch_unwind(move || check(run)).is_err(), "not caught: {run:?}");
    }
}
