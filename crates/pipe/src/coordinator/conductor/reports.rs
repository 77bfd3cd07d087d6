//! Handles reports of agents: checks that the agent may send them, and passes them on.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{Conductor, Notice};
use crate::control::{AgentReport, line_cost};
use crate::limits::{LINES_CREDIT_BYTES, SPARED_MAX};

impl Conductor<'_> {
    /// True if the report is about something that the agent was told to do: no agent may speak for another one.
    pub(super) fn is_its_own(&self, number: usize, report: &AgentReport) -> bool {
        let job = |stage: u32| self.plan.jobs.get(stage as usize).is_some_and(|job| job.agent == number);
        let has_mover = |mover: u32| self.movers.get(&mover).is_some_and(|mover| mover.agent == number);
        match report {
            AgentReport::Ended { stage, .. } | AgentReport::Lines { stage, .. } => job(*stage),
            AgentReport::Prepared { lengths } => lengths.iter().all(|(stage, _)| job(*stage)),
            AgentReport::Moved { mover, .. } | AgentReport::Left { mover, .. } => has_mover(*mover),
            AgentReport::Figures(figures) => figures.iter().all(|(mover, _)| has_mover(*mover)),
            AgentReport::Hop { hop, .. } => {
                let mut hops = self.plan.hops.iter();
                hops.any(|known| known.number == *hop && [known.from, known.to].contains(&number))
            }
            // These are about the agent itself, or are checked against the routes of relayed hops.
            AgentReport::Hello(_)
            | AgentReport::Spared { .. }
            | AgentReport::Gone
            | AgentReport::Failed(_)
            | AgentReport::Ping
            | AgentReport::Credit { .. }
            | AgentReport::RelayEnd { .. } => true,
        }
    }

    pub(super) fn hear(&mut self, number: usize, report: AgentReport) {
        match report {
            AgentReport::Hello(hello) => {
                self.agents[number].hello.get_or_insert(*hello);
            }
            AgentReport::Prepared { lengths } => {
                let known = lengths.into_iter().filter_map(|(job, length)| Some((job, length?)));
                self.lengths.extend(known);
                self.agents[number].is_prepared = true;
            }
            AgentReport::Ended { stage, status } => self.stage_ended(number, stage, status),
            AgentReport::Moved { mover, result } => self.mover_ended(mover, result),
            AgentReport::Left { mover, outlet, has_failed } => self.outlet_left(mover, outlet, has_failed),
            AgentReport::Lines { texts, .. } => self.lines(number, texts),
            AgentReport::Spared { processes } => self.tell_spared(number, processes),
            AgentReport::Figures(figures) => {
                for (mover, figures) in figures {
                    let known = self.movers.get_mut(&mover).filter(|known| known.result.is_none());
                    known.into_iter().for_each(|known| known.figures = figures);
                }
                if !self.progress_waits.swap(true, Ordering::Relaxed) {
                    let waits = Arc::clone(&self.progress_waits);
                    let _ = self.notices.send(Notice::Progress(self.hop_figures(), waits));
                }
            }
            AgentReport::Failed(why) => self.lose(number, why),
            // The agent got no order to abort: it was cut off before it could say so.
            AgentReport::Gone if !self.is_aborting => {
                self.lose(number, "its agent was cut off, and has killed what it had started".to_owned());
            }
            AgentReport::Gone => self.agents[number].is_gone = true,
            AgentReport::Ping | AgentReport::Credit { .. } | AgentReport::RelayEnd { .. } => {}
            AgentReport::Hop { hop, attempt, report } => {
                self.step(hop, |joining, ends| joining.take(number, attempt, report, ends));
            }
        }
    }

    fn lines(&mut self, number: usize, texts: Vec<String>) {
        let Some(agent) = &self.agents[number].channel else { return };
        let bytes = texts.iter().map(|text| line_cost(text)).sum();
        let taken = Arc::clone(&agent.lines_bytes);
        // The cost is given back once the lines were shown.
        if texts.is_empty() || taken.fetch_add(bytes, Ordering::Relaxed) + bytes > LINES_CREDIT_BYTES {
            return self.lose(number, "its agent sent more lines than it was given leave for".to_owned());
        }
        let (host, credit) = (self.plan.name(number).to_owned(), agent.sender());
        let _ = self.notices.send(Notice::Lines { host, texts, bytes, taken, credit });
    }

    fn tell_spared(&mut self, number: usize, processes: Vec<String>) {
        let (agent, host) = (&mut self.agents[number], self.plan.name(number));
        for process in processes.into_iter().take(SPARED_MAX - agent.spared) {
            agent.spared += 1;
            let text = format!("{host}: cannot end {process}. It was told no end of its input");
            let _ = self.notices.send(Notice::Warn(text));
        }
    }
}
