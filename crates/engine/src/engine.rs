//! The supervisor: the process that makes the memory, forks workers, tells them what to run, and
//! cleans up after them. It never touches a packet on its way.

mod changes;
mod crash;
mod grant;
mod reconfigure;

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use caravan_ring::SpinMode;
use caravan_segment::barrier::{self, Fences};
use caravan_segment::{Pages, Segment};
use rustix::event::{Timespec, epoll};
use rustix::thread::CpuSet;

use self::crash::{WorkerProcess, kill, wait_for};
use self::grant::Shortage;
use crate::app::Registry;
use crate::config::{Config, LinkName};
use crate::control::EngineBells;
use crate::control::{Reports, WorkerAnswer, WorkerOrder};
use crate::error::{Error, system};
use crate::io::now_ns;
use crate::layout::{self, PACKETS_AT, SharedWords, WorkerState};
use crate::limits::{HEADROOM_BYTES, PACKET_HEADER_BYTES, PACKET_STRIDE, PACKETS_DEFAULT, PACKETS_MAX};
use crate::owner::{LinkId, WorkerId};
use crate::packet::PacketMemory;
use crate::plan::WorkerPlan;

pub use changes::{Changes, EngineEvent};

/// How often the supervisor looks for traces whose tracer has died.
const SWEEP_EVERY: Duration = Duration::from_secs(1);

/// A worker as the supervisor knows it.
struct WorkerEntry {
    id: WorkerId,
    plan: WorkerPlan,
    core: Option<usize>,
    child: Option<WorkerProcess>,
    /// The times of its recent crashes.
    crashes: VecDeque<Instant>,
    /// When its process must be started again.
    restart_at: Option<Instant>,
    /// When the supervisor noticed the crash after which the worker is being started.
    died: Option<Instant>,
    parked: bool,
}

/// A running engine, in the supervisor's process, which must call [`poll`](Self::poll) again and again.
///
/// The workers end when the engine is dropped, and when its process ends, in whatever way.
///
/// ```no_run
/// use caravan_engine::{Config, Engine, EngineOptions, Registry};
///
/// let mut config = Config::new();
/// config.app("source", "source", ()).app("sink", "sink", ()).link("source.output -> sink.input")?;
/// let mut engine = Engine::start(Registry::standard(), EngineOptions::default())?;
/// engine.configure(&config)?;
/// engine.run_for(std::time::Duration::from_secs(1), |event| println!("{event:?}"))?;
/// # Ok::<(), caravan_engine::Error>(())
/// ```
pub struct Engine {
    registry: Registry,
    options: EngineOptions,
    segment: Arc<Segment>,
    shared: SharedWords,
    memory: PacketMemory,
    bells: EngineBells,
    epoll: OwnedFd,
    config: Config,
    links: BTreeMap<LinkName, LinkId>,
    workers: BTreeMap<String, WorkerEntry>,
    packet_count: u32,
    /// The packets that no owner has, as far as the supervisor knows them.
    pool: Vec<u32>,
    /// The number of packets that workers had given back at the last look.
    returned_seen: u64,
    events: VecDeque<EngineEvent>,
    cores: CpuSet,
    /// When the supervisor last looked for traces of dead tracers.
    swept: Instant,
    shortage: Option<Shortage>,
    /// The process that is the supervisor. A copy of this value in a child process does nothing.
    pid: u32,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").field("workers", &self.workers.keys()).finish_non_exhaustive()
    }
}

