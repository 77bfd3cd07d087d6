//! The stream of `send` and `recv`, and its result.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, OpenOptions};
use std::io::stdout;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};
use std::{io, thread};

use caravan_pipe::Error;
use caravan_pipe::cancel::Cancel;
use caravan_pipe::connect::HopSide;
use caravan_pipe::coordinator::{HopFigures, Observer, PipelineSummary, StreamDigest};
use caravan_pipe::mover::{
    self, DigestKind, Gauge, MoverFigures, MoverInlet, MoverOptions, MoverOutcome, MoverOutlet,
};
use caravan_pipe::tree::trust;
use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags, flock};
use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};

use crate::carry::talk::{Fired, Talk};
use crate::pipe::{Ending, Teller};

/// The time between two updates of the progress.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(250);

/// What is known of a stream before it begins.
#[derive(Debug)]
pub struct StreamFacts {
    pub from: String,
    pub to: String,
    /// The transport of the data, as users see it.
    pub transport: String,
    pub total: Option<u64>,
    pub digest: DigestKind,
    /// The side of the stream that this process is.
    pub side: HopSide,
}

/// A stream that is about to move.
pub struct CarryStream<'a> {
    pub facts: StreamFacts,
    pub talk: &'a mut Talk,
    pub teller: &'a mut Teller,
    pub cancel: &'a Cancel,
}

/// A stream that has moved.
#[derive(Debug)]
pub struct CarriedStream {
    figures: HopFigures,
    seconds: f64,
    failure: Option<Error>,
}

impl CarryStream<'_> {
    /// Moves the data in a thread of their own, and meanwhile listens to the other side and to the user.
    pub fn run(
        &mut self,
        inlet: MoverInlet,
        outlet: MoverOutlet,
        options: &MoverOptions,
    ) -> Result<CarriedStream, Error> {
        let (gauge, done, began) = (Gauge::default(), Cancel::new()?, Instant::now());
        let cpu = cpu_seconds();
        let (outcome, given_up) = thread::scope(|scope| {
            let (fired, gauge, cancel) = (Fired(done.clone()), &gauge, self.cancel);
            let mover = thread::Builder::new().name("mover".to_owned()).spawn_scoped(scope, move || {
                let _fired = fired;
                mover::run(inlet, vec![outlet], options, gauge, cancel)
            });
            let mover = mover.map_err(Error::system("a new thread"))?;
            let given_up = self.attend(&done, gauge, began);
            let outcome = mover.join().map_err(|_| Error::System {
                call: "the mover",
                source: io::Error::other("it ended without a word"),
            });
            outcome.map(|outcome| (outcome, given_up))
        })?;
        let seconds = began.elapsed().as_secs_f64();
        let mut figures = self.figures(&gauge, seconds);
        figures.bytes = figures.bytes.max(outcome.bytes);
        figures.digest = outcome.digest.clone().map(|digest| StreamDigest::new(self.facts.digest, digest));
        figures.cpu = cpu_seconds() - cpu;
        let failure = self.cause(outcome, given_up);
        if let (Some(failure), HopSide::Sender) = (&failure, self.facts.side) {
            self.talk.tell_the_end(Some(failure));
        }
        Ok(CarriedStream { figures, seconds, failure })
    }

    /// Waits until the mover has ended. Returns why it was told to end, if it was.
    fn attend(&mut self, done: &Cancel, gauge: &Gauge, began: Instant) -> Option<Error> {
        let (mut given_up, mut told_at) = (None, began);
        while !done.is_fired() {
            if let Err(error) = self.talk.attend(done) {
                self.cancel.fire();
                given_up = given_up.or(Some(error));
            }
            if told_at.elapsed() >= PROGRESS_INTERVAL {
                told_at = Instant::now();
                let figures = self.figures(gauge, began.elapsed().as_secs_f64());
                self.teller.progress(&[figures]);
            }
        }
        given_up
    }

    fn figures(&self, gauge: &Gauge, seconds: f64) -> HopFigures {
        let MoverFigures { bytes, wire_bytes, inlet_wait_ns, outlet_wait_ns } = gauge.read();
        let (inlet_wait, outlet_wait) = (inlet_wait_ns as f64 / 1e9, outlet_wait_ns as f64 / 1e9);
        let (reader_wait, network_wait, writer_wait) = match self.facts.side {
            HopSide::Sender => (inlet_wait, outlet_wait, 0.0),
            HopSide::Receiver => (0.0, inlet_wait, outlet_wait),
        };
        HopFigures {
            from: self.facts.from.clone(),
            to: self.facts.to.clone(),
            transport: self.facts.transport.clone(),
            is_measured: true,
            bytes,
            wire_bytes,
            seconds,
            reader_wait,
            network_wait,
            writer_wait,
            cpu: 0.0,
            total: self.facts.total,
            digest: None,
        }
    }

    /// Returns why the stream failed: first what the user or the other side wanted, then the error of this side; if
    /// that is only that the other side is gone, the reason of the other side.
    fn cause(&mut self, outcome: MoverOutcome, given_up: Option<Error>) -> Option<Error> {
        let failed =
            outcome.inlet.err().into_iter().chain(outcome.outlets.into_iter().filter_map(Result::err));
        let failed =
            failed.reduce(|first, next| if matches!(first, Error::Cancelled) { next } else { first });
        match (failed, given_up) {
            (None, _) => None,
            (Some(_), Some(reason @ (Error::Cancelled | Error::Told(_)))) => Some(reason),
            (Some(Error::Cancelled), Some(reason)) => Some(reason),
            (Some(failed @ (Error::Truncated { .. } | Error::Told(_) | Error::Cancelled)), _) => {
                Some(self.talk.reason().unwrap_or(failed))
            }
            (Some(failed), _) => Some(failed),
        }
    }
}

