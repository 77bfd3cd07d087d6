//! The steps of a transaction over several parts: what each requires, and what it changes. `ledger.rs` of the store has the same.
//!
//! | step | who | what it stands for |
//! |---|---|---|
//! | read, validate | client, part | a call and its answer |
//! | begin | client, home | the home opens a number; PREPAREs are sent |
//! | prepare | part | PREPARE arrives: the branch is noted, and holds locks |
//! | commit, repeat | client | COMMIT is sent, and sent again over a new link |
//! | take commit, do commit | home | COMMIT arrives; the home's branch and the decision become one commit |
//! | hear, give up, leave | client | it gets the answer; gives up before COMMIT; ends, or waits no longer |
//! | decide | part | DECIDE arrives |
//! | end, take end | client, home | all parts have answered DECIDE; ENDED arrives |
//! | hang up | home | the client's link has ended, or it says that it has given up: its numbers are open no longer |
//! | ask, decide as heard | who serves a part | OUTCOME and its answer; what becomes of the branch |
//! | tell again | who serves the home | DECIDE for a decision that nobody has ended, and its answer |
//! | take over | | the next owner of a part, which has exactly what was committed |

use crate::fault::PartFault;
use crate::world::{Answer, CLIENTS, ClientState, ClusterState, OpenNumber, PartWorld, Phase, bit, when};

impl PartWorld {
    fn home(&self, client: usize) -> usize {
        self.plans[client].home().unwrap_or(0)
    }

    /// Tells whether what a client has read in a part is as it was.
    fn is_as_read(&self, state: &ClusterState, client: usize, part: usize) -> bool {
        !self.plans[client].reads_part(part)
            || state.parts[part].version == state.clients[client].versions[part]
    }

    pub fn read(&self, state: &ClusterState, client: usize) -> Option<ClusterState> {
        let (plan, it) = (&self.plans[client], &state.clients[client]);
        when(it.phase == Phase::Reading)?;
        let part = *plan.reads.get(usize::from(it.read))?;
        when(state.parts[part].locked_by.is_none())?;
        let mut next = state.clone();
        let it = &mut next.clients[client];
        if it.read == 0 {
            it.after = state.answered();
        }
        (it.values[part], it.versions[part]) = (state.parts[part].value, state.parts[part].version);
        it.read += 1;
        let is_last = usize::from(it.read) == plan.reads.len();
        if is_last && plan.home().is_none() && (it.read == 1 || self.has(PartFault::NothingChecked)) {
            (it.phase, it.answer) = (Phase::Ended, Some(Answer::Committed));
        }
        Some(next)
    }

    /// A transaction that has only read looks at all of it once more.
    pub fn validate(&self, state: &ClusterState, client: usize, part: usize) -> Option<ClusterState> {
        let (plan, it) = (&self.plans[client], &state.clients[client]);
        when(plan.home().is_none() && it.phase == Phase::Reading && plan.reads_part(part))?;
        when(usize::from(it.read) == plan.reads.len() && it.validated & bit(part) == 0)?;
        let is_locked = state.parts[part].locked_by.is_some() && !self.has(PartFault::LocksIgnored);
        let mut next = state.clone();
        let it = &mut next.clients[client];
        it.validated |= bit(part);
        if is_locked || !self.is_as_read(state, client, part) {
            (it.phase, it.answer) = (Phase::Ended, Some(Answer::Aborted));
        } else if it.validated == plan.others() {
            (it.phase, it.answer) = (Phase::Ended, Some(Answer::Committed));
        }
        Some(next)
    }

    /// A transaction over several parts gets a number at its home, and has all others prepare. One in a single part is committed.
    pub fn begin(&self, state: &ClusterState, client: usize) -> Option<ClusterState> {
        let (plan, it) = (&self.plans[client], &state.clients[client]);
        when(it.phase == Phase::Reading && usize::from(it.read) == plan.reads.len())?;
        let mut next = state.clone();
        let (it, home) = (&mut next.clients[client], &mut next.parts[plan.home()?]);
        if it.read == 0 {
            it.after = state.answered();
        }
        if plan.others() == 0 {
            (it.phase, it.is_asked) = (Phase::Committing, true);
            return Some(next);
        }
        (it.phase, it.preparing) = (Phase::Preparing, plan.others());
        (it.owner, it.number) = (home.owner, home.next);
        *home.open.get_mut(usize::from(home.next))? = OpenNumber::Begun;
        home.next += 1;
        Some(next)
    }

