//! A world of five nodes that write to and read from each other's regions while nodes are stopped, killed and restarted,
//! links are cut, and loans are revoked; all that is seen is checked against a model.
//!
//! Each node owns a region, which it lends to all others, and in which each other node has an area. A write fills its
//! writer's area with bytes that no other write has, and has an immediate with its number. The model knows of each write
//! when it was posted, and from when on nothing more of it lands. Bytes of an area can be those of any write that was
//! posted, until another one that has surely landed was posted after the first one had ended.

use std::panic::catch_unwind;

use caravan_fabric::contract::{Capabilities, Endpoint, Event, Local, Operation};
use caravan_fabric::sim::{Faulty, Mishap, NodeLife, PlantedBreach, Random, World};
use caravan_fabric::{Error, Region, RegionAccess, RegionNumber};

use crate::common::pattern::Pattern;
use crate::common::seeds;

const NODES: usize = 5;
const AREA_BYTES: u64 = 96;
/// The number of operations of each kind that an endpoint has under way.
const SLOTS: u64 = 6;
const ARENA_BYTES: u64 = 2 * SLOTS * AREA_BYTES;
/// Behind the areas of a region: the words that are counted up by compare-and-swap, one for each node.
const COUNTS_AT: u64 = NODES as u64 * AREA_BYTES;
const TURNS: u64 = 2500;

/// One write, as the model knows it.
#[derive(Clone, Debug)]
struct ModelWrite {
    posted_at: u64,
    /// Nothing more of it lands after this.
    ended_at: Option<u64>,
    /// It has landed as a whole.
    landed: bool,
    completed: bool,
    /// The number of the connection that carried it.
    carrier: u64,
}

/// What may be in one node's area of another node's region.
#[derive(Debug, Default)]
struct ModelArea {
    writes: Vec<ModelWrite>,
}

impl ModelArea {
    /// Checks bytes that were copied out of the area between two moments. Write 0 is none: zero bytes.
    fn check(&self, pattern: impl Fn(u64) -> Pattern, from: u64, to: u64, bytes: &[u8]) {
        let ended_before = |write: &ModelWrite, at: u64| write.ended_at.is_some_and(|ended| ended < at);
        let newest_sure = self.writes.iter().filter(|write| write.landed && ended_before(write, from));
        let newest_sure = newest_sure.map(|write| write.posted_at).max().unwrap_or(0);
        let mut candidates = Vec::new();
        if newest_sure == 0 {
            candidates.push(vec![0; bytes.len()]);
        }
        for (number, write) in (1..).zip(&self.writes) {
            if write.posted_at <= to && !ended_before(write, newest_sure) {
                let mut candidate = vec![0; bytes.len()];
                pattern(number).fill(0, &mut candidate);
                candidates.push(candidate);
            }
        }
        for (at, byte) in bytes.iter().enumerate() {
            let known = candidates.iter().any(|candidate| candidate[at] == *byte);
            assert!(known, "byte {at} is {byte}, of none of {} writes", candidates.len());
        }
    }

    /// Nothing more of a connection's writes lands.
    fn end(&mut self, carrier: u64, now: u64, completed_have_landed: bool) {
        for write in
            self.writes.iter_mut().filter(|write| write.carrier == carrier && write.ended_at.is_none())
        {
            write.ended_at = Some(now);
            write.landed = write.completed && completed_have_landed;
        }
    }
}

/// One end of a connection, and the loans of both sides.
#[derive(Debug)]
struct ModelEnd {
    endpoint: Box<dyn Endpoint>,
    /// The number of the connection.
    carrier: u64,
    /// What this end was lent.
    borrowed: RegionNumber,
    /// What this end lends; `None` once it is revoked.
    lent: Option<RegionNumber>,
    /// The writes, and the reads with the moment of their start, that are under way: by their places in the arena.
    writes: [Option<u64>; SLOTS as usize],
    reads: [Option<(usize, u64)>; SLOTS as usize],
    /// The word that the compare-and-swap under way expects.
    swap: Option<u64>,
}

