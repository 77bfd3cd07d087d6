//! The world: events in the order of their times, faults, and what must hold at every moment.

mod judge;
mod trouble;
mod work;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::time::Duration;

use caravan_cluster::{
    Change, Configuration, MemberAction, MemberId, MemberIdentity, MemberMessage, MemberWatch, NewMember,
    Part, PartId, ProcessNumber, Revision, StoreInstance, StoredConfiguration, SwapOutcome,
};

use crate::node::{Copy, Node};

const MS: u64 = 1_000_000;
/// The most events that wait: some thousand times those of a quiet world. Messages whose answers lead to more of them have no end.
const EVENTS_MAX: usize = 100_000;
/// The leases of worlds.
const LEASE_MS_LEAST: u64 = 50;
const LEASE_MS_MOST: u64 = 250;
/// The servers of a large world.
pub const LARGE: usize = 90;

/// What happens in a world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Everything, all the time.
    Chaos,
    /// One server ends.
    Crash,
    /// One of 90 servers ends; there are two parts for each, with two copies.
    Large,
    /// The same, and its keeper says so.
    Testified,
    /// The same, and a member of its host sees the end of the process and of its keeper.
    Seen,
    /// One server is stopped, and never goes on.
    Stopped,
    /// No message reaches or leaves a server.
    CutOff,
    /// No message reaches it.
    Deaf,
    /// No message leaves it.
    Mute,
    /// One server ends, and the manager does not reach the register.
    NoRegister,
    /// The first successor is cut off from all others, and the manager from the register.
    Divided,
    /// A server's answers to probes are lost, so it is expelled while its lease holds. The manager's clock is fast, all
    /// others are slow.
    Drifting,
    /// A server's answers to probes are lost, so it is expelled while its lease holds; and the manager ends at that moment.
    Unanswered,
}

enum Event {
    Tick {
        node: usize,
        process: u64,
        at: u64,
    },
    Arrives {
        node: usize,
        from: MemberIdentity,
        process: ProcessNumber,
        message: MemberMessage,
    },
    /// The register does what a node asked for.
    Register {
        node: usize,
        process: u64,
        swap: Option<(Revision, Box<Configuration>)>,
    },
    /// The register's answer arrives.
    Answer {
        node: usize,
        process: u64,
        swap: bool,
        outcome: Option<SwapOutcome>,
    },
    /// A keeper testifies to the end of a server, to a node.
    Testimony {
        node: usize,
        member: MemberIdentity,
    },
    /// Somebody sees that a process of a member has ended, and perhaps its keeper.
    Ended {
        node: usize,
        member: MemberIdentity,
        process: ProcessNumber,
        is_last: bool,
    },
    Trouble,
}

pub struct World {
    kind: Kind,
    random: u64,
    now: u64,
    order: u64,
    events: BinaryHeap<Reverse<(u64, u64, usize)>>,
    waiting: Vec<Option<Event>>,
    free: Vec<usize>,
    nodes: Vec<Node>,
    register: StoredConfiguration,
    /// From whom to whom no message passes, and until when.
    cuts: BTreeMap<(usize, usize), u64>,
    /// Who does not reach the register, until when.
    no_register: BTreeMap<usize, u64>,
    /// The least and the most delay of a message, and how many of 1,000 are lost.
    delay: (u64, u64),
    lost_of_1000: u64,
    is_peace: bool,
    /// The commits of each part that were acknowledged.
    acknowledged: BTreeMap<PartId, u64>,
    pub commits: u64,
    /// How many messages of each kind were sent.
    pub sent: BTreeMap<&'static str, u64>,
    pub digest: u64,
    lost: Option<usize>,
}

