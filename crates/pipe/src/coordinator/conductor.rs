//! The conductor: a thread that starts agents, joins hops, starts the stages, and waits for their ends.

mod endings;
mod joining;
mod reports;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, sync_channel};
use std::thread::Scope;
use std::time::{Duration, Instant};

use rustix::process::{Signal, getpid, kill_process};

use self::endings::PipelineTrouble;
use self::joining::Joining;
use super::agents::{AgentChannel, AgentEvent, RelayRoutes};
use super::{HopFigures, HopTransport, Launcher, Observer, PipelineRequest, PipelineSummary, StreamDigest};
use crate::control::{AgentOrder, ControlMessage, Hello, Mover, MoverResult, Status};
use crate::limits::{EVENTS_MAX, PING_INTERVAL, TERM_GRACE};
use crate::mover::{DigestKind, MoverFigures};
use crate::plan::{AgentPart, HopCarrier, PipelinePlan};
use crate::{Error, lock, plan};

/// The interval between two looks at the clock and at Ctrl-C.
const GLANCE: Duration = Duration::from_millis(20);
/// How long after a failure a better explanation of it may take to arrive.
const CAUSE_LIMIT: Duration = Duration::from_millis(300);
/// How long the notice of a pause may take to get out.
const PAUSE_FLUSH: Duration = Duration::from_millis(50);
/// How long to wait until agents have killed what they started; they need less.
const GONE_LIMIT: Duration = Duration::from_millis(1000);

/// A message for the observer.
pub enum Notice {
    Note(String),
    Warn(String),
    Lines {
        host: String,
        texts: Vec<String>,
        bytes: u64,
        /// The bytes of the agent's line credit that are in use.
        taken: Arc<AtomicU64>,
        credit: SyncSender<ControlMessage<AgentOrder>>,
    },
    /// The figures, and a flag that is cleared once they were shown: while figures wait, no others are sent.
    Progress(Vec<HopFigures>, Arc<AtomicBool>),
}

impl Notice {
    /// Passes the notice to the observer; blocks as long as the observer does.
    pub fn tell(self, observer: &mut dyn Observer) {
        match self {
            Self::Note(text) => observer.note(&text),
            Self::Warn(text) => observer.warn(&text),
            Self::Progress(hops, waits) => {
                observer.progress(&hops);
                // The flag guards no other memory.
                waits.store(false, Ordering::Relaxed);
            }
            Self::Lines { host, texts, bytes, taken, credit } => {
                texts.iter().for_each(|text| observer.line(&host, text));
                // The agent's next lines are counted against this value; it guards no other memory.
                taken.fetch_sub(bytes, Ordering::Relaxed);
                // An agent that is gone needs no credit.
                let _ = credit.send(ControlMessage::Word(AgentOrder::Credit { hop: None, bytes }));
            }
        }
    }
}

/// The state of a pipeline.
pub struct Conductor<'a> {
    plan: PipelinePlan,
    request: &'a PipelineRequest,
    /// The number of lines is limited by the agents' credit, progress is one notice at a time, and all other
    /// notices are a few for each hop and each agent: the queue needs no limit, at which Ctrl-C would have to wait.
    notices: Sender<Notice>,
    progress_waits: Arc<AtomicBool>,
    interrupted: Arc<AtomicBool>,
    stopped: Arc<AtomicBool>,
    /// The sending and the receiving end of all agents' events.
    sender: SyncSender<AgentEvent>,
    events: Receiver<AgentEvent>,
    /// The agents, in the order of the plan.
    agents: Vec<KnownAgent>,
    movers: HashMap<u32, KnownMover>,
    joinings: HashMap<u32, Joining>,
    joined: HashMap<u32, (HopCarrier, String)>,
    lengths: HashMap<u32, u64>,
    /// The stages that stopped reading before the stream's end, while others went on.
    left: HashSet<u32>,
    statuses: Vec<Option<Status>>,
    /// The stages, in the order of their ends.
    ended: Vec<u32>,
    troubles: Vec<PipelineTrouble>,
    /// When to stop waiting for a better explanation.
    abort_at: Option<Instant>,
    is_aborting: bool,
    pinged: Instant,
    ticked: Instant,
    started: Option<Instant>,
    routes: RelayRoutes,
}

