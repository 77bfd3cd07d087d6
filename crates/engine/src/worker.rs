//! A worker: a process that runs its apps, breath by breath.
//!
//! In each breath the worker takes packets from other workers, calls every app, and gives packets to
//! other workers. A breath does not block, takes no lock and makes no system call, until there is nothing
//! to do.

mod breath;
mod change;

pub use breath::ring_both;

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

use caravan_ring::SpinPolicy;

use crate::app::{DynApp, Registry};
use crate::control::EngineBells;
use crate::control::{Reports, Silence, WorkerAnswer, WorkerChannel, WorkerOrder};
use crate::ends::{ConsumerEnd, ProducerEnd};
use crate::error::Error;
use crate::io::{AppPorts, now_ns};
use crate::layout::{self, SharedWords, WorkerStage, worker};
use crate::limits::ANSWER_MAX;
use crate::owner::{LinkId, Owner, PacketHeader, WorkerId};
use crate::packet::PacketMemory;
use crate::plan::{AppPlan, LinkPlan, LinkRole, WorkerPlan};
use crate::pool::Pool;
use crate::queue::PacketQueue;
use crate::trace::LinkRecorder;

/// An app that runs.
struct WorkerApp {
    plan: AppPlan,
    ports: AppPorts,
    app: Box<dyn DynApp>,
}

impl WorkerApp {
    fn report(&self) -> BTreeMap<String, u64> {
        self.app.report().into_iter().map(|(name, figure)| (name.to_owned(), figure)).collect()
    }
}

/// One link of this worker; its queue has the same place.
struct WorkerLink {
    plan: LinkPlan,
    end: LinkEnd,
    /// Packets that the app had taken when this end came here.
    taken_before: u64,
    tap: LinkRecorder,
    /// The position up to which packets sent have been traced, if a tracer reads them.
    traced: Option<u64>,
}

enum LinkEnd {
    Local,
    Producer(ProducerEnd),
    Consumer(ConsumerEnd),
}

/// What a process needs to be a worker, made before the fork.
pub struct WorkerStart {
    pub id: WorkerId,
    pub shared: SharedWords,
    pub memory: PacketMemory,
    pub bells: EngineBells,
    pub headroom: usize,
    pub spin: caravan_ring::SpinMode,
    /// The worker's word `ORDERS` before the fork: it counts orders that have come since.
    pub orders_seen: u64,
    /// The worker's word `GRANTS` before the fork: it counts grants that have come since.
    pub grants_seen: u64,
    /// The states that apps left in other workers, by the apps' names.
    pub inherited: BTreeMap<String, Vec<u8>>,
}

/// A worker, in its process.
pub struct Worker<'a> {
    id: WorkerId,
    shared: SharedWords,
    bells: EngineBells,
    registry: &'a Registry,
    channel: WorkerChannel,
    apps: Vec<WorkerApp>,
    /// The final figures of apps that the last change stopped.
    stopped: Reports,
    links: Vec<WorkerLink>,
    queues: Vec<PacketQueue>,
    pool: Pool,
    /// Drops that the earlier processes of this worker had counted.
    drops_before: Vec<u64>,
    /// The time since which apps have wanted more packets than there were.
    starved_since: Option<u64>,
    grants_seen: u64,
    orders_seen: u64,
    /// The number of the last order; 0 before the first.
    order: u64,
    /// The states of apps from other workers that start with the next plan.
    inherited: BTreeMap<String, Vec<u8>>,
    spin: SpinPolicy,
    now_ns: u64,
    idle_looks: u32,
}

/// The reason why a worker ends.
#[derive(Debug)]
pub enum WorkerExit {
    /// The supervisor ordered it to end.
    Told,
    /// The supervisor has ended.
    Alone,
    /// An error stopped it.
    Broken(Error),
}

impl<'a> Worker<'a> {
    /// Takes over the packets that the worker owns: all whose header names it.
    pub fn new(start: WorkerStart, registry: &'a Registry, channel: WorkerChannel) -> Self {
        let WorkerStart { id, shared, memory, bells, headroom, spin, orders_seen, grants_seen, inherited } =
            start;
        let mut pool = Pool::new(memory, Owner::Worker(id), headroom);
        let packets = shared.engine(layout::engine::PACKET_COUNT).load(Ordering::Acquire) as u32;
        pool.adopt(0..packets, |_| true);
        let word = |offset| shared.worker(id, offset).load(Ordering::Acquire);
        let drops_before =
            (0..layout::DropReason::COUNT).map(|cause| word(worker::DROPS + 8 * cause)).collect();
        Self {
            id,
            shared,
            bells,
            registry,
            channel,
            apps: Vec::new(),
            stopped: Reports::new(),
            links: Vec::new(),
            queues: Vec::new(),
            pool,
            drops_before,
            starved_since: None,
            grants_seen,
            orders_seen,
            order: 0,
            inherited,
            spin: SpinPolicy::new(spin),
            now_ns: now_ns(),
            idle_looks: 0,
        }
    }

