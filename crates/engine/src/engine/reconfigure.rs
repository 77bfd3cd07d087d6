//! Changes the configuration of a running engine: only the parts that differ.
//!
//! | step | who |
//! |---|---|
//! | the new configuration is checked | supervisor |
//! | workers whose plan differs stop what they will not have, park what waits at the ends of links that move, and pause | workers |
//! | workers that were removed end; links that were removed give their packets to the pool; new ones may have their places | supervisor |
//! | workers start what is new, and go on | workers |
//!
//! If a worker crashes meanwhile, the supervisor cleans up after it when the others pause, and it starts with
//! the new plan. If an app or a process does not start, the supervisor puts the old configuration back.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;

use super::crash::{kill, wait_for};
use super::{Changes, Engine, WorkerEntry};
use crate::config::{Config, LinkName};
use crate::control::{WorkerAnswer, WorkerOrder};
use crate::error::Error;
use crate::layout::{self, DropReason, LinkMode, LinkRing, WorkerState, engine, link, worker};
use crate::limits::{LINKS_MAX, NAME_BYTES_MAX, WORKERS_MAX};
use crate::owner::{LinkId, Owner, WorkerId};
use crate::plan::{AppPlan, WorkerPlan, plans};
use crate::recovery::return_to_pool;

/// The states that apps left, by their names and kinds: an app of another kind could not read a state.
type States = BTreeMap<(String, String), Vec<u8>>;

/// Which configuration a change is to bring into force: the new one, or the old one after the new one has failed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ChangeGoal {
    New,
    Old,
}

impl Engine {
    /// Reports every mistake of a configuration.
    pub fn check(&self, config: &Config) -> Result<(), Error> {
        crate::config::check::check(config, &self.registry, self.options.packets_max).map_err(Error::Refused)
    }

    /// Brings the configuration `new` into force: apps that differ are stopped and started, apps with another worker
    /// move, all others go on. If an app or a process does not start, the old configuration is put back, and
    /// the error says why. [`poll`](Self::poll) tries again what cannot be put back at once.
    pub fn configure(&mut self, new: &Config) -> Result<Changes, Error> {
        self.check(new)?;
        let old = self.config.clone();
        let mut states = States::new();
        let mut changes = Changes::between(&old, new);
        let lost_before = self.lost();
        if let Err(error) = self.carry_out(new, &mut states, ChangeGoal::New) {
            self.carry_out(&old, &mut states, ChangeGoal::Old)?;
            return Err(error);
        }
        changes.lost = self.lost().saturating_sub(lost_before);
        layout::SharedWords::add(self.shared.engine(engine::CONFIGURED), 1);
        Ok(changes)
    }

    fn carry_out(&mut self, new: &Config, states: &mut States, goal: ChangeGoal) -> Result<(), Error> {
        self.reap();
        let (links, removed) = self.number_links(new);
        let plans = plans(new, &links);
        let affected = self.affected(&plans, &removed);
        self.prepare(&affected, &plans, &removed, states);
        self.end_workers(new, &affected);
        self.remove_links(&removed);
        self.assign_workers(new);
        self.links = links;
        self.write_links(new);
        self.config = new.clone();
        self.apply(&affected, plans, states, goal)
    }

    /// Returns the number of packets lost because their app, link or worker was removed.
    fn lost(&self) -> u64 {
        let cause = 8 * DropReason::Removed as usize;
        let workers = self.workers.values().map(|entry| self.shared.worker(entry.id, worker::DROPS + cause));
        let words = workers.chain([self.shared.engine(engine::DROPS + cause)]);
        words.map(|word| word.load(Ordering::Relaxed)).sum()
    }

    /// Returns the number of each link of `new`, and the numbers of removed links, which new links may get
    /// once every worker has let go of them.
    fn number_links(&self, new: &Config) -> (BTreeMap<LinkName, LinkId>, BTreeSet<LinkId>) {
        let (mut links, gone): (BTreeMap<_, _>, BTreeMap<_, _>) =
            self.links.clone().into_iter().partition(|(name, _)| new.links.contains_key(name));
        let used: BTreeSet<LinkId> = links.values().copied().collect();
        let free = (0..LINKS_MAX).filter_map(LinkId::new).filter(|id| !used.contains(id));
        let added: Vec<_> = new.links.keys().filter(|name| !links.contains_key(*name)).cloned().collect();
        links.extend(added.into_iter().zip(free));
        (links, gone.into_values().collect())
    }

