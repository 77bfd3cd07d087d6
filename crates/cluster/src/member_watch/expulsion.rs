//! Suspicion, probe and swap: how a member that is gone is expelled.

use std::collections::{BTreeMap, BTreeSet};

use super::{MemberMessage, MemberWatch, ProbeRound, Suspicion};
use crate::clock::BootTime;
use crate::configuration::{MemberId, MemberIdentity, PartId};
use crate::faults::{LeaseFault, is_planted};
use crate::placement::{Occasion, next_configuration};

impl MemberWatch {
    /// Suspects a member, because its connection broke for example. It is probed.
    pub fn suspect(&mut self, member: MemberIdentity, now: BootTime) {
        if self.is_expelled || member == self.me || !self.configuration().has(member) {
            return;
        }
        match self.manager() {
            Some(manager) if !self.i_am_manager() && manager != member => {
                self.send(manager, MemberMessage::Suspect(member));
            }
            _ => {
                self.suspects.entry(member.id).or_insert(Suspicion { since: now, is_silent: false });
            }
        }
    }

    /// Takes a testimony: no process of the member runs, and none will. A server says so that has the name and the socket of
    /// one before it. The member's lease ends with that.
    pub fn testify(&mut self, member: MemberIdentity, _now: BootTime) {
        self.note_testimony(member);
        self.tell_all(&MemberMessage::Testimony(member));
    }

    pub(super) fn note_testimony(&mut self, member: MemberIdentity) {
        let configuration = self.configuration();
        let is_former = configuration.former.iter().any(|former| former.identity == member);
        if member != self.me && (configuration.has(member) || is_former) {
            self.testified.insert(member);
            self.granted_before.remove(&member);
            if let Some(peer) = self.peers.get_mut(&member.id).filter(|peer| peer.identity == member) {
                peer.granter.testified();
            }
        }
    }

    /// Says again who has ended, until nobody believes that it is a member.
    pub(super) fn repeat_testimonies(&mut self) {
        let testified: Vec<_> =
            self.testified.iter().copied().filter(|identity| self.configuration().has(*identity)).collect();
        for identity in testified {
            self.tell_all(&MemberMessage::Testimony(identity));
        }
    }

    /// Says whether there are members of which no process will answer any more.
    pub(super) fn has_gone_members(&self) -> bool {
        let ended = self.processes.keys().filter(|identity| self.is_gone(**identity));
        self.testified.iter().chain(ended).any(|identity| self.configuration().has(*identity))
    }

    /// Begins a probe if somebody is suspected whom this member has to expel.
    pub(super) fn probe_if_due(&mut self, now: BootTime) {
        if self.probe.is_some() || self.asks_register || !self.is_my_turn(now) {
            return;
        }
        self.probes += 1;
        self.probe = Some(ProbeRound {
            number: self.probes,
            began: now,
            answered: BTreeMap::new(),
            positions: BTreeMap::new(),
        });
        self.tell_all(&MemberMessage::Probe { epoch: self.epoch(), number: self.probes });
    }

    /// Asks those again who have not answered: the process that the probe was sent to may have ended, and the next one lives.
    pub(super) fn repeat_probe(&mut self) {
        let Some(probe) = &self.probe else { return };
        let message = MemberMessage::Probe { epoch: self.epoch(), number: probe.number };
        let members = self.configuration().members.iter().map(|member| member.identity());
        let asked = members.filter(|it| *it != self.me && !probe.answered.contains_key(it));
        let asked: Vec<_> = asked.collect();
        asked.into_iter().for_each(|member| self.send(member, message.clone()));
    }

    /// Says whether this member has somebody to expel: the manager anybody, its successors a manager that is silent, each
    /// after it has left time to those before it.
    fn is_my_turn(&self, now: BootTime) -> bool {
        if self.i_am_manager() {
            return !self.suspects.is_empty() || self.has_gone_members();
        }
        if now < self.relieves_until {
            return true;
        }
        let manager = self.manager().filter(|_| !is_planted(LeaseFault::ManagerNotReplaced));
        let Some(manager) = manager else { return false };
        let is_dead = self.is_gone(manager);
        let since = match self.suspects.get(&manager.id) {
            Some(suspicion) => suspicion.since,
            None if is_dead => self.last_tick,
            None => return false,
        };
        let successors = self.configuration().successors();
        let lives = |id: &MemberId| {
            let member = self.configuration().member(*id);
            member.is_some_and(|member| !self.is_gone(member.identity()))
        };
        let rank = successors.into_iter().filter(lives).position(|id| id == self.me.id);
        rank.is_some_and(|rank| now >= since + self.times().succession() * rank as u32)
    }

