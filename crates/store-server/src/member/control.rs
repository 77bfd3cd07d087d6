//! The thread `member`: it drives [`MemberWatch`], and does nothing that takes long.

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use caravan_cluster::{
    BootTime, Change, Configuration, Member, MemberAction, MemberIdentity, MemberMessage, MemberState,
    MemberWatch, PartId, StoredConfiguration,
};
use caravan_segment::process::Process;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::duty::PartDuty;
use super::line::MemberLine;
use super::neighbours::{self, NeighbourEnd, Neighbours};
use super::part::{HeldMemory, PartHandle, PartOrder, PartThread};
use super::register::{RegisterCall, RegisterThreads};
use super::{GoneReason, Letter, MemberEvent, MemberShared, address, dial, spawn};
use crate::limits::{LINE_MESSAGES_WAITING, LINE_PAUSE, MEMBER_TICK};
use crate::socket::say;

/// The thread `member`.
pub(super) struct MemberControl {
    pub(super) watch: MemberWatch,
    pub(super) shared: Arc<MemberShared>,
    pub(super) register: RegisterThreads,
    /// The ways to the other members.
    pub(super) ways: BTreeMap<MemberIdentity, MemberWay>,
    /// The connections of others.
    pub(super) callers: Vec<MemberCaller>,
    pub(super) neighbours: Neighbours,
    pub(super) parts: BTreeMap<PartId, PartHandle>,
    pub(super) held: BTreeMap<PartId, HeldMemory>,
    /// The epoch that is being adopted, and the parts that have not closed the one before.
    pub(super) closing: Option<(u64, Vec<PartId>)>,
    /// Whether this member was asked to leave.
    pub(super) is_leaving: bool,
    pub(super) ticked: Instant,
    pub(super) gone: Option<Box<dyn FnOnce(GoneReason) + Send>>,
}

/// A connection of another member.
pub(super) struct MemberCaller {
    line: MemberLine,
    /// The process that has connected, until it says who it is.
    process: Option<Process>,
}

pub(super) enum MemberWay {
    Open(MemberLine),
    /// It is being connected to, and gets these messages then: a server that starts again has no time to lose.
    Dialing(Vec<MemberMessage>),
    /// Nobody tries before this moment.
    Closed(Instant),
}

impl MemberControl {
    pub(super) fn run(mut self) {
        // What the configuration says at first is adopted like any other one.
        let first = self.watch.stored().clone();
        self.adopt(&first);
        while !self.shared.is_ending() {
            for action in self.watch.take_actions() {
                self.act(action);
            }
            self.shared.served.set_lease(self.watch.lease_until());
            let has_ends = self.wait();
            let now = BootTime::now();
            for event in self.shared.inbox.take() {
                self.take(event, now);
            }
            self.receive(now);
            if has_ends {
                self.note_ends(now);
            }
            if self.ticked.elapsed() >= MEMBER_TICK {
                self.ticked = Instant::now();
                self.tick();
            }
            self.watch.tick(BootTime::now());
        }
    }

