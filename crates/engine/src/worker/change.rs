//! How a worker changes what it runs, in two steps: it lets go of what its new plan does not have,
//! and, once every worker has done that, takes up what is new.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use super::{LinkEnd, Worker, WorkerApp, WorkerExit, WorkerLink};
use crate::control::WorkerAnswer;
use crate::ends::{ConsumerEnd, ProducerEnd, park, unpark};
use crate::error::{Error, corrupt};
use crate::io::{AppPorts, Io};
use crate::layout::{DropReason, LinkRing, link};
use crate::limits::STATE_BYTES_MAX;
use crate::plan::{AppPlan, LinkPlan, LinkRole, WorkerPlan};
use crate::queue::{PacketQueue, QueueCounts};
use crate::trace::LinkRecorder;

impl Worker<'_> {
    /// Stops the apps and parks the links that `plan` does not have, or has in another form. Returns the
    /// states that the apps left.
    pub(super) fn prepare(&mut self, plan: &WorkerPlan) -> Result<BTreeMap<String, Vec<u8>>, Error> {
        let mut states = BTreeMap::new();
        self.stopped.clear();
        for mut slot in std::mem::take(&mut self.apps) {
            let next =
                plan.apps.iter().find(|next| (&next.name, &next.kind) == (&slot.plan.name, &slot.plan.kind));
            let stays = next
                .is_some_and(|next| next.config == slot.plan.config || slot.app.reconfigure(&next.config));
            if stays {
                self.apps.push(slot);
                continue;
            }
            let mut io = Io::new(&slot.ports, &mut self.queues, &mut self.pool, self.now_ns);
            slot.app.push(&mut io);
            let state = slot.app.stop(&mut io);
            // The packets that the app still held are dealt with and counted now.
            self.stopped.insert(slot.plan.name.clone(), slot.report());
            if let Some(state) = state.filter(|state| state.len() <= STATE_BYTES_MAX) {
                states.insert(slot.plan.name, state);
            }
            self.pool.collect_dropped();
            drop(slot.app);
            // The packets that the app held until now, and has not sent.
            let lost = self.pool.collect_dropped();
            self.pool.count_drops(DropReason::Removed, lost as u64);
        }
        let queues = std::mem::take(&mut self.queues);
        for (mut at, mut queue) in std::mem::take(&mut self.links).into_iter().zip(queues) {
            if plan.links.contains(&at.plan) {
                self.links.push(at);
                self.queues.push(queue);
            } else {
                self.let_go(&mut at, &mut queue)?;
            }
        }
        // There may be no further breath.
        self.count_drops();
        Ok(states)
    }

    /// Leaves the packets that wait at an end to the next process that has it. There is room for all of them: a
    /// queue holds as many packets as each of the link's rings, and three times as many only where it was filled
    /// from three of them.
    fn let_go(&mut self, at: &mut WorkerLink, queue: &mut PacketQueue) -> Result<(), Error> {
        let id = at.plan.id;
        let corrupt = corrupt(id);
        match &mut at.end {
            LinkEnd::Local => {
                super::breath::count_link(&self.shared, at, queue);
                // As with two ends: the oldest packets at the consumer's, the youngest at the producer's.
                park(&self.shared, (id, LinkRing::Head), queue, &self.pool)?;
                let mut end = ProducerEnd::resume(&self.shared, id, &mut self.pool)?;
                end.send(queue, self.pool.memory()).map_err(corrupt)?;
                park(&self.shared, (id, LinkRing::Tail), queue, &self.pool)?;
            }
            LinkEnd::Producer(end) => {
                end.collect(&mut self.pool).map_err(corrupt)?;
                end.send(queue, self.pool.memory()).map_err(corrupt)?;
                super::breath::count_link(&self.shared, at, queue);
                park(&self.shared, (id, LinkRing::Tail), queue, &self.pool)?;
            }
            LinkEnd::Consumer(end) => {
                end.repay(&mut self.pool).map_err(corrupt)?;
                super::breath::count_link(&self.shared, at, queue);
                park(&self.shared, (id, LinkRing::Head), queue, &self.pool)?;
            }
        }
        while let Some(packet) = queue.take() {
            self.pool.discard(packet, DropReason::Removed);
        }
        Ok(())
    }

    /// Takes up what `plan` has, and answers so, or answers which app did not start.
    pub(super) fn apply(&mut self, plan: WorkerPlan) -> Result<(), WorkerExit> {
        let taken_up = self.take_up(plan);
        self.count_drops();
        let answer = match taken_up {
            Ok(()) => WorkerAnswer::Applied,
            Err(Error::App { app, reason }) => WorkerAnswer::Failed { app, reason },
            Err(error) => return Err(WorkerExit::Broken(error)),
        };
        self.answer(&answer)
    }

    fn take_up(&mut self, plan: WorkerPlan) -> Result<(), Error> {
        for &new in &plan.links {
            if self.queue_of(new.id).is_none() {
                let (at, queue) = self.pick_up(new)?;
                self.links.push(at);
                self.queues.push(queue);
            }
        }
        let mut running: BTreeMap<String, WorkerApp> =
            self.apps.drain(..).map(|slot| (slot.plan.name.clone(), slot)).collect();
        let mut failed = Ok(());
        for app in plan.apps {
            let ports = self.ports(&app);
            let slot = match running.remove(&app.name) {
                Some(slot) => WorkerApp { plan: app, ports, app: slot.app },
                None => match self.start(app, ports) {
                    Ok(slot) => slot,
                    Err(error) => {
                        failed = failed.and(Err(error));
                        continue;
                    }
                },
            };
            self.apps.push(slot);
        }
        self.inherited.clear();
        failed
    }

    fn start(&mut self, plan: AppPlan, ports: AppPorts) -> Result<WorkerApp, Error> {
        let failed = |reason: String| Error::App { app: plan.name.clone(), reason };
        let Some(kind) = self.registry.kind(&plan.kind) else {
            return Err(failed(format!("there is no kind `{}`", plan.kind)));
        };
        let state = self.inherited.remove(&plan.name);
        let app = (kind.start)(&plan.config, state).map_err(|trouble| failed(trouble.0))?;
        Ok(WorkerApp { plan, ports, app })
    }

    fn ports(&self, app: &AppPlan) -> AppPorts {
        let places = |ports: &[(String, crate::owner::LinkId)]| {
            ports.iter().filter_map(|(port, link)| Some((port.clone(), self.queue_of(*link)?))).collect()
        };
        AppPorts { inputs: places(&app.inputs), outputs: places(&app.outputs) }
    }

    /// Takes over an end of a link, with the packets that waited there.
    fn pick_up(&mut self, plan: LinkPlan) -> Result<(WorkerLink, PacketQueue), Error> {
        let LinkPlan { id, role, mode } = plan;
        let mut queue = PacketQueue::default();
        let mut unpark = |ring| unpark(&self.shared, (id, ring), &mut queue, &mut self.pool);
        let end = match role {
            LinkRole::Local => {
                // Oldest first. Both ends are here, so both rings belong to this process.
                unpark(LinkRing::Head)?;
                unpark(LinkRing::Full)?;
                unpark(LinkRing::Tail)?;
                ProducerEnd::resume(&self.shared, id, &mut self.pool)?;
                LinkEnd::Local
            }
            LinkRole::Producer => {
                unpark(LinkRing::Tail)?;
                LinkEnd::Producer(ProducerEnd::resume(&self.shared, id, &mut self.pool)?)
            }
            LinkRole::Consumer => {
                unpark(LinkRing::Head)?;
                LinkEnd::Consumer(ConsumerEnd::resume(&self.shared, id, mode)?)
            }
        };
        let word = |offset| self.shared.link(id, offset).load(Ordering::Acquire);
        queue.set_counts(QueueCounts {
            packets: word(link::PACKETS),
            bytes: word(link::BYTES),
            drops: word(link::DROPS),
        });
        let tap = LinkRecorder::new(&self.shared, id);
        Ok((WorkerLink { plan, end, taken_before: word(link::TAKEN), tap, traced: None }, queue))
    }
}
