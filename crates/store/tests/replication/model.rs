//! A world as a model for stateright: its steps, and what must hold in every state that they lead to.

use stateright::{Model, Property};

use crate::history::{Act, VALUES, is_strictly_serializable};
use crate::world::{
    Answer, ClusterState, ModelWorld, Phase, READERS, REGIONS, REQUESTS, RecordKind, RegionCopy,
    TransactionState,
};

/// One step. Numbers are those of servers, transactions, regions and readers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Claim { transaction: usize, server: usize },
    Read { transaction: usize },
    Lock { transaction: usize },
    GiveUp { transaction: usize },
    StampAndValidate { transaction: usize },
    Check { transaction: usize },
    Apply { transaction: usize },
    Answer { transaction: usize },
    Truncate { transaction: usize },
    Deliver { kind: RecordKind, transaction: usize, region: usize },
    Load { reader: usize },
    Look { reader: usize },
    Crash { server: usize },
    Testify { server: usize },
    Expel { server: usize },
    EndLease { server: usize },
    Acknowledge { server: usize },
    Vote,
    Unblock { server: usize },
    Restart { server: usize },
    Settle { server: usize },
}

const KINDS: [RecordKind; 6] = [
    RecordKind::Lock,
    RecordKind::Abort,
    RecordKind::CommitBackup,
    RecordKind::CommitPrimary,
    RecordKind::TruncateBackup,
    RecordKind::TruncatePrimary,
];

impl ModelWorld {
    /// Takes a step, if it can be taken.
    fn step(&self, state: &ClusterState, step: Step) -> Option<ClusterState> {
        match step {
            Step::Claim { transaction, server } => self.claim(state, transaction, server),
            Step::Read { transaction } => self.read(state, transaction),
            Step::Lock { transaction } => self.lock(state, transaction),
            Step::GiveUp { transaction } => self.give_up(state, transaction),
            Step::StampAndValidate { transaction } => self.stamp_and_validate(state, transaction),
            Step::Check { transaction } => self.check(state, transaction),
            Step::Apply { transaction } => self.apply(state, transaction),
            Step::Answer { transaction } => self.answer(state, transaction),
            Step::Truncate { transaction } => self.truncate(state, transaction),
            Step::Deliver { kind, transaction, region } => self.deliver(state, kind, transaction, region),
            Step::Load { reader } => self.load(state, reader),
            Step::Look { reader } => self.look(state, reader),
            Step::Crash { server } => self.crash(state, server),
            Step::Testify { server } => self.testify(state, server),
            Step::Expel { server } => self.expel(state, server),
            Step::EndLease { server } => self.end_lease(state, server),
            Step::Acknowledge { server } => self.acknowledge(state, server),
            Step::Vote => self.vote(state),
            Step::Unblock { server } => self.unblock(state, server),
            Step::Restart { server } => self.restart(state, server),
            Step::Settle { server } => self.settle(state, server),
        }
    }

    /// Tells whether nothing is left to be done: all records have arrived, all that began has ended, and a failure was
    /// recovered from.
    fn is_quiet(&self, state: &ClusterState) -> bool {
        let mut under_way = KINDS.into_iter().flat_map(|kind| {
            (0..REQUESTS)
                .flat_map(move |transaction| (0..REGIONS).map(move |region| (kind, transaction, region)))
        });
        let is_recovered = state.servers.iter().all(|server| server.runs) && state.expelled.is_none()
            || state.has_voted && self.members(state).all(|server| state.servers[server].is_unblocked);
        is_recovered
            && state.transactions.iter().all(|transaction| {
                let is_gone = state.expelled == Some(transaction.coordinator);
                match transaction.phase {
                    Phase::New | Phase::Ended => true,
                    Phase::Applied => {
                        is_gone
                            || !self.truncates
                            || state.servers[transaction.coordinator].epoch != transaction.epoch
                    }
                    _ => is_gone,
                }
            })
            && (state.under_way == 0
                || under_way.all(|(kind, transaction, region)| {
                    self.deliver(state, kind, transaction, region).is_none()
                }))
    }

    /// The copies that members have, of each region the primary first.
    fn members_copies<'a>(&'a self, state: &'a ClusterState) -> impl Iterator<Item = Vec<&'a RegionCopy>> {
        self.copies.iter().enumerate().map(move |(region, servers)| {
            let members = servers.iter().filter(|server| state.expelled != Some(**server));
            members.map(|server| &state.copies[*server][region]).collect()
        })
    }

