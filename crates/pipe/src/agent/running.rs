//! Runs the commands and movers of a host and the pipes between them, and reports how they end.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fs::{File, OpenOptions};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::fs::{Mode as FileMode, OFlags};
use rustix::process::{Pid, getpid};
use rustix::time::{ClockId, clock_gettime};

use super::hops::{Hops, pipe};
use super::processes::HeldPipe;
use super::{ReportOutbox, commands, processes};
use crate::cancel::Cancel;
use crate::control::{
    AgentReport, CommandEnd, InletSpec, Mover, MoverResult, OpenMode, OutletSpec, StageCommand, Status,
};
use crate::credit::Credit;
use crate::limits::{LINES_CREDIT_BYTES, SPARED_MAX, STAGES_MAX, TERM_GRACE};
use crate::mover::{Gauge, InletEnd, MoverFigures, MoverInlet, MoverOutcome, MoverOutlet, OutletEnd};
use crate::{Error, lock, mover};

/// The flags to open a pipe for neither reading nor writing.
const KNOWN: OFlags = OFlags::PATH.union(OFlags::CLOEXEC);
/// How often figures are reported.
const FIGURES_INTERVAL: Duration = Duration::from_millis(250);

/// Everything that runs; the threads that wait for it have clones.
#[derive(Clone)]
pub struct RunningStages(Arc<RunningShared>);

struct RunningShared {
    outbox: ReportOutbox,
    lines: Arc<Credit>,
    state: Mutex<RunningState>,
}

#[derive(Default)]
struct RunningState {
    /// The user's own standard input and output.
    caller: Option<(OwnedFd, OwnedFd)>,
    /// The commands to start.
    commands: Vec<StageCommand>,
    /// The files of stages that are files.
    files: HashMap<u32, (File, OpenMode)>,
    /// The processes of stages that are commands.
    processes: HashMap<u32, Pid>,
    /// The stage that reads each pipe, and the pipe that each stage writes.
    readers: HashMap<u32, u32>,
    outputs: HashMap<u32, u32>,
    /// What ends each mover, with the pipe that it reads, if it reads one.
    cancels: Vec<(Option<u32>, Cancel)>,
    is_aborted: bool,
    /// The pipe that each stage reads, opened for neither reading nor writing (`O_PATH`): this keeps no end of the
    /// pipe open.
    inputs: HashMap<u32, OwnedFd>,
    /// Processes that could not be ended and that were reported.
    spared: Vec<Pid>,
    gauges: Vec<(u32, Arc<Gauge>)>,
    /// The outlets of each mover that were reported: stopped and failed ones.
    left: HashMap<u32, (u64, u64)>,
    figures: Option<Instant>,
}

impl RunningStages {
    pub fn new(outbox: ReportOutbox, caller: Option<(OwnedFd, OwnedFd)>) -> Self {
        let state = Mutex::new(RunningState { caller, ..RunningState::default() });
        let lines = Arc::new(Credit::new(LINES_CREDIT_BYTES));
        Self(Arc::new(RunningShared { outbox, lines, state }))
    }

