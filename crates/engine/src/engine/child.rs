//! A worker's process: what it is told and says, and its end.

use std::sync::atomic::Ordering;
use std::time::Duration;

use caravan_segment::process::Process;
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

use super::{Engine, EngineEvent, WorkerEntry};
use crate::control::{ControlChannel, Silence, WorkerAnswer, WorkerOrder};
use crate::layout;
use crate::limits::ANSWER_MAX;

/// A worker's process.
pub(super) struct WorkerProcess {
    pub pid: i32,
    pub handle: Process,
    pub channel: ControlChannel,
    /// The number of the last order that it was given.
    pub asked: u64,
}

impl Engine {
    /// Sends an order. False if there is no process. One that does not listen any more is killed: half of
    /// the order may have reached it.
    pub(super) fn order(&mut self, worker: &str, order: &WorkerOrder) -> bool {
        let Some(entry) = self.workers.get_mut(worker) else { return false };
        let Some(child) = &mut entry.child else { return false };
        // pairs with the Acquire in Worker::turn
        self.shared.worker(entry.id, layout::worker::ORDERS).fetch_add(1, Ordering::Release);
        self.bells.worker(entry.id).ring();
        child.asked += 1;
        let sent = child.channel.send(child.asked, order, Some(ANSWER_MAX)).is_ok();
        if !sent {
            kill(child.pid);
        }
        sent
    }

    /// Waits for an answer to the last order. `None` if the worker has ended instead, or was killed for
    /// its silence.
    pub(super) fn answer_of(&mut self, worker: &str) -> Option<WorkerAnswer> {
        loop {
            let child = self.workers.get_mut(worker)?.child.as_mut()?;
            match child.channel.receive(ANSWER_MAX) {
                Ok((number, answer)) if number == child.asked => return Some(answer),
                // It said so when it had started, before it was asked.
                Ok((_, answer)) => self.hear_start(worker, &answer),
                Err(Silence::Gone) => return None,
                Err(Silence::Late) => {
                    kill(child.pid);
                    let (worker, seconds) = (worker.to_owned(), ANSWER_MAX.as_secs());
                    self.events.push_back(EngineEvent::Hung { worker, seconds });
                    return None;
                }
            }
        }
    }

    /// Hears whether workers that were started again run.
    pub(super) fn hear_starters(&mut self) {
        let starting = |entry: &WorkerEntry| entry.died.is_some() && entry.child.is_some();
        let names: Vec<String> =
            self.workers.iter().filter(|(_, entry)| starting(entry)).map(|(name, _)| name.clone()).collect();
        for name in names {
            let child = self.workers.get_mut(&name).and_then(|entry| entry.child.as_mut());
            // If it has ended, `reap` sees to it.
            if let Some(Ok((_, answer))) = child.map(|child| child.channel.receive(Duration::ZERO)) {
                self.hear_start(&name, &answer);
            }
        }
    }

    /// Takes notice of what a worker says once it has started: that it runs, or that it cannot.
    pub(super) fn hear_start(&mut self, name: &str, answer: &WorkerAnswer) {
        let Some(entry) = self.workers.get_mut(name) else { return };
        let Some(WorkerProcess { pid, .. }) = entry.child else { return };
        let worker = name.to_owned();
        match answer {
            WorkerAnswer::Failed { app, reason } => {
                // It is tried again as after any crash.
                kill(pid);
                self.events.push_back(EngineEvent::NotStarted { worker, why: format!("{app}: {reason}") });
            }
            _ => {
                let Some(died) = entry.died.take() else { return };
                let after_ns = died.elapsed().as_nanos() as u64;
                self.events.push_back(EngineEvent::Restarted { worker, pid, after_ns });
            }
        }
    }
}

/// Kills a child.
pub fn kill(pid: i32) {
    if let Some(pid) = Pid::from_raw(pid) {
        // It has ended, and is a zombie until `wait_for`: nothing to kill.
        let _ = kill_process(pid, Signal::KILL);
    }
}

/// Reaps a child that has ended, or is about to; says how.
pub fn wait_for(pid: i32) -> String {
    let status = loop {
        match waitpid(Pid::from_raw(pid), WaitOptions::empty()) {
            Ok(Some((_, status))) => break status,
            Ok(None) | Err(Errno::INTR) => {}
            // Somebody else in this process reaped it.
            Err(_) => return "unknown status".to_owned(),
        }
    };
    match (status.terminating_signal(), status.exit_status()) {
        (Some(signal), _) => format!("signal {signal}{}", signal_name(signal)),
        (_, Some(crate::fork::PANICKED)) => "a panic in an app".to_owned(),
        (_, Some(status)) => format!("status {status}"),
        _ => "unknown status".to_owned(),
    }
}

fn signal_name(signal: i32) -> String {
    let names = [
        (libc::SIGKILL, "SIGKILL"),
        (libc::SIGSEGV, "SIGSEGV"),
        (libc::SIGABRT, "SIGABRT"),
        (libc::SIGBUS, "SIGBUS"),
        (libc::SIGILL, "SIGILL"),
        (libc::SIGFPE, "SIGFPE"),
        (libc::SIGTERM, "SIGTERM"),
    ];
    names.iter().find(|(number, _)| *number == signal).map_or(String::new(), |(_, name)| format!(" ({name})"))
}
