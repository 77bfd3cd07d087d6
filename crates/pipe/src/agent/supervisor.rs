//! The outer process of an agent.

use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, WaitStatus, getpid, pidfd_open, set_child_subreaper, wait,
};

use super::processes;
use crate::Error;
use crate::limits::TERM_GRACE;

/// Between two looks at the flag.
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// Runs the inner process of an agent, and kills all that came of it unless it exits with 0. `terminated`
/// is set by whoever wants it to end. Returns whether it exited with 0.
pub fn supervise(mut command: Command, terminated: &AtomicBool) -> Result<bool, Error> {
    let failed = |call| move |source: std::io::Error| Error::System { call, source };
    let adopt = set_child_subreaper(Some(getpid()));
    adopt.map_err(|source| failed("prctl(PR_SET_CHILD_SUBREAPER)")(source.into()))?;
    let child = command.spawn().map_err(failed("spawn"))?;
    let inner = Pid::from_child(&child);
    let ended = pidfd_open(inner, PidfdFlags::empty());
    let ended = ended.map_err(|source| failed("pidfd_open")(source.into()))?;
    let mut was_told = false;
    let status = loop {
        if let Some(status) = reap(inner).map_err(|source| failed("wait")(source.into()))? {
            break status;
        }
        // A signal ends the wait early, which does no harm.
        let _ = poll(&mut [PollFd::new(&ended, PollFlags::IN)], Some(&LOOK));
        // Set by a signal handler; nothing else hangs on it.
        if terminated.load(Ordering::Relaxed) && !was_told {
            was_told = true;
            processes::signal(&[inner], Signal::TERM);
        }
    };
    let went_well = status.exit_status() == Some(0);
    if !went_well {
        // The inner process has told of what cannot be ended, and seen to its input.
        processes::end(|| processes::descendants(getpid()), TERM_GRACE, || ());
    }
    Ok(went_well)
}

/// Takes leave of all children that have ended, adopted ones too, and says how the inner process has.
fn reap(inner: Pid) -> Result<Option<WaitStatus>, Errno> {
    loop {
        match wait(WaitOptions::NOHANG) {
            Ok(Some((process, status))) if process == inner => return Ok(Some(status)),
            Ok(Some(_)) | Err(Errno::INTR) => {}
            Ok(None) => return Ok(None),
            Err(error) => return Err(error),
        }
    }
}
