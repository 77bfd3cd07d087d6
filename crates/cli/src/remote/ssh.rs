//! A process of ssh.

use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::SshOptions;
use super::complaints::{Complaints, remedy};

/// What is run there: it fits into the quotes of every login shell.
const LINE: &str = "exec /bin/sh -c 'read -r caravan && eval \"$caravan\"'";
/// What is run here: Ctrl-C and Ctrl-Z at the terminal are for whoever called this, which ends or pauses
/// everything in order.
const SHIELD: &str = "trap '' INT TSTP; exec \"$0\" \"$@\"";
/// The same for one that asks nobody: a command beside it that reads from the terminal in the background does not
/// stop it either.
const SHIELD_MUTE: &str = "trap '' INT TSTP TTIN TTOU; exec \"$0\" \"$@\"";
/// Questions of ssh's that a host leaves unanswered before it is dead.
const ASKS: u32 = 3;
/// How long ssh may take to end once it was told to: it gives the terminal its echo back.
const TERM_LIMIT: Duration = Duration::from_millis(200);
/// Between two looks at whether it has ended.
const LOOK: Duration = Duration::from_millis(2);

/// Ended when it is dropped.
#[derive(Debug)]
pub struct Ssh {
    host: String,
    child: Child,
    complaints: Complaints,
    /// The other side has ended.
    pub is_over: Arc<AtomicBool>,
}

impl Ssh {
    /// Starts it. It asks nobody for anything unless `may_ask`.
    pub fn start(
        options: &SshOptions,
        host: &str,
        may_ask: bool,
    ) -> io::Result<(Self, ChildStdin, ChildStdout)> {
        find(&options.program)?;
        let mut command = command(options, host, may_ask);
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let (Some(input), Some(output), Some(errors)) = pipes else {
            return Err(io::Error::other("it has no pipes"));
        };
        let (host, complaints) = (host.to_owned(), Complaints::keep(errors));
        Ok((Self { host, child, complaints, is_over: Arc::default() }, input, output))
    }

    /// Why it ended: its own words, and what to do about the usual ones. To be asked once its output has
    /// ended; it gets so long to end itself.
    pub fn why_ended(&mut self, limit: Duration, why: Option<io::Error>) -> String {
        let status = self.wait(limit).map_or_else(String::new, |status| format!(" ({status})"));
        let complaints = self.complaints.last();
        let why = why.map_or_else(String::new, |error| format!(": {error}"));
        let remedy = remedy(&complaints, &self.host);
        let said = match complaints.as_str() {
            "" => String::new(),
            complaints => format!(" It said:\n{complaints}"),
        };
        format!("ssh ended{status}{why}.{remedy}{said}")
    }

    /// Makes sure that it ends; by itself if it does so in time. Its input should be closed.
    pub fn end(&mut self, limit: Duration) {
        if self.wait(limit).is_some() {
            return;
        }
        // With the other side gone it is only there for other sessions, which share its connection.
        if self.is_over.load(Ordering::Relaxed) {
            return;
        }
        let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
        if self.wait(TERM_LIMIT).is_none() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }

    /// Its status, if it ends in time.
    fn wait(&mut self, limit: Duration) -> Option<ExitStatus> {
        let deadline = Instant::now() + limit;
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) => return Some(status),
                Ok(None) if Instant::now() < deadline => std::thread::sleep(LOOK),
                Ok(None) | Err(_) => return None,
            }
        }
    }
}

impl Drop for Ssh {
    fn drop(&mut self) {
        self.end(Duration::ZERO);
    }
}

/// The user's options first: ssh takes the first of two.
fn command(options: &SshOptions, host: &str, may_ask: bool) -> Command {
    let mut command = Command::new("/bin/sh");
    command.args(["-c", if may_ask { SHIELD } else { SHIELD_MUTE }]).arg(&options.program);
    options.config.iter().for_each(|file| {
        command.arg("-F").arg(file);
    });
    options.options.iter().for_each(|option| {
        command.args(["-o", option]);
    });
    options.port.iter().for_each(|port| {
        command.args(["-p", &port.to_string()]);
    });
    options.identity.iter().for_each(|file| {
        command.arg("-i").arg(file);
    });
    options.jump.iter().for_each(|hosts| {
        command.args(["-J", hosts]);
    });
    for option in [
        "ConnectTimeout=20",
        &format!("ServerAliveInterval={}", (options.silence / ASKS).as_secs().max(1)),
        &format!("ServerAliveCountMax={ASKS}"),
        "ClearAllForwardings=yes",
        "RequestTTY=no",
        // The user's file may have another for people at a terminal.
        "RemoteCommand=none",
    ] {
        command.args(["-o", option]);
    }
    if !may_ask {
        command.args(["-o", "BatchMode=yes"]);
    }
    command.args(["--", host, LINE]);
    command
}

/// That a program can be started, which its shell would not say as clearly.
fn find(program: &Path) -> io::Result<()> {
    let is_there = |path: &PathBuf| {
        std::fs::metadata(path).is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
    };
    if program.components().count() > 1 || program.is_absolute() {
        let file = std::fs::metadata(program)?;
        return match file.is_file() && file.permissions().mode() & 0o111 != 0 {
            true => Ok(()),
            false => Err(io::ErrorKind::PermissionDenied.into()),
        };
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    match std::env::split_paths(&path).map(|folder| folder.join(program)).any(|path| is_there(&path)) {
        true => Ok(()),
        false => Err(io::Error::from_raw_os_error(rustix::io::Errno::NOENT.raw_os_error())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_fits_into_every_shells_quotes() {
        assert_eq!(LINE.matches('\'').count(), 2);
        // csh looks for old commands behind the one, fish for characters behind the other.
        assert!(!LINE.contains(['!', '\\', '\n']));
    }

    #[test]
    fn a_missing_program_is_found_missing() {
        assert!(find(Path::new("sh")).is_ok() && find(Path::new("/bin/sh")).is_ok());
        let missing = find(Path::new("no-such-ssh")).expect_err("missing");
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
        assert!(find(Path::new("/none/ssh")).is_err() && find(Path::new("/etc/passwd")).is_err());
    }
}
