//! The stream's way from a giver to its takers.

use super::{Hop, Plan, Way, mover_options};
use crate::control::{End, Mode, Mover, Source, Target};
use crate::coordinator::{FanOut, Options, Request};
use crate::limits::BLOCK_BYTES;
use crate::mover::{DigestKind, HopOptions, MoverOptions, OnDead, OnSlow};
use crate::stage::{Kind, Stage};

/// What gives the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Giver {
    Command(u32),
    File(u32),
    /// The standard input of the user's own command.
    Caller,
    Nothing,
}

/// What takes it.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Taker {
    Command(u32),
    File(u32),
    /// The standard output of the user's own command.
    Caller,
    /// The same, line by line.
    Lines(String),
    Nothing,
}

impl Plan {
    pub(super) fn lay_routes(&mut self, request: &Request, first: &Stage, last: &Stage, input: bool) {
        let options = &request.options;
        let count = request.stages.len();
        if request.is_ring {
            let back = self.jobs.len() - 1;
            self.route(self.giver(back), vec![self.taker(0)], options);
        } else {
            let is_here = first.hosts.is_empty();
            let reads = !matches!(first.kind, Kind::Read(_));
            if reads && (is_here || input) {
                let here = self.agent(None);
                let takers = self.takers(0);
                self.route((here, Giver::Caller), takers, options);
            } else if reads {
                for (agent, taker) in self.takers(0) {
                    self.route((agent, Giver::Nothing), vec![(agent, taker)], options);
                }
            }
        }
        for stage in 1..count {
            let takers = self.takers(stage);
            let from = self.jobs.iter().position(|job| job.stage + 1 == stage).unwrap_or(0);
            let giver = match request.stages.get(stage).map(|stage| &stage.kind) {
                // `<file` in the middle discards what comes before it.
                Some(Kind::Read(_)) => {
                    let (agent, giver) = self.giver(from);
                    self.route((agent, giver), vec![(agent, Taker::Nothing)], options);
                    continue;
                }
                _ => self.giver(from),
            };
            self.route(giver, takers, options);
        }
        if !request.is_ring && !matches!(last.kind, Kind::Write { .. }) {
            self.route_output(count - 1, last.hosts.len() > 1, options);
        }
    }

    /// The last stage's output goes to the user's own.
    fn route_output(&mut self, stage: usize, several: bool, options: &Options) {
        let here = self.agent(None);
        let last: Vec<usize> =
            self.jobs.iter().enumerate().filter(|(_, job)| job.stage == stage).map(|(id, _)| id).collect();
        for id in last {
            let (agent, giver) = self.giver(id);
            let taker = match self.agents.get(agent) {
                Some(Some(host)) if several => Taker::Lines(format!("[{host}] ")),
                _ => Taker::Caller,
            };
            self.route((agent, giver), vec![(here, taker)], options);
        }
    }

    fn giver(&self, job: usize) -> (usize, Giver) {
        let id = u32::try_from(job).unwrap_or(u32::MAX);
        match self.jobs.get(job) {
            Some(job) => match &job.file {
                None => (job.agent, Giver::Command(id)),
                Some((_, Mode::Read)) => (job.agent, Giver::File(id)),
                Some(_) => (job.agent, Giver::Nothing),
            },
            None => (0, Giver::Nothing),
        }
    }

    fn taker(&self, job: usize) -> (usize, Taker) {
        let id = u32::try_from(job).unwrap_or(u32::MAX);
        match self.jobs.get(job) {
            Some(job) => match &job.file {
                None => (job.agent, Taker::Command(id)),
                Some((_, Mode::Read)) => (job.agent, Taker::Nothing),
                Some(_) => (job.agent, Taker::File(id)),
            },
            None => (0, Taker::Nothing),
        }
    }

    fn takers(&self, stage: usize) -> Vec<(usize, Taker)> {
        let of = |(id, job): (usize, &super::Job)| (job.stage == stage).then(|| self.taker(id));
        self.jobs.iter().enumerate().filter_map(of).collect()
    }

    /// Whoever gives a stream keeps to the pace; what passes it on has no other.
    fn route(&mut self, (agent, giver): (usize, Giver), takers: Vec<(usize, Taker)>, options: &Options) {
        let [(to, taker)] = takers.as_slice() else {
            return self.fan_out((agent, giver), takers, options);
        };
        // Terminals are for commands themselves, and one mover is enough for a pace or for figures.
        let is_terminal = giver == Giver::Caller && !self.has_input;
        let is_measured = *taker == Taker::Caller && !self.ways.is_empty();
        let may_join = is_terminal || is_measured || !self.needs_movers;
        if agent == *to && may_join && self.join(agent, giver, taker) {
            return;
        }
        if *taker == Taker::Nothing && matches!(giver, Giver::Command(_) | Giver::Nothing | Giver::Caller) {
            return;
        }
        if giver == Giver::Nothing && !matches!(taker, Taker::File(_)) {
            return;
        }
        // A file that nothing flows into is made where it is.
        let agent = if giver == Giver::Nothing { *to } else { agent };
        let from = self.source(agent, giver);
        let sender = self.add_mover(agent, from, mover_options(options, options.rate));
        let file = match giver {
            Giver::File(id) => Some(id),
            _ => None,
        };
        if agent == *to {
            let target = self.target(*to, taker);
            self.add_target(agent, sender, target);
            let way =
                Way { from: agent, to: *to, hop: None, sender: Some((sender, 0)), receiver: None, file };
            return self.ways.push(way);
        }
        let hop = self.add_hop(agent, *to, true);
        self.add_target(agent, sender, Target::Hop(hop, undecided()));
        let receiver = self.add_mover(*to, Source::Hop(hop, undecided()), mover_options(options, None));
        let target = self.target(*to, taker);
        self.add_target(*to, receiver, target);
        let (sender, receiver) = (Some((sender, 0)), Some(receiver));
        self.ways.push(Way { from: agent, to: *to, hop: Some(hop), sender, receiver, file });
    }

