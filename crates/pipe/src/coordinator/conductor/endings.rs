//! Handles the ends of stages, movers and hosts, and works out the exit status.

use std::time::Instant;

use super::{CAUSE_LIMIT, Conductor};
use crate::control::{AgentOrder, MoverResult, Status};
use crate::coordinator::PipelineSummary;
use crate::mover::DeadOutlet;
use crate::plan;
use crate::plan::PipelinePlan;

impl Conductor<'_> {
    /// Records the end of a stage. A stage's exit status is no reason to end the others, as in shells.
    pub(super) fn stage_ended(&mut self, number: usize, job: u32, status: Status) {
        if self.is_aborting || (self.abort_at.is_some() && !matches!(status, Status::Failed(_))) {
            // The stage may have been killed by now.
            return;
        }
        if self.statuses[job as usize].is_some() {
            // Only the first end of a stage counts.
            return;
        }
        if let Status::Failed(why) = &status {
            let trouble = PipelineTrouble::Stage { job, why: why.clone() };
            let is_branch = self.is_expendable(number) && self.started.is_some();
            self.fail_or_warn(trouble, is_branch);
        }
        self.statuses[job as usize] = Some(status);
        self.ended.push(job);
        self.check_deserter(job);
    }

    /// Handles an outlet that has ended while others go on: kills its branch, unless its reader has merely closed.
    pub(super) fn outlet_left(&mut self, mover: u32, outlet: usize, has_failed: bool) {
        let mut legs = self.plan.legs.iter();
        // In a chain, the outlet to the agent's own stage has no leg: its agent is that of the mover's own inlet.
        let leg = legs.clone().find(|leg| leg.sender == Some((mover, outlet)));
        let Some(leg) = leg.or_else(|| legs.find(|leg| leg.receiver == Some(mover))) else { return };
        let agent = leg.to;
        let last = self.plan.jobs.last().map_or(0, |job| job.stage);
        let jobs = self.plan.jobs.iter().zip(0_u32..);
        let of_branch = jobs.filter(|(job, _)| job.stage == last && job.agent == agent);
        for job in of_branch.map(|(_, job)| job).collect::<Vec<_>>() {
            if has_failed {
                // The stage would wait for the rest for ever.
                self.agents[agent].order(AgentOrder::Kill { stage: job });
            }
            self.left.insert(job);
            self.check_deserter(job);
        }
    }

    /// Ends the pipeline if one of several hosts has failed before the stream's end, unless the others may go on
    /// without it.
    fn check_deserter(&mut self, job: u32) {
        let has_failed =
            self.statuses[job as usize].as_ref().is_some_and(|status| *status != Status::Exit(0));
        if self.left.contains(&job) && has_failed && self.request.options.on_dead == DeadOutlet::Fail {
            self.fail(PipelineTrouble::Member, false);
        }
    }

    pub(super) fn mover_ended(&mut self, mover: u32, result: MoverResult) {
        let errors = self.errors_of(mover, &result);
        let Some(known) = self.movers.get_mut(&mover).filter(|known| known.result.is_none()) else { return };
        let number = known.agent;
        let continues = self.request.options.on_dead == DeadOutlet::Continue;
        let was_ended = result.was_ended;
        let some_left = result.outlets.iter().any(Result::is_ok) && result.inlet.is_ok();
        known.end(result);
        let comes_from = |leg: &plan::StreamLeg| leg.receiver == Some(mover) && self.is_expendable(leg.from);
        let is_branch =
            self.is_expendable(number) || self.plan.legs.iter().any(comes_from) || (continues && some_left);
        for error in errors {
            let trouble =
                if was_ended { PipelineTrouble::Ended(error) } else { PipelineTrouble::Data(error) };
            self.fail_or_warn(trouble, is_branch);
        }
    }

    /// Returns why the ends of a mover failed, each with the name of its leg.
    fn errors_of(&self, mover: u32, result: &MoverResult) -> Vec<String> {
        let inlet = result.inlet.as_ref().err().map(|why| {
            let leg = self.plan.legs.iter().find(|leg| leg.receiver == Some(mover));
            self.of_leg(mover, leg, why)
        });
        let outlets = result.outlets.iter().enumerate().filter_map(|(place, end)| {
            let leg = self.plan.legs.iter().find(|leg| leg.sender == Some((mover, place)));
            end.as_ref().err().map(|why| self.of_leg(mover, leg, why))
        });
        inlet.into_iter().chain(outlets).collect()
    }

    /// Puts the hosts of the leg in front of a reason, or the mover's host if there is no hop.
    fn of_leg(&self, mover: u32, leg: Option<&plan::StreamLeg>, why: &str) -> String {
        match (leg, self.movers.get(&mover)) {
            (Some(leg), _) if leg.hop.is_some() => {
                format!("{} -> {}: {why}", self.plan.name(leg.from), self.plan.name(leg.to))
            }
            (_, Some(known)) => format!("{}: {why}", self.plan.name(known.agent)),
            (_, None) => why.to_owned(),
        }
    }

    pub(super) fn lose(&mut self, number: usize, why: String) {
        let agent = &mut self.agents[number];
        agent.is_lost = true;
        if std::mem::replace(&mut agent.is_gone, true) || self.has_ended(number) {
            return;
        }
        let text = format!("{}: {why}", self.plan.name(number));
        let is_branch = self.is_expendable(number) && self.started.is_some();
        if is_branch {
            let movers =
                self.movers.values_mut().filter(|mover| mover.agent == number && mover.result.is_none());
            movers.for_each(|mover| mover.end(MoverResult::failed(&why)));
            for (job, status) in self.plan.jobs.iter().zip(&mut self.statuses) {
                if job.agent == number {
                    status.get_or_insert(Status::Failed(why.clone()));
                }
            }
        }
        self.fail_or_warn(PipelineTrouble::Lost(text), is_branch);
    }

    /// True if the others can go on without the agent: it has one of several hosts of the last stage, fed by a
    /// star.
    pub(super) fn is_expendable(&self, number: usize) -> bool {
        let last = self.plan.jobs.last().map_or(0, |job| job.stage);
        let several = self.plan.jobs.iter().filter(|job| job.stage == last).count() > 1;
        let has_no_other = self.plan.jobs.iter().all(|job| job.agent != number || job.stage == last);
        let is_here = self.plan.agents[number].is_none();
        self.request.options.on_dead == DeadOutlet::Continue && several && has_no_other && !is_here
    }

    pub(super) fn fail_or_warn(&mut self, trouble: PipelineTrouble, is_branch: bool) {
        self.fail(trouble, false);
        if is_branch {
            self.abort_at = None;
        }
    }

    pub(super) fn fail(&mut self, trouble: PipelineTrouble, at_once: bool) {
        let now = Instant::now();
        let at = if at_once || self.started.is_none() { now } else { now + CAUSE_LIMIT };
        self.abort_at = Some(self.abort_at.map_or(at, |earlier| earlier.min(at)));
        if !self.troubles.contains(&trouble) {
            self.troubles.push(trouble);
        }
    }

    pub(super) fn has_ended(&self, number: usize) -> bool {
        let stages = self.plan.jobs.iter().zip(&self.statuses);
        let mut movers = self.movers.values().filter(|mover| mover.agent == number);
        self.started.is_some()
            && stages.filter(|(job, _)| job.agent == number).all(|(_, status)| status.is_some())
            && movers.all(|mover| mover.result.is_some())
    }

    pub(super) fn is_all_over(&self) -> bool {
        (0..self.agents.len()).all(|number| self.has_ended(number))
    }
}