impl CarriedStream {
    /// Runs a last step if all data moved; its failure is the stream's.
    pub fn and(mut self, rest: impl FnOnce() -> Result<(), Error>) -> Self {
        if self.failure.is_none() {
            self.failure = rest().err();
        }
        self
    }

    /// Returns why the stream failed, if it did.
    pub fn failure(&self) -> Option<&Error> {
        self.failure.as_ref()
    }
}

/// Reports the result and returns the exit status.
pub fn tell(ending: Ending, moved: Result<CarriedStream, Error>) -> ExitCode {
    ending.tell(moved.map(|CarriedStream { figures, seconds, failure }| PipelineSummary {
        status: failure.as_ref().map_or(0, status),
        failures: failure.iter().map(Error::to_string).collect(),
        hops: vec![figures],
        stream_seconds: seconds,
        ..PipelineSummary::default()
    }))
}

/// Returns the processor time of all threads, including those that have ended.
fn cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Returns 1 for an error of a file or pipe on either side, 130 after Ctrl-C, 255 for an error between the two hosts.
fn status(error: &Error) -> u8 {
    match error {
        Error::Cancelled => 130,
        Error::System { .. } | Error::File { .. } | Error::Told(_) => 1,
        _ => 255,
    }
}

/// The output of `recv`, and a snapshot of a store. A part file is removed again unless it is [complete](Self::complete).
#[derive(Debug)]
pub enum RecvOutput {
    /// Standard output, or something that cannot be renamed: a device, a pipe.
    Direct(OwnedFd),
    /// A part file, which becomes the file of that name.
    Part(PartFile),
}

/// FILE.part, until it is renamed to FILE.
#[derive(Debug)]
pub struct PartFile {
    file: File,
    folder: OwnedFd,
    name: OsString,
    to: PathBuf,
    is_complete: bool,
}

impl RecvOutput {
    /// Opens the output: standard output if there is no path.
    pub fn open(path: Option<&Path>) -> Result<Self, Error> {
        let Some(path) = path else {
            let output = stdout().as_fd().try_clone_to_owned();
            return Ok(Self::Direct(output.map_err(Error::system("fcntl(F_DUPFD)"))?));
        };
        let failed = |source| Error::File { what: "write", path: path.to_owned(), source };
        // The file that a symbolic link names is replaced, not the link.
        let is_link = trust::is_link(path).map_err(failed)?;
        let real = if is_link { fs::canonicalize(path).ok() } else { None };
        let path = real.unwrap_or_else(|| path.to_owned());
        let failed = |source| Error::File { what: "write", path: path.clone(), source };
        let facts = if is_link { fs::metadata(&path) } else { fs::symlink_metadata(&path) };
        match facts {
            Ok(facts) if facts.is_dir() => Err(failed(io::ErrorKind::IsADirectory.into())),
            Ok(facts) if facts.is_file() => Ok(Self::Part(PartFile::open(path, Some(&facts))?)),
            Ok(facts) => {
                let file = OpenOptions::new().write(true).open(&path).map_err(failed)?;
                let opened = file.metadata().map_err(failed)?;
                if (opened.dev(), opened.ino()) != (facts.dev(), facts.ino()) {
                    return Err(failed(io::Error::other("it has become something else meanwhile")));
                }
                Ok(Self::Direct(file.into()))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Ok(Self::Part(PartFile::open(path, None)?))
            }
            Err(error) => Err(failed(error)),
        }
    }

