//! `caravan engine run`: the supervisor of a file's apps.

use std::io;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use caravan_bench::Error as Shared;
use caravan_engine::config::file::ConfigFile;
use caravan_engine::layout::link;
use caravan_engine::{Changes, Engine, EngineEvent, EngineOptions, Error as EngineError, Registry};
use caravan_segment::Pages;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{DumpableBehavior, set_dumpable_behavior};

use crate::args::EngineRun;
use crate::engine::events::{EngineNews, EngineRunning, Hugepages, NewsTeller, RunningWorker};
use crate::engine::top::Figures;
use crate::engine::{ControlAnswer, ControlOrder, ControlSocket, lines, refused};
use crate::error::Error;
use crate::signals::{Asked, RunSignals};

/// The longest sleep of the supervisor: it bounds the delay of restarts, and of signals that came just before.
const GLANCE: Duration = Duration::from_millis(25);

/// Runs the engine until it is stopped.
pub fn run(args: &EngineRun) -> Result<(), Error> {
    let signals = RunSignals::watch()?;
    // A program that has its capabilities from its file (setcap) is hidden from its own user, and `top`, `trace` and
    // `reload` would not find it. A process with fewer capabilities is still kept out (ptrace(2)).
    let _ = set_dumpable_behavior(DumpableBehavior::Dumpable);
    let registry = Registry::standard();
    let file = ConfigFile::open(&args.file, &registry).map_err(|mistakes| refused(&args.file, &mistakes))?;
    let mut options = file.options;
    if args.hugepages {
        options.pages = Pages::HugeIfOffered;
    }
    let mut engine = Engine::start(registry, options)?;
    let control = ControlSocket::listen()?;
    let teller = NewsTeller::new(args.json)?;
    engine.configure(&file.config).map_err(|error| Error::Mistakes(reasons(&args.file, error).join("\n")))?;
    if args.until_end && have_ended(&mut engine).is_none() {
        return Err(Error::NoEnd(args.file.clone()));
    }
    let started = Instant::now();
    let ending = args.until_end.then(EngineEnding::new);
    let until = args.duration.map(|duration| started + duration);
    let mut supervisor =
        Supervisor { path: &args.file, settings: file.options, engine, control, teller, ending };
    let outcome = supervisor.tell_running(&options).and_then(|()| supervisor.supervise(&signals, until));
    supervisor.end(started.elapsed(), outcome)
}

struct Supervisor<'a> {
    path: &'a Path,
    settings: EngineOptions,
    engine: Engine,
    control: ControlSocket,
    teller: NewsTeller,
    /// Set if the engine is to end by itself.
    ending: Option<EngineEnding>,
}