    /// Waits for something to do; returns whether a process of this host has ended.
    fn wait(&self) -> bool {
        let open = self
            .ways
            .values()
            .filter_map(|way| if let MemberWay::Open(line) = way { Some(line) } else { None });
        let mut ready: Vec<_> = open
            .map(|line| {
                let flags = if line.is_blocked() { PollFlags::OUT } else { PollFlags::empty() };
                PollFd::from_borrowed_fd(line.as_fd(), PollFlags::IN | flags)
            })
            .chain(
                self.callers
                    .iter()
                    .map(|caller| PollFd::from_borrowed_fd(caller.line.as_fd(), PollFlags::IN)),
            )
            .collect();
        let lines = ready.len();
        ready.extend(self.neighbours.descriptors().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
        let processes = lines..ready.len();
        ready.push(PollFd::from_borrowed_fd(self.shared.inbox.as_fd(), PollFlags::IN));
        let due = self.watch.next_tick().since(BootTime::now());
        let due = due.min(MEMBER_TICK.saturating_sub(self.ticked.elapsed()));
        let _ = poll(&mut ready, Timespec::try_from(due).ok().as_ref());
        ready[processes].iter().any(|process| !process.revents().is_empty())
    }

    /// Tells all what has ended on this host.
    fn note_ends(&mut self, now: BootTime) {
        for NeighbourEnd { member, process, is_last } in self.neighbours.ends() {
            self.watch.process_ended(member, process, is_last, now);
        }
    }

    /// Greets the members of this host whose keepers are not known: a connection names a process to each side.
    fn greet_neighbours(&mut self, configuration: &Configuration) {
        for member in &configuration.members {
            let identity = member.identity();
            let is_here = address::is_of_host(&member.member_address, &self.shared.host);
            if is_here && identity != self.shared.me && !self.neighbours.knows_keeper(identity) {
                self.send(identity, MemberMessage::AskConfiguration { epoch: configuration.epoch });
            }
        }
    }

    fn act(&mut self, action: MemberAction) {
        match action {
            MemberAction::Send { to, message } => self.send(to, message),
            MemberAction::Swap { expected, next } => {
                if !self.register.ask(RegisterCall::Swap { expected, next }) {
                    self.watch.swapped(None, BootTime::now());
                }
            }
            // If it cannot be asked now, it is being asked.
            MemberAction::Read => drop(self.register.ask(RegisterCall::Read)),
            MemberAction::Adopt(stored) => self.adopt(&stored),
            MemberAction::Unblocked(epoch) => {
                self.parts.values().for_each(|part| part.inbox.push(PartOrder::Unblocked(epoch)));
            }
            MemberAction::Expelled => {
                self.shared.served.set_lease(BootTime::default());
                let reason = if self.is_leaving { GoneReason::Left } else { GoneReason::Expelled };
                self.gone.take().into_iter().for_each(|gone| gone(reason));
            }
        }
    }

    /// Tells all parts what they are to be; the last one that has closed what was before completes the change.
    fn adopt(&mut self, stored: &StoredConfiguration) {
        let configuration = &stored.configuration;
        let own = self.shared.me.id;
        let state = configuration.member(own).map(|member| member.state);
        self.is_leaving = state == Some(MemberState::Leaving);
        let has_part = |id: PartId| {
            configuration.part(id).is_some_and(|part| part.holders().any(|holder| holder == own))
        };
        let ids = configuration
            .parts
            .iter()
            .map(|part| part.id)
            .filter(|id| has_part(*id) || self.held.contains_key(id));
        for id in ids.collect::<Vec<_>>() {
            if self.parts.contains_key(&id) {
                continue;
            }
            match PartThread::start(&self.shared, id, self.held.remove(&id)) {
                Ok(handle) => drop(self.parts.insert(id, handle)),
                Err(error) => (self.shared.tell)(&format!("part {id} of the store: {error}")),
            }
        }
        for (id, part) in &self.parts {
            part.inbox.push(PartOrder::Duty(PartDuty::of(configuration, *id, own)));
        }
        self.ways.retain(|member, _| configuration.has(*member));
        self.neighbours.keep(configuration);
        self.greet_neighbours(configuration);
        self.closing = Some((configuration.epoch, self.parts.keys().copied().collect()));
        self.finish_closing();
    }

    fn finish_closing(&mut self) {
        if let Some((epoch, _)) = self.closing.take_if(|(_, parts)| parts.is_empty()) {
            self.shared.served.set_configuration(&self.watch.stored().configuration, self.shared.me.id);
            self.watch.closed(epoch, BootTime::now());
        }
    }

    fn take(&mut self, event: MemberEvent, now: BootTime) {
        match event {
            MemberEvent::Connected(socket, process) => {
                let line = MemberLine::new(socket).ok();
                self.callers.extend(line.map(|line| MemberCaller { line, process }));
            }
            MemberEvent::Dialed(member, socket) => {
                let keeper = socket.as_ref().and_then(neighbours::peer);
                keeper.into_iter().for_each(|keeper| self.neighbours.know_keeper(member, keeper));
                let line = socket.and_then(|socket| MemberLine::new(socket).ok());
                if let Some(way) = self.ways.get_mut(&member) {
                    let before = std::mem::replace(way, line.map_or_else(closed_way, MemberWay::Open));
                    if let MemberWay::Dialing(waiting) = before {
                        waiting.into_iter().for_each(|message| self.send(member, message));
                    }
                }
            }
            MemberEvent::Learned(stored) => self.watch.learn(*stored, now),
            MemberEvent::NotRead => self.watch.read_failed(),
            MemberEvent::Swapped(outcome) => self.watch.swapped(outcome, now),
            MemberEvent::Closed(part, epoch) => {
                if let Some((closing, parts)) = &mut self.closing {
                    if *closing == epoch {
                        parts.retain(|other| *other != part);
                    }
                }
                self.finish_closing();
            }
            MemberEvent::Propose(change) => self.watch.propose(change, now),
            MemberEvent::Leave(name, socket) => {
                let answer = self.leave(&name, now);
                say(&socket, &answer.map_or_else(|why| format!("-ERR {why}\r\n"), |()| "+OK\r\n".to_owned()));
            }
            MemberEvent::Suspect(member) => self.watch.suspect(member, now),
            MemberEvent::Call(call, caller) => match self.parts.get(&call.part) {
                Some(part) => part.inbox.push(PartOrder::Call(Box::new((call, caller)))),
                None => caller.refuse("this member has no copy of the part"),
            },
            MemberEvent::End { is_last, told } => {
                self.shared.served.set_lease(BootTime::default());
                self.watch.end(is_last);
                self.watch.take_actions().into_iter().for_each(|action| self.act(action));
                drop(told);
            }
        }
    }

    /// Proposes that a member leaves.
    fn leave(&mut self, name: &str, now: BootTime) -> Result<(), String> {
        let configuration = self.watch.configuration();
        let member = configuration.member_by_name(name);
        let member = member.ok_or_else(|| format!("the store has no server with the name {name}"))?;
        let stays = |other: &&Member| other.name != name && other.state == MemberState::Joined;
        if configuration.members.iter().find(stays).is_none() {
            return Err(format!(
                "{name} is the only server that is to stay: end it instead, and its keys are gone"
            ));
        }
        let change = Change::Leave(member.identity());
        self.watch.propose(change, now);
        Ok(())
    }

    /// Takes the messages of the others.
    fn receive(&mut self, now: BootTime) {
        let (watch, me) = (&mut self.watch, self.shared.me);
        let (neighbours, mut has_strangers) = (&mut self.neighbours, false);
        self.callers.retain_mut(|MemberCaller { line, process }| {
            let received = line.receive(|letter: Letter| match (letter.from, letter.message) {
                _ if letter.to != me => {}
                (Some((from, number)), message) => {
                    let process = process.take_if(|_| watch.configuration().has(from));
                    has_strangers |=
                        process.is_some_and(|process| neighbours.know_server(from, number, process));
                    watch.receive(from, number, message, now);
                }
                (None, MemberMessage::Propose(change @ Change::Join(_))) => watch.propose(change, now),
                (None, MemberMessage::Testimony(member)) => watch.testify(member, now),
                (None, _) => {}
            });
            received.is_ok()
        });
        if has_strangers {
            let configuration = self.watch.configuration().clone();
            self.greet_neighbours(&configuration);
        }
        let mut lost = Vec::new();
        for (member, way) in &mut self.ways {
            let MemberWay::Open(line) = way else { continue };
            // Nothing comes this way but the end.
            if line.receive(|_: serde_json::Value| ()).and_then(|()| line.flush()).is_err() {
                *way = MemberWay::Closed(Instant::now());
                lost.push(*member);
            }
        }
        lost.into_iter().for_each(|member| self.watch.suspect(member, now));
    }

    /// Sends a message, or drops it if the member is out of reach.
    fn send(&mut self, to: MemberIdentity, message: MemberMessage) {
        let way = self.ways.entry(to).or_insert_with(|| MemberWay::Closed(Instant::now()));
        match way {
            MemberWay::Open(line) => {
                let letter = Letter { from: Some((self.shared.me, self.watch.process())), to, message };
                if line.send(&letter).is_err() {
                    *way = MemberWay::Closed(Instant::now());
                }
            }
            MemberWay::Dialing(waiting) => {
                if waiting.len() < LINE_MESSAGES_WAITING {
                    waiting.push(message);
                }
            }
            MemberWay::Closed(until) if *until > Instant::now() => {}
            MemberWay::Closed(_) => {
                let configuration = &self.watch.stored().configuration;
                let Some(member) = configuration.member(to.id) else { return };
                let addresses = address::reachable(&member.member_address, &self.shared.host);
                let (inbox, shared) = (Arc::clone(&self.shared.inbox), Arc::clone(&self.shared));
                let connect = move || {
                    let socket = dial(&addresses, shared.password.as_deref(), shared.instance);
                    inbox.push(MemberEvent::Dialed(to, socket));
                };
                let is_begun = spawn("member-dial", connect).is_ok();
                *way = if is_begun { MemberWay::Dialing(vec![message]) } else { closed_way() };
            }
        }
    }

    fn tick(&mut self) {
        let position = |part: &PartHandle| part.position.load(Ordering::Relaxed);
        let positions = self.parts.iter().map(|(id, part)| (*id, position(part))).collect();
        self.watch.note_positions(positions);
        self.parts.values().for_each(|part| part.inbox.push(PartOrder::Tick));
    }
}

fn closed_way() -> MemberWay {
    MemberWay::Closed(Instant::now() + LINE_PAUSE)
}