/// All nodes, and what is known about them.
struct ModelWorld {
    world: World,
    seed: u64,
    capabilities: Capabilities,
    breach: Option<PlantedBreach>,
    random: Random,
    now: u64,
    carriers: u64,
    regions: Vec<Region>,
    /// By node and peer.
    ends: Vec<Vec<Option<ModelEnd>>>,
    /// By owner and writer.
    areas: Vec<Vec<ModelArea>>,
    /// By owner: the compare-and-swaps that were started, and those that have succeeded.
    swaps: Vec<(u64, u64)>,
    checks: u64,
}

fn slot_at(kind: u64, slot: usize) -> Local {
    Local { offset: (kind * SLOTS + slot as u64) * AREA_BYTES, bytes: AREA_BYTES as u32 }
}

const WRITE: u64 = 0;
const READ: u64 = 1;
const SWAP: u64 = 2;

impl ModelWorld {
    fn new(seed: u64, breach: Option<PlantedBreach>) -> Self {
        let region = |_| Region::create("caravan-test", COUNTS_AT + 8).unwrap();
        let row = || (0..NODES).map(|_| None).collect();
        let areas = || (0..NODES).map(|_| ModelArea::default()).collect();
        Self {
            world: World::new(seed, NODES),
            seed,
            capabilities: World::capabilities(seed),
            breach,
            random: Random::new(!seed),
            now: 0,
            carriers: 0,
            regions: (0..NODES).map(region).collect(),
            ends: (0..NODES).map(|_| row()).collect(),
            areas: (0..NODES).map(|_| areas()).collect(),
            swaps: vec![(0, 0); NODES],
            checks: 0,
        }
    }

    fn pattern(&self, owner: usize, writer: usize) -> impl Fn(u64) -> Pattern + use<> {
        let seed = self.seed.wrapping_mul(31) + (owner * NODES + writer) as u64;
        move |number| Pattern::new(seed ^ number << 32)
    }

    /// Connects two nodes that have no connection, if there is a way.
    fn connect(&mut self, nodes: [usize; 2]) {
        let Ok(endpoints) = self.world.connect(nodes, ARENA_BYTES, self.capabilities) else { return };
        let breach = self.breach;
        let mut endpoints: [Box<dyn Endpoint>; 2] = endpoints.map(|endpoint| match breach {
            Some(breach) => Box::new(Faulty::planted(endpoint, breach)) as Box<dyn Endpoint>,
            None => Box::new(endpoint),
        });
        let tokens = [0, 1].map(|side: usize| {
            endpoints[side].lend(&self.regions[nodes[side]], RegionAccess::Write).unwrap()
        });
        self.carriers += 1;
        for (side, mut endpoint) in endpoints.into_iter().enumerate() {
            self.ends[nodes[side]][nodes[1 - side]] = Some(ModelEnd {
                borrowed: endpoint.borrow(&tokens[1 - side]).unwrap(),
                endpoint,
                carrier: self.carriers,
                lent: Some(tokens[side].number()),
                writes: [None; SLOTS as usize],
                reads: [None; SLOTS as usize],
                swap: None,
            });
        }
    }

    /// Lets one random thing happen.
    fn turn(&mut self) {
        self.now += 1;
        if self.random.once_in(60) {
            let mishap = self.world.mishap();
            if let Mishap::Killed(node) = mishap {
                self.forget_node(node);
            }
            return;
        }
        if self.random.once_in(2) {
            self.world.step();
            return;
        }
        let node = self.random.below(NODES as u64) as usize;
        let peer = (node + 1 + self.random.below(NODES as u64 - 1) as usize) % NODES;
        if self.world.life(node) != NodeLife::Running {
            return;
        }
        if self.ends[node][peer].is_none() {
            if self.ends[peer][node].is_none() {
                self.connect([node, peer]);
            }
            return;
        }
        let done = match self.random.below(40) {
            0..=11 => self.write(node, peer),
            12..=19 => self.read(node, peer),
            20..=23 => self.swap(node, peer),
            24 if self.random.once_in(4) => self.revoke(node, peer),
            _ => self.poll(node, peer),
        };
        match done {
            Ok(()) | Err(Error::Full(_)) => {}
            Err(Error::PeerGone(..)) => self.give_up(node, peer, !self.capabilities.completes_early),
            Err(Error::Revoked(..)) => self.give_up(node, peer, false),
            Err(error) => panic!("node {node}, peer {peer}: {error}"),
        }
    }

    fn end(&mut self, node: usize, peer: usize) -> &mut ModelEnd {
        self.ends[node][peer].as_mut().expect("a connection")
    }

