//! `MemberWatch`: what a member does to keep its lease, to notice that another one is gone, and to change the epoch.
//!
//! It has no clock, thread or socket: it gets times and messages, and says what to do ([`MemberAction`]).
//!
//! # What its user does
//!
//! ```text
//! loop {
//!     carry out all of watch.take_actions();
//!     sleep until watch.next_tick(), a message, news of the register, or the end of a process;
//!     call receive, learn, process_ended, ...; then tick(BootTime::now());
//! }
//! ```
//!
//! A thread of its own does this, so that nothing else delays it. It calls the register (read, swap) in another thread, as
//! these calls may take long, and hands in what came of them.
//!
//! # A change of members
//!
//! | step | who | what it waits for |
//! |---|---|---|
//! | suspect | the manager; its successors, one after the other, if it is the manager who is silent | the end of a lease or of a process, a testimony, or [`suspect`](MemberWatch::suspect) |
//! | probe | the same | the answers of all members, or their time; it goes on only with at least half of the members |
//! | swap | the same | the register |
//! | adopt | each member | [`closed`](MemberWatch::closed): none of its commits of the old epoch is between the check of its lease and its end; and the end of the leases that it has granted to an expelled manager |
//! | acknowledge | each member | nothing |
//! | unblock | the manager of the new epoch | the acknowledgements of all members, and the ends of the leases of all who were expelled, which end with their processes |
//!
//! A part whose primary stays the same goes on all the time ([`serves`](MemberWatch::serves)); one that has a new primary
//! is served from unblocking on.

mod epoch;
mod expulsion;
mod leases;
mod messages;
mod processes;

pub use messages::{MemberAction, MemberMessage};

use std::collections::{BTreeMap, BTreeSet};

use crate::clock::BootTime;
use crate::configuration::{Configuration, MemberId, MemberIdentity, PartId};
use crate::faults::{LeaseFault, is_planted};
use crate::lease::{LeaseGranter, LeaseHolder, ProcessNumber};
use crate::placement::{Change, Occasion, next_configuration};
use crate::register::{StoredConfiguration, SwapOutcome};
use crate::times::LeaseTimes;

/// How many changes may wait for the manager.
const CHANGES_MAX: usize = 4096;

/// A member's view of its cluster.
#[derive(Debug)]
pub struct MemberWatch {
    me: MemberIdentity,
    process: ProcessNumber,
    /// The newest configuration that this member knows, which it has adopted.
    stored: StoredConfiguration,
    /// Whether this server is a member no longer.
    is_expelled: bool,
    /// The newest epoch that is known to be unblocked.
    unblocked: u64,
    /// The newest epoch of whose predecessors nothing is under way here.
    closed: u64,
    /// Those with which this member leases mutually: all others at the manager, the manager elsewhere.
    peers: BTreeMap<MemberId, LeasePeer>,
    /// Leases that this member has granted to managers that were expelled since. It acknowledges when they have ended.
    granted_before: BTreeMap<MemberIdentity, LeaseGranter>,
    /// When the leases of former members have ended for certain, as far as this manager has granted them itself.
    known_ends: BTreeMap<MemberIdentity, LeaseGranter>,
    /// When this member has renewed its own lease for the last time.
    own_lease_from: BootTime,
    /// The epoch from which on this member is the manager without a break.
    manager_since: u64,
    /// When the acknowledgements of all members had arrived.
    all_acknowledged_at: Option<BootTime>,
    /// When the configuration was adopted.
    adopted_at: BootTime,
    /// Whose keepers have testified to their end.
    testified: BTreeSet<MemberIdentity>,
    /// What is known of the processes of the members.
    processes: BTreeMap<MemberIdentity, MemberProcesses>,
    /// Who is suspected.
    suspects: BTreeMap<MemberId, Suspicion>,
    probe: Option<ProbeRound>,
    probes: u64,
    /// Whether a swap or a read of the register is under way.
    asks_register: bool,
    /// What the swap under way would write.
    swapping: Option<Box<Configuration>>,
    /// How often the register could not be asked, since this member adopted its epoch.
    register_failures: usize,
    /// Until when this member does the manager's work, which has asked it to.
    relieves_until: BootTime,
    /// What is asked for, for the next change.
    changes: Vec<Change>,
    /// The epoch in which the placement had nothing left to do.
    settled: u64,
    positions: BTreeMap<PartId, u64>,
    next_renewal: BootTime,
    last_tick: BootTime,
    actions: Vec<MemberAction>,
}