impl World {
    pub fn new(seed: u64, kind: Kind) -> Self {
        let new = |index: usize| NewMember {
            name: format!("n{index}"),
            client_address: format!("n{index}:1"),
            member_address: format!("n{index}:2"),
            kept: Vec::new(),
        };
        let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5851_f42d_4c95_7f2d;
        let servers = 3 + below(&mut random, 7) as usize;
        let copies = 1
            + u8::from(below(&mut random, 4) > 0 || kind != Kind::Chaos)
            + u8::from(below(&mut random, 3) == 0);
        let parts = 1 + below(&mut random, 2 * servers as u64) as u16;
        let (servers, copies, parts) =
            if kind == Kind::Large { (LARGE, 2, 2 * LARGE as u16) } else { (servers, copies, parts) };
        let members: Vec<NewMember> = (0..servers).map(new).collect();
        let mut configuration = Configuration::create("world", StoreInstance(1), copies, parts, &members)
            .expect("a right configuration");
        configuration.lease_ms = match kind {
            Kind::Large => LEASE_MS_MOST,
            _ => LEASE_MS_LEAST + below(&mut random, LEASE_MS_MOST - LEASE_MS_LEAST + 1),
        };
        // Everything is there from the beginning.
        for part in &mut configuration.parts {
            part.made = true;
            let primary = usize::from(part.primary.expect("a primary").0);
            let copies = usize::from(copies).min(servers);
            part.backups = (1..copies).map(|step| MemberId(((primary + step) % servers) as u16)).collect();
        }
        configuration.check().expect("a right configuration");
        // Half of the networks are fast, so that a lease that ends too early is noticed.
        let delay = if below(&mut random, 2) == 0 || kind == Kind::Drifting {
            (MS / 100, MS / 20)
        } else {
            (MS / 20, 4 * MS)
        };
        // The clocks of half of the worlds differ as much as they may.
        let is_extreme = below(&mut random, 2) == 0 || kind == Kind::Drifting;
        let lost_of_1000 = if kind == Kind::Chaos { below(&mut random, 60) } else { 0 };
        let mut world = Self {
            kind,
            random,
            now: MS,
            order: 0,
            events: BinaryHeap::new(),
            waiting: Vec::new(),
            free: Vec::new(),
            nodes: Vec::new(),
            register: StoredConfiguration { revision: Revision(1), configuration },
            cuts: BTreeMap::new(),
            no_register: BTreeMap::new(),
            delay,
            lost_of_1000,
            is_peace: kind != Kind::Chaos,
            acknowledged: BTreeMap::new(),
            commits: 0,
            sent: BTreeMap::new(),
            digest: 0,
            lost: None,
        };
        for index in 0..servers {
            // Two clocks differ by at most one hundredth.
            let drift = match kind {
                Kind::Drifting => 1 - 2 * i64::from(index > 0),
                _ => below(&mut world.random, 9900) as i64 - 4950,
            };
            let node = Node {
                name: format!("n{index}"),
                watch: None,
                process: 0,
                is_alive: true,
                stopped_until: 0,
                clock_offset: below(&mut world.random, 1 << 40),
                clock_drift: if is_extreme { 4950 * drift.signum() } else { drift },
                copies: BTreeMap::new(),
                closing: None,
                fill_at: 0,
                work_at: 0,
                tick_at: 0,
                was: None,
            };
            world.nodes.push(node);
            world.start(index, MemberIdentity { id: MemberId(index as u16), since: 1 });
        }
        if matches!(kind, Kind::Unanswered | Kind::Drifting) {
            world.no_register.insert(servers - 1, u64::MAX);
        }
        if kind == Kind::Chaos {
            world.schedule(50 * MS, Event::Trouble);
        }
        world
    }

    fn below(&mut self, end: u64) -> u64 {
        below(&mut self.random, end)
    }

    fn schedule(&mut self, after: u64, event: Event) {
        let place = self.free.pop().unwrap_or_else(|| {
            self.waiting.push(None);
            assert!(self.waiting.len() < EVENTS_MAX, "at {} ms: a storm of messages", self.now / MS);
            self.waiting.len() - 1
        });
        self.waiting[place] = Some(event);
        self.order += 1;
        self.events.push(Reverse((self.now + after, self.order, place)));
    }

    /// Starts a server's process, with the configuration that the register has now.
    fn start(&mut self, index: usize, identity: MemberIdentity) {
        let stored = self.register.clone();
        let parts: Vec<PartId> = stored.configuration.parts.iter().map(|part| part.id).collect();
        let node = &mut self.nodes[index];
        node.process += 1;
        node.is_alive = true;
        node.closing = None;
        node.watch = Some(MemberWatch::new(identity, stored, node.clock(self.now)));
        for part in parts {
            node.copies.entry(part).or_default();
        }
        self.after(index);
    }

    pub fn run_for(&mut self, time: Duration) {
        let end = self.now + time.as_nanos() as u64;
        while self.step(end) {}
    }

    fn step(&mut self, end: u64) -> bool {
        let Some(Reverse((time, _, place))) =
            self.events.peek().copied().filter(|Reverse((time, ..))| *time <= end)
        else {
            self.now = end;
            return false;
        };
        self.events.pop();
        self.now = time;
        let event = self.waiting[place].take().expect("scheduled");
        self.free.push(place);
        self.digest = (self.digest ^ time).wrapping_mul(0x0100_0000_01b3);
        self.happen(event);
        true
    }

