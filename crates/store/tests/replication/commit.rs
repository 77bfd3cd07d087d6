//! The steps of a commit: what a coordinator does, and what its records do where they arrive.
//!
//! Each step is a function: what it requires comes first, by `when(...)?`, and then what it changes.

use crate::fault::ProtocolFault;
use crate::world::{Answer, ClusterState, ModelWorld, Phase, RecordKind, record};

/// Goes on only if `condition` holds: else the step cannot be taken.
pub fn when(condition: bool) -> Option<()> {
    condition.then_some(())
}

/// A version: the coordinator below the time.
fn version(time: u8, coordinator: usize) -> u8 {
    time << 2 | coordinator as u8
}

fn time(version: u8) -> u8 {
    version >> 2
}

fn bit(region: usize) -> u8 {
    1 << region
}

impl ModelWorld {
    /// All regions that a request writes, as bits.
    fn written(&self, transaction: usize) -> u8 {
        self.requests[transaction].writes.iter().fold(0, |bits, region| bits | bit(*region))
    }

    /// The same request, sent at another time.
    fn twins(&self, transaction: usize) -> impl Iterator<Item = usize> {
        let first = |number: usize| self.requests[number].repeats.unwrap_or(number);
        (0..self.requests.len())
            .filter(move |other| *other != transaction && first(*other) == first(transaction))
    }

    /// The region at whose primary a request is coordinated and claimed.
    fn home(&self, transaction: usize) -> usize {
        let request = &self.requests[transaction];
        match request.repeats.is_some() && self.has(ProtocolFault::RepeatElsewhere) {
            true => request.writes[request.writes.len() - 1],
            false => request.writes[0],
        }
    }

    /// Whether a server works on transactions of an epoch.
    pub fn works(&self, state: &ClusterState, server: usize, epoch: u8) -> bool {
        let server = &state.servers[server];
        server.runs && server.epoch == epoch && (epoch == 0 || server.is_unblocked)
    }

    /// Whether the coordinator of a transaction goes on with it.
    fn goes_on(&self, state: &ClusterState, transaction: usize, phase: Phase) -> Option<()> {
        let it = &state.transactions[transaction];
        when(it.phase == phase && self.works(state, it.coordinator, it.epoch))
    }

    /// Rule 8: the request arrives at its home, is claimed there before all else, or gets its recorded reply.
    pub fn claim(&self, state: &ClusterState, transaction: usize, server: usize) -> Option<ClusterState> {
        let epoch = state.servers[server].epoch;
        let home = self.home(transaction);
        when(
            state.transactions[transaction].phase == Phase::New && self.primary(state, home, epoch) == server,
        )?;
        when(self.works(state, server, epoch))?;
        // Requests that are the same but for their number begin in its order: one of two worlds that mirror each other.
        let is_same = |other: usize| {
            let [it, other] = [transaction, other].map(|number| &self.requests[number]);
            (it.reads, it.writes, it.repeats, other.repeats) == (other.reads, other.writes, None, None)
        };
        when((0..transaction).all(|other| !is_same(other) || state.transactions[other].phase != Phase::New))?;
        // A client does not repeat what was answered; the network may.
        when(self.twins(transaction).all(|twin| state.transactions[twin].answer != Some(Answer::Aborted)))?;
        let mut next = state.clone();
        let after = state.answered();
        // A reply that its client has acknowledged is forgotten. That it was is not: a late repeat is refused, which is here
        // the same as its reply.
        let is_forgotten = |twin: usize| {
            self.has(ProtocolFault::ForgottenReply)
                && state.transactions[twin].answer == Some(Answer::Committed)
        };
        let is_done =
            |twin: &usize| state.copies[server][home].replies & bit(*twin) != 0 && !is_forgotten(*twin);
        let it = &mut next.transactions[transaction];
        if let Some(twin) = self.twins(transaction).find(is_done) {
            it.phase = Phase::Ended;
            it.answer = Some(Answer::Committed);
            it.is_reply = true;
            next.transactions[twin].answer = Some(Answer::Committed);
            return Some(next);
        }
        let is_claimed = |twin: usize| {
            let twin = &state.transactions[twin];
            let is_here = twin.coordinator == server && twin.epoch == epoch;
            is_here && twin.phase != Phase::New && twin.phase != Phase::Ended
        };
        when(self.has(ProtocolFault::NoClaim) || !self.twins(transaction).any(is_claimed))?;
        (it.phase, it.coordinator, it.epoch, it.after) = (Phase::Claimed, server, epoch, after);
        // Nothing lies between for a request that has no twin.
        if self.twins(transaction).next().is_none() { self.read(&next, transaction) } else { Some(next) }
    }