/// The leases between this member and another one.
#[derive(Debug)]
struct LeasePeer {
    identity: MemberIdentity,
    /// The lease that the other one grants.
    holder: LeaseHolder,
    /// The lease that the other one holds.
    granter: LeaseGranter,
    /// A request, and the process that has asked, which is answered as soon as this member may grant.
    waiting: Option<(u64, ProcessNumber)>,
    /// When the other one has asked for the last time.
    heard_at: BootTime,
    /// It is not suspected for its silence before.
    patience_until: BootTime,
    /// The newest epoch that it has acknowledged.
    acknowledged: u64,
    /// The newest epoch in which it has asked for a lease: in that, it holds none of earlier managers.
    asked_in: u64,
}

/// Why a member is suspected.
#[derive(Clone, Copy, Debug)]
struct Suspicion {
    since: BootTime,
    /// Whether it has been silent for a lease already: then a probe need not wait for that long again.
    is_silent: bool,
}

/// What is known of the processes of a member, one of which follows the other.
#[derive(Clone, Copy, Debug)]
struct MemberProcesses {
    /// The newest one that this member has heard of.
    newest: ProcessNumber,
    /// Whether that one has ended.
    has_ended: bool,
    /// Whether no other one follows.
    is_last: bool,
}

/// A probe that is under way.
#[derive(Debug)]
struct ProbeRound {
    number: u64,
    began: BootTime,
    /// Who has answered, and in which epoch it is.
    answered: BTreeMap<MemberIdentity, u64>,
    positions: BTreeMap<(PartId, MemberId), u64>,
}

impl MemberWatch {
    /// Starts with a configuration in which `me` is a member. It holds no lease yet, and may have granted any: a server that
    /// is started again does not know what it did before.
    ///
    /// A server that is no member proposes to join ([`MemberMessage::Propose`] to any member), watches the register until
    /// it is one, and starts then.
    pub fn new(me: MemberIdentity, stored: StoredConfiguration, now: BootTime) -> Self {
        let mut watch = Self {
            me,
            process: ProcessNumber(now.0),
            is_expelled: !stored.configuration.has(me),
            unblocked: stored.configuration.unblocked,
            closed: stored.configuration.epoch,
            peers: BTreeMap::new(),
            granted_before: BTreeMap::new(),
            known_ends: BTreeMap::new(),
            own_lease_from: now,
            manager_since: stored.configuration.epoch,
            all_acknowledged_at: None,
            adopted_at: now,
            testified: BTreeSet::new(),
            processes: BTreeMap::new(),
            suspects: BTreeMap::new(),
            probe: None,
            // As for requests: no earlier process of this host has used these numbers.
            probes: now.0,
            asks_register: false,
            swapping: None,
            register_failures: 0,
            relieves_until: BootTime::default(),
            changes: Vec::new(),
            settled: 0,
            positions: BTreeMap::new(),
            next_renewal: now,
            last_tick: now,
            // Nobody unblocks the first epoch, which has none before it.
            actions: vec![MemberAction::Unblocked(stored.configuration.unblocked)],
            stored,
        };
        let times = watch.times();
        let former = watch.configuration().former.iter().map(|former| former.identity).collect::<Vec<_>>();
        for identity in former {
            let mut granter = LeaseGranter::default();
            granter.grant(now, times, None);
            watch.granted_before.insert(identity, granter);
        }
        watch.meet_peers(now);
        for peer in watch.peers.values_mut() {
            peer.granter.grant(now, times, None);
        }
        watch
    }

    /// Does what is due. Call this after anything else, and at [`next_tick`](Self::next_tick).
    pub fn tick(&mut self, now: BootTime) {
        if self.is_expelled {
            self.last_tick = now;
            return;
        }
        // Who was stopped has heard nobody, and knows nothing of them.
        let lease = self.times().lease();
        if now.since(self.last_tick) > lease / 2 {
            let patience_until = now + lease;
            self.peers.values_mut().for_each(|peer| peer.patience_until = patience_until);
            self.suspects.clear();
            self.probe = None;
        }
        self.last_tick = now;
        self.own_lease_from = now;
        self.renew(now);
        self.suspect_the_silent(now);
        self.probe_if_due(now);
        self.end_probe(now);
        self.unblock_if_due(now);
        self.change_if_due(now);
    }