/// What is known of an agent.
#[derive(Default)]
struct KnownAgent {
    /// `None` until the agent was started.
    channel: Option<AgentChannel>,
    hello: Option<Hello>,
    /// True once its files are open.
    is_prepared: bool,
    /// True once its channel has ended, or it was given up.
    is_lost: bool,
    /// True once nothing of it runs any more.
    is_gone: bool,
    /// The number of processes that it has reported as impossible to end.
    spared: usize,
}

impl KnownAgent {
    fn order(&self, order: AgentOrder) {
        self.channel.iter().for_each(|channel| channel.order(order.clone()));
    }
}

/// What is known of a mover.
struct KnownMover {
    /// The agent that it belongs to.
    agent: usize,
    figures: MoverFigures,
    /// `None` until the mover has ended.
    result: Option<MoverResult>,
}

impl KnownMover {
    fn end(&mut self, result: MoverResult) {
        self.figures = result.figures;
        self.result = Some(result);
    }
}

impl<'a> Conductor<'a> {
    pub fn new(
        plan: PipelinePlan,
        request: &'a PipelineRequest,
        notices: Sender<Notice>,
        interrupted: Arc<AtomicBool>,
        stopped: Arc<AtomicBool>,
    ) -> Self {
        let (sender, events) = sync_channel(EVENTS_MAX);
        Self {
            agents: plan.agents.iter().map(|_| KnownAgent::default()).collect(),
            statuses: vec![None; plan.jobs.len()],
            plan,
            request,
            notices,
            progress_waits: Arc::default(),
            interrupted,
            stopped,
            sender,
            events,
            movers: HashMap::new(),
            joinings: HashMap::new(),
            joined: HashMap::new(),
            lengths: HashMap::new(),
            left: HashSet::new(),
            ended: Vec::new(),
            troubles: Vec::new(),
            abort_at: None,
            is_aborting: false,
            pinged: Instant::now(),
            ticked: Instant::now(),
            started: None,
            routes: RelayRoutes::default(),
        }
    }

