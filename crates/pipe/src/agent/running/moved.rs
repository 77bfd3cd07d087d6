//! A mover's end: what is told of it, and who must not take it for the end of the stream.

use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use super::RunningStages;
use crate::Error;
use crate::control::{AgentReport, InletSpec, Mover, MoverResult, OutletSpec, Status};
use crate::mover::{Gauge, InletEnd, MoverOutcome, OutletEnd};

impl RunningStages {
    /// A mover has ended: says so, and kills who must not take its end for the stream's.
    pub(super) fn moved(&self, mover: &Mover, outcome: MoverOutcome, gauge: &Gauge, took: Duration) {
        let cpu = clock_gettime(ClockId::ThreadCPUTime);
        let own_ns =
            Duration::try_from(cpu).map_or(0, |cpu| u64::try_from(cpu.as_nanos()).unwrap_or(u64::MAX));
        let [_, wire_bytes, inlet_wait, outlet_wait] = gauge.read();
        let mut result = MoverResult {
            bytes: outcome.bytes,
            wire_bytes,
            took_ns: u64::try_from(took.as_nanos()).unwrap_or(u64::MAX),
            // Figures for people: nothing hangs on their order.
            cpu_ns: own_ns.saturating_add(gauge.threads_cpu_ns.load(Ordering::Relaxed)),
            waited_ns: (inlet_wait, outlet_wait),
            digest: outcome.digest.clone(),
            inlet: match &outcome.inlet {
                Ok(end) => Ok(*end == InletEnd::Complete),
                Err(error) => Err(error.to_string()),
            },
            outlets: outcome
                .outlets
                .iter()
                .map(|outlet| match outlet {
                    Ok(end) => Ok(*end == OutletEnd::Complete),
                    Err(error) => Err(error.to_string()),
                })
                .collect(),
        };
        let inlet_failed = result.inlet.is_err();
        tell_causes(&outcome, &mut result);
        if let InletSpec::File { stage } = &mover.from {
            self.ended(*stage, file_status(result.inlet.as_ref().err()));
        }
        for (target, outlet) in mover.to.iter().zip(&result.outlets) {
            if let OutletSpec::File { stage } = target {
                self.ended(*stage, file_status(outlet.as_ref().err()));
            }
        }
        let outlets = result.outlets.clone();
        self.0.outbox.report(AgentReport::Moved { mover: mover.mover, result });
        for (target, outlet) in mover.to.iter().zip(&outlets) {
            let reader = match target {
                OutletSpec::Pipe(pipe) if inlet_failed || outlet.is_err() => {
                    self.state(|state| state.readers.get(pipe).copied())
                }
                _ => None,
            };
            reader.into_iter().for_each(|stage| self.kill_now(stage));
        }
        drop(outcome.unfinished);
    }
}

/// An end that was only interrupted, because another one failed, is no failure to tell of.
fn tell_causes(outcome: &MoverOutcome, result: &mut MoverResult) {
    let is_cause = |error: Option<&Error>| error.is_some_and(|error| !matches!(error, Error::Cancelled));
    let causes = outcome.outlets.iter().map(|outlet| outlet.as_ref().err());
    let is_known = is_cause(outcome.inlet.as_ref().err()) || causes.into_iter().any(is_cause);
    if !is_known {
        return;
    }
    if matches!(outcome.inlet, Err(Error::Cancelled)) {
        result.inlet = Ok(false);
    }
    for (told, outlet) in result.outlets.iter_mut().zip(&outcome.outlets) {
        if matches!(outlet, Err(Error::Cancelled)) {
            *told = Ok(false);
        }
    }
}

fn file_status(why: Option<&String>) -> Status {
    why.map_or(Status::Exit(0), |why| Status::Failed(why.clone()))
}
