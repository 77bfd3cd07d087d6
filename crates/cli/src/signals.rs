//! What signals ask of a command that runs until it is stopped.

use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use caravan_bench::Error as Shared;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;

use crate::error::Error;

/// What the signals ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// Nothing.
    Nothing,
    /// Read the configuration again.
    Reload,
    /// End, after Ctrl-C.
    Interrupt,
    /// End, after SIGTERM or because the terminal is gone.
    End,
}

/// Flags that signals set. A second SIGINT or SIGTERM ends the process on the spot.
#[derive(Debug)]
pub struct RunSignals {
    end: Arc<AtomicUsize>,
    reload: Arc<AtomicBool>,
    has_terminal: bool,
}

impl RunSignals {
    /// Installs the signal handlers.
    pub fn watch() -> Result<Self, Error> {
        let end = Arc::new(AtomicUsize::new(0));
        let again = Arc::new(AtomicBool::new(false));
        let reload = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM] {
            // The order matters: the second signal finds the flag set, the first does not.
            flag::register_conditional_shutdown(signal, 130, Arc::clone(&again))
                .and_then(|_| flag::register(signal, Arc::clone(&again)))
                .and_then(|_| flag::register_usize(signal, Arc::clone(&end), signal as usize))
                .map_err(Shared::Signals)?;
        }
        flag::register(SIGHUP, Arc::clone(&reload)).map_err(Shared::Signals)?;
        Ok(Self { end, reload, has_terminal: std::io::stdin().is_terminal() })
    }

    /// Returns what was asked for since the last call; a request to end stays.
    pub fn asked(&self) -> Asked {
        // The handlers store with SeqCst; no other data depend on the flags.
        let end = self.end.load(Ordering::Relaxed);
        if end != 0 {
            return if end == SIGINT as usize { Asked::Interrupt } else { Asked::End };
        }
        if !self.reload.swap(false, Ordering::Relaxed) {
            return Asked::Nothing;
        }
        // The kernel also sends SIGHUP when the terminal of the command is gone; then standard input is no terminal
        // any more.
        if self.has_terminal && !std::io::stdin().is_terminal() { Asked::End } else { Asked::Reload }
    }
}
