//! Routes the stream from a giver to its takers.

use super::{Hop, PipelinePlan, StreamLeg, mover_options};
use crate::control::{CommandEnd, InletSpec, Mover, OpenMode, OutletSpec, StageCommand};
use crate::coordinator::{FanOut, PipelineOptions, PipelineRequest};
use crate::mover::{DeadOutlet, HopOptions, MoverOptions, SlowOutlet};
use crate::stage::{Stage, StageKind};

/// The source of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StreamGiver {
    Command(u32),
    File(u32),
    /// The standard input of the user's own command.
    Caller,
    Nothing,
}

/// The destination of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
enum StreamTaker {
    Command(u32),
    File(u32),
    /// The standard output of the user's own command.
    Caller,
    /// The standard output of the user's own command, line by line, each behind this prefix.
    Lines(String),
    Nothing,
}

impl PipelinePlan {
    pub(super) fn lay_routes(&mut self, request: &PipelineRequest, first: &Stage, last: &Stage, input: bool) {
        let options = &request.options;
        let count = request.stages.len();
        if request.is_ring {
            let back = self.jobs.len() - 1;
            self.route(self.giver(back), vec![self.taker(0)], options);
        } else {
            let is_here = first.hosts.is_empty();
            let reads = !matches!(first.kind, StageKind::Read(_));
            if reads && (is_here || input) {
                let here = self.agent(None);
                let takers = self.takers(0);
                self.route((here, StreamGiver::Caller), takers, options);
            } else if reads {
                for (agent, taker) in self.takers(0) {
                    self.route((agent, StreamGiver::Nothing), vec![(agent, taker)], options);
                }
            }
        }
        for stage in 1..count {
            let takers = self.takers(stage);
            let from = self.jobs.iter().position(|job| job.stage + 1 == stage).unwrap_or(0);
            let giver = match request.stages.get(stage).map(|stage| &stage.kind) {
                // `<file` in the middle discards its input.
                Some(StageKind::Read(_)) => {
                    let (agent, giver) = self.giver(from);
                    self.route((agent, giver), vec![(agent, StreamTaker::Nothing)], options);
                    continue;
                }
                _ => self.giver(from),
            };
            self.route(giver, takers, options);
        }
        if !request.is_ring && !matches!(last.kind, StageKind::Write { .. }) {
            self.route_output(count - 1, last.hosts.len() > 1, options);
        }
    }

    /// Routes the last stage's output to the user's own.
    fn route_output(&mut self, stage: usize, several: bool, options: &PipelineOptions) {
        let here = self.agent(None);
        let last: Vec<usize> =
            self.jobs.iter().enumerate().filter(|(_, job)| job.stage == stage).map(|(id, _)| id).collect();
        for id in last {
            let (agent, giver) = self.giver(id);
            let taker = match self.agents.get(agent) {
                Some(Some(host)) if several => StreamTaker::Lines(format!("[{host}] ")),
                _ => StreamTaker::Caller,
            };
            self.route((agent, giver), vec![(here, taker)], options);
        }
    }

    fn giver(&self, job: usize) -> (usize, StreamGiver) {
        let id = u32::try_from(job).unwrap_or(u32::MAX);
        match self.jobs.get(job) {
            Some(job) => match &job.file {
                None => (job.agent, StreamGiver::Command(id)),
                Some((_, OpenMode::Read)) => (job.agent, StreamGiver::File(id)),
                Some(_) => (job.agent, StreamGiver::Nothing),
            },
            None => (0, StreamGiver::Nothing),
        }
    }

    fn taker(&self, job: usize) -> (usize, StreamTaker) {
        let id = u32::try_from(job).unwrap_or(u32::MAX);
        match self.jobs.get(job) {
            Some(job) => match &job.file {
                None => (job.agent, StreamTaker::Command(id)),
                Some((_, OpenMode::Read)) => (job.agent, StreamTaker::Nothing),
                Some(_) => (job.agent, StreamTaker::File(id)),
            },
            None => (0, StreamTaker::Nothing),
        }
    }

    fn takers(&self, stage: usize) -> Vec<(usize, StreamTaker)> {
        let of = |(id, job): (usize, &crate::plan::StageJob)| (job.stage == stage).then(|| self.taker(id));
        self.jobs.iter().enumerate().filter_map(of).collect()
    }

    /// Routes a stream. Its giver keeps to the rate; the movers that pass it on need no rate of their own.
    fn route(
        &mut self,
        (mut agent, giver): (usize, StreamGiver),
        takers: Vec<(usize, StreamTaker)>,
        options: &PipelineOptions,
    ) {
        let [(to, taker)] = takers.as_slice() else {
            return self.fan_out((agent, giver), takers, options);
        };
        // Commands use terminals themselves, and one mover is enough for a rate or for figures.
        let is_terminal = giver == StreamGiver::Caller && !self.has_input;
        let is_measured = *taker == StreamTaker::Caller && !self.legs.is_empty();
        let may_join = is_terminal || is_measured || !self.needs_movers;
        if agent == *to && may_join && self.join(agent, giver, taker) {
            return;
        }
        if *taker == StreamTaker::Nothing
            && matches!(giver, StreamGiver::Command(_) | StreamGiver::Nothing | StreamGiver::Caller)
        {
            return;
        }
        if giver == StreamGiver::Nothing && !matches!(taker, StreamTaker::File(_)) {
            return;
        }
        // A file that gets no input is made on its own host.
        if giver == StreamGiver::Nothing {
            agent = *to;
        }
        self.fan_out((agent, giver), takers, options);
    }