    /// Returns when something is due at the latest.
    pub fn next_tick(&self) -> BootTime {
        if self.is_expelled {
            return self.last_tick + self.times().lease();
        }
        let step = if self.probe.is_some() || !self.suspects.is_empty() || self.unblocked < self.epoch() {
            self.times().glance()
        } else {
            self.times().renewal()
        };
        (self.last_tick + step).min(self.next_renewal.max(self.last_tick))
    }

    /// Takes a message.
    pub fn receive(
        &mut self,
        from: MemberIdentity,
        process: ProcessNumber,
        message: MemberMessage,
        now: BootTime,
    ) {
        if !self.hear_process(from, process) {
            return;
        }
        if let Some(epoch) = message.epoch() {
            if epoch > self.epoch() {
                self.send(from, MemberMessage::AskConfiguration { epoch: self.epoch() });
                // Its sender waits for an answer that this member can give in any epoch.
                if !matches!(message, MemberMessage::Probe { .. }) {
                    return;
                }
            } else if epoch < self.epoch() {
                self.send(from, MemberMessage::Configuration(Box::new(self.stored.clone())));
            }
        }
        match message {
            MemberMessage::Request { epoch, number, acknowledged } => {
                if epoch == self.epoch() {
                    self.requested(from, process, number, acknowledged, now);
                }
            }
            MemberMessage::Grant { epoch, number, unblocked } => {
                if epoch == self.epoch() {
                    self.granted(from, number, unblocked, now);
                }
            }
            MemberMessage::Probe { number, .. } => self.send(
                from,
                MemberMessage::Alive {
                    epoch: self.epoch(),
                    number,
                    positions: self.positions.iter().map(|(part, position)| (*part, *position)).collect(),
                },
            ),
            MemberMessage::Alive { epoch, number, positions } => {
                self.answered(from, epoch, number, &positions)
            }
            MemberMessage::Unblocked { epoch } => {
                if epoch == self.epoch() && self.is_manager(from) {
                    self.set_unblocked(epoch);
                }
            }
            MemberMessage::TakeOver { epoch } => {
                if epoch == self.epoch() && self.is_manager(from) {
                    self.relieves_until = now + self.times().relief();
                }
            }
            MemberMessage::Configuration(stored) => self.learn(*stored, now),
            MemberMessage::AskConfiguration { .. } => {}
            MemberMessage::Suspect(member) => self.suspect(member, now),
            MemberMessage::Testimony(member) => self.note_testimony(member),
            MemberMessage::Ended { member, process, is_last } => {
                self.note_end(member, process, is_last, now);
            }
            MemberMessage::Propose(change) => self.propose(change, now),
        }
    }

    /// Takes what the register holds: after [`MemberAction::Read`], and whenever a watch of it returns.
    pub fn learn(&mut self, stored: StoredConfiguration, now: BootTime) {
        let mine = self.configuration();
        let is_ours =
            (&stored.configuration.store, stored.configuration.instance) == (&mine.store, mine.instance);
        self.asks_register = self.swapping.is_some();
        if is_ours && stored.revision > self.stored.revision && stored.configuration.epoch > self.epoch() {
            self.adopt(stored, now);
        }
    }

    /// Takes the outcome of a swap; none if the register could not be asked.
    pub fn swapped(&mut self, outcome: Option<SwapOutcome>, now: BootTime) {
        let next = self.swapping.take();
        self.asks_register = false;
        match (outcome, next) {
            (Some(SwapOutcome::Swapped(revision)), Some(next)) => {
                self.learn(StoredConfiguration { revision, configuration: *next }, now);
            }
            (Some(SwapOutcome::Changed(Some(stored))), _) => self.learn(stored, now),
            // It may have been written.
            _ => {
                self.ask_for_relief();
                self.asks_register = true;
                self.actions.push(MemberAction::Read);
            }
        }
    }

    /// Says that a read of the register that was asked for has failed.
    pub fn read_failed(&mut self) {
        self.asks_register = self.swapping.is_some();
        self.ask_for_relief();
    }

