//! A world as a model for stateright: its steps, and what must hold in every state that they lead to.

use stateright::{Model, Property};

use crate::history::{Act, is_strictly_serializable};
use crate::world::{Answer, CLIENTS, ClientState, ClusterState, PARTS, PartWorld, Phase, bit};

/// One step. A client's transaction has its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Read { client: usize },
    Validate { client: usize, part: usize },
    Begin { client: usize },
    Prepare { client: usize, part: usize },
    Commit { client: usize },
    Repeat { client: usize },
    TakeCommit { client: usize },
    DoCommit { client: usize },
    Hear { client: usize },
    GiveUp { client: usize },
    Leave { client: usize },
    Decide { client: usize, part: usize, is_committed: bool },
    End { client: usize },
    TakeEnd { client: usize },
    HangUp { client: usize },
    Ask { client: usize, part: usize, is_final: bool },
    DecideAsHeard { client: usize, part: usize },
    TellAgain { home: usize, part: usize },
    TakeOver { part: usize },
}

impl Step {
    /// Whether a step need not come: a message that may be lost, a failure, or what a client does on top.
    fn may_never_come(self) -> bool {
        matches!(
            self,
            Step::Prepare { .. }
                | Step::TakeCommit { .. }
                | Step::Decide { .. }
                | Step::TakeEnd { .. }
                | Step::TakeOver { .. }
                | Step::HangUp { .. }
                | Step::Repeat { .. }
                | Step::End { .. }
        )
    }
}

impl PartWorld {
    /// Takes a step, if it can be taken.
    fn step(&self, state: &ClusterState, step: Step) -> Option<ClusterState> {
        match step {
            Step::Read { client } => self.read(state, client),
            Step::Validate { client, part } => self.validate(state, client, part),
            Step::Begin { client } => self.begin(state, client),
            Step::Prepare { client, part } => self.prepare(state, client, part),
            Step::Commit { client } => self.commit(state, client),
            Step::Repeat { client } => self.repeat(state, client),
            Step::TakeCommit { client } => self.take_commit(state, client),
            Step::DoCommit { client } => self.do_commit(state, client),
            Step::Hear { client } => self.hear(state, client),
            Step::GiveUp { client } => self.give_up(state, client),
            Step::Leave { client } => self.leave(state, client),
            Step::Decide { client, part, is_committed } => self.decide(state, client, part, is_committed),
            Step::End { client } => self.end(state, client),
            Step::TakeEnd { client } => self.take_end(state, client),
            Step::HangUp { client } => self.hang_up(state, client),
            Step::Ask { client, part, is_final } => self.ask(state, client, part, is_final),
            Step::DecideAsHeard { client, part } => self.decide_as_heard(state, client, part),
            Step::TellAgain { home, part } => self.tell_again(state, home, part),
            Step::TakeOver { part } => self.take_over(state, part),
        }
    }

    /// Tells whether nothing is under way. Messages may still arrive: they are what is late; without them they are what is lost.
    fn is_quiet(&self, state: &ClusterState) -> bool {
        let is_idle = |client: &ClientState| match client.phase {
            Phase::Reading => client.read == 0,
            Phase::Preparing | Phase::Committing => false,
            Phase::Deciding | Phase::Ended => true,
        };
        state.clients.iter().all(is_idle)
            && state.parts.iter().all(|part| part.branches == 0 && (part.decision.is_none() || part.is_ended))
            && (0..CLIENTS).all(|client| !self.is_committing(state, client))
    }

    /// Tells whether some order explains what clients were told, and what is stored when nothing is under way.
    fn is_explained(&self, state: &ClusterState) -> bool {
        let is_quiet = self.is_quiet(state);
        if state.answered() == 0 && !is_quiet {
            return true;
        }
        let mut acts = Vec::with_capacity(CLIENTS + 1);
        for (number, (plan, it)) in self.plans.iter().zip(&state.clients).enumerate() {
            if it.phase == Phase::Reading || it.answer == Some(Answer::Aborted) {
                continue;
            }
            let mut act = Act { number: number as u8, after: it.after, ..Act::default() };
            (act.value, act.is_answered) = (number as u8 + 1, it.answer.is_some());
            plan.reads.iter().for_each(|part| act.reads[*part] = Some(it.values[*part]));
            act.writes = plan.writes.iter().fold(0, |all, part| all | bit(*part));
            acts.push(act);
        }
        if is_quiet {
            let after = state.answered();
            let reads = std::array::from_fn(|part| Some(state.parts[part].value));
            acts.push(Act { number: CLIENTS as u8, is_answered: true, reads, after, ..Act::default() });
        }
        is_strictly_serializable(&acts)
    }

    /// Each transaction is done at most once, and not at all if its client was told so.
    fn is_done_once(&self, state: &ClusterState) -> bool {
        let is_right = |it: &ClientState| it.done <= u8::from(it.answer != Some(Answer::Aborted));
        state.clients.iter().all(is_right)
    }

    fn is_unlocked(&self, state: &ClusterState) -> bool {
        !self.is_quiet(state) || state.parts.iter().all(|part| part.locked_by.is_none())
    }

    /// What is under way goes on, even if no message arrives.
    fn goes_on_or_is_quiet(&self, state: &ClusterState) -> bool {
        self.is_quiet(state) || {
            let mut steps = Vec::new();
            self.actions(state, &mut steps);
            let mut steps = steps.into_iter().filter(|step| !step.may_never_come());
            steps.any(|step| self.step(state, step).is_some())
        }
    }
}

