//! Cleans up after a worker whose process has ended unasked, and starts it again.

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use caravan_segment::process::Process;
use rustix::event::epoll;
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

use super::{Engine, EngineEvent, Restarts, WorkerEntry};
use crate::control::{Silence, WorkerAnswer, WorkerChannel, WorkerOrder};
use crate::error::{Error, system};
use crate::fork::fork;
use crate::layout::{self, DropReason, LinkRing, WorkerStage, WorkerState, worker};
use crate::limits::{ANSWER_MAX, BACKOFF_MAX, BACKOFF_MIN, CRASH_WINDOW, CRASHES_MAX};
use crate::owner::{LinkId, Owner, WorkerId};
use crate::plan::{LinkPlan, LinkRole, WorkerPlan};
use crate::recovery::{Given, Recovered, reclaim};
use crate::worker::{Worker, WorkerExit, WorkerStart};

impl Engine {
    /// Returns the names of some workers.
    fn names_of(&self, is_one: impl Fn(&WorkerEntry) -> bool) -> Vec<String> {
        self.workers.iter().filter(|(_, entry)| is_one(entry)).map(|(name, _)| name.clone()).collect()
    }

    /// Cleans up after every worker that has ended, and starts it again or parks it.
    pub(super) fn reap(&mut self) {
        let ended = |entry: &WorkerEntry| entry.child.as_ref().is_some_and(|child| !child.handle.is_alive());
        for name in self.names_of(ended) {
            self.clean_up(&name);
            self.decide(&name);
        }
    }

    /// Reaps a process, and gives its packets to its successor.
    pub(super) fn clean_up(&mut self, name: &str) {
        let died = Instant::now();
        let Some(entry) = self.workers.get_mut(name) else { return };
        let Some(child) = entry.child.take() else { return };
        kill(child.pid);
        let how = wait_for(child.pid);
        entry.died = Some(died);
        let (id, links) = (entry.id, entry.plan.links.clone());
        let word = |offset| self.shared.worker(id, offset);
        let stage = WorkerStage::ALL.get(word(worker::STAGE).load(Ordering::Acquire) as usize).copied();
        let growing = stage == Some(WorkerStage::Growing) || word(worker::WANTED).load(Ordering::Acquire) > 0;
        let (recovered, half_received) = self.recover(id, &links);
        self.events.push_back(EngineEvent::Crashed {
            worker: name.to_owned(),
            pid: child.pid,
            how,
            stage: stage.unwrap_or(WorkerStage::Starting),
            growing,
            half_received,
            recovered,
        });
    }

    /// Gives the packets of a reaped process to its successor. Also returns the number of packets that it
    /// had taken from other workers without releasing the slots.
    fn recover(&self, id: WorkerId, links: &[LinkPlan]) -> (Recovered, u64) {
        let (given, half_received) = self.given_by(links);
        let recovered = reclaim(&self.memory, self.packet_count, id, &given);
        let word = |offset| self.shared.worker(id, offset);
        layout::SharedWords::add(word(worker::DROPS + 8 * DropReason::Crashed as usize), recovered.lost);
        word(worker::STATE).store(WorkerState::Restarting as u64, Ordering::Release);
        word(worker::WANTED).store(0, Ordering::Relaxed);
        // A process that was killed between a change and ringing the bell leaves other workers asleep.
        links.iter().for_each(|link| crate::worker::ring_both(&self.shared, &self.bells, link.id));
        (recovered, half_received)
    }

    /// Returns the rings to which a dead worker gave packets, and the number of packets that it had taken from others
    /// without releasing the slots.
    fn given_by(&self, links: &[LinkPlan]) -> (Vec<Given>, u64) {
        let mut given = Vec::new();
        let mut half_received = 0;
        for &LinkPlan { id: link, role, .. } in links {
            let (owner, ring) = match role {
                // A worker that has both ends gives as the producer when it lets go of them.
                LinkRole::Producer | LinkRole::Local => (Owner::Full(link), LinkRing::Full),
                LinkRole::Consumer => (Owner::Empty(link), LinkRing::Empty),
            };
            let takes: &[LinkRing] = match role {
                LinkRole::Producer => &[LinkRing::Empty, LinkRing::Tail],
                LinkRole::Consumer => &[LinkRing::Full, LinkRing::Head],
                LinkRole::Local => &LinkRing::ALL,
            };
            given.push(Given { owner, published: self.published(link, ring) });
            for &ring in takes {
                half_received += crate::recovery::release_taken(&self.shared, &self.memory, link, ring);
            }
            let parked = [LinkRing::Head, LinkRing::Tail].map(|ring| self.published(link, ring)).concat();
            given.push(Given { owner: Owner::Parked(link), published: parked });
        }
        (given, half_received)
    }

