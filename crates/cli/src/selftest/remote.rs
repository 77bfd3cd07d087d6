//! The other side, started over ssh, with this program copied to it where it has none.

use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::message::{self, Answer, Ask};
use super::peer::{MARK, identity};
use crate::args::SelfTest;
use crate::error::Error;
use crate::interrupt::{GLANCE, Interrupt};

/// What runs there first: a line of sh, without quotes of the one kind that it is put in.
const START: &str = include_str!("start.sh");
/// Until the other side is there: someone may have to type a password.
const START_LIMIT: Duration = Duration::from_secs(120);
/// Until this program has been copied.
const COPY_LIMIT: Duration = Duration::from_secs(600);
/// How long ssh may take to end by itself.
const END_LIMIT: Duration = Duration::from_secs(3);
/// How long what it said last may take to come, after its end: somebody else may hold its pipe open.
const LAST_WORDS_LIMIT: Duration = Duration::from_secs(1);
/// Bytes that a login shell may print before.
const GREETING_BYTES_MAX: u64 = 1 << 20;
/// Lines of ssh's complaints that are kept.
const COMPLAINTS_MAX: usize = 20;

/// A started other side. Dropping it ends it: it reads the end of its input.
#[derive(Debug)]
pub struct Remote {
    host: String,
    ssh: Child,
    input: Option<ChildStdin>,
    heard: Receiver<Heard>,
    complaints: Arc<Mutex<Vec<String>>>,
    /// Disconnected once the last of them is there.
    all_kept: Receiver<()>,
    interrupt: Interrupt,
}

/// What came from the other side.
#[derive(Debug)]
enum Heard {
    /// A line of the script's.
    Line(String),
    Answer(Answer),
    /// It ended, and why if there is a reason.
    End(Option<io::Error>),
}

impl Remote {
    /// Starts it, and copies this program there if it must.
    pub fn start(args: &SelfTest, interrupt: &Interrupt) -> Result<Self, Error> {
        let program = args.ssh.program.display().to_string();
        let mut command = command(args);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut ssh = command.spawn().map_err(|source| Error::SshMissing { program, source })?;
        let complaints = Arc::default();
        let (input, output, errors) = (ssh.stdin.take(), ssh.stdout.take(), ssh.stderr.take());
        let (sender, heard) = mpsc::channel();
        if let Some(output) = output {
            std::thread::spawn(move || listen(BufReader::new(output), &sender));
        }
        let (kept_all, all_kept) = mpsc::channel::<()>();
        if let Some(errors) = errors {
            let kept = Arc::clone(&complaints);
            std::thread::spawn(move || {
                keep(BufReader::new(errors), &kept);
                drop(kept_all);
            });
        }
        let interrupt = interrupt.clone();
        let mut remote = Self { host: args.host.clone(), ssh, input, heard, complaints, all_kept, interrupt };
        remote.greet()?;
        Ok(remote)
    }

    /// Until it is ready for questions.
    fn greet(&mut self) -> Result<(), Error> {
        let mut limit = START_LIMIT;
        let mut copy = None;
        loop {
            let line = match self.hear(limit)? {
                Heard::Line(line) => line,
                Heard::Answer(_) => return Err(self.error("it answers before it was asked")),
                Heard::End(why) => return Err(self.ended(why)),
            };
            let (word, rest) = line.split_once(' ').unwrap_or((&line, ""));
            match word {
                "ready" => return Ok(()),
                "need" => {
                    check_kind(rest).map_err(|what| self.error(&what))?;
                    let program = fs::read("/proc/self/exe").map_err(|source| Error::File {
                        what: "read",
                        path: "/proc/self/exe".into(),
                        source,
                    })?;
                    let hash = hash(&program);
                    self.write(format!("{} {hash}\n", program.len()).as_bytes())?;
                    copy = Some(program);
                }
                "send" => {
                    limit = COPY_LIMIT;
                    let program = copy.take().ok_or_else(|| self.error("it asks twice for a copy"))?;
                    // It may have no room: then it says so instead of taking the rest.
                    let _ = self.write(&program);
                }
                _ => return Err(self.error(&refusal(word, rest))),
            }
        }
    }

    /// Asks a question; its answers are to be [taken](Self::answer).
    pub fn ask(&mut self, ask: &Ask) -> Result<(), Error> {
        let input = self.input.as_mut().ok_or(Error::Interrupted)?;
        match message::write(input, ask) {
            Ok(()) => Ok(()),
            Err(error) => Err(self.ended(Some(error))),
        }
    }