/// The exit status for every failure that is not a stage's.
const STATUS_OURS: u8 = 255;
/// The exit status after Ctrl-C, as in shells.
const STATUS_INTERRUPTED: u8 = 130;
/// The number of SIGPIPE.
const SIGPIPE: u8 = 13;
const SIGNAL_BASE: u8 = 128;

/// A reason to end the pipeline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PipelineTrouble {
    /// The user interrupted the pipeline.
    Interrupted,
    /// The pipeline could not be set up.
    SetUp(String),
    /// A host was lost.
    Lost(String),
    /// A stage could not be started, or its file could not be used.
    Stage { job: u32, why: String },
    /// One of several hosts has ended with a failure, while the stream went on.
    Member,
    /// Data did not arrive.
    Data(String),
    /// The same, because of something else.
    Ended(String),
}

impl PipelineTrouble {
    /// Returns the rank of the trouble: the lower it is, the more likely the trouble is the cause of the others.
    fn rank(&self) -> u8 {
        match self {
            Self::Interrupted => 0,
            Self::SetUp(_) => 1,
            Self::Stage { .. } | Self::Member => 2,
            Self::Lost(_) => 3,
            Self::Data(_) => 4,
            Self::Ended(_) => 5,
        }
    }
}

/// Fills in the summary's status, failures and statuses. A status is `None` if the stage was killed. `order` has
/// the stages in the order of their ends: the first failure is named first.
pub fn conclude(
    plan: &PipelinePlan,
    troubles: &[PipelineTrouble],
    statuses: &[Option<Status>],
    order: &[u32],
    summary: &mut PipelineSummary,
) {
    let mut sorted: Vec<&PipelineTrouble> = troubles.iter().collect();
    // The sort is stable: troubles of one rank stay in their order of arrival.
    sorted.sort_by_key(|trouble| trouble.rank());
    let first = sorted.first().map(|trouble| trouble.rank());
    // Troubles of a higher rank follow from those of the lowest one.
    for trouble in sorted.iter().filter(|trouble| Some(trouble.rank()) == first) {
        let text = match trouble {
            PipelineTrouble::Interrupted => "interrupted".to_owned(),
            PipelineTrouble::SetUp(why)
            | PipelineTrouble::Lost(why)
            | PipelineTrouble::Data(why)
            | PipelineTrouble::Ended(why) => why.clone(),
            PipelineTrouble::Stage { job, why } => format!("{}: {why}", stage_name(plan, *job)),
            // Its status is reported with the others.
            PipelineTrouble::Member => continue,
        };
        if !summary.failures.contains(&text) {
            summary.failures.push(text);
        }
    }
    let last = plan.jobs.last().map_or(0, |job| job.stage);
    let mut rightmost = None;
    let mut failures = Vec::new();
    for (id, (job, status)) in plan.jobs.iter().zip(statuses).enumerate() {
        let number = status.as_ref().and_then(number);
        let is_derived = job.stage < last && is_broken_pipe(status.as_ref());
        let shown = if is_derived { Some(0) } else { number };
        if let Some(number) = shown.filter(|number| *number > 0) {
            rightmost = Some(number);
            let id = u32::try_from(id).unwrap_or(u32::MAX);
            let is_said = troubles
                .iter()
                .any(|trouble| matches!(trouble, PipelineTrouble::Stage { job, .. } if *job == id));
            // Users need not be told that `head` has read enough.
            if !is_said && !is_broken_pipe(status.as_ref()) {
                let what = what_happened(status.as_ref());
                let place = order.iter().position(|ended| *ended == id);
                failures.push((place, format!("{} {what}", stage_name(plan, id))));
            }
        }
        if summary.statuses.len() <= job.stage {
            summary.statuses.resize_with(job.stage + 1, Vec::new);
        }
        if let Some(of_stage) = summary.statuses.get_mut(job.stage) {
            of_stage.push(number);
        }
    }
    failures.sort_by_key(|(place, _)| *place);
    summary.failures.extend(failures.into_iter().map(|(_, text)| text));
    summary.status = match sorted.first() {
        Some(PipelineTrouble::Interrupted) => STATUS_INTERRUPTED,
        Some(PipelineTrouble::Stage { job, .. }) if plan.jobs[*job as usize].file.is_some() => 1,
        Some(PipelineTrouble::Member) => rightmost.unwrap_or(STATUS_OURS),
        Some(_) => STATUS_OURS,
        None => rightmost.unwrap_or(0),
    };
}