    pub fn prepare(&self, state: &ClusterState, client: usize, part: usize) -> Option<ClusterState> {
        when(state.clients[client].preparing & bit(part) != 0)?;
        let mut next = state.clone();
        let (it, at) = (&mut next.clients[client], &mut next.parts[part]);
        if !self.has(PartFault::PrepareRepeated) {
            it.preparing &= !bit(part);
        }
        let is_same = self.is_as_read(state, client, part) || self.has(PartFault::ReadsUncompared);
        let is_granted = is_same && at.locked_by.is_none() && at.branches & bit(client) == 0;
        if is_granted {
            at.branches |= bit(client);
            at.locked_by = self.locks_of(client, part);
        }
        // Nobody else looks at the answer.
        if it.phase == Phase::Preparing {
            *(if is_granted { &mut it.granted } else { &mut it.refused }) |= bit(part);
        }
        Some(next)
    }

    /// Who has locked a part if a client's branch there has.
    fn locks_of(&self, client: usize, part: usize) -> Option<u8> {
        let locks = self.plans[client].writes_part(part) || !self.has(PartFault::ReadsUnlocked);
        locks.then_some(client as u8)
    }

    pub fn commit(&self, state: &ClusterState, client: usize) -> Option<ClusterState> {
        let it = &state.clients[client];
        let others = self.plans[client].others();
        when(it.phase == Phase::Preparing && it.granted == others)?;
        let mut next = state.clone();
        let it = &mut next.clients[client];
        (it.phase, it.is_asked, it.granted) = (Phase::Committing, true, 0);
        if self.has(PartFault::DecideBeforeCommit) {
            it.committing = others;
        }
        Some(next)
    }

    /// The client has a new link, and asks again. What comes over the old one it does not hear.
    pub fn repeat(&self, state: &ClusterState, client: usize) -> Option<ClusterState> {
        when(state.clients[client].phase == Phase::Committing)?;
        when(state.clients[client].repeats < self.repeats)?;
        let mut next = state.clone();
        let it = &mut next.clients[client];
        it.repeats += 1;
        (it.is_asked, it.is_repeat, it.reply) = (true, true, None);
        Some(next)
    }

    /// COMMIT arrives. A repeat waits until the session's first link does nothing any more, and finds its numbers closed.
    pub fn take_commit(&self, state: &ClusterState, client: usize) -> Option<ClusterState> {
        let (it, part) = (state.clients[client], self.home(client));
        let home = &state.parts[part];
        let is_waiting =
            it.is_repeat && self.is_committing(state, client) && !self.has(PartFault::RepeatBesideFirst);
        when(it.is_asked && !is_waiting)?;
        let mut next = state.clone();
        next.clients[client].is_asked = false;
        if home.replies & bit(client) != 0 {
            next.clients[client].reply = Some(Answer::Committed);
        } else if self.plans[client].others() == 0 {
            self.commit_at_home(&mut next, client);
        } else if !it.is_repeat && self.number_of(state, client) == OpenNumber::Begun {
            next.parts[part].open[usize::from(it.number)] = OpenNumber::Committing(client as u8);
        } else {
            if it.is_repeat && self.number_of(state, client) == OpenNumber::Begun {
                next.parts[part].open[usize::from(it.number)] = OpenNumber::Closed;
            }
            next.clients[client].reply = Some(Answer::Aborted);
        }
        Some(next)
    }

    /// What has become of the number of a transaction, at the home's owner of now.
    fn number_of(&self, state: &ClusterState, client: usize) -> OpenNumber {
        let (it, home) = (&state.clients[client], &state.parts[self.home(client)]);
        let is_own = it.owner == home.owner || self.has(PartFault::NumberOfAnyOwner);
        if is_own { home.open[usize::from(it.number)] } else { OpenNumber::Closed }
    }

    pub fn is_committing(&self, state: &ClusterState, client: usize) -> bool {
        self.plans[client]
            .home()
            .is_some_and(|home| state.parts[home].open.contains(&OpenNumber::Committing(client as u8)))
    }

    /// The home commits, unless something there has changed or is locked, or there is no room for the decision.
    pub fn do_commit(&self, state: &ClusterState, client: usize) -> Option<ClusterState> {
        when(self.is_committing(state, client))?;
        let mut next = state.clone();
        next.parts[self.home(client)].open[usize::from(state.clients[client].number)] = OpenNumber::Closed;
        self.commit_at_home(&mut next, client);
        Some(next)
    }

