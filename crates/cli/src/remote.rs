//! This program on other hosts: started over the system's ssh, and copied there where it is missing.
//!
//! Whatever the login shell of the other side is, all that it has to run is a line that reads a script
//! (`start.sh`) from the standard input and lets sh run it. So nothing hangs on quotes, and no command of
//! the user's is ever among the arguments of ssh. The script starts the same program that is on the PATH
//! there, or a copy of this one, and says on lines that begin with a mark what it needs or why it gives up;
//! everything else before is what login shells greet with. The program then says that it is ready, and
//! from there on both directions belong to it.

pub mod agent;
mod complaints;
mod launcher;
mod listen;
mod local;
mod program;
mod refusal;
mod ssh;
mod start;

use std::path::PathBuf;
use std::time::Duration;

use crate::args;

pub use self::agent::PipeAgent;
pub use self::launcher::Agents;
pub use self::listen::Answers;
pub use self::ssh::Ssh;
pub use self::start::{Copies, Failure, Start, start};

/// What is passed on to ssh.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SshOptions {
    /// The program that is called as ssh.
    pub program: PathBuf,
    /// Another file than ~/.ssh/config.
    pub config: Option<PathBuf>,
    /// Options of ssh_config(5).
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
    pub fn new(ssh: &args::Ssh, port: Option<u16>, silence: Duration) -> Self {
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
