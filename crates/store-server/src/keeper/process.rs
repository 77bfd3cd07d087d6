//! A server as the keeper's child.

use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use caravan_segment::process::Process;
use rustix::process::{Pid, Signal, WaitOptions, kill_process_group, waitpgid};

use crate::error::ServeError;
use crate::keeper::SERVER_COMMAND;
use crate::keeper::channel::{ChannelEnd, KeeperChannel, ServerAnswer, ServerOrder};
use crate::state::ClientSettings;

/// What a server is doing, as far as its keeper knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServerPhase {
    /// The program starts.
    Starting,
    /// It runs, and has not been told what to serve.
    Waiting,
    /// It opens the store.
    Opening,
    /// It serves.
    Serving,
    /// It was told to end, so that another one can take its place.
    Leaving,
    /// It was told to save, if it is to, and to end.
    Ending,
}

/// What a keeper holds for its servers under a name.
#[derive(Debug)]
pub(crate) struct HeldDescriptors {
    pub(crate) note: String,
    pub(crate) descriptors: Vec<OwnedFd>,
}

/// A server. Dropped, it is killed with its heir, if it has one (`caravan_segment::process::start_heir`).
#[derive(Debug)]
pub(crate) struct ServerProcess {
    child: Child,
    pub(crate) channel: KeeperChannel,
    pub(crate) process: Process,
    pub(crate) phase: ServerPhase,
    /// When the phase began.
    pub(crate) since: Instant,
    /// Why it says that it ends.
    pub(crate) failure: Option<String>,
    /// What a client has changed.
    pub(crate) changed: Option<ClientSettings>,
    /// What it wants held from now on, or, without descriptors, no longer.
    pub(crate) held: Vec<(String, Option<HeldDescriptors>)>,
    /// Whether it has left its store.
    pub(crate) has_left: bool,
}

impl ServerProcess {
    /// Starts a server of a program. Its messages for the operator go to `log`, or where the keeper's own go.
    pub(crate) fn start(program: &OwnedFd, name: &str, log: Option<&OwnedFd>) -> Result<Self, ServeError> {
        let failed = || ServeError::system("start a server");
        let (channel, other) = KeeperChannel::pair()?;
        let stderr = match log {
            Some(log) => Stdio::from(log.try_clone().map_err(failed())?),
            None => Stdio::inherit(),
        };
        // The program itself, also if its file has been replaced or removed.
        let child = Command::new(format!("/proc/self/fd/{}", program.as_raw_fd()))
            .arg0("caravan")
            .args([SERVER_COMMAND, name])
            .stdin(other.into_socket())
            .stdout(Stdio::null())
            .stderr(stderr)
            // Ctrl-C and a terminal's end are for the keeper, which then ends the server in order.
            // Its heir is found by the group.
            .process_group(0)
            .spawn()
            .map_err(failed())?;
        let process = Process::open(child.id() as i32)
            .map_err(|error| ServeError::Keeper(format!("cannot watch the server: {error}")))?;
        let (phase, since) = (ServerPhase::Starting, Instant::now());
        Ok(Self {
            child,
            channel,
            process,
            phase,
            since,
            failure: None,
            changed: None,
            held: Vec::new(),
            has_left: false,
        })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn enter(&mut self, phase: ServerPhase) {
        (self.phase, self.since) = (phase, Instant::now());
    }

    /// Tells it to end. A server that takes no orders is killed: what it has answered is in the memory.
    pub(crate) fn end(&mut self, saves: bool) {
        if self.channel.send(&ServerOrder::End { saves }, &[]).is_err() {
            self.kill();
        }
        self.enter(if saves { ServerPhase::Ending } else { ServerPhase::Leaving });
    }

    /// Kills it if its phase takes too long.
    pub(crate) fn kill_if_late(&mut self, most: Duration) {
        if self.since.elapsed() > most && self.failure.is_none() {
            self.failure = Some(format!("it has said nothing for {} s", most.as_secs()));
            self.kill();
        }
    }

    pub(crate) fn kill(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
    }

    /// Returns whether its heir has ended, too. To be asked after it has died, until then.
    pub(crate) fn is_gone(&self) -> bool {
        // No other process can have taken the number of the group: as long as there is an heir, it is its group.
        let group = Pid::from_child(&self.child);
        !matches!(waitpgid(group, WaitOptions::NOHANG), Ok(None))
    }

    /// Takes what it says; an error once it has died.
    pub(crate) fn listen(&mut self) -> Result<(), ServerDeath> {
        let is_alive = self.process.is_alive();
        loop {
            match self.channel.try_receive() {
                Ok((ServerAnswer::Running, _)) if self.phase == ServerPhase::Starting => {
                    self.enter(ServerPhase::Waiting);
                }
                Ok((ServerAnswer::Serving, _)) if self.phase == ServerPhase::Opening => {
                    self.enter(ServerPhase::Serving);
                }
                Ok((ServerAnswer::Changed(settings), _)) => self.changed = Some(settings),
                Ok((ServerAnswer::Hold { name, note }, descriptors)) => {
                    self.held.push((name, Some(HeldDescriptors { note, descriptors })));
                }
                Ok((ServerAnswer::Release(name), _)) => self.held.push((name, None)),
                Ok((ServerAnswer::Left, _)) => self.has_left = true,
                Ok((ServerAnswer::Failed(why), _)) => self.failure = Some(why),
                // It was told to end meanwhile.
                Ok(_) => {}
                Err(ChannelEnd::Empty) if is_alive => return Ok(()),
                Err(ChannelEnd::Unknown(why)) => {
                    self.failure = Some(format!("it said something unknown: {why}"));
                    self.kill();
                }
                // Without its end of the channel, it could not be told anything.
                Err(ChannelEnd::Closed | ChannelEnd::Empty) => {
                    if is_alive && !matches!(self.phase, ServerPhase::Leaving | ServerPhase::Ending) {
                        self.kill();
                    }
                    break;
                }
            }
        }
        match self.child.wait() {
            Ok(status) => Err(ServerDeath { status, reason: self.failure.take() }),
            Err(_) => Err(ServerDeath { status: ExitStatus::from_raw(0), reason: self.failure.take() }),
        }
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        self.kill();
        let _ = self.child.wait();
        if !self.is_gone() {
            let group = Pid::from_child(&self.child);
            let _ = kill_process_group(group, Signal::KILL);
            let _ = waitpgid(group, WaitOptions::empty());
        }
    }
}

/// The end of a server.
#[derive(Debug)]
pub(crate) struct ServerDeath {
    pub(crate) status: ExitStatus,
    /// What it said before.
    pub(crate) reason: Option<String>,
}

impl std::fmt::Display for ServerDeath {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (&self.reason, self.status.signal()) {
            (Some(reason), _) => f.write_str(reason),
            (None, Some(signal)) => write!(f, "it was ended by signal {signal}"),
            (None, None) => write!(f, "it ended with status {}", self.status.code().unwrap_or(0)),
        }
    }
}
