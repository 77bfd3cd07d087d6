//! Starts this program on other hosts over the system's ssh, and copies it there if it is missing.
//!
//! Whatever the login shell of the other host is, it only has to run a line that reads a script (`start.sh`) from the
//! standard input and lets sh run it. So nothing depends on quotes, and no command of the user's is ever among the
//! arguments of ssh. The script starts the same program on the PATH of that host, or a copy of this one. It reports
//! what it needs or why it gives up on lines that begin with a mark; everything else before is the greeting of login
//! shells. The program then says that it is ready, and from there on both directions belong to it.

pub mod agent;
mod ssh;
mod start;

use std::fs::File;
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

/// The options that are passed on to ssh.
#[derive(Clone, Debug)]
pub struct SshOptions {
    /// The options of the command line.
    pub args: args::SshArgs,
    /// The port of sshd, if one is given.
    pub port: Option<u16>,
    /// How long a host may be silent before ssh takes it for dead: before there is an agent, nothing else notices.
    pub silence: Duration,
}

/// The hidden command of this program that runs an agent.
pub const WORD: &str = "pipe-agent";
/// How long ssh may take to say why it ended, once its output has ended.
const WORDS_LIMIT: Duration = Duration::from_secs(1);
/// How long ssh may take to end by itself: the agent behind it takes less.
const END_LIMIT: Duration = Duration::from_millis(600);

/// Starts agents.
#[derive(Debug)]
pub struct Agents {
    ssh: SshOptions,
    copies: Copies,
    /// Held while ssh may ask the user.
    asks: Mutex<()>,
}

impl Agents {
    /// Creates a starter of agents with these options of ssh.
    pub fn new(reach: &args::Reach) -> Self {
        let copies = if reach.no_bootstrap { Copies::None } else { Copies::Cached };
        Self {
            ssh: SshOptions { args: reach.ssh.clone(), port: None, silence: reach.silence },
            copies,
            asks: Mutex::new(()),
        }
    }
}

impl Launcher for Agents {
    fn launch(&self, host: Option<&str>, is_given_up: &AtomicBool) -> Result<AgentSession, Error> {
        let Some(host) = host else { return agent::launch() };
        let started = match self.start(host, false, is_given_up) {
            // One ssh asks at a time, so that the user sees which one, and only one reads the answer.
            Err(StartFailure::Shut(_)) if can_ask() => {
                let _asks = self.asks.lock().unwrap_or_else(PoisonError::into_inner);
                self.start(host, true, is_given_up)
            }
            started => started,
        };
        let channel = started.map_err(|failure| {
            let why = match failure {
                StartFailure::Interrupted => return Error::Cancelled,
                StartFailure::Host(why) | StartFailure::Shut(why) | StartFailure::NoSsh(why) => why,
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

/// True if ssh can ask the user: at a terminal, or through the user's own program.
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