    /// Returns the workers that have something to change, have no process, or are removed.
    fn affected(&self, plans: &BTreeMap<String, WorkerPlan>, removed: &BTreeSet<LinkId>) -> Vec<String> {
        let differs = |name: &String| {
            let Some(entry) = self.workers.get(name) else { return true };
            // A new link may have the number of a removed one, and look like it.
            let loses = entry.plan.links.iter().any(|link| removed.contains(&link.id));
            entry.child.is_none() || loses || plans.get(name) != Some(&entry.plan)
        };
        let names: BTreeSet<_> = self.workers.keys().chain(plans.keys()).collect();
        names.into_iter().filter(|name| differs(name)).cloned().collect()
    }

    /// Gives each new worker a place, and packets.
    fn assign_workers(&mut self, new: &Config) {
        for name in new.apps.values().map(|app| &app.worker) {
            if self.workers.contains_key(name) {
                continue;
            }
            let used: BTreeSet<WorkerId> = self.workers.values().map(|entry| entry.id).collect();
            let free = (0..WORKERS_MAX).filter_map(WorkerId::new).find(|id| !used.contains(id));
            let Some(id) = free else { continue };
            // The place keeps nothing of its last worker, except the number of packets still to be collected.
            let returned = self.shared.worker(id, worker::RETURNED).load(Ordering::Acquire);
            self.returned_seen = self.returned_seen.wrapping_sub(returned);
            self.shared.memory().copy_in(layout::worker_at(id), &[0; layout::WORKER_BYTES]);
            self.shared.write_name(layout::worker_at(id) + worker::NAME, NAME_BYTES_MAX + 2, name);
            self.shared.worker(id, worker::STATE).store(WorkerState::Restarting as u64, Ordering::Release);
            let entry = WorkerEntry {
                id,
                plan: WorkerPlan::default(),
                core: None,
                child: None,
                crashes: Default::default(),
                restart_at: None,
                died: None,
                parked: false,
            };
            self.workers.insert(name.clone(), entry);
            self.grant(id);
        }
    }

    /// Has the affected workers let go of what they will not have. Adds the states that apps leave.
    fn prepare(
        &mut self,
        affected: &[String],
        plans: &BTreeMap<String, WorkerPlan>,
        removed: &BTreeSet<LinkId>,
        states: &mut States,
    ) {
        let mut dead = Vec::new();
        let mut told = Vec::new();
        for name in affected {
            let mut plan = plans.get(name).cloned().unwrap_or_default();
            plan.links.retain(|link| !removed.contains(&link.id));
            let there = self.workers.get(name).is_some_and(|entry| entry.child.is_some());
            if self.order(name, &WorkerOrder::Prepare(plan)) {
                told.push(name);
            } else if there {
                dead.push(name);
            }
        }
        for name in told {
            loop {
                match self.answer_of(name) {
                    Some(WorkerAnswer::Left { app, state }) => {
                        let kind = self.config.apps.get(&app).map_or("", |before| &before.kind);
                        states.insert((app, kind.to_owned()), state);
                    }
                    Some(WorkerAnswer::Prepared) => break,
                    _ => {
                        dead.push(name);
                        break;
                    }
                }
            }
        }
        // No worker parks packets any more, so the packets that the dead workers had half parked can be told apart.
        dead.iter().for_each(|name| self.clean_up(name));
    }

    /// Ends the workers that `new` does not have.
    fn end_workers(&mut self, new: &Config, affected: &[String]) {
        let has = |name: &String| new.apps.values().any(|app| &app.worker == name);
        for name in affected.iter().filter(|name| !has(name)) {
            if self.order(name, &WorkerOrder::End) {
                self.answer_of(name);
            }
            let Some(entry) = self.workers.remove(name) else { continue };
            if let Some(child) = entry.child {
                kill(child.pid);
                wait_for(child.pid);
            }
            self.return_packets(&[Owner::Worker(entry.id)]);
            for cause in 0..DropReason::COUNT {
                let dropped = self.shared.worker(entry.id, worker::DROPS + 8 * cause).load(Ordering::Relaxed);
                layout::SharedWords::add(self.shared.engine(engine::DROPS + 8 * cause), dropped);
            }
            self.shared.worker(entry.id, worker::STATE).store(WorkerState::None as u64, Ordering::Release);
        }
    }

    /// Gives every packet of these owners, which were removed, to the pool, and counts those that held data.
    pub(super) fn return_packets(&mut self, owners: &[Owner]) {
        let (returned, lost) = return_to_pool(&self.memory, self.packet_count, owners);
        self.pool.extend(returned);
        layout::SharedWords::add(self.shared.engine(engine::DROPS + 8 * DropReason::Removed as usize), lost);
    }