    /// Opens files in a thread: opening a FIFO may take long.
    pub fn prepare(&self, files: Vec<(u32, PathBuf, OpenMode)>) {
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
            this.0.outbox.report(AgentReport::Prepared { lengths });
        });
    }

    /// Adds a command for the start. A host has at most one of each stage.
    pub fn add(&self, command: StageCommand) {
        self.state(|state| {
            if state.commands.len() < STAGES_MAX {
                state.commands.push(command);
            }
        });
    }

    /// Starts commands and movers.
    pub fn start(&self, movers: Vec<Mover>, figures: bool, hops: &Hops) {
        let mut pipes = Pipes { hops, ends: HashMap::new() };
        if figures {
            self.state(|state| state.figures = Some(Instant::now()));
        }
        let commands = self.state(|state| std::mem::take(&mut state.commands));
        for command in &commands {
            if let Err(why) = self.command(command, &mut pipes) {
                self.ended(command.stage, Status::Failed(why));
            }
        }
        let mut shared_output = None;
        for mover in movers {
            let number = mover.mover;
            let begun = self.ends_of(&mover, &mut pipes, &mut shared_output).and_then(|(inlet, outlets)| {
                let held = self.held(&mover, &outlets);
                self.mover(mover, inlet, outlets, held)
            });
            match begun {
                Ok(()) => {}
                Err(error) => self
                    .0
                    .outbox
                    .report(AgentReport::Moved { mover: number, result: MoverResult::failed(&error) }),
            }
        }
        // Nobody here needs what is left of the user's own input and output.
        self.state(|state| state.caller = None);
    }

    /// Takes credit: the coordinator has printed so many bytes of standard error.
    pub fn credit(&self, bytes: u64) {
        self.0.lines.give(bytes);
    }

    /// Kills a stage, in a thread.
    pub fn kill(&self, stage: u32) {
        let this = self.clone();
        std::thread::spawn(move || this.kill_all(&[stage]));
    }

    /// Ends everything, and returns once no descendant of this process runs, except for those that cannot be ended.
    pub fn abort(&self, grace: Duration) {
        // From here on, a killed stage is not at fault and is not reported.
        self.0.outbox.mute();
        self.state(|state| {
            state.is_aborted = true;
            state.cancels.iter().for_each(|(_, cancel)| cancel.fire());
        });
        self.0.lines.close();
        let all = || {
            // If other users' processes are hidden, the stages' own processes are known all the same.
            let mut all = processes::descendants(getpid());
            let stages = self.state(|state| state.processes.values().copied().collect::<Vec<_>>());
            all.extend(stages.into_iter().filter(|stage| !all.contains(stage)).collect::<Vec<_>>());
            all
        };
        let spared = processes::end(all, grace, || self.hold(|_| true));
        self.tell_spared(spared);
    }

    /// Starts holders for stages that cannot be ended: they must not take the abort for the end of their input,
    /// once this process and the writers of the pipe are gone.
    fn hold(&self, which: impl Fn(u32) -> bool) {
        let inputs = self.state(|state| {
            let (held, others) =
                std::mem::take(&mut state.inputs).into_iter().partition(|(stage, _)| which(*stage));
            state.inputs = others;
            held
        });
        for pipe in HashMap::into_values(inputs) {
            let writing = File::options().write(true).open(descriptor_path(&pipe));
            // If no holder can be started, nothing else helps.
            let _ = writing.and_then(|pipe| processes::hold(pipe.into()).map(drop));
        }
    }

    fn tell_spared(&self, mut spared: Vec<Pid>) {
        self.state(|state| {
            spared.retain(|process| !state.spared.contains(process));
            state.spared.extend(&spared);
        });
        spared.truncate(SPARED_MAX);
        if !spared.is_empty() {
            let processes = spared.into_iter().map(processes::describe).collect();
            self.0.outbox.report(AgentReport::Spared { processes });
        }
    }

    /// Reports outlets that have ended before their stream, and figures when they are due.
    pub fn tick(&self, now: Instant) {
        self.report_left();
        let figures = self.state(|state| {
            let at = state.figures.as_mut()?;
            (now.saturating_duration_since(*at) >= FIGURES_INTERVAL).then(|| *at = now)?;
            Some(state.gauges.iter().map(|(mover, gauge)| (*mover, gauge.read())).collect())
        });
        if let Some(figures) = figures {
            self.0.outbox.report(AgentReport::Figures(figures));
        }
    }

    fn report_left(&self) {
        let mut reports = Vec::new();
        self.state(|state| {
            for (mover, gauge) in &state.gauges {
                // Each bit is set once and guards no other memory.
                let stopped = gauge.stopped_outlets.load(Ordering::Relaxed);
                let failed = gauge.failed_outlets.load(Ordering::Relaxed);
                let told = state.left.entry(*mover).or_default();
                for (now, before, has_failed) in [(stopped, told.0, false), (failed, told.1, true)] {
                    let new = (0..64).filter(|bit| (now & !before) >> bit & 1 == 1);
                    reports.extend(new.map(|outlet| AgentReport::Left { mover: *mover, outlet, has_failed }));
                }
                *told = (stopped, failed);
            }
        });
        reports.into_iter().for_each(|report| self.0.outbox.report(report));
    }

    fn command(&self, command: &StageCommand, pipes: &mut Pipes<'_>) -> Result<(), String> {
        let say = |error: Error| error.to_string();
        let input = match command.input {
            CommandEnd::Null => Stdio::null(),
            CommandEnd::Caller => self.caller(|caller| &caller.0).map_err(say)?.into(),
            CommandEnd::Pipe(pipe) => {
                let reading = pipes.reading(pipe).map_err(say)?;
                let known = rustix::fs::open(descriptor_path(&reading), KNOWN, FileMode::empty());
                self.state(|state| {
                    state.readers.insert(pipe, command.stage);
                    state.inputs.extend(known.ok().map(|known| (command.stage, known)));
                });
                reading.into()
            }
        };
        let output = match command.output {
            CommandEnd::Null => Stdio::null(),
            CommandEnd::Caller => self.caller(|caller| &caller.1).map_err(say)?.into(),
            CommandEnd::Pipe(pipe) => {
                self.state(|state| state.outputs.insert(command.stage, pipe));
                pipes.writing(pipe).map_err(say)?.into()
            }
        };
        let child = commands::spawn(&command.kind, input, output)?;
        self.state(|state| state.processes.insert(command.stage, Pid::from_child(&child)));
        let (this, stage) = (self.clone(), command.stage);
        std::thread::spawn(move || {
            commands::attend(stage, child, &this.0.lines, &this.0.outbox);
            this.state(|state| {
                state.inputs.remove(&stage);
                state.processes.remove(&stage);
            });
        });
        Ok(())
    }

    /// Has the inputs of commands held: if this process is killed, they see no end of their stream before they are killed, too.
    fn held(&self, mover: &Mover, outlets: &[MoverOutlet]) -> Vec<HeldPipe> {
        let of_command = mover.to.iter().zip(outlets).filter_map(|(target, outlet)| match (target, outlet) {
            (OutletSpec::Pipe(pipe), MoverOutlet::Descriptor(fd)) => {
                self.state(|state| state.readers.contains_key(pipe)).then_some(fd)
            }
            _ => None,
        });
        // Without a holder, only this protection is lost.
        of_command.filter_map(|fd| HeldPipe::new(fd).ok()).collect()
    }

    fn mover(
        &self,
        mover: Mover,
        inlet: MoverInlet,
        outlets: Vec<MoverOutlet>,
        held: Vec<HeldPipe>,
    ) -> Result<(), Error> {
        let (gauge, cancel) = (Arc::new(Gauge::default()), Cancel::new()?);
        self.state(|state| {
            state.gauges.push((mover.mover, Arc::clone(&gauge)));
            let pipe = if let InletSpec::Pipe(pipe) = mover.from { Some(pipe) } else { None };
            state.cancels.push((pipe, cancel.clone()));
            if state.is_aborted {
                cancel.fire();
            }
        });
        let this = self.clone();
        std::thread::spawn(move || {
            let begin = Instant::now();
            let outcome = mover::run(inlet, outlets, &mover.options, &gauge, &cancel);
            let failed_pipes = outcome.inlet.is_err().then_some(held);
            this.moved(&mover, outcome, &gauge, begin.elapsed());
            drop(failed_pipes);
        });
        Ok(())
    }

    /// Kills a stage whose input was cut off, with all that follows it on this host: what comes after it must not take its end
    /// for that of the stream. A mover that reads its output tells the next host that the stream has failed.
    fn cut(&self, stage: u32) {
        let stages = self.state(|state| {
            let mut stages = vec![stage];
            let mut output = state.outputs.get(&stage);
            while let Some(next) = output.and_then(|pipe| state.readers.get(pipe)) {
                stages.push(*next);
                output = state.outputs.get(next);
            }
            let movers = state.cancels.iter().filter(|(pipe, _)| pipe.is_some() && pipe.as_ref() == output);
            movers.for_each(|(_, cancel)| cancel.fire());
            stages
        });
        self.kill_all(&stages);
    }

    fn kill_all(&self, stages: &[u32]) {
        // An entry goes once the process was waited for, so its number is not reused until then.
        let processes = || {
            self.state(|state| {
                stages.iter().filter_map(|stage| state.processes.get(stage).copied()).collect()
            })
        };
        let roots: Vec<Pid> = processes();
        let all = || -> Vec<Pid> {
            let left: Vec<Pid> = processes();
            let below = roots.iter().flat_map(|root| processes::descendants(*root));
            left.iter().copied().chain(below.filter(|process| !left.contains(process))).collect()
        };
        if !roots.is_empty() {
            let spared = processes::end(all, TERM_GRACE, || self.hold(|input| stages.contains(&input)));
            self.tell_spared(spared);
        }
    }

    fn ended(&self, stage: u32, status: Status) {
        self.0.outbox.report(AgentReport::Ended { stage, status });
    }

    fn state<T>(&self, change: impl FnOnce(&mut RunningState) -> T) -> T {
        change(&mut lock(&self.0.state))
    }
}

