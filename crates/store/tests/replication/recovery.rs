//! How members change: suspicion, epoch, acknowledgements, leases, votes; and the readers, who must not notice.
//!
//! | step | what it waits for |
//! |---|---|
//! | expel | nothing: a suspicion may be wrong |
//! | acknowledge, each member | that no commit of its own is between its check and its own COMMIT-PRIMARY |
//! | end of the lease | nothing: the expelled server is not renewed; it may run on, without noticing |
//! | vote | all acknowledgements, the end of the expelled server's lease or its keeper's testimony, and the end of the leases of readers elsewhere |
//! | unblock, each member | the votes |
//!
//! The votes are one step here. What others see between its parts is what they see between the arrivals of COMMIT-PRIMARYs:
//! a region keeps its lock, or is blocked, until its copies are as decided.

use crate::commit::when;
use crate::fault::ProtocolFault;
use crate::world::{Answer, ClusterState, ModelWorld, Phase, record};

impl ModelWorld {
    /// Whether one server has failed or is expelled. The world has one failure.
    fn has_failed(&self, state: &ClusterState) -> bool {
        state.expelled.is_some() || state.servers.iter().any(|server| !server.runs)
    }

    /// What a server believes of its own lease.
    pub fn holds_lease(&self, state: &ClusterState, server: usize) -> bool {
        state.servers[server].holds_lease || (server == 0 && self.has(ProtocolFault::OneWayLease))
    }

    /// A host ends, and its memory.
    pub fn crash(&self, state: &ClusterState, server: usize) -> Option<ClusterState> {
        when(state.servers[server].has_memory)?;
        when(!self.has_failed(state) || state.expelled == Some(server))?;
        let mut next = state.clone();
        let it = &mut next.servers[server];
        (it.runs, it.has_memory, it.holds_lease, it.word_is_open) = (false, false, false, false);
        Some(next)
    }

    /// A server ends, and its keeper says so. Rule 2: the keeper closes the region word first.
    pub fn testify(&self, state: &ClusterState, server: usize) -> Option<ClusterState> {
        when(!self.has_failed(state))?;
        let mut next = state.clone();
        let it = &mut next.servers[server];
        (it.runs, it.testified) = (false, true);
        it.word_is_open = self.has(ProtocolFault::WordStaysOpen);
        Some(next)
    }

    /// Somebody swaps the epoch in the configuration. The suspicion may be wrong.
    pub fn expel(&self, state: &ClusterState, server: usize) -> Option<ClusterState> {
        let others = (0..self.servers).filter(|other| *other != server);
        when(state.expelled.is_none() && others.clone().all(|other| state.servers[other].runs))?;
        let mut next = state.clone();
        next.expelled = Some(server);
        Some(next)
    }

    /// The lease of a server or host that is no member ends there, and its keeper's words with it. Members renew theirs.
    pub fn end_lease(&self, state: &ClusterState, server: usize) -> Option<ClusterState> {
        let is_renewed = self.members(state).any(|member| member == server) || state.expelled.is_none();
        when(!is_renewed && state.servers[server].holds_lease)?;
        let mut next = state.clone();
        let it = &mut next.servers[server];
        (it.holds_lease, it.word_is_open) = (false, false);
        Some(next)
    }

    /// A member hears of the epoch: from now on it does nothing for the old one. A commit between its check and its own
    /// record comes first.
    pub fn acknowledge(&self, state: &ClusterState, server: usize) -> Option<ClusterState> {
        let it = &state.servers[server];
        when(it.runs && it.epoch < state.epoch() && self.members(state).any(|member| member == server))?;
        let is_amid =
            state.transactions.iter().any(|it| it.phase == Phase::Checked && it.coordinator == server);
        when(!is_amid || self.has(ProtocolFault::AcknowledgeAmidCommit))?;
        let mut next = state.clone();
        next.servers[server].epoch = state.epoch();
        if self.has(ProtocolFault::UnlockAtAcknowledgement) {
            next.copies[server].iter_mut().for_each(|copy| copy.locked_by = None);
        }
        Some(next)
    }