    fn start(&mut self, node: usize, peer: usize, operation: Operation) -> Result<(), Error> {
        let end = self.end(node, peer);
        end.endpoint.post(operation)?;
        end.endpoint.doorbell()
    }

    fn write(&mut self, node: usize, peer: usize) -> Result<(), Error> {
        let end = self.end(node, peer);
        let Some(slot) = end.writes.iter().position(Option::is_none) else { return Ok(()) };
        let (borrowed, carrier) = (end.borrowed, end.carrier);
        let number = self.areas[peer][node].writes.len() as u64 + 1;
        let mut bytes = vec![0; AREA_BYTES as usize];
        self.pattern(peer, node)(number).fill(0, &mut bytes);
        let from = slot_at(WRITE, slot);
        self.end(node, peer).endpoint.arena().copy_in(from.offset as usize, &bytes);
        let (to, context) = (borrowed.place(node as u64 * AREA_BYTES), WRITE << 8 | slot as u64);
        self.start(node, peer, Operation::Write { from, to, immediate: Some(number as u32), context })?;
        self.end(node, peer).writes[slot] = Some(number);
        let posted_at = self.now;
        let write = ModelWrite { posted_at, ended_at: None, landed: false, completed: false, carrier };
        self.areas[peer][node].writes.push(write);
        // Of a loan that was revoked, nothing lands.
        let lender = self.ends[peer][node].as_ref().filter(|end| end.carrier == carrier);
        if lender.is_none_or(|lender| lender.lent.is_none()) {
            self.areas[peer][node].end(carrier, 0, false);
        }
        Ok(())
    }

    fn read(&mut self, node: usize, peer: usize) -> Result<(), Error> {
        let writer = self.random.below(NODES as u64) as usize;
        let end = self.end(node, peer);
        let Some(slot) = end.reads.iter().position(Option::is_none) else { return Ok(()) };
        let from = end.borrowed.place(writer as u64 * AREA_BYTES);
        let (into, context) = (slot_at(READ, slot), READ << 8 | slot as u64);
        self.start(node, peer, Operation::Read { from, into, context })?;
        let now = self.now;
        self.end(node, peer).reads[slot] = Some((writer, now));
        Ok(())
    }

    /// Counts up the word of a peer's region, as far as this node knows the word.
    fn swap(&mut self, node: usize, peer: usize) -> Result<(), Error> {
        if !self.capabilities.compare_and_swap || self.end(node, peer).swap.is_some() {
            return Ok(());
        }
        let expected = self.random.below(3) + self.swaps[peer].1.saturating_sub(1);
        let at = self.end(node, peer).borrowed.place(COUNTS_AT);
        let desired = expected + 1;
        self.start(node, peer, Operation::CompareAndSwap { at, expected, desired, context: SWAP << 8 })?;
        self.end(node, peer).swap = Some(expected);
        self.swaps[peer].0 += 1;
        Ok(())
    }

    /// Takes back what a node lends its peer. The peer's end ends with its next operation.
    fn revoke(&mut self, node: usize, peer: usize) -> Result<(), Error> {
        let now = self.now;
        let end = self.end(node, peer);
        if let Some(number) = end.lent.take() {
            end.endpoint.revoke(number)?;
            let carrier = end.carrier;
            self.areas[node][peer].end(carrier, now, false);
        }
        Ok(())
    }

    fn poll(&mut self, node: usize, peer: usize) -> Result<(), Error> {
        let mut events = Vec::new();
        let end = self.end(node, peer);
        end.endpoint.flush()?;
        let polled = end.endpoint.poll(&mut events, 4);
        events.into_iter().for_each(|event| self.see(node, peer, event));
        polled.map(drop)
    }