    /// Runs apps until there is a reason to end.
    pub fn run(mut self, plan: WorkerPlan) -> WorkerExit {
        self.stage(WorkerStage::Starting);
        if let Err(over) = self.apply(plan) {
            return over;
        }
        loop {
            if let Err(over) = self.turn() {
                return over;
            }
        }
    }

    fn turn(&mut self) -> Result<(), WorkerExit> {
        let progress = self.breathe().map_err(WorkerExit::Broken)?;
        self.take_grants();
        if self.shared.worker(self.id, worker::ORDERS).load(Ordering::Acquire) != self.orders_seen {
            self.obey()?;
        } else if !progress {
            self.rest()?;
        } else if self.idle_looks > 0 {
            self.idle_looks = 0;
            self.spin.found(self.now_ns);
        }
        Ok(())
    }

    #[inline]
    fn stage(&self, stage: WorkerStage) {
        // Viewers read it, and so does the supervisor once this process has ended.
        self.shared.worker(self.id, worker::STAGE).store(stage as u64, Ordering::Relaxed);
    }

    /// Adopts the packets that the worker asked for and was given.
    fn take_grants(&mut self) {
        // pairs with the Release in the supervisor's `grant`
        let grants = self.shared.worker(self.id, worker::GRANTS).load(Ordering::Acquire);
        if grants == self.grants_seen {
            return;
        }
        self.stage(WorkerStage::Growing);
        let word = |offset| self.shared.worker(self.id, offset).load(Ordering::Relaxed) as u32;
        self.pool.adopt(word(worker::GRANT_FIRST)..word(worker::GRANT_END), PacketHeader::is_granted);
        self.grants_seen = grants;
        self.shared.worker(self.id, worker::WANTED).store(0, Ordering::Release);
        // pairs with the Acquire in the supervisor's `grant_wanted`
        self.shared.worker(self.id, worker::GRANTS_TAKEN).store(grants, Ordering::Release);
    }

    /// Reads one order and carries it out.
    fn obey(&mut self) -> Result<(), WorkerExit> {
        // Without a message, one is on its way: the count is written before it.
        self.take_order(Duration::ZERO)?.map_or(Ok(()), |order| self.carry_out(order))
    }

    /// Returns the next order, if it comes in time.
    fn take_order(&mut self, limit: Duration) -> Result<Option<WorkerOrder>, WorkerExit> {
        match self.channel.receive(limit) {
            Ok((number, order)) => {
                self.orders_seen += 1;
                self.order = number;
                Ok(Some(order))
            }
            Err(Silence::Late) => Ok(None),
            Err(Silence::Gone) => Err(WorkerExit::Alone),
        }
    }

    fn carry_out(&mut self, order: WorkerOrder) -> Result<(), WorkerExit> {
        match order {
            WorkerOrder::Prepare(plan) => {
                self.stage(WorkerStage::Configuring);
                for (app, state) in self.prepare(&plan).map_err(WorkerExit::Broken)? {
                    self.answer(&WorkerAnswer::Left { app, state })?;
                }
                self.answer(&WorkerAnswer::Prepared)?;
                // Until the next order, nothing of this worker moves.
                let order = self.next_order()?;
                self.carry_out(order)
            }
            WorkerOrder::Inherit { app, state } => {
                self.inherited.insert(app, state);
                Ok(())
            }
            WorkerOrder::Apply(plan) => {
                self.stage(WorkerStage::Configuring);
                self.apply(plan)
            }
            WorkerOrder::Report => {
                let reports = self.apps.iter().map(|slot| (slot.plan.name.clone(), slot.report()));
                self.answer(&WorkerAnswer::Report(reports.collect()))
            }
            WorkerOrder::End => {
                self.stage(WorkerStage::Configuring);
                self.prepare(&WorkerPlan::default()).map_err(WorkerExit::Broken)?;
                self.count_drops();
                let figures = std::mem::take(&mut self.stopped);
                self.answer(&WorkerAnswer::Ended(figures))?;
                Err(WorkerExit::Told)
            }
        }
    }

    fn next_order(&mut self) -> Result<WorkerOrder, WorkerExit> {
        loop {
            match self.take_order(ANSWER_MAX)? {
                Some(order @ WorkerOrder::Inherit { .. }) => self.carry_out(order)?,
                Some(order) => return Ok(order),
                // Other workers have not answered yet; the supervisor deals with them.
                None => {}
            }
        }
    }

    fn answer(&mut self, answer: &WorkerAnswer) -> Result<(), WorkerExit> {
        // The supervisor may be waiting for another worker before it reads this answer.
        self.channel.send(self.order, answer, None).map_err(|_| WorkerExit::Alone)
    }

    fn queue_of(&self, link: LinkId) -> Option<usize> {
        self.links.iter().position(|at| at.plan.id == link)
    }
}

impl LinkRole {
    /// True if the app that sends is in this worker.
    fn sends(self) -> bool {
        self != Self::Consumer
    }
}
