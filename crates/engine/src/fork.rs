//! Forks a worker. The `unsafe` code is fork(2), and the first steps of the child.

use std::panic::{AssertUnwindSafe, catch_unwind};

use rustix::process::Signal;

use crate::error::{Error, system};

/// The exit status of a worker whose app panicked; the message is on standard error.
pub const PANICKED: i32 = 101;

/// Forks. The child runs `body`, ends with the status that `body` returns, and never returns from here.
/// It is killed when this process ends, for any reason.
///
/// The process must have one thread: a lock that another thread holds would stay locked in the child.
pub fn fork(body: impl FnOnce() -> i32) -> Result<i32, Error> {
    let parent = rustix::process::getpid();
    // SAFETY: the caller has one thread, so no lock is held and the heap is whole in the child.
    let pid = unsafe { libc::fork() };
    match pid {
        -1 => Err(system("fork")(std::io::Error::last_os_error())),
        0 => {
            let tied = rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).is_ok();
            // The parent may have ended before the child was tied to it.
            let orphan = rustix::process::getppid() != Some(parent);
            settle_signals();
            let status =
                if !tied || orphan { 1 } else { catch_unwind(AssertUnwindSafe(body)).unwrap_or(PANICKED) };
            // SAFETY: `_exit` ends the process at once: nothing of the parent's stack is unwound, and none of its
            // handlers is called.
            unsafe { libc::_exit(status) }
        }
        _ => Ok(pid),
    }
}

/// Ignores the signals of a terminal, on which the supervisor ends its workers in order, and resets the
/// other signals that may have a handler.
fn settle_signals() {
    for signal in [libc::SIGINT, libc::SIGHUP, libc::SIGQUIT] {
        // SAFETY: ignoring a signal runs no code in a handler.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
    // A first SIGSEGV that was sent, and not caused by a fault, would only remove the handler that Rust sets
    // to report a full stack.
    for signal in [libc::SIGTERM, libc::SIGSEGV, libc::SIGBUS] {
        // SAFETY: the default action runs no code in a handler, either.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
}