/// Returns the path by which a pipe is opened once more.
fn descriptor_path(pipe: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", pipe.as_raw_fd())
}

/// The ends of pipes that nobody has taken yet.
pub(super) struct Pipes<'a> {
    pub hops: &'a Hops,
    pub ends: HashMap<u32, (Option<OwnedFd>, Option<OwnedFd>)>,
}

impl Pipes<'_> {
    pub fn reading(&mut self, number: u32) -> Result<OwnedFd, Error> {
        self.end(number, |ends| ends.0.take())
    }

    pub fn writing(&mut self, number: u32) -> Result<OwnedFd, Error> {
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
        let ends = match self.ends.entry(number) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(vacant) => {
                let (reading, writing) = pipe()?;
                vacant.insert((Some(reading), Some(writing)))
            }
        };
        let end = which(ends);
        end.ok_or_else(|| Error::Protocol("names an end of a pipe twice".to_owned()))
    }

    fn connection(&self, hop: u32) -> Result<crate::connect::DataConnection, Error> {
        let missing = || Error::Protocol("names a hop that is not connected".to_owned());
        self.hops.connection(hop).ok_or_else(missing)
    }
}

impl RunningStages {
    pub(super) fn ends_of(
        &self,
        mover: &Mover,
        pipes: &mut Pipes<'_>,
        shared_output: &mut Option<Arc<Mutex<File>>>,
    ) -> Result<(MoverInlet, Vec<MoverOutlet>), Error> {
        let inlet = match &mover.from {
            InletSpec::Hop(hop, options) => {
                MoverInlet::Hop(Box::new(pipes.connection(*hop)?), options.clone())
            }
            InletSpec::Pipe(pipe) => MoverInlet::Descriptor(pipes.reading(*pipe)?),
            InletSpec::File { stage } => MoverInlet::Descriptor(self.file(*stage)?),
            InletSpec::Caller => MoverInlet::Descriptor(self.caller(|caller| &caller.0)?),
            InletSpec::Null => MoverInlet::Descriptor(open(Path::new("/dev/null"), OpenMode::Read)?.0.into()),
        };
        let mut outlets = Vec::new();
        for target in &mover.to {
            outlets.push(match target {
                OutletSpec::Hop(hop, options) => {
                    MoverOutlet::Hop(Box::new(pipes.connection(*hop)?), options.clone())
                }
                OutletSpec::Pipe(pipe) => MoverOutlet::Descriptor(pipes.writing(*pipe)?),
                OutletSpec::File { stage } => MoverOutlet::Descriptor(self.file(*stage)?),
                OutletSpec::Caller => MoverOutlet::Descriptor(self.caller(|caller| &caller.1)?),
                OutletSpec::Null => {
                    MoverOutlet::Descriptor(open(Path::new("/dev/null"), OpenMode::Append)?.0.into())
                }
                OutletSpec::Lines(prefix) => {
                    let to = match shared_output {
                        Some(to) => Arc::clone(to),
                        None => {
                            let to = File::from(self.caller(|caller| &caller.1)?);
                            Arc::clone(shared_output.insert(Arc::new(Mutex::new(to))))
                        }
                    };
                    MoverOutlet::Lines { prefix: prefix.clone(), to }
                }
            });
        }
        Ok((inlet, outlets))
    }

