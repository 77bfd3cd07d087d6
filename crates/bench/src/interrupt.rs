//! Ctrl-C and termination as a flag, so that what was started is stopped in order.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGTSTP, SIGTTIN, SIGTTOU};

use crate::error::Error;

/// How long a wait may last before the flag is checked again.
pub const GLANCE: Duration = Duration::from_millis(100);

/// The signals with which a terminal stops all processes of a job.
pub const JOB_CONTROL: [i32; 3] = [SIGTSTP, SIGTTIN, SIGTTOU];

/// Returns the signals that end a command. SIGHUP, of a terminal that is gone, is left out if it is ignored, as under
/// nohup.
pub fn endings() -> impl Iterator<Item = i32> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let hangup = (!ignores(&status, SIGHUP)).then_some(SIGHUP);
    [SIGINT, SIGTERM].into_iter().chain(hangup)
}

/// True if a process of that status (proc_pid_status(5)) ignores the signal.
fn ignores(status: &str, signal: i32) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask >> (signal - 1) & 1 == 1
}

/// A flag that the first signal sets; the second signal ends the process on the spot.
#[derive(Clone, Debug)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Installs the signal handlers.
    pub fn watch() -> Result<Self, Error> {
        let flag = Arc::new(AtomicBool::new(false));
        for signal in endings() {
            // The order matters: the second signal finds the flag set, the first does not.
            signal_hook::flag::register_conditional_shutdown(signal, 130, Arc::clone(&flag))
                .and_then(|_| signal_hook::flag::register(signal, Arc::clone(&flag)))
                .map_err(Error::Signals)?;
        }
        Ok(Self(flag))
    }

    /// Returns a flag that is set when job control stops this process: by Ctrl-Z, or because a command that it has
    /// started reads from the terminal in the background. The caller then stops in order.
    pub fn stops() -> Result<Arc<AtomicBool>, Error> {
        let flag = Arc::new(AtomicBool::new(false));
        for signal in JOB_CONTROL {
            signal_hook::flag::register(signal, Arc::clone(&flag)).map_err(Error::Signals)?;
        }
        Ok(flag)
    }

    /// Wraps a flag that the caller sets.
    pub fn by(flag: Arc<AtomicBool>) -> Self {
        Self(flag)
    }

    /// Returns the flag, for a caller that checks it itself.
    pub fn flag(&self) -> &Arc<AtomicBool> {
        &self.0
    }

    /// Returns [`Error::Interrupted`] once a signal came.
    pub fn check(&self) -> Result<(), Error> {
        // The handler stores with SeqCst; no other data depend on the flag.
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
