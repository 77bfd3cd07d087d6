//! What runs on a host: commands, movers, and the pipes between them.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, getpid};
use rustix::time::{ClockId, clock_gettime};

use super::hops::{Hops, pipe};
use super::outbox::Outbox;
use super::{commands, processes};
use crate::Error;
use crate::cancel::Cancel;
use crate::control::{Command, End, Mode, Mover, MoverResult, Part, Report, Source, Status, Target};
use crate::limits::{LINES_WINDOW_BYTES, TERM_GRACE};
use crate::mover::{self, Gauge, Inlet, InletEnd, Outcome, Outlet, OutletEnd};
use crate::window::Window;

/// How often figures are reported.
const FIGURES_INTERVAL: Duration = Duration::from_millis(250);

/// Everything that runs; shared with the threads that wait for it.
#[derive(Clone)]
pub struct Running(Arc<Shared>);

struct Shared {
    outbox: Outbox,
    cancel: Cancel,
    lines: Arc<Window>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The user's own standard input and output.
    caller: Option<(OwnedFd, OwnedFd)>,
    /// Of stages that are files.
    files: HashMap<u32, (File, Mode)>,
    /// Of stages that are commands.
    processes: HashMap<u32, Pid>,
    /// Which stage reads a pipe.
    readers: HashMap<u32, u32>,
    gauges: Vec<(u32, Arc<Gauge>)>,
    figures: Option<Instant>,
}

impl Running {
    pub fn new(outbox: Outbox, caller: Option<(OwnedFd, OwnedFd)>) -> Result<Self, Error> {
        let state = Mutex::new(State { caller, ..State::default() });
        let lines = Arc::new(Window::new(LINES_WINDOW_BYTES));
        Ok(Self(Arc::new(Shared { outbox, cancel: Cancel::new()?, lines, state })))
    }

    /// Opens files in a thread: a FIFO may take its time.
    pub fn prepare(&self, files: Vec<(u32, PathBuf, Mode)>) {
        let this = self.clone();
        std::thread::spawn(move || {
            let mut lengths = Vec::new();
            for (stage, path, mode) in files {
                match open(&path, mode) {
                    Ok((file, length)) => {
                        lengths.push((stage, length));
                        this.state(|state| state.files.insert(stage, (file, mode)));
                    }
                    Err(error) => return this.ended(stage, Status::Failed(error.to_string())),
                }
            }
            this.0.outbox.report(Report::Prepared { lengths });
        });
    }

    /// Starts commands and movers.
    pub fn start(&self, part: Part, hops: &Hops) {
        let mut pipes = Pipes { hops, ends: HashMap::new() };
        if part.figures {
            self.state(|state| state.figures = Some(Instant::now()));
        }
        for command in &part.commands {
            if let Err(why) = self.command(command, &mut pipes) {
                self.ended(command.stage, Status::Failed(why));
            }
        }
        let mut shared_output = None;
        for mover in part.movers {
            let number = mover.mover;
            match self.ends_of(&mover, &mut pipes, &mut shared_output) {
                Ok((inlet, outlets)) => self.mover(mover, inlet, outlets),
                Err(error) => self.0.outbox.report(Report::Moved { mover: number, result: failed(&error) }),
            }
        }
        // What is left of the user's own input and output is nobody's here.
        self.state(|state| state.caller = None);
    }

    /// The coordinator has printed so much of standard error.
    pub fn credit(&self, bytes: u64) {
        self.0.lines.give(bytes);
    }

    /// Kills a stage, in a thread.
    pub fn kill(&self, stage: u32) {
        let this = self.clone();
        std::thread::spawn(move || this.kill_now(stage));
    }

    /// Ends everything, and returns once nothing runs that came of this process.
    pub fn abort(&self, grace: Duration) {
        // What is killed now is no stage's fault, and no news to anybody.
        self.0.outbox.mute();
        self.0.cancel.fire();
        self.0.lines.close();
        processes::end(|| processes::descendants(getpid()), grace);
    }

    /// Reports figures when it is time.
    pub fn tick(&self, now: Instant) {
        let figures = self.state(|state| {
            let at = state.figures.as_mut()?;
            (now.saturating_duration_since(*at) >= FIGURES_INTERVAL).then(|| *at = now)?;
            Some(state.gauges.iter().map(|(mover, gauge)| (*mover, gauge.read())).collect())
        });
        if let Some(figures) = figures {
            self.0.outbox.report(Report::Figures(figures));
        }
    }

