//! Which engines run.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use caravan_segment::printable;

use crate::error::{Error, system};
use crate::layout::{self, MAGIC, SEGMENT_NAME, engine};

/// An engine that runs.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct FoundEngine {
    /// The process of its supervisor.
    pub pid: i32,
    /// The command line of the supervisor, cut to fit a line.
    pub command: String,
    /// Its memory, as a link in `/proc/PID/fd`.
    #[serde(skip)]
    pub(crate) memory: PathBuf,
}

/// Characters of a command that are kept.
const COMMAND_LETTERS_MAX: usize = 200;

/// Returns all engines of this user, in the order of their processes' numbers. Engines of other users are
/// left out, as the kernel lets only root look into them.
pub fn engines() -> Vec<FoundEngine> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let mut all: Vec<FoundEngine> =
        pids.flat_map(|pid| memories(pid).into_iter().filter_map(move |at| supervised(pid, at))).collect();
    all.sort_by(|a, b| (a.pid, &a.memory).cmp(&(b.pid, &b.memory)));
    all
}

/// Returns the engine that a user means: that of a process, which is the supervisor or one of its workers, or the
/// only one there is.
pub fn find(pid: Option<i32>) -> Result<FoundEngine, Error> {
    let mut engines = engines();
    let Some(pid) = pid else {
        return match engines.len() {
            0 => Err(Error::NoEngine(
                "no engine of your user runs on this host: start one with `caravan engine run FILE`".into(),
            )),
            1 => Ok(engines.remove(0)),
            _ => Err(Error::NoEngine(several(&engines))),
        };
    };
    let inodes: Vec<_> = memories(pid).iter().filter_map(|path| inode(path)).collect();
    let theirs =
        |found: &FoundEngine| found.pid == pid || inode(&found.memory).is_some_and(|it| inodes.contains(&it));
    engines.into_iter().find(theirs).ok_or_else(|| {
        Error::NoEngine(format!(
            "process {pid} is no engine, or has ended, or is not yours, or has capabilities that this program lacks: `caravan engine top` without a number finds those that can be looked into"
        ))
    })
}

fn several(engines: &[FoundEngine]) -> String {
    let lines: Vec<_> = engines.iter().map(|found| format!("\n  {}  {}", found.pid, found.command)).collect();
    format!("{} engines run; say which by the number of its process:{}", engines.len(), lines.concat())
}

/// Returns the engine of a memory, if `pid` is its supervisor: workers and tracers have the memory
/// open, too.
fn supervised(pid: i32, path: PathBuf) -> Option<FoundEngine> {
    let memory = EngineMemory::open(&path)?;
    let supervisor = memory.word(layout::engine::PID).ok()?;
    (own_number(pid) == Some(supervisor)).then(|| FoundEngine { pid, command: command(pid), memory: path })
}

/// Returns every engine's memory that a process has open, each once.
fn memories(pid: i32) -> Vec<PathBuf> {
    let name = format!("/memfd:{SEGMENT_NAME} (deleted)");
    let Ok(entries) = fs::read_dir(format!("/proc/{pid}/fd")) else { return Vec::new() };
    let paths = entries.flatten().map(|entry| entry.path());
    let paths = paths.filter(|path| fs::read_link(path).is_ok_and(|target| target == Path::new(&name)));
    let mut paths: Vec<_> = paths.filter_map(|path| Some((inode(&path)?, path))).collect();
    paths.sort();
    paths.dedup_by_key(|(inode, _)| *inode);
    paths.into_iter().map(|(_, path)| path).collect()
}

/// Returns the device and inode of a file, which identify it.
fn inode(path: &Path) -> Option<(u64, u64)> {
    let file = fs::metadata(path).ok()?;
    Some((file.dev(), file.ino()))
}

/// Returns a process's number as the process itself sees it, which differs in a container (`NSpid`, proc(5)).
fn own_number(pid: i32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
    numbers.split_whitespace().last()?.parse().ok()
}