    /// The next answer.
    pub fn answer(&mut self, limit: Duration) -> Result<Answer, Error> {
        match self.hear(limit)? {
            Heard::Answer(answer) => Ok(answer),
            Heard::Line(_) => Err(self.error("it answers in another language")),
            Heard::End(why) => Err(self.ended(why)),
        }
    }

    fn hear(&self, limit: Duration) -> Result<Heard, Error> {
        let deadline = Instant::now() + limit;
        loop {
            self.interrupt.check()?;
            match self.heard.recv_timeout(GLANCE) {
                Ok(heard) => return Ok(heard),
                Err(RecvTimeoutError::Disconnected) => return Ok(Heard::End(None)),
                Err(RecvTimeoutError::Timeout) if Instant::now() < deadline => {}
                Err(RecvTimeoutError::Timeout) => {
                    let what = format!("nothing came from it within {} s", limit.as_secs());
                    return Err(self.error(&what));
                }
            }
        }
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let input = self.input.as_mut().ok_or(Error::Interrupted)?;
        match input.write_all(bytes).and_then(|()| input.flush()) {
            Ok(()) => Ok(()),
            Err(error) => Err(self.ended(Some(error))),
        }
    }

    /// Why it ended: ssh's own words, and what to do about the usual ones.
    fn ended(&mut self, why: Option<io::Error>) -> Error {
        // Ctrl-C ends ssh, too.
        if let Err(interrupted) = self.interrupt.check() {
            return interrupted;
        }
        let status = self.end().map_or_else(String::new, |status| format!(" ({status})"));
        // Its last words may still be on their way. It says so by hanging up.
        let _ = self.all_kept.recv_timeout(LAST_WORDS_LIMIT);
        let complaints = self.complaints.lock().unwrap_or_else(PoisonError::into_inner).join("\n");
        let why = why.map_or_else(String::new, |error| format!(": {error}"));
        let remedy = remedy(&complaints, &self.host);
        let said = match complaints.as_str() {
            "" => String::new(),
            complaints => format!(" It said:\n{complaints}"),
        };
        self.error(&format!("ssh ended{status}{why}.{remedy}{said}"))
    }

    fn error(&self, what: &str) -> Error {
        Error::SelfTestHost { host: self.host.clone(), what: what.to_owned() }
    }

    /// Ends it; its status if it ended by itself.
    fn end(&mut self) -> Option<std::process::ExitStatus> {
        self.input = None;
        let deadline = Instant::now() + END_LIMIT;
        while Instant::now() < deadline {
            match self.ssh.try_wait() {
                Ok(Some(status)) => return Some(status),
                Ok(None) => std::thread::sleep(Duration::from_millis(10)),
                Err(_) => break,
            }
        }
        let _ = self.ssh.kill();
        let _ = self.ssh.wait();
        None
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        self.end();
    }
}

/// The user's options first: ssh takes the first of two.
fn command(args: &SelfTest) -> Command {
    let ssh = &args.ssh;
    let mut command = Command::new(&ssh.program);
    ssh.config.iter().for_each(|file| {
        command.arg("-F").arg(file);
    });
    ssh.options.iter().for_each(|option| {
        command.args(["-o", option]);
    });
    ssh.port.iter().for_each(|port| {
        command.args(["-p", &port.to_string()]);
    });
    ssh.identity.iter().for_each(|file| {
        command.arg("-i").arg(file);
    });
    ssh.jump.iter().for_each(|hosts| {
        command.args(["-J", hosts]);
    });
    for option in [
        "ConnectTimeout=20",
        "ServerAliveInterval=5",
        "ServerAliveCountMax=3",
        "ClearAllForwardings=yes",
        "RequestTTY=no",
    ] {
        command.args(["-o", option]);
    }
    // Whatever shell the user has there, it runs sh.
    let script = START.replace("IDENTITY", &identity()).replace('\n', " ");
    command.args(["-x", "-a", "--", &args.host]).arg(format!("exec /bin/sh -c '{script}'"));
    command
}

/// Lines with the mark, and after the one that says "ready" messages.
fn listen(mut from: impl BufRead, to: &mpsc::Sender<Heard>) {
    let mut greeting = (&mut from).take(GREETING_BYTES_MAX);
    loop {
        let mut line = Vec::new();
        match greeting.read_until(b'\n', &mut line) {
            Ok(0) => return drop(to.send(Heard::End(None))),
            Ok(_) => {}
            Err(error) => return drop(to.send(Heard::End(Some(error)))),
        }
        let line = String::from_utf8_lossy(&line);
        let Some(said) = line.trim_end().strip_prefix(MARK) else { continue };
        let said = said.trim_start().to_owned();
        let is_ready = said == "ready";
        if to.send(Heard::Line(said)).is_err() {
            return;
        }
        if is_ready {
            break;
        }
    }
    loop {
        let heard = match message::read(&mut from) {
            Ok(answer) => Heard::Answer(answer),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Heard::End(None),
            Err(error) => Heard::End(Some(error)),
        };
        let is_end = matches!(heard, Heard::End(_));
        if to.send(heard).is_err() || is_end {
            return;
        }
    }
}

