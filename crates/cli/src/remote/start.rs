//! The start of this program on another host: the messages of the script, and the copy of this program.

use std::fs::File;
use std::io::{self, BufReader, Read, Write};
use std::process::ChildStdin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use caravan_bench::interrupt::GLANCE;

use crate::remote::SshOptions;
use crate::remote::ssh::{GREETING_BYTES_MAX, RemoteOutput, SshProcess, StartEvent, listen};

/// The script, which is sent first, as one line of sh.
const START: &str = include_str!("start.sh");
/// How long the start may take: the user may have to type a password.
const START_LIMIT: Duration = Duration::from_secs(120);
/// How long the copying of this program may stand still.
const COPY_LIMIT: Duration = Duration::from_secs(60);
/// The number of lines that the script may send.
const LINES_MAX: usize = 64;
/// How long ssh may take to say why it ended, once its output has ended.
const END_LIMIT: Duration = Duration::from_secs(1);
/// The complaints of ssh that a password or an answer of the user would have avoided.
const SHUT: [&str; 2] = ["Permission denied", "Host key verification failed"];
/// A cached copy that was not used for so many days is removed when a new one comes.
const UNUSED_DAYS: u32 = 30;
/// The number of cached copies that are removed at a time.
const REMOVED_MAX: u32 = 16;

/// What to start, and on which host.
#[derive(Clone, Copy, Debug)]
pub struct RemoteStart<'a> {
    /// The host as ssh takes it.
    pub host: &'a str,
    pub ssh: &'a SshOptions,
    /// The hidden command of this program.
    pub word: &'static str,
    /// The answer to `--probe` of a program that is the same.
    pub identity: &'a str,
    /// The mark at the beginning of each line before the first message. It is also part of the names of folders.
    pub mark: &'static str,
    pub copies: Copies,
    /// True if ssh may ask for passwords and about keys.
    pub may_ask: bool,
    /// Set once the user interrupts the start.
    pub interrupted: &'a AtomicBool,
}

/// What happens to copies of this program on the other host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Copies {
    /// They stay, for the next time.
    Cached,
    /// They are removed as soon as they run.
    Temporary,
    /// No copies are made.
    None,
}

/// A program that is ready for its first message.
#[derive(Debug)]
pub struct RemoteChannel {
    pub from: RemoteOutput,
    pub to: ChildStdin,
    pub ssh: SshProcess,
}

/// Why the program was not started.
#[derive(Debug)]
pub enum StartFailure {
    /// There is no ssh on this host; a sentence.
    NoSsh(String),
    /// A sentence about the host.
    Host(String),
    /// A sentence about a host that refused ssh, or whose key ssh does not know: the user may help with either.
    Shut(String),
    Interrupted,
}

/// Starts the program, and copies it to the host first if it is not there.
pub fn start(start: &RemoteStart<'_>) -> Result<RemoteChannel, StartFailure> {
    // The user may have interrupted before this. A signal handler sets the flag; no other data depend on it.
    if start.interrupted.load(Ordering::Relaxed) {
        return Err(StartFailure::Interrupted);
    }
    let no_ssh = |source| {
        StartFailure::NoSsh(format!(
            "cannot start `{}`: {source}. Install it (on Debian: apt install openssh-client), or name the program with --ssh",
            start.ssh.args.program.display()
        ))
    };
    let (ssh, input, output) = SshProcess::start(start.ssh, start.host, start.may_ask).map_err(no_ssh)?;
    let mark = start.mark;
    let (sender, heard) = mpsc::channel();
    let listener = sender.clone();
    std::thread::spawn(move || listen(BufReader::new(output), mark, &listener));
    // Meanwhile ssh connects.
    let program = OwnProgram::this().map_err(StartFailure::Host)?;
    let script = script(start, program);
    write(input, sender.clone(), move |input, _| input.write_all(script.as_bytes()));
    Greeting { start, ssh, program, sender, heard, input: None, tried: Vec::new() }.run()
}

