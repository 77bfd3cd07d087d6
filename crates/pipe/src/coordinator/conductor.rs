//! The thread that conducts: starts agents, joins hops, starts the stages, waits for their ends.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender, SyncSender};
use std::sync::{Arc, PoisonError};
use std::thread::Scope;
use std::time::{Duration, Instant};

use super::agents::{Agent, Event, Routes};
use super::joining::{Ends, Joined, Joining, Step, Way};
use super::outcome::{self, Trouble};
use super::{HopFigures, Launcher, Observer, Request, Sealing, Summary, Transport};
use crate::Error;
use crate::control::{Hello, Message, MoverResult, Order, Report, Status};
use crate::limits::{PING_INTERVAL, TERM_GRACE};
use crate::mover::{DigestKind, OnDead};
use crate::plan::{self, Carrier, Plan};

/// Between two looks at the clock and at Ctrl-C.
const GLANCE: Duration = Duration::from_millis(20);
/// After a failure, how long a better explanation of it may take to come.
const CAUSE_LIMIT: Duration = Duration::from_millis(300);
/// Longer than agents take to kill what they have started.
const GONE_LIMIT: Duration = Duration::from_millis(1000);

/// Something for the observer.
pub enum Notice {
    Note(String),
    Warn(String),
    Line { host: String, text: String, bytes: u64, credit: SyncSender<Message<Order>> },
    Progress(Vec<HopFigures>),
}

impl Notice {
    /// Tells it; blocks as long as the observer does.
    pub fn tell(self, observer: &mut dyn Observer) {
        match self {
            Self::Note(text) => observer.note(&text),
            Self::Warn(text) => observer.warn(&text),
            Self::Progress(hops) => observer.progress(&hops),
            Self::Line { host, text, bytes, credit } => {
                observer.line(&host, &text);
                // An agent that is gone needs none.
                let _ = credit.send(Message::Word(Order::Credit { hop: None, bytes }));
            }
        }
    }
}

/// All that is known of a pipeline.
pub struct Conductor<'a> {
    plan: Plan,
    request: &'a Request,
    notices: Sender<Notice>,
    interrupted: Arc<AtomicBool>,
    agents: Vec<Option<Agent>>,
    hellos: Vec<Option<Hello>>,
    joinings: HashMap<u32, Joining>,
    joined: HashMap<u32, (Carrier, String)>,
    is_prepared: Vec<bool>,
    lengths: HashMap<u32, u64>,
    /// Which agent has which movers.
    movers: HashMap<u32, usize>,
    moved: HashMap<u32, MoverResult>,
    figures: HashMap<u32, [u64; 4]>,
    statuses: Vec<Option<Status>>,
    is_gone: Vec<bool>,
    troubles: Vec<Trouble>,
    /// When to give up waiting for a better explanation.
    abort_at: Option<Instant>,
    pinged: Instant,
    ticked: Instant,
    started: Option<Instant>,
    routes: Routes,
}

impl<'a> Conductor<'a> {
    pub fn new(
        plan: Plan,
        request: &'a Request,
        notices: Sender<Notice>,
        interrupted: Arc<AtomicBool>,
    ) -> Self {
        let (agents, jobs) = (plan.agents.len(), plan.jobs.len());
        Self {
            plan,
            request,
            notices,
            interrupted,
            agents: std::iter::repeat_with(|| None).take(agents).collect(),
            hellos: vec![None; agents],
            joinings: HashMap::new(),
            joined: HashMap::new(),
            is_prepared: vec![false; agents],
            lengths: HashMap::new(),
            movers: HashMap::new(),
            moved: HashMap::new(),
            figures: HashMap::new(),
            statuses: vec![None; jobs],
            is_gone: vec![false; agents],
            troubles: Vec::new(),
            abort_at: None,
            pinged: Instant::now(),
            ticked: Instant::now(),
            started: None,
            routes: Routes::default(),
        }
    }