/// What must hold in every state.
pub mod property {
    pub const SERIALIZABLE: &str =
        "what clients were told, and what is stored in the end, happened in one order that real time allows";
    pub const ONCE: &str = "a transaction is done once, and not at all if its client was told so";
    pub const UNLOCKED: &str = "no lock is left when nothing is under way";
    pub const GOES_ON: &str = "what is under way goes on, even if no message arrives";

    // What some world must show, or they prove nothing.
    pub const BOTH: &str = "both transactions commit";
    pub const HEARD_LATER: &str = "a later owner of a part asks, and hears that the transaction has happened";
    pub const TOLD_LATER: &str = "a later owner of the home tells a part again";
    pub const CLOSED: &str = "a transaction is given up whose client then asks to commit it";
    pub const REPLIED_LATER: &str = "a later owner of the home has the reply to a repeat";
    pub const REUSED: &str = "a decision takes the entry of one that has ended";
    pub const LATE: &str = "a branch is prepared after its client has given up";
}

impl Model for PartWorld {
    type State = ClusterState;
    type Action = Step;

    fn init_states(&self) -> Vec<ClusterState> {
        vec![ClusterState::default()]
    }

    fn actions(&self, state: &ClusterState, steps: &mut Vec<Step>) {
        for (client, it) in state.clients.iter().enumerate() {
            match it.phase {
                Phase::Reading => {
                    steps.extend([Step::Read { client }, Step::Begin { client }]);
                    steps.extend((0..PARTS).map(|part| Step::Validate { client, part }));
                }
                Phase::Preparing => {
                    steps.extend([Step::Commit { client }, Step::GiveUp { client }, Step::Leave { client }]);
                }
                Phase::Committing => {
                    steps.extend([Step::Hear { client }, Step::Repeat { client }, Step::Leave { client }]);
                }
                Phase::Deciding => steps.push(Step::End { client }),
                Phase::Ended => {}
            }
            if it.phase >= Phase::Preparing && self.plans[client].home().is_some() {
                steps.extend([Step::TakeCommit { client }, Step::DoCommit { client }]);
                steps.extend([Step::TakeEnd { client }, Step::HangUp { client }]);
                for part in (0..PARTS).filter(|part| self.plans[client].others() & bit(*part) != 0) {
                    steps.extend([Step::Prepare { client, part }, Step::DecideAsHeard { client, part }]);
                    steps.extend([false, true].map(|is_committed| Step::Decide {
                        client,
                        part,
                        is_committed,
                    }));
                    steps.extend([false, true].map(|is_final| Step::Ask { client, part, is_final }));
                }
            }
        }
        for home in (0..PARTS).filter(|home| state.parts[*home].decision.is_some()) {
            steps.extend((0..PARTS).map(|part| Step::TellAgain { home, part }));
        }
        steps.extend(self.may_fall.iter().map(|part| Step::TakeOver { part: *part }));
    }

    fn next_state(&self, state: &ClusterState, step: Step) -> Option<ClusterState> {
        self.step(state, step)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        fn committed(it: &ClientState) -> bool {
            it.answer == Some(Answer::Committed)
        }
        vec![
            Property::always(property::SERIALIZABLE, PartWorld::is_explained),
            Property::always(property::ONCE, PartWorld::is_done_once),
            Property::always(property::UNLOCKED, PartWorld::is_unlocked),
            Property::always(property::GOES_ON, PartWorld::goes_on_or_is_quiet),
            Property::sometimes(property::BOTH, |_, state: &ClusterState| {
                state.clients.iter().all(committed)
            }),
            Property::sometimes(property::HEARD_LATER, |_, state: &ClusterState| {
                let is_later = |part: usize| state.parts[part].owner > 0 && state.parts[part].branches != 0;
                let is_heard = |it: &ClientState, part: usize| it.heard_committed & bit(part) != 0;
                (0..PARTS).any(|part| is_later(part) && state.clients.iter().any(|it| is_heard(it, part)))
            }),
            Property::sometimes(property::TOLD_LATER, |_, state: &ClusterState| {
                state.parts.iter().any(|part| part.owner > 0 && part.decision.is_some() && part.is_ended)
            }),
            Property::sometimes(property::CLOSED, |_, state: &ClusterState| {
                let is_refused = |it: &ClientState| it.reply == Some(Answer::Aborted) && !it.is_repeat;
                state.falls == 0 && state.clients.iter().any(|it| is_refused(it) && it.heard != 0)
            }),
            Property::sometimes(property::REPLIED_LATER, |world, state: &ClusterState| {
                world.plans.iter().zip(&state.clients).any(|(plan, it)| {
                    let is_later = plan.home().is_some_and(|home| state.parts[home].owner > it.owner);
                    is_later && it.is_repeat && committed(it)
                })
            }),
            Property::sometimes(property::REUSED, |world, state: &ClusterState| {
                let is_same_home = world.plans[0].home() == world.plans[1].home();
                let are_decisions = world.plans.iter().all(|plan| plan.others() != 0);
                is_same_home && are_decisions && state.clients.iter().all(|it| it.done == 1)
            }),
            Property::sometimes(property::LATE, |_, state: &ClusterState| {
                let is_late = |(client, it): (usize, &ClientState)| {
                    it.answer == Some(Answer::Aborted)
                        && it.aborting == 0
                        && state.parts.iter().any(|part| part.branches & bit(client) != 0)
                };
                state.clients.iter().enumerate().any(is_late)
            }),
        ]
    }
}