    fn file(&self, stage: u32) -> Result<OwnedFd, Error> {
        let opened = self.state(|state| state.files.remove(&stage));
        let (file, mode) =
            opened.ok_or_else(|| Error::Protocol("names a file that is not open".to_owned()))?;
        if mode == OpenMode::Write && file.metadata().is_ok_and(|file| file.is_file()) {
            file.set_len(0).map_err(Error::system("ftruncate"))?;
        }
        Ok(file.into())
    }

    pub(super) fn caller(&self, which: impl Fn(&(OwnedFd, OwnedFd)) -> &OwnedFd) -> Result<OwnedFd, Error> {
        let nobody = || Error::Protocol("names a terminal that is not here".to_owned());
        self.state(|state| {
            let end = which(state.caller.as_ref().ok_or_else(nobody)?);
            end.as_fd().try_clone_to_owned().map_err(Error::system("dup"))
        })
    }
}

/// Opens a file. Returns it, and its length if that means something.
pub(super) fn open(path: &Path, mode: OpenMode) -> Result<(File, Option<u64>), Error> {
    let what = if mode == OpenMode::Read { "read" } else { "write" };
    let failed = |source| Error::File { what, path: path.to_owned(), source };
    let mut options = OpenOptions::new();
    match mode {
        OpenMode::Read => options.read(true),
        OpenMode::Write => options.write(true).create(true),
        OpenMode::Append => options.append(true).create(true),
    };
    let file = options.open(path).map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    if metadata.is_dir() {
        return Err(failed(std::io::ErrorKind::IsADirectory.into()));
    }
    let length = (metadata.is_file() && metadata.len() > 0).then_some(metadata.len());
    Ok((file, length))
}

