//! Works out what each agent is to do, from the stages and the options. This module has no clock, process or
//! socket.
//!
//! Two neighbours in the pipeline are a **giver** and a **taker**. On one host a pipe joins them; between hosts a
//! hop does, with a mover at each end. If the taker is several hosts, movers pass the stream on: the giver's mover
//! to all (a star), or each to the next (a chain).

mod route;

use std::path::PathBuf;
use std::time::Duration;

use crate::Error;
use crate::control::{CommandEnd, CommandKind, InletSpec, Mover, OpenMode, OutletSpec, StageCommand};
use crate::coordinator::{FanOut, PipelineOptions, PipelineRequest};
use crate::limits::STAGES_MAX;
use crate::mover::{DeadOutlet, HopOptions, MoverOptions, SlowOutlet};
use crate::stage::{Stage, StageKind};

/// The name of this host in messages.
pub const HERE: &str = "here";

/// The layout of a pipeline.
#[derive(Clone, Debug, Default)]
pub struct PipelinePlan {
    /// The hosts, as ssh takes them, each once; `None` is this host.
    pub agents: Vec<Option<String>>,
    /// The stages, one entry for each host of each stage; the index is the stage number in reports.
    pub jobs: Vec<StageJob>,
    /// The hops between different agents.
    pub hops: Vec<Hop>,
    /// The legs of the stream, in order.
    pub legs: Vec<StreamLeg>,
    /// What each agent runs, before it is known what carries the hops.
    parts: Vec<AgentPart>,
    /// Whether the options ask for something that only a mover does: a rate, a buffer, figures.
    needs_movers: bool,
    /// Whether the user's standard input is anything but a terminal.
    has_input: bool,
    numbers: u32,
    movers: u32,
}

/// What an agent is to run.
#[derive(Clone, Debug, Default)]
pub struct AgentPart {
    /// The commands of the agent.
    pub commands: Vec<StageCommand>,
    /// The movers of the agent.
    pub movers: Vec<Mover>,
}

/// A stage on one host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StageJob {
    /// The index of the stage in the pipeline, from 0.
    pub stage: usize,
    /// The index of the agent that runs it.
    pub agent: usize,
    /// The command as the user wrote it.
    pub text: String,
    /// The path and mode, if the stage is a file.
    pub file: Option<(PathBuf, OpenMode)>,
}

/// A stream between two agents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hop {
    /// The number of the hop in orders and reports.
    pub number: u32,
    /// The agent that sends.
    pub from: usize,
    /// The agent that receives.
    pub to: usize,
    /// Whether a pipe may replace the hop if both agents have the same host and user.
    pub can_be_pipe: bool,
}

/// A part of the stream's way that users see figures of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamLeg {
    /// The agent that sends.
    pub from: usize,
    /// The agent that receives.
    pub to: usize,
    /// The hop, if the leg leaves an agent.
    pub hop: Option<u32>,
    /// The mover that sends, and the index of this leg among its outlets.
    pub sender: Option<(u32, usize)>,
    /// The mover that receives.
    pub receiver: Option<u32>,
    /// The stage number of the file that the leg begins with.
    pub file: Option<u32>,
}

/// What carries a hop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HopCarrier {
    /// A pipe, handed from one agent to the other.
    Pipe,
    /// A connection.
    Connection(HopOptions),
}

impl PipelinePlan {
    /// Lays a pipeline out. `input` says whether there is anything to read for a first stage on another host.
    pub fn new(request: &PipelineRequest, input: bool) -> Result<Self, Error> {
        check(request)?;
        let options = &request.options;
        let needs_movers = options.rate.is_some() || options.buffer_bytes > 0 || options.progress;
        let mut plan = Self { needs_movers, has_input: input, ..Self::default() };
        for (number, stage) in request.stages.iter().enumerate() {
            plan.add_jobs(number, stage);
        }
        if let (Some(first), Some(last)) = (request.stages.first(), request.stages.last()) {
            plan.lay_routes(request, first, last, input);
        }
        Ok(plan)
    }

    /// Returns what an agent is to run, once it is known what carries each hop.
    pub fn part(&self, agent: usize, carrier: impl Fn(u32) -> Option<HopCarrier>) -> AgentPart {
        let mut part = self.parts.get(agent).cloned().unwrap_or_default();
        for mover in &mut part.movers {
            if let InletSpec::Hop(number, options) = &mut mover.from {
                match carrier(*number) {
                    Some(HopCarrier::Connection(agreed)) => *options = agreed,
                    _ => mover.from = InletSpec::Pipe(*number),
                }
            }
            for target in &mut mover.to {
                if let OutletSpec::Hop(number, options) = target {
                    match carrier(*number) {
                        Some(HopCarrier::Connection(agreed)) => *options = agreed,
                        _ => *target = OutletSpec::Pipe(*number),
                    }
                }
            }
        }
        self.join_handed(&mut part, carrier);
        part
    }