/// Returns the name of a stage in failures: `stage 2 (fs2): 'zfs recv'`.
fn stage_name(plan: &PipelinePlan, id: u32) -> String {
    let job = &plan.jobs[id as usize];
    format!("stage {} ({}): '{}'", job.stage + 1, plan.name(job.agent), job.text)
}

/// Returns the exit status as a shell counts it.
fn number(status: &Status) -> Option<u8> {
    match status {
        Status::Exit(code) => Some(*code),
        Status::Signal(signal) => Some(SIGNAL_BASE.saturating_add(*signal)),
        Status::Failed(_) => Some(1),
    }
}

/// True if the stage ended because nobody reads its output.
fn is_broken_pipe(status: Option<&Status>) -> bool {
    matches!(status, Some(Status::Signal(SIGPIPE)))
        || matches!(status, Some(Status::Exit(code)) if *code == SIGNAL_BASE + SIGPIPE)
}

/// Returns ` (SIGTERM)` for the signals that people kill with.
fn signal_name(signal: u8) -> &'static str {
    match signal {
        1 => " (SIGHUP)",
        2 => " (SIGINT)",
        3 => " (SIGQUIT)",
        6 => " (SIGABRT)",
        9 => " (SIGKILL)",
        11 => " (SIGSEGV)",
        15 => " (SIGTERM)",
        _ => "",
    }
}