    fn commit_at_home(&self, next: &mut ClusterState, client: usize) {
        let is_same = self.is_as_read(next, client, self.home(client)) || self.has(PartFault::HomeUncompared);
        let is_decision = self.plans[client].others() != 0;
        let (it, home) = (&mut next.clients[client], &mut next.parts[self.home(client)]);
        let has_entry = home.decision.is_none() || home.is_ended || self.has(PartFault::EntryTaken);
        let happens = is_same && home.locked_by.is_none() && (has_entry || !is_decision);
        if happens {
            (home.value, home.version) = (client as u8 + 1, home.version + 1);
            if is_decision {
                (home.decision, home.is_ended, home.told) = (Some(client as u8), false, 0);
            }
            if !self.has(PartFault::ForgottenReply) {
                home.replies |= bit(client);
            }
            it.done += 1;
        }
        // A repeat over another link does not hear what the first one is told.
        if it.phase == Phase::Committing && !it.is_asked {
            it.reply = Some(if happens { Answer::Committed } else { Answer::Aborted });
        }
    }

    pub fn hear(&self, state: &ClusterState, client: usize) -> Option<ClusterState> {
        when(state.clients[client].phase == Phase::Committing)?;
        let answer = state.clients[client].reply?;
        let others = self.plans[client].others();
        let mut next = state.clone();
        let it = &mut next.clients[client];
        (it.answer, it.reply) = (Some(answer), None);
        match answer {
            Answer::Committed if others != 0 => (it.phase, it.committing) = (Phase::Deciding, others),
            Answer::Committed => it.phase = Phase::Ended,
            Answer::Aborted => (it.phase, it.aborting) = (Phase::Ended, others),
        }
        Some(next)
    }

    /// The client gives up before COMMIT: a part has refused, or does not answer.
    pub fn give_up(&self, state: &ClusterState, client: usize) -> Option<ClusterState> {
        when(state.clients[client].phase == Phase::Preparing)?;
        let mut next = state.clone();
        let it = &mut next.clients[client];
        (it.answer, it.aborting) = (Some(Answer::Aborted), self.plans[client].others());
        (it.phase, it.granted, it.refused) = (Phase::Ended, 0, 0);
        Some(next)
    }

    /// The client ends, or gets no answer to COMMIT and does not know what became of it.
    pub fn leave(&self, state: &ClusterState, client: usize) -> Option<ClusterState> {
        let phase = state.clients[client].phase;
        when(matches!(phase, Phase::Preparing | Phase::Committing))?;
        let mut next = state.clone();
        let it = &mut next.clients[client];
        if phase == Phase::Committing && self.has(PartFault::SilenceIsAbort) {
            it.aborting = self.plans[client].others();
        }
        (it.phase, it.granted, it.refused, it.reply) = (Phase::Ended, 0, 0, None);
        Some(next)
    }

    /// DECIDE arrives.
    pub fn decide(
        &self,
        state: &ClusterState,
        client: usize,
        part: usize,
        is_committed: bool,
    ) -> Option<ClusterState> {
        let mut next = state.clone();
        let it = &mut next.clients[client];
        let under_way = if is_committed { &mut it.committing } else { &mut it.aborting };
        when(*under_way & bit(part) != 0)?;
        *under_way &= !bit(part);
        if is_committed && it.phase == Phase::Deciding {
            it.told |= bit(part);
        }
        self.decide_at(&mut next, client, part, is_committed);
        Some(next)
    }

    /// A part makes a branch happen, or undoes it, and frees its note, in one commit. Without a branch nothing is to be done.
    fn decide_at(&self, next: &mut ClusterState, client: usize, part: usize, is_committed: bool) {
        let at = &mut next.parts[part];
        let has_branch = at.branches & bit(client) != 0;
        if self.has(PartFault::ReplacedAnswers) && at.owner > 0 {
            return;
        }
        if has_branch {
            at.branches &= !bit(client);
            if at.locked_by == Some(client as u8) && (is_committed || !self.has(PartFault::LockKept)) {
                at.locked_by = None;
            }
        }
        let happens = is_committed && (has_branch || self.has(PartFault::DecideTwice));
        if happens && self.plans[client].writes_part(part) {
            (at.value, at.version) = (client as u8 + 1, at.version + 1);
        }
    }

    pub fn end(&self, state: &ClusterState, client: usize) -> Option<ClusterState> {
        let it = &state.clients[client];
        let is_heard = it.told == self.plans[client].others() || self.has(PartFault::EndedUnheard);
        when(it.phase == Phase::Deciding && is_heard)?;
        let mut next = state.clone();
        let it = &mut next.clients[client];
        (it.phase, it.told, it.is_ending) = (Phase::Ended, 0, true);
        Some(next)
    }

    pub fn take_end(&self, state: &ClusterState, client: usize) -> Option<ClusterState> {
        when(state.clients[client].is_ending)?;
        let mut next = state.clone();
        next.clients[client].is_ending = false;
        let home = &mut next.parts[self.home(client)];
        if home.decision == Some(client as u8) {
            home.is_ended = true;
        }
        Some(next)
    }