    /// Gives handed pipes to the commands themselves, and removes the movers in between.
    fn join_handed(&self, part: &mut AgentPart, carrier: impl Fn(u32) -> Option<HopCarrier>) {
        if self.needs_movers {
            return;
        }
        let handed: Vec<u32> = self.hops.iter().map(|hop| hop.number).collect();
        let is_handed = |number: u32| handed.contains(&number) && carrier(number) == Some(HopCarrier::Pipe);
        let commands = &mut part.commands;
        part.movers.retain(|mover| match (&mover.from, mover.to.as_slice()) {
            (InletSpec::Pipe(from), [OutletSpec::Pipe(to)]) if is_handed(*to) && !is_handed(*from) => {
                let ours = |command: &&mut StageCommand| command.output == CommandEnd::Pipe(*from);
                match commands.iter_mut().find(ours) {
                    Some(command) => command.output = CommandEnd::Pipe(*to),
                    None => return true,
                }
                false
            }
            (InletSpec::Pipe(from), [OutletSpec::Pipe(to)]) if is_handed(*from) => {
                let ours = |command: &&mut StageCommand| command.input == CommandEnd::Pipe(*to);
                match commands.iter_mut().find(ours) {
                    Some(command) => command.input = CommandEnd::Pipe(*from),
                    None => return true,
                }
                false
            }
            _ => true,
        });
    }

    /// Returns a description of the plan, a sentence a line.
    pub fn describe(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for job in &self.jobs {
            let what = if job.file.is_some() { "file" } else { "command" };
            lines.push(format!("stage {} on {}: {what} '{}'", job.stage + 1, self.name(job.agent), job.text));
        }
        for leg in &self.legs {
            let (from, to) = (self.name(leg.from), self.name(leg.to));
            lines.push(match (leg.hop, leg.sender) {
                (Some(_), _) => format!("{from} -> {to}: whatever both have"),
                (None, Some(_)) => format!("{from}: moved by caravan"),
                (None, None) => format!("{from}: a pipe between two commands"),
            });
        }
        lines
    }

    /// Returns the name of an agent's host in messages.
    pub fn name(&self, agent: usize) -> &str {
        self.agents.get(agent).and_then(Option::as_deref).unwrap_or(HERE)
    }

    fn add_jobs(&mut self, number: usize, stage: &Stage) {
        let hosts: Vec<Option<&String>> = match stage.hosts.as_slice() {
            [] => vec![None],
            hosts => hosts.iter().map(Some).collect(),
        };
        for host in hosts {
            let agent = self.agent(host);
            let file = match &stage.kind {
                StageKind::Read(path) => Some((path.clone(), OpenMode::Read)),
                StageKind::Write { path, append: true } => Some((path.clone(), OpenMode::Append)),
                StageKind::Write { path, append: false } => Some((path.clone(), OpenMode::Write)),
                StageKind::Shell(_) | StageKind::Program(_) => None,
            };
            let id = u32::try_from(self.jobs.len()).unwrap_or(u32::MAX);
            self.jobs.push(StageJob { stage: number, agent, text: stage.text.clone(), file });
            let kind = match &stage.kind {
                StageKind::Shell(text) => CommandKind::Shell(text.clone()),
                StageKind::Program(arguments) => CommandKind::Program(arguments.clone()),
                StageKind::Read(_) | StageKind::Write { .. } => continue,
            };
            let command = StageCommand { stage: id, kind, input: CommandEnd::Null, output: CommandEnd::Null };
            self.part_mut(agent).commands.push(command);
        }
    }

    fn agent(&mut self, host: Option<&String>) -> usize {
        let found = self.agents.iter().position(|known| known.as_ref() == host);
        found.unwrap_or_else(|| {
            self.agents.push(host.cloned());
            self.parts.push(AgentPart::default());
            self.agents.len() - 1
        })
    }

    /// There is a part for each agent, because both are made in one place.
    fn part_mut(&mut self, agent: usize) -> &mut AgentPart {
        &mut self.parts[agent]
    }

    fn next_number(&mut self) -> u32 {
        self.numbers += 1;
        self.numbers
    }
}

fn check(request: &PipelineRequest) -> Result<(), Error> {
    let stages = &request.stages;
    let refuse = |why: String| Err(Error::Usage(why));
    if stages.is_empty() {
        return refuse("there is no stage: give at least one, as in host:'COMMAND' or :'COMMAND'".to_owned());
    }
    if stages.len() > STAGES_MAX {
        return refuse(format!("there are {} stages: at most {STAGES_MAX} can be joined", stages.len()));
    }
    let several = stages.iter().position(|stage| stage.hosts.len() > 1);
    if let Some(number) = several.filter(|number| request.is_ring || number + 1 < stages.len()) {
        return refuse(format!(
            "stage {} names several hosts, and another stage follows: only the last one can have several",
            number + 1
        ));
    }
    let options = &request.options;
    if options.fan_out == FanOut::Chain {
        if options.on_dead == DeadOutlet::Continue {
            return refuse(
                "in a chain the hosts behind a dead one are cut off: --on-dead continue takes --star"
                    .to_owned(),
            );
        }
        if options.on_slow == SlowOutlet::Drop {
            return refuse(
                "in a chain a slow host cannot be dropped without those behind it: --on-slow drop takes --star"
                    .to_owned(),
            );
        }
    }
    Ok(())
}

/// Returns the options that both ends of a connected hop agree on.
pub fn hop_options(options: &PipelineOptions, sealed: bool, silence: Option<Duration>) -> HopOptions {
    HopOptions {
        digest: options.digest,
        sealed,
        compression: options.compression,
        block_bytes: crate::limits::BLOCK_BYTES,
        silence,
    }
}

fn mover_options(options: &PipelineOptions, rate: Option<u64>) -> MoverOptions {
    MoverOptions {
        rate,
        buffer_bytes: options.buffer_bytes,
        on_slow: options.on_slow,
        on_dead: options.on_dead,
    }
}

#[cfg(test)]
pub mod tests;
