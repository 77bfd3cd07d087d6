//! Folders, copies and their content, for all tests of trees.

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use caravan_pipe::Error;
use caravan_pipe::tree::options::{Name, SinkOptions, SourceOptions};
use caravan_pipe::tree::{self};
use rustix::pipe::{PipeFlags, pipe_with};

/// A folder for one test, which is removed at its end.
pub struct ScratchFolder(pub PathBuf);

impl ScratchFolder {
    pub fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("caravan-tree-{}-{number}", std::process::id()));
        fs::create_dir_all(&path).expect("a folder");
        Self(path)
    }

    pub fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for ScratchFolder {
    fn drop(&mut self) {
        fn open(path: &Path) {
            if path.symlink_metadata().is_ok_and(|data| data.is_dir()) {
                let _ = fs::set_permissions(path, fs::Permissions::from_mode(0o700));
                fs::read_dir(path).into_iter().flatten().flatten().for_each(|entry| open(&entry.path()));
            }
        }
        open(&self.0);
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The copy that a test wants.
#[derive(Clone)]
pub struct Wanted {
    pub sources: Vec<PathBuf>,
    pub destination: PathBuf,
    pub recursive: bool,
    pub update: bool,
    pub into_directory: bool,
}

impl Wanted {
    pub fn tree(source: &Path, destination: &Path) -> Self {
        Self {
            sources: vec![source.to_owned()],
            destination: destination.to_owned(),
            recursive: true,
            update: false,
            into_directory: false,
        }
    }

    pub fn file(source: &Path, destination: &Path) -> Self {
        Self { recursive: false, ..Self::tree(source, destination) }
    }

    pub fn source_options(&self) -> String {
        let options = SourceOptions {
            paths: self.sources.iter().map(|path| Name(path.as_os_str().as_bytes().to_vec())).collect(),
            recursive: self.recursive,
            update: self.update,
            jobs: Some(3),
        };
        serde_json::to_string(&options).expect("JSON")
    }

    pub fn sink_options(&self) -> String {
        let name = |path: &PathBuf| {
            let text = path.as_os_str().as_bytes();
            let name = path.file_name().filter(|_| !text.ends_with(b"/."));
            name.map(|name| Name(name.as_bytes().to_vec()))
        };
        let options = SinkOptions {
            destination: Name(self.destination.as_os_str().as_bytes().to_vec()),
            names: self.sources.iter().map(name).collect(),
            into_directory: self.into_directory,
            recursive: self.recursive,
            jobs: Some(3),
            verbose: false,
            fsync: false,
        };
        serde_json::to_string(&options).expect("JSON")
    }

    /// Runs both halves, joined by pipes. Returns how each ended, and all bytes that the source sent.
    pub fn run(&self) -> Ran {
        self.run_cut(usize::MAX)
    }

    /// Runs both halves, with a stream that ends after `cut` bytes.
    pub fn run_cut(&self, cut: usize) -> Ran {
        let ((data_out, data_in), (have_out, have_in)) = (pipe(), pipe());
        let (source_options, sink_options) = (self.source_options(), self.sink_options());
        let sent = Arc::new(Mutex::new(Vec::new()));
        let tee = Tee { to: Some(File::from(data_in)), sent: Arc::clone(&sent), left: cut };
        let (source, sink) = std::thread::scope(|scope| {
            let source = scope.spawn(move || tree::source(&source_options, File::from(have_out), tee));
            let sink = tree::sink(&sink_options, File::from(data_out), File::from(have_in));
            (source.join().expect("no panic"), sink)
        });
        let sent = std::mem::take(&mut *sent.lock().expect("unpoisoned"));
        Ran { source, sink, sent }
    }

    /// Sends a recorded stream to a sink.
    pub fn replay(&self, stream: impl Read + Send) -> Result<(), Error> {
        tree::sink(&self.sink_options(), stream, io::sink())
    }
}

/// The result of a copy.
pub struct Ran {
    pub source: Result<(), Error>,
    pub sink: Result<(), Error>,
    pub sent: Vec<u8>,
}

impl Ran {
    pub fn ok(self) -> Vec<u8> {
        self.source.expect("the source");
        self.sink.expect("the sink");
        self.sent
    }
}

fn pipe() -> (OwnedFd, OwnedFd) {
    pipe_with(PipeFlags::CLOEXEC).expect("a pipe")
}

/// Records what is sent, and closes at the cut.
struct Tee {
    to: Option<File>,
    sent: Arc<Mutex<Vec<u8>>>,
    left: usize,
}

impl Write for Tee {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = bytes.len().min(self.left);
        self.left -= count;
        self.sent.lock().expect("unpoisoned").extend_from_slice(&bytes[..count]);
        if let Some(to) = &mut self.to {
            to.write_all(&bytes[..count])?;
        }
        if count < bytes.len() {
            self.to = None;
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Everything that a copy keeps of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    pub what: What,
    pub mode: u32,
    pub modified: (i64, i64),
    /// For paths of the same file: the first of them.
    pub twin: Option<PathBuf>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    Folder,
    File(Vec<u8>),
    Link(PathBuf),
    Fifo,
    Other,
}

/// Returns everything in a tree.
pub fn tree_of(top: &Path) -> BTreeMap<PathBuf, Kept> {
    let (mut found, mut paths) = (BTreeMap::new(), vec![PathBuf::new()]);
    while let Some(path) = paths.pop() {
        let full = top.join(&path);
        let data = full.symlink_metadata().unwrap_or_else(|error| panic!("{}: {error}", full.display()));
        let kind = data.file_type();
        let what = if kind.is_dir() {
            let entries = fs::read_dir(&full).expect("listed");
            paths.extend(entries.map(|entry| path.join(entry.expect("an entry").file_name())));
            What::Folder
        } else if kind.is_file() {
            What::File(fs::read(&full).expect("read"))
        } else if kind.is_symlink() {
            What::Link(fs::read_link(&full).expect("a link"))
        } else if kind.is_fifo() {
            What::Fifo
        } else {
            What::Other
        };
        let mode = if kind.is_symlink() { 0 } else { data.mode() & 0o7777 };
        found.insert(
            path,
            (data.ino(), Kept { what, mode, modified: (data.mtime(), data.mtime_nsec()), twin: None }),
        );
    }
    let mut first = HashMap::new();
    let found = found.into_iter().map(|(path, (inode, mut kept))| {
        kept.twin = Some(first.entry(inode).or_insert_with(|| path.clone()).clone());
        (path, kept)
    });
    found.collect()
}

/// Returns bytes that differ from their neighbours, so that no part is mistaken for another.
pub fn bytes(count: usize, seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as u32
    };
    let mut all: Vec<u8> = (0..count.div_ceil(4)).flat_map(|_| next().to_le_bytes()).collect();
    all.truncate(count);
    all
}

pub fn set_modified(path: &Path, seconds: i64, nanoseconds: u32) {
    use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, utimensat};
    let time = Timespec { tv_sec: seconds, tv_nsec: nanoseconds.into() };
    let times = Timestamps { last_access: time, last_modification: time };
    utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW).expect("times");
}
