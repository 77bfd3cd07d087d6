//! This program on other hosts: started over the system's ssh, and copied there where it is missing.
//!
//! Whatever the login shell of the other side is, all that it has to run is a line that reads a script
//! (`start.sh`) from the standard input and lets sh run it. So nothing hangs on quotes, and no command of
//! the user's is ever among the arguments of ssh. The script starts the same program that is on the PATH
//! there, or a copy of this one, and says on lines that begin with a mark what it needs or why it gives up;
//! everything else before is what login shells greet with. The program then says that it is ready, and
//! from there on both directions belong to it.

pub mod agent;
mod ssh;
mod start;

use std::fs::File;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use caravan_pipe::Error;
use caravan_pipe::control::{MARK, identity};
use caravan_pipe::coordinator::{AgentSession, Guard, Launcher};

use crate::args;
use crate::remote::start::RemoteChannel;

pub use crate::remote::agent::PipeAgent;
pub use crate::remote::ssh::{RemoteOutput, SshProcess};
pub use crate::remote::start::{Copies, RemoteStart, StartFailure, start};

/// What is passed on to ssh.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SshOptions {
    /// The program that is called as ssh.
    pub program: PathBuf,
    /// Another file than ~/.ssh/config.
    pub config: Option<PathBuf>,
    /// PipelineOptions of ssh_config(5).
    pub options: Vec<String>,
    /// The port of sshd.
    pub port: Option<u16>,
    /// The file of a private key.
    pub identity: Option<PathBuf>,
    /// Hosts to jump over.
    pub jump: Option<String>,
    /// How long a host may be silent before ssh takes it for dead: before there is an agent nobody else notices.
    pub silence: Duration,
}

impl SshOptions {
    /// Those of a command line, and a port of sshd if one is told.
    pub fn new(ssh: &args::SshArgs, port: Option<u16>, silence: Duration) -> Self {
        Self {
            program: ssh.program.clone(),
            config: ssh.config.clone(),
            options: ssh.options.clone(),
            port,
            identity: ssh.identity.clone(),
            jump: ssh.jump.clone(),
            silence,
        }
    }
}

/// The hidden command of this program that an agent is.
pub const WORD: &str = "pipe-agent";
/// How long ssh may take to say why it ended, once its output has.
const WORDS_LIMIT: Duration = Duration::from_secs(1);
/// How long ssh may take to end by itself: the agent behind it has less to do than that.
const END_LIMIT: Duration = Duration::from_millis(600);

/// Starts agents.
#[derive(Debug)]
pub struct Agents {
    ssh: SshOptions,
    copies: Copies,
    /// Held by whoever has ssh ask.
    asks: Mutex<()>,
}

impl Agents {
    /// With these options of ssh.
    pub fn new(reach: &args::Reach) -> Self {
        let copies = if reach.no_bootstrap { Copies::None } else { Copies::Cached };
        Self { ssh: SshOptions::new(&reach.ssh, None, reach.silence), copies, asks: Mutex::new(()) }
    }
}

impl Launcher for Agents {
    fn launch(&self, host: Option<&str>, is_given_up: &AtomicBool) -> Result<AgentSession, Error> {
        let Some(host) = host else { return agent::launch() };
        let started = match self.start(host, false, is_given_up) {
            // One at a time, so that people see who asks, and only one reads the answer.
            Err(StartFailure::Shut(_)) if can_ask() => {
                let _asks = self.asks.lock().unwrap_or_else(PoisonError::into_inner);
                self.start(host, true, is_given_up)
            }
            started => started,
        };
        let channel = started.map_err(|failure| {
            let why = match failure {
                StartFailure::Interrupted => return Error::Cancelled,
                StartFailure::Host(why) | StartFailure::Shut(why) => why,
                StartFailure::NoSsh(source) => format!(
                    "cannot start `{}`: {source}. Install it (on Debian: apt install openssh-client), or name the program with --ssh",
                    self.ssh.program.display()
                ),
            };
            Error::Host { host: host.to_owned(), why }
        })?;
        Ok(AgentSession {
            from: Box::new(channel.from),
            to: Box::new(channel.to),
            guard: Box::new(RemoteGuard(channel.ssh)),
        })
    }
}

impl Agents {
    fn start(
        &self,
        host: &str,
        may_ask: bool,
        interrupted: &AtomicBool,
    ) -> Result<RemoteChannel, StartFailure> {
        start(&RemoteStart {
            host,
            ssh: &self.ssh,
            word: WORD,
            identity: &identity(),
            mark: MARK,
            copies: self.copies,
            may_ask,
            interrupted,
        })
    }
}

/// Whether there is somebody whom ssh can ask: at a terminal, or through a program of theirs.
fn can_ask() -> bool {
    std::env::var_os("SSH_ASKPASS").is_some() || File::open("/dev/tty").is_ok()
}

struct RemoteGuard(SshProcess);

impl Guard for RemoteGuard {
    fn why_ended(&mut self) -> String {
        self.0.why_ended(WORDS_LIMIT, None)
    }

    fn end(&mut self) {
        self.0.end(END_LIMIT);
    }
}