    /// To the end.
    pub fn run<'scope>(
        mut self,
        scope: &'scope Scope<'scope, '_>,
        launcher: &'scope dyn Launcher,
    ) -> Result<Summary, Error> {
        let begin = Instant::now();
        let (sender, events) = mpsc::channel();
        for (number, host) in self.plan.agents.iter().cloned().enumerate() {
            let sender = sender.clone();
            scope.spawn(move || {
                let _ = sender.send(Event::Launched(number, launcher.launch(host.as_deref())));
            });
        }
        let went_well = self.conduct(&events, &sender);
        let ended = Instant::now();
        if !went_well {
            self.abort(&events, &sender);
        }
        self.routes.lock().unwrap_or_else(PoisonError::into_inner).clear();
        for agent in self.agents.iter().flatten() {
            agent.order(Order::End);
        }
        let mut summary = Summary { hops: self.ways(), ..Summary::default() };
        outcome::conclude(&self.plan, &self.troubles, &self.statuses, &mut summary);
        let started = self.started.unwrap_or(ended);
        summary.seconds = ((started - begin).as_secs_f64(), (ended - started).as_secs_f64());
        self.agents.drain(..).flatten().for_each(Agent::end);
        Ok(summary)
    }

    /// Whether all of it went well.
    fn conduct(&mut self, events: &Receiver<Event>, sender: &Sender<Event>) -> bool {
        self.until(events, sender, |this| this.hellos.iter().all(Option::is_some))
            && self.join()
            && self.until(events, sender, |this| {
                this.is_prepared.iter().all(|is| *is) && this.joined.len() == this.plan.hops.len()
            })
            && self.start()
            && self.until(events, sender, |this| this.is_all_over())
    }

    /// Takes events until `is_done`, or until something has failed.
    fn until(
        &mut self,
        events: &Receiver<Event>,
        sender: &Sender<Event>,
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
                // This side holds a sender itself.
                Err(RecvTimeoutError::Disconnected) => return false,
            }
            self.tick();
        }
    }

    fn tick(&mut self) {
        // Set by a signal handler; nothing else hangs on it.
        if self.interrupted.load(Ordering::Relaxed) && !self.troubles.contains(&Trouble::Interrupted) {
            self.troubles.push(Trouble::Interrupted);
            self.abort_at = Some(Instant::now());
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
            let greeted = self.hellos.get(number).is_some_and(Option::is_some);
            if greeted && agent.silence() > silence {
                silent.push((number, agent.silence()));
            }
        }
        for (number, time) in silent {
            self.lose(number, format!("it has been silent for {:.1} s", time.as_secs_f64()));
        }
        if now - self.pinged >= PING_INTERVAL {
            self.pinged = now;
            self.agents.iter().flatten().for_each(|agent| agent.order(Order::Ping));
        }
    }

    fn take(&mut self, event: Event, sender: &Sender<Event>) {
        match event {
            Event::Launched(number, Ok(session)) => {
                let agent = Agent::new(number, session, sender.clone(), Arc::clone(&self.routes));
                let options = &self.request.options;
                let fabric = matches!(options.transport, None | Some(Transport::Rdma));
                agent.order(Order::Hello { silence: options.silence, fabric });
                if let Some(slot) = self.agents.get_mut(number) {
                    *slot = Some(agent);
                }
            }
            Event::Launched(_, Err(error)) => self.fail(Trouble::SetUp(error.to_string()), true),
            Event::Lost(number) => {
                let agent = self.agents.get_mut(number).and_then(Option::as_mut);
                let why = agent.filter(|agent| !agent.is_lost).map(Agent::why_lost);
                why.into_iter().for_each(|why| self.lose(number, why));
            }
            Event::Report(number, report) => self.hear(number, report),
        }
    }

    fn hear(&mut self, number: usize, report: Report) {
        match report {
            Report::Hello(hello) => {
                if let Some(slot) = self.hellos.get_mut(number) {
                    *slot = Some(*hello);
                }
            }
            Report::Prepared { lengths } => {
                let known = lengths.into_iter().filter_map(|(job, length)| Some((job, length?)));
                self.lengths.extend(known);
                self.is_prepared.iter_mut().skip(number).take(1).for_each(|is| *is = true);
            }
            Report::Ended { stage, status } => self.stage_ended(number, stage, status),
            Report::Moved { mover, result } => self.mover_ended(mover, result),
            Report::Line { stage, bytes, text } => {
                let Some(agent) = self.agents.get(number).and_then(Option::as_ref) else { return };
                let job = usize::try_from(stage).ok().and_then(|id| self.plan.jobs.get(id));
                let host = self.plan.name(job.map_or(number, |job| job.agent)).to_owned();
                let _ = self.notices.send(Notice::Line { host, text, bytes, credit: agent.sender() });
            }
            Report::Figures(figures) => {
                self.figures.extend(figures);
                let _ = self.notices.send(Notice::Progress(self.ways()));
            }
            Report::Failed(why) => {
                self.fail(Trouble::SetUp(format!("{}: {why}", self.plan.name(number))), true);
            }
            Report::Gone => self.is_gone.iter_mut().skip(number).take(1).for_each(|is| *is = true),
            Report::Ping | Report::Started { .. } | Report::Credit { .. } | Report::RelayEnd { .. } => {}
            Report::Listening { hop, .. }
            | Report::Half { hop, .. }
            | Report::Doorway { hop, .. }
            | Report::Connected { hop, .. }
            | Report::Unreachable { hop, .. } => {
                self.step(hop, |joining, ends| joining.take(number, report, ends))
            }
        }
    }

    /// A stage that exits with whatever status is no reason to end the others: so shells have it.
    fn stage_ended(&mut self, number: usize, job: u32, status: Status) {
        if self.abort_at.is_some() && !matches!(status, Status::Failed(_)) {
            // It may have been killed by now.
            return;
        }
        if let Status::Failed(why) = &status {
            let trouble = Trouble::Stage { job, why: why.clone() };
            let is_branch = self.is_expendable(number) && self.started.is_some();
            self.fail_or_warn(trouble, is_branch);
        }
        if let Some(slot) = usize::try_from(job).ok().and_then(|job| self.statuses.get_mut(job)) {
            *slot = Some(status);
        }
    }

    fn mover_ended(&mut self, mover: u32, result: MoverResult) {
        let number = self.movers.get(&mover).copied();
        let continues = self.request.options.on_dead == OnDead::Continue;
        let some_left = result.outlets.iter().any(Result::is_ok) && result.inlet.is_ok();
        let errors = result
            .inlet
            .as_ref()
            .err()
            .into_iter()
            .chain(result.outlets.iter().filter_map(|end| end.as_ref().err()));
        let why = errors.map(|why| self.way_of(mover, why)).next();
        self.moved.insert(mover, result);
        if let Some(why) = why {
            let is_branch =
                number.is_some_and(|number| self.is_expendable(number)) || (continues && some_left);
            self.fail_or_warn(Trouble::Data(why), is_branch);
        }
    }

    fn way_of(&self, mover: u32, why: &str) -> String {
        let is_its = |way: &&plan::Way| {
            way.receiver == Some(mover) || way.sender.is_some_and(|(sender, _)| sender == mover)
        };
        match self.plan.ways.iter().find(is_its) {
            Some(way) if way.hop.is_some() => {
                format!("{} -> {}: {why}", self.plan.name(way.from), self.plan.name(way.to))
            }
            Some(way) => format!("{}: {why}", self.plan.name(way.from)),
            None => why.to_owned(),
        }
    }

    fn lose(&mut self, number: usize, why: String) {
        let is_gone = self.is_gone.get(number).copied().unwrap_or(false);
        if let Some(agent) = self.agents.get_mut(number).and_then(Option::as_mut) {
            agent.is_lost = true;
        }
        self.is_gone.iter_mut().skip(number).take(1).for_each(|is| *is = true);
        if is_gone || self.has_ended(number) {
            return;
        }
        let text = format!("{}: {why}", self.plan.name(number));
        let is_branch = self.is_expendable(number) && self.started.is_some();
        if is_branch {
            let movers = self.movers.iter().filter(|(_, agent)| **agent == number).map(|(mover, _)| *mover);
            for mover in movers.collect::<Vec<_>>() {
                self.moved.entry(mover).or_insert_with(|| nothing_known(&why));
            }
            for (job, status) in self.plan.jobs.iter().zip(&mut self.statuses) {
                if job.agent == number {
                    status.get_or_insert(Status::Failed(why.clone()));
                }
            }
        }
        self.fail_or_warn(Trouble::Lost(text), is_branch);
    }

    /// Whether the others can go on without it: one of several hosts of the last stage, fed by a star.
    fn is_expendable(&self, number: usize) -> bool {
        let last = self.plan.jobs.last().map_or(0, |job| job.stage);
        let several = self.plan.jobs.iter().filter(|job| job.stage == last).count() > 1;
        let has_no_other = self.plan.jobs.iter().all(|job| job.agent != number || job.stage == last);
        let is_here = self.plan.agents.get(number).is_some_and(Option::is_none);
        self.request.options.on_dead == OnDead::Continue && several && has_no_other && !is_here
    }

    fn fail_or_warn(&mut self, trouble: Trouble, is_branch: bool) {
        self.fail(trouble, false);
        if is_branch {
            self.abort_at = None;
        }
    }

    fn fail(&mut self, trouble: Trouble, at_once: bool) {
        let now = Instant::now();
        let at = if at_once || self.started.is_none() { now } else { now + CAUSE_LIMIT };
        self.abort_at = Some(self.abort_at.map_or(at, |earlier| earlier.min(at)));
        self.troubles.push(trouble);
    }

    fn has_ended(&self, number: usize) -> bool {
        let stages = self.plan.jobs.iter().zip(&self.statuses);
        let mut movers = self.movers.iter().filter(|(_, agent)| **agent == number);
        self.started.is_some()
            && stages.filter(|(job, _)| job.agent == number).all(|(_, status)| status.is_some())
            && movers.all(|(mover, _)| self.moved.contains_key(mover))
    }

    fn is_all_over(&self) -> bool {
        (0..self.agents.len()).all(|number| self.has_ended(number))
    }

    fn order(&self, number: usize, order: Order) {
        if let Some(Some(agent)) = self.agents.get(number) {
            agent.order(order);
        }
    }

    fn join(&mut self) -> bool {
        for number in 0..self.agents.len() {
            let jobs = self.plan.jobs.iter().zip(0_u32..);
            let files: Vec<_> = jobs
                .filter(|(job, _)| job.agent == number)
                .filter_map(|(job, id)| job.file.clone().map(|(path, mode)| (id, path, mode)))
                .collect();
            match files.is_empty() {
                true => self.is_prepared.iter_mut().skip(number).take(1).for_each(|is| *is = true),
                false => self.order(number, Order::Prepare { files }),
            }
        }
        for hop in self.plan.hops.clone() {
            let made = self.with_ends(hop.number, |ends| Joining::new(hop, ends));
            match made {
                Some(Ok(joining)) => {
                    self.joinings.insert(hop.number, joining);
                    self.step(hop.number, Joining::begin);
                }
                Some(Err(error)) => self.fail(Trouble::SetUp(error.to_string()), true),
                None => {}
            }
        }
        true
    }

    fn step(&mut self, hop: u32, step: impl FnOnce(&mut Joining, &Ends<'_>) -> Step) {
        let Some(mut joining) = self.joinings.remove(&hop) else { return };
        let step = self.with_ends(hop, |ends| step(&mut joining, ends));
        self.joinings.insert(hop, joining);
        match step {
            Some(Step::Orders(orders)) => {
                for (number, order) in orders {
                    if matches!(order, Order::Relay { .. }) {
                        self.route(hop);
                    }
                    self.order(number, order);
                }
            }
            Some(Step::Joined(joined)) => self.join_hop(hop, joined),
            Some(Step::Failed(tried)) => {
                let ends = self.plan.hops.iter().find(|known| known.number == hop);
                let name = |agent: Option<usize>| agent.map_or("?", |agent| self.plan.name(agent));
                let (from, to) = (name(ends.map(|hop| hop.from)), name(ends.map(|hop| hop.to)));
                let text = format!("no data can go from {from} to {to}. {}", tried.join(". "));
                self.fail(Trouble::SetUp(text), true);
            }
            None => {}
        }
    }

    fn with_ends<T>(&self, hop: u32, with: impl FnOnce(&Ends<'_>) -> T) -> Option<T> {
        let hop = self.plan.hops.iter().find(|known| known.number == hop)?;
        let hello = |agent: usize| self.hellos.get(agent).and_then(Option::as_ref);
        let name = |agent: usize| self.plan.agents.get(agent).and_then(Option::as_deref);
        let (from, to) = (hello(hop.from)?, hello(hop.to)?);
        let names = [name(hop.from), name(hop.to)];
        Some(with(&Ends { from, to, names, options: &self.request.options }))
    }

    /// Data of this hop go through here.
    fn route(&self, hop: u32) {
        let Some(ends) = self.plan.hops.iter().find(|known| known.number == hop) else { return };
        let sender = |agent: usize| self.agents.get(agent).and_then(Option::as_ref).map(Agent::sender);
        let mut routes = self.routes.lock().unwrap_or_else(PoisonError::into_inner);
        for (one, other) in [(ends.from, ends.to), (ends.to, ends.from)] {
            sender(other).into_iter().for_each(|sender| {
                routes.insert((one, hop), sender);
            });
        }
    }

    fn join_hop(&mut self, hop: u32, joined: Joined) {
        let options = &self.request.options;
        let Some(ends) = self.plan.hops.iter().find(|known| known.number == hop).copied() else { return };
        let is_inside = self.with_ends(hop, |ends| ends.from.place.is_same_network(&ends.to.place));
        let is_tcp = matches!(joined.way, Way::Tcp | Way::TcpReversed);
        let sealed = match (joined.way, options.sealing) {
            // ssh encrypts, and a pipe leaves nothing.
            (Way::Pipe | Way::Relay, _) | (_, Sealing::Never) => false,
            (_, Sealing::Always) => true,
            (Way::Fabric, Sealing::Default) => false,
            (Way::Tcp | Way::TcpReversed, Sealing::Default) => is_inside != Some(true),
        };
        let (from, to) = (self.plan.name(ends.from), self.plan.name(ends.to));
        for why in &joined.tried {
            let _ = self.notices.send(Notice::Note(format!("{from} -> {to}: not by {why}")));
        }
        let carrier = match joined.way {
            Way::Pipe => Carrier::Pipe,
            _ => Carrier::Connection(plan::hop_options(options, sealed, options.compression)),
        };
        let secrecy = match (joined.way, sealed) {
            (Way::Pipe, _) => "",
            (Way::Relay, _) => ", encrypted by ssh",
            (_, true) => ", encrypted",
            (_, false) => ", not encrypted",
        };
        let text = format!("{}{secrecy}", joined.description);
        let _ = self.notices.send(Notice::Note(format!("{from} -> {to}: {text}")));
        if is_tcp && !sealed && is_inside != Some(true) {
            let warning = format!("{from} -> {to}: over TCP in the clear, as --insecure says");
            let _ = self.notices.send(Notice::Warn(warning));
        }
        self.joined.insert(hop, (carrier, text));
    }

    fn start(&mut self) -> bool {
        for number in 0..self.agents.len() {
            let carrier = |hop| self.joined.get(&hop).map(|(carrier, _)| carrier.clone());
            let part = self.plan.part(number, carrier, self.request.options.progress);
            self.movers.extend(Plan::movers(&part).into_iter().map(|mover| (mover, number)));
            self.order(number, Order::Start(part));
        }
        self.started = Some(Instant::now());
        true
    }

    /// Has everything killed, and waits until it is.
    fn abort(&mut self, events: &Receiver<Event>, sender: &Sender<Event>) {
        let abort = |this: &Self| this.agents.iter().flatten().for_each(|agent| agent.order(Order::Abort));
        abort(self);
        let deadline = Instant::now() + TERM_GRACE + GONE_LIMIT;
        let is_over = |this: &Self| {
            this.agents.iter().zip(&this.is_gone).all(|(agent, is_gone)| agent.is_none() || *is_gone)
        };
        while Instant::now() < deadline && !is_over(self) {
            match events.recv_timeout(GLANCE) {
                Ok(event @ Event::Launched(..)) => {
                    self.take(event, sender);
                    abort(self);
                }
                Ok(event) => self.take(event, sender),
                Err(_) => {}
            }
        }
    }

    fn ways(&self) -> Vec<HopFigures> {
        let elapsed = self.started.map_or(0.0, |started| started.elapsed().as_secs_f64());
        self.plan.ways.iter().map(|way| self.figures_of(way, elapsed)).collect()
    }

    fn figures_of(&self, way: &plan::Way, elapsed: f64) -> HopFigures {
        let seconds = |nanos: u64| Duration::from_nanos(nanos).as_secs_f64();
        let sender = way.sender.map(|(mover, _)| mover).filter(|mover| self.movers.contains_key(mover));
        let receiver = way.receiver.filter(|mover| self.movers.contains_key(mover));
        let live = |mover: Option<u32>| {
            mover.and_then(|mover| self.figures.get(&mover)).copied().unwrap_or_default()
        };
        let done = |mover: Option<u32>| mover.and_then(|mover| self.moved.get(&mover));
        let (transport, digest_kind) = match way.hop.and_then(|hop| self.joined.get(&hop)) {
            Some((Carrier::Connection(options), text)) => (text.clone(), options.digest),
            Some((Carrier::Pipe, text)) => (text.clone(), DigestKind::Off),
            None if sender.is_some() => ("here".to_owned(), DigestKind::Off),
            None => ("pipe".to_owned(), DigestKind::Off),
        };
        let first = sender.or(receiver);
        let [bytes, wire_bytes, reader, network] = live(first);
        let mut figures = HopFigures {
            from: self.plan.name(way.from).to_owned(),
            to: self.plan.name(way.to).to_owned(),
            transport,
            is_measured: first.is_some(),
            bytes,
            wire_bytes,
            seconds: elapsed,
            reader_wait: seconds(reader),
            network_wait: seconds(network),
            writer_wait: seconds(live(receiver)[3]),
            cpu: 0.0,
            total: way.file.and_then(|job| self.lengths.get(&job)).copied(),
            digest: None,
        };
        if let Some(result) = done(first) {
            figures.bytes = result.bytes;
            figures.wire_bytes = result.wire_bytes;
            figures.seconds = seconds(result.took_ns);
            figures.reader_wait = seconds(result.waited_ns.0);
            figures.network_wait = seconds(result.waited_ns.1);
            figures.digest = result.digest.clone().map(|digest| (digest_kind, digest));
        }
        figures.writer_wait =
            done(receiver).map_or(figures.writer_wait, |result| seconds(result.waited_ns.1));
        figures.cpu =
            [sender, receiver].into_iter().filter_map(done).map(|result| seconds(result.cpu_ns)).sum();
        figures
    }
}

/// Of a mover whose agent is gone.
fn nothing_known(why: &str) -> MoverResult {
    MoverResult {
        bytes: 0,
        wire_bytes: 0,
        took_ns: 0,
        cpu_ns: 0,
        waited_ns: (0, 0),
        digest: None,
        inlet: Err(why.to_owned()),
        outlets: Vec::new(),
    }
}