/// Writes in a thread, because the other side may read nothing for long.
fn write(
    mut input: ChildStdin,
    to: Sender<StartEvent>,
    what: impl FnOnce(&mut ChildStdin, &Sender<StartEvent>) -> io::Result<()> + Send + 'static,
) {
    std::thread::spawn(move || {
        // If the other side stops reading, it says why or ends, and the listener hears that.
        let _ = what(&mut input, &to);
        let _ = to.send(StartEvent::Written(input));
    });
}

struct Greeting<'a> {
    start: &'a RemoteStart<'a>,
    ssh: SshProcess,
    program: &'static OwnProgram,
    sender: Sender<StartEvent>,
    heard: Receiver<StartEvent>,
    /// `None` while a thread writes.
    input: Option<ChildStdin>,
    /// The script's reports about places for a copy.
    tried: Vec<(String, String)>,
}

impl Greeting<'_> {
    fn run(mut self) -> Result<RemoteChannel, StartFailure> {
        let (mut limit, mut ready, mut asked) = (START_LIMIT, None, false);
        loop {
            match (ready.take(), self.input.take()) {
                (Some(from), Some(to)) => {
                    let from = RemoteOutput { from, is_over: Arc::clone(&self.ssh.is_over) };
                    return Ok(RemoteChannel { from, to, ssh: self.ssh });
                }
                (from, to) => (ready, self.input) = (from, to),
            }
            match self.hear(limit)? {
                StartEvent::Ready(from) => ready = Some(from),
                StartEvent::Written(input) => self.input = Some(input),
                StartEvent::Piece => {}
                StartEvent::Line(line) => {
                    let (word, rest) = line.split_once(' ').unwrap_or((&line, ""));
                    match word {
                        "send" if !asked => {
                            asked = true;
                            limit = COPY_LIMIT;
                            self.send()?;
                        }
                        "no-space" | "no-exec" if self.tried.len() < LINES_MAX => {
                            self.tried.push((word.to_owned(), rest.to_owned()));
                        }
                        _ => return Err(StartFailure::Host(refusal(word, rest, &self.tried))),
                    }
                }
                StartEvent::End(why, last) => return Err(self.ended(why, &last)),
                StartEvent::Noise => {
                    return Err(StartFailure::Host(format!(
                        "its login shell printed more than {GREETING_BYTES_MAX} bytes and no agent was started: see what its start-up files (.bashrc) print (`ssh {} true`)",
                        self.start.host
                    )));
                }
            }
        }
    }

    /// Sends this program.
    fn send(&mut self) -> Result<(), StartFailure> {
        // The script answers only after it was read, so the thread that writes it ends.
        let input = loop {
            match self.input.take() {
                Some(input) => break input,
                None => match self.hear(COPY_LIMIT)? {
                    StartEvent::Written(input) => self.input = Some(input),
                    _ => return Err(StartFailure::Host("it speaks out of turn".to_owned())),
                },
            }
        };
        let program = self.program;
        write(input, self.sender.clone(), move |input, to| {
            program.copy(input, || drop(to.send(StartEvent::Piece)))
        });
        Ok(())
    }

    fn hear(&self, limit: Duration) -> Result<StartEvent, StartFailure> {
        let deadline = Instant::now() + limit;
        loop {
            // A signal handler sets the flag; no other data depend on it.
            if self.start.interrupted.load(Ordering::Relaxed) {
                return Err(StartFailure::Interrupted);
            }
            match self.heard.recv_timeout(GLANCE) {
                Ok(heard) => return Ok(heard),
                Err(RecvTimeoutError::Disconnected) => return Ok(StartEvent::End(None, String::new())),
                Err(RecvTimeoutError::Timeout) if Instant::now() < deadline => {}
                Err(RecvTimeoutError::Timeout) => {
                    let seconds = limit.as_secs();
                    return Err(StartFailure::Host(format!("nothing came from it within {seconds} s")));
                }
            }
        }
    }

    fn ended(&mut self, why: Option<io::Error>, last: &str) -> StartFailure {
        let mut said = self.ssh.why_ended(END_LIMIT, why);
        // Accounts without a login say so in that line.
        if !last.is_empty() {
            said += &format!("\nThe last that its login shell printed: {last}");
        }
        match self.start.interrupted.load(Ordering::Relaxed) {
            true => StartFailure::Interrupted,
            false if SHUT.iter().any(|words| said.contains(words)) => StartFailure::Shut(said),
            false => StartFailure::Host(said),
        }
    }
}