    /// As a manager that has somebody to expel and does not reach the register: asks the successors, one after the other.
    pub(super) fn ask_for_relief(&mut self) {
        if !self.i_am_manager() || (self.suspects.is_empty() && !self.has_gone_members()) {
            return;
        }
        let configuration = self.configuration();
        let lives =
            |identity: &MemberIdentity| !self.is_gone(*identity) && !self.suspects.contains_key(&identity.id);
        let successors = configuration.successors().into_iter();
        let successors = successors.filter_map(|id| configuration.member(id)).map(|member| member.identity());
        let successors: Vec<MemberIdentity> = successors.filter(lives).collect();
        if !successors.is_empty() {
            let successor = successors[self.register_failures % successors.len()];
            self.register_failures += 1;
            self.send(successor, MemberMessage::TakeOver { epoch: self.epoch() });
        }
    }

    /// Takes the answer to a probe.
    pub(super) fn answered(
        &mut self,
        from: MemberIdentity,
        epoch: u64,
        number: u64,
        positions: &[(PartId, u64)],
    ) {
        if let Some(probe) = self.probe.as_mut().filter(|probe| probe.number == number) {
            probe.answered.insert(from, epoch);
            probe.positions.extend(positions.iter().map(|(part, position)| ((*part, from.id), *position)));
        }
    }

    /// Ends a probe when all have answered, or have had their time, and expels who has not answered.
    pub(super) fn end_probe(&mut self, now: BootTime) {
        let times = self.times();
        let Some(probe) = &self.probe else { return };
        let has_answered = |identity: &MemberIdentity| probe.answered.contains_key(identity);
        let waits_for = |identity: &MemberIdentity| {
            let is_silent = self.suspects.get(&identity.id).is_some_and(|suspicion| suspicion.is_silent);
            let time = if is_silent { times.probe_of_silent() } else { times.probe() };
            !has_answered(identity) && !self.is_gone(*identity) && now < probe.began + time
        };
        let members: Vec<MemberIdentity> =
            self.configuration().members.iter().map(|it| it.identity()).collect();
        let others = || members.iter().filter(|identity| **identity != self.me);
        // Nobody waits for those who are gone, but without their votes those of former members may be needed.
        let has_votes = self.has_half_of_all(probe) || now >= probe.began + times.probe_of_silent();
        if others().any(waits_for) || !has_votes {
            return;
        }
        let dead: BTreeMap<MemberId, bool> = others()
            .filter(|identity| !has_answered(identity) || self.is_gone(**identity))
            .map(|identity| (identity.id, self.testified.contains(identity)))
            .collect();
        // Who has answered lives, and is left in peace for a lease.
        let lives = others().filter(|identity| !dead.contains_key(&identity.id)).map(|identity| identity.id);
        let lives: Vec<MemberId> = lives.collect();
        let has_half = self.has_half_of_all(probe);
        let positions = probe.positions.clone();
        for id in lives {
            self.suspects.remove(&id);
            if let Some(peer) = self.peers.get_mut(&id) {
                peer.patience_until = now + times.lease();
            }
        }
        self.probe = None;
        let manager = self.configuration().manager;
        let is_mine = manager == self.me.id || dead.contains_key(&manager) || now < self.relieves_until;
        if dead.is_empty() || !has_half || !is_mine {
            return;
        }
        let occasion = Occasion {
            is_unblocked: self.unblocked == self.epoch(),
            expelled: dead,
            successor: Some(self.me.id),
            positions,
            changes: &[],
        };
        if let Some(next) = next_configuration(self.configuration(), &occasion) {
            self.swap(next);
        }
    }

    /// Says whether at least half of those who may have granted a manager's lease, since the last epoch that is known to be
    /// unblocked, have answered: then the rest of them are not more than half, so no other manager has a lease when those
    /// who answered grant none. Who is known to have ended grants nothing.
    ///
    /// The members of that epoch are counted by themselves as well: those who joined later may be in the majority.
    fn has_half_of_all(&self, probe: &ProbeRound) -> bool {
        let configuration = self.configuration();
        let is_unblocked = self.unblocked == self.epoch();
        let former = configuration.former.iter().filter(|_| !is_unblocked);
        let known_dead =
            |identity: &MemberIdentity, testified: bool| testified || self.testified.contains(identity);
        let former: BTreeSet<MemberIdentity> = former
            .filter(|former| !known_dead(&former.identity, former.testified))
            .map(|former| former.identity)
            .collect();
        let members = configuration.members.iter().map(|member| member.identity());
        let members = members.filter(|identity| !known_dead(identity, false));
        let electors: BTreeSet<MemberIdentity> = members.chain(former.iter().copied()).collect();
        let counts = |identity: &MemberIdentity| {
            let epoch = probe.answered.get(identity);
            // A former member counts once it knows that it is none.
            *identity == self.me
                || epoch.is_some_and(|epoch| !former.contains(identity) || *epoch >= self.epoch())
        };
        let is_half = |electors: &mut dyn Iterator<Item = &MemberIdentity>| {
            let (all, answered) =
                electors.fold((0, 0), |(all, answered), it| (all + 1, answered + usize::from(counts(it))));
            2 * answered >= all
        };
        let since = if is_unblocked { u64::MAX } else { configuration.unblocked };
        if is_planted(LeaseFault::MinorityExpels) {
            return true;
        }
        is_half(&mut electors.iter()) && is_half(&mut electors.iter().filter(|it| it.since <= since))
    }
}
