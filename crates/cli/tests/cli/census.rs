//! A census of what exists on this machine because of a test: processes, sockets, files, shared memory. Taken before
//! and after, it shows what was left behind.
//!
//! A process belongs to a test if it descends from one of its sshds or from the command under test, or has the name of
//! the test's folder in its environment, its arguments or its program's path. So a process that has left its parents
//! is found as well.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::OFlags;
use rustix::process::{Pid, Signal, kill_process};

/// How long after the end of a pipeline everything must be gone: the promise is 5 s, and a slow machine with other
/// work may need a few times as long.
pub const GONE_WITHIN: Duration = Duration::from_secs(30);

/// The environment variable that gives local processes the name of the test's folder.
pub const MARK: &str = "CARAVAN_TEST_FOLDER";

/// A process as `/proc` shows it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Process {
    pub pid: i32,
    pub parent: i32,
    /// The start time in the kernel's ticks, because pids are used again.
    pub start: u64,
    /// The command line, for people.
    pub command: String,
    pub arguments: Vec<u8>,
    pub environment: Vec<u8>,
}

impl Process {
    fn read(pid: i32) -> Option<Self> {
        let at = PathBuf::from(format!("/proc/{pid}"));
        let stat = fs::read_to_string(at.join("stat")).ok()?;
        // The name is in parentheses, and may contain parentheses.
        let (head, rest) = stat.rsplit_once(')')?;
        let mut fields = rest.split_whitespace();
        // The fields are those of proc(5) without the first two.
        let parent = fields.nth(1)?.parse().ok()?;
        let start = fields.nth(17)?.parse().ok()?;
        let arguments = fs::read(at.join("cmdline")).ok()?;
        let words = String::from_utf8_lossy(&arguments).replace('\0', " ");
        let name = head.split_once('(').map_or("", |(_, name)| name);
        let command = if words.is_empty() { format!("[{name}]") } else { words.trim_end().to_owned() };
        // The environment of another user's process cannot be read, and such a process is none of ours.
        let environment = fs::read(at.join("environ")).unwrap_or_default();
        Some(Self { pid, parent, start, command, arguments, environment })
    }

    pub fn kill(&self, signal: Signal) {
        if let Some(pid) = Pid::from_raw(self.pid) {
            // The process may have ended meanwhile.
            let _ = kill_process(pid, signal);
        }
    }

    pub fn program(&self) -> Option<PathBuf> {
        fs::read_link(format!("/proc/{}/exe", self.pid)).ok()
    }

    /// Returns the process's descriptors as `pipe:[7]`, `socket:[8]`, `/memfd:x (deleted)` or paths. Descriptors that
    /// only name a file (`O_PATH`) hold no end of a pipe open, and are left out.
    pub fn descriptors(&self) -> Vec<(i32, String)> {
        let entries = fs::read_dir(format!("/proc/{}/fd", self.pid)).into_iter().flatten().flatten();
        let only_names = |number: i32| {
            let facts = fs::read_to_string(format!("/proc/{}/fdinfo/{number}", self.pid)).unwrap_or_default();
            let flags = facts.lines().find_map(|line| line.strip_prefix("flags:"));
            let flags = flags.and_then(|flags| u32::from_str_radix(flags.trim(), 8).ok()).unwrap_or(0);
            OFlags::from_bits_retain(flags).contains(OFlags::PATH)
        };
        let read = |entry: fs::DirEntry| {
            let number = entry.file_name().to_str()?.parse().ok()?;
            let target = fs::read_link(entry.path()).ok()?;
            (!only_names(number)).then(|| (number, target.to_string_lossy().into_owned()))
        };
        entries.filter_map(read).collect()
    }

    pub fn resident_bytes(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid)).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or("0 kB");
        line.trim().trim_end_matches(" kB").trim().parse::<u64>().unwrap_or(0) << 10
    }

    fn names(&self, mark: &[u8]) -> bool {
        let has = |bytes: &[u8]| bytes.windows(mark.len()).any(|part| part == mark);
        has(&self.environment) || has(&self.arguments)
    }
}

/// Returns all processes of this machine.
fn processes() -> Vec<Process> {
    let entries = fs::read_dir("/proc").expect("/proc").flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter_map(Process::read).collect()
}

/// Knows what belongs to a test, and what existed at first.
pub struct Census {
    mark: String,
    roots: Vec<i32>,
    before: BTreeMap<String, String>,
}

impl Census {
    /// Takes the first census; `roots` are the sshds.
    pub fn take(folder: &Path, roots: Vec<i32>) -> Self {
        let mark = folder.to_str().expect("UTF-8").to_owned();
        let mut census = Self { mark, roots, before: BTreeMap::new() };
        census.before = census.items();
        census
    }