/// Returns what happened to a stage, as the end of a sentence.
fn what_happened(status: Option<&Status>) -> String {
    match status {
        Some(Status::Exit(code)) => format!("exited {code}"),
        Some(Status::Signal(signal)) => format!("was killed by signal {signal}{}", signal_name(*signal)),
        Some(Status::Failed(why)) => format!("failed: {why}"),
        None => "was killed".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::StageJob;

    fn concluded(troubles: &[PipelineTrouble], statuses: &[Option<Status>]) -> (u8, Vec<String>) {
        let jobs = (0..statuses.len()).map(|stage| StageJob {
            stage,
            agent: stage,
            text: format!("cmd{}", stage + 1),
            file: None,
        });
        let agents = (0..statuses.len()).map(|agent| Some(format!("h{}", agent + 1))).collect();
        let mut plan = PipelinePlan::default();
        (plan.jobs, plan.agents) = (jobs.collect(), agents);
        let mut summary = PipelineSummary::default();
        // The last stage ended first.
        let order: Vec<u32> = (0..4).rev().collect();
        conclude(&plan, troubles, statuses, &order, &mut summary);
        (summary.status, summary.failures)
    }

    const OK: Option<Status> = Some(Status::Exit(0));
    const BROKEN_PIPE: Option<Status> = Some(Status::Signal(13));

    #[test]
    fn the_rightmost_failing_stage_gives_the_status_and_all_are_named() {
        let statuses = [Some(Status::Exit(3)), OK, Some(Status::Signal(9)), OK];
        let (status, failures) = concluded(&[], &statuses);
        assert_eq!(status, 137);
        assert_eq!(failures.len(), 2);
        assert_eq!(failures[0], "stage 3 (h3): 'cmd3' was killed by signal 9 (SIGKILL)", "it was first");
        assert_eq!(failures[1], "stage 1 (h1): 'cmd1' exited 3");
    }

    #[test]
    fn a_broken_pipe_only_follows() {
        assert_eq!(concluded(&[], &[BROKEN_PIPE, Some(Status::Exit(141)), OK]), (0, Vec::new()));
        // The caller's own reader has closed: the shell gets the status, and the user gets no message.
        assert_eq!(concluded(&[], &[OK, BROKEN_PIPE]), (141, Vec::new()));
    }

    #[test]
    fn the_cause_comes_first_and_what_follows_of_it_not_at_all() {
        let data = PipelineTrouble::Data("h1 -> h2: cut off".to_owned());
        let lost = PipelineTrouble::Lost("h2: gone".to_owned());
        let (status, failures) = concluded(&[data.clone(), lost], &[Some(Status::Exit(1)), None]);
        assert_eq!(status, 255);
        assert_eq!(failures, ["h2: gone", "stage 1 (h1): 'cmd1' exited 1"]);
        let (status, failures) = concluded(&[data, PipelineTrouble::Interrupted], &[None, None]);
        assert_eq!((status, failures), (130, vec!["interrupted".to_owned()]));
        let stage = PipelineTrouble::Stage { job: 1, why: "cannot start".to_owned() };
        let (status, failures) = concluded(&[stage], &[None, Some(Status::Failed("x".to_owned()))]);
        assert_eq!((status, failures), (255, vec!["stage 2 (h2): 'cmd2': cannot start".to_owned()]));
    }
}