    fn happen(&mut self, event: Event) {
        let index = match &event {
            Event::Tick { node, .. }
            | Event::Arrives { node, .. }
            | Event::Answer { node, .. }
            | Event::Testimony { node, .. }
            | Event::Ended { node, .. } => *node,
            Event::Register { node, process, swap } => {
                return self.ask_register(*node, *process, swap.as_ref());
            }
            Event::Trouble => return self.trouble(),
        };
        let node = &self.nodes[index];
        if !node.is_alive {
            return;
        }
        // A stopped process finds everything when it goes on.
        if self.now < node.stopped_until {
            return self.schedule(node.stopped_until.saturating_sub(self.now), event);
        }
        let (clock, process, tick_at) = (node.clock(self.now), node.process, node.tick_at);
        let watch = self.nodes[index].watch.as_mut().expect("alive");
        match event {
            // Another one was planned in its place.
            Event::Tick { process: of, at, .. } if of != process || at != tick_at => return,
            Event::Tick { .. } => self.nodes[index].tick_at = 0,
            Event::Arrives { from, process, message, .. } => watch.receive(from, process, message, clock),
            Event::Answer { process: of, .. } if of != process => return,
            Event::Answer { swap: true, outcome, .. } => watch.swapped(outcome, clock),
            Event::Answer { outcome: Some(SwapOutcome::Changed(Some(stored))), .. } => {
                watch.learn(stored, clock)
            }
            Event::Answer { .. } => watch.read_failed(),
            Event::Testimony { member, .. } => watch.testify(member, clock),
            Event::Ended { member, process, is_last, .. } => {
                watch.process_ended(member, process, is_last, clock);
            }
            Event::Register { .. } | Event::Trouble => {}
        }
        self.after(index);
    }

    /// What a server does after each event: its tick, what its watch says, and its own work.
    fn after(&mut self, index: usize) {
        let now = self.now;
        let node = &mut self.nodes[index];
        let clock = node.clock(now);
        if let Some((epoch, _)) = node.closing.filter(|(_, at)| *at <= now) {
            node.closing = None;
            node.watch.as_mut().expect("alive").closed(epoch, clock);
        }
        self.work(index);
        let node = &mut self.nodes[index];
        let watch = node.watch.as_mut().expect("alive");
        watch.tick(clock);
        let actions = watch.take_actions();
        let me = watch.me();
        for action in actions {
            self.act(index, me, action);
        }
        let node = &self.nodes[index];
        let mut next = node.until(now, node.watch().next_tick()).max(MS / 100);
        if let Some((_, at)) = node.closing {
            next = next.min(at.saturating_sub(now).max(1));
        }
        self.check(index);
        // One tick is planned for each process; an earlier one replaces it.
        if node.tick_at <= now || now + next < node.tick_at {
            let process = node.process;
            self.nodes[index].tick_at = now + next;
            self.schedule(next, Event::Tick { node: index, process, at: now + next });
        }
    }

    fn act(&mut self, index: usize, me: MemberIdentity, action: MemberAction) {
        let process = self.nodes[index].process;
        match action {
            MemberAction::Send { to, message } => self.send(index, me, to, message),
            MemberAction::Swap { expected, next } => {
                let delay = self.register_delay();
                self.schedule(delay, Event::Register { node: index, process, swap: Some((expected, next)) });
            }
            MemberAction::Read => {
                let delay = self.register_delay();
                self.schedule(delay, Event::Register { node: index, process, swap: None });
            }
            MemberAction::Adopt(stored) => {
                self.tell(index, || format!("adopts {}", stored.configuration.epoch));
                let under_way = self.below(3 * MS);
                self.nodes[index].closing = Some((stored.configuration.epoch, self.now + under_way));
            }
            MemberAction::Unblocked(epoch) => self.unblocked(index, epoch),
            MemberAction::Expelled => {
                self.nodes[index].was = Some(me);
                // It comes back as another member, with an empty memory. First it has to be one.
                self.nodes[index].copies.values_mut().for_each(|copy| *copy = Copy::default());
            }
        }
    }

    fn send(&mut self, index: usize, me: MemberIdentity, to: MemberIdentity, message: MemberMessage) {
        *self.sent.entry(name_of(&message)).or_default() += 1;
        let Some(to) = self
            .nodes
            .iter()
            .position(|node| node.is_alive && node.watch.as_ref().is_some_and(|it| it.me() == to))
        else {
            return;
        };
        let is_cut = self.cuts.get(&(index, to)).is_some_and(|until| self.now < *until);
        if matches!(self.kind, Kind::Unanswered | Kind::Drifting)
            && index == self.nodes.len() - 1
            && matches!(message, MemberMessage::Alive { .. })
        {
            return;
        }
        if is_cut || self.below(1000) < self.lost_of_1000 {
            return;
        }
        let (least, most) = self.delay;
        let mut delay = least + self.below(most - least);
        if !self.is_peace && self.below(200) == 0 {
            delay += self.below(150 * MS);
        }
        let process = self.nodes[index].watch().process();
        self.schedule(delay, Event::Arrives { node: to, from: me, process, message });
    }

