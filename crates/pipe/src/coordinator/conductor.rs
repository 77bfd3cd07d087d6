//! The conductor: a thread that starts agents, joins hops, starts the stages, and waits for their ends.

mod endings;
mod joining;
mod reports;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, sync_channel};
use std::thread::Scope;
use std::time::{Duration, Instant};

use rustix::process::{Signal, getpid, kill_process};

use self::endings::PipelineTrouble;
use self::joining::Joining;
use super::agents::{AgentChannel, AgentEvent, RelayRoutes};
use super::{HopFigures, HopTransport, Launcher, Observer, PipelineRequest, PipelineSummary};
use crate::control::{AgentOrder, ControlMessage, Hello, MoverResult, Status};
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
    agents: Vec<Option<AgentChannel>>,
    hellos: Vec<Option<Hello>>,
    joinings: HashMap<u32, Joining>,
    joined: HashMap<u32, (HopCarrier, String)>,
    is_prepared: Vec<bool>,
    lengths: HashMap<u32, u64>,
    /// The agent of each mover.
    movers: HashMap<u32, usize>,
    moved: HashMap<u32, MoverResult>,
    /// The stages that stopped reading before the stream's end, while others went on.
    left: HashSet<u32>,
    figures: HashMap<u32, MoverFigures>,
    statuses: Vec<Option<Status>>,
    /// The stages, in the order of their ends.
    ended: Vec<u32>,
    is_gone: Vec<bool>,
    /// The number of processes that each agent has reported as impossible to end.
    spared: Vec<usize>,
    troubles: Vec<PipelineTrouble>,
    /// When to stop waiting for a better explanation.
    abort_at: Option<Instant>,
    is_aborting: bool,
    pinged: Instant,
    ticked: Instant,
    started: Option<Instant>,
    routes: RelayRoutes,
}