    /// All regions of a request are read, in one moment; the other model reads them one by one.
    pub fn read(&self, state: &ClusterState, transaction: usize) -> Option<ClusterState> {
        self.goes_on(state, transaction, Phase::Claimed)?;
        let mut next = state.clone();
        let it = &mut next.transactions[transaction];
        let request = &self.requests[transaction];
        for region in request.reads.iter().chain(request.writes).copied() {
            let primary = self.primary(state, region, it.epoch);
            let copy = &state.copies[primary][region];
            when(state.servers[primary].has_memory && copy.locked_by.is_none())?;
            when(it.epoch == 0 || state.servers[primary].is_unblocked)?;
            it.read_values[region] = copy.value;
            it.read_versions[region] = copy.version;
        }
        it.phase = Phase::Read;
        Some(next)
    }

    /// Step 1.
    pub fn lock(&self, state: &ClusterState, transaction: usize) -> Option<ClusterState> {
        self.goes_on(state, transaction, Phase::Read)?;
        let mut next = state.clone();
        next.transactions[transaction].phase = Phase::Locking;
        for region in self.requests[transaction].writes {
            self.post(&mut next, RecordKind::Lock, transaction, *region);
        }
        Some(next)
    }

    /// The coordinator gives up: a lock was refused, or no answer came in time.
    pub fn give_up(&self, state: &ClusterState, transaction: usize) -> Option<ClusterState> {
        let it = &state.transactions[transaction];
        let is_late = self.has(ProtocolFault::AbortAfterBackups) && it.phase == Phase::Backing;
        self.goes_on(state, transaction, if is_late { Phase::Backing } else { Phase::Locking })?;
        when(is_late || it.refused != 0 || (self.may_give_up && it.granted != self.written(transaction)))?;
        Some(self.abort(state, transaction))
    }

    /// Rule 7: ABORT goes to every primary that was sent a LOCK, answered or not.
    fn abort(&self, state: &ClusterState, transaction: usize) -> ClusterState {
        let mut next = state.clone();
        let it = &mut next.transactions[transaction];
        (it.phase, it.decided) = (Phase::Ended, Some(Answer::Aborted));
        let answered = it.granted | it.refused;
        for region in self.requests[transaction].writes.iter().copied() {
            if answered & bit(region) != 0 || !self.has(ProtocolFault::AbortToAnswered) {
                self.post(&mut next, RecordKind::Abort, transaction, region);
            }
        }
        next
    }

    /// Steps 2, 3 and the posts of step 4: all locks are held.
    pub fn stamp_and_validate(&self, state: &ClusterState, transaction: usize) -> Option<ClusterState> {
        self.goes_on(state, transaction, Phase::Locking)?;
        let it = &state.transactions[transaction];
        when(it.granted == self.written(transaction))?;
        let request = &self.requests[transaction];
        for region in request.reads.iter().copied().filter(|_| !self.has(ProtocolFault::NoValidate)) {
            let primary = self.primary(state, region, it.epoch);
            let copy = &state.copies[primary][region];
            when(state.servers[primary].has_memory)?;
            if copy.version != it.read_versions[region] || copy.locked_by.is_some() {
                return Some(self.abort(state, transaction));
            }
        }
        let mut next = state.clone();
        let found = request.writes.iter().map(|region| time(it.read_versions[*region]));
        let found = found.filter(|_| !self.has(ProtocolFault::StampOwnOnly));
        let server = &mut next.servers[it.coordinator];
        server.stamped = found.fold(server.stamped, u8::max) + 1;
        let stamp = version(server.stamped, it.coordinator);
        let it = &mut next.transactions[transaction];
        (it.stamp, it.phase) = (stamp, Phase::Backing);
        for region in request.writes {
            self.post(&mut next, RecordKind::CommitBackup, transaction, *region);
        }
        Some(next)
    }

