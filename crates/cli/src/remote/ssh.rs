//! The ssh process.

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use caravan_segment::printable;
use rustix::process::{Pid, Signal, kill_process};

use crate::remote::SshOptions;

/// The command line for the other host: it fits into the quotes of every login shell.
const LINE: &str = "exec /bin/sh -c 'read -r caravan && eval \"$caravan\"'";
/// The command line for this host. ssh ignores Ctrl-C and Ctrl-Z at the terminal, because the caller ends or pauses
/// everything in order.
const SHIELD: &str = "trap '' INT TSTP; exec \"$0\" \"$@\"";
/// The same for an ssh that may not ask the user: it does not stop either when a command beside it reads from the
/// terminal in the background.
const SHIELD_MUTE: &str = "trap '' INT TSTP TTIN TTOU; exec \"$0\" \"$@\"";
/// The number of ssh's keepalive messages that a dead host leaves unanswered.
const ASKS: u32 = 3;
/// How long ssh may take to end after SIGTERM: it restores the terminal's echo.
const TERM_LIMIT: Duration = Duration::from_millis(200);
/// The time between two checks whether a process has ended.
const LOOK: Duration = Duration::from_millis(2);

/// A running ssh. Dropping it ends the process.
#[derive(Debug)]
pub struct SshProcess {
    host: String,
    child: Child,
    complaints: SshComplaints,
    /// Set once the other side has ended.
    pub is_over: Arc<AtomicBool>,
}

impl SshProcess {
    /// Starts ssh. It may ask the user only if `may_ask`.
    pub fn start(
        options: &SshOptions,
        host: &str,
        may_ask: bool,
    ) -> io::Result<(Self, ChildStdin, ChildStdout)> {
        find(&options.args.program)?;
        let mut command = command(options, host, may_ask);
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let (Some(input), Some(output), Some(errors)) = pipes else {
            return Err(io::Error::other("it has no pipes"));
        };
        let (host, complaints) = (host.to_owned(), SshComplaints::keep(errors));
        Ok((Self { host, child, complaints, is_over: Arc::default() }, input, output))
    }

    /// Returns why ssh ended: its own words, and a remedy for the usual ones. To be called once its output has ended;
    /// ssh gets `limit` to end itself.
    pub fn why_ended(&mut self, limit: Duration, why: Option<io::Error>) -> String {
        let status =
            ended_within(&mut self.child, limit).map_or_else(String::new, |status| format!(" ({status})"));
        let complaints = self.complaints.last();
        let why = why.map_or_else(String::new, |error| format!(": {error}"));
        let remedy = remedy(&complaints, &self.host);
        let said = match complaints.as_str() {
            "" => String::new(),
            complaints => format!(" It said:\n{complaints}"),
        };
        format!("ssh ended{status}{why}.{remedy}{said}")
    }

    /// Waits until ssh ends by itself within `limit`, or ends it. Its input should be closed.
    pub fn end(&mut self, limit: Duration) {
        if ended_within(&mut self.child, limit).is_some() {
            return;
        }
        // If the other side has ended, ssh only serves other sessions that share its connection.
        if self.is_over.load(Ordering::Relaxed) {
            return;
        }
        let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
        if ended_within(&mut self.child, TERM_LIMIT).is_none() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// Returns the status of a process if it ends within `limit`.
pub fn ended_within(child: &mut Child, limit: Duration) -> Option<ExitStatus> {
    let deadline = Instant::now() + limit;
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status),
            Ok(None) if Instant::now() < deadline => std::thread::sleep(LOOK),
            Ok(None) | Err(_) => return None,
        }
    }
}

impl Drop for SshProcess {
    fn drop(&mut self) {
        self.end(Duration::ZERO);
    }
}