impl<'a> Conductor<'a> {
    pub fn new(
        plan: PipelinePlan,
        request: &'a PipelineRequest,
        notices: Sender<Notice>,
        interrupted: Arc<AtomicBool>,
        stopped: Arc<AtomicBool>,
    ) -> Self {
        let (agents, jobs) = (plan.agents.len(), plan.jobs.len());
        Self {
            plan,
            request,
            notices,
            progress_waits: Arc::default(),
            interrupted,
            stopped,
            agents: std::iter::repeat_with(|| None).take(agents).collect(),
            hellos: vec![None; agents],
            joinings: HashMap::new(),
            joined: HashMap::new(),
            is_prepared: vec![false; agents],
            lengths: HashMap::new(),
            movers: HashMap::new(),
            moved: HashMap::new(),
            left: HashSet::new(),
            figures: HashMap::new(),
            statuses: vec![None; jobs],
            ended: Vec::new(),
            is_gone: vec![false; agents],
            spared: vec![0; agents],
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
        let (sender, events) = sync_channel(EVENTS_MAX);
        let is_given_up = Arc::new(AtomicBool::new(false));
        for (number, host) in self.plan.agents.iter().cloned().enumerate() {
            let (sender, is_given_up) = (sender.clone(), Arc::clone(&is_given_up));
            scope.spawn(move || {
                let launched = launcher.launch(host.as_deref(), &is_given_up);
                let _ = sender.send(AgentEvent::Launched(number, launched));
            });
        }
        let went_well = self.conduct(&events, &sender);
        let ended = Instant::now();
        if !went_well {
            // Loops read the flag again and again; it guards no other memory.
            is_given_up.store(true, Ordering::Relaxed);
            self.abort(&events, &sender);
        }
        lock(&self.routes).clear();
        for agent in self.agents.iter().flatten() {
            agent.order(AgentOrder::End);
        }
        let mut summary = PipelineSummary { hops: self.hop_figures(), ..PipelineSummary::default() };
        endings::conclude(&self.plan, &self.troubles, &self.statuses, &self.ended, &mut summary);
        let started = self.started.unwrap_or(ended);
        summary.seconds = ((started - begin).as_secs_f64(), (ended - started).as_secs_f64());
        // Each end may take a while, so all agents end at once.
        for agent in self.agents.drain(..).flatten() {
            scope.spawn(move || agent.end());
        }
        Ok(summary)
    }

    /// Runs the pipeline. Returns true if everything succeeded.
    fn conduct(&mut self, events: &Receiver<AgentEvent>, sender: &SyncSender<AgentEvent>) -> bool {
        self.until(events, sender, |this| this.hellos.iter().all(Option::is_some))
            && self.join()
            && self.until(events, sender, |this| {
                this.is_prepared.iter().all(|is| *is) && this.joined.len() == this.plan.hops.len()
            })
            && self.start()
            && self.until(events, sender, |this| this.is_all_over())
    }

    /// Takes events until `is_done` returns true, or until something has failed.
    fn until(
        &mut self,
        events: &Receiver<AgentEvent>,
        sender: &SyncSender<AgentEvent>,
        is_done: impl Fn(&Self) -> bool,
    ) -> bool {
        loop {
            match self.abort_at {
                Some(at) if Instant::now() >= at => return false,
                None if is_done(self) => return true,
                _ => {}
            }
            match events.recv_timeout(GLANCE) {
                Ok(event) => self.take(event, sender),
                Err(RecvTimeoutError::Timeout) => {}
                // This cannot happen: this side holds a sender itself.
                Err(RecvTimeoutError::Disconnected) => return false,
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
        let silence = self.request.options.silence;
        let mut silent = Vec::new();
        for (number, agent) in self.agents.iter().enumerate() {
            let Some(agent) = agent.as_ref().filter(|agent| !agent.is_lost) else { continue };
            if was_stopped {
                agent.forgive();
            }
            // An agent of another host has already said that it is ready. The agent of this host may still be
            // starting, which only the load of this machine can delay.
            let is_remote = self.plan.agents.get(number).is_some_and(Option::is_some);
            let has_spoken = is_remote || self.hellos.get(number).is_some_and(Option::is_some);
            if has_spoken && agent.silence() > silence {
                silent.push((number, agent.silence()));
            }
        }
        for (number, time) in silent {
            self.lose(number, format!("it has been silent for {:.1} s", time.as_secs_f64()));
        }
        if now - self.pinged >= PING_INTERVAL {
            self.pinged = now;
            self.agents.iter().flatten().for_each(|agent| agent.order(AgentOrder::Ping));
        }
    }

    /// Stops this process until it is continued.
    fn pause(&mut self) {
        self.agents.iter().flatten().for_each(|agent| agent.order(AgentOrder::Pause(true)));
        // ssh needs time to take the message: no answer tells when it has.
        std::thread::sleep(PAUSE_FLUSH);
        let _ = kill_process(getpid(), Signal::STOP);
        // The signal takes time to stop every thread: this thread must not go on before it has.
        std::thread::sleep(PAUSE_FLUSH);
        self.agents.iter().flatten().for_each(|agent| {
            agent.forgive();
            agent.order(AgentOrder::Pause(false));
        });
    }

    fn take(&mut self, event: AgentEvent, sender: &SyncSender<AgentEvent>) {
        match event {
            AgentEvent::Launched(number, Ok(session)) => {
                let agent = AgentChannel::new(number, session, sender.clone(), Arc::clone(&self.routes));
                let options = &self.request.options;
                let fabric = matches!(options.transport, None | Some(HopTransport::Rdma));
                agent.order(AgentOrder::Hello { silence: options.silence, fabric });
                if let Some(slot) = self.agents.get_mut(number) {
                    *slot = Some(agent);
                }
            }
            // This side gave the agent up, for a reason that is already known.
            AgentEvent::Launched(_, Err(Error::Cancelled)) => {}
            AgentEvent::Launched(_, Err(error)) => self.fail(PipelineTrouble::SetUp(error.to_string()), true),
            AgentEvent::Lost(number, why) => {
                let agent = self.agents.get_mut(number).and_then(Option::as_mut);
                let agent = agent.filter(|agent| !agent.is_lost);
                let why = agent.map(|agent| why.unwrap_or_else(|| agent.why_lost()));
                why.into_iter().for_each(|why| self.lose(number, why));
            }
            // Reports of an agent that was given up do not count.
            AgentEvent::Report(number, _) if self.is_lost(number) => {}
            AgentEvent::Report(number, report) if !self.is_its_own(number, &report) => {
                self.lose(number, "its agent reports on what is another's".to_owned());
            }
            AgentEvent::Report(number, report) => self.hear(number, report),
        }
    }

    fn is_lost(&self, number: usize) -> bool {
        self.agents.get(number).and_then(Option::as_ref).is_none_or(|agent| agent.is_lost)
    }

    fn order(&self, number: usize, order: AgentOrder) {
        if let Some(Some(agent)) = self.agents.get(number) {
            agent.order(order);
        }
    }

    fn start(&mut self) -> bool {
        for number in 0..self.agents.len() {
            let carrier = |hop| self.joined.get(&hop).map(|(carrier, _)| carrier.clone());
            let AgentPart { commands, movers } = self.plan.part(number, carrier);
            self.movers.extend(movers.iter().map(|mover| (mover.mover, number)));
            for command in commands {
                self.order(number, AgentOrder::Command(command));
            }
            self.order(number, AgentOrder::Start { movers, figures: self.request.options.progress });
        }
        self.started = Some(Instant::now());
        true
    }

    /// Orders all agents to kill everything, and waits until they have.
    fn abort(&mut self, events: &Receiver<AgentEvent>, sender: &SyncSender<AgentEvent>) {
        self.is_aborting = true;
        let abort =
            |this: &Self| this.agents.iter().flatten().for_each(|agent| agent.order(AgentOrder::Abort));
        abort(self);
        let deadline = Instant::now() + TERM_GRACE + GONE_LIMIT;
        let is_over = |this: &Self| {
            this.agents.iter().zip(&this.is_gone).all(|(agent, is_gone)| agent.is_none() || *is_gone)
        };
        while Instant::now() < deadline && !is_over(self) {
            match events.recv_timeout(GLANCE) {
                Ok(event @ AgentEvent::Launched(..)) => {
                    self.take(event, sender);
                    abort(self);
                }
                Ok(event) => self.take(event, sender),
                Err(_) => {}
            }
        }
    }
}

impl Conductor<'_> {
    pub(super) fn hop_figures(&self) -> Vec<HopFigures> {
        // There are no figures before the start.
        let Some(started) = self.started else { return Vec::new() };
        let elapsed = started.elapsed().as_secs_f64();
        self.plan.legs.iter().map(|leg| self.figures_of(leg, elapsed)).collect()
    }

    pub(super) fn figures_of(&self, leg: &plan::StreamLeg, elapsed: f64) -> HopFigures {
        let seconds = |nanos: u64| Duration::from_nanos(nanos).as_secs_f64();
        let sender = leg.sender.map(|(mover, _)| mover).filter(|mover| self.movers.contains_key(mover));
        let receiver = leg.receiver.filter(|mover| self.movers.contains_key(mover));
        let live = |mover: Option<u32>| {
            mover.and_then(|mover| self.figures.get(&mover)).copied().unwrap_or_default()
        };
        let done = |mover: Option<u32>| mover.and_then(|mover| self.moved.get(&mover));
        let (transport, digest_kind) = match leg.hop.and_then(|hop| self.joined.get(&hop)) {
            Some((HopCarrier::Connection(options), text)) => (text.clone(), options.digest),
            Some((HopCarrier::Pipe, text)) => (text.clone(), DigestKind::Off),
            None if sender.is_some() => ("here".to_owned(), DigestKind::Off),
            None => ("pipe".to_owned(), DigestKind::Off),
        };
        let first = sender.or(receiver);
        let now = live(first);
        // A mover that sends counts the bytes it sends, over all of its outlets; one that only receives counts the
        // bytes it receives.
        let sends = |mover: u32| {
            let is_its = |leg: &plan::StreamLeg| {
                leg.hop.is_some() && leg.sender.is_some_and(|(sender, _)| sender == mover)
            };
            self.plan.legs.iter().any(is_its)
        };
        let counts_wire = receiver.filter(|receiver| !sends(*receiver)).or(first);
        let mut figures = HopFigures {
            from: self.plan.name(leg.from).to_owned(),
            to: self.plan.name(leg.to).to_owned(),
            transport,
            is_measured: first.is_some(),
            bytes: now.bytes,
            wire_bytes: done(counts_wire).map_or(live(counts_wire).wire_bytes, |result| result.wire_bytes),
            seconds: elapsed,
            reader_wait: seconds(now.inlet_wait_ns),
            network_wait: seconds(now.outlet_wait_ns),
            writer_wait: seconds(live(receiver).outlet_wait_ns),
            cpu: 0.0,
            total: leg.file.and_then(|job| self.lengths.get(&job)).copied(),
            digest: None,
        };
        if let Some(result) = done(first) {
            figures.bytes = result.bytes;
            figures.seconds = seconds(result.took_ns);
            figures.reader_wait = seconds(result.inlet_wait_ns);
            figures.network_wait = seconds(result.outlet_wait_ns);
            figures.digest = result.digest.clone().map(|digest| (digest_kind, digest));
        }
        figures.writer_wait =
            done(receiver).map_or(figures.writer_wait, |result| seconds(result.outlet_wait_ns));
        let ends = [sender, receiver].into_iter().filter_map(done);
        // The sum of no terms would be a negative zero.
        figures.cpu = ends.fold(0.0, |sum, result| sum + seconds(result.cpu_ns));
        figures
    }
}
