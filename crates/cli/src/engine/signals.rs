//! The signals that a running engine acts on. They only set flags: no thread may be there when
//! workers are forked.

use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;

use crate::error::Error;

/// What was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// Nothing.
    Nothing,
    /// To read the file again.
    Reload,
    /// To end, by Ctrl-C.
    Interrupt,
    /// To end, by SIGTERM or a terminal that is gone.
    End,
}

/// Set by signals. A second SIGINT or SIGTERM ends the process on the spot, and the kernel its workers.
#[derive(Debug)]
pub struct Signals {
    end: Arc<AtomicUsize>,
    reload: Arc<AtomicBool>,
    has_terminal: bool,
}

impl Signals {
    /// Takes the signals over.
    pub fn watch() -> Result<Self, Error> {
        let end = Arc::new(AtomicUsize::new(0));
        let again = Arc::new(AtomicBool::new(false));
        let reload = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM] {
            // In this order: the second signal finds the flag set, the first does not.
            flag::register_conditional_shutdown(signal, 130, Arc::clone(&again))
                .and_then(|_| flag::register(signal, Arc::clone(&again)))
                .and_then(|_| flag::register_usize(signal, Arc::clone(&end), signal as usize))
                .map_err(Error::Signals)?;
        }
        flag::register(SIGHUP, Arc::clone(&reload)).map_err(Error::Signals)?;
        Ok(Self { end, reload, has_terminal: std::io::stdin().is_terminal() })
    }

    /// What was asked for since the last call; an end stays asked for.
    pub fn asked(&self) -> Asked {
        // The handlers store with SeqCst; nothing else hangs on the flags.
        let end = self.end.load(Ordering::Relaxed);
        if end != 0 {
            return if end == SIGINT as usize { Asked::Interrupt } else { Asked::End };
        }
        if !self.reload.swap(false, Ordering::Relaxed) {
            return Asked::Nothing;
        }
        // The kernel's SIGHUP, for whoever ran on a terminal that is gone; a terminal that hung up is none.
        if self.has_terminal && !std::io::stdin().is_terminal() { Asked::End } else { Asked::Reload }
    }
}