    /// Where nothing of ours needs to be between the two. Whether that was so.
    fn join(&mut self, agent: usize, giver: Giver, taker: &Taker) -> bool {
        let (output, input) = match (giver, taker) {
            (Giver::Command(giver), Taker::Command(taker)) => {
                let pipe = End::Pipe(self.next_number());
                let (sender, receiver) = (None, None);
                self.ways.push(Way { from: agent, to: agent, hop: None, sender, receiver, file: None });
                (Some((giver, pipe)), Some((*taker, pipe)))
            }
            (Giver::Caller, Taker::Command(taker)) => (None, Some((*taker, End::Caller))),
            (Giver::Command(giver), Taker::Caller) => (Some((giver, End::Caller)), None),
            _ => return false,
        };
        for command in &mut self.part_mut(agent).commands {
            if let Some((_, end)) = output.filter(|(stage, _)| *stage == command.stage) {
                command.output = end;
            }
            if let Some((_, end)) = input.filter(|(stage, _)| *stage == command.stage) {
                command.input = end;
            }
        }
        true
    }

    fn fan_out(&mut self, (agent, giver): (usize, Giver), takers: Vec<(usize, Taker)>, options: &Options) {
        let may_lose_some = options.on_dead == OnDead::Continue || options.on_slow == OnSlow::Drop;
        let is_star =
            options.fan_out == FanOut::Star || (options.fan_out == FanOut::Default && may_lose_some);
        let file = match giver {
            Giver::File(id) => Some(id),
            _ => None,
        };
        let from = self.source(agent, giver);
        let first = self.add_mover(agent, from, mover_options(options, options.rate));
        // Those of the giver's own host first: nothing has to come back to it.
        let (near, far): (Vec<_>, Vec<_>) = takers.into_iter().partition(|(to, _)| *to == agent);
        for (to, taker) in near {
            let target = self.target(to, &taker);
            let place = self.add_target(agent, first, target);
            let sender = Some((first, place));
            self.ways.push(Way { from: agent, to, hop: None, sender, receiver: None, file });
        }
        let mut tail = (agent, first);
        for (to, taker) in far {
            let hop = self.add_hop(tail.0, to, false);
            let place = self.add_target(tail.0, tail.1, Target::Hop(hop, undecided()));
            let receiver = self.add_mover(to, Source::Hop(hop, undecided()), mover_options(options, None));
            let target = self.target(to, &taker);
            self.add_target(to, receiver, target);
            let (sender, from) = (Some((tail.1, place)), tail.0);
            self.ways.push(Way { from, to, hop: Some(hop), sender, receiver: Some(receiver), file });
            if !is_star {
                tail = (to, receiver);
            }
        }
    }

    fn source(&mut self, agent: usize, giver: Giver) -> Source {
        match giver {
            Giver::Command(stage) => {
                let pipe = self.next_number();
                let commands = &mut self.part_mut(agent).commands;
                commands.iter_mut().filter(|command| command.stage == stage).for_each(|command| {
                    command.output = End::Pipe(pipe);
                });
                Source::Pipe(pipe)
            }
            Giver::File(stage) => Source::File { stage },
            Giver::Caller => Source::Caller,
            Giver::Nothing => Source::Null,
        }
    }

    fn target(&mut self, agent: usize, taker: &Taker) -> Target {
        match taker {
            Taker::Command(stage) => {
                let pipe = self.next_number();
                let commands = &mut self.part_mut(agent).commands;
                commands.iter_mut().filter(|command| command.stage == *stage).for_each(|command| {
                    command.input = End::Pipe(pipe);
                });
                Target::Pipe(pipe)
            }
            Taker::File(stage) => Target::File { stage: *stage },
            Taker::Caller => Target::Caller,
            Taker::Lines(prefix) => Target::Lines(prefix.clone()),
            Taker::Nothing => Target::Null,
        }
    }

    fn add_hop(&mut self, from: usize, to: usize, can_be_pipe: bool) -> u32 {
        let number = self.next_number();
        self.hops.push(Hop { number, from, to, can_be_pipe });
        number
    }

    fn add_mover(&mut self, agent: usize, from: Source, options: MoverOptions) -> u32 {
        let mover = self.movers;
        self.movers += 1;
        self.part_mut(agent).movers.push(Mover { mover, from, to: Vec::new(), options });
        mover
    }

    /// Its place among the mover's targets.
    fn add_target(&mut self, agent: usize, mover: u32, target: Target) -> usize {
        let movers = &mut self.part_mut(agent).movers;
        let Some(mover) = movers.iter_mut().find(|known| known.mover == mover) else { return 0 };
        mover.to.push(target);
        mover.to.len() - 1
    }
}

/// Until it is known what carries the hop.
fn undecided() -> HopOptions {
    HopOptions {
        digest: DigestKind::Off,
        sealed: false,
        compression: None,
        block_bytes: BLOCK_BYTES,
        silence: None,
    }
}