    fn see(&mut self, node: usize, peer: usize, event: Event) {
        let now = self.now;
        match event {
            Event::Immediate(number) => {
                let write = &mut self.areas[node][peer].writes[number as usize - 1];
                assert_ne!(write.ended_at, Some(0), "a write to a region that was revoked has landed");
                assert!(!write.landed, "immediate {number} came twice");
                // A write to a region that was revoked since had landed before.
                write.ended_at.get_or_insert(now);
                write.landed = true;
                self.look(node, peer);
            }
            Event::Done(done) => {
                let slot = (done.context & 0xff) as usize;
                let end = self.end(node, peer);
                match done.context >> 8 {
                    WRITE => {
                        let number = end.writes[slot].take().expect("a write is under way");
                        // Its source may change now.
                        let at = slot_at(WRITE, slot).offset as usize;
                        end.endpoint.arena().copy_in(at, &[0xEE; AREA_BYTES as usize]);
                        self.areas[peer][node].writes[number as usize - 1].completed = true;
                    }
                    READ => {
                        let (writer, since) = end.reads[slot].take().expect("a read is under way");
                        let mut bytes = [0; AREA_BYTES as usize];
                        end.endpoint.arena().copy_out(slot_at(READ, slot).offset as usize, &mut bytes);
                        self.areas[peer][writer].check(self.pattern(peer, writer), since, now, &bytes);
                        self.checks += 1;
                    }
                    _ => {
                        let expected = end.swap.take().expect("a compare-and-swap is under way");
                        let found = done.found.expect("it has found a word");
                        let (started, succeeded) = &mut self.swaps[peer];
                        assert!(
                            found <= *started,
                            "{found} swaps have succeeded, of {started} that were started"
                        );
                        *succeeded += u64::from(found == expected);
                    }
                }
            }
            other => panic!("{other:?} is not what was started"),
        }
    }

    /// The owner looks at an area of its own region.
    fn look(&mut self, owner: usize, writer: usize) {
        let mut bytes = [0; AREA_BYTES as usize];
        self.regions[owner].memory().copy_out(writer * AREA_BYTES as usize, &mut bytes);
        // What has ended by now counts.
        self.areas[owner][writer].check(self.pattern(owner, writer), self.now + 1, self.now, &bytes);
        self.checks += 1;
    }

    /// A node ends its side of a connection that has ended; `completed_have_landed` says what became of the peer's writes.
    fn give_up(&mut self, node: usize, peer: usize, completed_have_landed: bool) {
        let Some(end) = self.ends[node][peer].take() else { return };
        let now = self.now;
        self.areas[node][peer].end(end.carrier, now, completed_have_landed && end.lent.is_some());
        self.look(node, peer);
    }

    /// A node was killed: of what it was sent, nothing more arrives.
    fn forget_node(&mut self, node: usize) {
        for peer in 0..NODES {
            if let Some(end) = self.ends[node][peer].take() {
                let now = self.now;
                self.areas[node][peer].end(end.carrier, now, false);
            }
        }
    }
}

/// Runs a world, and returns its digest and the number of checks.
fn run(seed: u64, breach: Option<PlantedBreach>) -> (u64, u64) {
    let mut model = ModelWorld::new(seed, breach);
    (0..TURNS).for_each(|_| model.turn());
    for owner in 0..NODES {
        let word =
            model.regions[owner].memory().word(COUNTS_AT as usize).load(std::sync::atomic::Ordering::Relaxed);
        let (started, succeeded) = model.swaps[owner];
        assert!((succeeded..=started).contains(&word), "{word} is counted, of {succeeded} to {started}");
    }
    (model.world.digest(), model.checks)
}

#[test]
fn five_nodes_see_what_the_contract_allows() {
    let checks: u64 = seeds(2000).map(|seed| run(seed, None).1).sum();
    assert!(checks > 0);
}

/// A run is a function of its seed.
#[test]
fn the_same_seed_is_the_same_world() {
    let digests = || seeds(40).map(|seed| run(seed, None)).collect::<Vec<_>>();
    let mut first = digests();
    assert_eq!(first, digests());
    let count = first.len();
    first.sort_unstable();
    first.dedup();
    assert_eq!(first.len(), count, "two seeds are one world");
}

/// The model notices breaches of the contract.
#[test]
fn the_model_catches_breaches() {
    for breach in [
        PlantedBreach::EarlyImmediate,
        PlantedBreach::EarlyCompletion,
        PlantedBreach::LostWrite,
        PlantedBreach::LongWrite,
        PlantedBreach::FalseSwap,
        PlantedBreach::Unrevoked,
    ] {
        let caught = (0..100).find(|&seed| catch_unwind(|| run(seed, Some(breach))).is_err());
        println!("the model caught {breach:?} with seed {caught:?}");
        assert!(caught.is_some(), "the model does not catch {breach:?}");
    }
}
