//! Changing what runs: everything that differs, and nothing else.
//!
//! | step | who |
//! |---|---|
//! | the new configuration is checked | supervisor |
//! | workers whose plan differs stop what they will not have, park what waits at the ends of links that move, and pause | workers |
//! | links that are no more give their packets to the pool; workers that are no more end | supervisor |
//! | workers start what is new, and go on | workers |
//!
//! A worker that crashes on the way is cleaned up after when the others pause, and starts with what is
//! new. An app that does not start brings the old configuration back.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;

use super::child::{kill, wait_for};
use super::{Changes, Engine, Entry, Event};
use crate::config::{Config, LinkName};
use crate::control::{Answer, Order};
use crate::error::Error;
use crate::layout::{self, Mode, RINGS, State, engine, link, worker};
use crate::limits::{LINKS_MAX, NAME_BYTES_MAX, WORKERS_MAX};
use crate::owner::{LinkId, Owner, WorkerId};
use crate::plan::{Plan, plans};
use crate::recovery::return_to_pool;

impl Engine {
    /// Says everything that is wrong with a configuration.
    pub fn check(&self, config: &Config) -> Result<(), Error> {
        crate::config::check::check(config, &self.registry).map_err(Error::Refused)
    }

    /// Makes `new` what runs: apps that differ are stopped and started, apps with another worker
    /// move, all others go on. If an app does not start, what ran before is put back, and the error
    /// names the app.
    pub fn configure(&mut self, new: &Config) -> Result<Changes, Error> {
        self.check(new)?;
        let old = self.config.clone();
        match self.carry_out(new) {
            Ok(changes) => Ok(changes),
            Err(error) => {
                self.carry_out(&old)?;
                Err(error)
            }
        }
    }

    fn carry_out(&mut self, new: &Config) -> Result<Changes, Error> {
        self.reap();
        let mut changes = Changes::between(&self.config, new);
        let removed = self.assign_links(new);
        self.assign_workers(new);
        let mut new_plans = plans(new, &self.links);
        let names: Vec<String> = self.workers.keys().cloned().collect();
        let differs = |name: &String| {
            let plan = new_plans.get(name).cloned().unwrap_or_default();
            self.workers.get(name).is_some_and(|entry| !entry.plan.same(&plan) || entry.child.is_none())
        };
        let affected: Vec<String> = names.iter().filter(|name| differs(name)).cloned().collect();
        let states = self.prepare(&affected, &new_plans);
        for plan in new_plans.values_mut() {
            for app in &mut plan.apps {
                // One of another kind left what this one cannot read.
                let same_kind = self.config.apps.get(&app.name).is_some_and(|before| before.kind == app.kind);
                app.state = states.get(&app.name).filter(|_| same_kind).cloned();
            }
        }
        self.end_workers(new, &affected);
        changes.lost = self.remove_links(&removed);
        self.write_links(new);
        self.config = new.clone();
        self.apply(&affected, new_plans)?;
        layout::Shared::add(self.shared.engine(engine::CONFIGURED), 1);
        Ok(changes)
    }

    /// Gives every new link a number that no other has or has just had. Returns those that are no
    /// more.
    fn assign_links(&mut self, new: &Config) -> Vec<LinkId> {
        let mut used: BTreeSet<LinkId> = self.links.values().copied().collect();
        for name in new.links.keys() {
            if !self.links.contains_key(name) {
                let free = (0..LINKS_MAX).filter_map(LinkId::new).find(|id| !used.contains(id));
                if let Some(id) = free {
                    used.insert(id);
                    self.links.insert(name.clone(), id);
                }
            }
        }
        let gone: Vec<LinkName> =
            self.links.keys().filter(|name| !new.links.contains_key(*name)).cloned().collect();
        gone.iter().filter_map(|name| self.links.remove(name)).collect()
    }

    fn assign_workers(&mut self, new: &Config) {
        for name in new.apps.values().map(|app| &app.worker) {
            if self.workers.contains_key(name) {
                continue;
            }
            let used: BTreeSet<WorkerId> = self.workers.values().map(|entry| entry.id).collect();
            let free = (0..WORKERS_MAX).filter_map(WorkerId::new).find(|id| !used.contains(id));
            let Some(id) = free else { continue };
            let entry = Entry {
                id,
                plan: Plan::default(),
                core: None,
                child: None,
                crashes: Default::default(),
                restart_at: None,
                died: None,
                parked: false,
            };
            self.workers.insert(name.clone(), entry);
            self.shared.write_name(layout::worker_at(id) + worker::NAME, NAME_BYTES_MAX + 2, name);
        }
    }