    /// Takes the packets out of links that were removed.
    fn remove_links(&mut self, removed: &BTreeSet<LinkId>) {
        if removed.is_empty() {
            return;
        }
        let owners: Vec<Owner> =
            removed.iter().flat_map(|&id| [Owner::Full(id), Owner::Empty(id), Owner::Parked(id)]).collect();
        self.return_packets(&owners);
        for &id in removed {
            LinkRing::ALL.into_iter().for_each(|ring| crate::recovery::empty(&self.shared, id, ring));
            for offset in [link::STATE, link::TRACE] {
                self.shared.link(id, offset).store(0, Ordering::Relaxed);
            }
            // The workers, which wrote these counts, have let go of the link.
            let counts = [0; link::FULL - link::PACKETS];
            self.shared.memory().copy_in(layout::link_at(id) + link::PACKETS, &counts);
        }
    }

    /// Writes which workers have the ends of each link.
    fn write_links(&mut self, new: &Config) {
        for (name, &id) in &self.links {
            let place = |app: &str| {
                let worker = new.apps.get(app).and_then(|app| self.workers.get(&app.worker));
                worker.map_or(0, |entry| entry.id.place() as u64 + 1)
            };
            let (from, to) = (place(&name.from.app), place(&name.to.app));
            let word = |offset, value| self.shared.link(id, offset).store(value, Ordering::Release);
            self.shared.write_name(layout::link_at(id) + link::NAME, link::NAME_BYTES, &name.to_string());
            word(link::PRODUCER, from);
            word(link::CONSUMER, to);
            word(link::COPY, u64::from(new.links.get(name) == Some(&LinkMode::Copy)));
            word(link::STATE, if from == to { 1 } else { 2 });
        }
    }

    /// Starts workers that have no process, and has the others take up the new plans: all of them, even if one
    /// fails, as each waits for it.
    fn apply(
        &mut self,
        affected: &[String],
        mut plans: BTreeMap<String, WorkerPlan>,
        states: &States,
        goal: ChangeGoal,
    ) -> Result<(), Error> {
        self.pin_all();
        let mut waited_for = Vec::new();
        let mut outcome = Ok(());
        for name in affected {
            let (Some(plan), Some(entry)) = (plans.remove(name), self.workers.get_mut(name)) else {
                continue;
            };
            entry.plan = plan.clone();
            let state_of = |app: &AppPlan| states.get(&(app.name.clone(), app.kind.clone()));
            let inherited: BTreeMap<_, _> =
                plan.apps.iter().filter_map(|app| Some((app.name.clone(), state_of(app)?.clone()))).collect();
            if entry.child.is_some() {
                let inherit = |(app, state)| WorkerOrder::Inherit { app, state };
                let mut orders = inherited.into_iter().map(inherit).chain([WorkerOrder::Apply(plan)]);
                if orders.all(|order| self.order(name, &order)) {
                    waited_for.push(name);
                }
                continue;
            }
            entry.restart_at = None;
            entry.crashes.clear();
            if std::mem::take(&mut entry.parked) {
                let id = entry.id;
                self.grant(id);
            }
            match (self.start_worker(name, inherited), goal) {
                (Ok(()), _) => waited_for.push(name),
                (Err(error), ChangeGoal::New) => outcome = outcome.and(Err(error)),
                (Err(error), ChangeGoal::Old) => self.put_off(name, &error),
            }
        }
        for name in waited_for {
            match (self.answer_of(name), goal) {
                (Some(WorkerAnswer::Failed { app, reason }), ChangeGoal::New) => {
                    outcome = outcome.and(Err(Error::App { app, reason }));
                }
                (Some(answer), _) => self.hear_start(name, &answer),
                // The worker ended: the next poll deals with it, as with any crash.
                (None, _) => {}
            }
        }
        outcome
    }

    fn pin_all(&mut self) {
        for (name, entry) in &mut self.workers {
            let core = self.config.workers.get(name).and_then(|worker| worker.core);
            if entry.core != core {
                entry.core = core;
                self.shared
                    .worker(entry.id, worker::CORE)
                    .store(core.map_or(0, |core| core as u64 + 1), Ordering::Relaxed);
            }
        }
        for entry in self.workers.values() {
            if let Some(child) = &entry.child {
                self.pin(child.pid, entry.core);
            }
        }
    }
}
