//! Stages, movers and hosts that end, and what follows for the others.

use std::time::Instant;

use super::super::outcome::PipelineTrouble;
use super::{CAUSE_LIMIT, Conductor};
use crate::control::{AgentOrder, MoverResult, Status};
use crate::mover::DeadOutlet;
use crate::plan;

impl Conductor<'_> {
    /// A stage that exits with whatever status is no reason to end the others: so shells have it.
    pub(super) fn stage_ended(&mut self, number: usize, job: u32, status: Status) {
        if self.is_aborting || (self.abort_at.is_some() && !matches!(status, Status::Failed(_))) {
            // It may have been killed by now.
            return;
        }
        let known = usize::try_from(job).ok().and_then(|job| self.statuses.get(job));
        if known.is_none_or(Option::is_some) {
            // Its first end counts.
            return;
        }
        if let Status::Failed(why) = &status {
            let trouble = PipelineTrouble::Stage { job, why: why.clone() };
            let is_branch = self.is_expendable(number) && self.started.is_some();
            self.fail_or_warn(trouble, is_branch);
        }
        if let Some(slot) = usize::try_from(job).ok().and_then(|job| self.statuses.get_mut(job)) {
            *slot = Some(status);
            self.ended.push(job);
        }
        self.check_deserter(job);
    }

    /// An outlet has ended while others go on: its branch is told to, unless it only has seen enough.
    pub(super) fn outlet_left(&mut self, mover: u32, outlet: usize, has_failed: bool) {
        let Some(leg) = self.plan.legs.iter().find(|leg| leg.sender == Some((mover, outlet))).copied() else {
            // A chain's own taker is no way of its own: it is behind the mover that receives for it.
            let receives = |leg: &&plan::StreamLeg| leg.receiver == Some(mover);
            let agent = self.plan.legs.iter().find(receives).map(|leg| leg.to);
            return agent.into_iter().for_each(|agent| self.branch_left(agent, has_failed));
        };
        self.branch_left(leg.to, has_failed);
    }

    fn branch_left(&mut self, agent: usize, has_failed: bool) {
        let last = self.plan.jobs.last().map_or(0, |job| job.stage);
        let jobs = self.plan.jobs.iter().zip(0_u32..);
        let of_branch = jobs.filter(|(job, _)| job.stage == last && job.agent == agent);
        for job in of_branch.map(|(_, job)| job).collect::<Vec<_>>() {
            if has_failed {
                // It would wait for the rest for good.
                self.order(agent, AgentOrder::Kill { stage: job });
            }
            self.left.insert(job);
            self.check_deserter(job);
        }
    }

    /// One of several that has failed before the stream's end ends all, unless they go on without.
    fn check_deserter(&mut self, job: u32) {
        let status = usize::try_from(job).ok().and_then(|job| self.statuses.get(job)).cloned().flatten();
        let has_failed = status.as_ref().is_some_and(|status| *status != Status::Exit(0));
        if self.left.contains(&job) && has_failed && self.request.options.on_dead == DeadOutlet::Fail {
            self.fail(PipelineTrouble::Member, false);
        }
    }

    pub(super) fn mover_ended(&mut self, mover: u32, result: MoverResult) {
        if self.moved.contains_key(&mover) {
            return;
        }
        let number = self.movers.get(&mover).copied();
        let continues = self.request.options.on_dead == DeadOutlet::Continue;
        let some_left = result.outlets.iter().any(Result::is_ok) && result.inlet.is_ok();
        let errors = self.errors_of(mover, &result);
        self.moved.insert(mover, result);
        let comes_from = |leg: &plan::StreamLeg| leg.receiver == Some(mover) && self.is_expendable(leg.from);
        let is_branch = number.is_some_and(|number| self.is_expendable(number))
            || self.plan.legs.iter().any(comes_from)
            || (continues && some_left);
        for error in errors {
            self.fail_or_warn(PipelineTrouble::Data(error), is_branch);
        }
    }

    /// Why its ends have failed, each with the way that this is of.
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

    /// Between which hosts that was; where it is no way, at which.
    fn of_leg(&self, mover: u32, leg: Option<&plan::StreamLeg>, why: &str) -> String {
        match (leg, self.movers.get(&mover)) {
            (Some(leg), _) if leg.hop.is_some() => {
                format!("{} -> {}: {why}", self.plan.name(leg.from), self.plan.name(leg.to))
            }
            (_, Some(agent)) => format!("{}: {why}", self.plan.name(*agent)),
            (_, None) => why.to_owned(),
        }
    }

    pub(super) fn lose(&mut self, number: usize, why: String) {
        let is_gone = self.is_gone.get(number).copied().unwrap_or(false);
        if let Some(agent) = self.agents.get_mut(number).and_then(Option::as_mut) {
            agent.is_lost = true;
        }
        self.is_gone.iter_mut().skip(number).take(1).for_each(|is| *is = true);
        if is_gone || self.has_ended(number) {
            return;
        }
        let text = format!("{}: {why}", self.plan.name(number));
        let is_branch = self.is_expendable(number) && self.started.is_some();
        if is_branch {
            let movers = self.movers.iter().filter(|(_, agent)| **agent == number).map(|(mover, _)| *mover);
            for mover in movers.collect::<Vec<_>>() {
                self.moved.entry(mover).or_insert_with(|| MoverResult::failed(&why));
            }
            for (job, status) in self.plan.jobs.iter().zip(&mut self.statuses) {
                if job.agent == number {
                    status.get_or_insert(Status::Failed(why.clone()));
                }
            }
        }
        self.fail_or_warn(PipelineTrouble::Lost(text), is_branch);
    }

    /// Whether the others can go on without it: one of several hosts of the last stage, fed by a star.
    pub(super) fn is_expendable(&self, number: usize) -> bool {
        let last = self.plan.jobs.last().map_or(0, |job| job.stage);
        let several = self.plan.jobs.iter().filter(|job| job.stage == last).count() > 1;
        let has_no_other = self.plan.jobs.iter().all(|job| job.agent != number || job.stage == last);
        let is_here = self.plan.agents.get(number).is_some_and(Option::is_none);
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
        let mut movers = self.movers.iter().filter(|(_, agent)| **agent == number);
        self.started.is_some()
            && stages.filter(|(job, _)| job.agent == number).all(|(_, status)| status.is_some())
            && movers.all(|(mover, _)| self.moved.contains_key(mover))
    }

    pub(super) fn is_all_over(&self) -> bool {
        (0..self.agents.len()).all(|number| self.has_ended(number))
    }
}