    /// Rule 3: all COMMIT-BACKUPs have completed; the coordinator looks at its lease and its epoch.
    pub fn check(&self, state: &ClusterState, transaction: usize) -> Option<ClusterState> {
        let it = &state.transactions[transaction];
        when(it.phase == Phase::Backing && it.backed == self.written(transaction))?;
        when(state.servers[it.coordinator].runs)?;
        if !self.has(ProtocolFault::NoCheck) {
            when(self.works(state, it.coordinator, it.epoch) && self.holds_lease(state, it.coordinator))?;
        }
        let mut next = state.clone();
        next.transactions[transaction].phase = Phase::Checked;
        Some(next)
    }

    /// Step 5. A server acknowledges no epoch between the check and this; but its lease may have ended meanwhile.
    pub fn apply(&self, state: &ClusterState, transaction: usize) -> Option<ClusterState> {
        let it = state.transactions[transaction];
        when(it.phase == Phase::Checked && state.servers[it.coordinator].runs)?;
        let mut next = state.clone();
        next.transactions[transaction].phase = Phase::Applied;
        for region in self.requests[transaction].writes.iter().copied() {
            self.post(&mut next, RecordKind::CommitPrimary, transaction, region);
        }
        Some(next)
    }

    /// The client gets its answer. One that has repeated its request ignores that the earlier one was aborted.
    pub fn answer(&self, state: &ClusterState, transaction: usize) -> Option<ClusterState> {
        let it = &state.transactions[transaction];
        when(it.answer.is_none() && state.servers[it.coordinator].runs)?;
        let is_hasty = self.has(ProtocolFault::AnswerAfterLocks)
            || (self.has(ProtocolFault::AnswerAfterBackups) && it.backed == self.written(transaction));
        let answer = match it.phase {
            Phase::Ended => it.decided?,
            _ => Answer::Committed,
        };
        when(matches!(it.phase, Phase::Applied | Phase::Ended) || (is_hasty && it.phase == Phase::Backing))?;
        if answer == Answer::Aborted && !self.has(ProtocolFault::OldAbortBelieved) {
            when(self.twins(transaction).all(|twin| state.transactions[twin].phase == Phase::New))?;
        }
        let mut next = state.clone();
        next.transactions[transaction].answer = Some(answer);
        Some(next)
    }

    /// Step 6: all primaries have the COMMIT-PRIMARY.
    pub fn truncate(&self, state: &ClusterState, transaction: usize) -> Option<ClusterState> {
        let it = &state.transactions[transaction];
        self.goes_on(state, transaction, Phase::Applied)?;
        let is_early = self.has(ProtocolFault::TruncateEarly);
        when(self.truncates && (is_early || it.applied == self.written(transaction)))?;
        let mut next = state.clone();
        let it = &mut next.transactions[transaction];
        (it.phase, it.decided) = (Phase::Ended, Some(Answer::Committed));
        for region in self.requests[transaction].writes {
            self.post(&mut next, RecordKind::TruncateBackup, transaction, *region);
            self.post(&mut next, RecordKind::TruncatePrimary, transaction, *region);
        }
        Some(next)
    }

    /// Where a record goes: none if the region has no backup.
    fn target(
        &self,
        state: &ClusterState,
        kind: RecordKind,
        transaction: usize,
        region: usize,
    ) -> Option<usize> {
        let epoch = state.transactions[transaction].epoch;
        match kind {
            RecordKind::CommitBackup | RecordKind::TruncateBackup => self.backup(state, region, epoch),
            _ => Some(self.primary(state, region, epoch)),
        }
    }

