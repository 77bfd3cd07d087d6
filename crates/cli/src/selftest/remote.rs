//! The other side of a self-test, started over ssh.

use std::io;
use std::process::ChildStdin;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use super::message::{self, Answer, Ask};
use super::peer::{MARK, identity};
use crate::args::SelfTest;
use crate::error::Error;
use crate::remote::{Answers, Copies, Failure, Ssh, SshOptions, Start, start};
use caravan_bench::interrupt::{GLANCE, Interrupt};

/// The hidden command of this program that the other side is.
const WORD: &str = "selftest-peer";
/// How long ssh may take to end by itself.
const END_LIMIT: Duration = Duration::from_secs(3);
/// How long that host may be silent: it may be busy with a test.
const SILENCE_LIMIT: Duration = Duration::from_secs(15);

/// A started other side. Dropping it ends it: it reads the end of its input.
#[derive(Debug)]
pub struct Remote {
    host: String,
    ssh: Ssh,
    input: Option<ChildStdin>,
    heard: Receiver<io::Result<Answer>>,
    interrupt: Interrupt,
}

impl Remote {
    /// Starts it, and copies this program there if it must.
    pub fn start(args: &SelfTest, interrupt: &Interrupt) -> Result<Self, Error> {
        let started = start(&Start {
            host: &args.host,
            ssh: &SshOptions::new(&args.ssh, args.port, SILENCE_LIMIT),
            word: WORD,
            identity: &identity(),
            mark: MARK,
            copies: Copies::Temporary,
            may_ask: true,
            interrupted: interrupt.flag(),
        });
        let channel = started.map_err(|failure| match failure {
            Failure::NoSsh(source) => {
                Error::SshMissing { program: args.ssh.program.display().to_string(), source }
            }
            Failure::Host(what) | Failure::Shut(what) => {
                Error::SelfTestHost { host: args.host.clone(), what }
            }
            Failure::Interrupted => Error::Interrupted,
        })?;
        let (sender, heard) = mpsc::channel();
        let from = channel.from;
        std::thread::spawn(move || listen(from, &sender));
        let (host, input, interrupt) = (args.host.clone(), Some(channel.to), interrupt.clone());
        Ok(Self { host, ssh: channel.ssh, input, heard, interrupt })
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
        let deadline = Instant::now() + limit;
        loop {
            self.interrupt.check()?;
            match self.heard.recv_timeout(GLANCE) {
                Ok(Ok(answer)) => return Ok(answer),
                Ok(Err(error)) if error.kind() == io::ErrorKind::UnexpectedEof => {
                    return Err(self.ended(None));
                }
                Ok(Err(error)) => return Err(self.ended(Some(error))),
                Err(RecvTimeoutError::Disconnected) => return Err(self.ended(None)),
                Err(RecvTimeoutError::Timeout) if Instant::now() < deadline => {}
                Err(RecvTimeoutError::Timeout) => {
                    let what = format!("nothing came from it within {} s", limit.as_secs());
                    return Err(self.error(&what));
                }
            }
        }
    }

    fn ended(&mut self, why: Option<io::Error>) -> Error {
        self.input = None;
        let said = self.ssh.why_ended(END_LIMIT, why);
        match self.interrupt.check() {
            Err(interrupted) => interrupted.into(),
            Ok(()) => self.error(&said),
        }
    }

    fn error(&self, what: &str) -> Error {
        Error::SelfTestHost { host: self.host.clone(), what: what.to_owned() }
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        self.input = None;
        self.ssh.end(END_LIMIT);
    }
}

/// Messages, up to an error.
fn listen(mut from: Answers, to: &mpsc::Sender<io::Result<Answer>>) {
    loop {
        let heard = message::read(&mut from);
        let is_end = heard.is_err();
        if to.send(heard).is_err() || is_end {
            return;
        }
    }
}
