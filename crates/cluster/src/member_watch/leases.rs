//! The leases of a member: requests, grants, and when this member's own lease ends.

use super::{LeasePeer, MemberAction, MemberMessage, MemberWatch, Suspicion};
use crate::clock::BootTime;
use crate::configuration::{MemberId, MemberIdentity};
use crate::faults::{LeaseFault, is_planted};
use crate::lease::{LeaseGranter, LeaseHolder, ProcessNumber};

impl MemberWatch {
    /// Returns when this member's lease ends. It may neither apply nor answer a commit, nor believe what it has read, at
    /// that moment or later.
    ///
    /// A member has its lease from the manager; the manager has its own from more than half of the members, itself counted.
    /// What a member grants itself ends, too, when it is stopped.
    pub fn lease_until(&self) -> BootTime {
        if self.is_expelled {
            return BootTime::default();
        }
        let own = self.own_lease_from + self.times().lease();
        let mut granted: Vec<BootTime> = self.peers.values().map(|peer| peer.holder.until()).collect();
        if !self.i_am_manager() {
            return granted.first().copied().unwrap_or_default();
        }
        granted.sort_unstable_by(|a, b| b.cmp(a));
        let others_needed = self.configuration().members.len() / 2;
        match others_needed.checked_sub(1) {
            None => own,
            Some(index) => granted.get(index).copied().unwrap_or_default().min(own),
        }
    }

    /// Makes the leases of an epoch that is new to this member, whose peers have changed.
    pub(super) fn meet_peers(&mut self, now: BootTime) {
        let lease = self.times().lease();
        let configuration = &self.stored.configuration;
        let is_manager = configuration.manager == self.me.id && !self.is_expelled;
        let is_peer = |id: MemberId| id != self.me.id && (is_manager || id == configuration.manager);
        let wanted = configuration.members.iter().filter(|member| is_peer(member.id));
        let wanted: Vec<MemberIdentity> = wanted.map(|member| member.identity()).collect();
        self.peers.retain(|_, peer| wanted.contains(&peer.identity));
        for identity in wanted {
            self.peers.entry(identity.id).or_insert_with(|| LeasePeer {
                identity,
                holder: LeaseHolder::new(now),
                granter: LeaseGranter::default(),
                waiting: None,
                heard_at: now,
                patience_until: now + lease,
                acknowledged: 0,
                asked_in: 0,
            });
        }
    }

    /// Asks for the leases when it is time.
    pub(super) fn renew(&mut self, now: BootTime) {
        if now < self.next_renewal {
            return;
        }
        self.next_renewal = now + self.times().renewal();
        let (epoch, acknowledged) = (self.epoch(), self.has_acknowledged(now));
        let peers = self.peers.values_mut();
        let requests: Vec<_> = peers
            .map(|peer| {
                let number = peer.holder.request(now);
                let message = MemberMessage::Request { epoch, number, acknowledged };
                MemberAction::Send { to: peer.identity, message }
            })
            .collect();
        self.actions.extend(requests);
        self.repeat_testimonies();
        self.repeat_ends();
        self.repeat_probe();
        self.answer_waiting(now);
    }

    /// Takes a request of the same epoch.
    pub(super) fn requested(
        &mut self,
        from: MemberIdentity,
        process: ProcessNumber,
        number: u64,
        acknowledged: bool,
        now: BootTime,
    ) {
        let epoch = self.epoch();
        let Some(peer) = self.peers.get_mut(&from.id).filter(|peer| peer.identity == from) else { return };
        peer.heard_at = now;
        peer.waiting = Some((number, process));
        peer.asked_in = epoch;
        if acknowledged {
            peer.acknowledged = epoch;
        }
        self.answer_waiting(now);
    }

    /// Grants what was asked for. The manager does so only while its own lease holds: a successor knows when that has ended,
    /// and that all leases end one term later.
    fn answer_waiting(&mut self, now: BootTime) {
        let holds = now < self.lease_until() || is_planted(LeaseFault::GrantedWithoutLease);
        if self.is_expelled || (self.i_am_manager() && !holds) {
            return;
        }
        let (epoch, unblocked, times) = (self.epoch(), self.unblocked, self.times());
        let mut grants = Vec::new();
        for peer in self.peers.values_mut() {
            if let Some((number, process)) = peer.waiting.take() {
                if self.testified.contains(&peer.identity) {
                    continue;
                }
                peer.granter.grant(now, times, Some(process));
                let message = MemberMessage::Grant { epoch, number, unblocked };
                grants.push(MemberAction::Send { to: peer.identity, message });
            }
        }
        self.actions.extend(grants);
    }

    /// Takes a grant of the same epoch.
    pub(super) fn granted(&mut self, from: MemberIdentity, number: u64, unblocked: u64, now: BootTime) {
        let times = self.times();
        let is_from_manager = self.is_manager(from);
        let Some(peer) = self.peers.get_mut(&from.id).filter(|peer| peer.identity == from) else { return };
        peer.holder.granted(number, now, times);
        if is_from_manager {
            self.set_unblocked(unblocked.min(self.epoch()));
        }
        // The manager may grant now.
        self.answer_waiting(now);
    }

    /// Suspects the peers that have not been heard for a lease.
    pub(super) fn suspect_the_silent(&mut self, now: BootTime) {
        let lease = self.times().lease();
        for (id, peer) in &self.peers {
            let is_silent = now >= peer.heard_at + lease || now >= peer.holder.until();
            if is_silent && now >= peer.patience_until {
                let suspicion = self.suspects.entry(*id).or_insert(Suspicion { since: now, is_silent });
                suspicion.is_silent = true;
            }
        }
    }
}