    /// Returns the numbers in a ring: between its head, which is read first, and its tail.
    pub(super) fn published(&self, link: LinkId, ring: LinkRing) -> Vec<u32> {
        crate::recovery::published(&self.shared, link, ring)
    }

    /// Starts a crashed worker again, now or later, or parks it.
    fn decide(&mut self, name: &str) {
        let Some(entry) = self.workers.get_mut(name) else { return };
        let now = Instant::now();
        entry.crashes.push_back(now);
        while entry.crashes.front().is_some_and(|crash| now.duration_since(*crash) > CRASH_WINDOW) {
            entry.crashes.pop_front();
        }
        let crashes = entry.crashes.len();
        match self.options.restarts {
            Restarts::Always => {
                entry.crashes.clear();
                self.start_again(name);
            }
            Restarts::BackOff if crashes < CRASHES_MAX => match back_off(crashes) {
                Duration::ZERO => self.start_again(name),
                wait => entry.restart_at = Some(now + wait),
            },
            Restarts::BackOff => {
                entry.parked = true;
                let id = entry.id;
                self.shared.worker(id, worker::STATE).store(WorkerState::Parked as u64, Ordering::Release);
                // Other workers can use its packets until then.
                self.return_packets(&[Owner::Worker(id)]);
                let why = format!("it crashed {crashes} times within {} s", CRASH_WINDOW.as_secs());
                self.events.push_back(EngineEvent::Parked { worker: name.to_owned(), why });
            }
        }
    }

    /// Starts a worker again, or puts that off if the machine has no room for a process now.
    fn start_again(&mut self, name: &str) {
        if let Err(error) = self.start_worker(name, BTreeMap::new()) {
            self.put_off(name, &error);
        }
    }

    /// Schedules another attempt to start a worker that could not be started.
    pub(super) fn put_off(&mut self, name: &str, error: &Error) {
        self.events.push_back(EngineEvent::NotStarted { worker: name.to_owned(), why: error.to_string() });
        if let Some(entry) = self.workers.get_mut(name) {
            entry.restart_at = Some(Instant::now() + BACKOFF_MAX);
        }
    }

    /// Starts the workers whose wait is over.
    pub(super) fn restart_due(&mut self) {
        let now = Instant::now();
        let due = |entry: &WorkerEntry| entry.restart_at.is_some_and(|at| at <= now);
        self.names_of(due).iter().for_each(|name| self.start_again(name));
    }

    /// Forks a worker's process, which starts with the worker's plan, and with the states that its apps left
    /// in other workers. After a failure the worker has no process.
    pub(super) fn start_worker(
        &mut self,
        name: &str,
        inherited: BTreeMap<String, Vec<u8>>,
    ) -> Result<(), Error> {
        let Some(entry) = self.workers.get_mut(name) else { return Ok(()) };
        entry.restart_at = None;
        let (id, core, plan) = (entry.id, entry.core, entry.plan.clone());
        let links = plan.links.clone();
        let again = entry.died.is_some();
        let (ours, theirs) = WorkerChannel::pair().map_err(system("socketpair"))?;
        let word = |offset| self.shared.worker(id, offset);
        let start = WorkerStart {
            id,
            shared: self.shared.clone(),
            memory: self.memory.clone(),
            bells: self.bells.clone(),
            headroom: self.options.headroom,
            spin: self.options.spin,
            orders_seen: word(worker::ORDERS).load(Ordering::Relaxed),
            grants_seen: word(worker::GRANTS).load(Ordering::Relaxed),
            inherited,
        };
        // The new process takes over every packet that names the worker, so no earlier grant is on its way.
        word(worker::GRANTS_TAKEN).store(start.grants_seen, Ordering::Relaxed);
        let (workers, registry, name_there) = (&mut self.workers, &self.registry, name);
        let pid = fork(move || {
            // A worker needs nothing of the other workers' processes.
            workers.values_mut().for_each(|entry| entry.child = None);
            caravan_segment::barrier::join();
            work(name_there, Worker::new(start, registry, theirs), plan)
        })?;
        let handle = match self.watch(pid, &ours) {
            Ok(handle) => handle,
            Err(error) => {
                // The process may have begun: a process that nobody watches must not run beside its successor.
                kill(pid);
                wait_for(pid);
                self.recover(id, &links);
                return Err(error);
            }
        };
        let word = |offset, value| self.shared.worker(id, offset).store(value, Ordering::Relaxed);
        word(worker::PID, pid as u64);
        word(worker::STATE, WorkerState::Running as u64);
        if again {
            layout::SharedWords::add(self.shared.worker(id, worker::RESTARTS), 1);
        }
        if let Some(entry) = self.workers.get_mut(name) {
            entry.child = Some(WorkerProcess { pid, handle, channel: ours, asked: 0 });
        }
        self.pin(pid, core);
        Ok(())
    }