impl Engine {
    /// Makes an engine without apps. The calling process becomes the supervisor. It forks workers when the configuration
    /// changes and when a worker has crashed, so it must have one thread as long as the engine runs.
    pub fn start(registry: Registry, options: EngineOptions) -> Result<Self, Error> {
        let threads = std::fs::read_dir("/proc/self/task").map_or(1, Iterator::count);
        if threads > 1 {
            return Err(Error::Threads(threads));
        }
        if options.packets_max == 0 || options.packets_max > PACKETS_MAX {
            let why =
                format!("packets_max = {}: an engine has 1 to {PACKETS_MAX} packets", options.packets_max);
            return Err(Error::Refused(vec![why]));
        }
        if options.headroom > PACKET_STRIDE - PACKET_HEADER_BYTES {
            let why = format!(
                "headroom = {}: a packet has {} bytes",
                options.headroom,
                PACKET_STRIDE - PACKET_HEADER_BYTES
            );
            return Err(Error::Refused(vec![why]));
        }
        let segment =
            Segment::create(layout::SEGMENT_NAME, layout::bytes(options.packets_max), options.pages)?;
        segment.grow(PACKETS_AT as u64)?;
        let segment = Arc::new(segment);
        let fences = if barrier::join() { Fences::Asymmetric } else { Fences::Symmetric };
        let shared = SharedWords::new(&segment, fences)?;
        let memory = PacketMemory::new(shared.memory(), options.packets_max);
        let bells = EngineBells::new()?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(system("epoll_create"))?;
        epoll::add(&epoll, bells.supervisor(), epoll::EventData::new_u64(0), epoll::EventFlags::IN)
            .map_err(system("epoll_ctl"))?;
        let word = |offset, value| shared.engine(offset).store(value, Ordering::Relaxed);
        word(layout::engine::PACKETS_MAX, u64::from(options.packets_max));
        word(layout::engine::HUGE, u64::from(segment.pages() != Pages::Small));
        word(layout::engine::STARTED_NS, now_ns());
        word(layout::engine::PID, u64::from(std::process::id()));
        // pairs with the Acquire in a viewer
        shared.engine(layout::engine::MAGIC).store(layout::MAGIC, Ordering::Release);
        let cores = rustix::thread::sched_getaffinity(None).map_err(system("sched_getaffinity"))?;
        Ok(Self {
            registry,
            options,
            segment,
            shared,
            memory,
            bells,
            epoll,
            config: Config::new(),
            links: BTreeMap::new(),
            workers: BTreeMap::new(),
            packet_count: 0,
            pool: Vec::new(),
            returned_seen: 0,
            events: VecDeque::new(),
            cores,
            swept: Instant::now(),
            shortage: None,
            pid: std::process::id(),
        })
    }

    /// Returns the kind of pages that the packets are on.
    pub fn pages(&self) -> Pages {
        self.segment.pages()
    }

    /// Returns the number of packets that are backed by memory.
    pub fn packets(&self) -> u32 {
        self.packet_count
    }

    /// Returns the configuration in force.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Returns the kinds of apps.
    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// Returns the words that the engine's processes share.
    pub fn shared(&self) -> &SharedWords {
        &self.shared
    }

    /// Returns the packet headers.
    pub fn headers(&self) -> &impl crate::handover::PacketHeaders {
        &self.memory
    }

    /// Returns the process of a worker, if it has one.
    pub fn pid_of(&self, worker: &str) -> Option<i32> {
        Some(self.workers.get(worker)?.child.as_ref()?.pid)
    }

    /// Returns the number of a link, written `app.port -> app.port`.
    pub fn link_id(&self, link: &str) -> Option<LinkId> {
        self.links.get(&link.parse().ok()?).copied()
    }

    /// Returns the number of a worker.
    pub fn worker_id(&self, worker: &str) -> Option<WorkerId> {
        Some(self.workers.get(worker)?.id)
    }

    /// Waits for something to happen, `timeout` at most, and handles all that has happened: cleans up after workers that
    /// have ended, starts them again, and gives packets to workers that have asked for some. Returns what users may
    /// want to know.
    pub fn poll(&mut self, timeout: Option<Duration>) -> Result<Vec<EngineEvent>, Error> {
        self.wait(timeout)?;
        self.bells.supervisor().hush();
        self.reap();
        self.hear_starters();
        self.grant_wanted();
        self.restart_due();
        if self.swept.elapsed() > SWEEP_EVERY {
            self.swept = Instant::now();
            crate::trace::sweep(&self.shared);
        }
        Ok(self.events.drain(..).collect())
    }