    fn register_delay(&mut self) -> u64 {
        MS / 5 + self.below(if self.is_peace { 2 * MS } else { 20 * MS })
    }

    /// Those who watch the register see what was written, unless they do not reach it.
    fn tell_watches(&mut self) {
        for node in 0..self.nodes.len() {
            let is_away = self.no_register.get(&node).is_some_and(|until| self.now < *until);
            if !is_away && (self.is_peace || self.below(2) == 0) {
                let (delay, process) = (self.register_delay(), self.nodes[node].process);
                let outcome = Some(SwapOutcome::Changed(Some(self.register.clone())));
                self.schedule(delay, Event::Answer { node, process, swap: false, outcome });
            }
        }
    }

    fn ask_register(&mut self, node: usize, process: u64, swap: Option<&(Revision, Box<Configuration>)>) {
        let is_away = self.no_register.get(&node).is_some_and(|until| self.now < *until);
        let mut outcome = None;
        if !is_away {
            outcome = Some(SwapOutcome::Changed(Some(self.register.clone())));
            if let Some((expected, next)) = swap {
                if *expected == self.register.revision {
                    next.check().expect("a right configuration");
                    let revision = Revision(expected.0 + 1);
                    self.register = StoredConfiguration { revision, configuration: next.as_ref().clone() };
                    outcome = Some(SwapOutcome::Swapped(revision));
                    if matches!(self.kind, Kind::Unanswered | Kind::Drifting) && node == 0 {
                        // Nobody tells the server that is expelled.
                        let last = self.nodes.len() - 1;
                        for from in 0..last {
                            self.cuts.insert((from, last), u64::MAX);
                        }
                    }
                    if self.kind == Kind::Unanswered && node == 0 {
                        // Its keeper says so to the one that takes over.
                        let me = self.nodes[node].watch().me();
                        self.nodes[node].is_alive = false;
                        self.nodes[node].was = Some(me);
                        let delay = self.below(MS);
                        self.schedule(delay, Event::Testimony { node: 1, member: me });
                    }
                    self.tell_watches();
                    let it = &self.register.configuration;
                    let members: Vec<_> =
                        it.members.iter().map(|member| (member.id.0, member.since)).collect();
                    self.tell(node, || {
                        format!(
                            "swaps {}: manager {}, {members:?}, {} unblocked, {:?}",
                            it.epoch, it.manager, it.unblocked, it.former
                        )
                    });
                }
            }
            // The answer may be lost.
            if !self.is_peace && self.below(10) == 0 {
                outcome = None;
            }
        }
        let delay = if outcome.is_some() { self.register_delay() } else { 50 * MS };
        self.schedule(delay, Event::Answer { node, process, swap: swap.is_some(), outcome });
    }

    pub fn now_since(&self, time: u64) -> Duration {
        Duration::from_nanos(self.now - time)
    }

    pub fn lease(&self) -> Duration {
        self.register.configuration.times().lease()
    }

    /// Returns the bytes of the configuration, as the register holds it.
    pub fn configuration_bytes(&self) -> usize {
        self.register.configuration.to_json().len()
    }

    pub fn epochs(&self) -> u64 {
        self.register.configuration.epoch
    }

    /// Prints what happens, when one seed runs alone.
    fn tell(&self, node: usize, what: impl Fn() -> String) {
        if std::env::var_os("CARAVAN_SEED").is_some() {
            println!("{:9} us: {} {}", self.now / 1000, self.nodes[node].name, what());
        }
    }
}

fn name_of(message: &MemberMessage) -> &'static str {
    match message {
        MemberMessage::Request { .. } => "request",
        MemberMessage::Grant { .. } => "grant",
        MemberMessage::Probe { .. } => "probe",
        MemberMessage::Alive { .. } => "alive",
        MemberMessage::Unblocked { .. } => "unblocked",
        MemberMessage::Configuration(_) => "configuration",
        _ => "other",
    }
}

/// SplitMix64.
fn below(random: &mut u64, end: u64) -> u64 {
    *random = random.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut number = *random;
    number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (number ^ (number >> 31)) % end.max(1)
}