    /// Says that nothing of epochs before this one is under way at this member.
    pub fn closed(&mut self, epoch: u64, now: BootTime) {
        self.closed = self.closed.max(epoch);
        // An acknowledgement at once, with the next request.
        self.next_renewal = now;
    }

    /// Asks for a change, here or at the manager. It may be lost: propose it again until the configuration shows it.
    pub fn propose(&mut self, change: Change, _now: BootTime) {
        if self.configuration().manager != self.me.id {
            if let Some(manager) = self.manager() {
                self.send(manager, MemberMessage::Propose(change));
            }
        } else if self.changes.len() < CHANGES_MAX && !self.changes.contains(&change) {
            self.changes.push(change);
            self.settled = 0;
        }
    }

    /// Notes how long the streams of this member's copies are.
    pub fn note_positions(&mut self, positions: BTreeMap<PartId, u64>) {
        self.positions = positions;
    }

    /// Returns what is to be done, in this order.
    pub fn take_actions(&mut self) -> Vec<MemberAction> {
        std::mem::take(&mut self.actions)
    }

    /// Says whether this member serves the part at this moment: it is the primary, its lease holds, and the epoch in which
    /// it became the primary is unblocked.
    pub fn serves(&self, part: PartId, now: BootTime) -> bool {
        let part = self.configuration().part(part);
        let is_mine = part.is_some_and(|part| {
            let is_unblocked = part.primary_since <= self.unblocked || is_planted(LeaseFault::ServedBlocked);
            part.made && part.primary == Some(self.me.id) && is_unblocked
        });
        is_mine && now < self.lease_until()
    }

    /// Returns the newest epoch that is known to be unblocked.
    pub fn unblocked(&self) -> u64 {
        self.unblocked
    }

    /// Returns the configuration, and which revision of the register it is.
    pub fn stored(&self) -> &StoredConfiguration {
        &self.stored
    }

    /// Returns the configuration.
    pub fn configuration(&self) -> &Configuration {
        &self.stored.configuration
    }

    /// Returns which member this is.
    pub fn me(&self) -> MemberIdentity {
        self.me
    }

    fn times(&self) -> LeaseTimes {
        self.configuration().times()
    }

    /// Returns which process this is.
    pub fn process(&self) -> ProcessNumber {
        self.process
    }

    fn epoch(&self) -> u64 {
        self.stored.configuration.epoch
    }

    /// Returns the manager's identity.
    fn manager(&self) -> Option<MemberIdentity> {
        self.configuration().member(self.configuration().manager).map(|member| member.identity())
    }

    fn is_manager(&self, identity: MemberIdentity) -> bool {
        self.manager() == Some(identity)
    }

    fn i_am_manager(&self) -> bool {
        !self.is_expelled && self.is_manager(self.me)
    }

    fn send(&mut self, to: MemberIdentity, message: MemberMessage) {
        self.actions.push(MemberAction::Send { to, message });
    }

    /// Sends a message to all other members and to those who were members.
    fn tell_all(&mut self, message: &MemberMessage) {
        let configuration = self.configuration();
        let members = configuration.members.iter().map(|member| member.identity());
        let former = configuration.former.iter().map(|former| former.identity);
        let others: Vec<_> = members.chain(former).filter(|identity| *identity != self.me).collect();
        for other in others {
            self.send(other, message.clone());
        }
    }

    /// As the manager of an unblocked epoch: makes the changes that were asked for, and the placement's next step.
    fn change_if_due(&mut self, now: BootTime) {
        let is_idle = self.suspects.is_empty() && self.probe.is_none() && !self.asks_register;
        let is_due = self.i_am_manager() && self.unblocked == self.epoch() && self.settled != self.epoch();
        if !is_due || !is_idle || now >= self.lease_until() || self.has_gone_members() {
            return;
        }
        let changes = std::mem::take(&mut self.changes);
        let occasion = Occasion { is_unblocked: true, changes: &changes, ..Occasion::default() };
        match next_configuration(self.configuration(), &occasion) {
            Some(next) => self.swap(next),
            None => self.settled = self.epoch(),
        }
    }

    fn swap(&mut self, next: Configuration) {
        let next = Box::new(next);
        self.swapping = Some(next.clone());
        self.asks_register = true;
        self.actions.push(MemberAction::Swap { expected: self.stored.revision, next });
    }
}