    /// Returns a descriptor for the mover.
    pub fn descriptor(&self) -> Result<OwnedFd, Error> {
        let fd = match self {
            Self::Direct(fd) => fd.as_fd(),
            Self::Part(part) => part.file.as_fd(),
        };
        fd.try_clone_to_owned().map_err(Error::system("fcntl(F_DUPFD)"))
    }

    /// Writes the data to the disk before the part file is renamed, and the new name after it.
    pub fn complete_on_disk(self) -> Result<(), Error> {
        let Self::Part(part) = &self else { return self.complete() };
        let to = part.to.clone();
        let failed = |source| Error::File { what: "write", path: to.clone(), source };
        part.file.sync_all().map_err(failed)?;
        let folder = part.folder.try_clone().map_err(failed)?;
        self.complete()?;
        rustix::fs::fsync(&folder).map_err(|errno| failed(errno.into()))
    }

    /// Renames the part file, because all data have arrived.
    pub fn complete(self) -> Result<(), Error> {
        match self {
            Self::Direct(_) => Ok(()),
            Self::Part(mut part) => {
                let failed = |source| Error::File { what: "write", path: part.to.clone(), source };
                let name = part.to.file_name().unwrap_or_default();
                rustix::fs::renameat(&part.folder, &part.name, &part.folder, name)
                    .map_err(|errno| failed(errno.into()))?;
                part.is_complete = true;
                Ok(())
            }
        }
    }
}

impl PartFile {
    /// Creates the part file. Another user may own the directory and change its names at any moment: a file that is
    /// there is neither written to nor followed, and is removed only if this user owns it.
    fn open(to: PathBuf, old: Option<&fs::Metadata>) -> Result<Self, Error> {
        let failed = |source| Error::File { what: "write", path: to.clone(), source };
        let (above, name) = match (to.parent(), to.file_name()) {
            (Some(above), Some(name)) => (if above == Path::new("") { Path::new(".") } else { above }, name),
            _ => return Err(failed(io::ErrorKind::InvalidInput.into())),
        };
        let name = [name, OsStr::new(".part")].into_iter().collect::<OsString>();
        let part_failed = |source| Error::File { what: "write", path: above.join(&name), source };
        let folder: OwnedFd = File::open(above).map_err(failed)?.into();
        let around = rustix::fs::fstat(&folder).map_err(|errno| failed(errno.into()))?;
        let file = create(&folder, &name).map_err(part_failed)?;
        // A part file that another process still writes is not removed.
        flock(&file, FlockOperation::NonBlockingLockExclusive).map_err(|errno| part_failed(locked(errno)))?;
        // Another user may have replaced the old file by any file, with wider permissions.
        let old = old.filter(|facts| facts.uid() == rustix::process::geteuid().as_raw());
        if let Some(old) = old.filter(|_| trust::keeps_own(&around)) {
            file.set_permissions(old.permissions()).map_err(part_failed)?;
        }
        Ok(Self { file, folder, name, to, is_complete: false })
    }
}

impl Drop for PartFile {
    fn drop(&mut self) {
        if !self.is_complete {
            let _ = rustix::fs::unlinkat(&self.folder, &self.name, AtFlags::empty());
        }
    }
}

/// Creates the file, and replaces one that was left behind.
fn create(folder: &OwnedFd, name: &OsStr) -> io::Result<File> {
    let new = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mode = Mode::from_raw_mode(0o666);
    match rustix::fs::openat(folder, name, new, mode) {
        Err(Errno::EXIST) => {}
        created => return Ok(created.map(File::from)?),
    }
    let is_in_the_way = || io::Error::other("it is there, and no part file of this user: remove it");
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let left = rustix::fs::openat(folder, name, flags, Mode::empty()).map_err(|_| is_in_the_way())?;
    let left = File::from(left);
    let facts = left.metadata()?;
    if !facts.is_file() || facts.nlink() != 1 || facts.uid() != rustix::process::geteuid().as_raw() {
        return Err(is_in_the_way());
    }
    flock(&left, FlockOperation::NonBlockingLockExclusive).map_err(locked)?;
    rustix::fs::unlinkat(folder, name, AtFlags::empty())?;
    Ok(rustix::fs::openat(folder, name, new, mode)?.into())
}