    fn command(&self, command: &Command, pipes: &mut Pipes<'_>) -> Result<(), String> {
        let say = |error: Error| error.to_string();
        let input = match command.input {
            End::Null => Stdio::null(),
            End::Caller => self.caller(|caller| &caller.0).map_err(say)?.into(),
            End::Pipe(pipe) => {
                self.state(|state| state.readers.insert(pipe, command.stage));
                pipes.reading(pipe).map_err(say)?.into()
            }
        };
        let output = match command.output {
            End::Null => Stdio::null(),
            End::Caller => self.caller(|caller| &caller.1).map_err(say)?.into(),
            End::Pipe(pipe) => pipes.writing(pipe).map_err(say)?.into(),
        };
        let child = commands::spawn(&command.kind, input, output)?;
        self.state(|state| state.processes.insert(command.stage, Pid::from_child(&child)));
        self.0.outbox.report(Report::Started { stage: command.stage });
        let (this, stage) = (self.clone(), command.stage);
        std::thread::spawn(move || {
            commands::attend(stage, child, &this.0.lines, &this.0.outbox);
            this.state(|state| state.processes.remove(&stage));
        });
        Ok(())
    }

    fn ends_of(
        &self,
        mover: &Mover,
        pipes: &mut Pipes<'_>,
        shared_output: &mut Option<Arc<Mutex<File>>>,
    ) -> Result<(Inlet, Vec<Outlet>), Error> {
        let inlet = match &mover.from {
            Source::Hop(hop, options) => Inlet::Hop(Box::new(pipes.connection(*hop)?), options.clone()),
            Source::Pipe(pipe) => Inlet::Descriptor(pipes.reading(*pipe)?),
            Source::File { stage } => Inlet::Descriptor(self.file(*stage)?),
            Source::Caller => Inlet::Descriptor(self.caller(|caller| &caller.0)?),
            Source::Null => Inlet::Descriptor(open(Path::new("/dev/null"), Mode::Read)?.0.into()),
        };
        let mut outlets = Vec::new();
        for target in &mover.to {
            outlets.push(match target {
                Target::Hop(hop, options) => Outlet::Hop(Box::new(pipes.connection(*hop)?), options.clone()),
                Target::Pipe(pipe) => Outlet::Descriptor(pipes.writing(*pipe)?),
                Target::File { stage } => Outlet::Descriptor(self.file(*stage)?),
                Target::Caller => Outlet::Descriptor(self.caller(|caller| &caller.1)?),
                Target::Null => Outlet::Descriptor(open(Path::new("/dev/null"), Mode::Append)?.0.into()),
                Target::Lines(prefix) => {
                    let to = match shared_output {
                        Some(to) => Arc::clone(to),
                        None => {
                            let to = File::from(self.caller(|caller| &caller.1)?);
                            Arc::clone(shared_output.insert(Arc::new(Mutex::new(to))))
                        }
                    };
                    Outlet::Lines { prefix: prefix.clone(), to }
                }
            });
        }
        Ok((inlet, outlets))
    }

    fn mover(&self, mover: Mover, inlet: Inlet, outlets: Vec<Outlet>) {
        let gauge = Arc::new(Gauge::default());
        self.state(|state| state.gauges.push((mover.mover, Arc::clone(&gauge))));
        let this = self.clone();
        std::thread::spawn(move || {
            let begin = Instant::now();
            let outcome = mover::run(inlet, outlets, &mover.options, &gauge, &this.0.cancel);
            this.moved(&mover, outcome, &gauge, begin.elapsed());
        });
    }

    /// A mover has ended: says so, and kills who must not take its end for the stream's.
    fn moved(&self, mover: &Mover, outcome: Outcome, gauge: &Gauge, took: Duration) {
        let cpu = clock_gettime(ClockId::ThreadCPUTime);
        let [_, wire_bytes, inlet_wait, outlet_wait] = gauge.read();
        let mut result = MoverResult {
            bytes: outcome.bytes,
            wire_bytes,
            took_ns: u64::try_from(took.as_nanos()).unwrap_or(u64::MAX),
            cpu_ns: Duration::try_from(cpu)
                .map_or(0, |cpu| u64::try_from(cpu.as_nanos()).unwrap_or(u64::MAX)),
            waited_ns: (inlet_wait, outlet_wait),
            digest: outcome.digest.clone(),
            inlet: match &outcome.inlet {
                Ok(end) => Ok(*end == InletEnd::Complete),
                Err(error) => Err(error.to_string()),
            },
            outlets: outcome
                .outlets
                .iter()
                .map(|outlet| match outlet {
                    Ok(end) => Ok(*end == OutletEnd::Complete),
                    Err(error) => Err(error.to_string()),
                })
                .collect(),
        };
        let inlet_failed = result.inlet.is_err();
        tell_causes(&outcome, &mut result);
        if let Source::File { stage } = &mover.from {
            self.ended(*stage, file_status(result.inlet.as_ref().err()));
        }
        for (target, outlet) in mover.to.iter().zip(&result.outlets) {
            if let Target::File { stage } = target {
                self.ended(*stage, file_status(outlet.as_ref().err()));
            }
        }
        let outlets = result.outlets.clone();
        self.0.outbox.report(Report::Moved { mover: mover.mover, result });
        for (target, outlet) in mover.to.iter().zip(&outlets) {
            let reader = match target {
                Target::Pipe(pipe) if inlet_failed || outlet.is_err() => {
                    self.state(|state| state.readers.get(pipe).copied())
                }
                _ => None,
            };
            reader.into_iter().for_each(|stage| self.kill_now(stage));
        }
        drop(outcome.unfinished);
    }