    /// Writes a record: into the own memory at once, else it is under way.
    fn post(&self, next: &mut ClusterState, kind: RecordKind, transaction: usize, region: usize) {
        let coordinator = next.transactions[transaction].coordinator;
        match self.target(next, kind, transaction, region) {
            None if kind == RecordKind::CommitBackup => next.transactions[transaction].backed |= bit(region),
            None => {}
            Some(target) if target == coordinator => self.arrive(next, kind, transaction, region, target),
            Some(_) => {
                next.set_under_way(kind, transaction, region, true);
                if kind == RecordKind::CommitBackup && self.has(ProtocolFault::CompletedBeforeArrival) {
                    next.transactions[transaction].backed |= bit(region);
                }
            }
        }
    }

    /// A record that was under way arrives. Those of one transaction and region arrive in their order.
    pub fn deliver(
        &self,
        state: &ClusterState,
        kind: RecordKind,
        transaction: usize,
        region: usize,
    ) -> Option<ClusterState> {
        when(state.is_under_way(kind, transaction, region))?;
        when(kind != RecordKind::Abort || !state.is_under_way(RecordKind::Lock, transaction, region))?;
        let target = self.target(state, kind, transaction, region)?;
        when(state.servers[target].has_memory)?;
        let mut next = state.clone();
        next.set_under_way(kind, transaction, region, false);
        self.arrive(&mut next, kind, transaction, region, target);
        Some(next)
    }

    /// A record is in the memory of `server`, and has completed. After the votes it lies in a ring that nobody reads.
    fn arrive(
        &self,
        next: &mut ClusterState,
        kind: RecordKind,
        transaction: usize,
        region: usize,
        server: usize,
    ) {
        let it = next.transactions[transaction];
        match kind {
            RecordKind::CommitBackup => next.transactions[transaction].backed |= bit(region),
            RecordKind::CommitPrimary => next.transactions[transaction].applied |= bit(region),
            _ => {}
        }
        let there = next.servers[server];
        let is_own = server == it.coordinator;
        let is_closed = self.has(ProtocolFault::RingsClosedUndrained) || next.has_voted;
        let is_read = there.epoch == it.epoch || is_own || self.has(ProtocolFault::OldRingsRead);
        if is_closed && !is_read {
            return;
        }
        let is_processed = there.runs && is_read;
        let records = &mut next.records[server][transaction][region];
        let copy = &mut next.copies[server][region];
        let is_locked_by_it = copy.locked_by == Some(transaction as u8);
        match kind {
            RecordKind::Lock => {
                *records |= record::LOCK;
                let is_free = copy.locked_by.is_none() && copy.version == it.read_versions[region];
                if is_processed && is_free {
                    copy.locked_by = Some(transaction as u8);
                    next.transactions[transaction].granted |= bit(region);
                } else if is_processed {
                    next.transactions[transaction].refused |= bit(region);
                }
            }
            RecordKind::Abort => {
                *records &= !record::LOCK;
                if is_processed && is_locked_by_it {
                    copy.locked_by = None;
                }
            }
            RecordKind::CommitBackup => *records |= record::COMMIT_BACKUP,
            RecordKind::CommitPrimary => {
                *records |= record::COMMIT_PRIMARY;
                if is_processed {
                    self.apply_at(next, transaction, region, server);
                }
            }
            // What is truncated was applied: also what is found so between an acknowledgement and the votes.
            RecordKind::TruncatePrimary | RecordKind::TruncateBackup => {
                *records = record::TRUNCATED;
                if is_processed || !self.has(ProtocolFault::TruncateUnapplied) {
                    self.apply_at(next, transaction, region, server);
                }
            }
        }
    }

    /// A copy gets what a transaction wrote, if that is newer.
    pub fn apply_at(&self, next: &mut ClusterState, transaction: usize, region: usize, server: usize) {
        let it = &next.transactions[transaction];
        let copy = &mut next.copies[server][region];
        if copy.locked_by == Some(transaction as u8) {
            copy.locked_by = None;
        }
        if it.stamp > copy.version || self.has(ProtocolFault::ApplyOlder) {
            (copy.value, copy.version) = (transaction as u8 + 1, it.stamp);
        }
        copy.replies |= bit(transaction);
    }
}
