//! `caravan engine run`: the supervisor of a file's apps.

use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use caravan_engine::config::file::ConfigFile;
use caravan_engine::{Changes, Engine, EngineEvent, EngineOptions, Error as EngineError, Registry};
use caravan_segment::Pages;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{DumpableBehavior, set_dumpable_behavior};

use super::control::{Answer, Control, Order};
use super::ending::{Ending, have_ended};
use super::events::{Hugepages, Running, Teller, Told, Worker};
use super::figures::Figures;
use super::signals::{Asked, Signals};
use super::{lines, refused};
use crate::args::EngineRun;
use crate::error::Error;

/// How long the supervisor sleeps at most: restarts that wait for their time, signals that came just before.
const GLANCE: Duration = Duration::from_millis(25);

/// Runs it until it is stopped.
pub fn run(args: &EngineRun) -> Result<(), Error> {
    let signals = Signals::watch()?;
    // A program that has its capabilities from its file (setcap) is hidden from its own user, and `top`, `trace` and
    // `reload` would not find it. Who has fewer capabilities is still kept out (ptrace(2)).
    let _ = set_dumpable_behavior(DumpableBehavior::Dumpable);
    let registry = Registry::standard();
    let file = ConfigFile::open(&args.file, &registry).map_err(|mistakes| refused(&args.file, &mistakes))?;
    let mut options = file.options;
    if args.hugepages {
        options.pages = Pages::HugeIfOffered;
    }
    let mut engine = Engine::start(registry, options)?;
    let control = Control::listen()?;
    let teller = Teller::new(args.json)?;
    engine.configure(&file.config).map_err(|error| Error::Mistakes(reasons(&args.file, error).join("\n")))?;
    if args.until_end && have_ended(&mut engine).is_none() {
        return Err(Error::NoEnd(args.file.clone()));
    }
    let started = Instant::now();
    let ending = args.until_end.then(Ending::new);
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
    control: Control,
    teller: Teller,
    /// If it is to end by itself.
    ending: Option<Ending>,
}

impl Supervisor<'_> {
    fn tell_running(&mut self, options: &EngineOptions) -> Result<(), Error> {
        let config = self.engine.config();
        let worker = |name: &str| Worker {
            pid: self.engine.pid_of(name),
            core: config.workers.get(name).and_then(|worker| worker.core),
        };
        let running = Running {
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
        self.teller.tell(&Told::Running(running))
    }

    /// Looks after the engine until it is to end.
    fn supervise(&mut self, signals: &Signals, until: Option<Instant>) -> Result<(), Error> {
        loop {
            match signals.asked() {
                Asked::Nothing => {}
                Asked::Interrupt => return Err(Error::Interrupted),
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
                // Of memory that grows step by step, the last step says all.
                let goes_on = |next: &EngineEvent| {
                    matches!((event, next), (EngineEvent::Grown { .. }, EngineEvent::Grown { .. }))
                };
                if !events.get(place + 1).is_some_and(goes_on) {
                    self.teller.tell(&Told::Engine(event))?;
                }
            }
            if let Some(Order::Reload) = self.control.order() {
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

    /// Reads the file again and carries out what differs; if that cannot be done, all goes on as before.
    fn reload(&mut self) -> Result<Answer, Error> {
        match self.reread() {
            Ok(changes) => {
                self.teller.tell(&Told::Reloaded { file: self.path, changes: &changes })?;
                let written = serde_json::to_value(&changes).unwrap_or_default();
                Ok(Answer::Done { text: changes.to_string(), changes: written })
            }
            Err(reasons) => {
                self.teller.tell(&Told::Refused { file: self.path, reasons: &reasons })?;
                Ok(Answer::Refused(reasons))
            }
        }
    }

    fn reread(&mut self) -> Result<Changes, Vec<String>> {
        let told = |text: String| vec![format!("{}: {text}", self.path.display())];
        // A pipe has been read, and nothing is in it any more; opening one might wait for ever.
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

    /// Stops everything in order, and tells what has been done.
    fn end(mut self, ran: Duration, outcome: Result<(), Error>) -> Result<(), Error> {
        let figures = Figures::of_end(&mut self.engine, ran);
        // What made it end matters more than that nobody reads the figures.
        let told = self.teller.tell(&Told::Ended(&figures)).and_then(|()| self.teller.finish());
        outcome.and(told)
    }
}

/// Why a configuration was refused, each as a line.
fn reasons(path: &Path, error: EngineError) -> Vec<String> {
    let told = |text: &String| format!("{}: {text}", path.display());
    match error {
        EngineError::Refused(sentences) => sentences.iter().map(told).collect(),
        other => vec![told(&other.to_string())],
    }
}