    /// All that arrived before is looked at, transactions of the old epoch are decided, and all copies do as decided.
    ///
    /// It waits until all members have acknowledged, and until nobody expelled can believe in its lease.
    pub fn vote(&self, state: &ClusterState) -> Option<ClusterState> {
        let gone = &state.servers[state.expelled?];
        when(!state.has_voted)?;
        when(!gone.holds_lease || gone.testified || self.has(ProtocolFault::VoteBeforeLeaseEnd))?;
        let is_awaited =
            |host: usize| !self.has(ProtocolFault::OutsiderNotAwaited) && state.servers[host].holds_lease;
        when(!self.outsider.is_some_and(is_awaited))?;
        let mut acknowledged = self.members(state).map(|server| state.servers[server].epoch == 1);
        when(match self.has(ProtocolFault::UnblockBeforeAcknowledged) {
            false => acknowledged.all(|is| is),
            true => acknowledged.any(|is| is),
        })?;
        let mut next = state.clone();
        next.has_voted = true;
        for transaction in 0..self.requests.len() {
            let it = state.transactions[transaction];
            if it.epoch == 0 && it.phase != Phase::New {
                self.decide(&mut next, transaction, 1);
            }
        }
        if self.has(ProtocolFault::RepliesStayBehind) {
            for (region, [first, second]) in self.copies.iter().enumerate() {
                if state.expelled == Some(*first) {
                    next.copies[*second][region].replies = 0;
                }
            }
        }
        Some(next)
    }

    /// The vote on one transaction, by the records of the members that have acknowledged `epoch`.
    fn decide(&self, next: &mut ClusterState, transaction: usize, epoch: u8) {
        let members: Vec<usize> = self.members(next).collect();
        // What the records of a region say together.
        let records = |region: usize| {
            let members = members.iter().filter(|server| next.servers[**server].epoch == epoch);
            let all = members.fold(0, |all, server| all | next.records[*server][transaction][region]);
            if self.has(ProtocolFault::TruncationForgotten) { all & !record::TRUNCATED } else { all }
        };
        let writes = self.requests[transaction].writes.iter().copied();
        // What is not known to be written cannot be missed.
        let is_known =
            |region: &usize| records(*region) != 0 || !self.has(ProtocolFault::RecordsWithoutRegions);
        let known: Vec<usize> = writes.clone().filter(is_known).collect();
        let has_all = known.iter().all(|region| records(*region) != 0);
        let seen = writes.clone().fold(0, |all, region| all | records(region));
        // All primaries had it where nothing is left but the note that it was truncated.
        let is_over = has_all && seen == record::TRUNCATED;
        let is_commit =
            is_over || seen & record::COMMIT_PRIMARY != 0 || (seen & record::COMMIT_BACKUP != 0 && has_all);
        for server in members.iter().copied().filter(|_| !is_over) {
            for region in writes.clone().filter(|region| self.copies[*region].contains(&server)) {
                let copy = &mut next.copies[server][region];
                if copy.locked_by == Some(transaction as u8) {
                    copy.locked_by = None;
                }
                if is_commit && known.contains(&region) {
                    self.apply_at(next, transaction, region, server);
                }
            }
        }
        // A member that coordinates it answers. For one that is expelled or was started again nobody does but a repeat.
        let it = &mut next.transactions[transaction];
        let goes_on = it.phase == Phase::Checked && self.has(ProtocolFault::AcknowledgeAmidCommit);
        if members.contains(&it.coordinator) && it.phase != Phase::Ended && !goes_on {
            let answer = if is_commit { Answer::Committed } else { Answer::Aborted };
            it.decided = Some(answer).filter(|_| it.phase != Phase::Orphaned);
            it.phase = Phase::Ended;
        }
    }

    /// A server ends, and its keeper starts it again over the same memory, in the same epoch. It knows of its transactions
    /// by their records only.
    pub fn restart(&self, state: &ClusterState, server: usize) -> Option<ClusterState> {
        let it = &state.servers[server];
        when(it.runs && !state.has_restarted && state.expelled != Some(server))?;
        let mut next = state.clone();
        next.has_restarted = true;
        for transaction in next.transactions.iter_mut().filter(|it| it.coordinator == server) {
            transaction.phase = match transaction.phase {
                Phase::Claimed | Phase::Read => Phase::Ended,
                Phase::Locking | Phase::Backing | Phase::Checked | Phase::Applied => Phase::Orphaned,
                phase => phase,
            };
        }
        if self.has(ProtocolFault::UnlockAtRestart) {
            next.copies[server].iter_mut().for_each(|copy| copy.locked_by = None);
        }
        Some(next)
    }