    /// Joins a giver and a taker without a mover, if none is needed. Returns true if it did.
    fn join(&mut self, agent: usize, giver: StreamGiver, taker: &StreamTaker) -> bool {
        let (output, input) = match (giver, taker) {
            (StreamGiver::Command(giver), StreamTaker::Command(taker)) => {
                let pipe = CommandEnd::Pipe(self.next_number());
                let (sender, receiver) = (None, None);
                self.legs.push(StreamLeg { from: agent, to: agent, hop: None, sender, receiver, file: None });
                (Some((giver, pipe)), Some((*taker, pipe)))
            }
            (StreamGiver::Caller, StreamTaker::Command(taker)) => (None, Some((*taker, CommandEnd::Caller))),
            (StreamGiver::Command(giver), StreamTaker::Caller) => (Some((giver, CommandEnd::Caller)), None),
            _ => return false,
        };
        if let Some((stage, end)) = output {
            self.command(agent, stage).for_each(|command| command.output = end);
        }
        if let Some((stage, end)) = input {
            self.command(agent, stage).for_each(|command| command.input = end);
        }
        true
    }

    /// Sends the stream through movers, from the giver to all takers.
    fn fan_out(
        &mut self,
        (agent, giver): (usize, StreamGiver),
        takers: Vec<(usize, StreamTaker)>,
        options: &PipelineOptions,
    ) {
        let may_lose_some = options.on_dead == DeadOutlet::Continue || options.on_slow == SlowOutlet::Drop;
        let is_star =
            options.fan_out == FanOut::Star || (options.fan_out == FanOut::Default && may_lose_some);
        let file = match giver {
            StreamGiver::File(id) => Some(id),
            _ => None,
        };
        let from = self.source(agent, giver);
        let first = self.add_mover(agent, from, mover_options(options, options.rate));
        // Takers on the giver's own host come first: then nothing has to come back to it.
        let is_only = takers.len() == 1;
        let (near, far): (Vec<_>, Vec<_>) = takers.into_iter().partition(|(to, _)| *to == agent);
        for (to, taker) in near {
            let target = self.target(to, &taker);
            let place = self.add_target(agent, first, target);
            let sender = Some((first, place));
            self.legs.push(StreamLeg { from: agent, to, hop: None, sender, receiver: None, file });
        }
        let mut tail = (agent, first);
        for (to, taker) in far {
            let hop = self.add_hop(tail.0, to, is_only);
            let place = self.add_target(tail.0, tail.1, OutletSpec::Hop(hop, HopOptions::default()));
            let receiver =
                self.add_mover(to, InletSpec::Hop(hop, HopOptions::default()), mover_options(options, None));
            let target = self.target(to, &taker);
            self.add_target(to, receiver, target);
            let (sender, from) = (Some((tail.1, place)), tail.0);
            self.legs.push(StreamLeg { from, to, hop: Some(hop), sender, receiver: Some(receiver), file });
            if !is_star {
                tail = (to, receiver);
            }
        }
    }

    fn source(&mut self, agent: usize, giver: StreamGiver) -> InletSpec {
        match giver {
            StreamGiver::Command(stage) => {
                let pipe = self.next_number();
                self.command(agent, stage).for_each(|command| command.output = CommandEnd::Pipe(pipe));
                InletSpec::Pipe(pipe)
            }
            StreamGiver::File(stage) => InletSpec::File { stage },
            StreamGiver::Caller => InletSpec::Caller,
            StreamGiver::Nothing => InletSpec::Null,
        }
    }

    fn target(&mut self, agent: usize, taker: &StreamTaker) -> OutletSpec {
        match taker {
            StreamTaker::Command(stage) => {
                let pipe = self.next_number();
                self.command(agent, *stage).for_each(|command| command.input = CommandEnd::Pipe(pipe));
                OutletSpec::Pipe(pipe)
            }
            StreamTaker::File(stage) => OutletSpec::File { stage: *stage },
            StreamTaker::Caller => OutletSpec::Caller,
            StreamTaker::Lines(prefix) => OutletSpec::Lines(prefix.clone()),
            StreamTaker::Nothing => OutletSpec::Null,
        }
    }

    /// Returns the command of that number, if the agent has it.
    fn command(&mut self, agent: usize, stage: u32) -> impl Iterator<Item = &mut StageCommand> {
        self.part_mut(agent).commands.iter_mut().filter(move |command| command.stage == stage)
    }

    fn add_hop(&mut self, from: usize, to: usize, can_be_pipe: bool) -> u32 {
        let number = self.next_number();
        self.hops.push(Hop { number, from, to, can_be_pipe });
        number
    }

    fn add_mover(&mut self, agent: usize, from: InletSpec, options: MoverOptions) -> u32 {
        let mover = self.movers;
        self.movers += 1;
        self.part_mut(agent).movers.push(Mover { mover, from, to: Vec::new(), options });
        mover
    }

    /// Adds a target to a mover. Returns its index among the mover's targets.
    fn add_target(&mut self, agent: usize, mover: u32, target: OutletSpec) -> usize {
        let movers = &mut self.part_mut(agent).movers;
        let Some(mover) = movers.iter_mut().find(|known| known.mover == mover) else { return 0 };
        mover.to.push(target);
        mover.to.len() - 1
    }
}