/// Returns the script and its settings as one line.
fn script(start: &RemoteStart<'_>, program: &OwnProgram) -> String {
    let copies = match start.copies {
        Copies::Cached => "cached",
        Copies::Temporary => "temporary",
        Copies::None => "none",
    };
    let mut script = START.trim_end().replace('\n', " ");
    for (name, value) in [
        ("MARK", start.mark),
        ("WORD", start.word),
        ("IDENTITY", start.identity),
        ("KIND", &kind()),
        ("COPIES", copies),
        ("BYTES", &program.bytes.to_string()),
        ("HASH", &program.hash),
        ("DAYS", &UNUSED_DAYS.to_string()),
        ("REMOVED", &REMOVED_MAX.to_string()),
    ] {
        script = script.replace(name, value);
    }
    script.push('\n');
    script
}

/// Returns what `uname -sm` prints where this program can run.
fn kind() -> String {
    format!("Linux {}", std::env::consts::ARCH)
}

/// Returns a sentence about why the script gave up.
pub fn refusal(word: &str, rest: &str, tried: &[(String, String)]) -> String {
    let version = env!("CARGO_PKG_VERSION");
    let folders = |word: &str| {
        let all: Vec<_> =
            tried.iter().filter(|(tried, _)| tried == word).map(|(_, at)| at.as_str()).collect();
        all.join(", ")
    };
    match word {
        "other" if rest.starts_with("Linux ") => format!(
            "it is of another architecture ({}; this program is for {}), so that this program cannot be copied there: install caravan {version} there, on its PATH",
            rest.trim_start_matches("Linux "),
            std::env::consts::ARCH
        ),
        "other" => format!("caravan needs Linux, and it runs {rest}"),
        "absent" => {
            let there = match rest {
                "" => "there is no caravan on its PATH".to_owned(),
                other => format!("its PATH has {other}"),
            };
            format!(
                "{there}, and --no-bootstrap keeps this program from being copied: install caravan {version} there, on the PATH that `ssh HOST env` shows"
            )
        }
        "no-copy" => match (folders("no-space"), folders("no-exec")) {
            (full, noexec) if full.is_empty() && noexec.is_empty() => {
                "no folder there can be written to (~/.cache, TMPDIR, /tmp, /var/tmp, HOME)".to_owned()
            }
            (full, noexec) if noexec.is_empty() => {
                format!(
                    "there is no space for a copy of this program in {full}: make some, or set TMPDIR there"
                )
            }
            (full, noexec) => {
                let full = match full.as_str() {
                    "" => String::new(),
                    full => format!(", and there is no space for it in {full}"),
                };
                format!(
                    "a copy of this program cannot run there: {noexec} is mounted noexec{full}. Set TMPDIR there to a folder that is not, or install caravan {version} on its PATH"
                )
            }
        },
        "full" => {
            format!("there is no space for a copy of this program in {rest}: make some, or set TMPDIR there")
        }
        "torn" => "the copy of this program arrived torn".to_owned(),
        "no-run" => format!(
            "a copy of this program does not run there: {rest}. Build caravan {version} there and put it on its PATH"
        ),
        _ => format!("it says `{word} {rest}`"),
    }
}

/// The number of bytes that are read at once.
const PIECE_BYTES: usize = 256 << 10;