    pub fn hang_up(&self, state: &ClusterState, client: usize) -> Option<ClusterState> {
        let it = &state.clients[client];
        when((Phase::Preparing..).contains(&it.phase) && self.plans[client].others() != 0)?;
        let home = self.plans[client].home()?;
        when(state.parts[home].owner == it.owner)?;
        let mut next = state.clone();
        let open = &mut next.parts[home].open[usize::from(it.number)];
        when(*open == OpenNumber::Begun)?;
        *open = OpenNumber::Closed;
        Some(next)
    }

    /// Whoever serves a part asks the home of a transaction that has a branch there. "Open" changes nothing.
    pub fn ask(
        &self,
        state: &ClusterState,
        client: usize,
        part: usize,
        is_final: bool,
    ) -> Option<ClusterState> {
        when(!self.has(PartFault::NobodyAsks))?;
        when(state.parts[part].branches & bit(client) != 0 && state.clients[client].heard & bit(part) == 0)?;
        let home = &state.parts[self.home(client)];
        let mut next = state.clone();
        let is_replaced = self.has(PartFault::ReplacedAnswers) && home.owner > 0;
        let is_committed = home.decision == Some(client as u8) && !home.is_ended && !is_replaced;
        if !is_committed {
            match self.number_of(state, client) {
                OpenNumber::Begun => {
                    when(is_final)?;
                    if !self.has(PartFault::NeverClosed) {
                        let number = usize::from(state.clients[client].number);
                        next.parts[self.home(client)].open[number] = OpenNumber::Closed;
                    }
                }
                OpenNumber::Committing(_) => when(is_final && self.has(PartFault::ClosedAmidCommit))?,
                OpenNumber::Closed => {}
            }
        }
        let it = &mut next.clients[client];
        it.heard |= bit(part);
        if is_committed {
            it.heard_committed |= bit(part);
        }
        Some(next)
    }

    pub fn decide_as_heard(&self, state: &ClusterState, client: usize, part: usize) -> Option<ClusterState> {
        when(state.clients[client].heard & bit(part) != 0)?;
        let mut next = state.clone();
        let it = &mut next.clients[client];
        let is_committed = it.heard_committed & bit(part) != 0;
        it.heard &= !bit(part);
        it.heard_committed &= !bit(part);
        self.decide_at(&mut next, client, part, is_committed);
        Some(next)
    }

    /// Whoever serves a home tells a part what was decided. After the last one the decision has ended.
    pub fn tell_again(&self, state: &ClusterState, home: usize, part: usize) -> Option<ClusterState> {
        when(!self.has(PartFault::NobodyTellsAgain))?;
        let client = usize::from(state.parts[home].decision?);
        let others = self.plans[client].others();
        when(!state.parts[home].is_ended && others & !state.parts[home].told & bit(part) != 0)?;
        let mut next = state.clone();
        self.decide_at(&mut next, client, part, true);
        let at = &mut next.parts[home];
        at.told |= bit(part);
        if at.told == others || self.has(PartFault::EndedAfterOne) {
            (at.is_ended, at.told) = (true, 0);
        }
        Some(next)
    }

    /// A part gets its next owner. A commit that was under way at the one before has arrived at the copies, or not: it is a step before
    /// this one, or none.
    pub fn take_over(&self, state: &ClusterState, part: usize) -> Option<ClusterState> {
        when(state.falls < self.falls)?;
        let mut next = state.clone();
        for client in 0..CLIENTS {
            if self.is_committing(state, client) && self.home(client) == part {
                self.fall_amid_commit(&mut next, client);
            }
        }
        next.falls += 1;
        let at = &mut next.parts[part];
        at.owner += 1;
        (at.next, at.open, at.is_ended, at.told) = Default::default();
        if self.has(PartFault::UnnotedBranch) {
            at.branches = 0;
        }
        if self.has(PartFault::UnnotedDecision) {
            at.decision = None;
        }
        let branches = (0..CLIENTS).filter(|client| at.branches & bit(*client) != 0);
        let locked_by = branches.filter_map(|client| self.locks_of(client, part)).next();
        at.locked_by = locked_by.filter(|_| !self.has(PartFault::UnlockedBranch));
        Some(next)
    }

    /// What the owner before answers wrongly.
    fn fall_amid_commit(&self, next: &mut ClusterState, client: usize) {
        let answer = match self.fault {
            Some(PartFault::ReplacedDenies) => {
                self.commit_at_home(next, client);
                Answer::Aborted
            }
            Some(PartFault::ReplacedCommits) => Answer::Committed,
            _ => return,
        };
        let it: &mut ClientState = &mut next.clients[client];
        if it.phase == Phase::Committing && !it.is_asked {
            it.reply = Some(answer);
        }
    }
}