impl Supervisor<'_> {
    fn tell_running(&mut self, options: &EngineOptions) -> Result<(), Error> {
        let config = self.engine.config();
        let worker = |name: &str| RunningWorker {
            pid: self.engine.pid_of(name),
            core: config.workers.get(name).and_then(|worker| worker.core),
        };
        let running = EngineRunning {
            file: self.path,
            pid: std::process::id(),
            apps: config.apps.len(),
            links: config.links.len(),
            workers: config.workers_used().into_iter().map(|name| (name, worker(name))).collect(),
            pages: if self.engine.pages() == Pages::Small { "small" } else { "huge" },
            hugepages_asked: options.pages != Pages::Small,
            hugepages: Hugepages::of(options.packets_max),
            packets: self.engine.packets(),
            packets_max: options.packets_max,
        };
        self.teller.tell(&EngineNews::Running(running))
    }

    /// Looks after the engine until it is to end.
    fn supervise(&mut self, signals: &RunSignals, until: Option<Instant>) -> Result<(), Error> {
        loop {
            match signals.asked() {
                Asked::Nothing => {}
                Asked::Interrupt => return Err(Shared::Interrupted.into()),
                Asked::End => return Ok(()),
                Asked::Reload => _ = self.reload()?,
            }
            let left = until.map_or(GLANCE, |until| until.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                return Ok(());
            }
            if self.ending.as_mut().is_some_and(|ending| ending.has_come(&mut self.engine)) {
                return Ok(());
            }
            self.wait(left.min(GLANCE))?;
            let events = self.engine.poll(Some(Duration::ZERO))?;
            for (place, event) in events.iter().enumerate() {
                // If memory grows step by step, only the last step is told.
                let goes_on = |next: &EngineEvent| {
                    matches!((event, next), (EngineEvent::Grown { .. }, EngineEvent::Grown { .. }))
                };
                if !events.get(place + 1).is_some_and(goes_on) {
                    self.teller.tell(&EngineNews::Engine(event))?;
                }
            }
            if let Some(ControlOrder::Reload) = self.control.order() {
                let answer = self.reload()?;
                self.control.answer(answer);
            }
            self.teller.write()?;
        }
    }

    fn wait(&self, most: Duration) -> Result<(), Error> {
        let mut ready = vec![
            PollFd::new(&self.engine, PollFlags::IN),
            PollFd::from_borrowed_fd(self.control.as_fd(), PollFlags::IN),
        ];
        if let Some(outlet) = self.teller.outlet().wants() {
            ready.push(PollFd::from_borrowed_fd(outlet, PollFlags::OUT));
        }
        match poll(&mut ready, Timespec::try_from(most).ok().as_ref()) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(source) => Err(Error::Control { call: "poll", source }),
        }
    }

    /// Reads the file again and carries out the differences; if that fails, the engine runs on as before.
    fn reload(&mut self) -> Result<ControlAnswer, Error> {
        match self.reread() {
            Ok(changes) => {
                self.teller.tell(&EngineNews::Reloaded { file: self.path, changes: &changes })?;
                let written = serde_json::to_value(&changes).unwrap_or_default();
                Ok(ControlAnswer::Done { text: changes.to_string(), changes: written })
            }
            Err(reasons) => {
                self.teller.tell(&EngineNews::Refused { file: self.path, reasons: &reasons })?;
                Ok(ControlAnswer::Refused(reasons))
            }
        }
    }

    fn reread(&mut self) -> Result<Changes, Vec<String>> {
        let told = |text: String| vec![format!("{}: {text}", self.path.display())];
        // A pipe has been read and is empty; opening it again might wait for ever.
        let is_file = std::fs::metadata(self.path).map(|it| it.is_file());
        if !is_file.map_err(|error: io::Error| told(format!("cannot read it: {error}")))? {
            return Err(told("this is no regular file, and cannot be read again".into()));
        }
        let file = ConfigFile::open(self.path, self.engine.registry());
        let file = file.map_err(|mistakes| lines(self.path, &mistakes))?;
        if file.options != self.settings {
            let text = "[engine] cannot change while the engine runs: put it back, or start the engine again";
            return Err(told(text.into()));
        }
        self.engine.configure(&file.config).map_err(|error| reasons(self.path, error))
    }

    /// Stops everything in order, and tells the figures.
    fn end(mut self, ran: Duration, outcome: Result<(), Error>) -> Result<(), Error> {
        let figures = Figures::of_end(&mut self.engine, ran);
        // The reason for the end matters more than a missing reader of the figures.
        let told = self.teller.tell(&EngineNews::Ended(&figures)).and_then(|()| self.teller.finish());
        outcome.and(told)
    }
}

/// Returns why a configuration was refused, one line per reason.
fn reasons(path: &Path, error: EngineError) -> Vec<String> {
    let told = |text: &String| format!("{}: {text}", path.display());
    match error {
        EngineError::Refused(sentences) => sentences.iter().map(told).collect(),
        other => vec![told(&other.to_string())],
    }
}

/// The time between two checks for the end. Nothing may have moved between them.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Detects the end of an engine: every app that has an end has reached it, and the packets that they sent have
/// arrived.
#[derive(Debug)]
pub struct EngineEnding {
    next: Instant,
    /// The counts of all links at the last check, if all apps had ended by then.
    counts: Option<Vec<u64>>,
}

impl EngineEnding {
    pub fn new() -> Self {
        Self { next: Instant::now(), counts: None }
    }

    /// True if the engine has reached its end.
    pub fn has_come(&mut self, engine: &mut Engine) -> bool {
        if Instant::now() < self.next {
            return false;
        }
        let before = self.counts.take();
        if have_ended(engine) == Some(true) {
            self.counts = Some(counts(engine));
        }
        self.next = Instant::now() + LOOK_EVERY;
        self.counts.is_some() && self.counts == before
    }
}

/// Returns whether all apps that have an end have reached it and no app holds packets; `None` if no app has an end. A
/// worker that is being started again does not report: its apps have not ended.
pub fn have_ended(engine: &mut Engine) -> Option<bool> {
    let reports = engine.reports().unwrap_or_default();
    let all_say = reports.len() == engine.config().apps.len();
    let queued = reports.values().filter_map(|figures| figures.get("queued")).sum::<u64>();
    let ended: Vec<_> = reports.values().filter_map(|figures| figures.get("ended")).collect();
    (!ended.is_empty()).then(|| all_say && queued == 0 && ended.iter().all(|ended| **ended == 1))
}

fn counts(engine: &Engine) -> Vec<u64> {
    let links = engine.config().links.keys().filter_map(|name| engine.link_id(&name.to_string()));
    let word = |id, offset| engine.shared().link(id, offset).load(Ordering::Relaxed);
    links
        .flat_map(|id| [link::PACKETS, link::TAKEN, link::QUEUED, link::WAITING].map(|at| word(id, at)))
        .collect()
}
