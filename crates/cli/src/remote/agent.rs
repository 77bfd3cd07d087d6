//! `caravan pipe-agent`: the other side of pipes, on another host behind ssh or beside the caller.
//!
//! Two processes: the outer one waits, the inner one serves; see [`caravan_pipe::agent`].

use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use caravan_pipe::agent::{keep_held, serve, supervise};
use caravan_pipe::control::{MARK, identity};
use rustix::process::{Signal, set_parent_process_death_signal};
use signal_hook::consts::SIGINT;

use super::launcher::WORD;
use super::local;
use crate::error::Error;
use caravan_bench::interrupt::{JOB_CONTROL, endings};

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

/// Serves until its channel ends.
pub fn run(args: &PipeAgent) -> Result<(), Error> {
    if args.probe {
        return writeln!(io::stdout(), "{}", identity()).map_err(Error::Output);
    }
    if args.hold {
        keep_held();
        return Ok(());
    }
    let terminated = Arc::new(AtomicBool::new(false));
    watch(&terminated).map_err(Error::Signals)?;
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
        // The login shell has read its .bashrc. Without this, bash takes the command of a stage for another
        // login and reads it again, and what it prints would get into the stage's output.
        false => command.env("SHLVL", "1"),
    };
    match supervise(command, &terminated)? {
        true => Ok(()),
        false => Err(Error::Said),
    }
}

/// Handles signals, and ignores none but those that were ignored already, as the commands that it starts inherit that.
/// Ctrl-C does nothing: it is for whoever started the pipeline. Nor does Ctrl-Z, which stops the commands and the
/// coordinator: the other ends of this agent's hops would take it for dead.
fn watch(terminated: &Arc<AtomicBool>) -> io::Result<()> {
    for signal in endings().chain(JOB_CONTROL) {
        let ends = signal != SIGINT && !JOB_CONTROL.contains(&signal);
        signal_hook::flag::register(signal, if ends { Arc::clone(terminated) } else { Arc::default() })?;
    }
    Ok(())
}

fn inner(is_local: bool, terminated: &Arc<AtomicBool>) -> Result<(), Error> {
    let failed = |call| move |source: io::Error| caravan_pipe::Error::System { call, source };
    let die = set_parent_process_death_signal(Some(Signal::TERM));
    die.map_err(|source| failed("prctl(PR_SET_PDEATHSIG)")(source.into()))?;
    let served = if is_local {
        let input = local::take(io::stdin()).map_err(failed("recvmsg"))?;
        let output = own(io::stdout()).map_err(failed("dup"))?;
        let to = UnixStream::from(own(io::stdin()).map_err(failed("dup"))?);
        let from = to.try_clone().map_err(failed("dup"))?;
        serve(from, to, Some((input, output)), terminated)
    } else {
        let mut out = io::stdout();
        // A greeting before it may lack the end of its line.
        write!(out, "\n{MARK} ready\n").and_then(|()| out.flush()).map_err(Error::Output)?;
        let to = own(io::stdout()).map_err(failed("dup"))?;
        let from = own(io::stdin()).map_err(failed("dup"))?;
        serve(std::fs::File::from(from), std::fs::File::from(to), None, terminated)
    };
    // The coordinator has said it, or is gone.
    served.map_err(|_| Error::Said)
}

/// The same descriptor, to be owned.
fn own(what: impl AsFd) -> io::Result<OwnedFd> {
    what.as_fd().try_clone_to_owned()
}

/// Removes the folder that this program's file was copied to: it runs on without, and nothing is left of it
/// however it ends. Nothing but a folder that was made for that.
pub fn remove_copy(folder: &Path, mark: &str) -> Result<(), Error> {
    let failed = |source| Error::File { what: "remove", path: folder.to_owned(), source };
    let is_ours = folder.file_name().is_some_and(|name| name.to_string_lossy().starts_with(mark));
    if !is_ours {
        return Err(failed(io::ErrorKind::InvalidInput.into()));
    }
    std::fs::remove_dir_all(folder).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