    /// Returns the test's processes, except those of the test program itself.
    pub fn processes(&self) -> Vec<Process> {
        let own = std::process::id() as i32;
        let all = processes();
        let parents: BTreeMap<i32, i32> = all.iter().map(|process| (process.pid, process.parent)).collect();
        let descends = |mut pid: i32| {
            while pid > 1 {
                if self.roots.contains(&pid) {
                    return true;
                }
                pid = parents.get(&pid).copied().unwrap_or(0);
            }
            false
        };
        let mark = self.mark.as_bytes();
        let is_ours = |process: &Process| process.names(mark) || descends(process.pid);
        let mut ours: BTreeSet<i32> = all.iter().filter(|p| is_ours(p)).map(|p| p.pid).collect();
        // The children of these processes may lack the name.
        loop {
            let more: Vec<_> =
                all.iter().filter(|p| ours.contains(&p.parent) && !ours.contains(&p.pid)).collect();
            if more.is_empty() {
                break;
            }
            ours.extend(more.iter().map(|process| process.pid));
        }
        all.into_iter().filter(|process| process.pid != own && ours.contains(&process.pid)).collect()
    }

    /// Returns everything that can be left behind, by an identity, with a description. The name that a process shows
    /// may change, so it is not in the identity.
    fn items(&self) -> BTreeMap<String, String> {
        let mut items = BTreeMap::new();
        let sockets = sockets();
        for process in self.processes() {
            let id = format!("{} of {}", process.pid, process.start);
            let who = format!("{} ({})", process.pid, process.command);
            for (_, target) in process.descriptors() {
                if let Some(socket) = sockets.get(&target) {
                    items.insert(format!("{target} of {id}"), format!("TCP {socket} of process {who}"));
                }
                if target.starts_with("/memfd:") || target.starts_with("/dev/shm/") {
                    items.insert(format!("{target} of {id}"), format!("memory {target} of process {who}"));
                }
            }
            items.insert(id, format!("process {who}"));
        }
        let mut paths = Vec::new();
        files(Path::new(&self.mark), &mut paths);
        let shared = fs::read_dir("/dev/shm").into_iter().flatten().flatten().map(|entry| entry.path());
        paths.extend(shared.filter(|path| path.to_string_lossy().contains("caravan")));
        items.extend(paths.iter().map(|path| path.display().to_string()).map(|path| (path.clone(), path)));
        items
    }

    /// Returns what exists now and did not exist at first.
    pub fn left(&self) -> Vec<String> {
        let now = self.items().into_iter();
        now.filter(|(id, _)| !self.before.contains_key(id)).map(|(_, shown)| shown).collect()
    }

    /// Fails if the state of the first census is not reached within [`GONE_WITHIN`].
    pub fn check(&self, after: &str) {
        self.check_by(Instant::now() + GONE_WITHIN, after);
    }

    /// Fails if the state of the first census is not reached by `deadline`.
    pub fn check_by(&self, deadline: Instant, after: &str) {
        loop {
            let left = self.left();
            if left.is_empty() {
                break;
            }
            assert!(Instant::now() < deadline, "left behind after {after}:\n  {}", left.join("\n  "));
            std::thread::sleep(Duration::from_millis(10));
        }
        let now = self.items();
        let missing: Vec<_> = self.before.iter().filter(|(id, _)| !now.contains_key(*id)).collect();
        assert!(missing.is_empty(), "missing after {after}: {missing:?}");
    }
}

/// Returns `socket:[N]` of each TCP socket that listens or is connected, and its state.
fn sockets() -> BTreeMap<String, String> {
    let mut sockets = BTreeMap::new();
    for table in ["/proc/net/tcp", "/proc/net/tcp6"] {
        for line in fs::read_to_string(table).unwrap_or_default().lines().skip(1) {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let [_, local, remote, state, _, _, _, _, _, inode, ..] = fields[..] else { continue };
            let state = match state {
                "0A" => "listens",
                "01" => "is connected",
                _ => "is about to end",
            };
            sockets.insert(format!("socket:[{inode}]"), format!("{local} {state} ({remote})"));
        }
    }
    sockets
}

/// The folders of a host below which nothing may be left.
const SCRATCH: [&str; 3] = ["tmp", "run", "cache"];

/// Finds the files in hosts' scratch folders, except the cached program.
fn files(folder: &Path, found: &mut Vec<PathBuf>) {
    for host in fs::read_dir(folder).into_iter().flatten().flatten() {
        for scratch in SCRATCH {
            walk(&host.path().join(scratch), found);
        }
    }
}

fn walk(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() && !path.is_symlink() {
            walk(&path, found);
        } else if !is_cached_program(&path) {
            found.push(path);
        }
    }
}

/// True for `cache/caravan/HASH`, or a file below it that is as long and executable as a whole copy.
fn is_cached_program(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    let in_cache = path.components().any(|part| part.as_os_str() == "cache");
    let length = fs::metadata(env!("CARGO_BIN_EXE_caravan")).map_or(0, |file| file.len());
    let is_whole = |file: fs::Metadata| file.len() == length && file.permissions().mode() & 0o100 != 0;
    in_cache && fs::metadata(path).is_ok_and(is_whole)
}