    /// Has the affected workers let go of what they will not have. Returns what apps left.
    fn prepare(&mut self, affected: &[String], plans: &BTreeMap<String, Plan>) -> BTreeMap<String, Vec<u8>> {
        let mut states = BTreeMap::new();
        let mut dead = Vec::new();
        let mut told = Vec::new();
        for name in affected {
            let plan = plans.get(name).cloned().unwrap_or_default();
            let there = self.workers.get(name).is_some_and(|entry| entry.child.is_some());
            if self.order(name, &Order::Prepare(plan)) {
                told.push(name.clone());
            } else if there {
                dead.push(name.clone());
            }
        }
        for name in told {
            // A worker that has just been started may still say so.
            let mut answer = self.answer_of(&name);
            while matches!(answer, Some(Answer::Applied | Answer::Failed { .. })) {
                answer = self.answer_of(&name);
            }
            match answer {
                Some(Answer::Prepared(left)) => states.extend(left),
                _ => dead.push(name),
            }
        }
        // Nobody parks any more: now what the dead had half parked can be told from the rest.
        dead.iter().for_each(|name| self.clean_up(name));
        states
    }

    /// Ends the workers that `new` does not have.
    fn end_workers(&mut self, new: &Config, affected: &[String]) {
        let has = |name: &String| new.apps.values().any(|app| &app.worker == name);
        for name in affected.iter().filter(|name| !has(name)) {
            if self.order(name, &Order::End) {
                self.answer_of(name);
            }
            let Some(entry) = self.workers.remove(name) else { continue };
            if let Some(child) = entry.child {
                kill(child.pid);
                wait_for(child.pid);
            }
            let (returned, _) = return_to_pool(&self.memory, self.packet_count, &[Owner::Worker(entry.id)]);
            self.pool.extend(returned);
            self.shared.worker(entry.id, worker::STATE).store(State::None as u64, Ordering::Release);
        }
    }

    /// Takes the packets out of links that are no more. Returns how many held data.
    fn remove_links(&mut self, removed: &[LinkId]) -> u64 {
        if removed.is_empty() {
            return 0;
        }
        let owners: Vec<Owner> =
            removed.iter().flat_map(|&id| [Owner::Full(id), Owner::Empty(id), Owner::Parked(id)]).collect();
        let (returned, lost) = return_to_pool(&self.memory, self.packet_count, &owners);
        self.pool.extend(returned);
        for &id in removed {
            RINGS.into_iter().for_each(|ring| crate::recovery::empty(&self.shared, id, ring));
            for offset in [
                link::STATE,
                link::TRACE,
                link::PACKETS,
                link::BYTES,
                link::DROPS,
                link::TAKEN,
                link::QUEUED,
                link::WAITING,
            ] {
                self.shared.link(id, offset).store(0, Ordering::Relaxed);
            }
        }
        layout::Shared::add(self.shared.engine(engine::REMOVED), lost);
        lost
    }

    /// Writes down who has the ends of each link.
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
            word(link::COPY, u64::from(new.links.get(name) == Some(&Mode::Copy)));
            word(link::STATE, if from == to { 1 } else { 2 });
        }
    }

    /// Starts workers that have no process, and has the others take up what is new.
    fn apply(&mut self, affected: &[String], mut plans: BTreeMap<String, Plan>) -> Result<(), Error> {
        let mut waited_for = Vec::new();
        for name in affected {
            let Some(plan) = plans.remove(name) else { continue };
            let core = self.config.workers.get(name).and_then(|worker| worker.core);
            let Some(entry) = self.workers.get_mut(name) else { continue };
            entry.plan = plan.clone();
            entry.plan.apps.iter_mut().for_each(|app| app.state = None);
            entry.core = core;
            self.shared
                .worker(entry.id, worker::CORE)
                .store(core.map_or(0, |core| core as u64 + 1), Ordering::Relaxed);
            if entry.child.is_none() {
                (entry.parked, entry.restart_at) = (false, None);
                entry.crashes.clear();
                let id = entry.id;
                if entry.died.is_none() {
                    self.grant(id);
                }
                self.start_worker(name, Some(plan))?;
                waited_for.push(name.clone());
            } else if self.order(name, &Order::Apply(plan)) {
                waited_for.push(name.clone());
            }
        }
        self.pin_all();
        let mut failed = Ok(());
        for name in waited_for {
            match self.answer_of(&name) {
                Some(Answer::Failed { app, reason }) => failed = failed.and(Err(Error::App { app, reason })),
                Some(_) => self.say_restarted(&name),
                // It ended: the next poll sees to it, as to any crash.
                None => {}
            }
        }
        failed
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

    /// One that crashed during the change runs again.
    fn say_restarted(&mut self, name: &str) {
        let Some(entry) = self.workers.get_mut(name) else { return };
        let (Some(died), Some(child)) = (entry.died.take(), &entry.child) else { return };
        let after_ns = died.elapsed().as_nanos() as u64;
        self.events.push_back(Event::Restarted { worker: name.to_owned(), pid: child.pid, after_ns });
    }
}