    /// The server that was started again has its transactions decided by the votes of all members. Before that, all of them
    /// take new rings from it: what it had sent and has not arrived is lost.
    pub fn settle(&self, state: &ClusterState, server: usize) -> Option<ClusterState> {
        let epoch = state.servers[server].epoch;
        let is_orphan = |transaction: &usize| {
            let it = &state.transactions[*transaction];
            it.phase == Phase::Orphaned && it.coordinator == server && it.epoch == epoch
        };
        let orphans: Vec<usize> = (0..self.requests.len()).filter(is_orphan).collect();
        when(!orphans.is_empty() && self.members(state).all(|member| self.works(state, member, epoch)))?;
        let mut next = state.clone();
        for transaction in orphans {
            self.decide(&mut next, transaction, epoch);
            if !self.has(ProtocolFault::SettleWithOldRings) {
                next.lose_under_way(transaction);
            }
        }
        Some(next)
    }

    /// A member serves in the new epoch.
    pub fn unblock(&self, state: &ClusterState, server: usize) -> Option<ClusterState> {
        let it = &state.servers[server];
        when(it.runs && it.epoch == 1 && !it.is_unblocked)?;
        let all_acknowledged = || self.members(state).all(|server| state.servers[server].epoch == 1);
        when(state.has_voted || self.has(ProtocolFault::UnblockBeforeVotes) && all_acknowledged())?;
        let mut next = state.clone();
        next.servers[server].is_unblocked = true;
        Some(next)
    }

    /// A reader loads its next region from the primary that its host knows. After the last, those before are as they were
    /// (the other model says when a reader may spare that).
    pub fn load(&self, state: &ClusterState, reader: usize) -> Option<ClusterState> {
        let spec = &self.readers[reader];
        let it = &state.readers[reader];
        let host = &state.servers[spec.host];
        let region = *spec.regions.get(usize::from(it.loaded))?;
        let is_first = !it.has_begun;
        when(host.has_memory && (is_first || it.epoch == host.epoch))?;
        // With the fault, a reader begins by looking at the word (`look`).
        when(!is_first || !self.has(ProtocolFault::WordBeforeReads))?;
        let primary = self.primary(state, region, host.epoch);
        let copy = &state.copies[primary][region];
        when(state.servers[primary].has_memory && copy.locked_by.is_none())?;
        when(primary == self.copies[region][0] || state.servers[primary].is_unblocked)?;
        let mut next = state.clone();
        let it = &mut next.readers[reader];
        if is_first {
            (it.has_begun, it.epoch, it.after) = (true, host.epoch, state.answered());
        }
        it.values[region] = copy.value;
        it.versions[region] = copy.version;
        it.loaded += 1;
        if usize::from(it.loaded) == spec.regions.len() {
            let is_same = |region: &usize| {
                let copy = &state.copies[self.primary(state, *region, host.epoch)][*region];
                copy.version == it.versions[*region] && copy.locked_by.is_none()
            };
            when(spec.regions.iter().all(is_same))?;
            it.has_answer = self.has(ProtocolFault::WordBeforeReads);
        }
        Some(next)
    }

    /// Rule 2, and leases: after the loads, the word of the reader's host says the same epoch and is open.
    pub fn look(&self, state: &ClusterState, reader: usize) -> Option<ClusterState> {
        let spec = &self.readers[reader];
        let it = &state.readers[reader];
        let host = &state.servers[spec.host];
        let is_open = host.word_is_open || (spec.host == 0 && self.has(ProtocolFault::OneWayLease));
        when(host.has_memory && is_open && !it.has_answer)?;
        let mut next = state.clone();
        if self.has(ProtocolFault::WordBeforeReads) {
            when(!it.has_begun)?;
            let it = &mut next.readers[reader];
            (it.has_begun, it.epoch, it.after) = (true, host.epoch, state.answered());
        } else {
            when(usize::from(it.loaded) == spec.regions.len() && it.epoch == host.epoch)?;
            next.readers[reader].has_answer = true;
        }
        Some(next)
    }
}