    fn kill_now(&self, stage: u32) {
        if let Some(root) = self.state(|state| state.processes.get(&stage).copied()) {
            let all = || -> Vec<Pid> {
                // Its entry goes once it was waited for, so that its number is its own until then.
                let root_left = self.state(|state| state.processes.get(&stage).copied());
                root_left.into_iter().chain(processes::descendants(root)).collect()
            };
            processes::end(all, TERM_GRACE);
        }
    }

    fn ended(&self, stage: u32, status: Status) {
        self.0.outbox.report(Report::Ended { stage, status });
    }

    fn file(&self, stage: u32) -> Result<OwnedFd, Error> {
        let opened = self.state(|state| state.files.remove(&stage));
        let (file, mode) =
            opened.ok_or_else(|| Error::Protocol("names a file that is not open".to_owned()))?;
        if mode == Mode::Write && file.metadata().is_ok_and(|file| file.is_file()) {
            file.set_len(0).map_err(|source| Error::System { call: "ftruncate", source })?;
        }
        Ok(file.into())
    }

    fn caller(&self, which: impl Fn(&(OwnedFd, OwnedFd)) -> &OwnedFd) -> Result<OwnedFd, Error> {
        let nobody = || Error::Protocol("names a terminal that is not here".to_owned());
        self.state(|state| {
            let end = which(state.caller.as_ref().ok_or_else(nobody)?);
            end.as_fd().try_clone_to_owned().map_err(|source| Error::System { call: "dup", source })
        })
    }

    fn state<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        change(&mut self.0.state.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Ends of pipes that nobody has taken yet.
struct Pipes<'a> {
    hops: &'a Hops,
    ends: HashMap<u32, (Option<OwnedFd>, Option<OwnedFd>)>,
}

impl Pipes<'_> {
    fn reading(&mut self, number: u32) -> Result<OwnedFd, Error> {
        self.end(number, |ends| ends.0.take())
    }

    fn writing(&mut self, number: u32) -> Result<OwnedFd, Error> {
        self.end(number, |ends| ends.1.take())
    }

    fn end(
        &mut self,
        number: u32,
        which: impl Fn(&mut (Option<OwnedFd>, Option<OwnedFd>)) -> Option<OwnedFd>,
    ) -> Result<OwnedFd, Error> {
        if let Some(handed) = self.hops.pipe(number) {
            return Ok(handed);
        }
        if !self.ends.contains_key(&number) {
            let (reading, writing) = pipe()?;
            self.ends.insert(number, (Some(reading), Some(writing)));
        }
        let end = self.ends.get_mut(&number).and_then(which);
        end.ok_or_else(|| Error::Protocol("names an end of a pipe twice".to_owned()))
    }

    fn connection(&self, hop: u32) -> Result<crate::connect::Connection, Error> {
        let missing = || Error::Protocol("names a hop that is not connected".to_owned());
        self.hops.connection(hop).ok_or_else(missing)
    }
}

/// An end that was only interrupted, because another one failed, is no failure to tell of.
fn tell_causes(outcome: &Outcome, result: &mut MoverResult) {
    let is_cause = |error: Option<&Error>| error.is_some_and(|error| !matches!(error, Error::Cancelled));
    let causes = outcome.outlets.iter().map(|outlet| outlet.as_ref().err());
    let is_known = is_cause(outcome.inlet.as_ref().err()) || causes.into_iter().any(is_cause);
    if !is_known {
        return;
    }
    if matches!(outcome.inlet, Err(Error::Cancelled)) {
        result.inlet = Ok(false);
    }
    for (told, outlet) in result.outlets.iter_mut().zip(&outcome.outlets) {
        if matches!(outlet, Err(Error::Cancelled)) {
            *told = Ok(false);
        }
    }
}

/// The file, and its length if it has one that counts.
fn open(path: &Path, mode: Mode) -> Result<(File, Option<u64>), Error> {
    let what = if mode == Mode::Read { "read" } else { "write" };
    let failed = |source| Error::File { what, path: path.to_owned(), source };
    let mut options = OpenOptions::new();
    match mode {
        Mode::Read => options.read(true),
        Mode::Write => options.write(true).create(true),
        Mode::Append => options.append(true).create(true),
    };
    let file = options.open(path).map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    if metadata.is_dir() {
        return Err(failed(std::io::ErrorKind::IsADirectory.into()));
    }
    let length = (metadata.is_file() && metadata.len() > 0).then_some(metadata.len());
    Ok((file, length))
}

fn file_status(why: Option<&String>) -> Status {
    why.map_or(Status::Exit(0), |why| Status::Failed(why.clone()))
}

/// Of a mover that could not even begin.
fn failed(error: &Error) -> MoverResult {
    MoverResult {
        bytes: 0,
        wire_bytes: 0,
        took_ns: 0,
        cpu_ns: 0,
        waited_ns: (0, 0),
        digest: None,
        inlet: Err(error.to_string()),
        outlets: Vec::new(),
    }
}
