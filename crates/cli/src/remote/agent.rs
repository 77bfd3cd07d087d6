//! `caravan pipe-agent`: the agent of a pipe, on another host behind ssh or on this host beside the caller.
//!
//! The outer process waits, the inner one serves; see [`caravan_pipe::agent`].

use std::io::{self, IoSlice, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use caravan_bench::Error as Shared;
use caravan_bench::interrupt::{JOB_CONTROL, endings};
use caravan_pipe::Error as PipeError;
use caravan_pipe::agent::{keep_held, serve, supervise};
use caravan_pipe::control::{MARK, identity};
use caravan_pipe::coordinator::{AgentSession, Guard};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use rustix::process::{Pid, Signal, kill_process, set_parent_process_death_signal};
use signal_hook::consts::SIGINT;

use crate::error::Error;
use crate::remote::WORD;
use crate::remote::ssh::ended_within;

/// The other side of `caravan pipe`, on the standard input and output.
#[derive(Debug, clap::Args)]
pub struct PipeAgent {
    /// Only say what this program is
    #[arg(long)]
    pub probe: bool,
    /// Beside the caller, whose standard input comes over the socket that is this one's
    #[arg(long)]
    pub local: bool,
    /// The process that serves
    #[arg(long)]
    pub inner: bool,
    /// Keeps the pipe open that is the standard input, as long as anybody reads it
    #[arg(long)]
    pub hold: bool,
    /// A folder to remove first: this program was copied to it
    #[arg(long)]
    pub remove: Option<PathBuf>,
}

/// Serves until the control channel ends.
pub fn run(args: &PipeAgent) -> Result<(), Error> {
    if args.probe {
        return crate::print(&format!("{}\n", identity()));
    }
    if args.hold {
        keep_held();
        return Ok(());
    }
    let terminated = Arc::new(AtomicBool::new(false));
    watch(&terminated).map_err(Shared::Signals)?;
    if args.inner {
        return inner(args.local, &terminated);
    }
    if let Some(folder) = &args.remove {
        remove_copy(folder, MARK)?;
    }
    let mut command = Command::new("/proc/self/exe");
    command.arg0("caravan").args([WORD, "--inner"]);
    match args.local {
        true => command.arg("--local"),
        // The login shell has read its .bashrc. Without SHLVL, bash takes the command of a stage for another login and
        // reads it again, and what .bashrc prints would get into the stage's output.
        false => command.env("SHLVL", "1"),
    };
    match supervise(command, &terminated)? {
        true => Ok(()),
        false => Err(Error::Said),
    }
}

/// Handles signals. It ignores only those that were ignored already, because the commands that the agent starts
/// inherit that. Ctrl-C does nothing: it is for the coordinator. Nor does Ctrl-Z, which stops the commands and the
/// coordinator: the other ends of this agent's hops would take the agent for dead.
fn watch(terminated: &Arc<AtomicBool>) -> io::Result<()> {
    for signal in endings().chain(JOB_CONTROL) {
        let ends = signal != SIGINT && !JOB_CONTROL.contains(&signal);
        signal_hook::flag::register(signal, if ends { Arc::clone(terminated) } else { Arc::default() })?;
    }
    Ok(())
}

fn inner(is_local: bool, terminated: &Arc<AtomicBool>) -> Result<(), Error> {
    let die = set_parent_process_death_signal(Some(Signal::TERM));
    die.map_err(PipeError::system("prctl(PR_SET_PDEATHSIG)"))?;
    let served = if is_local {
        let input = take(io::stdin()).map_err(PipeError::system("recvmsg"))?;
        let output = own(io::stdout()).map_err(PipeError::system("dup"))?;
        let to = UnixStream::from(own(io::stdin()).map_err(PipeError::system("dup"))?);
        let from = to.try_clone().map_err(PipeError::system("dup"))?;
        serve(from, to, Some((input, output)), terminated)
    } else {
        // A greeting before this line may lack its line end.
        crate::print(&format!("\n{MARK} ready\n"))?;
        let to = own(io::stdout()).map_err(PipeError::system("dup"))?;
        let from = own(io::stdin()).map_err(PipeError::system("dup"))?;
        serve(std::fs::File::from(from), std::fs::File::from(to), None, terminated)
    };
    // The coordinator has reported the error, or is gone.
    served.map_err(|_| Error::Said)
}

/// Duplicates a descriptor.
fn own(what: impl AsFd) -> io::Result<OwnedFd> {
    what.as_fd().try_clone_to_owned()
}

/// Removes the folder that this program's file was copied to: the program runs on without it, and leaves nothing
/// behind however it ends. Removes only a folder that was made for that purpose.
pub fn remove_copy(folder: &Path, mark: &str) -> Result<(), Error> {
    let failed = |source| Shared::File { what: "remove", path: folder.to_owned(), source };
    let is_ours = folder.file_name().is_some_and(|name| name.to_string_lossy().starts_with(mark));
    if !is_ours {
        return Err(failed(io::ErrorKind::InvalidInput.into()).into());
    }
    Ok(std::fs::remove_dir_all(folder).map_err(failed)?)
}

/// The message that carries the descriptor.
const GREETING: u8 = b'i';
/// How long the agent may take to end once its channel is closed.
const END_LIMIT: Duration = Duration::from_millis(200);
/// How long the agent may take to end after SIGTERM: its commands have half a second, then it kills them.
const TERM_LIMIT: Duration = Duration::from_millis(750);

/// Starts the agent of this host.
pub fn launch() -> Result<AgentSession, PipeError> {
    let (ours, theirs) = UnixStream::pair().map_err(PipeError::system("socketpair"))?;
    let mut command = Command::new("/proc/self/exe");
    command.arg0("caravan").args([WORD, "--local"]).stdin(OwnedFd::from(theirs));
    let child = command.spawn().map_err(PipeError::system("start of /proc/self/exe"))?;
    let guard = LocalAgent(child);
    // Dropping the command closes this process's copy of the other end, so that a write fails if the agent has ended.
    drop(command);
    give(&ours, io::stdin()).map_err(PipeError::system("sendmsg"))?;
    let from = ours.try_clone().map_err(PipeError::system("dup"))?;
    Ok(AgentSession { from: Box::new(from), to: Box::new(AgentSender(ours)), guard: Box::new(guard) })
}

/// Sends a descriptor to the other end.
fn give(to: &UnixStream, what: impl AsFd) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let what = [what.as_fd()];
    if !control.push(SendAncillaryMessage::ScmRights(&what)) {
        return Err(io::Error::other("the descriptor does not fit"));
    }
    sendmsg(to, &[IoSlice::new(&[GREETING])], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Receives the descriptor that comes with the first message.
pub fn take(from: impl AsFd) -> io::Result<OwnedFd> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let mut parts = [IoSliceMut::new(&mut byte)];
    let received = recvmsg(from, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let mut descriptors = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    match (received.bytes, byte, descriptors.next()) {
        (1, [GREETING], Some(descriptor)) => Ok(descriptor),
        _ => Err(io::Error::other("it is no agent's channel")),
    }
}

/// The sending half of the agent's socket; dropping it closes this direction alone.
struct AgentSender(UnixStream);

impl Write for AgentSender {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for AgentSender {
    fn drop(&mut self) {
        // The agent may have closed the socket.
        let _ = self.0.shutdown(Shutdown::Write);
    }
}

struct LocalAgent(Child);

impl Guard for LocalAgent {
    fn why_ended(&mut self) -> String {
        match ended_within(&mut self.0, END_LIMIT) {
            Some(status) => format!("the agent of this host ended ({status})"),
            None => "the agent of this host closed its channel".to_owned(),
        }
    }

    fn end(&mut self) {
        if ended_within(&mut self.0, END_LIMIT).is_some() {
            return;
        }
        let _ = kill_process(Pid::from_child(&self.0), Signal::TERM);
        if ended_within(&mut self.0, TERM_LIMIT).is_none() {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }
}

impl Drop for LocalAgent {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn only_a_copys_own_folder_is_removed() {
        let folder = std::env::temp_dir().join(format!("caravan-other-{}", std::process::id()));
        std::fs::create_dir(&folder).expect("made");
        assert!(remove_copy(&folder, MARK).is_err() && folder.exists());
        let own = folder.join(format!("{MARK}-12345678"));
        std::fs::create_dir(&own).expect("made");
        assert!(remove_copy(&own, MARK).is_ok() && !own.exists());
        std::fs::remove_dir(&folder).expect("removed");
    }

    #[test]
    fn a_descriptor_passes() {
        let (ours, theirs) = UnixStream::pair().expect("a pair");
        let (reader, writer) = rustix::pipe::pipe().expect("a pipe");
        give(&ours, &writer).expect("given");
        drop(writer);
        let mut writer = std::fs::File::from(take(&theirs).expect("taken"));
        writer.write_all(b"through").expect("written");
        drop(writer);
        let mut said = String::new();
        std::fs::File::from(reader).read_to_string(&mut said).expect("read");
        assert_eq!(said, "through");
    }

    #[test]
    fn anything_else_is_refused() {
        let (mut ours, theirs) = UnixStream::pair().expect("a pair");
        ours.write_all(&[GREETING]).expect("written");
        assert!(take(&theirs).is_err(), "no descriptor");
        drop(ours);
        assert!(take(&theirs).is_err(), "the end");
    }

    #[test]
    fn the_agents_channel_ends_with_its_writer() {
        let (ours, mut theirs) = UnixStream::pair().expect("a pair");
        let _from = ours.try_clone().expect("cloned");
        drop(AgentSender(ours));
        assert_eq!(theirs.read(&mut [0]).expect("read"), 0);
    }
}