    /// Has `poll` wake when a new process ends or sends a message.
    fn watch(&self, pid: i32, channel: &WorkerChannel) -> Result<Process, Error> {
        let handle = Process::open(pid)?;
        for fd in [handle.as_fd(), channel.as_fd()] {
            epoll::add(&self.epoll, fd, epoll::EventData::new_u64(1), epoll::EventFlags::IN)
                .map_err(system("epoll_ctl"))?;
        }
        Ok(handle)
    }

    /// Has a worker run on its core; a worker without a core runs wherever the supervisor may.
    pub(super) fn pin(&self, pid: i32, core: Option<usize>) {
        let mut set = rustix::thread::CpuSet::new();
        match core {
            Some(core) => set.set(core),
            None => set = self.cores,
        }
        // `check` has refused a core that this process may not use. A core that has gone since
        // is no reason to fail.
        let _ = rustix::thread::sched_setaffinity(rustix::process::Pid::from_raw(pid), &set);
    }
}

/// Returns the wait before the restart, by the number of crashes.
fn back_off(crashes: usize) -> Duration {
    match crashes {
        0 | 1 => Duration::ZERO,
        _ => BACKOFF_MIN.saturating_mul(1 << (crashes - 2).min(16)).min(BACKOFF_MAX),
    }
}

/// Runs a worker in its process. Returns the exit status.
fn work(name: &str, worker: Worker, plan: WorkerPlan) -> i32 {
    match worker.run(plan) {
        WorkerExit::Told | WorkerExit::Alone => 0,
        WorkerExit::Broken(error) => {
            eprintln!("caravan: worker {name}: {error}");
            1
        }
    }
}

/// A worker's process.
pub(super) struct WorkerProcess {
    pub pid: i32,
    pub handle: Process,
    pub channel: WorkerChannel,
    /// The number of the last order to it.
    pub asked: u64,
}

impl Engine {
    /// Sends an order. Returns false if there is no process. A process that no longer reads is killed: half of
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

    /// Waits for an answer to the last order. Returns `None` if the worker has ended instead, or was killed
    /// because it did not answer.
    pub(super) fn answer_of(&mut self, worker: &str) -> Option<WorkerAnswer> {
        loop {
            let child = self.workers.get_mut(worker)?.child.as_mut()?;
            match child.channel.receive(ANSWER_MAX) {
                Ok((number, answer)) if number == child.asked => return Some(answer),
                // The worker sent this answer when it had started, before the order.
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

    /// Reads the answers of workers that were started again.
    pub(super) fn hear_starters(&mut self) {
        let starting = |entry: &WorkerEntry| entry.died.is_some() && entry.child.is_some();
        for name in self.names_of(starting) {
            let child = self.workers.get_mut(&name).and_then(|entry| entry.child.as_mut());
            // If the worker has ended, `reap` deals with it.
            if let Some(Ok((_, answer))) = child.map(|child| child.channel.receive(Duration::ZERO)) {
                self.hear_start(&name, &answer);
            }
        }
    }

    /// Handles the first answer of a started worker: it runs, or it cannot.
    pub(super) fn hear_start(&mut self, name: &str, answer: &WorkerAnswer) {
        let Some(entry) = self.workers.get_mut(name) else { return };
        let Some(WorkerProcess { pid, .. }) = entry.child else { return };
        let worker = name.to_owned();
        match answer {
            WorkerAnswer::Failed { app, reason } => {
                // The supervisor tries again, as after any crash.
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
        // The child has ended, and is a zombie until `wait_for`: there is nothing to kill.
        let _ = kill_process(pid, Signal::KILL);
    }
}

/// Reaps a child that has ended, or is about to. Returns how it ended.
pub fn wait_for(pid: i32) -> String {
    let status = loop {
        match waitpid(Pid::from_raw(pid), WaitOptions::empty()) {
            Ok(Some((_, status))) => break status,
            Ok(None) | Err(Errno::INTR) => {}
            // Other code in this process reaped the child.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_to_a_limit() {
        let waits: Vec<_> = (1..CRASHES_MAX + 20).map(back_off).collect();
        assert_eq!(waits[..3], [Duration::ZERO, BACKOFF_MIN, 2 * BACKOFF_MIN]);
        assert!(waits.is_sorted() && waits.last() == Some(&BACKOFF_MAX));
    }
}
