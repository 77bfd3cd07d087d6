//! Adoption, acknowledgement and unblocking: how the members of a new epoch come to agree that the old one is over.

use super::{MemberAction, MemberMessage, MemberWatch};
use crate::clock::BootTime;
use crate::configuration::{FormerMember, MemberIdentity};
use crate::faults::{LeaseFault, is_planted};
use crate::register::StoredConfiguration;

impl MemberWatch {
    /// Adopts a configuration of a later epoch.
    pub(super) fn adopt(&mut self, stored: StoredConfiguration, now: BootTime) {
        let (was_manager, manager_before) = (self.i_am_manager(), self.manager());
        let epoch_before = self.epoch();
        let next = &stored.configuration;
        // What this member has granted to a manager that is no member any more, and that nobody has seen end. A manager that
        // is still a member acknowledges for itself.
        for (id, peer) in &self.peers {
            if next.has(peer.identity) || self.testified.contains(&peer.identity) {
                continue;
            }
            if was_manager {
                // It holds no other manager's lease if it has asked this one in an epoch of this one.
                if peer.asked_in >= self.manager_since {
                    self.known_ends.insert(peer.identity, peer.granter);
                }
            } else if manager_before.is_some_and(|manager| manager.id == *id) {
                self.granted_before.insert(peer.identity, peer.granter);
            }
        }
        let was_expelled = self.is_expelled;
        self.is_expelled |= !next.has(self.me);
        let is_new_manager = next.manager == self.me.id && !was_manager;
        let is_new_to_me =
            manager_before.is_none_or(|manager| next.manager != manager.id || !next.has(manager));
        self.stored = stored;
        if self.is_expelled {
            self.peers.clear();
            if !was_expelled {
                self.actions.push(MemberAction::Expelled);
            }
            return;
        }
        if is_new_to_me {
            // Leases of the manager before are worth nothing any more.
            self.peers.clear();
        }
        self.meet_peers(now);
        if is_new_manager {
            self.manager_since = self.epoch();
            self.known_ends.clear();
            self.changes.clear();
        }
        let former: Vec<MemberIdentity> =
            self.configuration().former.iter().map(|former| former.identity).collect();
        self.known_ends.retain(|identity, _| former.contains(identity));
        self.granted_before.retain(|_, granter| now < granter.until());
        let configuration = &self.stored.configuration;
        self.testified.retain(|identity| configuration.has(*identity) || former.contains(identity));
        self.processes.retain(|identity, _| configuration.has(*identity) || former.contains(identity));
        // What its maker knew to be unblocked is; but not what came between, if this member was the manager's only witness.
        self.unblocked = self.unblocked.max(configuration.unblocked);
        self.suspects.clear();
        self.probe = None;
        self.all_acknowledged_at = None;
        self.adopted_at = now;
        self.next_renewal = now;
        self.settled = 0;
        (self.register_failures, self.relieves_until) = (0, BootTime::default());
        debug_assert!(self.epoch() > epoch_before);
        self.actions.push(MemberAction::Adopt(Box::new(self.stored.clone())));
        if self.i_am_manager() {
            self.tell_all(&MemberMessage::Configuration(Box::new(self.stored.clone())));
        }
    }

    /// Says whether this member acknowledges its epoch: nothing of earlier ones is under way here, and no manager that was
    /// expelled has a lease of this member any more.
    pub(super) fn has_acknowledged(&self, now: BootTime) -> bool {
        (self.closed >= self.epoch() || is_planted(LeaseFault::ClosedTooEarly))
            && (is_planted(LeaseFault::GrantNotAwaited)
                || self.granted_before.values().all(|granter| now >= granter.until()))
    }

    /// As the manager: unblocks the epoch when all members have acknowledged it and all leases of former members have ended.
    pub(super) fn unblock_if_due(&mut self, now: BootTime) {
        if !self.i_am_manager() || self.unblocked == self.epoch() {
            return;
        }
        let epoch = self.epoch();
        let all = self.has_acknowledged(now) && self.peers.values().all(|peer| peer.acknowledged >= epoch);
        if !all && !is_planted(LeaseFault::AcknowledgementNotAwaited) {
            return;
        }
        let acknowledged_at = *self.all_acknowledged_at.get_or_insert(now);
        let former = self.configuration().former.iter();
        if former.into_iter().all(|former| now >= self.lease_end(former, acknowledged_at)) {
            self.set_unblocked(epoch);
            self.tell_all(&MemberMessage::Unblocked { epoch });
        }
    }

    /// Returns when a former member's lease has ended for certain.
    ///
    /// | whose lease | when |
    /// |---|---|
    /// | of somebody of whom a testimony says that no process is left | now |
    /// | granted by this manager alone | when this manager knows; at once, if the process that had it has ended |
    /// | of the manager before, which has it from the members | when all have acknowledged; and a lease later than a testimony of another former member, to whom the testifying one's grant may have gone |
    /// | of anybody else, granted by a manager before | one lease after all have acknowledged: that manager granted nothing after its own lease had ended |
    fn lease_end(&self, former: &FormerMember, acknowledged_at: BootTime) -> BootTime {
        let term = self.times().lease() + self.times().drift();
        let is_dead = |former: &FormerMember| former.testified || self.testified.contains(&former.identity);
        if is_dead(former) || is_planted(LeaseFault::LeaseNotAwaited) {
            return BootTime::default();
        }
        if let Some(end) = self.known_ends.get(&former.identity) {
            return end.until();
        }
        let configuration = self.configuration();
        let is_last_manager = former.was_manager && configuration.unblocked + 1 == configuration.epoch;
        match is_last_manager {
            true if configuration.former.iter().any(is_dead) => acknowledged_at.max(self.adopted_at + term),
            true => acknowledged_at,
            false => acknowledged_at + term,
        }
    }

    /// Notes that an epoch is unblocked.
    pub(super) fn set_unblocked(&mut self, epoch: u64) {
        if epoch > self.unblocked && !self.is_expelled {
            self.unblocked = epoch;
            self.actions.push(MemberAction::Unblocked(epoch));
        }
    }
}
