//! Ctrl-C and termination as a flag, so that what was started is stopped in order.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGTSTP, SIGTTIN, SIGTTOU};

use crate::error::Error;

/// How long a wait may last before the flag is looked at again.
pub const GLANCE: Duration = Duration::from_millis(100);

/// What a terminal stops all processes of a job with.
pub const JOB_CONTROL: [i32; 3] = [SIGTSTP, SIGTTIN, SIGTTOU];

/// Set by the first SIGINT, SIGTERM or SIGHUP; the second ends the process on the spot.
#[derive(Clone, Debug)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Takes the signals over.
    pub fn watch() -> Result<Self, Error> {
        let flag = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            // In this order: the second signal finds the flag set, the first does not.
            signal_hook::flag::register_conditional_shutdown(signal, 130, Arc::clone(&flag))
                .and_then(|_| signal_hook::flag::register(signal, Arc::clone(&flag)))
                .map_err(Error::Signals)?;
        }
        Ok(Self(flag))
    }

    /// A flag that is set when job control stops this process, for whoever stops it in order then: by Ctrl-Z, or
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