impl RunningStages {
    /// Reports the end of a mover, and kills stages that must not take it for the end of the stream.
    pub(super) fn moved(&self, mover: &Mover, outcome: MoverOutcome, gauge: &Gauge, took: Duration) {
        let cpu = clock_gettime(ClockId::ThreadCPUTime);
        let own_ns =
            Duration::try_from(cpu).map_or(0, |cpu| u64::try_from(cpu.as_nanos()).unwrap_or(u64::MAX));
        let mut result = MoverResult {
            figures: MoverFigures { bytes: outcome.bytes, ..gauge.read() },
            took_ns: u64::try_from(took.as_nanos()).unwrap_or(u64::MAX),
            // The figures are for people: they need no order.
            cpu_ns: own_ns.saturating_add(gauge.threads_cpu_ns.load(Ordering::Relaxed)),
            digest: outcome.digest.clone(),
            inlet: told(&outcome.inlet, InletEnd::Complete),
            outlets: outcome.outlets.iter().map(|outlet| told(outlet, OutletEnd::Complete)).collect(),
            was_ended: false,
        };
        let inlet_failed = result.inlet.is_err();
        tell_causes(&outcome, &mut result);
        if let InletSpec::File { stage } = &mover.from {
            self.ended(*stage, file_status(result.inlet.as_ref().err()));
        }
        for (target, outlet) in mover.to.iter().zip(&result.outlets) {
            if let OutletSpec::File { stage } = target {
                self.ended(*stage, file_status(outlet.as_ref().err()));
            }
        }
        let outlets = result.outlets.clone();
        self.0.outbox.report(AgentReport::Moved { mover: mover.mover, result });
        for (target, outlet) in mover.to.iter().zip(&outlets) {
            let reader = match target {
                OutletSpec::Pipe(pipe) if inlet_failed || outlet.is_err() => {
                    self.state(|state| state.readers.get(pipe).copied())
                }
                _ => None,
            };
            reader.into_iter().for_each(|stage| self.cut(stage));
        }
        drop(outcome.unfinished);
    }
}

/// Returns whether an end has the whole stream, or why it failed, in words.
fn told<E: PartialEq>(end: &Result<E, Error>, complete: E) -> Result<bool, String> {
    end.as_ref().map(|end| *end == complete).map_err(Error::to_string)
}

/// Reports causes only: an end that was interrupted because another end failed is not a failure.
fn tell_causes(outcome: &MoverOutcome, result: &mut MoverResult) {
    // The other end of a hop passes on that it was interrupted, too.
    let interrupted = Error::Cancelled.to_string();
    let is_cause = |error: Option<&Error>| {
        error.is_some_and(|error| match error {
            Error::Cancelled => false,
            Error::Told(why) => *why != interrupted,
            _ => true,
        })
    };
    let causes = outcome.outlets.iter().map(|outlet| outlet.as_ref().err());
    let is_known = is_cause(outcome.inlet.as_ref().err()) || causes.into_iter().any(is_cause);
    if !is_known {
        result.was_ended = result.inlet.is_err() || result.outlets.iter().any(Result::is_err);
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

fn file_status(why: Option<&String>) -> Status {
    why.map_or(Status::Exit(0), |why| Status::Failed(why.clone()))
}