    /// Runs the pipeline to its end.
    pub fn run<'scope>(
        mut self,
        scope: &'scope Scope<'scope, '_>,
        launcher: &'scope dyn Launcher,
    ) -> Result<PipelineSummary, Error> {
        let begin = Instant::now();
        let is_given_up = Arc::new(AtomicBool::new(false));
        for (number, host) in self.plan.agents.iter().cloned().enumerate() {
            let (sender, is_given_up) = (self.sender.clone(), Arc::clone(&is_given_up));
            scope.spawn(move || {
                let launched = launcher.launch(host.as_deref(), &is_given_up);
                let _ = sender.send(AgentEvent::Launched(number, launched));
            });
        }
        let went_well = self.conduct();
        let ended = Instant::now();
        if !went_well {
            // Loops read the flag again and again; it guards no other memory.
            is_given_up.store(true, Ordering::Relaxed);
            self.abort();
        }
        lock(&self.routes).clear();
        self.order_all(&AgentOrder::End);
        let mut summary = PipelineSummary { hops: self.hop_figures(), ..PipelineSummary::default() };
        endings::conclude(&self.plan, &self.troubles, &self.statuses, &self.ended, &mut summary);
        let started = self.started.unwrap_or(ended);
        summary.setup_seconds = (started - begin).as_secs_f64();
        summary.stream_seconds = (ended - started).as_secs_f64();
        // Each end may take a while, so all agents end at once.
        for channel in self.agents.drain(..).filter_map(|agent| agent.channel) {
            scope.spawn(move || channel.end());
        }
        Ok(summary)
    }

    /// Runs the pipeline. Returns true if everything succeeded.
    fn conduct(&mut self) -> bool {
        if !self.until(|this| this.agents.iter().all(|agent| agent.hello.is_some())) {
            return false;
        }
        self.join();
        let is_ready = |this: &Self| {
            this.agents.iter().all(|agent| agent.is_prepared) && this.joined.len() == this.plan.hops.len()
        };
        if !self.until(is_ready) {
            return false;
        }
        self.start();
        self.until(Self::is_all_over)
    }

    /// Takes events until `is_done` returns true, or until something has failed.
    fn until(&mut self, is_done: impl Fn(&Self) -> bool) -> bool {
        loop {
            match self.abort_at {
                Some(at) if Instant::now() >= at => return false,
                None if is_done(self) => return true,
                _ => {}
            }
            // This side holds a sender itself, so the channel stays open.
            if let Ok(event) = self.events.recv_timeout(GLANCE) {
                self.take(event);
            }
            self.tick();
        }
    }

    fn tick(&mut self) {
        // A signal handler sets the flag; it guards no other memory.
        if self.interrupted.load(Ordering::Relaxed) && !self.troubles.contains(&PipelineTrouble::Interrupted)
        {
            self.troubles.push(PipelineTrouble::Interrupted);
            self.abort_at = Some(Instant::now());
        }
        if self.stopped.swap(false, Ordering::Relaxed) {
            self.pause();
        }
        let now = Instant::now();
        let was_stopped = now - self.ticked > Duration::from_secs(1);
        self.ticked = now;
        let mut silent = Vec::new();
        for (number, agent) in self.agents.iter().enumerate() {
            let Some(channel) = agent.channel.as_ref().filter(|_| !agent.is_lost) else { continue };
            if was_stopped {
                channel.forgive();
            }
            // An agent of another host has already said that it is ready. The agent of this host may still be
            // starting, which only the load of this machine can delay.
            let has_spoken = self.plan.agents[number].is_some() || agent.hello.is_some();
            if has_spoken && channel.silence() > self.request.options.silence {
                silent.push((number, channel.silence()));
            }
        }
        for (number, time) in silent {
            self.lose(number, format!("it has been silent for {:.1} s", time.as_secs_f64()));
        }
        if now - self.pinged >= PING_INTERVAL {
            self.pinged = now;
            self.order_all(&AgentOrder::Ping);
        }
    }

    /// Stops this process until it is continued.
    fn pause(&mut self) {
        self.order_all(&AgentOrder::Pause(true));
        // ssh needs time to take the message: no answer tells when it has.
        std::thread::sleep(PAUSE_FLUSH);
        let _ = kill_process(getpid(), Signal::STOP);
        // The signal takes time to stop every thread: this thread must not go on before it has.
        std::thread::sleep(PAUSE_FLUSH);
        self.agents.iter().filter_map(|agent| agent.channel.as_ref()).for_each(AgentChannel::forgive);
        self.order_all(&AgentOrder::Pause(false));
    }

    fn take(&mut self, event: AgentEvent) {
        match event {
            AgentEvent::Launched(number, Ok(session)) => {
                let (sender, routes) = (self.sender.clone(), Arc::clone(&self.routes));
                let options = &self.request.options;
                let fabric = matches!(options.transport, None | Some(HopTransport::Rdma));
                self.agents[number].channel = Some(AgentChannel::new(number, session, sender, routes));
                self.agents[number].order(AgentOrder::Hello { silence: options.silence, fabric });
            }
            // This side gave the agent up, for a reason that is already known.
            AgentEvent::Launched(_, Err(Error::Cancelled)) => {}
            AgentEvent::Launched(_, Err(error)) => self.fail(PipelineTrouble::SetUp(error.to_string()), true),
            // Events of an agent that was given up do not count.
            AgentEvent::Lost(number, _) | AgentEvent::Report(number, _) if self.agents[number].is_lost => {}
            AgentEvent::Lost(number, why) => {
                let channel = self.agents[number].channel.as_mut();
                let why = why.or_else(|| Some(channel?.why_lost()));
                self.lose(number, why.unwrap_or_default());
            }
            AgentEvent::Report(number, report) if !self.is_its_own(number, &report) => {
                self.lose(number, "its agent reports on what is another's".to_owned());
            }
            AgentEvent::Report(number, report) => self.hear(number, report),
        }
    }

    fn order_all(&self, order: &AgentOrder) {
        self.agents.iter().for_each(|agent| agent.order(order.clone()));
    }

    fn start(&mut self) {
        for number in 0..self.agents.len() {
            let carrier = |hop| self.joined.get(&hop).map(|(carrier, _)| carrier.clone());
            let AgentPart { commands, movers } = self.plan.part(number, carrier);
            let agent = &self.agents[number];
            let known = |mover: &Mover| {
                (mover.mover, KnownMover { agent: number, figures: MoverFigures::default(), result: None })
            };
            self.movers.extend(movers.iter().map(known));
            commands.into_iter().for_each(|command| agent.order(AgentOrder::Command(command)));
            agent.order(AgentOrder::Start { movers, figures: self.request.options.progress });
        }
        self.started = Some(Instant::now());
    }

    /// Orders all agents to kill everything, and waits until they have.
    fn abort(&mut self) {
        self.is_aborting = true;
        self.order_all(&AgentOrder::Abort);
        let deadline = Instant::now() + TERM_GRACE + GONE_LIMIT;
        while Instant::now() < deadline
            && !self.agents.iter().all(|agent| agent.channel.is_none() || agent.is_gone)
        {
            let Ok(event) = self.events.recv_timeout(GLANCE) else { continue };
            let is_new = matches!(event, AgentEvent::Launched(..));
            self.take(event);
            if is_new {
                self.order_all(&AgentOrder::Abort);
            }
        }
    }

    fn hop_figures(&self) -> Vec<HopFigures> {
        // There are no figures before the start.
        let Some(started) = self.started else { return Vec::new() };
        let elapsed = started.elapsed().as_secs_f64();
        self.plan.legs.iter().map(|leg| self.figures_of(leg, elapsed)).collect()
    }

    fn figures_of(&self, leg: &plan::StreamLeg, elapsed: f64) -> HopFigures {
        let seconds = |nanos: u64| Duration::from_nanos(nanos).as_secs_f64();
        let known = |mover: Option<u32>| self.movers.get(&mover?);
        let (sender, receiver) = (known(leg.sender.map(|(mover, _)| mover)), known(leg.receiver));
        let (transport, digest_kind) = match leg.hop.and_then(|hop| self.joined.get(&hop)) {
            Some((HopCarrier::Connection(options), text)) => (text.clone(), options.digest),
            Some((HopCarrier::Pipe, text)) => (text.clone(), DigestKind::Off),
            None if sender.is_some() => ("here".to_owned(), DigestKind::Off),
            None => ("pipe".to_owned(), DigestKind::Off),
        };
        let first = sender.or(receiver);
        let now = first.map(|mover| mover.figures).unwrap_or_default();
        let result = first.and_then(|mover| mover.result.as_ref());
        // A mover that sends counts the bytes it sends, over all of its outlets; one that only receives counts the
        // bytes it receives.
        let sends = |mover: u32| {
            let is_its = |leg: &plan::StreamLeg| {
                leg.hop.is_some() && leg.sender.is_some_and(|(sender, _)| sender == mover)
            };
            self.plan.legs.iter().any(is_its)
        };
        let counts_wire = receiver.filter(|_| !leg.receiver.is_some_and(sends)).or(first);
        let ends = [sender, receiver].into_iter().flatten().filter_map(|mover| mover.result.as_ref());
        HopFigures {
            from: self.plan.name(leg.from).to_owned(),
            to: self.plan.name(leg.to).to_owned(),
            transport,
            is_measured: first.is_some(),
            bytes: now.bytes,
            wire_bytes: counts_wire.map_or(0, |mover| mover.figures.wire_bytes),
            seconds: result.map_or(elapsed, |result| seconds(result.took_ns)),
            reader_wait: seconds(now.inlet_wait_ns),
            network_wait: seconds(now.outlet_wait_ns),
            writer_wait: receiver.map_or(0.0, |mover| seconds(mover.figures.outlet_wait_ns)),
            // The sum of no terms would be a negative zero.
            cpu: ends.fold(0.0, |sum, result| sum + seconds(result.cpu_ns)),
            total: leg.file.and_then(|job| self.lengths.get(&job)).copied(),
            digest: result.and_then(|result| Some(StreamDigest::new(digest_kind, result.digest.clone()?))),
        }
    }
}