    /// Tells whether some order explains what clients were told, and at the end what all regions hold.
    fn is_explained(&self, state: &ClusterState) -> bool {
        let is_quiet = self.is_quiet(state);
        if state.answered() == 0 && !is_quiet {
            return true;
        }
        let mut acts = Vec::with_capacity(REQUESTS + READERS + 1);
        for (number, (request, it)) in self.requests.iter().zip(&state.transactions).enumerate() {
            if it.phase <= Phase::Claimed || it.answer == Some(Answer::Aborted) || it.is_reply {
                continue;
            }
            let number = number as u8;
            let mut act = Act { number, value: number + 1, after: it.after, ..Act::default() };
            act.is_answered = it.answer.is_some();
            for region in request.reads.iter().chain(request.writes) {
                act.reads[*region] = Some(it.read_values[*region]);
            }
            act.writes = request.writes.iter().fold(0, |bits, region| bits | 1 << region);
            acts.push(act);
        }
        for (number, (spec, it)) in self.readers.iter().zip(&state.readers).enumerate() {
            if it.has_answer {
                let number = (REQUESTS + number) as u8;
                let mut act = Act { number, is_answered: true, after: it.after, ..Act::default() };
                spec.regions.iter().for_each(|region| act.reads[*region] = Some(it.values[*region]));
                acts.push(act);
            }
        }
        if is_quiet {
            let number = (REQUESTS + READERS) as u8;
            let mut end = Act { number, is_answered: true, after: state.answered(), ..Act::default() };
            for (value, copies) in end.reads.iter_mut().zip(self.members_copies(state)) {
                *value = Some(copies[0].value);
            }
            acts.push(end);
        }
        is_strictly_serializable(&acts)
    }

    /// Tells whether it is so for some transaction.
    fn any(&self, state: &ClusterState, is: impl Fn(usize, &TransactionState) -> bool) -> bool {
        (0..self.requests.len()).any(|number| is(number, &state.transactions[number]))
    }

    /// Of a request and its repeat at most one is done, and none if the client was told that it was aborted.
    fn is_done_once(&self, state: &ClusterState) -> bool {
        let is_done = |number| state.is_done(number);
        self.requests.iter().enumerate().all(|(number, request)| {
            request.repeats.is_none_or(|first| {
                let answers = [first, number].map(|number| state.transactions[number].answer);
                let is_denied = answers.contains(&Some(Answer::Aborted));
                !(is_done(first) && is_done(number)) && !(is_denied && (is_done(first) || is_done(number)))
            })
        })
    }

    /// No lock is left at the end.
    fn is_unlocked(&self, state: &ClusterState) -> bool {
        !self.is_quiet(state) || self.members_copies(state).flatten().all(|copy| copy.locked_by.is_none())
    }

    /// The copies are equal at the end, in a world that truncates: only then backups apply.
    fn has_equal_copies(&self, state: &ClusterState) -> bool {
        let mut copies = self.members_copies(state);
        let is_equal = |copies: Vec<&RegionCopy>| {
            copies.iter().all(|copy| (copy.value, copy.version) == (copies[0].value, copies[0].version))
        };
        !self.truncates || !self.is_quiet(state) || copies.all(is_equal)
    }

    /// No world stops while something is under way.
    fn goes_on_or_is_quiet(&self, state: &ClusterState) -> bool {
        self.is_quiet(state) || {
            let mut steps = Vec::new();
            self.actions(state, &mut steps);
            steps.into_iter().any(|step| self.step(state, step).is_some())
        }
    }
}

/// What must hold in every state.
pub mod property {
    pub const SERIALIZABLE: &str =
        "what clients were told happened in one order that real time allows, and nothing of it is lost";
    pub const ONCE: &str = "a repeated request is done once, and not at all if its client was told so";
    pub const UNLOCKED: &str = "no lock is left when nothing is under way";
    pub const EQUAL: &str = "all copies are equal when nothing is under way";
    pub const ENDS: &str = "where nothing can go on, nothing is left to be done";

    // What some world must show, or they prove nothing.
    pub const VOTED_COMMIT: &str = "the votes commit what its coordinator had not applied";
    pub const VOTED_ABORT: &str = "the votes abort what all backups had";
    pub const WAKES_LATE: &str = "a coordinator that stopped after its check wakes up after the votes";
    pub const COMMITS_LATER: &str = "a transaction commits in the new epoch";
    pub const REPLIES_LATER: &str = "a repeat gets the reply that was recorded before its home moved";
    pub const SETTLED: &str = "the votes commit what a restarted server had begun";
}