    /// Calls [`poll`](Self::poll) again and again for `time`, and `each` with every event.
    pub fn run_for(&mut self, time: Duration, mut each: impl FnMut(EngineEvent)) -> Result<(), Error> {
        let end = Instant::now() + time;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            self.poll(Some(left))?.into_iter().for_each(&mut each);
            if left.is_zero() {
                return Ok(());
            }
        }
    }

    fn wait(&self, timeout: Option<Duration>) -> Result<(), Error> {
        let now = Instant::now();
        let due = self.workers.values().filter_map(|entry| entry.restart_at);
        let due = due.chain(self.shortage.as_ref().and_then(Shortage::to_be_told)).min();
        let due = due.map(|due| due.saturating_duration_since(now));
        let left = match (timeout, due) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        // If events are left to report, the call does not wait.
        let left = if self.events.is_empty() { left } else { Some(Duration::ZERO) };
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        let mut ready =
            [epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) }; 8];
        match epoll::wait(&self.epoll, &mut ready, left.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(errno) => Err(system("epoll_wait")(errno)),
        }
    }

    /// Asks the workers for the figures of their apps, and returns them by the names of the apps.
    pub fn reports(&mut self) -> Result<Reports, Error> {
        let names: Vec<String> = self.workers.keys().cloned().collect();
        let mut reports = BTreeMap::new();
        for name in names {
            if !self.order(&name, &WorkerOrder::Report) {
                continue;
            }
            if let Some(WorkerAnswer::Report(figures)) = self.answer_of(&name) {
                reports.extend(figures);
            }
        }
        Ok(reports)
    }

    /// Stops all apps and ends all workers, in order.
    pub fn stop(mut self) -> Result<(), Error> {
        self.end();
        Ok(())
    }

    /// Stops all apps and ends all workers, in order. Returns the figures of the apps once they have stopped. The
    /// words that the engine's processes shared can still be read.
    pub fn end(&mut self) -> Reports {
        let names: Vec<String> = self.workers.keys().cloned().collect();
        let told: Vec<_> = names.iter().filter(|name| self.order(name, &WorkerOrder::End)).cloned().collect();
        let mut reports = Reports::new();
        for name in told {
            if let Some(WorkerAnswer::Ended(figures)) = self.answer_of(&name) {
                reports.extend(figures);
            }
        }
        self.kill_all();
        reports
    }

    fn kill_all(&mut self) {
        for entry in self.workers.values_mut() {
            if let Some(child) = entry.child.take() {
                kill(child.pid);
                wait_for(child.pid);
                self.shared
                    .worker(entry.id, layout::worker::STATE)
                    .store(WorkerState::None as u64, Ordering::Release);
            }
        }
        self.workers.clear();
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        if self.pid == std::process::id() {
            self.kill_all();
        }
    }
}

impl AsFd for Engine {
    /// The descriptor is readable when [`Engine::poll`] has something to do, except for restarts that are not due yet.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

/// What happens to a worker that crashed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Restarts {
    /// It is started again, at once the first time, then after waits that grow. A worker that goes on
    /// crashing is parked.
    #[default]
    BackOff,
    /// It is started again at once, without end.
    Always,
}

/// The options of an engine, which no later configuration changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineOptions {
    /// The pages to ask for; [`Engine::pages`](crate::Engine::pages) returns the pages that the engine got.
    pub pages: Pages,
    /// The number of packets that there may be.
    pub packets_max: u32,
    /// Bytes in front of a new packet's data.
    pub headroom: usize,
    /// Whether idle workers poll for a while before they sleep.
    pub spin: SpinMode,
    /// What happens to a worker that crashed.
    pub restarts: Restarts,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            pages: Pages::Small,
            packets_max: PACKETS_DEFAULT,
            headroom: HEADROOM_BYTES,
            spin: SpinMode::Auto,
            restarts: Restarts::default(),
        }
    }
}