/// The last lines of what ssh, and the other side through it, complain of.
fn keep(from: impl BufRead, kept: &Mutex<Vec<String>>) {
    for line in from.lines().map_while(Result::ok) {
        let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.push(line.trim_end().to_owned());
        if kept.len() > COMPLAINTS_MAX {
            kept.remove(0);
        }
    }
}

/// Whether this program can run where `uname -s -m` says this.
fn check_kind(kind: &str) -> Result<(), String> {
    let ours = std::env::consts::ARCH;
    match kind.split_once(' ') {
        Some(("Linux", machine)) if machine == ours => Ok(()),
        Some(("Linux", machine)) => Err(format!(
            "it is of another architecture ({machine}; this program is for {ours}), so that this program cannot be copied there: install caravan {} there, on its PATH",
            env!("CARGO_PKG_VERSION")
        )),
        _ => Err(format!("caravan needs Linux, and it runs {kind}")),
    }
}

/// A sentence for what the script gave up at.
fn refusal(word: &str, rest: &str) -> String {
    match word {
        "no-folder" => "no folder there can be written to (TMPDIR, /tmp, /var/tmp, HOME)".to_owned(),
        "no-space" => {
            format!("there is no space for a copy of this program in {rest}: make some, or set TMPDIR there")
        }
        "no-exec" => format!(
            "a copy of this program cannot run there: {rest} is mounted noexec. Set TMPDIR there to a folder that is not, or install caravan {} on its PATH",
            env!("CARGO_PKG_VERSION")
        ),
        "torn" => "the copy of this program arrived torn".to_owned(),
        "no-run" => format!(
            "a copy of this program does not run there: {rest}. Build caravan {} there and put it on its PATH",
            env!("CARGO_PKG_VERSION")
        ),
        _ => format!("it says `{word} {rest}`"),
    }
}

fn remedy(complaints: &str, host: &str) -> String {
    let table = [
        (
            "REMOTE HOST IDENTIFICATION HAS CHANGED",
            "Its key is another than the one you know: find out why first",
        ),
        ("Host key verification failed", "Its key is not known: connect once with ssh and accept it"),
        ("Permission denied", "It lets you not in: the same ssh must work first"),
        ("Could not resolve hostname", "Its name is not known"),
        ("Connection refused", "No sshd answers at that port"),
        ("Connection timed out", "It does not answer"),
    ];
    let found = table.iter().find(|(words, _)| complaints.contains(words));
    found.map_or_else(String::new, |(_, remedy)| format!(" {remedy} (`ssh {host} true`)."))
}

fn hash(bytes: &[u8]) -> String {
    let digest = digest::digest::digest(&digest::digest::SHA256, bytes);
    digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_script_fits_into_its_quotes() {
        assert!(!START.contains('\''), "a quote would end it");
        assert!(!START.contains('\\'), "fish reads those");
        let mut sh = Command::new("sh");
        let checked = sh.args(["-n", "-c", &START.replace('\n', " ")]).output().expect("sh starts");
        assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
    }

    #[test]
    fn greetings_are_skipped_and_messages_read() {
        let mut bytes =
            b"Welcome\nhere\ncaravan-selftest need Linux x86_64\nx\ncaravan-selftest ready\n".to_vec();
        message::write(&mut bytes, &Answer::Figure(1.5)).expect("written");
        let (sender, heard) = mpsc::channel();
        listen(&bytes[..], &sender);
        drop(sender);
        let heard: Vec<_> = heard.iter().collect();
        let [Heard::Line(need), Heard::Line(ready), Heard::Answer(Answer::Figure(_)), Heard::End(None)] =
            &heard[..]
        else {
            panic!("{heard:?}");
        };
        assert_eq!((need.as_str(), ready.as_str()), ("need Linux x86_64", "ready"));
    }

    #[test]
    fn other_machines_are_refused() {
        assert!(check_kind(&format!("Linux {}", std::env::consts::ARCH)).is_ok());
        assert!(check_kind("Linux riscv64").is_err_and(|why| why.contains("riscv64")));
        assert!(check_kind("FreeBSD amd64").is_err_and(|why| why.contains("FreeBSD")));
        assert!(check_kind("").is_err());
    }

    #[test]
    fn the_hash_is_sha256() {
        assert!(hash(b"abc").starts_with("ba7816bf8f01cfea414140de5dae2223"));
    }
}