fn locked(errno: Errno) -> io::Error {
    match errno {
        Errno::WOULDBLOCK => io::Error::other("another process is writing it"),
        other => other.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use caravan_bench::scratch::Scratch;
    use std::io::Write;
    use std::os::unix::fs::PermissionsExt;

    fn write(output: &RecvOutput, bytes: &[u8]) {
        File::from(output.descriptor().expect("a descriptor")).write_all(bytes).expect("written");
    }

    #[test]
    fn what_was_there_stays_until_the_new_one_is_whole_and_keeps_its_mode() {
        use std::os::unix::fs::symlink;
        let scratch = Scratch::create().expect("a folder");
        let (path, link) = (scratch.path().join("f"), scratch.path().join("l"));
        fs::write(&path, b"old").expect("written");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).expect("set");
        symlink(&path, &link).expect("linked");
        let output = RecvOutput::open(Some(&link)).expect("opened");
        write(&output, b"new");
        assert_eq!(fs::read(&path).expect("there"), b"old");
        output.complete().expect("renamed");
        assert_eq!(fs::read(&path).expect("there"), b"new");
        assert_eq!(fs::metadata(&path).expect("there").permissions().mode() & 0o777, 0o640);
        assert!(fs::symlink_metadata(&link).expect("there").is_symlink());
    }

    #[test]
    fn two_do_not_receive_one_file() {
        let scratch = Scratch::create().expect("a folder");
        let path = scratch.path().join("f");
        let first = RecvOutput::open(Some(&path)).expect("opened");
        write(&first, b"first");
        let refusal = RecvOutput::open(Some(&path)).expect_err("locked").to_string();
        assert!(refusal.contains("another process is writing it"), "{refusal}");
        first.complete().expect("renamed");
        assert_eq!(fs::read(&path).expect("there"), b"first");
    }

    #[test]
    fn what_lies_in_the_place_of_the_part_is_not_touched() {
        use std::os::unix::fs::symlink;
        let scratch = Scratch::create().expect("a folder");
        let (path, part) = (scratch.path().join("f"), scratch.path().join("f.part"));
        let victim = scratch.path().join("victim");
        fs::write(&victim, b"untouched").expect("written");
        symlink(&victim, &part).expect("linked");
        let refusal = RecvOutput::open(Some(&path)).expect_err("a link").to_string();
        assert!(refusal.contains("remove it"), "{refusal}");
        fs::remove_file(&part).expect("removed");
        fs::hard_link(&victim, &part).expect("linked");
        RecvOutput::open(Some(&path)).expect_err("another name of a file");
        assert_eq!(fs::read(&victim).expect("there"), b"untouched");
        assert!(part.exists());
        // A part file that was left behind is replaced, not written into.
        fs::remove_file(&part).expect("removed");
        fs::write(&part, b"left behind").expect("written");
        let held = File::open(&part).expect("opened");
        let output = RecvOutput::open(Some(&path)).expect("opened");
        assert_eq!(held.metadata().expect("looked at").len(), 11);
        drop(output);
        assert!(!part.exists());
    }

    /// The owner of the folder swaps its names all the time.
    #[test]
    fn a_hostile_owner_of_the_folder_gains_nothing() {
        use std::os::unix::fs::symlink;
        use std::sync::atomic::{AtomicBool, Ordering};
        let scratch = Scratch::create().expect("a folder");
        let (victim, folder) = (scratch.path().join("victim"), scratch.path().join("folder"));
        fs::write(&victim, b"untouched").expect("written");
        fs::create_dir(&folder).expect("made");
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o777)).expect("set");
        let before = fs::metadata(&victim).expect("there");
        let (path, part) = (folder.join("f"), folder.join("f.part"));
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    let _ = fs::remove_file(&part);
                    let _ = symlink(&victim, &part);
                    let _ = fs::rename(&part, &path);
                    let _ = fs::remove_file(&path);
                    let _ = fs::hard_link(&victim, &part);
                }
            });
            for _ in 0..1000 {
                if let Ok(output) = RecvOutput::open(Some(&path)) {
                    write(&output, b"received");
                    let _ = output.complete();
                }
            }
            is_over.store(true, Ordering::Relaxed);
        });
        let after = fs::metadata(&victim).expect("there");
        assert_eq!(fs::read(&victim).expect("there"), b"untouched");
        assert_eq!((after.mode(), after.mtime()), (before.mode(), before.mtime()));
    }

    #[test]
    fn devices_are_written_and_folders_refused() {
        let device = RecvOutput::open(Some(Path::new("/dev/null"))).expect("opened");
        assert!(matches!(device, RecvOutput::Direct(_)));
        device.complete().expect("nothing to rename");
        let scratch = Scratch::create().expect("a folder");
        assert!(RecvOutput::open(Some(scratch.path())).is_err());
        assert!(RecvOutput::open(Some(&scratch.path().join("none/f"))).is_err());
    }
}