/// Builds the command. The user's options come first, because ssh takes the first of two.
fn command(options: &SshOptions, host: &str, may_ask: bool) -> Command {
    let args = &options.args;
    let mut command = Command::new("/bin/sh");
    command.args(["-c", if may_ask { SHIELD } else { SHIELD_MUTE }]).arg(&args.program);
    let port = options.port.map(|port| port.to_string());
    for (option, value) in [
        ("-F", args.config.as_deref().map(Path::as_os_str)),
        ("-p", port.as_deref().map(OsStr::new)),
        ("-i", args.identity.as_deref().map(Path::as_os_str)),
        ("-J", args.jump.as_deref().map(OsStr::new)),
    ] {
        command.args(value.into_iter().flat_map(|value| [OsStr::new(option), value]));
    }
    command.args(args.options.iter().flat_map(|option| ["-o", option]));
    for option in [
        "ConnectTimeout=20",
        &format!("ServerAliveInterval={}", (options.silence / ASKS).as_secs().max(1)),
        &format!("ServerAliveCountMax={ASKS}"),
        "ClearAllForwardings=yes",
        "RequestTTY=no",
        // The user's file may set one for people at a terminal.
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

/// Checks that a program can be started, because the shell's own message would be less clear.
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

/// The number of lines that are kept.
const LINES_MAX: usize = 20;
/// The number of bytes of a line that are kept.
const LINE_BYTES_MAX: u64 = 1 << 10;
/// How long the last lines may take to come after ssh's end: another process may hold the pipe open.
const LAST_LIMIT: Duration = Duration::from_secs(1);

/// The last lines of ssh's standard error.
#[derive(Debug)]
pub struct SshComplaints {
    lines: Arc<Mutex<VecDeque<String>>>,
    /// Disconnected once the last line is kept.
    all_kept: Receiver<()>,
}

impl SshComplaints {
    /// Keeps the lines that come from `from`, in a thread.
    pub fn keep(from: impl Read + Send + 'static) -> Self {
        let lines = Arc::new(Mutex::new(VecDeque::new()));
        let kept = Arc::clone(&lines);
        let (kept_all, all_kept) = mpsc::channel();
        std::thread::spawn(move || {
            keep(BufReader::new(from), &kept);
            drop::<mpsc::Sender<()>>(kept_all);
        });
        Self { lines, all_kept }
    }

    /// Returns all kept lines, once no more come.
    pub fn last(&self) -> String {
        let _ = self.all_kept.recv_timeout(LAST_LIMIT);
        let lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        lines.iter().map(String::as_str).collect::<Vec<_>>().join("\n")
    }
}

fn keep(mut from: impl BufRead, kept: &Mutex<VecDeque<String>>) {
    loop {
        let mut line = Vec::new();
        // A longer line is broken at the limit.
        match (&mut from).take(LINE_BYTES_MAX).read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.push_back(printable(line.trim_ascii_end()));
        if kept.len() > LINES_MAX {
            kept.pop_front();
        }
    }
}

/// Returns a remedy for the usual complaints: a sentence with a space in front, or nothing.
pub fn remedy(complaints: &str, host: &str) -> String {
    let table = [
        (
            "REMOTE HOST IDENTIFICATION HAS CHANGED",
            "Its key is another than the one you know: find out why first",
        ),
        ("Host key verification failed", "Its key is not known: connect once with ssh and accept it"),
        ("Permission denied", "It lets you not in: the same ssh must work first"),
        ("Could not resolve hostname", "Its name is not known"),
        ("Connection refused", "No sshd answers at that port"),
        ("No route to host", "No way leads there"),
        ("Network is unreachable", "No way leads there"),
        ("Connection timed out", "It does not answer"),
        ("timed out", "It does not answer"),
        ("not responding", "It no longer answers"),
    ];
    let found = table.iter().find(|(words, _)| complaints.contains(words));
    found.map_or_else(String::new, |(_, remedy)| format!(" {remedy} (`ssh {host} true`)."))
}

/// The number of bytes that a login shell may print before the first message.
pub const GREETING_BYTES_MAX: u64 = 1 << 20;
/// The number of characters of a line that are kept: nobody reads a longer one.
const LINE_CHARS_MAX: usize = 1 << 10;

/// An event during the start on the other host.
pub enum StartEvent {
    /// The other side sent a line with the mark.
    Line(String),
    /// The program is ready: all later bytes belong to it.
    Ready(BufReader<ChildStdout>),
    /// The output ended, with the error if there is one, and the last line without the mark.
    End(Option<io::Error>, String),
    /// The other side printed too much.
    Noise,
    /// This side has written what it was asked for.
    Written(ChildStdin),
    Piece,
}

/// The output of the program on the other host.
#[derive(Debug)]
pub struct RemoteOutput {
    pub from: BufReader<ChildStdout>,
    /// Set at the end of the output.
    pub is_over: Arc<AtomicBool>,
}

impl Read for RemoteOutput {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = self.from.read(into)?;
        if count == 0 && !into.is_empty() {
            // No other data depend on this flag.
            self.is_over.store(true, Ordering::Relaxed);
        }
        Ok(count)
    }
}

/// Sends the lines with the mark to `to`, up to the one that says "ready".
pub fn listen(mut from: BufReader<ChildStdout>, mark: &str, to: &Sender<StartEvent>) {
    let mut last = String::new();
    let end = loop {
        match next_line(&mut from, mark, &mut last) {
            Ok(Some(line)) if line == "ready" => break StartEvent::Ready(from),
            Ok(Some(line)) => {
                if to.send(StartEvent::Line(line)).is_err() {
                    return;
                }
            }
            Ok(None) => break StartEvent::End(None, last),
            Err(error) if error.kind() == io::ErrorKind::FileTooLarge => break StartEvent::Noise,
            Err(error) => break StartEvent::End(Some(error), last),
        }
    };
    // The receiver may be gone.
    let _ = to.send(end);
}

/// Returns the text after the mark in the next line that has it, and keeps the last other line. Returns `FileTooLarge`
/// after too many other bytes.
fn next_line(from: &mut impl BufRead, mark: &str, last: &mut String) -> io::Result<Option<String>> {
    let mut left = GREETING_BYTES_MAX;
    while left > 0 {
        let mut line = Vec::new();
        let count = from.take(left).read_until(b'\n', &mut line)?;
        if count == 0 {
            return Ok(None);
        }
        left = left.saturating_sub(count as u64);
        let line = printable(line.trim_ascii_end());
        // A greeting may lack its line end.
        match line.split_once(mark) {
            Some((_, said)) => return Ok(Some(said.trim_start().chars().take(LINE_CHARS_MAX).collect())),
            None if line.is_empty() => {}
            None => *last = line.chars().take(LINE_CHARS_MAX).collect(),
        }
    }
    Err(io::ErrorKind::FileTooLarge.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_fits_into_every_shells_quotes() {
        assert_eq!(LINE.matches('\'').count(), 2);
        // csh looks for old commands after a `!`, fish for characters after a `\`.
        assert!(!LINE.contains(['!', '\\', '\n']));
    }

    #[test]
    fn a_missing_program_is_found_missing() {
        assert!(find(Path::new("sh")).is_ok() && find(Path::new("/bin/sh")).is_ok());
        let missing = find(Path::new("no-such-ssh")).expect_err("missing");
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
        assert!(find(Path::new("/none/ssh")).is_err() && find(Path::new("/etc/passwd")).is_err());
    }

    #[test]
    fn the_last_lines_are_kept_and_nothing_that_a_terminal_obeys() {
        let said: String = (0..100).map(|i| format!("line {i}\r\n")).collect();
        let last = SshComplaints::keep(std::io::Cursor::new(said)).last();
        assert!(last.starts_with("line 80\nline 81\n") && last.ends_with("\nline 99"), "{last}");
        let last = SshComplaints::keep(&b"a\tb\x1b[2Jc\xff"[..]).last();
        assert_eq!(last, r"a\tb\u{1b}[2Jc\xff");
        let last = SshComplaints::keep(std::io::repeat(b'x').take(1 << 20)).last();
        assert_eq!(last.len(), LINES_MAX * (LINE_BYTES_MAX as usize + 1) - 1);
    }

    #[test]
    fn usual_complaints_have_a_remedy() {
        assert!(remedy("ssh: Could not resolve hostname x", "x").contains("not known (`ssh x true`)."));
        assert_eq!(remedy("hm", "x"), "");
    }

    #[test]
    fn greetings_are_skipped() {
        let mut bytes =
            &b"Welcome\nhere\n\xff\x1b[1mcaravan-x send\r\nx\nno newline: caravan-x ready\nleft"[..];
        let mut last = String::new();
        let mut next = || next_line(&mut bytes, "caravan-x", &mut last).expect("no error");
        assert_eq!((next().as_deref(), next().as_deref(), next()), (Some("send"), Some("ready"), None));
        assert_eq!((bytes, last.as_str()), (&b""[..], "left"));
    }

    #[test]
    fn greetings_without_end_are_noise() {
        for noise in [&b"y\n"[..], b"y"] {
            let noise = noise.repeat(1 << 20);
            let error = next_line(&mut &noise[..], "caravan-x", &mut String::new()).expect_err("too much");
            assert_eq!(error.kind(), io::ErrorKind::FileTooLarge);
        }
    }
}