fn command(pid: i32) -> String {
    let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let text = String::from_utf8_lossy(&words).trim_end_matches('\0').replace('\0', " ");
    printable(text).chars().take(COMMAND_LETTERS_MAX).collect()
}

/// An engine's memory, opened for reading.
#[derive(Debug)]
pub(super) struct EngineMemory(File);

impl EngineMemory {
    /// Opens the file behind `/proc/PID/fd/N`. Returns `None` if it cannot be opened, or holds no engine of
    /// this version.
    pub fn open(path: &Path) -> Option<Self> {
        let memory = Self(File::open(path).ok()?);
        (memory.word(engine::MAGIC).ok()? == MAGIC).then_some(memory)
    }

    /// Returns the bytes at `at`.
    pub fn place<const BYTES: usize>(&self, at: usize) -> Result<MemoryPart<BYTES>, Error> {
        let mut bytes = [0; BYTES];
        self.0.read_exact_at(&mut bytes, at as u64).map_err(system("pread"))?;
        Ok(MemoryPart(bytes))
    }

    /// Returns the word at `at`.
    pub fn word(&self, at: usize) -> Result<u64, Error> {
        self.place::<8>(at).map(|part| part.word(0))
    }
}

/// Words and bytes that were read at once.
pub(super) struct MemoryPart<const BYTES: usize>([u8; BYTES]);

impl<const BYTES: usize> MemoryPart<BYTES> {
    /// Returns the word at `offset`, which must be inside.
    pub fn word(&self, offset: usize) -> u64 {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(self.bytes(offset, 8));
        u64::from_ne_bytes(bytes)
    }

    /// Returns the bytes at `offset`, which must be inside.
    pub fn bytes(&self, offset: usize, bytes: usize) -> &[u8] {
        &self.0[offset..offset + bytes]
    }
}

/// Returns the text of a field: its bytes up to the first zero.
pub(crate) fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    printable(&bytes[..end])
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;
    use crate::view::fake::Fake;

    #[test]
    fn a_supervisor_is_found_and_who_else_has_its_memory_open_leads_to_it() {
        let fake = Fake::new(4);
        let ours = std::process::id() as i32;
        let same = |found: &FoundEngine| inode(&found.memory) == inode(&fake.found().memory);
        assert!(!engines().iter().any(same), "without its magic word it is not ready");
        fake.start();
        assert_eq!(engines().into_iter().find(same).map(|found| found.pid), Some(ours));

        let mut child =
            Command::new("cat").stdin(Stdio::from(fake.file())).stdout(Stdio::piped()).spawn().unwrap();
        // The child copies the whole memory, and stops as soon as its output is closed.
        let all = engines();
        assert_eq!(all.iter().filter(|found| same(found)).count(), 1, "{all:?}");
        let found = find(Some(child.id() as i32)).unwrap();
        assert!(same(&found) && found.pid == ours, "{found:?}");
        assert!(!found.command.is_empty());
        child.kill().unwrap();
        child.wait().unwrap();

        fake.shared.engine(layout::engine::MAGIC).store(1, std::sync::atomic::Ordering::Relaxed);
        assert!(!engines().iter().any(same), "another version's memory is not read");
    }

    #[test]
    fn who_is_no_engine_is_said_to_be_none() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let pid = child.id();
        let refused = find(Some(pid as i32)).unwrap_err().to_string();
        assert!(refused.starts_with(&format!("process {pid} is no engine")), "{refused}");
        drop(child.stdin.take());
        child.wait().unwrap();
    }

    #[test]
    fn several_engines_are_told_apart_by_their_commands() {
        let engine =
            |pid, command: &str| FoundEngine { pid, command: command.into(), memory: PathBuf::new() };
        let text = several(&[engine(7, "caravan engine run a.toml"), engine(9, "other")]);
        assert!(text.starts_with("2 engines run"), "{text}");
        assert!(text.ends_with("\n  7  caravan engine run a.toml\n  9  other"), "{text}");
    }
}