impl Model for ModelWorld {
    type State = ClusterState;
    type Action = Step;

    fn init_states(&self) -> Vec<ClusterState> {
        vec![ClusterState::new()]
    }

    fn actions(&self, state: &ClusterState, steps: &mut Vec<Step>) {
        for transaction in 0..self.requests.len() {
            let it = &state.transactions[transaction];
            match it.phase {
                Phase::New => {
                    steps.extend((0..self.servers).map(|server| Step::Claim { transaction, server }))
                }
                Phase::Claimed => steps.push(Step::Read { transaction }),
                Phase::Read => steps.push(Step::Lock { transaction }),
                Phase::Locking => {
                    steps.extend([Step::GiveUp { transaction }, Step::StampAndValidate { transaction }]);
                }
                Phase::Backing => steps.extend([Step::GiveUp { transaction }, Step::Check { transaction }]),
                Phase::Checked => steps.push(Step::Apply { transaction }),
                Phase::Applied => steps.push(Step::Truncate { transaction }),
                Phase::Orphaned | Phase::Ended => {}
            }
            if it.phase >= Phase::Backing && it.answer.is_none() {
                steps.push(Step::Answer { transaction });
            }
            for kind in KINDS {
                for region in self.requests[transaction].writes.iter().copied() {
                    if state.is_under_way(kind, transaction, region) {
                        steps.push(Step::Deliver { kind, transaction, region });
                    }
                }
            }
        }
        for reader in 0..self.readers.len() {
            steps.extend([Step::Load { reader }, Step::Look { reader }]);
        }
        steps.extend(self.may_crash.iter().map(|server| Step::Crash { server: *server }));
        steps.extend(self.may_testify.iter().map(|server| Step::Testify { server: *server }));
        steps.extend(self.may_expel.iter().map(|server| Step::Expel { server: *server }));
        for server in self.may_restart.iter().copied() {
            steps.extend([Step::Restart { server }, Step::Settle { server }]);
        }
        if let Some(server) = state.expelled {
            let lessees = [Some(server), self.outsider].into_iter().flatten();
            steps.extend(lessees.map(|server| Step::EndLease { server }));
            steps.push(Step::Vote);
            for server in 0..self.servers {
                steps.extend([Step::Acknowledge { server }, Step::Unblock { server }]);
            }
        }
    }

    fn next_state(&self, state: &ClusterState, step: Step) -> Option<ClusterState> {
        self.step(state, step)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(property::SERIALIZABLE, ModelWorld::is_explained),
            Property::always(property::ONCE, ModelWorld::is_done_once),
            Property::always(property::UNLOCKED, ModelWorld::is_unlocked),
            Property::always(property::EQUAL, ModelWorld::has_equal_copies),
            Property::always(property::ENDS, ModelWorld::goes_on_or_is_quiet),
            Property::sometimes(property::VOTED_COMMIT, |world, state| {
                world.any(state, |number, it| {
                    state.expelled == Some(it.coordinator)
                        && it.phase == Phase::Backing
                        && state.is_done(number)
                })
            }),
            Property::sometimes(property::VOTED_ABORT, |world, state| {
                world.any(state, |_, it| {
                    it.stamp != 0 && it.backed != 0 && it.decided == Some(Answer::Aborted)
                })
            }),
            Property::sometimes(property::WAKES_LATE, |world, state| {
                world.any(state, |_, it| state.has_voted && it.phase == Phase::Checked)
            }),
            Property::sometimes(property::COMMITS_LATER, |world, state| {
                world.any(state, |_, it| it.epoch == 1 && it.answer == Some(Answer::Committed))
            }),
            Property::sometimes(property::REPLIES_LATER, |world, state| {
                world.any(state, |_, it| it.is_reply && state.expelled == Some(0))
            }),
            Property::sometimes(property::SETTLED, |world, state| {
                let is_settled =
                    |it: &TransactionState| it.phase == Phase::Ended && it.decided.is_none() && !it.is_reply;
                world.any(state, |number, it| {
                    !state.has_voted && state.has_restarted && is_settled(it) && state.is_done(number)
                })
            }),
        ]
    }
}

// The bits of `ClusterState::answered` and `under_way` suffice.
const _: () = assert!(VALUES == REGIONS && REQUESTS + READERS < 8 && KINDS.len() * REQUESTS * REGIONS <= 64);
