//! Lines as a user types them into a shell, and how long they take.

use std::fs::File;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::bed::{self, Bed};
use super::cpu;
use super::process::{Running, failed};
use crate::error::Error;
use crate::interrupt::Interrupt;
use crate::scratch::Scratch;

/// Many times what a line takes.
const LINE_LIMIT: Duration = Duration::from_secs(120);
/// The line that goes through two hosts.
const WORD: &str = "hello";

/// A line that takes its time to start, or to move bytes.
pub struct Line {
    pub key: &'static str,
    pub title: &'static str,
    /// What it moves, if that is what counts.
    pub bytes: Option<u64>,
    /// What it must print.
    prints: String,
    command: Box<dyn Fn() -> Command>,
}

impl Line {
    /// Two commands of this host.
    pub fn same_host(bytes: u64) -> [Self; 2] {
        let caravan = move || {
            let mut command = Command::new(bed::program());
            command.args(["pipe", &format!(":head -c {bytes} /dev/zero"), ":cat > /dev/null"]);
            command
        };
        let bare = move || {
            let mut command = Command::new("sh");
            command.args(["-c", &format!("head -c {bytes} /dev/zero | cat > /dev/null")]);
            command
        };
        let line =
            |key, title, command| Self { key, title, bytes: Some(bytes), prints: String::new(), command };
        [
            line("caravan", "caravan pipe :head :cat", Box::new(caravan)),
            line("shell", "head | cat", Box::new(bare)),
        ]
    }

    /// A line of text through two hosts.
    pub fn start(bed: &Bed) -> [Self; 2] {
        let config = bed.daemons.config.display().to_string();
        let transport = if bed.net.is_veth() { "" } else { "-t tcp" };
        let through = |script: String| {
            let shell = bed.net.a.command("sh");
            let words = std::iter::once(shell.get_program()).chain(shell.get_args());
            let words: Vec<_> = words.map(ToOwned::to_owned).collect();
            Box::new(move || {
                let mut words = words.iter();
                let mut command = Command::new(words.next().cloned().unwrap_or_default());
                command.args(words).args(["-c", &script]);
                command
            })
        };
        let line = |key, title, script: String| Self {
            key,
            title,
            bytes: None,
            prints: format!("{WORD}\n"),
            command: through(script),
        };
        let program = bed.program();
        [
            line(
                "caravan",
                "echo | caravan pipe a:cat b:cat",
                format!("echo {WORD} | {program} pipe -F {config} {transport} a:cat b:cat"),
            ),
            line(
                "ssh",
                "echo | ssh a cat | ssh b cat",
                format!("echo {WORD} | ssh -F {config} a cat | ssh -F {config} b cat"),
            ),
        ]
    }

    /// Seconds from its start to its end, and of processor time: its own processes', the machine's.
    pub fn run(&self, interrupt: &Interrupt) -> Result<(f64, f64, f64), Error> {
        let scratch = Scratch::create()?;
        let path = scratch.path().join("printed");
        let printed =
            File::create(&path).map_err(|source| Error::File { what: "make", path: path.clone(), source })?;
        let mut command = (self.command)();
        command.stdin(Stdio::null()).stdout(printed);
        let living = cpu::living();
        let before = cpu::read();
        let start = Instant::now();
        let mut running = Running::start(self.key, command, &scratch.path().join("log"))?;
        running.end(start + LINE_LIMIT, interrupt)?;
        let wall_s = start.elapsed().as_secs_f64();
        cpu::settle(&living);
        let after = cpu::read();
        let printed = std::fs::read_to_string(&path).unwrap_or_default();
        if printed != self.prints {
            return Err(failed(self.key, &format!("it printed {printed:?} instead of {:?}", self.prints)));
        }
        Ok((wall_s, after.processes - before.processes, after.machine - before.machine))
    }
}

/// Has Caravan copied to both hosts, and ssh's sessions opened.
pub fn warm(bed: &Bed) -> Result<(), Error> {
    let [caravan, ssh] = Line::start(bed);
    ssh.run(&bed.interrupt)?;
    caravan.run(&bed.interrupt).map(drop)
}
