//! Ctrl-C and termination as a flag, so that what was started is stopped in order.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGTSTP, SIGTTIN, SIGTTOU};

use crate::error::Error;

/// How long a wait may last before the flag is looked at again.
pub const GLANCE: Duration = Duration::from_millis(100);

/// The signals with which a terminal stops all processes of a job.
pub const JOB_CONTROL: [i32; 3] = [SIGTSTP, SIGTTIN, SIGTTOU];

/// Signals that end a command: of a terminal that is gone (SIGHUP) only where that is not to be ignored, as under nohup.
pub fn endings() -> impl Iterator<Item = i32> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let hangup = (!ignores(&status, SIGHUP)).then_some(SIGHUP);
    [SIGINT, SIGTERM].into_iter().chain(hangup)
}

/// Whether a process of that status (proc_pid_status(5)) ignores the signal.
fn ignores(status: &str, signal: i32) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask >> (signal - 1) & 1 == 1
}

/// Set by the first of the signals that end a command; the second ends the process on the spot.
#[derive(Clone, Debug)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Takes the signals over.
    pub fn watch() -> Result<Self, Error> {
        let flag = Arc::new(AtomicBool::new(false));
        for signal in endings() {
            // In this order: the second signal finds the flag set, the first does not.
            signal_hook::flag::register_conditional_shutdown(signal, 130, Arc::clone(&flag))
                .and_then(|_| signal_hook::flag::register(signal, Arc::clone(&flag)))
                .map_err(Error::Signals)?;
        }
        Ok(Self(flag))
    }

    /// A flag that is set when job control stops this process, for a caller that then stops it in order: by Ctrl-Z, or
    /// because a command that it has started reads from the terminal in the background.
    pub fn stops() -> Result<Arc<AtomicBool>, Error> {
        let flag = Arc::new(AtomicBool::new(false));
        for signal in JOB_CONTROL {
            signal_hook::flag::register(signal, Arc::clone(&flag)).map_err(Error::Signals)?;
        }
        Ok(flag)
    }

    /// Set by whoever has the flag.
    pub fn by(flag: Arc<AtomicBool>) -> Self {
        Self(flag)
    }

    /// For whoever looks at it by himself.
    pub fn flag(&self) -> &Arc<AtomicBool> {
        &self.0
    }

    /// [`Error::Interrupted`] once a signal came.
    pub fn check(&self) -> Result<(), Error> {
        // The handler stores with SeqCst; nothing else hangs on the flag.
        if self.0.load(Ordering::Relaxed) { Err(Error::Interrupted) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ignored_signal_shows() {
        let status =
            "Name:\tx\nSigBlk:\t0000000000000000\nSigIgn:\t0000000000001001\nSigCgt:\t0000000000004002\n";
        assert!(ignores(status, SIGHUP) && !ignores(status, SIGINT) && !ignores(status, SIGTERM));
        assert!(!ignores("", SIGHUP));
    }
}
