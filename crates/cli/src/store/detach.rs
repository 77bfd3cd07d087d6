//! `caravan store serve --detach`: the same command again, in a session of its own.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use caravan_bench::Error as Shared;

use crate::error::Error;
use crate::store::sentence;

/// Starts this command in the background, and prints its first line once it is ready. Its errors up to then go where those
/// of this process go.
pub fn start() -> Result<(), Error> {
    let words: Vec<_> = std::env::args_os().collect();
    // `caravan store serve`, and its options.
    let (command, options) = words.split_at(words.len().min(3));
    let failed = |source| Shared::File { what: "run", path: "/proc/self/exe".into(), source };
    let mut child = Command::new("/proc/self/exe")
        .arg0("caravan")
        .args(command.iter().skip(1))
        .arg("--detached")
        .args(options)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    let mut line = String::new();
    if let Some(output) = child.stdout.take() {
        BufReader::new(output).read_line(&mut line).map_err(failed)?;
    }
    if line.is_empty() {
        // It has said why.
        let _ = child.wait();
        return Err(Error::Said);
    }
    crate::print(&line)
}

/// Where the messages of a store in the background go.
pub struct DetachedOutput {
    log: File,
}

impl DetachedOutput {
    /// Leaves the terminal's session, and opens the log.
    pub fn begin(log: Option<&Path>) -> Result<Self, Error> {
        rustix::process::setsid().map_err(|error| sentence(format!("setsid: {error}")))?;
        let path = log.map_or_else(|| PathBuf::from("/dev/null"), Path::to_owned);
        let opened = OpenOptions::new().append(true).create(true).mode(0o600).open(&path);
        let log = opened.map_err(|source| Shared::File { what: "write", path, source })?;
        Ok(Self { log })
    }

    /// Returns a descriptor of the log for the server.
    pub fn descriptor(&self) -> Result<OwnedFd, Error> {
        Ok(self.log.try_clone().map_err(sentence)?.into())
    }

    /// Lets go of the terminal, once the first line is printed.
    pub fn let_go(&self) -> Result<(), Error> {
        rustix::stdio::dup2_stdout(&self.log)
            .and_then(|()| rustix::stdio::dup2_stderr(&self.log))
            .map_err(sentence)
    }
}