/// This program's file.
#[derive(Debug)]
pub struct OwnProgram {
    pub bytes: u64,
    /// SHA-256, in hexadecimal.
    pub hash: String,
}

impl OwnProgram {
    /// Reads the file, once in the life of this process.
    pub fn this() -> Result<&'static Self, String> {
        static THIS: OnceLock<Result<OwnProgram, String>> = OnceLock::new();
        let this = THIS.get_or_init(|| {
            Self::read().map_err(|why| format!("this program cannot read itself (/proc/self/exe): {why}"))
        });
        this.as_ref().map_err(String::clone)
    }

    fn read() -> io::Result<Self> {
        let (mut context, mut bytes) = (digest::digest::Context::new(&digest::digest::SHA256), 0);
        Self::pieces(|piece| {
            context.update(piece);
            bytes += piece.len() as u64;
            Ok(())
        })?;
        let hash = context.finish().as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(Self { bytes, hash })
    }

    /// Reads the file in pieces. It is the same when another file has taken its path.
    fn pieces(mut take: impl FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
        let (mut file, mut piece) = (File::open("/proc/self/exe")?, vec![0; PIECE_BYTES]);
        loop {
            match file.read(&mut piece)? {
                0 => return Ok(()),
                count => take(piece.get(..count).unwrap_or_default())?,
            }
        }
    }

    /// Writes the whole file, and calls `written` after each piece.
    pub fn copy(&self, to: &mut impl Write, mut written: impl FnMut()) -> io::Result<()> {
        Self::pieces(|piece| to.write_all(piece).map(|()| written()))?;
        to.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Args, Command};
    use clap::Parser;

    #[test]
    fn the_script_is_one_line_of_sh() {
        let line = ["caravan", "selftest", "x"];
        let Command::Selftest(args) = Args::parse_from(line).command else { panic!("{line:?}") };
        let ssh = SshOptions { args: args.ssh, port: None, silence: Duration::from_secs(3) };
        let (interrupted, identity) = (AtomicBool::new(false), "caravan 1");
        let program = OwnProgram::this().expect("read");
        for copies in [Copies::Cached, Copies::Temporary, Copies::None] {
            let start = RemoteStart {
                host: "x",
                ssh: &ssh,
                word: "agent",
                identity,
                mark: "caravan-x",
                copies,
                may_ask: true,
                interrupted: &interrupted,
            };
            let script = script(&start, program);
            assert_eq!(script.find('\n'), Some(script.len() - 1));
            let checked =
                std::process::Command::new("sh").args(["-n", "-c", &script]).output().expect("sh starts");
            assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
        }
    }

    #[test]
    fn all_folders_that_were_tried_are_named() {
        let tried = |list: &[(&str, &str)]| -> Vec<_> {
            list.iter().map(|(word, at)| ((*word).to_owned(), (*at).to_owned())).collect()
        };
        let said =
            refusal("no-copy", "", &tried(&[("no-space", "/a"), ("no-exec", "/b"), ("no-space", "/c")]));
        assert!(said.contains("/b is mounted noexec, and there is no space for it in /a, /c."), "{said}");
        let said = refusal("no-copy", "", &tried(&[("no-space", "/a")]));
        assert!(said.contains("no space for a copy of this program in /a:"), "{said}");
    }

    #[test]
    fn the_copy_is_what_was_counted_and_hashed() {
        let program = OwnProgram::this().expect("read");
        let (mut copy, mut pieces) = (Vec::new(), 0);
        program.copy(&mut copy, || pieces += 1).expect("copied");
        assert_eq!(copy.len() as u64, program.bytes);
        assert!(pieces >= copy.len() / PIECE_BYTES);
        let digest = digest::digest::digest(&digest::digest::SHA256, &copy);
        let hash: String = digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hash, program.hash);
        let abc = digest::digest::digest(&digest::digest::SHA256, b"abc");
        assert_eq!(abc.as_ref().first(), Some(&0xba), "it is SHA-256");
    }
}
